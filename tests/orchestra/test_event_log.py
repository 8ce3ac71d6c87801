"""event_log.py: which events a subscriber gets, and what happens to slow ones."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from loops import on_a_loop

from concertino.orchestra import event_log
from concertino.orchestra.event_log import EventLog, EventReader, InvalidEvent
from concertino.orchestra.plugin_pb2 import EventDelivery, Publish, Subscribe
from concertino.orchestra.structs import pack


def event(topic: str, **payload: Any) -> Publish:
    return Publish(topic=topic, event_type="made", payload=pack(payload).struct)


async def take(reader: EventReader, count: int) -> list[EventDelivery]:
    return [await reader.next() for _ in range(count)]


def number(event: EventDelivery) -> int:
    """The number of an event; its cursor also has eight digits that name the log."""
    log, _, text = event.cursor.partition("-")
    assert len(log) == 8
    return int(text)


def numbers(events: list[EventDelivery]) -> list[int]:
    return [number(item) for item in events]


@on_a_loop
async def test_topics_match_exactly_and_filters_compare_texts_of_the_payload() -> None:
    log = EventLog()
    orders = EventReader(log, Subscribe(subscription_id="1", topic="orders"))
    urgent = EventReader(log, Subscribe(topic="orders", filters={"kind": "urgent", "to": "me"}))
    everything = EventReader(log, Subscribe(topic="*"))
    log.publish_soon(event("orders", kind="urgent", to="you"), "tools.shop")
    log.publish_soon(event("orders.new", kind="urgent", to="me"), "tools.shop")
    log.publish_soon(event("orders", kind="urgent", to="me", number=7), "tools.shop")
    log.publish_soon(event("orders", kind=3), "tools.shop")

    first, *others = await take(orders, 3)
    assert (first.subscription_id, first.topic, first.event_type) == ("1", "orders", "made")
    assert (first.source_plugin, number(first), first.lost) == ("tools.shop", 1, 0)
    assert first.timestamp.seconds > 1_700_000_000
    assert numbers(others) == [3, 4]
    assert numbers(await take(urgent, 1)) == [3]
    assert numbers(await take(everything, 4)) == [1, 2, 3, 4]


@on_a_loop
async def test_a_reader_waits_for_the_next_event() -> None:
    log = EventLog()
    reader = EventReader(log, Subscribe(topic="a"))
    waiting = asyncio.ensure_future(reader.next())
    await asyncio.sleep(0)
    log.publish_soon(event("b"), "x")
    log.publish_soon(event("a"), "x")
    assert number(await waiting) == 2


@on_a_loop
async def test_a_reader_begins_behind_the_event_that_it_names() -> None:
    log = EventLog()
    for _ in range(3):
        log.publish_soon(event("a"), "x")
    first = log.cursor_of(1)
    again = EventReader(log, Subscribe(topic="a", after=first))
    assert numbers(await take(again, 2)) == [2, 3]
    new = EventReader(log, Subscribe(topic="a"))
    log.publish_soon(event("a"), "x")
    assert number(await new.next()) == 4


@pytest.mark.parametrize("after", ["00000000-3", "3", "x"])
@on_a_loop
async def test_a_reader_with_a_cursor_of_another_log_gets_all_events_and_learns_of_the_gap(
    after: str,
) -> None:
    log = EventLog()
    for _ in range(2):
        log.publish_soon(event("a"), "x")
    reader = EventReader(log, Subscribe(topic="a", after=after))
    assert reader.has_gap
    position = reader.take_position()
    assert (position.topic, number(position), position.lost) == ("", 0, -1)
    assert [(number(item), item.lost) for item in await take(reader, 2)] == [(1, 0), (2, 0)]
    assert not reader.has_gap
    assert reader.take() is None


@on_a_loop
async def test_a_slow_reader_loses_the_oldest_events_and_learns_how_many() -> None:
    # Each event takes 512 bytes and its content.
    size = event("a", text="x" * 500).ByteSize() + 512
    log = EventLog(max_bytes=3 * size)
    reader = EventReader(log, Subscribe(topic="a"))
    for _ in range(10):
        log.publish_soon(event("a", text="x" * 500), "x")
    events = await take(reader, 3)
    assert [(number(item), item.lost) for item in events] == [(8, 7), (9, 0), (10, 0)]
    # As a position, the gap comes before the next event.
    late = EventReader(log, Subscribe(topic="a", after=log.cursor_of(2)))
    assert late.has_gap
    position = late.take_position()
    assert (number(position), position.lost) == (7, 5)
    assert numbers(await take(late, 1)) == [8]


@on_a_loop
async def test_a_publisher_with_many_events_replaces_its_own_and_not_those_of_others() -> None:
    size = event("a", text="x" * 500).ByteSize() + 512
    log = EventLog(max_bytes=4 * size)
    reader = EventReader(log, Subscribe(topic="*"))
    quiet, noisy = event("quiet", text="x" * 496), event("a", text="x" * 500)
    log.publish_soon(quiet, "tools.quiet")
    for _ in range(5):
        log.publish_soon(noisy, "tools.noisy")
    log.publish_soon(quiet, "tools.quiet")
    log.publish_soon(noisy, "tools.noisy")
    # 1 and 7 are of the quiet plugin, 2 to 6 and 8 of the noisy one.
    events = await take(reader, 4)
    assert [(number(item), item.lost) for item in events] == [(1, 0), (6, 4), (7, 0), (8, 0)]
    assert reader.take() is None

    # As a position, the gap comes before the next event.
    late = EventReader(log, Subscribe(topic="*", after=log.cursor_of(1)))
    assert late.has_gap
    position = late.take_position()
    assert (number(position), position.lost) == (5, 4)
    assert numbers(await take(late, 1)) == [6]

    # A gap between two events is reported before the second one, even if the first is not wanted.
    other = EventReader(log, Subscribe(topic="a", after=log.cursor_of(0)))
    assert not other.has_gap
    assert other.take() is None
    assert (other.is_behind, other.has_gap) == (True, True)
    assert other.take_position().lost == 4
    assert numbers(await take(other, 2)) == [6, 8]


@on_a_loop
async def test_a_log_keeps_no_event_that_is_very_old(monkeypatch: pytest.MonkeyPatch) -> None:
    """Readers would have to pass any number of events that were dropped after it."""
    monkeypatch.setattr(event_log, "MAX_NUMBERS", 10)
    size = event("a", text="x" * 500).ByteSize() + 512
    log = EventLog(max_bytes=4 * size)
    log.publish_soon(event("quiet"), "tools.quiet")
    reader = EventReader(log, Subscribe(topic="*", after=log.cursor_of(0)))
    for count in range(2, 21):
        log.publish_soon(event("a", text="x" * 500), "tools.noisy")
        # There is room for three events beside the small one, and for four without it.
        assert log.first == (1 if count <= 10 else max(9, count - 3))
    events = await take(reader, 4)
    assert [(number(item), item.lost) for item in events] == [(17, 16), (18, 0), (19, 0), (20, 0)]


@on_a_loop
async def test_the_topics_of_the_newest_events_are_known() -> None:
    log = EventLog()
    log.publish_soon(event("used"), "x")
    for number in range(1000):
        log.publish_soon(event(f"t{number}"), "x")
        log.publish_soon(event("used"), "x")
    assert len(log.topics) == 1000
    assert {"used", "t1", "t999"} <= {*log.topics}


@on_a_loop
async def test_a_reader_that_wants_no_event_lets_others_run_after_1000() -> None:
    log = EventLog()
    reader = EventReader(log, Subscribe(topic="a"))
    for _ in range(1000):
        log.publish_soon(event("b"), "x")
    log.publish_soon(event("a"), "x")
    assert reader.take() is None
    assert reader.is_behind
    assert number(await reader.next()) == 1001
    assert not reader.is_behind


@on_a_loop
async def test_events_and_subscriptions_have_limits() -> None:
    log = EventLog()
    for topic, problem in (
        ("", "topic: expected 1 to 256 characters, got 0"),
        ("x" * 257, "topic: expected 1 to 256 characters, got 257"),
        ("*", "topic: '*' stands for all topics in subscriptions only"),
    ):
        with pytest.raises(InvalidEvent) as refused:
            log.publish_soon(event(topic), "x")
        assert str(refused.value) == problem
    with pytest.raises(InvalidEvent, match="expected an event of at most 1048576 bytes"):
        log.publish_soon(event("a", text="x" * 2**20), "x")
    with pytest.raises(InvalidEvent, match="payload: "):
        log.publish_soon(Publish(topic="a", payload=b"\xff"), "x")
    with pytest.raises(InvalidEvent, match="filters: expected at most 32"):
        EventReader(log, Subscribe(topic="a", filters={str(number): "" for number in range(33)}))
    for filters in ({"x" * 1025: ""}, {"x": "y" * 1025}):
        with pytest.raises(InvalidEvent, match="filters: expected at most 1024 characters"):
            EventReader(log, Subscribe(topic="a", filters=filters))
    assert log.last == 0


@on_a_loop
async def test_a_subscriber_learns_that_a_log_which_begins_again_may_have_lost_events() -> None:
    log = EventLog()
    live = EventReader(log, Subscribe(topic="a"))
    # A hub loads the events that are older than itself.
    log.restart("00000001", 1, 2)
    for _ in range(3):
        log.publish_soon(event("a"), "tools.shop")
    first = await live.next()
    assert (number(first), first.lost) == (3, 0)

    log.restart("00000002", 1, 2)
    for _ in range(3):
        log.publish_soon(event("a"), "tools.shop")
    second = await live.next()
    assert (second.cursor, second.lost) == ("00000002-3", -1)
