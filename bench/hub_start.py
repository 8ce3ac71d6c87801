"""How long a client waits for the first call of a plugin while another plugin is never ready.

    python bench/hub_start.py [--runs 15]

Time counts from the start of `concertino serve plugins.yaml` to the answer of the first call, so
the start of Python, of the hub and of the plugin are part of it. The plugin has a Unix socket or
uses QUIC, alone or beside one that sleeps or computes and is never ready. Rounds alternate. Goal:
at most 0.6 s on a machine that is not busy. Needs the extra [orchestra].
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from concertino import Client, ServerParameters
from concertino.orchestra.authority import create_authority
from concertino.orchestra.certificates import Certificates

PLUGIN = """
from concertino import Plugin
plugin = Plugin("tools.greeter", version="1.0.0")
@plugin.tool
def greet(name: str) -> str:
    return f"Hello, {name}!"
plugin.run()
"""
# The other plugin, which comes first in the file.
OTHERS = {
    "alone": "",
    "beside one that sleeps": "import time\ntime.sleep(600)\n",
    "beside one that computes": "while True: pass\n",
}
ENVIRONMENT = {"PYTHONPATH": os.environ.get("PYTHONPATH", "")}


def write_plugins(folder: Path, other: str, has_socket: bool) -> Path:
    """Write the plugins and their file to a folder, and return the path of the file."""
    sources = {"tools.other": other, "tools.greeter": PLUGIN}
    entries: list[dict[str, Any]] = []
    for id, source in sources.items():
        if source:
            (folder / f"{id}.py").write_text(source)
            entry = {"id": id, "binary": f"{id}.py", "enabled": True, "socket": has_socket}
            entries.append({**entry, "env": ENVIRONMENT})
    certificates = folder / "certs"
    create_authority(Certificates(certificates))
    path = folder / "plugins.yaml"
    # JSON is YAML.
    path.write_text(json.dumps({"certs_dir": str(certificates), "plugins": entries}))
    return path


async def time_first_call(other: str, has_socket: bool) -> float:
    """Return the seconds until the first call is answered."""
    with tempfile.TemporaryDirectory(prefix="start") as name:
        path = write_plugins(Path(name), other, has_socket)
        command = ["-m", "concertino", "serve", str(path)]
        began = time.perf_counter()
        async with Client(ServerParameters(sys.executable, command, env=ENVIRONMENT)) as client:
            assert await client.call_tool("greet", {"name": "Ada"}, into=str) == "Hello, Ada!"
            return time.perf_counter() - began


async def main() -> None:
    """Print least and median time of each kind, and how busy the machine was."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=int, default=15)
    runs = parser.parse_args().runs
    kinds = [(name, has_socket) for has_socket in (True, False) for name in OTHERS]
    times: dict[tuple[str, bool], list[float]] = {kind: [] for kind in kinds}
    for _ in range(runs):
        for name, has_socket in kinds:
            times[name, has_socket].append(await time_first_call(OTHERS[name], has_socket))
    for (name, has_socket), taken in times.items():
        link = "a Unix socket" if has_socket else "QUIC"
        least, median = min(taken), statistics.median(taken)
        print(f"{link}, {name}: least {least:.2f} s, median {median:.2f} s of {runs}")
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors")


if __name__ == "__main__":
    asyncio.run(main())
