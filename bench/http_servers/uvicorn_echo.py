"""The same echo as floor.py, as an ASGI application under uvicorn with uvloop and httptools."""

import sys
from typing import Any

import msgspec
import uvicorn


class Params(msgspec.Struct, frozen=True):
    arguments: dict[str, Any] = {}


class Request(msgspec.Struct):
    id: Any = None
    params: Params = Params()


decode = msgspec.json.Decoder(Request).decode
encode = msgspec.json.Encoder().encode


async def app(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] != "http":
        return
    parts = []
    while True:
        message = await receive()
        parts.append(message.get("body", b""))
        if not message.get("more_body"):
            break
    request = decode(b"".join(parts))
    text = request.params.arguments.get("text", "")
    result = {"content": [{"type": "text", "text": text}], "isError": False}
    answer = encode({"jsonrpc": "2.0", "id": request.id, "result": result})
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(answer)).encode()),
    ]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": answer})


uvicorn.run(
    app,
    host="127.0.0.1",
    port=int(sys.argv[1]),
    loop="uvloop",
    http="httptools",
    log_level="critical",
    access_log=False,
    lifespan="off",
)
