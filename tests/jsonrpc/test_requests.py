"""requests.py: requests in both directions, their tables and deadlines, and the token bucket.

Rules: JSON-RPC 2.0 section 5.1; the errors of the specification's examples are read as well.
"""

from __future__ import annotations

import json

import pytest
from example_messages import Example, examples
from msgspec import Raw

from concertino.errors import ProtocolError, RpcError
from concertino.jsonrpc.requests import (
    Batch,
    IncomingRequest,
    NotificationThrottle,
    OutgoingRequest,
    PendingTable,
    RequestTable,
    TokenBucket,
    parse_error,
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


def test_a_new_batch_misses_no_responses():
    batch = Batch()
    assert (batch.answers, batch.ids, batch.missing, batch.size) == ([], set(), 0, 0)


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


def ignore(result: object) -> None:
    """Take the place of a request's callback."""


def test_requests_get_ids_in_sequence_from_the_first_one():
    table = PendingTable(7)
    first, second = table.add(ignore, None), table.add(ignore, 5.0)
    assert (first.id, second.id) == (7, 8)
    assert table == {7: first, 8: second}
    assert second.deadline == 5.0
    assert first.done is ignore


def test_outgoing_requests_are_compared_by_identity():
    assert OutgoingRequest(1, ignore) != OutgoingRequest(1, ignore)


def test_the_next_deadline_is_the_earliest():
    table = PendingTable(1)
    assert table.next_deadline is None
    table.add(ignore, None)
    assert table.next_deadline is None

    table.add(ignore, 20.0)
    earliest = table.add(ignore, 10.0)
    assert table.next_deadline == 10.0
    assert table.pop_first_deadline() is earliest
    assert table.next_deadline == 20.0


def test_an_answered_request_has_no_deadline():
    table = PendingTable(1)
    for deadline in (10.0, 20.0):
        table.add(ignore, deadline)
    del table[1]
    assert table.next_deadline == 20.0
    del table[2]
    assert table.next_deadline is None


def test_deadlines_of_answered_requests_do_not_pile_up():
    table = PendingTable(1)
    # The earliest deadline stays and holds the heap's top.
    earliest = table.add(ignore, 1_500.0)
    table.add(ignore, None)
    for number in range(500):
        outgoing = table.add(ignore, 2_000.0 + number)
        del table[outgoing.id]
        assert table.next_deadline == 1_500.0
    assert len(table._deadlines) < 100
    assert table.pop_first_deadline() is earliest


def test_taking_all_requests_empties_the_table():
    table = PendingTable(1)
    first, second = table.add(ignore, 5.0), table.add(ignore, None)
    assert table.take_all() == [first, second]
    assert not table
    assert table.next_deadline is None
    assert table.add(ignore, None).id == 3


def test_an_error_has_a_code_a_message_and_data():
    error = parse_error(Raw(b'{"code":-32601,"message":"no","data":[1],"more":true}'))
    assert isinstance(error, RpcError)
    assert (error.code, error.message, error.data) == (-32601, "no", [1])


@pytest.mark.parametrize(
    "example", examples("MissingRequiredClientCapabilityError", "UnsupportedProtocolVersionError")
)
def test_an_example_error_of_the_specification_is_read(example: Example):
    wanted = example.value["error"]
    error = parse_error(Raw(json.dumps(wanted).encode()))
    assert isinstance(error, RpcError)
    assert (error.code, error.message, error.data) == (
        wanted["code"],
        wanted["message"],
        wanted["data"],
    )


@pytest.mark.requirement("JR-8")
@pytest.mark.parametrize(
    "body",
    [
        b"5",
        b"{}",
        b'{"code":"x"}',
        b'{"code":1}',
        b'{"message":"x"}',
        b"null",
        b'{"code":1.5,"message":"x"}',
        b'{"code":1,"message":"x","data":' + b"[" * 200_000 + b"]" * 200_000 + b"}",
    ],
)
def test_a_malformed_error_is_a_protocol_error(body: bytes):
    error = parse_error(Raw(body))
    assert isinstance(error, ProtocolError)
    assert "expected an error object" in str(error)
