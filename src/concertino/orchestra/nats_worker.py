"""NatsWorker: answers the requests that arrive on one connection to a NATS cluster.

Hubs call plugins, and plugins call hubs, with requests over NATS. NatsListener (nats_listener.py)
has a worker for each connection: usually one, and two while one connection replaces the other. A
worker receives requests. It refuses a request if it has too many, and otherwise sends the caller an
acknowledgement (ack). For each caller there is an RpcServer, which handles the requests. The worker
sends the responses, in pieces if they are long. While requests are in progress, it sends
heartbeats, so that callers notice when it is lost. nats_messages.py describes the messages, and
nats_link.py is the callers' side.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Hashable, Mapping
from functools import partial
from math import inf
from typing import Any, cast

from concertino.errors import Disconnected, ProtocolError
from concertino.nats.cluster import NatsCluster
from concertino.nats.connection import NatsConnection
from concertino.nats.protocol import NatsMessage, read_headers
from concertino.nats.subjects import token
from concertino.orchestra.nats_messages import (
    ABANDONED,
    ACK,
    ALL,
    ASK,
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
    is_reply_subject,
    last_name,
    peer_key,
    read_time_left,
    request_subject,
    worker_subject,
)
from concertino.orchestra.nats_pieces import (
    IncomingPieces,
    LongMessages,
    OutgoingPieces,
    PartialRequest,
    PartialResponse,
)
from concertino.orchestra.request_queue import ArrivedRequest, RequestQueue
from concertino.orchestra.rpc_interface import RelayHandler, RemotePeer, RequestHandler
from concertino.orchestra.rpc_server import RpcServer
from concertino.orchestra.worker_places import WorkerPlaces

__all__ = ["NatsWorker"]

log = logging.getLogger("concertino.orchestra")

# The time between two heartbeats, in seconds.
HEARTBEAT_S = 0.25
# The time between two checks of drain() whether all responses have been sent, in seconds.
DRAIN_POLL_S = 0.05
# How long to wait for the next piece of a request, or for the receipt of a piece of a response, in
# seconds. After this time, the caller is probably gone, and the request or response is dropped.
PIECE_S = 30.0
# When there are more callers than this, the worker drops the RpcServers of callers that have no
# requests in progress.
MAX_CALLERS = 256


class _Accepted:
    """A request that the worker has accepted, and that has no last response yet.

    caller: the name of the caller; for a hub with the id of its process (peer_key()).
    size: the size of the request in bytes.
    expires: when the caller stops waiting for a response, by the clock of the event loop.
    is_acknowledged: whether an ack was sent.
    chunks: how many responses of a stream were sent.
    """

    __slots__ = ("caller", "chunks", "expires", "is_acknowledged", "size")

    def __init__(self, caller: str, size: int, expires: float) -> None:
        self.caller = caller
        self.size = size
        self.expires = expires
        self.is_acknowledged = False
        self.chunks = 0


class _CallerServer(RpcServer):
    """Handles the requests of one caller. When a request ends, calls NatsWorker.on_release()."""

    def __init__(
        self, worker: NatsWorker, handler: RequestHandler, peer: RemotePeer, **options: Any
    ) -> None:
        super().__init__(handler, peer, **options)
        self._worker = worker

    def _release(self, key: Hashable, size: int) -> None:
        super()._release(key, size)
        self._worker.on_release(key)


class NatsWorker:
    """Answers the requests that arrive on one connection. A NatsListener owns it.

    cluster: the NatsCluster that owns the connection. While requests are in progress, the worker
        makes the cluster keep the connection open for the responses, with begin_use().
    name: the id of the plugin that this process runs; `orchestrator` for a hub.
    answer: handles each request that `relay` does not forward.
    relay: called first with each request, to forward it without decoding it. None if every request
        goes to `answer`.
    manifest: the serialized manifest of the plugin, which the worker sends to the hubs; None if
        hubs should not find this process.
    connection: the connection on which the requests arrive.

    Attributes:
    id: the id of this worker in messages: the id of the process in the cluster, followed by a
        random hexadecimal number.
    refusal: why the NATS server does not let this process answer requests; "" if the server lets
        it.
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
        self._make_server = partial(
            _CallerServer,
            self,
            answer,
            relay=relay,
            respond=self._respond,
            # A worker cannot pause reading.
            hold=_ignore,
            unread=self._waiting_bytes,
        )
        self._manifest = manifest
        self._connection = connection
        self._loop = asyncio.get_running_loop()
        self.id = f"{cluster.id}{random.getrandbits(64):016x}"
        self.refusal = ""
        self._is_leaving = False
        # The result of peer_key() for a caller -> the server that handles the caller's requests.
        self._servers: dict[str, RpcServer] = {}
        # Reply subject -> request.
        self._accepted: dict[Hashable, _Accepted] = {}
        # Counts the requests in progress, to refuse requests beyond the limits.
        self._places = WorkerPlaces()
        # Whether _send_acks() runs at the end of this loop iteration.
        self._is_ack_scheduled = False
        # Long requests of which some pieces are missing, and long responses of which some pieces
        # were not sent.
        self._incoming = LongMessages[PartialRequest]()
        self._outgoing = LongMessages[PartialResponse]()
        self._queue = RequestQueue(self._handle, self._acknowledge)
        # Calls _beat(); None while no request is in progress.
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
            sid = connection.subscribe(discovery_subject("*"), self._on_discovery)
            self._sids.append(sid)
            self._announce()

    # The life of the worker

    def _on_refusal(self, text: str) -> None:
        """Remember the error of the server if it refuses the subscription to requests.

        text: the error, which quotes the subject of the refused subscription.
        """
        if f'"{self._subject}"' in text:
            self.refusal = text

    def _announce(self) -> None:
        """Send the manifest to the hubs. If the worker is leaving, the headers say so."""
        headers = encode_headers(LEAVING) if self._is_leaving else b""
        self._publish(announcement_subject(self._name, self.id), self._manifest or b"", headers)

    def _on_discovery(self, message: NatsMessage) -> None:
        """Announce the plugin, because a hub requests announcements."""
        # The message of a hub is empty. Another plugin can make JetStream publish an answer to this
        # subject (nats_permissions.py), but such an answer is never empty.
        if not message.payload:
            self._announce()

    def change_manifest(self, manifest: bytes) -> None:
        """Announce another manifest to the hubs. A worker that is leaving announces nothing."""
        self._manifest = manifest
        if not self._is_leaving and not self._connection.ended.done():
            self._announce()

    def leave(self) -> None:
        """Stop accepting requests, and announce this to the hubs. Requests in progress go on."""
        if self._is_leaving or self._connection.ended.done():
            return
        self._is_leaving = True
        self._connection.unsubscribe(self._queue_sid)
        if self._manifest is not None:
            self._announce()

    async def drain(self) -> None:
        """Wait until every accepted request has its response. Call this after leave().

        There is no time limit. To stop waiting, cancel this method.
        """
        # The server may have sent requests before it handled the end of the subscription in
        # leave(). After this flush, they have arrived.
        try:
            await self._connection.flush()
        except Disconnected:
            return
        for rpc in list(self._servers.values()):
            await rpc.drain()
        # Long responses may not have been sent completely. Poll, because this happens only once, at
        # the end of a process.
        while self._accepted and not self._connection.ended.done():  # noqa: ASYNC110
            await asyncio.sleep(DRAIN_POLL_S)

    def end(self) -> None:
        """Cancel the requests in progress. If the connection is open, notify their callers.

        Call this method once. If the connection is open, call leave() first.
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
        for rpc in self._servers.values():
            rpc.close()
        self._incoming.clear()
        self._outgoing.clear()

    def _beat(self) -> None:
        """Send a heartbeat while requests are in progress, and cancel expired requests."""
        # A caller that stops waiting cancels its request itself, but a killed caller does not. A
        # stream would wait for ever until a killed caller takes the chunks.
        now = self._loop.time()
        for reply, accepted in list(self._accepted.items()):
            if accepted.expires < now:
                self._cancel(accepted.caller, cast(str, reply))
        if self._accepted:
            self._publish(heartbeat_subject(self._name, self.id), b"")
            self._heartbeats = self._loop.call_later(HEARTBEAT_S, self._beat)
        else:
            self._heartbeats = None

    # Requests

    def _on_request(self, message: NatsMessage) -> None:
        """Accept, refuse or ignore a request."""
        caller, reply = last_name(message.subject), message.reply
        # Callers use each reply subject for one request only, so this message is a repetition.
        if reply in self._accepted:
            return
        # Without this check, a caller could make this process publish to any subject.
        if not is_reply_subject(reply, caller, self._name):
            log.warning("%s: %s wants the response at %s: ignored", self._name, caller, reply)
            return
        caller = peer_key(caller, reply)
        fields = read_headers(message.headers)
        # A request has two time limits. It is not begun after start_within_s, which depends on the
        # clocks of both machines. It is cancelled after keep_s, which does not depend on the
        # caller's clock.
        start_within_s, keep_s = read_time_left(fields), _read_limit(fields)
        whole_size = _read_int(fields.get("Size"))
        size = len(message.payload) if whole_size is None else whole_size
        reason = self._refusal(start_within_s) or self._places.find_refusal(caller, size)
        if reason:
            self._publish(reply, b"", encode_headers(REFUSED, Reason=reason))
            return

        # While requests are in progress, the cluster keeps this connection open for the responses.
        if not self._accepted:
            self._cluster.begin_use(self._connection)
        now = self._loop.time()
        self._accepted[reply] = _Accepted(caller, size, now + keep_s)
        self._places.take(caller, size)
        if self._heartbeats is None:
            self._heartbeats = self._loop.call_later(HEARTBEAT_S, self._beat)
        if whole_size is None:
            self._receive(ArrivedRequest(caller, reply, message.payload, now + start_within_s))
        else:
            self._begin_incoming(caller, reply, size, start_within_s, message.payload)

    def _refusal(self, left_s: float) -> str:
        """Return why a request with this time limit must be refused now; "" if it need not be.

        left_s: how many seconds are left until the time limit.
        """
        if self._is_leaving:
            return DRAINING
        return LATE if left_s <= 0 else ""

    def _receive(self, request: ArrivedRequest) -> None:
        """Begin to handle a request that has arrived completely.

        If the request has no response at the end of this loop iteration, the caller gets an ack.
        """
        self._queue.put(request)
        if self._is_ack_scheduled:
            return
        accepted = self._accepted.get(request.reply)
        if accepted is not None and not accepted.is_acknowledged:
            self._is_ack_scheduled = True
            self._loop.call_soon(self._send_acks)

    def _acknowledge(self, request: ArrivedRequest) -> None:
        """Send the ack of a request that must wait in the queue, unless it was sent already."""
        if not self._accepted[request.reply].is_acknowledged:
            self._send_ack(request.reply)

    def _handle(self, request: ArrivedRequest) -> None:
        """Begin to handle a request, unless it was cancelled or its time limit has passed."""
        if request.reply not in self._accepted:
            return
        if self._loop.time() > request.deadline:
            self._finish(request.reply)
        else:
            self._rpc_of(request.caller).receive(request.payload, request.reply)

    def _rpc_of(self, caller: str) -> RpcServer:
        """Return the RpcServer for the requests of a caller. Creates it for a new caller."""
        rpc = self._servers.get(caller)
        if rpc is None:
            if len(self._servers) >= MAX_CALLERS:
                idle = [name for name, other in self._servers.items() if not other.in_progress]
                for name in idle:
                    del self._servers[name]
            # In the name of a hub, the id of its process follows the slash (peer_key()).
            peer = RemotePeer(f"nats:{caller}", caller.partition("/")[0])
            rpc = self._servers[caller] = self._make_server(peer)
        return rpc

    def _send_acks(self) -> None:
        """Send the acks of all requests that have neither an ack nor a response."""
        self._is_ack_scheduled = False
        for reply, accepted in list(self._accepted.items()):
            if not accepted.is_acknowledged:
                self._send_ack(cast(str, reply))

    def _send_ack(self, reply: str) -> None:
        self._accepted[reply].is_acknowledged = True
        self._publish(reply, b"", encode_headers(ACK, Worker=self.id))

    # Responses

    def _respond(self, key: Hashable, payload: bytes | None, is_last: bool) -> None:
        """Send a response of an RpcServer, or queue it behind an earlier long response.

        key: the reply subject of the request.
        payload: the serialized response; None if the request was cancelled and gets no response.
        is_last: whether no other response to the request follows.
        """
        reply = cast(str, key)
        if reply not in self._accepted:
            return
        if payload is None:
            # Drop the rest of a long response: after a cancellation, the caller sends no more
            # receipts for the pieces.
            self._outgoing.remove(reply)
            self._finish(reply)
            return
        outgoing = self._outgoing.get(reply)
        if outgoing is not None:
            outgoing.waiting.append((payload, is_last))
        else:
            self._send(reply, payload, is_last)

    def _send(self, reply: str, payload: bytes, is_last: bool) -> None:
        """Send a response, or its first pieces if it is long."""
        accepted = self._accepted[reply]
        # The ack contains the id of this worker, to which the caller sends receipts of pieces, and
        # credits, which allow the worker to send more chunks of a stream.
        if (not is_last or len(payload) > MAX_WHOLE_BYTES) and not accepted.is_acknowledged:
            self._send_ack(reply)
        chunks = accepted.chunks
        accepted.chunks += 1
        if len(payload) > MAX_WHOLE_BYTES:
            last = "yes" if is_last else "no"
            fields = {"Size": len(payload), "Last": last, "Chunk": chunks}
            send = partial(self._send_piece, reply, fields)
            outgoing = PartialResponse(
                OutgoingPieces(payload, send), is_last, self._drop_timer(reply)
            )
            self._outgoing.add(reply, outgoing)
            outgoing.pieces.send_window()
        else:
            # The only response to a request needs no headers.
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
        """Send the next pieces of a long response. After the last piece, send the next response."""
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
        # If one of these responses is long, _respond() makes the next ones wait again.
        for payload, is_last in outgoing.waiting:
            self._respond(reply, payload, is_last)

    def on_release(self, key: Hashable) -> None:
        """Forget a request that has ended, unless its response is still being sent in pieces.

        The RpcServer of a caller calls this method when a request has ended.
        key: the reply subject of the request.
        """
        if key not in self._outgoing:
            self._finish(cast(str, key))

    def _finish(self, reply: str) -> None:
        """Forget a request that has ended, and free its place.

        reply: the reply subject of the request.
        """
        accepted = self._accepted.pop(reply, None)
        if accepted is None:
            return
        self._places.release(accepted.caller, accepted.size)
        if not self._accepted:
            self._cluster.end_use(self._connection)

    def _waiting_bytes(self) -> int:
        """Return how many bytes of responses wait in this process until they can be sent."""
        return self._connection.unsent_bytes + self._outgoing.held_bytes

    # Requests in pieces, and other messages to this worker

    def _begin_incoming(
        self, caller: str, reply: str, size: int, left_s: float, first: bytes
    ) -> None:
        """Begin to receive a request in pieces, after its first piece.

        caller, reply: its caller, and its reply subject.
        size: the size of the whole request in bytes.
        left_s: after how many seconds the request must not be begun any more.
        first: the first piece.
        """
        try:
            pieces = IncomingPieces(size)
            pieces.add(0, first)
        except ProtocolError as exc:
            log.warning("%s: a request of %s is dropped: %s", self._name, caller, exc)
            self._finish(reply)
            return
        timer = self._drop_timer(reply, left_s)
        deadline = self._loop.time() + left_s
        self._incoming.add(reply, PartialRequest(caller, pieces, timer, deadline))
        self._send_ack(reply)

    def _drop_timer(self, reply: str, left_s: float = MAX_LEFT_S) -> asyncio.TimerHandle:
        """Return a timer that drops a request or response after PIECE_S, or left_s if shorter."""
        return self._loop.call_later(min(left_s, PIECE_S), self._drop, reply)

    def _drop(self, reply: str) -> None:
        """Cancel a request whose caller has not sent the next piece or receipt in time."""
        log.warning("%s: a message in pieces is dropped: its caller is silent", self._name)
        # The request is in _accepted, because its end also cancels the timer.
        self._cancel(self._accepted[reply].caller, reply)

    def _on_control(self, message: NatsMessage) -> None:
        """Handle a message of a caller about one of the caller's requests."""
        caller = last_name(message.subject)
        fields = read_headers(message.headers)
        kind, reply = fields.get("Kind"), fields.get("Call", "")
        # A caller may control only its own requests, whose reply subjects have its name.
        is_own = is_reply_subject(reply, caller, self._name)
        if is_own:
            caller = peer_key(caller, reply)
        rpc = self._servers.get(caller)
        if kind == STREAM_CONTROL:
            # The reply subject need not be checked: `rpc` has only requests of this caller.
            if rpc is not None:
                rpc.receive_control(message.payload)
        elif kind == CANCEL and is_own:
            self._cancel(caller, reply)
        elif kind == PIECE and is_own:
            self._on_piece(reply, _read_int(fields.get("Number")), message.payload)
        elif kind == RECEIPT and is_own:
            self._on_receipt(reply)
        elif kind == ASK and is_own and reply not in self._accepted:
            # The request is over, but the caller still waits for its response, which was lost.
            self._publish(reply, b"", encode_headers(UNKNOWN))

    def _cancel(self, caller: str, reply: str) -> None:
        """Cancel a request whose caller no longer waits for a response."""
        self._incoming.remove(reply)
        self._outgoing.remove(reply)
        rpc = self._servers.get(caller)
        if rpc is not None:
            rpc.cancel(reply)
        self._finish(reply)

    def _on_piece(self, reply: str, number: int | None, piece: bytes) -> None:
        """Handle the next piece of a request, and send the receipt for it."""
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
        # If the time limit of the request ends first, _beat() cancels the request.
        incoming.timer = self._drop_timer(reply)
        self._publish(reply, b"", encode_headers(RECEIPT))
        if whole is not None:
            self._incoming.remove(reply)
            self._receive(ArrivedRequest(incoming.caller, reply, whole, incoming.deadline))

    def _publish(self, subject: str, payload: bytes, headers: bytes = b"") -> None:
        """Publish a message, unless the connection has ended."""
        if not self._connection.ended.done():
            self._connection.publish(subject, payload, headers=headers)


def _read_int(text: str | None) -> int | None:
    """Return the number in a header field.

    text: the value of the field; None if the field is missing.
    Returns None without a valid number.
    """
    # Valid numbers have fewer than 12 digits. Converting a very long text would take long.
    return int(text) if text is not None and text.isdecimal() and len(text) < 12 else None


def _read_limit(fields: Mapping[str, str]) -> float:
    """Return for how many seconds at most the caller of a request waits; inf if it is unknown.

    fields: the header fields of the request.
    """
    # The time that the request was on its way is not subtracted, because the clocks may differ.
    left_ms = _read_int(fields.get("Left"))
    # A caller with a longer limit also sends MAX_LEFT_S.
    return inf if left_ms is None or left_ms >= MAX_LEFT_S * 1000 else left_ms / 1000


def _ignore(is_full: bool) -> None:
    """Do nothing. RpcServer calls this to pause reading when too many requests are in progress.

    A worker cannot pause reading, because the requests of all callers arrive on one connection. It
    refuses requests instead.
    """
