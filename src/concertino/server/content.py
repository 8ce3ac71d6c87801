"""Images, sound and bytes as results of tools, and messages of prompts."""

from __future__ import annotations

from os import PathLike

from concertino.types.results import (
    AudioContent,
    ContentBlock,
    EmbeddedResource,
    ImageContent,
    PromptMessage,
    ResourceContents,
    TextContent,
)

__all__ = ["assistant", "audio", "blob", "image", "user"]

# (offset, bytes, type) of the formats that clients show, from the specification of each format.
_SIGNATURES = (
    (0, b"\x89PNG\r\n\x1a\n", "image/png"),
    (0, b"\xff\xd8\xff", "image/jpeg"),
    (0, b"GIF8", "image/gif"),
    (8, b"WEBP", "image/webp"),
    (0, b"<svg", "image/svg+xml"),
    (8, b"WAVE", "audio/wav"),
    (0, b"OggS", "audio/ogg"),
    (0, b"fLaC", "audio/flac"),
    (0, b"ID3", "audio/mpeg"),
    (0, b"\xff\xfb", "audio/mpeg"),
    (4, b"ftypM4A", "audio/mp4"),
)
Source = bytes | str | PathLike[str]


def user(content: str | ContentBlock | ResourceContents) -> PromptMessage:
    """Return a message of a prompt in the role of the user.

    content: text, an image, sound, a link, a resource or its contents.
    """
    return PromptMessage("user", _as_block(content))


def assistant(content: str | ContentBlock | ResourceContents) -> PromptMessage:
    """Return a message of a prompt in the role of the model. content: as for user()."""
    return PromptMessage("assistant", _as_block(content))


def _as_block(content: str | ContentBlock | ResourceContents) -> ContentBlock:
    if isinstance(content, str):
        # msgspec writes exact str only, so take the plain text of a subclass.
        return TextContent(str.__str__(content))
    return EmbeddedResource(content) if isinstance(content, ResourceContents) else content


def image(source: Source, mime_type: str | None = None) -> ImageContent:
    """Return an image as content.

    source: its bytes, or the path of a file. mime_type: recognized from the first bytes unless
    given. Raises ValueError for bytes of no known image format, OSError if the file cannot be read.
    """
    data = _read_bytes(source)
    return ImageContent(data, mime_type or _detect_type(data, "image"))


def audio(source: Source, mime_type: str | None = None) -> AudioContent:
    """Return sound as content. Arguments and errors are as for image().

    A client of 2024-11-05 gets it as an embedded resource.
    """
    data = _read_bytes(source)
    return AudioContent(data, mime_type or _detect_type(data, "audio"))


def blob(source: Source, uri: str, mime_type: str = "application/octet-stream") -> EmbeddedResource:
    """Return bytes of any kind as an embedded resource.

    source: as for image(). uri: a name for it, such as `report://2026/q3.pdf`.
    """
    return EmbeddedResource(ResourceContents(uri, blob=_read_bytes(source), mime_type=mime_type))


def _read_bytes(source: Source) -> bytes:
    if isinstance(source, bytes):
        return source
    with open(source, "rb") as file:
        return file.read()


def _detect_type(data: bytes, family: str) -> str:
    """Return the MIME type of data by its first bytes. family: `image` or `audio`."""
    for offset, signature, mime_type in _SIGNATURES:
        if mime_type.startswith(family) and data[offset : offset + len(signature)] == signature:
            return mime_type
    raise ValueError(
        f"{family}: expected a known format, got bytes that begin with {data[:8]!r}; pass mime_type"
    )
