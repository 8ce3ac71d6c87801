"""With upstream's programs, when ORCHESTRA_BIN names their folder: fresh starts of plugins that
share a database, and the lists of their hub.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from http_service import INITIALIZE, INITIALIZED
from interop.test_upstream import (
    DEADLINE_S,
    ENVIRONMENT,
    bridge,
    client,
    find_programs,
    initialized,
    our_hub,
    place,
    their_hub,
)

__all__ = ["place"]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        "ORCHESTRA_BIN" not in os.environ,
        reason="ORCHESTRA_BIN does not name a folder with upstream's programs",
    ),
]

# They use ~/.orchestra/db/global.db; the first two open it before they are ready.
SHARE_A_DATABASE = [
    "tools-agentops",
    "tools-workspace",
    "tools-features",
    "tools-marketplace",
    "tools-secrets",
    "services-notifications",
    "services-voice",
    "sync-cloud",
]
# Tools that read it.
READ = ["list_accounts", "list_workspaces", "list_secrets"]
# Both offer `list_notes`.
TWO_OF_ONE_NAME = ["tools-features", "tools-notes"]
# Our bridge, which asks for the lists every 0.1 s, and says on stderr what it was given.
EAGER_BRIDGE = """
import sys
import concertino.orchestra.bridge as b
from concertino.orchestra.hub_backend import HubBackend
b.REFRESH_S = 0.1
refresh = HubBackend.refresh
async def loud(self):
    await refresh(self)
    print("REFRESHED", file=sys.stderr, flush=True)
HubBackend.refresh = loud
from concertino.cli import main
sys.exit(main())
"""


def upstream() -> dict[str, Path]:
    return find_programs(Path(os.environ["ORCHESTRA_BIN"]).absolute())


def among(names: Sequence[str]) -> list[Path]:
    return [upstream()["orchestrator"].parent / name for name in names]


@contextmanager
def load() -> Iterator[None]:
    """Keep all processors busy, two processes for each."""
    command = [sys.executable, "-c", "while True: pass"]
    busy = [subprocess.Popen(command) for _ in range(2 * (os.cpu_count() or 1))]
    try:
        yield
    finally:
        for process in busy:
            process.send_signal(signal.SIGKILL)
            process.wait()


@pytest.mark.parametrize("number", range(20))
def test_a_fresh_start_of_their_plugins_that_share_a_database_breaks_none(
    number: int, place: Path
) -> None:
    async def main() -> None:
        # The hub counts the plugins that run, and the tools show whether each has its database.
        async with (
            our_hub(place, upstream(), others=among(SHARE_A_DATABASE)) as (address, certificates),
            client(*bridge(address, certificates)) as made,
        ):
            await initialized(made)
            for tool in READ:
                said, is_error = await made.calls(tool)
                assert not is_error, said
        assert (place / ".orchestra" / "db" / "global.db").exists()

    with load():
        asyncio.run(main())


def test_our_bridge_shows_one_stable_list_of_their_hub_and_warns_once(place: Path) -> None:
    count = 24

    async def main() -> None:
        async with their_hub(place, upstream(), others=among(TWO_OF_ONE_NAME)) as (address, certs):
            _, *words = bridge(address, certs)
            words[:2] = ["-c", EAGER_BRIDGE]
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                *map(str, words),
                env=ENVIRONMENT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                limit=2**24,
            )
            assert process.stdin is not None
            assert process.stderr is not None
            list_tools = {"jsonrpc": "2.0", "method": "tools/list", "params": {}}
            begins = [INITIALIZE, INITIALIZED, {**list_tools, "id": 1}]
            process.stdin.write(b"".join(json.dumps(each).encode() + b"\n" for each in begins))
            lines: list[str] = []
            while lines.count("REFRESHED") < count:
                line = await asyncio.wait_for(process.stderr.readline(), DEADLINE_S)
                assert line, lines
                lines.append(line.decode().rstrip())
                if lines[-1] == "REFRESHED":
                    ask = {**list_tools, "id": 1 + lines.count("REFRESHED")}
                    process.stdin.write(json.dumps(ask).encode() + b"\n")
            process.stdin.close()
            output, errors = await process.communicate()
            check(output, "\n".join(lines) + errors.decode())

    def check(output: bytes, log: str) -> None:
        messages: list[dict[str, Any]] = [json.loads(line) for line in output.splitlines()]
        lists = [message["result"]["tools"] for message in messages if message.get("id")]
        assert len(lists) == count + 1
        assert all(listed == lists[0] for listed in lists)
        names = [tool["name"] for tool in lists[0]]
        assert names == sorted(set(names))
        assert "list_notes" in names
        # No list_changed.
        assert [message for message in messages if "method" in message] == []
        assert log.count("two of the name 'list_notes'") == 1

    asyncio.run(main())
