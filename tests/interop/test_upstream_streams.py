"""Our hub and bridge with a plugin made with upstream's SDK, whose tools are streams.

The plugin (stream_go/main.go) is built with the workspace of upstream's sources, which is the file
`go.work` beside the folder that ORCHESTRA_BIN names. Without them the tests are skipped, loudly.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import subprocess
import sys
import tempfile
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from interop.test_upstream import SOURCES, running, skip
from interop.tools import alone_in, go

from concertino import Client
from concertino.client.server_parameters import ServerParameters
from concertino.orchestra.authority import create_authority
from concertino.orchestra.certificates import Certificates

pytestmark = pytest.mark.slow

SOURCE = Path(__file__).parent / "stream_go" / "main.go"
BUILD_S = 600


@pytest.fixture(scope="module")
def plugin() -> Path:
    """The program, built once into .tools for each version of its source."""
    programs = os.environ.get("ORCHESTRA_BIN")
    workspace = Path(programs or "none").absolute().parent / "go.work"
    if not programs or not workspace.exists():
        skip("expected ORCHESTRA_BIN, and go.work beside it")
    digest = hashlib.sha256(SOURCE.read_bytes() + workspace.read_bytes()).hexdigest()[:12]
    with alone_in(f"stream-go-{digest}") as folder:
        built = folder / "streams"
        if not built.exists():
            done = subprocess.run(
                [go(), "build", "-o", built, SOURCE.name],
                cwd=SOURCE.parent,
                env={**os.environ, "GOWORK": str(workspace), "GOFLAGS": "-buildvcs=false"},
                capture_output=True,
                text=True,
                timeout=BUILD_S,
            )
            assert done.returncode == 0, done.stderr
        return built


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder with a short path: there are sockets in it."""
    with tempfile.TemporaryDirectory(prefix="up", ignore_cleanup_errors=True) as name:
        yield Path(name)


@asynccontextmanager
async def client_of(plugin: Path, place: Path) -> AsyncGenerator[Client]:
    """A client of a bridge, in front of a hub with the plugin. All are processes."""
    create_authority(Certificates(place / "certs"))
    (place / "plugins.yaml").write_text(
        f"certs_dir: {place}/certs\nplugins:\n"
        f"  - {{id: tools.streams, binary: {plugin}, enabled: true}}\n"
    )
    concertino = ("-m", "concertino")
    hub = (*concertino, "orchestrate", f"{place}/plugins.yaml", "--listen-addr=localhost:0")
    async with running(place, sys.executable, *hub) as log:
        address = (await log.says("Listening on ")).strip()
        bridge = ["bridge", "--orchestrator-addr", address, "--certs-dir", f"{place}/certs"]
        parameters = ServerParameters(
            sys.executable, [*concertino, *bridge], env={"PYTHONPATH": SOURCES}
        )
        async with Client(parameters) as client:
            yield client


def test_chunks_become_progress_and_together_the_result(plugin: Path, place: Path) -> None:
    async def main() -> None:
        async with client_of(plugin, place) as client:
            names = {tool.name for tool in await client.list_tools()}
            assert names == {"plain", "count", "large", "fail", "endless"}

            arrived: list[tuple[float, str | None]] = []
            result = await client.call_tool(
                "count",
                {"lines": 3},
                progress=lambda done, total, message: arrived.append((done, message)),
            )
            lines = [f"transport.stdio line {number}\n" for number in range(3)]
            assert result.text == "".join(lines)
            # Progress may be left out while a call reports it too fast, but never the last one.
            assert arrived[-1] == (3, lines[-1])
            assert set(arrived) <= {(number + 1, line) for number, line in enumerate(lines)}

            # A caller without progress gets the same, and a tool without a stream works with it.
            assert (await client.call_tool("count", {"lines": 3})).text == "".join(lines)
            assert (await client.call_tool("count", {"lines": 0})).text == ""
            for _ in range(2):
                result = await client.call_tool("plain", {}, progress=lambda *_: None)
                assert result.text == "plain"

    asyncio.run(main())


def test_a_stream_of_several_megabytes_arrives_whole(plugin: Path, place: Path) -> None:
    """The plugin knows no windows, so only QUIC can make it wait."""

    async def main() -> None:
        async with client_of(plugin, place) as client:
            for progress in (None, lambda *_: None):
                result = await client.call_tool("large", {"chunks": 64}, progress=progress)
                expected = [chr(ord("a") + number % 26) * 65536 for number in range(64)]
                assert result.text == "".join(expected)

    asyncio.run(main())


def test_a_stream_that_fails_is_an_error_with_its_text(plugin: Path, place: Path) -> None:
    async def main() -> None:
        async with client_of(plugin, place) as client:
            for progress in (None, lambda *_: None):
                result = await client.call_tool("fail", {}, progress=progress)
                assert result.is_error
                assert result.text == "not today"

    asyncio.run(main())


def test_cancelling_a_call_cancels_the_stream_in_the_plugin(plugin: Path, place: Path) -> None:
    async def main() -> None:
        async with client_of(plugin, place) as client:
            mark = place / "cancelled"
            has_begun = asyncio.Event()
            call = asyncio.ensure_future(
                client.call_tool(
                    "endless", {"mark": str(mark)}, progress=lambda *_: has_begun.set()
                )
            )
            async with asyncio.timeout(30):
                await has_begun.wait()
                call.cancel()
                await asyncio.wait((call,))
                while not mark.exists():
                    await asyncio.sleep(0.01)
            assert (await client.call_tool("plain", {})).text == "plain"

    asyncio.run(main())
