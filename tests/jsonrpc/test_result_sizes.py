"""jsonrpc/result_sizes.py: what is expected of the next result of a kind of call."""

from __future__ import annotations

import pytest

from concertino.jsonrpc.limits import Limits
from concertino.jsonrpc.result_sizes import ResultSizes

MIB = 2**20
KIND = "tools/call", b'"a"'


def calls_that_fit(sizes: ResultSizes) -> tuple[int, int]:
    """Return how many calls of an unknown kind fit into the default limits."""
    of_connection, of_all = sizes.guess(KIND)
    return 64 * MIB // of_connection, 256 * MIB // of_all


def test_six_first_calls_of_a_connection_and_25_of_all_fit() -> None:
    assert calls_that_fit(ResultSizes(Limits())) == (6, 25)


def test_results_that_may_be_larger_than_all_that_may_be_held_are_expected_to_fit_alone() -> None:
    limits = Limits(max_message_bytes=40 * MIB, max_unread_bytes_total=20 * MIB)
    assert ResultSizes(limits).guess(KIND)[1] == 20 * MIB


@pytest.mark.parametrize(
    ("in_threads", "times", "expected"),
    [
        (False, (0.5, 0.9, 1.0), [(24, 102), (24, 102), (96, 409)]),
        (True, (0.5, 5.4, 5.5, 10.5), [(6, 25), (6, 25), (10, 29), (14, 33)]),
    ],
)
def test_more_calls_may_start_in_time(
    in_threads: bool, times: tuple[float, ...], expected: list[tuple[int, int]]
) -> None:
    sizes = ResultSizes(Limits())
    allowed: list[tuple[int, int]] = []
    for now in times:
        sizes.allow_more(KIND, now, in_threads)
        allowed.append(calls_that_fit(sizes))
    assert allowed == expected


def test_the_calls_that_may_start_do_not_grow_for_ever() -> None:
    sizes = ResultSizes(Limits())
    for now in range(1, 100):
        sizes.allow_more(KIND, float(now))
    assert 2048 <= calls_that_fit(sizes)[0] < 4 * 2048


def test_each_small_result_but_the_first_doubles_the_calls_until_the_size_is_known() -> None:
    sizes = ResultSizes(Limits())
    allowed: list[int] = []
    while KIND not in sizes.known:
        sizes.record(KIND, 1000 + len(allowed))
        allowed.append(calls_that_fit(sizes)[0])
    # Then nothing is guessed any more.
    assert allowed == [6, 12, 24, 48, 96, 192, 384, 768, 1536, 6]
    assert sizes.known == {KIND: 1009}


def test_results_of_medium_size_are_known_sooner() -> None:
    sizes = ResultSizes(Limits())
    for _ in range(3):
        assert KIND not in sizes.known
        sizes.record(KIND, 3 * MIB)
    # 10.7 MiB, 5.3 and 2.7.
    assert sizes.known == {KIND: 3 * MIB}


def test_a_large_result_is_known_at_once_and_forgotten_by_an_eighth_at_a_time() -> None:
    sizes = ResultSizes(Limits())
    sizes.record(KIND, 16 * MIB)
    assert sizes.known == {KIND: 16 * MIB}
    sizes.record(KIND, 100)
    assert sizes.known == {KIND: 14 * MIB}
    sizes.record(KIND, 15 * MIB)
    assert sizes.known == {KIND: 15 * MIB}


def test_more_tools_than_are_remembered_are_forgotten_together() -> None:
    sizes = ResultSizes(Limits())
    sizes.record(KIND, 7)
    sizes.record(KIND, 7)
    assert calls_that_fit(sizes)[0] == 12
    for number in range(4095):
        sizes.record(("tools/call", b'"%d"' % number), 11 * MIB)
    assert len(sizes.known) == 4095
    last = "tools/call", b'"one more"'
    sizes.record(last, 11 * MIB)
    assert sizes.known == {last: 11 * MIB}
    assert calls_that_fit(sizes)[0] == 6
