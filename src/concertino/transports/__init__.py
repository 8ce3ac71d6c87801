"""Connections that carry JSON-RPC frames: pipes, processes, sockets and memory."""

from __future__ import annotations

from concertino.loading import lazy_names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from concertino.runtime.acceptor import serve_connections
    from concertino.runtime.raw_client import connect
    from concertino.transports.connection import Connection, Receiver
    from concertino.transports.listeners import Listener, listen_tcp, listen_unix
    from concertino.transports.memory import memory_pair
    from concertino.transports.process import ChildProcess, ShutdownTimeouts, spawn
    from concertino.transports.sockets import connect_tcp, connect_unix

__all__ = [
    "ChildProcess",
    "Connection",
    "Listener",
    "Receiver",
    "ShutdownTimeouts",
    "connect",
    "connect_tcp",
    "connect_unix",
    "listen_tcp",
    "listen_unix",
    "memory_pair",
    "serve_connections",
    "spawn",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "concertino.transports.connection": (
            "Connection",
            "Receiver",
        ),
        "concertino.transports.listeners": (
            "Listener",
            "listen_tcp",
            "listen_unix",
        ),
        "concertino.transports.memory": ("memory_pair",),
        "concertino.transports.process": (
            "ChildProcess",
            "ShutdownTimeouts",
            "spawn",
        ),
        "concertino.transports.sockets": (
            "connect_tcp",
            "connect_unix",
        ),
        "concertino.runtime.acceptor": ("serve_connections",),
        "concertino.runtime.raw_client": ("connect",),
    },
)
