"""The parts of a Server that are imported when they are first used.

LazyFeatures contains the server's resources, prompts and completion. FilledParameters contains its
lifespan functions and dependencies. A server that has only tools imports none of their modules, and
so starts faster. server_backend.py itself handles calls of tools.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeVar, cast

from msgspec import Raw, Struct
from msgspec.structs import replace

from concertino.backend.interface import Call, ChangeKind, Context, ServerFeatures
from concertino.errors import (
    INTERNAL_ERROR,
    METHOD_NOT_FOUND,
    RegistrationError,
    RpcError,
    ToolError,
)
from concertino.schema.value_results import InvalidResult
from concertino.server.functions import Handler, InThread
from concertino.server.registry import Registry
from concertino.server.settings import CacheHints
from concertino.server.tool_errors import describe_exception, find_passthrough

if TYPE_CHECKING:
    from concertino.server.completion import Completable
    from concertino.server.dependencies import Dependencies
    from concertino.server.lifespan import Lifespans
    from concertino.server.prompts import Prompts
    from concertino.server.resources import Resources

H = TypeVar("H", bound=Handler)
MethodHandler = Callable[[Call, Context], Awaitable[Struct]]


class LazyFeatures:
    """The resources, prompts and completion of a server.

    features: what the server offers, such as its capabilities. The argument is for a server without
        any function; update_features() changes the attribute. A capability stays when the last
        prompt or resource is removed, because clients remember it.
    tools: the server's tools.
    in_thread: in_thread(function) calls a function in a thread, and returns an awaitable of its
        result.
    page_size: how many items one page of a list has.
    hints: how long clients may cache lists.
    log: the server's logger.

    Attribute:
    handlers: MCP method -> the function that handles its calls.
    """

    def __init__(
        self,
        features: ServerFeatures,
        tools: Registry[Any],
        in_thread: InThread,
        page_size: int,
        hints: CacheHints,
        log: logging.Logger,
    ) -> None:
        self.features = features
        self.handlers: dict[str, MethodHandler] = {}
        self._resources: Resources | None = None
        self._prompts: Prompts | None = None
        self._in_thread = in_thread
        self._page_size = page_size
        self._hints = hints
        self._log = log
        self._tools = tools
        self._lock = threading.RLock()

    @property
    def is_empty(self) -> bool:
        """Return whether no tool, resource or prompt was registered."""
        return not self._tools.entries and self._resources is None and self._prompts is None

    @property
    def resources(self) -> Resources:
        """Return the server's resources. The first use imports the module and creates them."""
        with self._lock:
            if self._resources is None:
                from concertino.server.resources import Resources

                resources = Resources(
                    self._in_thread, self._page_size, self._hints, self._tools.switches
                )
                self._resources = resources
                self.handlers["resources/list"] = resources.list
                self.handlers["resources/templates/list"] = resources.list_templates
                self.handlers["resources/read"] = resources.read
            return self._resources

    @property
    def prompts(self) -> Prompts:
        """Return the server's prompts. The first use imports the module and creates them."""
        with self._lock:
            if self._prompts is None:
                from concertino.server.prompts import Prompts

                prompts = self._prompts = Prompts(
                    self._in_thread, self._page_size, self._hints, self._tools.switches
                )
                self.handlers["prompts/list"] = prompts.list
                self.handlers["prompts/get"] = prompts.get
            return self._prompts

    def registries(self) -> dict[ChangeKind, list[Registry[Any]]]:
        """Return the registries of tools, resources and prompts that are in use.

        Returns the name of a list, such as "tools" -> the registries whose entries are in the list.
        """
        resources, prompts = self._resources, self._prompts
        found: dict[ChangeKind, list[Registry[Any]]] = {"tools": [self._tools]}
        if resources is not None:
            found["resources"] = [resources.resources, resources.templates]
        if prompts is not None:
            found["prompts"] = [prompts.prompts]
        return found

    def is_disabled_resource(self, uri: str) -> bool:
        """Return whether all that is registered for a URI, a resource or templates, is disabled.

        The server then sends no notification that the resource was updated.
        """
        return self._resources is not None and self._resources.is_disabled(uri)

    def update_features(self) -> None:
        """Update `features`. Must be called after each registration and removal."""
        with self._lock:
            if self.features.cache_scope == "public" and self._is_limited():
                # Callers see different lists, so a cached list must not be shared by them.
                # compose() reads the scope of lists from here.
                self.features = replace(self.features, cache_scope="private")
            resources, prompts = self._resources, self._prompts
            has_resources = resources is not None and bool(
                resources.resources.records or resources.templates.records
            )
            if has_resources and not self.features.resources:
                self.features = replace(self.features, resources=True, subscriptions=True)
            has_prompts = prompts is not None and bool(prompts.prompts.records)
            if has_prompts and not self.features.prompts:
                self.features = replace(self.features, prompts=True)
            can_complete = (resources is not None and resources.can_complete) or (
                prompts is not None and prompts.can_complete
            )
            if can_complete and not self.features.completions:
                self.handlers["completion/complete"] = self._complete
                self.features = replace(self.features, completions=True)

    def _is_limited(self) -> bool:
        """Return whether any tool, resource or prompt has the option `visible` or `scopes`."""
        groups = self.registries().values()
        return any(registry.is_limited for group in groups for registry in group)

    async def _complete(self, call: Call, context: Context) -> Struct:
        """Handle a call of `completion/complete`."""
        from concertino.server.completion import complete

        def find(kind: str, name: str) -> Completable | None:
            if kind == "prompt":
                return None if self._prompts is None else self._prompts.prompts.find(name, context)
            resources = self._resources
            return None if resources is None else resources.templates.find(name, context)

        return await complete(call, context, find, self._in_thread)

    def add_completer(
        self,
        target: str,
        argument: str,
        handler: Handler,
    ) -> None:
        """Register a function that completes the values of an argument of a prompt or template.

        target: the name of the prompt, or the URI template of the resource.
        argument: the name of the argument.
        handler: the author's function.
        Raises RegistrationError if there is no such prompt, template or argument, and for a
        function with unsuitable parameters.
        """
        from concertino.server.completion import function_completer

        owner = f"completion of {argument!r} of {target!r}"
        completer = function_completer(handler, owner)
        prompts, resources = self._prompts, self._resources
        if prompts is not None and target in prompts.prompts.records:
            group, registry = prompts, prompts.prompts
        elif resources is not None and target in resources.templates.records:
            group, registry = resources, resources.templates
        else:
            raise RegistrationError(
                f"{owner}: no prompt and no resource template is registered under this name; "
                f"register it first"
            )
        _check_argument(owner, argument, registry.records[target].entry.arguments.schemas)
        registry.change(
            target,
            lambda entry: replace(entry, completers={**entry.completers, argument: completer}),
        )
        group.can_complete = True

    async def handle(self, call: Call, context: Context) -> Struct:
        """Handle a call of any method except tools/call.

        Raises RpcError for an unknown method. Passes on the handler's RpcError, and exceptions that
        the runtime must handle, such as Suspended. All others become the RpcError -32603.
        """
        handler = self.handlers.get(call.method)
        if handler is None:
            raise RpcError(METHOD_NOT_FOUND, f"method not found: {call.method}")
        try:
            return await handler(call, context)
        except RpcError:
            raise
        except (ToolError, InvalidResult) as exc:
            body = exc.body if isinstance(exc, ToolError) else None
            raise RpcError(INTERNAL_ERROR, str(exc), body) from None
        except BaseException as exc:
            # BaseException includes SystemExit and GeneratorExit: no handler may end the server.
            if context.cancelled:
                raise
            if (passthrough := find_passthrough(exc)) is not None:
                raise passthrough from None
            from concertino.backend.user_errors import exc_info_for_users

            exc_info = exc_info_for_users(exc)
            self._log.error("%s failed: %s", call.method, _target(call), exc_info=exc_info)
            raise RpcError(INTERNAL_ERROR, f"Internal error: {describe_exception(exc)}") from None


class FilledParameters:
    """Fills the parameters of handlers for lifespan values and dependencies.

    Lifespan values are yielded by functions that run as long as the server (server/lifespan.py).
    Dependencies come from functions that are called in each call (server/dependencies.py).
    in_thread: in_thread(function) calls a function in a thread, and returns an awaitable of its
        result.
    """

    def __init__(self, in_thread: InThread) -> None:
        self._in_thread = in_thread
        # None before the first lifespan function.
        self.lifespans: Lifespans | None = None
        # None until a handler is registered after the author has imported Depends.
        self._dependencies: Dependencies | None = None

    def add_lifespan(self, function: Callable[[], Any]) -> None:
        """Register a generator function that runs as long as the server.

        The code before the `yield` runs when the server starts, the code after the `yield` when the
        server ends. Handlers get the yielded value in parameters with its class as annotation.
        """
        if self.lifespans is None:
            from concertino.server.lifespan import Lifespans

            self.lifespans = Lifespans()
        self.lifespans.add(function)

    def dependencies(self) -> Dependencies:
        """Return the server's dependencies. The first use imports the module and creates them."""
        if self._dependencies is None:
            from concertino.server.dependencies import Dependencies

            self._dependencies = Dependencies(lambda: self.lifespans, self._in_thread)
        return self._dependencies

    def fill(self, handler: H, inline: bool, in_thread: InThread | None) -> H:
        """Return a wrapper that calls a handler with its lifespan values and dependencies.

        The wrapper has the handler's other parameters: those that clients fill, and the one for the
        Context. If there is nothing to fill, the handler itself is returned.
        inline: whether a `def` handler runs on the event loop and not in a thread.
        in_thread: in_thread(function) calls a function in a thread, and returns an awaitable of its
            result. None for the threads of this server.
        """
        # If the module with Depends is not loaded, no annotation can contain Depends. Then do not
        # import it, because that takes time.
        if "concertino.server.dependencies" in sys.modules:
            filled = self.dependencies().fill(handler, inline, in_thread)
            if filled is not None:
                return cast("H", filled)
        return handler if self.lifespans is None else self.lifespans.fill(handler)

    async def open(self) -> None:
        """Run the lifespan functions up to their `yield`."""
        if self.lifespans is not None:
            await self.lifespans.open()

    async def close(self) -> None:
        """Run the lifespan functions from their `yield` to their end."""
        if self.lifespans is not None:
            await self.lifespans.close()


def _check_argument(owner: str, argument: str, arguments: Iterable[str]) -> None:
    """Raise RegistrationError if a prompt or template does not have an argument.

    owner: the name of the completion, for the error.
    """
    if argument in arguments:
        return
    names = ", ".join(arguments)
    if not names:
        raise RegistrationError(f"{owner}: it has no arguments")
    raise RegistrationError(f"{owner}: expected one of its arguments ({names})")


def _target(call: Call) -> str:
    """Return the URI or the name in the params of a call, shortened, for the log."""
    from concertino.excerpts import shorten_name

    target = call.params.get("uri") or call.params.get("name") or Raw(b"")
    return shorten_name(str(bytes(target), "utf-8", "replace"))
