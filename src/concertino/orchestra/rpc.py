"""Both ends of a connection, whatever carries it: requests that wait for their responses, and those that are answered."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Hashable
from functools import partial
from math import inf

from concertino.errors import Disconnected, ProtocolError, TimedOut
from concertino.orchestra.frames import MAX_FRAME_BYTES, FrameTooLarge
from concertino.orchestra.link import (
    TIMEOUT_S,
    Answer,
    PluginRequest,
    PluginResponse,
    Relay,
    RemotePeer,
    refusal,
)
from concertino.orchestra.message_peek import join_id, split_id
from concertino.orchestra.pending_response import PendingResponse, Told
from concertino.runtime.tasks import eager_task_runner

from google.protobuf.message import DecodeError, EncodeError  # isort: skip  # links.py says what to install when it is missing

__all__ = ["RpcClient", "RpcServer", "request_id"]

log = logging.getLogger("concertino.orchestra")

MAX_IN_FLIGHT = 1024  # requests of one link that are answered at once; the next gets `busy`
MAX_BYTES_IN_FLIGHT = 4 * MAX_FRAME_BYTES  # of their payloads; then reading pauses

# Ids


_place = int.from_bytes(
    os.urandom(4), "big"
)  # of this process among those that count in the same millisecond
_placed = f"-7{_place & 0xFFF:03x}-{0x8000 | _place >> 12 & 0x3FFF:04x}-"
_counter = int.from_bytes(os.urandom(5), "big")
_millisecond = 0
_head = ""


def request_id() -> str:
    """A new id for a request: a UUID of version 7 (RFC 9562), as the protocol wants; growing within this process."""
    global _counter, _millisecond, _head
    _counter += 1
    now = time.time_ns() // 1_000_000
    if now > _millisecond:
        _millisecond = now
        digits = now.to_bytes(6, "big").hex()
        _head = digits[:8] + "-" + digits[8:] + _placed
    return _head + _counter.to_bytes(6, "big").hex()


def _id_of(payload: bytes) -> str:
    """The id of a request that cannot be decoded, if it begins with one as serializers write it."""
    if len(payload) > 2 and payload[0] == 0x0A and payload[1] < 0x80:
        return payload[2 : 2 + payload[1]].decode("utf-8", "replace")
    return ""


# The asking end


class RpcClient:
    """The requests of a link that wait for their responses. Transports derive from it and carry the payloads.

    One timer serves the time limits of all.
    """

    def __init__(self, peer: RemotePeer) -> None:
        self.peer = peer
        self.loop = asyncio.get_running_loop()
        self.lost: asyncio.Future[str] = self.loop.create_future()
        self._waiting: dict[Hashable, PendingResponse] = {}
        self._alarm: asyncio.TimerHandle | None = None
        self._alarm_at = inf  # not later than the first deadline
        self._room: asyncio.Event | None = None  # while there is none to send

    def _ask(self, payload: bytes, id: bytes) -> Hashable:
        """Send a payload. Returns the key under which its response will be delivered."""
        raise NotImplementedError

    def _abandon(self, key: Hashable) -> None:
        """Tell the other side that a response is not wanted any more."""
        raise NotImplementedError

    def _held(self, full: bool) -> None:
        """There is no room to send; or there is again."""
        if full:
            self._room = self._room or asyncio.Event()
        elif self._room is not None:
            self._room.set()
            self._room = None

    async def request(self, request: PluginRequest, timeout_s: float = TIMEOUT_S) -> PluginResponse:
        given, id = request.request_id, request_id()
        request.request_id = id
        try:
            payload = request.SerializeToString()
        except EncodeError as why:
            raise ProtocolError(f"the request cannot be encoded: {why}") from None
        finally:
            request.request_id = given
        what = request.WhichOneof("request") or "request"
        if self._room is not None:
            timeout_s = await self._await_room(what, timeout_s)
        payload = await self._asked(payload, id.encode(), what, timeout_s)
        try:
            response = PluginResponse.FromString(payload)
        except DecodeError as why:
            raise ProtocolError(
                f"{self.peer.address}: the response cannot be decoded: {why}"
            ) from None
        response.request_id = given
        return response

    def pass_on(
        self, body: bytes, timeout_s: float, told: Told | None = None
    ) -> PendingResponse | None:
        if self._room is not None:
            return None
        id = request_id().encode()
        return self._asked(join_id(id, body), id, "tool_call", timeout_s, told)

    def _asked(
        self, payload: bytes, id: bytes, what: str, timeout_s: float, told: Told | None = None
    ) -> PendingResponse:
        """Send a request now. Raises Disconnected, FrameTooLarge."""
        if self.lost.done():
            raise Disconnected(f"{self.peer.address}: {self.lost.result()}")
        if len(payload) > MAX_FRAME_BYTES:
            raise FrameTooLarge(len(payload))
        deadline = self.loop.time() + timeout_s
        key = self._ask(payload, id)
        self._waiting[key] = waiting = PendingResponse(self, what, timeout_s, deadline, key, told)
        if deadline < self._alarm_at:
            self._set_alarm(deadline)
        return waiting

    def _set_alarm(self, when: float) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm = self.loop.call_at(when, self._expire)
        self._alarm_at = when

    def _expire(self) -> None:
        self._alarm = None
        self._alarm_at = inf
        now = self.loop.time()
        for waiting in [each for each in self._waiting.values() if each.deadline <= now]:
            waiting.failed(self._late(waiting.what, waiting.timeout_s))
            self.forget(waiting.key)
        if self._waiting:
            self._set_alarm(min(each.deadline for each in self._waiting.values()))

    def _late(self, what: str, timeout_s: float) -> TimedOut:
        return TimedOut(f"{self.peer.address}: no response to {what} within {timeout_s:g} s")

    async def _await_room(self, what: str, timeout_s: float) -> float:
        """Wait for room, for as long as the request has time. Returns what is left of it."""
        deadline = self.loop.time() + timeout_s
        try:
            async with asyncio.timeout_at(deadline):
                while self._room is not None:
                    await self._room.wait()
        except TimeoutError:
            raise self._late(what, timeout_s) from None
        return deadline - self.loop.time()

    def forget(self, key: Hashable) -> None:
        """See waiting.Asker."""
        if self._waiting.pop(key, None) is not None and not self.lost.done():
            self._abandon(key)

    def _delivered(self, key: Hashable, payload: bytes) -> None:
        """A response has come. One that nobody waits for, since it is late or was given already, is dropped."""
        waiting = self._waiting.pop(key, None)
        if waiting is not None:
            waiting.arrived(payload)

    def _failed(self, key: Hashable, why: Exception) -> None:
        """There will be no response to this one."""
        waiting = self._waiting.pop(key, None)
        if waiting is not None:
            waiting.failed(why)

    def _lose(self, why: str) -> None:
        """The link is over."""
        if self.lost.done():
            return
        self.lost.set_result(why)
        if self._alarm is not None:
            self._alarm.cancel()
        left, self._waiting = self._waiting, {}
        for waiting in left.values():
            waiting.failed(Disconnected(f"{self.peer.address}: {why}"))


# The answering end


def _ended(subject: None, value: object, error: BaseException | None) -> None:
    """An answer says itself how it ended."""


class RpcServer:
    """The requests of one connection that are being answered.

    respond(key, payload): carries a response back; None: there is none, as for a cancel. hold(held): reading should pause, or
    go on. Keys are the transport's: the id of a request, or the number of its stream.
    """

    def __init__(
        self,
        answer: Answer,
        peer: RemotePeer,
        respond: Callable[[Hashable, bytes | None], None],
        hold: Callable[[bool], None],
        relay: Relay | None = None,
    ) -> None:
        self.peer = peer
        self._answer = answer
        self._relay = relay
        self._respond = respond
        self._hold = hold
        self._loop = asyncio.get_running_loop()
        self._start = eager_task_runner(self._loop, _ended)
        self._tasks: dict[Hashable, asyncio.Task[None] | PendingResponse] = {}
        self._bytes = 0
        self._idle: asyncio.Future[None] | None = None  # of drained()

    def receive(self, payload: bytes, key: Hashable = None) -> None:
        """Take one request. key: None if it is the id of the request, as bytes."""
        if self._relay is not None and self._passes_on(self._relay, payload, key):
            return
        try:
            request = PluginRequest.FromString(payload)
        except DecodeError as why:
            log.warning("%s: a request cannot be decoded: %s", self.peer.address, why)
            id = _id_of(payload)
            text = f"the request cannot be decoded: {why}"
            self._refuse(id.encode() if key is None else key, id, "invalid_request", text)
            return
        if key is None:
            key = request.request_id.encode()
        if request.HasField("stream_cancel"):
            self.cancel(request.stream_cancel.stream_id.encode())
            self._respond(key, None)
            return
        if key in self._tasks:
            log.warning("%s: request %r came twice", self.peer.address, request.request_id)
            return  # an answer would be taken for that of the first
        if len(self._tasks) >= MAX_IN_FLIGHT:
            text = f"{MAX_IN_FLIGHT} requests are being answered, as many as may be"
            self._refuse(key, request.request_id, "busy", text)
            return
        size = len(payload)
        if self._bytes <= MAX_BYTES_IN_FLIGHT < self._bytes + size:
            self._hold(True)
        self._bytes += size
        task = self._start(self._run(key, request), None)  # its first step is taken now
        if task is None:
            self._over(key, size)
        else:
            self._tasks[key] = task
            task.add_done_callback(
                lambda _: self._over(key, size)
            )  # not in the task: it may be cancelled before it begins

    def _passes_on(self, relay: Relay, payload: bytes, key: Hashable) -> bool:
        """Whether a request is on its way to another link; if it is not, receive() does with it what is to be done."""
        message = split_id(payload)
        if message is None:
            return False
        id, body = message
        if not id.isascii():  # it may be no text, and nothing that could be given back
            return False
        if key is None:
            key = id
        size = len(payload)
        tasks = self._tasks
        if key in tasks or len(tasks) >= MAX_IN_FLIGHT or self._bytes + size > MAX_BYTES_IN_FLIGHT:
            return False
        waiting = relay(body, self.peer, partial(self._passed_back, key, id, size))
        if waiting is None:
            return False
        self._bytes += size
        tasks[key] = waiting
        return True

    def _passed_back(self, key: Hashable, id: bytes, size: int, body: bytes | None) -> None:
        """The response to what was passed on. None: it was cancelled."""
        try:
            if body is not None:
                payload = join_id(id, body)
                if len(payload) <= MAX_FRAME_BYTES:
                    self._respond(key, payload)
                else:
                    self._give(key, id, payload)
        finally:
            self._over(key, size)

    def _give(self, key: Hashable, id: bytes, payload: bytes) -> None:
        if len(payload) > MAX_FRAME_BYTES:
            text = f"the response has {len(payload)} bytes, and a frame at most {MAX_FRAME_BYTES}"
            self._refuse(key, id.decode("utf-8", "replace"), "response_too_large", text)
        else:
            self._respond(key, payload)

    def cancel(self, key: Hashable) -> None:
        """The response to this one is not wanted any more; what is unknown is overlooked."""
        task = self._tasks.get(key)
        if task is not None:
            task.cancel()

    async def drained(self) -> None:
        """Wait until everything is answered."""
        while self._tasks:
            self._idle = self._idle or self._loop.create_future()
            await asyncio.shield(self._idle)

    def close(self) -> None:
        """The connection is over: nobody wants any response."""
        for task in list(self._tasks.values()):
            task.cancel()

    async def _run(self, key: Hashable, request: PluginRequest) -> None:
        id = request.request_id
        try:
            response = await self._answer(request, self.peer)
            name = id.encode()
            if isinstance(response, bytes):
                if len(name) < 0x80:
                    return self._give(key, name, join_id(name, response))
                response = PluginResponse.FromString(response)
            response.request_id = id
            self._give(key, name, response.SerializeToString())
        except asyncio.CancelledError:
            pass
        except Exception:
            log.exception(
                "%s: answering %s failed", self.peer.address, request.WhichOneof("request")
            )
            self._refuse(
                key, id, "internal_error", "answering failed; the log of who was asked says why"
            )

    def _over(self, key: Hashable, size: int) -> None:
        self._tasks.pop(key, None)
        before = self._bytes
        self._bytes = before - size
        if before > MAX_BYTES_IN_FLIGHT >= before - size:
            self._hold(False)
        if self._idle is not None and not self._tasks:
            self._idle.set_result(None)
            self._idle = None

    def _refuse(self, key: Hashable, id: str, code: str, message: str) -> None:
        self._respond(key, refusal(id, code, message).SerializeToString())
