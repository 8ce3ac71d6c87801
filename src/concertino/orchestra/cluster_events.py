"""ClusterLog: the EventLog of a hub in a NATS cluster, whose events are in a stream of JetStream.
protect_events(): gives the stream of an earlier version a subject with a random token.

A hub runs plugins, and passes on the events that they publish. JetStream, the storage of NATS
servers, stores messages in streams. All hubs publish their events to one stream, and each hub
copies the messages of this stream into its own log. So the subscribers of every hub get the events
of all hubs. The number of an event in the log is the number of its message in the stream, so a
cursor from one hub is valid at all hubs, even after a restart.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from hashlib import sha256

from msgspec.json import encode

from concertino.errors import Disconnected
from concertino.nats.blocking import BlockingNats, Request
from concertino.nats.cluster import NatsCluster
from concertino.nats.jetstream import NO_STREAM, Answer, decode_answer
from concertino.nats.protocol import NO_RESPONDERS, status_of
from concertino.nats.servers import parse_servers
from concertino.nats.stream import Stream, has_longer_subject, with_random_token
from concertino.orchestra.certificates import Certificates
from concertino.orchestra.event_log import (
    EVENT_BYTES,
    MAX_BYTES,
    EventLog,
    InvalidEvent,
    log_event,
    unpack_payload,
)
from concertino.orchestra.nats_cluster import nats_options
from concertino.orchestra.nats_messages import EVENT_STREAM, event_subject
from concertino.orchestra.plugin_messages import DecodeError, EventDelivery, Publish
from concertino.orchestra.plugins_file import HUB
from concertino.orchestra.refusal_log import RefusalLog
from concertino.orchestra.structs import InvalidStruct

__all__ = ["ClusterLog", "protect_events"]

log = logging.getLogger("concertino.hub")

# The time limit of each request of protect_events(), in seconds.
REQUEST_S = 5.0
# How many events of publish_soon() may wait until they are stored. Additional events are lost.
MAX_WAITING = 1000


class ClusterLog(EventLog):
    """The latest events of all hubs. Call open() before use, and close() at the end.

    It is also the Follower of a Stream (nats/stream.py), which calls begin() and handle().

    cluster: the connection to the NATS servers.
    """

    def __init__(self, cluster: NatsCluster) -> None:
        super().__init__()
        self._stream = Stream(
            cluster, EVENT_STREAM, event_subject(HUB), HUB, max_bytes=MAX_BYTES, follower=self
        )
        # The tasks that store events in the stream.
        self._tasks: set[asyncio.Task[None]] = set()
        self._losses = RefusalLog(noun="events", verb="lost")

    async def open(self) -> None:
        """Load the events in the stream, and receive new events from now on.

        Creates the stream if it does not exist. Raises StreamUnavailable if the servers have no
        JetStream or refuse this hub.
        """
        await self._stream.open()
        subject = self._stream.subject
        if subject and not has_longer_subject(subject, event_subject(HUB)):
            log.warning(
                "plugins can have answers of JetStream stored among the events, because an earlier "
                "version has created the stream %s; when all hubs are updated, run "
                "`concertino cluster events --cluster ADDR`",
                EVENT_STREAM,
            )

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await self._stream.close()
        self._losses.report_end("the log of the cluster's events")

    async def publish(self, event: Publish, source: str) -> None:
        """Store an event in the stream, which then sends the event to all hubs.

        source: the id of the plugin that has published the event.
        Raises InvalidEvent if the event is not valid or too large. Raises Disconnected if the
        cluster does not acknowledge the event.
        """
        # Only handle() adds the event to this log, when the stream sends it back.
        data = log_event(event, source).delivery.SerializeToString()
        try:
            await self._stream.publish(data)
        except ValueError as exc:
            raise InvalidEvent(str(exc)) from None

    def publish_soon(self, event: Publish, source: str) -> None:
        """Store an event in the stream, without waiting.

        Failures, including an event that is not valid, are logged and not raised.
        source: the id of the plugin that has published the event; "" for the hub's own events.
        """
        if len(self._tasks) >= MAX_WAITING:
            self._losses.add(
                f"an event of {event.topic} is lost: {MAX_WAITING} events are not stored yet"
            )
            return
        task = asyncio.get_running_loop().create_task(self._publish_or_log(event, source))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _publish_or_log(self, event: Publish, source: str) -> None:
        try:
            await self.publish(event, source)
        except (InvalidEvent, Disconnected) as exc:
            self._losses.add(f"an event of {event.topic} is lost: {exc}")

    # The messages of the stream (Follower)

    def begin(self, id: str, oldest: int, newest: int) -> None:
        """Prepare for the messages of the stream. If the id of the stream is new, begin a new log.

        id: identifies the messages that have these numbers; Follower.begin() says when it changes.
        oldest, newest: the numbers of the oldest and of the newest message in the stream.
        """
        # Shorten the id to eight digits, because it is part of each cursor (event_log.CURSOR).
        log_id = sha256(id.encode()).hexdigest()[:8]
        if log_id != self.id:
            # The first number of an empty stream is 0, but messages are numbered from 1 on.
            self.restart(log_id, max(oldest, 1), newest)

    def handle(self, number: int, payload: bytes) -> None:
        """Add an event of any hub to the log.

        number: the number of the message in the stream. Does nothing if the log has it already.
        payload: the event that publish() has stored, a serialized EventDelivery.
        """
        event_payload: Mapping[str, object] = {}
        try:
            delivery = EventDelivery.FromString(payload)
            event_payload = unpack_payload(delivery)
        except (DecodeError, InvalidStruct) as exc:
            log.warning("event %d of the cluster cannot be read: %s", number, exc)
            # Add an empty event: if this number were missing, the next add() would drop all events.
            delivery = EventDelivery()
        self.add(number, delivery, event_payload, len(payload) + EVENT_BYTES)


def protect_events(address: str, certificates: Certificates | None) -> str:
    """Give the stream of events a subject with a random token, if its subject has none.

    A stream that an earlier version of this package has created has no such token. Plugins can
    guess its subject, and make JetStream store answers in it (nats/stream.py). The events and their
    cursors stay, but hubs of an earlier version cannot publish events any more.

    address: the NATS servers, such as `tls://a,b,c` or `nats://HOST:PORT`.
    certificates: the directory with the hub's certificate; required for an address with `tls://`,
        None otherwise.
    Returns a text for the user that says what was done.
    Raises Disconnected if no server can be reached, or if JetStream is not enabled or refuses the
    change. Raises PermissionsViolation if the servers do not let a hub publish at the new subject,
    ValueError for a malformed address, and the exceptions of nats_options().
    """
    servers = parse_servers(address)
    nats = BlockingNats(servers, nats_options(servers, HUB, certificates))

    def ask(operation: str, payload: bytes = b"") -> Answer:
        request = Request(f"$JS.API.STREAM.{operation}.{EVENT_STREAM}", payload)
        [message] = nats.request_all([request], REQUEST_S)
        if status_of(message) == NO_RESPONDERS:
            raise Disconnected("JetStream is not enabled in the servers")
        return decode_answer(message.payload)

    # The subject without a random token.
    base = event_subject(HUB)
    try:
        description = ask("INFO")
        if description.error is not None:
            if description.error.err_code == NO_STREAM:
                return "there is no stream yet; the first hub creates it with a random token"
            raise Disconnected(description.error.description)
        if has_longer_subject(description.config["subjects"][0], base):
            return "its subject has a random token already"

        subject = with_random_token(base)
        # Raise PermissionsViolation if hubs may not publish at the new subject. If they may, the
        # server answers at once that nobody has subscribed to it.
        nats.request_all([Request(subject)], REQUEST_S)
        update = ask("UPDATE", encode({**description.config, "subjects": [subject]}))
        if update.error is not None:
            raise Disconnected(update.error.description)
    finally:
        nats.close()
    return "its subject has a random token now"
