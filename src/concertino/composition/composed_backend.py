"""ComposedBackend: several backends, called parts, as one.

Each call, which is a client's request, goes to the part that has the tool, prompt or resource, with
the part's own name for it. Lists are concatenated in the order of the parts. This class adds and
removes parts, and passes notifications on. Objects of other modules do the rest of its work:

- part_starts.py starts the parts, and call_router.py sends calls to them.
- part_names.py names tools and prompts, and resource_owners.py knows which part lists a URI.
- composed_lists.py joins the lists.
- part_view.py translates names, URIs and task ids between a part and the clients.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from functools import partial

from msgspec import Raw, Struct

from concertino.backend.call_hooks import (
    CheckArguments,
    ParamHeaders,
    argument_check_of,
    param_headers_of,
)
from concertino.backend.caller import CallerSession
from concertino.backend.interface import (
    Backend,
    Call,
    ChangeKind,
    Context,
    Notifier,
    ServerFeatures,
    opens_with_handshake,
)
from concertino.backend.methods import KINDS, LIST_METHODS
from concertino.backend.wrappers import pass_client_notification
from concertino.composition.call_router import CallRouter
from concertino.composition.composed_features import ComposedFeatures
from concertino.composition.composed_lists import ComposedLists
from concertino.composition.part_calls import PartCalls
from concertino.composition.part_names import PartNames
from concertino.composition.part_pages import PartPages
from concertino.composition.part_starts import PartStarts, start_strictly
from concertino.composition.part_view import PartView
from concertino.composition.resource_directory import ResourceDirectory
from concertino.composition.resource_owners import ResourceOwners
from concertino.composition.rules import CompositionRules
from concertino.errors import RegistrationError
from concertino.types.results import Implementation

__all__ = ["ComposedBackend"]

log = logging.getLogger("concertino.composition")


class ComposedBackend:
    """A Backend that forwards each call to the part that has the tool, prompt or resource.

    It serves several backends, its parts, as one. compose() makes a ComposedBackend.

    info: the name and version of the server that clients see.
    names: translates names of tools and prompts between clients and parts.
    rules: the settings for the start, the lists and the removal of parts.

    Attributes:
    parts: name -> backend. Call change_parts() to change the parts.
    """

    def __init__(
        self,
        info: Implementation,
        parts: Mapping[str, Backend],
        names: PartNames,
        rules: CompositionRules,
    ) -> None:
        self.parts = dict(parts)
        self._names = names
        self._rules = rules
        self._starts = PartStarts(self.parts, rules, self._on_late_start)
        owners = ResourceOwners(rules.maps_uris, names.uri_prefix)
        # A part that was too slow for a list has changed the list when it answers.
        pages = PartPages(rules.list_limit_s, self.on_part_change, self._view_of)
        # Sends notifications to the clients: the argument of the latest start().
        self._outlet: Notifier | None = None
        # The URIs that clients subscribe to: the argument of the latest watch().
        self._watched: frozenset[str] = frozenset()
        self._directory = ResourceDirectory(self.parts, owners, pages, rules)
        self._lists = ComposedLists(names, owners, pages)
        self._calls = PartCalls(parts, rules.drain_s)
        self._features = ComposedFeatures(info)
        self._views: dict[str, PartView] = {}
        self._router = CallRouter(
            self.parts,
            names,
            self._starts,
            self._directory,
            self._calls,
            self._view_of,
            pages.report_failure,
            maps_uris=rules.maps_uris,
        )

    @property
    def failures(self) -> Mapping[str, str]:
        """Return name -> reason for each part that has failed to start, in its last attempt."""
        return self._starts.failures

    async def start(self, outlet: Notifier) -> None:
        """Start all parts concurrently, then check that no two of them list the same resource.

        If `rules.strict` is True, waits for all parts. Otherwise waits `rules.start_s` seconds, or
        longer if no part has started by then; slow parts go on starting in the background.
        outlet: the notifier that sends notifications to the clients.
        Raises ConcertinoError, which names the parts, if all parts fail, or if one part fails and
        `rules.strict` is True. Raises RegistrationError if two parts list the same resource, unless
        `rules.maps_uris` is True.
        """
        self._outlet = outlet
        if self._rules.strict:
            await start_strictly(self.parts, self._notifier_of)
        else:
            await self._starts.start(self._notifier_of)
        clashes = await self._directory.ask_parts(self._router.parts_with("resources"))
        if clashes and not self._rules.maps_uris:
            # The error names only the first clash.
            uri, (first, second) = next(iter(clashes.items()))
            raise RegistrationError(
                f"compose: both {first} and {second} have the resource {uri}; remove one, or "
                "give it another URI"
            )
        self._directory.report(clashes)

    def _view_of(self, name: str) -> PartView:
        """Return the PartView of a part, which translates its names, URIs and task ids."""
        view = self._views.get(name)
        if view is None:
            view = PartView(name, self._names, self._directory.owners, self._mark_change)
            self._views[name] = view
        return view

    def _notifier_of(self, name: str) -> Notifier:
        """Return the notifier that a part gets: it passes notifications on to the clients."""
        return _PartNotifier(self, name, self._outlet)

    async def change_parts(self, parts: Mapping[str, Backend]) -> None:
        """Serve these parts from now on instead of the present ones.

        - A part that is the same object as before is not affected.
        - A new part is started in the background.
        - A part that is removed or replaced is closed in the background, when its calls have ended,
          but after `rules.drain_s` seconds at the latest.
        - Clients are notified that the features and all lists have changed.

        parts: name -> backend, in the order that lists will have.
        """
        # This method awaits nothing, so a change never overlaps with another change or with
        # close().
        before = dict(self.parts)
        removed = {name: part for name, part in before.items() if parts.get(name) is not part}
        # The starts, the directory and the router use the same dict.
        self.parts.clear()
        self.parts.update(parts)
        self._names.set_parts(parts)
        for name, part in removed.items():
            start = self._starts.forget(name)
            self._directory.forget(name)
            self._views.pop(name, None)
            self._calls.remove(name, partial(_close_after_start, start, name, part))
        for name, part in parts.items():
            if before.get(name) is not part:
                self._calls.add(name)
                self._starts.begin(name, self._notifier_of(name))
        self._directory.has_changed = True
        self._lists.forget()
        self._report_changes()

    async def _on_late_start(self, name: str) -> None:
        """Handle the start, or the failure, of a part after the composition has started.

        Notifies clients that the lists have changed, and tells the part which resources clients
        subscribe to.
        """
        self._directory.has_changed = True
        self._lists.forget()
        if self._starts.serves(name):
            log.info("%s has started", name)
            if self._watched:
                # Other parts may list URIs that clients watch, too, so tell all parts again.
                try:
                    await self.watch(self._watched)
                except Exception:
                    log.exception("%s could not watch resources", name)
        self._report_changes()

    def _report_changes(self) -> None:
        kinds: tuple[ChangeKind, ...] = ("features", "tools", "prompts", "resources")
        for kind in kinds:
            self._report_change(kind)

    def _report_change(self, kind: ChangeKind) -> None:
        if self._outlet is not None:
            self._outlet.report_change(kind)

    def features(self) -> ServerFeatures:
        """Return the union of the features of all parts, except those that have failed to start."""
        features = {
            name: part.features()
            for name, part in self.parts.items()
            if name not in self._starts.failures
        }
        return self._features.join(features)

    async def handle(self, call: Call, context: Context) -> Struct | Raw:
        """Forward a call to the part that has the tool, prompt or resource, and return its result.

        A call waits until its part has started or failed. A request for a list returns the lists of
        all parts, one after the other. It waits for parts that are still starting, at most until
        `rules.lists_s` seconds after the start has begun.
        Raises RpcError if no part is found or if the part has failed to start. Also raises the
        errors of the part.
        """
        method = call.method
        if (listing := LIST_METHODS.get(method)) is not None:
            await self._starts.wait_for_lists()
            if listing.kind == "resource":
                await self._router.refresh_owners()
            return await self._lists.get(
                listing,
                list(self._router.parts_with(f"{listing.kind}s")),
                call,
                context,
                is_complete=not self._starts.starting,
            )
        if method == "resources/read":
            return await self._router.read(call, context)
        if method in KINDS:
            return await self._router.call_by_name(call, context, KINDS[method])
        if method == "completion/complete":
            return await self._router.complete(call, context)
        return await self._router.call_other(call, context)

    async def watch(self, uris: frozenset[str]) -> None:
        """Tell each part which of its resources clients subscribe to, by calling its watch().

        uris: all URIs that clients subscribe to. A URI that no part lists is passed to all parts,
            because it may be one of a resource template.
        """
        self._watched = uris
        await self._router.refresh_owners()
        for name, part in list(self._router.parts_with("resources")):
            # The part may have been removed while watch() of another one was awaited.
            if self.parts.get(name) is part:
                await part.watch(self._view_of(name).find_uris(uris))

    async def close(self) -> None:
        """Close all parts, also those that are starting or were removed, and wait for their ends.

        Raises nothing: if a part fails to close, the exception is logged.
        """
        await self._starts.cancel()
        await asyncio.gather(*(_close(name, part) for name, part in self.parts.items()))
        await self._calls.wait_closed()

    # The notifiers of the parts call on_part_change() and on_part_update(), from any thread.

    def on_part_change(self, kind: ChangeKind) -> None:
        """Notify the clients that a list, or the features, of a part have changed.

        kind: "tools", "prompts", "resources" or "features".
        """
        # The joined lists stay stored: ComposedLists sees which pages of the parts are new.
        self._mark_change(kind)
        self._report_change(kind)

    def _mark_change(self, kind: str) -> None:
        """Ask the parts for their resources again before the next call that needs them."""
        if kind in ("resources", "features"):
            self._directory.has_changed = True

    def on_part_update(self, name: str, uri: str) -> None:
        """Notify the clients that subscribe to a resource of a part that it has been updated.

        name: the name of the part.
        uri: the part's own URI of the resource.
        """
        shown = self._directory.owners.show(name, uri)
        if self._outlet is not None and shown is not None:
            self._outlet.report_update(shown)

    def argument_check(self, method: str, name: str) -> CheckArguments | None:
        """Return the function with which a part checks the arguments of its tool or prompt.

        A rate limit calls the function before it counts a call. The function raises
        ArgumentsRefused or RpcError for invalid arguments (backend/call_hooks.py).
        Returns None if no part can have the name, or if the part has no such function.

        method: "tools/call" or "prompts/get".
        name: the name of the tool or prompt that clients see.
        """
        found = self._names.find(name)
        if found is None:
            return None
        part_name, own_name = found
        return argument_check_of(self.parts[part_name], method, own_name)

    def param_headers(self, name: str) -> ParamHeaders:
        """Return which arguments of a tool clients must repeat in HTTP headers (`x-mcp-header`).

        name: the name of the tool that clients see.
        Returns path of each such argument -> what follows `Mcp-Param-` in the name of its header;
        {} for an unknown tool.
        """
        found = self._names.find(name)
        if found is None:
            return {}
        part_name, own_name = found
        return param_headers_of(self.parts[part_name], own_name)

    def on_client_notification(
        self,
        session: CallerSession,
        method: str,
        params: Mapping[str, Raw],
    ) -> None:
        """Pass a notification of a client to all parts that have started.

        session: the client's connection. Each part gets a session object of its own, which stands
            for this connection.
        """
        for name, part in self.parts.items():
            if self._starts.serves(name):
                view = self._view_of(name)
                pass_client_notification(part, view.session(session), method, params)


class _PartNotifier:
    """The Notifier of one part, which passes its notifications to the composition's clients."""

    def __init__(self, composed: ComposedBackend, name: str, outlet: Notifier | None) -> None:
        self._composed = composed
        self._name = name
        self._outlet = outlet

    def report_change(self, what: ChangeKind) -> None:
        self._composed.on_part_change(kind=what)

    def report_update(self, uri: str) -> None:
        self._composed.on_part_update(self._name, uri)

    async def opens_with_handshake(self, within_s: float) -> bool:
        outlet = self._outlet
        return outlet is not None and await opens_with_handshake(outlet, within_s)


async def _close_after_start(start: asyncio.Task[None] | None, name: str, part: Backend) -> None:
    """Wait until the cancelled start of a part has ended, then close the part."""
    if start is not None:
        await asyncio.wait((start,))
    await _close(name, part)


async def _close(name: str, part: Backend) -> None:
    """Close a part. If that fails, log the failure."""
    try:
        await part.close()
    except BaseException:
        log.exception("%s failed to close", name)
