"""Handlers: calls the functions that an author has registered.

A handler is the function behind a tool, resource, prompt or completion. call_handler() runs a
handler on the event loop or in a thread. Tools have a faster function for this, Tools.call() in
server/tools.py; only tools that are long operations (server/operations.py) use call_handler().
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

from msgspec import Struct

from concertino.errors import RegistrationError
from concertino.schema.docstrings import ParsedDocstring, parse_docstring
from concertino.schema.signature import function_of

if TYPE_CHECKING:
    from concertino.runtime.threads import Threads

T = TypeVar("T")
# A function that an author has registered; it may take and return anything.
Handler = Callable[..., Any]
# The positional and the keyword arguments for one call of a handler.
Bound = tuple[tuple[Any, ...], dict[str, Any]]
# The type of a function in_thread(function), which calls `function` without arguments in a thread,
# and returns an awaitable of its result.
InThread = Callable[[Callable[[], Any]], Awaitable[Any]]

# A wrapper of a handler needs the Context even if the handler has no parameter for it. The wrapper
# then has a parameter of this name.
CONTEXT_PARAMETER = "concertino_context"
# The usual names of the parameter for the Context.
CONTEXT_NAMES = ("context", "ctx")
# At most this many `def` handlers of a server run at the same time; others wait for a free thread.
THREADS = 32

# The directories server/ and concertino/.
_SERVER = __file__.rpartition("/")[0]
_CONCERTINO = _SERVER.rpartition("/")[0]
_log = logging.getLogger("concertino.server")


class FinishingHandler(ABC):
    """A handler with dependencies, which converts its value to a result before it closes them.

    The value may need an open dependency: database rows, for example, need their session. Therefore
    the handler gets `finish`, the function that converts the value to a result.
    """

    @abstractmethod
    async def call(self, bound: Bound, finish: Callable[[Any], T]) -> T:
        """Call the handler, and return finish(value) for its value.

        bound: the positional and keyword arguments.
        """

    @abstractmethod
    async def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the handler, and return its value without converting it."""

    def finishing(self, finish: Callable[[Any], T]) -> Callable[..., Awaitable[T]]:
        """Return an async function that calls the handler, and returns finish(value).

        The function passes its own arguments to the handler.
        """

        async def call(*args: Any, **kwargs: Any) -> T:
            return await self.call((args, kwargs), finish)

        return call


class HandlerCall(Struct, frozen=True):
    """A handler and how to call it.

    is_async: whether `handler` is an `async def`.
    inline: whether a `def` runs on the event loop and not in a thread. Without effect for an
        `async def`.
    """

    handler: Handler
    is_async: bool
    inline: bool


def handler_call(handler: Handler, owner: str, *, inline: bool) -> HandlerCall:
    """Return the HandlerCall of a handler.

    owner: the name of the prompt, resource or completion, for error messages.
    inline: whether a `def` runs on the event loop and not in a thread.
    Raises RegistrationError if the handler cannot be called, or is a generator.
    """
    if not callable(handler):
        raise RegistrationError(f"{owner}: expected a function, got {handler!r}")
    if is_unbound_method(handler):
        raise RegistrationError(f"{owner}: {describe_missing_object(handler)}")
    function = function_of(handler)
    if isgeneratorfunction(function) or isasyncgenfunction(function):
        raise RegistrationError(f"{owner}: a generator cannot be a result; return a list")
    return HandlerCall(handler, is_async(handler), inline)


def handler_doc(handler: Any) -> ParsedDocstring:
    """Return the parsed docstring of a handler."""
    # A functools.partial object has the docstring of its class, so read the function's docstring.
    return parse_docstring(getattr(without_partials(handler), "__doc__", None))


def without_partials(handler: Any) -> Any:
    """Return the function inside a functools.partial; anything else unchanged."""
    while isinstance(handler, partial):
        handler = cast("Any", handler).func
    return handler


def handler_location(handler: Any) -> str:
    """Return where a handler is defined, such as " (file.py:12)"; "" if that is not known.

    The text begins with a space, so that it can be appended to a message.
    """
    code = getattr(function_of(handler), "__code__", None)
    # A wrapper that a module of server/ has made is not in the author's file.
    if code is None or code.co_filename.startswith(_SERVER):
        return ""
    return f" ({code.co_filename.rpartition('/')[2]}:{code.co_firstlineno})"


def caller_location() -> str:
    """Return the line that has called concertino, such as " (file.py:12)"; "" if there is none.

    The line is that of the innermost stack frame outside of concertino. The text begins with a
    space, so that it can be appended to a message.
    """
    frame: FrameType | None = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    while frame is not None and frame.f_code.co_filename.startswith(_CONCERTINO):
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

    documented: the parameters that the docstring describes: name -> text.
    parameters: the parameters that clients see: name -> schema.
    Returns whether clients see parameters, but the handler has no annotations at all. Nothing is
    logged about that, because it is a mistake only for some handlers.
    """
    annotations: Mapping[str, Any] = getattr(function_of(handler), "__annotations__", {})
    unannotated = [name for name in CONTEXT_NAMES if name in parameters and name not in annotations]
    if unannotated or not documented.keys() <= parameters.keys():
        # Imported here, because the import takes time and few handlers need it.
        from concertino.server.handler_warnings import describe_mistakes

        location = handler_location(handler)
        for mistake in describe_mistakes(handler, location, documented, unannotated):
            _log.warning("%s", mistake)
    return bool(parameters) and not annotations


class HandlerThreads:
    """The threads in which a server's `def` handlers run. They start when they are needed."""

    def __init__(self) -> None:
        self._threads: Threads | None = None
        self._lock = threading.Lock()

    def run(self, function: Callable[[], Any]) -> Awaitable[Any]:
        """Return a coroutine that calls `function` in a thread and returns its result."""
        return (self._threads or self._make_threads()).run(function)

    def _make_threads(self) -> Threads:
        """Return the threads, and create them if there are none."""
        # Imported here, because the import takes time and many servers have no `def` handlers.
        from concertino.runtime.threads import Threads

        with self._lock:
            if self._threads is None:
                self._threads = Threads(THREADS)
            return self._threads

    def close(self) -> None:
        """End the threads. A later call of run() starts new ones."""
        with self._lock:
            threads, self._threads = self._threads, None
        if threads is not None:
            threads.close()


async def call_handler(
    handler_call: HandlerCall,
    bound: Bound,
    in_thread: InThread,
    finish: Callable[[Any], T],
) -> T:
    """Call a handler, and return finish(value) for the value that it returns.

    An `async def` runs on the event loop, a `def` in a thread unless it is inline.
    handler_call: the handler, and how to call it.
    bound: the positional and keyword arguments for the handler.
    in_thread: in_thread(function) calls a function in a thread, and returns an awaitable of its
        result.
    finish: converts the value to a result.
    """
    args, kwargs = bound
    handler = handler_call.handler
    if isinstance(handler, FinishingHandler):
        return await handler.call(bound, finish)
    if handler_call.is_async:
        value = await handler(*args, **kwargs)
    elif handler_call.inline:
        value = await maybe_await(handler(*args, **kwargs))
    else:
        value = await maybe_await(await in_thread(partial(handler, *args, **kwargs)))
    return finish(value)


def unchanged(value: Any) -> Any:
    """Return the value. Used as `finish` where the value of a handler is not converted."""
    return value


async def maybe_await(value: Any) -> Any:
    """Return the value; if it is awaitable, await it and return its result.

    A `def` may return an awaitable, for example a lambda that calls an `async def`.
    """
    return await value if isawaitable(value) else value


def is_async(handler: Any) -> bool:
    """Return whether calling the handler returns a coroutine.

    Examines the outermost function and not the one that it wraps (`__wrapped__`), because a
    decorator may turn an `async def` into a `def` that runs the coroutine to its end.
    """
    handler = without_partials(handler)
    return iscoroutinefunction(handler) or iscoroutinefunction(type(handler).__call__)


def is_unbound_method(handler: Handler) -> bool:
    """Return whether the handler has a parameter `self`, but is not bound to an object.

    Such a handler is probably a method that was registered in the body of its class. Returns False
    if `self` has an annotation: clients are then meant to fill it.
    """
    if not isfunction(handler):
        return False
    function = function_of(handler)
    # co_varnames begins with the names of the parameters.
    if function.__code__.co_varnames[:1] != ("self",) or "self" in function.__annotations__:
        return False
    # A decorator's wrapper of a bound method passes the tests above, but has no parameter `self`.
    return next(iter(signature(handler).parameters), None) == "self"


def describe_missing_object(handler: Handler, example: str = "object.{}") -> str:
    """Return an error text, with advice, for a handler with a `self` that no object fills.

    is_unbound_method() finds such handlers.
    example: the code of a bound method that the advice shows; {} stands for the method's name.
    """
    name = handler.__qualname__.rpartition("<locals>.")[2]
    if "." in name:
        method = example.format(handler.__name__)
        return f"{name} is a method without its object; pass a bound method, as in {method}"
    return (
        f"{name}() is no method, so nothing fills its parameter 'self'; remove the parameter, or "
        "give it a type if clients are meant to fill it"
    )
