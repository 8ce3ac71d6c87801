"""Combines several backends into one: `compose(math=..., notes=...)`.

Tools and prompts get the name of their part as a prefix (`math_add`), so their names never collide.
Resources keep their URIs; two parts that list the same resource are refused. Calls go to the part
that they belong to. Lists are concatenated in the order of the parts.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Coroutine, Generator, Iterator, Mapping
from contextlib import contextmanager
from operator import is_
from typing import Any, cast

from msgspec import UNSET, DecodeError, Raw, Struct, ValidationError
from msgspec.json import Decoder, encode
from msgspec.structs import replace

from concertino.backend.call_hooks import CheckArguments, argument_check_of
from concertino.backend.interface import (
    Backend,
    Call,
    ChangeKind,
    Context,
    ContextWrapper,
    Notifier,
    ServerFeatures,
    describe_non_backend,
)
from concertino.backend.listing import decode_page, list_names
from concertino.backend.methods import KINDS, LIST_METHODS, ListMethod
from concertino.errors import (
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    RESOURCE_NOT_FOUND,
    RegistrationError,
    ResourceNotFound,
    RpcError,
    invalid_params,
    unknown_name,
)
from concertino.part_starts import PartStarts, start_strictly
from concertino.types.completion import CompleteParams, PromptReference
from concertino.types.results import Implementation

__all__ = ["ComposedBackend", "compose"]

log = logging.getLogger("concertino.composition")
NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
# Characters of a cursor that an error message quotes.
SHOWN = 128
# With these errors a part says that it lacks a resource or a completion; another part may have it.
ELSEWHERE = frozenset((INVALID_PARAMS, RESOURCE_NOT_FOUND, METHOD_NOT_FOUND))


_text = Decoder(str).decode


def compose(
    info: Implementation | str | None = None, /, *, strict: bool = False, **parts: Backend
) -> ComposedBackend:
    """Combine several backends into one, which is served like any other.

    info: the server that clients see; by default the names of the parts joined by `+`.
    strict: serve nothing if one part fails to start, and wait for all of them. By default the
    others are served: calls of the part that failed get the reason, those of a slow one wait for
    it. parts: name -> backend. The name and an underscore become the prefix of its tools and
    prompts. Raises RegistrationError for a part that is not a Backend, and for names that would
    make tools collide. The same error stops the start if two parts list the same resource.
    """
    if not parts:
        raise RegistrationError(
            "compose: expected at least one backend, as in compose(math=server)"
        )
    untyped = cast("object", info)
    if not isinstance(untyped, str | Implementation | None):
        raise RegistrationError(
            f"compose: expected a name or an Implementation, got {type(untyped).__name__}"
        )
    if not isinstance(cast("object", strict), bool):
        raise RegistrationError(
            f"compose: strict: expected True or False, got {type(strict).__name__}; no part can "
            f"have this name"
        )
    for name, part in parts.items():
        if (got := describe_non_backend(part)) is not None:
            raise RegistrationError(
                f"compose: {name}: expected a Server or another Backend, got {got}"
            )
        if NAME.fullmatch(name) is None:
            raise RegistrationError(
                f"compose: name: expected 1 to 64 of A-Z a-z 0-9 _ . - , got {name!r}"
            )
        if clash := next((other for other in parts if name.startswith(f"{other}_")), None):
            raise RegistrationError(
                f"compose: a tool of {name!r} and a tool of {clash!r} could get the same name, "
                f"because both begin with {clash}_; rename one of them"
            )
    if info is None or isinstance(info, str):
        info = Implementation(info or "+".join(parts), "0.0.0")
    return ComposedBackend(info, parts, strict)


class ComposedBackend:
    """A Backend that forwards each call to the part that it belongs to."""

    def __init__(
        self,
        info: Implementation,
        parts: Mapping[str, Backend],
        strict: bool = False,
    ) -> None:
        self.parts = dict(parts)
        self._info = info
        self._strict = strict
        self._starts = PartStarts(self.parts, self._on_late_part)
        # The outlet of the last start(), for a part that starts late.
        self._outlet: Notifier
        # The URIs that watch() got last.
        self._watched: frozenset[str] = frozenset()
        # URI -> the first part that lists it.
        self._owners: dict[str, str] = {}
        # Whether the resources of a part have changed since _owners was computed.
        self._changed = False
        # Method -> the pages of the parts, and the list that was built from them.
        self._lists: dict[str, tuple[list[Struct], Struct]] = {}

    async def start(self, outlet: Notifier) -> None:
        """Start all parts concurrently, then check that no two list the same resource.

        Raises RegistrationError for a resource that two parts list, and ConcertinoError with the
        name of a part that fails to start, unless others have started. See PartStarts.
        """
        self._outlet = outlet
        notifier = _PartNotifier(self, outlet)
        if self._strict:
            await start_strictly(self.parts, notifier)
        else:
            await self._starts.start(notifier)
        clashes = await self._compute_owners()
        for uri, (first, second) in clashes.items():
            raise RegistrationError(
                f"compose: both {first} and {second} have the resource {uri}; remove one, or give "
                "it another URI"
            )

    async def _on_late_part(self, name: str) -> None:
        """Tell the clients, and the part, of each other: it has started, or failed, late."""
        self._changed = True
        self._lists.clear()
        if self._starts.serves(name):
            log.info("%s has started", name)
            if self._watched:
                try:
                    await self.watch(self._watched)
                except Exception:
                    log.exception("%s could not watch resources", name)
        changes: tuple[ChangeKind, ...] = ("features", "tools", "prompts", "resources")
        for what in changes:
            self._outlet.report_change(what)

    async def _compute_owners(self) -> Mapping[str, tuple[str, str]]:
        """Ask all parts for their resources and remember the owner of each URI.

        Returns the conflicts: URI -> the owner, and the other part that lists it.
        """
        self._changed = False
        owners: dict[str, str] = {}
        clashes: dict[str, tuple[str, str]] = {}
        for method in ("resources/list", "resources/templates/list"):
            for name, part in self._parts_with("resources"):
                for uri in await list_names(name, part, method):
                    if (first := owners.setdefault(uri, name)) != name:
                        clashes[uri] = first, name
        self._owners = owners
        return clashes

    async def _refresh_owners(self) -> None:
        """Recompute the owners after a change.

        If two parts now list the same resource, the first one keeps it and the log says so.
        """
        while self._changed:
            try:
                clashes = await self._compute_owners()
            except BaseException:
                self._changed = True
                raise
            for uri, (first, second) in clashes.items():
                log.error(
                    "both %s and %s have the resource %s: it is read from %s",
                    first,
                    second,
                    uri,
                    first,
                )

    def features(self) -> ServerFeatures:
        """Return the union of the features of all parts but those that failed to start."""
        features = {
            name: part.features()
            for name, part in self.parts.items()
            if name not in self._starts.failures
        }
        instructions = [
            f"{name}: {part.instructions}" for name, part in features.items() if part.instructions
        ]
        experimental: dict[str, Any] = {}
        extensions: dict[str, Any] = {}
        # In reverse, so that the settings of the first part win.
        for part in reversed(features.values()):
            experimental.update(part.experimental)
            extensions.update(part.extensions)
        parts = features.values()
        public = all(part.cache_scope == "public" for part in parts)
        return ServerFeatures(
            self._info,
            instructions="\n\n".join(instructions) or None,
            tools=any(part.tools for part in parts),
            prompts=any(part.prompts for part in parts),
            resources=any(part.resources for part in parts),
            completions=any(part.completions for part in parts),
            logging=any(part.logging for part in parts),
            subscriptions=any(part.subscriptions for part in parts),
            experimental=experimental,
            extensions=extensions,
            ttl_ms=min((part.ttl_ms for part in parts), default=0),
            cache_scope="public" if public else "private",
        )

    async def handle(self, call: Call, context: Context) -> Struct | Raw:
        """Forward a call to its part, or concatenate the lists of all parts."""
        method = call.method
        if (listing := LIST_METHODS.get(method)) is not None:
            return await self._list(listing, call, context)
        if method == "resources/read":
            if call.name is None:
                raise invalid_params("uri: expected the URI of a resource")
            return await self._call_by_uri(call, context, call.name)
        if method in KINDS:
            return await self._call_by_name(call, context, KINDS[method])
        if method == "completion/complete":
            return await self._complete(call, context)
        raise RpcError(METHOD_NOT_FOUND, f"method not found: {method}")

    async def watch(self, uris: frozenset[str]) -> None:
        """Pass to each part its own URIs and all URIs that no part lists."""
        self._watched = uris
        await self._refresh_owners()
        for name, part in self._parts_with("resources"):
            await part.watch(frozenset(uri for uri in uris if self._owners.get(uri, name) == name))

    async def close(self) -> None:
        """Close all parts; log those that fail."""
        await self._starts.cancel()
        names = list(self.parts)
        ends = await asyncio.gather(
            *(self.parts[name].close() for name in names), return_exceptions=True
        )
        for name, end in zip(names, ends, strict=True):
            if isinstance(end, BaseException):
                log.error("%s failed to close", name, exc_info=end)

    def forget(self, what: ChangeKind) -> None:
        """Recompute the owners of resources later, because a part has changed. Thread-safe."""
        if what in ("resources", "features"):
            self._changed = True

    # Lists

    def _parts_with(self, feature: str) -> Iterator[tuple[str, Backend]]:
        """Yield the parts that serve and have a feature, in order."""
        for name, part in self.parts.items():
            if self._starts.serves(name) and getattr(part.features(), feature):
                yield name, part

    async def _list(
        self,
        listing: ListMethod,
        call: Call,
        context: Context,
    ) -> Struct:
        """Concatenate the lists of the parts, up to the first that has a further page.

        The returned cursor names that part and contains its cursor.
        """
        await self._starts.wait_for_lists()
        if listing.kind == "resource":
            await self._refresh_owners()
        parts = list(self._parts_with(f"{listing.kind}s"))
        at, params = self._parse_cursor(call.params, [name for name, _ in parts])
        pages: list[Any] = []
        items: list[Any] = []
        next_cursor: str | None = None
        # The parts whose items are on other pages of this list.
        elsewhere = [part for _, part in parts[:at]]
        for number, (name, part) in enumerate(parts[at:], at + 1):
            request = Call(call.method, params, call.meta)
            page = decode_page(await part.handle(request, context), listing)
            pages.append(page)
            items += self._rename_items(getattr(page, listing.member), name, listing)
            params = {key: value for key, value in params.items() if key != "cursor"}
            if page.next_cursor is not None:
                next_cursor = f"{name}:{page.next_cursor}"
                elsewhere += [part for _, part in parts[number:]]
                break
        if (cached := self._lists.get(call.method)) is not None:
            sources, whole = cached
            if len(sources) == len(pages) and all(map(is_, sources, pages)):
                # The session caches the encoded form of this very object.
                return whole
        # Spec: server/utilities/caching. All pages of a list have the same scope.
        shared = all(part.features().cache_scope == "public" for part in elsewhere)
        hints = _cache_hints(pages, shared)
        if self._starts.starting:
            hints["ttl_ms"] = 0
        whole = listing.result_type(**{listing.member: items, "next_cursor": next_cursor}, **hints)
        if "cursor" not in call.params:
            self._lists[call.method] = pages, whole
        return whole

    # Any: the items of four lists have no common class.
    def _rename_items(
        self,
        items: list[Any],
        name: str,
        listing: ListMethod,
    ) -> list[Any]:
        """Add the prefix of a part to its tools or prompts; drop resources of earlier parts."""
        if listing.kind != "resource":
            return [replace(item, name=f"{name}_{item.name}") for item in items]
        return [item for item in items if self._owners.get(_uri_of(item, listing), name) == name]

    def _parse_cursor(
        self, params: Mapping[str, Raw], names: list[str]
    ) -> tuple[int, Mapping[str, Raw]]:
        """Return the index of the part at which a list continues, and the params for it."""
        if "cursor" not in params:
            return 0, params
        try:
            text = _text(params["cursor"])
            # An empty cursor means the beginning.
            if not text:
                return 0, {key: value for key, value in params.items() if key != "cursor"}
            name, cursor = text.split(":", 1)
            return names.index(name), {**params, "cursor": Raw(encode(cursor))}
        except (DecodeError, ValueError):
            raise invalid_params("cursor: not one of this server's") from None

    # Calls

    async def _call_by_name(
        self,
        call: Call,
        context: Context,
        kind: str,
    ) -> Struct | Raw:
        """Forward a call of a tool or prompt to its part, under the part's own name for it."""
        if (name := call.name) is None:
            raise invalid_params(f"name: expected the name of a {kind}")
        part, own_name = self._part_of(name)
        if part is None:
            raise unknown_name(kind, name)
        await self._starts.wait_for(name[: len(name) - len(own_name) - 1])
        if not getattr(part.features(), f"{kind}s"):
            raise unknown_name(kind, name)
        part_context = _PartContext(context, name[: len(name) - len(own_name)])
        params = {**call.params, "name": Raw(encode(own_name))}
        with _restore_name(kind, "name", name, own_name):
            return await part.handle(
                Call(call.method, params, call.meta, call.answers, call.state), part_context
            )

    def argument_check(self, method: str, name: str) -> CheckArguments | None:
        """Return the check of arguments of the part that has the tool or prompt.

        See SupportsArgumentChecks.
        """
        part, own_name = self._part_of(name)
        return None if part is None else argument_check_of(part, method, own_name)

    def _part_of(self, name: str) -> tuple[Backend | None, str]:
        """Return the part of a tool or prompt, and its name there; None if there is no such part.

        The result is unique, because no part's name is another's followed by an underscore.
        """
        at = name.find("_")
        while at > 0:
            if (part := self.parts.get(name[:at])) is not None:
                return part, name[at + 1 :]
            at = name.find("_", at + 1)
        return None, name

    async def _call_by_uri(
        self,
        call: Call,
        context: Context,
        uri: str,
    ) -> Struct | Raw:
        """Forward a call to the part that lists the URI, or else to the first that has it.

        A URI that no part lists may still match a template of any part.
        """
        owner = None if self._changed else self._owners.get(uri)
        refusal: RpcError = ResourceNotFound(uri)
        for name, part in self._parts_with("resources"):
            if owner in (None, name):
                try:
                    return await part.handle(call, context)
                except RpcError as error:
                    if error.code not in ELSEWHERE or owner is not None:
                        raise
                    if error.code != METHOD_NOT_FOUND:
                        refusal = error
        if starting := list(self._starts.starting.values()):
            # It may be theirs.
            await asyncio.wait(starting)
            return await self._call_by_uri(call, context, uri)
        raise refusal

    async def _complete(self, call: Call, context: Context) -> Struct | Raw:
        """Forward a completion to the part of its prompt or template."""
        try:
            ref = call.decode_params(CompleteParams).ref
        except ValidationError as exc:
            raise invalid_params(str(exc)) from None
        if not isinstance(ref, PromptReference):
            return await self._call_by_uri(call, context, ref.uri)
        name = ref.name
        part, own_name = self._part_of(name)
        if part is None:
            raise unknown_name("prompt", name, "ref.name")
        await self._starts.wait_for(name[: len(name) - len(own_name) - 1])
        if not part.features().completions:
            raise unknown_name("prompt", name, "ref.name")
        ref = Raw(encode(replace(ref, name=own_name)))
        with _restore_name("prompt", "ref.name", name, own_name):
            return await part.handle(
                Call(call.method, {**call.params, "ref": ref}, call.meta), context
            )


class _PartNotifier:
    """The Notifier of one part: forwards to the clients of the composition."""

    def __init__(self, composed: ComposedBackend, outlet: Notifier) -> None:
        self._composed = composed
        self._outlet = outlet

    def report_change(self, what: ChangeKind) -> None:
        self._composed.forget(what)
        self._outlet.report_change(what)

    def report_update(self, uri: str) -> None:
        self._outlet.report_update(uri)


class _PartContext(ContextWrapper):
    """The Context of a call of one part: call_tool() finds the tools of the same part.

    prefix: the prefix of their names in the composition.
    """

    def __init__(self, inner: Context, prefix: str) -> None:
        super().__init__(inner)
        self._prefix = prefix

    def call_tool(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        into: Any = None,
    ) -> Coroutine[Any, Any, Any]:
        return self.inner.call_tool(self._prefix + name, arguments, into=into)


def _uri_of(item: Struct, listing: ListMethod) -> str:
    return getattr(item, listing.name_member)


def _cache_hints(pages: list[Any], shared: bool) -> dict[str, Any]:
    """Return the cache hints of a list built from these pages: the strictest of all parts.

    shared: whether the parts that have no page here allow shared caching.
    """
    ages = [page.ttl_ms for page in pages]
    public = shared and bool(pages) and all(page.cache_scope == "public" for page in pages)
    return {
        "ttl_ms": UNSET if not pages or UNSET in ages else min(ages),
        "cache_scope": "public" if public else UNSET,
    }


@contextmanager
def _restore_name(
    kind: str,
    member: str,
    name: str,
    own_name: str,
) -> Generator[None, None, None]:
    """Replace the part's own name in an "unknown" error by the name that the caller used."""
    try:
        yield
    except RpcError as error:
        if error.code == INVALID_PARAMS and error.message == f"Unknown {kind}: {own_name}":
            raise unknown_name(kind, name, member) from None
        raise
