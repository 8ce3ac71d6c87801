"""Which question a body over the size limit answers, however it arrives."""

from __future__ import annotations

import json

import pytest

from concertino.http.large_responses import LargeResponse

LIMIT = 2000
TEXT = b"x" * 3000


def read(body: bytes, step: int, limit: int = LIMIT) -> tuple[bytes, int]:
    """Return the error for the question, and how many bytes were read."""
    answer = LargeResponse(limit)
    for at in range(0, len(body), step):
        piece = body[at : at + step]
        if answer.feed(piece, is_last=at + step >= len(body)):
            return answer.error, at + len(piece)
    raise AssertionError("more is expected after the end")


@pytest.mark.parametrize("step", [1, 7, 511, 512, 10_000])
@pytest.mark.parametrize(
    ("body", "id"),
    [
        (b'{"jsonrpc":"2.0","id":5,"result":{"a":"%b"}}' % TEXT, 5),
        (b'{"id":"q","error":{"code":1,"message":"%b"},"jsonrpc":"2.0"}' % TEXT, "q"),
        (b'{"result":{"a":"%b","id":4},"jsonrpc":"2.0","id":-5}' % TEXT, -5),
        (b'{"jsonrpc":"2.0","result":{"a":"%b"}, "id" : 5 }\n' % TEXT, 5),
    ],
)
def test_finds_the_question_that_an_answer_is_for(body: bytes, id: object, step: int) -> None:
    error, _ = read(body, step)

    assert json.loads(error) == {
        "jsonrpc": "2.0",
        "id": id,
        "error": {"code": -32600, "message": "the answer is larger than 2000 bytes (limit)"},
    }


@pytest.mark.parametrize(
    "body",
    [
        b'{"jsonrpc":"2.0","id":5,"method":"tools/call","params":{"a":"%b"}}' % TEXT,
        b"x" * 3000,
    ],
)
def test_reads_no_more_of_another_body_than_its_beginning(body: bytes) -> None:
    assert read(body, 1) == (b"", 512)


def test_reads_no_more_of_an_answer_without_an_id_than_four_times_the_limit() -> None:
    body = b'{"result":{"a":"%b' % (b"x" * 100_000)

    assert read(body, 1000) == (b"", 9000)


@pytest.mark.parametrize("step", [1, 7, 511, 10_000])
def test_finds_all_questions_that_a_batch_answers(step: int) -> None:
    body = (
        b"""[{"jsonrpc":"2.0","id":5,"result":{"a":"%b","id":9}},
        {"jsonrpc":"2.0","id":6,"method":"ping"}, {"id":true,"result":{}}, {"result":{}},
        {"result":{},"id":"q","jsonrpc":"2.0"}]"""
        % TEXT
    )
    error, read_bytes = read(body, step)

    assert [item["id"] for item in json.loads(error)] == [5, "q"]
    assert {item["error"]["code"] for item in json.loads(error)} == {-32600}
    assert read_bytes >= len(body)


@pytest.mark.parametrize(
    "body",
    [
        b'[{"id":5,"result":"%b"}' % TEXT,
        b'[{"id":5,"result":"%b"},7]' % TEXT,
        b'[{"id":5,"result":"\xff%b"},{"\xff":1}, {"id":"\xff"}]' % TEXT,
        b"[" * 5000,
        # More objects than are read.
        b'[{"id":5,"result":{}}' + b",{}" * 100_000 + b"]",
    ],
)
def test_a_batch_that_cannot_be_read_answers_no_question(body: bytes) -> None:
    assert read(body, 10_000, limit=200_000) == (b"", len(body))


def test_reads_no_more_of_a_batch_than_four_times_the_limit() -> None:
    body = b'[{"id":5,"result":"%b"}]' % (b"x" * 100_000)

    assert read(body, 1000) == (b"", 9000)


def test_a_batch_is_held_and_another_answer_is_not() -> None:
    for body, held in ((b'[{"id":5}', 900), (b'{"id":5,', 0)):
        answer = LargeResponse(LIMIT)
        answer.feed(body.ljust(900), is_last=False)
        assert answer.held_bytes == held


def test_an_answer_without_an_id_is_for_no_question() -> None:
    body = b'{"result":{"a":"%b","id":4}}' % TEXT

    assert read(body, 1000) == (b"", len(body))
