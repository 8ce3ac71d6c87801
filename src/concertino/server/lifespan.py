"""What lives as long as the server: generators that make a value, give it to the handlers that ask for its class, and clean up.

All of them are entered in order and left in reverse by one task of their own, since what is entered in a task (a task group, a
time-out) must be left in the same one, while start() and close() of a backend come from two.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterator, Mapping
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    contextmanager,
)
from inspect import isasyncgen, isasyncgenfunction, isgenerator, isgeneratorfunction
from typing import Any, TypeVar, cast, get_args, get_origin

from concertino.errors import RegistrationError
from concertino.schema.signature import function_of, is_injected, read_signature
from concertino.server.functions import Handler, is_async, lacks_self

__all__ = ["Lifespans"]

log = logging.getLogger("concertino.lifespan")
H = TypeVar("H", bound=Handler)
Function = Callable[[], Any]
_YIELDS = (AsyncIterator, AsyncGenerator, Iterator, Generator)


class Lifespans:
    """The lifespan functions of one server, and what they gave. values: class to value, once open() has returned."""

    def __init__(self) -> None:
        self.values: Mapping[type, Any] = {}
        self._functions: list[tuple[type | None, Function]] = []
        self._task: asyncio.Task[None] | None = None
        self._gone: BaseException | None = None  # why they ended before the server did
        self._over: asyncio.Event
        self._opened: asyncio.Future[None]

    @property
    def classes(self) -> tuple[type, ...]:
        """What handlers may ask for by annotation."""
        return tuple(kind for kind, _ in self._functions if kind is not None)

    def add(self, function: Function) -> None:
        """A generator function with one `yield`, `async def` or `def`, without parameters. Its annotation names the class it gives.

        Raises RegistrationError for anything else, for a class that another function gives, and once the server has started.
        """
        signature = read_signature(function)
        name = signature.name
        generates = function_of(function)
        if not (isasyncgenfunction(generates) or isgeneratorfunction(generates)):
            raise RegistrationError(
                f"{name}(): expected a generator, `async def` or `def`, that yields once"
            )
        if signature.parameters:
            raise RegistrationError(f"{name}(): a lifespan function takes no parameters")
        given = get_args(signature.returns)[:1]
        kind = given[0] if given and get_origin(signature.returns) in _YIELDS else None
        if given in ((None,), (type(None),)):
            kind = None
        elif not isinstance(kind, type):
            raise RegistrationError(
                f"{name}(): annotate the class it yields, as in `-> AsyncIterator[Database]`; AsyncIterator[None] for none"
            )
        if kind in self.classes:
            raise RegistrationError(
                f"{name}(): another lifespan function gives a {kind.__name__} already"
            )
        if self._task is not None:
            raise RegistrationError(
                f"{name}(): the server has started; register what it lives with before"
            )
        self._functions.append((kind, function))

    def fill(self, handler: H) -> H:
        """The handler without its parameters for what lifespan functions give: those are filled at each call.

        Raises RegistrationError for one that is positional-only. A call before open() raises RuntimeError.
        """
        classes = self.classes
        if (
            not classes or not callable(handler) or lacks_self(handler)
        ):  # refused by whoever registers it
            return handler
        filled: dict[str, type] = {
            parameter.name: next(
                kind for kind in classes if is_injected(parameter.annotation, (kind,))
            )
            for parameter in read_signature(handler, classes).parameters
            if parameter.injected
        }
        return _filled(handler, filled, self._value) if filled else handler

    def _value(self, kind: type) -> Any:
        try:
            return self.values[kind]
        except KeyError:
            if self._gone is not None:
                why = f"{type(self._gone).__name__}: {self._gone}"
                raise RuntimeError(
                    f"there is no {kind.__name__} any more: its lifespan function ended: {why}"
                ) from None
            raise RuntimeError(
                f"there is no {kind.__name__} yet: the server was not started, or has ended"
            ) from None

    async def open(self) -> None:
        """Enter all of them. Raises what one raises; those before it are left again."""
        if not self._functions:
            return
        if self._task is not None:  # served a second time meanwhile
            opened = self._opened
            await asyncio.wait([opened])
            if opened.cancelled():
                raise RuntimeError("the start that this one waited for was given up")
            opened.result()
            return
        self._gone = None
        self._over = asyncio.Event()
        self._opened = opened = asyncio.get_running_loop().create_future()
        self._task = task = asyncio.create_task(self._live(opened), name="concertino lifespan")
        try:
            await opened
        except asyncio.CancelledError:
            self._task = None
            task.cancel()
            await asyncio.wait([task])
            raise

    async def close(self) -> None:
        """Leave all of them. Raises what one raises. When this is cancelled, so are they."""
        if self._task is None:
            return
        task, self._task = self._task, None
        self._over.set()
        await task

    async def _live(self, opened: asyncio.Future[None]) -> None:
        entered: list[AbstractAsyncContextManager[Any]] = []
        values: dict[type, Any] = {}
        failures: list[BaseException] = []
        try:
            for kind, function in self._functions:
                manager = _manager(function)
                value = await manager.__aenter__()
                entered.append(manager)
                if kind is not None:
                    values[kind] = value
            self.values = values
            opened.set_result(None)
            await self._over.wait()
        except BaseException as error:
            failures.append(error)
        for manager in reversed(
            entered
        ):  # each as if it were alone: what another raises is not thrown into it
            try:
                await manager.__aexit__(None, None, None)
            except BaseException as error:
                failures.append(error)
        self.values = {}
        if not failures:
            return
        why = failures[0]
        wanted = (
            self._over.is_set() or opened.cancelled()
        )  # by whoever ends, or has given up the start
        if (
            isinstance(why, asyncio.CancelledError) and not wanted
        ):  # a task group, say, one of whose tasks failed
            why = next(
                (each for each in failures if not isinstance(each, asyncio.CancelledError)), None
            )
            if why is None:  # raised as it is it would say that whoever starts has given up
                why = RuntimeError("a lifespan function waited for something that was cancelled")
                why.__cause__ = failures[0]
        for further in failures:
            if further is not why and not isinstance(further, asyncio.CancelledError):
                log.error("a lifespan function failed at its end", exc_info=further)
        if not opened.done():
            self._task = None
            opened.set_exception(why)
            return
        if not wanted:
            self._gone = why
            log.error(
                "a lifespan function ended before the server: calls that need what it gave fail",
                exc_info=why,
            )
        raise why


def _filled(
    handler: Any, filled: dict[str, type], value: Callable[[type], Any]
) -> Any:  # Any: whatever is callable
    signature = inspect.signature(handler)
    kept = [
        parameter for parameter in signature.parameters.values() if parameter.name not in filled
    ]
    for parameter in signature.parameters.values():
        if parameter.name in filled and parameter.kind is parameter.POSITIONAL_ONLY:
            raise RegistrationError(
                f"{parameter.name}: what a lifespan function gives is passed by name; move the / before it"
            )
    first = sum(parameter.kind is parameter.POSITIONAL_ONLY for parameter in kept)
    names = [
        parameter.name for parameter in kept[first:] if parameter.kind is not parameter.KEYWORD_ONLY
    ]

    def call(*args: Any, **kwargs: Any) -> Any:
        kwargs.update(zip(names, args[first:], strict=True))
        for name, kind in filled.items():
            kwargs[name] = value(kind)
        return handler(*args[:first], **kwargs)

    async def call_and_wait(*args: Any, **kwargs: Any) -> Any:
        return await call(*args, **kwargs)

    function = handler
    while isinstance(
        function, functools.partial
    ):  # its docstring and annotations are its function's
        function = cast("Any", function).func
    function = getattr(
        function, "__func__", function
    )  # of a method: a wrapper that names it has its object already
    made: Any = functools.update_wrapper(call_and_wait if is_async(handler) else call, function)
    made.__qualname__ = made.__name__ = getattr(handler, "__name__", "")  # a partial has none
    made.__signature__ = signature.replace(parameters=kept)
    return made


def _manager(function: Function) -> AbstractAsyncContextManager[Any]:
    made: Any = function()
    if isasyncgen(made):  # else a context manager's function was given
        return asynccontextmanager(cast("Callable[[], AsyncGenerator[Any, None]]", lambda: made))()
    if isgenerator(made):
        return _Plain(
            contextmanager(cast("Callable[[], Generator[Any, None, None]]", lambda: made))()
        )
    return made if hasattr(made, "__aenter__") else _Plain(made)


class _Plain(AbstractAsyncContextManager[Any]):
    """A context manager that waits for nothing."""

    def __init__(self, manager: AbstractContextManager[Any]) -> None:
        self._manager = manager

    async def __aenter__(self) -> Any:
        return self._manager.__enter__()

    async def __aexit__(self, *error: Any) -> None:
        self._manager.__exit__(*error)
