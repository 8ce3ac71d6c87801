"""A file as a resource: fixed when it is registered, read whenever it is asked for."""

from __future__ import annotations

import os
from stat import S_ISREG

from concertino.errors import ResourceNotFound, ToolError
from concertino.types.results import ResourceContents

__all__ = ["File"]

MAX_FILE_BYTES = 64 * 2**20  # far more than a message may hold: the session says what its limit is
TEXT_TYPES = frozenset(
    (
        "application/json",
        "application/xml",
        "application/javascript",
        "application/yaml",
        "application/toml",
    )
)


class File:
    """One file. mime_type: as given, or by the name's ending, or None. Raises OSError and ValueError for what is no regular file.

    Links are followed now, once: later the same file is read, or none.
    """

    def __init__(self, path: str, mime_type: str | None) -> None:
        self._path = os.path.realpath(path, strict=True)
        if not os.path.isfile(self._path):  # noqa: PTH113  # pathlib costs an import
            raise ValueError(f"expected a file, got {path!r}")
        self.name = os.path.basename(path)  # noqa: PTH119
        self.mime_type = mime_type or _guessed(self.name)

    def size(self) -> int | None:
        """In bytes, now; None if it is not there."""
        try:
            return os.stat(self._path, follow_symlinks=False).st_size
        except OSError:
            return None

    def read(self, uri: str) -> ResourceContents:
        """Blocks. Raises ResourceNotFound if it is gone, or a link has been put in its way."""
        try:
            # Not blocking: a FIFO may have been put in its place.
            descriptor = os.open(
                self._path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            )
        except OSError:
            raise ResourceNotFound(uri) from None
        with open(descriptor, "rb") as file:
            status = os.fstat(descriptor)
            if not S_ISREG(status.st_mode) or os.path.realpath(self._path) != self._path:
                raise ResourceNotFound(uri)
            if status.st_size > MAX_FILE_BYTES:
                raise ToolError(
                    f"the resource has {status.st_size} bytes; the limit is {MAX_FILE_BYTES} bytes"
                )
            data = file.read(MAX_FILE_BYTES)
        if _may_be_text(self.mime_type):
            try:
                text = data.decode()
            except UnicodeDecodeError:
                pass
            else:
                return ResourceContents(uri, text=text, mime_type=self.mime_type or "text/plain")
        return ResourceContents(
            uri, blob=data, mime_type=self.mime_type or "application/octet-stream"
        )


# Text that the standard library does not know everywhere: RFC 7763, 9512, 8259 and IANA's media types.
KNOWN = {
    ".md": "text/markdown",
    ".markdown": "text/markdown",
    ".yaml": "application/yaml",
    ".yml": "application/yaml",
    ".toml": "application/toml",
    ".json": "application/json",
}


def _guessed(name: str) -> str | None:
    from mimetypes import MimeTypes  # only for files

    if known := KNOWN.get(os.path.splitext(name)[1].lower()):  # noqa: PTH122
        return known
    # The table of the standard library alone: what else a machine knows differs from the next.
    kind, encoding = MimeTypes(filenames=()).guess_type(name)
    return "application/octet-stream" if encoding else kind


def _may_be_text(mime_type: str | None) -> bool:
    if mime_type is None:
        return True
    kind = mime_type.partition(";")[0].strip().lower()
    return kind.startswith("text/") or kind in TEXT_TYPES or kind.endswith(("+json", "+xml"))
