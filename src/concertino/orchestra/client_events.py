"""ClientEvents: sends events of a hub to the MCP clients of a HubBackend.

A hub runs plugins, and passes on the events that they publish. A HubBackend (hub_backend.py) serves
the tools of these plugins to MCP clients. Its clients get two kinds of events:

- When a stored document or a resource of an MCP server changes, clients that have subscribed to it
  get notifications/resources/updated. The plugin that runs the MCP server must subscribe to the
  resource there (mcp_updates.py). For this, ClientEvents publishes an event with the URIs to which
  clients have subscribed, every 30 s.
- In revisions of MCP before 2026-07-28, a client may declare the experimental capability
  `orchestra/events` with a list of topics. It gets the events of these topics as
  `notifications/event`, with the fields that the Go implementation sends.

ClientEvents reads the events from a stream of the hub (hub_events.py), which is open only while a
client needs events. A hub of the Go implementation refuses the stream.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Awaitable, Callable, Mapping
from contextlib import aclosing
from typing import Any, cast
from urllib.parse import quote

from msgspec.json import encode

from concertino.backend.caller import CallerSession
from concertino.backend.interface import Context, Notifier
from concertino.errors import ConcertinoError
from concertino.orchestra.event_log import ANY_TOPIC
from concertino.orchestra.hub_events import EVENT_TYPE, STORAGE_TOPIC
from concertino.orchestra.plugin_events import publish_request
from concertino.orchestra.plugin_messages import (
    DecodeError,
    EventDelivery,
    PluginRequest,
    PluginResponse,
    StreamStart,
    Subscribe,
)
from concertino.orchestra.resource_translation import EXTENSION, SCHEME
from concertino.orchestra.storage import DEFAULT_STORAGE, RESOURCES
from concertino.orchestra.streams import WINDOW_BYTES, ResponseStream
from concertino.orchestra.structs import InvalidStruct, unpack

__all__ = [
    "FORGET_S",
    "RETRY_S",
    "STREAM_S",
    "WATCHED_TOPIC",
    "ClientEvents",
    "OpenStream",
    "SendRequest",
]

log = logging.getLogger("concertino.orchestra")

# The experimental capability of clients that want events.
CAPABILITY = "orchestra/events"
# The time limit of a stream, after which the next one is opened, in seconds.
STREAM_S = 24 * 3600.0
# The pause before the next attempt to open a stream, in seconds.
RETRY_S = 1.0
# The pause if the hub has no streams of events, as a hub of the Go implementation. The next attempt
# is made in case the hub has been replaced by a newer one.
UNSUPPORTED_S = 600.0

# The topic of the events that name the resources of MCP servers to which clients have subscribed.
WATCHED_TOPIC = "resources.watched"
# Such an event is published every REPEAT_S seconds. A plugin forgets the resources if no such event
# arrives for FORGET_S seconds, because the process that published them may have been killed.
REPEAT_S, FORGET_S = 30.0, 100.0
# The time limit for publishing such an event, in seconds.
PUBLISH_S = 10.0
# The largest number of resources in such an event.
MAX_WATCHED = 1000

# Functions that send a request to the hub. The second argument is the time limit in seconds.
# OpenStream returns None while the hub is down.
SendRequest = Callable[[PluginRequest, float], Awaitable[PluginResponse]]
OpenStream = Callable[[PluginRequest, float], ResponseStream | None]


class ClientEvents:
    """Sends the events of a hub to MCP clients. A HubBackend owns it, and calls close() at the end.

    send: called with a PluginRequest and a time limit in seconds. Sends the request to the hub, and
        returns the PluginResponse.
    open_stream: called with a PluginRequest that has a stream_start, and the time limit of the
        stream in seconds. Returns an async generator of the responses; None while the hub is down.
    """

    def __init__(self, send: SendRequest, open_stream: OpenStream) -> None:
        self._send = send
        self._open_stream = open_stream
        # Notifies the clients of changed resources; None before start().
        self._outlet: Notifier | None = None
        # The URIs to which clients have subscribed, see watch().
        self._watched: frozenset[str] = frozenset()
        # The session of a client -> the topics that its capability `orchestra/events` names.
        self._topics: dict[CallerSession, frozenset[str]] = {}
        # The cursor of the last event, after which the next stream begins; "" before the first one.
        self._cursor = ""
        # The task that reads the streams; None while no client wants events.
        self._task: asyncio.Task[None] | None = None
        # The task that publishes to which resources the clients have subscribed.
        self._publishing: asyncio.Task[None] | None = None
        # Identifies this HubBackend in the events that the task publishes.
        self._id = str(uuid.uuid4())

    def start(self, outlet: Notifier) -> None:
        """Set the Notifier that gets the changes of resources.

        outlet: passes the notifications on to the MCP clients.
        """
        self._outlet = outlet

    def watch(self, uris: frozenset[str]) -> None:
        """Report the changes of these resources from now on, and of no other resources.

        uris: all URIs to which clients have subscribed.
        """
        before = _server_uris(self._watched)
        self._watched = uris
        self._start_or_stop_reading()
        # Tell the plugins about resources of MCP servers. The hub itself reports changes of stored
        # documents.
        now = _server_uris(uris)
        if now != before:
            if self._publishing is not None:
                self._publishing.cancel()
            self._publishing = asyncio.get_running_loop().create_task(self._publish_uris(now))

    def on_call(self, context: Context) -> None:
        """Send events to the client of a call from now on, if it wants some.

        The experimental capability `orchestra/events` of such a client names the topics.
        HubBackend does not call this method for `tools/call`, so that tool calls are faster.
        context: the context of the call, which has the client's capabilities.
        """
        session = context.caller.session
        if session is None or session in self._topics:
            return
        topics = _wanted_topics(context.client.capabilities)
        if topics:
            self._topics[session] = topics
            session.closed.add_done_callback(lambda _: self._forget(session))
            self._start_or_stop_reading()

    def _forget(self, session: CallerSession) -> None:
        """Send no more events to a session, because it is closed."""
        self._topics.pop(session, None)
        self._start_or_stop_reading()

    def _start_or_stop_reading(self) -> None:
        """Start the task that reads events if a client needs them, and end it if none does."""
        is_needed = bool(self._watched or self._topics)
        if is_needed and self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._read_events())
        elif not is_needed and self._task is not None:
            self._task.cancel()
            self._task = None

    async def close(self) -> None:
        """End the tasks that read and publish events."""
        tasks = [task for task in (self._task, self._publishing) if task is not None]
        self._task = self._publishing = None
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _publish_uris(self, uris: list[str]) -> None:
        """Publish the URIs to which clients have subscribed, every REPEAT_S seconds.

        uris: URIs of resources of MCP servers. If empty, one event is published, so that plugins
            forget the URIs of earlier events.
        """
        payload = {"watcher": self._id, "uris": uris}
        while True:
            try:
                request = publish_request(WATCHED_TOPIC, payload, type="", source="")
                await self._send(request, PUBLISH_S)
            except ConcertinoError as exc:
                log.debug("the hub does not know the subscriptions of clients now: %s", exc)
            else:
                if not uris:
                    return
            await asyncio.sleep(REPEAT_S)

    async def _read_events(self) -> None:
        """Read streams of events, one after the other, until cancelled."""
        while True:
            subscribe = Subscribe(topic=ANY_TOPIC, after=self._cursor)
            start = StreamStart(subscribe=subscribe, window=WINDOW_BYTES)
            stream = self._open_stream(PluginRequest(stream_start=start), STREAM_S)
            pause_s = RETRY_S
            if stream is not None:
                try:
                    pause_s = await self._read_stream(stream)
                except ConcertinoError as exc:
                    log.debug("the hub sends no events now: %s", exc)
                except DecodeError as exc:
                    log.warning("an event of the hub cannot be decoded: %s", exc)
            await asyncio.sleep(pause_s)

    async def _read_stream(self, stream: ResponseStream) -> float:
        """Read a stream to its end. Returns the pause before the next one, in seconds."""
        async with aclosing(stream) as responses:
            async for response in responses:
                chunk = response.stream_chunk
                if chunk.content_type == EVENT_TYPE:
                    event = EventDelivery.FromString(chunk.data)
                    self._cursor = event.cursor
                    self._deliver(event)
                # The protocol's error response to any kind of request is a failed tool_call.
                elif response.HasField("tool_call"):
                    log.info("the hub has no streams of events: %s", response.tool_call.error_code)
                    return UNSUPPORTED_S
        return RETRY_S

    def _deliver(self, event: EventDelivery) -> None:
        """Send an event to the clients that have subscribed to its resource or its topic."""
        try:
            payload = unpack(event.payload, event.payload_json)
        except InvalidStruct as exc:
            log.warning("an event of %s cannot be read: %s", event.topic, exc)
            return
        # Clients need not know to which resources other clients have subscribed.
        if event.topic == WATCHED_TOPIC:
            return
        # Plugins report changes of the resources of MCP servers. Only the hub itself reports
        # changes of stored documents. Its events have no source, so a plugin cannot forge them.
        is_resource = payload.get("storage_type") == RESOURCES
        if event.topic == STORAGE_TOPIC and (is_resource or not event.source_plugin):
            uri = str(payload.get("path")) if is_resource else _document_uri(payload)
            if uri in self._watched and self._outlet is not None:
                self._outlet.report_update(uri)
        # An event with an audience is for one user, and the users of these clients are not known.
        # Only events/poll and events/stream (mcp_events.py) send it.
        if event.audience:
            return
        params = {
            "topic": event.topic,
            "event_type": event.event_type,
            "source": event.source_plugin,
            "payload": payload,
        }
        for session, topics in list(self._topics.items()):
            if ANY_TOPIC in topics or event.topic in topics:
                session.notify("notifications/event", encode(params))


def _wanted_topics(capabilities: Mapping[str, Any]) -> frozenset[str]:
    """Return the topics in a client's capability `orchestra/events`: {"topics": [...]}."""
    experimental: object = capabilities.get("experimental")
    if not isinstance(experimental, Mapping):
        return frozenset()
    capability = cast("Mapping[str, object]", experimental).get(CAPABILITY)
    if not isinstance(capability, Mapping):
        return frozenset()
    topics = cast("Mapping[str, object]", capability).get("topics")
    if not isinstance(topics, list):
        return frozenset()
    return frozenset(item for item in cast("list[object]", topics) if isinstance(item, str))


def _server_uris(uris: frozenset[str]) -> list[str]:
    """Return the URIs of resources of MCP servers, sorted, at most MAX_WATCHED.

    uris: also contains URIs of stored documents, which begin with SCHEME.
    """
    return sorted(uri for uri in uris if not uri.startswith(SCHEME))[:MAX_WATCHED]


def _document_uri(payload: Mapping[str, Any]) -> str:
    """Return the URI of the resource for a document that has changed.

    payload: the payload of an event of STORAGE_TOPIC, which names the document.
    Returns "" for a document of another storage type than DEFAULT_STORAGE, because it is not
    offered as a resource.
    """
    path = payload.get("path")
    if payload.get("storage_type") != DEFAULT_STORAGE or not isinstance(path, str):
        return ""
    kind, _, id = path.removesuffix(EXTENSION).partition("/")
    return f"{SCHEME}{kind}/{quote(id, safe='/')}"
