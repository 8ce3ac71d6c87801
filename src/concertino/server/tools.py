"""Tools: stores, lists and calls the tools of a server.

make_tool() in tool_registration.py makes a RegisteredTool from a function. A RegisteredTool
contains the description of the tool for clients, a decoder for the arguments of a call, and a
function that converts the return value to a result.

ServerBackend.handle() finds the tool of a call, and calls it with Tools.call(). If the tool has
guards, such as a rate limit, ServerBackend.handle() passes the call to the guards, which then call
the tool.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from msgspec import Raw, Struct
from msgspec.json import encode

from concertino.backend.interface import Backend, Call, Context
from concertino.errors import ToolError, invalid_params
from concertino.runtime.tasks import busy_loops
from concertino.schema.arguments import InvalidArguments
from concertino.schema.return_values import ResultShaper
from concertino.schema.value_results import InvalidResult, NotAwaited
from concertino.schema.violations import SchemaViolation
from concertino.server.functions import Bound, Handler, InThread, handler_location, maybe_await
from concertino.server.registry import Registry, Switch, TagSwitches
from concertino.server.settings import CacheHints
from concertino.server.tool_errors import (
    describe_exception,
    describe_violation,
    find_passthrough,
    tool_error_result,
)
from concertino.types.results import CallToolResult, ListToolsResult, Tool, error_result

if TYPE_CHECKING:
    from concertino.backend.call_hooks import Handle, ParamHeaders, Work
    from concertino.guards.sizes import OversizeStore

# Structured content of this many bytes keeps the event loop busy for a noticeable time. The value
# is that of LARGE_BYTES in runtime/result_sizes.py, which is not imported before the first
# response.
LARGE_CONTENT = 256 * 1024
# A list of this many items may take the event loop a noticeable time, too (LARGE_ITEMS in
# result_sizes.py).
LONG_LIST = 1024
# Values of these types are converted to a result quickly. Values of other types may be large: they
# wait for their turn, so that the conversions of several calls do not block the event loop together
# (Tools.call).
_SCALARS = frozenset((str, int, float, bool, type(None)))
NO_ARGUMENTS = Raw(b"{}")
# LONG_INSTRUCTIONS and LONG_NAMES are a quick first test for the limits of hosts, the applications
# that contain MCP clients. If one is exceeded, host_warnings.py is imported. It checks all limits
# of hosts exactly (protocol/host_limits.py), and logs warnings.
#
# The largest number of characters of instructions. Some hosts cut longer ones.
LONG_INSTRUCTIONS = 2048
# How many characters the names of the server and of a tool may have together. Hosts join the two
# names with 7 more characters, and allow 64 in all.
LONG_NAMES = 57


class RegisteredTool(Struct):
    """A tool of a server and how to call it.

    tool: the tool as `tools/list` returns it.
    handler: the function that does the work of the tool.
    is_async: whether `handler` is an `async def`.
    inline: whether `handler` is a `def` that runs on the event loop and not in a thread.
    bind: bind(json, context) returns the arguments for `handler`: the decoded JSON arguments of a
        call, and the context of the call if `handler` has a parameter for the context.
    shaper: converts the handler's return values to results.
    guard: handles the calls of this tool: it applies the tool's own limits, such as `rate_limit`
        and `scopes`, and then calls the handler. None if the tool has no such limits.
    is_inactive: whether the tool was removed from the server, or is disabled. No other field
        changes after the registration.
    param_headers: which HTTP headers repeat arguments. {("user", "region"): "Region"} means that
        `Mcp-Param-Region` repeats the member `region` of the argument `user`.
    """

    tool: Tool
    handler: Handler
    is_async: bool
    inline: bool
    bind: Callable[[Raw | bytes, object], Bound]
    shaper: ResultShaper
    guard: Backend | None = None
    is_inactive: bool = False
    param_headers: ParamHeaders = {}


class Tools(Registry[RegisteredTool]):
    """The tools of a server.

    page_size: how many items one page of the list has.
    hints: how long clients may cache the list.
    argument_errors: the response to a call with invalid arguments: "result" for a tool result with
        isError, "protocol" for the JSON-RPC error -32602.
    switches: which tags are enabled or disabled; shared with the prompts and resources of the
        server.
    in_thread: in_thread(function) calls a function in a thread, and returns an awaitable of its
        result.
    log: the server's logger.

    Attribute:
    oversize: the store for results that exceed the option max_result_bytes; None before the first
        tool with this option is registered.
    """

    def __init__(
        self,
        page_size: int,
        hints: CacheHints,
        argument_errors: str,
        switches: TagSwitches,
        in_thread: InThread,
        log: logging.Logger,
    ) -> None:
        super().__init__("tool", page_size, self._describe_tool_conflict, switches)
        self._in_thread = in_thread
        self._log = log
        self.oversize: OversizeStore | None = None
        self._hints = hints
        self._argument_errors = argument_errors
        # The warnings that were logged and must not be repeated: "types", "limits", "list".
        self._reported: set[str] = set()

    def _describe_tool_conflict(self, name: str) -> str:
        """Return the error text for a tool whose name is already registered."""
        location = handler_location(self.records[name].function)
        return (
            f"a tool named {name!r} is already registered{location}; pass name=... or call "
            f"remove_tool({name!r}) first"
        )

    def remove(self, name: str) -> RegisteredTool:
        entry = super().remove(name)
        entry.is_inactive = True
        return entry

    def switch(self, names: Iterable[str], switch: Switch) -> bool:
        has_changed = super().switch(names, switch)
        for name, record in self.records.items():
            record.entry.is_inactive = name not in self.entries
        return has_changed

    def report_missing_types(self, handler: Handler) -> None:
        """Log that the parameters of a tool have no annotations; once for all tools of the server.

        handler: the function of the tool.
        """
        if "types" not in self._reported:
            self._reported.add("types")
            from concertino.server.handler_warnings import warn_of_missing_annotations

            warn_of_missing_annotations(handler, handler_location(handler))

    def report_host_limits(self, server: str, instructions: str) -> None:
        """Log a warning if common hosts will cut the instructions or leave out tools.

        A host is the application that contains an MCP client. Some leave out tools with long names.
        Only the first call that finds an exceeded limit logs warnings.
        server: the server's name.
        instructions: the server's instructions; "" if it has none.
        """
        longest = max(map(len, self.entries), default=0)
        if len(instructions) <= LONG_INSTRUCTIONS and len(server) + longest <= LONG_NAMES:
            return
        if "limits" not in self._reported:
            self._reported.add("limits")
            from concertino.server.host_warnings import warn_at_start

            warn_at_start(self._log, server, instructions, self.entries)

    def _report_long_list(self) -> None:
        """Log a warning, once, if the list of tools takes too much of a model's context."""
        from concertino.server.host_warnings import warn_of_list

        warn_of_list(self._log, [entry.tool for entry in self.entries.values()])

    async def list(self, call: Call, context: Context) -> ListToolsResult:
        """Handle a call of `tools/list`."""
        page = self.page(call.params, context)
        if page.result is None:
            hints = self._hints
            if "list" not in self._reported:
                self._reported.add("list")
                # Do this after the response is written, because it takes time.
                asyncio.get_running_loop().call_soon(self._report_long_list)
            page.result = ListToolsResult(
                [entry.tool for entry in page.entries],
                page.next_cursor,
                ttl_ms=hints.ttl_ms,
                cache_scope=self.cache_scope(hints.scope),
            )
        return page.result

    async def call(
        self,
        tool: RegisteredTool,
        call: Call,
        context: Context,
        bound: Bound | None = None,
    ) -> Struct | Raw:
        """Call a tool, without its guards, and return its result.

        - An exception of the handler becomes a result with isError.
        - Invalid arguments become a result with isError, too. If the server has
          argument_errors="protocol", RpcError is raised instead.
        - Exceptions that the runtime must handle are raised: InsufficientScope, ResultDropped, and
          those of Context.ask(), such as Suspended, which says that the client must answer first.

        context: the context of the call, for the handler.
        bound: the arguments for the handler, as tool.bind() has returned them. None to decode them
            from the call.
        """
        try:
            args, kwargs = bound or tool.bind(call.params.get("arguments", NO_ARGUMENTS), context)
            if tool.is_async:
                value = await tool.handler(*args, **kwargs)
            elif tool.inline:
                value = await maybe_await(tool.handler(*args, **kwargs))
            else:
                work = partial(tool.handler, *args, **kwargs)
                value = await maybe_await(await self._in_thread(work))
            if type(value) in _SCALARS:
                return tool.shaper.shape(value)

            # If the loop is busy, several calls may return large values in the same iteration. Let
            # them be converted in turns, so that the loop is not blocked. A long list blocks the
            # loop by itself, so it is converted in parts. Imported here, because this is not needed
            # before the first response.
            if busy_loops or (type(value) is list and len(cast("list[Any]", value)) >= LONG_LIST):
                from concertino.runtime.result_turns import convert_in_turn

                return await convert_in_turn(value, tool.shaper)
            # encode() checks small results only. finish_conversion() checks a large one in parts.
            result = tool.shaper.encode(value)
            content = result.structured_content
            if type(content) is Raw and len(content) >= LARGE_CONTENT:
                from concertino.runtime.result_turns import finish_conversion

                await finish_conversion(result, content, tool.shaper)
            return result
        except InvalidArguments as exc:
            from concertino.backend.call_hooks import record_refused_arguments

            # Guards around the whole server must not count this call against a rate limit.
            record_refused_arguments()
            return self._refuse_call(call, exc)
        except NotAwaited as exc:
            return error_result(f"{tool.tool.name}(){handler_location(tool.handler)} {exc}")
        except ToolError as exc:
            return tool_error_result(exc)
        except InvalidResult as exc:
            # The author of the tool must know, not only the model.
            where = handler_location(tool.handler)
            self._log.error("tool %s failed: %s%s", tool.tool.name, exc, where)
            return tool_error_result(exc)
        except BaseException as exc:
            # A cancelled call ends with its exception. Any other exception, even SystemExit or
            # GeneratorExit, becomes a result, because no tool may end the server.
            if context.cancelled:
                raise
            return self._report_failure(tool, exc)

    def _report_failure(self, tool: RegisteredTool, exc: BaseException) -> CallToolResult:
        """Log an exception of a handler, and return the result with isError for it.

        Raises the exception instead if the runtime must handle it. For an exception group, raises
        the exception in the group that the runtime must handle.
        """
        if (passthrough := find_passthrough(exc)) is not None:
            raise passthrough from None
        from concertino.backend.user_errors import exc_info_for_users

        self._log.error("tool %s failed", tool.tool.name, exc_info=exc_info_for_users(exc))
        return error_result(describe_exception(exc))

    def _refuse_call(self, call: Call, exc: InvalidArguments) -> CallToolResult:
        """Return the result with isError for a call with invalid arguments, or raise an RpcError.

        exc: the exception of tool.bind().
        """
        arguments = bytes(call.params.get("arguments", NO_ARGUMENTS)).lstrip()
        return self.refuse_arguments(exc.violations, arguments)

    def make_handle(self, tool: RegisteredTool, handle_any: Handle) -> Handle:
        """Return a function handle(call, context) that calls one tool, without its guards.

        handle() checks the arguments at once, and returns a coroutine that calls the tool. It
        raises ArgumentsRefused or RpcError for invalid arguments.
        handle_any: handles calls of any tool. It gets the calls that arrive after `tool` was
            removed or disabled, because another tool may then have the name.
        """
        # Imported here, because only guarded servers need it.
        from concertino.backend.call_hooks import ArgumentsRefused

        def handle(call: Call, context: Context) -> Work:
            if tool.is_inactive:
                # Check the arguments for another tool that may have the name now.
                self.check_arguments(tool.tool.name, call, context)
                return handle_any(call, context)
            try:
                bound = tool.bind(call.params.get("arguments", NO_ARGUMENTS), context)
            except InvalidArguments as exc:
                raise ArgumentsRefused(self._refuse_call(call, exc)) from None
            except Exception:
                # A class of the author, the type of a parameter, has raised in its constructor.
                # call() will call bind() again, and log the exception.
                bound = None
            return self.call(tool, call, context, bound)

        return handle

    def check_arguments(self, name: str, call: Call, context: Context) -> None:
        """Raise ArgumentsRefused or RpcError if the arguments of a call of a tool are invalid.

        Does nothing for an unknown tool.
        name: the name of the tool in `call`.
        context: the context of the call.
        """
        from concertino.backend.call_hooks import ArgumentsRefused

        tool = self.find(name, context)
        try:
            if tool is not None:
                tool.bind(call.params.get("arguments", NO_ARGUMENTS), context)
        except InvalidArguments as exc:
            raise ArgumentsRefused(self._refuse_call(call, exc)) from None
        except Exception:
            # A class of the author, the type of a parameter, has raised in its constructor. It will
            # raise again when the tool is called, and the exception is logged then.
            pass

    def refuse_arguments(
        self, violations: Sequence[SchemaViolation], arguments: bytes
    ) -> CallToolResult:
        """Return the result with isError for invalid arguments.

        violations: the mistakes in the arguments.
        arguments: the JSON text from the client, without leading whitespace.
        Raises RpcError -32602 instead if the server has argument_errors="protocol", or if
        `arguments` is not a JSON object.
        """
        details = [describe_violation(violation) for violation in violations]

        # If the arguments are not an object but null, for example, the request itself is malformed.
        # The response is then a JSON-RPC error, whatever argument_errors is.
        if not arguments.startswith(b"{"):
            raise invalid_params(f"arguments: {'; '.join(details)}")
        if self._argument_errors == "protocol":
            raise invalid_params("; ".join(details))
        body = {
            "error": f"Invalid arguments: {'; '.join(details)}",
            "code": "INVALID_ARGUMENTS",
            "suggestion": "Call the tool again with arguments that fit its input schema.",
            "details": [
                {"path": violation.path, "message": violation.message} for violation in violations
            ],
        }
        return error_result(encode(body).decode())
