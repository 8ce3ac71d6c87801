"""Opens the dependencies of one call, and closes them when the call has ended.

A provider is the function in `Depends(provider)`, see server/dependencies.py. A provider that is a
generator is run like a context manager: opening it runs the code up to the `yield`, and closing it
runs the code after the `yield`.

There are two ways to run a call with dependencies:

- If the handler and all providers are `def`, everything runs in one thread (call_in_thread).
  Therefore a provider can yield an object that must stay in one thread, such as a connection of
  sqlite3.
- Otherwise (Scope) each `def` runs in any thread, and each `async def` runs in the task of the
  call. Therefore the `yield` of a provider may stand in a TaskGroup or a timeout.

When a handler raises, the exception is thrown into the generators, as a `with` statement does, but
the generators cannot suppress the exception. If the code after a `yield` raises, the exception is
only logged, because the call already has its result.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from functools import partial
from inspect import isawaitable
from threading import Lock
from typing import Any, TypeVar

from msgspec import Struct

from concertino.backend.interface import Context
from concertino.server.functions import Handler, InThread, maybe_await
from concertino.server.lifespan import async_manager, sync_manager

T = TypeVar("T")
# Key of a provider -> the value that it has returned or yielded for one call.
Values = Mapping[object, Any]
log = logging.getLogger("concertino.dependencies")
# The result of a call waits at most this many seconds for each of its providers to be closed. If
# all of them run in one thread, it waits this time for all of them together.
CLEANUP_S = 5.0


class Provider(Struct, frozen=True, eq=False, weakref=True):
    """A function that provides a value in each call, and how to call it.

    key: the function itself, or its id() if it cannot be hashed. The replacement of a provider by
        override() has the key of the replaced provider.
    description: the function's name, file and line, for messages.
    function: the function, or a wrapper of it that fills its lifespan values.
    is_async: whether the function is an `async def`.
    is_generator: whether the function yields the value, and must be closed after the call.
    contexts: the names of the function's parameters for the Context.
    needs: the function's parameters with Depends, as pairs (name, the provider of the value).
    """

    key: object
    description: str
    function: Handler
    is_async: bool
    is_generator: bool
    contexts: tuple[str, ...]
    needs: tuple[tuple[str, Provider], ...]

    def arguments(self, values: Values, context: Context) -> dict[str, Any]:
        """Return the keyword arguments for calling this provider.

        values: the values of the providers that were called before: key -> value.
        context: the context of the call.
        """
        needed = {name: values[provider.key] for name, provider in self.needs}
        return {**dict.fromkeys(self.contexts, context), **needed}


class Scope:
    """Opens and closes the providers (functions in Depends) of one call, from the task of the call.

    To open a provider is to call it, or to run a generator up to its `yield`. To close it is to run
    the generator to its end.
    in_thread: in_thread(function) calls a function in a thread, and returns an awaitable of its
        result; None to run each `def` on the event loop.
    """

    def __init__(self, in_thread: InThread | None) -> None:
        self._in_thread = in_thread
        # The open providers and their context managers, in the order of opening.
        self._open: list[tuple[Provider, Any]] = []

    async def open(self, order: Sequence[Provider], context: Context) -> Values:
        """Call all providers in this order. Returns their values: Provider.key -> value.

        Raises the exception of a provider that fails. The caller must then call close(), which
        closes the providers that were opened before.
        """
        values: dict[object, Any] = {}
        for provider in order:
            call = partial(provider.function, **provider.arguments(values, context))
            if provider.is_generator and provider.is_async:
                manager = async_manager(call())
                try:
                    value = await manager.__aenter__()
                except RuntimeError as exc:
                    raise _name_provider(exc, provider) from exc.__cause__
                self._open.append((provider, manager))
            elif provider.is_generator:
                value = await self.run(partial(self._open_generator, provider, call))
            elif provider.is_async:
                value = await call()
            else:
                value = await maybe_await(await self.run(call))
            values[provider.key] = value
        return values

    def _open_generator(self, provider: Provider, call: Callable[[], Any]) -> Any:
        """Call a `def` generator, run it up to its `yield`, and return the yielded value."""
        manager = sync_manager(call())
        value = _enter(manager, provider)
        # Append here, in the thread. If the call is cancelled meanwhile, open() never gets the
        # value, but the provider must be closed.
        self._open.append((provider, manager))
        return value

    async def run(self, function: Callable[[], T]) -> T:
        """Call a `def` and return its value. It runs in a thread, unless in_thread is None.

        If the task is cancelled while a thread runs the function, this method waits until the
        function has ended, and then raises CancelledError. Otherwise a provider could be closed
        while the thread still uses its value.
        """
        if self._in_thread is None:
            return function()
        step = _ThreadStep(function)
        try:
            return await self._in_thread(step)
        except asyncio.CancelledError:
            was_dropped = step.drop()
            if not was_dropped:
                await step.ended.wait()
            raise

    async def close(self, failure: BaseException | None) -> None:
        """Close all open providers in reverse order. If a provider raises, log its exception.

        failure: the exception of the call, which is thrown into each provider; None if the call has
            a result.
        Raises CancelledError if the task is cancelled meanwhile, but only after all providers are
        closed.
        """
        cancelled: asyncio.CancelledError | None = None
        while self._open:
            provider, manager = self._open.pop()
            try:
                if provider.is_async:
                    await _exit_async(provider, manager, failure)
                elif self._in_thread is None:
                    _exit(manager, failure)
                else:
                    await _exit_in_thread(provider, manager, failure, self._in_thread)
            except BaseException as exc:
                # A generator usually raises `failure` again, which was thrown into it.
                if isinstance(exc, asyncio.CancelledError) and exc is not failure:
                    cancelled = exc
                elif exc is not failure:
                    _log_failure(provider, exc)
        if cancelled is not None:
            raise cancelled


async def _exit_async(
    provider: Provider,
    manager: AbstractAsyncContextManager[Any],
    failure: BaseException | None,
) -> None:
    """Close a provider that is an `async def`. Cancel it after CLEANUP_S seconds."""
    limit = asyncio.timeout(CLEANUP_S)
    try:
        async with limit:
            await manager.__aexit__(*_exit_arguments(failure))
    except TimeoutError:
        if not limit.expired():
            raise
        _log_late(provider)


# The tasks that close providers in threads. This set keeps them alive, because asyncio has only
# weak references to tasks.
_closing_tasks: set[asyncio.Future[None]] = set()


async def _exit_in_thread(
    provider: Provider,
    manager: AbstractContextManager[Any],
    failure: BaseException | None,
    in_thread: InThread,
) -> None:
    """Close a provider in a thread, and wait for this up to CLEANUP_S seconds.

    If closing takes longer, or the call is cancelled, closing continues in a separate task.
    """

    async def close() -> None:
        try:
            await in_thread(partial(_exit, manager, failure))
        except BaseException as exc:
            if exc is not failure:
                _log_failure(provider, exc)

    closing = asyncio.ensure_future(close())
    _closing_tasks.add(closing)
    closing.add_done_callback(_closing_tasks.discard)
    done, _ = await asyncio.wait([closing], timeout=CLEANUP_S)
    if not done:
        _log_late(provider)


class _ThreadStep:
    """A function that a thread will call, unless drop() is called first.

    Attribute:
    ended: an event of the event loop, set when the function has returned or raised; never set after
        drop() has returned True.
    """

    def __init__(self, function: Callable[[], Any]) -> None:
        self.ended = asyncio.Event()
        self._function = function
        self._loop = asyncio.get_running_loop()
        self._lock = Lock()
        self._has_begun = False
        self._is_dropped = False

    def drop(self) -> bool:
        """Prevent the call of the function. Returns False if a thread already calls it."""
        with self._lock:
            self._is_dropped = not self._has_begun
            return self._is_dropped

    def __call__(self) -> Any:
        with self._lock:
            if self._is_dropped:
                return None
            self._has_begun = True
        try:
            return self._function()
        finally:
            try:
                self._loop.call_soon_threadsafe(self.ended.set)
            except RuntimeError:
                # The loop is closed, so nothing waits for the event.
                pass


# Calls that run in one thread from their beginning to their end


async def call_in_thread(
    order: Sequence[Provider],
    context: Context,
    call: Callable[[Values], Any],
    finish: Callable[[Any], T],
    in_thread: InThread,
) -> T:
    """Call a `def` handler in a thread, and return finish(value) for the value that it returns.

    The same thread opens and closes the providers, the functions in Depends(provider), which must
    be `def` too. If closing takes longer than CLEANUP_S seconds, this function returns while the
    thread is still closing the providers.
    order: all providers, in the order in which to open them.
    context: the context of the call.
    call: calls the handler with the providers' values: key -> value.
    finish: converts the handler's value to a result.
    in_thread: calls a function in a thread.
    Raises the exception of the handler, or of a provider that could not be opened.
    """
    work = _ThreadCall(order, context, call, finish)
    if not any(provider.is_generator for provider in order):
        await in_thread(work.run)
        return work.outcome()

    # The call itself may take any time. When it has its result, the thread asks the loop to begin
    # the time limit for closing the providers.
    loop = asyncio.get_running_loop()
    limit = asyncio.timeout(None)
    is_waiting = True

    def limit_cleanup() -> None:
        # The loop may run this only after the `async with` block has ended, when reschedule() would
        # raise.
        if is_waiting:
            limit.reschedule(loop.time() + CLEANUP_S)

    work.on_result = partial(loop.call_soon_threadsafe, limit_cleanup)
    try:
        async with limit:
            await in_thread(work.run)
    except TimeoutError:
        _log_late(work.closing or order[0])
    finally:
        is_waiting = False
    return work.outcome()


class _ThreadCall:
    """One call of a `def` handler whose providers are all `def`.

    The parameters are described at call_in_thread().

    Attributes:
    on_result: a function that the thread calls when the handler has returned or raised, before the
        providers are closed; None to call nothing.
    closing: the last provider whose closing has begun, for the log; None before.
    """

    def __init__(
        self,
        order: Sequence[Provider],
        context: Context,
        call: Callable[[Values], Any],
        finish: Callable[[Any], Any],
    ) -> None:
        self.on_result: Callable[[], object] | None = None
        self.closing: Provider | None = None
        self._order = order
        self._context = context
        self._call = call
        self._finish = finish
        self._result: Any = None
        self._failure: BaseException | None = None

    def outcome(self) -> Any:
        """Return the result of the call, or raise its exception.

        May be called when run() has called on_result(), also while run() is still closing the
        providers.
        """
        if self._failure is not None:
            try:
                raise self._failure
            finally:
                # The exception's traceback refers to this frame: break the reference cycle.
                self._failure = None
        return self._result

    def run(self) -> Any:
        """Open the providers, call the handler, and close the providers. The thread runs this.

        Raises nothing; outcome() returns the result or raises the exception. This method returns
        the result only for the thread pool, which measures it to limit the memory for large ones.
        """
        opened = _SyncScope(self._order, self._context)
        try:
            value = self._call(opened.open())
            # A `def` may return a coroutine.
            if isawaitable(value):
                value = self._context.wait(value)
            self._result = self._finish(value)
        except BaseException as exc:
            self._failure = exc
        failure = self._failure
        if self.on_result is not None:
            try:
                self.on_result()
            except RuntimeError:
                # The loop is closed, so nothing waits for the result.
                pass
        for provider in opened.close(failure):
            self.closing = provider
        return self._result


def iterate_in_thread(
    order: Sequence[Provider], context: Context, call: Callable[[Values], Any]
) -> Iterator[Any]:
    """Yield the chunks of a generator handler. The handler and all its providers must be `def`.

    Opens the providers before the first chunk, and closes them at the end. The returned iterator
    must be used in one thread only.
    order: all providers, in the order in which to open them.
    context: the context of the call.
    call: calls the generator function with the providers' values: key -> value.
    """
    opened = _SyncScope(order, context)
    failure: BaseException | None = None
    try:
        yield from call(opened.open())
    except BaseException as exc:
        failure = exc
        raise
    finally:
        # close() is a generator, which closes the providers while it is iterated over.
        for _ in opened.close(failure):
            pass


class _SyncScope:
    """Does the same as Scope, but opens and closes all providers of a call in one thread.

    It cannot be a Scope, whose methods await: a thread has no event loop.
    order: the providers, in the order in which to open them.
    context: the context of the call.
    """

    def __init__(self, order: Sequence[Provider], context: Context) -> None:
        self._order = order
        self._context = context
        self._open: list[tuple[Provider, AbstractContextManager[Any]]] = []

    def open(self) -> Values:
        """Call all providers in order, and return their values by key."""
        values: dict[object, Any] = {}
        for provider in self._order:
            value = provider.function(**provider.arguments(values, self._context))
            if provider.is_generator:
                manager = sync_manager(value)
                value = _enter(manager, provider)
                self._open.append((provider, manager))
            elif isawaitable(value):
                value = self._context.wait(value)
            values[provider.key] = value
        return values

    def close(self, failure: BaseException | None) -> Iterator[Provider]:
        """Close all open providers in reverse order. The caller must iterate to the end.

        Yields each provider before closing it, so that the caller can name the provider if closing
        takes too long. Logs an exception that a provider raises, unless it is `failure`, and goes
        on with the next provider.
        failure: the exception of the call, which is thrown into each provider; None if the call has
            a result.
        """
        while self._open:
            provider, manager = self._open.pop()
            yield provider
            try:
                _exit(manager, failure)
            except BaseException as exc:
                if exc is not failure:
                    _log_failure(provider, exc)


def _enter(manager: AbstractContextManager[Any], provider: Provider) -> Any:
    """Run a `def` generator up to its `yield`, and return the yielded value."""
    try:
        return manager.__enter__()
    except RuntimeError as exc:
        raise _name_provider(exc, provider) from exc.__cause__


def _name_provider(error: RuntimeError, provider: Provider) -> RuntimeError:
    """Return an error that names the provider, in place of contextlib's "generator didn't yield".

    error: the RuntimeError that contextlib has raised. If it has another text, it is returned
        unchanged.
    """
    if error.args != ("generator didn't yield",):
        return error
    return RuntimeError(f"{provider.description} ended before its yield; it must yield a value")


def _exit(manager: AbstractContextManager[Any], failure: BaseException | None) -> None:
    """Close a `def` provider.

    failure: the exception of the call; None if it has a result.
    """
    manager.__exit__(*_exit_arguments(failure))


def _exit_arguments(failure: BaseException | None) -> tuple[Any, Any, Any]:
    """Return the three arguments of __exit__() for an exception, or for None."""
    if failure is None:
        return None, None, None
    return type(failure), failure, failure.__traceback__


def _log_late(provider: Provider) -> None:
    """Log that a provider was not closed within CLEANUP_S seconds."""
    log.error(
        "%s did not clean up within %g s after a call, which is answered all the same",
        provider.description,
        CLEANUP_S,
    )


def _log_failure(provider: Provider, error: BaseException) -> None:
    """Log that a provider has raised when it was closed."""
    log.error("%s failed to clean up after a call", provider.description, exc_info=error)
