"""Handlers: how an author's function is called, and how strings become its arguments.

Arguments of prompts and variables of resource templates are strings on the wire; the parameters of
the function decide what becomes of them. A string stays one where a str is accepted; numbers,
booleans and choices are converted; lists, dicts and classes are parsed as JSON.
"""

from __future__ import annotations

import logging
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from inspect import (
    isasyncgenfunction,
    isawaitable,
    iscoroutinefunction,
    isfunction,
    isgeneratorfunction,
    signature,
)
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeVar, cast

from msgspec import DecodeError, Raw, Struct
from msgspec.json import decode, encode

from concertino.backend.interface import Context
from concertino.errors import RegistrationError
from concertino.schema.arguments import ArgumentDecoder, argument_decoder
from concertino.schema.docstrings import ParsedDocstring, parse_docstring
from concertino.schema.signature import function_of

if TYPE_CHECKING:
    from concertino.runtime.threads import Threads

T = TypeVar("T")
# Any: handlers take and return whatever their authors like.
Handler = Callable[..., Any]
# Positional and keyword arguments of one call.
Bound = tuple[tuple[Any, ...], dict[str, Any]]
# Runs a function in a thread.
InThread = Callable[[Callable[[], Any]], Awaitable[Any]]

NUMBERS = frozenset(("integer", "number", "boolean"))


# The parameter for the Context that is added to handlers without one.
CONTEXT_PARAMETER = "concertino_context"


class FinishingHandler(ABC):
    """A handler that ends only when its value was converted to a result.

    Its dependencies stay open until then.
    """

    @abstractmethod
    async def call(self, bound: Bound, finish: Callable[[Any], T]) -> T:
        """Call the handler; return what `finish` makes of its value."""

    @abstractmethod
    async def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the handler; return its value."""

    def finishing(self, finish: Callable[[Any], T]) -> Callable[..., Awaitable[T]]:
        """Return a function that calls the handler and returns what `finish` makes of its value."""

        async def call(*args: Any, **kwargs: Any) -> T:
            return await self.call((args, kwargs), finish)

        return call


class HandlerCall(Struct, frozen=True):
    """A handler and the way to call it.

    is_async: it is an `async def`. inline: it is a `def` that runs on the event loop, not in a
    thread.
    """

    handler: Handler
    is_async: bool
    inline: bool


def handler_call(handler: Handler, owner: str, *, inline: bool) -> HandlerCall:
    """Return how to call a handler that is not a generator.

    owner: the prompt, resource or completion that it belongs to, for messages.
    Raises RegistrationError if it cannot be called.
    """
    if not callable(handler):
        raise RegistrationError(f"{owner}: expected a function, got {handler!r}")
    if lacks_self(handler):
        raise RegistrationError(
            f"{owner}: {handler.__qualname__} is a method without its object; give a bound method"
        )
    function = function_of(handler)
    if isgeneratorfunction(function) or isasyncgenfunction(function):
        raise RegistrationError(f"{owner}: a generator cannot be a result; return a list")
    return HandlerCall(handler, is_async(handler), inline)


def handler_doc(handler: Any) -> ParsedDocstring:
    """Return the parsed docstring of a handler."""
    # A partial has the docstring of functools.partial; look at its function instead.
    return parse_docstring(getattr(without_partials(handler), "__doc__", None))


def without_partials(handler: Any) -> Any:
    """Return the function of a functools.partial; anything else as it is."""
    while isinstance(handler, partial):
        handler = cast("Any", handler).func
    return handler


def handler_location(handler: Any) -> str:
    """Return where a handler is defined, as ` (file.py:12)`; "" if that is not known.

    The form is meant for the end of a message.
    """
    code = getattr(function_of(handler), "__code__", None)
    # Wrappers of ours around the author's function lie inside of this package.
    if code is None or code.co_filename.startswith(_PACKAGE):
        return ""
    return f" ({code.co_filename.rpartition('/')[2]}:{code.co_firstlineno})"


_PACKAGE = __file__.rpartition("/")[0]


def caller_location() -> str:
    """Return the line outside of this package that has led here, as ` (file.py:12)`."""
    root = _PACKAGE.rpartition("/")[0]
    frame: FrameType | None = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    while frame is not None and frame.f_code.co_filename.startswith(root):
        frame = frame.f_back
    if frame is None:
        return ""
    return f" ({frame.f_code.co_filename.rpartition('/')[2]}:{frame.f_lineno})"


def check_handler(
    handler: Handler,
    documented: Mapping[str, str],
    parameters: Mapping[str, Any],
) -> bool:
    """Log likely mistakes in a handler's signature and docstring.

    documented: the parameters that the docstring describes. parameters: those that clients see.
    Returns whether the handler has parameters and no annotation at all.
    """
    annotations: Mapping[str, Any] = getattr(function_of(handler), "__annotations__", {})
    unannotated = [name for name in CONTEXT_NAMES if name in parameters and name not in annotations]
    if unannotated or not documented.keys() <= parameters.keys():
        # Few handlers come here; importing the words takes time at the start.
        from concertino.server.handler_warnings import describe_mistakes

        location = handler_location(handler)
        for mistake in describe_mistakes(handler, location, documented, unannotated):
            _log.warning("%s", mistake)
    return bool(parameters) and not annotations


# What people call the parameter for the Context of a call.
CONTEXT_NAMES = ("context", "ctx")
_log = logging.getLogger("concertino.server")


# How many `def` handlers of a server run at once; more of them wait.
THREADS = 32


class HandlerThreads:
    """The threads in which a server's `def` handlers run; none is started before the first."""

    def __init__(self) -> None:
        self._threads: Threads | None = None
        self._lock = threading.Lock()

    def run(self, function: Callable[[], Any]) -> Awaitable[Any]:
        """Return the coroutine that calls `function` in a thread; see Threads.run()."""
        return (self._threads or self._make()).run(function)

    def _make(self) -> Threads:
        # Servers without such handlers need no threads; importing them takes time at the start.
        from concertino.runtime.threads import Threads

        with self._lock:
            if self._threads is None:
                self._threads = Threads(THREADS)
            return self._threads

    def close(self) -> None:
        """End the threads; run() starts others."""
        with self._lock:
            threads, self._threads = self._threads, None
        if threads is not None:
            threads.close()


async def call_handler(
    function: HandlerCall,
    bound: Bound,
    in_thread: InThread,
    finish: Callable[[Any], T],
) -> T:
    """Call a handler with bound arguments; return what `finish` makes of its value.

    An `async def` runs on the event loop, a `def` in a thread unless it is inline.
    """
    args, kwargs = bound
    handler = function.handler
    if isinstance(handler, FinishingHandler):
        return await handler.call(bound, finish)
    if function.is_async:
        value = await handler(*args, **kwargs)
    elif function.inline:
        value = await maybe_await(handler(*args, **kwargs))
    else:
        value = await maybe_await(await in_thread(partial(handler, *args, **kwargs)))
    return finish(value)


async def maybe_await(value: Any) -> Any:
    """Return the value, or its result if it is awaitable."""
    return await value if isawaitable(value) else value


def is_async(handler: Any) -> bool:
    """Return whether a call of the handler returns a coroutine.

    A function that it wraps (`__wrapped__`) does not count: a `def` may wrap an `async def` and run
    it to its end.
    """
    handler = without_partials(handler)
    return iscoroutinefunction(handler) or iscoroutinefunction(type(handler).__call__)


def lacks_self(handler: Handler) -> bool:
    """Return whether this is a method taken from a class, which lacks the object for `self`."""
    if not isfunction(handler) or "." not in handler.__qualname__.rpartition("<locals>.")[2]:
        return False
    function = function_of(handler)
    if function.__code__.co_varnames[:1] != ("self",) or "self" in function.__annotations__:
        return False
    # A decorator around a bound method looks like it, but takes no `self`.
    return next(iter(signature(handler).parameters), None) == "self"


class StringArguments:
    """Converts strings to the arguments of a handler.

    schemas: parameter -> JSON Schema, in order. required: parameters without a default.
    takes_context: whether the handler asks for a Context.
    Raises RegistrationError as argument_decoder() does.
    """

    def __init__(self, handler: Handler, descriptions: Mapping[str, str]) -> None:
        decoder: ArgumentDecoder = argument_decoder(
            handler, coerce=True, inject=(Context,), descriptions=descriptions
        )
        self._bind = decoder.bind
        self.takes_context = bool(decoder.injected)
        self._definitions: dict[str, Any] = decoder.schema.get("$defs", {})
        self.schemas: dict[str, dict[str, Any]] = decoder.schema.get("properties", {})
        check_handler(handler, descriptions, self.schemas)
        self.required = frozenset[str](decoder.schema.get("required", ()))
        # Parameter -> "text", "number" or "json": what a string has to become.
        self._kinds = {name: self._kind(schema) for name, schema in self.schemas.items()}
        self._spellings = {name: self._find_spellings(s) for name, s in self.schemas.items()}

    def bind(self, values: Mapping[str, Any], context: Context) -> Bound:
        """Return the arguments for a call of the handler.

        values: parameter -> str, or a list or dict of str. Raises InvalidArguments that names every
        one that does not fit.
        """
        arguments: dict[str, Any] = {}
        for name, value in values.items():
            kind = self._kinds.get(name, "text")
            # Clients send the empty string for a field that nobody filled in.
            if value == "" and kind != "text" and name not in self.required:
                continue
            if isinstance(value, str):
                value = self._spellings.get(name, {}).get(value, value)
            arguments[name] = (
                _parse_json(value) if kind == "json" and isinstance(value, str) else value
            )
        return self._bind(encode(arguments), context)

    def takes_only_text(self, name: str) -> bool:
        """Return whether a parameter accepts neither a list nor a dict."""
        types = self._types(self.schemas[name])
        return self._kinds[name] != "json" and types.isdisjoint(("any", "array", "object"))

    def choices(self, name: str) -> list[str]:
        """Return the strings that a parameter accepts: of a Literal, an Enum or a bool; else []."""
        members = self._members(self.schemas[name])
        texts = (item if isinstance(item, str) else encode(item).decode() for item in members)
        return list(dict.fromkeys(texts))

    def _members(self, schema: dict[str, Any]) -> list[Any]:
        """Return the JSON values that a schema enumerates; [] if it enumerates none."""
        schema = self._resolve(schema)
        if schema.get("type") == "boolean":
            return [True, False]
        values = [*schema.get("enum", ()), *([schema["const"]] if "const" in schema else [])]
        nested = [item for member in schema.get("anyOf", ()) for item in self._members(member)]
        return [value for value in values if value is not None] + nested

    def _find_spellings(self, schema: dict[str, Any]) -> dict[str, Raw]:
        """Return string -> JSON, for members of an Enum or a Literal that are not strings.

        A string that is a member itself stays one.
        """
        members = self._members(schema)
        spellings = {
            encode(item).decode(): Raw(encode(item))
            for item in members
            if not isinstance(item, str)
        }
        return {text: raw for text, raw in spellings.items() if text not in members}

    def _kind(self, schema: dict[str, Any]) -> str:
        types = self._types(schema)
        if types & {"any", "string"}:
            return "text"
        return "number" if types != {"null"} and types - {"null"} <= NUMBERS else "json"

    def _types(self, schema: dict[str, Any]) -> set[str]:
        """Return the JSON types of the values that may fit; `any` if the schema names none."""
        schema = self._resolve(schema)
        if "anyOf" in schema:
            return set[str]().union(*map(self._types, schema["anyOf"]))
        values = [*schema.get("enum", ()), schema.get("const")]
        if any(isinstance(value, str) for value in values):
            return {"string"}
        types = schema.get("type", "enum" if {"enum", "const"} & schema.keys() else "any")
        return {types} if isinstance(types, str) else set(types)

    def _resolve(self, schema: dict[str, Any]) -> dict[str, Any]:
        while isinstance(name := schema.get("$ref"), str):
            schema = self._definitions[name.removeprefix("#/$defs/")]
        return schema


def _parse_json(text: str) -> Any:
    """Return a string that is JSON as it is, else as a string, which the parameter will refuse."""
    try:
        decode(text)
    except (DecodeError, RecursionError, UnicodeError):
        return text
    return Raw(text.encode())
