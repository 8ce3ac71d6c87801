"""OptionalTransports: the transports that an HTTP server offers only if an option asks for them.

They are WebSockets at the MCP endpoint, and the two endpoints of 2024-11-05. HttpServer asks
OptionalTransports about each GET of the MCP endpoint, and about requests for other paths.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING

from concertino.http.access import AccessRules
from concertino.http.admission import Admission
from concertino.http.exchange import Exchange
from concertino.http.options import HttpOptions
from concertino.http.request_head import HttpError
from concertino.http.session_peers import NO_SESSION, SessionPeers
from concertino.runtime.host import Host, Wrap

if TYPE_CHECKING:
    from concertino.http.sse_endpoint import SseEndpoint
    from concertino.http.websocket import WebSocketEndpoint

__all__ = ["OptionalTransports", "method_not_allowed"]

# The endpoints of 2024-11-05: for the stream of events, and for the client's messages.
STREAM = "/sse"
MESSAGES = "/messages"


class OptionalTransports:
    """The optional transports of one HTTP server: WebSockets, and HTTP with SSE of MCP 2024-11-05.

    host: serves the backend on the Connection of each client (runtime/host.py).
    wrap: wraps each Connection before the host gets it, for example to trace its messages.
    options: the settings of the server, which say which of the transports are served.
    admission: decides which requests are served.
    peers: passes requests to the other processes that share the sessions; None if there is one
        process.
    Raises ImportError if the package for WebSockets is needed and missing.
    """

    def __init__(
        self,
        host: Host,
        wrap: Wrap,
        options: HttpOptions,
        admission: Admission,
        peers: SessionPeers | None = None,
    ) -> None:
        self._websockets: WebSocketEndpoint | None = None
        self._sse: SseEndpoint | None = None
        challenges, use = admission.challenges, admission.principal_use
        # Most servers need neither of these modules.
        if options.websocket:
            from concertino.http.websocket import WebSocketEndpoint

            self._websockets = WebSocketEndpoint(host, wrap, challenges, use)
        if options.sse:
            from concertino.http.sse_endpoint import SseEndpoint

            self._sse = SseEndpoint(
                host,
                wrap,
                MESSAGES,
                options.max_sessions,
                challenges,
                max_own_sessions=None if use is None else use.limits.max_sessions,
                peers=peers,
            )

    def accept_websocket(self, exchange: Exchange) -> bool:
        """Open a WebSocket for a GET that asks for one. Returns False for any other GET.

        Raises HttpError to refuse it.
        """
        if self._websockets is None or exchange.head.upgrade != b"websocket":
            return False
        self._websockets.accept(exchange)
        return True

    def answer(self, exchange: Exchange, access: AccessRules) -> bool:
        """Respond to a request for an endpoint of 2024-11-05. Returns False for another path.

        access: makes the response to a CORS preflight request.
        Raises HttpError to refuse it.
        """
        head, endpoint = exchange.head, self._sse
        if endpoint is None or head.path not in (STREAM, MESSAGES):
            return False
        expected = "GET" if head.path == STREAM else "POST"
        if head.method == "OPTIONS" and (allowed := access.preflight_headers(head)):
            # `allowed` contains the CORS headers already.
            exchange.headers = b""
            exchange.respond(HTTPStatus.NO_CONTENT, headers=allowed)
        elif head.method != expected:
            raise method_not_allowed(head.method, expected)
        elif head.path == STREAM:
            endpoint.open(exchange)
        else:
            endpoint.post(exchange)
        return True

    def answer_passed_on(self, exchange: Exchange) -> None:
        """Serve a message for a 2024-11-05 session of this process.

        Another process has got the message from the client, checked it and passed it on.
        Raises HttpError to refuse the message.
        """
        if self._sse is None:
            # Front ends on other machines may have other options.
            raise HttpError(HTTPStatus.NOT_FOUND, NO_SESSION)
        self._sse.post(exchange)


def method_not_allowed(method: str, allowed: str) -> HttpError:
    """Return the error 405 for a request with a method that its path does not have.

    method: the method of the request.
    allowed: the methods of the path, such as "GET, HEAD".
    """
    return HttpError(
        HTTPStatus.METHOD_NOT_ALLOWED,
        f"{method}: expected {allowed}",
        f"Allow: {allowed}\r\n".encode(),
    )
