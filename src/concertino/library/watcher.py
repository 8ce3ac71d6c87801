"""Hears of changes in folders: from the system, with the extra `watch`; by looking again every second without it.

Either way in a thread of its own. What is heard are paths; None stands for "look at everything": at the beginning, when a folder
was put in another's place, and once a minute, since a system that has too much to say drops some of it.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

__all__ = ["Watcher"]

DEBOUNCE_MS = 50  # changes of one moment come together; the default of watchfiles waits 1.6 s for the last of them
STEP_MS = 20  # how long nothing more must have come
TICK_MS = 200  # how often it is seen whether a folder is still the same: that a link to it leads elsewhere, no file tells
LOOK_S = 60.0  # all is looked at so often, although nothing was heard
POLL_S = 1.0  # without watchfiles
Tell = Callable[[list[str] | None], None]


class Watcher:
    """Calls tell(paths), or tell(None), from its thread, whenever something may have changed; never two at a time.

    hears: whether the system tells; False while only looking helps.
    """

    def __init__(self, folders: Sequence[str], tell: Tell, log: logging.Logger) -> None:
        self.hears = False
        self._folders = folders
        self._tell = tell
        self._log = log
        self._ended = threading.Event()
        self._ready: Callable[[], None] | None = None
        threading.Thread(target=self._run, name="watch", daemon=True).start()

    def close(self) -> None:
        """Hear no more. Does not wait for the thread."""
        self._ended.set()

    def _run(self) -> None:
        try:
            import watchfiles
        except ModuleNotFoundError:
            self._log.debug(
                "looking for changes every %g s: pip install 'concertino[watch]' hears of them",
                POLL_S,
            )
            watchfiles = None
        while not self._ended.is_set():
            if watchfiles is not None and all(map(os.path.isdir, self._folders)):
                try:
                    self._hear(watchfiles.watch)
                except (
                    Exception
                ) as why:  # no more watches, no permission, a folder that is gone again
                    self._log.warning(
                        "changes are looked for every %g s, since the system does not tell: %s",
                        POLL_S,
                        why,
                    )
                    watchfiles = None
                self.hears = False
                self._say(None)
            if not all(map(os.path.isdir, self._folders)) or watchfiles is None:
                self._ended.wait(POLL_S)
                self._say(None)

    def _hear(self, watch: Callable[..., Iterator[set[tuple[Any, str]]]]) -> None:
        """Until the end, or until a folder is another one."""
        before = self._identities()
        heard = watch(
            *self._folders,
            watch_filter=None,
            debounce=DEBOUNCE_MS,
            step=STEP_MS,
            rust_timeout=TICK_MS,
            yield_on_timeout=True,
            stop_event=_Stop(self._ended, self._installed),
            raise_interrupt=False,
            ignore_permission_denied=True,
            debug=False,
        )
        looked = time.monotonic()
        for changes in heard:
            if changes:
                self._say(sorted({path for _, path in changes}))
            elif time.monotonic() - looked > LOOK_S:
                looked = time.monotonic()
                self._say(None)
            if self._identities() != before:
                return

    def _installed(self) -> None:
        """What changed between the first look and now was not heard of."""
        self.hears = True
        threading.Thread(target=self._say, args=(None,), name="watch-first", daemon=True).start()

    def _identities(self) -> list[tuple[int, int]]:
        return [_identity(folder) for folder in self._folders]

    def _say(self, paths: list[str] | None) -> None:
        if not self._ended.is_set():
            try:
                self._tell(paths)
            except Exception:
                self._log.exception("a change could not be taken in")


class _Stop:
    """What watchfiles asks whether to end: the first time says that it has begun to listen."""

    def __init__(self, ended: threading.Event, begun: Callable[[], None]) -> None:
        self._ended = ended
        self._begun: Callable[[], None] | None = begun

    def is_set(self) -> bool:
        if self._begun is not None:
            begun, self._begun = self._begun, None
            begun()
        return self._ended.is_set()


def _identity(folder: str) -> tuple[int, int]:
    try:
        status = os.stat(folder)
    except OSError:
        return 0, 0
    return status.st_dev, status.st_ino
