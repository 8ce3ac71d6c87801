"""A server with one tool of every kind. To start it:

python examples/tour.py
concertino serve examples/tour.py
"""

import asyncio
import struct
import time
import zlib
from dataclasses import dataclass
from typing import Annotated, Literal

from msgspec import Meta

from concertino import Context, Server, ToolError, image
from concertino.types import ImageContent

server = Server("tour", version="1.0.0", instructions="Small tools that show what a server can do.")


@server.tool(read_only=True)
async def add(a: int, b: int) -> int:
    """Add two integers."""
    return a + b


@dataclass
class Statistics:
    count: int
    mean: float
    largest: float


# It is fast, so it runs on the event loop. Without `inline` it would run in a thread.
@server.tool(read_only=True, inline=True)
def statistics(values: Annotated[list[float], Meta(min_length=1)]) -> Statistics:
    """Describe some numbers.

    Args:
        values: The numbers, at least one.
    """
    return Statistics(len(values), sum(values) / len(values), max(values))


@server.tool
def divide(a: float, b: float) -> float:
    """Divide a by b."""
    if b == 0:
        raise ToolError("b is 0: give another divisor")
    return a / b


@server.tool
async def bake(
    cake: Literal["apple", "plum"],
    context: Context,
    minutes: Annotated[int, Meta(ge=1, le=600)] = 3,
) -> str:
    """Bake a cake. Reports progress and can be cancelled. A minute takes 0.1 seconds here.

    Args:
        cake: The kind of cake.
        minutes: The baking time.
    """
    await context.log("info", f"{cake} cake goes into the oven")
    for minute in range(1, minutes + 1):
        await asyncio.sleep(0.1)
        await context.progress(minute, minutes, f"{minute} of {minutes} minutes")
    return f"One {cake} cake."


@server.tool
def wait(seconds: Annotated[float, Meta(ge=0, le=60)], context: Context) -> str:
    """Wait in a thread, and stop early if the call is cancelled."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and not context.cancelled:
        time.sleep(0.02)
    return f"Waited {seconds} s."


@server.tool(inline=True)
def swatch(red: int, green: int, blue: int) -> ImageContent:
    """Draw a square of 16 by 16 pixels in one colour."""
    row = b"\0" + bytes((red, green, blue)) * 16
    return image(
        b"\x89PNG\r\n\x1a\n"
        + _png_chunk(b"IHDR", struct.pack(">IIBBBBB", 16, 16, 8, 2, 0, 0, 0))
        + _png_chunk(b"IDAT", zlib.compress(row * 16))
        + _png_chunk(b"IEND", b"")
    )


def _png_chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


@server.tool(inline=True)
def chat(text: str) -> str:
    """Print to stdout. Elsewhere this would break the protocol."""
    print(text)
    return "printed"


if __name__ == "__main__":
    server.run()
