"""CallConnection and AnsweringConnection: the interfaces of ServerConnection for its calls.

They are in a separate module, because runtime/context.py and runtime/call_answers.py must not
import server_connection.py, which imports both.
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
    thread: the identifier of the thread that runs `loop`, see threading.get_ident().
    """

    backend: Backend
    session: Session
    loop: asyncio.AbstractEventLoop
    thread: int

    def backpressure(self) -> Awaitable[None]:
        """Return an awaitable that is done when the client has caught up with the output.

        A handler awaits it after it has sent progress or a log message.
        """
        ...

    def hold_open(self, request: SessionRequest) -> None:
        """Treat a call that is being handled as a subscription. See Caller.hold_open()."""
        ...

    def post(self, callback: Callable[[], object]) -> None:
        """Schedule `callback` on the loop. May be called from any thread.

        Does nothing if the loop is closed.
        """
        ...


class AnsweringConnection(CallConnection, Protocol):
    """The CallConnection as runtime/call_runner.py and runtime/call_answers.py use it."""

    def schedule_flush(self) -> None:
        """Flush at the end of the current read; outside of a read, in the next loop iteration."""
        ...

    def run(self, work: Work, request: SessionRequest) -> None:
        """Run `work` for a call, and answer the call with its result."""
        ...

    def report_fault(self, what: str) -> None:
        """Log the current exception as a bug of concertino, and end the connection soon.

        what: the beginning of the log message.
        """
        ...
