"""Files as resources: the path is resolved at registration, the content is read at each request."""

from __future__ import annotations

import os
from stat import S_ISREG

from concertino.errors import ResourceNotFound, ToolError
from concertino.types.results import ResourceContents

# Far more than a message can have; the session reports its own, smaller limit.
MAX_FILE_BYTES = 64 * 2**20
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
    """A file that is a resource. mime_type: set by the author or guessed by name, or None.

    Links are followed once, when the object is made. A link that is changed later has no effect.
    Raises OSError for a path that cannot be used, and ValueError if it is not a regular file.
    """

    def __init__(self, path: str, mime_type: str | None) -> None:
        self._path = os.path.realpath(path, strict=True)
        # os.path instead of pathlib, whose import takes time.
        if not os.path.isfile(self._path):  # noqa: PTH113
            raise ValueError(f"expected a file, got {path!r}")
        self.name = os.path.basename(path)  # noqa: PTH119
        self.mime_type = mime_type or _guess_type(self.name)

    def size(self) -> int | None:
        """Return the present size in bytes; None if there is no longer a file."""
        try:
            status = os.stat(self._path, follow_symlinks=False)
        except OSError:
            return None
        return status.st_size if S_ISREG(status.st_mode) else None

    def read(self, uri: str) -> ResourceContents:
        """Return the content of the file; blocks.

        Raises ResourceNotFound if there is no longer a file, for example a folder in its place, or
        if its path now contains a symbolic link, and ToolError if it is too large.
        """
        try:
            # O_NONBLOCK, because a FIFO may have replaced the file.
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            descriptor = os.open(self._path, flags)
        except OSError:
            raise ResourceNotFound(uri) from None
        try:
            status = os.fstat(descriptor)
            if not S_ISREG(status.st_mode) or os.path.realpath(self._path) != self._path:
                raise ResourceNotFound(uri)
            if status.st_size > MAX_FILE_BYTES:
                raise ToolError(
                    f"the resource has {status.st_size} bytes; the limit is {MAX_FILE_BYTES} bytes"
                )
            # open() raises for the descriptor of a folder, so it comes after fstat().
            with open(descriptor, "rb", closefd=False) as file:
                data = file.read(MAX_FILE_BYTES)
        finally:
            os.close(descriptor)

        if _may_be_text(self.mime_type):
            try:
                text = data.decode()
            except UnicodeDecodeError:
                pass
            else:
                return ResourceContents(uri, text=text, mime_type=self.mime_type or "text/plain")
        mime_type = self.mime_type or "application/octet-stream"
        return ResourceContents(uri, blob=data, mime_type=mime_type)


# Types that the standard library does not know in every version: RFC 7763, 9512, 8259 and IANA.
TYPES = {
    ".md": "text/markdown",
    ".markdown": "text/markdown",
    ".yaml": "application/yaml",
    ".yml": "application/yaml",
    ".toml": "application/toml",
    ".json": "application/json",
}


def _guess_type(name: str) -> str | None:
    """Return the MIME type of a file by its name; None if it is unknown."""
    # Only servers with files need it.
    from mimetypes import MimeTypes

    if known := TYPES.get(os.path.splitext(name)[1].lower()):  # noqa: PTH122
        return known
    # Without the tables of the machine, which differ from one machine to the next.
    kind, encoding = MimeTypes(filenames=()).guess_type(name)
    return "application/octet-stream" if encoding else kind


def _may_be_text(mime_type: str | None) -> bool:
    if mime_type is None:
        return True
    kind = mime_type.partition(";")[0].strip().lower()
    return kind.startswith("text/") or kind in TEXT_TYPES or kind.endswith(("+json", "+xml"))
