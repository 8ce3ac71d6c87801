"""Tools: registers, lists and calls the tools of a server.

make_tool() makes a RegisteredTool from a function. A RegisteredTool contains the description of the
tool for clients, a decoder for the arguments of a call, and a function that converts the return
value to a result.

ServerBackend.handle() finds the tool of a call, and calls it with Tools.call(). If the tool has
guards, such as a rate limit, ServerBackend.handle() passes the call to the guards, which then call
the tool.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, cast

from msgspec import Raw, Struct
from msgspec.json import encode

from concertino.backend.interface import Backend, Call, Context
from concertino.errors import RegistrationError, ToolError, invalid_params
from concertino.runtime.tasks import busy_loops
from concertino.schema.arguments import InvalidArguments, argument_decoder
from concertino.schema.return_values import (
    EncodeItems,
    InvalidResult,
    NotAwaited,
    ResultShaper,
    Shape,
    chunk_shaper,
    custom_result_shaper,
    is_generator,
    result_shaper,
)
from concertino.schema.signature import Signature
from concertino.schema.violations import SchemaViolation
from concertino.server.functions import (
    Bound,
    FinishingHandler,
    Handler,
    InThread,
    check_handler,
    describe_missing_object,
    handler_doc,
    handler_location,
    is_async,
    lacks_self,
    maybe_await,
)
from concertino.server.registry import Access, Registry, Switch, TagSwitches
from concertino.server.settings import CacheHints, add_tags, check_options, check_setting
from concertino.server.tool_errors import (
    describe_exception,
    describe_violation,
    find_passthrough,
    tool_error_result,
)
from concertino.types.results import (
    CallToolResult,
    ListToolsResult,
    Tool,
    ToolAnnotations,
    error_result,
)

if TYPE_CHECKING:
    from concertino.backend.call_hooks import Handle, ParamHeaders, Work
    from concertino.guards.sizes import OversizeStore
    from concertino.server.options import ToolSettings

S = TypeVar("S", bound=Struct)
# 2026-07-28 server/tools "Tool Names"
NAME = re.compile(r"[A-Za-z0-9_.-]{1,128}")
# Structured content of this many bytes keeps the event loop busy for a noticeable time. The value
# is that of LARGE_BYTES in runtime/result_turns.py, which is not imported before the first
# response.
LARGE_CONTENT = 256 * 1024
# A list of this many items may take the event loop a noticeable time, too (LARGE_ITEMS in
# result_turns.py).
LONG_LIST = 1024
# Other return values may be large. They wait for their turn before they are converted to a result,
# so that the conversions of several calls do not block the event loop together (Tools.call).
# Values of these types are converted quickly, and need not wait.
_SCALARS = frozenset((str, int, float, bool, type(None)))
NO_ARGUMENTS = Raw(b"{}")
# Occurs in the JSON of each input schema that marks an argument to be repeated in an HTTP header.
PARAM_ANNOTATION = b'"x-mcp-header"'
# Hosts, the applications that contain MCP clients, have limits. Some cut longer instructions than
# this. The two limits here are only a quick first test: if one is exceeded, host_warnings.py is
# imported, checks all limits of hosts exactly (protocol/host_limits.py), and logs warnings.
LONG_INSTRUCTIONS = 2048
# How many characters the names of the server and of a tool may have together. Hosts join the two
# names with 7 more characters, and allow 64 in all.
LONG_NAMES = 57


class RegisteredTool(Struct):
    """A tool of a server and how to call it.

    tool: the tool as `tools/list` returns it.
    handler: the function.
    is_async: whether it is an `async def`.
    inline: whether it is a `def` that runs on the event loop and not in a thread.
    bind: converts the arguments of a call from JSON, and adds the context of the call if the
        handler has a parameter for it.
    shape: converts the handler's return value to a result.
    encode_items: encodes some items of a list that the handler has returned, so that a long list is
        converted in parts; None if its values are converted as a whole (ResultShaper.encode_items).
    guard: a Backend that handles the calls of this tool: it applies the tool's own limits, such as
        `rate_limit` and `scopes`, and then calls the handler. None if the tool has none.
    removed: whether the tool was removed from the server, or is disabled. This is the only field
        that changes after the registration.
    param_headers: the arguments that clients repeat in HTTP headers `Mcp-Param-...`: the path of
        the argument -> the rest of the name of its header.
    """

    tool: Tool
    handler: Handler
    is_async: bool
    inline: bool
    bind: Callable[[Raw | bytes, object], Bound]
    shape: Shape
    encode_items: EncodeItems | None = None
    guard: Backend | None = None
    removed: bool = False
    param_headers: ParamHeaders = {}


def _count_if_large(result: CallToolResult) -> CallToolResult:
    """Return the result unchanged. If it is large, count it.

    The next large value then waits for another iteration of the event loop before it is converted.
    """
    content = result.structured_content
    if type(content) is Raw and len(content) >= LARGE_CONTENT:
        from concertino.runtime.result_turns import count_conversion

        count_conversion(len(content))
    return result


class Tools(Registry[RegisteredTool]):
    """The tools of a server.

    page_size: how many items one page of the list has.
    hints: how long clients may cache the list.
    argument_errors: the response to a call with invalid arguments: "result" for a tool result with
        isError, "protocol" for the JSON-RPC error -32602.
    switches: the tags that enable() and disable() have switched on and off.
    in_thread: runs a `def` handler in a thread.
    log: the server's logger.

    Attribute:
    oversize: stores results that exceed the option max_result_bytes. tool_guards.py sets it when
        the first tool with this option is registered; None before.
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
        entry.removed = True
        return entry

    def switch(self, names: Iterable[str], switch: Switch) -> bool:
        has_changed = super().switch(names, switch)
        for name, record in self.records.items():
            record.entry.removed = name not in self.entries
        return has_changed

    def report_missing_types(self, handler: Handler) -> None:
        """Log that the parameters of a tool have no annotations. Only the first call logs."""
        if "types" not in self._reported:
            self._reported.add("types")
            from concertino.server.handler_warnings import warn_of_missing_annotations

            warn_of_missing_annotations(handler, handler_location(handler))

    def report_host_limits(self, server: str, instructions: str) -> None:
        """Log a warning if common hosts will cut the instructions or leave out tools.

        A host is the application that contains an MCP client. Hosts such as Claude Code leave out
        tools with long names. Each warning is logged once.
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
        - Exceptions that the runtime must handle are raised: InsufficientScope and those of
          Context.ask(), such as Suspended, which says that the client must answer first.

        call: the call, whose arguments are decoded.
        context: the context of the call, for the handler.
        bound: the arguments for the handler, if tool.bind() was called before; otherwise None.
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
                return tool.shape(value)

            # If the loop is busy, several calls may return large values in the same iteration. Let
            # them be converted in turns, so that the loop is not blocked. A long list blocks the
            # loop by itself, so it is converted in parts. Imported here, because this is not needed
            # before the first response.
            if busy_loops or (type(value) is list and len(cast("list[Any]", value)) >= LONG_LIST):
                from concertino.runtime.result_turns import convert_in_turn

                result = await convert_in_turn(value, tool.shape, tool.encode_items)
                return _count_if_large(result)
            return _count_if_large(tool.shape(value))
        except InvalidArguments as exc:
            from concertino.backend.call_hooks import record_refused_arguments

            # Tells the guards around the whole server not to count this call against a rate limit.
            record_refused_arguments()
            return self._refuse_arguments(call, exc)
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
            # BaseException includes SystemExit and GeneratorExit: no tool may end the server.
            if context.cancelled:
                raise
            if (passthrough := find_passthrough(exc)) is not None:
                raise passthrough from None
            from concertino.backend.user_errors import exc_info_for_users

            self._log.error("tool %s failed", tool.tool.name, exc_info=exc_info_for_users(exc))
            return error_result(describe_exception(exc))

    def _refuse_arguments(self, call: Call, exc: InvalidArguments) -> CallToolResult:
        """Return the result with isError for a call with invalid arguments, or raise an RpcError.

        exc: the exception of tool.bind().
        """
        arguments = bytes(call.params.get("arguments", NO_ARGUMENTS)).lstrip()
        return self.refuse_arguments(exc.violations, arguments)

    def make_handle(self, tool: RegisteredTool, handle_any: Handle) -> Handle:
        """Return a function handle(call, context) that calls one tool, without its guards.

        The function checks the arguments at once, and returns a coroutine that calls the tool. It
        raises ArgumentsRefused or RpcError for invalid arguments.
        handle_any: handles calls of any tool. It gets the calls that arrive after this tool was
            removed or disabled, because another tool may have the name then.
        """
        # Imported here, because only guarded servers need it.
        from concertino.backend.call_hooks import ArgumentsRefused

        def handle(call: Call, context: Context) -> Work:
            if tool.removed:
                # Check the arguments for another tool that may have the name now.
                self.check_arguments(tool.tool.name, call, context)
                return handle_any(call, context)
            try:
                bound = tool.bind(call.params.get("arguments", NO_ARGUMENTS), context)
            except InvalidArguments as exc:
                raise ArgumentsRefused(self._refuse_arguments(call, exc)) from None
            except Exception:
                # A class of the author, the type of a parameter, has raised in its constructor.
                # call() will call bind() again, and log the exception.
                bound = None
            return self.call(tool, call, context, bound)

        return handle

    def check_arguments(self, name: str, call: Call, context: Context) -> None:
        """Raise ArgumentsRefused or RpcError if the arguments of a call of a tool are invalid.

        Does nothing for an unknown tool.
        name: the name of the tool.
        context: the context of the call.
        """
        from concertino.backend.call_hooks import ArgumentsRefused

        tool = self.find(name, context)
        try:
            if tool is not None:
                tool.bind(call.params.get("arguments", NO_ARGUMENTS), context)
        except InvalidArguments as exc:
            raise ArgumentsRefused(self._refuse_arguments(call, exc)) from None
        except Exception:
            # A class of the author, the type of a parameter, has raised in its constructor. It will
            # raise again when the tool is called, and the exception is logged then.
            pass

    def refuse_arguments(
        self, violations: Sequence[SchemaViolation], arguments: bytes
    ) -> CallToolResult:
        """Return the result with isError for invalid arguments.

        Raises RpcError -32602 instead if the server has argument_errors="protocol", or if the
        arguments are not a JSON object.
        violations: what is wrong with the arguments.
        arguments: the JSON text from the client, without leading whitespace.
        """
        details = [describe_violation(violation) for violation in violations]

        # If the arguments are not an object but null, for example, the request itself is malformed.
        # It gets a JSON-RPC error with either value of argument_errors.
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


def make_tool(
    handler: Handler,
    options: ToolSettings,
    access: Access,
    *,
    coerce: bool,
    version: str,
    in_thread: InThread,
    report_missing_types: Callable[[Handler], None],
) -> RegisteredTool:
    """Return the tool for a handler.

    options: the options of the decorator that ToolSettings declares, such as `title`.
    access: the options `tags`, `visible` and `scopes`. Only the tags are used, for `_meta`.
    coerce: whether to accept strings for other types, such as "1" for an int.
    version: the server's version, which results contain if the tool has the option `envelope`.
    in_thread: runs a `def` handler in a thread.
    report_missing_types: called for a handler that has parameters, none of them with an annotation.
    Raises RegistrationError for an invalid handler or option.
    """
    if not callable(handler):
        hint = f"; write name={handler!r}" if isinstance(handler, str) else ""
        raise RegistrationError(f"tool: expected a function, got {handler!r}{hint}")
    options, name = _check_tool_options(handler, options)
    if lacks_self(handler):
        mistake = describe_missing_object(handler, "server.add_tool(object.{})")
        raise RegistrationError(f"{name}: {mistake}")

    doc = handler_doc(handler)
    schema, bind, signature = _read_parameters(handler, options, name, doc.parameters, coerce)
    if options.get("input_schema") is None and check_handler(
        handler, doc.parameters, schema.get("properties", {})
    ):
        report_missing_types(handler)
    shaper = _make_result_shaper(handler, options, name, version, signature)
    hints = ToolAnnotations(
        read_only_hint=options.get("read_only"),
        destructive_hint=options.get("destructive"),
        idempotent_hint=options.get("idempotent"),
        open_world_hint=options.get("open_world"),
    )
    description = options.get("description")
    tool = Tool(
        name,
        schema,
        title=options.get("title"),
        description=doc.description if description is None else description,
        output_schema=shaper.schema,
        annotations=hints if hints != ToolAnnotations() else None,
        icons=options.get("icons"),
        meta=add_tags(options.get("meta"), access),
    )
    # Check the whole tool and not only the options: a docstring may contain a lone surrogate.
    try:
        tool = check_setting(tool)
    except ValueError as exc:
        raise RegistrationError(f"{name}: {exc}") from None

    inline = options.get("inline", False)
    if is_generator(handler):
        from concertino.server.streaming import bind_with_context, collect_chunks

        run = collect_chunks(handler, None if inline else in_thread)
        return RegisteredTool(tool, run, True, False, bind_with_context(bind), shaper.shape)
    if isinstance(handler, FinishingHandler):
        # It converts its return value itself, before it closes its dependencies.
        finishing = handler.finishing(shaper.shape)
        return RegisteredTool(tool, finishing, True, False, bind, _return_unchanged)
    return RegisteredTool(
        tool, handler, is_async(handler), inline, bind, shaper.shape, shaper.encode_items
    )


def read_param_headers(tool: Tool) -> ParamHeaders:
    """Return which arguments of a tool clients repeat in HTTP headers `Mcp-Param-...`.

    The input schema marks these arguments with `x-mcp-header`.
    Returns the path of each argument -> the rest of the name of its header.
    Raises RegistrationError for an annotation that clients of MCP 2026-07-28 would refuse.
    """
    # Few schemas have the annotation, and this test is faster than a walk through the schema.
    if PARAM_ANNOTATION not in encode(tool.input_schema):
        return {}
    from concertino.http.param_headers import InvalidAnnotation, read_annotations

    try:
        return read_annotations(tool.input_schema)
    except InvalidAnnotation as exc:
        raise RegistrationError(f"{tool.name}: input schema: {exc}") from None


def _return_unchanged(result: CallToolResult) -> CallToolResult:
    """Return a result unchanged.

    It is the `shape` of a tool whose handler, a FinishingHandler, has converted the value already.
    """
    return result


def _check_tool_options(handler: Handler, options: ToolSettings) -> tuple[ToolSettings, str]:
    """Return checked options, and the name of the tool.

    Raises RegistrationError for an invalid option or name.
    """
    own_name = str(getattr(handler, "__name__", ""))
    name = options.get("name")
    is_valid = isinstance(name, str) and NAME.fullmatch(name) is not None
    owner = cast("str", name) if is_valid else own_name
    _check_schema_sizes(options, owner)
    if options:
        # Imported here, because the import takes time and most tools have no options.
        from concertino.server.options import ToolSettings

        options = check_options(options, ToolSettings, owner)

    name = own_name if name is None else name
    if NAME.fullmatch(name) is None:
        got = repr(name) if name else "none"
        raise RegistrationError(
            f"tool name: expected 1 to 128 of A-Z a-z 0-9 _ . - , got {got}; pass name=..."
        )
    return options, name


def _read_parameters(
    handler: Handler,
    options: ToolSettings,
    name: str,
    descriptions: Mapping[str, str],
    coerce: bool,
) -> tuple[dict[str, Any], Callable[[Raw | bytes, object], Bound], Signature | None]:
    """Return the input schema of a tool, the function for RegisteredTool.bind, and the signature.

    The signature is None if the input schema is written by hand.
    name: the name of the tool, for error messages.
    descriptions: the descriptions of the parameters in the docstring.
    """
    input_schema = options.get("input_schema")
    if input_schema is None:
        decoder = argument_decoder(
            handler, coerce=coerce, inject=(Context,), descriptions=descriptions
        )
        return decoder.schema, decoder.bind, decoder.signature

    from concertino.server.custom_tools import custom_binder

    schema = dict(input_schema)
    try:
        return schema, custom_binder(handler, schema), None
    except RegistrationError as exc:
        raise RegistrationError(f"{name}: {exc}") from None


def _make_result_shaper(
    handler: Handler,
    options: ToolSettings,
    name: str,
    version: str,
    signature: Signature | None,
) -> ResultShaper:
    """Return the ResultShaper of a tool: its output schema, and the function for its results.

    name: the name of the tool, for errors.
    version: the server's version, for the envelope.
    signature: the signature of the handler if it was read before; otherwise None.
    Raises RegistrationError for options that contradict each other.
    """
    output_schema = options.get("output_schema")
    make_shaper = partial(
        chunk_shaper if is_generator(handler) else result_shaper,
        handler,
        inject=(Context,),
        signature=signature,
    )
    if options.get("envelope"):
        from concertino.server.result_envelope import wrap_result

        if output_schema is not None:
            raise RegistrationError(
                f"{name}: output_schema needs structured content, and an envelope is text; "
                f"remove one of the two options, or pass envelope=False"
            )
        return ResultShaper(None, wrap_result(make_shaper().shape, version))
    if output_schema is None:
        return make_shaper()

    from concertino.server.custom_tools import result_validator

    schema = dict(output_schema)
    try:
        return custom_result_shaper(handler, schema, result_validator(schema))
    except RegistrationError as exc:
        raise RegistrationError(f"{name}: {exc}") from None


def _check_schema_sizes(options: ToolSettings, name: str) -> None:
    """Raise RegistrationError for hand-written schemas that are too large.

    This must be the first check, because the others walk through the whole schemas.
    name: the name of the tool.
    """
    schemas = {
        "input_schema": options.get("input_schema"),
        "output_schema": options.get("output_schema"),
    }
    for option, schema in schemas.items():
        if schema is not None:
            from concertino.schema.custom_schema import check_size

            try:
                check_size(schema)
            except RegistrationError as exc:
                raise RegistrationError(f"{name}: {option}: {exc}") from None
