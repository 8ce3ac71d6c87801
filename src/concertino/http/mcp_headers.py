"""McpHeaders: what the headers of a request say about MCP.

Spec: 2025-11-25 basic/transports; 2026-07-28 basic/transports/streamable-http.
"""

from __future__ import annotations

from msgspec import Struct

from concertino.http.accepted import AcceptedForms, is_json, read_accept
from concertino.http.envelope import decode_header_text
from concertino.http.request_head import RequestHead

__all__ = ["METHOD", "NAME", "SESSION", "VERSION", "McpHeaders", "read_headers"]

VERSION = "MCP-Protocol-Version"
METHOD = "Mcp-Method"
NAME = "Mcp-Name"
SESSION = "Mcp-Session-Id"


class McpHeaders(Struct, frozen=True):
    """The headers that matter to the MCP endpoint; None for those that are missing.

    accepted: what Accept allows.
    is_json: whether the body is JSON.
    version: MCP-Protocol-Version.
    method: Mcp-Method.
    name: Mcp-Name, decoded; also None if it is malformed.
    session: Mcp-Session-Id.
    repeated: the name of a header that came more than once, and must not.
    """

    accepted: AcceptedForms
    is_json: bool
    version: str | None
    method: str | None
    name: str | None
    session: str | None
    repeated: str | None


def read_headers(head: RequestHead) -> McpHeaders:
    """Read the headers of a request."""
    values = head.headers
    texts = {
        name: value.decode("latin-1")
        for name in (VERSION, METHOD, SESSION)
        if (value := values.get(name.lower().encode())) is not None
    }
    name = values.get(NAME.lower().encode())
    return McpHeaders(
        read_accept(values.get(b"accept")),
        is_json(values.get(b"content-type")),
        texts.get(VERSION),
        texts.get(METHOD),
        None if name is None else decode_header_text(name),
        texts.get(SESSION),
        next(
            (item for item in (VERSION, METHOD, NAME) if item.lower().encode() in head.repeated),
            None,
        ),
    )
