"""http_client/delivery.py: the messages of one loop iteration reach the client together."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from loops import on_a_loop

from concertino.http_client.delivery import HELD_BYTES, MessageDelivery


class Recorder:
    """A Receiver that records what it gets: batches of messages, and the end."""

    def __init__(self) -> None:
        self.received: list[list[bytes] | str] = []

    def on_frames(self, batch: Sequence[bytes]) -> None:
        self.received.append(list(batch))

    def on_disconnect(self, exc: Exception) -> None:
        self.received.append(str(exc))

    def on_frame_too_long(self, size: int) -> None:
        raise AssertionError

    def on_drain(self, held: int) -> None:
        raise AssertionError

    def on_eof(self) -> None:
        raise AssertionError


def open_delivery() -> tuple[MessageDelivery, Recorder]:
    delivery, recorder = MessageDelivery(), Recorder()
    delivery.open(recorder)
    return delivery, recorder


@on_a_loop
async def test_the_first_message_is_delivered_at_once_and_the_others_together() -> None:
    delivery, recorder = open_delivery()
    for frame in (b"1", b"2", b"3"):
        delivery.deliver(frame, is_alone=False)
    assert recorder.received == [[b"1"]]

    await asyncio.sleep(0)
    assert recorder.received == [[b"1"], [b"2", b"3"]]

    # The next loop iteration begins anew.
    delivery.deliver(b"4", is_alone=False)
    assert recorder.received[2:] == [[b"4"]]


@on_a_loop
async def test_messages_that_are_alone_are_not_held() -> None:
    delivery, recorder = open_delivery()
    delivery.deliver(b"1", is_alone=True)
    delivery.deliver(b"2", is_alone=True)
    assert recorder.received == [[b"1"], [b"2"]]


@on_a_loop
async def test_a_message_never_overtakes_one_that_is_held() -> None:
    delivery, recorder = open_delivery()
    delivery.deliver(b"1", is_alone=False)
    delivery.deliver(b"2", is_alone=False)
    delivery.deliver(b"3", is_alone=True)
    await asyncio.sleep(0)
    assert recorder.received == [[b"1"], [b"2", b"3"]]


@on_a_loop
async def test_large_messages_are_not_held() -> None:
    delivery, recorder = open_delivery()
    large = b" " * (HELD_BYTES + 1)
    for frame in (b"1", b"2", large):
        delivery.deliver(frame, is_alone=False)
    assert recorder.received == [[b"1"], [b"2", large]]
    await asyncio.sleep(0)
    assert len(recorder.received) == 2


@on_a_loop
async def test_the_end_comes_after_the_messages() -> None:
    delivery, recorder = open_delivery()
    delivery.deliver(b"1", is_alone=False)
    delivery.deliver(b"2", is_alone=False)
    delivery.disconnect(ConnectionError("gone"))
    await asyncio.sleep(0)
    assert recorder.received == [[b"1"], [b"2"], "gone"]


@on_a_loop
async def test_nothing_is_delivered_after_close() -> None:
    delivery, recorder = open_delivery()
    delivery.deliver(b"1", is_alone=False)
    delivery.deliver(b"2", is_alone=False)
    delivery.close()
    await asyncio.sleep(0)
    delivery.deliver(b"3", is_alone=True)
    delivery.disconnect(ConnectionError("gone"))
    assert recorder.received == [[b"1"]]
