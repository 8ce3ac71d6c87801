"""client/channel.py on a Connection that gives the next line when a request is written: an answer,
or something else.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from client.scripted import Script, legacy, modern, on_a_loop

from concertino.client.client import Client
from concertino.errors import ProtocolError, RpcError
from concertino.jsonrpc.messages import Id
from concertino.transports.connection import Receiver
from concertino.transports.memory import MemoryConnection, memory_pair
from concertino.types.results import TextContent

LIKE = {"legacy": legacy, "modern": modern}
OK = {"resultType": "complete", "content": [{"type": "text", "text": "ok"}]}


class Prompt:
    """A Connection whose other side has answered before a call was written. answer: the id -> the
    next line; None: none yet.
    """

    def __init__(self, inner: MemoryConnection, answer: Callable[[int], bytes | None]) -> None:
        self.facts = inner.facts
        self.given_back: list[bytes] = []
        self._inner = inner
        self._answer = answer
        self._to: Receiver

    def open(self, to: Receiver) -> None:
        self._to = to
        self._inner.open(to)

    def send_and_poll(self, frame: bytes, about: Id | None) -> bytes | int:
        message = json.loads(frame)
        if (
            message.get("method") == "tools/call"
            and (line := self._answer(message["id"])) is not None
        ):
            return line
        return self.send(frame, about)

    def send(self, frame: bytes, about: Id | None) -> int:
        held = self.write(frame, about)
        self.flush()
        return held

    def defer_line(self, line: bytes) -> None:
        self.given_back.append(line)
        asyncio.get_running_loop().call_soon(self._to.on_frames, [line])

    def write(self, frame: bytes, about: Id | None) -> int:
        return self._inner.write(frame, about)

    def flush(self) -> None:
        self._inner.flush()

    def pause(self, paused: bool) -> None:
        self._inner.pause(paused)

    async def close(self, within_s: float) -> None:
        await self._inner.close(within_s)


@asynccontextmanager
async def prompt(
    answer: Callable[[int], bytes | None], like: str = "legacy", **settings: Any
) -> AsyncIterator[tuple[Client, Prompt, Script]]:
    ours, theirs = memory_pair()
    script = Script(theirs, LIKE[like]() | {"tools/call": OK})
    connection = Prompt(ours, answer)
    async with Client(connection, **settings) as client:
        await asyncio.sleep(0)  # notifications/initialized is written
        yield client, connection, script


def line(id: int, **members: Any) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": id} | members, ensure_ascii=False).encode()


@pytest.mark.parametrize("like", LIKE)
@on_a_loop
async def test_an_answer_that_is_there_is_returned_without_a_turn_of_the_loop(like: str) -> None:
    turns: list[int] = []
    async with prompt(
        lambda id: line(id, result=OK | {"content": [{"type": "text", "text": "\u00fc"}]}), like
    ) as (
        client,
        _,
        _,
    ):
        asyncio.get_running_loop().call_soon(turns.append, 1)
        for _ in range(3):
            assert (await client.call_tool("x")).content == [TextContent("\u00fc")]
        assert turns == []
        assert not client._connection.current.channel.peer.outgoing


@pytest.mark.parametrize("like", LIKE)
@on_a_loop
async def test_a_call_whose_answer_is_not_there_waits_for_it(like: str) -> None:
    async with prompt(lambda id: None, like) as (client, connection, script):
        assert (await client.call_tool("x")).content == [TextContent("ok")]
        assert connection.given_back == []
        assert len(script.of("tools/call")) == 1


@on_a_loop
async def test_a_refusal_that_is_there_is_raised() -> None:
    async with prompt(lambda id: line(id, error={"code": -32602, "message": "no"})) as (
        client,
        connection,
        _,
    ):
        with pytest.raises(RpcError, match="no"):
            await client.call_tool("x")
        assert len(connection.given_back) == 1


@on_a_loop
async def test_what_is_there_and_is_no_result_of_a_tool_is_said_to_be_none() -> None:
    async with prompt(lambda id: line(id, result={"content": 1})) as (client, _, _):
        with pytest.raises(
            ProtocolError, match="tools/call x: the answer does not follow the protocol"
        ):
            await client.call_tool("x")


@on_a_loop
async def test_an_answer_that_is_no_utf_8_fails_its_call() -> None:
    async with prompt(lambda id: line(id, result=OK).replace(b"ok", b"\xff")) as (client, _, _):
        with pytest.raises(ProtocolError, match=r"the answer is malformed: .*UTF-8"):
            await client.call_tool("x")


@on_a_loop
async def test_a_notification_that_is_there_is_told_and_the_answer_waited_for() -> None:
    told: list[tuple[str, object]] = []

    def heard(method: str, params: dict[str, Any]) -> None:
        told.append((method, asyncio.current_task()))
        answer.append(line(asked[-1], result=OK))
        connection._to.on_frames([answer[-1]])

    asked: list[int] = []
    answer: list[bytes] = []

    def before_it(id: int) -> bytes:
        asked.append(id)
        return b'{"jsonrpc":"2.0","method":"notifications/x"}'

    async with prompt(before_it, notified=heard) as (client, connection, _):
        assert (await client.call_tool("x")).content == [TextContent("ok")]
        assert told == [("notifications/x", None)]


@on_a_loop
async def test_an_answer_to_another_request_is_no_answer() -> None:
    def late(id: int) -> bytes:
        asyncio.get_running_loop().call_later(
            0, lambda: connection._to.on_frames([line(id, result=OK)])
        )
        return line(id - 1, result=OK | {"content": []})

    async with prompt(late) as (client, connection, _):
        assert (await client.call_tool("x")).content == [TextContent("ok")]
        assert client.stray == 1


@on_a_loop
async def test_while_another_call_waits_nothing_is_looked_for() -> None:
    asked: list[int] = []

    def first_waits(id: int) -> bytes | None:
        asked.append(id)
        return None if len(asked) == 1 else line(id, result=OK)

    async with prompt(first_waits) as (client, _, script):
        results = await asyncio.gather(client.call_tool("x"), client.call_tool("y"))
        assert [each.content for each in results] == [[TextContent("ok")]] * 2
        assert len(asked) == 1
        assert len(script.of("tools/call")) == 2


@on_a_loop
async def test_the_progress_function_of_a_call_that_is_answered_at_once_is_forgotten() -> None:
    async with prompt(lambda id: line(id, result=OK)) as (client, _, _):
        await client.call_tool("x", progress=lambda *_: None)
        assert not client._connection.current.channel.progress.by_token
