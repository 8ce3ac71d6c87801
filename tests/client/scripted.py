"""A server that says what a test tells it to, over a memory pair; and what every test of the client
needs around it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import wraps
from typing import Any

import loops

from concertino.client.client import Client
from concertino.transports.memory import MemoryConnection, memory_pair

__all__ = ["LEGACY", "MODERN", "SILENCE", "Refusal", "Script", "on_a_loop", "opened"]

MODERN = "2026-07-28"
LEGACY = "2025-11-25"
SILENCE = object()  # a handler's answer: none
VERSION = "io.modelcontextprotocol/protocolVersion"
EVERYTHING = {
    "tools": {},
    "resources": {"subscribe": True},
    "prompts": {},
    "completions": {},
    "logging": {},
}
Handler = Callable[["Script", dict[str, Any]], Any]


class Refusal(Exception):
    """Raised by a handler: an error answer."""

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        self.error = {"code": code, "message": message} | ({} if data is None else {"data": data})


class Script:
    """The other side.

    handlers: method -> a result, or a function of (script, message) that returns one, or SILENCE,
    or raises Refusal.
    """

    def __init__(self, connection: MemoryConnection, handlers: Mapping[str, Any]) -> None:
        self.connection = connection
        self.came: list[dict[str, Any]] = []
        self.over = False
        self._handlers = handlers
        self._changed = asyncio.Event()
        connection.open(self)

    def on_frames(self, batch: Sequence[bytes]) -> None:
        for frame in batch:
            message = json.loads(frame)
            self.came.append(message)
            self._changed.set()
            if isinstance(message, list):
                # A batch holds answers to a batch of the test's, and nothing else.
                continue
            handler = self._handlers.get(
                message.get("method"), _unknown if {"id", "method"} <= message.keys() else SILENCE
            )
            try:
                result = handler(self, message) if callable(handler) else handler
            except Refusal as refusal:
                self.send({"jsonrpc": "2.0", "id": message["id"], "error": refusal.error})
                continue
            if result is not SILENCE and "id" in message:
                self.answer(message, result)

    def on_frame_too_long(self, size: int) -> None: ...
    def on_drain(self, held: int) -> None: ...
    def on_disconnect(self, why: Exception) -> None: ...

    def on_eof(self) -> None:
        self.over = True
        self._changed.set()

    def answer(self, message: Mapping[str, Any], result: Any) -> None:
        self.send({"jsonrpc": "2.0", "id": message["id"], "result": result})

    def send(self, *messages: Any) -> None:
        for message in messages:
            self.connection.write(
                message if isinstance(message, bytes) else json.dumps(message).encode(), None
            )
        self.connection.flush()

    def notify(self, method: str, **params: Any) -> None:
        self.send({"jsonrpc": "2.0", "method": method, "params": params})

    def of(self, method: str) -> list[dict[str, Any]]:
        """What came of one method."""
        return [message for message in self.came if message.get("method") == method]

    async def until(self, condition: Callable[[], object]) -> None:
        """Wait until something that came makes it true; on_a_loop() is the bound."""
        while not condition():
            self._changed.clear()
            await self._changed.wait()


def _unknown(script: Script, message: dict[str, Any]) -> Any:
    raise Refusal(-32601, f"method not found: {message['method']}")


def legacy(version: str = LEGACY, capabilities: Mapping[str, Any] = EVERYTHING) -> dict[str, Any]:
    """The handlers of a server with a handshake."""
    info = {"name": "script", "version": "1"}
    return {
        "initialize": {"protocolVersion": version, "capabilities": capabilities, "serverInfo": info}
    }


def modern(capabilities: Mapping[str, Any] = EVERYTHING) -> dict[str, Any]:
    """Those of one without."""
    info = {"io.modelcontextprotocol/serverInfo": {"name": "script", "version": "2"}}
    result = {
        "resultType": "complete",
        "supportedVersions": [MODERN],
        "capabilities": capabilities,
        "_meta": info,
    }
    return {"server/discover": result | {"ttlMs": 0, "cacheScope": "private"}}


ERAS: Mapping[str, Callable[[], dict[str, Any]]] = {"legacy": legacy, "modern": modern}


@asynccontextmanager
async def opened(
    handlers: Mapping[str, Any] | None = None, like: str = "modern", **settings: Any
) -> AsyncIterator[tuple[Client, Script]]:
    """A client and its script. handlers: on top of those that the era has."""
    ours, theirs = memory_pair()
    script = Script(theirs, ERAS[like]() | dict(handlers or {}))
    async with Client(ours, **settings) as client:
        yield client, script
    assert script.over, "the connection was not closed"


def on_a_loop(test: loops.Test) -> Callable[..., None]:
    """Run a test on a loop of its own, within 30 s, and check that it leaves no task behind."""
    return loops.on_a_loop(check_leaves_no_task(test))


def check_leaves_no_task(test: loops.Test) -> loops.Test:
    @wraps(test)
    async def check(*args: Any, **kwargs: Any) -> None:
        await test(*args, **kwargs)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    return check
