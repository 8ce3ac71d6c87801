"""check_exposure(): checks that an HTTP server is not open to everybody by mistake.

At an address that other machines can reach, three options are required: authorization or --no-auth,
TLS or --behind-proxy, and the URL by which clients know the server. The check is made when an
HttpServer is made, and by `concertino serve` before it starts workers.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from concertino.http.options import HttpOptions
from concertino.http.resource_identity import ResourceIdentity, parse_public_url
from concertino.transports.addresses import is_loopback
from concertino.transports.listeners import Listener

__all__ = ["check_exposure"]

# The header Origin of a page, such as https://app.example.com or chrome-extension://abc.
ORIGIN = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^\s/?#@*]+/?", re.ASCII)
# A name or an IPv6 address, without a port.
HOST_NAME = re.compile(r"[A-Za-z0-9._-]+|[0-9A-Fa-f:]*:[0-9A-Fa-f:.]*")


def check_exposure(
    options: HttpOptions, listeners: Sequence[Listener], endpoint: str
) -> ResourceIdentity | None:
    """Check the options, and return the URL by which clients know the server, with its parts.

    The URL is options.public_url. If public_url is not set, but the server has authorization, the
    URL is made of the address of the first listener that is not a Unix socket. Without public_url
    and authorization, returns None.

    options: the settings of the server.
    listeners: the listening sockets.
    endpoint: the path of the MCP endpoint.
    Raises ValueError, whose text says what to do, if an option is missing or contradicts another.
    public_url is required if other machines reach a listener. With authorization, it is also
    required if all listeners are Unix sockets.
    """
    _check_options(options)
    identity = None
    if options.public_url is not None:
        identity = parse_public_url(options.public_url, endpoint)
        _check_public_url(options, identity)
    for listener in listeners:
        if listener.is_remote:
            _check_remote(options, listener)
    if options.authorization is None or identity is not None:
        return identity
    for listener in listeners:
        if not listener.is_unix:
            scheme = "http" if options.tls is None else "https"
            address = listener.address.removeprefix("tcp:")
            return parse_public_url(f"{scheme}://{address}", endpoint)
    raise ValueError(
        "authorization: set --public-url (public_url=): tokens are issued for a URL, and a Unix "
        "socket has none"
    )


def _check_options(options: HttpOptions) -> None:
    """Raise ValueError if options contradict each other, or have malformed values."""
    if options.no_auth and options.authorization is not None:
        raise ValueError(
            "--no-auth: not together with authorization; remove one of them (no_auth=, "
            "authorization=)"
        )
    if options.trusted_proxies and not options.behind_proxy:
        raise ValueError(
            "--trusted-proxy: add --behind-proxy (behind_proxy=True): without a proxy, no header "
            "of one is believed"
        )
    for text in options.origins:
        # Browsers never send another form, such as https://example.com/app.
        if ORIGIN.fullmatch(text) is None:
            raise ValueError(
                f"--allow-origin {text}: expected an origin with its scheme and without a path, "
                "such as https://app.example.com"
            )
    for text in options.hosts:
        if HOST_NAME.fullmatch(text) is None:
            raise ValueError(
                f"--allow-host {text}: expected a name without scheme and port, such as "
                "mcp.example.com"
            )
    for text in options.trusted_proxies:
        from ipaddress import ip_network

        try:
            ip_network(text)
        except ValueError as exc:
            raise ValueError(
                f"--trusted-proxy {text}: expected an address or a network such as 10.0.0.0/8: "
                f"{exc}"
            ) from None


def _check_public_url(options: HttpOptions, identity: ResourceIdentity) -> None:
    """Raise ValueError if the public URL is http, but clients need https."""
    if identity.url.startswith("http:") and not is_loopback(identity.host):
        if options.authorization is not None:
            raise ValueError(
                f"--public-url {identity.url}: expected https: tokens would travel unencrypted"
            )
        if options.tls is not None:
            raise ValueError(
                f"--public-url {identity.url}: expected https, because the server has a certificate"
            )


def _check_remote(options: HttpOptions, listener: Listener) -> None:
    """Raise ValueError if the options do not protect an address that other machines can reach."""
    missing: list[str] = []
    if options.authorization is None and not options.no_auth:
        missing.append(
            "authorization (--auth-tokens, --auth-issuer, ...; or --no-auth if everybody may call "
            "every tool)"
        )
    if options.tls is None and not options.behind_proxy:
        missing.append(
            "TLS (--tls-cert and --tls-key; or --behind-proxy if a proxy in front has it)"
        )
    if options.public_url is None:
        missing.append("--public-url, the URL by which clients know the server")
    if missing:
        raise ValueError(
            f"{listener.address} can be reached from other machines; add " + "; ".join(missing)
        )
