"""Starts a server with a Python client library and lists its tools; run by the interpreter that has
the library.

    python failed_start.py mcp1|mcp2|fastmcp MODE COMMAND ARGUMENT...

MODE: the argument `mode` of the client, which mcp 1.x does not have. Prints the exception that a
user of the library gets; nothing if there is none.
"""

import asyncio
import os
import sys
from typing import Any


async def with_mcp1(mode: str, **command: Any) -> None:
    from mcp import ClientSession, StdioServerParameters
    from mcp.client.stdio import stdio_client

    async with (
        stdio_client(StdioServerParameters(**command)) as (read, write),
        ClientSession(read, write) as session,
    ):
        await session.initialize()
        await session.list_tools()


async def with_mcp2(mode: str, **command: Any) -> None:
    from mcp import Client, StdioServerParameters, stdio_client

    async with Client(stdio_client(StdioServerParameters(**command)), mode=mode) as client:
        await client.list_tools()


async def with_fastmcp(mode: str, **command: Any) -> None:
    from fastmcp import Client
    from fastmcp.client.transports import StdioTransport

    async with Client(StdioTransport(**command), mode=mode) as client:
        await client.list_tools()


def first_cause(exc: BaseException) -> BaseException:
    """Return the first exception in the innermost group: task groups raise groups."""
    while isinstance(exc, BaseExceptionGroup):
        exc = exc.exceptions[0]
    return exc


LIBRARIES = {"mcp1": with_mcp1, "mcp2": with_mcp2, "fastmcp": with_fastmcp}
library, mode, command, *arguments = sys.argv[1:]
try:
    asyncio.run(LIBRARIES[library](mode, command=command, args=arguments, env=dict(os.environ)))
except Exception as exc:
    print(first_cause(exc))
