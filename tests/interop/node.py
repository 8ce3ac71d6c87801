"""Node, and the npm packages that speak MCP: pinned, installed once into .tools, kept between runs.

The clients and servers run on the machine's own Node, as users have it, or on one from the Python
package index (tools.py). The inspector asks for a newer one than many machines have; that comes
from the npm package `node`.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from interop.tools import alone_in, node_program, not_available
from stdio.harness import put_down, wait_until_gone

__all__ = ["PACKAGES", "Ran", "node", "packages", "run"]

ROOT = Path(__file__).parents[2]
PACKAGES = {
    "@modelcontextprotocol/sdk": "1.32.2",  # the client of version 1
    "@modelcontextprotocol/client": "2.4.0",  # of version 2
    "@modelcontextprotocol/server": "2.4.0",  # the server of version 2
    "@modelcontextprotocol/server-everything": (
        "2026.8.31"
    ),  # a server with some of everything, on version 1
    "@modelcontextprotocol/server-filesystem": "2026.8.31",
    "@modelcontextprotocol/server-memory": "2026.8.31",
    "@modelcontextprotocol/inspector": "2.12.0",
    "node": "22.23.3",  # for the inspector, which asks for 22.19
}
INSTALL_S = 300  # seconds, for some 200 small packages


def node() -> str:
    """Return the path of Node."""
    return node_program("node")


def packages(wanted: Mapping[str, str] = PACKAGES) -> Path:
    """A folder whose node_modules holds packages. A module that imports them has to lie in it.

    wanted: the names of the packages, and their versions.
    """
    npm = node_program("npm")
    members = {"private": True, "type": "module", "dependencies": dict(wanted)}
    text = json.dumps(members, indent=2) + "\n"
    with alone_in(f"node-{hashlib.sha256(text.encode()).hexdigest()[:12]}") as folder:
        if not (folder / "complete").exists():
            (folder / "package.json").write_text(text)
            command = [
                npm,
                "install",
                "--no-audit",
                "--no-fund",
                "--no-update-notifier",
                "--loglevel",
                "error",
            ]
            done = subprocess.run(
                command, cwd=folder, capture_output=True, text=True, timeout=INSTALL_S, check=False
            )
            if done.returncode:
                not_available(f"npm cannot install {', '.join(wanted)}: {done.stderr[-1500:]}")
            (folder / "complete").touch()
    return folder


@dataclass(frozen=True)
class Ran:
    """How a program ended, and what it left.

    left: the processes of its session that were still there.
    """

    code: int
    stdout: str
    stderr: str
    left: Sequence[int]


def run(
    command: Sequence[str | Path],
    environment: Mapping[str, str],
    cwd: Path | None = None,
    within_s: float = 60,
) -> Ran:
    """Run a program in a session of its own, to its end.

    What it leaves behind is named, and ended.
    """
    with subprocess.Popen(
        [str(word) for word in command],
        env=dict(environment),
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        late = False
        stdout = stderr = ""
        try:
            stdout, stderr = process.communicate(timeout=within_s)
        except subprocess.TimeoutExpired:
            late = True
        left = [
            pid for pid in session(process.pid) if late or not wait_until_gone(pid, 2)
        ]  # not what is just leaving
        for pid in left:
            put_down(pid)
        if late:
            stdout, stderr = process.communicate()
            pytest.fail(
                f"{Path(str(command[0])).name} did not end within {within_s}"
                f" s\n{stdout[-2000:]}\n{stderr[-2000:]}"
            )
    return Ran(process.returncode, stdout, stderr, left)


def session(leader: int) -> list[int]:
    """The processes of a session that have not ended (/proc/PID/stat: state and session)."""
    found: list[int] = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            state, _, _, its_session = (
                Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:4]
            )
        except OSError:  # it ended meanwhile
            continue
        if int(its_session) == leader and state not in "ZX":
            found.append(int(pid))
    return found
