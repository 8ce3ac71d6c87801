"""Guards around single tools: `@server.tool(rate_limit=..., timeout_s=..., ...)`.

server.py loads this module when the first tool has such an option.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from msgspec.structs import replace

from concertino.backend.call_hooks import Handle
from concertino.backend.interface import Backend, BackendWrapper
from concertino.errors import RegistrationError
from concertino.guards.guard import Guard
from concertino.guards.sizes import URI, OversizeStore
from concertino.server.options import ToolGuards
from concertino.server.tools import RegisteredTool, Tools
from concertino.types.results import ResourceContents

TEMPLATE = f"{URI}{{id}}"


class ToolServer(Backend, Protocol):
    """What this module needs of a Server.

    server.py imports this module, not the other way round.
    """

    def add_resource(
        self,
        uri: str,
        handler: Callable[..., Any],
        *,
        name: str,
        inline: bool,
    ) -> None:
        """Register a function as a resource or a template."""
        ...


def guard(
    server: ToolServer,
    tools: Tools,
    tool: RegisteredTool,
    guards: ToolGuards,
) -> RegisteredTool:
    """Return the tool with a guard around it, or the same tool if every option is switched off.

    tools: the server's.
    Results that are too large are stored for all tools of the server together
    and served behind one resource template.
    Raises RegistrationError for an option that does not fit.
    """
    active = {
        name: value for name, value in guards.items() if value is not None and value is not False
    }
    if not active:
        return tool
    try:
        inner = _Unguarded(server)
        store = _oversize_store(server, tools) if "max_result_bytes" in active else None
        # ToolGuards declares the types of the options.
        tool_guard = Guard(inner, store=store, **active)  # pyright: ignore[reportArgumentType]
    except ValueError as exc:
        raise RegistrationError(f"{tool.tool.name}: {exc}") from None
    guarded = replace(tool, guard=tool_guard)
    inner.handle_tool = tools.make_handle(guarded, server.handle)
    return guarded


class _Unguarded(BackendWrapper):
    """The server as the guard of one tool sees it: it calls that tool without the guard."""

    # Set once the tool has its guard.
    handle_tool: Handle

    def operation_handler(self, method: str, name: str) -> Handle:
        """Return the function that handles the calls of the tool."""
        return self.handle_tool

    async def close(self) -> None:
        """Do nothing: the server closes its guards, not the other way round."""


def _oversize_store(server: ToolServer, tools: Tools) -> OversizeStore:
    """Return the server's store of large results; make it on first use."""
    if tools.oversize is None:
        store = tools.oversize = OversizeStore()

        def read_result(id: str) -> list[ResourceContents]:
            """A result that was too large to be sent as one."""
            return store.read(f"{URI}{id}").contents

        server.add_resource(TEMPLATE, read_result, name="large results", inline=True)
    return tools.oversize
