"""peer.py: ids, admission, batches, cancel, deadlines. Frames are written out; the rules are
JSON-RPC 2.0, 2025-03-26 "Batching", 2026-07-28 basic/patterns/cancellation, and RELIABILITY
sections 2, 3 and 6. At the end a model of dicts and lists runs beside.
"""

from __future__ import annotations

import json
import weakref
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from msgspec import Raw

from concertino.errors import Disconnected, ProtocolError, RpcError
from concertino.jsonrpc.incoming_requests import IncomingRequest, NotificationThrottle, TokenBucket
from concertino.jsonrpc.limits import Limits
from concertino.jsonrpc.messages import Message
from concertino.jsonrpc.outgoing_requests import OutgoingRequest
from concertino.jsonrpc.peer import Peer

BUSY, INVALID = -31001, -32600


def holding(frame: bytes) -> NotificationThrottle:
    """What a call has that could not tell its progress."""
    telling = NotificationThrottle(TokenBucket(1, lambda: 0.0), TokenBucket(1, lambda: 0.0))
    telling.suppressed["progress"] = frame
    return telling


class Line:
    """A peer with what it sent, on a clock that stands still unless moved.

    The transport holds what `held` says.
    """

    def __init__(self, **limits: Any) -> None:
        self.sent: list[Any] = []
        self.about: list[object] = []
        self.now = 1000.0
        self.held = 0
        self.peer = Peer(self._send, Limits(**limits), lambda: self.now)

    def _send(self, frame: bytes, about: object) -> int:
        assert b"\n" not in frame
        self.sent.append(json.loads(frame))
        self.about.append(about)
        return self.held

    def take_sent(self) -> list[Any]:
        """What was sent since the last look."""
        sent, self.sent = self.sent, []
        return sent

    def call(self, id: int | str, method: str = "x") -> IncomingRequest:
        event = self.peer.receive(
            b'{"jsonrpc":"2.0","id":%b,"method":"%b"}' % (json.dumps(id).encode(), method.encode())
        )
        assert isinstance(event, IncomingRequest)
        return event

    def running(self, id: int | str) -> IncomingRequest:
        incoming = self.call(id)
        assert self.peer.admit(incoming)
        self.peer.add_running(incoming)
        return incoming

    def batch(self, *elements: Any) -> list[IncomingRequest | Message]:
        events = self.peer.receive(json.dumps(elements).encode())
        assert isinstance(events, list)
        return events


def request(id: int | str, method: str = "x") -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": id, "method": method}


def result(id: int | str, value: object) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": id, "result": value}


def error(id: object, code: int, message: str, **data: object) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": id, "error": {"code": code, "message": message, **data}}


IN_USE = "Invalid Request: this id is in use by a request in flight"

# Answers


def test_a_request_is_answered_with_its_result():
    line = Line()
    incoming = line.call("a")
    assert (incoming.id, incoming.method, incoming.size) == (
        "a",
        "x",
        len(b'{"jsonrpc":"2.0","id":"a","method":"x"}'),
    )
    line.peer.respond(incoming, b'{"v":1}')
    assert line.take_sent() == [result("a", {"v": 1})]
    assert line.about == ["a"]


def test_a_request_is_answered_with_an_error():
    line = Line()
    line.peer.fail(line.call(1), -32601, "no", {"d": 1})
    assert line.take_sent() == [error(1, -32601, "no", data={"d": 1})]


def test_a_request_gets_one_answer_only():
    line = Line()
    for incoming in (line.call(1), line.running(2)):
        line.peer.respond(incoming, b"{}")
        line.take_sent()
        line.peer.respond(incoming, b"{}")
        line.peer.fail(incoming, 1, "x")
        assert line.take_sent() == []


@pytest.mark.requirement("JR-6")
def test_one_and_the_text_one_are_different_ids():
    line = Line()
    number, text = line.running(1), line.running("1")
    line.peer.respond(text, b"{}")
    line.peer.respond(number, b"{}")
    assert line.take_sent() == [result("1", {}), result(1, {})]


def test_an_id_in_flight_is_refused_and_the_first_request_is_not_disturbed():
    line = Line(max_in_flight=1)
    running = line.running(1)
    waiting = line.call(2)
    assert not line.peer.admit(waiting)
    for id in (1, 2):
        assert line.peer.receive(json.dumps(request(id)).encode()) is None
        assert line.take_sent() == [error(id, INVALID, IN_USE)]
    line.peer.respond(running, b"{}")
    assert line.peer.pop_waiting() is waiting
    line.peer.respond(waiting, b"{}")
    assert line.take_sent() == [result(1, {}), result(2, {})]


@pytest.mark.requirement("JR-5")
def test_an_id_may_be_used_again_after_its_answer():
    line = Line()
    for _ in range(2):
        line.peer.respond(line.running(1), b"{}")
    assert line.take_sent() == [result(1, {}), result(1, {})]


def test_a_notification_is_handed_over_and_never_answered():
    line = Line()
    event = line.peer.receive(
        b'{"jsonrpc":"2.0","method":"notifications/unknown","params":{"a":1}}'
    )
    assert isinstance(event, Message)
    assert event.method == "notifications/unknown"
    assert line.take_sent() == []


# Garbage


def test_what_is_no_message_is_answered_without_an_id():
    line = Line()
    assert line.peer.receive(b"{not json}") is None
    [answer] = line.take_sent()
    assert answer["id"] is None
    assert answer["error"]["code"] == -32700


def test_the_id_is_left_out_where_the_revision_wants_it():
    line = Line()
    line.peer.invalid_input.unknown_id = None
    line.peer.receive(b"42")
    [answer] = line.take_sent()
    assert "id" not in answer


def test_garbage_with_a_readable_id_is_answered_on_it():
    line = Line()
    line.peer.receive(b'{"id":5,"method":"x"}')
    assert line.take_sent() == [error(5, INVALID, 'Invalid Request: jsonrpc: expected "2.0"')]


def test_blank_lines_and_broken_responses_are_not_answered():
    line = Line()
    for frame in (
        b"",
        b"  ",
        b'{"result":1}',
        b'{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":""}}',
    ):
        assert line.peer.receive(frame) is None
    assert line.take_sent() == []


def test_answers_to_garbage_are_limited_to_ten_a_second_and_the_rest_is_counted():
    line = Line()
    for _ in range(100):
        line.peer.receive(b"{not json}")
    assert len(line.take_sent()) == 10
    assert line.peer.invalid_input.suppressed == 90
    line.now += 0.5
    for _ in range(100):
        line.peer.receive(b"{not json}")
    assert len(line.take_sent()) == 5
    line.now += 3600
    for _ in range(100):
        line.peer.receive(b"{not json}")
    assert len(line.take_sent()) == 10


def test_garbage_with_an_id_is_answered_beyond_the_rate():
    line = Line()
    for id in range(100):
        line.peer.receive(b'{"id":%d,"method":"x"}' % id)
    assert len(line.take_sent()) == 100


def test_an_overlong_message_is_answered_with_the_limit():
    line = Line(max_message_bytes=100)
    line.peer.on_frame_too_long(102)
    text = "Invalid Request: a message longer than 100 bytes (limit)"
    assert line.take_sent() == [
        error(None, INVALID, text, data={"limitBytes": 100, "receivedBytes": 102})
    ]


@pytest.mark.parametrize(
    ("head", "id"),
    [
        (b'{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"a":"xxx', 7),
        (b' { "method" : "x" , "id" : "a, b" , "params":{"a":"xxx', "a, b"),
        (b'{"id":7,"params":{"id":8,"a":"xxx', 7),
        # The id is not complete, or not there.
        (b'{"jsonrpc":"2.0","id":7', None),
        (b'{"jsonrpc":"2.0","id":"one, two', None),
        (b'{"jsonrpc":"2.0","id":"one\\",two', None),
        (b'{"jsonrpc":"2.0","method":"x","params":{"id":7,"a":"xxx', None),
        (b'{"id":7.5,"method":"x",', None),
        (b"xxxxxxxxx", None),
        (b"", None),
    ],
)
def test_an_overlong_request_is_answered_on_the_id_at_its_beginning(head: bytes, id: object):
    line = Line(max_message_bytes=100)
    line.peer.on_frame_too_long(102, head)
    text = "Invalid Request: a message longer than 100 bytes (limit)"
    assert line.take_sent() == [
        error(id, INVALID, text, data={"limitBytes": 100, "receivedBytes": 102})
    ]


def test_an_overlong_response_fails_its_request_and_is_not_answered():
    line = Line(max_message_bytes=100)
    outgoing, answers = ask(line)
    line.take_sent()

    line.peer.on_frame_too_long(102, b'{"jsonrpc":"2.0","id":%d,"result":{"a":"x' % outgoing.id)
    line.peer.on_frame_too_long(102, b'{"jsonrpc":"2.0","id":%d,"result":{"a":"x' % outgoing.id)

    failure = answers.last()
    assert isinstance(failure, ProtocolError)
    assert "a message longer than 100 bytes (limit)" in str(failure)
    assert line.take_sent() == []


def test_a_client_does_not_answer_garbage_but_counts_it():
    line = Line()
    line.peer.invalid_input.answered = False
    line.peer.receive(b"{not json}")
    line.peer.receive(b'{"id":5,"method":"x"}')
    line.peer.receive(b"[]")
    line.peer.on_frame_too_long(1)
    assert line.take_sent() == []
    assert line.peer.invalid_input.unsolicited == 4


def test_a_client_counts_broken_answers_to_nobody():
    """An error without an id, one with both a result and an error, for no request."""
    line = Line()
    line.peer.invalid_input.answered = False
    line.peer.receive(b'{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"?"}}')
    line.peer.receive(b'{"jsonrpc":"2.0","id":1,"result":{},"error":{"code":1,"message":"?"}}')
    assert line.take_sent() == []
    assert line.peer.invalid_input.unsolicited == 2


@pytest.mark.parametrize("is_client", [True, False])
@pytest.mark.parametrize(
    ("frame", "problem"),
    [
        (b'{"jsonrpc":"2.0","id":1,"result":{},"error":{}}', "a result and an error"),
        (b'{"jsonrpc":"2.0","id":"1","result":{}}', "id: expected an integer, got a string"),
        (b'{"jsonrpc":"2.0","id":1,"result":NaN}', "JSON is malformed: invalid character"),
        (b'[{"jsonrpc":"2.0","id":1,"result":{}}]', "batches are not part of this"),
        (b'[{"jsonrpc":"1.0","id":1,"result":{}}]', "batches are not part of this"),
    ],
)
def test_a_malformed_response_fails_its_request(is_client: bool, frame: bytes, problem: str):
    line = Line()
    line.peer.invalid_input.answered = not is_client
    _, answers = ask(line)
    line.peer.receive(frame)
    assert str(answers.last()).startswith(f"the answer is malformed: {problem}")
    assert line.peer.invalid_input.unsolicited == 0


@pytest.mark.parametrize(
    "frame", [b'{"jsonrpc":"2.0","id":1}', b'{"jsonrpc":"2.0","id":1,"method":"x","result":{}}']
)
def test_what_may_be_a_request_fails_a_request_of_a_client_and_is_answered_by_a_server(
    frame: bytes,
):
    server, client = Line(), Line()
    client.peer.invalid_input.answered = False
    outcomes = [ask(line)[1] for line in (server, client)]
    server.peer.receive(frame)
    client.peer.receive(frame)
    assert [len(answers) for answers in outcomes] == [0, 1]
    assert [message.get("id") for message in server.take_sent()] == [1, 1]
    assert len(client.take_sent()) == 1


# Admission


def test_calls_beyond_the_limit_in_flight_wait_and_start_in_order():
    line = Line(max_in_flight=1)
    first = line.running(0)
    others = [line.call(id) for id in range(1, 5)]
    assert [line.peer.admit(each) for each in others] == [False] * 4
    assert line.peer.pop_waiting() is None
    line.peer.respond(first, b"{}")
    for each in others:
        assert line.peer.pop_waiting() is each
        line.peer.add_running(each)
        assert line.peer.pop_waiting() is None
        line.peer.respond(each, b"{}")
    assert [answer["id"] for answer in line.take_sent()] == [0, 1, 2, 3, 4]


def test_a_new_call_does_not_overtake_waiting_ones():
    line = Line(max_in_flight=1)
    first = line.running(0)
    second, third = line.call(1), line.call(2)
    line.peer.admit(second)
    line.peer.respond(first, b"{}")
    assert not line.peer.admit(third)
    assert line.peer.pop_waiting() is second


@pytest.mark.requirement("EC-5")
def test_a_full_queue_answers_busy():
    line = Line(max_in_flight=1, max_waiting=1)
    line.running(0)
    line.peer.admit(line.call(1))
    assert not line.peer.admit(line.call(2))
    data = {"maxWaiting": 1, "maxWaitingBytes": 16 * 2**20}
    assert line.take_sent() == [error(2, BUSY, "busy: 1 calls in flight, 1 waiting", data=data)]
    assert list(line.peer.waiting) == [1]


def test_the_bytes_of_waiting_calls_are_limited_and_given_back():
    line = Line(max_in_flight=1, max_waiting_bytes=74)  # two calls of 37 bytes
    running = line.running(0)
    for id in (1, 2, 3):
        line.peer.admit(line.call(id))
    assert [answer["id"] for answer in line.take_sent()] == [3]
    line.peer.cancel(2, "")
    line.peer.admit(line.call(4))
    line.peer.respond(running, b"{}")
    line.take_sent()
    admitted = line.peer.pop_waiting()
    assert admitted is not None
    assert admitted.id == 1
    line.peer.add_running(admitted)
    line.peer.admit(line.call(5))
    assert line.take_sent() == []
    line.peer.admit(line.call(6))
    assert [answer["id"] for answer in line.take_sent()] == [6]


def test_no_call_starts_while_much_output_is_held():
    line = Line(high_water_bytes=100)
    line.held = 100
    line.peer.notify("x", b"{}")
    call = line.call(1)
    assert not line.peer.admit(call)
    line.peer.on_drain(99)
    assert line.peer.pop_waiting() is call


def test_calls_wait_for_a_backend_that_starts():
    line = Line()
    line.peer.ready = False
    call = line.call(1)
    assert not line.peer.admit(call)
    assert line.peer.pop_waiting() is None
    line.peer.ready = True
    assert line.peer.pop_waiting() is call


def test_a_waiting_call_can_be_answered_without_starting():
    line = Line()
    line.peer.ready = False
    call = line.call(1)
    line.peer.admit(call)
    line.peer.fail(call, -32603, "no")
    assert not line.peer.waiting
    assert line.take_sent() == [error(1, -32603, "no")]


# Cancel


def test_a_cancelled_call_is_stopped_with_the_reason_and_not_answered():
    line = Line()
    incoming = line.running(1)
    reasons: list[str] = []
    incoming.on_cancel = reasons.append
    line.peer.cancel(1, "enough")
    line.peer.cancel(1, "again")
    assert reasons == ["enough"]
    line.peer.respond(incoming, b"{}")
    line.peer.fail(incoming, 1, "x")
    assert line.take_sent() == []
    assert not line.peer.running


def test_a_cancelled_waiting_call_never_starts():
    line = Line(max_in_flight=1)
    running, waiting = line.running(1), line.call(2)
    line.peer.admit(waiting)
    line.peer.cancel(2, "")
    line.peer.respond(running, b"{}")
    assert line.peer.pop_waiting() is None


def test_cancelling_what_is_unknown_or_answered_or_of_the_other_type_is_ignored():
    line = Line()
    line.peer.respond(line.running(1), b"{}")
    line.running(2)
    line.take_sent()
    for id in (1, "2", 99):
        line.peer.cancel(id, "")
    assert line.take_sent() == []
    assert list(line.peer.running) == [2]


# Batches, 2025-03-26


def test_a_batch_is_refused_where_the_revision_has_none():
    line = Line()
    assert line.peer.receive(b'[{"jsonrpc":"2.0","id":1,"method":"x"}]') is None
    assert line.take_sent() == [
        error(None, INVALID, "Invalid Request: batches are not part of this protocol revision")
    ]


def batching(**limits: Any) -> Line:
    line = Line(**limits)
    line.peer.batches.accepted = True
    return line


@pytest.mark.requirement("JR-14")
def test_the_answers_of_a_batch_come_together_when_the_last_is_there():
    line = batching()
    one, note, two = line.batch(request(1), {"jsonrpc": "2.0", "method": "n"}, request("two"))
    assert isinstance(one, IncomingRequest)
    assert isinstance(note, Message)
    assert isinstance(two, IncomingRequest)
    line.peer.respond(two, b'{"v":2}')
    assert line.take_sent() == []
    line.peer.fail(one, 1, "x")
    assert line.take_sent() == [[result("two", {"v": 2}), error(1, 1, "x")]]
    assert line.about == [None]


def test_a_byte_order_mark_before_a_batch_is_accepted():
    line = batching()
    events = line.peer.receive(b"\xef\xbb\xbf" + json.dumps([request(1)]).encode())
    assert isinstance(events, list)
    assert len(events) == 1


@pytest.mark.requirement("JR-14")
def test_a_batch_of_notifications_and_responses_is_not_answered():
    line = batching()
    events = line.batch(
        {"jsonrpc": "2.0", "method": "n"}, {"jsonrpc": "2.0", "id": 1, "result": {}}, {"result": 1}
    )
    assert len(events) == 1
    assert line.take_sent() == []
    assert line.peer.invalid_input.unsolicited == 1


def test_garbage_in_a_batch_is_answered_in_it():
    # JSON-RPC 2.0 section 7: [1,2,3] is answered with three errors.
    line = batching(garbage_answers_per_s=1)
    assert line.batch(1, 2, 3) == []
    [answers] = line.take_sent()
    assert [(each["id"], each["error"]["code"]) for each in answers] == [(None, INVALID)] * 3


DEEP = "[" * 200_000 + "]" * 200_000


def test_a_request_of_a_batch_that_is_nested_too_deeply_is_refused_on_its_id():
    line = batching()
    deep = [
        f'{{"jsonrpc":"2.0","id":7,"method":"x","params":{{"a":{DEEP}}}}}',
        f'{{"jsonrpc":"2.0","method":"x","params":{{"a":{DEEP}}},"id":"]["}}',
    ]
    events = line.peer.receive(f"[{deep[0]}, {json.dumps(request(8))},{deep[1]}]".encode())
    assert isinstance(events, list)
    [other] = events
    assert isinstance(other, IncomingRequest)
    line.peer.respond(other, b"{}")
    text = "Parse error: nested too deeply"
    assert line.take_sent() == [[error(7, -32700, text), error("][", -32700, text), result(8, {})]]


@pytest.mark.parametrize("batch", [DEEP, f"[{DEEP},", f"[1,{DEEP}]]", f"[{DEEP},,1]", f"[{DEEP}}}"])
def test_what_is_no_batch_of_messages_and_nested_too_deeply_gets_a_single_error(batch: str):
    line = batching()
    line.peer.receive(batch.encode())
    [answer] = line.take_sent()
    [answer] = answer if isinstance(answer, list) else [answer]
    assert answer["id"] is None


@pytest.mark.requirement("JR-14")
def test_an_empty_batch_gets_a_single_error():
    line = batching()
    line.peer.receive(b"[]")
    text = "Invalid Request: expected a batch of 1 to 1024 messages, got 0"
    assert line.take_sent() == [error(None, INVALID, text)]


def test_a_batch_of_too_many_messages_is_refused_as_a_whole():
    line = batching(max_batch=2)
    assert line.peer.receive(json.dumps([request(id) for id in range(3)]).encode()) is None
    assert line.take_sent() == [
        error(None, INVALID, "Invalid Request: expected a batch of 1 to 2 messages, got 3")
    ]


def test_a_batch_without_its_cancelled_requests_is_sent_when_the_others_are_answered():
    line = batching()
    one, two, three = line.batch(request(1), request(2), request(3))
    for each in (one, two, three):
        assert isinstance(each, IncomingRequest)
        line.peer.add_running(each)
    line.peer.cancel(1, "")
    line.peer.respond(two, b"{}")  # type: ignore[arg-type]
    assert line.take_sent() == []
    line.peer.cancel(3, "")
    assert line.take_sent() == [[result(2, {})]]


def test_a_request_is_cancelled_also_if_the_rest_of_its_batch_cannot_be_written():
    def no_memory(*_: object) -> int:
        raise MemoryError

    line = batching()
    one, two = line.batch(request(1), request(2))
    reasons: list[str] = []
    for item in (one, two):
        assert isinstance(item, IncomingRequest)
        item.on_cancel = reasons.append
        line.peer.add_running(item)
    line.peer.respond(one, b"{}")  # type: ignore[arg-type]
    line.peer.send = no_memory
    with pytest.raises(MemoryError):
        line.peer.cancel(2, "enough")
    assert reasons == ["enough"]


def test_a_batch_whose_requests_are_all_cancelled_is_not_answered():
    line = batching()
    [one] = line.batch(request(1))
    line.peer.add_running(one)  # type: ignore[arg-type]
    line.peer.cancel(1, "")
    assert line.take_sent() == []


def test_an_id_that_comes_twice_in_one_batch_is_refused_the_second_time():
    line = batching()
    events = line.batch(request(1), request(1), request("1"))
    assert [event.id for event in events] == [1, "1"]
    for event in events:
        assert isinstance(event, IncomingRequest)
        line.peer.add_running(event)
        line.peer.respond(event, b"{}")
    assert line.take_sent() == [[error(1, INVALID, IN_USE), result(1, {}), result("1", {})]]


def test_the_answers_of_unfinished_batches_are_bounded_together():
    line = batching(max_message_bytes=2500)
    one, two, three = line.batch(request(1), request(2), request(3))
    four, five = line.batch(request(4), request(5))
    text = (
        "Internal error: the answers of unfinished batches would have more than 2500 bytes (limit)"
    )
    large = json.dumps("x" * 1000).encode()
    assert isinstance(one, IncomingRequest)
    for incoming in (one, four, two):
        assert isinstance(incoming, IncomingRequest)
        line.peer.respond(incoming, large)
    assert line.take_sent() == []
    assert isinstance(five, IncomingRequest)
    line.peer.respond(five, b"{}")
    assert line.take_sent() == [[result(4, "x" * 1000), result(5, {})]]
    assert isinstance(three, IncomingRequest)
    line.peer.respond(three, b"{}")
    assert line.take_sent() == [[result(1, "x" * 1000), error(2, -32603, text), result(3, {})]]
    [six] = line.batch(request(6))
    assert isinstance(six, IncomingRequest)
    line.peer.respond(six, large)
    assert line.take_sent() == [[result(6, "x" * 1000)]]


def test_a_call_of_a_batch_that_finds_the_queue_full_is_busy_in_its_batch():
    line = batching(max_in_flight=1, max_waiting=1)
    line.running(0)
    one, two = line.batch(request(1), request(2))
    for each in (one, two):
        assert isinstance(each, IncomingRequest)
        assert not line.peer.admit(each)
    assert line.take_sent() == []
    line.peer.cancel(1, "")
    [[answer]] = line.take_sent()
    assert (answer["id"], answer["error"]["code"]) == (2, BUSY)


def test_an_error_too_long_for_a_message_goes_without_data_and_with_the_beginning_of_its_text():
    line = Line(max_message_bytes=1000)
    line.peer.fail(line.call(1), -32603, "m" * 300, "d" * 1000)
    assert line.take_sent() == [error(1, -32603, "m" * 256)]
    line.peer.fail(line.call(2), -32603, "m", "d" * 900)
    assert line.take_sent() == [error(2, -32603, "m", data="d" * 900)]


# Progress for slow readers


def test_what_waits_for_a_slow_reader_leaves_when_output_drains():
    line = Line()
    incoming = line.running(1)
    line.running(2)
    incoming.throttle = holding(b'{"progress":5}')
    line.peer.on_drain(0)
    assert line.take_sent() == [{"progress": 5}]
    assert line.about == [1]
    line.peer.on_drain(0)
    assert line.take_sent() == []


@pytest.mark.parametrize("started", [True, False])
def test_what_waits_for_a_slow_reader_leaves_before_the_answer(started: bool):
    line = Line()
    incoming = line.running(1) if started else line.call(1)
    incoming.throttle = holding(b'{"progress":5}')
    line.peer.respond(incoming, b"{}")
    assert line.take_sent() == [{"progress": 5}, result(1, {})]


def test_what_waits_for_a_slow_reader_is_dropped_with_a_cancel():
    line = Line()
    line.running(1).throttle = holding(b'{"progress":5}')
    line.peer.cancel(1, "")
    line.peer.on_drain(0)
    assert line.take_sent() == []


def test_an_announcement_waits_for_a_slow_reader_and_is_then_made_once():
    line = Line(high_water_bytes=100)
    line.peer.send_coalesced(b'{"changed":"a"}')
    assert line.take_sent() == [{"changed": "a"}]
    line.peer.buffered_bytes = 100
    for _ in range(1000):
        line.peer.send_coalesced(b'{"changed":"b"}')
        line.peer.send_coalesced(b'{"changed":"a"}')
    assert line.take_sent() == []
    line.peer.on_drain(0)
    line.peer.on_drain(0)
    assert line.take_sent() == [{"changed": "b"}, {"changed": "a"}]


def test_an_announcement_that_waits_for_a_slow_reader_is_dropped_at_the_end():
    line = Line(high_water_bytes=100)
    line.peer.buffered_bytes = 100
    line.peer.send_coalesced(b'{"changed":"a"}')
    line.peer.close()
    line.peer.on_drain(0)
    assert line.take_sent() == []


def test_what_waits_for_a_slow_reader_leaves_no_further_than_to_the_high_water_mark():
    line = Line(high_water_bytes=100)
    for id in (1, 2):
        line.running(id).throttle = holding(b'{"progress":%d}' % id)
    line.peer.buffered_bytes = 100
    line.peer.send_coalesced(b'{"changed":"a"}')
    line.held = 100  # from now on, whatever is sent
    line.peer.on_drain(0)
    assert line.take_sent() == [{"progress": 1}]
    line.peer.on_drain(99)
    assert line.take_sent() == [{"progress": 2}]
    line.peer.on_drain(99)
    assert line.take_sent() == [{"changed": "a"}]


# Requests of ours


class Answers(list[Any]):
    """What a request's `done` was called with."""

    def last(self) -> Any:
        [only] = self
        return bytes(only) if isinstance(only, Raw) else only


def ask(line: Line, deadline: float | None = None) -> tuple[OutgoingRequest, Answers]:
    answers = Answers()
    return line.peer.request("ping", b"{}", answers.append, deadline), answers


def test_a_request_of_ours_gets_its_result():
    line = Line()
    first, one = ask(line)
    second, two = ask(line)
    assert line.take_sent() == [
        {"jsonrpc": "2.0", "id": 1, "method": "ping", "params": {}},
        {"jsonrpc": "2.0", "id": 2, "method": "ping", "params": {}},
    ]
    assert (first.id, second.id) == (1, 2)
    line.peer.receive(b'{"jsonrpc":"2.0","id":2,"result":{"v":[1, 2]}}')
    assert two.last() == b'{"v":[1, 2]}'
    assert one == []


def test_a_request_of_ours_gets_the_error_of_the_other_side():
    line = Line()
    _, answers = ask(line)
    line.peer.receive(b'{"jsonrpc":"2.0","id":1,"error":{"code":-32601,"message":"no","data":[1]}}')
    failure = answers.last()
    assert isinstance(failure, RpcError)
    assert (failure.code, failure.message, failure.data) == (-32601, "no", [1])


def test_a_malformed_error_fails_our_request():
    line = Line()
    _, answers = ask(line)
    line.peer.receive(b'{"jsonrpc":"2.0","id":1,"error":5}')
    assert isinstance(answers.last(), ProtocolError)


@pytest.mark.parametrize("id", [b"2", b'"2"', b"-1", b'"x"'])
def test_an_answer_to_another_id_is_stray(id: bytes):
    line = Line()
    _, answers = ask(line)
    line.take_sent()
    line.peer.receive(b'{"jsonrpc":"2.0","id":%b,"result":{}}' % id)
    line.peer.receive(b'{"jsonrpc":"2.0","error":{"code":1,"message":""}}')
    assert answers == []
    assert line.peer.invalid_input.unsolicited == 2
    assert line.take_sent() == []


@pytest.mark.requirement("JR-4", "JR-18")
def test_requests_of_both_sides_may_have_the_same_id_and_ours_have_none_twice():
    line = Line()
    outgoing = [ask(line) for _ in range(3)]
    ids = [each["id"] for each in line.take_sent()]
    assert len(set(ids)) == 3
    theirs = [line.running(id) for id in ids]
    for id, (_, answers) in zip(ids, outgoing, strict=True):
        line.peer.receive(b'{"jsonrpc":"2.0","id":%d,"result":{"v":%d}}' % (id, id))
        assert [bytes(answer) for answer in answers] == [b'{"v":%d}' % id]
    for incoming in theirs:
        line.peer.respond(incoming, b"{}")
    assert line.take_sent() == [result(id, {}) for id in ids]
    ask(line)
    assert line.take_sent()[0]["id"] not in ids  # nor after their answers


def test_a_second_answer_is_stray():
    line = Line()
    _, answers = ask(line)
    for _ in range(2):
        line.peer.receive(b'{"jsonrpc":"2.0","id":1,"result":{}}')
    assert len(answers) == 1
    assert line.peer.invalid_input.unsolicited == 1


@pytest.mark.requirement("CA-3", "CA-4", "CA-8")
def test_an_abandoned_request_is_cancelled_once_and_its_late_answer_is_stray():
    line = Line()
    outgoing, answers = ask(line)
    line.take_sent()
    line.peer.abandon(outgoing, "no longer needed")
    line.peer.abandon(outgoing, "no longer needed")
    params = {"requestId": 1, "reason": "no longer needed"}
    assert line.take_sent() == [
        {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params}
    ]
    line.peer.receive(b'{"jsonrpc":"2.0","id":1,"result":{}}')
    assert answers == []
    assert line.peer.invalid_input.unsolicited == 1


def test_a_request_expires_at_its_deadline():
    line = Line()
    _, late = ask(line, 1002.0)
    _, soon = ask(line, 1001.0)
    _, never = ask(line)
    line.take_sent()
    assert line.peer.outgoing.next_deadline == 1001.0
    line.peer.expire(1000.9)
    assert line.take_sent() == []
    line.peer.expire(1001.0)
    assert [each["params"]["requestId"] for each in line.take_sent()] == [2]
    assert isinstance(soon.last(), TimeoutError)
    assert late == never == []
    line.peer.expire(5000.0)
    assert isinstance(late.last(), TimeoutError)
    assert never == []
    assert line.peer.outgoing.next_deadline is None


def test_an_answered_request_does_not_expire():
    line = Line()
    _, answers = ask(line, 1001.0)
    line.peer.receive(b'{"jsonrpc":"2.0","id":1,"result":{}}')
    assert line.peer.outgoing.next_deadline is None
    line.peer.expire(2000.0)
    assert len(answers) == 1


def test_the_first_id_can_be_chosen():
    sent: list[bytes] = []

    def send(frame: bytes, about: object) -> int:
        sent.append(frame)
        return 0

    Peer(send, Limits(), lambda: 0.0, first_id=2**40).request("x", b"{}", print)
    assert sent == [b'{"jsonrpc":"2.0","id":1099511627776,"method":"x","params":{}}']


# The end


def test_closing_fails_our_requests_and_gives_back_the_calls_that_were_cut_off():
    line = Line(max_in_flight=1)
    running, waiting = line.running(1), line.call(2)
    line.peer.admit(waiting)
    _, answers = ask(line, 5000.0)
    line.take_sent()
    assert line.peer.close() == [running, waiting]
    assert isinstance(answers.last(), Disconnected)
    for incoming in (running, waiting):
        line.peer.respond(incoming, b"{}")
    line.peer.cancel(1, "")
    assert line.take_sent() == []
    assert line.peer.outgoing.next_deadline is None
    assert line.peer.pop_waiting() is None
    assert line.peer.close() == []


def test_a_closed_peer_sends_nothing_and_lets_go_of_whoever_sent():
    class Sender:
        def __call__(self, frame: bytes, about: object) -> int:
            raise AssertionError(frame)

    sender = Sender()
    known = weakref.ref(sender)
    peer = Peer(sender, Limits(), lambda: 0.0)
    del sender
    assert known() is not None
    peer.close()
    assert known() is None
    peer.notify("notifications/late", b"{}")
    peer.receive(b"not JSON")
    assert peer.buffered_bytes == 0


# A model beside the peer


class ModelBatch:
    def __init__(self) -> None:
        self.missing = 0
        self.answers: list[Any] = []
        self.closed = False  # all its elements were opened


class ModelCall:
    def __init__(self, incoming: IncomingRequest, size: int, batch: ModelBatch | None) -> None:
        self.incoming = incoming
        self.size = size
        self.batch = batch
        self.stopped: list[str] = []


IDS = st.sampled_from([1, 2, 3, 4, 5, "1", "2", ""])
LIMITS = Limits(
    max_in_flight=2,
    max_waiting=3,
    max_waiting_bytes=400,
    high_water_bytes=500,
    garbage_answers_per_s=2,
    max_batch=4,
)
CODES = st.sampled_from([-32603, -1])


class PeerMachine(RuleBasedStateMachine):
    """Every rule says what must be sent; what was sent is compared frame by frame."""

    @initialize()
    def begin(self) -> None:
        self.sent: list[Any] = []
        self.held = 0
        self.now = 0
        self.peer = Peer(self._send, LIMITS, lambda: float(self.now))
        self.peer.batches.accepted = True
        self.running: dict[object, ModelCall] = {}
        self.waiting: dict[object, ModelCall] = {}
        self.over: list[ModelCall] = []  # answered or cancelled
        self.ours: dict[int, list[Any]] = {}
        self.deadlines: dict[int, int] = {}
        self.tokens = 2
        self.tokens_at = 0
        self.stray = 0
        self.suppressed = 0
        self.closed = False
        self.ready = True
        self.slow = False  # the reader

    def _send(self, frame: bytes, about: object) -> int:
        self.sent.append(json.loads(frame))
        if self.slow:
            self.held += len(frame)
        return self.held

    def expect(self, *frames: Any) -> None:
        assert self.sent == list(frames)
        self.sent = []

    # The model of answers: alone, or into a batch

    def end_call(self, call: ModelCall, answer: Any) -> list[Any]:
        self.over.append(call)
        return self.collect_answer(call.batch, answer)

    def collect_answer(self, batch: ModelBatch | None, answer: Any) -> list[Any]:
        if batch is None:
            return [] if answer is None else [answer]
        if answer is not None:
            batch.answers.append(answer)
        batch.missing -= 1
        return [batch.answers] if not batch.missing and batch.answers else []

    def free(self) -> bool:
        return self.ready and len(self.running) < 2 and self.held < 500

    def open_call(
        self, incoming: IncomingRequest, size: int, batch: ModelBatch | None, at_once: bool
    ) -> list[Any]:
        """What the session does with a request, and what is to be sent for it."""
        call = ModelCall(incoming, size, batch)
        incoming.on_cancel = call.stopped.append
        starts = not self.waiting and self.free()
        full = (
            len(self.waiting) >= 3 or sum(each.size for each in self.waiting.values()) + size > 400
        )
        counts = f"busy: {len(self.running)} calls in flight, {len(self.waiting)} waiting"
        assert self.peer.admit(incoming) is starts
        if starts:
            return self.step(call, at_once)
        if full:
            data = {"maxWaiting": 3, "maxWaitingBytes": 400}
            return self.end_call(call, error(incoming.id, BUSY, counts, data=data))
        self.waiting[incoming.id] = call
        return []

    def step(self, call: ModelCall, at_once: bool) -> list[Any]:
        """The first step of a call: it answers, or goes on."""
        if at_once:
            self.peer.respond(call.incoming, b'{"at":"once"}')
            return self.end_call(call, result(call.incoming.id, {"at": "once"}))
        self.peer.add_running(call.incoming)
        self.running[call.incoming.id] = call
        return []

    def in_use(self, id: object) -> bool:
        return any(id == each and type(id) is type(each) for each in (*self.running, *self.waiting))

    # What comes in

    @precondition(lambda self: not self.closed)
    @rule(id=IDS, padding=st.integers(0, 150), at_once=st.booleans())
    def request_comes(self, id: int | str, padding: int, at_once: bool) -> None:
        frame = json.dumps({**request(id), "pad": "x" * padding}).encode()
        event = self.peer.receive(frame)
        if self.in_use(id):
            assert event is None
            self.expect(error(id, INVALID, IN_USE))
        else:
            assert isinstance(event, IncomingRequest)
            self.expect(*self.open_call(event, len(frame), None, at_once))

    @precondition(lambda self: not self.closed)
    @rule(elements=st.lists(IDS | st.none() | st.booleans(), max_size=5), at_once=st.booleans())
    def batch_comes(self, elements: list[int | str | bool | None], at_once: bool) -> None:
        """None stands for a notification, True for garbage, False for garbage with an id."""
        written: list[Any] = []
        for each in elements:
            if each is None:
                written.append({"jsonrpc": "2.0", "method": "n"})
            elif each is True:
                written.append([])
            elif each is False:
                written.append({"id": 9, "method": "x"})
            else:
                written.append(request(each))
        events = self.peer.receive(json.dumps(written, separators=(",", ":")).encode())
        if not 0 < len(elements) <= 4:
            text = f"Invalid Request: expected a batch of 1 to 4 messages, got {len(elements)}"
            assert events is None
            self.expect(*self.garbage(error(None, INVALID, text)))
            return
        batch = ModelBatch()
        seen: list[object] = []
        wanted: list[object] = []
        for each in elements:
            if each is None:
                wanted.append(None)
            elif each is True:
                batch.answers.append(
                    error(None, INVALID, "Invalid Request: expected object, got array")
                )
            elif each is False:
                batch.answers.append(error(9, INVALID, 'Invalid Request: jsonrpc: expected "2.0"'))
            elif each in seen or self.in_use(each):
                batch.answers.append(error(each, INVALID, IN_USE))
            else:
                seen.append(each)
                wanted.append(each)
        batch.missing = len(seen)
        assert isinstance(events, list)
        assert [
            event.id if isinstance(event, IncomingRequest) else None for event in events
        ] == wanted
        expected = [batch.answers] if not seen and batch.answers else []
        for event in events:
            if isinstance(event, IncomingRequest):
                size = len(json.dumps(request(event.id), separators=(",", ":")))
                expected += self.open_call(event, size, batch, at_once)
        self.expect(*expected)

    @precondition(lambda self: not self.closed)
    @rule(method=st.sampled_from(["notifications/x", "tools/call"]))
    def notification_comes(self, method: str) -> None:
        event = self.peer.receive(json.dumps({"jsonrpc": "2.0", "method": method}).encode())
        assert isinstance(event, Message)
        self.expect()

    @precondition(lambda self: not self.closed)
    @rule(
        frame=st.sampled_from([b"42", b"null", b"{}x", b'{"jsonrpc":"2.0"}', b"\xff"]),
        seconds=st.integers(0, 1),
    )
    def garbage_comes(self, frame: bytes, seconds: int) -> None:
        self.now += seconds
        self.peer.receive(frame)
        for answer in self.sent:
            assert answer["id"] is None
            assert answer["error"]["code"] in (-32700, -32600)
        self.expect(*self.garbage(*self.sent))

    def garbage(self, *answer: Any) -> list[Any]:
        self.tokens = min(2, self.tokens + 2 * (self.now - self.tokens_at))
        self.tokens_at = self.now
        if not self.tokens:
            self.suppressed += 1
            return []
        self.tokens -= 1
        assert len(answer) == 1
        return list(answer)

    @precondition(lambda self: not self.closed)
    @rule(id=IDS)
    def garbage_with_an_id_comes(self, id: int | str) -> None:
        self.peer.receive(json.dumps({"id": id, "method": "x"}).encode())
        self.expect(error(id, INVALID, 'Invalid Request: jsonrpc: expected "2.0"'))

    @precondition(lambda self: not self.closed)
    @rule(id=IDS)
    def cancel_comes(self, id: int | str) -> None:
        self.peer.cancel(id, "why")
        call = self.running.pop(id, None) or self.waiting.pop(id, None)
        if call is None:
            self.expect()
            return
        assert call.stopped == ["why"]
        self.expect(*self.end_call(call, None))

    # What the backend does

    @precondition(lambda self: self.waiting)
    @rule(at_once=st.booleans())
    def the_driver_admits(self, at_once: bool) -> None:
        self.expect(*self.admit_waiting(at_once))

    def admit_waiting(self, at_once: bool) -> list[Any]:
        expected: list[Any] = []
        for _ in range(10):
            first = next(iter(self.waiting), None)
            may = first is not None and self.free()
            incoming = self.peer.pop_waiting()
            if not may:
                assert incoming is None
                break
            call = self.waiting.pop(first)
            assert incoming is call.incoming
            expected += self.step(call, at_once)
        return expected

    @precondition(lambda self: self.running or self.waiting)
    @rule(data=st.data(), code=st.none() | CODES, at_once=st.booleans())
    def a_call_is_answered(self, data: st.DataObject, code: int | None, at_once: bool) -> None:
        table = data.draw(st.sampled_from([each for each in (self.running, self.waiting) if each]))
        id = data.draw(st.sampled_from(list(table)))
        call = table.pop(id)
        if code is None:
            self.peer.respond(call.incoming, b'{"v":1}')
            expected = self.end_call(call, result(id, {"v": 1}))
        else:
            self.peer.fail(call.incoming, code, "text")
            expected = self.end_call(call, error(id, code, "text"))
        self.expect(*expected, *self.admit_waiting(at_once))

    @precondition(lambda self: self.over)
    @rule(data=st.data())
    def a_call_is_answered_too_late(self, data: st.DataObject) -> None:
        call = data.draw(st.sampled_from(self.over))
        self.peer.respond(call.incoming, b"{}")
        self.peer.fail(call.incoming, 1, "x")
        self.expect()

    @rule(at_once=st.booleans())
    def the_backend_becomes_ready_or_not(self, at_once: bool) -> None:
        self.peer.ready = self.ready = not self.ready
        self.expect(*self.admit_waiting(at_once))

    @precondition(lambda self: not self.slow)
    @rule()
    def the_reader_becomes_slow(self) -> None:
        self.slow = True

    @precondition(lambda self: self.slow)
    @rule(left=st.sampled_from([0, 0, 10, 499]), at_once=st.booleans())
    def output_drains(self, left: int, at_once: bool) -> None:
        self.slow = left > 0
        self.held = min(self.held, left)
        self.peer.on_drain(self.held)
        self.expect(*self.admit_waiting(at_once))

    # Requests of ours

    @precondition(lambda self: not self.closed)
    @rule(within=st.none() | st.integers(1, 5))
    def we_ask(self, within: int | None) -> None:
        answers: list[Any] = []
        deadline = None if within is None else self.now + within
        outgoing = self.peer.request("ping", b"{}", answers.append, deadline)
        assert outgoing.id not in self.ours
        self.ours[outgoing.id] = answers
        if deadline is not None:
            self.deadlines[outgoing.id] = deadline
        self.expect({"jsonrpc": "2.0", "id": outgoing.id, "method": "ping", "params": {}})

    @precondition(lambda self: not self.closed)
    @rule(data=st.data(), good=st.booleans())
    def an_answer_comes(self, data: st.DataObject, good: bool) -> None:
        id = data.draw(st.sampled_from([*self.ours, 0, "x"]))
        body: Any = {"result": {}} if good else {"error": {"code": 7, "message": "no"}}
        waiting = isinstance(id, int) and id in self.peer.outgoing
        self.peer.receive(json.dumps({"jsonrpc": "2.0", "id": id, **body}).encode())
        if waiting:
            self.deadlines.pop(id, None)
            [answer] = self.ours[id]
            assert isinstance(answer, Raw if good else RpcError)
        else:
            self.stray += 1
        self.expect()

    @precondition(lambda self: not self.closed)
    @rule(seconds=st.integers(0, 6))
    def time_passes(self, seconds: int) -> None:
        self.now += seconds
        due = sorted((at, id) for id, at in self.deadlines.items() if at <= self.now)
        self.peer.expire(float(self.now))
        for _, id in due:
            del self.deadlines[id]
            [answer] = self.ours[id]
            assert isinstance(answer, TimeoutError)
        cancels = [{"requestId": id, "reason": "timed out"} for _, id in due]
        self.expect(
            *(
                {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": each}
                for each in cancels
            )
        )

    # The end

    @precondition(lambda self: not self.closed and self.now > 6)
    @rule()
    def the_connection_closes(self) -> None:
        calls = [*self.running.values(), *self.waiting.values()]
        assert self.peer.close() == [each.incoming for each in calls]
        self.over += calls
        self.running.clear()
        self.waiting.clear()
        self.deadlines.clear()
        self.closed = True
        self.expect()
        assert all(len(answers) == 1 for answers in self.ours.values())

    # What holds at any time

    @invariant()
    def the_tables_are_those_of_the_model(self) -> None:
        assert list(self.peer.waiting) == list(self.waiting)  # order of arrival
        assert set(self.peer.running) == set(self.running)
        assert len(self.peer.running) <= 2
        assert len(self.peer.waiting) <= 3
        assert self.peer.waiting.size == sum(each.size for each in self.waiting.values()) <= 400

    @invariant()
    def the_counters_are_those_of_the_model(self) -> None:
        assert self.peer.invalid_input.unsolicited == self.stray
        assert self.peer.invalid_input.suppressed == self.suppressed
        assert self.peer.buffered_bytes == self.held
        assert self.peer.outgoing.next_deadline == min(self.deadlines.values(), default=None)

    @invariant()
    def nothing_is_answered_twice(self) -> None:
        assert all(len(answers) <= 1 for answers in self.ours.values())
        assert self.sent == []


PeerMachine.TestCase.settings = settings(
    max_examples=150, stateful_step_count=50, deadline=None, derandomize=True
)


@pytest.mark.no_cover
class TestPeerBesideItsModel(PeerMachine.TestCase):
    """One class: Hypothesis makes its machines unittest cases."""


def test_calls_are_admitted_while_the_bytes_of_those_in_flight_are_below_the_limit() -> None:
    peer = Peer(lambda frame, about: 0, Limits(max_in_flight_bytes=100), lambda: 0.0)
    first, second = (IncomingRequest(n, "tools/call", {}, 100) for n in (1, 2))
    assert peer.admit(first)
    peer.add_running(first)
    assert not peer.admit(second)
    assert peer.pop_waiting() is None
    peer.respond(first, b"{}")
    assert peer.pop_waiting() is second


def test_one_call_may_wait_whatever_its_size() -> None:
    sent: list[bytes] = []
    peer = Peer(
        lambda frame, about: len(sent.append(frame) or b""),
        Limits(max_waiting_bytes=10),
        lambda: 0.0,
    )  # type: ignore[func-returns-value]
    peer.ready = False
    assert not peer.admit(IncomingRequest(1, "tools/call", {}, 1000))
    assert list(peer.waiting) == [1]
    assert not peer.admit(IncomingRequest(2, "tools/call", {}, 1))
    assert b"-31001" in sent[0]


def test_when_input_ends_our_requests_fail_and_answers_still_leave():
    line = Line()
    outcomes: list[object] = []
    line.peer.request("elicitation/create", b"{}", outcomes.append)
    line.peer.on_eof()
    [outcome] = outcomes
    assert isinstance(outcome, Disconnected)
    assert line.peer.outgoing == {}


def test_what_was_announced_about_a_request_is_forgotten_with_it():
    line = Line(high_water_bytes=1)
    line.peer.buffered_bytes = 1
    for about in (1, 2):
        line.peer.send_coalesced(b'{"about":%d}' % about, about)
    line.peer.drop_coalesced(1)
    line.held = 0
    line.peer.on_drain(0)
    assert line.sent == [{"about": 2}]


# Responses that are not read; more of them in test_unread_results.py


def large(line: Line, id: int) -> IncomingRequest:
    """A running call that has got a response of 5 MB, which the transport holds if it is sent."""
    incoming = line.running(id)
    line.held = 5_000_000
    line.peer.respond(incoming, b'{"x":"%b"}' % (b"x" * 5_000_000))
    return incoming


def test_a_response_beyond_the_budget_waits_until_output_has_left():
    line = Line(max_unread_bytes=8_000_000, high_water_bytes=10**9)
    large(line, 1)
    large(line, 2)
    large(line, 3)
    assert [message["id"] for message in line.take_sent()] == [1]
    line.peer.on_drain(4_999_999)
    assert line.take_sent() == []
    line.peer.cancel(2, "enough")
    line.held = 0
    line.peer.on_drain(0)
    assert [message["id"] for message in line.take_sent()] == [3]
    assert not line.peer.running


def test_a_response_is_dropped_when_too_many_wait_or_nothing_is_read():
    line = Line(max_unread_bytes=8_000_000, high_water_bytes=10**9)
    for id in range(8):
        large(line, id)
    first, *dropped = line.take_sent()
    assert (first["id"], [message["id"] for message in dropped]) == (0, [5, 6, 7])
    line.peer.settle_waiting_responses()
    dropped += line.take_sent()
    assert [message["id"] for message in dropped] == [5, 6, 7, 1, 2, 3, 4]
    assert {message["error"]["code"] for message in dropped} == {-32603}


def test_a_request_that_stays_open_is_not_expected_to_return_anything():
    line = Line(max_unread_bytes=1)
    incoming = line.call(1)
    line.peer.add_running(incoming, has_result=False)
    assert incoming.kind is None
    line.peer.respond(incoming, b"{}")
    assert [message["id"] for message in line.take_sent()] == [1]


def test_a_response_that_cannot_be_decoded_fails_its_request():
    line = Line()
    outcomes: list[object] = []
    outgoing = line.peer.request("x", b"{}", outcomes.append)
    deep = b"[" * 200_000 + b"]" * 200_000
    line.peer.receive(b'{"jsonrpc":"2.0","id":%d,"result":{"a":%b}}' % (outgoing.id, deep))
    [outcome] = outcomes
    assert str(outcome).startswith("the answer is malformed: ")
    # Nobody waits for another one.
    line.peer.receive(b'{"jsonrpc":"2.0","id":99,"result":{"a":%b}}' % deep)
    assert len(outcomes) == 1
