"""OversizeWatch: how long a line may be discarded, judged by a clock that the test sets."""

from __future__ import annotations

from typing import Any

from concertino.client.skipped_lines import ENDLESS_S, OversizeWatch


class Discarding:
    """A Connection that is discarding a line which is too long."""

    is_discarding = True
    oversize_head = b'{"jsonrpc"'


def test_each_line_has_its_own_time() -> None:
    connection: Any = Discarding()
    watch = OversizeWatch(connection)
    assert watch.on_oversize(0.0) == b'{"jsonrpc"'
    # The first line has ended, and another one begins a moment before its time is over.
    watch.on_oversize(ENDLESS_S - 1)
    assert not watch.expire(ENDLESS_S)
    assert watch.expire(2 * ENDLESS_S - 1)
    assert not watch.expire(3 * ENDLESS_S)
