"""LineInput: reads the lines of the interactive session, from a terminal, a file or a pipe.

StreamInput reads a file or a pipe. TerminalInput (shell_terminal.py) reads what a person types; it
needs the package prompt_toolkit.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from threading import Semaphore, Thread
from typing import Protocol, TypeAlias

from concertino.cli.shell_catalogue import Suggestion

__all__ = ["LineInput", "StreamInput", "Suggest"]

# Takes the line up to the cursor. Returns suggestions for its last word, and the index in the line
# from which on a suggestion replaces the text.
Suggest: TypeAlias = "Callable[[str], Awaitable[tuple[list[Suggestion], int]]]"


class LineInput(Protocol):
    """The source of the lines of the interactive session.

    is_terminal: whether a person types the lines.
    """

    is_terminal: bool

    async def read_line(self, prompt: str, suggest: Suggest | None) -> str:
        """Return the next line, without its newline.

        prompt: the text before the line on a terminal.
        suggest: called to complete the last word of the line; None for no completion.
        Raises EOFError at the end of input, and KeyboardInterrupt for Ctrl-C.
        """
        ...


class StreamInput:
    """Reads the lines of the interactive session from stdin, if stdin is a file or a pipe."""

    is_terminal = False

    def __init__(self) -> None:
        # The lines that the thread has read, and None at the end; created by the first read_line().
        self._lines: asyncio.Queue[str | None] | None = None
        # Released when a line is taken, so only one line is read ahead.
        self._may_read = Semaphore(1)

    async def read_line(self, prompt: str, suggest: Suggest | None) -> str:
        """Return the next line of stdin, without its newline. The arguments have no effect.

        Raises EOFError at the end of stdin.
        """
        if self._lines is None:
            self._lines = asyncio.Queue()
            loop = asyncio.get_running_loop()
            # Read in a thread, because the event loop cannot wait for files. It is a daemon thread,
            # because it may still wait for input when the process ends.
            Thread(target=self._read_all, args=(self._lines, loop), daemon=True).start()
        line = await self._lines.get()
        if line is None:
            # Put the end back for the next call.
            self._lines.put_nowait(None)
            raise EOFError
        self._may_read.release()
        return line

    def _read_all(self, lines: asyncio.Queue[str | None], loop: asyncio.AbstractEventLoop) -> None:
        """Put the lines of stdin into the queue, and None at the end."""
        # The loop is closed when the session has ended.
        with suppress(RuntimeError):
            for line in sys.stdin:
                self._may_read.acquire()
                loop.call_soon_threadsafe(lines.put_nowait, line.rstrip("\r\n"))
            loop.call_soon_threadsafe(lines.put_nowait, None)
