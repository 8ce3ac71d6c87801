"""Clients that leave an HTTP server at any moment, and what the server holds afterwards.

tests/http/test_robustness.py runs some hundred of them, soak/aborts.py ten thousand.
"""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from collections.abc import Callable
from typing import Any

from http_service import (
    HttpService,
    Session,
    call,
    modern,
    modern_headers,
    post,
)

__all__ = ["abort_many", "read_counts", "settled_counts"]

WITHIN_S = 120.0
AT_ONCE = 40
# A reset instead of the usual end of a connection.
RESET = struct.pack("ii", 1, 0)


def encode_post(message: Any, headers: dict[str, str]) -> bytes:
    """Return a POST to the MCP endpoint."""
    body = json.dumps(message).encode()
    lines = ["POST /mcp HTTP/1.1", "Host: 127.0.0.1", "Content-Type: application/json"]
    lines += ["Accept: application/json, text/event-stream"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, f"Content-Length: {len(body)}", "", ""]).encode() + body


def make_steps(session: Session) -> list[tuple[bytes, bytes]]:
    """Return what clients send before they leave, and what they wait for until then."""
    waiting = modern("tools/call", name="wait", arguments={"progress": False})
    streaming = modern(
        "tools/call", name="wait", arguments={"progress": True}, _meta={"progressToken": 1}
    )
    echo = modern("tools/call", name="echo", arguments={"text": "x" * 1000})
    listen = modern("subscriptions/listen", notifications={"toolsListChanged": True})
    stream = "".join(f"{name}: {value}\r\n" for name, value in session.headers.items())
    get = f"GET /mcp HTTP/1.1\r\nHost: a\r\nAccept: text/event-stream\r\n{stream}\r\n".encode()
    whole = encode_post(echo, modern_headers(echo))
    return [
        (b"", b""),
        (whole[:40], b""),
        (whole[:-500], b""),
        (whole, b""),
        (whole * 3, b"\r\n\r\n"),
        (encode_post(waiting, modern_headers(waiting)), b""),
        (encode_post(streaming, modern_headers(streaming)), b"notifications/progress"),
        (encode_post(listen, modern_headers(listen)), b"\r\n\r\n"),
        (get.replace(b"Host: a", b"Host: 127.0.0.1"), b"\r\n\r\n"),
        (encode_post(call(1, "echo", text="x"), session.headers), b""),
    ]


async def abort_many(service: HttpService, count: int) -> None:
    """Let `count` clients connect, send something and leave, some of them with a reset."""
    session = await asyncio.to_thread(Session, service)
    steps = make_steps(session)
    numbers = iter(range(count))

    async def leave(number: int) -> None:
        sends, until = steps[number % len(steps)]
        reader, writer = await asyncio.open_connection(*service.address)
        writer.write(sends)
        await writer.drain()
        if until:
            await reader.readuntil(until)
        sock: socket.socket = writer.get_extra_info("socket")
        if number // len(steps) % 2:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        writer.transport.abort()

    async def work() -> None:
        for number in numbers:
            await leave(number)

    async with asyncio.timeout(WITHIN_S + count / 20), asyncio.TaskGroup() as group:
        for _ in range(AT_ONCE):
            group.create_task(work())
    # The session's own connection may have been closed, because it was idle.
    session.connection.close()
    ending = service.connect()
    await asyncio.to_thread(ending.request, "DELETE", "/mcp", None, session.headers)
    await asyncio.to_thread(ending.getresponse().read)
    ending.close()


def read_counts(service: HttpService) -> dict[str, int]:
    """Return what the server holds while it answers this one request."""
    message = modern("tools/call", name="counts", arguments={})
    connection = service.connect()
    counts: dict[str, int] = post(connection, message, modern_headers(message)).json["result"][
        "structuredContent"
    ]
    connection.close()
    return counts


async def settled_counts(
    service: HttpService, is_settled: Callable[[dict[str, int]], bool]
) -> dict[str, int]:
    """Return what the server holds as soon as a condition is met, or after a minute."""
    loop = asyncio.get_running_loop()
    until = loop.time() + 60
    while True:
        counts = await asyncio.to_thread(read_counts, service)
        if is_settled(counts) or loop.time() > until:
            return counts
        await asyncio.sleep(0.05)
