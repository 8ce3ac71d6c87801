"""runtime/result_turns.py: how much of large results is sent in one iteration of the event loop."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from loops import on_a_loop
from msgspec import Raw

from concertino import Server, serve
from concertino.jsonrpc.limits import Limits
from concertino.jsonrpc.peer import Peer
from concertino.runtime.result_turns import is_large_result, least_size, result_turns_of
from concertino.transports import connect, memory_pair
from concertino.types.results import CallToolResult, TextContent

MIB = 2**20
INITIALIZE = {
    "protocolVersion": "2025-11-25",
    "capabilities": {},
    "clientInfo": {"name": "c", "version": "1"},
}


@on_a_loop
async def test_results_beyond_8_mib_are_sent_in_later_iterations_in_order() -> None:
    turns = result_turns_of(asyncio.get_running_loop())
    sent: list[int] = []
    for number in range(7):
        if turns.may_send(3 * MIB):
            sent.append(number)
        else:
            turns.send_later(3 * MIB, lambda number=number: sent.append(number))
    assert sent == [0, 1, 2]
    # A result that comes now waits behind the others, although it is a new iteration.
    await asyncio.sleep(0)
    assert sent == [0, 1, 2, 3, 4, 5]
    assert not turns.may_send(3 * MIB)
    turns.send_later(3 * MIB, lambda: sent.append(7))
    await asyncio.sleep(0)
    assert sent == [0, 1, 2, 3, 4, 5, 6, 7]
    await asyncio.sleep(0)
    assert turns.may_send(10 * MIB)


@on_a_loop
async def test_a_result_that_cannot_be_sent_does_not_keep_the_others() -> None:
    loop = asyncio.get_running_loop()
    failures: list[object] = []
    loop.set_exception_handler(lambda _, context: failures.append(context.get("exception")))
    turns = result_turns_of(loop)
    sent: list[int] = []
    assert turns.may_send(8 * MIB)

    def fail() -> None:
        raise ValueError("no")

    turns.send_later(MIB, fail)
    turns.send_later(MIB, lambda: sent.append(1))
    for _ in range(3):
        await asyncio.sleep(0)
    assert sent == [1]
    assert [type(failure) for failure in failures] == [ValueError]


@on_a_loop
async def test_results_of_a_tool_known_for_small_ones_are_sent_in_turns_or_dropped_unencoded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = Server("server")
    may_end = asyncio.Event()
    waiting = 0

    @server.tool
    async def read(size: int) -> str:
        nonlocal waiting
        waiting += 1
        await may_end.wait()
        return "x" * size

    # The large responses that are encoded in each iteration of the loop.
    iterations: list[list[int]] = [[]]
    send_response = Peer[Any].send_response

    def count(peer: Any, incoming: Any, frame: bytes) -> None:
        if len(frame) > MIB:
            iterations[-1].append(len(frame))
        send_response(peer, incoming, frame)

    monkeypatch.setattr(Peer, "send_response", count)
    limits = Limits(max_unread_bytes=16 * MIB, drain_s=0.2)
    ours, theirs = memory_pair()
    serving = asyncio.create_task(serve(server, theirs, limits=limits))
    client = connect(ours)
    await client.request("initialize", INITIALIZE)
    calls: list[asyncio.Task[Any]] = []

    def call(size: int) -> None:
        params = {"name": "read", "arguments": {"size": size}}
        calls.append(asyncio.create_task(client.request("tools/call", params)))

    call(1)
    while not waiting:
        await asyncio.sleep(0)
    may_end.set()
    await calls.pop()
    may_end.clear()
    for _ in range(20):
        call(5_000_000)
    while waiting < 21:
        await asyncio.sleep(0)
    # The client does not read.
    ours.pause(True)
    may_end.set()
    for _ in range(50):
        iterations.append([])
        await asyncio.sleep(0)
    # 3 results fit into 16 MiB, and 4 into the 20 MiB of those that may wait. The first one is sent
    # at once, and two, which are more than 8 MiB, in each later iteration.
    assert [len(sizes) for sizes in iterations if sizes] == [1, 2, 2, 2]

    ours.pause(False)
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    errors = [str(outcome) for outcome in outcomes if isinstance(outcome, BaseException)]
    assert len(errors) == 13
    assert "result of 5000000 bytes dropped: 16 MiB are unread" in errors[0]
    await client.aclose()
    await serving


@pytest.mark.parametrize(
    ("result", "size"),
    [
        (CallToolResult([TextContent("x" * 9), TextContent("y")]), 10),
        (CallToolResult([TextContent("x" * 9)], Raw(b'"xxxx"')), 15),
        (CallToolResult([TextContent("x")], {"a": "x" * 9}), 10),
        (Raw(b'{"a":1}'), 7),
    ],
)
def test_the_least_size_of_a_result_is_that_of_its_texts(result: Any, size: int) -> None:
    assert least_size(result) == size


@pytest.mark.parametrize(
    ("value", "is_large"),
    [
        ("x" * (256 * 1024), True),
        ("x" * (256 * 1024 - 1), False),
        (["x" * 100_000] * 3, True),
        ({"a": [{"b": "x" * 300_000}]}, True),
        (CallToolResult([TextContent("x" * 300_000)]), True),
        ([0] * 1024, True),
        ({"a": dict.fromkeys(range(1024))}, True),
        ([0] * 1000, False),
        (7, False),
        # Deeper than what is examined.
        ([[[[["x" * 300_000]]]]], False),
    ],
)
def test_a_result_is_large_by_its_texts_or_its_number_of_items(value: Any, is_large: bool) -> None:
    assert is_large_result(value) is is_large


def test_a_result_that_cannot_be_examined_is_large() -> None:
    class Odd(list[int]):
        def __len__(self) -> int:
            raise ValueError("no length")

    assert is_large_result(Odd())
    assert least_size(Odd()) == 0
