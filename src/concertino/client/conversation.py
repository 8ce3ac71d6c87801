"""One MCP conversation, seen from the client: what every request carries, what the server may ask, what it tells.

opening.py finds out the revision; from then on requests, answers and notifications follow it. A question of the server's is
answered by answers.py: as a request before 2026-07-28, in rounds of `input_required` since.
Spec: 2026-07-28 basic/index, basic/patterns/mrtr, basic/patterns/subscriptions; 2025-11-25 basic/lifecycle.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from inspect import isawaitable
from typing import Any, Literal

from msgspec import DecodeError, Raw, Struct
from msgspec.json import Decoder, decode, encode

from concertino.client.channel import Channel, Reply, answered, request_template
from concertino.client.pending_request import PreparedRequest, Progress, named, shortened
from concertino.client.request_handlers import RequestHandlers
from concertino.client.subscriptions import ResourceSubscriptions
from concertino.client.targets import OpenTarget
from concertino.errors import (
    INTERNAL_ERROR,
    UNSUPPORTED_VERSION,
    ConcertinoError,
    Disconnected,
    ProtocolError,
    RpcError,
    TimedOut,
)
from concertino.jsonrpc.limits import Limits
from concertino.jsonrpc.messages import Id, Message
from concertino.jsonrpc.peer import IncomingRequest
from concertino.logs.formats import escape_controls
from concertino.logs.redact import redactor
from concertino.protocol.revisions import MODERN, Revision
from concertino.protocol.session import CAPABILITIES, CLIENT, LOG_LEVEL, VERSION
from concertino.types.client_requests import InputRequiredResult
from concertino.types.results import CallToolResult, Implementation, Level

__all__ = ["Conversation", "LogMessage", "NotificationHandlers", "is_offered_again"]

COMPLETE = b'"result":{"resultType":"complete"'
HEAD_BYTES = 96  # of an answer: in which COMPLETE stands, if it is the server's habit
QUESTIONS_KEPT = 1024
ASKING = frozenset(
    ("tools/call", "prompts/get", "resources/read")
)  # mrtr: nothing else may answer input_required
LISTS = ("tools", "prompts", "resources")
DRAIN_S = 1.0  # at the end, for what a server has not read yet
QUOTED = 2000  # characters of stderr, in the text of an error


class LogMessage(Struct, frozen=True):
    """A log message of the server's, sent to this client. data: any JSON value."""

    level: Level
    data: Any
    logger: str | None = None


class NotificationHandlers(Struct, frozen=True):
    """Who is told what the server says of itself. Plain functions, on the loop; changed may be a coroutine function."""

    notified: Callable[[str, dict[str, Any]], object] | None = None
    changed: Callable[[str], object] | None = None
    updated: Callable[[str], object] | None = None
    logged: Callable[[LogMessage], object] | None = None


class _Called(Struct, gc=False, forbid_unknown_fields=True):
    """The answer to a call of a tool, and not a member more."""

    jsonrpc: Literal["2.0"]
    id: int
    result: CallToolResult


class _Kind(Struct, rename="camel"):
    result_type: str = "complete"


class _Cancelled(Struct, rename="camel"):
    request_id: Id
    reason: str = ""


_called = Decoder(_Called).decode
_kind = Decoder(_Kind).decode
_input_required = Decoder(InputRequiredResult).decode
_cancelled = Decoder(_Cancelled).decode
_log_message = Decoder(LogMessage).decode
_text = Decoder(str).decode


class Conversation:
    """Between one client and one opened connection. revision: None until opening.py has found it out."""

    def __init__(
        self,
        name: str,
        opened: OpenTarget,
        limits: Limits,
        info: Implementation,
        answers: RequestHandlers,
        ears: NotificationHandlers,
        rounds: int,
        show: Callable[[str, str], object] | None,
    ) -> None:
        self.name = name
        self.log = logging.getLogger(f"concertino.client.{name}")
        self.opened = opened
        self.info = info
        self.answers = answers
        self.revision: Revision | None = None
        self.server = Implementation(name, "")
        self.offered: Mapping[str, Any] = {}
        self.instructions: str | None = None
        self._modern = False
        self._meta: dict[str, Any] = {}
        self._meta_bytes = b""
        self._questions: dict[str, PreparedRequest] = {}  # of plain calls, by the tool's name
        self._ears = ears
        self._rounds = rounds
        self._limits = limits
        self._tasks: set[asyncio.Task[None]] = set()
        self._telling: dict[
            str, bool
        ] = {}  # what changed, being told -> whether it changed again meanwhile
        self.on_end: Callable[[Conversation], object] | None = None  # when it ended by itself
        self.afterwards = ""  # what follows upon such an end, for errors
        self._closed = False
        self._releasing: asyncio.Task[None] | None = None
        connection = opened.connection
        if show is not None:
            from concertino.transports.trace import trace_connection

            connection = trace_connection(connection, show)
        self.channel = Channel(connection, limits, self, self.log)
        self.subscriptions = ResourceSubscriptions(
            self.channel, lambda body: self._params(body, 0, None), self.log
        )

    # Requests

    def speaks(self, revision: Revision) -> None:
        """From now on this revision is spoken."""
        self.revision = revision
        self._modern = revision.modern
        self.channel.peer.batches = revision.batches
        if revision.modern:
            self._meta = self.meta_of(revision)
            self._meta_bytes = encode(self._meta)
        self._questions.clear()

    def meta_of(self, revision: Revision) -> dict[str, Any]:
        """What every request of a revision without a handshake carries; basic/index."""
        return {
            VERSION: revision.name,
            CAPABILITIES: self.answers.capabilities(),
            CLIENT: self.info,
        }

    def wants_log(self, level: Level | None) -> None:
        """Ask for log messages with every request from now on (2026-07-28)."""
        self._meta.pop(LOG_LEVEL, None)
        if level is not None:
            self._meta[LOG_LEVEL] = level
        self._meta_bytes = encode(self._meta)
        self._questions.clear()

    async def call(
        self,
        method: str,
        body: bytes,
        subject: str,
        patience_s: float,
        total_s: float,
        progress: Progress | None = None,
        meta: Mapping[str, Any] | None = None,
    ) -> Raw:
        """Send a request, answer what the server asks meanwhile, return the complete result undecoded.

        body: the params without `_meta`, a JSON object. Raises RpcError, TimedOut, Disconnected, ProtocolError.
        """
        channel = self.channel
        if progress is not None and not callable(progress):
            raise TypeError(
                f"progress: expected a function of (done, total, message), got {progress!r}"
            )

        def ask(body: bytes) -> Awaitable[Raw]:
            token = channel.next_token() if progress is not None else 0
            params = self._params(body, token, meta)
            return channel.request(method, params, subject, patience_s, total_s, progress, token)

        try:
            raw = await ask(body)
        except RpcError as refused:
            if not is_offered_again(refused):
                raise
            raw = await ask(body)
        return await self._completed(raw, method, subject, body, ask) if self._modern else raw

    def call_tool(
        self, name: str, arguments: bytes, patience_s: float, total_s: float
    ) -> Awaitable[CallToolResult | Raw]:
        """call() of a tool, for nearly all of them: with nothing but arguments, a JSON object.

        It comes as Raw where it is no result of a tool. No params are put together here, and the answer is read in one pass.
        """
        question = self._questions.get(name) or self._question(name)
        asked: Awaitable[CallToolResult | Raw] = self.channel.ask(
            question, arguments, patience_s, total_s
        )
        return self._called(asked, name, arguments, patience_s, total_s) if self._modern else asked

    async def _called(
        self,
        asked: Awaitable[CallToolResult | Raw],
        name: str,
        arguments: bytes,
        patience_s: float,
        total_s: float,
    ) -> CallToolResult | Raw:
        """Since 2026-07-28: answer what the server asks."""
        result: CallToolResult | Raw | None = None
        try:
            result = await asked
        except RpcError as refused:
            if not is_offered_again(refused):
                raise
        if type(result) is CallToolResult:
            return result
        body = b'{"name":%b,"arguments":%b}' % (encode(name), arguments)

        def ask(body: bytes) -> Awaitable[Raw]:
            return self.channel.request(
                "tools/call", self._params(body, 0, None), name, patience_s, total_s
            )

        raw = result if type(result) is Raw else await ask(body)
        return await self._completed(raw, "tools/call", name, body, ask)

    def _question(self, name: str) -> PreparedRequest:
        params = self._params(encode({"name": name, "arguments": None}), 0, None)
        template = request_template("tools/call", params.removesuffix(b"null}"), b"}")
        question = PreparedRequest(
            template, "tools/call", name, _read_modern if self._modern else _called
        )
        if len(self._questions) < QUESTIONS_KEPT:
            self._questions[name] = question
        return question

    async def _completed(
        self,
        raw: Raw,
        method: str,
        subject: str,
        body: bytes,
        ask: Callable[[bytes], Awaitable[Raw]],
    ) -> Raw:
        """Answer what the server asks before it completes a result."""
        what = named(method, subject)
        for _ in range(self._rounds):
            asked = self._asked_for(raw, method, what)
            if asked is None:
                return raw
            raw = await ask(await self._answered(body, asked))
        if self._asked_for(raw, method, what) is None:
            return raw
        raise ProtocolError(f"{what}: the server asked for input {self._rounds} times, and goes on")

    def _params(self, body: bytes, token: int, meta: Mapping[str, Any] | None) -> bytes:
        if self._modern and not token and not meta:
            own = self._meta_bytes
        elif self._modern or token or meta:
            own = encode(
                {**(meta or {}), **self._meta, **({"progressToken": token} if token else {})}
            )
        else:
            return body
        return b'{"_meta":%b,%b' % (own, body[1:]) if len(body) > 2 else b'{"_meta":%b}' % own

    # Rounds of input

    def _asked_for(self, raw: Raw, method: str, what: str) -> InputRequiredResult | None:
        """What the server wants before it completes a result; None if this one is complete."""
        try:
            kind = _kind(raw).result_type
            if kind == "complete":
                return None
            if kind == "input_required" and method in ASKING:
                asked = _input_required(raw)
                if asked.input_requests or bytes(asked.request_state):
                    return asked
                raise ProtocolError(
                    f"{what}: the server asked for input, but not for what: {shortened(raw)}"
                )
        except (DecodeError, RecursionError) as why:
            raise ProtocolError(f"{what}: expected a result, got {shortened(raw)}: {why}") from None
        raise ProtocolError(
            f"{what}: a result of unknown type {escape_controls(kind[:100])!r}: {shortened(raw)}"
        )

    async def _answered(self, body: bytes, asked: InputRequiredResult) -> bytes:
        """The params of the next round: what was sent, with all answers, and the server's state as it came."""
        more: dict[str, Any] = {}
        if asked.input_requests:
            answers: dict[str, Raw] = {}
            for (
                key,
                question,
            ) in asked.input_requests.items():  # one after the other: a person may be asked
                answers[key] = Raw(
                    await self.answers.answer(question.method, question.params, self.server)
                )
            more["inputResponses"] = answers
        if bytes(asked.request_state):
            more["requestState"] = asked.request_state
        return b"%b,%b" % (body[:-1], encode(more)[1:])

    # What the server asks (before 2026-07-28)

    def asked(self, incoming: IncomingRequest) -> None:
        peer = self.channel.peer
        if self._modern or (self.revision is None and incoming.method != "ping"):
            # Since 2026-07-28 a client writes no responses; before the handshake there is nothing to ask for.
            self.channel.shown(
                b'{"method":' + encode(incoming.method) + b"}", "asks what may not be asked"
            )
        elif incoming.method == "ping":
            peer.respond(incoming, b"{}")
        elif peer.admit(incoming):
            self._begin(incoming)

    def _begin(self, incoming: IncomingRequest) -> None:
        task = asyncio.get_running_loop().create_task(
            self._answer(incoming), name=f"answer {incoming.method}"
        )
        self.channel.peer.add_running(incoming)
        incoming.on_cancel = lambda reason: task.cancel()
        self._keep(task)

    def _keep(self, task: asyncio.Task[None]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer(self, incoming: IncomingRequest) -> None:
        peer = self.channel.peer
        try:
            peer.respond(
                incoming,
                await self.answers.answer(incoming.method, encode(incoming.params), self.server),
            )
        except RpcError as refused:
            peer.fail(incoming, refused.code, refused.message, refused.data)
        except asyncio.CancelledError:
            raise
        except Exception:
            self.log.exception("%s could not be answered", incoming.method)
            peer.fail(incoming, INTERNAL_ERROR, "Internal error: the client could not answer")
        finally:
            incoming.on_cancel = None
        while (waiting := peer.pop_waiting()) is not None:
            self._begin(waiting)

    # What the server tells

    def notified(self, message: Message) -> None:
        method = str(message.method)
        params = message.params
        ears = self._ears
        if method == "notifications/message":
            self._logged(params)
        elif method == "notifications/cancelled":
            self._cancelled(params)
        elif method == "notifications/subscriptions/acknowledged":
            self.subscriptions.acknowledged(params)
        elif method == "notifications/resources/updated":
            if ears.updated is not None and self._is_told(params):
                ears.updated(_text(params.get("uri", Raw(b'""'))))
        elif method.endswith("/list_changed") and (what := method.split("/")[1]) in LISTS:
            if ears.changed is not None and self._is_told(params):
                self.tell_changed(what)
        elif ears.notified is not None:
            ears.notified(method, decode(encode(params)))

    def _is_told(self, params: Mapping[str, Raw]) -> bool:
        """Since 2026-07-28 these belong to a subscription; before, they are for everybody."""
        return not self._modern or self.subscriptions.is_told(params)

    def _logged(self, params: Mapping[str, Raw]) -> None:
        try:
            message = _log_message(encode(params))
        except DecodeError:
            return
        if self._ears.logged is not None:
            self._ears.logged(message)
        else:
            text = message.data if isinstance(message.data, str) else encode(message.data).decode()
            text = redactor().text(text)
            self.log.log(
                _LOG_LEVELS.get(message.level, logging.INFO),
                "the server says: %s",
                escape_controls(text[:QUOTED]),
            )

    def _cancelled(self, params: Mapping[str, Raw]) -> None:
        try:
            cancelled = _cancelled(encode(params))
        except DecodeError:
            return
        if (
            not self.subscriptions.cancelled(cancelled.request_id, cancelled.reason)
            and not self._modern
        ):
            self.log.info(
                "the server cancels what it asked for: %s",
                escape_controls(cancelled.reason[:QUOTED]) or "no reason",
            )
            self.channel.peer.cancel(cancelled.request_id, cancelled.reason)

    def tell_changed(self, what: str) -> None:
        """Tell that a list may be another. At most one at a time: a storm of changes makes one refresh now, and one after it."""
        if what in self._telling:
            self._telling[what] = True
            return
        self._telling[what] = False
        self._keep(asyncio.get_running_loop().create_task(self._told(what), name=f"{what} changed"))

    async def _told(self, what: str) -> None:
        try:
            while True:
                self._telling[what] = False
                told = self._ears.changed(what) if self._ears.changed is not None else None
                if isawaitable(told):
                    await told
                if not self._telling[what]:
                    break
        except Exception:
            self.log.exception("the function that is told of changes failed")
        finally:
            del self._telling[what]

    # Whether it is still there

    async def ping(self, within_s: float) -> None:
        """Ask whether the server is there. Since 2026-07-28 by `server/discover`: there is no ping any more."""
        method = "server/discover" if self._modern else "ping"
        await self.call(method, b"{}", "", within_s, within_s)

    def watch(self, every_s: float, within_s: float) -> None:
        """Ask again and again. A server that says nothing at all meanwhile hangs, and is ended."""
        self._keep(
            asyncio.get_running_loop().create_task(
                self._watched(every_s, within_s), name=f"watch {self.name}"
            )
        )

    async def _watched(self, every_s: float, within_s: float) -> None:
        channel = self.channel
        while True:
            await asyncio.sleep(every_s)
            channel.heard = False
            try:
                await self.ping(within_s)
            except TimedOut:
                if not channel.heard:
                    channel.give_up(f"it did not answer a ping within {within_s:g} s")
                    return
            except Disconnected:
                return
            except ConcertinoError as answer:  # one that it gave: it is there
                self.log.debug("a ping was answered with %s", answer)

    # The end

    def on_eof(self) -> None:
        """It ended by itself. A server that only closed its output would stay."""
        self._release()
        if self.on_end is not None:
            self.on_end(self)

    def _release(self) -> asyncio.Task[None]:
        if self._releasing is None:
            self._releasing = asyncio.get_running_loop().create_task(
                self.opened.close(DRAIN_S), name=f"end {self.name}"
            )
            self._releasing.add_done_callback(self._abandoned)
        return self._releasing

    def _abandoned(self, release: asyncio.Task[None]) -> None:
        """A loop that ends cancels what has not begun."""
        if release.cancelled():
            self.opened.abandon()

    def explained(self, error: ConcertinoError) -> ConcertinoError:
        """Add what is known about the process: how it ended, and the last it wrote to stderr."""
        opened = self.opened
        if opened.child is None or self._closed:
            return type(error)(f"{error}{' (this client was closed)' if self._closed else ''}")
        tail = opened.tail()
        ended = isinstance(error, Disconnected)
        text = f"{error}; {self.channel.fault or opened.how_it_is(ended)}"
        if self.channel.stray:
            shown = f", the last: {self.channel.strays[-1]}" if self.channel.strays else ""
            text += f"; lines of its stdout that were skipped: {self.channel.stray}{shown}"
        text += self.afterwards if ended else ""
        text += (
            f"; its stderr ends with:\n{tail[-QUOTED:]}" if tail else "; it wrote nothing to stderr"
        )
        if ended:
            return Disconnected(text, opened.exit_status, tail)
        return type(error)(text)

    async def close(self) -> None:
        """End everything. Whoever waits is told; questions being answered are cancelled. Bounded."""
        self._closed = True
        self.subscriptions.close_all()
        self.channel.end()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.shield(self._release())
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=DRAIN_S)


_LOG_LEVELS = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "notice": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
    "critical": logging.CRITICAL,
    "alert": logging.CRITICAL,
    "emergency": logging.CRITICAL,
}


def _read_modern(frame: bytes) -> _Called | Reply:
    """The answer to a call of a tool, since 2026-07-28: its result is read only if it is complete."""
    return _called(frame) if frame.find(COMPLETE, 0, HEAD_BYTES) >= 0 else answered(frame)


def is_offered_again(refused: RpcError) -> bool:
    """Whether a server refuses the revision of a request, and names that one among those it has: it is to be sent once more.

    Nothing was done: a version is looked at first (2026-07-28 basic/versioning). There is no other that we could choose.
    """
    data: Any = refused.data
    try:
        return refused.code == UNSUPPORTED_VERSION and MODERN.name in data["supported"]
    except (TypeError, KeyError):
        return False
