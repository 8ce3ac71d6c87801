"""Sockets as Connections: the same lines as over stdio, to and from one stream socket.

    SocketConnection          either end
    Accepted                  the server's end; closes itself when the other side speaks another protocol
    connect_unix, connect_tcp the client's end
    credentials, is_trusted   who is at the other end of a Unix socket, and whether it may speak to us

What listens is in transports/listeners.py. There is no TLS and no authentication: a Unix socket is for one user, a TCP socket for
whoever reaches it.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import select
import socket
import struct
import sys
from collections.abc import Mapping
from typing import Any

from concertino.jsonrpc.limits import Limits
from concertino.transports.pipe import PipeConnection

__all__ = [
    "AcceptedSocket",
    "SocketConnection",
    "configure_socket",
    "connect_tcp",
    "connect_unix",
    "credentials",
    "format_address",
    "is_trusted",
    "unix_name",
]

log = logging.getLogger("concertino.socket")

LONGEST_PATH = (
    107 if sys.platform == "linux" else 103
)  # bytes; sun_path without its last zero, unix(7)
LONGEST_OPENING = 8192  # bytes of a first line that begins unlike JSON-RPC; HTTP servers take as many of a request line
BLANK = b" \t\r\n"
OPENERS = (b"{", b"[", b"\xef\xbb\xbf")  # an object, a batch, a byte order mark
TLS = (b"\x16\x03", b"\x80\x2e")  # a handshake record; the oldest kind of hello
KEEPALIVE = {
    "TCP_KEEPIDLE": 60,
    "TCP_KEEPINTVL": 15,
    "TCP_KEEPCNT": 4,
}  # s, s, times: a dead machine is noticed in 2 minutes
AGAIN_S = 0.01


class SocketConnection(PipeConnection):
    """One stream socket, owned from now on. facts: transport, address; pid and uid of a Unix socket's other side."""

    def __init__(self, sock: socket.socket, limits: Limits, facts: Mapping[str, object]) -> None:
        sock.setblocking(False)  # ours alone, so there is nothing to put back
        descriptor = sock.detach()
        super().__init__(descriptor, descriptor, limits, facts)

    def _chunk(self, chunk: bytes) -> None:
        super()._chunk(chunk)
        if not chunk and self._to is not None:
            # After whoever is told of the end had its turn: mostly everything is over then.
            self._loop.call_soon(self._look_for_reader)

    def _look_for_reader(self) -> None:
        """After the end of input: the other side may have shut its half down and wait for answers, or be gone altogether.

        A Unix socket tells the two apart; TCP only when it was reset.
        """
        if self._to is None or self._broken:
            return
        poll = select.poll()
        poll.register(self._out, 0)
        if poll.poll(0):  # POLLHUP or POLLERR
            self._break(BrokenPipeError("the other side is gone"))


class AcceptedSocket(SocketConnection):
    """The server's end. What begins like HTTP or TLS is closed, and nothing of it is looked at.

    Any web page can make a browser send a request to a port of this machine, and the body of a POST may be a line of JSON-RPC. So
    the first line decides. A line that begins neither like JSON-RPC nor like those is garbage as on stdio, and answered.
    """

    def __init__(
        self, sock: socket.socket, limits: Limits, facts: Mapping[str, object], name: str
    ) -> None:
        super().__init__(sock, limits, facts)
        self._name = name
        self._opening = b""  # of a first line that begins unlike JSON-RPC
        self._begun = False

    def _chunk(self, chunk: bytes) -> None:
        if self._begun:
            super()._chunk(chunk)
            return
        opening = (self._opening + chunk).lstrip(BLANK)
        if not opening:  # blank lines are no frames
            super()._chunk(chunk)
            return
        if not opening.startswith(OPENERS):
            line, newline, _ = opening.partition(b"\n")
            protocol = _foreign(line)
            if protocol:
                log.warning("%s was closed: it speaks %s, not JSON-RPC", self._name, protocol)
                self._stop_reading()
                if self._to is not None:
                    self._to.on_eof()
                return
            if chunk and not newline:
                self._opening = opening
                return
        self._begun = True
        self._opening = b""
        if chunk or opening:
            super()._chunk(opening)
        if not chunk:
            super()._chunk(chunk)


def _foreign(line: bytes) -> str:
    """The protocol that a first line is of, if it is not ours; as much of the line as has come."""
    if line.startswith(TLS):
        return "TLS"
    if len(line) > LONGEST_OPENING:
        return "something else"
    return (
        "HTTP" if b" HTTP/" in line else ""
    )  # RFC 9112 section 3: method SP target SP HTTP-version; HTTP/2's preface too


# Who is there


def credentials(sock: socket.socket) -> tuple[int | None, int]:
    """The pid and effective uid of a Unix socket's other side when it connected; no pid where the system does not tell.

    Raises OSError when the system does not tell the uid either.
    """
    if sys.platform == "linux":
        pid, uid, _ = struct.unpack(
            "iII", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        )
        return pid or None, uid
    import ctypes

    try:
        getpeereid: Any = ctypes.CDLL(None, use_errno=True).getpeereid  # macOS and the BSDs
    except AttributeError:
        raise OSError(
            errno.ENOSYS, "this system does not tell who is at the other end of a Unix socket"
        ) from None
    uid, gid = ctypes.c_uint32(), ctypes.c_uint32()
    if getpeereid(sock.fileno(), ctypes.byref(uid), ctypes.byref(gid)):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    pid = None
    if sys.platform == "darwin":
        pid = sock.getsockopt(0, 2)  # SOL_LOCAL, LOCAL_PEERPID: <sys/un.h>
    return pid, uid.value


def is_trusted(uid: int, own: int) -> bool:
    """Whether a process of this user may speak to a server of user `own`: the same, or root, who can do anything anyway."""
    return uid in (own, 0)


def configure_socket(sock: socket.socket) -> dict[str, object]:
    """Set what a connected socket needs, and say who is at its other end: the facts of a connection. Raises OSError."""
    if sock.family == socket.AF_UNIX:
        pid, uid = credentials(sock)
        facts: dict[str, object] = {"transport": "unix", "uid": uid}
        if pid is not None:
            facts["pid"] = pid
        return facts
    sock.setsockopt(
        socket.IPPROTO_TCP, socket.TCP_NODELAY, 1
    )  # an answer is one write; it must not wait for an ACK
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in KEEPALIVE.items():
        if hasattr(socket, option):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
    return {"transport": "tcp", "address": format_address(sock.getpeername())}


def format_address(address: Any) -> str:
    """An address as the system gives it, as text: `127.0.0.1:80`, `[::1]:80`, a path, `@abstract`."""
    if isinstance(address, tuple):
        host, port = address[:2]  # pyright: ignore[reportUnknownVariableType]
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    if isinstance(address, bytes):
        address = os.fsdecode(address)
    return f"@{address[1:]}" if address.startswith("\0") else address


def unix_name(path: str | os.PathLike[str]) -> str:
    """A path that a Unix socket may have. Raises ValueError that says why it may not."""
    name = os.fspath(path)
    if not name or "\0" in name:
        raise ValueError(f"unix:{name!r}: expected a path")
    if name.startswith("@"):
        raise ValueError(
            f"unix:{name}: abstract names are not supported: nothing keeps others from taking one; "
            f"for a file of this name write ./{name}"
        )
    size = len(os.fsencode(name))
    if size > LONGEST_PATH:
        raise ValueError(
            f"unix:{name}: {size} bytes; the path of a socket has at most {LONGEST_PATH}. A relative one may be shorter"
        )
    return name


# The client's end


async def connect_unix(
    path: str | os.PathLike[str], limits: Limits | None = None
) -> SocketConnection:
    """Connect to a server that listens at a path. Give the connection to connect().

    facts: pid and uid are the server's. Raises ValueError for what is no path of a socket, OSError when nobody listens there.
    """
    name = unix_name(path)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        while True:
            try:
                sock.connect(name)
                break
            except (
                BlockingIOError
            ):  # EAGAIN: too many wait to be accepted. Nothing tells when there is room, unix(7)
                await asyncio.sleep(AGAIN_S)
        return SocketConnection(
            sock, limits or Limits(), {**configure_socket(sock), "address": name}
        )
    except BaseException:
        sock.close()
        raise


async def connect_tcp(host: str, port: int, limits: Limits | None = None) -> SocketConnection:
    """Connect to a server that listens at a port. Give the connection to connect().

    host: a name, or an IPv4 or IPv6 address without brackets; its addresses are tried in order. Raises the OSError of the last.
    """
    loop = asyncio.get_running_loop()
    failure = OSError(errno.EADDRNOTAVAIL, f"tcp:{host}:{port}: no address")
    for family, kind, protocol, _, address in await loop.getaddrinfo(
        host, port, type=socket.SOCK_STREAM
    ):
        sock = socket.socket(family, kind, protocol)
        try:
            sock.setblocking(False)
            await loop.sock_connect(sock, address)
            return SocketConnection(sock, limits or Limits(), configure_socket(sock))
        except OSError as why:
            sock.close()
            failure = why
        except BaseException:
            sock.close()
            raise
    raise failure
