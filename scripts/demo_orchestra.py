"""Show plugins at work: a hub, two plugins, a bridge, and a plugin that is killed and comes back.

    python scripts/demo_orchestra.py

Needs the extra `orchestra`.
"""

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from concertino import Client
from concertino.client.server_parameters import ServerParameters

EXAMPLE = Path(__file__).resolve().parent.parent / "examples" / "orchestra"
Say = Callable[[str], None]
Step = Callable[[str, str], None]


async def orchestra(say: Say, step: Step) -> None:
    """Show it.

    say: a line; step: a title and what it explains. Raises RuntimeError when the hub does not
    start.
    """
    with tempfile.TemporaryDirectory(
        prefix="demo"
    ) as name:  # mode 0700, as the folder of a socket must be
        folder = Path(name)
        for item in EXAMPLE.iterdir():
            if item.is_file():
                shutil.copy(item, folder)
        hub = await asyncio.create_subprocess_exec(
            *(
                sys.executable,
                "-m",
                "concertino",
                "orchestrate",
                "plugins.yaml",
                "--listen-addr",
                f"unix:{name}/hub",
            ),
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        try:
            await _show(hub, folder, say, step)
        finally:
            if hub.returncode is None:
                hub.terminate()
            await hub.wait()
        say(f"  The hub has ended with exit code {hub.returncode}, and its plugins with it.")


async def _show(hub: Any, folder: Path, say: Say, step: Step) -> None:
    step(
        "A hub starts two plugins",
        "Each is a process: one has tools, the other stores files of Markdown for it.",
    )
    say("$ concertino orchestrate plugins.yaml --listen-addr unix:hub")
    await _until(hub, "Listening on", say)
    bridge = ServerParameters(
        sys.executable,
        ["-m", "concertino", "bridge", "--orchestrator-addr", f"unix:{folder}/hub"],
        env={name: os.environ[name] for name in ("PYTHONPATH",) if name in os.environ},
    )
    step("A bridge", "What a client starts: it speaks MCP here, and to the hub over a Unix socket.")
    say("$ concertino bridge --orchestrator-addr unix:hub")
    async with Client(bridge) as client:
        say(f"  {client.server}: {', '.join(tool.name for tool in await client.list_tools())}")
        step(
            "A call",
            "From the bridge to the hub, to the plugin with the tool, back to the hub, to the"
            " storage plugin.",
        )
        await _call(
            client, say, "keep", {"name": "first", "text": "# Written through four processes"}
        )
        (resource,) = await client.list_resources()
        (read,) = (await client.read_resource(resource.uri)).contents
        say(f"  {resource.uri} is a resource now: {str(read.text)!r}")
        step(
            "A plugin is killed",
            "Calls fail at once, with the reason; the hub starts it again, and the client notices"
            " nothing else.",
        )
        pid = _plugin(hub.pid, "notes.py")
        os.kill(pid, signal.SIGKILL)
        say(f"$ kill -9 {pid}")
        await _until(hub, "it is started again", say)
        await _call(client, say, "recall", {"name": "first"})
        await _until(hub, "tools.notes] runs", say)
        await _call(client, say, "recall", {"name": "first"})


async def _call(client: Client, say: Say, tool: str, arguments: dict[str, Any]) -> None:
    result = await client.call_tool(tool, arguments)
    text = "".join(getattr(item, "text", "") for item in result.content)
    say(f"  {tool}({', '.join(f'{key}={value!r}' for key, value in arguments.items())})")
    say(f"    {'failed: ' if result.is_error else ''}{text}")


async def _until(hub: Any, text: str, say: Say) -> None:
    """Show the hub's log, up to a line with this text."""
    async with asyncio.timeout(30):
        while line := (await hub.stderr.readline()).decode(errors="replace").rstrip():
            say(f"    {line}")
            if text in line:
                return
    raise RuntimeError(f"the hub ended before it said {text!r}")


def _plugin(hub: int, program: str) -> int:
    """The process of a plugin, among the hub's children."""
    # -ww: whole lines, however narrow the terminal is that COLUMNS speaks of.
    command = ["ps", "-A", "-ww", "-o", "pid=,ppid=,args="]
    for line in subprocess.run(
        command, capture_output=True, text=True, check=True
    ).stdout.splitlines():
        pid, parent, *words = line.split()
        if int(parent) == hub and any(word.endswith(program) for word in words):
            return int(pid)
    raise RuntimeError(f"the hub has no plugin {program}")


if __name__ == "__main__":

    def shown(title: str, explanation: str) -> None:
        print(f"\n{title}\n{explanation}")

    asyncio.run(orchestra(print, shown))
