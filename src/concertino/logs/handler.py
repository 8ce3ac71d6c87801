"""configure(): sends everything that is logged below the logger `concertino` to stderr.

Two environment variables choose what is logged and how: LOG_LEVEL (debug, info, warn, error;
default info) and CONCERTINO_LOG_FORMAT (line, json, trace; default line).
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping
from typing import Final

from concertino.logs.formats import FORMATS, make_entry
from concertino.logs.redact import redactor
from concertino.logs.writer import BoundedWriter

__all__ = ["LEVELS", "StderrHandler", "configure", "logger"]

_ROOT: Final = "concertino"

# Name -> level. `error` includes warnings, because a server that hides its warnings cannot be
# diagnosed.
LEVELS: Final[Mapping[str, int]] = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warn": logging.WARNING,
    "warning": logging.WARNING,
    "error": logging.WARNING,
}

# How many records are written per second in the long run, and how many in a burst.
_RATE: Final = 200.0
_BURST: Final = 500.0


def logger(component: str) -> logging.Logger:
    """Return the logger `concertino.COMPONENT`, whose log lines show the name of the component.

    component: the name of a server, or of a module of concertino.
    """
    return logging.getLogger(f"{_ROOT}.{component}")


def configure(
    *,
    format: str | None = None,
    level: str | None = None,
    component: str = _ROOT,
    writer: BoundedWriter | None = None,
    environment: Mapping[str, str] | None = None,
    rate: float = _RATE,
    burst: float = _BURST,
    clock: Callable[[], float] = time.monotonic,
) -> StderrHandler:
    """Send everything logged below the logger `concertino` to stderr, and nowhere else.

    Returns the handler, which is added to this logger. A second call replaces the handler of the
    first call.

    format: `line`, `json` or `trace`; None for the variable CONCERTINO_LOG_FORMAT.
    level: `debug`, `info`, `warn` or `error`; None for the variable LOG_LEVEL. An unknown value of
        a variable causes a warning in the log, and the default is used.
    component: the component name in lines of the logger `concertino` itself.
    writer: writes the lines. If None, the writer of the previous call goes on; in the first call,
        None makes a writer to stderr.
    environment: the environment variables; None for os.environ.
    rate: how many records are written per second in the long run.
    burst: how many records may be written at once after a quiet time.
    clock: returns the time of a monotonic clock, in seconds.
    Raises ValueError if the argument `format` or `level` has an unknown value.
    """
    environment = os.environ if environment is None else environment
    problems: list[str] = []
    format_name = _choose(
        "format", format, "CONCERTINO_LOG_FORMAT", environment, FORMATS, "line", problems
    )
    level_name = _choose("level", level, "LOG_LEVEL", environment, LEVELS, "info", problems)

    root = logging.getLogger(_ROOT)
    # The problems that earlier calls have logged.
    known: frozenset[str] = frozenset()
    for earlier in [handler for handler in root.handlers if isinstance(handler, StderrHandler)]:
        root.removeHandler(earlier)
        earlier.close()
        writer = writer or earlier.writer
        known |= earlier.problems

    handler = StderrHandler(
        writer or BoundedWriter(), format_name, component, rate=rate, burst=burst, clock=clock
    )
    root.addHandler(handler)
    root.setLevel(LEVELS[level_name])
    root.propagate = False
    for problem in problems:
        if problem not in known:
            root.warning("%s", problem)
    handler.problems = known.union(problems)
    return handler


def _choose(
    argument: str,
    value: str | None,
    variable: str,
    environment: Mapping[str, str],
    choices: Mapping[str, object],
    default: str,
    problems: list[str],
) -> str:
    """Return the value of an argument or, if the argument is None, of an environment variable.

    argument: the name of the argument, for errors.
    value: the value of the argument.
    variable: the name of the environment variable.
    choices: the known values, as the keys of a mapping.
    default: returned if the variable is not set or has an unknown value.
    problems: a message is added to this list if the variable has an unknown value.
    Raises ValueError if the argument has an unknown value.
    """
    if value is not None and value not in choices:
        raise ValueError(f"{argument}: expected {_join_choices(choices)}, got {value!r}")
    chosen = value or environment.get(variable, "").strip().lower() or default
    if chosen in choices:
        return chosen
    problems.append(
        f"{variable}: expected {_join_choices(choices)}, got {environment[variable]!r};"
        f" {default} is used"
    )
    return default


def _join_choices(choices: Mapping[str, object]) -> str:
    *most, last = choices
    return f"{', '.join(most)} or {last}"


class StderrHandler(logging.Handler):
    """Formats records, removes secrets, and writes the lines to a BoundedWriter.

    The handler never blocks and never raises an exception.

    A token bucket limits the rate of records, so that an endless loop cannot fill a disk. When the
    bucket is empty, the handler suppresses all records until the bucket has enough tokens for one
    second. Then it writes `N log lines suppressed`.

    writer: writes the lines.
    format: `line` for `[TIME] [LEVEL] [component] message`, `json` for a JSON object, or `trace`
        for `[TRACE] message` and `Error: message`.
    component: the component name in lines of the logger `concertino` itself.
    rate: how many records are written per second in the long run.
    burst: how many records may be written at once after a quiet time.
    clock: returns the time of a monotonic clock, in seconds.

    Attribute:
    problems: the warnings about variables that configure() has logged.
    """

    problems: frozenset[str] = frozenset()

    def __init__(
        self,
        writer: BoundedWriter,
        format: str = "line",
        component: str = _ROOT,
        *,
        rate: float = _RATE,
        burst: float = _BURST,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__()
        self.writer = writer
        self.format_name = format
        self._format = FORMATS[format]
        self._component = component
        self._rate, self._burst, self._clock = rate, burst, clock
        # The tokens in the bucket: how many records may be written now.
        self._allowed = burst
        self._counted_at = clock()
        self._suppressed = 0

    def emit(self, record: logging.LogRecord) -> None:
        """Write the record, or count it as suppressed."""
        now = self._clock()
        self._allowed = min(self._burst, self._allowed + (now - self._counted_at) * self._rate)
        self._counted_at = now

        # After a suppressed record, wait until a second's worth of records is allowed again.
        needed = min(self._rate, self._burst) if self._suppressed else 1
        if self._allowed < needed:
            self._suppressed += 1
            return

        self._allowed -= 1
        self._report_suppressed()
        self._write(record)

    def flush(self) -> None:
        """Try once to write the lines that stderr has not accepted yet."""
        self.writer.flush()

    def close(self) -> None:
        """Write how many records were suppressed since the last report. The writer stays open."""
        self._report_suppressed()
        super().close()

    def _report_suppressed(self) -> None:
        """Write how many records were suppressed since the last report, if there were any."""
        count, self._suppressed = self._suppressed, 0
        if count:
            noun = "log line" if count == 1 else "log lines"
            self._write(_make_record(logging.WARNING, f"{count} {noun} suppressed"))

    def _write(self, record: logging.LogRecord) -> None:
        """Format a record and write it; if it cannot be formatted, write a line that says so."""
        component = self._component
        if record.name != _ROOT:
            component = record.name.removeprefix(f"{_ROOT}.")
        try:
            entry = make_entry(record, component, redactor())
        except Exception as exc:
            # Write only the type of the exception, because its text may contain secrets.
            problem = (
                f"a log record of {record.filename}:{record.lineno} could not be formatted:"
                f" {type(exc).__name__}"
            )
            entry = make_entry(_make_record(record.levelno, problem), component, redactor())
        self.writer.write(self._format(entry).encode())


def _make_record(level: int, text: str) -> logging.LogRecord:
    return logging.LogRecord(_ROOT, level, "", 0, text, None, None)
