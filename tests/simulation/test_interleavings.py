"""What interleavings.py describes: the events around one request and two, in every order.

`scripts/soak simulation --orders` tries every closeness that Gaps.ODD names, where here one of
each order is tried.
"""

from __future__ import annotations

from itertools import pairwise

import pytest

from simulation.interleavings import (
    CLOSENESS,
    FIRST,
    WAYS_TO_SERVE,
    Gaps,
    gaps_of,
    make_requests,
    serve_calls,
)


@pytest.mark.slow
def test_one_call_in_every_order():
    assert serve_calls(1, Gaps.PRODUCT) == 24 * 4**3


# Each first event is a test of its own, so that none takes long.
@pytest.mark.slow
@pytest.mark.parametrize(("in_flight", "batched"), WAYS_TO_SERVE)
@pytest.mark.parametrize("first", FIRST)
def test_two_calls_in_every_order(first: str, in_flight: int, batched: bool):
    assert serve_calls(2, Gaps.ONE_ODD, in_flight, batched, first) == 120


@pytest.mark.slow
def test_one_request_of_ours_in_every_order():
    assert make_requests(1, Gaps.PRODUCT) == 24 * 4**3


@pytest.mark.slow
@pytest.mark.parametrize("first", FIRST)
def test_two_requests_of_ours_in_every_order(first: str):
    assert make_requests(2, Gaps.ONE_ODD, first) == 120


def test_the_gaps_are_all_there():
    assert len(set(gaps_of(4, Gaps.PRODUCT))) == 64
    every_odd = set(gaps_of(6, Gaps.ODD))
    assert len(every_odd) == 14
    assert all(a in CLOSENESS and b in CLOSENESS for gaps in every_odd for a, b in pairwise(gaps))


def test_fourteen_orders_in_turn_have_every_gap():
    in_turn = [list(gaps_of(6, Gaps.ONE_ODD, number)) for number in range(14)]
    assert [len(gaps) for gaps in in_turn] == [1] * 14
    assert {gaps for [gaps] in in_turn} == set(gaps_of(6, Gaps.ODD))
