"""incoming_requests.py: requests of the other side, their table, and the token bucket."""

from __future__ import annotations

from concertino.jsonrpc.incoming_requests import (
    IncomingRequest,
    NotificationThrottle,
    RequestTable,
    TokenBucket,
)


def make_request(id: int | str, size: int = 10) -> IncomingRequest:
    return IncomingRequest(id, "tools/call", {}, size)


def test_a_new_request_is_open_and_in_no_table():
    incoming = make_request(1)
    assert incoming.open
    assert incoming.table is incoming.batch is incoming.throttle is incoming.on_cancel is None
    assert incoming.last_progress < -1e300


def test_incoming_requests_are_compared_by_identity():
    assert make_request(1) != make_request(1)


def test_a_table_keeps_the_order_of_arrival_and_counts_the_bytes():
    table = RequestTable[IncomingRequest]()
    assert table.size == 0
    for id, size in (("b", 10), (1, 20), ("1", 30)):
        table.add(make_request(id, size))
    assert list(table) == ["b", 1, "1"]
    assert table.size == 60


def test_a_request_knows_its_table_until_it_is_removed():
    table = RequestTable[IncomingRequest]()
    first, second = make_request(1, 10), make_request(2, 20)
    table.add(first)
    table.add(second)
    assert first.table is table

    table.remove(first)
    assert first.table is None
    assert list(table) == [2]
    assert table.size == 20


def test_a_request_that_is_discounted_stays_in_its_table_without_bytes():
    table = RequestTable[IncomingRequest]()
    first, second = make_request(1, 10), make_request(2, 20)
    table.add(first)
    table.add(second)

    table.discount(first)
    assert (list(table), table.size) == ([1, 2], 20)
    # Its bytes are not subtracted a second time.
    table.remove(first)
    assert table.size == 20


def test_clearing_a_table_leaves_its_requests_as_they_are():
    table = RequestTable[IncomingRequest]()
    incoming = make_request(1)
    table.add(incoming)
    table.clear()
    assert not table
    assert table.size == 0
    assert incoming.table is table


def test_a_throttle_has_a_bucket_for_each_kind_of_notification():
    progress, log = TokenBucket(1, lambda: 0.0), TokenBucket(2, lambda: 0.0)
    throttle = NotificationThrottle(progress, log)
    assert throttle.progress is progress
    assert throttle.log is log
    assert throttle.suppressed == {}


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_token_bucket_gives_as_many_at_once_as_in_a_second_and_then_as_time_goes_on() -> None:
    clock = Clock()
    bucket = TokenBucket(4, clock)
    assert [bucket.take() for _ in range(5)] == [True] * 4 + [False]
    clock.now += 0.2
    # 0.8 of a token has been refilled.
    assert not bucket.take()
    clock.now += 0.05
    assert [bucket.take(), bucket.take()] == [True, False]
    clock.now += 3600
    # It never holds more than a second's worth.
    assert [bucket.take() for _ in range(5)] == [True] * 4 + [False]
