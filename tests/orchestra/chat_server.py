"""A server on this machine with the interface of OpenAI's chat completions.

Its answers have the form of the examples in OpenAI's API reference ("Chat", "Streaming").
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

COMPLETION = {
    "id": "chatcmpl-123",
    "object": "chat.completion.chunk",
    "created": 1694268190,
    "model": "gpt-4o-mini",
    "system_fingerprint": "fp_44709d6fcb",
}


def chunk(delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
    return {**COMPLETION, "choices": [choice], "usage": None}


def usage(prompt: int, completion: int) -> dict[str, Any]:
    tokens = {"prompt_tokens": prompt, "completion_tokens": completion}
    return {**COMPLETION, "choices": [], "usage": {**tokens, "total_tokens": prompt + completion}}


HELLO = [
    chunk({"role": "assistant", "content": "", "refusal": None}),
    chunk({"content": "Hello"}),
    chunk({"content": " there"}),
    chunk({}, "stop"),
    usage(9, 12),
]
WEATHER = [
    chunk(
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {
                    "index": 0,
                    "id": "call_abc123",
                    "type": "function",
                    "function": {"name": "get_current_weather", "arguments": ""},
                }
            ],
        }
    ),
    chunk({"tool_calls": [{"index": 0, "function": {"arguments": '{"location":'}}]}),
    chunk({"tool_calls": [{"index": 0, "function": {"arguments": '"Boston, MA"}'}}]}),
    chunk({}, "tool_calls"),
    usage(82, 17),
]
REFUSAL = [
    chunk({"role": "assistant", "refusal": ""}),
    chunk({"refusal": "I'm sorry, I cannot assist"}),
    chunk({"refusal": " with that request."}),
    chunk({}, "stop"),
    usage(5, 8),
]
RATE_LIMIT = {
    "error": {
        "message": "Rate limit reached for gpt-4o-mini in organization org-abc",
        "type": "requests",
        "param": None,
        "code": "rate_limit_exceeded",
    }
}
SERVER_ERROR = {
    "error": {
        "message": "The server had an error while processing your request",
        "type": "server_error",
        "param": None,
        "code": None,
    }
}

CUT, HANG = "cut", "hang"
Answer = Sequence[dict[str, Any] | str] | tuple[int, dict[str, Any]] | None


class ChatServer:
    """answers: for each request the chunks of a stream; a status and its JSON; or None, so that no
    answer comes. The last one is repeated. requests: the headers and the JSON of each.

    A stream with CUT as its last chunk is cut off there; with HANG, nothing more comes.
    """

    def __init__(self, *answers: Answer) -> None:
        self.answers = list(answers)
        self.requests: list[tuple[dict[str, str], dict[str, Any]]] = []
        self.url = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            pairs = (line.partition(": ") for line in head.splitlines()[1:] if line)
            headers = {name.lower(): value for name, _, value in pairs}
            body = json.loads(await reader.readexactly(int(headers["content-length"])))
            self.requests.append((headers, body))
            answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
            if answer is None:
                await reader.read()
            elif isinstance(answer, tuple):
                self._write(writer, answer[0], "application/json", json.dumps(answer[1]).encode())
            else:
                is_whole = answer[-1] not in (CUT, HANG)
                chunks = answer if is_whole else answer[:-1]
                events = [json.dumps(item) for item in chunks] + ["[DONE]"] * is_whole
                data = "".join(f"data: {event}\n\n" for event in events).encode()
                more = 0 if is_whole else 1
                self._write(writer, 200, "text/event-stream", data, len(data) + more)
                if answer[-1] == HANG:
                    await writer.drain()
                    await reader.read()
            await writer.drain()
        finally:
            writer.close()

    def _write(
        self, writer: asyncio.StreamWriter, status: int, kind: str, data: bytes, size: int = -1
    ) -> None:
        """size: the announced length of the body; -1 for that of the data."""
        size = len(data) if size < 0 else size
        head = f"HTTP/1.1 {status} -\r\nContent-Type: {kind}\r\nContent-Length: {size}\r\n"
        # The SDK waits this long before it tries again.
        head += "Retry-After-Ms: 1\r\nConnection: close\r\n\r\n"
        writer.write(head.encode() + data)


@asynccontextmanager
async def chat_server(*answers: Answer) -> AsyncIterator[ChatServer]:
    """Serve chat completions at a free port of this machine."""
    chat = ChatServer(*answers)
    server = await asyncio.start_server(chat.serve, "127.0.0.1", 0)
    chat.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    try:
        yield chat
    finally:
        server.close()
