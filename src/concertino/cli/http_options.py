"""The options of `concertino serve --http`: addresses, TLS, and who may connect.

add_http_options() adds them to the parser. read_http_options() checks their combinations before
anything is imported or opened, and returns HttpOptions (http/options.py).
"""

from __future__ import annotations

import os
import shlex
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from typing import TYPE_CHECKING, Any

from concertino.cli import UsageError
from concertino.cli.options import add_repeatable, add_uvloop
from concertino.errors import TargetError

if TYPE_CHECKING:
    from concertino.guards.call_counts import CallCounts
    from concertino.http.authorization import Authorization, TokenVerifier, VerifyToken
    from concertino.http.options import HttpOptions, SharedSessions

__all__ = ["HTTP_ONLY", "add_http_options", "read_http_options"]

# The environment variables with the credentials of this server at an introspection endpoint. Other
# users of the machine could see the values of options.
CLIENT_ID, CLIENT_SECRET = "CONCERTINO_INTROSPECTION_ID", "CONCERTINO_INTROSPECTION_SECRET"
# Name in the parsed arguments -> the option as it is typed, for each option that has no effect
# without --http.
HTTP_ONLY = {
    "workers": "--workers",
    "uvloop": "--uvloop",
    "allow_origin": "--allow-origin",
    "allow_host": "--allow-host",
    "public_url": "--public-url",
    "share_sessions": "--share-sessions",
    "share_addr": "--share-addr",
    "share_certs": "--share-certs",
    "tls_cert": "--tls-cert",
    "tls_key": "--tls-key",
    "behind_proxy": "--behind-proxy",
    "trusted_proxy": "--trusted-proxy",
    "no_auth": "--no-auth",
    "http_sse": "--http-sse",
    "websocket": "--websocket",
    "poll": "--poll",
    "metrics": "--metrics",
    "auth": "--auth",
    "auth_tokens": "--auth-tokens",
    "auth_issuer": "--auth-issuer",
    "auth_jwks": "--auth-jwks",
    "auth_audience": "--auth-audience",
    "auth_algorithm": "--auth-algorithm",
    "auth_introspection": "--auth-introspection",
    "auth_scope": "--auth-scope",
    "auth_cache_s": "--auth-cache-s",
    "principal_rate": "--principal-rate",
}
# A larger number is probably a mistake, such as a port.
MAX_WORKERS = 256
# Option -> the option without which it has no effect. Both are named as in the parsed arguments.
NEEDS = {
    "tls_key": "tls_cert",
    "auth_jwks": "auth_issuer",
    "auth_algorithm": "auth_issuer",
    "auth_introspection": "auth_issuer",
}
# The options that turn authorization on: each names a verifier of tokens. The options of
# FOR_VERIFIERS have no effect without one of them. All are named as in the parsed arguments.
VERIFIERS = ("auth", "auth_tokens", "auth_issuer")
FOR_VERIFIERS = ("auth_scope", "auth_cache_s", "auth_audience", "principal_rate")


def add_http_options(parser: ArgumentParser) -> None:
    """Add the options for HTTP and for authorization to the parser of `concertino serve`."""
    http = parser.add_argument_group("HTTP")
    add_repeatable(
        http,
        "--http",
        "ADDRESS",
        "serve MCP over HTTP at http://ADDRESS/mcp: HOST:PORT, unix:PATH, or systemd for the "
        "sockets of a socket unit; repeatable",
    )
    http.add_argument(
        "--workers",
        metavar="N",
        type=_parse_workers,
        help="serve with N processes",
    )
    add_uvloop(http)
    add_repeatable(
        http,
        "--allow-origin",
        "ORIGIN",
        "allow web pages of this origin, such as https://app.example.com; repeatable",
    )
    http.add_argument(
        "--public-url",
        metavar="URL",
        help="the URL by which clients know the server, such as https://mcp.example.com/mcp",
    )
    add_repeatable(
        http, "--allow-host", "NAME", "one more name of the server in the header Host; repeatable"
    )
    http.add_argument("--tls-cert", metavar="FILE", help="certificate for https, in PEM")
    http.add_argument(
        "--tls-key", metavar="FILE", help="private key of --tls-cert, if it is in another file"
    )
    http.add_argument(
        "--behind-proxy", action="store_true", help="a proxy in front of the server has TLS"
    )
    add_repeatable(
        http,
        "--trusted-proxy",
        "NETWORK",
        "believe the Forwarded and X-Forwarded-... headers of this proxy; repeatable",
    )
    http.add_argument(
        "--http-sse",
        action="store_true",
        help="also serve clients of 2024-11-05, which use http://ADDRESS/sse",
    )
    http.add_argument(
        "--websocket", action="store_true", help="also serve WebSockets, at ws://ADDRESS/mcp"
    )
    http.add_argument(
        "--poll",
        metavar="WAIT[/RETRY]",
        type=_parse_poll,
        help="let clients of 2025-11-25 come back for a response that takes longer than WAIT "
        "seconds, after RETRY seconds (default 1)",
    )
    http.add_argument(
        "--metrics",
        action="store_true",
        help="serve numbers of calls for Prometheus at /metrics, to principals, or without "
        "authorization to this machine",
    )
    http.add_argument(
        "--share-sessions",
        metavar="ADDR",
        help="share sessions with the front ends on other machines: nats://HOST,... of a cluster "
        "with JetStream",
    )
    http.add_argument(
        "--share-addr",
        metavar="HOST:PORT",
        help="with --share-sessions: where the other front ends reach this one",
    )
    http.add_argument(
        "--share-certs",
        metavar="DIR",
        help="with --share-sessions: folder of ca.crt, front-end.crt and front-end.key",
    )
    _add_authorization_options(parser)


def _parse_workers(text: str) -> int:
    number = int(text)
    if not 1 <= number <= MAX_WORKERS:
        raise ArgumentTypeError(f"expected a number from 1 to {MAX_WORKERS}, got {text}")
    return number


def _parse_poll(text: str) -> tuple[float, float]:
    wait, slash, retry = text.partition("/")
    times = float(wait), float(retry) if slash else 1.0
    # Comparisons with NaN are false, so `not ... > 0` refuses NaN, too.
    if not min(times) > 0:
        raise ArgumentTypeError(f"expected positive numbers of seconds, got {text}")
    return times


def _add_authorization_options(parser: ArgumentParser) -> None:
    auth = parser.add_argument_group("authorization over HTTP")
    auth.add_argument(
        "--auth-tokens", metavar="FILE", help="let in the tokens in this file; see concertino token"
    )
    auth.add_argument(
        "--auth-issuer", metavar="URL", help="let in the tokens of this authorization server"
    )
    auth.add_argument(
        "--auth-jwks", metavar="URL", help="keys of --auth-issuer (default: by its metadata)"
    )
    add_repeatable(
        auth,
        "--auth-algorithm",
        "NAME",
        "algorithm by which --auth-issuer signs, such as ES256; repeatable (default: RS256, PS256, "
        "ES256, EdDSA and their longer forms)",
    )
    auth.add_argument(
        "--auth-introspection",
        metavar="URL",
        help="ask --auth-issuer about each token at this URL, as the client in "
        f"{CLIENT_ID} and {CLIENT_SECRET}",
    )
    add_repeatable(
        auth,
        "--auth-audience",
        "NAME",
        "for whom --auth-issuer must have issued a token; repeatable (default: the public URL)",
    )
    auth.add_argument(
        "--auth", metavar="FILE:NAME", help="a function of a token, or an Authorization, in Python"
    )
    add_repeatable(auth, "--auth-scope", "SCOPE", "what every token must allow; repeatable")
    auth.add_argument(
        "--auth-cache-s",
        metavar="S",
        type=_parse_cache_s,
        help="for how long a token is believed that was verified, at most 60 (default 60)",
    )
    auth.add_argument(
        "--principal-rate",
        metavar="CALLS/SECONDS",
        help="how many requests each principal may send, such as 100/60",
    )
    auth.add_argument(
        "--no-auth",
        action="store_true",
        help="serve without authorization at addresses that others can reach",
    )


def _parse_cache_s(text: str) -> float:
    seconds = float(text)
    if not 0 <= seconds <= 60:
        raise ArgumentTypeError(f"expected 0 to 60 seconds, got {text}")
    return seconds


def read_http_options(
    args: Namespace, counts: CallCounts | None = None
) -> tuple[HttpOptions | None, list[tuple[bool, str]]]:
    """Return the settings of an HTTP server, and the addresses at which it listens.

    An address is a tuple: (True, path of a Unix socket) or (False, "HOST:PORT"). Sockets that
    systemd passes are not among the addresses. Returns (None, []) without --http.

    args: the parsed arguments.
    counts: the numbers of calls for /metrics; None if /metrics is not served.
    Raises UsageError for wrong or contradicting options, and for an option that needs --http if
    --http is missing.
    """
    values: dict[str, Any] = vars(args)
    if not args.http:
        for name, option in HTTP_ONLY.items():
            # An option has one of these values if the command line does not contain it.
            if values[name] not in (None, False, []):
                raise UsageError(f"{option} is for --http")
        return None, []
    _check_combinations(values)
    try:
        from concertino.http.frontend import split_http_address
        from concertino.http.options import HttpOptions, Polling
        from concertino.http.principal_limits import PrincipalLimits
        from concertino.http.tls import Tls
    except ImportError as exc:
        raise UsageError(str(exc)) from None
    try:
        options = HttpOptions(
            origins=tuple(args.allow_origin),
            max_connections=args.max_connections or HttpOptions().max_connections,
            authorization=_read_authorization(args),
            principal_limits=PrincipalLimits(rate=args.principal_rate),
            public_url=args.public_url,
            hosts=tuple(args.allow_host),
            tls=None if args.tls_cert is None else Tls(args.tls_cert, args.tls_key),
            behind_proxy=args.behind_proxy,
            trusted_proxies=tuple(args.trusted_proxy),
            no_auth=args.no_auth,
            sse=args.http_sse,
            websocket=args.websocket,
            polling=None if args.poll is None else Polling(*args.poll),
            metrics=None if counts is None else counts.text,
            shared_sessions=_read_sharing(args),
        )
        _check_early(options)
    except (ValueError, ImportError) as exc:
        raise UsageError(str(exc)) from None
    addresses = [split_http_address(text) for text in args.http if text != "systemd"]
    for is_unix, name in addresses:
        if not is_unix:
            _check_address(name)
    return options, addresses


def _read_sharing(args: Namespace) -> SharedSessions | None:
    """Return the settings for shared sessions; None without --share-sessions. Raises UsageError."""
    values = (args.share_sessions, args.share_addr, args.share_certs)
    if values == (None, None, None):
        return None
    if None in values:
        raise UsageError("--share-sessions, --share-addr and --share-certs: expected all or none")
    if args.workers is not None:
        raise UsageError(
            "--share-sessions: not together with --workers; start one process for each address"
        )
    from concertino.http.options import SharedSessions

    return SharedSessions(*values)


def _check_early(options: HttpOptions) -> None:
    """Check what would otherwise fail when the server starts.

    Raises ValueError for a certificate that cannot be used, ImportError for a missing extra.
    """
    if options.websocket:
        from concertino.http.websocket_messages import quiet_logger

        # Called only because it raises ImportError if the package websockets is missing.
        quiet_logger()
    if options.tls is not None:
        from concertino.http.tls import TlsCertificate

        # Reads the files and checks them. The server does it again when it starts.
        TlsCertificate(options.tls)
    if options.shared_sessions is not None:
        from concertino.http.machine_peers import MachinePeers

        try:
            MachinePeers(options.shared_sessions)
        except OSError as exc:
            raise ValueError(f"--share-sessions: {exc}") from None


def _check_address(text: str) -> None:
    """Raise UsageError for an address that is not HOST:PORT. The error says what to write."""
    from concertino.transports.listeners import split_address

    try:
        split_address(text)
    except ValueError:
        # Guess what the user has meant: the host and port of a URL, or the host of a text without a
        # valid port, with port 8000.
        is_url = "://" in text
        address = text.partition("://")[2].partition("/")[0] if is_url else text
        host, _, port = address.rpartition(":")
        if not port.isdecimal() or int(port) > 65535:
            host, port = address.partition(":")[0], "8000"
        alternative = "not a URL" if is_url else "or unix:PATH"
        raise UsageError(
            f"--http {text}: expected HOST:PORT, {alternative}",
            f"write --http {host or '127.0.0.1'}:{port}; port 0 takes a free one",
        ) from None


def _check_combinations(values: dict[str, Any]) -> None:
    """Raise UsageError for options that exclude each other, or do nothing without another one."""
    if values["unix"] or values["tcp"]:
        raise UsageError(
            "--http: not together with --unix or --tcp; start one more process for those"
        )
    if values["allow_remote"]:
        raise UsageError(
            "--allow-remote is for --tcp; with --http, an address that others can reach needs "
            "authorization, TLS and --public-url"
        )
    # An option that was not given is None or [].
    for name, other in NEEDS.items():
        if values[name] not in (None, []) and values[other] is None:
            raise UsageError(f"{HTTP_ONLY[name]}: add {HTTP_ONLY[other]}")
    if values["workers"] is not None and values["metrics"]:
        raise UsageError(
            "--metrics: not together with --workers: each process has numbers of its own"
        )
    if values["auth_introspection"] is not None and (
        values["auth_jwks"] is not None or values["auth_algorithm"]
    ):
        raise UsageError(
            "--auth-introspection: not together with --auth-jwks and --auth-algorithm: the issuer "
            "verifies its tokens itself"
        )
    if all(values[name] is None for name in VERIFIERS):
        for name in FOR_VERIFIERS:
            if values[name] not in (None, []):
                raise UsageError(
                    f"{HTTP_ONLY[name]}: add --auth-tokens, --auth-issuer or --auth: without one "
                    "of them everybody is let in"
                )


def _read_authorization(args: Namespace) -> Authorization | None:
    """Return the settings for authorization; None to let in all clients.

    Raises ValueError and UsageError for options that are wrong.
    """
    from concertino.http.authorization import Authorization

    verifiers: list[TokenVerifier | VerifyToken] = []
    if args.auth is not None:
        found = _load_verifier(args.auth)
        if isinstance(found, Authorization):
            if args.auth_tokens or args.auth_issuer or args.auth_scope:
                raise UsageError(
                    f"--auth {args.auth}: it is an Authorization, which says all; remove the other "
                    "options --auth-..."
                )
            return found
        verifiers.append(found)
    if args.auth_tokens is not None:
        from concertino.verifiers.static_tokens import StaticTokens

        if not os.path.lexists(args.auth_tokens):
            raise UsageError(
                f"--auth-tokens {args.auth_tokens}: no such file; this makes it: "
                f"concertino token new NAME --file {shlex.quote(args.auth_tokens)}"
            )
        verifiers.append(StaticTokens(args.auth_tokens))
    if args.auth_issuer is not None:
        verifiers.append(_make_issuer_verifier(args))
    if not verifiers:
        return None
    cache_s = 60.0 if args.auth_cache_s is None else args.auth_cache_s
    return Authorization(tuple(verifiers), scopes=frozenset(args.auth_scope), cache_s=cache_s)


def _make_issuer_verifier(args: Namespace) -> TokenVerifier:
    """Return the verifier for the tokens of --auth-issuer. Raises ValueError, UsageError."""
    audience = tuple(args.auth_audience)
    if not audience:
        if args.public_url is None:
            raise UsageError(
                "--auth-issuer: add --public-url, for which its tokens are issued, or "
                "--auth-audience"
            )
        from concertino.http.resource_identity import parse_public_url
        from concertino.http.server import ENDPOINT

        audience = (parse_public_url(args.public_url, ENDPOINT).url,)
    if args.auth_introspection is not None:
        from concertino.verifiers.introspection import Introspection

        return Introspection(
            args.auth_issuer,
            args.auth_introspection,
            audience,
            client_id=os.environ.get(CLIENT_ID, ""),
            client_secret=os.environ.get(CLIENT_SECRET, ""),
        )
    try:
        from concertino.verifiers.jwt_verifier import JwtVerifier
    except ImportError as exc:
        raise UsageError(str(exc)) from None
    algorithms = tuple(args.auth_algorithm) or None
    return JwtVerifier(args.auth_issuer, audience, algorithms=algorithms, jwks_url=args.auth_jwks)


def _load_verifier(target: str) -> Any:
    """Return the object that --auth names: a function, a TokenVerifier or an Authorization.

    Raises UsageError for any other object, and if there is none.
    """
    from concertino.cli.targets import load_attribute
    from concertino.http.authorization import Authorization

    try:
        found = load_attribute(target)
    except TargetError as exc:
        raise UsageError(f"--auth: {exc}") from None
    # An object with the method verify() is a TokenVerifier.
    if isinstance(found, Authorization) or callable(found) or hasattr(found, "verify"):
        return found
    raise UsageError(
        f"--auth {target}: expected a function that takes a token, a TokenVerifier or an "
        f"Authorization, got {type(found).__name__}"
    )
