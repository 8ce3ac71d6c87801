"""Server: typed Python functions as an MCP server. What it keeps and answers of each kind is in the rooms beside this one."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Mapping
from functools import partial
from os import PathLike
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Unpack, overload

from msgspec import DecodeError, Raw, Struct
from msgspec.json import Decoder

from concertino.backend.interface import Call, ChangeKind, Context, Notifier, ServerFeatures
from concertino.errors import RegistrationError, ToolError
from concertino.jsonrpc.limits import Limits
from concertino.runtime.entry import run
from concertino.runtime.threads import Threads
from concertino.schema.arguments import InvalidArguments
from concertino.schema.return_values import InvalidResult
from concertino.server.functions import Handler, maybe_await
from concertino.server.lazy_features import LazyFeatures
from concertino.server.lifespan import Lifespans
from concertino.server.settings import (
    PromptSettings,
    ResourceSettings,
    ServerSettings,
    ToolSettings,
    cache_hints,
    check_setting,
)
from concertino.server.tool_errors import (
    describe_exception,
    error_result,
    find_passthrough,
    tool_error_result,
)
from concertino.server.tools import RegisteredTool, Tools, no_tool, register
from concertino.types.results import CacheScope, Icon, Implementation

if TYPE_CHECKING:
    from concertino.server.options import PromptOptions, ResourceOptions, ToolGuards

__all__ = ["Server"]

H = TypeVar("H", bound=Handler)
L = TypeVar("L", bound=Callable[[], Any])
THREADS = 32  # `def` handlers at once
NO_ARGUMENTS = Raw(b"{}")
_name = Decoder(str).decode


class Server:
    """An MCP server made of Python functions; a Backend.

    name, version: for programs; title: for people. instructions: what a model should know before it uses the tools.
    icons: pictures for a client's user interface. experimental, extensions: capabilities shown as they are.
    argument_errors: `result` answers arguments that do not fit with a tool result that the model can act on; `protocol` with the
    JSON-RPC error -32602. coerce: accept `"1"` for an int, and the like. page_size: how many tools, resources or prompts one page
    of a list holds. ttl_s, cache_scope: for how many seconds, and by whom, clients of 2026-07-28 may keep the lists and the content
    of resources. Raises ValueError naming what does not fit.
    Next: decorate functions with `tool`, `resource`, `prompt`, then `run()`.
    """

    def __init__(
        self,
        name: str,
        *,
        version: str = "0.0.0",
        title: str | None = None,
        description: str | None = None,
        website_url: str | None = None,
        instructions: str | None = None,
        icons: list[Icon] | None = None,
        experimental: Mapping[str, Any] | None = None,
        extensions: Mapping[str, Any] | None = None,
        argument_errors: Literal["result", "protocol"] = "result",
        coerce: bool = False,
        page_size: int = 1000,
        ttl_s: float = 0,
        cache_scope: CacheScope = "private",
    ) -> None:
        if argument_errors not in ("result", "protocol"):
            raise ValueError(
                f"argument_errors: expected 'result' or 'protocol', got {argument_errors!r}"
            )
        if not isinstance(page_size, int) or page_size < 1:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ValueError(f"page_size: expected a positive number of items, got {page_size!r}")
        about = Implementation(name, version, title, description, website_url, icons)
        info = check_setting(about)
        settings = check_setting(ServerSettings(instructions, experimental, extensions))
        kept = cache_hints(ttl_s, cache_scope)
        self.name = name
        offer = ServerFeatures(
            info,
            instructions=instructions,
            tools=True,
            logging=True,
            experimental=settings.experimental or {},
            extensions=settings.extensions or {},
            ttl_ms=kept.ttl_ms,
            cache_scope=kept.scope,
        )
        self._coerce = coerce
        self._log = logging.getLogger(f"concertino.{name}")
        self._tools = Tools(page_size, kept, argument_errors)
        self._rooms = LazyFeatures(offer, self._in_thread, page_size, kept, self._log)
        self._rooms.ways["tools/list"] = self._tools.list
        self.watched: frozenset[str] = (
            frozenset()
        )  # URIs of the resources that clients subscribe to now
        self._starts = 0  # without their close()
        self._outlets: list[
            Notifier
        ] = []  # replaced by each change, so that any thread may read it
        self._threads = Threads(THREADS)
        self._lifespans = Lifespans()
        self._changing = threading.Lock()

    # Tools

    @overload
    def tool(self, handler: H) -> H: ...
    @overload
    def tool(
        self,
        *,
        name: str | None = None,
        title: str | None = None,
        description: str | None = None,
        read_only: bool | None = None,
        destructive: bool | None = None,
        idempotent: bool | None = None,
        open_world: bool | None = None,
        icons: list[Icon] | None = None,
        meta: dict[str, Any] | None = None,
        inline: bool = False,
        envelope: bool = False,
        **guards: Unpack[ToolGuards],
    ) -> Callable[[H], H]: ...
    def tool(self, handler: Handler | None = None, **settings: Any) -> Any:
        """ServerFeatures a function as a tool; as `@server.tool` or `@server.tool(title=...)`. Gives the function back.

        The name is the function's, the description its docstring's text, the input schema its parameters'; arguments are checked
        against it. An `async def` runs on the event loop, a `def` in a thread, or on the loop with inline=True if it is quick.
        What a generator yields is told as progress, and the whole is the result (server/streaming.py).
        read_only, destructive, idempotent, open_world: hints for clients (2025-03-26 and later). meta: `_meta` of the tool.
        Raises RegistrationError for what cannot be offered. See add_tool.
        """
        if handler is not None:
            self.add_tool(handler)
            return handler

        def decorate(handler: H) -> H:
            self.add_tool(handler, **settings)
            return handler

        return decorate

    def add_tool(
        self,
        handler: Handler,
        *,
        name: str | None = None,
        title: str | None = None,
        description: str | None = None,
        read_only: bool | None = None,
        destructive: bool | None = None,
        idempotent: bool | None = None,
        open_world: bool | None = None,
        icons: list[Icon] | None = None,
        meta: dict[str, Any] | None = None,
        inline: bool = False,
        input_schema: Mapping[str, Any] | None = None,
        output_schema: Mapping[str, Any] | None = None,
        envelope: bool = False,
        **guards: Unpack[ToolGuards],
    ) -> None:
        """ServerFeatures a tool; also while the server runs, and from any thread: clients are told.

        input_schema: JSON Schema 2020-12 written by hand, with type object at its root; the handler then takes the arguments as one
        dict. output_schema: one for what it returns, of any type. Both are shown as they are and enforced, which needs the extra
        `concertino[validate]`. envelope: what it returns is sent as `{"success": true, "data": ..., "metadata": {...}}`.
        rate_limit, max_in_flight, timeout_s, max_result_bytes, redact: a guard around this tool alone, as in Guard.
        The rest is as for tool().
        Raises RegistrationError naming the tool, what is wrong, and what to write.
        """
        settings = ToolSettings(
            name=name,
            title=title,
            description=description,
            read_only=read_only,
            destructive=destructive,
            idempotent=idempotent,
            open_world=open_world,
            icons=icons,
            meta=meta,
            inline=inline,
            input_schema=input_schema,
            output_schema=output_schema,
            envelope=envelope,
        )
        registered = register(
            self._lifespans.fill(handler),
            settings,
            coerce=self._coerce,
            version=self._rooms.offer.info.version,
            in_thread=self._in_thread,
        )
        if guards:
            from concertino.server.tool_guards import guard

            registered = guard(self, self._tools, registered, guards)
        self._tools.add(registered.tool.name, registered)
        self._tell("tools")

    def remove_tool(self, name: str) -> None:
        """ServerFeatures a tool no longer; calls under way go on. Raises KeyError if there is none of this name."""
        self._tools.remove(name)
        self._tell("tools")

    # Resources

    def resource(self, uri: str, **options: Unpack[ResourceOptions]) -> Callable[[H], H]:
        """ServerFeatures what a function returns as a resource: `@server.resource("config://app")`. Gives the function back.

        uri: absolute; or an RFC 6570 template such as `notes://{day}{?lang}`, whose variables are parameters of the function,
        converted to their types; those of a query need defaults. `{x}` never holds a slash, `{+path}` may; what else is allowed
        is at the head of schema/uri_template.py.
        The function returns text, bytes, JSON, ResourceContents or a list of these; None or ResourceNotFound: there is none.
        name: the function's, description: its docstring's text, unless given. size: in bytes. ttl_s, cache_scope: for how long, and
        by whom, clients of 2026-07-28 may keep the content; the server's unless given. meta: `_meta`.
        Raises RegistrationError for what cannot be offered.
        """
        if not isinstance(uri, str):  # pyright: ignore[reportUnnecessaryIsInstance]  # without parentheses, it is the function
            raise RegistrationError(
                f"resource: expected a URI, as in @server.resource('notes://today'), got {uri!r}"
            )

        def decorate(handler: H) -> H:
            self.add_resource(uri, handler, **options)
            return handler

        return decorate

    def add_resource(
        self,
        uri: str,
        handler: Handler | None = None,
        *,
        text: str | None = None,
        blob: bytes | None = None,
        path: str | PathLike[str] | None = None,
        **options: Unpack[ResourceOptions],
    ) -> None:
        """ServerFeatures a resource; also while the server runs, and from any thread: clients are told.

        Exactly one of handler (see resource()), text, blob and path. path: of a file that is read, in a thread, whenever a client
        asks for it; links are followed now and not later; text if it is UTF-8 and its type allows it. Options as for resource().
        """
        handler = handler and self._lifespans.fill(handler)
        self._rooms.resources.add(uri, handler, text, blob, path, ResourceSettings(**options))
        self._tell("resources")

    def remove_resource(self, uri: str) -> None:
        """ServerFeatures a resource, or a template, no longer. Raises KeyError if there is none of this URI."""
        self._rooms.resources.remove(uri)
        self._tell("resources")

    def resource_updated(self, uri: str) -> None:
        """Tell the clients that subscribed to this resource that its content has changed. From any thread."""
        self._each_outlet(lambda outlet: outlet.report_update(uri))

    def resources_changed(self) -> None:
        """Tell the clients that the list of resources has changed for a reason of its own. From any thread."""
        self._tell("resources")

    # Prompts

    @overload
    def prompt(self, handler: H) -> H: ...
    @overload
    def prompt(self, **options: Unpack[PromptOptions]) -> Callable[[H], H]: ...
    def prompt(self, handler: Handler | None = None, **options: Any) -> Any:
        """ServerFeatures a function as a prompt; as `@server.prompt` or `@server.prompt(title=...)`. Gives the function back.

        Its parameters are the arguments, required if they have no default; they come as texts and are converted to the types that
        the function wants. It returns a text, content, `user(...)` and `assistant(...)` messages, or a list of these.
        name: the function's, description: its docstring's text, unless given. meta: `_meta`.
        Raises RegistrationError for what cannot be offered.
        """
        if handler is not None:
            self.add_prompt(handler)
            return handler

        def decorate(handler: H) -> H:
            self.add_prompt(handler, **options)
            return handler

        return decorate

    def add_prompt(self, handler: Handler, **options: Unpack[PromptOptions]) -> None:
        """ServerFeatures a prompt; also while the server runs, and from any thread: clients are told. As for prompt()."""
        self._rooms.prompts.add(self._lifespans.fill(handler), PromptSettings(**options))
        self._tell("prompts")

    def remove_prompt(self, name: str) -> None:
        """ServerFeatures a prompt no longer. Raises KeyError if there is none of this name."""
        self._rooms.prompts.prompts.remove(name)
        self._tell("prompts")

    # Completion

    def complete(self, target: str, argument: str) -> Callable[[H], H]:
        """Let a function complete an argument of a prompt, or a variable of a template: `@server.complete("greet", "name")`.

        target: the prompt's name, or the template as it was given. The function takes the value so far and, if it has a second
        parameter, the other arguments as a dict; it returns texts, as many as it has, or a Completion. A Literal, an Enum or a bool
        needs none.
        Raises RegistrationError if there is no such prompt, template or argument.
        """

        def decorate(handler: H) -> H:
            self._rooms.add_completer(target, argument, self._lifespans.fill(handler))
            self._tell("features")
            return handler

        return decorate

    # What lives as long as the server

    def lifespan(self, function: L) -> L:
        """Let a generator function live from the start of the server to its end: `@server.lifespan`. Gives the function back.

        `async def` or `def`, without parameters, with one `yield`: what is before it runs at the start, while calls wait, what is
        after it at the end, in reverse order. The class in its annotation (`-> AsyncIterator[Database]`) is what handlers
        registered later may ask for: a parameter of that class gets what was yielded, and clients see nothing of it.
        Raises RegistrationError for what is no such function, and once the server has started.
        """
        self._lifespans.add(function)
        return function

    # Serving

    def run(
        self,
        *,
        limits: Limits | None = None,
        loop_factory: Callable[[], asyncio.AbstractEventLoop] | None = None,
    ) -> None:
        """Serve over stdin and stdout until the client is gone; then the process ends, so nothing after this line runs.

        As `concertino.run(server)`, which serves any backend: a guard around a server, or several composed.
        """
        run(self, limits=limits, loop_factory=loop_factory)

    def _tell(self, what: ChangeKind) -> None:
        """Something was added, or is gone."""
        self._rooms.offer_more()
        self._each_outlet(lambda outlet: outlet.report_change(what))

    def _each_outlet(self, tell: Callable[[Notifier], None]) -> None:
        for outlet in self._outlets:
            try:
                tell(outlet)
            except RuntimeError:  # its loop is closed: nobody is there to be told
                pass

    async def start(self, outlet: Notifier) -> None:
        with self._changing:
            self._starts += 1
            self._outlets = [*self._outlets, outlet]
        await self._lifespans.open()

    def features(self) -> ServerFeatures:
        return self._rooms.offer

    async def close(self) -> None:
        with self._changing:
            self._starts = max(
                0, self._starts - 1
            )  # a start() may have been cancelled before it began
            if self._starts:
                return  # which of several has ended is not known; its outlet reaches nobody, and stays until the last
            self._outlets = []
            threads, self._threads = self._threads, Threads(THREADS)
        threads.close()
        for tool in list(self._tools.entries.values()):
            if tool.guard is not None:
                await tool.guard.close()
        await self._lifespans.close()

    async def watch(self, uris: frozenset[str]) -> None:
        self.watched = uris

    def know(self, method: str, name: str) -> RegisteredTool | None:
        """What handle() takes for calls of this operation, so that it need not look for it each time; None if there is nothing."""
        tool = self._tools.entries.get(name) if method == "tools/call" else None
        return tool if tool is not None and tool.guard is None else None

    async def handle(
        self, call: Call, context: Context, known: RegisteredTool | None = None
    ) -> Struct | Raw:
        """known: the tool that is called, from know(); a guard around it has let the call through."""
        params = call.params
        if known is not None and not known.gone:
            tool = known
        elif call.method != "tools/call":
            return await self._rooms.answer(call, context)
        else:
            try:
                tool = self._tools.entries[_name(params["name"])]
            except (KeyError, DecodeError):
                raise no_tool(params) from None
            if tool.guard is not None:
                return await tool.guard.handle(call, context)
        try:
            args, kwargs = tool.bind(params.get("arguments", NO_ARGUMENTS), context)
            if tool.waits:
                value = await tool.handler(*args, **kwargs)
            elif tool.inline:
                value = await maybe_await(tool.handler(*args, **kwargs))
            else:
                value = await maybe_await(
                    await self._threads.run(partial(tool.handler, *args, **kwargs))
                )
            return tool.shape(value)
        except InvalidArguments as bad:
            return self._tools.bad_arguments(
                bad.violations, bytes(params.get("arguments", NO_ARGUMENTS)).lstrip()
            )
        except (ToolError, InvalidResult) as error:
            return tool_error_result(error)
        except (
            BaseException
        ) as error:  # SystemExit, GeneratorExit and their like too: no tool ends the server
            if context.cancelled:
                raise
            if (passing := find_passthrough(error)) is not None:
                raise passing from None
            self._log.exception("tool %s failed", tool.tool.name)
            return error_result(describe_exception(error))

    async def _in_thread(self, function: Callable[[], Any]) -> Any:
        return await self._threads.run(function)
