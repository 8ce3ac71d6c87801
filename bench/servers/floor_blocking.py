"""Floor in Python: a blocking loop with msgspec. No asyncio, no session, no cancellation, no
limits.
"""

import os

import msgspec


class Arguments(msgspec.Struct, frozen=True):
    text: str = ""


class Params(msgspec.Struct, frozen=True):
    name: str = ""
    arguments: Arguments = Arguments()


class Request(msgspec.Struct):
    method: str
    id: int | None = None
    params: Params = Params()


class Text(msgspec.Struct):
    text: str
    type: str = "text"


class Result(msgspec.Struct):
    content: list[Text]


class Response(msgspec.Struct):
    id: int
    result: Result
    jsonrpc: str = "2.0"


HELLO = (
    b'{"jsonrpc":"2.0","id":1,"result":{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},'
    b'"serverInfo":{"name":"floor","version":"1"}}}'
)


def main() -> None:
    decode = msgspec.json.Decoder(Request).decode
    encode = msgspec.json.Encoder().encode
    held: list[bytes] = []
    while chunk := os.read(0, 65536):
        if b"\n" not in chunk:
            held.append(chunk)
            continue
        lines = (b"".join([*held, chunk]) if held else chunk).split(b"\n")
        last = lines.pop()
        held = [last] if last else []
        answers: list[bytes] = []
        for line in lines:
            request = decode(line)
            if request.id is None:
                continue
            if request.method == "tools/call":
                answers.append(
                    encode(Response(request.id, Result([Text(request.params.arguments.text)])))
                )
            else:
                answers.append(HELLO)
        if answers:
            answers.append(b"")
            out = memoryview(b"\n".join(answers))
            while out:
                out = out[os.write(1, out) :]


main()
