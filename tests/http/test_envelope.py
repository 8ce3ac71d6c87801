"""http/envelope.py: what the HTTP server reads of a message."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from concertino.http.envelope import Malformed, decode_messages
from concertino.jsonrpc.messages import decode_batch


def test_a_batch_of_700_000_messages_is_refused_before_they_are_decoded() -> None:
    """To decode and check all of them takes twelve times as long as to count them."""
    body = b"[%b]" % b",".join([b'{"method":"x"}'] * 700_000)

    def refuse() -> None:
        with pytest.raises(Malformed, match="1 to 1024 messages, got 700000"):
            decode_messages(body, 1024)

    assert least_cpu_s(refuse) < 4 * least_cpu_s(lambda: decode_batch(body))


def least_cpu_s(work: Callable[[], object]) -> float:
    """The CPU time of a function, the least of three calls."""
    times: list[float] = []
    for _ in range(3):
        begin = time.thread_time()
        work()
        times.append(time.thread_time() - begin)
    return min(times)
