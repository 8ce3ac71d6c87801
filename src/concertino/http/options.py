"""HttpOptions: the settings of an HTTP server.

`concertino serve --http` builds them from its options on the command line. Programs pass them to
server.run(), server.asgi() or HttpServer.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from concertino.http.authorization import Authorization
from concertino.http.principal_limits import PrincipalLimits
from concertino.http.time_limits import HttpTimeouts
from concertino.http.tls import Tls

__all__ = ["HttpOptions", "Polling", "SharedSessions"]


class Polling(Struct, frozen=True):
    """Makes clients of MCP 2025-11-25 poll for the results of slow calls.

    If a call takes longer than wait_s, the server ends the HTTP response before the result, which
    frees the connection. The client sends a GET later, and gets the rest.

    wait_s: how long a response stays open without the result of its call, in seconds.
    retry_s: how long the client waits before it resumes the stream, in seconds.
    Raises ValueError for a time that is not positive.
    """

    wait_s: float = 20.0
    retry_s: float = 1.0

    def __post_init__(self) -> None:
        for name, value in (("wait_s", self.wait_s), ("retry_s", self.retry_s)):
            # Not `value <= 0`, which would accept NaN.
            if not value > 0:
                raise ValueError(f"{name}: expected a positive number of seconds, got {value}")


class SharedSessions(Struct, frozen=True):
    """How the processes of a server on several machines share their sessions.

    Such a process is called a front end. A load balancer may send a request to any front end, which
    passes the request on to the front end that has the session. A key-value bucket of a NATS
    cluster stores the address of each front end.

    cluster: the address of NATS servers with JetStream, as in `nats://a,b,c`.
    address: HOST:PORT at which the other front ends reach this one, and where it listens for them.
    certs: a directory with the files `ca.crt`, `front-end.crt` and `front-end.key`.
    replicas: on how many NATS servers the bucket is stored. Has no effect on an existing bucket.
    """

    cluster: str
    address: str
    certs: str
    replicas: int = 1


class HttpOptions(Struct, frozen=True):
    """The settings of an HTTP server.

        options = HttpOptions(origins=("https://app.example.com",), max_connections=64)
        server.run(http="127.0.0.1:8000", http_options=options)

    Who may use the server:
    authorization: the tokens that are accepted; None to serve everybody who can connect.
    no_auth: whether to serve without authorization at addresses that other machines can reach.
    origins: the origins of web pages that may use the server, such as `https://app.example.com`.
        Pages from this machine are always allowed.

    How clients reach the server:
    public_url: the URL by which clients know the MCP endpoint. Without a path, `/mcp` is added.
        Required if other machines can reach the server.
    hosts: names of the server that are accepted in the header Host, besides those of this machine
        and of public_url.
    tls: the certificate; None for connections without TLS.
    behind_proxy: whether clients connect through a reverse proxy that has TLS.
    trusted_proxies: the addresses or networks of reverse proxies. Their X-Forwarded-... and
        Forwarded headers are read to log the client's address, and to refuse tokens that were sent
        without TLS.

    Limits:
    max_connections: how many connections there may be at the same time.
    max_sessions: how many sessions of MCP revisions before 2026-07-28 there may be. With 0, only
        clients of 2026-07-28 are served, which need no session.
    principal_limits: the limits of each principal (one user of one client). They have no effect
        without authorization.
    timeouts: the time limits of connections and sessions.

    Transports and more:
    polling: when clients of MCP 2025-11-25 must poll for the result of a slow call; None if
        responses stay open until they are complete.
    sse: whether to serve clients of MCP 2024-11-05 too, at `/sse` and `/messages`.
    websocket: whether clients may ask for a WebSocket at the MCP endpoint.
    shared_sessions: how processes on several machines share their sessions; None to keep sessions
        in this process, or among its workers.
    metrics: a function that returns the text of `/metrics`, such as Metrics.text of
        concertino.guards; None to serve no `/metrics`. With authorization, clients need a token for
        `/metrics`; without, only clients of this machine get it.
    """

    origins: tuple[str, ...] = ()
    max_connections: int = 512
    max_sessions: int = 512
    timeouts: HttpTimeouts = HttpTimeouts()
    authorization: Authorization | None = None
    principal_limits: PrincipalLimits = PrincipalLimits()
    public_url: str | None = None
    hosts: tuple[str, ...] = ()
    tls: Tls | None = None
    behind_proxy: bool = False
    trusted_proxies: tuple[str, ...] = ()
    no_auth: bool = False
    polling: Polling | None = None
    sse: bool = False
    websocket: bool = False
    metrics: Callable[[], str] | None = None
    shared_sessions: SharedSessions | None = None
