"""Several backends as one: `compose(math=..., notes=...)`.

Tools and prompts get the part's name in front (`math_add`), so no two can collide; resources keep their URIs, and two parts that
list the same one are refused. Calls go to the part they belong to; lists are put together in the order of the parts.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Coroutine, Generator, Iterator, Mapping
from contextlib import contextmanager
from operator import is_
from typing import Any, cast

from msgspec import UNSET, DecodeError, Raw, Struct, ValidationError
from msgspec.json import Decoder, decode, encode
from msgspec.structs import replace

from concertino.backend.interface import (
    Backend,
    Call,
    ChangeKind,
    ClientFacts,
    Context,
    ContextWrapper,
    Notifier,
    ServerFeatures,
    describe_non_backend,
)
from concertino.errors import (
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    RESOURCE_NOT_FOUND,
    ConcertinoError,
    RegistrationError,
    RpcError,
)
from concertino.types.results import (
    CompleteParams,
    Implementation,
    Level,
    ListPromptsResult,
    ListResourcesResult,
    ListResourceTemplatesResult,
    ListToolsResult,
    PromptReference,
)

__all__ = ["ComposedBackend", "compose"]

log = logging.getLogger("concertino.composition")
NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
SHOWN = 128  # characters of a name that nobody has, given back
# What a part answers that does not have a resource, or completes nothing: another may.
ELSEWHERE = frozenset((INVALID_PARAMS, RESOURCE_NOT_FOUND, METHOD_NOT_FOUND))


class _List(Struct, frozen=True):
    """One of the four lists: its method, what a part must offer for it, and the member of its result that holds the items."""

    method: str
    feature: str
    shape: type[Struct]
    member: str


LISTS: Mapping[str, _List] = {
    each.method: each
    for each in (
        _List("tools/list", "tools", ListToolsResult, "tools"),
        _List("prompts/list", "prompts", ListPromptsResult, "prompts"),
        _List("resources/list", "resources", ListResourcesResult, "resources"),
        _List(
            "resources/templates/list",
            "resources",
            ListResourceTemplatesResult,
            "resource_templates",
        ),
    )
}
_text = Decoder(str).decode


def compose(info: Implementation | str | None = None, /, **parts: Backend) -> ComposedBackend:
    """One backend made of several; serve it as any other.

    info: what clients see as this server; the parts' names joined by `+` otherwise. parts: name to backend; the name and an
    underscore are put before each tool and prompt. Raises RegistrationError for what is no backend, and for names that cannot be
    told apart; serving it fails to start with the same when two parts list the same resource.
    """
    if not parts:
        raise RegistrationError(
            "compose: expected at least one backend, as in compose(math=server)"
        )
    if info is not None and not isinstance(info, (str, Implementation)):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise RegistrationError(
            f"compose: expected a name or an Implementation, got {type(info).__name__}"
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
                f"compose: a tool of {name!r} and one of {clash!r} could have one name, since both begin with {clash}_; "
                "name one of them otherwise"
            )
    if info is None or isinstance(info, str):
        info = Implementation(info or "+".join(parts), "0.0.0")
    return ComposedBackend(info, parts)


class ComposedBackend:
    """What compose() gives; a Backend."""

    def __init__(self, info: Implementation, parts: Mapping[str, Backend]) -> None:
        self.parts = dict(parts)
        self._info = info
        self._owners: dict[str, str] = {}  # URI -> the first part that lists it
        self._changed = (
            False  # whether some part's resources are no longer what _owners was made of
        )
        self._lists: dict[
            str, tuple[list[Struct], Struct]
        ] = {}  # by method: what the parts gave, and it put together

    async def start(self, outlet: Notifier) -> None:
        """Start all parts side by side, then see that no two list the same resource."""
        starting = {
            asyncio.ensure_future(part.start(_Up(self, outlet))): name
            for name, part in self.parts.items()
        }
        try:
            await asyncio.wait(starting, return_when=asyncio.FIRST_EXCEPTION)
            failed = {
                start: name
                for start, name in starting.items()
                if start.done() and _failure(start) is not None
            }
        finally:
            for (
                start
            ) in starting:  # one that takes its time is not waited for when another has failed
                start.cancel()
            await asyncio.wait(starting)
        for start, name in failed.items():
            error = _failure(start)
            raise ConcertinoError(f"{name}: {type(error).__name__}: {error}") from error
        clashes = await self._find_owners()
        for uri, (first, second) in clashes.items():
            raise RegistrationError(f"compose: both {first} and {second} have the resource {uri}")

    async def _find_owners(self) -> Mapping[str, tuple[str, str]]:
        """Ask all parts for what they list. Returns what two of them do: URI to the part that counts, and the other."""
        self._changed = False
        owners: dict[str, str] = {}
        clashes: dict[str, tuple[str, str]] = {}
        for method in ("resources/list", "resources/templates/list"):
            for name, part in self._offering("resources"):
                for uri in await _uris(name, part, LISTS[method]):
                    if (first := owners.setdefault(uri, name)) != name:
                        clashes[uri] = first, name
        self._owners = owners
        return clashes

    async def _owners_now(self) -> None:
        """After a change. Two parts may list one resource by now: it is the first one's, and whoever operates this is told."""
        while self._changed:
            try:
                clashes = await self._find_owners()
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
        """Everything that any part offers."""
        offers = {name: part.features() for name, part in self.parts.items()}
        instructions = [
            f"{name}: {each.instructions}" for name, each in offers.items() if each.instructions
        ]
        experimental: dict[str, Any] = {}
        extensions: dict[str, Any] = {}
        for each in reversed(
            offers.values()
        ):  # the first part to say something is the one that is heard
            experimental.update(each.experimental)
            extensions.update(each.extensions)
        return ServerFeatures(
            self._info,
            instructions="\n\n".join(instructions) or None,
            tools=any(each.tools for each in offers.values()),
            prompts=any(each.prompts for each in offers.values()),
            resources=any(each.resources for each in offers.values()),
            completions=any(each.completions for each in offers.values()),
            logging=any(each.logging for each in offers.values()),
            subscriptions=any(each.subscriptions for each in offers.values()),
            experimental=experimental,
            extensions=extensions,
            ttl_ms=min(each.ttl_ms for each in offers.values()),
            cache_scope="public"
            if all(each.cache_scope == "public" for each in offers.values())
            else "private",
        )

    async def handle(self, call: Call, context: Context) -> Struct | Raw:
        method = call.method
        if (asked := LISTS.get(method)) is not None:
            return await self._listed(asked, call, context)
        if method == "tools/call":
            return await self._by_name(call, context, "tool")
        if method == "prompts/get":
            return await self._by_name(call, context, "prompt")
        if method == "resources/read":
            try:
                uri = _text(call.params["uri"])
            except (KeyError, DecodeError):
                raise _invalid("uri: expected the URI of a resource") from None
            return await self._by_uri(call, context, uri)
        if method == "completion/complete":
            return await self._completed(call, context)
        raise RpcError(METHOD_NOT_FOUND, f"method not found: {method}")

    async def watch(self, uris: frozenset[str]) -> None:
        """Each part hears of those that are its own, and of those that nobody lists."""
        await self._owners_now()
        for name, part in self._offering("resources"):
            await part.watch(frozenset(uri for uri in uris if self._owners.get(uri, name) == name))

    async def close(self) -> None:
        names = list(self.parts)
        ends = await asyncio.gather(
            *(self.parts[name].close() for name in names), return_exceptions=True
        )
        for name, end in zip(names, ends, strict=True):
            if isinstance(end, BaseException):
                log.error("%s failed to close", name, exc_info=end)

    def forget(self, what: ChangeKind) -> None:
        """A part has changed: who has which resource may no longer be true. From any thread."""
        if what in ("resources", "features"):
            self._changed = True

    # Lists

    def _offering(self, feature: str) -> Iterator[tuple[str, Backend]]:
        for name, part in self.parts.items():
            if getattr(part.features(), feature):
                yield name, part

    async def _listed(self, asked: _List, call: Call, context: Context) -> Struct:
        """All parts' lists one after the other, up to the first that has a further page: there the cursor goes on."""
        if asked.feature == "resources":
            await self._owners_now()
        parts = list(self._offering(asked.feature))
        at, params = self._resumed(call.params, [name for name, _ in parts])
        pages: list[Any] = []
        items: list[Any] = []
        following: str | None = None
        unasked = [part for _, part in parts[:at]]  # whose items are on other pages of this list
        for number, (name, part) in enumerate(parts[at:], at + 1):
            page = _page(await part.handle(Call(asked.method, params, call.meta), context), asked)
            pages.append(page)
            items += self._own(getattr(page, asked.member), name, asked)
            params = {key: value for key, value in params.items() if key != "cursor"}
            if page.next_cursor is not None:
                following = f"{name}:{page.next_cursor}"
                unasked += [part for _, part in parts[number:]]
                break
        if (kept := self._lists.get(asked.method)) is not None:
            of, whole = kept
            if len(of) == len(pages) and all(map(is_, of, pages)):
                return whole  # the same object: what is lowered from it is kept
        # server/utilities/caching: all pages of a list have the same scope.
        shared = all(part.features().cache_scope == "public" for part in unasked)
        whole = asked.shape(
            **{asked.member: items, "next_cursor": following}, **_hints(pages, shared)
        )
        if "cursor" not in call.params:
            self._lists[asked.method] = pages, whole
        return whole

    def _own(
        self, items: list[Any], name: str, asked: _List
    ) -> list[Any]:  # Any: what _page's lists hold
        """A part's items as the composition shows them: under its name, or those of its resources that no part before it has."""
        if asked.feature != "resources":
            return [replace(item, name=f"{name}_{item.name}") for item in items]
        return [item for item in items if self._owners.get(_uri(item), name) == name]

    def _resumed(
        self, params: Mapping[str, Raw], names: list[str]
    ) -> tuple[int, Mapping[str, Raw]]:
        """Which part a list goes on with, and what it is asked."""
        if "cursor" not in params:
            return 0, params
        try:
            text = _text(params["cursor"])
            if not text:  # the beginning
                return 0, {key: value for key, value in params.items() if key != "cursor"}
            name, cursor = text.split(":", 1)
            return names.index(name), {**params, "cursor": Raw(encode(cursor))}
        except (DecodeError, ValueError):
            raise RpcError(
                INVALID_PARAMS, "Invalid params", {"details": "cursor: not one of this server's"}
            ) from None

    # Calls

    async def _by_name(self, call: Call, context: Context, kind: str) -> Struct | Raw:
        try:
            name = _text(call.params["name"])
        except (KeyError, DecodeError):
            raise _invalid(f"name: expected the name of a {kind}") from None
        part, own = self._part_of(name)
        if part is None or not getattr(part.features(), f"{kind}s"):
            raise _unknown(kind, "name", name)
        within = _Within(context, name[: len(name) - len(own)])
        params = {**call.params, "name": Raw(encode(own))}
        with _speaking_of(kind, "name", name, own):
            return await part.handle(
                Call(call.method, params, call.meta, call.answers, call.state), within
            )

    def _part_of(self, name: str) -> tuple[Backend | None, str]:
        """The part that a tool or prompt belongs to, and its name there. No part's name begins with another's and an underscore."""
        at = name.find("_")
        while at > 0:
            if (part := self.parts.get(name[:at])) is not None:
                return part, name[at + 1 :]
            at = name.find("_", at + 1)
        return None, name

    async def _by_uri(self, call: Call, context: Context, uri: str) -> Struct | Raw:
        """Of the part that lists it; else of the first that has it, for a template may stand for any URI."""
        owner = None if self._changed else self._owners.get(uri)
        refusal = RpcError(INVALID_PARAMS, "Resource not found", {"uri": uri})
        for name, part in self._offering("resources"):
            if owner in (None, name):
                try:
                    return await part.handle(call, context)
                except RpcError as error:
                    if error.code not in ELSEWHERE or owner is not None:
                        raise
                    if error.code != METHOD_NOT_FOUND:
                        refusal = error
        raise refusal

    async def _completed(self, call: Call, context: Context) -> Struct | Raw:
        try:
            ref = call.decode_params(CompleteParams).ref
        except ValidationError as why:
            raise _invalid(str(why)) from None
        if not isinstance(ref, PromptReference):
            return await self._by_uri(call, context, ref.uri)
        name = ref.name
        part, own = self._part_of(name)
        if part is None or not part.features().completions:
            raise _unknown("prompt", "ref.name", name)
        ref = Raw(encode(replace(ref, name=own)))
        with _speaking_of("prompt", "ref.name", name, own):
            return await part.handle(
                Call(call.method, {**call.params, "ref": ref}, call.meta), context
            )


def _failure(start: asyncio.Future[None]) -> BaseException | None:
    return asyncio.CancelledError() if start.cancelled() else start.exception()


class _Up:
    """The outlet of one part: what it says goes up."""

    def __init__(self, composed: ComposedBackend, outlet: Notifier) -> None:
        self._composed = composed
        self._outlet = outlet

    def report_change(self, what: ChangeKind) -> None:
        self._composed.forget(what)
        self._outlet.report_change(what)

    def report_update(self, uri: str) -> None:
        self._outlet.report_update(uri)


class _Within(ContextWrapper):
    """The context of a call that is one part's: the tools that it calls are that part's too. prefix: of their names outside."""

    def __init__(self, inner: Context, prefix: str) -> None:
        super().__init__(inner)
        self._prefix = prefix

    def call_tool(
        self, name: str, arguments: Mapping[str, Any] | None = None, *, into: Any = None
    ) -> Coroutine[Any, Any, Any]:
        return self.inner.call_tool(self._prefix + name, arguments, into=into)


class _Nobody:
    """The Context of the lists that are made at the start; lists may not ask."""

    client = ClientFacts("concertino", "", "", {})
    cancelled = False
    meta: Mapping[str, Any] = {}

    def progress(
        self, done: float, total: float | None = None, message: str | None = None
    ) -> Awaitable[None]:
        return asyncio.sleep(0)

    def log(self, level: Level, data: object, logger: str | None = None) -> Awaitable[None]:
        return asyncio.sleep(0)

    async def call_tool(
        self, name: str, arguments: Mapping[str, Any] | None = None, *, into: Any = None
    ) -> Any:
        raise RuntimeError("lists call no tools")


async def _uris(name: str, part: Backend, asked: _List) -> list[str]:
    """The URIs, or templates, that one part lists, on all of its pages. Raises ConcertinoError for a list without an end."""
    uris: list[str] = []
    params: dict[str, Raw] = {}
    cursors: set[str] = set()
    while True:
        page = _page(
            await part.handle(Call(asked.method, params), cast("Context", _Nobody())), asked
        )
        uris += map(_uri, getattr(page, asked.member))
        if page.next_cursor is None:
            return uris
        if page.next_cursor in cursors:
            raise ConcertinoError(
                f"{name}: {asked.method} gives the cursor {page.next_cursor[:SHOWN]!r} a second time"
            )
        cursors.add(page.next_cursor)
        params = {"cursor": Raw(encode(page.next_cursor))}


def _uri(item: Any) -> str:  # Any: a Resource or a ResourceTemplate
    return item.uri_template if hasattr(item, "uri_template") else item.uri


def _page(
    result: Struct | Raw, asked: _List
) -> Any:  # Any: one of four Structs without a common ancestor
    return decode(result, type=asked.shape) if isinstance(result, Raw) else result


def _hints(pages: list[Any], shared: bool) -> dict[str, Any]:
    """How long, and by whom, a list of these may be kept: as the strictest says. shared: so may the parts without a page here."""
    ages = [page.ttl_ms for page in pages]
    public = shared and bool(pages) and all(page.cache_scope == "public" for page in pages)
    return {
        "ttl_ms": UNSET if not pages or UNSET in ages else min(ages),
        "cache_scope": "public" if public else UNSET,
    }


@contextmanager
def _speaking_of(kind: str, member: str, name: str, own: str) -> Generator[None, None, None]:
    """A part that does not have a tool or prompt says so of its own name for it; callers know it by another."""
    try:
        yield
    except RpcError as error:
        if error.code == INVALID_PARAMS and error.message == f"Unknown {kind}: {own}":
            raise _unknown(kind, member, name) from None
        raise


def _unknown(kind: str, member: str, name: str) -> RpcError:
    name = name[:SHOWN]
    return RpcError(
        INVALID_PARAMS,
        f"Unknown {kind}: {name}",
        {"details": f"{member}: there is no {kind} {name!r}"},
    )


def _invalid(details: str) -> RpcError:
    return RpcError(INVALID_PARAMS, "Invalid params", {"details": details})
