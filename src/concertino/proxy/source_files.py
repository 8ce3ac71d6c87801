"""SourceFiles: detects that files were saved, by comparing their sizes and modification times.

This takes 0.05 ms for a project of 30 files, less than notifications of the system would.

`concertino dev` and `concertino proxy --watch` use it to restart a server with its new code
(reloading.py), and a hub to restart its plugins.
"""

from __future__ import annotations

import asyncio
import glob
import os
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from concertino.runtime.threads import Threads

__all__ = ["SourceFiles", "forget_bytecode"]

# How many files are checked at most. Checking this number of files takes about 10 ms.
MAX_FILES = 5000
# How many files and directories are examined at most to find the files. Examining this number takes
# about 20 ms.
MAX_ENTRIES = 20_000
# If the last check has taken longer than this, in seconds, the next one runs in a thread, so that
# it does not block the event loop.
CHEAP_S = 0.005
# The time for which files must not have changed, in seconds. An editor may write a file in steps.
SETTLE_S = 0.01
# How many times settle() waits for SETTLE_S, even if files change all the time.
MAX_SETTLE_STEPS = 50
# The interval of the checks between calls, in seconds. It is at least POLL_SHARE times the duration
# of a check, so that slow checks take at most 2 % of the time.
POLL_S = 0.1
POLL_SHARE = 50
# Directories that contain generated or installed files. Hidden directories are skipped, too.
SKIPPED = frozenset(("__pycache__", "node_modules", "site-packages", "target", "dist", "build"))
# A directory with this file is a virtual environment of Python.
ENVIRONMENT_FILE = "pyvenv.cfg"


class SourceFiles:
    """Detects that files at some paths were saved, added or removed.

        files = SourceFiles([Path("src")], [], (".py",))   # the files as they are now
        if await files.check():                            # has one changed since then?
            changed = await files.settle()                 # yes: wait until all are saved

    Each file's modification time, size and inode are compared with those at the last accept() or
    settle(), or at first with those when the object was made.

    sources: directories, in which only files with one of `suffixes` are checked.
    paths: files, and directories in which all files are checked, whatever their suffixes are.
    suffixes: for example (".py",); () to check all files in `sources`, too.

    Attributes:
    is_complete: whether all files are checked; False if there are more than 5,000, or if more
        than 20,000 files and directories had to be examined. The files nearest to the paths
        are checked first.
    scan_s: the duration of the last check, in seconds.
    """

    def __init__(
        self,
        sources: Sequence[Path],
        paths: Sequence[Path],
        suffixes: tuple[str, ...],
    ) -> None:
        self._roots = [(path, suffixes) for path in sources] + [(path, ()) for path in paths]
        self.is_complete = True
        self.scan_s = 0.0
        self._seen = self._scan()
        self._threads = Threads(1)
        # The check that will start when the present one has ended; None if there is none.
        self._next_check: asyncio.Task[bool] | None = None
        # Held during a check in the thread.
        self._checking = asyncio.Lock()

    @property
    def poll_s(self) -> float:
        """Return how long a caller should wait between two regular checks, in seconds."""
        return max(POLL_S, POLL_SHARE * self.scan_s)

    async def check(self) -> bool:
        """Return whether a file was saved, added or removed since the last accept().

        The result includes all changes that were made before this call. If a check takes long, it
        runs in a thread.
        """
        if self.scan_s < CHEAP_S:
            return self.have_changed()
        # Tasks that call this while a check runs in the thread share the next check: the running
        # one may miss changes that were made before the call.
        if self._next_check is None:
            self._next_check = asyncio.get_running_loop().create_task(self._check_in_thread())
        return await asyncio.shield(self._next_check)

    async def _check_in_thread(self) -> bool:
        async with self._checking:
            self._next_check = None
            return await self._threads.run(self.have_changed)

    async def settle(self) -> list[str]:
        """Wait until no file has changed for 10 ms, and return the files that have changed.

        The present state of the files is then accepted, as by accept(). If a changed file is now
        empty or missing, this method waits longer, because an editor may still be saving the file.
        It waits at most half a second.
        """
        changed: set[str] = set()
        without_content: set[str] = set()
        for _ in range(MAX_SETTLE_STEPS):
            newly_changed = set(self.accept())
            changed |= newly_changed
            without_content -= newly_changed
            without_content |= {path for path in newly_changed if not self.has_content(path)}
            if not newly_changed and not without_content:
                break
            await asyncio.sleep(SETTLE_S)
        return list(changed)

    def close(self) -> None:
        """End the thread of check(), if there is one."""
        self._threads.close()

    def have_changed(self) -> bool:
        """Return the result of check(), computed in the calling thread."""
        return self._scan() != self._seen

    def accept(self) -> list[str]:
        """Take the present state of the files as the one with which later checks compare.

        Returns the paths of the files that have changed since the last accept().
        """
        before, self._seen = self._seen, self._scan()
        paths = before.keys() | self._seen.keys()
        return [path for path in paths if before.get(path) != self._seen.get(path)]

    def has_content(self, path: str) -> bool:
        """Return whether a file existed, and was not empty, at the last accept()."""
        _mtime_ns, size, _inode = self._seen.get(path, (0, 0, 0))
        return size > 0

    def _scan(self) -> dict[str, tuple[int, int, int]]:
        """Return path -> modification time, size and inode, for each file."""
        began = time.perf_counter()
        found: dict[str, tuple[int, int, int]] = {}
        is_complete = True
        entries = 0
        for path, suffixes in self._roots:
            names = _walk(path) if os.path.isdir(path) else iter((str(path),))  # noqa: PTH112
            for name in names:
                entries += 1
                if len(found) >= MAX_FILES or entries > MAX_ENTRIES:
                    is_complete = False
                    break
                if name is None or (suffixes and not name.endswith(suffixes)):
                    continue
                try:
                    status = os.stat(name)
                except OSError:
                    continue
                found[name] = status.st_mtime_ns, status.st_size, status.st_ino
        self.is_complete = is_complete
        self.scan_s = time.perf_counter() - began
        return found


def forget_bytecode(paths: Iterable[str]) -> None:
    """Delete the cached bytecode of Python files, so that Python compiles them again.

    Otherwise Python would run the older code if a file is saved twice within a second and keeps its
    size.
    paths: the source files; those without the suffix .py are skipped.
    """
    for path in map(Path, paths):
        if path.suffix == ".py":
            for compiled in (path.parent / "__pycache__").glob(f"{glob.escape(path.stem)}.*.pyc"):
                with suppress(OSError):
                    compiled.unlink()


def _walk(folder: Path) -> Iterator[str | None]:
    """Yield the files in a directory and in the directories below it, the nearest files first.

    Yields None for each directory, so that the caller can count directories without files, too.
    """
    left = deque([str(folder)])
    while left:
        yield None
        try:
            with os.scandir(left.popleft()) as entries:
                items = list(entries)
        except OSError:
            continue
        if any(item.name == ENVIRONMENT_FILE for item in items):
            continue
        for item in items:
            if item.name.startswith("."):
                continue
            if not item.is_dir(follow_symlinks=False):
                yield item.path
            elif item.name not in SKIPPED:
                left.append(item.path)
