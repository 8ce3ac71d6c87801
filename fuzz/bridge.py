"""A proxy between two eras: whatever a server says when it is called, the caller gets exactly one
response, and every line that it gets is JSON-RPC. A plain result passes with its text.

Input: one byte whose lowest bits say whether the server and the caller speak 2026-07-28, then the
lines that the server writes when it has got the call, with `$` for the id of the call. Then it is
gone. The caller declines what it is asked.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Sequence
from typing import Any

from concertino.proxy.proxy import Proxy
from concertino.runtime.host import Host
from concertino.transports.memory import MemoryConnection, memory_pair

__all__ = ["MAX_BYTES", "TOKENS", "one"]

MAX_BYTES = 512
LEGACY_RESULT = b'{"jsonrpc":"2.0","id":$,"result":{"content":[{"type":"text","text":"hello"}]}}'
MODERN_RESULT = LEGACY_RESULT.replace(b'"content"', b'"resultType":"complete","content"')
TOKENS = (
    b"\n",
    b'{"jsonrpc":"2.0",',
    b'"id":$,',
    b'"result":{"content":[]}}',
    b'"resultType":"input_required"',
    b'"inputRequests":{"a":{"method":"elicitation/create","params":{"message":"?"}}}',
    b'"requestState":"s"',
    b'"error":{"code":-32602,"message":"no"}}',
    b'"method":"elicitation/create","params":{"message":"?"}}',
    b'"method":"sampling/createMessage","params":{}}',
    b'"method":"notifications/message","params":{"level":"info","data":1}}',
    b'"method":"notifications/progress","params":{"progressToken":$,"progress":1}}',
    LEGACY_RESULT,
    MODERN_RESULT,
)
CALL_ID = 2
# Ends an input that hangs; one takes a millisecond.
PATIENCE_S = 20.0
META: dict[str, Any] = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {"elicitation": {"form": {}}, "sampling": {}},
    "io.modelcontextprotocol/clientInfo": {"name": "fuzz", "version": "1"},
}
OFFER: dict[str, Any] = {"tools": {}, "logging": {}}

_loop = asyncio.new_event_loop()


def one(data: bytes) -> None:
    """See the head of this file."""
    if not data:
        return
    log = logging.getLogger("concertino")
    level = log.level
    log.setLevel(logging.CRITICAL + 1)
    try:
        _loop.run_until_complete(_run(bool(data[0] & 1), bool(data[0] & 2), data[1:]))
    finally:
        log.setLevel(level)


class _End:
    """One end of a memory pair, which calls a function with each message."""

    def __init__(
        self, connection: MemoryConnection, on_message: Callable[[dict[str, Any]], object]
    ) -> None:
        self.connection = connection
        self.frames: list[bytes] = []
        self._on_message = on_message
        connection.open(self)

    def on_frames(self, batch: Sequence[bytes]) -> None:
        for frame in batch:
            self.frames.append(frame)
            self._on_message(json.loads(frame))

    def on_frame_too_long(self, size: int) -> None: ...
    def on_drain(self, held: int) -> None: ...
    def on_eof(self) -> None: ...
    def on_disconnect(self, exc: Exception) -> None: ...

    def send(self, **message: Any) -> None:
        self.write(json.dumps({"jsonrpc": "2.0", **message}).encode())

    def write(self, frame: bytes) -> None:
        self.connection.write(frame, None)
        self.connection.flush()


async def _run(server_is_modern: bool, caller_is_modern: bool, lines: bytes) -> None:
    near, far = memory_pair()
    calls: list[object] = []
    called = asyncio.Event()
    answered = asyncio.Event()

    def serve(message: dict[str, Any]) -> None:
        id, method = message.get("id"), message.get("method")
        if method == "tools/call":
            calls.append(id)
            called.set()
        elif method == "server/discover" and server_is_modern:
            result = {"supportedVersions": ["2026-07-28"], "capabilities": OFFER}
            server.send(id=id, result={"resultType": "complete", **result})
        elif method == "initialize" and not server_is_modern:
            info = {"name": "fuzzed", "version": "1"}
            result = {"protocolVersion": "2025-11-25", "capabilities": OFFER, "serverInfo": info}
            server.send(id=id, result=result)
        elif method is not None and id is not None:
            server.send(id=id, error={"code": -32601, "message": "no"})

    def receive(message: dict[str, Any]) -> None:
        if "method" in message and "id" in message:
            caller.send(id=message["id"], error={"code": -1, "message": "declined"})
        elif message.get("id") == CALL_ID:
            answered.set()

    server = _End(far, serve)
    async with Host(Proxy(near, heartbeat_s=None)) as host:
        ours, theirs = memory_pair()
        caller = _End(ours, receive)
        served = host.attach(theirs)
        params: dict[str, Any] = {"name": "t", "arguments": {}}
        if caller_is_modern:
            params["_meta"] = META
        else:
            client: dict[str, Any] = {"protocolVersion": "2025-11-25"}
            client["capabilities"] = {"elicitation": {}, "sampling": {}}
            client["clientInfo"] = {"name": "fuzz", "version": "1"}
            caller.send(id=1, method="initialize", params=client)
            caller.send(method="notifications/initialized")
        caller.send(id=CALL_ID, method="tools/call", params=params)

        async with asyncio.timeout(PATIENCE_S):
            await called.wait()
            id = json.dumps(calls[0]).encode()
            for line in lines.split(b"\n"):
                server.write(line.replace(b"$", id))
            await far.close(1)
            await answered.wait()
        await ours.close(1)
        await served.closed
    assert len(calls) == 1, f"the server was called {len(calls)} times"
    _check(caller.frames, lines.partition(b"\n")[0], server_is_modern)


def _check(frames: list[bytes], first: bytes, server_is_modern: bool) -> None:
    """Check what the caller got. first: the first line that the server wrote."""
    messages = [json.loads(frame) for frame in frames]
    for message in messages:
        assert message.get("jsonrpc") == "2.0", f"no JSON-RPC: {message}"
    responses = [item for item in messages if "method" not in item and item.get("id") == CALL_ID]
    assert len(responses) == 1, f"{len(responses)} responses: {responses}"
    assert ("result" in responses[0]) != ("error" in responses[0]), responses
    if first == (MODERN_RESULT if server_is_modern else LEGACY_RESULT):
        content = responses[0].get("result", {}).get("content")
        assert content == [{"type": "text", "text": "hello"}], f"the result became {responses[0]}"
