"""One tool: a Python callable with its description, its argument decoder and its result shaper."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from inspect import isawaitable, iscoroutinefunction, isfunction
from itertools import islice
from typing import Any, TypeVar, cast

from msgspec import DecodeError, Raw, Struct
from msgspec.json import decode

from concertino.backend import Context
from concertino.errors import RegistrationError
from concertino.protocol.arguments import BadArguments, Problem, arguments_of
from concertino.protocol.docstrings import parse
from concertino.protocol.results import returns_of
from concertino.protocol.signature import function_of, read
from concertino.protocol.types import CallToolResult, Tool, ToolAnnotations
from concertino.server.settings import ToolSettings, checked

__all__ = ["Bound", "Handler", "RegisteredTool", "register"]

S = TypeVar("S", bound=Struct)
Handler = Callable[..., Any]
Bound = tuple[tuple[Any, ...], dict[str, Any]]
NAME = re.compile(r"[A-Za-z0-9_.-]{1,128}")  # 2026-07-28 server/tools "Tool Names"
MAX_PROBLEMS = 20  # that a hand-written schema finds in one call's arguments
MAX_PROBLEM_CHARACTERS = 300  # of each; they quote what came


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
    settings = _checked(settings, own_name)
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
    returns = returns_of(handler, inject=(Context,))
    if settings.input_schema is None:
        arguments = arguments_of(handler, coerce=coerce, inject=(Context,), descriptions=doc.parameters)
        schema, bind = arguments.schema, arguments.bind
    else:
        schema, bind = dict(settings.input_schema), _by_schema(handler, name, settings.input_schema)
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


def _by_schema(handler: Handler, name: str, schema: Mapping[str, Any]) -> Callable[[Raw | bytes, object], Bound]:
    """bind() for a hand-written schema: the handler gets the arguments as one dict, and the Context if it asks for it."""
    if schema.get("type") != "object":
        raise RegistrationError(f"{name}: input_schema: expected type 'object' at its root, got {schema.get('type')!r}")
    try:
        from jsonschema_rs import Draft202012Validator
    except ImportError:
        raise RegistrationError(
            f"{name}: a hand-written input_schema is enforced by an extra: pip install 'concertino[validate]'"
        ) from None
    try:
        validator = Draft202012Validator(dict(schema), retriever=_refuse_reference)
    except Exception as why:  # jsonschema_rs.ValidationError and ReferencingError share no other ancestor
        raise RegistrationError(f"{name}: input_schema: {why}") from None
    parameters = read(handler, (Context,)).parameters
    takes_context = any(parameter.injected for parameter in parameters)
    if len(parameters) != 1 + takes_context or parameters[0].injected:
        raise RegistrationError(
            f"{name}: with input_schema the handler takes one dict, and a Context after it if it wants"
        )

    def bind(raw: Raw | bytes, injected: object) -> Bound:
        arguments = _arguments(raw)
        problems = [
            Problem(_cut(".".join(map(str, error.instance_path))), _cut(error.message))
            for error in islice(validator.iter_errors(arguments), MAX_PROBLEMS)
        ]
        if problems:
            raise BadArguments(problems)
        return (arguments, injected) if takes_context else (arguments,), {}

    return bind


def _cut(text: str) -> str:
    return text if len(text) <= MAX_PROBLEM_CHARACTERS else text[:MAX_PROBLEM_CHARACTERS] + "..."


def _arguments(raw: Raw | bytes) -> dict[str, Any]:
    try:
        return decode(raw or b"{}", type=dict[str, Any])
    except DecodeError as why:
        raise BadArguments([Problem("", str(why).replace("`", "").replace("Expected", "expected"))]) from None


def _refuse_reference(uri: str) -> Any:
    """2026-07-28 basic/index: a schema's reference to elsewhere is never fetched."""
    raise ValueError(f"$ref: only references inside the schema are followed, got {uri}")


async def settled(value: Any) -> Any:
    """What a handler returned, awaited if it is to be."""
    return await value if isawaitable(value) else value
