"""PluginOutput: reads stdout and stderr of a plugin's process, for the hub.

A hub runs each plugin in its own process. Each PluginRun (plugin_run.py) creates a PluginOutput for
its process, which logs the lines with the logger `concertino.hub.PLUGIN`, with secrets redacted.
The line `READY ADDRESS` on stderr reports the address at which the plugin listens.

All output is read, so that a plugin which writes too much is not blocked. But only RATE lines a
second are logged, so that the log still shows the lines of other plugins.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Sequence

from concertino.client.server_stderr import StderrLines
from concertino.logs.formats import escape_controls

__all__ = ["PluginOutput"]

# How many lines of one plugin are logged: RATE lines per second on average, and at most BURST lines
# at once.
RATE, BURST = 20.0, 200.0
# Dropped lines are reported at most this long after the first of them, in seconds.
REPORT_S = 1.5
READY = b"READY "
# The longest address in a READY line, in bytes.
MAX_ADDRESS = 512
# The format of log lines of plugins that are made with this package.
OUR_FORMAT = re.compile(
    r"\[\d{4}-\d\d-\d\dT[\d:.]+Z\] \[(?P<level>[A-Z]+)\] \[(?P<name>[^\]]*)\] (?P<text>.*)"
)


class PluginOutput(StderrLines):
    """Reads and logs the output of a plugin's process. Create it on an event loop.

    The reader of stderr calls this object with each chunk. The connection to stdout calls the
    on_... methods, because this object is its Receiver. Lines of both are logged in the same way.

    log: the logger for the plugin's lines.
    address: the address at which the plugin must listen; empty if the plugin chooses a port.

    Attribute:
    ready: a future for the address in the first READY line.
    """

    def __init__(self, log: logging.Logger, address: str = "") -> None:
        super().__init__("plugin", self._log_line, logging.INFO)
        self.ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._log_to = log
        # The READY line that the plugin must write; empty if the plugin chooses a port.
        self._expected_ready = READY + address.encode() if address else b""
        self._limit = _LineLimit(log)
        # Whether a second READY line was logged.
        self._has_warned = False

    def on_line(self, line: bytes) -> None:
        """Handle a line of stderr: set `ready` from a READY line, and log any other line."""
        if line.startswith(READY):
            address = line[len(READY) :].strip()[:MAX_ADDRESS]
            self._on_ready(address.decode("utf-8", "backslashreplace"))
            return
        # READY may stand at the end of a line, after text that C code or a child of the plugin has
        # written without a line break. This is certain only if the expected address follows READY.
        expected = self._expected_ready
        if expected and not self.ready.done() and line.endswith(expected):
            line = line.removesuffix(expected)
            self._on_ready(expected[len(READY) :].decode())
        if self._limit.may_log():
            super().on_line(line)

    def _log_line(self, line: str) -> None:
        """Log a line. A log line of this package keeps its level."""
        if not line:
            return
        level = logging.INFO
        match = OUR_FORMAT.fullmatch(line)
        if match is not None:
            # The logger adds time, level and plugin again. So remove them from the line, and keep
            # only the name of another logger than the plugin's own.
            level = logging.getLevelNamesMapping().get(match["level"], level)
            name = f"[{match['name']}]"
            is_own = name == f"[{self._log_to.name.removeprefix('concertino.hub.')}]"
            line = match["text"] if is_own else f"{name} {match['text']}"
        self._log_to.log(level, "%s", escape_controls(line))

    def _on_ready(self, address: str) -> None:
        if not self.ready.done():
            self._log_to.debug("READY %s", address)
            self.ready.set_result(address)
        elif not self._has_warned:
            self._has_warned = True
            self._log_to.warning("it says READY again (%s): ignored", escape_controls(address))

    # Receiver

    def on_frames(self, batch: Sequence[bytes]) -> None:
        """Log lines of stdout."""
        for line in batch:
            if self._limit.may_log():
                # Not the on_line() of this class, because READY counts on stderr only.
                super().on_line(line)

    def on_frame_too_long(self, size: int) -> None: ...
    def on_drain(self, held: int) -> None: ...
    def on_eof(self) -> None: ...
    def on_disconnect(self, exc: Exception) -> None: ...


class _LineLimit:
    """Limits how many lines are logged a second, and reports how many were dropped."""

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        # A token bucket: a token for each line that may be logged now.
        self._tokens = BURST
        # When tokens were added last.
        self._last = time.monotonic()
        # How many lines were dropped since the last report.
        self._count = 0
        # Calls _report(); None while no line was dropped since the last report.
        self._report_timer: asyncio.TimerHandle | None = None

    def may_log(self) -> bool:
        """Return whether a line may be logged now; if not, count it as dropped."""
        now = time.monotonic()
        self._tokens = min(BURST, self._tokens + (now - self._last) * RATE)
        self._last = now

        # After a drop, log nothing until there are tokens for a whole second. Otherwise, while a
        # plugin writes too much, single lines would be logged, each with a report about the lines
        # that were dropped before it.
        needed = RATE if self._count else 1
        if self._tokens < needed:
            if self._report_timer is None:
                self._report_timer = asyncio.get_running_loop().call_later(REPORT_S, self._report)
            self._count += 1
            return False

        self._tokens -= 1
        if self._report_timer is not None:
            self._report_timer.cancel()
            self._report()
        return True

    def _report(self) -> None:
        """Log how many lines were dropped since the last report."""
        count, self._count, self._report_timer = self._count, 0, None
        self._log.warning(
            "%d lines of its output were dropped: it writes more than %g a second", count, RATE
        )
