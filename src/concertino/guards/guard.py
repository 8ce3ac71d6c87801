"""Guard: applies allow and deny lists, rates, limits and redaction to the calls of a Backend.

The steps of a call:

    allowed? -> concurrent calls -> rate -> the backend, within the time limit -> secrets -> size

An *operation* is one tool, prompt or resource. At the first call of an operation, the settings that
apply to the operation are stored in an OperationPolicy (operation_policy.py). The policy begins the
operation's calls, and has the *hooks*: the methods that are called when a call ends, for example to
redact the result. The runtime begins calls with the functions of call_starter(), which make no
coroutine around a call. Other callers, such as a wrapper around the guard, await handle(), which
does the same in a coroutine.

All steps are in one class instead of a chain of wrappers, because each coroutine around a call
takes longer than all steps together (bench/guards.py). single_guards.py has a class for each step.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from itertools import compress
from typing import Any

from msgspec import Raw, Struct
from msgspec.json import decode, encode
from msgspec.structs import replace

from concertino.backend.call_hooks import (
    CallStarter,
    CheckArguments,
    HooksSlot,
    Work,
    argument_check_of,
    is_overridden,
)
from concertino.backend.interface import (
    Backend,
    Call,
    Context,
    Notifier,
    ServerFeatures,
)
from concertino.backend.listing import decode_page
from concertino.backend.methods import KINDS, LIST_METHODS, ListMethod
from concertino.backend.wrappers import BackendWrapper, NotifierWrapper
from concertino.decode_errors import DECODE_ERRORS
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
from concertino.guards.secrets import redact_error
from concertino.guards.sizes import URI, OversizeStore
from concertino.logs.redact import redactor
from concertino.near_names import hint_keywords
from concertino.protocol.call_hooks import CallHooks, Permits
from concertino.types.completion import CompleteParams, PromptReference

__all__ = ["Guard"]


class Guard(BackendWrapper):
    """A Backend that limits and filters the calls of another Backend.

        run(Guard(server, rate_limit="10/60", timeout_s=30, deny="drop_*"))

    Without options, a Guard does nothing. A tool call that a Guard refuses gets a result with
    isError. A call of a prompt or resource that it refuses gets an error response.

    An operation is a tool, prompt or resource. A pattern selects operations by their names:
    `search_*` selects tools, `prompt:draft_*` prompts, and `resource:notes://*` resources. A
    pattern is a case-sensitive glob with `*`, `?` and `[a-z]`.

    inner: the other Backend, such as a Server.
    rate_limit: how many calls are accepted within a time: a Rate, a string such as `10/60` (10
        calls of each tool within any 60 seconds) or `search_*=10/60`, or an iterable of these. A
        call must be within all rates. A refused call does not count against any of them. () for no
        limit.
    max_in_flight: how many calls of all operations together may run at the same time; None for any
        number.
    timeout_s: how long a call may take, in seconds. After that the call is cancelled, and the
        client gets the error TIMED_OUT. None for any time.
    max_result_bytes: the largest size of a result as JSON, in bytes; None for any size. A larger
        result of a tool is stored in `store`, and the client gets the beginning of the result and a
        link to the whole. Larger results of prompts and resources are refused.
    match: patterns of the operations to which max_in_flight, timeout_s and max_result_bytes apply;
        by default all. Rates have patterns of their own.
    allow: patterns of the operations that clients may see and call. Without a pattern for tools,
        all tools are allowed. The same rule applies to prompts and to resources.
    deny: patterns of the operations that clients may not see and call, even if `allow` matches
        them.
    redact: whether to remove secrets, such as tokens and passwords, from everything that is sent to
        the client.
    store: the store for results that are too large; None for a store with default limits.
    clock: a function that returns the time in seconds, for rates. If the clock goes back, the
        guard's time stands still until the clock has caught up.
    Raises ValueError, which names the invalid argument.
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
        permits = None if max_in_flight is None else Permits(max_in_flight)
        self._limits = GuardLimits(
            permits=permits,
            timeout_s=timeout_s,
            max_bytes=max_result_bytes,
            redact=redact,
            store=store or OversizeStore(),
            late_work=LateWork(permits),
            clock=clock if clock is time.monotonic else _make_monotonic(clock),
        )
        self._operations = OperationTable(inner, self._limits, _read_rates(rate_limit), match)
        # The backend's features, and the features that clients get instead.
        self._features: tuple[ServerFeatures, ServerFeatures] | None = None
        # List method -> the backend's first page, and the page that clients get instead.
        self._lists: dict[str, tuple[Any, Any]] = {}
        # The task that looks for `allow` patterns that match nothing.
        self._pattern_check: asyncio.Task[None] | None = None

    # Backend

    async def start(self, outlet: Notifier) -> None:
        if self._visibility.is_limited:
            outlet = _FilteredNotifier(self._visibility, outlet)
        await self.inner.start(outlet)
        if self._visibility.has_allow:
            from concertino.guards.unmatched_patterns import warn_of_unmatched

            # Do not await the task, because listing may take long, for example if the backend is a
            # proxy whose server is still starting.
            self._pattern_check = asyncio.create_task(
                warn_of_unmatched(self.inner, self._visibility)
            )

    def features(self) -> ServerFeatures:
        features = self.inner.features()
        if features.resources or not self._serves_results:
            return features
        # This guard itself has resources: the results that are too large.
        # Return the same object each time, because sessions cache data by this object.
        if self._features is not None:
            inner_features, own_features = self._features
            if inner_features is features:
                return own_features
        own_features = replace(features, resources=True)
        self._features = features, own_features
        return own_features

    async def watch(self, uris: frozenset[str]) -> None:
        if self._visibility.is_limited:
            uris = frozenset(uri for uri in uris if self._visibility.allows("resource", uri))
        await self.inner.watch(uris)

    async def close(self) -> None:
        if self._pattern_check is not None:
            self._pattern_check.cancel()
        for task in self._limits.late_work.tasks:
            task.cancel()
        await self.inner.close()

    async def handle(self, call: Call, context: Context) -> Struct | Raw:
        timeout_s, redact = self._limits.timeout_s, self._limits.redact
        # The type is Any, because a GuardContext with its __getattr__ is not a Context for type
        # checkers.
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
            else:
                _release(hooks)
            if exc.is_cancelled:
                # Nobody waits for the response, but the work that continues must be counted.
                with suppress(RpcError):
                    hooks.time_out(exc.task)
                raise asyncio.CancelledError from None
            return hooks.time_out(exc.task)
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
        """Return the functions with which the runtime begins calls faster than with handle().

        Each function checks whether a call may run, and returns the coroutine of the inner backend.
        `CallStarter.begin` begins any call. `CallStarter.tools` has a faster function for each tool
        that was called before (backend/call_hooks.py).
        Returns None if a subclass overrides handle(), because the runtime must then await handle().
        """
        if is_overridden(self, Guard.handle, self.handle):
            return None
        # If a subclass overrides begin_call(), the functions in the table must not be used, because
        # they do not call begin_call().
        may_use_table = not is_overridden(self, Guard.begin_call, self.begin_call)
        table = self._operations.begin_by_name("tools/call")
        return CallStarter(self.begin_call, table if may_use_table else {}, self._limits.redact)

    def begin_call(
        self,
        call: Call,
        context: Context,
        slot: HooksSlot,
    ) -> Work:
        """Check a call, and return the coroutine that handles it.

        A call can be refused in two ways:

        - A tool, prompt or resource that clients may not call: raises RpcError at once, without a
          coroutine.
        - A call that exceeds a limit, such as a rate: the coroutine returns or raises the refusal.

        context: the Context of the call. If this guard has the option `redact`, the caller must
            pass a Context that removes secrets from the messages of the handler.
        slot: this method sets `slot.hooks` to the functions that the runtime must call at the end
            of the call. `slot.hooks` stays None if the end of the call needs no functions.
        """
        name = call.name if call.method in KINDS else None
        if name is None or self._is_stored_result(call.method, name):
            return self._handle_other(call, context)
        # The table has only operations that clients may call.
        begin = self._operations.begin_by_name(call.method).get(name)
        if begin is None:
            kind = KINDS[call.method]
            if not self._visibility.allows(kind, name):
                raise self._redact_error(
                    ResourceNotFound(name) if kind == "resource" else unknown_name(kind, name)
                )
            begin = self._operations.add(call.method, name)
        return begin(call, context, slot)

    def argument_check(self, method: str, name: str) -> CheckArguments | None:
        """Return the inner backend's function that checks the arguments of one tool or prompt.

        For invalid arguments, the function raises ArgumentsRefused if the response to the call is a
        result, and RpcError if the response is an error.
        method, name: for example "tools/call" and the name of the tool.
        Returns None if only the inner backend's handle() can check them.
        """
        return argument_check_of(self.inner, method, name)

    def allows(self, kind: str, name: str) -> bool:
        """Return whether `allow` and `deny` let clients see and call an operation.

        kind: "tool", "prompt" or "resource".
        name: the name or URI of the operation.
        """
        return self._visibility.allows(kind, name)

    @property
    def _serves_results(self) -> bool:
        """Return whether this guard stores results that are too large, as resources."""
        return self._limits.max_bytes is not None

    def _is_stored_result(self, method: str, name: str) -> bool:
        """Return whether a call is for a stored result that this guard must answer."""
        if method != "resources/read" or not self._serves_results or not name.startswith(URI):
            return False
        # If the result is not in this store, an inner guard may have stored it, and then the inner
        # backend has resources. If it has none, this guard answers that there is no such resource.
        return name in self._limits.store or not self.inner.features().resources

    def _redact_error(self, error: RpcError) -> RpcError:
        return redact_error(error) if self._limits.redact else error

    # Lists, completions and stored results

    async def _handle_other(self, call: Call, context: Context) -> Struct | Raw:
        """Handle a call that is not a call of an operation of the inner backend.

        Such calls are lists, completions, reads of stored results, and other methods.
        """
        if not self._limits.redact:
            return await self._handle_unredacted(call, context)
        try:
            return redactor().value(await self._handle_unredacted(call, context))
        except RpcError as exc:
            raise self._redact_error(exc) from None

    async def _handle_unredacted(self, call: Call, context: Context) -> Struct | Raw:
        """Handle a call that is not a call of an operation. Secrets stay in results and errors."""
        list_method = LIST_METHODS.get(call.method)
        if list_method is not None:
            return await self._list(list_method, call, context)
        # begin_call() sends reads of other resources to the inner backend.
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
        """Return one page of a list, without the items that clients may not see."""
        # The inner backend has no resources and would answer with an error. The only resources are
        # the stored results of this guard, which are not listed.
        if (
            self._serves_results
            and method.kind == "resource"
            and not self.inner.features().resources
        ):
            return method.result_type(**{method.member: []})

        page: Any = await self.inner.handle(call, context)
        cached = self._lists.get(call.method)
        # Return the same object for the same page, because sessions cache data by this object.
        if cached is not None:
            inner_page, own_page = cached
            if inner_page is page:
                return own_page

        visible = self._filter(method, page) if self._visibility.is_limited else page
        # Keep only the first page: most lists have no other.
        if "cursor" not in call.params:
            self._lists[call.method] = page, visible
        return visible

    def _filter(self, method: ListMethod, page: Struct | Raw) -> Struct | Raw:
        """Return a page of a list without hidden items; `page` itself if no item is hidden.

        Fields that this package does not know stay in the visible items, because servers behind a
        proxy may have such fields.
        """
        items: list[Any] = getattr(decode_page(page, method), method.member)
        is_visible = [
            self._visibility.allows(method.kind, getattr(item, method.name_member))
            for item in items
        ]
        if all(is_visible):
            return page
        if not isinstance(page, Raw):
            return replace(page, **{method.member: list(compress(items, is_visible))})
        members = decode(page, type=dict[str, Raw])
        raw_items = decode(members[method.json_member], type=list[Raw])
        members[method.json_member] = Raw(encode(list(compress(raw_items, is_visible))))
        return Raw(encode(members))

    def _check_completion(self, call: Call) -> None:
        """Raise RpcError if a completion is for an operation that clients may not see."""
        try:
            ref = call.decode_params(CompleteParams).ref
        except DECODE_ERRORS:
            # The params are invalid. The backend will report that.
            return
        if isinstance(ref, PromptReference):
            if not self._visibility.allows("prompt", ref.name):
                raise unknown_name("prompt", ref.name)
        elif not self._visibility.allows("resource", ref.uri):
            raise ResourceNotFound(ref.uri)


class _Slot:
    """The HooksSlot of a call that handle() awaits."""

    __slots__ = ("hooks",)

    def __init__(self) -> None:
        self.hooks: CallHooks | None = None


class _FilteredNotifier(NotifierWrapper):
    """A Notifier that drops updates of resources that clients may not see."""

    def __init__(self, visibility: Visibility, outlet: Notifier) -> None:
        super().__init__(outlet)
        self._visibility = visibility

    def report_update(self, uri: str) -> None:
        if self._visibility.allows("resource", uri):
            self.outlet.report_update(uri)


def _release(hooks: CallHooks) -> None:
    """Make the permit of a call that has ended free, so that another call may run."""
    if hooks.permits is not None:
        hooks.permits.free += 1


def _make_monotonic(clock: Callable[[], float]) -> Callable[[], float]:
    """Return a clock that stands still while `clock` goes back."""
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
    """Raise ValueError unless an argument is None or a positive, finite number.

    name: the name of the argument.
    kinds: the allowed types.
    noun: the counted thing, such as "number of seconds", for the error text.
    """
    if value is None:
        return
    # The check for both types tells type checkers that `value` can be compared.
    if (
        isinstance(value, bool)
        or not isinstance(value, (int, float))
        or not isinstance(value, kinds)
        or not 0 < value < float("inf")
    ):
        raise ValueError(f"{name}: expected a positive {noun}, got {value!r}")
