"""What a server writes to stderr: always read, cut into lines, without secrets, to a place of the user's choice.

It means nothing by itself: servers log there, and a line is no sign of an error (2025-11-25 basic/transports, "stdio").
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable

from concertino.logs.formats import escape_controls
from concertino.logs.redact import redactor

__all__ = ["Sink", "StderrLines"]

LONGEST_LINE = 8192  # bytes; more becomes several
Sink = Callable[[str], object] | str | os.PathLike[str]


class StderrLines:
    """Takes pieces of bytes, gives lines. name: of the client, for the logger `concertino.client.NAME.stderr`.

    sink: a function called with each line, or a file that lines are appended to; None for the logger at `level`.
    """

    def __init__(self, name: str, sink: Sink | None, level: int) -> None:
        self._rest = b""
        self._file = -1
        self._logger = logging.getLogger(f"concertino.client.{name}.stderr")
        self._level = level
        if sink is None:
            self._take = self._log
        elif callable(sink):
            self._take = sink
        else:
            self._file = os.open(sink, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
            self._take = self._append
        self._quiet = sink is None

    def __call__(self, piece: bytes) -> None:
        if self._quiet and not self._logger.isEnabledFor(self._level):
            return  # a server may write megabytes a second there
        *lines, self._rest = (self._rest + piece).split(b"\n")
        for line in lines:
            self._give(line)
        while len(self._rest) > LONGEST_LINE:
            self._give(self._rest[:LONGEST_LINE])
            self._rest = self._rest[LONGEST_LINE:]

    def close(self) -> None:
        """Give what is left, and close the file."""
        rest, self._rest = self._rest, b""
        if rest:
            self._give(rest)
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _give(self, line: bytes) -> None:
        text = line.removesuffix(b"\r").decode("utf-8", "backslashreplace")
        self._take(redactor().text(text))

    def _log(self, line: str) -> None:
        self._logger.log(self._level, "%s", escape_controls(line))

    def _append(self, line: str) -> None:
        if self._file >= 0:
            os.write(self._file, line.encode("utf-8", "backslashreplace") + b"\n")
