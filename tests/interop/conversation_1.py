"""A conversation with examples/tour.py by the official Python client `mcp` 1.x; run by the
interpreter that has it.

python conversation_1.py SERVER_PYTHON SERVER_FILE SERVER_PYTHONPATH

Prints what it saw as one JSON object. What it means is asserted in test_official_client_1.py.
"""

import asyncio
import json
import sys
from typing import Any

import anyio
from mcp import ClientSession, McpError, StdioServerParameters, types
from mcp.client.stdio import stdio_client

seen: dict[str, Any] = {"log_messages": [], "progress": [], "unexpected": []}


async def main() -> None:
    command, file, path = sys.argv[1:]
    parameters = StdioServerParameters(command=command, args=[file], env={"PYTHONPATH": path})
    async with (
        stdio_client(parameters) as (read, write),
        ClientSession(
            read, write, logging_callback=on_log, message_handler=on_anything_else
        ) as session,
    ):
        await asyncio.wait_for(converse(session), 30)
    print(json.dumps(seen))


async def converse(session: ClientSession) -> None:
    opening = await session.initialize()
    seen["opening"] = dump(opening)
    await session.send_ping()
    seen["tools"] = [dump(tool) for tool in (await session.list_tools()).tools]

    seen["sum"] = dump(await session.call_tool("add", {"a": 2, "b": 40}))
    seen["statistics"] = dump(await session.call_tool("statistics", {"values": [3, 4, 8]}))
    seen["picture"] = dump(await session.call_tool("swatch", {"red": 1, "green": 2, "blue": 3}))
    seen["failed"] = dump(await session.call_tool("divide", {"a": 1, "b": 0}))
    seen["refused"] = dump(await session.call_tool("divide", {"a": "one", "c": 3}))
    try:
        await session.call_tool("multiply", {})
    except McpError as error:
        seen["unknown"] = dump(error.error)

    await session.call_tool("bake", {"cake": "plum", "minutes": 2}, progress_callback=on_progress)
    await session.set_logging_level("error")
    await session.call_tool("bake", {"cake": "plum", "minutes": 1})

    # This client does not tell the server when it gives up, so it is done by hand.
    with anyio.move_on_after(0.3):
        await session.call_tool("wait", {"seconds": 60})
    notification = types.CancelledNotification(
        method="notifications/cancelled",
        params=types.CancelledNotificationParams(
            requestId=session._request_id - 1, reason="too long"
        ),
    )
    await session.send_notification(types.ClientNotification(notification))
    results = await asyncio.gather(
        *(session.call_tool("add", {"a": number, "b": 0}) for number in range(50))
    )
    seen["sums"] = [(result.structuredContent or {})["result"] for result in results]


async def on_log(params: types.LoggingMessageNotificationParams) -> None:
    seen["log_messages"].append([params.level, params.data])


async def on_progress(done: float, total: float | None, message: str | None) -> None:
    seen["progress"].append([done, total, message])


async def on_anything_else(message: object) -> None:
    """Whatever the client could not place, above all what it could not parse."""
    if isinstance(message, Exception):
        seen["unexpected"].append(repr(message))


def dump(model: Any) -> Any:
    return model.model_dump(mode="json", by_alias=True, exclude_none=True)


asyncio.run(main())
