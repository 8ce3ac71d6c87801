"""StderrRedirect: replaces sys.stdout and sys.stderr of a server whose stdout carries MCP.

The text of a print() in a tool then goes to stderr, and not between the protocol's messages.
Writing never blocks, and lines of several threads are not mixed. The log reports the first print()
to stdout, with its file and line.
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

# An unfinished line of a thread is kept until it exceeds this size in bytes, and then written.
_LONGEST_PART = 8192


class StderrRedirect(io.TextIOBase):
    """A text stream that removes secrets from each line and sends it to a BoundedWriter.

    Use it in place of sys.stdout or sys.stderr. Text is encoded as UTF-8 with backslashreplace.
    Each thread's text is kept until the line ends, or until that thread calls flush().

    writer: writes the lines to stderr.
    name: the stream's attribute `name`, such as "<stdout>".
    report: a function that the first write calls with a message for the log. The message says that
        stdout carries MCP messages, and names the file and line of the print. None for no report.
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
        self.buffer = _ByteStream(self)
        self._writer = writer
        self._report = report
        # Thread id -> its unfinished line.
        self._parts: dict[int, bytes] = {}

    def write(self, text: str, /) -> int:
        """Write text and return how many characters it has. Raises TypeError if it is not a str."""
        if not isinstance(text, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        self.write_bytes(text.encode("utf-8", "backslashreplace"))
        return len(text)

    def write_bytes(self, data: bytes) -> None:
        """Write bytes from write() or from the stream's `buffer`."""
        # Report only once.
        report, self._report = self._report, None
        if report is not None:
            report(
                f"stdout is the protocol channel; a print at {_caller_location()} went to stderr"
                " (only the first is reported)"
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
        """Write the unfinished line of this thread."""
        self._emit(self._parts.pop(get_ident(), b""))

    def close(self) -> None:
        """Write the unfinished lines of all threads. The stream stays open.

        A library that closes sys.stdout must not affect the other code of the process.
        """
        while self._parts:
            self._emit(self._parts.popitem()[1])

    def _emit(self, data: bytes) -> None:
        """Pass bytes, without secrets, to the writer. Does nothing for no bytes."""
        if not data:
            return
        text = str(data, "utf-8", "surrogateescape")
        redacted = redactor().text(text)
        if redacted is not text:
            data = redacted.encode("utf-8", "surrogateescape")
        self._writer.write(data)

    def fileno(self) -> int:
        """Return the descriptor of the writer."""
        return self._writer.descriptor

    def isatty(self) -> bool:
        """Return whether the writer's descriptor is a terminal."""
        return os.isatty(self._writer.descriptor)

    def writable(self) -> bool:
        """Return True."""
        return True

    @property
    def closed(self) -> bool:
        """Return False, because close() does not close this stream."""
        return False

    def reconfigure(self, **_: object) -> None:
        """Do nothing. Programs may call this method, because sys.stdout usually has it."""


class _ByteStream(io.RawIOBase):
    """The `buffer` of a StderrRedirect."""

    def __init__(self, text: StderrRedirect) -> None:
        super().__init__()
        self._text = text

    # The parameter is Any, because RawIOBase accepts every object that supports buffers.
    def write(self, data: Any, /) -> int:
        piece = bytes(memoryview(data))
        self._text.write_bytes(piece)
        return len(piece)

    def flush(self) -> None:
        self._text.flush()

    def close(self) -> None:
        """Do nothing: this stream stays open, as the text stream does."""

    def fileno(self) -> int:
        return self._text.fileno()

    def writable(self) -> bool:
        return True


# _caller_location() skips code in these folders.
_PACKAGE = __file__.rsplit("/", 2)[0] + "/"
_LIBRARY = os.__file__.rsplit("/", 1)[0] + "/"


def _caller_location() -> str:
    """Return `file:line` of the innermost frame outside this package and the standard library.

    The standard library is skipped because it prints on behalf of its callers (logging, pprint).
    """
    # Importing inspect or traceback would take milliseconds.
    frame = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    while frame is not None:
        path = frame.f_code.co_filename
        # Installed packages are below the folder of the library, in site-packages or dist-packages.
        is_library = path.startswith((_LIBRARY, "<frozen ")) and "-packages" not in path
        if not is_library and not path.startswith(_PACKAGE):
            return f"{path.rpartition('/')[2]}:{frame.f_lineno}"
        frame = frame.f_back
    return "an unknown place"


def adopt_handlers(old: Iterable[object], new: io.TextIOBase) -> None:
    """Let all logging handlers that write to one of the old streams write to the new stream.

    logging.basicConfig() may have created such handlers before sys.stdout and sys.stderr were
    replaced.

    old: the previous sys.stdout and sys.stderr. None, which stands for a closed stream, is ignored.
    new: a StderrRedirect.
    """
    old = [stream for stream in old if stream is not None]

    # This list is private, but no other list is complete: a handler may be attached to any logger,
    # or to none yet.
    for reference in tuple(logging._handlerList):  # pyright: ignore
        handler = cast("logging.StreamHandler[Any] | None", reference())
        # vars() has no `stream` for handlers without a stream. It also has none for lastResort,
        # where `stream` is a property that looks up sys.stderr each time, and needs no change.
        if handler is not None and any(vars(handler).get("stream") is stream for stream in old):
            handler.stream = cast("TextIO", new)
