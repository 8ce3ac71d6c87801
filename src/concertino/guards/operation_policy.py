"""OperationPolicy: the settings of a guard for one operation (a tool, prompt or resource).

OperationTable (operation_table.py) creates the policy at the first call of the operation. The
policy begins the operation's calls. It is also the CallHooks of these calls
(protocol/call_hooks.py): the runtime calls finish(), fail() or time_out() when a call ends.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from math import ceil
from typing import TYPE_CHECKING, Any

from msgspec import UNSET, Raw, Struct
from msgspec.structs import replace

from concertino.backend.call_hooks import (
    ArgumentsRefused,
    ArgumentVerdict,
    BeginCall,
    CheckArguments,
    Handle,
    HooksSlot,
    Work,
    argument_check_of,
    argument_verdict,
    operation_handler_of,
    record_refused_arguments,
    refusing_handler_of,
)
from concertino.backend.interface import Backend, Call, Context
from concertino.errors import INVALID_PARAMS, RpcError
from concertino.excerpts import shorten
from concertino.guards.operation_names import operation_name
from concertino.guards.rates import Window
from concertino.guards.refusals import refuse
from concertino.guards.secrets import redact_error
from concertino.guards.sizes import (
    ENVELOPE_BYTES,
    LIMITED,
    WORST_ESCAPE,
    OversizeStore,
    cut,
    size_of,
)
from concertino.logs.redact import make_clean_check, redactor
from concertino.protocol.call_hooks import Permits
from concertino.types.results import CallToolResult, TextContent

if TYPE_CHECKING:
    from asyncio import Task

__all__ = ["MAX_LATE_WORK", "GuardLimits", "LateWork", "OperationPolicy"]

# LateWork subtracts this from the number of free permits, so that none is free: a larger number
# than any guard has permits.
ALL_PERMITS = 2**29
# At most this many calls may continue after their time limit. If there are more, calls are refused,
# because each one uses memory and perhaps a thread.
MAX_LATE_WORK = 1024
# The methods whose calls have arguments. Calls with invalid arguments do not count against a rate.
CHECKED = ("tools/call", "prompts/get")
# A refusal quotes at most this many characters of an operation's name.
MAX_QUOTED = 128


class LateWork:
    """The work of calls that were answered with TIMED_OUT but whose handlers have not ended.

    permits: the permits that limit how many calls run at the same time; None if there is no such
        limit. While `is_full` is True, no permit is free.

    Attributes:
    tasks: the tasks in which the work continues. Guard.close() cancels them.
    is_full: whether there are MAX_LATE_WORK tasks, so that no call with a time limit may begin.
    """

    __slots__ = ("_permits", "is_full", "tasks")

    def __init__(self, permits: Permits | None = None) -> None:
        self.tasks: set[Task[None]] = set()
        self.is_full = False
        self._permits = permits

    def add(self, task: Task[None]) -> None:
        """Add the task in which the work of a call continues."""
        self.tasks.add(task)
        self._update()

    def remove(self, task: Task[None]) -> None:
        """Remove a task that has ended."""
        self.tasks.discard(task)
        self._update()

    def _update(self) -> None:
        is_full = len(self.tasks) >= MAX_LATE_WORK
        # With all permits taken, calls that need a permit are refused without a check of `is_full`.
        if self._permits is not None and is_full is not self.is_full:
            self._permits.free += -ALL_PERMITS if is_full else ALL_PERMITS
        self.is_full = is_full


class GuardLimits(Struct, frozen=True):
    """The settings of a guard, except for its rates, and the state that all operations share.

    An operation is a tool, prompt or resource.
    permits: the permits that limit how many calls run at the same time; None if there is no such
        limit.
    timeout_s: how long a call may take, in seconds; None for any time.
    max_bytes: the largest size of a result as JSON, in bytes; None for any size.
    redact: whether to remove secrets.
    store: the store of results that are too large.
    late_work: the calls that continue after their time limit.
    clock: a monotonic clock in seconds.
    """

    permits: Permits | None
    timeout_s: float | None
    max_bytes: int | None
    redact: bool
    store: OversizeStore
    late_work: LateWork
    clock: Callable[[], float]

    def redaction_only(self) -> GuardLimits:
        """Return the settings for operations that the option `match` of Guard does not select.

        For such an operation, the guard only removes secrets and applies rates.
        """
        return replace(self, permits=None, timeout_s=None, max_bytes=None)


class OperationPolicy:
    """Begins and ends the calls of one operation: a tool, prompt or resource.

    begin_method() returns the function that begins a call: the function checks the limits, and
    returns the coroutine of the call. The runtime, or Guard.handle(), runs the coroutine, and then
    calls a hook: finish() with the result, fail() with the exception, or time_out() after the time
    limit.

    inner: the backend that handles the calls.
    method, name: the method of the calls, such as "tools/call", and the name of the operation.
    windows: the counters of the rates that apply to the operation.
    limits: the other settings that apply to the operation.

    Attributes:
    method, name, windows: the arguments.
    permits, timeout_s: the fields of `limits`.
    accepts_text: a fast check of a result that is a single text. Returns True if finish() would not
        change the result. None if finish() changes no result.
    """

    __slots__ = (
        "_clock",
        "_counts_at_end",
        "_handle",
        "_limits",
        "_needs_end_hook",
        "_single_window",
        "accepts_text",
        "method",
        "name",
        "permits",
        "timeout_s",
        "windows",
    )

    def __init__(
        self,
        inner: Backend,
        method: str,
        name: str,
        windows: tuple[Window, ...],
        limits: GuardLimits,
    ) -> None:
        self.method = method
        self.name = name
        self.windows = windows
        self.permits = limits.permits
        self.timeout_s = limits.timeout_s
        self.accepts_text = _make_text_check(limits.max_bytes, limits.redact)
        self._limits = limits
        self._single_window = windows[0] if len(windows) == 1 else None
        self._clock = limits.clock
        # Whether something must be done when a call ends: release a permit, stop a timer, or
        # examine the result.
        self._needs_end_hook = (
            limits.permits is not None
            or limits.timeout_s is not None
            or self.accepts_text is not None
        )
        # The function that handles calls is looked up once for all calls. Calls with invalid
        # arguments must not count against a rate. There are three cases:
        # 1. The backend has a handler for this operation, which checks the arguments first.
        handle = operation_handler_of(inner, method, name)
        # 2. The backend has only a function that checks the arguments.
        if handle is None and windows and (check := argument_check_of(inner, method, name)):
            handle = _make_checking_handle(check, inner.handle)
        # 3. The backend has neither. A call counts at once, and no longer counts if its result
        # shows that the arguments were invalid.
        self._counts_at_end = handle is None and bool(windows) and method in CHECKED
        if self._counts_at_end:
            handle = refusing_handler_of(inner)
        self._handle = handle or inner.handle

    # The beginning of a call

    def begin_method(self) -> BeginCall:
        """Return the function that begins the calls of this operation.

        The function takes a call, its Context and its HooksSlot, and returns the coroutine that
        handles the call.
        """
        # All three have the same effect. The first two are faster, and need certain settings.
        if not self.windows and not self._needs_end_hook:
            return self._begin_unlimited
        if self._single_window is not None and not self._counts_at_end:
            return self._begin_within_rate
        return self._begin_limited

    def _begin_unlimited(
        self,
        call: Call,
        context: Context,
        slot: HooksSlot,
    ) -> Work:
        """Begin a call of an operation without rates, limits and redaction."""
        try:
            return self._handle(call, context)
        except ArgumentsRefused as exc:
            return self._refuse_arguments(exc.result)

    def _begin_within_rate(
        self,
        call: Call,
        context: Context,
        slot: HooksSlot,
    ) -> Work:
        """Begin a call of an operation with exactly one rate: return its coroutine, or refuse it.

        Has the same effect as _begin_limited().
        """
        # Most operations with rates have a single one. Without the loops and conditions of
        # _begin_limited(), all guards together take 2 % fewer of a small call's CPU instructions
        # (CPython 3.13).
        permits = self.permits
        if permits is not None:
            if permits.free <= 0:
                return self._refuse_when_busy(permits)
        elif self.timeout_s is not None and self._limits.late_work.is_full:
            return self._refuse_for_late_work()
        window = self._single_window
        assert window is not None
        now = self._clock()
        times = window.times
        # This condition is `window.wait_s(now) > 0`, without the function call.
        if len(times) == window.calls and now - times[0] < window.within_s:
            return self._refuse_for_rate(now)

        try:
            work = self._handle(call, context)
        except (ArgumentsRefused, RpcError) as exc:
            return self._end_at_once(exc)
        times.append(now)
        if permits is not None:
            permits.free -= 1
            slot.hooks = self
        elif self._needs_end_hook:
            slot.hooks = self
        return work

    def _begin_limited(
        self,
        call: Call,
        context: Context,
        slot: HooksSlot,
    ) -> Work:
        """Begin a call of an operation with limits, or return the coroutine that refuses it.

        slot: if something must be done at the end of the call, `slot.hooks` becomes this object.
        """
        permits = self.permits
        if permits is not None:
            if permits.free <= 0:
                return self._refuse_when_busy(permits)
        elif self.timeout_s is not None and self._limits.late_work.is_full:
            return self._refuse_for_late_work()
        now = 0.0
        if self.windows:
            now = self._clock()
            if any(window.wait_s(now) > 0 for window in self.windows):
                return self._refuse_for_rate(now)

        # If handle() raises at once, the call takes no permit and does not count.
        try:
            work = self._handle(call, context)
        except (ArgumentsRefused, RpcError) as exc:
            return self._end_at_once(exc)
        if self.windows:
            for window in self.windows:
                window.times.append(now)
            if self._counts_at_end:
                work = self._handle_counted(work, now)
        if permits is not None:
            permits.free -= 1
        if self._needs_end_hook:
            slot.hooks = self
        return work

    def _end_at_once(self, error: ArgumentsRefused | RpcError) -> Work:
        """Return a coroutine for a call whose handle() has raised at once, or raise the error.

        Invalid arguments become a result of the coroutine; an RpcError is raised.
        """
        if isinstance(error, ArgumentsRefused):
            return self._refuse_arguments(error.result)
        raise self.fail(error) from None

    async def _handle_counted(self, work: Work, began: float) -> Struct | Raw:
        """Await the work of a call. If its arguments were invalid, do not count the call any more.

        The tool reports invalid arguments with record_refused_arguments(), in the ArgumentVerdict
        that the context variable `argument_verdict` contains.
        began: the time at which the call was counted.
        """
        outer = argument_verdict.get()
        verdict = ArgumentVerdict()
        argument_verdict.set(verdict)
        try:
            result = await work
        except ArgumentsRefused as exc:
            verdict.refused = True
            result = exc.result
        except RpcError as exc:
            if exc.code == INVALID_PARAMS:
                self._uncount(began)
            raise
        finally:
            # ContextVar.reset() would fail if the work continues in another context.
            argument_verdict.set(outer)
        # A wrapper between this guard and the tool may have called the tool again with other
        # arguments, and with success.
        has_succeeded = isinstance(result, CallToolResult) and not result.is_error
        if verdict.refused and not has_succeeded:
            self._uncount(began)
            # This goes to `outer`, the verdict for a guard around this one.
            record_refused_arguments()
        return result

    def _uncount(self, began: float) -> None:
        """Do not count the call that was counted at the time `began` any more."""
        for window in self.windows:
            # The entry may be missing, because a window with `calls` entries drops the oldest entry
            # when a call is added.
            if began in window.times:
                window.times.remove(began)

    def _refuse_when_busy(self, permits: Permits) -> Work:
        """Return the coroutine that refuses a call because no permit is free."""
        # LateWork takes all permits while too many calls continue after their time limit.
        if self._limits.late_work.is_full:
            return self._refuse_for_late_work()
        return self._refuse_for_permits(permits)

    # The next methods are coroutines, because the caller of Guard.begin_call() awaits what it
    # returns.

    async def _refuse_arguments(self, result: Struct) -> Struct | Raw:
        # For a guard around this one.
        record_refused_arguments()
        return self.finish(result)

    async def _refuse_for_rate(self, now: float) -> CallToolResult:
        """Refuse a call because of a rate, and say when to try again.

        now: the current time by the guard's clock.
        """
        window = max(self.windows, key=lambda window: window.wait_s(now))
        wait_s = ceil(window.wait_s(now) * 1000) / 1000
        return refuse(
            self.method,
            "RATE_LIMIT_EXCEEDED",
            f"Too many calls of {self._display_name}: "
            f"{window.calls} in {window.within_s:g} s are accepted.",
            f"Try again in {ceil(wait_s)} s.",
            retryAfterSeconds=wait_s,
        )

    async def _refuse_for_permits(self, permits: Permits) -> CallToolResult:
        """Refuse a call because too many calls are running."""
        calls = "call is" if permits.capacity == 1 else "calls are"
        return refuse(
            self.method,
            "TOO_MANY_IN_FLIGHT",
            f"{permits.capacity} {calls} allowed at once, and as many are under way.",
            "Try again when one of them is done.",
            limit=permits.capacity,
        )

    async def _refuse_for_late_work(self) -> CallToolResult:
        """Refuse a call because too many calls continue after their time limit."""
        return refuse(
            self.method,
            "TOO_MANY_IN_FLIGHT",
            f"{MAX_LATE_WORK} calls go on although their time was over.",
            "Try again later.",
            limit=MAX_LATE_WORK,
        )

    # The end of a call

    def finish(self, result: Any) -> Struct | Raw:
        """Return the result to send to the client: without secrets, and cut if it is too large.

        result: the result of the backend.
        Raises RpcError for a result of a prompt or resource that is too large.
        """
        # There is neither a size limit nor redaction.
        if self.accepts_text is None:
            return result
        text = _single_text(result)
        if text is not None and self.accepts_text(text):
            return result
        return self._redact_and_cut(result)

    def fail(self, error: BaseException) -> BaseException:
        """Return the exception to raise for a call whose coroutine has raised `error`.

        Returns `error` itself, or a copy without secrets.
        """
        if self._limits.redact and isinstance(error, RpcError):
            return redact_error(error)
        return error

    def time_out(self, work: Any) -> CallToolResult:
        """Return the error result for a tool call whose time limit has passed.

        Raises RpcError for a prompt or resource. Work that continues although it was cancelled
        counts as a running call until on_late_end() is called.
        work: the task in which the work of the call continues; None if the work has ended.
        """
        if work is not None:
            self._limits.late_work.add(work)
        return refuse(
            self.method,
            "TIMED_OUT",
            f"{self._display_name} took longer than {self.timeout_s:g} s and was stopped.",
            "Ask for less at once, or try again later.",
            limitSeconds=self.timeout_s,
        )

    def on_late_end(self, work: Any) -> None:
        """Count a timed-out call as ended, because its work has now ended, too.

        work: the task that was passed to time_out().
        """
        self._limits.late_work.remove(work)
        if self.permits is not None:
            self.permits.free += 1

    def _redact_and_cut(self, result: Any) -> Struct | Raw:
        """Return a result without secrets, and cut if it is too large.

        Raises RpcError if a result other than a tool's is too large.
        """
        if self._limits.redact:
            result = redactor().value(result)

        max_bytes = self._limits.max_bytes
        if max_bytes is None or not isinstance(result, (Raw, *LIMITED)):
            return result
        size = size_of(result)
        if size <= max_bytes:
            return result
        if self.method == "tools/call":
            return cut(result, self.name, size, max_bytes, self._limits.store)
        return refuse(
            self.method,
            "RESULT_TOO_LARGE",
            f"The result of {self._display_name} has {size} bytes; {max_bytes} are allowed.",
            "Ask for less.",
            limitBytes=max_bytes,
            sizeBytes=size,
        )

    @property
    def _display_name(self) -> str:
        """Return the operation's name for messages, without secrets and not too long."""
        return shorten(redactor().text(operation_name(self.method, self.name)), MAX_QUOTED)


def _make_checking_handle(check: CheckArguments, handle: Handle) -> Handle:
    """Return a function that checks a call's arguments before it handles the call."""

    def check_and_handle(call: Call, context: Context) -> Work:
        check(call, context)
        return handle(call, context)

    return check_and_handle


def _single_text(result: object) -> str | None:
    """Return the text of a tool's result that has nothing but one text; None for other results."""
    if type(result) is not CallToolResult or len(result.content) != 1:
        return None
    block = result.content[0]
    if result.structured_content is not UNSET or result.meta is not None:
        return None
    if type(block) is not TextContent or block.annotations is not None or block.meta is not None:
        return None
    return block.text if type(block.text) is str else None


def _make_text_check(max_bytes: int | None, redact: bool) -> Callable[[str], bool] | None:
    """Return a fast function that returns True for texts that need not be examined further.

    True means that the text is short enough and contains no secret. False means only that the text
    must be examined further.
    max_bytes: the largest size of a result as JSON; None for any size.
    redact: whether secrets must be removed.
    Returns None if there is neither a size limit nor redaction.
    """
    if max_bytes is None:
        return make_clean_check(sys.maxsize) if redact else None
    # A text with so many characters is short enough even if JSON needs an escape for each.
    max_characters = (max_bytes - ENVELOPE_BYTES) // WORST_ESCAPE

    def is_short(text: str) -> bool:
        return len(text) <= max_characters

    return make_clean_check(max_characters) if redact else is_short
