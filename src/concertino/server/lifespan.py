"""What lives as long as the server: generators that make a value, give it to the handlers that ask for its class, and clean up.

All of them are entered in order and left in reverse by one task of their own, since what is entered in a task (a task group, a
time-out) must be left in the same one, while start() and close() of a backend come from two.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, contextmanager
from inspect import isasyncgenfunction, isgeneratorfunction
from typing import Any, get_args, get_origin

from concertino.errors import RegistrationError
from concertino.protocol.signature import function_of, read

__all__ = ["Lifespans"]

log = logging.getLogger("concertino.lifespan")
Function = Callable[[], Any]
_YIELDS = (AsyncIterator, AsyncGenerator, Iterator, Generator)


class Lifespans:
    """The lifespan functions of one server, and what they gave. values: class to value, once open() has returned."""

    def __init__(self) -> None:
        self.values: Mapping[type, Any] = {}
        self._functions: list[tuple[type | None, Function]] = []
        self._task: asyncio.Task[None] | None = None
        self._over: asyncio.Event

    @property
    def classes(self) -> tuple[type, ...]:
        """What handlers may ask for by annotation."""
        return tuple(kind for kind, _ in self._functions if kind is not None)

    def add(self, function: Function) -> None:
        """A generator function with one `yield`, `async def` or `def`, without parameters. Its annotation names the class it gives.

        Raises RegistrationError for anything else, for a class that another function gives, and once the server has started.
        """
        signature = read(function)
        name = signature.name
        generates = function_of(function)
        if not (isasyncgenfunction(generates) or isgeneratorfunction(generates)):
            raise RegistrationError(f"{name}(): expected a generator, `async def` or `def`, that yields once")
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
            raise RegistrationError(f"{name}(): another lifespan function gives a {kind.__name__} already")
        if self._task is not None:
            raise RegistrationError(f"{name}(): the server has started; register what it lives with before")
        self._functions.append((kind, function))

    async def open(self) -> None:
        """Enter all of them. Raises what one raises; those before it are left again."""
        if not self._functions:
            return
        self._over = asyncio.Event()
        opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
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
        for manager in reversed(entered):  # each as if it were alone: what another raises is not thrown into it
            try:
                await manager.__aexit__(None, None, None)
            except BaseException as error:
                failures.append(error)
        self.values = {}
        for further in failures[1:]:
            log.error("a lifespan function failed at its end", exc_info=further)
        if failures and opened.done():
            raise failures[0]
        if failures:
            self._task = None
            opened.set_exception(failures[0])


def _manager(function: Function) -> AbstractAsyncContextManager[Any]:
    if not hasattr(function, "__wrapped__"):  # else a context manager's function already
        function = asynccontextmanager(function) if isasyncgenfunction(function) else contextmanager(function)
    made: Any = function()
    return made if hasattr(made, "__aenter__") else _Plain(made)


class _Plain(AbstractAsyncContextManager[Any]):
    """A context manager that waits for nothing."""

    def __init__(self, manager: AbstractContextManager[Any]) -> None:
        self._manager = manager

    async def __aenter__(self) -> Any:
        return self._manager.__enter__()

    async def __aexit__(self, *error: Any) -> None:
        self._manager.__exit__(*error)
