"""Ours and the upstream programs: their transport on our hub, their storage under it, our bridge
and our plugin on their hub.

ORCHESTRA_BIN names a folder with `orchestrator`, `transport-stdio` and `storage-markdown`. Without
it they are installed from the Go module index, with Go 1.25 or newer, into .tools; what cannot be
installed is skipped, loudly. Everything runs a second time with programs of ours under upstream's
names: that proves nothing about upstream, and everything about this file.
Source: the Orchestra plugin protocol, "transport.stdio", "Orchestrator" and "SDK".
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NoReturn

import pytest
import yaml
from interop.tools import TOOLS

import concertino
from concertino.orchestra.authority import create_authority
from concertino.orchestra.bridge import prepare_bridge
from concertino.orchestra.certificates import Certificates
from concertino.orchestra.link import open_link
from concertino.orchestra.plugin_pb2 import (
    PluginRequest,
    StorageDeleteRequest,
    StorageListRequest,
    StorageReadRequest,
    StorageWriteRequest,
)
from concertino.orchestra.rpc_interface import RpcConnection

pytestmark = pytest.mark.slow

# Name: module and version. "latest" until a version has been seen to install; then pin it here.
# What was never seen to install is a named skip in CI too: nobody there could do anything about it.
MODULES = {
    "orchestrator": ("github.com/orchestra-mcp/orchestrator", "latest"),
    "transport-stdio": ("github.com/orchestra-mcp/plugin-transport-stdio", "latest"),
    "storage-markdown": ("github.com/orchestra-mcp/plugin-storage-markdown", "latest"),
}
INSTALL_S = 300
DEADLINE_S = 30.0  # for a line, or an answer
BIG = 2**53 + 1  # the first integer that a double cannot hold
BRIDGE = "transport.stdio-client"
SOURCES = str(Path(concertino.__file__).parents[1])
ENVIRONMENT = {**os.environ, "PYTHONPATH": SOURCES, "PYTHONDONTWRITEBYTECODE": "1"}
GREETER = f"""#!{sys.executable}
from concertino import Plugin

plugin = Plugin("tools.greeter", version="1.0.0")

@plugin.tool
def greet(name: str) -> str:
    return f"Hello, {{name}}!"

@plugin.tool
def next_of(number: int) -> str:
    return str(number + 1)

@plugin.tool
def fail() -> str:
    raise ValueError("not today")

plugin.run()
"""
# Programs of ours, with the flags and lines of upstream's.
STAND_INS = {
    "transport-stdio": 'exec "$python" -m concertino bridge "$@"',
    "storage-markdown": 'exec "$python" -m concertino plugin markdown "$@"',
    "orchestrator": (
        """
for flag; do case $flag in
--config=*) config=${flag#*=} ;; --certs-dir=*) certs=${flag#*=} ;; *) rest="$rest $flag" ;;
esac; done
test -e "$certs/ca.crt" || "$python" -m concertino certs init --certs-dir "$certs"
exec 2> >(exec sed -u 's/\\] runs: /] registered and booted: /' >&2)
exec "$python" -m concertino orchestrate "$config" --certs-dir "$certs" $rest
"""
    ),
}

# Programs


def skip(reason: str) -> NoReturn:
    text = f"{reason}: NOTHING IS BEING TRIED WITH THE REAL UPSTREAM PROGRAMS."
    print(text, file=sys.stderr)
    pytest.skip(text)


def install_upstream(cache: Path) -> dict[str, Path]:
    """The upstream programs, installed if they are not in the cache yet: each in a folder of its
    own, where Go calls it `cmd`.
    """
    go = shutil.which("go")
    said = (
        subprocess.run([go, "env", "GOVERSION"], capture_output=True, text=True).stdout.strip()
        if go
        else "no Go"
    )
    version = re.match(r"go1\.(\d+)", said)
    if go is None or version is None or int(version[1]) < 25:
        skip(f"expected ORCHESTRA_BIN, or Go 1.25 or newer, got {said}")
    found: dict[str, Path] = {}
    for name, (module, wanted) in MODULES.items():
        folder = cache / f"{name}@{wanted}"
        folder.mkdir(parents=True, exist_ok=True)
        found[name] = folder / "cmd"
        with open(folder / "lock", "w") as lock:
            fcntl.flock(
                lock, fcntl.LOCK_EX
            )  # the tests of two Python versions may run side by side
            if not found[name].exists():
                install(go, f"{module}/cmd@{wanted}", folder)
    return found


def install(go: str, what: str, folder: Path) -> None:
    environment = {
        **os.environ,
        "GOBIN": str(folder),
        "GOTOOLCHAIN": "local",
        "GIT_TERMINAL_PROMPT": "0",
    }
    try:
        done = subprocess.run(
            [go, "install", what],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=INSTALL_S,
        )
    except subprocess.TimeoutExpired:
        skip(f"{what} was not installed within {INSTALL_S} s")
    if done.returncode:
        skip(f"{what} could not be installed ({done.stderr.strip()[-300:]})")


def find_programs(folder: Path) -> dict[str, Path]:
    """The programs of a folder that somebody has named.

    All must be there: a wrong name is a mistake, and not a reason to skip.
    """
    found = {name: folder / name for name in MODULES}
    missing = [name for name, path in found.items() if not os.access(path, os.X_OK)]
    assert not missing, (
        f"ORCHESTRA_BIN={folder}: expected {', '.join(MODULES)}, but not there: "
        f"{', '.join(missing)}"
    )
    return found


def the_programs(cache: Path) -> dict[str, Path]:
    said = os.environ.get("ORCHESTRA_BIN")
    return find_programs(Path(said).absolute()) if said else install_upstream(cache)


@pytest.fixture(scope="module", params=["upstream", "ours"])
def programs(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Path]:
    """By name. Those of ours go the way of ORCHESTRA_BIN too."""
    if request.param == "upstream":
        return the_programs(TOOLS / "upstream")
    folder = tmp_path_factory.mktemp("bin")
    for name, body in STAND_INS.items():
        (folder / name).write_text(f"#!/usr/bin/env bash\npython='{sys.executable}'\n{body}\n")
        (folder / name).chmod(0o755)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ORCHESTRA_BIN", str(folder))
        return the_programs(folder)


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder with a short path: there are sockets in it."""
    with tempfile.TemporaryDirectory(prefix="up", ignore_cleanup_errors=True) as name:
        yield Path(name)


# Processes


class Log:
    """What a program writes to stdout and stderr: read to the end, so that it never has to wait."""

    def __init__(self, stream: asyncio.StreamReader) -> None:
        self._lines: list[str] = []
        self._more = asyncio.Condition()
        self._is_over = False
        self.reading = asyncio.create_task(self._read(stream))

    async def _read(self, stream: asyncio.StreamReader) -> None:
        while line := (await stream.readline()).decode(errors="replace"):
            async with self._more:
                self._lines.append(line.rstrip("\n"))
                self._more.notify_all()
        async with self._more:
            self._is_over = True
            self._more.notify_all()

    async def says(self, text: str, times: int = 1) -> str:
        """Wait for a text. Returns what comes after it."""

        def found() -> list[str]:
            return [line.partition(text)[2] for line in self._lines if text in line]

        try:
            async with asyncio.timeout(DEADLINE_S), self._more:
                await self._more.wait_for(lambda: self._is_over or len(found()) >= times)
        except TimeoutError:
            pass
        assert len(found()) >= times, f"expected {text!r} {times} times, got:\n" + "\n".join(
            self._lines
        )
        return found()[-1]


@asynccontextmanager
async def running(place: Path, *command: object) -> AsyncGenerator[Log]:
    """A hub.

    It is ended with its whole process group: upstream's takes five minutes to end, and leaves its
    plugins.
    """
    process = await asyncio.create_subprocess_exec(
        *map(str, command),
        env={**ENVIRONMENT, "TMPDIR": str(place)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    assert process.stdout is not None
    log = Log(process.stdout)
    try:
        yield log
    finally:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        await process.wait()
        await log.reading


class Client:
    """An MCP client of a program, line by line."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._number = 0

    async def ask(self, method: str, **params: Any) -> dict[str, Any]:
        """The response. Raises EOFError when the program ends instead of it."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._number += 1
        asked = {"jsonrpc": "2.0", "id": self._number, "method": method, "params": params}
        try:
            self._process.stdin.write(json.dumps(asked).encode() + b"\n")
            async with asyncio.timeout(DEADLINE_S):
                await self._process.stdin.drain()
                while line := await self._process.stdout.readline():
                    said = json.loads(line)
                    if said.get("id") == self._number:
                        return said
        except (BrokenPipeError, ConnectionResetError):
            pass
        raise EOFError(f"{method}: no answer")

    async def gets(self, method: str, **params: Any) -> dict[str, Any]:
        """The result."""
        said = await self.ask(method, **params)
        assert "result" in said, said
        return said["result"]

    async def calls(self, tool: str, /, **arguments: Any) -> tuple[str, bool]:
        """What a tool says, and whether that is an error."""
        result = await self.gets("tools/call", name=tool, arguments=arguments)
        return result["content"][0]["text"], result.get("isError", False)


@asynccontextmanager
async def client(*command: object) -> AsyncGenerator[Client]:
    """A client of a program that serves MCP. Its stderr is ours, and pytest shows it when something
    is wrong.
    """
    process = await asyncio.create_subprocess_exec(
        *map(str, command),
        env=ENVIRONMENT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        limit=2**24,
    )
    made = Client(process)
    try:
        yield made
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def initialized(made: Client) -> None:
    about = {
        "protocolVersion": "2025-11-25",
        "capabilities": {},
        "clientInfo": {"name": "test", "version": "1"},
    }
    assert (await made.gets("initialize", **about))["serverInfo"]["name"] == "orchestra"


def plugins_file(
    place: Path, storage: Path, others: Sequence[Path] = (), **members: object
) -> Path:
    """Upstream's format: our greeter, their storage, and other plugins of theirs."""
    greeter = place / "greeter.py"
    greeter.write_text(GREETER)
    greeter.chmod(0o755)
    shared = {name: ENVIRONMENT[name] for name in ("PYTHONPATH", "PYTHONDONTWRITEBYTECODE")}
    entries = [
        {"id": "tools.greeter", "binary": str(greeter), "enabled": True, "env": shared},
        {
            "id": "storage.markdown",
            "binary": str(storage),
            "args": [f"--workspace={place}"],
            "enabled": True,
            "env": shared,
            "provides_storage": ["markdown"],
        },
    ]
    for other in others:
        shown = subprocess.run([other, "--manifest"], check=True, capture_output=True)
        id = json.loads(shown.stdout)["id"]
        entries.append(
            {"id": id, "binary": str(other), "enabled": True, "env": {"HOME": str(place)}}
        )
    path = place / "plugins.yaml"
    path.write_text(yaml.safe_dump({**members, "plugins": entries}, sort_keys=False))
    return path


@asynccontextmanager
async def our_hub(
    place: Path,
    programs: dict[str, Path],
    folder: Path | None = None,
    others: Sequence[Path] = (),
) -> AsyncGenerator[tuple[str, Path]]:
    """The address, and the folder of certificates: a given one, or one with our authority."""
    certificates = Certificates(folder or place / "certs")
    if folder is None:
        create_authority(certificates)
    file = plugins_file(place, programs["storage-markdown"], others)
    command = [
        sys.executable,
        "-m",
        "concertino",
        "orchestrate",
        file,
        "--listen-addr",
        "127.0.0.1:0",
    ]
    async with running(place, *command, "--certs-dir", certificates.folder) as log:
        address = await log.says("Listening on ")
        count = 2 + len(others)
        await log.says(f"{count} of {count} plugins run")
        yield address, certificates.folder


@asynccontextmanager
async def their_hub(
    place: Path,
    programs: dict[str, Path],
    has_our_authority: bool = False,
    others: Sequence[Path] = (),
) -> AsyncGenerator[tuple[str, Path]]:
    """The address, and the folder of certificates; their hub makes the authority, or we do."""
    if has_our_authority:
        create_authority(Certificates(place / "certs"))
    address, tcp = free(socket.SOCK_DGRAM), free(socket.SOCK_STREAM)
    file = plugins_file(place, programs["storage-markdown"], others, tcp_addr=tcp)
    flags = (f"--config={file}", f"--listen-addr={address}", f"--certs-dir={place / 'certs'}")
    async with running(place, programs["orchestrator"], *flags) as log:
        await log.says("registered and booted", times=2 + len(others))
        yield address, place / "certs"


def free(kind: socket.SocketKind) -> str:
    """An address that is free now: upstream's hub does not say where it listens."""
    with socket.socket(socket.AF_INET, kind) as found:
        found.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{found.getsockname()[1]}"


def bridge(address: str, certificates: Path) -> list[object]:
    command = [sys.executable, "-m", "concertino", "bridge"]
    return [*command, f"--orchestrator-addr={address}", f"--certs-dir={certificates}"]


# Tests


async def tools_work(made: Client) -> None:
    """Tools of our plugin, from a client over transport and hub."""
    await initialized(made)
    assert await made.gets("ping") == {}
    listed = {tool["name"]: tool for tool in (await made.gets("tools/list"))["tools"]}
    assert {"greet", "next_of", "fail"} <= set(listed)
    assert listed["greet"]["inputSchema"]["required"] == ["name"]
    assert await made.calls("greet", name="Ådå \u2028") == ("Hello, Ådå \u2028!", False)
    assert await made.calls("next_of", number=41) == ("42", False)
    said, is_error = await made.calls("fail")
    assert is_error
    assert "not today" in said
    large = "x" * 1_000_000
    assert await made.calls("greet", name=large) == (f"Hello, {large}!", False)
    for number in range(120):  # more than the 100 streams of a connection
        assert await made.calls("next_of", number=number) == (str(number + 1), False)


async def storage_works(link: RpcConnection, place: Path) -> None:
    """The requests of storage, answered by their plugin; refusals and versions are theirs."""

    async def write(text: str, expected: int) -> tuple[bool, int]:
        asked = StorageWriteRequest(
            path="features/one.md", content=text.encode(), expected_version=expected
        )
        done = (await link.request(PluginRequest(storage_write=asked))).storage_write
        return done.success, done.new_version

    async def read() -> tuple[bytes, int]:
        asked = StorageReadRequest(path="features/one.md")
        found = (await link.request(PluginRequest(storage_read=asked))).storage_read
        return found.content, found.version

    assert await write("first", 0) == (True, 1)
    assert (await write("again", 0))[0] is False
    assert (await write("late", 7))[0] is False
    assert await write("second", 1) == (True, 2)
    content, version = await read()
    assert (content.strip(), version) == (b"second", 2)
    assert b"second" in (place / ".projects" / "features" / "one.md").read_bytes()
    everything = StorageListRequest(prefix="features/", pattern="*.md")
    entries = (await link.request(PluginRequest(storage_list=everything))).storage_list.entries
    assert [(entry.path, entry.version) for entry in entries] == [("features/one.md", 2)]


async def link_as_bridge(address: str, certificates: Path) -> RpcConnection:
    """As whoever a bridge is."""
    return await open_link(
        address,
        certificates=prepare_bridge(address, certificates),
        name=BRIDGE,
        expects="orchestrator",
    )


def test_their_transport_on_our_hub(programs: dict[str, Path], place: Path) -> None:
    """With our certificates it may call; with others nobody may, even who believes our
    authority.
    """
    stranger = Certificates(place / "strange")
    create_authority(stranger)

    async def main() -> None:
        async with our_hub(place, programs) as (address, certificates):
            prepare_bridge(address, stranger.folder)  # a certificate of its own authority
            stranger.crt("ca").write_bytes((certificates / "ca.crt").read_bytes())
            transport = [programs["transport-stdio"], f"--orchestrator-addr={address}"]
            async with client(*transport, f"--certs-dir={certificates}") as made:
                await tools_work(made)
            async with client(*transport, f"--certs-dir={stranger.folder}") as made:
                await cannot_call(made)

    asyncio.run(main())


async def cannot_call(made: Client) -> None:
    """The program has ended, or says that it has failed."""
    try:
        said = await made.ask("tools/call", name="greet", arguments={"name": "Eve"})
    except EOFError:
        return
    assert "error" in said, said


def test_their_storage_under_our_hub(programs: dict[str, Path], place: Path) -> None:
    async def main() -> None:
        async with our_hub(place, programs) as (address, certificates):
            link = await link_as_bridge(address, certificates)
            await storage_works(link, place)
            async with client(*bridge(address, certificates)) as made:
                await resources_work(made)
            gone = StorageDeleteRequest(path="features/one.md")
            assert (await link.request(PluginRequest(storage_delete=gone))).storage_delete.success
            assert not (place / ".projects" / "features" / "one.md").exists()
            await link.close()

    asyncio.run(main())


async def resources_work(made: Client) -> None:
    """What is stored, as a client sees it."""
    await initialized(made)
    listed = (await made.gets("resources/list"))["resources"]
    assert [resource["uri"] for resource in listed] == ["orchestra://features/one"]
    [content] = (await made.gets("resources/read", uri="orchestra://features/one"))["contents"]
    assert content["text"].strip().endswith("second")


@pytest.mark.parametrize("has_our_authority", [False, True], ids=["theirs", "ours"])
def test_our_bridge_and_our_plugin_on_their_hub(
    programs: dict[str, Path], place: Path, has_our_authority: bool
) -> None:
    async def main() -> None:
        async with their_hub(place, programs, has_our_authority) as (address, certificates):
            authority = (certificates / "ca.crt").read_bytes()
            async with client(*bridge(address, certificates)) as made:
                await tools_work(made)
                # Their hub keeps the field that it does not know: the integer is not rounded on its
                # way.
                assert await made.calls("next_of", number=BIG) == (str(BIG + 1), False)
            link = await link_as_bridge(address, certificates)
            await storage_works(link, place)
            await link.close()
            async with client(*bridge(address, certificates)) as made:
                await resources_work(made)
            # Nobody has replaced the authority.
            assert (certificates / "ca.crt").read_bytes() == authority

    asyncio.run(main())


def test_our_hub_uses_the_certificates_of_their_hub(programs: dict[str, Path], place: Path) -> None:
    (place / "ours").mkdir()

    async def main() -> None:
        async with (
            their_hub(place, programs) as (_, certificates),
            our_hub(place / "ours", programs, certificates) as (address, _),
        ):
            transport = [programs["transport-stdio"], f"--orchestrator-addr={address}"]
            async with client(*transport, f"--certs-dir={certificates}") as made:
                await initialized(made)
                assert await made.calls("greet", name="Ada") == ("Hello, Ada!", False)

    asyncio.run(main())


def test_their_transport_on_their_hub_calls_our_plugin(
    programs: dict[str, Path], place: Path
) -> None:
    async def main() -> None:
        async with their_hub(place, programs) as (address, certificates):
            transport = [
                programs["transport-stdio"],
                f"--orchestrator-addr={address}",
                f"--certs-dir={certificates}",
            ]
            async with client(*transport) as made:
                await initialized(made)
                assert await made.calls("greet", name="Ada") == ("Hello, Ada!", False)

    asyncio.run(main())


def test_all_their_tools_and_prompts_are_offered_alike_by_both_hubs(
    programs: dict[str, Path], place: Path
) -> None:
    """Their other plugins, as far as they are in the folder of the programs.

    Their hub lists the tools of all plugins. Of two with one name, ours lists one.
    """
    folder = programs["orchestrator"].parent
    others = [
        path
        for path in sorted(folder.iterdir())
        if path not in programs.values() and not path.name.startswith("transport-")
    ]
    (place / "ours").mkdir()

    async def main() -> None:
        async with (
            their_hub(place, programs, others=others) as (their_address, certificates),
            our_hub(place / "ours", programs, certificates, others) as (our_address, _),
            client(*bridge(our_address, certificates)) as ours,
            client(
                programs["transport-stdio"],
                f"--orchestrator-addr={their_address}",
                f"--certs-dir={certificates}",
            ) as theirs,
        ):
            for side in (theirs, ours):
                await initialized(side)
            for kind in ("tools", "prompts"):
                expected = [plain(item) for item in (await theirs.gets(f"{kind}/list"))[kind]]
                listed = [plain(item) for item in (await ours.gets(f"{kind}/list"))[kind]]
                assert {item["name"] for item in listed} == {item["name"] for item in expected}
                assert [item for item in listed if item not in expected] == []

    asyncio.run(main())


def plain(value: Any) -> Any:
    """A definition without what their transport omits: output schemas, false and empty values."""
    if isinstance(value, list):
        return [plain(item) for item in value]
    if not isinstance(value, dict):
        return value
    members = {key: plain(member) for key, member in value.items() if key != "outputSchema"}
    return {key: member for key, member in members.items() if member not in (False, "", [])}


# Where the programs come from


def test_a_folder_without_the_programs_is_a_mistake(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "orchestrator").touch(0o755)
    monkeypatch.setenv("ORCHESTRA_BIN", str(tmp_path))
    with pytest.raises(AssertionError, match="not there: transport-stdio, storage-markdown"):
        the_programs(tmp_path)


@pytest.mark.parametrize(
    ("version", "fails", "why"),
    [
        ("go1.24.9", "", "ORCHESTRA_BIN, or Go 1.25 or newer, got go1.24.9"),
        (
            "go1.25.0",
            "reading the module: 403 Forbidden",
            r"orchestrator/cmd@\S+ could not be .*403 Forbidden",
        ),
    ],
)
def test_what_cannot_be_installed_is_skipped_loudly(
    version: str,
    fails: str,
    why: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    fake_go(tmp_path, version, f"echo '{fails}' >&2; exit 1")
    monkeypatch.delenv("ORCHESTRA_BIN", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    with pytest.raises(pytest.skip.Exception, match=why):
        the_programs(tmp_path / "cache")
    assert "NOTHING IS BEING TRIED" in capsys.readouterr().err


def test_each_program_is_installed_once_in_a_folder_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_go(tmp_path, "go1.26.1", f'echo "$@" >> {tmp_path}/asked; touch "$GOBIN/cmd"')
    monkeypatch.delenv("ORCHESTRA_BIN", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    found = the_programs(tmp_path / "cache")
    assert the_programs(tmp_path / "cache") == found
    assert [path.is_file() for path in set(found.values())] == [True] * 3
    asked = (tmp_path / "asked").read_text().splitlines()
    assert asked == [f"install {module}/cmd@{version}" for module, version in MODULES.values()]


def fake_go(folder: Path, version: str, install: str) -> None:
    go = folder / "go"
    go.write_text(f'#!/bin/sh\nif [ "$1" = env ]; then echo {version}; exit; fi\n{install}\n')
    go.chmod(0o755)
