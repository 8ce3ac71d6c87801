"""EventHandlers: calls the functions that a plugin has registered with on_event.

A hub runs plugins, and passes on the events that they publish. A plugin subscribes to topics in its
manifest. When another plugin publishes an event, the hub sends a `publish` request to each
subscriber, and PluginRequests (plugin_requests.py) passes the request to the plugin's
EventHandlers. publish_request() makes the request with which a plugin publishes.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from functools import partial
from inspect import iscoroutinefunction
from typing import Any

from msgspec import Struct

from concertino.orchestra.plugin_messages import PluginRequest, PluginResponse, Publish, Subscribe
from concertino.orchestra.rpc_interface import error_response
from concertino.orchestra.structs import InvalidStruct, pack, unpack

__all__ = ["Event", "EventHandlers", "publish_request"]


class Event(Struct, frozen=True):
    """An event that another plugin has published.

    topic: the topic under which the event was published.
    type: what has happened, such as "created"; may be empty.
    payload: a JSON object.
    source: the id of the plugin that has published the event.
    time: when the hub has received the event; None from a hub of the Go implementation.
    cursor: the position of the event in the hub's log. An event that arrives twice has the same
        cursor both times.
    lost: how many events directly before this one were dropped, because this plugin was too slow.
    """

    topic: str
    type: str
    payload: Mapping[str, Any]
    source: str
    time: datetime | None = None
    cursor: str = ""
    lost: int = 0


EventFunction = Callable[[Event], object]


class _Subscription(Struct, frozen=True):
    """A registered function.

    id: the name of the subscription at the hub.
    topic: the topic of the events for which the function is called; "*" for all topics.
    filters: key of the event's payload -> the string that its value must equal.
    """

    id: str
    topic: str
    filters: Mapping[str, str]
    function: EventFunction


class EventHandlers:
    """The functions that a plugin has registered with on_event.

    name: the plugin's id.
    in_thread: runs a blocking function in a thread, and returns an awaitable of its result.
    """

    def __init__(self, name: str, in_thread: Callable[..., Awaitable[Any]]) -> None:
        self._name = name
        self._in_thread = in_thread
        self._subscriptions: list[_Subscription] = []

    def add(self, topic: str, filters: Mapping[str, str], function: EventFunction) -> None:
        """Register a function for the events of a topic.

        topic: "*" for all topics.
        filters: key of the event's payload -> the string that its value must equal. The function is
            not called for other events. Empty for all events of the topic.
        """
        id = f"{self._name}#{len(self._subscriptions)}"
        self._subscriptions.append(_Subscription(id, topic, dict(filters), function))

    def subscriptions(self) -> list[Subscribe]:
        """Return one subscription for each registered function, for the plugin's manifest."""
        return [
            Subscribe(subscription_id=item.id, topic=item.topic, filters=item.filters)
            for item in self._subscriptions
        ]

    def topics(self) -> list[str]:
        """Return the topics of all registered functions, each once."""
        return list(dict.fromkeys(item.topic for item in self._subscriptions))

    async def answer(self, request: PluginRequest) -> PluginResponse:
        """Call the functions for the event in a `publish` request, and return the response.

        If a function raises an exception, the exception is logged, and the response is an error.
        The hub sends an event again only if it gets no response. Raises nothing.
        """
        publish = request.publish
        try:
            event = _read_event(publish)
        except InvalidStruct as exc:
            # The request id is empty: the code that sends the response sets the id.
            return error_response("", "validation_error", f"payload: {exc}")
        failures: list[str] = []
        for item in self._subscriptions:
            if not _matches(item, publish, event):
                continue
            try:
                if iscoroutinefunction(item.function):
                    await item.function(event)
                else:
                    await self._in_thread(partial(item.function, event))
            except Exception as exc:
                log = logging.getLogger(f"concertino.{self._name}")
                log.exception("handling an event of %s failed", event.topic)
                failures.append(f"{event.topic}: {type(exc).__name__}: {exc}")
        if failures:
            return error_response("", "handler_error", "; ".join(failures))
        return PluginResponse()


def _matches(item: _Subscription, publish: Publish, event: Event) -> bool:
    """Return whether an event is for a subscription."""
    # A hub of this package sends one request for each subscription, which names the subscription.
    # The hub has applied the filters. A hub of the Go implementation names no subscription.
    if publish.subscription_id:
        return item.id == publish.subscription_id
    return item.topic in (event.topic, "*") and all(
        event.payload.get(name) == text for name, text in item.filters.items()
    )


def _read_event(publish: Publish) -> Event:
    """Return the event in a request of the hub. Raises InvalidStruct for a wrong payload."""
    payload = unpack(publish.payload, publish.payload_json) if publish.HasField("payload") else {}
    time = publish.timestamp.ToDatetime(UTC) if publish.HasField("timestamp") else None
    return Event(
        topic=publish.topic,
        type=publish.event_type,
        payload=payload,
        source=publish.source_plugin,
        time=time,
        cursor=publish.cursor,
        lost=publish.lost,
    )


def publish_request(
    topic: str,
    payload: Mapping[str, Any],
    type: str,
    source: str,
    audience: str = "",
) -> PluginRequest:
    """Return the request that publishes an event at the hub.

    topic: the topic under which subscribers get the event.
    type: what has happened, such as "created"; may be empty.
    source: the id of the plugin that publishes the event.
    audience: the user whose MCP clients get the event, as "SUBJECT" or "ISSUER SUBJECT" of the
        user's access token, where ISSUER is a URL. Empty for the clients of all users.
    Raises NotAStruct for a payload that cannot be written as JSON, and PackedTooLarge as pack()
    does.
    """
    packed = pack(payload)
    return PluginRequest(
        publish=Publish(
            topic=topic,
            event_type=type,
            payload=packed.struct,
            payload_json=packed.json,
            source_plugin=source,
            audience=audience,
        )
    )
