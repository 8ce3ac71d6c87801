"""Tools: Python callables with their descriptions, argument decoders and result shapers.

How one is called is in server.py: it is what nearly every message asks for.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec import DecodeError, Raw, Struct
from msgspec.json import Decoder, encode

from concertino.backend.interface import Backend, Call, Context
from concertino.errors import RegistrationError, RpcError
from concertino.schema.arguments import argument_decoder
from concertino.schema.return_values import (
    ResultShaper,
    chunk_shaper,
    custom_result_shaper,
    is_generator,
    result_shaper,
)
from concertino.schema.violations import SchemaViolation
from concertino.server.functions import Bound, Handler, InThread, is_async, lacks_self, parse_doc
from concertino.server.registry import Registry
from concertino.server.settings import CacheHints, ToolSettings, check_setting
from concertino.server.tool_errors import (
    error_result,
    invalid_params,
    sentence,
    shorten,
    unknown_name,
)
from concertino.types.results import CallToolResult, ListToolsResult, Tool, ToolAnnotations

if TYPE_CHECKING:
    from concertino.guards.sizes import OversizeStore

__all__ = ["RegisteredTool", "Tools", "no_tool", "register"]

S = TypeVar("S", bound=Struct)
NAME = re.compile(r"[A-Za-z0-9_.-]{1,128}")  # 2026-07-28 server/tools "Tool Names"


class RegisteredTool(Struct):
    """What a server keeps of a tool. bind: a call's arguments for the handler; shape: what it returned, as a result.

    waits: an `async def`. inline: a `def` that runs on the loop instead of a thread. guard: what stands around it, if anything.
    gone: it was removed; the only thing that changes.
    """

    tool: Tool
    handler: Handler
    waits: bool
    inline: bool
    bind: Callable[[Raw | bytes, object], Bound]
    shape: Callable[[Any], CallToolResult]
    guard: Backend | None = None
    gone: bool = False


class Tools(Registry[RegisteredTool]):
    """A server's tools. argument_errors: `result` or `protocol`, see Server. hints: for the list."""

    def __init__(self, page_size: int, hints: CacheHints, argument_errors: str) -> None:
        super().__init__(
            "tool",
            page_size,
            lambda name: (
                f"tool {name!r}: there is one with this name; remove_tool() it first, or give name="
            ),
        )
        self.kept: OversizeStore | None = (
            None  # results that were too large for a guard; made by guarding.py
        )
        self._hints = hints
        self._argument_errors = argument_errors

    def remove(self, name: str) -> RegisteredTool:
        entry = super().remove(name)
        entry.gone = True
        return entry

    async def list(self, call: Call, context: Context) -> ListToolsResult:
        page = self.page(call.params)
        if page.result is None:
            tools = [each.tool for each in page.entries]
            hints = self._hints
            page.result = ListToolsResult(
                tools, page.next_cursor, ttl_ms=hints.ttl_ms, cache_scope=hints.scope
            )
        return page.result

    def bad_arguments(
        self, problems: Sequence[SchemaViolation], arguments: bytes
    ) -> CallToolResult:
        """The answer to arguments that do not fit, or the RpcError -32602. arguments: as they came."""
        details = [sentence(problem) for problem in problems]
        if not arguments.startswith(
            b"{"
        ):  # malformed params, whatever was asked for; null too: the schema has no null there
            raise invalid_params(f"arguments: {'; '.join(details)}")
        if self._argument_errors == "protocol":
            raise invalid_params("; ".join(details))
        body = {
            "error": f"Invalid arguments: {'; '.join(details)}",
            "code": "INVALID_ARGUMENTS",
            "suggestion": "Call the tool again with arguments that fit its input schema.",
            "details": [{"path": problem.path, "message": problem.message} for problem in problems],
        }
        return error_result(encode(body).decode())


def no_tool(params: Mapping[str, Raw]) -> RpcError:
    """Why a call's params lead to no tool: always a protocol error (2026-07-28 server/tools "Error Handling")."""
    if "name" not in params:
        return invalid_params("Missing required field: name")
    try:
        return unknown_name(
            f"Unknown tool: {(name := shorten(_name(params['name'])))}",
            f"name: there is no tool {name!r}",
        )
    except DecodeError:
        return invalid_params("name: expected str")


_name = Decoder(str).decode


def register(
    handler: Handler, settings: ToolSettings, *, coerce: bool, version: str, in_thread: InThread
) -> RegisteredTool:
    """Read a handler. version: the server's. in_thread: runs what may block.

    Raises RegistrationError for whatever could not be offered as it is.
    """
    if not callable(handler):
        hint = f"; write name={handler!r}" if isinstance(handler, str) else ""
        raise RegistrationError(f"tool: expected a function, got {handler!r}{hint}")
    own_name = str(getattr(handler, "__name__", ""))
    called = (
        settings.name
        if isinstance(settings.name, str) and NAME.fullmatch(settings.name)
        else own_name
    )
    _bounded(settings, called)
    settings = _checked(settings, called)
    name = own_name if settings.name is None else settings.name
    if NAME.fullmatch(name) is None:
        got = repr(name) if name else "none"
        raise RegistrationError(
            f"tool name: expected 1 to 128 of A-Z a-z 0-9 _ . - , got {got}; give name="
        )
    if lacks_self(handler):
        raise RegistrationError(
            f"{name}: {handler.__qualname__} is a method without its object; register a bound method, as in "
            f"server.add_tool(object.{handler.__name__})"
        )
    doc = parse_doc(handler)
    schema, bind = _arguments(handler, settings, name, doc.parameters, coerce)
    returns = _returns(handler, settings, name, version)
    hints = ToolAnnotations(
        read_only_hint=settings.read_only,
        destructive_hint=settings.destructive,
        idempotent_hint=settings.idempotent,
        open_world_hint=settings.open_world,
    )
    tool = Tool(
        name,
        schema,
        title=settings.title,
        description=settings.description if settings.description is not None else doc.description,
        output_schema=returns.schema,
        annotations=hints if hints != ToolAnnotations() else None,
        icons=settings.icons,
        meta=settings.meta,
    )
    tool = _checked(
        tool, name
    )  # what was read from the handler too: a docstring may hold a lone surrogate
    if is_generator(handler):
        from concertino.server.streaming import streamed

        run, bind = streamed(handler, bind, None if settings.inline else in_thread)
        return RegisteredTool(tool, run, True, False, bind, returns.shape)
    return RegisteredTool(tool, handler, is_async(handler), settings.inline, bind, returns.shape)


def _arguments(
    handler: Handler,
    settings: ToolSettings,
    name: str,
    descriptions: Mapping[str, str],
    coerce: bool,
) -> tuple[dict[str, Any], Callable[[Raw | bytes, object], Bound]]:
    if settings.input_schema is None:
        arguments = argument_decoder(
            handler, coerce=coerce, inject=(Context,), descriptions=descriptions
        )
        return arguments.schema, arguments.bind
    from concertino.server.custom_tools import arguments_by

    schema = dict(settings.input_schema)
    try:
        return schema, arguments_by(handler, schema)
    except RegistrationError as why:
        raise RegistrationError(f"{name}: {why}") from None


def _returns(handler: Handler, settings: ToolSettings, name: str, version: str) -> ResultShaper:
    if settings.envelope:
        from concertino.server.result_envelope import wrap_result

        if settings.output_schema is not None:
            raise RegistrationError(
                f"{name}: an output_schema promises structured content, and an envelope is text; give one"
            )
        return ResultShaper(
            None, wrap_result(result_shaper(handler, inject=(Context,)).shape, version)
        )
    if settings.output_schema is None:
        return (chunk_shaper if is_generator(handler) else result_shaper)(
            handler, inject=(Context,)
        )
    from concertino.server.custom_tools import results_by

    schema = dict(settings.output_schema)
    try:
        return custom_result_shaper(handler, schema, results_by(schema))
    except RegistrationError as why:
        raise RegistrationError(f"{name}: {why}") from None


def _bounded(settings: ToolSettings, name: str) -> None:
    """Refuse hand-written schemas that are too large to be looked at: before anything walks through them."""
    for what in ("input_schema", "output_schema"):
        if (schema := getattr(settings, what)) is not None:
            from concertino.schema.custom_schema import check_size

            try:
                check_size(schema)
            except RegistrationError as why:
                raise RegistrationError(f"{name}: {what}: {why}") from None


def _checked(said: S, name: str) -> S:
    try:
        return check_setting(said)
    except ValueError as why:
        raise RegistrationError(f"{name}: {why}") from None
