"""Formats log records: make_entry() makes a LogEntry of a record; FORMATS make text of a LogEntry.

There are three formats:

    line     [2026-07-28T12:00:00.000Z] [INFO] [component] message
    json     {"time": ..., "level": "INFO", "component": ..., "text": ...}
    trace    [TRACE] message, or Error: message

Nobody can forge a log line with the text of a message, because newlines, escape sequences,
direction marks and all other characters that a terminal or a line reader interprets are escaped.
Only a traceback takes more than one line, and its lines are indented.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from types import MappingProxyType

from msgspec import Struct
from msgspec.json import encode
from msgspec.structs import replace

from concertino.logs.redact import Redactor, redactor

__all__ = [
    "AS_ERROR",
    "FORMATS",
    "LogContext",
    "LogEntry",
    "current_context",
    "escape_controls",
    "make_entry",
    "message_line",
]

# Characters that str.isprintable() rejects but that are harmless.
_SPACES = "\u00a0\u3000"


class LogContext(Struct, frozen=True):
    """The request during which a log line is written.

    request: the JSON-RPC id of the request; None if it is not known.
    trace: the trace id of W3C Trace Context, 32 hexadecimal digits; "" if there is none.
    """

    request: int | str | None = None
    trace: str = ""


# The request that is being handled. None outside of requests, and if neither the log format nor
# telemetry needs the request. A thread that runs a handler has a copy of the handler's context
# variables.
current_context: ContextVar[LogContext | None] = ContextVar("concertino_call", default=None)

_NO_CONTEXT = LogContext()

# Pass this as `extra` when logging a warning that the format `trace` must show as an error, because
# this format has no warnings.
AS_ERROR: Mapping[str, object] = MappingProxyType({"as_error": True})


class LogEntry(Struct, frozen=True, omit_defaults=True):
    """The parts of a log line. Secrets are removed, but control characters are not escaped yet.

    time: a UTC time in RFC 3339, with milliseconds.
    level: DEBUG, INFO, WARN or ERROR.
    component: the name of the server, or of the module of concertino, that has logged.
    text: the message.
    exception: the traceback and the stack, in several lines; "" if there is none.
    request: the JSON-RPC id of the request during which the record was logged; None outside of
        requests.
    trace: the W3C trace id of this request; "" if there is none.
    as_error: whether the format `trace`, which has no warnings, shows this warning as an error.
    """

    time: str
    level: str
    component: str
    text: str
    exception: str = ""
    request: int | str | None = None
    trace: str = ""
    as_error: bool = False


def make_entry(record: logging.LogRecord, component: str, known: Redactor) -> LogEntry:
    """Return the LogEntry for a record: the arguments are filled in, and secrets are removed.

    component: the name of the server, or of the module of concertino, that has logged.
    known: the Redactor that removes secrets.
    Raises the exception if the record's arguments cannot be formatted, for example a TypeError.
    """
    text = str(record.msg)
    if record.args:
        # Redact the arguments before they become text, because then the keys of dicts, such as
        # `password`, can still be recognized.
        text %= known.value(record.args)

    exception = ""
    if record.exc_info and record.exc_info[0]:
        exception = logging.Formatter().formatException(record.exc_info)
    if record.stack_info:
        exception = f"{exception}\n{record.stack_info}".lstrip("\n")

    context = current_context.get() or _NO_CONTEXT
    return LogEntry(
        time=_format_time(record.created, int(record.msecs)),
        level=_level_name(record.levelno),
        component=_make_encodable(component),
        text=_make_encodable(known.text(text)),
        exception=_make_encodable(known.text(exception)),
        # Redact the id too, because a client may choose any text as its request id.
        request=known.value(context.request),
        trace=context.trace,
        as_error="as_error" in record.__dict__,
    )


def message_line(
    format: str,
    who: str,
    direction: str,
    text: str,
) -> str:
    """Return the log line for one protocol message, for a trace of all messages.

    format: the log's format, a key of FORMATS.
    who: the name of the client at the other end and a space; "" if there is only one client.
    direction: "->" for a message that was sent, "<-" for one that was received.
    text: the message, with secrets removed.
    """
    line = f"{who}{direction} {escape_controls(text)}"
    if format == "trace":
        return f"[TRACE] {line}\n"
    if format != "json":
        return f"[MCP] {line}\n"

    now = time.time()
    context = current_context.get() or _NO_CONTEXT
    entry = LogEntry(
        time=_format_time(now, int(now % 1 * 1000)),
        level="TRACE",
        component="mcp",
        text=line,
        request=redactor().value(context.request),
        trace=context.trace,
    )
    return _format_json(entry)


def escape_controls(text: str) -> str:
    """Return the text as one printable line that cannot control a terminal.

    Control characters, format characters (such as direction marks and zero width spaces),
    unassigned characters and line separators are replaced by Python escapes such as `\\n` and
    `\\u202e`.
    """
    if text.isprintable():
        return text
    return "".join(
        character
        if character.isprintable() or character in _SPACES
        else character.encode("unicode_escape").decode()
        for character in text
    )


def _format_line(entry: LogEntry) -> str:
    prefix = f"[{entry.time}] [{entry.level}] [{escape_controls(entry.component)}]"
    return f"{prefix} {_text_and_exception(entry)}"


def _format_json(entry: LogEntry) -> str:
    if entry.as_error:
        # as_error is only for the format `trace`. With its default value it is not encoded.
        entry = replace(entry, as_error=False)
    return encode(entry).decode() + "\n"


def _format_trace(entry: LogEntry) -> str:
    label = "Error:" if entry.level == "ERROR" or entry.as_error else "[TRACE]"
    return f"{label} {_text_and_exception(entry)}"


# The functions that format a LogEntry, by the name of the format. `line` is the default.
FORMATS: Mapping[str, Callable[[LogEntry], str]] = MappingProxyType(
    {"line": _format_line, "json": _format_json, "trace": _format_trace}
)


def _text_and_exception(entry: LogEntry) -> str:
    """Return the message, and the traceback in indented lines after it."""
    lines = entry.exception.split("\n") if entry.exception else []
    return "\n    ".join(map(escape_controls, (entry.text, *lines))) + "\n"


def _format_time(seconds: float, milliseconds: int) -> str:
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(seconds))}.{milliseconds:03d}Z"


def _level_name(number: int) -> str:
    """Return the name that a log line shows for a level number of the module logging."""
    if number >= logging.ERROR:
        return "ERROR"
    if number >= logging.WARNING:
        return "WARN"
    return "INFO" if number >= logging.INFO else "DEBUG"


def _make_encodable(text: str) -> str:
    # File names that are not UTF-8 contain lone surrogates, which JSON and UTF-8 cannot encode.
    return text.encode("utf-8", "backslashreplace").decode()
