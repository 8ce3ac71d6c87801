"""Where the interactive session gets its lines from: a terminal, or a file or pipe on stdin."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from threading import Semaphore, Thread
from typing import Protocol, TypeAlias

from concertino.cli.shell_catalogue import Suggestion

__all__ = ["LineInput", "StreamInput", "Suggest"]

# Takes the text before the cursor; returns words for its end, and where they begin.
Suggest: TypeAlias = "Callable[[str], Awaitable[tuple[list[Suggestion], int]]]"


class LineInput(Protocol):
    """A source of lines. is_terminal: whether a person types them."""

    is_terminal: bool

    async def read_line(self, prompt: str, suggest: Suggest | None) -> str:
        """Return the next line, without its newline.

        suggest: completes what is typed. Raises EOFError, and KeyboardInterrupt for Ctrl-C.
        """
        ...


class StreamInput:
    """The lines of stdin, which is no terminal."""

    is_terminal = False

    def __init__(self) -> None:
        self._lines: asyncio.Queue[str | None] | None = None
        # One line is read ahead, and no more.
        self._room = Semaphore(1)

    async def read_line(self, prompt: str, suggest: Suggest | None) -> str:
        """Return the next line. Raises EOFError."""
        if self._lines is None:
            self._lines = asyncio.Queue()
            loop = asyncio.get_running_loop()
            # A file cannot be waited for on the loop. The thread may still wait for input when the
            # process ends.
            Thread(target=self._read_all, args=(self._lines, loop), daemon=True).start()
        line = await self._lines.get()
        if line is None:
            # There is no more next time, either.
            self._lines.put_nowait(None)
            raise EOFError
        self._room.release()
        return line

    def _read_all(self, lines: asyncio.Queue[str | None], loop: asyncio.AbstractEventLoop) -> None:
        """Pass on the lines of stdin, and None at its end."""
        # The loop is closed when the session has ended.
        with suppress(RuntimeError):
            for line in sys.stdin:
                self._room.acquire()
                loop.call_soon_threadsafe(lines.put_nowait, line.rstrip("\r\n"))
            loop.call_soon_threadsafe(lines.put_nowait, None)
