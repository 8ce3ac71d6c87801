"""What a plugin writes: READY on stderr, lines for the log there, and on stdout whatever it should not. All of it is always read.

Lines become log lines of `concertino.hub.PLUGIN`, without secrets, at a bounded rate: a plugin that floods its stderr is neither
slowed down nor does it push the lines of others out.
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

RATE, BURST = 20.0, 200.0  # lines of one plugin: a second for ever, and at once
QUIET_S = 1.5  # until what was dropped is told although no further line comes; who goes on has a line after a second
READY = b"READY "
LONGEST_ADDRESS = 512
OURS = re.compile(
    r"\[\d{4}-\d\d-\d\dT[\d:.]+Z\] \[(?P<level>[A-Z]+)\] \[(?P<name>[^\]]*)\] (?P<text>.*)"
)


class PluginOutput(StderrLines):
    """Takes pieces of stderr, when called with them, and is the Receiver of stdout.

    ready: the address that the first READY names.
    """

    def __init__(self, log: logging.Logger) -> None:
        super().__init__("plugin", self._relay, logging.INFO)
        self.ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._log_to = log
        self._allowed = BURST
        self._counted_at = time.monotonic()
        self._dropped = 0
        self._telling: asyncio.TimerHandle | None = None
        self._repeated = False

    def _give(self, line: bytes) -> None:
        if line.startswith(READY):
            self._is_ready(
                line[len(READY) :].strip()[:LONGEST_ADDRESS].decode("utf-8", "backslashreplace")
            )
            return
        self._limited(line)

    def _limited(self, line: bytes) -> None:
        now = time.monotonic()
        self._allowed = min(BURST, self._allowed + (now - self._counted_at) * RATE)
        self._counted_at = now
        if self._allowed < (RATE if self._dropped else 1):
            if self._telling is None:
                self._telling = asyncio.get_running_loop().call_later(QUIET_S, self._tell)
            self._dropped += 1
            return
        self._allowed -= 1
        if self._telling is not None:
            self._telling.cancel()
            self._tell()
        super()._give(line)

    def _tell(self) -> None:
        count, self._dropped, self._telling = self._dropped, 0, None
        self._log_to.warning(
            "%d lines of its stderr were dropped: it writes more than %g a second", count, RATE
        )

    def _relay(self, line: str) -> None:
        if not line:
            return
        level = logging.INFO
        found = OURS.fullmatch(line)
        if (
            found is not None
        ):  # it has a time, a level and a name, which this line is going to have itself
            level = logging.getLevelNamesMapping().get(found["level"], level)
            name = f"[{found['name']}]"
            own = name == f"[{self._log_to.name.removeprefix('concertino.hub.')}]"
            line = found["text"] if own else f"{name} {found['text']}"
        self._log_to.log(level, "%s", escape_controls(line))

    def _is_ready(self, address: str) -> None:
        if not self.ready.done():
            self._log_to.debug("READY %s", address)
            self.ready.set_result(address)
        elif not self._repeated:
            self._repeated = True
            self._log_to.warning("it says READY again (%s): ignored", escape_controls(address))

    # Receiver

    def on_frames(self, batch: Sequence[bytes]) -> None:
        for line in batch:
            self._limited(line)

    def on_frame_too_long(self, size: int) -> None: ...
    def on_drain(self, held: int) -> None: ...
    def on_eof(self) -> None: ...
    def on_disconnect(self, why: Exception) -> None: ...
