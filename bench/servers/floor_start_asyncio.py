"""Floor of the cold start with what concertino stands on: asyncio and msgspec imported, a loop that
runs.

One line is read through the loop and decoded, and a canned answer to `initialize` goes out.
Start-up targets are this file's CPU time, on the same interpreter in the same run, plus so many
milliseconds.
"""

import asyncio
import os

import msgspec


class Request(msgspec.Struct):
    id: int
    method: str
    params: msgspec.Raw = msgspec.Raw(b"{}")


HELLO = (
    b'{"jsonrpc":"2.0","id":1,"result":{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},'
    b'"serverInfo":{"name":"floor","version":"1"}}}\n'
)


async def main() -> None:
    loop = asyncio.get_running_loop()
    ended = loop.create_future()
    decoder = msgspec.json.Decoder(Request)

    def readable() -> None:
        chunk = os.read(0, 65536)
        if not chunk:
            loop.remove_reader(0)
            ended.set_result(None)
            return
        decoder.decode(chunk)
        os.write(1, HELLO)

    loop.add_reader(0, readable)
    await ended


asyncio.run(main())
