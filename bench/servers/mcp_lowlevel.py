"""The official Python SDK's low-level server: no schemas from signatures, no validation of
arguments.
"""

import asyncio
from typing import Any

import mcp_types as types
from mcp.server import Server
from mcp.server.stdio import stdio_server

TEXT = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
TOOLS = [
    types.Tool(name="echo", input_schema=TEXT),
    types.Tool(name="sleep50", input_schema={"type": "object"}),
]


async def list_tools(
    ctx: Any, params: types.PaginatedRequestParams | None
) -> types.ListToolsResult:
    return types.ListToolsResult(tools=TOOLS)


async def call_tool(ctx: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
    if params.name == "echo":
        text = (params.arguments or {})["text"]
    else:
        await asyncio.sleep(0.05)
        text = "ok"
    return types.CallToolResult(content=[types.TextContent(type="text", text=text)])


server = Server("bench", on_list_tools=list_tools, on_call_tool=call_tool)


async def main() -> None:
    async with stdio_server() as (read_stream, write_stream):
        await server.run(read_stream, write_stream, server.create_initialization_options())


asyncio.run(main())
