"""Guard: a Backend whose calls are let through, counted, timed, cut and cleaned as it is told, in one step around another.

    allowed?  ->  in flight  ->  rate  ->  time limit  ->  the backend  ->  secrets  ->  size

One class instead of a chain of wrappers, since each further coroutine costs more than what is decided in it (bench/guards.py).
For the same reason a driver takes a call from admit_call(), without any: runtime/call_hooks.py. handle() is for everybody else.
What is decided once for an operation is kept as its Plan. guards/single_guards.py has the parts by themselves.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from math import ceil
from typing import Any

from msgspec import DecodeError, Raw, Struct
from msgspec.json import decode
from msgspec.structs import replace

from concertino.backend.interface import (
    Backend,
    BackendWrapper,
    Call,
    ChangeKind,
    Context,
    Notifier,
    ServerFeatures,
)
from concertino.errors import INVALID_PARAMS, RpcError
from concertino.guards.deadline import Timed, TimeIsOver
from concertino.guards.guard_context import GuardContext
from concertino.guards.operation_names import EVERYTHING, LISTS, NAMED, Patterns, named
from concertino.guards.operation_policy import LEFT_OVER, LeftOver, OperationPolicy
from concertino.guards.rates import Rate, Window
from concertino.guards.refusals import refuse
from concertino.guards.secrets import without_secrets_error
from concertino.guards.sizes import URI, OversizeStore
from concertino.logs.redact import redactor
from concertino.runtime.call_hooks import BeginCall, CallHooksSlot, Permits, method_of_same_class
from concertino.types.results import CallToolResult, CompleteParams, PromptReference

__all__ = ["Guard"]

PLANS = 1024  # operations that have a plan, and windows, of their own; the rest share one window for each rate
LONGEST_NAME = 1024  # characters of an operation that has a plan
SHOWN = 128  # characters of a name that nobody has, given back


class Guard(BackendWrapper):
    """A Backend around another; every part is off unless it is given.

    rate_limit: a Rate, or a text such as `10/60` or `search_*=10/60`, or several: all must have room, and a refused call
    counts in none.
    max_in_flight: calls at once. timeout_s: longest time for one; it is answered then, and cancelled. max_result_bytes: of a
    result as JSON; what is more is kept (`kept`), and linked. match: the operations that these three are about, all of them
    unless given. allow, deny: globs of what may be seen and called; a kind that no `allow` is about is allowed, and `deny` wins.
    redact: take secrets out of what is answered. clock: seconds, monotonic; one that steps back counts as standing still.
    Raises ValueError that names what does not fit.
    """

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
        kept: OversizeStore | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(inner)
        several = isinstance(rate_limit, Iterable) and not isinstance(rate_limit, str)
        rates: Any = rate_limit if several else (rate_limit,)
        self._rates = [(rate, Patterns(rate.match)) for rate in map(Rate.read, rates)]
        self._matched = Patterns(match)
        self._slots = (
            None
            if max_in_flight is None
            else Permits(_positive("max_in_flight", max_in_flight, int))
        )
        self._limit_s = None if timeout_s is None else _positive("timeout_s", timeout_s, float)
        self._max_bytes = (
            None
            if max_result_bytes is None
            else _positive("max_result_bytes", max_result_bytes, int)
        )
        self._allow = Patterns(allow)
        self._deny = Patterns(deny)
        self._chooses = bool(self._allow.kinds or self._deny.kinds)
        if type(redact) is not bool:
            raise ValueError(f"redact: expected True or False, got {redact!r}")
        self._redact = self.hushes = redact
        self._serves_kept = max_result_bytes is not None
        self._kept = kept or OversizeStore()
        self._clock = clock if clock is time.monotonic else _never_back(clock)
        self._shared = {
            rate: Window(rate) for rate, _ in self._rates
        }  # of those that share, and of whoever is too many
        self._plans: Mapping[str, dict[str, OperationPolicy]] = {method: {} for method in NAMED}
        self._admits: Mapping[str, dict[str, BeginCall]] = {
            method: {} for method in NAMED
        }  # of the same operations
        # See runtime/call_hooks.py. A subclass that begins calls itself is asked about each.
        own = type(self).admit_call is Guard.admit_call
        self.admits: Mapping[str, BeginCall] = self._admits["tools/call"] if own else {}
        self._know = method_of_same_class(inner, "know")
        self._swept_at = self._clock()
        self._left = LeftOver()
        self._offered: tuple[ServerFeatures, ServerFeatures] | None = (
            None  # what the backend offers, and what is offered of it
        )
        self._lists: dict[
            str, tuple[Any, Any]
        ] = {}  # by method: a list as it was, and as it is shown

    # Backend

    async def start(self, outlet: Notifier) -> None:
        await self.inner.start(_Chosen(self, outlet) if self._chooses else outlet)

    def features(self) -> ServerFeatures:
        offer = self.inner.features()
        if offer.resources or not self._serves_kept:
            return offer
        if self._offered is None or self._offered[0] is not offer:
            self._offered = offer, replace(offer, resources=True)
        return self._offered[1]  # the same object: what is made of it is kept

    async def watch(self, uris: frozenset[str]) -> None:
        if self._chooses:
            uris = frozenset(uri for uri in uris if self.allows("resource", uri))
        await self.inner.watch(uris)

    async def close(self) -> None:
        for task in self._left.tasks:
            task.cancel()
        await self.inner.close()

    async def handle(self, call: Call, context: Context) -> Struct | Raw:
        seen: Any = context  # or what stands around it, which only forwards
        if self._redact or self._limit_s is not None:
            seen = GuardContext(context, hushed=self._redact)
        admitted = _Alone()
        work = self.admit_call(call, seen, admitted)
        if (plan := admitted.terms) is None:
            return await work
        try:
            result: Any = await (
                work if plan.timeout_s is None else Timed(work, seen, plan.timeout_s)
            )
        except TimeIsOver as over:
            if over.task is None:
                plan.end()
                return plan.too_late()
            over.task.add_done_callback(plan.left)
            return plan.timed_out(over.task)
        except BaseException as error:
            plan.end()
            failure = plan.failed(error)
            if failure is error:
                raise
            raise failure from None
        plan.end()
        return plan.done(result)

    def admit_call(
        self, call: Call, context: Context, admitted: CallHooksSlot
    ) -> Any:  # Any: as the backend's handle()
        """The work of a call, or of its refusal; `admitted` gets a Plan if there is something to do at the end of it.

        context: one that is hushed, if this `hushes`. Raises RpcError for an operation that may not be called.
        """
        admits = self._admits.get(call.method)
        admit = (
            None
            if admits is None or (name := named(call)) is None
            else admits.get(name) or self._find(call, name)
        )
        return self._unnamed(call, context) if admit is None else admit(call, context, admitted)

    # What was decided once

    def _find(self, call: Call, name: str) -> BeginCall | None:
        """How calls of this operation are begun; None for a resource of ours. Raises RpcError if there is no such thing."""
        kind = NAMED[call.method][0]
        # What is not kept here may be kept by another guard, further in.
        ours = self._serves_kept and kind == "resource" and name.startswith(URI)
        if ours and (name in self._kept or not self.inner.features().resources):
            return None
        if not self.allows(kind, name):
            raise self._hushed(_unknown(call.method, name))
        plans = self._plans[call.method]
        own = len(name) <= LONGEST_NAME and (len(plans) < PLANS or self._swept(call.method))
        windows = tuple(
            Window(rate) if own and not rate.shared else self._shared[rate]
            for rate, patterns in self._rates
            if patterns.match(kind, name)
        )
        limits = (
            (self._slots, self._limit_s, self._max_bytes)
            if self._matched.match(kind, name)
            else (None, None, None)
        )
        plan = OperationPolicy(
            call.method, name, windows, *limits, self._redact, self._kept, self._left
        )
        admit = self._admitting(plan)
        if own:
            plans[name] = plan
            self._admits[call.method][name] = admit
        return admit

    def _admitting(self, plan: OperationPolicy) -> BeginCall:
        """How each call of an operation is begun: what can be looked up once is looked up here (an attribute costs 0.2 %)."""
        inner, clock = self.inner, self._clock
        windows, slots, left, stays = plan.windows, plan.slots, plan.left_over, plan.stays
        known = None if self._know is None else self._know(plan.method, plan.name)
        handle_known: Any = inner.handle  # with what `know` gave
        if not windows and not stays and known is not None:
            return lambda call, context, admitted: handle_known(call, context, known)
        only = windows[0] if len(windows) == 1 else None  # as nearly always
        times: Any = only and only.times  # Any: never None where it is used, and so with the next
        accepted: Any = only and only.times.append
        most, within_s = (only.calls, only.within_s) if only else (0, 0.0)

        def admit(call: Call, context: Context, admitted: CallHooksSlot) -> Any:
            if slots is not None and not slots.free:
                return self._all_taken(call, slots)
            if left is not None and left.are_many:
                return self._too_much_left(call)
            if only is not None:
                now = clock()
                if len(times) == most and now - times[0] < within_s:
                    return self._too_many(call, plan, now)
                accepted(now)
            elif windows:
                now = clock()
                if any(each.wait_s(now) for each in windows):
                    return self._too_many(call, plan, now)
                for each in windows:
                    each.times.append(now)
            work = (
                inner.handle(call, context) if known is None else handle_known(call, context, known)
            )
            if stays:
                if slots is not None:
                    slots.free -= 1
                admitted.terms = plan
            return work

        return admit

    def _swept(self, method: str) -> bool:
        """Forget the plans that nothing would be missed of; at most once a second. Returns whether there is room now."""
        plans = self._plans[method]
        now = self._clock()
        if now - self._swept_at >= 1.0:
            self._swept_at = now
            for name in [
                name
                for name, plan in plans.items()
                if all(each.is_idle(now) for each in plan.windows)
            ]:
                del plans[name], self._admits[method][name]
        return len(plans) < PLANS

    def allows(self, kind: str, name: str) -> bool:
        """Whether `allow` and `deny` let somebody see it. kind: tool, prompt or resource."""
        if kind in self._deny.kinds and self._deny.match_any(kind, name):
            return False
        return kind not in self._allow.kinds or self._allow.match_all(kind, name)

    def _hushed(self, error: RpcError) -> RpcError:
        return without_secrets_error(error) if self._redact else error

    # Refusals: awaited as the work would be

    async def _too_many(self, call: Call, plan: OperationPolicy, now: float) -> CallToolResult:
        window = max(plan.windows, key=lambda each: each.wait_s(now))
        wait_s = ceil(window.wait_s(now) * 1000) / 1000
        return refuse(
            call.method,
            "RATE_LIMIT_EXCEEDED",
            f"Too many calls of {plan.shown}: {window.calls} in {window.within_s:g} s are accepted.",
            f"Try again in {ceil(wait_s)} s.",
            retryAfterSeconds=wait_s,
        )

    async def _all_taken(self, call: Call, slots: Permits) -> CallToolResult:
        said = f"{slots.most} call{'s are' if slots.most > 1 else ' is'} allowed at once, and as many are under way."
        return refuse(
            call.method,
            "TOO_MANY_IN_FLIGHT",
            said,
            "Try again when one of them is done.",
            limit=slots.most,
        )

    async def _too_much_left(self, call: Call) -> CallToolResult:
        said = f"{LEFT_OVER} calls go on although their time was over."
        return refuse(call.method, "TOO_MANY_IN_FLIGHT", said, "Try again later.", limit=LEFT_OVER)

    # Lists and completions

    async def _unnamed(self, call: Call, context: Context) -> Struct | Raw:
        """What is about no one operation."""
        if not self._redact:
            return await self._listed(call, context)
        try:
            return redactor().value(await self._listed(call, context))
        except RpcError as error:
            raise self._hushed(error) from None

    async def _listed(self, call: Call, context: Context) -> Struct | Raw:
        listed = LISTS.get(call.method)
        if listed is None:
            if call.method == "resources/read" and (uri := named(call)) is not None:
                return self._kept.read(uri)
            if self._chooses and call.method == "completion/complete":
                self._check_completion(call)
            return await self.inner.handle(call, context)
        if self._serves_kept and listed.kind == "resource" and not self.inner.features().resources:
            return listed.shape(**{listed.member: []})
        page: Any = await self.inner.handle(call, context)
        kept = self._lists.get(call.method)
        if kept is not None and kept[0] is page:
            return kept[1]  # the same object: what is lowered from it is kept
        shown: Any = decode(page, type=listed.shape) if isinstance(page, Raw) else page
        if self._chooses:
            items = [
                item
                for item in getattr(shown, listed.member)
                if self.allows(listed.kind, getattr(item, listed.name))
            ]
            if len(items) < len(getattr(shown, listed.member)):
                shown = replace(shown, **{listed.member: items})
        if "cursor" not in call.params:
            self._lists[call.method] = page, shown
        return shown

    def _check_completion(self, call: Call) -> None:
        try:
            ref = call.decode_params(CompleteParams).ref
        except (DecodeError, UnicodeError):
            return  # the backend has the better answer
        if isinstance(ref, PromptReference):
            if not self.allows("prompt", ref.name):
                raise _unknown("prompts/get", ref.name)
        elif not self.allows("resource", ref.uri):
            raise _unknown("resources/read", ref.uri)


class _Alone:
    """Where a call's Terms are, when no driver carries it out."""

    __slots__ = ("terms",)

    def __init__(self) -> None:
        self.terms: OperationPolicy | None = None


class _Chosen:
    """The outlet of a backend of which not everything may be seen."""

    def __init__(self, guard: Guard, outlet: Notifier) -> None:
        self._guard = guard
        self._outlet = outlet

    def report_change(self, what: ChangeKind) -> None:
        self._outlet.report_change(what)

    def report_update(self, uri: str) -> None:
        if self._guard.allows("resource", uri):
            self._outlet.report_update(uri)


def _never_back(clock: Callable[[], float]) -> Callable[[], float]:
    """A clock that stands still while that one goes back."""
    latest = clock()

    def now() -> float:
        nonlocal latest
        latest = max(latest, clock())
        return latest

    return now


def _unknown(method: str, name: str) -> RpcError:
    """What a server says of a name that it does not have."""
    kind, member = NAMED[method]
    if kind == "resource":
        return RpcError(INVALID_PARAMS, "Resource not found", {"uri": name})
    name = name if len(name) <= SHOWN else name[:SHOWN] + "..."
    return RpcError(
        INVALID_PARAMS,
        f"Unknown {kind}: {name}",
        {"details": f"{member}: there is no {kind} {name!r}"},
    )


def _positive(what: str, value: Any, kind: type) -> Any:  # Any: whatever an author gave
    kinds = (int, float) if kind is float else (int,)
    if isinstance(value, bool) or not isinstance(value, kinds) or not 0 < value < float("inf"):
        raise ValueError(
            f"{what}: expected a positive {'number of seconds' if kind is float else 'number'}, got {value!r}"
        )
    return value
