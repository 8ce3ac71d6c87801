"""The Context that a handler gets: its call's way to the caller, from the loop or from a thread."""

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

from concertino.protocol.call import ClientFacts
from concertino.types.results import LEVELS, Level

if TYPE_CHECKING:
    from concertino.protocol.dialogue import Dialogue
    from concertino.types.client_requests import (
        Accepted,
        ClientRequest,
        CreateMessageResult,
        Declined,
        Root,
        SamplingMessage,
    )

__all__ = ["CallContext"]

KEPT = 10_000  # messages of one call that may wait for the loop; then progress is merged, and log lines wait
PATIENCE_S = (
    5.0  # how long a thread waits for a loop that takes nothing, before its log lines are dropped
)

Act = Callable[[], None]

log = logging.getLogger("concertino.context")


class _Done:
    """An awaitable that has nothing to wait for; not awaiting it is fine."""

    def __await__(self) -> Generator[Any, None, None]:
        return
        yield


DONE = _Done()


class _Room:
    """An awaitable for room on the connection and for a turn of the others; free until it is awaited."""

    __slots__ = ("_link",)

    def __init__(self, link: Any) -> None:
        self._link = link  # a link.Link

    def __await__(self) -> Generator[Any, None, None]:
        return self._link.room().__await__()


class CallContext(Struct, eq=False):
    """One call's Context. See backend.Context."""

    link: Any  # a link.Link
    incoming: Any  # a peer.Incoming
    posted: Any = None  # a _Posted, when a thread has had something to say

    @property
    def request_id(self) -> int | str:
        """The JSON-RPC id, for logs and traces."""
        return self.incoming.id

    @property
    def client(self) -> ClientFacts:
        return self.incoming.profile.client

    @property
    def cancelled(self) -> bool:
        return not self.incoming.open

    @property
    def meta(self) -> Mapping[str, Any]:
        return {name: decode(value) for name, value in self.incoming.call.meta.items()}

    def progress(
        self, done: float, total: float | None = None, message: str | None = None
    ) -> Awaitable[None]:
        """done, total: anything that is a number but a bool; it is sent as a plain int or float.

        Raises TypeError for what is no number and a message that is no str, ValueError for a number that is not finite.
        """
        done = _number("progress", done)
        total = None if total is None else _number("progress total", total)
        _check_text("progress message", message)
        session = self.link.session
        if get_ident() == self.link.thread:
            session.progress(self.incoming, done, total, message)
            return _Room(self.link)
        self._post().progress(lambda: session.progress(self.incoming, done, total, message))
        return DONE

    def log(self, level: Level, data: object, logger: str | None = None) -> Awaitable[None]:
        """In a thread that logs faster than the loop takes, this waits."""
        if level not in LEVELS:
            raise ValueError(f"log level: expected one of {', '.join(LEVELS)}, got {level!r}")
        _check_text("log logger", logger)
        session = self.link.session
        if get_ident() == self.link.thread:
            session.log(self.incoming, level, data, logger)
            return _Room(self.link)
        encoded = Raw(
            encode(data)
        )  # now: the author is here to be told, and may change it afterwards
        self._post().log(lambda: session.log(self.incoming, level, encoded, logger))
        return DONE

    def call_tool(
        self, name: str, arguments: Mapping[str, Any] | None = None, *, into: Any = None
    ) -> Coroutine[Any, Any, Any]:
        return self.calling(self).call_tool(name, arguments, into=into)

    def calling(
        self, context: Any
    ) -> Any:  # a Context around this one -> the nested.Nested that makes its calls
        from concertino.runtime.subcalls import outermost

        return outermost(self, context)

    async def ask(self, questions: Mapping[str, ClientRequest]) -> Mapping[str, Raw]:
        from concertino.runtime.client_questions import ask

        return await ask(self.link, self.incoming, questions)

    async def elicit(
        self, message: str, form: Any, *, key: str | None = None
    ) -> Accepted[Any] | Declined:
        from concertino.runtime.client_questions import elicit

        return await elicit(self, message, form, self._key(key))

    async def elicit_url(
        self, message: str, url: str, *, key: str | None = None
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

    async def once(self, key: str, make: Callable[[], object], kind: Any = Any) -> Any:
        from concertino.runtime.client_questions import once

        return await once(self._dialogue(), key, make, kind)

    def wait(self, awaitable: Awaitable[Any]) -> Any:
        from concertino.runtime.client_questions import wait

        return wait(self.link, self._dialogue, self.incoming, awaitable)

    def _dialogue(self) -> Dialogue:
        with _making:
            return self.link.session.dialogue(self.incoming)

    def _key(self, key: str | None) -> str:
        return self._dialogue().next_key() if key is None else key

    def _post(self) -> _Posted:
        if self.posted is None:
            with _making:
                if self.posted is None:
                    self.posted = _Posted(self.link, self.incoming)
        return self.posted


_making = Lock()  # two threads of one call must not both make its _Posted


class _Posted:
    """What threads say in one call, on its way to the loop: in order, before the result, one wake-up for all that waits."""

    def __init__(self, link: Any, incoming: Any) -> None:
        self._link = link
        self._incoming = incoming
        self._acts: list[Act] = []
        self._newest: Act | None = None  # progress that found no room, after all of _acts
        self._waking = False
        self._stuck = False  # the loop has taken nothing for PATIENCE_S
        self._changed = Condition()

    def progress(self, act: Act) -> None:
        """Never waits: without room it takes the place of the progress that found none before."""
        with self._changed:
            if len(self._acts) < KEPT:
                self._add(act)
            else:
                self._newest = act

    def log(self, act: Act) -> None:
        """Without room it waits, as long as the call is open and the loop takes something now and then."""
        with self._changed:
            patience_ends = monotonic() + PATIENCE_S
            while len(self._acts) >= KEPT and self._incoming.open and not self._stuck:
                self._changed.wait(0.1)  # nobody tells when the call is over
                if monotonic() >= patience_ends and len(self._acts) >= KEPT:
                    self._stuck = True
                    log.warning(
                        "log messages of a call are dropped: its event loop took none for %g s",
                        PATIENCE_S,
                    )
            if len(self._acts) < KEPT:
                self._add(act)

    def _add(self, act: Act) -> None:
        self._acts.append(act)
        if not self._waking:
            self._waking = True
            self._link.post(self._take)

    def _take(self) -> None:
        """On the loop."""
        with self._changed:
            acts, self._acts = self._acts, []
            if self._newest is not None:
                acts.append(self._newest)
                self._newest = None
            self._waking = self._stuck = False
            self._changed.notify_all()
        for act in acts:
            try:
                act()
            except Exception:
                log.exception("a message that a thread sent could not be told")


def _number(
    what: str, value: Any
) -> float:  # Any: it may be anything, and numbers have no common type
    """As a plain int that fits in JSON's usual 64 bits, or a plain float."""
    kind: type[Any] = type(value)  # pyright: ignore[reportUnknownVariableType]
    if kind is not float:
        if kind is int or (hasattr(kind, "__index__") and kind is not bool):
            value = index(value)
            if -(2**63) <= value < 2**64:
                return value
        elif kind is bool or not hasattr(kind, "__float__"):  # float() would take a str
            raise TypeError(f"{what}: expected a number, got {kind.__name__}")
        try:
            value = float(value)
        except OverflowError:
            raise ValueError(
                f"{what}: expected a number that a float can hold, got a greater one"
            ) from None
    if not isfinite(value):
        raise ValueError(f"{what}: expected a finite number, got {value!r}")
    return value


def _check_text(what: str, value: object) -> None:
    if value is not None and not isinstance(value, str):
        raise TypeError(f"{what}: expected str, got {type(value).__name__}")
