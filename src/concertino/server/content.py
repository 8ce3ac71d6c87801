"""Content that is not text - pictures, sound, bytes - for tools, alone or in a list; and the messages of a prompt."""

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

# The first bytes of the formats that clients show; (offset, bytes, type). Each format's own specification.
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
    """A message of a prompt that the user says. content: text, a picture, sound, a link, a resource or its contents."""
    return PromptMessage("user", _as_block(content))


def assistant(content: str | ContentBlock | ResourceContents) -> PromptMessage:
    """A message of a prompt that the model says, for it to go on from. content: as for user()."""
    return PromptMessage("assistant", _as_block(content))


def _as_block(content: str | ContentBlock | ResourceContents) -> ContentBlock:
    if isinstance(content, str):
        return TextContent(str.__str__(content))  # msgspec writes exact str only
    return EmbeddedResource(content) if isinstance(content, ResourceContents) else content


def image(source: Source, mime_type: str | None = None) -> ImageContent:
    """A picture. source: its bytes, or the path of a file.

    mime_type: found from the first bytes if not given. Raises ValueError when they are of no known picture format, OSError when
    the file cannot be read.
    """
    data = _bytes(source)
    return ImageContent(data, mime_type or _sniffed(data, "image"))


def audio(source: Source, mime_type: str | None = None) -> AudioContent:
    """Sound. source: its bytes, or the path of a file. mime_type and errors as for image().

    A client of 2024-11-05 gets it as an embedded resource.
    """
    data = _bytes(source)
    return AudioContent(data, mime_type or _sniffed(data, "audio"))


def blob(source: Source, uri: str, mime_type: str = "application/octet-stream") -> EmbeddedResource:
    """Any bytes, as an embedded resource. uri: what to call it, e.g. `report://2026/q3.pdf`."""
    return EmbeddedResource(ResourceContents(uri, blob=_bytes(source), mime_type=mime_type))


def _bytes(source: Source) -> bytes:
    if isinstance(source, bytes):
        return source
    with open(source, "rb") as file:
        return file.read()


def _sniffed(data: bytes, family: str) -> str:
    for offset, signature, mime_type in _SIGNATURES:
        if mime_type.startswith(family) and data[offset : offset + len(signature)] == signature:
            return mime_type
    raise ValueError(
        f"{family}: expected a known format, got bytes that begin with {data[:8]!r}; give mime_type"
    )
