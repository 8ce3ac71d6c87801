"""CallContext: the Context that a handler gets, for use on the loop or in a thread."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Coroutine, Generator, Mapping, Sequence
from math import isfinite
from operator import index
from threading import Condition, Lock, get_ident
from time import monotonic
from typing import TYPE_CHECKING, Any, Literal

from msgspec import Raw, Struct
from msgspec.json import decode, encode

from concertino.backend.interface import Context, refuse_foreign_names
from concertino.protocol.call import ClientFacts
from concertino.protocol.request_profile import SessionRequest
from concertino.runtime.tasks import DONE
from concertino.types.results import LEVELS, Level

if TYPE_CHECKING:
    from concertino.protocol.dialogue import Dialogue
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

__all__ = ["DONE", "CallContext"]

log = logging.getLogger("concertino.context")

# How many messages of one call may wait for the loop; beyond that, progress is merged and log
# messages wait.
MAX_POSTED = 10_000
# How long a thread waits for a loop that takes no messages, before its log messages are dropped.
STUCK_LOOP_S = 5.0

Callback = Callable[[], None]

# Two threads of one call must not both make its dialogue or its message queue.
_creating = Lock()


class _Backpressure:
    """An awaitable for backpressure(), made before anybody knows whether it is awaited."""

    __slots__ = ("_connection",)

    def __init__(self, connection: CallConnection) -> None:
        self._connection = connection

    def __await__(self) -> Generator[Any, None, None]:
        return self._connection.backpressure().__await__()


@refuse_foreign_names
class CallContext(Struct, eq=False):
    """The Context of one call. See backend.Context.

    connection: the connection that the call came on.
    request: the request that made the call.
    posted: messages of its threads, once there are any.
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
        """Send progress.

        done, total: any number but a bool; sent as a plain int or float.
        Raises TypeError if one is not a number or the message is not a str, and ValueError for a
        number that is not finite.
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
        """Send a log message. Blocks in a thread that logs faster than the loop sends."""
        if level not in LEVELS:
            raise ValueError(f"log level: expected one of {', '.join(LEVELS)}, got {level!r}")
        _check_text("log logger", logger)
        session = self.connection.session
        if get_ident() == self.connection.thread:
            session.notifications.log(self.request, level, data, logger)
            return _Backpressure(self.connection)

        # Encode now: a failure concerns the caller, who may also change the data afterwards.
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
        return self.calling(self).call_tool(name, arguments, into=into)

    def calling(self, context: Context) -> SubcallContext:
        """Return the context that makes this call's tool calls. context: this one, or around it."""
        from concertino.runtime.subcalls import outermost

        return outermost(context, self.connection.backend, self.request.call)

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
        with _creating:
            return self.connection.session.dialogues.open(self.request)

    def _key(self, key: str | None) -> str:
        """Return `key`, or the next of `q1`, `q2` and so on if it is None."""
        return self._dialogue().next_key() if key is None else key

    def _posted_messages(self) -> PostedMessages:
        if self.posted is None:
            with _creating:
                if self.posted is None:
                    self.posted = PostedMessages(self.connection, self.request)
        return self.posted


class PostedMessages:
    """A queue of messages that the threads of one call have sent, to be delivered on the loop.

    They are delivered in order, before the call's result; one wake-up delivers all that wait.
    """

    def __init__(self, connection: CallConnection, request: SessionRequest) -> None:
        self._connection = connection
        self._request = request
        self._callbacks: list[Callback] = []
        # Progress that came when the list was full: the newest, to be sent after the list.
        self._newest_progress: Callback | None = None
        self._is_waking = False
        # The loop has taken nothing for STUCK_LOOP_S.
        self._is_stuck = False
        self._changed = Condition()

    def post_progress(self, callback: Callback) -> None:
        """Post progress without ever waiting: a full list keeps only the newest."""
        with self._changed:
            if len(self._callbacks) < MAX_POSTED:
                self._add(callback)
            else:
                self._newest_progress = callback

    def post_log(self, callback: Callback) -> None:
        """Post a log message. Waits while the list is full, the call open and the loop alive."""
        with self._changed:
            stuck_at = monotonic() + STUCK_LOOP_S
            while len(self._callbacks) >= MAX_POSTED and self._request.open and not self._is_stuck:
                # With a timeout, since nothing notifies this thread of the call's end.
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
        self._callbacks.append(callback)
        if not self._is_waking:
            self._is_waking = True
            self._connection.post(self._deliver)

    def _deliver(self) -> None:
        """Send the posted messages; runs on the event loop."""
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
    """Return any number as a plain int of at most 64 bits, JSON's usual limit, or a plain float."""
    kind: type[Any] = type(value)  # pyright: ignore[reportUnknownVariableType]
    if kind is not float:
        if kind is int or (hasattr(kind, "__index__") and kind is not bool):
            value = index(value)
            if -(2**63) <= value < 2**64:
                return value
        # float() would take a str, too.
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
    if value is not None and not isinstance(value, str):
        raise TypeError(f"{name}: expected str, got {type(value).__name__}")
