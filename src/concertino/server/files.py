"""File: a file whose content is a resource.

The path is resolved when the resource is registered, so that changing a symbolic link afterwards
cannot make the server send another file. The content is read whenever a client asks for it.
"""

from __future__ import annotations

import os
from stat import S_ISREG

from concertino.errors import ResourceNotFound, ToolError
from concertino.types.results import ResourceContents

# The largest file that is read. The limit for messages (10 MiB by default) is smaller; this one
# bounds the memory before that limit is checked.
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
    """A file whose content is a resource.

    Symbolic links are resolved when this object is made, and not when the file is read.

    path: the file.
    mime_type: the MIME type. If it is None, the attribute is a guess by the file's name, or None.
    Raises OSError if the path does not exist or cannot be read, and ValueError if it is not a
    regular file.

    Attribute:
    name: the file's name without its folder.
    """

    def __init__(self, path: str, mime_type: str | None) -> None:
        self._path = os.path.realpath(path, strict=True)
        # os.path instead of pathlib, whose import takes time.
        if not os.path.isfile(self._path):  # noqa: PTH113
            raise ValueError(f"expected a file, got {path!r}")
        self.name = os.path.basename(path)  # noqa: PTH119
        self.mime_type = mime_type or _guess_type(self.name)

    def size(self) -> int | None:
        """Return the current size of the file in bytes; None if it is no longer a regular file."""
        try:
            status = os.stat(self._path, follow_symlinks=False)
        except OSError:
            return None
        return status.st_size if S_ISREG(status.st_mode) else None

    def read(self, uri: str) -> ResourceContents:
        """Read the file and return its content. Blocks the thread.

        Returns text if the content is UTF-8 and the MIME type is a text type or unknown; otherwise
        bytes.
        uri: the URI of the resource, for the result.
        Raises ResourceNotFound if the path no longer leads to a regular file, or now contains a
        symbolic link. Raises ToolError if the file has more than MAX_FILE_BYTES.
        """
        try:
            # O_NONBLOCK: a FIFO may have replaced the file, and opening it would wait for a writer.
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
            # open() only after the check above, because it raises for the descriptor of a folder.
            with open(descriptor, "rb", closefd=False) as file:
                data = file.read(MAX_FILE_BYTES + 1)
        finally:
            os.close(descriptor)
        if len(data) > MAX_FILE_BYTES:
            # The file has grown since fstat(), or is one of /proc, whose sizes are 0.
            raise ToolError(f"the resource has more than {MAX_FILE_BYTES} bytes, the limit")

        if _may_be_text(self.mime_type):
            try:
                text = data.decode()
            except UnicodeDecodeError:
                # The content is not UTF-8, so it is sent as bytes.
                pass
            else:
                return ResourceContents(uri, text=text, mime_type=self.mime_type or "text/plain")
        mime_type = self.mime_type or "application/octet-stream"
        return ResourceContents(uri, blob=data, mime_type=mime_type)


# MIME types that the standard library does not know in every version of Python (RFC 7763, RFC 9512,
# RFC 8259, and IANA's list).
TYPES = {
    ".md": "text/markdown",
    ".markdown": "text/markdown",
    ".yaml": "application/yaml",
    ".yml": "application/yaml",
    ".toml": "application/toml",
    ".json": "application/json",
}


def _guess_type(name: str) -> str | None:
    """Return the MIME type for a file's name; None if it is unknown."""
    # Imported here, because only servers with files need it.
    from mimetypes import MimeTypes

    if known := TYPES.get(os.path.splitext(name)[1].lower()):  # noqa: PTH122
        return known
    # With filenames=(), the tables of this machine are not read, so that all machines give the same
    # result.
    kind, encoding = MimeTypes(filenames=()).guess_type(name)
    # A file with an encoding is compressed, such as `a.txt.gz`, whose kind would be text/plain.
    return "application/octet-stream" if encoding else kind


def _may_be_text(mime_type: str | None) -> bool:
    """Return whether content of this MIME type is sent as text if it is UTF-8."""
    if mime_type is None:
        return True
    kind = mime_type.partition(";")[0].strip().lower()
    return kind.startswith("text/") or kind in TEXT_TYPES or kind.endswith(("+json", "+xml"))
