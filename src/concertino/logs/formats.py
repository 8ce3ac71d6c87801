"""How a log record looks on stderr: three formats, each a function from an Entry to one text that ends with a newline.

A text cannot forge a line: what a terminal or a reader of lines would act upon (newlines, escape sequences, marks of
direction) is written as an escape, and only a traceback takes more lines, all of them indented.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from types import MappingProxyType

from msgspec import Struct
from msgspec.json import encode

from concertino.logs.correlation import LogContext, current_context
from concertino.logs.redact import Redactor, redactor

__all__ = ["FORMATS", "LogEntry", "entry_of", "escaped", "message_line"]


class LogEntry(Struct, frozen=True, omit_defaults=True):
    """What is said of a record. Secrets are out, control characters are still in."""

    time: str  # UTC, RFC 3339 with milliseconds
    level: str  # DEBUG INFO WARN ERROR
    component: str
    text: str
    exception: str = ""  # traceback and stack, several lines
    request: int | str | None = None  # the id of the call that it belongs to
    trace: str = ""  # and the trace of that


def entry_of(record: logging.LogRecord, component: str, known: Redactor) -> LogEntry:
    """Make an Entry of a record. Raises whatever formatting its arguments raises.

    The arguments are redacted as objects, before they become text: that finds a `password` in a dict.
    """
    text = str(record.msg)
    if record.args:
        text %= known.value(record.args)
    exception = ""
    if record.exc_info and record.exc_info[0]:
        exception = logging.Formatter().formatException(record.exc_info)
    if record.stack_info:
        exception = f"{exception}\n{record.stack_info}".lstrip("\n")
    told = current_context.get() or NOBODY
    return LogEntry(
        time=_time(record.created, int(record.msecs)),
        level=_level(record.levelno),
        component=_encodable(component),
        text=_encodable(known.text(text)),
        exception=_encodable(known.text(exception)),
        request=known.value(told.request),  # a client may choose any text
        trace=told.trace,
    )


NOBODY = LogContext()


def _time(seconds: float, milliseconds: int) -> str:
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(seconds))}.{milliseconds:03d}Z"


def message_line(format: str, who: str, direction: str, text: str) -> str:
    """One message of the protocol as a line of the message trace. format: of the log; text: the message, without secrets.

    who: the client's name and a space, or nothing. In the format `json` it is an object like every other line.
    """
    if format == "json":
        now, told = time.time(), current_context.get() or NOBODY
        shown, request = f"{who}{direction} {escaped(text)}", redactor().value(told.request)
        return _json(
            LogEntry(
                _time(now, int(now % 1 * 1000)),
                "TRACE",
                "mcp",
                shown,
                request=request,
                trace=told.trace,
            )
        )
    return f"{'[TRACE]' if format == 'trace' else '[MCP]'} {who}{direction} {escaped(text)}\n"


def _encodable(text: str) -> str:
    return text.encode(
        "utf-8", "backslashreplace"
    ).decode()  # file names that are not UTF-8 have lone surrogates


def _level(number: int) -> str:
    if number >= logging.ERROR:
        return "ERROR"
    if number >= logging.WARNING:
        return "WARN"
    return "INFO" if number >= logging.INFO else "DEBUG"


def _line(entry: LogEntry) -> str:
    return f"[{entry.time}] [{entry.level}] [{escaped(entry.component)}] {_tail(entry)}"


def _json(entry: LogEntry) -> str:
    return encode(entry).decode() + "\n"


def _trace(entry: LogEntry) -> str:
    return f"{'Error:' if entry.level == 'ERROR' else '[TRACE]'} {_tail(entry)}"


# `line` is the default; `trace` is a profile that other servers have: `[TRACE]` for tracing and `Error:` for errors.
FORMATS: Mapping[str, Callable[[LogEntry], str]] = MappingProxyType(
    {"line": _line, "json": _json, "trace": _trace}
)


def _tail(entry: LogEntry) -> str:
    lines = entry.exception.split("\n") if entry.exception else []
    return "\n    ".join(map(escaped, (entry.text, *lines))) + "\n"


def escaped(text: str) -> str:
    """Return a text as one line that commands no terminal."""
    if text.isprintable():
        return text
    # Not printable: control, format (direction, zero width) and unassigned characters, separators of lines.
    return "".join(
        character
        if character.isprintable() or character in _SPACES
        else character.encode("unicode_escape").decode()
        for character in text
    )


_SPACES = "\u00a0\u3000"  # not printable to Python, but harmless
