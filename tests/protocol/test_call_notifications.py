"""call_notifications.py: progress and log messages of calls, their limits, and slow readers.

Rules: REQUIREMENTS A.18 and the requirements PR-1 to PR-8, LO-1 to LO-6.
"""

from __future__ import annotations

import pytest
import wire
from example_messages import Example, examples
from session_rig import (
    CALL,
    LEVELS,
    LOG_LEVEL,
    TEXT,
    A,
    D,
    E,
    Rig,
    modern,
    received_levels,
)

from concertino.jsonrpc.incoming_requests import TokenBucket
from concertino.protocol.call import ServerFeatures
from concertino.protocol.request_profile import SessionRequest
from concertino.types.results import Implementation


def progressing(version: str = D, token: int | str = "t") -> tuple[Rig, SessionRequest]:
    rig = Rig() if version == E else Rig().opened(version)
    params = modern(progressToken=token) if version == E else {"_meta": {"progressToken": token}}
    return rig, rig.call(1, "tools/call", params)


@pytest.mark.requirement("PR-4")
@pytest.mark.parametrize("version", wire.REVISIONS)
@pytest.mark.parametrize("token", ["t", "", 0, 2**60])
def test_progress_goes_to_the_token_and_older_clients_get_no_message(
    version: str, token: int | str
):
    rig, incoming = progressing(version, token)
    rig.session.notifications.progress(incoming, 0.5, 2, "half")
    rig.session.notifications.progress(incoming, 1, None, None)
    first, second = (line["params"] for line in rig.take_sent())
    assert first == {"progressToken": token, "progress": 0.5, "total": 2} | (
        {} if version == A else {"message": "half"}
    )
    assert second == {"progressToken": token, "progress": 1}


@pytest.mark.requirement("PR-3")
def test_progress_that_does_not_grow_is_not_sent():
    rig, incoming = progressing()
    for done in (1, 1, 0.5, 1.5, 1.5, -3):
        rig.session.notifications.progress(incoming, done, None, None)
    assert [line["params"]["progress"] for line in rig.take_sent()] == [1, 1.5]


@pytest.mark.requirement("PR-2")
def test_progress_that_nobody_asked_for_is_not_sent():
    rig = Rig().opened()
    rig.session.notifications.progress(rig.call(1, "tools/call", {"_meta": {}}), 1, None, None)
    rig.session.notifications.progress(rig.call(2, "tools/call"), 1, None, None)
    rig.session.notifications.progress(rig.call(3, "tools/call", modern()), 1, None, None)
    assert rig.take_sent() == []


@pytest.mark.requirement("PR-5")
def test_no_progress_after_the_answer():
    rig, incoming = progressing()
    rig.answer(incoming, TEXT)
    rig.session.notifications.progress(incoming, 1, None, None)
    assert rig.take_sent() == []


@pytest.mark.requirement("ME-10", "PR-1")
def test_two_calls_progress_on_their_own_tokens():
    rig = Rig()
    one = rig.call(1, "tools/call", modern(progressToken=1))
    two = rig.call(2, "tools/call", modern(progressToken="1"))
    rig.session.notifications.progress(two, 5, None, None)
    rig.session.notifications.progress(one, 3, None, None)
    assert [line["params"] for line in rig.take_sent()] == [
        {"progressToken": "1", "progress": 5},
        {"progressToken": 1, "progress": 3},
    ]


def test_a_slow_reader_gets_the_newest_progress_when_it_catches_up():
    rig, incoming = progressing()
    rig.session.peer.buffered_bytes = 2**20
    for done in range(1, 20_000):
        rig.session.notifications.progress(incoming, done, None, None)
    assert rig.take_sent() == []
    rig.session.peer.on_drain(0)
    assert [line["params"]["progress"] for line in rig.take_sent()] == [19_999]
    rig.session.notifications.progress(incoming, 20_000, None, None)
    assert [line["params"]["progress"] for line in rig.take_sent()] == [20_000]


def test_a_text_too_long_for_a_message_is_left_out_of_progress():
    rig, incoming = progressing()
    rig.session.notifications.progress(incoming, 1, 2, "x" * 11 * 2**20)
    [told] = rig.take_sent()
    assert told["params"] == {
        "progressToken": told["params"]["progressToken"],
        "progress": 1,
        "total": 2,
    }


def test_a_slow_reader_gets_the_newest_progress_before_the_answer():
    rig, incoming = progressing()
    rig.session.peer.buffered_bytes = 2**20
    rig.session.notifications.progress(incoming, 1, None, None)
    rig.session.notifications.progress(incoming, 2, None, None)
    rig.session.respond(incoming, TEXT)
    progress, answer = rig.take_sent()
    assert progress["params"]["progress"] == 2
    assert answer["id"] == 1


def test_progress_that_was_overtaken_is_not_sent_after_newer():
    rig, incoming = progressing()
    rig.session.peer.buffered_bytes = 2**20
    rig.session.notifications.progress(incoming, 1, None, None)
    rig.session.peer.buffered_bytes = 0
    rig.session.notifications.progress(incoming, 2, None, None)
    rig.session.peer.on_drain(0)
    rig.session.respond(incoming, TEXT)
    first, second = rig.take_sent()
    assert first["params"]["progress"] == 2
    assert second["id"] == 1


# Logging

# Logging, A.18


@pytest.mark.requirement("LO-2")
def test_after_a_handshake_messages_from_info_up_are_sent():
    rig = Rig().opened()
    assert received_levels(rig, rig.call(1, "tools/call")) == LEVELS[1:]


@pytest.mark.requirement("LO-2")
@pytest.mark.parametrize("level", LEVELS)
def test_set_level_opens_and_closes_levels_also_for_calls_under_way(level: str):
    rig = Rig().opened(A)
    incoming = rig.call(1, "tools/call")
    tokened = rig.call(2, "tools/call", {"_meta": {"progressToken": 1}})
    assert rig.ask(3, "logging/setLevel", {"level": level})["result"] == {}
    assert (
        received_levels(rig, incoming)
        == received_levels(rig, tokened)
        == LEVELS[LEVELS.index(level) :]
    )


@pytest.mark.requirement("LO-3", "LO-4", "DP-1")
def test_a_modern_request_hears_what_it_asked_for_and_nothing_else():
    rig = Rig()
    assert received_levels(rig, rig.call(1, "tools/call", modern())) == []
    assert (
        received_levels(rig, rig.call(2, "tools/call", modern(**{LOG_LEVEL: "error"})))
        == LEVELS[4:]
    )
    rig.opened().ask(3, "logging/setLevel", {"level": "debug"})
    assert (
        received_levels(rig, rig.call(4, "tools/call", modern(**{LOG_LEVEL: "alert"})))
        == LEVELS[6:]
    )


def test_a_message_names_its_logger_if_it_has_one():
    rig = Rig().opened()
    rig.session.notifications.log(rig.call(1, "tools/call"), "error", [1, None], "db")
    assert rig.take_sent()[0]["params"] == {"level": "error", "data": [1, None], "logger": "db"}


@pytest.mark.requirement("LO-1")
def test_nothing_is_logged_where_logging_is_not_declared():
    rig = Rig(ServerFeatures(Implementation("n", "1"), tools=True)).opened()
    assert received_levels(rig, rig.call(1, "tools/call")) == []
    assert received_levels(rig, rig.call(2, "tools/call", modern(**{LOG_LEVEL: "debug"}))) == []


@pytest.mark.requirement("LO-6")
def test_beyond_the_high_water_mark_the_last_log_message_is_kept_and_others_are_counted() -> None:
    rig = Rig(max_message_bytes=2000, high_water_bytes=10).opened()
    incoming = rig.call(1, "tools/call")
    rig.session.notifications.log(incoming, "error", "x" * 2000, None)
    assert rig.take_sent() == []
    assert rig.session.notifications.dropped_logs == 1  # longer than a message may be
    rig.session.peer.buffered_bytes = 10
    for number in range(3):
        rig.session.notifications.log(incoming, "error", number, None)
    assert rig.take_sent() == []
    assert rig.session.notifications.dropped_logs == 3
    rig.session.peer.on_drain(0)
    assert [line["params"]["data"] for line in rig.take_sent()] == [2]


# Rates


def test_progress_that_is_too_much_is_merged_and_the_last_leaves_before_the_answer():
    later: list[int] = []
    rig = Rig(progress_per_s=3).opened()
    rig.session.notifications._schedule_flush = lambda: later.append(1)  # pyright: ignore[reportPrivateUsage]
    incoming = rig.call(1, "tools/call", {**CALL, "_meta": {"progressToken": 5}})
    for done in range(10):
        rig.session.notifications.progress(incoming, done, None, None)
    assert [line["params"]["progress"] for line in rig.take_sent()] == [0, 1, 2]
    assert len(later) == 7
    rig.session.respond(incoming, TEXT)
    assert [line.get("params", {}).get("progress", "answer") for line in rig.take_sent()] == [
        9,
        "answer",
    ]


def test_what_was_held_back_leaves_a_moment_later_and_what_is_newer_takes_its_place():
    rig = Rig(progress_per_s=1, logs_per_s=1).opened()
    incoming = rig.call(1, "tools/call", {**CALL, "_meta": {"progressToken": 5}})
    for number in range(4):
        rig.session.notifications.progress(incoming, number, None, None)
        rig.session.notifications.log(incoming, "info", number, None)
    assert len(rig.take_sent()) == 2
    assert rig.session.notifications.dropped_logs == 2
    rig.session.peer.on_drain(0)
    first, second = rig.take_sent()
    assert (first["params"]["progress"], second["params"]["data"]) == (3, 3)
    rig.session.notifications.log(incoming, "info", 4, None)
    assert rig.take_sent() == []
    assert incoming.throttle is not None
    incoming.throttle.log = TokenBucket(1, lambda: 0.0)  # as if time had gone on
    rig.session.notifications.log(incoming, "info", 5, None)
    assert [line["params"]["data"] for line in rig.take_sent()] == [5]
    assert rig.session.notifications.dropped_logs == 3


# Examples of the specification


@pytest.mark.parametrize("example", examples("ProgressNotification"))
def test_the_example_of_progress_is_what_is_sent(example: Example):
    wanted = example.value
    params = wanted["params"]
    rig = Rig()
    incoming = rig.call(1, "tools/call", modern(progressToken=params["progressToken"]))
    # Which a server may add.
    params.pop("_meta", None)
    rig.session.notifications.progress(
        incoming, params["progress"], params.get("total"), params.get("message")
    )
    assert rig.take_sent() == [wanted]


@pytest.mark.parametrize("example", examples("LoggingMessageNotification"))
def test_the_example_of_a_log_message_is_what_is_sent(example: Example):
    wanted = example.value
    params = wanted["params"]
    rig = Rig()
    incoming = rig.call(1, "tools/call", modern(**{LOG_LEVEL: params["level"]}))
    # Which a server may add.
    params.pop("_meta", None)
    rig.session.notifications.log(incoming, params["level"], params["data"], params.get("logger"))
    assert rig.take_sent() == [wanted]


def test_a_closed_session_schedules_nothing():
    later: list[int] = []
    rig, incoming = progressing()
    rig.session.notifications._schedule_flush = lambda: later.append(1)  # pyright: ignore[reportPrivateUsage]
    rig.session.peer.buffered_bytes = 2**20
    rig.session.notifications.progress(incoming, 1, None, None)
    assert later == [1]

    rig.session.notifications.close()
    rig.session.notifications.progress(incoming, 2, None, None)
    assert later == [1]
