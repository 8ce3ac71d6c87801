"""set_tcp_options(): the options of every TCP connection, of servers and of clients."""

from __future__ import annotations

# This is the C part of the module socket. `concertino connect` does not import socket, to start
# faster (cli/connect.py).
import _socket

__all__ = ["set_tcp_options"]

# TCP option -> value. The first two are in seconds, the last one is a count. With these values, a
# crashed peer is noticed within 2 minutes.
KEEPALIVE = {
    "TCP_KEEPIDLE": 60,
    "TCP_KEEPINTVL": 15,
    "TCP_KEEPCNT": 4,
}


def set_tcp_options(sock: _socket.socket) -> None:
    """Set options of a TCP socket: send small messages at once, and notice a crashed peer.

    Raises OSError, for example if the peer has gone.
    """
    # Nagle's algorithm would delay a response until the peer has acknowledged the previous one.
    sock.setsockopt(_socket.IPPROTO_TCP, _socket.TCP_NODELAY, 1)
    sock.setsockopt(_socket.SOL_SOCKET, _socket.SO_KEEPALIVE, 1)
    for option, value in KEEPALIVE.items():
        if hasattr(_socket, option):
            sock.setsockopt(_socket.IPPROTO_TCP, getattr(_socket, option), value)
