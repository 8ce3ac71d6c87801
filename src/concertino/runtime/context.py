"""CallContext: the Context that the runtime passes to a handler.

Context (backend/interface.py) describes the methods. An `async def` handler calls them on the event
loop. A `def` handler calls them in its own thread; its progress and log messages are then queued,
and the event loop sends them (PostedMessages). The methods that ask the client are implemented in
runtime/client_questions.py, which is imported when one of them is called.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Coroutine, Generator, Mapping, Sequence
from math import isfinite
from operator import index
from threading import Condition, Lock, get_ident
from time import monotonic
from typing import TYPE_CHECKING, Any, Literal, get_args

from msgspec import Raw, Struct
from msgspec.json import decode, encode

from concertino.backend.interface import DONE, Context, refuse_foreign_names
from concertino.protocol.call import ClientFacts
from concertino.protocol.request_profile import SessionRequest
from concertino.protocol.revisions import REVISION_BY_NAME
from concertino.types.results import LEVELS, Level

if TYPE_CHECKING:
    from concertino.backend.caller import Caller
    from concertino.protocol.dialogue import Dialogue
    from concertino.protocol.principal import Principal
    from concertino.runtime.call_connection import CallConnection
    from concertino.runtime.subcalls import SubcallContext
    from concertino.types.client_requests import (
        Accepted,
        ClientRequest,
        CreateMessageResult,
        Declined,
        Root,
        SamplingMessage,
    )

__all__ = ["CallContext"]

log = logging.getLogger("concertino.context")

# At most this many messages from the threads of one call may wait for the event loop. If there are
# more, only the newest progress is kept, and log() blocks.
MAX_POSTED = 10_000
# If the loop sends no message for this time, log() stops blocking and drops its messages.
STUCK_LOOP_S = 5.0

# A function that sends one message of a thread. The event loop calls it.
Callback = Callable[[], None]
# The rank of a log level, by which levels are compared -> the level.
LEVEL_NAMES: Mapping[int, Level] = {LEVELS[level]: level for level in get_args(Level)}

# Held while a dialogue or a message queue is created, since several threads may serve one call. One
# lock is enough for all calls, because it is held for a moment, once or twice in a call.
_creating = Lock()


class _Backpressure:
    """An awaitable that is done when the client has caught up with the output.

    It calls the connection's backpressure() only when it is awaited, because many handlers do not
    await the result of progress() or log().
    """

    __slots__ = ("_connection",)

    def __init__(self, connection: CallConnection) -> None:
        self._connection = connection

    def __await__(self) -> Generator[Any, None, None]:
        return self._connection.backpressure().__await__()


@refuse_foreign_names
class CallContext(Struct, eq=False):
    """The Context of one call, through which a handler sends its client messages and questions.

    Methods without a docstring are described in the Protocol Context (backend/interface.py).

    connection: the connection on which the call has arrived.
    request: the JSON-RPC request that is handled.
    posted: the queue of the progress and log messages that the call's threads send; None before the
        first message.
    """

    connection: CallConnection
    request: SessionRequest
    posted: PostedMessages | None = None

    @property
    def request_id(self) -> int | str:
        """Return the JSON-RPC id of the request, for logs and traces."""
        return self.request.id

    @property
    def client(self) -> ClientFacts:
        return self.request.profile.client

    @property
    def principal(self) -> Principal | None:
        return self.request.profile.principal

    @property
    def caller(self) -> Caller:
        return CallCaller(self.connection, self.request)

    @property
    def cancelled(self) -> bool:
        return not self.request.open

    @property
    def meta(self) -> Mapping[str, Any]:
        return {name: decode(value) for name, value in self.request.call.meta.items()}

    def progress(
        self,
        done: float,
        total: float | None = None,
        message: str | None = None,
    ) -> Awaitable[None]:
        """Send notifications/progress, if the client has asked for it.

        Returns an awaitable that is done when the client has read enough of the output. In the
        thread of a `def` handler, it is done already.
        done, total: numbers, also numbers of other libraries such as numpy, but not bools. They are
            sent as int or float.
        Raises TypeError if `done` or `total` is not a number or `message` is not a str. Raises
        ValueError if a number is not finite.
        """
        done = _check_number("progress", done)
        total = None if total is None else _check_number("progress total", total)
        _check_text("progress message", message)
        session = self.connection.session
        if get_ident() == self.connection.thread:
            session.notifications.progress(self.request, done, total, message)
            return _Backpressure(self.connection)
        self._posted_messages().post_progress(
            lambda: session.notifications.progress(self.request, done, total, message)
        )
        return DONE

    def log(
        self,
        level: Level,
        data: object,
        logger: str | None = None,
    ) -> Awaitable[None]:
        """Send notifications/message, if the client wants messages of this level.

        Returns an awaitable that is done when the client has read enough of the output. In the
        thread of a `def` handler, the awaitable is done already, and the method itself blocks while
        10,000 messages (MAX_POSTED) of the call wait for the event loop; if the loop takes none for
        5 s (STUCK_LOOP_S), messages are dropped.
        data: any value that has a JSON form.
        logger: the name of the logger; None to send none.
        Raises ValueError for an unknown level.
        """
        if level not in LEVELS:
            raise ValueError(f"log level: expected one of {', '.join(LEVELS)}, got {level!r}")
        _check_text("log logger", logger)
        session = self.connection.session
        if get_ident() == self.connection.thread:
            session.notifications.log(self.request, level, data, logger)
            return _Backpressure(self.connection)

        # Encode now and not on the loop: the caller gets the exception if the data is not JSON, and
        # may change the data afterwards.
        encoded = Raw(encode(data))
        self._posted_messages().post_log(
            lambda: session.notifications.log(self.request, level, encoded, logger)
        )
        return DONE

    def call_tool(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        into: Any = None,
    ) -> Coroutine[Any, Any, Any]:
        return self.subcall_context(self).call_tool(name, arguments, into=into)

    def subcall_context(self, context: Context) -> SubcallContext:
        """Return a context whose call_tool() calls other tools of the server.

        context: this context, or a wrapper around it. The called tools use `context` for everything
            except call_tool(). A wrapper passes itself, so that it sees their log messages.
        """
        from concertino.runtime.subcalls import make_subcall_context

        return make_subcall_context(context, self.connection.backend, self.request.call)

    async def ask(self, questions: Mapping[str, ClientRequest]) -> Mapping[str, Raw]:
        from concertino.runtime.client_questions import ask

        return await ask(self.connection.session, self.request, questions)

    async def elicit(
        self,
        message: str,
        form: Any,
        *,
        key: str | None = None,
    ) -> Accepted[Any] | Declined:
        from concertino.runtime.client_questions import elicit

        return await elicit(self, message, form, self._key(key))

    async def elicit_url(
        self,
        message: str,
        url: str,
        *,
        key: str | None = None,
    ) -> Literal["accept", "decline", "cancel"]:
        from concertino.runtime.client_questions import elicit_url

        return await elicit_url(self, message, url, self._key(key))

    async def sample(
        self,
        messages: str | Sequence[SamplingMessage | str],
        max_tokens: int,
        *,
        key: str | None = None,
        **options: Any,
    ) -> CreateMessageResult:
        from concertino.runtime.client_questions import sample

        return await sample(self, messages, max_tokens, self._key(key), options)

    async def roots(self, *, key: str | None = None) -> list[Root]:
        from concertino.runtime.client_questions import roots

        return await roots(self, self._key(key))

    async def once(
        self,
        key: str,
        make: Callable[[], object],
        kind: Any = Any,
    ) -> Any:
        from concertino.runtime.client_questions import once

        return await once(self._dialogue(), key, make, kind)

    def wait(self, awaitable: Awaitable[Any]) -> Any:
        from concertino.runtime.client_questions import wait

        return wait(self.connection, self._dialogue, self.request, awaitable)

    def _dialogue(self) -> Dialogue:
        """Return the dialogue of this call; it is created on first use. May run in any thread."""
        with _creating:
            return self.connection.session.dialogues.open(self.request)

    def _key(self, key: str | None) -> str:
        """Return `key`; if it is None, the next unused key of the call: q1, q2, and so on."""
        return self._dialogue().next_key() if key is None else key

    def _posted_messages(self) -> PostedMessages:
        """Return the message queue of this call's threads; it is created on first use."""
        if self.posted is None:
            with _creating:
                if self.posted is None:
                    self.posted = PostedMessages(self.connection, self.request)
        return self.posted


class CallCaller(Struct, eq=False):
    """The facts about one call that a backend needs to forward it to another server.

    Implements Caller (backend/caller.py), where the methods are described.

    session: the connection on which the call has arrived; backends see it as a CallerSession.
    request: the JSON-RPC request.
    """

    session: CallConnection
    request: SessionRequest

    @property
    def wants_progress(self) -> bool:
        return self.request.profile.progress_token is not None

    @property
    def log_level(self) -> Level | None:
        # self.session is the connection; its own `session` is the Session of the protocol.
        rank = self.session.session.notifications.least_rank(self.request)
        return None if rank is None else LEVEL_NAMES[rank]

    def pass_result(self, result: Raw, revision: str) -> None:
        if self.request.profile.encoder.revision.takes_results_of(REVISION_BY_NAME[revision]):
            self.request.forwarded = result

    async def notify(self, method: str, params: Mapping[str, Any]) -> None:
        from concertino.protocol.wanted_updates import SUBSCRIPTION

        request = self.request
        if request.open:
            body = encode({**params, "_meta": {SUBSCRIPTION: request.id}})
            self.session.session.peer.notify(method, body, request.id)
            await self.session.backpressure()

    def hold_open(self) -> None:
        self.session.hold_open(self.request)


class PostedMessages:
    """A queue of the messages that the threads of one call want to send.

    The event loop sends the messages in order, and before the call's result.
    """

    def __init__(self, connection: CallConnection, request: SessionRequest) -> None:
        self._connection = connection
        self._request = request
        # The functions that send the messages. The loop is woken once for all of them.
        self._callbacks: list[Callback] = []
        # The newest progress that did not fit into the list. It is sent after the list, also after
        # younger log messages, since the order matters only among messages of one kind.
        self._newest_progress: Callback | None = None
        # Whether _deliver() is scheduled on the loop.
        self._is_waking = False
        # Whether the loop has not run _deliver() for STUCK_LOOP_S.
        self._is_stuck = False
        self._changed = Condition()

    def post_progress(self, callback: Callback) -> None:
        """Add a progress notification to the queue. Never blocks.

        If the queue is full, only the newest notification that did not fit is kept.
        callback: sends the notification; called on the event loop.
        """
        with self._changed:
            if len(self._callbacks) < MAX_POSTED:
                self._add(callback)
            else:
                self._newest_progress = callback

    def post_log(self, callback: Callback) -> None:
        """Add a log message to the queue; blocks while the queue is full.

        The message is dropped if the call ends meanwhile, or if the loop sends nothing for
        STUCK_LOOP_S seconds.
        callback: sends the message; called on the event loop.
        """
        with self._changed:
            stuck_at = monotonic() + STUCK_LOOP_S
            while len(self._callbacks) >= MAX_POSTED and self._request.open and not self._is_stuck:
                # With a timeout, because the end of the call does not notify this condition.
                self._changed.wait(0.1)
                if monotonic() >= stuck_at and len(self._callbacks) >= MAX_POSTED:
                    self._is_stuck = True
                    log.warning(
                        "log messages of a call are dropped: its event loop took none for %g s",
                        STUCK_LOOP_S,
                    )
            if len(self._callbacks) < MAX_POSTED:
                self._add(callback)

    def _add(self, callback: Callback) -> None:
        """Append a message and wake the loop, unless the loop will wake already."""
        self._callbacks.append(callback)
        if not self._is_waking:
            self._is_waking = True
            self._connection.post(self._deliver)

    def _deliver(self) -> None:
        """Send all messages in the queue. Runs on the event loop."""
        with self._changed:
            callbacks, self._callbacks = self._callbacks, []
            if self._newest_progress is not None:
                callbacks.append(self._newest_progress)
                self._newest_progress = None
            self._is_waking = self._is_stuck = False
            self._changed.notify_all()

        for callback in callbacks:
            try:
                callback()
            except Exception:
                log.exception("a message from a thread could not be sent")


def _check_number(name: str, value: Any) -> float:
    """Return an integer that fits into 64 bits as an int, and any other number as a float.

    Most JSON decoders accept only integers of 64 bits.
    name: the name of the number in error messages.
    value: a number of any type, such as numpy's.
    Raises TypeError for a bool or a value that is not a number, and ValueError for a number that is
    not finite.
    """
    kind: type[Any] = type(value)  # pyright: ignore[reportUnknownVariableType]
    if kind is not float:
        if kind is int or (hasattr(kind, "__index__") and kind is not bool):
            value = index(value)
            # Signed and unsigned integers of 64 bits. Greater ones are converted to a float below.
            if -(2**63) <= value < 2**64:
                return value
        # Check for __float__, because float() would also convert a str.
        elif kind is bool or not hasattr(kind, "__float__"):
            raise TypeError(f"{name}: expected a number, got {kind.__name__}")
        try:
            value = float(value)
        except OverflowError:
            raise ValueError(
                f"{name}: expected a number that a float can hold, got a greater one"
            ) from None
    if not isfinite(value):
        raise ValueError(f"{name}: expected a finite number, got {value!r}")
    return value


def _check_text(name: str, value: object) -> None:
    """Raise TypeError unless `value` is a str or None."""
    if value is not None and not isinstance(value, str):
        raise TypeError(f"{name}: expected str, got {type(value).__name__}")
