"""A hub over many plugins: how long until all run, how long its list of tools takes, how much
memory it has.

    python bench/orchestra_hub.py                    100 plugins with 100 tools each
    python bench/orchestra_hub.py --plugins 10 --tools 1000

The hub is `concertino orchestrate`, a process of its own; plugins are the smallest programs that
are plugins, standard library only, so that what is measured is the hub. Reported: seconds from the
start until every plugin runs; milliseconds of list_tools over the hub's Unix socket, sent, received
and decoded, p50 and slowest of 50; microseconds of a tool call through the hub, one after the
other; resident memory of the hub and its peak; descriptors. Goals: 50 ms and 150 MB. Needs the
extra [orchestra], installed or with PYTHONPATH=src. Linux: /proc.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from concertino.orchestra.frames import MAX_FRAME_BYTES
from concertino.orchestra.link import open_link
from concertino.orchestra.plugin_pb2 import (
    HealthRequest,
    ListToolsRequest,
    ListToolsResponse,
    PluginRequest,
    PluginResponse,
    ToolDefinition,
    ToolRequest,
)
from concertino.orchestra.structs import encode_struct

SCHEMA = encode_struct(
    {
        "type": "object",
        "properties": {
            "text": {"type": "string", "description": "What is said."},
            "times": {"type": "integer"},
        },
        "required": ["text"],
        "additionalProperties": False,
    }
)
# Answers by the tag of the request; a request is its id and then one field of the oneof.
STUB = """
import os, socket, sys
flags = dict(word.split("=", 1) for word in sys.argv[1:])
path = flags["--listen-addr"].removeprefix("unix:")
tools = open(flags["--tools"], "rb").read()
# A message whose first field is 1: accepted, ready, healthy, clean, success.
well = b"\\x02\\x08\\x01"
answers = {bytes([tag]): bytes([tag]) + well for tag in (0x52, 0x5a, 0x62, 0x6a)}
answers |= {b"\\xa2": b"\\xa2\\x01" + well, b"\\xaa": tools, b"\\xb2": b"\\xb2\\x01\\x00"}
listener = socket.socket(socket.AF_UNIX)
listener.bind(path)
listener.listen()
os.write(2, b"READY unix:" + path.encode() + b"\\n")
link, _ = listener.accept()
stream = link.makefile("rb")
while header := stream.read(4):
    request = stream.read(int.from_bytes(header, "big"))
    size = 2 + request[1]
    answer = request[:size] + answers[request[size:size + 1]]
    link.sendall(len(answer).to_bytes(4, "big") + answer)
"""


def prepare(folder: Path, plugins: int, tools: int) -> Path:
    """Write the plugins, their tools and the plugins file. Returns where the hub will listen."""
    (folder / "stub.py").write_text(STUB)
    entries: list[dict[str, object]] = []
    total = 0
    for number in range(plugins):
        definitions = [
            ToolDefinition(
                name=f"tool_{number}_{item}",
                description="Says it again and again.",
                input_schema=SCHEMA,
            )
            for item in range(tools)
        ]
        answer = PluginResponse(list_tools=ListToolsResponse(tools=definitions)).SerializeToString()
        total += len(answer)
        (folder / f"{number}.tools").write_bytes(answer)
        arguments = [f"--tools={folder / f'{number}.tools'}"]
        entries.append(
            {
                "id": f"stub.{number}",
                "binary": "stub.py",
                "args": arguments,
                "enabled": True,
                "socket": True,
            }
        )
    if total > MAX_FRAME_BYTES:
        sys.exit(f"{plugins} x {tools} tools are {total} bytes: one frame has {MAX_FRAME_BYTES}")
    address = folder / "hub"
    file = {"listen_addr": f"unix:{address}", "plugins": entries}
    (folder / "plugins.yaml").write_text(json.dumps(file))  # JSON is YAML
    return address


def memory(pid: int) -> tuple[float, float]:
    """Resident now and at most, in MB."""
    fields = dict(
        line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines()
    )
    now, peak = (int(fields[name].split()[0]) * 1024 / 1e6 for name in ("VmRSS", "VmHWM"))
    return now, peak


async def measure(address: Path, hub: int, plugins: int, tools: int) -> None:
    link = await open_link(f"unix:{address}")
    health = (await link.request(PluginRequest(health=HealthRequest()))).health
    print(f"{health.message}; descriptors {len(os.listdir(f'/proc/{hub}/fd'))}")
    taken: list[float] = []
    count = size = 0
    for _ in range(50):
        began = time.perf_counter()
        response = await link.request(PluginRequest(list_tools=ListToolsRequest()))
        taken.append((time.perf_counter() - began) * 1e3)
        count, size = len(response.list_tools.tools), response.ByteSize()
    taken.sort()
    assert count == plugins * tools, count
    print(
        f"list_tools: {count} tools, {size / 1e6:.2f} MB: p50 {taken[25]:.1f} ms, slowest"
        f" {taken[-1]:.1f} ms"
    )
    call = PluginRequest(tool_call=ToolRequest(tool_name="tool_0_0"))
    taken = []
    for _ in range(2000):
        began = time.perf_counter()
        await link.request(call)
        taken.append((time.perf_counter() - began) * 1e6)
    taken.sort()
    print(f"tool call through the hub: p50 {taken[1000]:.0f} us, p99 {taken[1980]:.0f} us")
    print("hub: {:.0f} MB resident, {:.0f} MB at most".format(*memory(hub)))
    await link.close()


def main() -> None:
    parser = argparse.ArgumentParser(description="A hub over many plugins.")
    parser.add_argument("--plugins", type=int, default=100)
    parser.add_argument("--tools", type=int, default=100, help="of each plugin")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="hub") as name:
        address = prepare(Path(name), given.plugins, given.tools)
        command = [sys.executable, "-m", "concertino", "orchestrate", f"{name}/plugins.yaml"]
        began = time.perf_counter()
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as hub:
            try:
                assert hub.stderr is not None
                for line in hub.stderr:
                    if "Listening on" in line:
                        break
                else:
                    sys.exit("the hub has not started: run it by hand, as `concertino orchestrate`")
                print(f"all plugins run after {time.perf_counter() - began:.1f} s")
                asyncio.run(measure(address, hub.pid, given.plugins, given.tools))
                began = time.perf_counter()
                hub.send_signal(signal.SIGTERM)
                code = hub.wait(60)
                print(f"exit code {code} {time.perf_counter() - began:.2f} s after SIGTERM")
            finally:
                hub.kill()


if __name__ == "__main__":
    main()
