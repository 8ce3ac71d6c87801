"""One connection, seen from the client: requests and their answers, time limits, strays, and why it ended.

There is one way for every request: an id, an entry among those that wait, a future. Time limits need no timer of their own: one for
the channel wakes when the earliest is due, looks at all that wait (a few microseconds for a thousand), and sleeps until the next.
`asyncio.timeout` would cost 3.9 us a call, `wait_for` 11.
What requests mean is not known here (client.py).
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections import deque
from collections.abc import Awaitable, Callable, Generator, Sequence
from random import SystemRandom
from time import monotonic
from types import coroutine
from typing import Any, Literal, Protocol

from msgspec import UNSET, DecodeError, Raw, Struct
from msgspec.json import Decoder, encode

from concertino.client.pending_request import (
    PendingReply,
    PreparedRequest,
    Progress,
    ProgressTimeout,
    shortened,
)
from concertino.errors import ConcertinoError, Disconnected, ProtocolError, TimedOut
from concertino.jsonrpc.limits import Limits
from concertino.jsonrpc.messages import NEWLINE, Id, Message, decode, encode_request, one_line
from concertino.jsonrpc.peer import IncomingRequest, OutgoingRequest, Peer, PendingRequest
from concertino.transports.connection import Connection

__all__ = ["Channel", "ChannelDelegate", "Reply", "answered", "request_template"]

STRAYS_KEPT = 8  # lines, for errors and for whoever looks
STRAYS_TOLD_AT = frozenset(
    10**power for power in range(1, 10)
)  # after the first few: every tenth power
TEMPLATES_KEPT = 64
LATE = 4096  # ids of requests that were given up, whose answer may still come
ENDLESS_S = 10.0  # for a line that passed the limit to end; a server that goes on is ended
HIGHEST_FIRST_ID = (
    2**30
)  # a start nobody guesses: a line that a tool prints must not pass for an answer


class ChannelDelegate(Protocol):
    """Who is told what comes in that is no answer."""

    def asked(self, incoming: IncomingRequest) -> None:
        """A request of the server's. Answer it with peer.respond() or peer.fail()."""
        ...

    def notified(self, message: Message) -> None:
        """A notification."""
        ...

    def on_eof(self) -> None:
        """The connection ended by itself: release what belongs to it."""
        ...

    def explained(self, error: ConcertinoError) -> ConcertinoError:
        """An error of the channel's, with what is known about the process at the other end."""
        ...


class _Progress(Struct, rename="camel"):
    progress_token: Id
    progress: float
    total: float | None = None
    message: str | None = None


class Reply(Struct, gc=False, forbid_unknown_fields=True):
    """An answer with a result, and not a member more: what nearly every frame to a client is."""

    jsonrpc: Literal["2.0"]
    id: int
    result: Raw


# One member at the beginning of a message, with its value if that is short.
_MEMBER = re.compile(
    rb'[\s{,]*"(jsonrpc|id|result|error|method|params)"\s*:\s*("[^"\\]*"|-?\d{1,18}|)'
)
_progress = Decoder(_Progress).decode
answered = Decoder(Reply).decode


class Channel:
    """Takes what a Connection brings. Nothing here outlives close()."""

    def __init__(
        self, connection: Connection, limits: Limits, owner: ChannelDelegate, log: logging.Logger
    ) -> None:
        self.connection = connection
        self.over = False
        self.reading = False  # frames of the connection, outside of any task
        self.heard = False  # frames, since somebody set this back
        self.stray = 0  # lines that are no message, and answers that nobody waits for
        self.late = 0  # answers to what was given up
        self.overlong_bytes = 0  # of the last message that passed the limit
        self.strays: deque[str] = deque(maxlen=STRAYS_KEPT)
        self.fault = ""  # why we ended it
        self.frame = b""  # the one that is being looked at, unless it is a plain answer
        self._owner = owner
        self._log = log
        self._limits = limits
        self._high_water_bytes = limits.high_water_bytes
        self._max_message_bytes = limits.max_message_bytes
        self.loop = loop = asyncio.get_running_loop()
        self._time = (
            monotonic if type(loop).time is asyncio.BaseEventLoop.time else loop.time
        )  # the same, without a frame
        self.peer = Peer(self._send, limits, loop.time)
        self._next_id = SystemRandom().randrange(
            1, HIGHEST_FIRST_ID
        )  # ids are given here, not by the peer
        self._templates: dict[str, bytes] = {}
        self._read = answered
        self._exchange: Callable[[bytes, Id | None], bytes | int] | None
        self._exchange = getattr(connection, "send_and_poll", None) or getattr(
            connection, "send", None
        )
        self._postpone: Callable[[bytes], object] = getattr(
            connection, "defer_line", bytes
        )  # what has none gives none
        self._outside_tasks = getattr(connection, "outside_tasks", False)
        self.peer.invalid_input.answered = False
        self._outgoing = self.peer.outgoing
        self._scheduled = False  # a flush
        self._timer: asyncio.TimerHandle | None = None
        self._wakes_at = float("inf")
        self._endless: asyncio.TimerHandle | None = None
        self._room: asyncio.Future[None] | None = None
        self._given_up: dict[Id, None] = {}
        self._tokens: dict[Id, PendingReply] = {}
        self._next_token = 1
        connection.open(self)

    # Requests

    def request(
        self,
        method: str,
        params: bytes,
        subject: str,
        patience_s: float,
        total_s: float,
        progress: Progress | None = None,
        token: int = 0,
        cancels: bool = True,
    ) -> Awaitable[Raw]:
        """Send a request; its result, undecoded. params: a JSON object. The rest, and what it raises: see ask()."""
        template = self._templates.get(method) or self._template(method)
        question = PreparedRequest(template, method, subject, answered)
        return self.ask(question, params, patience_s, total_s, progress, token, cancels)

    @coroutine
    def ask(
        self,
        question: PreparedRequest,
        params: bytes,
        patience_s: float,
        total_s: float,
        progress: Progress | None = None,
        token: int = 0,
        cancels: bool = True,
    ) -> Generator[Any, None, Any]:
        """Send a request and return its result, as question.read gives it; as Raw, if that cannot read it.

        patience_s: how long a silence may be, progress ends one; total_s: how long it may take in all; both may be infinite.
        token: from next_token(), if params ask for progress. cancels: whether the server is told when the request is given up.
        Raises RpcError, TimedOut, Disconnected, ProtocolError; ValueError for what cannot be sent.

        A generator, as `types.coroutine` takes one: a request is one frame, not a coroutine, another for what it awaits, and an
        iterator for that.
        """
        if not patience_s > 0:  # not a number is neither
            raise ValueError(
                f"timeout_s: expected a positive number of seconds, got {patience_s!r}"
            )
        if self.over:
            raise self.disconnected(question.name)
        now = self._time()
        peer = self.peer
        if peer.buffered_bytes >= self._high_water_bytes:
            what = question.name
            yield from self._until_there_is_room(what, min(patience_s, total_s)).__await__()
        id = self._next_id
        self._next_id = id + 1
        if NEWLINE in params:
            params = one_line(params)
        frame = question.template % (id, params)
        if len(frame) > self._max_message_bytes:
            limit = self._max_message_bytes
            raise ValueError(f"{question.name}: {len(frame)} bytes; a message may have {limit}")
        outgoing = self._outgoing
        # Where nobody else is under way it is written at once, which saves a turn of the loop. The answer may be there by then.
        alone = not outgoing and not self._scheduled
        came = None
        if alone and self._exchange is not None:
            came = self._exchange(frame, id)
            if isinstance(came, bytes):
                try:
                    answer = question.read(came)
                    if not came.isascii():
                        str(came, "utf-8")
                    if answer.id == id:
                        return answer.result
                except (DecodeError, UnicodeDecodeError, RecursionError):
                    pass  # frames() says what it is
                self._postpone(came)
                came = 0
        deadline = now + (patience_s if patience_s < total_s else total_s)
        waiting = PendingReply(self, self.loop, id, question, now, deadline)
        if token and progress is not None:
            waiting.patience = ProgressTimeout(progress, patience_s, now + total_s)
            self._tokens[token] = waiting
        if deadline < self._wakes_at:
            self._wake_at(deadline)
        self._read = question.read
        outgoing[id] = waiting
        if came is None:
            came = self._written(frame, id) if alone else self._send(frame, id)
        peer.buffered_bytes = came
        try:
            if waiting.outcome is None:
                yield waiting
            outcome: Any = waiting.outcome
            if waiting.failed:
                raise outcome
            return outcome
        except asyncio.CancelledError:
            if not self.over:
                self._give_up(waiting, "the caller gave up", cancels)
            raise
        except Disconnected:
            raise self.disconnected(question.name, self._time() - now) from None
        except TimedOut:
            self._give_up(waiting, "timed out", cancels)
            raise
        finally:
            if token:
                self._tokens.pop(token, None)

    def next_token(self) -> int:
        """A progress token that no other request under way has."""
        self._next_token += 1
        return self._next_token

    def notify(self, method: str, params: bytes) -> None:
        """Send a notification, unless the connection is over."""
        if not self.over:
            self.peer.notify(method, params)

    def begin(
        self, method: str, params: bytes, done: Callable[[Raw | Exception], object]
    ) -> OutgoingRequest:
        """Send a request that may stay unanswered for as long as it likes. done: as Peer.request says."""
        id = self._next_id
        self._next_id = id + 1
        self._outgoing[id] = outgoing = OutgoingRequest(id, done)
        self.peer.buffered_bytes = self._send(encode_request(id, method, params), id)
        return outgoing

    def _template(self, method: str) -> bytes:
        """Kept, for there are few methods."""
        template = request_template(method)
        if len(self._templates) < TEMPLATES_KEPT:
            self._templates[method] = template
        return template

    def drop(self, id: Id, reason: str, tell: bool) -> None:
        """Give up a request of begin(). tell: the server, too."""
        outgoing = self._outgoing.get(id)  # pyright: ignore[reportArgumentType]  # ours are numbers
        if outgoing is not None and not self.over:
            self._give_up(outgoing, reason, tell)

    def _give_up(self, outgoing: PendingRequest, reason: str, cancels: bool) -> None:
        if outgoing.id not in self._outgoing:
            return
        if len(self._given_up) >= LATE:
            del self._given_up[next(iter(self._given_up))]
        self._given_up[outgoing.id] = None
        if cancels:
            self.peer.abandon(outgoing, reason)
        else:
            del self._outgoing[outgoing.id]

    async def _until_there_is_room(self, what: str, within_s: float) -> None:
        """The server does not read: wait until it does, for as long as an answer may take."""
        until = self._time() + within_s
        while self.peer.buffered_bytes >= self._high_water_bytes and not self.over:
            if self._room is None:
                self._room = self.loop.create_future()
            left = until - self._time()
            await asyncio.wait(
                [self._room], timeout=None if left == float("inf") else max(0.0, left)
            )
            if self._time() >= until:
                text = f"{what}: could not be sent within {within_s:g} s: the server does not read its input"
                raise self._owner.explained(TimedOut(text))
        if self.over:
            raise self.disconnected(what)

    # Time limits

    def _wake_at(self, at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._wakes_at = at
        self._timer = None if at == float("inf") else self.loop.call_at(at, self._expire)

    def _expire(self) -> None:
        now = self._time()
        nearest = float("inf")
        for waiting in list(self._outgoing.values()):
            if not isinstance(waiting, PendingReply):
                continue
            if waiting.deadline > now:
                nearest = min(nearest, waiting.deadline)
            elif waiting.outcome is None:
                waiting.done(self._owner.explained(TimedOut(self._why_late(waiting, now))))
        self._timer = None
        self._wake_at(nearest)

    def _why_late(self, waiting: PendingReply, now: float) -> str:
        text = f"{waiting.question.name}: no answer within {now - waiting.since:.3g} s"
        if waiting.patience is not None and waiting.patience.told > float("-inf"):
            text += f" (its last progress was {waiting.patience.told:g})"
        if self.overlong_bytes:
            text += f"; a message of {self.overlong_bytes} bytes or more came and was discarded, which may have been the "
            text += f"answer: max_message_bytes is {self._limits.max_message_bytes}"
        return text

    # Receiver

    def on_frames(self, batch: Sequence[bytes]) -> None:
        self.heard = True
        self.reading = reading = self._outside_tasks or asyncio.current_task(self.loop) is None
        outgoing = self._outgoing
        try:
            for frame in batch:
                if not outgoing:
                    self._receive(frame)
                    continue
                read = self._read  # what was asked last is what mostly comes
                try:
                    answer = read(frame)
                    if not frame.isascii():
                        str(frame, "utf-8")
                    waiting = outgoing.pop(answer.id)
                except (DecodeError, UnicodeDecodeError, RecursionError, KeyError):
                    self._receive(frame)  # which says what it is
                    continue
                if type(waiting) is PendingReply and waiting.question.read is read:
                    if (
                        waiting.callback is not None and waiting.outcome is None and reading
                    ):  # as done() does
                        waiting.outcome = answer.result
                        waiting.context.run(waiting.callback, waiting)
                    else:
                        waiting.done(answer.result)
                else:
                    waiting.done(answer.result if read is answered else answered(frame).result)
        finally:
            self.reading = False

    def _receive(self, frame: bytes) -> None:
        """A frame that is no plain answer."""
        peer = self.peer
        before = peer.invalid_input.unsolicited
        self.frame = frame
        event = peer.receive(frame)
        self.frame = b""
        if event is not None:
            if type(event) is list:
                for each in event:
                    self._came(each)
            else:
                self._came(event)  # pyright: ignore[reportArgumentType]  # no list, so one of the two
        elif peer.invalid_input.unsolicited != before:
            self._strayed(frame)

    def on_frame_too_long(self, size: int) -> None:
        limit = self._limits.max_message_bytes
        if self._endless is None:
            self._endless = self.loop.call_later(ENDLESS_S, self._is_endless)
        self.frame = getattr(self.connection, "oversize_head", b"")
        is_answer, id = _answer_to(self.frame)
        if (
            is_answer and id is None
        ):  # some write the id last: it can only be known when nothing else waits
            waiting = [
                each.id for each in self._outgoing.values() if isinstance(each, PendingReply)
            ]
            id = waiting[0] if len(waiting) == 1 else None
        outgoing = self._outgoing.pop(id, None) if id is not None else None
        if outgoing is not None:
            self._log.warning("an answer of more than %d bytes was discarded", limit)
            outgoing.done(
                ProtocolError(f"the answer has more than {limit} bytes, which is max_message_bytes")
            )
        elif id in self._given_up:
            del self._given_up[id]
            self.late += 1
        else:
            self.overlong_bytes = size
            self.shown(self.frame, f"is longer than {limit} bytes")

    def on_drain(self, held: int) -> None:
        self.peer.on_drain(held)
        if self._room is not None:
            if not self._room.done():
                self._room.set_result(None)
            self._room = None

    def _is_endless(self) -> None:
        self._endless = None
        if getattr(self.connection, "is_discarding", False):
            self.give_up(
                f"it sends a line without an end: more than {self._limits.max_message_bytes} bytes"
            )

    def give_up(self, fault: str) -> None:
        """End it, because of what the server does."""
        if not self.over:
            self.fault = fault
            self._log.error("the connection is closed: %s", fault)
            self.on_eof()

    def on_eof(self) -> None:
        if not self.over:
            self.end()
            self._owner.on_eof()

    def on_disconnect(self, why: Exception) -> None:
        self.on_eof()

    def end(self) -> None:
        """Nothing more comes: whoever waits is told, and nothing is sent any more."""
        if self.over:
            return
        self.over = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._endless is not None:
            self._endless.cancel()
        self.on_drain(0)
        left = self.peer.close()
        for incoming in left:
            if incoming.on_cancel is not None:
                incoming.on_cancel("the connection ended")

    def _came(self, event: IncomingRequest | Message) -> None:
        try:
            if type(event) is IncomingRequest:
                self._owner.asked(event)
            elif event.method == "notifications/progress":  # the most frequent by far
                self._progressed(event)  # pyright: ignore[reportArgumentType]
            else:
                self._owner.notified(event)  # pyright: ignore[reportArgumentType]
        except Exception:
            self._log.exception("a message of the server's could not be dealt with")

    def _progressed(self, message: Message) -> None:
        """Progress of an unknown request, of another shape, or that goes back, is ignored."""
        if not self._tokens:
            return
        try:
            told = _progress(encode(message.params))
        except DecodeError:
            return
        waiting = self._tokens.get(told.progress_token)
        patience = None if waiting is None else waiting.patience
        if waiting is None or patience is None or not told.progress > patience.told:
            return
        patience.told = told.progress
        waiting.deadline = min(self._time() + patience.silence_s, patience.until)
        try:
            patience.progress(told.progress, told.total, told.message)
        except Exception:
            self._log.exception("the function that is told of progress failed")

    def _strayed(self, frame: bytes) -> None:
        """Either an answer that comes late, or what has no place in this conversation: shown, and otherwise without effect."""
        message = decode(frame)
        if type(message) is Message and message.id is not UNSET and message.id in self._given_up:
            del self._given_up[message.id]
            self.late += 1
            return
        self.shown(
            frame,
            "is no message" if type(message) is not Message else "answers nothing that was asked",
        )

    def shown(self, frame: bytes, why: str) -> None:
        """Count a line of the server's that was skipped, and show the first few."""
        self.stray += 1
        line = shortened(frame)
        self.strays.append(line)
        if self.stray <= STRAYS_KEPT or self.stray in STRAYS_TOLD_AT:
            self._log.warning("line %d that %s was skipped: %s", self.stray, why, line)

    # The end

    def explained(self, error: ConcertinoError) -> ConcertinoError:
        """As its owner says."""
        return self._owner.explained(error)

    def disconnected(self, what: str, waited_s: float = 0.0) -> Disconnected:
        """What is raised for a request that is not answered any more."""
        text = f"{what}: the connection ended before the answer came"
        if waited_s:
            text += f", after {waited_s:.3g} s"
        error = self._owner.explained(Disconnected(text))
        return error if isinstance(error, Disconnected) else Disconnected(str(error))

    def _send(self, frame: bytes, about: Id | None) -> int:
        if not self._scheduled:
            self._scheduled = True
            self.loop.call_soon(self._flush)
        return self.connection.write(frame, about)

    def _written(self, frame: bytes, about: Id | None) -> int:
        """For a Connection that cannot do both in one step."""
        held = self.connection.write(frame, about)
        self.connection.flush()
        return held

    def _flush(self) -> None:
        self._scheduled = False
        self.connection.flush()


def request_template(method: str, before: bytes = b"", behind: bytes = b"") -> bytes:
    """A request, for its id and its params, or for what stands in those between `before` and `behind`."""
    fixed = (each.replace(b"%", b"%%") for each in (encode(method), before, behind))
    return b'{"jsonrpc":"2.0","id":%%d,"method":%b,"params":%b%%b%b}' % tuple(fixed)


def _answer_to(head: bytes) -> tuple[bool, int | None]:
    """Whether a message that begins so is an answer; and to which request, if it says that before the result."""
    id: int | None = None
    at = 0
    while (found := _MEMBER.match(head, at)) is not None:
        name, value = found.groups()
        if name in (b"result", b"error"):
            return True, id
        if name in (b"method", b"params"):
            return False, None
        if name == b"id":
            id = int(value) if value.isdigit() else None
        at = found.end()
    return False, None
