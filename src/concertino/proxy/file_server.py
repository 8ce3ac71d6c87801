"""FileServer: one server of a server file as a Backend, with the options of its entry.

A FileServer wraps the server's Proxy, from the inside outwards, in PinnedTools (if the entry has
`pin`), a Guard, a Transform and FeaturesAsTools. Each wrapper exists only if the options need it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Raw, Struct

from concertino.backend.caller import CallerSession
from concertino.backend.interface import (
    Backend,
    Call,
    ChangeKind,
    Context,
    Notifier,
)
from concertino.backend.wrappers import BackendWrapper, NotifierWrapper, pass_client_notification
from concertino.errors import ConcertinoError
from concertino.protocol.call import ServerFeatures
from concertino.proxy.approvals import ToolPins
from concertino.proxy.features import features_before_start
from concertino.proxy.manifest_cache import ManifestCache
from concertino.proxy.pinned_tools import PinnedTools
from concertino.proxy.proxy import Proxy
from concertino.proxy.server_launch import UnreadLaunch, read_launch_secrets
from concertino.proxy.server_options import GUARD_KEYS, ServerOptions
from concertino.proxy.tool_options import merge_renames

__all__ = ["START_S", "FileServer", "WithheldServer"]

log = logging.getLogger("concertino.proxy")

# The default limit for the start of a server, in seconds. npx and uvx may have to install the
# server first, which takes long.
START_S = 300.0
GUARD_OPTIONS = ("allow", "deny", *GUARD_KEYS)


class FileServer:
    """A Backend for one server of a server file.

    start() runs the server's program or connects to its address. If start() fails, it may be called
    again.
    name: the name of the server in the file.
    launch: the program or the address. It contains references to secrets, which start() reads.
    options: the options of the entry.
    start_timeout_s: how long the start may take, in seconds; None for 300.
    pin: called with a Backend; returns a PinnedTools around it, which withholds changed tools. None
        if the entry does not have the option `pin`.
    cache: stores the features and lists of servers for their next start; None to store none. With
        `pin`, the cache is not used.
    """

    def __init__(
        self,
        name: str,
        launch: UnreadLaunch,
        options: ServerOptions,
        *,
        start_timeout_s: float | None = None,
        pin: Callable[[Backend], PinnedTools] | None = None,
        cache: ManifestCache | None = None,
    ) -> None:
        self.name = name
        self.launch = launch
        self.options = options
        self.start_timeout_s = start_timeout_s
        self._pin = pin
        # With `pin`, the approved tools must be compared with those of the running server, and not
        # with those of its last run. So do not use the cache.
        self._cache = cache if options.cache and pin is None else None
        # The wrapper that withholds changed tools, if there is one.
        self._pinned: PinnedTools | None = None
        # Sends notifications to the clients; None before start().
        self._outlet: Notifier | None = None
        # The started server, without guards and transforms; None before start().
        self._server: _StartedServer | None = None
        # The outermost wrapper of the started server, to which calls go; None before start().
        self._served: Backend | None = None
        self._features_before_start = features_before_start(name)

    async def start(self, outlet: Notifier) -> None:
        """Read the secrets, then start the server or connect to it.

        Raises ConcertinoError if a secret cannot be read, the server cannot be started or reached,
        or an option cannot be applied.
        """
        target = await read_launch_secrets(self.launch)
        try:
            proxy = Proxy(
                target,
                name=self.name,
                connect_s=self.start_timeout_s or START_S,
                isolation="shared" if self.options.shared else self.options.isolation,
                idle_s=self.options.idle_s,
                ping_s=self.options.ping_s,
                heartbeat_s=self.options.heartbeat_s,
                cache=self._cache,
                lazy=self.options.lazy,
            )
        except ValueError as exc:
            raise ConcertinoError(str(exc)) from None
        server: Backend = proxy
        if self._pin is not None:
            self._pinned = self._pin(proxy)
            server = self._pinned
        # Passes on the notifications of the server. Each time that _wrap() makes other wrappers,
        # `relay.outlet` becomes the innermost of them.
        relay = NotifierWrapper(outlet)
        started = _StartedServer(server, relay)
        try:
            await server.start(relay)
            await self._wrap(started, outlet)
        except BaseException as exc:
            await proxy.close()
            if type(exc) is ConcertinoError:
                # Remove the name of the server, because the composition adds it, too. A derived
                # class has attributes, so its errors are passed on as they are.
                raise ConcertinoError(str(exc).removeprefix(f"{self.name}: ")) from None
            raise
        self._outlet, self._server = outlet, started

    async def _wrap(self, server: Backend, outlet: Notifier) -> None:
        """Wrap a started server in the wrappers that its options need, and use the result.

        outlet: gets the notifications of the server.
        Raises ConcertinoError if the environment variable for a hidden argument is not set.
        """
        options = self.options
        guards: dict[str, Any] = {
            name: value for name in GUARD_OPTIONS if (value := getattr(options, name))
        }
        served = server
        if guards:
            from concertino.guards.guard import Guard

            served = Guard(served, **guards)
        if options.tools or options.rename:
            from concertino.transforms.transform import Transform

            served = Transform(served, tools=merge_renames(options.tools, options.rename))
        if options.prompts_as_tools or options.resources_as_tools:
            from concertino.transforms.features_as_tools import FeaturesAsTools

            served = FeaturesAsTools(
                served,
                prompts=options.prompts_as_tools,
                resources=options.resources_as_tools,
            )
        # Starts the wrappers only: _StartedServer does not start the server again.
        await served.start(outlet)
        self._served = served

    async def set_options(self, options: ServerOptions) -> None:
        """Apply other options to the running process, and notify clients that lists have changed.

        If the new options cannot be applied, logs the reason and keeps the present options.
        """
        previous, self.options = self.options, options
        if self._server is None or self._outlet is None:
            return
        try:
            await self._wrap(self._server, self._outlet)
        except ConcertinoError as exc:
            # The next reload of the file compares the options in the file with `options`, finds a
            # difference, and tries the new options again.
            self.options = previous
            log.error("%s: %s; its options stay as they were", self.name, exc)
            return
        self._report_changes()

    def set_pins(self, pins: ToolPins | None) -> None:
        """Set which tools the user has approved, and notify clients if the list has changed.

        pins: the approvals of this server; None if there are none.
        """
        if self._pinned is not None and self._pinned.set_pins(pins):
            self._report_changes()

    def _report_changes(self) -> None:
        if self._outlet is None:
            return
        changes: tuple[ChangeKind, ...] = ("features", "tools", "prompts", "resources")
        for kind in changes:
            self._outlet.report_change(kind)

    def features(self) -> ServerFeatures:
        """Return the features of the server. Before the start, every feature is declared."""
        if self._served is None:
            return self._features_before_start
        return self._served.features()

    async def handle(self, call: Call, context: Context) -> Struct | Raw:
        return await self._require_served().handle(call, context)

    async def watch(self, uris: frozenset[str]) -> None:
        await self._require_served().watch(uris)

    def on_client_notification(
        self,
        session: CallerSession,
        method: str,
        params: Mapping[str, Raw],
    ) -> None:
        if self._served is not None:
            pass_client_notification(self._served, session, method, params)

    async def close(self) -> None:
        if self._served is not None:
            await self._served.close()

    def _require_served(self) -> Backend:
        assert self._served is not None, "a composition calls only parts that have started"
        return self._served


class _StartedServer(BackendWrapper):
    """A server that runs already, and around which wrappers such as a Guard are replaced.

    The start() of a wrapper also calls start() of the Backend inside the wrapper. The start() of
    this class does not start the server again: it only sets which Notifier gets the server's
    notifications.
    """

    def __init__(self, inner: Backend, relay: NotifierWrapper) -> None:
        super().__init__(inner)
        self._relay = relay

    async def start(self, outlet: Notifier) -> None:
        self._relay.outlet = outlet


class WithheldServer:
    """A Backend for a server that may not run, because its entry is wrong or is not approved.

    start() raises ConcertinoError with the reason, and so does every call.

    name: the name of the server in the file.
    reason: why the server may not run, and what the user can do.
    """

    def __init__(self, name: str, reason: str) -> None:
        self.name = name
        self.reason = reason
        self._features = ServerFeatures(features_before_start(name).info)

    async def start(self, outlet: Notifier) -> None:
        """Raise ConcertinoError with the reason."""
        raise ConcertinoError(self.reason)

    def features(self) -> ServerFeatures:
        return self._features

    async def handle(self, call: Call, context: Context) -> Struct | Raw:
        raise ConcertinoError(self.reason)

    async def watch(self, uris: frozenset[str]) -> None:
        """Do nothing: there are no resources to subscribe to."""

    async def close(self) -> None:
        """Do nothing: no server has been started."""
