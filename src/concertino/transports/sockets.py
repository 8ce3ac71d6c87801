"""Connections over Unix and TCP sockets. Frames are lines, as over stdio.

    SocketConnection           either end of a socket
    AcceptedSocket             the server's end; closes itself if the client speaks HTTP or TLS
    connect_unix, connect_tcp  make the client's end
    credentials, is_trusted    identify the process at the other end of a Unix socket

Listening sockets are in transports/listeners.py. There is no TLS and no authentication: a Unix
socket accepts processes of one user, and a TCP socket accepts every program that can reach it.
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
from concertino.transports.addresses import unix_name
from concertino.transports.pipe import PipeConnection
from concertino.transports.tcp_options import set_tcp_options

__all__ = [
    "AcceptedSocket",
    "SocketConnection",
    "configure_socket",
    "connect_tcp",
    "connect_unix",
    "credentials",
    "format_address",
    "is_trusted",
    "open_unix_socket",
]

log = logging.getLogger("concertino.socket")

# At most this many bytes of a first line that does not look like JSON-RPC are read. Many HTTP
# servers have the same limit.
MAX_FIRST_LINE_BYTES = 8192
BLANK = b" \t\r\n"
# How JSON-RPC may begin: with an object, a batch, or a byte order mark.
JSON_STARTS = (b"{", b"[", b"\xef\xbb\xbf")
# How TLS may begin: with a handshake record, or with the ClientHello of SSL 2.
TLS_STARTS = (b"\x16\x03", b"\x80\x2e")
# How many seconds to wait before the next attempt to connect to a listener whose backlog is full.
CONNECT_RETRY_S = 0.01


class SocketConnection(PipeConnection):
    """A Connection over one stream socket.

    sock: a connected socket. The Connection takes over its descriptor, and closes the descriptor at
        the end. Do not use the socket afterwards.
    facts: transport and address; for a Unix socket also pid and uid of the peer.
    """

    def __init__(
        self,
        sock: socket.socket,
        limits: Limits,
        facts: Mapping[str, object],
    ) -> None:
        # No other process shares this socket, so O_NONBLOCK need not be reset.
        sock.setblocking(False)
        descriptor = sock.detach()
        super().__init__(descriptor, descriptor, limits, facts)

    def on_chunk(self, chunk: bytes) -> None:
        super().on_chunk(chunk)
        if not chunk and self._receiver is not None:
            # Check in the next loop iteration, because the receiver usually closes the connection
            # before.
            self._loop.call_soon(self._check_peer)

    def _check_peer(self) -> None:
        """Report a disconnect if the peer has closed its socket. Called after the end of input."""
        if self._receiver is None or self._output.broken:
            return
        # The peer may also have closed only the writing half of its socket (shutdown) and wait for
        # responses. On a Unix socket these two cases can be distinguished; on TCP only after the
        # peer has sent a reset.
        poll = select.poll()
        # No events are requested, but POLLHUP and POLLERR are always reported.
        poll.register(self._writing_fd, 0)
        if poll.poll(0):
            self._on_write_error(BrokenPipeError("the peer has closed the connection"))


class AcceptedSocket(SocketConnection):
    """The server's end of a socket. It closes itself if the client speaks HTTP or TLS.

    The connection ends after a first line that looks like HTTP or TLS, or that is longer than
    MAX_FIRST_LINE_BYTES and does not look like JSON.
    name: the name of the client, for the log.
    """

    # Any web page can make a browser send a POST request to a port of this machine, and the body of
    # the request may be a line of JSON-RPC.

    def __init__(
        self,
        sock: socket.socket,
        limits: Limits,
        facts: Mapping[str, object],
        name: str,
    ) -> None:
        super().__init__(sock, limits, facts)
        self._name = name
        # The beginning of a first line that does not look like JSON-RPC.
        self._first_line = b""
        # Whether the first line has been found not to be HTTP or TLS.
        self._is_checked = False

    def on_chunk(self, chunk: bytes) -> None:
        """Hold input back until the first line is known not to be HTTP or TLS.

        chunk: b"" at the end of input.
        """
        if self._is_checked:
            super().on_chunk(chunk)
            return

        # Skip blank lines, which are not frames.
        start = (self._first_line + chunk).lstrip(BLANK)
        # There is no first line yet. The base class handles the end of input.
        if not start:
            super().on_chunk(chunk)
            return

        if not start.startswith(JSON_STARTS):
            line, newline, _ = start.partition(b"\n")
            protocol = _recognize_protocol(line)
            if protocol:
                log.warning("%s was closed: it speaks %s, not JSON-RPC", self._name, protocol)
                self._stop_reading()
                if self._receiver is not None:
                    self._receiver.on_eof()
                return
            if chunk and not newline:
                self._first_line = start
                return

        self._is_checked = True
        self._first_line = b""
        super().on_chunk(start)
        if not chunk:
            super().on_chunk(chunk)


def _recognize_protocol(line: bytes) -> str:
    """Return the name of the protocol that a first line looks like; "" if it may be JSON-RPC."""
    if line.startswith(TLS_STARTS):
        return "TLS"
    if len(line) > MAX_FIRST_LINE_BYTES:
        return "something else"
    # The first line of a request: "METHOD TARGET HTTP/1.1" (RFC 9112 section 3). The preface of
    # HTTP/2 looks the same.
    return "HTTP" if b" HTTP/" in line else ""


# The peer's identity


def credentials(sock: socket.socket) -> tuple[int | None, int]:
    """Return the process id and the effective user id of the peer of a Unix socket.

    These are the ids at the time when the peer has connected. The process id is None if the system
    does not report it. Raises OSError if the system does not report the user id.
    """
    if sys.platform == "linux":
        # A struct ucred, see unix(7): pid, uid and gid.
        pid, uid, _ = struct.unpack(
            "iII", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        )
        # The process id is 0 if the peer is in another pid namespace.
        return pid or None, uid

    import ctypes

    try:
        # A function of macOS and the BSDs.
        getpeereid: Any = ctypes.CDLL(None, use_errno=True).getpeereid
    except AttributeError:
        raise OSError(
            errno.ENOSYS, "this system does not report who connects to a Unix socket"
        ) from None
    uid, gid = ctypes.c_uint32(), ctypes.c_uint32()
    if getpeereid(sock.fileno(), ctypes.byref(uid), ctypes.byref(gid)):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))

    pid = None
    if sys.platform == "darwin":
        # 0 is SOL_LOCAL and 2 is LOCAL_PEERPID in <sys/un.h>.
        pid = sock.getsockopt(0, 2)
    return pid, uid.value


def is_trusted(uid: int, own_uid: int) -> bool:
    """Return whether a process of the user `uid` may use a server of the user `own_uid`.

    Processes of the same user and of root may use it.
    """
    return uid in (own_uid, 0)


def configure_socket(sock: socket.socket) -> dict[str, object]:
    """Set the options of a connected socket, and return the facts for its Connection.

    Raises OSError, for example if the peer has gone.
    """
    if sock.family == socket.AF_UNIX:
        pid, uid = credentials(sock)
        facts: dict[str, object] = {"transport": "unix", "uid": uid}
        if pid is not None:
            facts["pid"] = pid
        return facts

    set_tcp_options(sock)
    return {"transport": "tcp", "address": format_address(sock.getpeername())}


def format_address(address: Any) -> str:
    """Return an address of the socket module as text.

    Examples are `127.0.0.1:80`, `[::1]:80`, a path, and `@name` for an abstract Unix socket.
    """
    if isinstance(address, tuple):
        host, port = address[:2]  # pyright: ignore[reportUnknownVariableType]
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    if isinstance(address, bytes):
        address = os.fsdecode(address)
    return f"@{address[1:]}" if address.startswith("\0") else address


# The client's end


async def connect_unix(
    path: str | os.PathLike[str], limits: Limits | None = None
) -> SocketConnection:
    """Connect to a server that listens at a path, and return the Connection to this server.

        client = connect(await connect_unix("/run/my.sock"))      # or Client(...)

    The Connection is not open yet: connect() or Client opens it. Its facts contain the pid and the
    uid of the server. If the server accepts no connections at present and its queue is full, this
    waits without a limit.
    limits: None for Limits().
    Raises ValueError if a socket cannot have this path, OSError if no server listens there.
    """
    sock = await open_unix_socket(path)
    try:
        facts = {**configure_socket(sock), "address": unix_name(path)}
        return SocketConnection(sock, limits or Limits(), facts)
    except BaseException:
        sock.close()
        raise


async def open_unix_socket(path: str | os.PathLike[str]) -> socket.socket:
    """Return a non-blocking socket that is connected to the listener at a path.

    Raises ValueError if a socket cannot have this path, OSError if no server listens there.
    """
    name = unix_name(path)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        while True:
            try:
                sock.connect(name)
                return sock
            except BlockingIOError:
                # EAGAIN means that the listener's backlog is full. No event reports when there is
                # room again, see unix(7).
                await asyncio.sleep(CONNECT_RETRY_S)
    except BaseException:
        sock.close()
        raise


async def connect_tcp(host: str, port: int, limits: Limits | None = None) -> SocketConnection:
    """Connect to a server that listens at a port, and return the Connection to this server.

        client = connect(await connect_tcp("127.0.0.1", 8000))    # or Client(...)

    The Connection is not open yet: connect() or Client opens it.
    host: a name, or an IPv4 or IPv6 address without brackets. If a name has several addresses, they
        are tried in order.
    limits: None for Limits().
    Raises the OSError of the last address that was tried.
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
        except OSError as exc:
            sock.close()
            failure = exc
        except BaseException:
            sock.close()
            raise
    raise failure
