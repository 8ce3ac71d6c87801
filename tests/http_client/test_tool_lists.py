"""http_client/tool_lists.py: what a client learns from a response to tools/list."""

from __future__ import annotations

import pytest

from concertino.http_client.tool_lists import learn_tools


@pytest.mark.parametrize(
    "tools",
    [b'[{"name":"x-mcp-header","\xfc":1}]', b'[{"name":"x-mcp-header"}', b"[" * 5000],
)
def test_a_response_that_cannot_be_read_is_left_to_the_client(tools: bytes) -> None:
    frame = b'{"jsonrpc":"2.0","id":1,"result":{"x-mcp-header":1,"tools":%b}}' % tools

    assert learn_tools(frame, {}) == frame
