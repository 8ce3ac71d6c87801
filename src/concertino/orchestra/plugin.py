"""Plugin: typed Python functions as a plugin of an Orchestra hub, concertino's or upstream's.

    from concertino import Plugin
    plugin = Plugin("tools.greeter")

    @plugin.tool
    def greet(name: str) -> str:
        "Greet somebody."
        return f"Hello, {name}!"

    plugin.run()

A Plugin is a Server, so `concertino serve` can also serve the same file alone, without a hub. It
adds the parts of the plugin protocol that MCP servers do not have: storage, functions to run at
start and shutdown, and the manifest.
plugin_requests.py answers the hub, and plugin_main.py runs the process.

The extra `orchestra` is loaded when a Plugin is created, so that this module, and therefore
`concertino.Plugin`, can be imported without it.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from concertino.errors import RegistrationError
from concertino.near_names import hint_keywords
from concertino.orchestra.plugin_hooks import LifecycleHooks
from concertino.orchestra.storage import DEFAULT_STORAGE, Storage
from concertino.runtime import entry
from concertino.server.server import Server

if TYPE_CHECKING:
    from concertino.orchestra.plugin_messages import PluginManifest, PluginRequest, PluginResponse
    from concertino.orchestra.rpc_interface import RemotePeer, RpcConnection

__all__ = ["Plugin"]

F = TypeVar("F", bound=Callable[..., Any])
# Entries in one page of a list. The plugin protocol has no pages, so one page must hold all.
PAGE_SIZE = 1_000_000


class Plugin(Server):
    """A plugin made of Python functions. Decorate them with `tool` and `prompt`, as for a Server.

    id: the plugin's name at the hub and in its certificate, e.g. `tools.greeter`.
    version, description, author: shown to people.
    needs_storage, needs_tools, needs_ai, needs_events: the requirements that the manifest declares.
    coerce: as for Server.

    Raises ValueError as Server does, CertificateError for an id that a certificate cannot hold,
    and ImportError when the extra `orchestra` is not installed.

    hub: gives access to the tools and storage of other plugins while the hub is connected.
    on_end: called when the hub asks the plugin to end.
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
        coerce: bool = False,
    ) -> None:
        # Imported here because they need the extra `orchestra`; see the module's docstring.
        from concertino.orchestra.certificates import check_name
        from concertino.orchestra.plugin_messages import PluginManifest
        from concertino.orchestra.plugin_requests import PluginRequests

        super().__init__(
            check_name(id),
            version=version,
            description=description or None,
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
        )
        self._storages: dict[str, Storage] = {}
        self._lifecycle = LifecycleHooks(logging.getLogger(f"concertino.{id}"))
        self._requests = PluginRequests(
            id,
            self,
            self._tools,
            lambda: self._features.prompts.prompts.entries,
            self._storages,
            self._threads.run,
            self._lifecycle,
            lambda: self.on_end(),
        )

    def resource(self, uri: str, **options: Any) -> NoReturn:
        """Raise RegistrationError: the plugin protocol has no resources."""
        raise RegistrationError(
            f"{uri}: the plugin protocol has no resources; "
            "offer a tool, or storage with add_storage()"
        )

    def add_storage(self, storage: Storage, kind: str = DEFAULT_STORAGE) -> None:
        """Provide storage for other plugins, which the hub finds by its kind.

        storage: a store such as MarkdownStorage or SqliteStorage. Its methods are called in threads
        other than the event loop's.
        kind: the type of storage that other plugins ask for.
        Raises RegistrationError if the plugin already provides this kind.
        """
        if kind in self._storages:
            raise RegistrationError(f"storage {kind!r}: this type is already provided")
        self._storages[kind] = storage

    def on_boot(self, function: F) -> F:
        """Register a function to run when the hub sends the configuration: `@plugin.on_boot`.

        The function, `async def` or `def`, takes the configuration, a dict of strings. An exception
        makes the start fail, with its text as the reason. Returns the function.
        """
        self._lifecycle.boot.append(function)
        return function

    def on_shutdown(self, function: F) -> F:
        """Register a function to run once when the plugin shuts down: `@plugin.on_shutdown`.

        It runs whatever the reason for the shutdown, and takes no arguments. The function that was
        registered last runs first. Returns the function.
        """
        self._lifecycle.shutdown.append(function)
        return function

    def manifest(self) -> PluginManifest:
        """Return the description of the plugin that the hub gets."""
        manifest = type(self._base_manifest)()
        manifest.CopyFrom(self._base_manifest)
        manifest.provides_tools.extend(self._tools.entries)
        manifest.provides_prompts.extend(self._features.prompts.prompts.entries)
        manifest.provides_storage.extend(self._storages)
        return manifest

    def run(  # type: ignore[override]
        self, arguments: Sequence[str] | None = None, **options: Any
    ) -> None:
        """Run as a plugin until the hub or a signal ends it. Then the process exits.

        arguments: the command line, whose flags all plugins share (see --help); by default that of
        the process, without the program's name.
        options: as for Server.run(). They apply only to `concertino serve`: while it imports a
        file, this method only records the call, and the plugin is then served like any Server.
        """
        if entry.run_calls.get() is not None:
            super().run(**options)
            return
        from concertino.orchestra.plugin_main import run

        run(self, arguments)

    def answer(self, request: PluginRequest, peer: RemotePeer) -> Awaitable[PluginResponse | bytes]:
        """Answer one request of the hub. This method is a RequestHandler (rpc_interface.py)."""
        handler = self._requests.handlers.get(request.WhichOneof("request") or "")
        return self._requests.refuse(request) if handler is None else handler(request)

    async def shut_down(self) -> bool:
        """Run the on_shutdown functions, once. Returns whether all of them succeeded."""
        return await self._lifecycle.run_shutdown()


def _do_nothing() -> None:
    pass
