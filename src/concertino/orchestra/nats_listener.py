"""RPC connections over NATS: the callee's side, which answers requests.

    listener = NatsListener(cluster, "tools.notes", answer)

The process becomes a worker of a plugin: a member of the plugin's queue group (nats_messages.py).
While the connection to the cluster is lost, the process gets no requests, and drops its responses:
the callers have already got an error, and must not get a second response.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from collections.abc import Callable, Hashable, Mapping
from functools import partial
from math import inf
from typing import Any, Generic, TypeVar, cast

from msgspec import Struct

from concertino.errors import Disconnected, ProtocolError
from concertino.nats.cluster import NatsCluster
from concertino.nats.connection import NatsConnection
from concertino.nats.protocol import NatsMessage, read_headers
from concertino.nats.subjects import inbox_prefix, token
from concertino.orchestra.certificates import Certificates
from concertino.orchestra.frames import MAX_FRAME_BYTES
from concertino.orchestra.nats_cluster import open_cluster
from concertino.orchestra.nats_messages import (
    ABANDONED,
    ACK,
    ALL,
    ASK,
    BUSY,
    CANCEL,
    CHUNK,
    DRAINING,
    END,
    LATE,
    LEAVING,
    MAX_LEFT_S,
    MAX_WHOLE_BYTES,
    PIECE,
    RECEIPT,
    REFUSED,
    STREAM_CONTROL,
    UNKNOWN,
    announcement_subject,
    discovery_subject,
    encode_headers,
    heartbeat_subject,
    last_name,
    read_deadline,
    request_subject,
    worker_subject,
)
from concertino.orchestra.nats_pieces import IncomingPieces, OutgoingPieces
from concertino.orchestra.rpc import RpcServer
from concertino.orchestra.rpc_interface import RelayHandler, RemotePeer, RequestHandler

__all__ = ["NatsListener", "listen_nats_links"]

log = logging.getLogger("concertino.orchestra")

HEARTBEAT_S = 0.25
# How often drain() checks whether all responses have been sent.
DRAIN_POLL_S = 0.05
# How many requests a worker may have in progress. Further ones are refused, and the caller tries
# another worker.
MAX_IN_FLIGHT = 1024
# The largest total size of the requests that are arriving in pieces.
MAX_INCOMING_BYTES = 4 * MAX_FRAME_BYTES
# How long to wait for the next piece of a request, or for the receipt of a piece of a response, in
# seconds. After this time, the request or response is dropped, because its caller is probably gone.
PIECE_S = 30.0
# If a handler has blocked the event loop for SLOW_S seconds, the worker becomes cautious for
# CAUTIOUS_S seconds: it acknowledges requests before it handles them, and handles one request in
# each loop iteration.
SLOW_S, CAUTIOUS_S = 0.01, 1.0
# When there are more callers than this, the state of callers without requests is dropped.
MAX_CALLERS = 256


async def listen_nats_links(
    address: str,
    answer: RequestHandler,
    relay: RelayHandler | None,
    certificates: Certificates | None,
    name: str,
) -> NatsListener:
    """Become a worker of a plugin in a cluster. See listen_for_links() and open_cluster()."""
    name = name.removesuffix("-client")
    cluster = await open_cluster(address, name, certificates)
    listener = NatsListener(cluster, name, answer, relay, owns_cluster=True)
    listener.address = address
    try:
        await listener.wait_accepted()
    except BaseException:
        await listener.close()
        raise
    return listener


class NatsListener:
    """An RpcListener: makes this process a worker of a plugin, or a hub.

    name: the plugin's id.
    answer, relay: see listen_for_links().
    manifest: the serialized manifest, which is sent to hubs that look for plugins; None if hubs
        should not find this process.
    owns_cluster: whether close() also closes the cluster.
    """

    def __init__(
        self,
        cluster: NatsCluster,
        name: str,
        answer: RequestHandler,
        relay: RelayHandler | None = None,
        manifest: bytes | None = None,
        *,
        owns_cluster: bool = False,
    ) -> None:
        self.address = f"nats:{name}"
        self._cluster = cluster
        self._owns_cluster = owns_cluster
        self._manifest = manifest
        self._start_worker = partial(_Worker, cluster, name, answer, relay)
        self._workers: dict[NatsConnection, _Worker] = {}
        cluster.on_connect.append(self._begin)
        cluster.on_retire.append(self._retire)
        if cluster.is_up:
            self._begin(cluster.connection)

    async def wait_accepted(self) -> None:
        """Wait until the server has accepted the subscriptions, so that requests arrive.

        Raises Disconnected if the server does not allow this process to answer them.
        """
        connection = self._cluster.connection
        await connection.flush()
        worker = self._workers.get(connection)
        if worker is not None and worker.refusal:
            raise Disconnected(f"{connection.server}: {worker.refusal}")

    def announce(self, manifest: bytes) -> None:
        """Send another manifest to the hubs from now on."""
        self._manifest = manifest
        for worker in self._workers.values():
            worker.change_manifest(manifest)

    def leave(self) -> None:
        """Accept no more requests. Those in progress go on until close()."""
        for worker in self._workers.values():
            worker.leave()

    def _begin(self, connection: NatsConnection) -> None:
        self._workers[connection] = self._start_worker(self._manifest, connection)
        connection.ended.add_done_callback(self._end_workers)

    def _end_workers(self, _: object) -> None:
        """End the workers of connections that have ended."""
        for connection in [item for item in self._workers if item.ended.done()]:
            self._workers.pop(connection).end()

    def _retire(self, connection: NatsConnection) -> None:
        # There is no worker if this listener was created after the connection was replaced.
        worker = self._workers.get(connection)
        if worker is not None:
            worker.leave()

    async def close(self, drain_s: float = 0.0) -> None:
        """See RpcListener.close."""
        if self._begin not in self._cluster.on_connect:
            return
        self._cluster.on_connect.remove(self._begin)
        self._cluster.on_retire.remove(self._retire)
        self.leave()
        try:
            if drain_s and self._workers:
                await self._drain(drain_s)
        finally:
            for connection, worker in self._workers.items():
                connection.ended.remove_done_callback(self._end_workers)
                worker.end()
            self._workers.clear()
        if self._owns_cluster:
            await self._cluster.close()

    async def _drain(self, drain_s: float) -> None:
        """Wait up to drain_s seconds until every accepted request has its response."""
        drains = [asyncio.ensure_future(worker.drain()) for worker in self._workers.values()]
        try:
            await asyncio.wait(drains, timeout=drain_s)
        finally:
            for task in drains:
                task.cancel()


class _Accepted:
    """A request that has no response yet.

    caller: the name of its caller.
    expires: when its caller does not wait for a response any more, by the loop's clock.
    is_acknowledged: whether an ack was sent. chunks: how many chunks of a stream were sent.
    """

    __slots__ = ("caller", "chunks", "expires", "is_acknowledged")

    def __init__(self, caller: str, expires: float) -> None:
        self.caller = caller
        self.expires = expires
        self.is_acknowledged = False
        self.chunks = 0


class _Incoming:
    """A request that arrives in pieces.

    timer: drops the request if its next piece does not arrive in time.
    deadline: when the request's time limit ends, by the loop's clock.
    """

    def __init__(
        self, caller: str, pieces: IncomingPieces, timer: asyncio.TimerHandle, deadline: float
    ) -> None:
        self.caller = caller
        self.pieces = pieces
        self.timer = timer
        self.deadline = deadline


class _Outgoing:
    """A response that is being sent in pieces.

    timer: drops the response if no receipt arrives in time.
    waiting: the later responses to the same request, in order, as (payload, is_last).
    """

    def __init__(self, pieces: OutgoingPieces, is_last: bool, timer: asyncio.TimerHandle) -> None:
        self.pieces = pieces
        self.is_last = is_last
        self.timer = timer
        self.waiting: list[tuple[bytes, bool]] = []


M = TypeVar("M", _Incoming, _Outgoing)


class _LongMessages(Generic[M]):
    """A worker's incomplete requests, or its incompletely sent responses, by reply subject.

    held_bytes: their total size.
    """

    def __init__(self) -> None:
        self.held_bytes = 0
        self._messages: dict[Hashable, M] = {}

    def __bool__(self) -> bool:
        return bool(self._messages)

    def __contains__(self, reply: Hashable) -> bool:
        return reply in self._messages

    def add(self, reply: str, message: M) -> None:
        """Add a message whose first piece has arrived, or is about to be sent."""
        self._messages[reply] = message
        self.held_bytes += message.pieces.size

    def get(self, reply: str) -> M | None:
        """Return a message; None if it is complete, or was dropped."""
        return self._messages.get(reply)

    def remove(self, reply: Hashable) -> None:
        """Forget a message that is complete, late, or not wanted any more."""
        message = self._messages.pop(reply, None)
        if message is not None:
            message.timer.cancel()
            self.held_bytes -= message.pieces.size

    def clear(self) -> None:
        """Forget all messages."""
        for reply in list(self._messages):
            self.remove(reply)


class _Request(Struct, frozen=True):
    """A request that has arrived. deadline: when its time is over, by the loop's clock."""

    caller: str
    reply: str
    payload: bytes
    deadline: float


class _RequestQueue:
    """Hands requests to the function that handles them, which may block the event loop.

    A handler that computes for a while delays heartbeats, and the acks of the requests behind it.
    So after a slow handler, requests wait in this queue, and the event loop does its other work
    between two of them.

    handle: begins to handle a request.
    """

    def __init__(self, handle: Callable[[_Request], None]) -> None:
        self._handle = handle
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[_Request] = deque()
        self._cautious_until = 0.0

    def put(self, request: _Request) -> bool:
        """Handle a request. Returns False if it waits, and should be acknowledged now."""
        if not self._waiting and self._loop.time() >= self._cautious_until:
            self._run(request)
            return True
        if not self._waiting:
            self._loop.call_soon(self._run_next)
        self._waiting.append(request)
        return False

    def _run_next(self) -> None:
        # Schedule the next call first, so that an error in one request does not stop the others.
        if len(self._waiting) > 1:
            self._loop.call_soon(self._run_next)
        self._run(self._waiting.popleft())

    def _run(self, request: _Request) -> None:
        begin = self._loop.time()
        self._handle(request)
        end = self._loop.time()
        if end - begin > SLOW_S:
            self._cautious_until = end + CAUTIOUS_S


class _Caller(RpcServer):
    """Handles the requests of one caller, and tells the worker when one has ended."""

    def __init__(
        self, worker: _Worker, handler: RequestHandler, peer: RemotePeer, **options: Any
    ) -> None:
        super().__init__(handler, peer, **options)
        self._worker = worker

    def _release(self, key: Hashable, size: int) -> None:
        super()._release(key, size)
        self._worker.on_release(key)


class _Worker:
    """Answers the requests that arrive on one connection.

    NatsListener describes the parameters.
    """

    def __init__(
        self,
        cluster: NatsCluster,
        name: str,
        answer: RequestHandler,
        relay: RelayHandler | None,
        manifest: bytes | None,
        connection: NatsConnection,
    ) -> None:
        self._cluster = cluster
        self._name = name
        self._make_caller = partial(
            _Caller,
            self,
            answer,
            relay=relay,
            respond=self._respond,
            hold=_ignore,
            unread=self._unread_bytes,
        )
        self._manifest = manifest
        self._connection = connection
        self._loop = asyncio.get_running_loop()
        self.id = f"{random.getrandbits(64):x}"
        # Why the server does not allow this process to answer requests.
        self.refusal = ""
        self._is_leaving = False
        # The state of each caller, by name.
        self._callers: dict[str, RpcServer] = {}
        # Reply subject -> request.
        self._accepted: dict[Hashable, _Accepted] = {}
        self._is_ack_scheduled = False
        self._incoming = _LongMessages[_Incoming]()
        self._outgoing = _LongMessages[_Outgoing]()
        self._queue = _RequestQueue(self._handle)
        self._heartbeats: asyncio.TimerHandle | None = None

        connection.on_refusal.append(self._on_refusal)
        self._subject = request_subject(name, "*")
        self._queue_sid = connection.subscribe(self._subject, self._on_request, queue=token(name))
        # The other subscriptions, which last until end().
        self._sids = [
            connection.subscribe(worker_subject(name, id, "*"), self._on_control)
            for id in (self.id, ALL)
        ]
        if manifest is not None:
            sid = connection.subscribe(discovery_subject("*"), lambda _: self._announce())
            self._sids.append(sid)
            self._announce()

    # The life of the worker

    def _on_refusal(self, text: str) -> None:
        if f'"{self._subject}"' in text:
            self.refusal = text

    def _announce(self) -> None:
        headers = encode_headers(LEAVING) if self._is_leaving else b""
        self._publish(announcement_subject(self._name, self.id), self._manifest or b"", headers)

    def change_manifest(self, manifest: bytes) -> None:
        """Announce another manifest, unless this worker is leaving."""
        self._manifest = manifest
        if not self._is_leaving and not self._connection.ended.done():
            self._announce()

    def leave(self) -> None:
        """Accept no more requests."""
        if self._is_leaving or self._connection.ended.done():
            return
        self._is_leaving = True
        self._connection.unsubscribe(self._queue_sid)
        if self._manifest is not None:
            self._announce()

    async def drain(self) -> None:
        """Wait until every accepted request has its response."""
        # The server may have sent requests before it handled the end of the subscription.
        try:
            await self._connection.flush()
        except Disconnected:
            return
        for rpc in list(self._callers.values()):
            await rpc.drain()
        # Some requests or responses may not have been sent completely. Poll: this happens once, at
        # the end of a process.
        while self._accepted and not self._connection.ended.done():  # noqa: ASYNC110
            await asyncio.sleep(DRAIN_POLL_S)

    def end(self) -> None:
        """Cancel the requests in progress, and tell their callers if the connection is open.

        Call it once, after leave() if the connection is open.
        """
        self._connection.on_refusal.remove(self._on_refusal)
        for sid in self._sids:
            self._connection.unsubscribe(sid)
        if self._heartbeats is not None:
            self._heartbeats.cancel()
        for reply in self._accepted:
            self._publish(cast(str, reply), b"", encode_headers(ABANDONED))
        for reply in list(self._accepted):
            self._finish(cast(str, reply))
        for rpc in self._callers.values():
            rpc.close()
        self._incoming.clear()
        self._outgoing.clear()

    def _beat(self) -> None:
        """Send a heartbeat while requests are in progress, and cancel those that have expired.

        A caller cancels its request itself. This is for callers that were killed: otherwise a
        stream would wait for ever until its caller takes the chunks.
        """
        now = self._loop.time()
        expired = [item for item in self._accepted.items() if item[1].expires < now]
        for reply, accepted in expired:
            self._cancel(accepted.caller, cast(str, reply))
        if self._accepted:
            self._publish(heartbeat_subject(self._name, self.id), b"")
            self._heartbeats = self._loop.call_later(HEARTBEAT_S, self._beat)
        else:
            self._heartbeats = None

    # Requests

    def _on_request(self, message: NatsMessage) -> None:
        caller, reply = last_name(message.subject), message.reply
        # The request is in progress already: its caller is not one of this package.
        if reply in self._accepted:
            return
        # Without this check, a caller could make this process publish to any subject.
        if not reply.startswith(inbox_prefix(caller)):
            log.warning("%s: %s wants the response at %s: ignored", self._name, caller, reply)
            return
        fields = read_headers(message.headers)
        left_s = read_deadline(fields)
        size = _read_int(fields.get("Size"))
        reason = self._refusal(left_s, size or 0)
        if reason:
            self._publish(reply, b"", encode_headers(REFUSED, Reason=reason))
            return

        if not self._accepted:
            self._cluster.begin_use(self._connection)
        self._accepted[reply] = _Accepted(caller, self._loop.time() + _read_limit(fields))
        if self._heartbeats is None:
            self._heartbeats = self._loop.call_later(HEARTBEAT_S, self._beat)
        if size is None:
            self._receive(_Request(caller, reply, message.payload, self._loop.time() + left_s))
        else:
            self._begin_incoming(caller, reply, size, left_s, message.payload)

    def _refusal(self, left_s: float, size: int) -> str:
        """Return the reason to refuse a request; empty to accept it."""
        if self._is_leaving:
            return DRAINING
        if left_s <= 0:
            return LATE
        is_full = len(self._accepted) >= MAX_IN_FLIGHT
        return BUSY if is_full or self._incoming.held_bytes + size > MAX_INCOMING_BYTES else ""

    def _receive(self, request: _Request) -> None:
        """Begin to handle a request. If it has no response at once, the caller gets an ack."""
        if not self._queue.put(request):
            if not self._accepted[request.reply].is_acknowledged:
                self._send_ack(request.reply)
        elif request.reply in self._accepted and not self._is_ack_scheduled:
            self._is_ack_scheduled = True
            self._loop.call_soon(self._send_acks)

    def _handle(self, request: _Request) -> None:
        """Begin to handle a request, unless it was cancelled or its caller has given up."""
        if request.reply not in self._accepted:
            return
        if self._loop.time() > request.deadline:
            self._finish(request.reply)
        else:
            self._rpc_of(request.caller).receive(request.payload, request.reply)

    def _rpc_of(self, caller: str) -> RpcServer:
        rpc = self._callers.get(caller)
        if rpc is None:
            if len(self._callers) >= MAX_CALLERS:
                idle = [name for name, other in self._callers.items() if not other.in_progress]
                for name in idle:
                    del self._callers[name]
            rpc = self._callers[caller] = self._make_caller(RemotePeer(f"nats:{caller}", caller))
        return rpc

    def _send_acks(self) -> None:
        self._is_ack_scheduled = False
        for reply, accepted in list(self._accepted.items()):
            if not accepted.is_acknowledged:
                self._send_ack(cast(str, reply))

    def _send_ack(self, reply: str) -> None:
        self._accepted[reply].is_acknowledged = True
        self._publish(reply, b"", encode_headers(ACK, Worker=self.id))

    # Responses

    def _respond(self, key: Hashable, payload: bytes | None, is_last: bool) -> None:
        """Send a response, which RpcServer has made. payload: None if there is none."""
        reply = cast(str, key)
        if reply not in self._accepted:
            return
        if payload is None:
            self._finish(reply)
            return
        outgoing = self._outgoing.get(reply)
        if outgoing is not None:
            outgoing.waiting.append((payload, is_last))
        else:
            self._send(reply, payload, is_last)

    def _send(self, reply: str, payload: bytes, is_last: bool) -> None:
        accepted = self._accepted[reply]
        # The caller sends receipts and credit to the worker that the ack names.
        if (not is_last or len(payload) > MAX_WHOLE_BYTES) and not accepted.is_acknowledged:
            self._send_ack(reply)
        chunks = accepted.chunks
        accepted.chunks += 1
        if len(payload) > MAX_WHOLE_BYTES:
            last = "yes" if is_last else "no"
            fields = {"Size": len(payload), "Last": last, "Chunk": chunks}
            send = partial(self._send_piece, reply, fields)
            outgoing = _Outgoing(OutgoingPieces(payload, send), is_last, self._drop_timer(reply))
            self._outgoing.add(reply, outgoing)
            outgoing.pieces.send_window()
        else:
            headers = b""
            if chunks or not is_last:
                headers = encode_headers(END if is_last else CHUNK, Chunk=chunks)
            self._publish(reply, payload, headers)
            if is_last:
                self._finish(reply)

    def _send_piece(
        self, reply: str, fields: Mapping[str, str | int], number: int, piece: bytes
    ) -> None:
        self._publish(reply, piece, encode_headers(PIECE, Number=number, **fields))

    def _on_receipt(self, reply: str) -> None:
        """Send the next pieces of a long response; after its last one, the responses that wait."""
        outgoing = self._outgoing.get(reply)
        if outgoing is None:
            return
        outgoing.timer.cancel()
        outgoing.timer = self._drop_timer(reply)
        outgoing.pieces.on_receipt()
        if not outgoing.pieces.is_complete:
            return
        self._outgoing.remove(reply)
        if outgoing.is_last:
            self._finish(reply)
        for payload, is_last in outgoing.waiting:
            self._respond(reply, payload, is_last)

    def on_release(self, key: Hashable) -> None:
        """Forget a request that has ended, unless its response is still being sent."""
        if key not in self._outgoing:
            self._finish(cast(str, key))

    def _finish(self, reply: str) -> None:
        if self._accepted.pop(reply, None) is not None and not self._accepted:
            self._cluster.end_use(self._connection)

    def _unread_bytes(self) -> int:
        return self._connection.unread_bytes + self._outgoing.held_bytes

    # Requests in pieces, and other messages to this worker

    def _begin_incoming(
        self, caller: str, reply: str, size: int, left_s: float, first: bytes
    ) -> None:
        try:
            pieces = IncomingPieces(size)
            pieces.add(0, first)
        except ProtocolError as exc:
            log.warning("%s: a request of %s is dropped: %s", self._name, caller, exc)
            self._finish(reply)
            return
        timer = self._drop_timer(reply, left_s)
        deadline = self._loop.time() + left_s
        self._incoming.add(reply, _Incoming(caller, pieces, timer, deadline))
        self._send_ack(reply)

    def _drop_timer(self, reply: str, left_s: float = MAX_LEFT_S) -> asyncio.TimerHandle:
        return self._loop.call_later(min(left_s, PIECE_S), self._drop, reply)

    def _drop(self, reply: str) -> None:
        """Drop a request or response whose caller has sent no pieces or receipts in time."""
        log.warning("%s: a message in pieces is dropped: its caller is silent", self._name)
        self._cancel(self._accepted[reply].caller, reply)

    def _on_control(self, message: NatsMessage) -> None:
        caller = last_name(message.subject)
        fields = read_headers(message.headers)
        kind, reply = fields.get("Kind"), fields.get("Call", "")
        rpc = self._callers.get(caller)
        # A caller may control only its own requests, whose reply subjects have its prefix.
        is_own = reply.startswith(inbox_prefix(caller))
        if kind == STREAM_CONTROL:
            if rpc is not None:
                rpc.receive(message.payload)
        elif kind == CANCEL and is_own:
            self._cancel(caller, reply)
        elif kind == PIECE and is_own:
            self._on_piece(reply, _read_int(fields.get("Number")), message.payload)
        elif kind == RECEIPT and is_own:
            self._on_receipt(reply)
        elif kind == ASK and is_own and reply not in self._accepted:
            self._publish(reply, b"", encode_headers(UNKNOWN))

    def _cancel(self, caller: str, reply: str) -> None:
        """Cancel a request, whose caller does not want a response any more."""
        self._incoming.remove(reply)
        self._outgoing.remove(reply)
        rpc = self._callers.get(caller)
        if rpc is not None:
            rpc.cancel(reply)
        self._finish(reply)

    def _on_piece(self, reply: str, number: int | None, piece: bytes) -> None:
        incoming = self._incoming.get(reply)
        if incoming is None:
            return
        try:
            whole = incoming.pieces.add(-1 if number is None else number, piece)
        except ProtocolError as exc:
            log.warning("%s: a request of %s is dropped: %s", self._name, incoming.caller, exc)
            self._incoming.remove(reply)
            self._finish(reply)
            return
        incoming.timer.cancel()
        incoming.timer = self._drop_timer(reply)
        self._publish(reply, b"", encode_headers(RECEIPT))
        if whole is not None:
            self._incoming.remove(reply)
            self._receive(_Request(incoming.caller, reply, whole, incoming.deadline))

    def _publish(self, subject: str, payload: bytes, headers: bytes = b"") -> None:
        if not self._connection.ended.done():
            self._connection.publish(subject, payload, headers=headers)


def _read_int(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdecimal() and len(text) < 12 else None


def _read_limit(fields: Mapping[str, str]) -> float:
    """Return for how many seconds at most the caller of a request waits.

    The time that the request was on its way is not subtracted, because the clocks may differ.
    """
    left_ms = _read_int(fields.get("Left"))
    # MAX_LEFT_S stands for any longer limit, too.
    return inf if left_ms is None or left_ms >= MAX_LEFT_S * 1000 else left_ms / 1000


def _ignore(is_full: bool) -> None:
    """Do nothing: a worker cannot pause reading, so it refuses requests instead. See _refusal()."""
