"""Addresses of sockets: `unix:PATH` and `tcp:HOST:PORT`.

This module imports almost nothing, so that `concertino connect` starts fast.
"""

from __future__ import annotations

import os
import sys

__all__ = ["is_loopback", "parse_address", "unix_name"]

# The longest path of a Unix socket: the size of sun_path without the final NUL, see unix(7).
MAX_PATH_BYTES = 107 if sys.platform == "linux" else 103


def parse_address(text: str) -> str | tuple[str, int]:
    """Return PATH for `unix:PATH`, and (HOST, PORT) for `tcp:HOST:PORT`.

    The host of `tcp:[::1]:8000` is `::1`. Raises ValueError for any other text.
    """
    kind, _, rest = text.partition(":")
    if kind == "unix" and rest:
        return rest
    host, _, port = rest.rpartition(":")
    if kind == "tcp" and host and port.isdecimal() and 0 < int(port) < 65536:
        return host.removeprefix("[").removesuffix("]"), int(port)
    raise ValueError(f"expected unix:PATH or tcp:HOST:PORT, got {text!r}")


def unix_name(path: str | os.PathLike[str]) -> str:
    """Return a path as a str. Raises ValueError if it cannot be the path of a Unix socket."""
    name = os.fspath(path)
    if not name or "\0" in name:
        raise ValueError(f"unix:{name!r}: expected a path")
    if name.startswith("@"):
        raise ValueError(
            f"unix:{name}: abstract names are not supported, because any user can take one; "
            f"for a file of this name write ./{name}"
        )
    size = len(os.fsencode(name))
    if size > MAX_PATH_BYTES:
        raise ValueError(
            f"unix:{name}: the path has {size} bytes, and that of a socket may have "
            f"{MAX_PATH_BYTES}; use a relative or a shorter one"
        )
    return name


def is_loopback(host: str) -> bool:
    """Return whether a host stands for this machine only.

    host: `localhost`, or an IP address, which may end with a zone, as in fe80::1%eth0. Any other
        name is not looked up: the result is False.
    """
    if host in ("127.0.0.1", "::1"):
        return True
    # Imported here, because the import takes 0.5 MB of memory.
    from ipaddress import IPv6Address, ip_address

    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return host.lower() == "localhost"
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped.is_loopback
    return address.is_loopback
