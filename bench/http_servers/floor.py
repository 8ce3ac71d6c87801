"""The floor: an asyncio.Protocol that parses HTTP with httptools and JSON with msgspec, and echoes.

python floor.py PORT [--uvloop]

It knows no MCP: no checks, no limits, no sessions, no streams.
"""

import asyncio
import sys
from typing import Any

import httptools
import msgspec


class Params(msgspec.Struct, frozen=True):
    arguments: dict[str, Any] = {}


class Request(msgspec.Struct):
    id: Any = None
    params: Params = Params()


decode = msgspec.json.Decoder(Request).decode
encode = msgspec.json.Encoder().encode
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b"


class Echo(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: Any = transport
        self.parser = httptools.HttpRequestParser(self)
        self.body: list[bytes] = []

    def data_received(self, data: bytes) -> None:
        self.parser.feed_data(data)

    def on_body(self, data: bytes) -> None:
        self.body.append(data)

    def on_message_complete(self) -> None:
        request = decode(b"".join(self.body))
        self.body.clear()
        text = request.params.arguments.get("text", "")
        result = {"content": [{"type": "text", "text": text}], "isError": False}
        answer = encode({"jsonrpc": "2.0", "id": request.id, "result": result})
        self.transport.write(HEAD % (len(answer), answer))


async def main() -> None:
    server = await asyncio.get_running_loop().create_server(
        Echo, "127.0.0.1", int(sys.argv[1]), backlog=1024
    )
    await server.serve_forever()


if "--uvloop" in sys.argv:
    import uvloop

    uvloop.run(main())
else:
    asyncio.run(main())
