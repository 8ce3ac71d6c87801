"""Guards around one tool: `@server.tool(rate_limit=..., timeout_s=..., ...)`. Loaded when the first tool wants one."""

from __future__ import annotations

from types import CoroutineType
from typing import TYPE_CHECKING, Any

from msgspec import Raw, Struct
from msgspec.structs import replace

from concertino.backend.interface import BackendWrapper, Call, Context
from concertino.errors import RegistrationError
from concertino.guards.guard import Guard
from concertino.guards.sizes import URI, OversizeStore
from concertino.server.options import ToolGuards
from concertino.server.tools import RegisteredTool, Tools
from concertino.types.results import ResourceContents

if TYPE_CHECKING:
    from concertino.server.server import Server

__all__ = ["guard"]

TEMPLATE = f"{URI}{{id}}"


def guard(server: Server, tools: Tools, tool: RegisteredTool, guards: ToolGuards) -> RegisteredTool:
    """The tool with guards around it, or as it is if none is wanted. tools: the server's.

    What is too large is kept for all tools of the server together, behind a resource template. Raises RegistrationError for what
    does not fit, TypeError for an unknown name.
    """
    if unknown := guards.keys() - ToolGuards.__annotations__.keys():
        raise TypeError(f"add_tool() got an unexpected keyword argument {min(unknown)!r}")
    given = {
        name: value for name, value in guards.items() if value is not None and value is not False
    }
    if not given:
        return tool
    try:
        inside = _Inside(server, tool)
        kept = _kept(server, tools) if "max_result_bytes" in given else None
        # The options are checked by ToolGuards.
        guarded = Guard(inside, kept=kept, **given)  # pyright: ignore[reportArgumentType]
    except ValueError as why:
        raise RegistrationError(f"{tool.tool.name}: {why}") from None
    inside.tool = replace(tool, guard=guarded)
    return inside.tool


class _Inside(BackendWrapper):
    """The server behind the guards of one of its tools."""

    inner: Server

    def __init__(self, server: Server, tool: RegisteredTool) -> None:
        super().__init__(server)
        self.tool = tool

    def handle(self, call: Call, context: Context) -> CoroutineType[Any, Any, Struct | Raw]:
        return self.inner.handle(call, context, self.tool)

    async def close(self) -> None:
        """The server closes its guards, not they the server."""


def _kept(server: Server, tools: Tools) -> OversizeStore:
    """The server's store of large results, offered as a resource template when it is made."""
    if tools.kept is None:
        kept = tools.kept = OversizeStore()

        def whole(id: str) -> list[ResourceContents]:
            """A result that was too large to be sent as one."""
            return kept.read(f"{URI}{id}").contents

        server.add_resource(TEMPLATE, whole, name="large results", inline=True)
    return tools.kept
