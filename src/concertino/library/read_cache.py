"""ReadCache: keeps in memory the files of a library that clients have read recently."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable

from concertino.types.results import ResourceContents

# Limit for the total size of the cached files.
MAX_BYTES = 64 * 2**20


class ReadCache:
    """Keeps the contents of files in memory, by path. Least recently used contents are dropped.

    Any thread may use the cache.
    max_files: how many files are kept at most; 0 for none. Their total size is at most MAX_BYTES.
    """

    def __init__(self, max_files: int) -> None:
        self._max_files = max_files
        self._bytes = 0
        # Path -> contents and size in bytes. The most recently used file is at the end.
        self._files: OrderedDict[str, tuple[ResourceContents, int]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, path: str) -> ResourceContents | None:
        """Return the contents of a file; None if they are not cached."""
        with self._lock:
            found = self._files.get(path)
            if found is None:
                return None
            self._files.move_to_end(path)
            return found[0]

    def put(
        self,
        path: str,
        contents: ResourceContents,
        size: int,
    ) -> None:
        """Add the contents of a file, or replace them.

        path: the path of the file.
        contents: the file as the contents of a resource.
        size: the size of the file in bytes.
        """
        with self._lock:
            self._remove(path)
            self._files[path] = contents, size
            self._bytes += size
            while self._files and (len(self._files) > self._max_files or self._bytes > MAX_BYTES):
                self._remove(next(iter(self._files)))

    def remove(self, paths: Iterable[str]) -> None:
        """Drop the contents of changed files. Paths that are not cached are ignored."""
        with self._lock:
            for path in paths:
                self._remove(path)

    def _remove(self, path: str) -> None:
        found = self._files.pop(path, None)
        if found is not None:
            self._bytes -= found[1]
