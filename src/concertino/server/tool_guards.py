"""Guards around single tools: `@server.tool(rate_limit="10/60", timeout_s=5)`.

add_guard() makes the Guard (package guards) that these options describe. server.py imports this
module when the first tool with such an option is registered.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from msgspec.structs import replace

from concertino.backend.call_hooks import Handle
from concertino.backend.interface import Backend
from concertino.backend.wrappers import BackendWrapper
from concertino.errors import RegistrationError
from concertino.guards.guard import Guard
from concertino.guards.sizes import URI, OversizeStore
from concertino.server.options import ToolGuards
from concertino.server.tools import RegisteredTool, Tools
from concertino.types.results import ResourceContents

# The resource template under which clients read the results that were too large.
TEMPLATE = f"{URI}{{id}}"


class ToolServer(Backend, Protocol):
    """The methods of a Server that this module calls.

    This module cannot import Server, because server.py imports this module.
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


def add_guard(
    server: ToolServer,
    tools: Tools,
    tool: RegisteredTool,
    guards: ToolGuards,
) -> RegisteredTool:
    """Return a copy of the tool with a guard, or `tool` itself if all options are None or False.

    server: the server of the tool.
    tools: the tools of the server.
    tool: a tool that is not registered yet.
    guards: the options that limit calls, such as rate_limit. With max_result_bytes, this function
        also registers the resource template under which clients read larger results.
    Raises RegistrationError for an invalid option.
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
    # Only now, because this function needs the tool with its Guard, and the Guard needs `inner`.
    inner.handle_tool = tools.make_handle(guarded, server.handle)
    return guarded


class _Unguarded(BackendWrapper):
    """The Backend inside the guard of one tool: calls the tool without the guard."""

    # Calls the tool; add_guard() sets it.
    handle_tool: Handle

    def operation_handler(self, method: str, name: str) -> Handle:
        """Return the function that handles the calls of the tool."""
        return self.handle_tool

    async def close(self) -> None:
        """Do nothing. The server closes its guards, so a guard must not close the server."""


def _oversize_store(server: ToolServer, tools: Tools) -> OversizeStore:
    """Return the store of large results, which all tools of a server share.

    The first call creates the store, and registers the resource template.
    """
    if tools.oversize is None:
        store = tools.oversize = OversizeStore()

        # Clients see the docstring as the description of the template.
        def read_result(id: str) -> list[ResourceContents]:
            """A result that was too large to be sent as one."""
            return store.read(f"{URI}{id}").contents

        server.add_resource(TEMPLATE, read_result, name="large results", inline=True)
    return tools.oversize
