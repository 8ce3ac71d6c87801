"""Decides which callers may use a tool, prompt or resource ("entry" below).

    @server.tool(tags={"admin"}, visible=lambda context: context.client.name == "my-host")
    def restart() -> str: ...

    @server.tool(scopes={"orders:write"})
    def order(item: str) -> str: ...

    server.disable(tags={"admin"})

A disabled entry does not exist for any client. An entry with `visible` does not exist for callers
for whom the function returns False. An entry with `scopes` is not in the lists of callers whose
token lacks one of the scopes, and these callers cannot use it. Callers without a token, as on stdin
and stdout, are not limited by `scopes`. server.py imports this module when an author first uses one
of these options or methods.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

from msgspec import Raw, Struct

from concertino.backend.call_hooks import Handle
from concertino.backend.interface import Backend, Call, ChangeKind, Context
from concertino.backend.wrappers import BackendWrapper
from concertino.errors import NotRegistered, RegistrationError, check_scopes
from concertino.near_names import suggestion
from concertino.server.functions import is_async
from concertino.server.registry import Access, Registry, TagSwitches
from concertino.server.tool_errors import unknown_tool

log = logging.getLogger("concertino.access")
# The longest tag, in characters.
MAX_TAG = 128


def read_access(tags: Any, visible: Any, scopes: Any, owner: str) -> Access:
    """Check the access options of one tool, prompt or resource, and return them as an Access.

    tags, visible, scopes: the values that the author has passed, of any type; None if left out.
    owner: the name of the entry for error messages, such as `prompt 'greet'`.
    Raises RegistrationError for an invalid value.
    """
    try:
        checked = check_tags(() if tags is None else tags)
        needed = check_scopes(() if scopes is None else scopes)
    except (TypeError, ValueError) as exc:
        raise RegistrationError(f"{owner}: {exc}") from None
    if visible is None:
        return Access(checked, scopes=needed)
    if not callable(visible):
        raise RegistrationError(
            f"{owner}: visible: expected a function of a Context, as in "
            f"visible=lambda context: ..., got {visible!r}"
        )
    if is_async(visible):
        raise RegistrationError(
            f"{owner}: visible: expected a `def` or a lambda, got an `async def`; it is called for "
            f"each item of a list, so look slow facts up elsewhere"
        )
    return Access(checked, VisibleCheck(visible, owner), needed)


def check_tags(tags: Any) -> frozenset[str]:
    """Return tags as a set.

    Raises ValueError unless `tags` is a collection of strings of 1 to MAX_TAG characters.
    """
    # A str is iterable too, but tags="admin" is a mistake.
    is_valid = isinstance(tags, Iterable) and not isinstance(tags, (str, bytes, Mapping))
    found: list[Any] = []
    if is_valid:
        found = list(cast("Iterable[Any]", tags))
        is_valid = all(isinstance(tag, str) and 0 < len(tag) <= MAX_TAG for tag in found)
    if not is_valid:
        hint = f"; write {{{tags!r}}}" if isinstance(tags, str) else ""
        raise ValueError(
            f"tags: expected texts of 1 to {MAX_TAG} characters, as in {{'admin'}}, got "
            f"{tags!r}{hint}"
        )
    return frozenset(found)


class VisibleCheck:
    """Calls the option `visible` of a tool, prompt or resource: may the caller see and use it?

    If the function raises, or returns anything but a bool, the caller may not. The first such
    failure is logged.
    function: the option `visible`.
    owner: the name of the tool, prompt or resource, for the log.
    """

    def __init__(self, function: Callable[[Context], object], owner: str) -> None:
        self._function = function
        self._owner = owner
        self._is_logged = False

    def __call__(self, context: Context) -> bool:
        try:
            visible = self._function(context)
        except (Exception, SystemExit):
            self._log("%s is hidden: its `visible` failed", exc_info=True)
            return False
        if isinstance(visible, bool):
            return visible
        if isinstance(visible, Coroutine):
            # Otherwise Python warns that the coroutine was never awaited.
            visible.close()
        kind = type(cast("object", visible)).__name__
        self._log(f"%s is hidden: its `visible` returned {kind} instead of bool")
        return False

    def _log(self, text: str, exc_info: bool = False) -> None:
        if not self._is_logged:
            self._is_logged = True
            log.error(text, self._owner, exc_info=exc_info)


class LimitedTool(BackendWrapper):
    """The guard of a tool with `visible` or `scopes`. It refuses callers who may not use the tool.

    server: the server of the tool.
    guard: the tool's other guard, such as a rate limit, which handles the calls of allowed callers;
        None if it has none.
    call_tool: calls the tool without any guard.
    access: the tool's `visible` and `scopes`.
    """

    def __init__(
        self,
        server: Backend,
        guard: Backend | None,
        call_tool: Handle,
        access: Access,
    ) -> None:
        super().__init__(server)
        self._guard = guard
        self._call_tool = call_tool
        self._access = access

    async def handle(self, call: Call, context: Context) -> Struct | Raw:
        """Handle a call of the tool.

        Raises the RpcError "unknown tool" if the tool is not visible to the caller, and
        InsufficientScope if the caller's token lacks a scope.
        """
        if self._access.is_hidden(context):
            raise unknown_tool(call.params)
        self._access.check_scopes(context)
        if self._guard is not None:
            return await self._guard.handle(call, context)
        return await self._call_tool(call, context)

    async def close(self) -> None:
        """Close the tool's other guard. Does not close the server, which calls this method."""
        if self._guard is not None:
            await self._guard.close()


def switch(
    registries: Mapping[ChangeKind, Sequence[Registry[Any]]],
    switches: TagSwitches,
    selectors: Sequence[object],
    tags: Any,
    enabled: bool,
) -> list[ChangeKind]:
    """Enable or disable tools, prompts, resources and resource templates ("entries").

    registries: the name of a list, such as "tools" -> the registries whose entries are in the list.
    switches: records the call for each of the tags, for entries that are added later.
    selectors: names, URIs, URI templates, or the functions of entries.
    tags: selects all entries with one of these tags.
    enabled: True to enable, False to disable.
    Returns the names of the lists that have changed for clients.
    Raises NotRegistered for an unknown name, LookupError for an unknown function, and ValueError
    for invalid tags or if neither selectors nor tags are given. If it raises, nothing is changed.
    """
    action = "enable" if enabled else "disable"
    try:
        checked = check_tags(tags)
    except ValueError as exc:
        raise ValueError(f"{action}: {exc}") from None
    if not selectors and not checked:
        raise ValueError(f"{action}: expected names, functions, or tags={{...}}")
    everything = [registry for group in registries.values() for registry in group]
    # Find all entries before the first change: if one is unknown, nothing must change.
    selected = [pair for item in selectors for pair in _find(everything, item, action)]
    last_switch = switches.set(checked, enabled)
    changed: list[ChangeKind] = []
    for kind, group in registries.items():
        # any() with a generator would stop at the first registry that changes, so make a list.
        outcomes = [
            registry.switch([name for owner, name in selected if owner is registry], last_switch)
            for registry in group
        ]
        if any(outcomes):
            changed.append(kind)
    return changed


def _find(
    registries: Sequence[Registry[Any]], selector: object, action: str
) -> list[tuple[Registry[Any], str]]:
    """Return the entries that a selector names, each as a pair (registry, name in this registry).

    There may be several, for example if a tool and a prompt have the same name.
    selector: the name, URI, URI template or function of an entry.
    action: "enable" or "disable", for the error message.
    Raises LookupError if no entry is registered under this name or function.
    """
    found = [
        (registry, name)
        for registry in registries
        for name, record in registry.records.items()
        if name == selector or (callable(selector) and selector in _layers(record.function))
    ]
    if found:
        return found
    if isinstance(selector, str):
        names = [name for registry in registries for name in registry.records]
        raise NotRegistered(
            f"{action}: no tool, prompt or resource is registered as {selector!r}"
            + suggestion(selector, names)
        )
    raise LookupError(f"{action}: expected a name or a registered function, got {selector!r}")


def _layers(function: Any) -> Iterator[object]:
    """Yield a function, then the function that it wraps (`__wrapped__`), and so on."""
    while function is not None:
        yield function
        function = getattr(function, "__wrapped__", None)
