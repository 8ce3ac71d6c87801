"""Plugin: typed Python functions as a plugin of an Orchestra hub.

    from concertino import Plugin
    plugin = Plugin("tools.greeter")

    @plugin.tool
    def greet(name: str) -> str:
        "Greet somebody."
        return f"Hello, {name}!"

    plugin.run()

A Plugin is a Server, so `concertino serve` can also serve the same file alone, without a hub.
Plugin adds the features of the plugin protocol that MCP servers do not have: storage for other
plugins, events, functions that run at start and shutdown, and the manifest. plugin_requests.py
answers the hub's requests, and plugin_main.py runs the process.

This module can be imported without the extra `orchestra`, so that `concertino.Plugin` exists in
every installation. Creating a Plugin needs the extra.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from concertino.errors import Disconnected, RegistrationError, ToolError
from concertino.near_names import hint_keywords
from concertino.orchestra.plugin_hooks import LifecycleHooks
from concertino.orchestra.storage import DEFAULT_STORAGE, Storage
from concertino.runtime import entry
from concertino.server.server import Server

if TYPE_CHECKING:
    from concertino.orchestra.plugin_messages import PluginManifest, PluginRequest
    from concertino.orchestra.rpc_interface import RemotePeer, Responses, RpcConnection

__all__ = ["Plugin"]

F = TypeVar("F", bound=Callable[..., Any])
# The plugin protocol has no pagination, so one page must contain every entry of a list.
PAGE_SIZE = 1_000_000


class Plugin(Server):
    """A plugin made of Python functions. Decorate them with `tool` and `prompt`, as for a Server.

        plugin = Plugin("tools.greeter")
        plugin.tool(greet)
        plugin.run()

    id: the plugin's name at the hub and in its certificate, e.g. `tools.greeter`.
    version, description, author: strings in the manifest, for people.
    needs_storage, needs_tools, needs_ai, needs_events: the names of the storage types, tools, AI
        providers and topics of other plugins that this plugin uses. The hub does not check them.
    provides_ai: the names of the AI providers, such as "openai", that the plugin gives access to. A
        call of a tool may name an AI provider. The hub then sends the call to a plugin that gives
        access to this provider, even if other plugins have a tool of the same name.
    provides_events: the topics under which the plugin publishes events. They are in the list of
        topics that MCP clients get from the hub.
    coerce: whether to accept strings for arguments of other types if they can be converted, such as
        `"1"` for an int.
    Raises CertificateError for an id that a certificate cannot contain, ValueError if any other
    argument is invalid for a Server, and ImportError if the extra `orchestra` is not installed.

    Attributes:
    hub: the connection to the hub, for requests to other plugins. It is None before run(), and if
        the plugin was started without the hub's address.
    on_end: called without arguments when the hub asks the plugin to end. run() sets it.
    """

    @hint_keywords
    def __init__(
        self,
        id: str,
        *,
        version: str = "0.0.0",
        description: str = "",
        author: str = "",
        needs_storage: Sequence[str] = (),
        needs_tools: Sequence[str] = (),
        needs_ai: Sequence[str] = (),
        needs_events: Sequence[str] = (),
        provides_ai: Sequence[str] = (),
        provides_events: Sequence[str] = (),
        coerce: bool = False,
    ) -> None:
        # Imported here because they need the extra `orchestra`; see the module's docstring.
        from concertino.orchestra.certificates import check_name
        from concertino.orchestra.plugin_events import EventHandlers
        from concertino.orchestra.plugin_messages import PluginManifest
        from concertino.orchestra.plugin_requests import PluginRequests

        super().__init__(
            check_name(id),
            version=version,
            description=description or None,
            # Invalid arguments raise RpcError, so that the hub gets the error `validation_error`.
            argument_errors="protocol",
            page_size=PAGE_SIZE,
            coerce=coerce,
        )
        self.hub: RpcConnection | None = None
        self.on_end: Callable[[], None] = _do_nothing
        self._base_manifest = PluginManifest(
            id=id,
            version=version,
            language="python",
            description=description,
            author=author,
            needs_storage=needs_storage,
            needs_tools=needs_tools,
            needs_ai=needs_ai,
            needs_events=needs_events,
            provides_ai=provides_ai,
            provides_events=provides_events,
        )
        self._storages: dict[str, Storage] = {}
        self._lifecycle = LifecycleHooks(logging.getLogger(f"concertino.{id}"))
        self._events = EventHandlers(id, self._threads.run)
        # run() sets on_end and hub later, so the last two arguments look them up when called.
        self._requests = PluginRequests(
            name=id,
            backend=self,
            has_tool=lambda name, context: self._registered_tools.find(name, context) is not None,
            # A dict: name -> registered prompt.
            prompt_names=lambda: self._features.prompts.prompts.entries,
            storages=self._storages,
            in_thread=self._threads.run,
            hooks=self._lifecycle,
            events=self._events,
            on_shutdown=lambda: self.on_end(),
            hub=lambda: self.hub,
        )

    def resource(self, uri: str, **options: Any) -> NoReturn:
        """Raise RegistrationError for any `uri`: the plugin protocol has no resources."""
        raise RegistrationError(
            f"{uri}: the plugin protocol has no resources; "
            "offer a tool, or storage with add_storage()"
        )

    def add_storage(self, storage: Storage, kind: str = DEFAULT_STORAGE) -> None:
        """Provide storage for other plugins.

        storage: a store such as MarkdownStorage or SqliteStorage. Its methods run in threads.
        kind: the storage type, a name such as "markdown". The hub sends the requests that name this
            type to the plugin.
        Raises RegistrationError if the plugin already provides this kind.
        """
        if kind in self._storages:
            raise RegistrationError(f"storage {kind!r}: this type is already provided")
        self._storages[kind] = storage

    def on_boot(self, function: F) -> F:
        """Register a function to run at the start, before the first call: `@plugin.on_boot`.

        The function may be `async def` or `def`. Its argument is a dict of strings: the key
        `config` of the plugin's entry in the hub's plugins file. If the function raises an
        exception, the plugin does not start, and the hub gets the exception's text.
        Returns the function.
        """
        self._lifecycle.boot.append(function)
        return function

    def on_shutdown(self, function: F) -> F:
        """Register a function to run once when the plugin shuts down: `@plugin.on_shutdown`.

        The function may be `async def` or `def`, and takes no arguments. It runs when the hub
        requests the end, on SIGTERM or SIGINT, and when the hub has ended. The function that was
        registered last runs first.
        Returns the function.
        """
        self._lifecycle.shutdown.append(function)
        return function

    def on_event(self, topic: str, filters: Mapping[str, str] | None = None) -> Callable[[F], F]:
        """Return a decorator that registers a function for the events of a topic.

        Use it as `@plugin.on_event("orders")`. The function may be `async def` or `def`. Its
        argument is an Event (orchestra/plugin_events.py). An event may call several functions.

        The hub sends the next event when the function has returned, or has raised an exception,
        which is logged. If this process ends before that, the hub sends the event again.

        topic: "*" for all topics. A hub of the Go implementation sends only the events whose topics
            other functions or `needs_events` name.
        filters: key of the event's payload -> the string that its value must equal. The function is
            not called for other events. None for all events of the topic.
        """

        def register(function: F) -> F:
            self._events.add(topic, filters or {}, function)
            return function

        return register

    async def publish(
        self, topic: str, payload: Mapping[str, Any], type: str = "", *, audience: str = ""
    ) -> None:
        """Publish an event for all plugins and clients that have subscribed to its topic.

        Returns when the hub has accepted the event.

        topic: any name but "*", such as "orders".
        payload: a JSON object, of at most about 1 MiB.
        type: what has happened, such as "created"; may be empty.
        audience: the user whose MCP clients get the event, as `SUBJECT` or `ISSUER SUBJECT` (the
            fields of Principal). "" for the clients of all users. Plugins always get the event.
        Raises:
            Disconnected: the plugin has no hub, or the connection is lost.
            TimedOut: the hub does not answer.
            ToolError: the hub refuses the event.
            NotAStruct: the payload cannot be written as JSON.
            PackedTooLarge, FrameTooLarge: the payload does not fit into a message.
        """
        from concertino.orchestra.plugin_events import publish_request

        if self.hub is None:
            raise Disconnected(f"{self.name} has no hub that could pass events on")
        request = publish_request(topic, payload, type, self.name, audience)
        response = await self.hub.request(request)
        # The error response to a request of any kind is a failed tool_call.
        if response.HasField("tool_call"):
            raise ToolError(response.tool_call.error_code, response.tool_call.error_message)

    def manifest(self) -> PluginManifest:
        """Return the plugin's manifest, which the hub gets when the plugin registers.

        It has the arguments of Plugin(), the names of the tools, prompts and storage types, and the
        subscriptions to events.
        """
        # Copy the manifest. Its class is imported in __init__() only.
        manifest = type(self._base_manifest)()
        manifest.CopyFrom(self._base_manifest)
        manifest.provides_tools.extend(self._registered_tools.entries)
        manifest.provides_prompts.extend(self._features.prompts.prompts.entries)
        manifest.provides_storage.extend(self._storages)
        manifest.subscriptions.extend(self._events.subscriptions())
        topics = self._events.topics()
        manifest.needs_events.extend(item for item in topics if item not in manifest.needs_events)
        return manifest

    def run(  # type: ignore[override]
        self, arguments: Sequence[str] | None = None, **options: Any
    ) -> None:
        """Run the plugin until the hub or a signal ends it, and then end the process.

        Does not return. Only while `concertino serve FILE` imports the plugin's file, run() records
        `options` and returns, because that command itself serves the plugin.

        arguments: command-line flags (see --help); None for the flags of this process.
        options: the options of Server.run(), for `concertino serve FILE`.
        """
        if entry.run_calls.get() is not None:
            super().run(**options)
            return
        from concertino.orchestra.plugin_main import run

        run(self, arguments)

    def answer(self, request: PluginRequest, peer: RemotePeer) -> Awaitable[Responses]:
        """Answer one request of the hub, with the response or with an error response.

        This method is a RequestHandler (rpc_interface.py), and so gets the peer, which is the hub.
        """
        handler = self._requests.handlers.get(request.WhichOneof("request") or "")
        return self._requests.refuse(request) if handler is None else handler(request)

    async def shut_down(self) -> bool:
        """Run the on_shutdown functions, once. Returns whether all of them succeeded."""
        return await self._lifecycle.run_shutdown()


def _do_nothing() -> None:
    pass
