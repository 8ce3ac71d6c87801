"""incoming_requests.py: the tables of requests, and the state that a request begins with."""

from __future__ import annotations

from concertino.jsonrpc.incoming_requests import (
    Batch,
    IncomingRequest,
    NotificationThrottle,
    RequestTable,
)
from concertino.jsonrpc.token_bucket import TokenBucket


def make_request(id: int | str, size: int = 10) -> IncomingRequest:
    return IncomingRequest(id, "tools/call", {}, size)


def test_a_new_request_is_open_and_in_no_table():
    incoming = make_request(1)
    assert incoming.open
    assert incoming.table is incoming.batch is incoming.throttle is incoming.on_cancel is None
    assert incoming.last_progress < -1e300


def test_requests_are_compared_by_identity():
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


def test_clearing_a_table_leaves_its_requests_as_they_are():
    table = RequestTable[IncomingRequest]()
    incoming = make_request(1)
    table.add(incoming)
    table.clear()
    assert not table
    assert table.size == 0
    assert incoming.table is table


def test_a_new_batch_misses_no_responses():
    batch = Batch()
    assert (batch.answers, batch.ids, batch.missing, batch.size) == ([], set(), 0, 0)


def test_a_throttle_has_a_bucket_for_each_kind_of_notification():
    progress, log = TokenBucket(1, lambda: 0.0), TokenBucket(2, lambda: 0.0)
    throttle = NotificationThrottle(progress, log)
    assert throttle.progress is progress
    assert throttle.log is log
    assert throttle.suppressed == {}
