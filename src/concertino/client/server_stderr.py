"""StderrLines: passes a server's stderr to a function, a file or a logger, with secrets redacted.

A Client uses StderrLines for a program that the Client has started. Servers write their log to
stderr, so a line on stderr is not necessarily an error (2025-11-25 basic/transports, "stdio").
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable

from concertino.logs.formats import escape_controls
from concertino.logs.redact import redactor

__all__ = ["Sink", "StderrLines"]

# Longer lines are split.
MAX_LINE_BYTES = 8192
# The destination of the lines: a function that is called with each line, or the path of a file to
# which the lines are appended.
Sink = Callable[[str], object] | str | os.PathLike[str]


class StderrLines:
    """Splits the chunks of a server's stderr into lines, and passes on each line.

    Call the object with each chunk of bytes.

    name: the argument `name` of Client, for the logger.
    sink: a function that is called with each line, or the path of a file to which the lines are
        appended; None for the logger `concertino.client.NAME.stderr`.
    level: the level at which lines are logged if `sink` is None.
    Raises OSError if the file cannot be opened.
    """

    def __init__(
        self,
        name: str,
        sink: Sink | None,
        level: int,
    ) -> None:
        # The beginning of a line whose newline has not arrived.
        self._rest = b""
        self._file = -1
        self._logger = logging.getLogger(f"concertino.client.{name}.stderr")
        self._level = level
        self._is_logging = sink is None
        if sink is None:
            self._write_line = self._log
        elif callable(sink):
            self._write_line = sink
        else:
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
            self._file = os.open(sink, flags, 0o600)
            self._write_line = self._append

    def __call__(self, chunk: bytes) -> None:
        # A server may write megabytes a second. Do no work for lines that will not be logged.
        if self._is_logging and not self._logger.isEnabledFor(self._level):
            return
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        for line in lines:
            self.on_line(line)
        # Split a very long line, which would otherwise fill the memory.
        while len(self._rest) > MAX_LINE_BYTES:
            self.on_line(self._rest[:MAX_LINE_BYTES])
            self._rest = self._rest[MAX_LINE_BYTES:]

    def close(self) -> None:
        """Pass on the last line, even without its newline, and close the file."""
        rest, self._rest = self._rest, b""
        if rest:
            self.on_line(rest)
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def on_line(self, line: bytes) -> None:
        """Redact one line and pass it on.

        Derived classes override this method to handle some lines in another way.
        """
        text = line.removesuffix(b"\r").decode("utf-8", "backslashreplace")
        self._write_line(redactor().text(text))

    def _log(self, line: str) -> None:
        """Log a line. Used if `sink` is None."""
        self._logger.log(self._level, "%s", escape_controls(line))

    def _append(self, line: str) -> None:
        """Append a line to the file, unless close() was called."""
        if self._file >= 0:
            os.write(self._file, line.encode("utf-8", "backslashreplace") + b"\n")
