"""Guard: applies allow and deny lists, rates, limits and redaction to the calls of a Backend.

    allowed? -> in flight -> rate -> the backend, within the time limit -> secrets -> size

One class instead of a chain of wrappers: each coroutine around a call costs more than all that is
decided here (bench/guards.py). The settings for an operation are resolved once, into its
OperationPolicy, which begins the calls and has the hooks for their ends. A runtime uses both
through call_starter(); other callers await handle(), which does the same in a coroutine.
guards/single_guards.py has a class for each of the parts.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from typing import Any

from msgspec import DecodeError, Raw, Struct
from msgspec.json import decode
from msgspec.structs import replace

from concertino.backend.call_hooks import (
    CallStarter,
    CheckArguments,
    HooksSlot,
    Work,
    argument_check_of,
    has_method_of,
)
from concertino.backend.interface import (
    Backend,
    BackendWrapper,
    Call,
    ChangeKind,
    Context,
    Notifier,
    ServerFeatures,
)
from concertino.backend.methods import KINDS, LIST_METHODS, ListMethod
from concertino.errors import ResourceNotFound, RpcError, unknown_name
from concertino.guards.deadline import Deadline, DeadlineExceeded
from concertino.guards.guard_context import GuardContext
from concertino.guards.operation_names import (
    EVERYTHING,
    Visibility,
)
from concertino.guards.operation_policy import GuardLimits, LateWork
from concertino.guards.operation_table import OperationTable
from concertino.guards.rates import Rate
from concertino.guards.secrets import without_secrets_error
from concertino.guards.sizes import URI, OversizeStore
from concertino.logs.redact import redactor
from concertino.near_names import hint_keywords
from concertino.protocol.call_hooks import CallHooks, Permits
from concertino.types.completion import CompleteParams, PromptReference

__all__ = ["Guard"]


class Guard(BackendWrapper):
    """A Backend that limits and filters the calls of another one; omitted options are off.

    rate_limit: a Rate, or a text such as `10/60` or `search_*=10/60`, or several. A call must be
    within all of them; one that is refused counts in none.
    max_in_flight: how many calls may run at once.
    timeout_s: the longest time for a call; then it is answered and cancelled.
    max_result_bytes: the largest result, as JSON. A larger one is cut, kept in `store` and linked.
    match: the operations that these three apply to; all of them by default.
    allow, deny: globs of what may be seen and called. Of a kind that no `allow` names, everything
    is allowed; `deny` wins.
    redact: take secrets out of everything that is sent to the client.
    clock: seconds, monotonic; while it steps back, it counts as standing still.
    Raises ValueError that names the argument that does not fit.
    """

    @hint_keywords
    def __init__(
        self,
        inner: Backend,
        *,
        rate_limit: Rate | str | Iterable[Rate | str] = (),
        max_in_flight: int | None = None,
        timeout_s: float | None = None,
        max_result_bytes: int | None = None,
        match: str | Iterable[str] = EVERYTHING,
        allow: str | Iterable[str] = (),
        deny: str | Iterable[str] = (),
        redact: bool = False,
        store: OversizeStore | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(inner)
        if type(redact) is not bool:
            raise ValueError(f"redact: expected True or False, got {redact!r}")
        _check_positive("max_in_flight", max_in_flight, (int,), "number")
        _check_positive("timeout_s", timeout_s, (int, float), "number of seconds")
        _check_positive("max_result_bytes", max_result_bytes, (int,), "number")
        self._visibility = Visibility(allow, deny)
        self._limits = GuardLimits(
            None if max_in_flight is None else Permits(max_in_flight),
            timeout_s,
            max_result_bytes,
            redact,
            store or OversizeStore(),
            LateWork(),
            clock if clock is time.monotonic else _make_monotonic(clock),
        )
        self._operations = OperationTable(inner, self._limits, _read_rates(rate_limit), match)
        # The backend's features, and those that clients see instead.
        self._features: tuple[ServerFeatures, ServerFeatures] | None = None
        # By method: the backend's list, and the one that clients see instead.
        self._lists: dict[str, tuple[Any, Any]] = {}

    # Backend

    async def start(self, outlet: Notifier) -> None:
        if self._visibility.is_limited:
            outlet = _FilteredNotifier(self._visibility, outlet)
        await self.inner.start(outlet)
        if self._visibility.has_allow:
            from concertino.guards.unmatched_patterns import warn_of_unmatched

            # Not awaited: some backends list only what others answer, such as a hub's plugins.
            warning = asyncio.create_task(warn_of_unmatched(self.inner, self._visibility))
            self._limits.late_work.tasks.add(warning)
            warning.add_done_callback(self._limits.late_work.tasks.discard)

    def features(self) -> ServerFeatures:
        features = self.inner.features()
        if features.resources or not self._serves_results:
            return features
        # Return the same object each time, since sessions cache what they derive from it.
        if self._features is None or self._features[0] is not features:
            self._features = features, replace(features, resources=True)
        return self._features[1]

    async def watch(self, uris: frozenset[str]) -> None:
        if self._visibility.is_limited:
            uris = frozenset(uri for uri in uris if self._visibility.allows("resource", uri))
        await self.inner.watch(uris)

    async def close(self) -> None:
        for task in self._limits.late_work.tasks:
            task.cancel()
        await self.inner.close()

    async def handle(self, call: Call, context: Context) -> Struct | Raw:
        timeout_s, redact = self._limits.timeout_s, self._limits.redact
        # Any: a GuardContext forwards to the Context what it does not have.
        guarded: Any = context
        if redact or timeout_s is not None:
            guarded = GuardContext(context, redacts=redact)
        slot = _Slot()
        work = self.begin_call(call, guarded, slot)
        hooks = slot.hooks
        if hooks is None:
            return await work

        try:
            if hooks.timeout_s is None:
                result = await work
            else:
                result = await Deadline(work, guarded, hooks.timeout_s)
        except DeadlineExceeded as exc:
            if exc.task is not None:
                exc.task.add_done_callback(hooks.on_late_end)
                return hooks.time_out(exc.task)
            _release(hooks)
            return hooks.time_out(None)
        except BaseException as exc:
            _release(hooks)
            failure = hooks.fail(exc)
            if failure is exc:
                raise
            raise failure from None
        _release(hooks)
        return hooks.finish(result)

    # Call hooks

    def call_starter(self) -> CallStarter | None:
        """Return how a runtime begins calls; None for a subclass with a `handle` of its own."""
        if not has_method_of(self, Guard.handle, self.handle):
            return None
        # The table's functions would bypass a subclass that overrides begin_call().
        is_own = has_method_of(self, Guard.begin_call, self.begin_call)
        tools = self._operations.begin_by_name("tools/call")
        return CallStarter(self.begin_call, tools if is_own else {}, self._limits.redact)

    def begin_call(
        self,
        call: Call,
        context: Context,
        slot: HooksSlot,
    ) -> Work:
        """Return the work of a call, or of its refusal; `slot` gets the hooks for its end, if any.

        context: one that takes out secrets, if this guard does.
        Raises RpcError for an operation that may not be called.
        """
        name = call.name if call.method in KINDS else None
        if name is None or self._is_stored_result(call.method, name):
            return self._handle_other(call, context)
        begin = self._operations.begin_by_name(call.method).get(name)
        if begin is None:
            kind = KINDS[call.method]
            if not self._visibility.allows(kind, name):
                raise self._redacted(
                    ResourceNotFound(name) if kind == "resource" else unknown_name(kind, name)
                )
            begin = self._operations.add(call.method, name)
        return begin(call, context, slot)

    def argument_check(self, method: str, name: str) -> CheckArguments | None:
        """Return the inner backend's check of arguments. See SupportsArgumentChecks."""
        return argument_check_of(self.inner, method, name)

    def allows(self, kind: str, name: str) -> bool:
        """Return whether an operation may be seen. kind: tool, prompt or resource."""
        return self._visibility.allows(kind, name)

    @property
    def _serves_results(self) -> bool:
        """Return whether this guard keeps too large results, to serve them as resources."""
        return self._limits.max_bytes is not None

    def _is_stored_result(self, method: str, name: str) -> bool:
        """Return whether `name` is the URI of a stored result that this guard answers for."""
        if method != "resources/read" or not self._serves_results or not name.startswith(URI):
            return False
        # Otherwise an inner guard may have stored it; the backend then answers the call.
        return name in self._limits.store or not self.inner.features().resources

    def _redacted(self, error: RpcError) -> RpcError:
        return without_secrets_error(error) if self._limits.redact else error

    # Lists, completions and stored results

    async def _handle_other(self, call: Call, context: Context) -> Struct | Raw:
        """Handle a call that is not about one operation of the backend."""
        if not self._limits.redact:
            return await self._handle_unredacted(call, context)
        try:
            return redactor().value(await self._handle_unredacted(call, context))
        except RpcError as exc:
            raise self._redacted(exc) from None

    async def _handle_unredacted(self, call: Call, context: Context) -> Struct | Raw:
        list_method = LIST_METHODS.get(call.method)
        if list_method is not None:
            return await self._list(list_method, call, context)
        if call.method == "resources/read" and (uri := call.name) is not None:
            return self._limits.store.read(uri)
        if call.method == "completion/complete" and self._visibility.is_limited:
            self._check_completion(call)
        return await self.inner.handle(call, context)

    async def _list(
        self,
        method: ListMethod,
        call: Call,
        context: Context,
    ) -> Struct | Raw:
        """Return one page of a list without the items that may not be seen."""
        if (
            self._serves_results
            and method.kind == "resource"
            and not self.inner.features().resources
        ):
            return method.result_type(**{method.member: []})

        page: Any = await self.inner.handle(call, context)
        cached = self._lists.get(call.method)
        # Return the same object for the same page, since sessions cache what they derive from it.
        if cached is not None and cached[0] is page:
            return cached[1]

        visible: Any = decode(page, type=method.result_type) if isinstance(page, Raw) else page
        if self._visibility.is_limited:
            all_items = getattr(visible, method.member)
            items = [
                item
                for item in all_items
                if self._visibility.allows(method.kind, getattr(item, method.name_member))
            ]
            if len(items) < len(all_items):
                visible = replace(visible, **{method.member: items})
        if "cursor" not in call.params:
            self._lists[call.method] = page, visible
        return visible

    def _check_completion(self, call: Call) -> None:
        """Raise RpcError for the completion of something that may not be seen."""
        try:
            ref = call.decode_params(CompleteParams).ref
        except (DecodeError, UnicodeError):
            # Let the backend report what is wrong.
            return
        if isinstance(ref, PromptReference):
            if not self._visibility.allows("prompt", ref.name):
                raise unknown_name("prompt", ref.name)
        elif not self._visibility.allows("resource", ref.uri):
            raise ResourceNotFound(ref.uri)


class _Slot:
    """Holds the hooks of a call that handle() carries out."""

    __slots__ = ("hooks",)

    def __init__(self) -> None:
        self.hooks: CallHooks | None = None


class _FilteredNotifier:
    """The Notifier of a backend of which not everything may be seen."""

    def __init__(self, visibility: Visibility, outlet: Notifier) -> None:
        self._visibility = visibility
        self._outlet = outlet

    def report_change(self, what: ChangeKind) -> None:
        self._outlet.report_change(what)

    def report_update(self, uri: str) -> None:
        if self._visibility.allows("resource", uri):
            self._outlet.report_update(uri)


def _release(hooks: CallHooks) -> None:
    """Give the call's permit back."""
    if hooks.permits is not None:
        hooks.permits.free += 1


def _make_monotonic(clock: Callable[[], float]) -> Callable[[], float]:
    """Return a clock that stands still while `clock` steps back."""
    latest = clock()

    def now() -> float:
        nonlocal latest
        latest = max(latest, clock())
        return latest

    return now


def _read_rates(rate_limit: Rate | str | Iterable[Rate | str]) -> list[Rate]:
    if isinstance(rate_limit, Iterable) and not isinstance(rate_limit, str):
        return [Rate.read(rate) for rate in rate_limit]
    return [Rate.read(rate_limit)]


def _check_positive(
    name: str,
    value: object,
    kinds: tuple[type, ...],
    noun: str,
) -> None:
    if value is None:
        return
    if (
        isinstance(value, bool)
        or not isinstance(value, (int, float))
        or not isinstance(value, kinds)
        or not 0 < value < float("inf")
    ):
        raise ValueError(f"{name}: expected a positive {noun}, got {value!r}")
