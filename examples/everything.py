"""Everything that the official conformance suite asks a server to offer, as far as it puts no question to the client.

`scripts/conformance` runs the suite against it. Names and texts are the suite's.
"""

import asyncio
import struct
import zlib
from typing import Any

from concertino import (
    AudioContent,
    Context,
    EmbeddedResource,
    ImageContent,
    ResourceContents,
    Server,
    TextContent,
    ToolError,
    audio,
    image,
)

server = Server(
    "everything", version="1.0.0", instructions="Fixtures for conformance tests; none of them does anything."
)


def _png_chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


# One red pixel, and an eighth of a second of silence.
RED_PIXEL = (
    b"\x89PNG\r\n\x1a\n"
    + _png_chunk(b"IHDR", struct.pack(">IIBBBBB", 1, 1, 8, 2, 0, 0, 0))
    + _png_chunk(b"IDAT", zlib.compress(b"\0\xff\0\0"))
    + _png_chunk(b"IEND", b"")
)
SILENCE = (
    b"RIFF"
    + struct.pack("<I4s4sIHHIIHH4sI", 1036, b"WAVE", b"fmt ", 16, 1, 1, 8000, 8000, 1, 8, b"data", 1000)
    + b"\x80" * 1000
)


# Tools


@server.tool(inline=True)
def test_simple_text() -> str:
    """Return text."""
    return "This is a simple text response for testing."


@server.tool(inline=True)
def test_image_content() -> ImageContent:
    """Return a picture."""
    return image(RED_PIXEL)


@server.tool(inline=True)
def test_audio_content() -> AudioContent:
    """Return sound."""
    return audio(SILENCE)


@server.tool(inline=True)
def test_embedded_resource() -> EmbeddedResource:
    """Return a resource, its content included."""
    text = "This is an embedded resource content."
    return EmbeddedResource(ResourceContents("test://embedded-resource", text=text, mime_type="text/plain"))


@server.tool(inline=True)
def test_multiple_content_types() -> list[TextContent | ImageContent | EmbeddedResource]:
    """Return text, a picture and a resource."""
    text = '{"test":"data","value":123}'
    resource = ResourceContents("test://mixed-content-resource", text=text, mime_type="application/json")
    return [TextContent("Multiple content types test:"), image(RED_PIXEL), EmbeddedResource(resource)]


@server.tool(inline=True)
def test_error_handling() -> str:
    """Fail."""
    raise ToolError("This tool intentionally returns an error for testing")


@server.tool
async def test_tool_with_logging(context: Context) -> str:
    """Log three times."""
    await context.log("info", "Tool execution started")
    await asyncio.sleep(0.05)
    await context.log("info", "Tool processing data")
    await asyncio.sleep(0.05)
    await context.log("info", "Tool execution completed")
    return "Logged three times."


@server.tool
async def test_logging_tool(context: Context) -> str:
    """Log once, which a client of 2026-07-28 hears only if it asked for it."""
    await context.log("info", "This is a log message for testing")
    return "Logged once."


@server.tool
async def test_tool_with_progress(context: Context) -> str:
    """Report progress three times."""
    await context.progress(0, 100)
    await asyncio.sleep(0.05)
    await context.progress(50, 100)
    await asyncio.sleep(0.05)
    await context.progress(100, 100)
    return "Reported progress three times."


@server.tool(inline=True)
def test_trigger_tool_change() -> str:
    """Offer a tool more, or, if it is there, no longer."""
    global _added
    if _added:
        server.remove_tool("test_added_tool")
    else:
        server.add_tool(_nothing, name="test_added_tool")
    _added = not _added
    return "The list of tools has changed."


_added = False


def _nothing() -> str:
    """Do nothing. Comes and goes by test_trigger_tool_change."""
    return ""


def json_schema_2020_12_tool(arguments: dict[str, Any]) -> str:
    """Take arguments described by more of JSON Schema 2020-12 than Python's types can say."""
    return f"Reached by {arguments.get('contactMethod', 'any way')}."


server.add_tool(
    json_schema_2020_12_tool,
    inline=True,
    input_schema={
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "$defs": {
            "address": {
                "$anchor": "addressDef",
                "type": "object",
                "properties": {"street": {"type": "string"}, "city": {"type": "string"}},
            }
        },
        "properties": {
            "name": {"type": "string"},
            "address": {"$ref": "#/$defs/address"},
            "contactMethod": {"type": "string", "enum": ["phone", "email"]},
            "phone": {"type": "string"},
            "email": {"type": "string"},
        },
        "allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}],
        "if": {"properties": {"contactMethod": {"const": "phone"}}, "required": ["contactMethod"]},
        "then": {"required": ["phone"]},
        "else": {"required": ["email"]},
        "additionalProperties": False,
    },
)


if __name__ == "__main__":
    server.run()
