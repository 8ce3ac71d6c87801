"""ServerBackend: the methods of a Server that a Host calls. Base class of Server (server.py).

A Host (runtime/host.py) connects a backend with its clients, and passes their requests ("calls") to
the backend. ServerBackend finds the function that an author has registered for a call. tools.py
calls the functions of tools. lazy_features.py imports the modules that call the functions of
resources, prompts and completions, when the author registers the first one.
"""

from __future__ import annotations

import logging
import sys
from functools import partial
from types import CoroutineType
from typing import TYPE_CHECKING, Any, Literal

from msgspec import Raw, Struct
from msgspec.json import Decoder

from concertino.backend.interface import Call, ChangeKind, Context, Notifier, ServerFeatures
from concertino.backend.serving_hosts import ServingHosts
from concertino.decode_errors import DECODE_ERRORS
from concertino.server.functions import HandlerThreads
from concertino.server.lazy_features import FilledParameters, LazyFeatures
from concertino.server.registry import TagSwitches
from concertino.server.tool_errors import unknown_tool
from concertino.server.tools import Tools

if TYPE_CHECKING:
    from concertino.backend.call_hooks import CheckArguments, Handle, ParamHeaders
    from concertino.server.settings import CacheHints

__all__ = ["ServerBackend"]

_decode_name = Decoder(str).decode


class ServerBackend:
    """A Backend that calls registered functions, the handlers of tools, prompts and resources.

    name: the name of the server, for the log.
    features: what the server offers before any function is registered.
    argument_errors: the response to a call with invalid arguments: "result" for a tool result with
        isError, "protocol" for the JSON-RPC error -32602.
    page_size: how many items one page of a list has.
    hints: how long clients may cache lists, and for whom.
    """

    def __init__(
        self,
        name: str,
        features: ServerFeatures,
        argument_errors: Literal["result", "protocol"],
        page_size: int,
        hints: CacheHints,
    ) -> None:
        self.name = name
        log = logging.getLogger(f"concertino.{name}")
        self._threads = HandlerThreads()
        in_thread = self._threads.run
        self._registered_tools = Tools(
            page_size, hints, argument_errors, TagSwitches(), in_thread, log
        )
        self._features = LazyFeatures(
            features, self._registered_tools, in_thread, page_size, hints, log
        )
        # Fills the parameters for lifespan values and dependencies.
        self._filled = FilledParameters(in_thread)
        self._features.handlers["tools/list"] = self._registered_tools.list
        self._hosts = ServingHosts()

    async def start(self, outlet: Notifier) -> None:
        self._hosts.add(outlet)
        if self._features.is_empty:
            self._warn_of_other_servers()
        # Warn if common MCP hosts will cut the instructions or leave out tools.
        self._registered_tools.report_host_limits(
            self.name, self._features.features.instructions or ""
        )
        await self._filled.open()

    def _warn_of_other_servers(self) -> None:
        """Log a warning if this server is empty, but another server of the script is not.

        The author has probably served the wrong one of two servers. The other servers are looked
        for in the global variables of the main program.
        """
        variables = vars(sys.modules["__main__"])
        servers = {
            name: value for name, value in variables.items() if isinstance(value, ServerBackend)
        }
        filled = {name: item.name for name, item in servers.items() if not item._features.is_empty}
        if filled and self in servers.values():
            from concertino.server.unserved import warn_of_other_servers

            warn_of_other_servers(filled, self.name, str(variables.get("__file__", "")))

    def features(self) -> ServerFeatures:
        return self._features.features

    async def close(self) -> None:
        # Each Host calls close(). Release the resources only for the last one.
        if not self._hosts.remove_one():
            return
        # First cancel the calls that wait for a thread, so that no handler begins without its
        # lifespan values.
        self._threads.close()
        for record in list(self._registered_tools.records.values()):
            if record.entry.guard is not None:
                await record.entry.guard.close()
        await self._filled.close()

    async def watch(self, uris: frozenset[str]) -> None:
        self._hosts.watched = uris

    def operation_handler(self, method: str, name: str) -> Handle | None:
        """Return a function that handles all calls of one tool, without looking it up each time.

        A guard around the server uses this function, because it is faster than `handle`.
        method, name: "tools/call" and the name of the tool.
        Returns None if only `handle` may be used: for other methods, unknown tools, tools with
        guards of their own, such as rate limits, and if a subclass has overridden `handle`.
        """
        from concertino.backend.call_hooks import is_overridden

        if method != "tools/call" or is_overridden(self, ServerBackend.handle, self.handle):
            return None
        tool = self._registered_tools.entries.get(name)
        if tool is None or tool.guard is not None:
            return None

        return self._registered_tools.make_handle(tool, self.handle)

    def argument_check(self, method: str, name: str) -> CheckArguments | None:
        """Return a function that checks the arguments of calls of one tool.

        check(call, context) raises ArgumentsRefused or RpcError for invalid arguments; for an
        unknown tool, it does nothing. A guard around the server uses it, so that calls with invalid
        arguments do not count against a rate limit.
        method, name: "tools/call" and the name of the tool.
        Returns None for other methods.
        """
        if method != "tools/call":
            return None
        return partial(self._registered_tools.check_arguments, name)

    def param_headers(self, name: str) -> ParamHeaders:
        """Return which arguments of a tool have `x-mcp-header` in their schema.

        An example is {("user", "region"): "Region"}: clients repeat the member `region` of the
        argument `user` in the header `Mcp-Param-Region`. Returns {} for an unknown tool.
        """
        tool = self._registered_tools.entries.get(name)
        return {} if tool is None else tool.param_headers

    def handle(self, call: Call, context: Context) -> CoroutineType[Any, Any, Struct | Raw]:
        """Return the coroutine that handles a call. Raises RpcError for an unknown tool.

        This method is not an `async def`, so that a call of a tool needs only one coroutine.
        """
        if call.method != "tools/call":
            return self._features.handle(call, context)
        try:
            tools = self._registered_tools
            tool = tools.entries[_decode_name(call.params["name"])]
        except (KeyError, *DECODE_ERRORS):
            raise unknown_tool(call.params) from None
        if tool.guard is not None:
            return tool.guard.handle(call, context)
        return tools.call(tool, call, context)

    def _report_change(self, kind: ChangeKind) -> None:
        """Update the features of this server, and notify clients that a list has changed."""
        self._features.update_features()
        self._hosts.notify(lambda notifier: notifier.report_change(kind))
