"""Watcher: reports changes in the directories of a library, from a thread.

If the package watchfiles is installed, the Watcher reports the paths that have changed. It also
reports "everything may have changed" at the start, when a directory was replaced, and once a
minute, because the operating system drops events when there are too many. Without watchfiles, the
Watcher reports "everything may have changed" every second.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

# watchfiles collects changes for at most this time, and then reports them together. Its default is
# 1.6 s.
DEBOUNCE_MS = 50

# watchfiles reports the collected changes earlier if no change arrives within this time.
STEP_MS = 20

# How often to check whether a directory was replaced. If a symbolic link in the directory's path is
# replaced, the operating system sends no event.
TICK_MS = 200

# How often to report "everything may have changed" although no event has arrived.
FULL_SCAN_S = 60.0

# Without watchfiles, how often to report "everything may have changed".
POLL_S = 1.0

# Gets the changed paths, or None for "everything may have changed".
ReportChange = Callable[[list[str] | None], None]


class Watcher:
    """Calls a function whenever files may have changed, from its creation until close().

        watcher = Watcher(["/srv/notes"], lambda paths: ..., log)

    folders: the absolute paths of the directories, which need not exist.
    report: called with the absolute paths that have changed, or with None if everything may have
        changed. It is called in threads of the watcher; its exceptions are logged.
    log: the logger for the watcher's own problems.
    is_recursive: whether to watch the directories inside these directories, too.

    Attributes:
    receives_events: whether the operating system reports changes at once; False while the watcher
        polls.
    """

    def __init__(
        self,
        folders: Sequence[str],
        report: ReportChange,
        log: logging.Logger,
        *,
        is_recursive: bool = True,
    ) -> None:
        self.receives_events = False
        self._is_recursive = is_recursive
        self._folders = folders
        self._report_change = report
        self._log = log
        self._closed = threading.Event()
        threading.Thread(target=self._run, name="watch", daemon=True).start()

    def close(self) -> None:
        """Stop reporting changes. Returns at once; the thread of this watcher ends soon after."""
        self._closed.set()

    def _run(self) -> None:
        """Report changes until close(): by watchfiles if possible, otherwise by polling."""
        try:
            import watchfiles
        except ModuleNotFoundError:
            from concertino.installation import missing_extra

            self._log.debug(
                "looking for changes every %g s; %s",
                POLL_S,
                missing_extra("being notified of them at once", "watch"),
            )
            watchfiles = None

        while not self._closed.is_set():
            if watchfiles is not None and self._all_exist():
                try:
                    self._watch(watchfiles.watch)
                except Exception as exc:
                    # The system's limit for watches is reached, a permission is missing, or a
                    # directory was removed.
                    self._log.warning(
                        "looking for changes every %g s, because the system does not report "
                        "them: %s",
                        POLL_S,
                        exc,
                    )
                    # Poll from now on.
                    watchfiles = None
                # Changes since the end of _watch() have caused no event.
                self.receives_events = False
                self._report(None)

            # Without a directory, there is nothing to watch until it exists again.
            if watchfiles is None or not self._all_exist():
                self._closed.wait(POLL_S)
                self._report(None)

    def _all_exist(self) -> bool:
        return all(map(os.path.isdir, self._folders))

    def _watch(self, watch: Callable[..., Iterator[set[tuple[Any, str]]]]) -> None:
        """Report changes until close(), or until a directory was replaced.

        watch: the function watchfiles.watch.
        """
        before = self._identities()
        events = watch(
            *self._folders,
            # Report the changes of all files. The default leaves out some, such as those in .venv.
            watch_filter=None,
            recursive=self._is_recursive,
            debounce=DEBOUNCE_MS,
            step=STEP_MS,
            # Yield an empty set every TICK_MS if nothing changes, for the checks in the loop below.
            rust_timeout=TICK_MS,
            yield_on_timeout=True,
            stop_event=_StopEvent(self._closed, self._on_watching),
            raise_interrupt=False,
            ignore_permission_denied=True,
            debug=False,
        )
        scanned_s = time.monotonic()
        for changes in events:
            if changes:
                self._report(sorted({path for _, path in changes}))
            elif time.monotonic() - scanned_s > FULL_SCAN_S:
                scanned_s = time.monotonic()
                self._report(None)
            if self._identities() != before:
                return

    def _on_watching(self) -> None:
        """Report "everything may have changed": changes before this moment have caused no event."""
        self.receives_events = True
        # Report in another thread, because watchfiles waits for the end of this method.
        threading.Thread(target=self._report, args=(None,), name="watch-first", daemon=True).start()

    def _identities(self) -> list[tuple[int, int]]:
        return [_identity(folder) for folder in self._folders]

    def _report(self, paths: list[str] | None) -> None:
        if not self._closed.is_set():
            try:
                self._report_change(paths)
            except Exception:
                self._log.exception("a change of the files could not be applied")


class _StopEvent:
    """The stop event for watchfiles, which also calls a function when watching has begun.

    watchfiles has no callback for that moment, but checks its stop event for the first time then.

    closed: the event that is set to end watching.
    on_watching: called once, when watching has begun.
    """

    def __init__(self, closed: threading.Event, on_watching: Callable[[], None]) -> None:
        self._closed = closed
        self._on_watching: Callable[[], None] | None = on_watching

    def is_set(self) -> bool:
        if self._on_watching is not None:
            on_watching, self._on_watching = self._on_watching, None
            on_watching()
        return self._closed.is_set()


def _identity(folder: str) -> tuple[int, int]:
    """Return the device and the inode of a directory, which change if the directory is replaced.

    Returns (0, 0) if there is no directory.
    """
    try:
        status = os.stat(folder)
    except OSError:
        return 0, 0
    return status.st_dev, status.st_ino
