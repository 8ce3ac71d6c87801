"""Lifespan functions: generators that run as long as the server.

    @server.lifespan
    async def open_database() -> AsyncIterator[Database]:
        async with Database() as database:
            yield database

A handler gets the yielded value in a parameter with the annotation `Database`. The code after the
`yield` runs when the server ends.

A task group or a timeout inside a lifespan function must be entered and exited in the same task,
but start() and close() of a server may be called in different tasks. Therefore one separate task
runs all functions up to their `yield`, waits for close(), and runs all functions to their end.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Callable,
    Collection,
    Generator,
    Iterator,
    Mapping,
)
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
from concertino.server.functions import Handler, is_async, is_unbound_method

log = logging.getLogger("concertino.lifespan")
H = TypeVar("H", bound=Handler)
Function = Callable[[], Any]
_YIELDS = (AsyncIterator, AsyncGenerator, Iterator, Generator)


class Lifespans:
    """The lifespan functions of one server.

    Server.start() and Server.close() call open() and close() of this object.

    Attribute:
    values: class -> the yielded value; empty before open() has returned, and after close().
    """

    def __init__(self) -> None:
        self.values: Mapping[type, Any] = {}
        # Pairs (the class of the yielded value, or None for no value; the function).
        self._functions: list[tuple[type | None, Function]] = []
        self._task: asyncio.Task[None] | None = None
        # The exception that has ended the functions before the end of the server, or None.
        self._failure: BaseException | None = None
        # The following two exist after the call of open(). The task waits for `_closing`, which
        # close() sets. The future `_opened` is done when all functions have reached their `yield`,
        # or one has failed.
        self._closing: asyncio.Event
        self._opened: asyncio.Future[None]

    @property
    def classes(self) -> tuple[type, ...]:
        """Return the classes of the values that the functions yield.

        Handlers get these values in parameters with these classes as annotations.
        """
        return tuple(value_type for value_type, _ in self._functions if value_type is not None)

    def add(self, function: Function) -> None:
        """Add a generator function, which runs from the start of the server to its end.

        The function must be a generator function without parameters. Its return annotation must
        name the yielded class, which no earlier function may yield.
        Raises RegistrationError for any other function, and after the server has started.
        """
        signature = read_signature(function)
        name = signature.name
        generator = function_of(function)
        is_generator = isasyncgenfunction(generator) or isgeneratorfunction(generator)
        if not is_generator:
            raise RegistrationError(
                f"{name}(): expected a generator, `async def` or `def`, that yields once"
            )
        if signature.parameters:
            raise RegistrationError(f"{name}(): a lifespan function takes no parameters")
        # Of AsyncGenerator[Database, None], for example, only the first argument is yielded.
        arguments = get_args(signature.returns)
        value_type = arguments[0] if arguments else None
        if arguments and value_type in (None, type(None)):
            value_type = None
        elif get_origin(signature.returns) not in _YIELDS or not isinstance(value_type, type):
            raise RegistrationError(
                f"{name}(): annotate the class it yields, as in `-> AsyncIterator[Database]`; "
                f"AsyncIterator[None] for none"
            )
        if value_type in self.classes:
            raise RegistrationError(
                f"{name}(): another lifespan function already provides {value_type.__name__}"
            )
        if self._task is not None:
            raise RegistrationError(
                f"{name}(): the server has started; register lifespan functions before"
            )
        self._functions.append((value_type, function))

    def fill(self, handler: H, skip: Collection[str] = ()) -> H:
        """Return a wrapper of a handler that passes the lifespan values in each call.

        The wrapper has all parameters of the handler except those for lifespan values. If the
        handler has no parameters for lifespan values, the handler itself is returned. The wrapper
        raises RuntimeError if it is called before open() or after close().
        skip: the names of parameters that get no lifespan value, because a provider fills them.
        Raises RegistrationError if a parameter for a lifespan value is positional-only.
        """
        classes = self.classes
        # For a handler that cannot be called, the caller raises a better error when it registers
        # the handler afterwards.
        if not classes or not callable(handler) or is_unbound_method(handler):
            return handler
        filled: dict[str, type] = {
            parameter.name: next(
                value_type
                for value_type in classes
                if is_injected(parameter.annotation, (value_type,))
            )
            for parameter in read_signature(handler, classes).parameters
            if parameter.injected and parameter.name not in skip
        }
        return _make_wrapper(handler, filled, self._get_value) if filled else handler

    def _get_value(self, value_type: type) -> Any:
        """Return the lifespan value of a class.

        Raises RuntimeError before open(), after close(), and if a lifespan function has failed.
        """
        try:
            return self.values[value_type]
        except KeyError:
            if self._failure is not None:
                reason = f"{type(self._failure).__name__}: {self._failure}"
                raise RuntimeError(
                    f"there is no {value_type.__name__} any more: its lifespan function ended: "
                    f"{reason}"
                ) from None
            raise RuntimeError(
                f"there is no {value_type.__name__} yet: the server was not started, or has ended"
            ) from None

    async def open(self) -> None:
        """Run all functions up to their `yield` ("enter" them).

        Raises the exception of a function that fails. Before that, the functions that were entered
        are run to their end ("exited").
        """
        if not self._functions:
            return
        # Another Host, which serves the same server, has called open(). Wait until all functions
        # are entered.
        if self._task is not None:
            opened = self._opened
            await asyncio.wait([opened])
            if opened.cancelled():
                raise RuntimeError("the start that this one waited for was cancelled")
            opened.result()
            return
        self._failure = None
        self._closing = asyncio.Event()
        self._opened = opened = asyncio.get_running_loop().create_future()
        self._task = task = asyncio.create_task(
            self._run_functions(opened), name="concertino lifespan"
        )
        try:
            await opened
        except asyncio.CancelledError:
            self._task = None
            task.cancel()
            await asyncio.wait([task])
            raise

    async def close(self) -> None:
        """Run all functions from their `yield` to their end, in reverse order.

        If this call is cancelled, the functions are cancelled too. Raises the exception of a
        function that fails.
        """
        if self._task is None:
            return
        task, self._task = self._task, None
        self._closing.set()
        await task

    async def _run_functions(self, opened: asyncio.Future[None]) -> None:
        """Enter all functions, wait for close(), and exit them. The lifespan task runs this.

        opened: its result is set when all functions are entered.
        """
        entered: list[AbstractAsyncContextManager[Any]] = []
        values: dict[type, Any] = {}
        failures: list[BaseException] = []
        try:
            for value_type, function in self._functions:
                manager = async_manager(function())
                value = await manager.__aenter__()
                entered.append(manager)
                if value_type is not None:
                    values[value_type] = value
            self.values = values
            opened.set_result(None)
            await self._closing.wait()
        except BaseException as exc:
            failures.append(exc)

        # Exit all functions, even if one fails. Unlike in nested `async with` blocks, the exception
        # of one function is not thrown into the other functions.
        for manager in reversed(entered):
            try:
                await manager.__aexit__(None, None, None)
            except BaseException as exc:
                failures.append(exc)
        self.values = {}
        if failures:
            self._pass_on_failures(failures, opened)

    def _pass_on_failures(
        self, failures: list[BaseException], opened: asyncio.Future[None]
    ) -> None:
        """Pass on the exception that has ended the functions, and log their other exceptions.

        If open() still waits, it raises the exception. Otherwise this method raises it, for close()
        and for the lifespan task.
        failures: the exceptions of the functions, in the order in which they were raised.
        opened: the future for which open() waits.
        """
        # Whether the end was requested: close() was called, or open() was cancelled.
        is_requested = self._closing.is_set() or opened.cancelled()
        failure = failures[0] if is_requested else _cause_of_end(failures)
        for other in failures:
            if other is not failure and not isinstance(other, asyncio.CancelledError):
                log.error("a lifespan function failed at its end", exc_info=other)
        if not opened.done():
            self._task = None
            opened.set_exception(failure)
            return
        if not is_requested:
            self._failure = failure
            log.error(
                "a lifespan function ended before the server: calls that need its value will fail",
                exc_info=failure,
            )
        raise failure


def _cause_of_end(failures: list[BaseException]) -> BaseException:
    """Return the exception that explains why the functions have ended before the server."""
    if not isinstance(failures[0], asyncio.CancelledError):
        return failures[0]

    # When a task in a task group fails, the group first cancels its body, which raises
    # CancelledError, and at its end raises the exception of the task.
    for failure in failures:
        if not isinstance(failure, asyncio.CancelledError):
            return failure

    # Do not return the CancelledError: if start() raised it, its caller would seem to be cancelled.
    error = RuntimeError("a lifespan function waited for something that was cancelled")
    error.__cause__ = failures[0]
    return error


def _make_wrapper(handler: Any, filled: dict[str, type], get_value: Callable[[type], Any]) -> Any:
    """Return a wrapper of a handler that adds the lifespan values to its arguments.

    handler: any callable.
    filled: the parameters for lifespan values: name -> class.
    get_value: returns the lifespan value of a class. The wrapper calls it in each call.
    Raises RegistrationError if a parameter for a lifespan value is positional-only.
    """
    signature = inspect.signature(handler)
    others = [
        parameter for parameter in signature.parameters.values() if parameter.name not in filled
    ]
    for parameter in signature.parameters.values():
        if parameter.name in filled and parameter.kind is parameter.POSITIONAL_ONLY:
            raise RegistrationError(
                f"{parameter.name}: lifespan values are passed by name; move the / before it"
            )
    positional_only = sum(parameter.kind is parameter.POSITIONAL_ONLY for parameter in others)
    names = [
        parameter.name
        for parameter in others[positional_only:]
        if parameter.kind is not parameter.KEYWORD_ONLY
    ]

    def call(*args: Any, **kwargs: Any) -> Any:
        # Pass the arguments by name, because a parameter for a lifespan value may stand between the
        # others. Only those for positional-only parameters must be passed by position. There may be
        # fewer arguments than names, because the handler may have defaults.
        kwargs.update(zip(names, args[positional_only:], strict=False))
        for name, value_type in filled.items():
            kwargs[name] = get_value(value_type)
        return handler(*args[:positional_only], **kwargs)

    async def call_async(*args: Any, **kwargs: Any) -> Any:
        return await call(*args, **kwargs)

    # Take the docstring and annotations from the plain function inside a partial or bound method.
    function = handler
    while isinstance(function, functools.partial):
        function = cast("Any", function).func
    function = getattr(function, "__func__", function)
    wrapper: Any = functools.update_wrapper(call_async if is_async(handler) else call, function)
    # A partial has no name, and must not get the name of its function.
    wrapper.__qualname__ = wrapper.__name__ = getattr(handler, "__name__", "")
    wrapper.__signature__ = signature.replace(parameters=others)
    return wrapper


def async_manager(result: Any) -> AbstractAsyncContextManager[Any]:
    """Return an asynchronous context manager that runs a generator.

    result: the return value of the generator function. It is a generator, asynchronous or not, or a
        context manager if the function has the decorator contextmanager or asynccontextmanager.
    """
    if isasyncgen(result):
        # asynccontextmanager() takes a function that returns the generator.
        make = cast("Callable[[], AsyncGenerator[Any, None]]", lambda: result)
        return asynccontextmanager(make)()
    return result if hasattr(result, "__aenter__") else _SyncManager(sync_manager(result))


def sync_manager(result: Any) -> AbstractContextManager[Any]:
    """Return a context manager that runs a `def` generator.

    result: the return value of the generator function. It is a generator, or a context manager if
        the function has the decorator contextmanager.
    """
    if isgenerator(result):
        # contextmanager() takes a function that returns the generator.
        make = cast("Callable[[], Generator[Any, None, None]]", lambda: result)
        return contextmanager(make)()
    return result


class _SyncManager(AbstractAsyncContextManager[Any]):
    """An asynchronous context manager that enters and exits an ordinary one."""

    def __init__(self, manager: AbstractContextManager[Any]) -> None:
        self._manager = manager

    async def __aenter__(self) -> Any:
        return self._manager.__enter__()

    async def __aexit__(self, *error: Any) -> None:
        self._manager.__exit__(*error)
