"""Depends: parameters of handlers that a provider function fills in each call.

    async def get_session(database: Database) -> AsyncIterator[Session]:
        async with database.session() as session:
            yield session

    @server.tool
    async def query(text: str, session: Annotated[Session, Depends(get_session)]) -> list[str]: ...

A handler is the function of a tool, prompt, resource or completion. When a handler is registered,
this module finds out which providers the handler needs, and in which order.
server/dependency_scope.py opens the providers before each call and closes them afterwards. This
module is imported when the server's author imports Depends.
"""

from __future__ import annotations

from collections.abc import (
    AsyncGenerator,
    Callable,
    Collection,
    Generator,
    Iterable,
    Iterator,
    Mapping,
)
from contextlib import aclosing, contextmanager
from functools import partial
from inspect import Parameter, Signature, isasyncgenfunction, iscoroutine, signature
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_args, get_origin
from weakref import WeakValueDictionary

from concertino.backend.interface import Context
from concertino.errors import RegistrationError
from concertino.schema.return_values import is_generator
from concertino.schema.signature import function_of, is_injected, read_signature
from concertino.server.dependency_scope import (
    Provider,
    Scope,
    Values,
    call_in_thread,
    iterate_in_thread,
)
from concertino.server.functions import (
    CONTEXT_PARAMETER,
    Bound,
    FinishingHandler,
    Handler,
    InThread,
    describe_missing_object,
    handler_location,
    is_async,
    is_unbound_method,
    maybe_await,
    unchanged,
    without_partials,
)

if TYPE_CHECKING:
    from concertino.server.lifespan import Lifespans

__all__ = ["Depends"]

T = TypeVar("T")
# The providers of one call, in the order in which to open them.
Order = tuple[Provider, ...]
_END = object()


class Depends:
    """Marks a parameter that a function, the provider, fills in each call.

        async def get_session() -> AsyncIterator[Session]:
            async with Session() as session:
                yield session

        @server.tool
        async def query(text: str, session: Annotated[Session, Depends(get_session)]) -> str: ...

    The parameter may belong to a tool, prompt, resource or completion. Clients do not see it. In
    each call, the provider is called once, even if several parameters need its value.

    provider: a `def` or `async def` that returns the value, or a generator that yields the value
        once. The code after the `yield` runs when the call has its result or has failed. The
        provider may itself have parameters for the Context, for values of lifespan functions, and
        with Depends.
    Raises RegistrationError if `provider` cannot be called.
    """

    __slots__ = ("provider",)

    def __init__(self, provider: Callable[..., Any]) -> None:
        if not callable(provider):
            # The author has written `Depends(get_session())` by mistake. Close the coroutine, which
            # is never awaited.
            if iscoroutine(provider):
                provider.close()
            raise RegistrationError(
                f"Depends: expected a function, as in Depends(get_session) without parentheses, "
                f"got {type(provider).__name__}"
            )
        self.provider = provider

    def __repr__(self) -> str:
        return f"Depends({getattr(self.provider, '__qualname__', self.provider)})"


class Dependencies:
    """The providers of one server, and the handlers that need them.

    lifespans: returns the server's lifespan functions; None if the server has none.
    in_thread: in_thread(function) calls a function in a thread, and returns an awaitable of its
        result.

    Attribute:
    overrides: Provider.key -> the provider that replaces this provider inside a `with` block of
        override(). Each change replaces the whole mapping, so that any thread may read it.
    """

    def __init__(self, lifespans: Callable[[], Lifespans | None], in_thread: InThread) -> None:
        self.overrides: Mapping[object, Provider] = {}
        # One entry (key, replacement) for each open `with override(...)` block, in order.
        self._override_list: list[tuple[object, Provider]] = []
        self._lifespans = lifespans
        self._in_thread = in_thread
        # Key -> provider. A provider disappears when no handler needs it any more.
        self._providers: WeakValueDictionary[object, Provider] = WeakValueDictionary()

    def fill(
        self,
        handler: Handler,
        inline: bool,
        in_thread: InThread | None = None,
    ) -> Handler | None:
        """Return a wrapper that fills the parameters with Depends of a handler.

        The wrapper has only the handler's other parameters. In each call, it calls the providers,
        and passes their values to the handler. Returns None if the handler has no parameters with
        Depends.
        inline: whether a `def`, the handler or a provider, runs on the event loop and not in a
            thread.
        in_thread: in_thread(function) calls a function in a thread, and returns an awaitable of its
            result; None for the server's threads.
        Raises RegistrationError for a provider with a parameter that nothing fills, and for a
        provider that depends on itself, directly or through others. The text names the function
        with its file and line.
        """
        # For a handler that cannot be called, Server raises a better error when it registers the
        # handler afterwards.
        if not callable(handler) or is_unbound_method(handler):
            return None
        functions = _find_depends(handler, self._classes())
        if not functions:
            return None
        providers = {name: self._get_provider(item, ()) for name, item in functions.items()}
        filled = self._fill_lifespan_values(handler, providers)
        runner = in_thread or self._in_thread
        return DependentHandler(filled, providers, self, None if inline else runner)

    @contextmanager
    def override(
        self, provider: Callable[..., Any], replacement: Callable[..., Any]
    ) -> Generator[None, None, None]:
        """Replace a provider inside a `with` block.

        provider: the function that is replaced.
        replacement: the function to call instead.
        Raises LookupError if no handler of this server depends on the provider, and
        RegistrationError if the replacement depends on itself, or has a parameter that nothing
        fills.
        """
        key = _key(provider)
        if key not in self._providers:
            raise LookupError(
                f"override: no handler of this server depends on {_describe(provider)}"
            )
        replacing = self._make_provider(replacement, key, ())
        entry = key, replacing
        self._override_list.append(entry)
        try:
            self.overrides = dict(self._override_list)
            # This raises now, and not in the next call, if the replacement depends on itself.
            self.sort((replacing,))
            yield
        finally:
            # This entry may not be the last one, because blocks in several tasks may end in any
            # order.
            self._override_list.remove(entry)
            self.overrides = dict(self._override_list)

    # Registration

    def _get_provider(self, function: Callable[..., Any], path: tuple[object, ...]) -> Provider:
        """Return the Provider for a function, and create it if there is none.

        The providers that the function needs are created as well.
        path: the chain of providers that need this provider, as their keys, beginning with the
            provider that a handler needs.
        Raises RegistrationError if `path` contains the function, which then depends on itself.
        """
        key = _key(function)
        if key in path:
            names = [self._name_of(item) for item in path[path.index(key) :]]
            raise RegistrationError(
                f"{_describe(function)} depends on itself: {' > '.join([*names, names[0]])}"
            )
        provider = self._providers.get(key)
        if provider is None:
            provider = self._providers[key] = self._make_provider(function, key, path)
        return provider

    def _make_provider(
        self,
        function: Callable[..., Any],
        key: object,
        path: tuple[object, ...],
    ) -> Provider:
        """Return a new Provider for a function.

        key: the key of the function. If the function is the replacement in override(), the key of
            the replaced provider.
        path: the chain of providers that need this provider, as their keys, beginning with the
            provider that a handler needs.
        Raises RegistrationError if nothing fills a parameter of the function, or if the function
        depends on itself.
        """
        owner = _describe(function)
        if is_unbound_method(function):
            mistake = describe_missing_object(function, "Depends(object.{})")
            raise RegistrationError(f"{owner}: {mistake}")
        classes = self._classes()
        needs = {
            name: self._get_provider(item, (*path, key))
            for name, item in _find_depends(function, classes).items()
        }
        contexts: list[str] = []
        for parameter in read_signature(function, classes).parameters:
            if parameter.name in needs:
                continue
            if is_injected(parameter.annotation, (Context,)):
                contexts.append(parameter.name)
            elif not parameter.injected and parameter.default is Parameter.empty:
                raise RegistrationError(
                    f"{owner}: nothing fills the parameter {parameter.name!r}; annotate it with "
                    f"Context, a class that a lifespan function yields, or "
                    f"Annotated[..., Depends(...)], or give it a default"
                )
        return Provider(
            key,
            owner,
            self._fill_lifespan_values(function, needs),
            is_async=_is_async(function),
            is_generator=is_generator(function),
            contexts=tuple(contexts),
            needs=tuple(needs.items()),
        )

    def _classes(self) -> tuple[type, ...]:
        """Return the Context and the classes of lifespan values.

        Parameters with one of these annotations are filled without Depends.
        """
        lifespans = self._lifespans()
        return (Context,) if lifespans is None else (Context, *lifespans.classes)

    def _fill_lifespan_values(self, function: Handler, skip: Collection[str]) -> Handler:
        """Return a wrapper that fills the function's parameters for lifespan values.

        skip: the names of parameters that providers fill.
        """
        lifespans = self._lifespans()
        return function if lifespans is None else lifespans.fill(function, skip)

    def sort(self, providers: Iterable[Provider]) -> Order:
        """Return these providers and all that they need, in the order in which to open them.

        The result contains the replacements from override(), not the replaced providers.
        Raises RegistrationError if a replacement makes a provider depend on itself.
        """
        # Key -> provider, in the order of opening: each provider comes after those that it needs.
        in_order: dict[object, Provider] = {}

        def visit(provider: Provider, path: tuple[object, ...]) -> None:
            key = provider.key
            if key in path:
                names = [self._name_of(item) for item in path[path.index(key) :]]
                raise RegistrationError(
                    f"override: {' > '.join([*names, names[0]])}: a provider depends on itself"
                )
            if key not in in_order:
                provider = self.overrides.get(key, provider)
                for _, needed in provider.needs:
                    visit(needed, (*path, key))
                in_order[key] = provider

        for provider in providers:
            visit(provider, ())
        return tuple(in_order.values())

    def _name_of(self, key: object) -> str:
        """Return the name of a provider for messages.

        key: Provider.key, which usually is the function.
        """
        return getattr(key, "__qualname__", repr(key)).rpartition("<locals>.")[2]


class DependentHandler(FinishingHandler):
    """A handler whose parameters with Depends are filled in each call.

    handler: the author's function, or a wrapper of it that fills the lifespan values.
    providers: the name of a parameter with Depends -> the provider of its value.
    dependencies: all providers of the server, and their replacements by override().
    in_thread: in_thread(function) calls a function in a thread, and returns an awaitable of its
        result; None to run each `def` on the event loop.
    """

    def __init__(
        self,
        handler: Handler,
        providers: Mapping[str, Provider],
        dependencies: Dependencies,
        in_thread: InThread | None,
    ) -> None:
        self._handler = handler
        self._own_providers = providers
        self._dependencies = dependencies
        self._in_thread = in_thread
        # A cache: the overrides, and the order of the providers with these overrides. It is valid
        # as long as dependencies.overrides is the same object.
        self._sorted = dependencies.overrides, dependencies.sort(providers.values())
        self._is_generator = is_generator(handler)
        self._is_async = _is_async(handler)
        self._arguments = _Arguments(handler, providers)
        # help(), `inspect` and the code that makes the tool's schema read these attributes.
        self.__signature__ = self._arguments.signature
        self.__wrapped__ = without_partials(handler)
        self.__name__ = getattr(handler, "__name__", "")
        self.__doc__ = getattr(self.__wrapped__, "__doc__", None)

    async def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._is_generator:
            return self._iterate((args, kwargs))
        return await self.call((args, kwargs), unchanged)

    async def call(self, bound: Bound, finish: Callable[[Any], T]) -> T:
        order, context, call = self._prepare(bound)
        if self._in_thread is not None and self._runs_in_one_thread(order):
            return await call_in_thread(order, context, call, finish, self._in_thread)

        scope = Scope(self._in_thread)
        try:
            values = await scope.open(order, context)
            if self._is_async:
                value = await call(values)
            else:
                value = await maybe_await(await scope.run(partial(call, values)))
            result = finish(value)
        except GeneratorExit:
            # The loop was closed and the task is being destroyed, so nothing can be awaited.
            raise
        except BaseException as exc:
            await scope.close(exc)
            raise
        await scope.close(None)
        return result

    def _iterate(self, bound: Bound) -> Iterator[Any] | AsyncGenerator[Any, None]:
        """Return an iterator over the chunks of a generator, with its dependencies open."""
        order, context, call = self._prepare(bound)
        if self._runs_in_one_thread(order):
            return iterate_in_thread(order, context, call)
        return self._iterate_async(order, context, call)

    async def _iterate_async(
        self,
        order: Order,
        context: Context,
        call: Callable[[Values], Any],
    ) -> AsyncGenerator[Any, None]:
        """Yield the chunks of a generator, with its dependencies open until its end."""
        scope = Scope(self._in_thread)
        try:
            generator = await maybe_await(call(await scope.open(order, context)))
            chunks = generator if self._is_async else _iterate_by_steps(generator, scope)
            async with aclosing(chunks):
                async for chunk in chunks:
                    yield chunk
        except BaseException as exc:
            await scope.close(exc)
            raise
        await scope.close(None)

    def _runs_in_one_thread(self, order: Order) -> bool:
        """Return whether the handler and all providers are `def`, so that one thread runs them."""
        return not self._is_async and not any(provider.is_async for provider in order)

    def _prepare(self, bound: Bound) -> tuple[Order, Context, Callable[[Values], Any]]:
        """Return the providers of a call, its context, and a function that calls the handler.

        The providers are in the order in which to open them. The function takes their values:
        Provider.key -> value.
        bound: the positional and keyword arguments of the call.
        """
        overrides = self._dependencies.overrides
        sorted_with, order = self._sorted
        if sorted_with is not overrides:
            order = self._dependencies.sort(self._own_providers.values())
            self._sorted = overrides, order
        context, args, kwargs = self._arguments.split(bound)

        def call(values: Values) -> Any:
            from_providers = {
                name: values[provider.key] for name, provider in self._own_providers.items()
            }
            return self._handler(*args, **kwargs, **from_providers)

        return order, context, call


class _Arguments:
    """The parameters of a handler that providers do not fill.

    handler: the function.
    filled: the names of the parameters that providers fill.

    Attribute:
    signature: the handler's signature without the parameters in `filled`. If the handler has no
        parameter for the Context, one is added, because providers may need the Context.
    """

    def __init__(self, handler: Handler, filled: Collection[str]) -> None:
        plain = signature(handler)
        others = [item for item in plain.parameters.values() if item.name not in filled]
        kinds = {item.name: item.kind for item in others}
        injected = [
            item.name for item in read_signature(handler, (Context,)).parameters if item.injected
        ]
        self._own_context = next((name for name in injected if name in kinds), None)
        if self._own_context is None:
            # Insert it after the last parameter that may be passed by position.
            index = sum(kind is not Parameter.KEYWORD_ONLY for kind in kinds.values())
            others.insert(
                index,
                Parameter(
                    CONTEXT_PARAMETER,
                    Parameter.POSITIONAL_OR_KEYWORD,
                    default=None,
                    annotation=Context,
                ),
            )
        self._positional_only = [
            name for name, kind in kinds.items() if kind is Parameter.POSITIONAL_ONLY
        ]
        self._names = [item.name for item in others if item.kind is not Parameter.KEYWORD_ONLY]
        self.signature = Signature(others, return_annotation=plain.return_annotation)

    def split(self, bound: Bound) -> tuple[Context, list[Any], dict[str, Any]]:
        """Return the context of a call, and the handler's positional and keyword arguments.

        bound: the positional and keyword arguments of the call, which fit `signature`.
        """
        args, kwargs = bound
        arguments = {**kwargs, **dict(zip(self._names, args, strict=False))}
        if self._own_context is None:
            context = arguments.pop(CONTEXT_PARAMETER)
        else:
            context = arguments[self._own_context]
        return context, [arguments.pop(name) for name in self._positional_only], arguments


async def _iterate_by_steps(
    generator: Generator[Any, None, None], scope: Scope
) -> AsyncGenerator[Any, None]:
    """Yield the chunks of a `def` generator, and run each step of it in a thread."""
    try:
        while (chunk := await scope.run(partial(next, generator, _END))) is not _END:
            yield chunk
    finally:
        await scope.run(generator.close)


def _is_async(function: Handler) -> bool:
    """Return whether a function is an `async def`, also if it is a generator."""
    if is_generator(function):
        return isasyncgenfunction(function_of(function))
    return is_async(function)


def _key(function: Any) -> object:
    """Return the key of a provider: the function, or its id() if it cannot be hashed."""
    try:
        hash(function)
    except TypeError:
        return id(function)
    return function


def _describe(function: Any) -> str:
    """Return a function's name, file and line for messages, such as `get_session() (db.py:12)`."""
    name = getattr(without_partials(function), "__qualname__", type(function).__qualname__)
    return f"{name.rpartition('<locals>.')[2]}(){handler_location(function)}"


def _find_depends(function: Handler, classes: tuple[type, ...]) -> dict[str, Callable[..., Any]]:
    """Return the parameters with Depends of a function: name -> provider function.

    classes: the annotations of parameters that are filled without Depends: Context, and the classes
        of the lifespan values.
    Raises RegistrationError for a Depends that is not in the Annotated around the whole type, for
    several Depends in one annotation, and for a positional-only parameter with Depends.
    """
    functions: dict[str, Callable[..., Any]] = {}
    for parameter in read_signature(function, classes).parameters:
        name, annotation = parameter.name, parameter.annotation
        found = _depends_in(annotation)
        place = f"{_describe(function)}: parameter {name!r}"
        if isinstance(parameter.default, Depends):
            raise RegistrationError(
                f"{place}: write {parameter.default!r} into the annotation, as in {name}: "
                f"Annotated[Session, {parameter.default!r}]"
            )
        if not found:
            continue
        if get_origin(annotation) is not Annotated or found != _depends_of(annotation):
            raise RegistrationError(
                f"{place}: put Depends around the whole type, as in "
                f"Annotated[Session | None, {found[0]!r}]"
            )
        if len(found) > 1:
            raise RegistrationError(f"{place}: expected one Depends, got {len(found)}")
        if signature(function).parameters[name].kind is Parameter.POSITIONAL_ONLY:
            raise RegistrationError(f"{place}: it is passed by name; move the / before it")
        functions[name] = found[0].provider
    return functions


def _depends_of(annotation: Any) -> list[Depends]:
    """Return the Depends objects among the metadata of an Annotated."""
    return [item for item in annotation.__metadata__ if isinstance(item, Depends)]


def _depends_in(annotation: Any) -> list[Depends]:
    """Return all Depends objects at any depth of an annotation."""
    is_annotated = get_origin(annotation) is Annotated
    found = _depends_of(annotation) if is_annotated else []
    parts = get_args(annotation)[:1] if is_annotated else get_args(annotation)
    return found + [item for part in parts for item in _depends_in(part)]
