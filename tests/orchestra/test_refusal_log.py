"""orchestra/refusal_log.py: many refused clients do not fill the log."""

from __future__ import annotations

import pytest

from concertino.orchestra.refusal_log import FIRST, INTERVAL_S, RefusalLog


def test_after_the_first_refusals_one_line_in_an_interval_tells_how_many_there_were(
    caplog: pytest.LogCaptureFixture,
) -> None:
    now = 0.0
    refusals = RefusalLog(lambda: now)
    for number in range(300):
        refusals.add(f"{number} was refused")
    assert caplog.messages == [f"{number} was refused" for number in range(FIRST)]

    caplog.clear()
    now = INTERVAL_S / 2
    refusals.add("300 was refused")
    now = INTERVAL_S
    for number in range(301, 400):
        refusals.add(f"{number} was refused")
    assert caplog.messages == [
        "301 was refused; 296 more were refused since the last such line",
    ]

    caplog.clear()
    refusals.report_end("127.0.0.1:9")
    refusals.report_end("127.0.0.1:9")
    assert caplog.messages == ["127.0.0.1:9: 98 more clients were refused"]


def test_after_a_quiet_time_the_first_refusals_are_logged_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    now = 0.0
    refusals = RefusalLog(lambda: now)
    for _ in range(FIRST):
        refusals.add("a")
    now = INTERVAL_S
    for _ in range(2 * FIRST):
        refusals.add("b")
    assert caplog.messages == ["a"] * FIRST + ["b"] * FIRST
