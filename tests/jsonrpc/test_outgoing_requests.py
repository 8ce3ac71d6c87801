"""outgoing_requests.py: our requests, their deadlines, and the responses that end them.

Rules: JSON-RPC 2.0 section 5.1; the errors of the specification's examples are read as well.
"""

from __future__ import annotations

import json

import pytest
from example_messages import Example, examples
from msgspec import Raw

from concertino.errors import Disconnected, ProtocolError, RpcError
from concertino.jsonrpc.messages import InvalidMessage, Message, decode
from concertino.jsonrpc.outgoing_requests import OutgoingRequest, PendingTable, parse_error

Outcomes = list[Raw | Exception]


def table_of_one() -> tuple[PendingTable, Outcomes]:
    """Return a table with the request 1, and the list that gets its outcome."""
    table, outcomes = PendingTable(1), Outcomes()
    table.add(outcomes.append, 5.0)
    return table, outcomes


def read(frame: str) -> Message:
    message = decode(frame.encode())
    assert isinstance(message, Message)
    return message


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
    assert table.take_first_deadline() is earliest
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
    assert table.take_first_deadline() is earliest


def test_a_disconnect_ends_all_requests_and_leaves_no_deadline():
    table, outcomes = table_of_one()
    table.add(outcomes.append, None)
    table.disconnect("the cable is out")
    assert [(type(exc), str(exc)) for exc in outcomes] == [(Disconnected, "the cable is out")] * 2
    assert not table
    assert table.next_deadline is None
    assert table.add(ignore, None).id == 3


def test_a_response_ends_its_request_once():
    table, outcomes = table_of_one()
    response = read('{"jsonrpc":"2.0","id":1,"result":{"v":1}}')
    assert table.receive(response)
    assert outcomes == [Raw(b'{"v":1}')]
    assert not table.receive(response)


def test_an_error_response_ends_its_request_with_the_error():
    table, outcomes = table_of_one()
    assert table.receive(read('{"jsonrpc":"2.0","id":1,"error":{"code":-5,"message":"no"}}'))
    [error] = outcomes
    assert isinstance(error, RpcError)
    assert (error.code, error.message) == (-5, "no")


def test_a_response_whose_id_became_a_string_fails_its_request():
    table, outcomes = table_of_one()
    assert table.receive(read('{"jsonrpc":"2.0","id":"1","result":{}}'))
    [error] = outcomes
    assert isinstance(error, ProtocolError)
    assert str(error) == "the answer is malformed: id: expected an integer, got a string"


@pytest.mark.parametrize("id", ["x", "", "1.0", "-1", "²", "1" * 5000, "2"])
def test_other_strings_are_the_id_of_no_request(id: str):
    table, outcomes = table_of_one()
    assert not table.receive(read(json.dumps({"jsonrpc": "2.0", "id": id, "result": {}})))
    assert (len(table), outcomes) == (1, [])


def test_a_malformed_frame_fails_each_request_that_it_answers():
    table, outcomes = table_of_one()
    table.add(outcomes.append, None)
    invalid = InvalidMessage(-32600, "Invalid Request: no version", answered_ids=(2, "1", 7))
    assert table.fail_answered(invalid)
    assert [str(exc) for exc in outcomes] == ["the answer is malformed: no version"] * 2
    assert not table.fail_answered(invalid)


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
