"""HubEvents: sends the events that plugins publish to the plugins and bridges that want them.

A hub runs plugins. A bridge is an MCP server that forwards the calls of its clients to a hub.

    plugin   --Publish-->            hub   --Publish-->                              plugin
                                           --StreamChunk with an EventDelivery-->    bridge

A plugin gets an event as a request, as from a hub of the Go implementation. The plugin's response
is the acknowledgement. Without it, the hub sends the event again, even after a restart of the
plugin. So an event arrives at least once while the hub runs, unless the EventLog (event_log.py),
which holds the latest events, has dropped it.

The hub cannot send requests to a bridge, so the bridge opens a stream and gets events on it. When a
bridge opens its next stream, it names the last event that it has received.

A bridge can also request *positions*. A position is a message without an event. It names the last
event that the hub has compared with the bridge's filters. So the bridge can name a recent event for
its next stream even if no event has passed the filters for a long time.
Source: the Orchestra plugin protocol, "Events".
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing, suppress

from concertino.errors import ConcertinoError, Disconnected, TimedOut
from concertino.nats.cluster import NatsCluster
from concertino.nats.stream import StreamUnavailable
from concertino.orchestra.cluster_events import ClusterLog
from concertino.orchestra.event_log import EventLog, EventReader, InvalidEvent
from concertino.orchestra.plugin_messages import (
    EventDelivery,
    PluginManifest,
    PluginRequest,
    PluginResponse,
    Publish,
    StreamChunk,
    Subscribe,
)
from concertino.orchestra.plugin_process import PluginProcess
from concertino.orchestra.refusal_log import RefusalLog
from concertino.orchestra.rpc_interface import error_response
from concertino.orchestra.storage import DEFAULT_STORAGE
from concertino.orchestra.streams import ResponseStream, failed_end
from concertino.orchestra.structs import encode_struct

__all__ = ["EVENT_TYPE", "INVALID", "POSITION_S", "STORAGE_TOPIC", "UNKNOWN_TOPIC", "HubEvents"]

log = logging.getLogger("concertino.hub")

# The content type of chunks that are events.
EVENT_TYPE = "application/x-orchestra-event"
# The topic of the hub's own events: a document was written or deleted through the hub. The source
# of these events is empty. Events of plugins always have a source.
STORAGE_TOPIC = "storage.changed"
# How many subscriptions a plugin may have at the same time.
MAX_SUBSCRIPTIONS = 256
# Time limit for the acknowledgement of an event, and the pause before the event is sent again, in
# seconds.
ACKNOWLEDGE_S = 30.0
RETRY_S = 1.0
# The time between two positions while there are no events, in seconds.
POSITION_S = 15.0
# The error codes of a subscription that is not valid, and of a subscription to a topic that does
# not exist.
INVALID = "validation_error"
UNKNOWN_TOPIC = "unknown_topic"
# The error code of an event that the cluster has not acknowledged.
UNAVAILABLE = "unavailable"


class HubEvents:
    """Keeps the events of a hub, and sends them to the plugins and bridges that have subscribed.

    The Hub owns it. Use it on one event loop.
    """

    def __init__(self) -> None:
        self._log: EventLog = EventLog()
        # (plugin id, subscription id) -> the subscription, and the task that delivers its events.
        self._deliveries: dict[tuple[str, str], tuple[Subscribe, asyncio.Task[None]]] = {}
        # Set, and replaced by a new one, when the state of a plugin changes.
        self._changed = asyncio.Event()

    async def join(self, cluster: NatsCluster) -> None:
        """Share the events with all hubs of a NATS cluster. Call it before there are subscriptions.

        From now on, the subscribers of each hub get the events of all hubs. If the servers have no
        JetStream (the stored streams of NATS), or do not let this hub use it, logs a warning. The
        subscribers of this hub then get the events of this hub only.
        """
        shared = ClusterLog(cluster)
        try:
            await shared.open()
        except StreamUnavailable as exc:
            log.warning("events stay at this hub, because the cluster cannot store them: %s", exc)
        else:
            self._log = shared

    async def publish(self, event: Publish, source: str) -> PluginResponse:
        """Add an event to the log, and return the response to its publisher.

        source: the id of the plugin that publishes the event.
        Returns an error response if the event is not valid or could not be stored.
        """
        try:
            await self._log.publish(event, source)
        except InvalidEvent as exc:
            return error_response("", INVALID, str(exc))
        except Disconnected as exc:
            return error_response("", UNAVAILABLE, str(exc))
        return PluginResponse()

    def on_storage(self, request: PluginRequest, kind: str, response: PluginResponse) -> None:
        """Publish an event of STORAGE_TOPIC, if a storage request has changed a document.

        kind: request.WhichOneof("request"), such as `storage_write`. For other kinds than writing
            and deleting, nothing is published.
        response: the response of the plugin with the storage.
        """
        if kind == "storage_write" and response.storage_write.success:
            path, type = request.storage_write.path, "written"
            storage = request.storage_write.storage_type
        elif kind == "storage_delete" and response.storage_delete.success:
            path, type = request.storage_delete.path, "deleted"
            storage = request.storage_delete.storage_type
        else:
            return
        payload = encode_struct({"path": path, "storage_type": storage or DEFAULT_STORAGE})
        event = Publish(topic=STORAGE_TOPIC, event_type=type, payload=payload)
        try:
            self._log.publish_soon(event, "")
        except InvalidEvent as exc:
            # The path is too long for an event. The document has been changed all the same.
            log.warning("nobody is told of a document that was %s: %s", type, exc)

    def subscribe(self, plugin: PluginProcess | None, request: Subscribe) -> PluginResponse:
        """Begin to deliver events to a plugin, and return the response to its request.

        plugin: the sender of the request; None if the sender is not a plugin of the hub. The hub
            cannot send requests to such a sender, so the response is an error.
        request: the id, the topic and the filters of the subscription.
        """
        if plugin is None:
            message = "only plugins of the hub get events as requests; open a stream for them"
            return error_response("", "not_a_plugin", message)
        try:
            self._start(plugin, request)
        except InvalidEvent as exc:
            return error_response("", INVALID, str(exc))
        # The Go implementation sends the same response.
        acknowledgement = EventDelivery(
            subscription_id=request.subscription_id, topic=request.topic
        )
        return PluginResponse(event_delivery=acknowledgement)

    def unsubscribe(self, plugin: PluginProcess | None, id: str) -> PluginResponse:
        """End a subscription of a plugin, and return the response to the plugin's request.

        plugin: the sender of the request; None if the sender is not a plugin of the hub, and so has
            no subscriptions.
        id: the id of the subscription. It need not exist.
        """
        if plugin is not None:
            self._end([(plugin.id, id)])
        return PluginResponse()

    def on_register(self, plugin: PluginProcess, manifest: PluginManifest) -> None:
        """Replace the subscriptions of a plugin by the subscriptions in its manifest.

        Subscriptions that are in both continue.
        """
        # Plugins of this package name subscriptions with their filters. All plugins name topics.
        new = {item.subscription_id: item for item in manifest.subscriptions}
        topics = {item.topic for item in manifest.subscriptions}
        for topic in manifest.needs_events:
            if topic not in topics:
                id = f"auto-{plugin.id}-{topic}"
                new[id] = Subscribe(subscription_id=id, topic=topic)
        # A plugin registers when it starts. So an earlier process of the plugin has made the
        # subscriptions that are not in the manifest.
        self._end([key for key in self._deliveries if key[0] == plugin.id and key[1] not in new])
        for subscribe in new.values():
            try:
                self._start(plugin, subscribe)
            except InvalidEvent as exc:
                log.warning("%s: a subscription is refused: %s", plugin.id, exc)

    def forget(self, plugins: Iterable[str]) -> None:
        """End the subscriptions of plugins that the hub does not have any more.

        plugins: the ids of these plugins.
        """
        gone = {*plugins}
        self._end([key for key in self._deliveries if key[0] in gone])

    def on_plugin_change(self) -> None:
        """Wake the deliveries that wait for a plugin to run again.

        The Hub calls this method whenever the state of a plugin has changed.
        """
        self._changed.set()
        self._changed = asyncio.Event()

    def topics(self, plugins: Iterable[PluginManifest]) -> list[str]:
        """Return the topics that plugins declare, and the topics of all events so far, sorted.

        plugins: the manifests of all plugins.
        """
        declared = (topic for manifest in plugins for topic in manifest.provides_events)
        return sorted({STORAGE_TOPIC, *declared, *self._log.topics})

    async def stream(
        self, id: str, subscribe: Subscribe, plugins: Iterable[PluginManifest]
    ) -> ResponseStream:
        """Yield the events of a subscription as chunks, without end.

        If the subscription is not valid, yields only a stream_end with the error.

        id: the id of the stream.
        subscribe: the topic and the filters of the subscription, and the cursor to begin after. If
            the field `positions` is True, positions are yielded, too. Such a subscription is valid
            only if its topic is in the result of topics(), so that an MCP client, which requests
            positions, learns of a misspelled topic.
        plugins: the manifests of all plugins.
        """
        try:
            reader = EventReader(self._log, subscribe)
        except InvalidEvent as exc:
            yield failed_end(id, INVALID, str(exc))
            return
        if subscribe.positions and subscribe.topic not in self.topics(plugins):
            yield failed_end(id, UNKNOWN_TOPIC, f"no plugin publishes {subscribe.topic!r}")
            return
        events = _with_positions(reader) if subscribe.positions else _all(reader)
        async with aclosing(events):
            async for event in events:
                chunk = StreamChunk(
                    stream_id=id, data=event.SerializeToString(), content_type=EVENT_TYPE
                )
                yield PluginResponse(stream_chunk=chunk)

    async def close(self) -> None:
        """End all subscriptions."""
        self._end(list(self._deliveries))
        await self._log.close()

    def _start(self, plugin: PluginProcess, subscribe: Subscribe) -> None:
        """Start the task that delivers the events of a subscription.

        Raises InvalidEvent if the subscription is not valid, or the plugin has too many.
        """
        key = plugin.id, subscribe.subscription_id
        if key in self._deliveries:
            before, task = self._deliveries[key]
            # The same subscription of a restarted plugin continues where it was.
            if before == subscribe and not task.done():
                return
            self._end([key])
        if sum(id == plugin.id for id, _ in self._deliveries) >= MAX_SUBSCRIPTIONS:
            raise InvalidEvent(f"a plugin has at most {MAX_SUBSCRIPTIONS} subscriptions")
        delivering = self._deliver(plugin, EventReader(self._log, subscribe))
        task = asyncio.get_running_loop().create_task(delivering)
        self._deliveries[key] = subscribe, task

    def _end(self, keys: Iterable[tuple[str, str]]) -> None:
        """End the subscriptions with these keys in _deliveries. A key may be missing there."""
        for key in keys:
            if key in self._deliveries:
                _, task = self._deliveries.pop(key)
                task.cancel()

    async def _deliver(self, plugin: PluginProcess, reader: EventReader) -> None:
        """Send the events of a subscription to a plugin, each after the previous acknowledgement.

        Runs until it is cancelled.
        """
        # The RefusalLog limits the log lines, for a plugin that fails with every event.
        failures = RefusalLog(noun="events", verb="not handled")
        try:
            while True:
                event = await reader.next()
                request = PluginRequest(publish=_publish_of(event))
                while not await self._send(plugin, request, failures):
                    pass
        finally:
            failures.report_end(plugin.id)

    async def _send(
        self, plugin: PluginProcess, request: PluginRequest, failures: RefusalLog
    ) -> bool:
        """Send an event to a plugin, and wait for the acknowledgement.

        failures: gets the reason if the plugin cannot handle the event.
        Returns False if the event must be sent again. The pause before that has passed.
        """
        # Take the Event before the request, so that a change during the request is not missed.
        changed = self._changed
        try:
            response = await plugin.request(request, ACKNOWLEDGE_S)
        except Disconnected:
            # A plugin that does not run gets the event when it runs again.
            if plugin.state == "running":
                await asyncio.sleep(RETRY_S)
            else:
                await changed.wait()
            return False
        except TimedOut:
            log.warning("%s: an event was not acknowledged, and is sent again", plugin.id)
            await asyncio.sleep(RETRY_S)
            return False
        # After any other error, such as an event that is too long, another attempt would fail in
        # the same way.
        except ConcertinoError as exc:
            failures.add(f"{plugin.id}: an event could not be sent: {exc}")
            return True
        if response.HasField("tool_call"):
            error = response.tool_call
            text = error.error_message or error.error_code
            failures.add(f"{plugin.id}: handling an event has failed: {text}")
        return True


async def _all(reader: EventReader) -> AsyncGenerator[EventDelivery, None]:
    """Yield the events of a subscription, without end."""
    while True:
        yield await reader.next()


async def _with_positions(reader: EventReader) -> AsyncGenerator[EventDelivery, None]:
    """Yield the events and positions of a subscription, without end.

    Positions are yielded:

    - at the beginning,
    - before the first event after a gap, where events were lost,
    - when all events of the past have been compared with the filters,
    - every POSITION_S seconds while there are no events.
    """
    loop = asyncio.get_running_loop()
    yield reader.take_position()
    # When the next position is due: at once after the events of the past.
    due = loop.time()
    while True:
        while reader.has_gap:
            yield reader.take_position()
        event = reader.take()
        if event is not None:
            yield event
        elif reader.is_behind:
            await reader.wait()
        elif loop.time() >= due:
            yield reader.take_position()
            due = loop.time() + POSITION_S
        else:
            with suppress(TimeoutError):
                async with asyncio.timeout_at(due):
                    await reader.wait()


def _publish_of(event: EventDelivery) -> Publish:
    """Return the request that delivers an event to a plugin."""
    publish = Publish(
        topic=event.topic,
        event_type=event.event_type,
        source_plugin=event.source_plugin,
        subscription_id=event.subscription_id,
        timestamp=event.timestamp,
        cursor=event.cursor,
        lost=event.lost,
    )
    if event.HasField("payload"):
        publish.payload = event.payload
    if event.HasField("payload_json"):
        publish.payload_json = event.payload_json
    return publish
