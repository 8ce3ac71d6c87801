"""The server side of MCP over HTTP ("Streamable HTTP"). It needs the extra `http`.

A Host (runtime/host.py) serves a backend on any number of connections. HttpServer serves a Host at
listening sockets, and AsgiApplication serves one inside of an ASGI server. HttpOptions has the
settings of both.

An HttpConnection (connection.py) reads each request and makes an Exchange of it (exchange.py).
HttpServer (server.py) checks where the request comes from (access.py) and who has sent it
(admission.py). Then McpEndpoint (endpoint.py) reads the message in the request. A message of
2026-07-28 is passed to a StatelessConnection (stateless.py), and one of an older revision to a
SessionConnection (session_connection.py). To the Host, both look like a connection over stdio. Both
send the Host's response with the Exchange.
"""

from __future__ import annotations

from concertino.loading import lazy_names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from concertino.http.asgi import AsgiApplication as AsgiApplication
    from concertino.http.authorization import (
        Authorization as Authorization,
        InvalidToken as InvalidToken,
        TokenVerifier as TokenVerifier,
        VerifierUnavailable as VerifierUnavailable,
    )
    from concertino.http.time_limits import HttpTimeouts as HttpTimeouts
    from concertino.http.options import (
        HttpOptions as HttpOptions,
        Polling as Polling,
        SharedSessions as SharedSessions,
    )
    from concertino.http.principal_limits import PrincipalLimits as PrincipalLimits
    from concertino.http.server import HttpServer as HttpServer
    from concertino.http.tls import Tls as Tls

__all__, __getattr__, __dir__ = lazy_names(
    __name__,
    {
        "concertino.http.asgi": ("AsgiApplication",),
        "concertino.http.authorization": (
            "Authorization",
            "InvalidToken",
            "TokenVerifier",
            "VerifierUnavailable",
        ),
        "concertino.http.time_limits": ("HttpTimeouts",),
        "concertino.http.options": ("HttpOptions", "Polling", "SharedSessions"),
        "concertino.http.principal_limits": ("PrincipalLimits",),
        "concertino.http.server": ("HttpServer",),
        "concertino.http.tls": ("Tls",),
    },
)
