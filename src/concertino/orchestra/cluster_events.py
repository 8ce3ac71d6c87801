"""ClusterLog: the EventLog of a hub in a NATS cluster, whose events are in a stream of JetStream.

A hub runs plugins, and passes on the events that they publish. JetStream, the storage of NATS
servers, stores messages in streams. All hubs publish their events to one stream, and each hub
copies the messages of this stream into a log of its own. So the subscribers of every hub get the
events of all hubs. The number of an event is the number of its message in the stream, so a cursor
from one hub is valid at all hubs, also after a restart. HubEvents uses a ClusterLog in place of an
EventLog.
"""

from __future__ import annotations

import asyncio
import logging
from hashlib import sha256

from concertino.errors import Disconnected
from concertino.nats.cluster import NatsCluster
from concertino.nats.stream import Stream
from concertino.orchestra.event_log import (
    EVENT_BYTES,
    MAX_BYTES,
    EventLog,
    InvalidEvent,
    log_event,
)
from concertino.orchestra.nats_messages import EVENT_STREAM, event_subject
from concertino.orchestra.plugin_messages import DecodeError, EventDelivery, Publish
from concertino.orchestra.plugins_file import HUB
from concertino.orchestra.refusal_log import RefusalLog
from concertino.orchestra.structs import InvalidStruct, unpack

__all__ = ["ClusterLog"]

log = logging.getLogger("concertino.hub")

# How many events of publish_soon() may wait until they are stored. Further events are lost.
MAX_WAITING = 1000


class ClusterLog(EventLog):
    """The latest events of all hubs. Call open() before use, and close() at the end.

    cluster: connected to the NATS servers.

    A ClusterLog is also the Follower of its stream (nats/stream.py): the Stream calls begin() and
    handle().
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
        """Load the events that the stream has, and follow it. Creates the stream if necessary.

        Raises StreamUnavailable if the servers have no JetStream or refuse this hub.
        """
        await self._stream.open()

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await self._stream.close()
        self._losses.report_end("the log of the cluster's events")

    async def publish(self, event: Publish, source: str) -> None:
        """Store an event in the stream, which then sends it to all hubs.

        This hub, too, adds the event to its log only when it comes back from the stream.
        source: the id of the plugin that has published the event.
        Raises InvalidEvent if the event cannot be published. Raises Disconnected if the cluster
        does not acknowledge it.
        """
        data = log_event(event, source).delivery.SerializeToString()
        try:
            await self._stream.publish(data)
        except ValueError as exc:
            raise InvalidEvent(str(exc)) from None

    def publish_soon(self, event: Publish, source: str) -> None:
        """Store an event in the stream, without waiting. A failure is logged, not raised.

        source: the id of the plugin that has published the event.
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

    def begin(self, id: str, first: int, last: int) -> None:
        """Prepare for the messages of the stream. If it is another stream, begin a new log.

        id: identifies the stream. It changes if the servers have lost the last messages of the
            stream, because later messages then get the same numbers again.
        first, last: the numbers of the oldest message in the stream, and of the newest one.
        """
        # The id of a log is part of its cursors, so it is short.
        log_id = sha256(id.encode()).hexdigest()[:8]
        if log_id != self.id:
            # The first number of an empty stream is 0, but messages are numbered from 1 on.
            self.restart(log_id, max(first, 1), last)

    def handle(self, number: int, payload: bytes) -> None:
        """Add an event of any hub to the log.

        number: the number of the message in the stream. A message that comes twice is added once.
        payload: the event, as publish() has stored it.
        """
        try:
            delivery = EventDelivery.FromString(payload)
            values = (
                unpack(delivery.payload, delivery.payload_json)
                if delivery.HasField("payload")
                else {}
            )
        except (DecodeError, InvalidStruct) as exc:
            log.warning("event %d of the cluster cannot be read: %s", number, exc)
            # Add an empty event. If the number were missing, add() would drop all events before it.
            delivery, values = EventDelivery(), {}
        self.add(number, delivery, values, len(payload) + EVENT_BYTES)
