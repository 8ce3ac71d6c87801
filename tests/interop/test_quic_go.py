"""Our links and plugins against a peer made of quic-go, Go's TLS and Go's protobuf, at the versions
that upstream's programs use.

The peer (quic_go/main.go) is ours, and does what upstream's programs are known to do. It is built
once into .tools, with modules from the Go module proxy. tools.py says where Go comes from.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from interop.tools import alone_in, go, not_available

from concertino.orchestra.authority import create_authority, issue
from concertino.orchestra.certificates import Certificates
from concertino.orchestra.link import open_link
from concertino.orchestra.plugin_pb2 import PluginRequest, ToolRequest
from concertino.orchestra.rpc_interface import HandshakeFailure, RpcConnection
from concertino.orchestra.structs import decode_struct, pack

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
SOURCE = Path(__file__).parent / "quic_go"
BUILD_S = 600
PLUGIN = """
from concertino import Plugin

plugin = Plugin("tools.greeter")

@plugin.tool
async def greet(name: str) -> str:
    return f"Hello, {name}!"

@plugin.tool
async def echo(text: str) -> str:
    return text

plugin.run()
"""


@pytest.fixture(scope="module")
def peer() -> Path:
    program = go()
    files = [SOURCE / name for name in ("main.go", "go.mod", "go.sum")]
    digest = hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:12]
    with alone_in(f"quic-go-{digest}") as folder:
        built = folder / "peer"
        if not built.exists():
            environment = {**os.environ, "GOFLAGS": "-mod=readonly -buildvcs=false"}
            done = subprocess.run(
                [program, "build", "-o", built, "."],
                cwd=SOURCE,
                env=environment,
                capture_output=True,
                text=True,
                timeout=BUILD_S,
            )
            if done.returncode and "proxy" in done.stderr:
                not_available(f"the Go modules of the peer cannot be had: {done.stderr[-500:]}")
            assert done.returncode == 0, done.stderr
    return built


@pytest.fixture(scope="module")
def certificates() -> Iterator[Certificates]:
    with tempfile.TemporaryDirectory(prefix="go") as name:
        made = Certificates(Path(name) / "certs")
        create_authority(made)
        for item in ("orchestrator", "orchestrator-to-tools.greeter", "tools.greeter", "go.peer"):
            issue(made, item)
        yield made


@asynccontextmanager
async def ready(*command: object) -> AsyncIterator[tuple[str, asyncio.subprocess.Process]]:
    """Start a program that says READY ADDRESS on stderr; the address and the process."""
    process = await asyncio.create_subprocess_exec(*map(str, command), stderr=subprocess.PIPE)
    assert process.stderr is not None
    try:
        while line := (await process.stderr.readline()).decode():
            if line.startswith("READY "):
                yield line.split()[1], process
                return
        raise AssertionError("it was never ready")
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


def request(value: dict[str, object]) -> PluginRequest:
    packed = pack(value)
    asked = ToolRequest(tool_name="x", arguments=packed.struct, arguments_json=packed.json)
    return PluginRequest(request_id="ours", tool_call=asked)


async def echo_arguments(link: RpcConnection, value: dict[str, object]) -> object:
    """The arguments as Go's Struct has understood them."""
    response = await link.request(request(value))
    assert response.tool_call.success, response.tool_call.error_message
    return json.loads(decode_struct(response.tool_call.result)["text"])


def test_our_link_calls_a_server_on_quic_go(peer: Path, certificates: Certificates) -> None:
    async def main() -> None:
        async with ready(peer, "serve", certificates.folder, "tools.greeter") as (address, _):
            link = await open_link(
                address,
                certificates=certificates,
                name="orchestrator-to-tools.greeter",
                expects="tools.greeter",
            )
            # More than the 100 streams that quic-go allows at first: it gives them back only if the
            # end comes with the data.
            for number in range(260):
                assert await echo_arguments(link, {"n": number}) == {"n": number}
            many = await asyncio.gather(
                *(echo_arguments(link, {"n": number, "text": "ä" * 1000}) for number in range(500))
            )
            assert [item["n"] for item in many] == list(range(500))  # type: ignore[index]
            large = {"text": "x" * 5_000_000}
            assert await echo_arguments(link, large) == large
            deep: dict[str, object] = {}
            for _ in range(100):
                deep = {"a": deep}
            assert (
                await echo_arguments(link, deep) == deep
            )  # Go's decoder takes what the C one refuses
            values = {
                "null": None,
                "yes": True,
                "list": [1, -0.5, "\u2028", {}],
                "empty": "",
                "big": 2.0**70,
            }
            assert await echo_arguments(link, values) == values
            exact = await link.request(request({"n": 2**53 + 1}))
            assert json.loads(decode_struct(exact.tool_call.result)["text"]) == {
                "n": 2**53
            }  # what Go saw
            assert (
                exact.tool_call.result_json == b'{"n":9007199254740993}'
            )  # and what passed through it
            assert exact.request_id == "ours"
            await link.close()

    asyncio.run(main())


def test_go_s_certificate_is_checked_against_whom_we_expect(
    peer: Path, certificates: Certificates
) -> None:
    async def main() -> None:
        async with ready(peer, "serve", certificates.folder, "go.peer") as (address, _):
            with pytest.raises(
                HandshakeFailure, match=r"'go\.peer' answers, and not 'tools.greeter'"
            ):
                await open_link(
                    address, certificates=certificates, name="orchestrator", expects="tools.greeter"
                )

    asyncio.run(main())


def test_a_client_without_a_good_certificate_is_refused_by_go_too(
    peer: Path, certificates: Certificates, tmp_path: Path
) -> None:
    stranger = Certificates(tmp_path / "certs")
    create_authority(stranger)
    issue(stranger, "orchestrator")
    stranger.crt("ca").write_bytes(
        certificates.crt("ca").read_bytes()
    )  # it believes Go, and Go does not believe it

    async def main() -> None:
        async with ready(peer, "serve", certificates.folder, "tools.greeter") as (address, _):
            with pytest.raises(Exception, match="was not issued by"):
                await open_link(address, certificates=stranger, name="orchestrator")

    asyncio.run(main())


def our_plugin(folder: Path, certificates: Certificates) -> tuple[object, ...]:
    """The command of a plugin of ours, written to a folder."""
    file = folder / "plugin.py"
    file.write_text(PLUGIN)
    return sys.executable, file, "--listen-addr", "127.0.0.1:0", "--certs-dir", certificates.folder


CALLS = [("soon", 260, 100), ("late", 120, 100), ("soon", 3, 2_000_000), ("late", 2, 2_000_000)]


@pytest.mark.parametrize(("fin", "count", "size"), CALLS)
def test_a_client_on_quic_go_calls_our_plugin(
    peer: Path, certificates: Certificates, tmp_path: Path, fin: str, count: int, size: int
) -> None:
    plugin = our_plugin(tmp_path, certificates)

    async def main() -> str:
        async with ready(*plugin) as (address, _):
            return await ran(
                peer,
                certificates.folder,
                "orchestrator-to-tools.greeter",
                address,
                fin,
                count,
                size,
            )

    assert asyncio.run(main()) == f"{count}\n"


def test_sixty_four_calls_at_once_from_quic_go_take_little_time(
    peer: Path, certificates: Certificates, tmp_path: Path
) -> None:
    """Header, payload and end of each request travel apart, as upstream sends them."""
    plugin = our_plugin(tmp_path, certificates)

    async def main() -> tuple[str, float]:
        async with ready(*plugin) as (address, process):
            # CPU time of all threads of the plugin, as clock_getcpuclockid(3) makes it on Linux.
            clock = (~process.pid << 3) | 2
            before = time.clock_gettime(clock)
            load = ("load", certificates.folder, "orchestrator-to-tools.greeter", address)
            printed = await run(peer, *load, "apart", 64, 2)
            return printed, (time.clock_gettime(clock) - before) * 1e6

    printed, ours_us = asyncio.run(main())
    count, go_us = map(int, printed.split())
    assert count > 64
    assert (ours_us + go_us) / count <= 600


@pytest.mark.parametrize(
    ("name", "said"), [("-", "certificate"), ("go.peer", "may not come in here")]
)
def test_our_plugin_refuses_a_client_on_quic_go_that_is_no_hub(
    peer: Path, certificates: Certificates, tmp_path: Path, name: str, said: str
) -> None:
    plugin = our_plugin(tmp_path, certificates)

    async def main() -> str:
        async with ready(*plugin) as (address, _):
            return await ran(peer, certificates.folder, name, address, "soon", 1, 1)

    assert said in asyncio.run(main())


async def ran(peer: Path, *arguments: object) -> str:
    """What `peer call` printed."""
    return await run(peer, "call", *arguments)


async def run(peer: Path, *arguments: object) -> str:
    process = await asyncio.create_subprocess_exec(
        peer, *map(str, arguments), stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    return (await process.communicate())[0].decode()


@pytest.mark.parametrize(("name", "said"), [("go.peer", r"\A260\n\Z"), ("-", "certificate")])
def test_a_client_on_quic_go_calls_a_plugin_through_our_hub_if_it_has_a_certificate(
    peer: Path, certificates: Certificates, tmp_path: Path, name: str, said: str
) -> None:
    (tmp_path / "plugin.py").write_text(PLUGIN)
    entry = {"id": "tools.greeter", "binary": "./plugin.py", "enabled": True, "socket": True}
    file = {"listen_addr": "127.0.0.1:0", "certs_dir": str(certificates.folder), "plugins": [entry]}
    (tmp_path / "plugins.yaml").write_text(json.dumps(file))  # JSON is YAML

    async def main() -> str:
        hub = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "concertino", "orchestrate", tmp_path / "plugins.yaml"),
            stderr=subprocess.PIPE,
        )
        assert hub.stderr is not None
        try:
            while b"Listening on " not in (line := await hub.stderr.readline()):
                assert line, "the hub has not started"
            address = line.split()[-1].decode()
            # More than the 100 streams that quic-go is allowed at first.
            return await ran(peer, certificates.folder, name, address, "soon", 260, 100)
        finally:
            hub.terminate()
            await hub.communicate()
            assert hub.returncode == 0

    assert re.search(said, asyncio.run(main()))
