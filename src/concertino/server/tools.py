"""One tool: a Python callable with its description, its argument decoder and its result shaper."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from inspect import isawaitable, iscoroutinefunction, isfunction
from typing import Any, TypeVar, cast

from msgspec import Raw, Struct

from concertino.backend import Context
from concertino.errors import RegistrationError
from concertino.protocol.arguments import arguments_of
from concertino.protocol.docstrings import parse
from concertino.protocol.results import Returns, returns_by, returns_of
from concertino.protocol.signature import function_of
from concertino.protocol.types import CallToolResult, Tool, ToolAnnotations
from concertino.server.settings import ToolSettings, checked

__all__ = ["Bound", "Handler", "RegisteredTool", "register"]

S = TypeVar("S", bound=Struct)
Handler = Callable[..., Any]
Bound = tuple[tuple[Any, ...], dict[str, Any]]
NAME = re.compile(r"[A-Za-z0-9_.-]{1,128}")  # 2026-07-28 server/tools "Tool Names"


class RegisteredTool(Struct, frozen=True):
    """What a server keeps of a tool. bind: a call's arguments for the handler; shape: what it returned, as a result.

    waits: an `async def`. inline: a `def` that runs on the loop instead of a thread.
    """

    tool: Tool
    handler: Handler
    waits: bool
    inline: bool
    bind: Callable[[Raw | bytes, object], Bound]
    shape: Callable[[Any], CallToolResult]


def register(handler: Handler, settings: ToolSettings, *, coerce: bool) -> RegisteredTool:
    """Read a handler. Raises RegistrationError for whatever could not be offered as it is."""
    if not callable(handler):
        hint = f"; write name={handler!r}" if isinstance(handler, str) else ""
        raise RegistrationError(f"tool: expected a function, got {handler!r}{hint}")
    own_name = str(getattr(handler, "__name__", ""))
    called = settings.name if isinstance(settings.name, str) and NAME.fullmatch(settings.name) else own_name
    _bounded(settings, called)
    settings = _checked(settings, called)
    name = own_name if settings.name is None else settings.name
    if NAME.fullmatch(name) is None:
        got = repr(name) if name else "none"
        raise RegistrationError(f"tool name: expected 1 to 128 of A-Z a-z 0-9 _ . - , got {got}; give name=")
    if _lacks_self(handler):
        raise RegistrationError(
            f"{name}: {handler.__qualname__} is a method without its object; register a bound method, as in "
            f"server.add_tool(object.{handler.__name__})"
        )
    doc = parse(getattr(handler, "__doc__", None))
    schema, bind = _arguments(handler, settings, name, doc.parameters, coerce)
    returns = _returns(handler, settings, name)
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
    # What was read from the handler too: a docstring or a default may hold a lone surrogate.
    return RegisteredTool(_checked(tool, name), handler, _is_async(handler), settings.inline, bind, returns.shape)


def _arguments(
    handler: Handler, settings: ToolSettings, name: str, descriptions: Mapping[str, str], coerce: bool
) -> tuple[dict[str, Any], Callable[[Raw | bytes, object], Bound]]:
    if settings.input_schema is None:
        arguments = arguments_of(handler, coerce=coerce, inject=(Context,), descriptions=descriptions)
        return arguments.schema, arguments.bind
    from concertino.server.handwritten import arguments_by

    schema = dict(settings.input_schema)
    try:
        return schema, arguments_by(handler, schema)
    except RegistrationError as why:
        raise RegistrationError(f"{name}: {why}") from None


def _returns(handler: Handler, settings: ToolSettings, name: str) -> Returns:
    if settings.output_schema is None:
        return returns_of(handler, inject=(Context,))
    from concertino.server.handwritten import results_by

    schema = dict(settings.output_schema)
    try:
        return returns_by(handler, schema, results_by(schema))
    except RegistrationError as why:
        raise RegistrationError(f"{name}: {why}") from None


def _bounded(settings: ToolSettings, name: str) -> None:
    """Refuse hand-written schemas that are too large to be looked at: before anything walks through them."""
    for what in ("input_schema", "output_schema"):
        if (schema := getattr(settings, what)) is not None:
            from concertino.protocol.schema_checks import bounded

            try:
                bounded(schema)
            except RegistrationError as why:
                raise RegistrationError(f"{name}: {what}: {why}") from None


def _checked(said: S, name: str) -> S:
    try:
        return checked(said)
    except ValueError as why:
        raise RegistrationError(f"{name}: {why}") from None


def _is_async(handler: Any) -> bool:
    """Whether calling it gives a coroutine. What it wraps (`__wrapped__`) does not matter: a `def` may run that to its end."""
    while isinstance(handler, partial):
        handler = cast("Any", handler).func
    return iscoroutinefunction(handler) or iscoroutinefunction(type(handler).__call__)


def _lacks_self(handler: Handler) -> bool:
    """Whether it is a function taken from a class, not from an object."""
    if not isfunction(handler) or "." not in handler.__qualname__.rpartition("<locals>.")[2]:
        return False
    function = function_of(handler)
    return function.__code__.co_varnames[:1] == ("self",) and "self" not in function.__annotations__


async def settled(value: Any) -> Any:
    """What a handler returned, awaited if it is to be."""
    return await value if isawaitable(value) else value
