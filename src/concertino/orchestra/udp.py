"""UdpSocket: a UDP transport that delivers all datagrams that have arrived in one call.

quic_link.py and quic_listener.py, the two sides of connections over QUIC, use it. asyncio's own
transport delivers one datagram in each iteration of the loop. If QUIC handles many datagrams at
once, it can answer several of them with one packet. For 64 concurrent calls from a Go client, this
halves the CPU time of a call (bench/orchestra_go.py).
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Protocol

from concertino.transports.listeners import split_address

__all__ = ["Address", "UdpHandler", "UdpSocket", "resolve_udp", "split_quic_address"]

# An address in the form of the module `socket`: (host, port), and two more numbers for IPv6.
Address = tuple[Any, ...]

# The size that is requested for a socket's buffers, in which datagrams wait while Python is busy.
SOCKET_BYTES = 4 * 2**20
# The largest datagram of UDP.
MAX_DATAGRAM_BYTES = 2**16
# One call delivers at most TURN_DATAGRAMS datagrams, within at most TURN_S seconds, so that other
# tasks get their turn. Handling a datagram takes 50 us, or milliseconds if it begins a handshake.
TURN_S, TURN_DATAGRAMS = 0.002, 64


class UdpHandler(Protocol):
    """Receives the datagrams of a UdpSocket.

    It is like asyncio.DatagramProtocol, but datagrams_received() gets all datagrams that have
    arrived: an iterator over (data, address of the sender), which reads them from the socket.
    """

    def connection_made(self, transport: asyncio.BaseTransport) -> None: ...
    def datagrams_received(self, datagrams: Iterator[tuple[bytes, Address]]) -> None: ...
    def error_received(self, exc: Exception) -> None: ...


class UdpSocket(asyncio.DatagramTransport):
    """A transport over a UDP socket, without an output buffer. It reads from its creation on.

    A datagram that the system does not accept at once is dropped. QUIC sends it again, like a
    datagram that is lost on the network.
    """

    def __init__(self, sock: socket.socket, handler: UdpHandler) -> None:
        """Begin to read from a socket, and call handler.connection_made().

        sock: a bound or connected socket, which close() closes.
        handler: called with the datagrams and errors.
        """
        super().__init__()
        sock.setblocking(False)
        for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):
            with suppress(OSError):
                sock.setsockopt(socket.SOL_SOCKET, option, SOCKET_BYTES)
        self._socket = sock
        self._handler = handler
        self._loop = asyncio.get_running_loop()
        self._is_closing = False
        # macOS refuses sendto() with an address on a connected socket.
        self._is_connected = _is_connected(sock)
        handler.connection_made(self)
        self._loop.add_reader(sock, self._on_readable)

    def _on_readable(self) -> None:
        """Pass the datagrams that have arrived to the handler. The event loop calls it."""
        self._handler.datagrams_received(self._read_datagrams())

    def _read_datagrams(self) -> Iterator[tuple[bytes, Address]]:
        """Yield the datagrams that have arrived, within the limits of one turn."""
        until = self._loop.time() + TURN_S
        for _ in range(TURN_DATAGRAMS):
            try:
                datagram = self._socket.recvfrom(MAX_DATAGRAM_BYTES)
            except (BlockingIOError, InterruptedError):
                return
            except OSError as exc:
                self._handler.error_received(exc)
                return
            yield datagram
            if self._is_closing or self._loop.time() > until:
                return

    def sendto(self, data: Any, addr: Any = None) -> None:
        """Send a datagram, or drop it if the system does not accept it now.

        addr: the address of the receiver; ignored if the socket is connected.
        Raises nothing: errors are passed to the handler's error_received().
        """
        try:
            if self._is_connected:
                self._socket.send(data)
            else:
                self._socket.sendto(data, addr)
        except (BlockingIOError, InterruptedError):
            pass
        except OSError as exc:
            if not self._is_closing:
                self._handler.error_received(exc)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return the socket's own address for "sockname", and `default` for any other name."""
        return self._socket.getsockname() if name == "sockname" else default

    def is_closing(self) -> bool:
        """Return whether the socket is closed."""
        return self._is_closing

    def close(self) -> None:
        """Close the socket."""
        if not self._is_closing:
            self._is_closing = True
            self._loop.remove_reader(self._socket)
            self._socket.close()


def _is_connected(sock: socket.socket) -> bool:
    try:
        sock.getpeername()
    except OSError:
        return False
    return True


def split_quic_address(address: str) -> tuple[str, int]:
    """Split `HOST:PORT` or `[IPv6]:PORT` into the host and the port.

    Raises ValueError for any other form.
    """
    try:
        return split_address(address)
    except ValueError:
        # This error names `unix:PATH`, too, because callers of link.py may pass such an address.
        raise ValueError(
            f"{address!r}: expected HOST:PORT, as in localhost:50100 or [::1]:50100, or unix:PATH"
        ) from None


async def resolve_udp(host: str, port: int, flags: int = 0) -> tuple[socket.AddressFamily, Address]:
    """Return the UDP address of a host and port, as (address family, address).

    If the host has several addresses, the result is its first IPv4 address, or its first address if
    none is IPv4.
    flags: flags of getaddrinfo(), such as AI_PASSIVE.
    Raises OSError if the host has no address.
    """
    loop = asyncio.get_running_loop()
    candidates = await loop.getaddrinfo(host, port, type=socket.SOCK_DGRAM, flags=flags)
    # The first IPv4 address, as in Go programs (net.ResolveUDPAddr), so that both sides choose the
    # same address for `localhost`. False sorts before True.
    family, *_, address = min(candidates, key=lambda item: item[0] != socket.AF_INET)
    return family, address
