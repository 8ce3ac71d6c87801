"""A Streamable HTTP front for a stdio server, for tests: what speaks MCP over HTTP only can reach
our server through it.

    python front.py [--pin] COMMAND ARGUMENT...

starts on a free port of this machine and prints its URL, one line. The end of its stdin, or
SIGTERM, ends it and all its servers. Some servers take the first valid request for the start of a
connection of one era. --pin: where callers are of 2026-07-28, send a valid request before theirs.

One process serves every request of 2026-07-28: ids and progress tokens of its callers may be alike,
so each request gets a number of ours on its way in, and its own back on the way out. Each session
of the older revisions has a process. A POST is answered with JSON if the first thing that the
server says about it is the answer, and with a stream of events otherwise; what names no request
goes to the newest one in flight. The front checks what is HTTP's alone (Host, Origin, Accept,
session and version headers); every error of MCP is the server's. No streams by GET and no
redelivery: the official suite scores neither.
Spec: 2025-11-25 basic/transports "Streamable HTTP"; 2026-07-28 basic/transports/streamable-http.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import socket
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import urlsplit

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

VERSION = "io.modelcontextprotocol/protocolVersion"
SUBSCRIPTION = "io.modelcontextprotocol/subscriptionId"
LEGACY = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
LINE_LIMIT = 16 * 2**20  # bytes; more than the server itself would send
END_S = 10.0  # the server's own drain takes 2 s

Message = dict[str, Any]  # any JSON object
PIN: Message = {
    "jsonrpc": "2.0",
    "id": "pin",
    "method": "tools/list",
    "params": {
        "_meta": {
            VERSION: "2026-07-28",
            "io.modelcontextprotocol/clientCapabilities": {},
            "io.modelcontextprotocol/clientInfo": {"name": "front", "version": "1"},
        }
    },
}


class Exchange:
    """One request on its way through a server.

    number: its id there. said: what came for it; None is the end of the process.
    """

    def __init__(self, number: int, id: object) -> None:
        self.number = number
        self.id = id
        self.token: Any = None
        self.said: asyncio.Queue[Message | None] = asyncio.Queue()


class Server:
    """One process, and the requests that are under way in it, the newest last."""

    def __init__(self, process: Process) -> None:
        assert process.stdin is not None and process.stdout is not None  # noqa: PT018
        self._process, self._stdin, self._stdout = process, process.stdin, process.stdout
        self._exchanges: dict[int, Exchange] = {}
        self._next = 1
        self._reading = asyncio.create_task(self._read())

    @classmethod
    async def start(cls, command: list[str]) -> Server:
        return cls(
            await asyncio.create_subprocess_exec(
                *command, stdin=PIPE, stdout=PIPE, limit=LINE_LIMIT
            )
        )

    def ask(self, request: Message) -> Exchange:
        """Send a request under a number of ours."""
        exchange = self._exchanges[self._next] = Exchange(self._next, request["id"])
        self._next += 1
        request = {**request, "id": exchange.number}
        with contextlib.suppress(
            KeyError, TypeError
        ):  # params, or a _meta, of another shape go as they are
            exchange.token = request["params"]["_meta"]["progressToken"]
            params = request["params"]
            request["params"] = {
                **params,
                "_meta": {**params["_meta"], "progressToken": exchange.number},
            }
        if self._reading.done():
            exchange.said.put_nowait(None)
        else:
            self.send(request)
        return exchange

    def tell(self, message: Message) -> None:
        """Send a notification, or an answer to a question of the server's."""
        if message.get("method") == "notifications/cancelled":
            params = message["params"]
            known = [
                item.number
                for item in self._exchanges.values()
                if item.id == params.get("requestId")
            ]
            message = {**message, "params": {**params, "requestId": (known or [-1])[0]}}
        self.send(message)

    def give_up(self, exchange: Exchange) -> None:
        """The caller of 2026-07-28 is gone: on stdio that has to be said."""
        if self._exchanges.pop(exchange.number, None) is not None:
            params = {"requestId": exchange.number}
            self.send({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params})

    def send(self, message: Message) -> None:
        self._stdin.write(json.dumps(message).encode() + b"\n")

    async def _read(self) -> None:
        try:
            while line := await self._stdout.readline():
                self._pass_on(json.loads(line))
        finally:
            for exchange in self._exchanges.values():
                exchange.said.put_nowait(None)

    def _pass_on(self, message: Message) -> None:
        """Give what the server said to the request that it is about."""
        if "method" not in message:
            exchange = self._exchanges.pop(message.get("id", -1), None)
            if exchange is None:
                print(f"front: an answer that nobody waits for: {message}", file=sys.stderr)
                return
            message["id"] = exchange.id
            subject = message.get("result", {})
        else:
            subject = params = message.get("params", {})
            exchange = next(reversed(self._exchanges.values()), None)
            if message["method"] == "notifications/progress":
                exchange = self._exchanges.get(params["progressToken"])
                params["progressToken"] = exchange and exchange.token
            elif (
                message["method"] == "notifications/cancelled"
                and params["requestId"] in self._exchanges
            ):
                exchange = self._exchanges[params["requestId"]]
                params["requestId"] = exchange.id
        meta = subject.get("_meta", {})
        if SUBSCRIPTION in meta:
            exchange = self._exchanges.get(meta[SUBSCRIPTION], exchange)
            meta[SUBSCRIPTION] = exchange and exchange.id
        if exchange is not None:
            exchange.said.put_nowait(message)

    async def end(self) -> None:
        """Close its stdin and wait for it."""
        self._stdin.close()
        try:
            await asyncio.wait_for(self._process.wait(), END_S)
        except TimeoutError:
            print(
                f"front: process {self._process.pid} outlived its stdin by {END_S:g} s",
                file=sys.stderr,
            )
            self._process.kill()
        await self._reading


class Front:
    """The HTTP side. command: starts the server, after an option of front.py."""

    def __init__(self, command: list[str]) -> None:
        self._pins = command[0] == "--pin"
        self._command = command[self._pins :]
        self._modern: Server | None = None
        self._starting = asyncio.Lock()
        self._sessions: dict[str, Server] = {}

    async def handle(self, request: Request) -> Response:
        origin = request.headers.get("origin")
        if not _is_local(f"//{request.headers.get('host', '')}") or not (
            origin is None or _is_local(origin)
        ):
            return Response("only this machine may ask", 403)
        if request.method == "POST":
            return await self._post(request)
        session = self._sessions.pop(request.headers.get("mcp-session-id", ""), None)
        if session is None:
            return Response("no such session", 404)
        await session.end()
        return Response(status_code=204)

    async def _post(self, request: Request) -> Response:
        if not all(
            item in request.headers.get("accept", "")
            for item in ("application/json", "text/event-stream")
        ):
            return Response("Accept: expected application/json and text/event-stream", 406)
        try:
            message: Any = await request.json()
        except ValueError as why:
            return _refusal(None, -32700, f"Parse error: {why}")
        if type(message) is not dict:
            return _refusal(None, -32600, "Invalid Request: expected an object")
        params = message.get("params", {})
        meta = params.get("_meta", {}) if isinstance(params, dict) else {}
        header = request.headers.get("mcp-protocol-version")
        if VERSION in meta or (header is not None and header not in LEGACY):
            if meta.get(VERSION, header) != header:
                return _refusal(
                    message.get("id"), -32020, "MCP-Protocol-Version is not what _meta says"
                )
            async with self._starting:
                if self._modern is None:
                    self._modern = await Server.start(self._command)
                    if self._pins:
                        await self._modern.ask(PIN).said.get()
            return await self._exchange(self._modern, message, modern=True)
        name = request.headers.get("mcp-session-id", "")
        if not name and message.get("method") == "initialize":
            name = secrets.token_hex()
            self._sessions[name] = await Server.start(self._command)
        server = self._sessions.get(name)
        if server is None:
            return Response(
                "expected Mcp-Session-Id of a session, or initialize", 404 if name else 400
            )
        return await self._exchange(server, message, headers={"Mcp-Session-Id": name})

    async def _exchange(
        self,
        server: Server,
        message: Message,
        *,
        modern: bool = False,
        headers: dict[str, str] | None = None,
    ) -> Response:
        if "id" not in message or "method" not in message:
            server.tell(message)
            return Response(status_code=202, headers=headers)
        exchange = server.ask(message)
        first = await exchange.said.get()
        if first is None:
            return Response("the server has ended", 502)
        if "method" in first:
            events = _events(server, exchange, first, modern=modern)
            return StreamingResponse(events, media_type="text/event-stream", headers=headers)
        status = 200
        if modern and "error" in first:
            status = 404 if first["error"]["code"] == -32601 else 400
        return JSONResponse(first, status, headers=headers)

    async def end(self) -> None:
        servers = (*self._sessions.values(), self._modern)
        await asyncio.gather(*(server.end() for server in servers if server))


async def _events(
    server: Server, exchange: Exchange, said: Message | None, *, modern: bool
) -> AsyncIterator[bytes]:
    """All that is said about a request, up to its answer.

    Closing the stream cancels a request of 2026-07-28, and no older one.
    """
    try:
        while said is not None:
            yield b"event: message\ndata: " + json.dumps(said).encode() + b"\n\n"
            if "method" not in said:
                return
            said = await exchange.said.get()
    finally:
        if modern:
            server.give_up(exchange)


def _is_local(url: str) -> bool:
    return urlsplit(url).hostname in ("localhost", "127.0.0.1", "::1")


def _refusal(id: object, code: int, text: str) -> Response:
    return JSONResponse({"jsonrpc": "2.0", "id": id, "error": {"code": code, "message": text}}, 400)


async def serve(command: list[str]) -> None:
    front = Front(command)
    listening = socket.create_server(("127.0.0.1", 0))
    app = Starlette(routes=[Route("/mcp", front.handle, methods=["POST", "DELETE"])])  # 405 for GET
    config = uvicorn.Config(app, log_level="warning", lifespan="off", timeout_graceful_shutdown=1)
    http = uvicorn.Server(config)
    loop = asyncio.get_running_loop()
    loop.add_reader(0, lambda: setattr(http, "should_exit", not os.read(0, 4096)))
    print(f"http://127.0.0.1:{listening.getsockname()[1]}/mcp", flush=True)
    await http.serve(sockets=[listening])
    await front.end()


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1:]))
