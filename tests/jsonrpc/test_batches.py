"""batches.py: which batches are refused, and when the responses of a batch are complete."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec import Raw

from concertino.jsonrpc.batches import Batch, Batches
from concertino.jsonrpc.limits import Limits


def make_batches(accepted: bool = True, **limits: Any) -> Batches:
    batches = Batches(Limits(**limits))
    batches.accepted = accepted
    return batches


def elements(*items: object) -> list[Raw]:
    return [Raw(json.dumps(item).encode()) for item in items]


def pending(missing: int) -> Batch:
    batch = Batch()
    batch.missing = missing
    return batch


PING = {"jsonrpc": "2.0", "id": 1, "method": "ping"}


def test_a_new_batch_misses_no_responses():
    batch = Batch()
    assert (batch.responses, batch.ids, batch.missing, batch.size) == ([], set(), 0, 0)


def test_a_batch_of_allowed_length_is_accepted():
    assert make_batches(max_batch=2).refuse(elements(PING, PING)) is None


@pytest.mark.parametrize("count", [0, 3])
def test_an_empty_or_long_batch_is_refused(count: int):
    refusal = make_batches(max_batch=2).refuse(elements(*[PING] * count))
    assert refusal is not None
    text = f"Invalid Request: expected a batch of 1 to 2 messages, got {count}"
    assert (refusal.code, refusal.message) == (-32600, text)


def test_a_refused_batch_names_the_requests_of_ours_that_it_answers():
    response = {"jsonrpc": "2.0", "id": 5, "result": {}}
    malformed = {"jsonrpc": "1.0", "id": 6, "result": {}}
    beyond = {"jsonrpc": "2.0", "id": 7, "result": {}}
    notification = {"jsonrpc": "2.0", "method": "n"}
    refusal = make_batches(accepted=False, max_batch=4).refuse(
        elements(response, malformed, PING, notification, beyond)
    )
    assert refusal is not None
    assert refusal.message == ("Invalid Request: batches are not part of this protocol revision")
    assert refusal.answered_ids == (5, 6)


def test_the_responses_are_sent_together_after_the_last_request():
    batches, batch = make_batches(), pending(3)
    batches.add_response(batch, 1, b"{1}")
    assert batches.finish_item(batch) == b""
    # The second request is cancelled.
    assert batches.finish_item(batch) == b""
    batches.add_response(batch, 3, b"{33}")
    assert batches.size == 7
    assert batches.finish_item(batch) == b"[{1},{33}]"
    assert batches.size == 0


def test_a_batch_without_responses_is_not_answered():
    assert make_batches().finish_item(pending(1)) == b""


def test_a_response_over_the_limit_of_all_unfinished_batches_is_replaced_by_an_error():
    batches, first, second = make_batches(max_message_bytes=1000), pending(1), pending(1)
    batches.add_response(first, 1, b"x" * 600)
    batches.add_response(second, 2, b"y" * 600)
    assert json.loads(batches.finish_item(second))[0]["error"] == {
        "code": -32603,
        "message": (
            "Internal error: the answers of unfinished batches "
            "would have more than 1000 bytes (limit)"
        ),
    }
    # A response that is shorter than the error is added even so.
    batches.add_response(second, 2, b"y" * 400)
    third = pending(1)
    batches.add_response(third, 3, b"{}")
    assert batches.finish_item(third) == b"[{}]"
