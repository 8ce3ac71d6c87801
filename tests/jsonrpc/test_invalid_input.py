"""invalid_input.py: which invalid frames get an error response, and what is counted for the log."""

from __future__ import annotations

import json

from concertino.jsonrpc.incoming_requests import TokenBucket
from concertino.jsonrpc.invalid_input import InvalidInput
from concertino.jsonrpc.messages import InvalidMessage

NO_METHOD = InvalidMessage(-32600, "Invalid Request: no method", 7)
NO_ID = InvalidMessage(-32700, "Parse error: no JSON")
MALFORMED_RESPONSE = InvalidMessage(0, "Malformed response", answered_ids=(7,))


def make_input(per_s: int = 10) -> InvalidInput:
    return InvalidInput(TokenBucket(per_s, lambda: 0.0))


def test_a_frame_with_an_id_is_answered_with_this_id_at_any_rate():
    input = make_input(per_s=0)
    answer = input.answer(NO_METHOD, b"{}", {"d": 1}, in_batch=False)
    assert answer is not None
    assert json.loads(answer) == {
        "jsonrpc": "2.0",
        "id": 7,
        "error": {"code": -32600, "message": "Invalid Request: no method", "data": {"d": 1}},
    }


def test_frames_without_an_id_are_answered_at_a_limited_rate_but_in_batches():
    input = make_input(per_s=1)
    answers = [input.answer(NO_ID, b"?", in_batch=False) for _ in range(3)]
    assert [answer is None for answer in answers] == [False, True, True]
    assert (input.suppressed, input.count, input.has_news) == (2, 3, True)
    assert input.answer(NO_ID, b"?", in_batch=True) == answers[0]
    assert b'"id":null' in (answers[0] or b"")


def test_the_error_for_a_frame_without_an_id_has_no_id_in_revisions_that_allow_this():
    input = make_input()
    input.unknown_id = None
    answer = input.answer(NO_ID, b"?", in_batch=False)
    assert answer is not None
    assert "id" not in json.loads(answer)


def test_a_malformed_response_is_counted_and_not_answered():
    input = make_input()
    assert input.answer(MALFORMED_RESPONSE, b"{}", in_batch=False) is None
    assert (input.count, input.unsolicited) == (1, 0)


def test_a_client_answers_no_invalid_frame():
    input = make_input()
    input.answered = False
    assert input.answer(NO_METHOD, b"{}", in_batch=False) is None
    assert (input.count, input.unsolicited) == (0, 1)


def test_a_discarded_frame_is_answered_without_a_copy_for_the_log():
    input = make_input()
    assert input.answer(NO_METHOD, None, in_batch=False) is not None
    assert (input.count, input.first_frame) == (0, b"")


def test_the_log_gets_the_beginning_of_the_first_frame():
    input = make_input()
    input.add("no JSON", b"x" * 3000)
    input.add("no method", b"y")
    assert (input.count, input.first_problem, input.first_frame) == (2, "no JSON", b"x" * 2048)
