"""PartView: translates between one part of a composition and the composition's clients.

A composition serves several backends, its parts, as one. A part has its own names, URIs and task
ids, and clients see different ones, such as the tool `math_add` for the tool `add` of the part
`math`. In a call, the client's names are translated to those of the part; in everything that the
part sends, the part's names are translated to those that clients see.
"""

from __future__ import annotations

from asyncio import Future
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import Any

from msgspec import Raw, Struct

from concertino.backend.caller import Caller, CallerSession
from concertino.backend.interface import Context
from concertino.backend.wrappers import CallerWrapper, ContextWrapper
from concertino.composition.part_names import PartNames
from concertino.composition.resource_owners import ResourceOwners
from concertino.composition.result_uris import map_request_uris, map_result_uris
from concertino.composition.task_ids import RELATED_TASK, map_task_ids

__all__ = ["PartContext", "PartView"]


class PartView:
    """Translates the names, URIs and task ids of one part of a composition.

    A composition serves several backends, its parts, as one. Methods named `show` translate to what
    clients see, and methods named `find` to what the part uses.

    part: the name of the part.
    names: translates the names of tools and prompts.
    owners: translates URIs.
    on_change: called with the name of a list, such as "tools", when the part notifies one client's
        session that the list has changed. Notifications to all clients go through the part's
        Notifier instead.

    Attributes:
    has_tasks: whether the part may run calls as tasks, so that its messages may contain task ids.
        CallRouter sets it from the part's features before each call.
    """

    def __init__(
        self,
        part: str,
        names: PartNames,
        owners: ResourceOwners,
        on_change: Callable[[str], object],
    ) -> None:
        self.has_tasks = False
        self.on_change = on_change
        self._part = part
        self._names = names
        self._owners = owners
        # Session of a client -> the session that the part sees instead. A part may store sessions,
        # so it gets the same object in all calls.
        self._sessions: dict[CallerSession, _PartSession] = {}

    def show_name(self, name: str) -> str:
        """Return the name that clients see for the part's own name of a tool or prompt."""
        return self._names.show(self._part, name)

    def show_uri(self, uri: str) -> str | None:
        """Return the URI that clients see for a URI of the part; None if another part hides it."""
        return self._owners.show(self._part, uri)

    def find_uris(self, shown: frozenset[str]) -> frozenset[str]:
        """Return the part's own URIs for URIs that clients use.

        URIs that another part lists are left out. URIs that no part lists stay unchanged.
        """
        found = (self._owners.find(uri) for uri in shown)
        return frozenset(uri for owner, uri in found if owner in (None, self._part))

    def show_task(self, id: str) -> str:
        """Return the id that clients see for a task of the part, such as `math+1`."""
        # Task ids get the same prefix as URIs.
        return f"{self._names.uri_prefix(self._part)}+{id}"

    def find_task(self, shown: str) -> str | None:
        """Return the part's own id of a task; None if the task belongs to another part."""
        prefix = f"{self._names.uri_prefix(self._part)}+"
        return shown.removeprefix(prefix) if shown.startswith(prefix) else None

    def find_meta(self, meta: Mapping[str, Raw]) -> Mapping[str, Raw]:
        """Return the `_meta` of a call, in which the task id, if any, is the part's own."""
        if RELATED_TASK not in meta:
            return meta
        return {**meta, RELATED_TASK: map_task_ids(meta[RELATED_TASK], self.find_task)}

    def session(self, inner: CallerSession) -> CallerSession:
        """Return the session that the part sees in the place of a client's session.

        inner: the client's session. For the same session the result is the same object.
        """
        session = self._sessions.get(inner)
        if session is None:
            session = self._sessions[inner] = _PartSession(inner, self)
            inner.closed.add_done_callback(partial(self._forget, inner))
        return session

    def _forget(self, inner: CallerSession, closed: Future[None]) -> None:
        """Forget a session that was closed; `closed` is its future, which has called this."""
        self._sessions.pop(inner, None)

    def map_result(self, method: str, result: Struct | Raw) -> Struct | Raw:
        """Return a result of the part with the URIs and task ids that clients see.

        Returns the same object if nothing changes.
        method: the method of the call, such as `tools/call`.
        """
        if self._owners.has_prefixed_uris(self._part):
            result = map_result_uris(method, result, self._show_known_uri)
        # Only undecoded results of other servers have task ids, since no Struct has them.
        if self.has_tasks and isinstance(result, Raw):
            result = map_task_ids(result, self.show_task)
        return result

    def map_request(self, params: bytes) -> bytes:
        """Return the params of a part's request with the URIs and task ids that clients see."""
        if self._owners.has_prefixed_uris(self._part):
            params = map_request_uris(params, self._show_known_uri)
        return self.map_tasks(params, self.show_task)

    def _show_known_uri(self, uri: str) -> str:
        """Return the URI that clients see; the part's own URI if another part hides it.

        A result must have a URI in any case.
        """
        return self.show_uri(uri) or uri

    def map_tasks(self, message: bytes, map_id: Callable[[str], str | None]) -> bytes:
        """Return params, or a result, with translated task ids.

        message: the params or the result, as a JSON object.
        map_id: show_task() or find_task(). An id for which it returns None is not changed.
        """
        return bytes(map_task_ids(Raw(message), map_id)) if self.has_tasks else message


class PartContext(ContextWrapper):
    """The Context that a part gets with a call. It forwards to the Context of the composition.

    There are two differences. call_tool() calls a tool of the same part, by the part's own name.
    `caller` uses the part's own URIs and task ids.
    inner: the Context that the composition has got with the call.
    view: translates the part's names, URIs and task ids.
    """

    def __init__(self, inner: Context, view: PartView) -> None:
        super().__init__(inner)
        self._view = view
        self._caller: _PartCaller | None = None

    @property
    def caller(self) -> Caller:
        if self._caller is None:
            self._caller = _PartCaller(self.inner.caller, self._view)
        return self._caller

    def map_result(self, method: str, result: Struct | Raw) -> Struct | Raw:
        """Return the result of this call with the URIs and task ids that clients see.

        method: the method of the call.
        result: the result of the part.
        """
        mapped = self._view.map_result(method, result)
        # If the part has allowed the session to send `result` without decoding it, allow this for
        # `mapped`. The session uses the latest permission.
        if mapped is not result and self._caller is not None:
            self._caller.pass_mapped(result, mapped)
        return mapped

    @property
    def passed_revision(self) -> str:
        """Return the protocol revision that the part has passed to Caller.pass_result().

        This is the revision of the server whose result the part returns. Returns "" if the part has
        not called pass_result().
        """
        return "" if self._caller is None else self._caller.passed_revision

    def call_tool(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        into: Any = None,
    ) -> Coroutine[Any, Any, Any]:
        return self.inner.call_tool(self._view.show_name(name), arguments, into=into)


class _PartCaller(CallerWrapper):
    """The client as the part sees it during one call.

    Attributes:
    passed_revision: the revision that the part has passed to pass_result(); "" before.
    """

    def __init__(self, inner: Caller, view: PartView) -> None:
        super().__init__(inner)
        self.passed_revision = ""
        self._view = view
        self._passed: Raw | None = None

    @property
    def session(self) -> CallerSession | None:
        session = self.inner.session
        return None if session is None else self._view.session(session)

    def pass_result(self, result: Raw, revision: str) -> None:
        self._passed, self.passed_revision = result, revision
        self.inner.pass_result(result, revision)

    def pass_mapped(self, result: Struct | Raw, mapped: Struct | Raw) -> None:
        """Repeat the part's call of pass_result(), if there was one, for the translated result.

        pass_result() allows the session to send a result without decoding it.
        result: the part's own result.
        mapped: the result with the URIs and task ids that clients see.
        """
        if result is self._passed and isinstance(mapped, Raw):
            self.inner.pass_result(mapped, self.passed_revision)


class _PartSession:
    """The session of a client as a part sees it.

    The URIs of subscriptions, updates and requests are the part's own, and so are the task ids in
    requests, responses and notifications. URIs in responses are not translated, because they are
    the client's own, such as its roots.

    Attributes:
    closed: a future that is done when the client's session is closed.
    """

    def __init__(self, inner: CallerSession, view: PartView) -> None:
        self.closed: Future[None] = inner.closed
        self._inner = inner
        self._view = view

    @property
    def principal(self) -> bytes:
        return self._inner.principal

    @property
    def has_left(self) -> bool:
        return self._inner.has_left

    @property
    def subscribed_uris(self) -> frozenset[str]:
        return self._view.find_uris(self._inner.subscribed_uris)

    async def request(self, method: str, params: bytes) -> Raw:
        view = self._view
        response = await self._inner.request(method, view.map_request(params))
        return Raw(view.map_tasks(bytes(response), view.find_task))

    def notify(self, method: str, params: bytes) -> None:
        self._inner.notify(method, self._view.map_tasks(params, self._view.show_task))

    def report_change(self, what: str) -> None:
        self._view.on_change(what)
        self._inner.report_change(what)

    def report_update(self, uri: str) -> None:
        if (shown := self._view.show_uri(uri)) is not None:
            self._inner.report_update(shown)
