"""CallConnection and AnsweringConnection: the methods of a ServerConnection that calls use.

The two interfaces are in a module of their own, because server_connection.py imports the modules
that use them (context.py, call_runner.py and call_answers.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol

from concertino.backend.call_hooks import Work
from concertino.backend.caller import CallerSession
from concertino.backend.interface import Backend
from concertino.protocol.request_profile import SessionRequest
from concertino.protocol.session import Session

__all__ = ["AnsweringConnection", "CallConnection"]


class CallConnection(CallerSession, Protocol):
    """The connection on which a call has arrived.

    backend: the outermost backend, which handles the calls of this connection.
    session: the MCP session, which sends notifications and requests to the client.
    loop, thread: the event loop of the connection, and the identifier of the thread that runs it,
        from threading.get_ident().
    """

    backend: Backend
    session: Session
    loop: asyncio.AbstractEventLoop
    thread: int

    def backpressure(self) -> Awaitable[None]:
        """Return an awaitable that is done when the client has read enough of the output.

        A handler awaits it after it has sent progress or a log message.
        """
        ...

    def hold_open(self, request: SessionRequest) -> None:
        """Treat a call as a subscription, which stays open until its client ends it.

        Raises RpcError for a call in a batch, because the batch would never be answered.
        """
        ...

    def post(self, callback: Callable[[], object]) -> None:
        """Schedule `callback` on the loop. May be called from any thread.

        Does nothing if the loop is closed.
        """
        ...


class AnsweringConnection(CallConnection, Protocol):
    """A CallConnection for call_runner.py and call_answers.py, which run and answer the calls."""

    def schedule_flush(self) -> None:
        """Send the buffered output when the messages that were read together are processed.

        Outside of a read (ReadBatch in tasks.py), send it in the next loop iteration.
        """
        ...

    def run(self, work: Work, request: SessionRequest) -> None:
        """Run a coroutine for a call, and answer the call with the coroutine's result.

        work: the coroutine. Its first step runs at once; if it must wait, it becomes a task.
        """
        ...

    def report_fault(self, what: str) -> None:
        """Log the current exception as a bug of concertino, and end the connection soon.

        what: the beginning of the log message.
        """
        ...
