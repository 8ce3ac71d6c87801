"""Admission: decides which requests an HTTP server serves, by the tokens in their headers.

An Admission combines the Gate, which verifies tokens, the limits of each principal (verified user;
principal_limits.py), and the protected resource metadata, which tells clients where to get tokens.
Without authorization, an Admission admits every request.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import TYPE_CHECKING

from concertino.http.access import AccessRules
from concertino.http.challenges import Challenges
from concertino.http.exchange import Exchange
from concertino.http.exposure import check_exposure
from concertino.http.options import HttpOptions
from concertino.http.principal_limits import PrincipalUse
from concertino.http.request_head import HttpError, RequestHead
from concertino.http.resource_identity import MAX_AGE_S
from concertino.http.responses import JSON
from concertino.protocol.principal import Principal
from concertino.transports.addresses import is_loopback
from concertino.transports.listeners import Listener

if TYPE_CHECKING:
    from concertino.http.forwarded import TrustedProxies
    from concertino.http.gate import Gate

__all__ = ["Admission"]

log = logging.getLogger("concertino.http")

# Below this path, the server has only its protected resource metadata; other requests get 404.
WELL_KNOWN = "/.well-known/"
# Reverse proxies add at least one of these headers.
FORWARDED = frozenset(
    (b"forwarded", b"via", b"x-forwarded-for", b"x-forwarded-host", b"x-forwarded-proto",
     b"x-real-ip")
)  # fmt: skip
# The response to a CORS preflight request for the metadata. Clients in browsers request the
# metadata with the header MCP-Protocol-Version, so the browser sends a preflight request before.
METADATA_PREFLIGHT = (
    b"Access-Control-Allow-Origin: *\r\n"
    b"Access-Control-Allow-Methods: GET\r\n"
    b"Access-Control-Allow-Headers: MCP-Protocol-Version\r\n"
    b"Access-Control-Max-Age: 600\r\n"
)
# At most one refusal is logged in this time, in seconds.
LOG_S = 1.0


class Admission:
    """Decides which requests are served, before their bodies are read.

    options: the settings of the server.
    listeners: the listening sockets.
    endpoint: the path of the MCP endpoint.
    open_paths: the paths whose requests need no token.
    Raises ValueError if the options are not safe for these listeners, for example if other machines
    reach one of them and there is no authorization.

    Attributes:
    challenges: makes the 401 and 403 errors for requests without sufficient authorization; None if
        there is no authorization.
    principal_use: counts the requests of each principal (verified user); None if there is no
        authorization.
    """

    def __init__(
        self,
        options: HttpOptions,
        listeners: Sequence[Listener],
        endpoint: str,
        open_paths: frozenset[str],
    ) -> None:
        self._identity = identity = check_exposure(options, listeners, endpoint)
        self._hosts = frozenset(host.lower() for host in options.hosts)
        self._open_paths = open_paths
        self._proxies: TrustedProxies | None = None
        if options.behind_proxy:
            # Imported here, like Gate below, because most servers need neither.
            from concertino.http.forwarded import TrustedProxies

            self._proxies = TrustedProxies(options.trusted_proxies)
        # When a refused token was last logged, by the clock of the event loop. The initial value is
        # early enough that the first refusal is logged.
        self._logged_at = -LOG_S
        self.challenges: Challenges | None = None
        self.principal_use: PrincipalUse | None = None
        self._gate: Gate | None = None
        # The body of the document with the metadata of the protected resource, RFC 9728.
        self._metadata: bytes | None = None
        authorization = options.authorization
        if authorization is None:
            return
        from concertino.http.gate import Gate

        assert identity is not None
        issuers = [
            issuer for verifier in authorization.make_verifiers() for issuer in verifier.issuers
        ]
        if issuers:
            self._metadata = identity.describe(authorization, issuers)
            self._open_paths |= {*identity.metadata_paths}
        self.challenges = Challenges(
            identity.metadata_url if issuers else None, authorization.scopes
        )
        self._gate = Gate(authorization, self.challenges)
        self.principal_use = PrincipalUse(options.principal_limits)

    def access_rules(
        self, origins: Sequence[str], *, checks_host: bool, accepts_https: bool
    ) -> AccessRules:
        """Return the AccessRules of one listener. The arguments are those of AccessRules.

        The rules also accept the names in HttpOptions.hosts, and host and origin of the public URL.
        """
        identity = self._identity
        own = () if identity is None else (identity.host,)
        return AccessRules(
            origins,
            hosts=self._hosts.union(own),
            own_origin=None if identity is None else identity.origin,
            checks_host=checks_host,
            accepts_https=accepts_https,
        )

    def admit(
        self, head: RequestHead, facts: Mapping[str, object]
    ) -> Principal | asyncio.Future[Principal] | None:
        """Return the principal (verified user) of a request.

        Returns a future of the principal if another server must first verify the token. Returns
        None for requests that need no token. Without authorization, returns None for all clients
        but those of a Unix socket, whose user the system tells.

        facts: what is known about the client, as in Connection.facts (transports/connection.py).
        Raises HttpError, from this method or from the future, to refuse the request.
        """
        if self._proxies is not None:
            self._check_forwarded(self._proxies, head, facts)
        gate = self._gate
        if gate is None:
            principal = facts.get("principal")
            return principal if isinstance(principal, Principal) else None
        path = head.path
        # These requests need no token. Browsers send OPTIONS (CORS preflight) without one, and a
        # client reads the metadata to learn where it gets one.
        if path in self._open_paths or head.method == "OPTIONS" or path.startswith(WELL_KNOWN):
            return None
        try:
            return gate.admit(head)
        except HttpError as refusal:
            self._log_refusal(refusal, head, facts)
            raise

    @property
    def checks_each_head(self) -> bool:
        """Whether admit() must be called for each request, even if two have the same head.

        True with authorization, because a token may expire between two requests.
        """
        return self._gate is not None

    def begin(self, exchange: Exchange, principal: Principal) -> None:
        """Count a request of a principal (verified user) until its response ends.

        Sets exchange.on_end. Does nothing without authorization. Raises HttpError 429 if the
        principal exceeds a limit.
        """
        if self.principal_use is not None:
            self.principal_use.begin(exchange, principal.identity)

    def answer_metadata(self, exchange: Exchange) -> bool:
        """Respond to a request for the protected resource metadata (RFC 9728).

        Returns whether it has responded: False if the request has another path. Also responds to
        OPTIONS with Origin, a CORS preflight request. Raises HttpError 405 for any method but
        OPTIONS (with Origin), GET and HEAD.
        """
        identity = self._identity
        head = exchange.head
        if self._metadata is None or identity is None or head.path not in identity.metadata_paths:
            return False
        # A client in a browser must be able to find the authorization server, so pages of all
        # origins may read the metadata.
        if head.method == "OPTIONS" and b"origin" in head.headers:
            exchange.headers = b""
            exchange.respond(HTTPStatus.NO_CONTENT, headers=METADATA_PREFLIGHT)
            return True
        if head.method not in ("GET", "HEAD"):
            raise HttpError(
                HTTPStatus.METHOD_NOT_ALLOWED, f"{head.method}: expected GET", b"Allow: GET\r\n"
            )
        exchange.headers = b"Access-Control-Allow-Origin: *\r\n"
        exchange.respond_as(b"%bCache-Control: max-age=%d\r\n" % (JSON, MAX_AGE_S), self._metadata)
        return True

    def check_local(self, exchange: Exchange) -> None:
        """Raise HttpError 403 unless a request has a valid token or comes from this machine.

        A request without a valid token must come directly. If a reverse proxy has passed it on, it
        is refused, because it may come from any machine.
        """
        if self._gate is not None and exchange.principal is not None:
            return
        facts, headers = exchange.connection.facts, exchange.head.headers
        is_passed_on = self._proxies is not None or not FORWARDED.isdisjoint(headers)
        peer = _peer_of(facts)
        is_local = peer is None or is_loopback(peer)
        if is_passed_on or not is_local:
            raise HttpError(
                HTTPStatus.FORBIDDEN,
                "without authorization, this is for programs of the server's machine that connect "
                "to it directly",
            )

    def _check_forwarded(
        self, proxies: TrustedProxies, head: RequestHead, facts: Mapping[str, object]
    ) -> None:
        """Raise HttpError 403 if tokens are needed and the client reached the proxy without TLS.

        A token in such a request was sent unencrypted.
        """
        if self._gate is not None and proxies.read(head, _peer_of(facts)).is_unencrypted:
            raise HttpError(
                HTTPStatus.FORBIDDEN,
                "this request has come without TLS: use the https URL, and a new token, because "
                "this one was sent unencrypted",
            )

    def _log_refusal(
        self, refusal: HttpError, head: RequestHead, facts: Mapping[str, object]
    ) -> None:
        """Log that a token was refused, but no more often than once in a second."""
        if b"authorization" not in head.headers:
            return
        now = asyncio.get_running_loop().time()
        if now - self._logged_at < LOG_S:
            return
        self._logged_at = now
        peer = _peer_of(facts)
        address = peer if self._proxies is None else self._proxies.read(head, peer).address
        log.info("%s: %d: %s", address or "a client", refusal.status, refusal)


def _peer_of(facts: Mapping[str, object]) -> str | None:
    """Return the IP address of the other end of a connection; None for a Unix socket.

    Returns "" if the address is not known.
    """
    # Only clients of a Unix socket have a user id.
    if "uid" in facts:
        return None
    # The address is HOST:PORT. An IPv6 host is in brackets, and may end with a zone, as in `%eth0`.
    return str(facts.get("address", "")).rpartition(":")[0].strip("[]").partition("%")[0]
