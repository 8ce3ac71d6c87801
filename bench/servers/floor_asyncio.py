"""Floor in Python with asyncio and msgspec: the way a request takes through concertino, and nothing
beside it.

No session, no validation, no cancellation, no limits. Own descriptors on the loop, 64 KiB reads
until EAGAIN (at most eight), a decoder for the envelope and one for the params, a task only for a
call that suspends, the answers of one read in one write, with a queue behind a full pipe.
"""

import asyncio
import os
import types
from collections.abc import Coroutine, Generator

import msgspec

READ_BYTES = 65536
READS_PER_TURN = 8


class Request(msgspec.Struct):
    method: str
    id: int | None = None
    params: msgspec.Raw = msgspec.Raw(b"{}")


class Arguments(msgspec.Struct):
    text: str = ""


class Params(msgspec.Struct):
    name: str
    arguments: Arguments


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
decode_request = msgspec.json.Decoder(Request).decode
decode_params = msgspec.json.Decoder(Params).decode
encode = msgspec.json.Encoder().encode


async def echo(text: str) -> str:
    return text


async def sleep50(text: str) -> str:
    await asyncio.sleep(0.05)
    return "ok"


TOOLS = {"echo": echo, "sleep50": sleep50}


@types.coroutine
def rest(call: Coroutine[object, None, None], waited_for: object) -> Generator[object, None, None]:
    yield waited_for
    yield from call  # type: ignore[misc]


async def resume(call: Coroutine[object, None, None], waited_for: object) -> None:
    """The rest of a call whose first step was taken outside a task, and ended waiting for
    a future.
    """
    await rest(call, waited_for)


class Wire:
    """Both descriptors on one loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.ended: asyncio.Future[None] = loop.create_future()
        self.partial: list[bytes] = []  # pieces of a line whose newline has not come
        self.answers: list[bytes] = []
        self.unwritten: list[memoryview] = []
        self.flush_planned = False
        self.reading = False
        self.tasks: set[asyncio.Task[None]] = set()
        os.set_blocking(0, False)
        os.set_blocking(1, False)
        loop.add_reader(0, self.readable)

    def readable(self) -> None:
        self.reading = True
        for _ in range(READS_PER_TURN):
            try:
                chunk = os.read(0, READ_BYTES)
            except BlockingIOError:
                break
            if not chunk:
                self.loop.remove_reader(0)
                self.ended.set_result(None)
                break
            self.receive(chunk)
            if self.answers:
                # before the next read: the client may have its next call ready by then
                self.flush()
        self.reading = False

    def receive(self, chunk: bytes) -> None:
        if b"\n" not in chunk:
            self.partial.append(chunk)
            return
        if self.partial:
            chunk = b"".join([*self.partial, chunk])
        lines = chunk.split(b"\n")
        last = lines.pop()
        self.partial = [last] if last else []
        for line in lines:
            request = decode_request(line)
            if request.id is not None:
                if request.method == "tools/call":
                    self.start(request.id, request.params)
                else:
                    self.answer(HELLO)

    def start(self, id: int, params: msgspec.Raw) -> None:
        call = self.call(id, params)
        try:
            waited_for = call.send(None)
        except StopIteration:
            return
        task = self.loop.create_task(resume(call, waited_for))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def call(self, id: int, params: msgspec.Raw) -> None:
        decoded = decode_params(params)
        text = await TOOLS[decoded.name](decoded.arguments.text)
        self.answer(encode(Response(id, Result([Text(text)]))))

    def answer(self, frame: bytes) -> None:
        self.answers.append(frame)
        if not self.reading and not self.flush_planned:
            self.flush_planned = True
            self.loop.call_soon(self.flush)

    def flush(self) -> None:
        self.flush_planned = False
        if not self.answers:
            return
        self.answers.append(b"")
        frame = memoryview(b"\n".join(self.answers))
        self.answers.clear()
        if self.unwritten:
            self.unwritten.append(frame)
        else:
            rest = self.write(frame)
            if rest:
                self.unwritten.append(rest)
                self.loop.add_writer(1, self.writable)

    def write(self, frame: memoryview) -> memoryview:
        try:
            return frame[os.write(1, frame) :]
        except BlockingIOError:
            return frame

    def writable(self) -> None:
        while self.unwritten:
            self.unwritten[0] = self.write(self.unwritten[0])
            if self.unwritten[0]:
                return
            del self.unwritten[0]
        self.loop.remove_writer(1)


async def main() -> None:
    await Wire(asyncio.get_running_loop()).ended


asyncio.run(main())
