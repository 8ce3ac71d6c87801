"""Link: one connection, driven.

It stands between a connection and its session: it feeds frames in, starts a task for each admitted call, answers for the handler
whatever becomes of it, writes once per read and once per loop turn, and sees to an orderly end.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from threading import get_ident
from typing import TYPE_CHECKING, Any

from msgspec import DecodeError, Raw, Struct
from msgspec.json import Decoder

from concertino.errors import INTERNAL_ERROR, InvalidClientResponse, MissingCapability, RpcError
from concertino.jsonrpc.messages import Id
from concertino.protocol.call import Call, InputRequired
from concertino.protocol.session import Session, SessionRequest
from concertino.protocol.wire_results import InputRequiredSignal
from concertino.runtime.context import DONE, CallContext
from concertino.runtime.tasks import eager_task_runner, hide_from_all_tasks, read_batch_of
from concertino.transports.connection import Connection
from concertino.types.results import CallToolResult, TextContent

if TYPE_CHECKING:
    from concertino.protocol.seal import Seal
    from concertino.runtime.call_hooks import CallHooks
    from concertino.runtime.host import Host

__all__ = ["CLEANUP_S", "ServerConnection"]

log = logging.getLogger("concertino.host")
_text = Decoder(str).decode

TURN_S = 0.02  # for how long a handler that tells something may keep the loop
LATER_S = 0.1  # for how long what was told too often is held back
CLEANUP_S = 0.5  # for the `finally` blocks of handlers that were cut off


class ServerConnection:
    """One connection's Receiver, and the driver of its session. closed: done when everything is over."""

    def __init__(self, host: Host, connection: Connection) -> None:
        self._loop = self.loop = asyncio.get_running_loop()
        self.thread = get_ident()
        self.closed: asyncio.Future[None] = self._loop.create_future()
        self._connection = connection
        self.backend = host.backend
        self._limits = host.limits
        self._reading = read_batch_of(self._loop)
        self._admit: Any = host.admit  # an Admit, where _start_admitted() is what starts calls
        self._admits = host.admits
        self._context = host.context
        self._spawn = eager_task_runner(self._loop, self._ended)
        self._leaving: set[asyncio.Task[None]] = set()  # cancelled, and not done yet
        self._turning = False  # a call to _turn is scheduled
        self._paused = False
        self._draining = False
        self._ending: asyncio.Task[None] | None = None
        self._end_at = 0.0
        self._drain_timer: asyncio.TimerHandle | None = None
        self._room: asyncio.Future[None] | None = None
        self._turn_began: float | None = (
            None  # when something was first told in this turn of the loop
        )
        self._complaining = False
        self._faulty = False
        self._catching_up = False  # a call to _catch_up is scheduled
        self.session = Session(
            host.backend.features,
            self._send,
            self._start if self._admit is None else self._start_admitted,
            host.limits,
            self._loop.time,
            host.watch_changed,
            seal=_seal,
            principal=str(connection.facts.get("uid", "")).encode(),
            schedule_flush=self._later,
        )
        self.session.peer.ready = False  # until ready()

    # From the connection

    def on_frames(self, batch: Sequence[bytes]) -> None:
        receive = self.session.receive
        self.session.peer.send = self._connection.write  # what is written is settled below
        for frame in batch:
            try:
                receive(frame)
            except Exception:
                self._fault("a message could not be dealt with")
        self._settle()

    def on_frame_too_long(self, size: int) -> None:
        log.warning("a message of more than %d bytes was refused", self._limits.max_message_bytes)
        self.session.peer.on_frame_too_long(size)

    def on_drain(self, held: int) -> None:
        try:
            self.session.peer.on_drain(held)
        except Exception:
            self._fault("what waited for a slow reader could not be written")
        if self._room is not None:
            if not self._room.done():
                self._room.set_result(None)
            self._room = None
        self._settle()

    def on_eof(self) -> None:
        log.debug("end of input")
        self.session.peer.on_eof()
        self.drain()

    def on_disconnect(self, why: Exception) -> None:
        log.info("the connection is lost: %s", why)
        self._end(0.0)

    # To the connection

    def _send(self, frame: bytes, about: Id | None) -> int:
        """The first frame since _settle(): it is settled in this loop turn, with all that follow, which are only queued."""
        self._settle_soon()
        return self._connection.write(frame, about)

    def _fault(self, what: str) -> None:
        """The memory ran out, or concertino is wrong: something that must be answered perhaps never will be.

        So the connection ends, in order as far as that goes: then the other side waits for nothing.
        """
        log.exception("%s; this is a fault of concertino", what)
        self._faulty = True
        self._settle_soon()

    def _settle_soon(self) -> None:
        if not self._turning:
            self._turning = True
            if self._reading.on:
                self._reading.at_end(self._turn)
            else:
                self._loop.call_soon(self._turn)
            self.session.peer.send = self._connection.write

    def _turn(self) -> None:
        self._turning = False
        self._settle()

    def _settle(self) -> None:
        """After any change: start what may start now, write, and hold back input while output is held."""
        peer = self.session.peer
        try:
            if peer.waiting:
                peer.send = self._connection.write
                self.session.admit()
            if not self._turning and self._ending is None:  # a closed peer sends nowhere
                peer.send = self._send
            self._connection.flush()
        except Exception:
            self._fault("a call could not be started, or output not be written")
        if self._faulty and not self._draining:
            self._begin_draining()
        pause = peer.buffered_bytes >= self._limits.high_water_bytes or self._draining
        if pause is not self._paused:
            self._paused = pause
            self._connection.pause(pause)
        if (peer.invalid_input.suppressed or self.session.dropped_logs) and not self._complaining:
            self._complaining = True
            self._loop.call_later(1.0, self._complain)
        if (
            self._draining
            and not peer.waiting
            and len(peer.running) <= self.session.open_subscriptions
        ):
            # Subscriptions hear of what the last calls change.
            if self.session.open_subscriptions and self._ending is None:
                self._end_subscriptions()
                self._connection.flush()
            self._end(self._end_at - self._loop.time())

    def _later(self) -> None:
        """Something was held back because too much was told: it leaves soon, if nothing newer takes its place."""
        if not self._catching_up:
            self._catching_up = True
            self._loop.call_later(LATER_S, self._catch_up)

    def _catch_up(self) -> None:
        self._catching_up = False
        if self._ending is None:
            self.session.peer.on_drain(self.session.peer.buffered_bytes)
            self._settle()

    def _complain(self) -> None:
        peer = self.session.peer
        self._complaining = False
        if peer.invalid_input.suppressed:
            log.warning(
                "%d malformed messages were not answered: too many at once",
                peer.invalid_input.suppressed,
            )
        if self.session.dropped_logs:
            log.warning(
                "%d log messages were not sent: too many, or the client does not read",
                self.session.dropped_logs,
            )
        peer.invalid_input.suppressed = self.session.dropped_logs = 0

    def report_change(self, what: str) -> None:
        """Tell the client, unless the connection is closing: nothing follows what it cuts off."""
        if self._ending is None:
            self.session.report_change(what)

    def report_update(self, uri: str) -> None:
        """As changed(), of a resource's content."""
        if self._ending is None:
            self.session.report_update(uri)

    def room(self) -> Awaitable[None]:
        """What a handler awaits after telling something: nothing, that a slow reader catches up, or that others had a turn.

        A handler that does nothing but compute and tell would be neither heard nor cancelled.
        """
        if self.session.peer.buffered_bytes < self._limits.high_water_bytes:
            now = self._loop.time()
            if self._turn_began is None:
                self._turn_began = now
                self._loop.call_soon(self._turn_over)
            return DONE if now - self._turn_began < TURN_S else asyncio.sleep(0)
        if self._room is None:
            self._room = self._loop.create_future()
        return asyncio.shield(self._room)

    def _turn_over(self) -> None:
        self._turn_began = None

    def post(self, act: Any) -> None:
        """Run act on the loop; from any thread."""
        try:
            self._loop.call_soon_threadsafe(act)
        except RuntimeError:  # the loop is closed: nobody is there to be told
            pass

    # Calls

    def ready(self, failure: BaseException | None) -> None:
        """The backend has started, or failed to."""
        peer = self.session.peer
        peer.ready = True
        if failure is None:
            self.session.reload_features()
            self._settle()
            return
        try:
            for incoming in list(peer.waiting.values()):
                peer.fail(incoming, INTERNAL_ERROR, "Internal error: the server failed to start")
        except Exception:
            self._fault("a call could not be answered")
        self.drain()

    def _start(self, incoming: SessionRequest) -> None:
        try:
            work = self.backend.handle(incoming.call, CallContext(self, incoming))
        except BaseException as error:  # of a `def handle`, before there is anything to await
            return self._ended(incoming, Raw(b"{}"), error)
        task = self._spawn(work, incoming)
        if task is not None:
            self.session.peer.add_running(incoming)
            incoming.on_cancel = partial(self._cancel, task, incoming)
        return None

    def _start_admitted(self, incoming: SessionRequest) -> None:
        """As _start(), of a backend that admits its calls itself: see admission.py."""
        call: Call = incoming.call
        if call.method == "tools/call":
            try:
                admit = self._admits[_text(call.params["name"])]
            except (KeyError, DecodeError, UnicodeError):
                admit = self._admit
        else:
            admit = self._admit
        try:
            work = admit(call, self._context(self, incoming), incoming)
        except BaseException as error:  # a refusal, mostly
            return self._ended(incoming, Raw(b"{}"), error)
        task = self._spawn(work, incoming)
        if task is not None:
            self.session.peer.add_running(incoming)
            incoming.on_cancel = partial(self._cancel, task, incoming)
            if incoming.terms is not None and incoming.terms.timeout_s is not None:
                from concertino.runtime.call_hooks import TimedCall

                incoming.terms = TimedCall(
                    incoming, incoming.terms, task, self._ended, incoming.on_cancel
                )
        return None

    def _ended(
        self, incoming: SessionRequest, result: Struct | Raw, error: BaseException | None
    ) -> None:
        """A call's handler returned or raised: answer, whatever it was."""
        if incoming.on_cancel is not None:  # it has waited
            incoming.on_cancel = None  # it refers to the call: its message would stay until the next collection of garbage
            if incoming.terms is not None and incoming.terms.timeout_s is not None:
                incoming.terms = incoming.terms.ended()
        # What sends nothing brings no turn: a cancelled call, and one of a batch before the last.
        if self._draining or incoming.batch is not None:
            self._settle_soon()
        passes: Callable[[str], bool] | None = None
        if (
            terms := incoming.terms
        ) is not None:  # it stays there if this is the end: to take it out costs 0.5 %
            if (slots := terms.slots) is not None:
                slots.free += 1
            if error is None:
                passes = terms.passes
            else:
                error = terms.failed(error)
                incoming.terms = None
        if incoming.dialogue is not None and incoming.dialogue.suspended and incoming.open:
            # Whatever the handler made of being suspended: it has asked, and does not know the answer.
            incoming.terms = None
            return self._asked(incoming, self.session.reply_suspended, incoming)
        if error is None:
            try:
                if self.session.respond(incoming, result, passes):
                    return None
            except InputRequiredSignal:
                incoming.terms = None
                assert isinstance(result, InputRequired)
                return self._needs_input(incoming, result)
            except BaseException as unfit:  # MemoryError; an attribute that raises SystemExit
                if not incoming.open:
                    return self._fault("an answer could not be written")
                error = unfit
            else:
                assert terms is not None  # whose `passes` has said so
                incoming.terms = None
                return self._finish(incoming, result, terms)
        if isinstance(error, RpcError):
            if isinstance(error, (MissingCapability, InvalidClientResponse)):
                return self._unasked(incoming, error)
            return self._fail(incoming, error)
        if isinstance(error, asyncio.CancelledError):
            # If it is open still, the handler did this to itself.
            return self._fail(
                incoming,
                RpcError(INTERNAL_ERROR, "Internal error: the call was cancelled by its handler"),
            )
        if incoming.open:  # SystemExit too: no handler ends the server
            log.error("%s failed", incoming.method, exc_info=error)
        return self._fail(incoming, RpcError(INTERNAL_ERROR, "Internal error"))

    def _finish(self, incoming: SessionRequest, result: Struct | Raw, terms: CallHooks) -> None:
        """As _ended(), of a result that may have to be changed first."""
        error: BaseException | None = None
        try:
            result = terms.done(result)
        except BaseException as unfit:
            error = unfit
        return self._ended(incoming, result, error)

    # Questions

    def _asked(
        self, incoming: SessionRequest, answer: Callable[..., None], *arguments: object
    ) -> None:
        """The answer to a call is what it asks."""
        if incoming.dialogue is not None:
            incoming.dialogue.suspended = False  # whatever follows is no suspension
        try:
            return answer(*arguments)
        except RpcError as error:
            return self._ended(incoming, Raw(b"{}"), error)
        except Exception as error:  # a backend's mistake, a key that is none
            log.error("%s: the client could not be asked: %s", incoming.method, error)
            return self._fail(
                incoming, RpcError(INTERNAL_ERROR, "Internal error: the client could not be asked")
            )

    def _needs_input(self, incoming: SessionRequest, wanted: InputRequired) -> None:
        """A backend asks: in the answer, or, before 2026-07-28, at once; then it is called again."""
        if incoming.profile.encoder.revision.modern:
            return self._asked(incoming, self.session.reply_input_required, incoming, wanted)
        task = self._spawn(self._again(incoming, wanted), incoming)
        if task is not None:
            if incoming.table is None:
                self.session.peer.add_running(incoming)
            incoming.on_cancel = partial(self._cancel, task, incoming)
        return None

    async def _again(self, incoming: SessionRequest, wanted: InputRequired) -> Struct | Raw:
        from concertino.runtime.client_questions import put

        dialogue = self.session.load_client_requests(incoming, wanted)
        if wanted.questions:
            await put(self, dialogue, wanted.questions)
        else:
            dialogue.count_round()
        call: Call = incoming.call
        incoming.call = Call(call.method, call.params, call.meta, dialogue.answers, wanted.state)
        return await self.backend.handle(incoming.call, CallContext(self, incoming))

    def _unasked(self, incoming: SessionRequest, error: RpcError) -> None:
        """The client cannot be asked, or answered with what is no answer. Older callers of a tool are told in its result."""
        if incoming.profile.encoder.revision.modern or incoming.method != "tools/call":
            return self._fail(incoming, error)
        self.session.respond(incoming, CallToolResult([TextContent(error.message)], is_error=True))
        return None

    def _cancel(self, task: asyncio.Task[None], incoming: SessionRequest, reason: str) -> None:
        log.debug("request %r was cancelled: %s", incoming.id, reason or "no reason given")
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)
        task.cancel()
        if incoming.dialogue is not None:
            for each in list(incoming.dialogue.thread_waits):
                each.cancel()

    def _fail(self, incoming: SessionRequest, error: RpcError) -> None:
        code, message = error.code, error.message
        if type(code) is not int or not isinstance(message, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            log.error(
                "%s: an RpcError needs an int and a str, got %r and %r",
                incoming.method,
                code,
                message,
            )
            code, message = INTERNAL_ERROR, "Internal error"
        # A backend's mistake must not leave the caller waiting: data that is no JSON, a text with half a surrogate pair.
        for said, data in ((message, error.data), (message, None), ("Internal error", None)):
            try:
                return self.session.fail(incoming, code, said, data)
            except Exception as why:
                if not incoming.open:
                    break
                log.error("%s: an error answer could not be written: %s", incoming.method, why)
        return self._fault("a call could not be answered")

    # The end

    def drain(self) -> None:
        """Stop reading, let accepted calls finish within the drain time, then close. Once it has begun it goes its way."""
        if self._draining:
            return
        self._begin_draining()
        self._settle()

    def _begin_draining(self) -> None:
        self._draining = True
        self._end_at = self._loop.time() + self._limits.drain_s
        self._drain_timer = self._loop.call_later(self._limits.drain_s, self._cut_off)

    def _cut_off(self) -> None:
        """The drain time is over."""
        self._end_subscriptions()
        self._end(0.0)

    def _end_subscriptions(self) -> None:
        try:
            self.session.end_subscriptions()
        except Exception:
            self._fault("the end of a subscription could not be told")

    def _end(self, within_s: float) -> None:
        if self._ending is None:
            self._draining = True
            self._ending = hide_from_all_tasks(
                self._loop.create_task(self._close(max(0.0, within_s)))
            )

    async def _close(self, within_s: float) -> None:
        if self._drain_timer is not None:
            self._drain_timer.cancel()
        left = self.session.close()
        for incoming in left:
            if incoming.on_cancel is not None:
                incoming.on_cancel("the connection is closing")
        if calls := sum(incoming.method != "subscriptions/listen" for incoming in left):
            log.warning("%d calls were cut off", calls)
        if self._leaving:
            await asyncio.wait(self._leaving, timeout=CLEANUP_S)
        try:
            await self._connection.close(within_s)
        finally:
            # With session.close(): what is left of a client goes with its last reference, not with the next collection of garbage.
            self._spawn = _never
            if not self.closed.done():
                self.closed.set_result(None)


def _never(work: object, subject: object) -> None:
    raise RuntimeError("the connection is closed; this is a fault of concertino")


def _seal() -> Seal:
    """One for all hosts of this process; made, with what it needs, when a call first asks its client.

    Raises RpcError, for that call alone, when there can be none.
    """
    from concertino.runtime.client_questions import process_seal

    try:
        return process_seal()
    except ValueError as why:
        log.error("a client cannot be asked: %s", why)
        raise RpcError(INTERNAL_ERROR, "Internal error: the client could not be asked") from None
