"""What stands in for sys.stdout and sys.stderr while the protocol owns stdout: text that goes to the bounded stderr.

A `print` in a tool is a mistake that must cost nothing: it does not reach the wire, does not block, does not mix with
the lines of other threads, and the first one is named by file and line.
"""

from __future__ import annotations

import io
import logging
import os
import sys
from collections.abc import Callable, Iterable
from threading import get_ident
from typing import Any, TextIO, cast

from concertino.logs.redact import redactor
from concertino.logs.writer import BoundedWriter

__all__ = ["StderrRedirect", "adopt_handlers"]

_LONGEST_PART = (
    8192  # bytes of a line that a thread has not ended yet; beyond it they go out as they are
)


class StderrRedirect(io.TextIOBase):
    """A text stream (UTF-8, backslashreplace) whose lines go, redacted, to a BoundedWriter; never closed.

    Each thread's line is kept until it ends, or until that thread calls flush(); close() gives out all of them.
    report: called once, at the first write, with a sentence that says where it came from; for stdout.
    """

    encoding = "utf-8"
    errors = "backslashreplace"
    mode = "w"
    line_buffering = True
    write_through = False

    def __init__(
        self,
        writer: BoundedWriter,
        name: str = "<stderr>",
        report: Callable[[str], object] | None = None,
    ) -> None:
        super().__init__()
        self.name = name
        self.buffer = _Bytes(self)
        self._writer = writer
        self._report = report
        self._parts: dict[int, bytes] = {}  # by thread: the line it has not ended

    def write(self, text: str, /) -> int:
        if not isinstance(text, str):  # pyright: ignore[reportUnnecessaryIsInstance]  # as TextIOWrapper does
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        self.write_bytes(text.encode("utf-8", "backslashreplace"))
        return len(text)

    def write_bytes(self, data: bytes) -> None:
        """Take a piece of output, from write() or from the stream's buffer."""
        report, self._report = self._report, None
        if report:
            report(
                f"stdout is the protocol channel; a print at {_site()} went to stderr (only the first is reported)"
            )
        thread = get_ident()
        data = self._parts.pop(thread, b"") + data
        end = data.rfind(b"\n") + 1
        if len(data) - end > _LONGEST_PART:
            end = len(data)
        if end < len(data):
            self._parts[thread] = data[end:]
        self._emit(data[:end])

    def flush(self) -> None:
        self._emit(self._parts.pop(get_ident(), b""))

    def close(self) -> None:
        """Give out what any thread has not ended, and stay open: a library that closes its stdout harms nobody."""
        while self._parts:
            self._emit(self._parts.popitem()[1])

    def _emit(self, data: bytes) -> None:
        if data:
            text = str(data, "utf-8", "surrogateescape")
            redacted = redactor().text(text)
            self._writer.write(
                data if redacted is text else redacted.encode("utf-8", "surrogateescape")
            )

    def fileno(self) -> int:
        return self._writer.descriptor

    def isatty(self) -> bool:
        return os.isatty(self._writer.descriptor)

    def writable(self) -> bool:
        return True

    @property
    def closed(self) -> bool:
        return False

    def reconfigure(self, **_: object) -> None:
        """Accept what TextIOWrapper.reconfigure takes, and leave everything as it is."""


class _Bytes(io.RawIOBase):
    """The `.buffer` of a DivertedText."""

    def __init__(self, text: StderrRedirect) -> None:
        super().__init__()
        self._text = text

    def write(self, data: Any, /) -> int:  # Any: whatever has a buffer, as RawIOBase has it
        piece = bytes(memoryview(data))
        self._text.write_bytes(piece)
        return len(piece)

    def flush(self) -> None:
        self._text.flush()

    def close(self) -> None:
        """Stay open, as the text does."""

    def fileno(self) -> int:
        return self._text.fileno()

    def writable(self) -> bool:
        return True


# Frames of these are not where a print was written.
_PACKAGE = __file__.rsplit("/", 2)[0] + "/"
_LIBRARY = os.__file__.rsplit("/", 1)[0] + "/"


def _site() -> str:
    """Name file and line of the innermost frame outside this package and the standard library (logging, pprint)."""
    frame = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]  # inspect and traceback cost milliseconds
    while frame is not None:
        path = frame.f_code.co_filename
        library = path.startswith((_LIBRARY, "<frozen ")) and "-packages" not in path
        if not library and not path.startswith(_PACKAGE):
            return f"{path.rpartition('/')[2]}:{frame.f_lineno}"
        frame = frame.f_back
    return "an unknown place"


def adopt_handlers(old: Iterable[object], new: io.TextIOBase) -> None:
    """Make the logging handlers that write to one of the old streams write to the new one.

    For handlers that took sys.stdout or sys.stderr before these were diverted (logging.basicConfig). logging.lastResort
    needs nothing: it asks for sys.stderr each time.
    """
    old = [stream for stream in old if stream is not None]
    # The list is private, but there is no other: a handler may be attached to any logger, or to none yet.
    for reference in tuple(logging._handlerList):  # pyright: ignore
        handler = cast("logging.StreamHandler[Any] | None", reference())
        # vars: the stream of lastResort is a property, and that of other handlers is missing.
        if handler is not None and any(vars(handler).get("stream") is stream for stream in old):
            handler.stream = cast("TextIO", new)
