"""Connections, which carry JSON-RPC frames: over stdio, child processes, sockets and memory.

Read connection.py first: it defines the interfaces Connection and Receiver. PipeConnection
(pipe.py) is the Connection over file descriptors. Three classes are derived from it: stdio.py has
the one for a server's stdin and stdout, process.py the one for a child process, and sockets.py the
one for sockets. memory.py and trace.py have Connections without descriptors.

The modules process_*.py, escaped_processes.py, guardian.py and orphans.py end all processes that
this process has started. Each public name of the package is imported on its first use.
"""

from __future__ import annotations

from concertino.loading import lazy_names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from concertino.runtime.acceptor import serve_connections as serve_connections
    from concertino.runtime.raw_client import connect as connect
    from concertino.transports.connection import Connection as Connection, Receiver as Receiver
    from concertino.transports.listeners import (
        Listener as Listener,
        listen_tcp as listen_tcp,
        listen_unix as listen_unix,
    )
    from concertino.transports.memory import memory_pair as memory_pair
    from concertino.transports.process import (
        ChildProcess as ChildProcess,
        ShutdownTimeouts as ShutdownTimeouts,
        spawn as spawn,
    )
    from concertino.transports.sockets import (
        connect_tcp as connect_tcp,
        connect_unix as connect_unix,
    )

__all__, __getattr__, __dir__ = lazy_names(
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
