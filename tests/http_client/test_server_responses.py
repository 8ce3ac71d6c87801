"""server_responses.py: what a connection reads from responses, whatever a server sends."""

from __future__ import annotations

import pytest

from concertino.http.envelope import read_revision
from concertino.http_client.server_responses import answers_request


@pytest.mark.parametrize(
    ("frame", "revision"),
    [
        (b'{"result":{"protocolVersion":"2025-11-25"}}', "2025-11-25"),
        (b'{"error":{"code":-32600}}', ""),
        (b'{"result":{"protocolVersion":"a\\u0000b"}}', ""),
        (b'{"result":{"protocolVersion":"\xff"}}', ""),
        (b'{"result":{"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}}", ""),
    ],
)
def test_a_response_to_initialize_that_cannot_be_read_names_no_revision(
    frame: bytes, revision: str
) -> None:
    assert read_revision(frame) == revision


@pytest.mark.parametrize(
    ("frame", "expected"),
    [
        (b'{"jsonrpc":"2.0","id":5,"result":{}}', True),
        (b'{"result":{},"id":5,"jsonrpc":"2.0"}', True),
        (b'{"jsonrpc":"2.0","id":5,"error":{"code":1,"message":""}}', True),
        (b'{"jsonrpc":"2.0","id":55,"result":{}}', False),
        (b'{"jsonrpc":"2.0","id":5,"method":"ping"}', False),
        (b'{"jsonrpc":"2.0","method":"notifications/message","params":{"id":5}}', False),
        (b'{"jsonrpc":"2.0","id":5,"result":{"a":"%b"}}' % (b"x" * 20_000), True),
        (b'{"jsonrpc":"2.0","id":5,"result":{"a":"%b"},"id":6}' % (b"x" * 20_000), False),
        (
            b'{"jsonrpc":"2.0","id":5,"result":{"a":"%b"},"id":6,"x":{}}' % (b"x" * 20_000),
            False,
        ),
        (b'{"jsonrpc":"2.0","id":5,"result":{},"id":6}', False),
        (b'{"jsonrpc":"2.0","id":true,"id":5,"result":{}}', True),
        (b'{"jsonrpc":"2.0","id":5,"result":{"a":NaN}}', True),
        (b'{"jsonrpc":"2.0","id":5,"result":{"a":"\xff', True),
        (b"5", False),
        (b"[" * 100_000, False),
    ],
)
def test_which_message_answers_a_request(frame: bytes, expected: bool) -> None:
    assert answers_request(frame, 5) is expected
