"""RequestEncoder: makes the HTTP requests of a connection, with the headers that MCP requires.

Spec: 2025-11-25 basic/transports; 2026-07-28 basic/transports/streamable-http "Request Headers".
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from concertino.backend.call_hooks import ParamHeaders
from concertino.http.envelope import Envelope, decode_arguments
from concertino.http.param_headers import encode_header_text, param_header_lines
from concertino.http_client.server_url import ServerUrl

__all__ = ["RequestEncoder", "check_headers"]

TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
# The headers that this client sets itself.
CLIENT_HEADERS = frozenset(
    ("host", "accept", "content-type", "content-length", "transfer-encoding", "connection",
     "mcp-session-id", "mcp-protocol-version", "mcp-method", "mcp-name", "last-event-id")
)  # fmt: skip


def check_headers(headers: Mapping[str, str]) -> None:
    """Check the headers that a user wants to add to each request.

    Raises ValueError for an invalid name or value, and for a header that the client sets itself.
    The text of the error shows no values, which may be secrets.
    """
    for name, value in headers.items():
        if not TOKEN.fullmatch(name):
            raise ValueError(f"headers: {name!r} is no name of a header")
        if name.lower() in CLIENT_HEADERS:
            raise ValueError(f"headers: {name} is set by the client itself")
        if not all(" " <= char <= "~" or char == "\t" for char in value):
            raise ValueError(f"headers: the value of {name} has characters that are not allowed")


class RequestEncoder:
    """Makes the HTTP requests to one server, each as bytes.

    url: the URL of the server.
    headers: the user's headers for each request, such as Authorization.
    Raises ValueError for headers that check_headers() refuses.

    Attributes:
    session_id: the id of the session, for Mcp-Session-Id; "" before `initialize`, with servers that
        use no sessions, and in revision 2026-07-28. StreamableHttpConnection sets it.
    session_version: the revision that was negotiated by `initialize`; "" before, and in 2026-07-28.
        StreamableHttpConnection sets it.
    param_headers: tool name -> the arguments that are repeated in headers. learn_tools()
        (tool_lists.py) sets it.
    """

    def __init__(self, url: ServerUrl, headers: Mapping[str, str]) -> None:
        check_headers(headers)
        self.session_id = ""
        self.session_version = ""
        self.param_headers: dict[str, ParamHeaders] = {}
        lines = [f"{name}: {value}\r\n" for name, value in headers.items()]
        self._common = f"Host: {url.authority}\r\n{''.join(lines)}".encode("ascii")

    def post(self, path: str, frame: bytes, message: Envelope, authorization: str = "") -> bytes:
        """Return a POST request with a message as its body.

        path: the path and query of the server's URL.
        frame: the encoded message.
        message: its decoded fields, from which headers are made.
        authorization: the value of the header Authorization; "" for none.
        """
        lines = self._mcp_lines(frame, message) + _authorization_line(authorization)
        return (
            b"POST %b HTTP/1.1\r\n%bAccept: application/json, text/event-stream\r\n"
            b"Content-Type: application/json\r\n%bContent-Length: %d\r\n\r\n%b"
        ) % (path.encode(), self._common, lines, len(frame), frame)

    def _mcp_lines(self, frame: bytes, message: Envelope) -> bytes:
        """Return the header lines that MCP requires for a message, by its revision."""
        params, method = message.params, message.method
        version = None if params.meta is None else params.meta.version
        if not isinstance(version, str) or method is None:
            # A message of a revision before 2026-07-28, or a response. An `initialize` of such a
            # revision opens a session, so it cannot name one.
            return b"" if method == "initialize" else self._session_lines()
        # The message may come from a client of a proxy, so its method and its revision may contain
        # any characters.
        lines = (
            f"MCP-Protocol-Version: {encode_header_text(version)}\r\n"
            f"Mcp-Method: {encode_header_text(method)}\r\n"
        )
        name = message.header_name
        if name is None:
            return lines.encode("ascii")
        lines += f"Mcp-Name: {encode_header_text(name)}\r\n"
        annotated = self.param_headers.get(name) if method == "tools/call" else None
        if not annotated:
            return lines.encode("ascii")
        return lines.encode("ascii") + param_header_lines(annotated, decode_arguments(frame))

    def _session_lines(self) -> bytes:
        """Return the header lines of a session of a revision before 2026-07-28."""
        lines = f"Mcp-Session-Id: {self.session_id}\r\n" if self.session_id else ""
        if self.session_version:
            lines += f"MCP-Protocol-Version: {self.session_version}\r\n"
        return lines.encode("ascii")

    def get(self, path: str, last_event_id: str, authorization: str = "") -> bytes:
        """Return a GET request, which opens a stream of events.

        path: the path and query of the server's URL.
        last_event_id: the id of the event after which a broken stream is resumed; "" for a new
            stream.
        authorization: the value of the header Authorization; "" for none.
        """
        lines = self._session_lines() + _authorization_line(authorization)
        if last_event_id:
            lines += b"Last-Event-ID: %b\r\n" % last_event_id.encode("utf-8")
        head = b"GET %b HTTP/1.1\r\n%bAccept: text/event-stream\r\n%b\r\n"
        return head % (path.encode(), self._common, lines)

    def delete(self, path: str, authorization: str = "") -> bytes:
        """Return a DELETE request, which ends the session.

        path: the path and query of the server's URL.
        authorization: the value of the header Authorization; "" for none.
        """
        lines = self._session_lines() + _authorization_line(authorization)
        return b"DELETE %b HTTP/1.1\r\n%b%b\r\n" % (path.encode(), self._common, lines)


def _authorization_line(value: str) -> bytes:
    return f"Authorization: {value}\r\n".encode("ascii") if value else b""
