"""`concertino plugin local` and a real server with OpenAI's interface: tinygrad's, with a model of
random weights. Its answers mean nothing, but are always the same.
"""

from __future__ import annotations

import http.client
import json
import os
import platform
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from interop.tiny_model import write_model
from interop.tools import not_available, python_with
from loops import on_a_loop
from orchestra.hubs import SOMEBODY, entry, running, write_plugins_file

from concertino.orchestra.plugin_pb2 import PluginRequest, StreamStart, ToolRequest
from concertino.orchestra.structs import pack, unpack

pytestmark = pytest.mark.slow
# 0.14.0 lacks a module in its wheel.
TINYGRAD = "tinygrad==0.13.0"
SERVER = Path(__file__).with_name("servers") / "tinygrad_chat.py"
PROMPT = "Say something."


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    if platform.machine() != "x86_64":
        not_available("tinygrad compiles without a compiler on x86-64 only")
    python = python_with("tinygrad", TINYGRAD)
    with tempfile.TemporaryDirectory() as name:
        file = Path(name) / "tiny.gguf"
        # With this seed, the answer does not end before the context is full.
        write_model(file, seed=8)
        environment = {**os.environ, "DEV": "CPU:X86", "CACHELEVEL": "0", "HOME": name}
        command = [str(python), str(SERVER), str(file)]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, env=environment
        ) as served:
            try:
                assert served.stdout is not None
                lines = iter(served.stdout.readline, "")
                yield next(int(line) for line in lines if line.strip().isdecimal())
            finally:
                served.kill()


@pytest.fixture(scope="module")
def direct(port: int) -> Any:
    """The answer to the prompt without concertino. The first one takes longest: code is made."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=240)
    body = {"model": "tiny-random", "messages": [{"role": "user", "content": PROMPT}]}
    connection.request("POST", "/v1/chat/completions", json.dumps(body))
    answer = json.load(connection.getresponse())
    connection.close()
    return answer


@on_a_loop
async def test_a_local_model_is_asked_streamed_and_counted(port: int, direct: Any) -> None:
    (choice,) = direct["choices"]
    expected = choice["message"]["content"]
    assert expected

    config = {"model": "tiny-random", "base_url": f"http://127.0.0.1:{port}/v1"}
    local = entry("ai.local", "concertino", args=["plugin", "local"], config=config)
    with tempfile.TemporaryDirectory(prefix="o") as name:
        async with running(write_plugins_file(Path(name), local)) as hub:
            call = ToolRequest(tool_name="ai_prompt", caller_plugin="tools.a")
            call.arguments = pack({"prompt": PROMPT}).struct
            called = (await hub.answer(PluginRequest(tool_call=call), SOMEBODY)).tool_call
            assert called.success, called.error_message
            assert unpack(called.result, called.result_json) == {"text": expected}

            start = StreamStart(stream_id="s", tool_name="ai_prompt", window=2**20)
            start.arguments = call.arguments
            start.caller_plugin = "tools.a"
            *chunks, end = [item async for item in hub.stream(start, SOMEBODY)]
            assert end.stream_end.success
            # The server sends each token by itself, and a model of bytes has one for each byte.
            assert len(chunks) > 10
            assert b"".join(item.stream_chunk.data for item in chunks).decode() == expected

            usage = ToolRequest(tool_name="ai_usage", caller_plugin="tools.a")
            counted = (await hub.answer(PluginRequest(tool_call=usage), SOMEBODY)).tool_call
            account = unpack(counted.result, counted.result_json)["tools.a"]
    assert (account["calls"], account["failures"]) == (2, 0)
    assert account["input_tokens"] == 2 * direct["usage"]["prompt_tokens"]
    assert account["output_tokens"] == 2 * direct["usage"]["completion_tokens"]
