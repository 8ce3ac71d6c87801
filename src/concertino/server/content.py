"""Functions that make content: image(), audio() and blob() for tools, user() for prompts.

@server.tool
def chart() -> ImageContent:
    return image("chart.png")

@server.prompt
def review(code: str) -> list[PromptMessage]:
    return [user(f"Review this code: {code}"), assistant("Here is my review:")]
"""

from __future__ import annotations

from os import PathLike

from concertino.types.resources_and_prompts import PromptMessage
from concertino.types.results import (
    AudioContent,
    ContentBlock,
    EmbeddedResource,
    ImageContent,
    ResourceContents,
    TextContent,
)

__all__ = ["assistant", "audio", "blob", "image", "user"]

# How files of common formats begin: (offset, bytes at this offset, MIME type).
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

        return [user(f"Review this code: {code}"), assistant("Here is my review:")]

    content: a text, a content block, such as an image or a link to a resource, or the contents of a
        resource.
    """
    return PromptMessage("user", _as_block(content))


def assistant(content: str | ContentBlock | ResourceContents) -> PromptMessage:
    """Return a message of a prompt in the role of the model.

    content: a text, a content block, such as an image or a link to a resource, or the contents of a
        resource.
    """
    return PromptMessage("assistant", _as_block(content))


def _as_block(content: str | ContentBlock | ResourceContents) -> ContentBlock:
    """Return the content of a message as one content block."""
    if isinstance(content, str):
        # msgspec does not encode subclasses of str, so convert to a plain str.
        return TextContent(str.__str__(content))
    return EmbeddedResource(content) if isinstance(content, ResourceContents) else content


def image(source: Source, mime_type: str | None = None) -> ImageContent:
    """Return an image as a content block, for the result of a tool or a message of a prompt.

    source: the bytes of the image, or the path of a file.
    mime_type: the MIME type; by default it is recognized from the first bytes.
    Raises ValueError if the format is not recognized, OSError if the file cannot be read.
    """
    data = _read_bytes(source)
    return ImageContent(data, mime_type or _detect_type(data, "image"))


def audio(source: Source, mime_type: str | None = None) -> AudioContent:
    """Return sound as a content block, for the result of a tool or a message of a prompt.

    MCP 2024-11-05 has no audio, so a client of this revision gets an embedded resource instead.
    source: the bytes of the sound, or the path of a file.
    mime_type: the MIME type; by default it is recognized from the first bytes.
    Raises ValueError if the format is not recognized, OSError if the file cannot be read.
    """
    data = _read_bytes(source)
    return AudioContent(data, mime_type or _detect_type(data, "audio"))


def blob(source: Source, uri: str, mime_type: str = "application/octet-stream") -> EmbeddedResource:
    """Return bytes of any kind as a content block, for the result of a tool or a prompt.

    The block is an embedded resource, because MCP has no other content block for bytes.
    source: the bytes, or the path of a file.
    uri: a URI for the bytes, such as `report://2026/q3.pdf`. The server need not have a resource
        with this URI.
    mime_type: the MIME type. It is not recognized from the bytes.
    Raises OSError if the file cannot be read.
    """
    return EmbeddedResource(ResourceContents(uri, blob=_read_bytes(source), mime_type=mime_type))


def _read_bytes(source: Source) -> bytes:
    """Return the bytes, or the content of the file."""
    if isinstance(source, bytes):
        return source
    with open(source, "rb") as file:
        return file.read()


def _detect_type(data: bytes, family: str) -> str:
    """Return the MIME type of data, recognized by its first bytes.

    family: "image" or "audio". Raises ValueError if no format of the family is recognized.
    """
    for offset, signature, mime_type in _SIGNATURES:
        if mime_type.startswith(family) and data[offset : offset + len(signature)] == signature:
            return mime_type
    # An XML declaration, and comments, may stand before the root element.
    if family == "image" and data.startswith(b"<?xml") and b"<svg" in data[:4096]:
        return "image/svg+xml"
    raise ValueError(
        f"{family}: expected a known format, got bytes that begin with {data[:8]!r}; pass mime_type"
    )
