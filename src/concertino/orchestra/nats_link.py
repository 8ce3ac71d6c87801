"""RPC connections over NATS: the caller's side.

Hubs use a NatsLink to call plugins, and plugins use one to call the hub.

A worker is one process of the plugin that is called. The worker that gets a request sends an
acknowledgement (ack) at once, unless the response is ready at once. While calls are in progress, it
sends heartbeats. So the caller notices within about a second that a worker is lost. If a worker
refuses a request, it has certainly not run the request, and the request is sent to another worker.
After any other failure, the request is not sent again, and the error says that it may have been
executed.

NATS can lose messages between two servers while caller and worker stay connected. The caller
notices this, because it asks the worker every ASK_S seconds whether the worker still has the
request, and because it counts the chunks of a stream.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Hashable
from functools import partial
from typing import cast

from msgspec import Struct

from concertino.errors import Disconnected, ProtocolError
from concertino.nats.cluster import NatsCluster
from concertino.nats.connection import NatsConnection
from concertino.nats.protocol import NO_RESPONDERS, NatsMessage, read_headers, status_of
from concertino.orchestra.certificates import Certificates
from concertino.orchestra.nats_cluster import open_cluster
from concertino.orchestra.nats_messages import (
    ABANDONED,
    ACK,
    ALL,
    ASK,
    CANCEL,
    CHUNK,
    END,
    LATE,
    MAX_WHOLE_BYTES,
    PIECE,
    RECEIPT,
    REFUSED,
    STREAM_CONTROL,
    UNKNOWN,
    encode_headers,
    heartbeat_subject,
    last_name,
    new_reply_prefix,
    request_headers,
    request_subject,
    worker_subject,
)
from concertino.orchestra.nats_pieces import IncomingPieces, OutgoingPieces
from concertino.orchestra.plugin_messages import HealthRequest, PluginRequest, StreamCredit
from concertino.orchestra.plugins_file import HUB
from concertino.orchestra.rpc_client import RpcClient
from concertino.orchestra.rpc_interface import CLOSED, RemotePeer, error_response

__all__ = ["NatsLink", "open_nats_link"]

# All times in this module are in seconds.
# How long to wait for a worker's ack.
ACK_S = 1.0
# If no heartbeat comes for this time, the worker is lost. It is a little longer than the time of
# three heartbeats, which a worker sends every 0.25 s.
LOST_S = 0.9
# The time between two questions of a caller whether its request is still in progress.
ASK_S = 2.0
# The time between two checks of these limits.
CHECK_S = 0.1
# A refused request is sent at most MAX_ATTEMPTS times. The pause before each repetition is a random
# time between 0 and PAUSE_S, multiplied by the number of refusals so far.
MAX_ATTEMPTS = 8
PAUSE_S = 0.02
EXECUTED = "the request may have been executed"


async def open_nats_link(
    address: str,
    certificates: Certificates | None,
    caller: str,
    callee: str | None,
    timeout_s: float,
) -> NatsLink:
    """Connect to a cluster, and check that the plugin to call answers. open_link() calls this.

    address: the NATS servers, such as `tls://a,b,c` or `nats://HOST:PORT`.
    certificates: required for an address with `tls://`; None otherwise.
    caller: the id of the plugin that this process runs. A suffix `-client`, as in the name of the
        certificate with which a plugin connects, is removed.
    callee: the id of the plugin to call; None for a hub.
    timeout_s: how long to wait for the callee's answer to a health request, in seconds.
    Raises Disconnected if no process of the callee accepts the health request. Raises TimedOut if a
    process has accepted the request, but does not answer in time. Raises the exceptions of
    open_cluster().
    """
    caller = caller.removesuffix("-client")
    cluster = await open_cluster(address, caller, certificates)
    link = NatsLink(cluster, caller, callee or HUB, owns_cluster=True)
    try:
        await link.request(PluginRequest(health=HealthRequest()), timeout_s)
    except BaseException:
        await link.close()
        raise
    return link


class _Inbox:
    """The subscriptions of a link on one connection to the cluster.

    Responses arrive on the connection on which the request was sent. So while one connection
    replaces another, a link has an inbox for each of them.

    prefix: the beginning of the reply subjects. A reply subject is the NATS subject to which the
        responses to one request are published.
    sids: the numbers of the two subscriptions: to responses, and to heartbeats.
    calls: how many requests were sent on this connection and have no response yet.
    """

    def __init__(self, connection: NatsConnection, prefix: str, sids: tuple[int, int]) -> None:
        self.connection = connection
        self.prefix = prefix
        self.sids = sids
        self.calls = 0


class _Call(Struct, eq=False):
    """A request that has been sent and has no response yet.

    It is a Struct because msgspec creates Structs in C, which takes less time.

    inbox: the inbox at which the response arrives.
    payload: the serialized request; empty after the ack, when it is not sent again.
    id: the id of the request or of the stream.
    deadline: when the time limit ends, by the loop's clock.
    sent_at: when the request was sent last.
    asked_at: when this link last asked the worker whether it still has the request; at first equal
        to `sent_at`.
    worker: the id of the worker that has accepted the request; empty before the ack.
    attempts: how many times the request was sent.
    chunks: how many responses of a stream have arrived.
    outgoing: the pieces of the request, if it is too large for one message.
    incoming: the pieces of a response that is too large for one message, while they arrive.
    """

    inbox: _Inbox
    payload: bytes
    id: bytes
    deadline: float
    sent_at: float = 0.0
    asked_at: float = 0.0
    worker: str = ""
    attempts: int = 0
    chunks: int = 0
    outgoing: OutgoingPieces | None = None
    incoming: IncomingPieces | None = None


class NatsLink(RpcClient):
    """Sends requests to a plugin that runs in a cluster, as one or more processes (workers).

    NATS delivers each request to one of these workers.

        link = NatsLink(cluster, caller="orchestrator", callee="tools.notes")
        response = await link.request(request)

    It implements ForwardingConnection (rpc_interface.py). If the connection to the cluster is lost,
    the calls in progress fail, but the link does not end: it uses the next connection.

    cluster: the connection to the NATS servers. It reconnects when it is lost.
    caller: the id of the plugin that this process runs; `orchestrator` for a hub.
    callee: the id of the plugin to call; `orchestrator` for a hub.
    owns_cluster: whether close() also closes the cluster.
    """

    def __init__(
        self, cluster: NatsCluster, caller: str, callee: str, *, owns_cluster: bool = False
    ) -> None:
        super().__init__(RemotePeer(f"nats:{callee}", callee))
        self._cluster = cluster
        self._owns_cluster = owns_cluster
        self._caller = caller
        self._callee = callee
        self._subject = request_subject(callee, caller)
        self._inboxes: dict[NatsConnection, _Inbox] = {}
        # The inbox of the newest connection; None when this connection has ended.
        self._current: _Inbox | None = None
        # Key -> call. The key of a call is the reply subject of its request.
        self._calls: dict[Hashable, _Call] = {}
        # The number in the last key.
        self._last_number = 0
        # Worker -> time of the worker's last message, by the loop's clock. Has only workers with
        # calls.
        self._heard: dict[str, float] = {}
        # Calls _check(); None while no call is in progress.
        self._check_timer: asyncio.TimerHandle | None = None
        # When the timer should call _check().
        self._check_due = 0.0
        cluster.on_connect.append(self._subscribe)
        if cluster.is_up:
            self._subscribe(cluster.connection)

    async def close(self, reason: str = CLOSED) -> None:
        """End the link. Pending requests raise Disconnected with this reason."""
        if self.end_reason.done():
            return
        self._cluster.on_connect.remove(self._subscribe)
        for key in list(self._calls):
            self._send_cancel(key)
        for connection, inbox in self._inboxes.items():
            connection.on_refusal.remove(self._on_refusal)
            connection.on_full.remove(self._set_backpressure)
            for sid in inbox.sids:
                connection.unsubscribe(sid)
        if self._check_timer is not None:
            self._check_timer.cancel()
        self._end_connection(reason)
        if self._owns_cluster:
            await self._cluster.close()

    # Connections

    def _subscribe(self, connection: NatsConnection) -> None:
        """Begin to use a new connection."""
        prefix = new_reply_prefix(self._caller, self._callee, self._cluster.id)
        sids = (
            connection.subscribe(f"{prefix}.*", self._on_message),
            connection.subscribe(heartbeat_subject(self._callee, "*"), self._on_heartbeat),
        )
        inbox = self._inboxes[connection] = self._current = _Inbox(connection, prefix, sids)
        connection.on_refusal.append(self._on_refusal)
        connection.on_full.append(self._set_backpressure)
        connection.ended.add_done_callback(lambda ended: self._on_end(inbox, ended.result()))

    def _on_end(self, inbox: _Inbox, reason: str) -> None:
        """Fail the calls of a connection that has ended."""
        del self._inboxes[inbox.connection]
        if self._current is inbox:
            self._current = None
        # Requests no longer wait for the output buffer of this connection.
        self._set_backpressure(False)
        for key, call in list(self._calls.items()):
            if call.inbox is inbox:
                self._fail(key, f"{reason}; {EXECUTED}")

    def _on_refusal(self, text: str) -> None:
        """Fail the calls that the server has refused to deliver.

        text: the error of the server, which quotes the subject to which this process may not
            publish.
        """
        if f'"{self._subject}"' in text:
            for key, call in list(self._calls.items()):
                # The server has delivered the calls that a worker has accepted.
                if not call.worker:
                    self._fail(key, f"the NATS server refused the request: {text}")

    # Sending

    def _send_request(self, payload: bytes, id: bytes, deadline: float) -> Hashable:
        """Send a request. RpcClient calls this. Returns the key of the call."""
        # Without a current inbox there is no connection, so `cluster.connection` raises
        # Disconnected with the reason.
        inbox = self._current or self._inboxes[self._cluster.connection]
        self._last_number += 1
        key = f"{inbox.prefix}.{self._last_number:x}"
        call = _Call(inbox, payload, id, deadline)
        self._publish(key, call)
        self._calls[key] = call
        if not inbox.calls:
            self._cluster.begin_use(inbox.connection)
        inbox.calls += 1
        if self._check_timer is None:
            self._start_timer()
        return key

    def _publish(self, key: str, call: _Call) -> None:
        """Send a request to the queue group of workers. NATS delivers it to one of them."""
        now = self.loop.time()
        payload, size = call.payload, None
        if len(payload) > MAX_WHOLE_BYTES:
            size = len(payload)
            call.outgoing = OutgoingPieces(payload, partial(self._send_piece, key, call))
            payload = call.outgoing.first()
        call.attempts += 1
        call.sent_at = call.asked_at = now
        headers = request_headers(call.deadline - now, size)
        call.inbox.connection.publish(self._subject, payload, key, headers)

    def _send_piece(self, key: str, call: _Call, number: int, piece: bytes) -> None:
        self._send_to_worker(call, encode_headers(PIECE, Call=key, Number=number), piece)

    def _send_cancel(self, key: Hashable, stream: str = "") -> None:
        """Cancel a request at its worker, and forget its call. RpcClient calls this.

        stream: not used; RpcClient passes it for other transports.
        """
        call = self._calls.get(key)
        if call is not None:
            self._send_to_worker(call, encode_headers(CANCEL, Call=cast(str, key)))
            self._forget(key)

    def send_credit(self, key: Hashable, stream: str, size: int) -> None:
        call = self._calls.get(key)
        if call is not None:
            credit = PluginRequest(stream_credit=StreamCredit(stream_id=stream, bytes=size))
            headers = encode_headers(STREAM_CONTROL, Call=cast(str, key))
            self._send_to_worker(call, headers, credit.SerializeToString())

    def _send_to_worker(self, call: _Call, headers: bytes, payload: bytes = b"") -> None:
        """Send a message about a call to its worker; before the ack, to all workers."""
        connection = call.inbox.connection
        if not connection.ended.done():
            subject = worker_subject(self._callee, call.worker or ALL, self._caller)
            connection.publish(subject, payload, headers=headers)

    # Receiving

    def _on_heartbeat(self, message: NatsMessage) -> None:
        """Note when a worker of a call in progress has last sent a heartbeat."""
        worker = last_name(message.subject)
        # Another plugin can make JetStream publish an answer to this subject (nats_permissions.py).
        # Such an answer is never empty, and a heartbeat is always empty.
        if worker in self._heard and not message.payload:
            self._heard[worker] = self.loop.time()

    def _on_message(self, message: NatsMessage) -> None:
        """Handle a worker's message, or the server's message that there is no worker."""
        key = message.subject
        call = self._calls.get(key)
        if call is None:
            return
        # A message without headers is the only response to a request.
        if not message.headers:
            self._forget(key)
            self._on_response(key, message.payload)
            return

        if status_of(message) == NO_RESPONDERS:
            self._fail(key, f"no process of {self._callee} is connected to the cluster")
            return
        fields = read_headers(message.headers)
        kind = fields.get("Kind")
        if kind == ACK:
            self._on_ack(key, call, fields.get("Worker", ""))
        elif kind == ABANDONED:
            self._fail(key, f"worker {call.worker} has ended; {EXECUTED}")
        elif kind == REFUSED:
            self._on_refused(key, call, fields.get("Reason", ""))
        elif kind in (CHUNK, END):
            self._on_framed_response(key, call, fields, message.payload, is_last=kind == END)
        elif kind == UNKNOWN:
            self._fail(key, f"the response of worker {call.worker} was lost; {EXECUTED}")
        elif kind == PIECE:
            self._on_piece(key, call, fields, message.payload)
        elif kind == RECEIPT and call.outgoing is not None:
            call.outgoing.on_receipt()

    def _on_ack(self, key: str, call: _Call, worker: str) -> None:
        """Record which worker has accepted a request."""
        # Check the id, because it becomes part of the subjects to which this link publishes.
        if not worker.isalnum():
            self._give_up(key, "the ack has an invalid worker id")
            return
        call.worker = worker
        # An accepted request must not be sent again, so its bytes are not needed any more.
        call.payload = b""
        self._heard[worker] = self.loop.time()
        # The ack is also the receipt for the first piece.
        if call.outgoing is not None:
            call.outgoing.on_receipt()

    def _on_refused(self, key: str, call: _Call, reason: str) -> None:
        """Send a refused request again after a pause, so that another worker may get it.

        After MAX_ATTEMPTS, or if the time limit would pass, the call gets an error response.
        """
        pause_s = PAUSE_S * random.random() * call.attempts
        if call.attempts < MAX_ATTEMPTS and self.loop.time() + pause_s < call.deadline:
            self.loop.call_later(pause_s, self._try_again, key)
            return
        self._forget(key)
        if reason == LATE:
            reason = "late by the clock of its machine"
        message = f"{self._callee}: {call.attempts} requests for a worker were refused: {reason}"
        response = error_response(call.id.decode(), "busy", message)
        self._on_response(key, response.SerializeToString())

    def _try_again(self, key: str) -> None:
        """Send a refused request again, unless its call has ended during the pause."""
        call = self._calls.get(key)
        if call is not None and not call.inbox.connection.ended.done():
            self._publish(key, call)

    def _on_piece(self, key: str, call: _Call, fields: dict[str, str], piece: bytes) -> None:
        """Handle a piece of a long response, and send the receipt for it."""
        try:
            if call.incoming is None:
                call.incoming = IncomingPieces(int(fields["Size"]))
            whole = call.incoming.add(int(fields["Number"]), piece)
        except (KeyError, ValueError):
            self._give_up(key, "a piece of the response has invalid headers")
            return
        except ProtocolError as exc:
            self._give_up(key, str(exc))
            return
        self._send_to_worker(call, encode_headers(RECEIPT, Call=key))
        if whole is not None:
            call.incoming = None
            is_last = fields.get("Last") != "no"
            self._on_framed_response(key, call, fields, whole, is_last=is_last)

    def _on_framed_response(
        self, key: str, call: _Call, fields: dict[str, str], payload: bytes, *, is_last: bool
    ) -> None:
        """Handle a response with headers: a response of a stream, or a long one.

        is_last: whether the worker sends no other response to the request.
        """
        # The field Chunk says how many responses to the request the worker has sent before.
        if fields.get("Chunk", "0") != str(call.chunks):
            self._give_up(key, "a chunk of the stream was lost")
            return
        call.chunks += 1
        if is_last:
            self._forget(key)
        self._on_response(key, payload)

    # The end of calls

    def _forget(self, key: Hashable) -> None:
        """Forget a call that has ended, so that its connection to the cluster may be closed."""
        call = self._calls.pop(key, None)
        if call is not None:
            call.inbox.calls -= 1
            if not call.inbox.calls:
                self._cluster.end_use(call.inbox.connection)
        if not self._calls:
            self._heard.clear()

    def _fail(self, key: Hashable, reason: str) -> None:
        """End a call with the error Disconnected.

        reason: the text of the error.
        """
        self._forget(key)
        self._fail_request(key, Disconnected(f"{self.peer.address}: {reason}"))

    def _give_up(self, key: Hashable, reason: str) -> None:
        """Fail a call whose response cannot be used, and cancel it at its worker."""
        self._send_cancel(key)
        self._fail(key, f"{reason}; {EXECUTED}")

    def _start_timer(self) -> None:
        self._check_due = self.loop.time() + CHECK_S
        self._check_timer = self.loop.call_at(self._check_due, self._check)

    def _check(self) -> None:
        """Fail the calls whose worker has sent no ack or no heartbeat in time.

        Also ask workers, every ASK_S seconds, whether they still have their requests.
        """
        now = self.loop.time()
        # If this check runs late, this process was busy, and may not have read heartbeats that have
        # arrived. Begin all time limits again.
        is_late = now - self._check_due > CHECK_S
        for key, call in list(self._calls.items()):
            if is_late:
                call.sent_at = now
                if call.worker:
                    self._heard[call.worker] = now
            elif not call.worker:
                if now - call.sent_at > ACK_S:
                    self._fail(key, f"no worker has answered within {ACK_S:g} s; {EXECUTED}")
            elif now - self._heard.get(call.worker, now) > LOST_S:
                self._fail(key, f"worker {call.worker} was lost; {EXECUTED}")
            elif now - call.asked_at > ASK_S:
                call.asked_at = now
                self._send_to_worker(call, encode_headers(ASK, Call=cast(str, key)))
        workers = {call.worker for call in self._calls.values()}
        self._heard = {name: at for name, at in self._heard.items() if name in workers}
        self._check_timer = None
        if self._calls:
            self._start_timer()
