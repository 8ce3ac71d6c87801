"""StatusLine: the last line on a terminal, which shows a progress bar or how long a command waits.

The line is redrawn in place, and removed before anything else is printed.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable

from concertino.logs.formats import escape_controls

__all__ = ["StatusLine", "show_waiting"]

BAR_WIDTH = 30
# A wait is shown after this time, and the line is redrawn after each further interval.
PATIENCE_S = 2.0
EVERY_S = 1.0


class StatusLine:
    """The last line on the terminal at stderr: a progress bar, or how long a command waits.

    enabled: False to show nothing, for example because stderr is not a terminal.
    """

    def __init__(self, enabled: bool) -> None:
        # A dumb terminal, such as the shell of Emacs, cannot redraw a line.
        self._enabled = enabled and os.environ.get("TERM") != "dumb"
        # The text that is shown now; "" if there is none.
        self._text = ""

    def draw(self, text: str) -> None:
        """Show a text as the status line, in place of the previous text."""
        if not self._enabled:
            return
        # Cut the text to the width: a longer line would wrap, and could not be redrawn.
        self._text = escape_controls(text)[: _columns() - 1]
        # Return to the first column, and clear the rest of the line.
        sys.stderr.write(f"\r\x1b[K{self._text}")
        sys.stderr.flush()

    def draw_progress(self, progress: float, total: float | None, message: str | None) -> None:
        """Show the progress of a call as a bar. If the total is not known, show only the number.

        progress, total, message: the params of the server's progress notification.
        """
        text = message or ""
        if total and total > 0:
            share = max(0.0, min(1.0, progress / total))
            filled = round(share * BAR_WIDTH)
            self.draw(f"[{'#' * filled}{'.' * (BAR_WIDTH - filled)}] {share:4.0%} {text}")
        else:
            self.draw(f"{progress:g} {text}")

    def clear(self) -> None:
        """Remove the line."""
        if self._text:
            self._text = ""
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()

    def print_above(self, line: str) -> None:
        """Print a line above the status line."""
        text = self._text
        self.clear()
        print(line, file=sys.stderr, flush=True)  # noqa: T201
        if text:
            self.draw(text)


async def show_waiting(
    status: StatusLine,
    awaited: str,
    limit_s: float,
    print_new_notes: Callable[[], object],
) -> None:
    """Show on a status line how long a command has waited, until this coroutine is cancelled.

    Shows nothing for the first PATIENCE_S seconds.

    status: the status line.
    awaited: what the command waits for, in words, such as "the answer".
    limit_s: the time limit of the wait, which the line shows too; may be infinite.
    print_new_notes: called every EVERY_S seconds, to print notes about the server above the line.
    """
    loop = asyncio.get_running_loop()
    began_at = loop.time()
    limit = f" of {limit_s:g}" if limit_s < float("inf") else ""
    while True:
        await asyncio.sleep(EVERY_S)
        print_new_notes()
        waited_s = loop.time() - began_at
        if waited_s >= PATIENCE_S:
            status.draw(f"waiting for {awaited} ({waited_s:.0f} s{limit}) ... Ctrl-C to stop")


def _columns() -> int:
    try:
        return os.get_terminal_size(sys.stderr.fileno()).columns or 80
    except (OSError, ValueError):
        return 80
