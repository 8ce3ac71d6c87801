"""An author's function: how it is called, and how texts become its arguments.

Arguments of prompts and variables of templates are texts on the wire; the function says what it wants. Text goes where text is
taken; a number, a truth value or a choice is read from it; a list, a dict or a class is read as JSON.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from inspect import (
    isasyncgenfunction,
    isawaitable,
    iscoroutinefunction,
    isfunction,
    isgeneratorfunction,
)
from typing import Any, cast

from msgspec import DecodeError, Raw, Struct
from msgspec.json import decode, encode

from concertino.backend.interface import Context
from concertino.errors import RegistrationError
from concertino.schema.arguments import ArgumentDecoder, argument_decoder
from concertino.schema.docstrings import ParsedDocstring, parse_docstring
from concertino.schema.signature import function_of

__all__ = [
    "Bound",
    "Function",
    "Handler",
    "InThread",
    "StringArguments",
    "call_handler",
    "is_async",
    "lacks_self",
    "make_function",
    "maybe_await",
    "parse_doc",
]

Handler = Callable[..., Any]
Bound = tuple[tuple[Any, ...], dict[str, Any]]
InThread = Callable[[Callable[[], Any]], Awaitable[Any]]
NUMBERS = frozenset(("integer", "number", "boolean"))


class Function(Struct, frozen=True):
    """waits: an `async def`. inline: a `def` that runs on the loop instead of a thread."""

    handler: Handler
    waits: bool
    inline: bool


def make_function(handler: Handler, what: str, *, inline: bool) -> Function:
    """An author's function. what: whose it is, for the message. Raises RegistrationError if it cannot be called."""
    if not callable(handler):
        raise RegistrationError(f"{what}: expected a function, got {handler!r}")
    if lacks_self(handler):
        raise RegistrationError(
            f"{what}: {handler.__qualname__} is a method without its object; give a bound method"
        )
    function = function_of(handler)
    if isgeneratorfunction(function) or isasyncgenfunction(function):
        raise RegistrationError(f"{what}: a generator cannot be a result; return a list")
    return Function(handler, is_async(handler), inline)


def parse_doc(handler: Any) -> ParsedDocstring:
    """What the function's docstring says. That of a partial is its function's: its own speaks of partials."""
    while isinstance(handler, partial):
        handler = cast("Any", handler).func
    return parse_docstring(getattr(handler, "__doc__", None))


async def call_handler(function: Function, bound: Bound, in_thread: InThread) -> Any:
    """What the function returns for these arguments. An `async def` runs on the loop, a `def` in a thread."""
    args, kwargs = bound
    if function.waits:
        return await function.handler(*args, **kwargs)
    if function.inline:
        return await maybe_await(function.handler(*args, **kwargs))
    return await maybe_await(await in_thread(partial(function.handler, *args, **kwargs)))


async def maybe_await(value: Any) -> Any:
    """What a handler returned, awaited if it is to be."""
    return await value if isawaitable(value) else value


def is_async(handler: Any) -> bool:
    """Whether calling it gives a coroutine. What it wraps (`__wrapped__`) does not matter: a `def` may run that to its end."""
    while isinstance(handler, partial):
        handler = cast("Any", handler).func
    return iscoroutinefunction(handler) or iscoroutinefunction(type(handler).__call__)


def lacks_self(handler: Handler) -> bool:
    """Whether it is a function taken from a class, not from an object."""
    if not isfunction(handler) or "." not in handler.__qualname__.rpartition("<locals>.")[2]:
        return False
    function = function_of(handler)
    return function.__code__.co_varnames[:1] == ("self",) and "self" not in function.__annotations__


class StringArguments:
    """A function's arguments, given as texts.

    schemas: parameter -> JSON Schema, in order. required: those without a default. takes_context: it asks for a Context.
    Raises RegistrationError, as arguments_of does.
    """

    def __init__(self, handler: Handler, descriptions: Mapping[str, str]) -> None:
        arguments: ArgumentDecoder = argument_decoder(
            handler, coerce=True, inject=(Context,), descriptions=descriptions
        )
        self._bind = arguments.bind
        self.takes_context = bool(arguments.injected)
        self._definitions: dict[str, Any] = arguments.schema.get("$defs", {})
        self.schemas: dict[str, dict[str, Any]] = arguments.schema.get("properties", {})
        self.required = frozenset[str](arguments.schema.get("required", ()))
        self._kinds = {name: self._kind(schema) for name, schema in self.schemas.items()}
        self._others = {name: self._others_of(schema) for name, schema in self.schemas.items()}

    def bind(self, values: Mapping[str, Any], context: Context) -> Bound:
        """values: str, or lists and dicts of str. Raises BadArguments naming every one that does not fit."""
        given: dict[str, Any] = {}
        for name, value in values.items():
            kind = self._kinds.get(name, "text")
            # Forms of clients send what was not filled in.
            if value == "" and kind != "text" and name not in self.required:
                continue
            if isinstance(value, str):
                value = self._others.get(name, {}).get(value, value)
            given[name] = _json(value) if kind == "json" and isinstance(value, str) else value
        return self._bind(encode(given), context)

    def takes_only_text(self, name: str) -> bool:
        """Whether neither a list nor a dict of texts could be given."""
        return self._kinds[name] in ("text", "number") and not self._has(
            self.schemas[name], ("array", "object")
        )

    def choices(self, name: str) -> list[str]:
        """The texts that a parameter takes, if they can be told: of a Literal, an Enum, a bool."""
        members = self._members(self.schemas[name])
        return list(
            dict.fromkeys(
                each if isinstance(each, str) else encode(each).decode() for each in members
            )
        )

    def _members(self, schema: dict[str, Any]) -> list[Any]:
        """The values that there are, if they can be told."""
        schema = self._followed(schema)
        if schema.get("type") == "boolean":
            return [True, False]
        values = [*schema.get("enum", ()), *([schema["const"]] if "const" in schema else [])]
        of_members = [each for member in schema.get("anyOf", ()) for each in self._members(member)]
        return [each for each in values if each is not None] + of_members

    def _others_of(self, schema: dict[str, Any]) -> dict[str, Raw]:
        """Of members of an Enum or a Literal that are no texts, the text that stands for each, unless it is a member itself."""
        members = self._members(schema)
        written = {
            encode(each).decode(): Raw(encode(each))
            for each in members
            if not isinstance(each, str)
        }
        return {text: raw for text, raw in written.items() if text not in members}

    def _kind(self, schema: dict[str, Any]) -> str:
        if self._takes_text(schema):
            return "text"
        return "number" if self._only_numbers(schema) else "json"

    def _followed(self, schema: dict[str, Any]) -> dict[str, Any]:
        while isinstance(name := schema.get("$ref"), str):
            schema = self._definitions[name.removeprefix("#/$defs/")]
        return schema

    def _takes_text(self, schema: dict[str, Any]) -> bool:
        schema = self._followed(schema)
        if "anyOf" in schema:
            return any(self._takes_text(member) for member in schema["anyOf"])
        if "enum" in schema or "const" in schema:
            return any(
                isinstance(each, str) for each in [*schema.get("enum", ()), schema.get("const")]
            )
        return schema.get("type", "string") == "string" or "string" in schema["type"]

    def _only_numbers(self, schema: dict[str, Any]) -> bool:
        schema = self._followed(schema)
        if "anyOf" in schema:
            return all(
                self._only_numbers(member)
                for member in schema["anyOf"]
                if member.get("type") != "null"
            )
        return schema.get("type") in NUMBERS

    def _has(self, schema: dict[str, Any], kinds: tuple[str, ...]) -> bool:
        schema = self._followed(schema)
        if "anyOf" in schema:
            return any(self._has(member, kinds) for member in schema["anyOf"])
        return (
            "enum" not in schema and "const" not in schema and schema.get("type", kinds[0]) in kinds
        )


def _json(text: str) -> Any:
    """A text as the JSON that it is; what is none stays a text, and the parameter will say what it wants."""
    try:
        decode(text)
    except (DecodeError, RecursionError, UnicodeError):
        return text
    return Raw(text.encode())
