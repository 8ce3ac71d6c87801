"""read_headers(): reads the headers of a request that the MCP endpoint needs.

McpEndpoint calls it for each head that it has not seen before, since most requests of a client have
the same head.
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
    """The headers that the MCP endpoint reads.

    accepted: the forms of the response that Accept allows.
    is_acceptable: whether a POST can be served: Content-Type says JSON, and Accept allows JSON or
        a stream of events.
    version: the value of MCP-Protocol-Version; None without this header.
    method: the value of Mcp-Method; None without this header.
    name: the decoded value of Mcp-Name; None without this header, or if it is malformed. The
        endpoint refuses a request that needs the header in both cases.
    session: the value of Mcp-Session-Id; None without this header.
    repeated: the first of the headers MCP-Protocol-Version, Mcp-Method and Mcp-Name that came more
        than once; None if all came once.
    """

    accepted: AcceptedForms
    is_acceptable: bool
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
    accepted = read_accept(values.get(b"accept"))
    is_acceptable = is_json(values.get(b"content-type")) and (accepted.json or accepted.stream)
    # The headers of 2026-07-28, in which there is no Mcp-Session-Id.
    single = (VERSION, METHOD, NAME)
    repeated = [item for item in single if item.lower().encode() in head.repeated]
    return McpHeaders(
        accepted=accepted,
        is_acceptable=is_acceptable,
        version=texts.get(VERSION),
        method=texts.get(METHOD),
        name=None if name is None else decode_header_text(name),
        session=texts.get(SESSION),
        repeated=repeated[0] if repeated else None,
    )
