"""Server: an MCP server made of typed Python functions.

This module has the methods that authors of servers call. The methods that handle the requests of
clients are in the base class (server_backend.py). tools.py, resources.py, prompts.py and
completion.py call the functions of each kind.
"""

from __future__ import annotations

import asyncio
import atexit
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from os import PathLike
from types import FunctionType
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Unpack, cast, overload

from msgspec import Struct

from concertino.backend.interface import ServerFeatures
from concertino.errors import RegistrationError
from concertino.jsonrpc.limits import Limits
from concertino.loading import LazyDescription
from concertino.near_names import hint_keywords, hint_keywords_or
from concertino.runtime.entry import RUN_ADVICE, run
from concertino.server.functions import Handler, InThread
from concertino.server.server_backend import ServerBackend
from concertino.server.settings import (
    NO_VERSION,
    ServerSettings,
    cache_hints,
    check_setting,
    default_version,
    take_access,
    take_guards,
)
from concertino.server.tool_registration import make_tool, read_param_headers
from concertino.types.results import CacheScope, Icon, Implementation

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from concertino.http.asgi import AsgiApplication
    from concertino.http.server import HttpOptions
    from concertino.server.options import (
        PromptOptions,
        ResourceOptions,
        ToolGuards,
        ToolOptions,
        ToolSettings,
    )

__all__ = ["Server"]

F = TypeVar("F", bound=Callable[..., Any])
H = TypeVar("H", bound=Handler)
L = TypeVar("L", bound=Callable[[], Any])


def _show_options(kind: str) -> Callable[[F], F]:
    """Return a decorator that makes help() show the options of a method with `**options`.

    Looking them up takes 0.6 ms, so it is done when help() is called and not at import.
    kind: "tool", "prompt" or "resource".
    """

    def describe(function: FunctionType) -> None:
        from concertino.server.options import show_options_of

        show_options_of(kind, function)

    return lambda function: cast("Any", LazyDescription(cast("Any", function), describe))


class Server(ServerBackend):
    """An MCP server made of Python functions.

        server = Server("calculator")

        @server.tool
        def add(a: int, b: int) -> int:
            "Add two numbers."
            return a + b

        server.run()

    Decorate functions with `tool`, `resource` or `prompt`, then call `run()`. A Server is a
    Backend, an object that answers MCP requests, so compose() and Guard accept it, too.

    name: identifies the server for programs.
    version: the version that clients see. By default it is that of the project to which the calling
        file belongs: from the pyproject.toml next to the file or its package, or from the installed
        distribution. If there is neither, it is "0.0.0".
    title, description, website_url: describe the server for people. Arguments that are None are not
        sent to clients.
    instructions: advice for the model on how to use the tools.
    icons: pictures for a client's user interface.
    experimental, extensions: capabilities that the server declares to clients: name -> settings,
        which may be {}. The name of an extension needs a prefix, such as "com.example/name".
    argument_errors: the response to a tool call with invalid arguments. "result": a result with
        isError, which the model sees and can act on. "protocol": the JSON-RPC error -32602.
    coerce: whether tools accept strings for other types if they can be converted, such as `"1"` for
        an int.
    envelope: whether tools send their return value as the text
        `{"success": true, "data": ..., "metadata": {...}}`. The option `envelope` of tool()
        replaces this default for one tool.
    page_size: how many tools, prompts or resources one page of a list has.
    ttl_s: how many seconds clients of MCP 2026-07-28 may cache lists and the content of resources;
        with 0 they ask each time.
    cache_scope: who may share cached results: "public" for everybody, "private" for the same user
        only.
    Raises ValueError for an invalid argument; the text names it.
    """

    @hint_keywords
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
        envelope: bool = False,
        page_size: int = 1000,
        ttl_s: float = 0,
        cache_scope: CacheScope = "private",
    ) -> None:
        if argument_errors not in ("result", "protocol"):
            raise ValueError(
                f"argument_errors: expected 'result' or 'protocol', got {argument_errors!r}"
            )
        is_int = isinstance(page_size, int)  # pyright: ignore[reportUnnecessaryIsInstance]
        if not is_int or page_size < 1:
            raise ValueError(f"page_size: expected a positive number of items, got {page_size!r}")
        # An author who passes this version gets the same lookup as one who passes none.
        if version == NO_VERSION:
            version = default_version()
        info = check_setting(Implementation(name, version, title, description, website_url, icons))
        settings = check_setting(ServerSettings(instructions, experimental, extensions))
        hints = cache_hints(ttl_s, cache_scope)
        features = ServerFeatures(
            info,
            instructions=instructions,
            tools=True,
            logging=True,
            experimental=settings.experimental or {},
            extensions=settings.extensions or {},
            ttl_ms=hints.ttl_ms,
            cache_scope=hints.scope,
        )
        super().__init__(name, features, argument_errors, page_size, hints)
        self._coerce = coerce
        self.envelope = envelope

    # Tools

    @overload
    def tool(self, handler: H) -> H: ...
    @overload
    def tool(self, **options: Unpack[ToolOptions]) -> Callable[[H], H]: ...
    @_show_options("tool")
    def tool(self, handler: Handler | None = None, **options: Any) -> Any:
        """Register a function as a tool: `@server.tool` or `@server.tool(title=...)`.

        Returns the function unchanged. The function defines the tool:

        - The tool has the name of the function, and the description in its docstring.
        - The types of the parameters become the input schema. The arguments of each call are
          checked against it.
        - A parameter with the annotation Context gets the Context of the call. Clients do not see
          this parameter.
        - An `async def` runs on the event loop, a `def` in a thread, unless inline=True.
        - If the function is a generator, each value that it yields is sent as progress, and the
          result is the list of all these values.
        - If the function raises an exception, the client gets a result with isError. Raise
          ToolError to choose the text of this result.

        handler: the function, if the decorator is written without parentheses.
        Raises RegistrationError for an invalid function or option.
        """
        if handler is not None:
            self.add_tool(handler)
            return handler

        def decorate(handler: H) -> H:
            self.add_tool(handler, **options)
            return handler

        return decorate

    @_show_options("tool")
    def add_tool(self, handler: Handler, **options: Unpack[ToolOptions]) -> None:
        """Register a function as a tool, without a decorator.

        The tool gets the same name, description and input schema as with the decorator tool(). If
        the server is running, clients are notified that the list of tools has changed. May be
        called from any thread.
        handler: a function, a bound method, or another callable. One without a name, such as a
            partial, needs the option `name`.
        Raises RegistrationError for an invalid function or option. Its text says what to write.
        """
        values = cast("dict[str, Any]", options)
        name = str(options.get("name") or getattr(handler, "__name__", ""))
        # These two remove options from `values`; make_tool() gets the rest.
        access = take_access(values, f"tool {name!r}")
        guards = take_guards(values)
        if self.envelope:
            values.setdefault("envelope", True)
        tool = make_tool(
            self.fill(handler, inline=bool(values.get("inline"))),
            cast("ToolSettings", values),
            access,
            coerce=self._coerce,
            version=self._features.features.info.version,
            in_thread=self._threads.run,
            report_missing_types=self._registered_tools.report_missing_types,
        )
        tool.param_headers = read_param_headers(tool.tool)
        # These imports take time, and few tools have guards.
        if guards:
            from concertino.server.tool_guards import add_guard

            tool = add_guard(self, self._registered_tools, tool, cast("ToolGuards", guards))
        if access.is_limited:
            from concertino.server.access import LimitedTool

            call_tool = partial(self._registered_tools.call, tool)
            tool.guard = LimitedTool(self, tool.guard, call_tool, access)
        self._registered_tools.add(tool.tool.name, tool, handler, access)
        self._report_change("tools")

    def remove_tool(self, name: str) -> None:
        """Remove a tool, and notify clients. Running calls of the tool continue.

        Raises NotRegistered if no tool has this name.
        """
        self._registered_tools.remove(name)
        self._report_change("tools")

    def tools_changed(self) -> None:
        """Notify clients that the list of tools has changed.

        Call this method when a function in the option `visible` of a tool begins to return another
        value. add_tool(), remove_tool(), enable() and disable() notify clients themselves. May be
        called from any thread.
        """
        self._report_change("tools")

    # Resources

    @_show_options("resource")
    def resource(self, uri: str, **options: Unpack[ResourceOptions]) -> Callable[[H], H]:
        """Register a function that returns the content of a resource.

        Use it as a decorator, `@server.resource("config://app")`, which returns the function
        unchanged.

        uri: an absolute URI, or an RFC 6570 template such as `notes://{day}{?lang}`. The variables
            of a template are parameters of the function; their values are converted to the types of
            the parameters. Parameters for variables of a query, such as `lang`, need defaults. A
            value of `{x}` contains no slash, a value of `{+path}` may contain some.
            `concertino docs how-to/resources-and-prompts` shows all forms of variables.

        The function returns the content: text, bytes, JSON, ResourceContents or a list of these. If
        there is nothing at the URI, it returns None or raises ResourceNotFound. An `async def` runs
        on the event loop, a `def` in a thread, unless inline=True. A parameter with the annotation
        Context gets the Context of the call.
        Raises RegistrationError for an invalid function or option.
        """
        # `@server.resource` without parentheses passes the function as the URI.
        if not isinstance(uri, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise RegistrationError(
                f"resource: expected a URI, as in @server.resource('notes://today'), got {uri!r}"
            )

        def decorate(handler: H) -> H:
            self.add_resource(uri, handler, **options)
            return handler

        return decorate

    @_show_options("resource")
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
        """Register a resource, without a decorator.

        Pass exactly one of handler, text, blob and path; the others stay None. May be called from
        any thread. If the server is running, clients are notified that the list of resources has
        changed.

        uri: an absolute URI. With a handler, it may also be a template, such as `note://{id}`.
        handler: a function that returns the content. Its parameters have the names of the
            template's variables and get their values.
        text, blob: the content itself.
        path: a file, which is read in a thread whenever a client asks for the resource. Its content
            is sent as text if it is UTF-8 and its MIME type is a text type, otherwise as bytes.
            Symbolic links are resolved when the resource is added, not when the file is read.
        Raises RegistrationError for an invalid argument.
        """
        inline = bool(options.get("inline"))
        filled = None if handler is None else self.fill(handler, inline=inline)
        self._features.resources.add(uri, filled, text, blob, path, options, handler)
        self._report_change("resources")

    def remove_resource(self, uri: str) -> None:
        """Remove a resource or a resource template, and notify clients.

        uri: the URI or template that was registered.
        Raises NotRegistered if neither a resource nor a template has this URI.
        """
        self._features.resources.remove(uri)
        self._report_change("resources")

    def resource_updated(self, uri: str) -> None:
        """Notify the subscribers of a resource that its content has changed.

        May be called from any thread. Does nothing while disable() hides the resource.
        uri: the URI that clients read: for a resource template, a URI with values in place of the
            variables.
        """
        if self._features.is_disabled_resource(uri):
            return
        self._hosts.notify(lambda notifier: notifier.report_update(uri))

    @property
    def watched(self) -> frozenset[str]:
        """Return the URIs of the resources to which any client is subscribed now."""
        return self._hosts.watched

    def resources_changed(self) -> None:
        """Notify clients that the list of resources has changed. May be called from any thread.

        Call this method when a function in the option `visible` of a resource begins to return
        another value. add_resource(), remove_resource(), enable() and disable() notify clients
        themselves.
        """
        self._report_change("resources")

    # Prompts

    @overload
    def prompt(self, handler: H) -> H: ...
    @overload
    def prompt(self, **options: Unpack[PromptOptions]) -> Callable[[H], H]: ...
    @_show_options("prompt")
    def prompt(self, handler: Handler | None = None, **options: Any) -> Any:
        """Register a function as a prompt: `@server.prompt` or `@server.prompt(title=...)`.

        Returns the function unchanged. The function defines the prompt:

        - Its parameters are the arguments of the prompt. Those without a default are required.
          Clients send strings, which are converted to the types of the parameters.
        - A parameter with the annotation Context gets the Context of the call. Clients do not see
          this parameter.
        - It returns a text, a content block, a message made by user() or assistant(), or a list of
          these. A text or content block becomes a message of the user.

        handler: the function, if the decorator is written without parentheses.
        Raises RegistrationError for an invalid function or option.
        """
        if handler is not None:
            self.add_prompt(handler)
            return handler

        def decorate(handler: H) -> H:
            self.add_prompt(handler, **options)
            return handler

        return decorate

    @_show_options("prompt")
    def add_prompt(self, handler: Handler, **options: Unpack[PromptOptions]) -> None:
        """Register a function as a prompt, without a decorator.

        The prompt gets the same name, description and arguments as with the decorator prompt(). If
        the server is running, clients are notified that the list of prompts has changed. May be
        called from any thread.
        handler: a function that returns the text or the messages of the prompt.
        Raises RegistrationError for an invalid function or option.
        """
        filled = self.fill(handler, inline=bool(options.get("inline")))
        self._features.prompts.add(filled, options, handler)
        self._report_change("prompts")

    def remove_prompt(self, name: str) -> None:
        """Remove a prompt, and notify clients. Raises NotRegistered if no prompt has this name."""
        self._features.prompts.prompts.remove(name)
        self._report_change("prompts")

    def prompts_changed(self) -> None:
        """Notify clients that the list of prompts has changed.

        Call this method when a function in the option `visible` of a prompt begins to return
        another value. add_prompt(), remove_prompt(), enable() and disable() notify clients
        themselves. May be called from any thread.
        """
        self._report_change("prompts")

    # Completion

    def complete(self, target: str, argument: str) -> Callable[[H], H]:
        """Register a function that suggests values of an argument while the user types.

        Use it as a decorator, `@server.complete("greet", "name")`, which returns the function
        unchanged. Arguments whose type is a Literal, an Enum or bool need no such function: their
        values are suggested anyway.

        target: the name of a prompt, or a resource template as it was registered.
        argument: an argument of the prompt, or a variable of the template.

        The function gets the text that the user has typed so far. If it has a second parameter, it
        also gets the other arguments that the user has filled in already: name -> value, both
        strings. It returns a Completion, or strings, of which the client gets the first 100.
        Raises RegistrationError if there is no such prompt, template or argument.
        """

        def decorate(handler: H) -> H:
            self._features.add_completer(target, argument, self.fill(handler))
            self._report_change("features")
            return handler

        return decorate

    # Enabling and disabling

    def disable(self, *features: str | Handler, tags: Collection[str] = ()) -> None:
        """Hide tools, prompts and resources from all clients, until enable() shows them again.

        For clients, a hidden tool, prompt or resource ("feature") does not exist. Its running calls
        continue. If several calls of enable() and disable() select the same feature, the last one
        decides. May be called from any thread. Clients are notified once for each list that
        changes.

        features: names, URIs and templates as they were registered, or the decorated functions.
        tags: selects every feature with one of these tags, also features that are registered later.
        Raises NotRegistered for an unknown name, LookupError for an unknown function, and
        ValueError if neither features nor tags are given. If it raises, nothing is changed.
        """
        self._switch(features, tags, enabled=False)

    def enable(self, *features: str | Handler, tags: Collection[str] = ()) -> None:
        """Show tools, prompts and resources again that disable() has hidden.

        If several calls of enable() and disable() select the same tool, prompt or resource
        ("feature"), the last one decides. Clients are notified once for each list that changes.
        features: names, URIs and templates as they were registered, or the decorated functions.
        tags: selects every feature with one of these tags, also features that are registered later.
        Raises NotRegistered for an unknown name, LookupError for an unknown function, and
        ValueError if neither features nor tags are given. If it raises, nothing is changed.
        """
        self._switch(features, tags, enabled=True)

    def _switch(
        self, features: Sequence[str | Handler], tags: Collection[str], enabled: bool
    ) -> None:
        """Enable or disable features, and notify clients of the lists that change."""
        from concertino.server.access import switch

        registries, switches = self._features.registries(), self._registered_tools.switches
        for kind in switch(registries, switches, features, tags, enabled):
            self._report_change(kind)

    # Lifespan

    def lifespan(self, function: L) -> L:
        """Register a generator function that runs as long as the server: `@server.lifespan`.

        Returns the function unchanged. The function is an `async def` or a `def` without parameters
        and with one `yield`. The code before the `yield` runs when the server starts, while calls
        wait. The code after the `yield` runs when the server ends. Several such functions start in
        the order of registration and end in reverse order.

        The return annotation names the class of the yielded value: `-> AsyncIterator[Database]`. A
        parameter `db: Database` of a tool, prompt or resource that is registered later gets this
        value in each call. Clients do not see the parameter.
        Raises RegistrationError for any other function, and after the server has started.
        """
        self._filled.add_lifespan(function)
        return function

    # Dependencies

    def override(
        self, provider: Callable[..., Any], replacement: Callable[..., Any]
    ) -> AbstractContextManager[None]:
        """Replace a provider, the function in `Depends(provider)`, inside a `with` block.

        Tests use it: `with server.override(get_session, get_fake_session): ...`
        provider: the function that is replaced.
        replacement: the function to call instead; anything that Depends() accepts.
        Raises LookupError if no function that is registered with this server uses the provider, and
        RegistrationError for an unsuitable replacement.
        """
        return self._filled.dependencies().override(provider, replacement)

    def fill(
        self,
        handler: H,
        *,
        inline: bool = False,
        in_thread: InThread | None = None,
    ) -> H:
        """Return a wrapper that calls a handler with its lifespan values and dependencies.

        A handler is the function of a tool, prompt, resource or completion. The wrapper has all
        parameters of the handler except those for the values of lifespan() and those with Depends.
        If the handler has no such parameters, the handler itself is returned. add_tool() and the
        other methods that register handlers already call this method.
        inline: whether a `def` runs on the event loop and not in a thread.
        in_thread: in_thread(function) calls a function in a thread, and returns an awaitable of its
            result. None for the threads of this server.
        """
        return self._filled.fill(handler, inline, in_thread)

    # Running the server

    @hint_keywords_or(RUN_ADVICE)
    def run(
        self,
        *,
        http: str | None = None,
        http_options: Struct | None = None,
        limits: Limits | None = None,
        loop_factory: Callable[[], asyncio.AbstractEventLoop] | None = None,
    ) -> None:
        """Serve over stdin and stdout until the client disconnects, then end the process.

        This method does not return, so no code after the call runs. There is one exception: while
        the command `concertino serve` imports the file, the method returns at once, and the command
        serves this server. `concertino.run(backend)` does the same for any backend, such as a guard
        around a server or several composed servers.

        http: None to serve over stdin and stdout; an address, HOST:PORT or unix:PATH, to serve over
            HTTP at it until SIGTERM. Clients use the URL http://HOST:PORT/mcp. Needs the extra
            `http` (see `concertino docs install`).
        http_options: an HttpOptions of concertino.http, only together with `http`; None for its
            defaults. An address that other machines can reach needs some of the options:
            authorization, TLS and the public URL.
        limits: the limits for each connection. None for the defaults of Limits and the environment
            variables that replace them, such as CONCERTINO_MAX_IN_FLIGHT.
        loop_factory: makes the event loop, such as uvloop.new_event_loop; None for asyncio's own.
        Raises RuntimeError if another module is importing the calling file, because that import
        would never end.
        """
        run(self, http=http, http_options=http_options, limits=limits, loop_factory=loop_factory)

    def asgi(
        self,
        path: str = "/mcp",
        *,
        options: HttpOptions | None = None,
        limits: Limits | None = None,
    ) -> AsgiApplication:
        """Return an ASGI application, for uvicorn, Starlette, FastAPI or Django.

        Needs the extra `http` (see `concertino docs install`). `AsgiApplication(backend)` of
        `concertino.http` does the same for any backend.
        path: the path of the MCP endpoint, below the path at which the application is mounted. The
            application also serves MCP at the path of the mount itself.
        options: the settings of the HTTP server; None for the defaults of HttpOptions.
        limits: the limits for each session; None for the same limits as in run().
        """
        from concertino.http.asgi import AsgiApplication

        return AsgiApplication(self, path, options, limits)


def _report_unserved_script() -> None:
    """Report that the script has made a server and never served it. Called when the process ends.

    Code that serves a backend imports runtime/host.py. If it was imported, nothing is reported.
    """
    if "concertino.runtime.host" not in sys.modules:
        from concertino.server.unserved import report_unserved_script

        report_unserved_script(Server)


atexit.register(_report_unserved_script)
