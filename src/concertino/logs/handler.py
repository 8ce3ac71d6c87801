"""From `logging` to stderr: one handler for the tree below `concertino`, its level, and how much it may say.

Environment: LOG_LEVEL (debug, info, warn, error; default info) and CONCERTINO_LOG_FORMAT (line, json, trace; default
line).
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping
from typing import Final

from concertino.logs.formats import FORMATS, entry_of
from concertino.logs.redact import redactor
from concertino.logs.writer import BoundedWriter

__all__ = ["LEVELS", "StderrHandler", "configure", "logger"]

_ROOT: Final = "concertino"

# What each name opens. Warnings and errors are always printed: a server that is silent about its failures helps nobody. So error
# opens as much as warn.
LEVELS: Final[Mapping[str, int]] = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warn": logging.WARNING,
    "warning": logging.WARNING,
    "error": logging.WARNING,
}

_RATE: Final = 200.0  # records a second that may go on for ever
_BURST: Final = 500.0  # records at once


def logger(component: str) -> logging.Logger:
    """Return the logger whose lines carry the component's name: a module, or a server."""
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
    """Send everything logged below `concertino` to stderr, and nowhere else. Called again, it starts over.

    format, level: None takes them from the environment, where an unknown value gives the default and a warning.
    component: what is printed for the logger `concertino` itself. writer: None keeps that of an earlier call, or makes
    one for stderr. rate, burst, clock: see StderrHandler. Raises ValueError for an unknown format or level.
    """
    environment = os.environ if environment is None else environment
    problems: list[str] = []
    format_name = _choice(
        "format", format, "CONCERTINO_LOG_FORMAT", environment, FORMATS, "line", problems
    )
    level_name = _choice("level", level, "LOG_LEVEL", environment, LEVELS, "info", problems)

    root = logging.getLogger(_ROOT)
    for earlier in [handler for handler in root.handlers if isinstance(handler, StderrHandler)]:
        root.removeHandler(earlier)
        earlier.close()
        writer = writer or earlier.writer
        problems.clear()  # said before
    handler = StderrHandler(
        writer or BoundedWriter(), format_name, component, rate=rate, burst=burst, clock=clock
    )
    root.addHandler(handler)
    root.setLevel(LEVELS[level_name])
    root.propagate = False
    for problem in problems:
        root.warning("%s", problem)
    return handler


def _choice(
    argument: str,
    given: str | None,
    variable: str,
    environment: Mapping[str, str],
    choices: Mapping[str, object],
    default: str,
    problems: list[str],
) -> str:
    if given is not None and given not in choices:
        raise ValueError(f"{argument}: expected {_listed(choices)}, got {given!r}")
    chosen = given or environment.get(variable, "").strip().lower() or default
    if chosen in choices:
        return chosen
    problems.append(
        f"{variable}: expected {_listed(choices)}, got {environment[variable]!r}; {default} is used"
    )
    return default


def _listed(choices: Mapping[str, object]) -> str:
    *most, last = choices
    return f"{', '.join(most)} or {last}"


class StderrHandler(logging.Handler):
    """Formats a record, takes the secrets out, and writes it; never blocks, never raises.

    format: a key of FORMATS. At most `burst` records at once and `rate` a second, of every level (a loop that fails
    must not fill a disk): the rest is counted. After a gap it stays shut until a second's worth may pass, and then
    says `N log lines suppressed`. clock: seconds, monotonic.
    """

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
        self._allowed = burst
        self._counted_at = clock()
        self._suppressed = 0

    def emit(self, record: logging.LogRecord) -> None:
        now = self._clock()
        self._allowed = min(self._burst, self._allowed + (now - self._counted_at) * self._rate)
        self._counted_at = now
        if self._allowed < (min(self._rate, self._burst) if self._suppressed else 1):
            self._suppressed += 1
            return
        self._allowed -= 1
        self._tell_suppressed()
        self._put(record)

    def flush(self) -> None:
        self.writer.flush()

    def close(self) -> None:
        """Say what was suppressed and not told yet. The writer stays open."""
        self._tell_suppressed()
        super().close()

    def _tell_suppressed(self) -> None:
        count, self._suppressed = self._suppressed, 0
        if count:
            self._put(_record(logging.WARNING, f"{count} log line{'s' * (count > 1)} suppressed"))

    def _put(self, record: logging.LogRecord) -> None:
        component = (
            self._component if record.name == _ROOT else record.name.removeprefix(f"{_ROOT}.")
        )
        try:
            entry = entry_of(record, component, redactor())
        except Exception as error:  # the arguments are anybody's objects; their text may hold anything, so it stays out
            problem = f"a log record of {record.filename}:{record.lineno} could not be formatted: {type(error).__name__}"
            entry = entry_of(_record(record.levelno, problem), component, redactor())
        self.writer.write(self._format(entry).encode())


def _record(level: int, text: str) -> logging.LogRecord:
    return logging.LogRecord(_ROOT, level, "", 0, text, None, None)
