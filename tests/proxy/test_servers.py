"""servers.py: the servers of a file with real processes, approvals, and changes of the file."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import pytest
from composition.parts import INITIALIZE, Part, client_of
from http_service import serving
from loops import on_a_loop
from simulation.dice import Calm
from simulation.loop import Poller, VirtualLoop

from concertino import ConcertinoError, RpcError
from concertino.backend import Host
from concertino.backend.interface import Notifier
from concertino.client import RawClient
from concertino.composition.composed_backend import ComposedBackend
from concertino.composition.part_names import BoundedNames
from concertino.proxy import servers as servers_module
from concertino.proxy.approvals import ApprovalStore
from concertino.proxy.manifest_cache import ManifestCache
from concertino.proxy.servers import RULES as SHIPPED_RULES
from concertino.proxy.servers import Servers
from concertino.proxy.value_reader import InvalidServerFile
from concertino.transports import connect, memory_pair
from concertino.types.results import Implementation, ListToolsResult

SERVER = str(Path(__file__).with_name("plain_server.py"))
SLOW_SERVER = str(Path(__file__).with_name("slow_server.py"))
# A python that says nothing and does not end.
HANGS = {"command": sys.executable, "args": ["-c", "import time; time.sleep(1000)"]}
DEAD = {"command": sys.executable, "args": ["-c", "import sys; sys.exit('out of order')"]}


class Files:
    """A folder with a server file, its approvals, and a note of each server's start."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "mcp.json"
        self.store = ApprovalStore(folder / "state")
        self._starts = folder / "starts"
        folder.chmod(0o700)

    def plain(self, name: str, *tools: str, **members: Any) -> dict[str, Any]:
        """Return the entry of a server."""
        env = {"STARTS": str(self._starts), **members.pop("env", {})}
        return {"command": sys.executable, "args": [SERVER, name, *tools], "env": env, **members}

    def write(self, servers: Mapping[str, Any], **members: Any) -> None:
        # As editors do it: another file in its place.
        temporary = self.path.with_name("new")
        temporary.write_text(json.dumps({"mcpServers": dict(servers), **members}))
        temporary.chmod(0o600)
        temporary.replace(self.path)

    def approve(self) -> None:
        """Approve what the file says, as `concertino approve` does."""
        Servers(self.path, store=self.store, trust=True)

    @property
    def starts(self) -> list[str]:
        """The names of the servers that were started, in order."""
        if not self._starts.exists():
            return []
        return [line.split()[0] for line in self._starts.read_text().splitlines()]

    def servers(self, **options: Any) -> Servers:
        options = {"store": self.store, "environment": {"WHO": "me"}, **options}
        return Servers(self.path, **options)


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    from msgspec.structs import replace

    rules = replace(
        servers_module.RULES, start_s=8, lists_s=8, list_limit_s=8, retries_s=(0.0, 0.2)
    )
    monkeypatch.setattr(servers_module, "RULES", rules)


@asynccontextmanager
async def opened(servers: Servers, told: list[str] | None = None) -> AsyncIterator[RawClient]:
    async with client_of(servers, told) as caller:
        yield caller


async def tools(caller: RawClient) -> list[str]:
    return [tool["name"] for tool in (await caller.request("tools/list"))["tools"]]


async def facts(caller: RawClient, name: str) -> dict[str, Any]:
    result = await caller.request("tools/call", {"name": name, "arguments": {}})
    return json.loads(result["content"][0]["text"])


async def until(told: list[str], method: str = "notifications/tools/list_changed") -> None:
    """Wait until the client was told something, and forget it."""
    while method not in told:
        await asyncio.sleep(0.01)
    told.clear()


# What is served


@on_a_loop
async def test_the_tools_of_all_servers_are_called_under_their_names(files: Files) -> None:
    files.write({"one": files.plain("one", "x"), "two_b": files.plain("two")})
    async with opened(files.servers(trust=True)) as caller:
        assert await tools(caller) == ["one_who", "one_x", "two-b_who"]
        assert (await facts(caller, "one_x"))["argv"] == ["one", "x"]
        assert (await facts(caller, "two-b_who"))["argv"] == ["two"]


@on_a_loop
async def test_a_slow_server_that_has_run_before_is_listed_at_once(files: Files) -> None:
    folder = files.path.parent
    (folder / "offer").write_text('{"version": "1", "tools": ["add"]}')
    (folder / "go").touch()
    slow = {"command": sys.executable, "args": [SLOW_SERVER, str(folder)]}
    files.write({"one": files.plain("one"), "slow": slow})
    cache = ManifestCache(folder / "cache")
    async with opened(files.servers(trust=True, cache=cache)) as caller:
        assert await tools(caller) == ["one_who", "slow_add"]
        while len(list((folder / "cache").glob("*.json"))) < 2:
            await asyncio.sleep(0.01)
    (folder / "go").unlink()
    async with opened(files.servers(cache=cache)) as caller:
        assert await tools(caller) == ["one_who", "slow_add"]
        (folder / "go").touch()
        result = await caller.request("tools/call", {"name": "slow_add", "arguments": {}})
        assert result["content"][0]["text"] == "1"


@on_a_loop
async def test_bad_servers_do_not_hold_up_the_others_and_say_why(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    from msgspec.structs import replace

    monkeypatch.setattr(
        servers_module, "RULES", replace(servers_module.RULES, start_s=3, lists_s=3)
    )
    good = {f"s{number}": files.plain(f"s{number}") for number in range(4)}
    unset = files.plain("unset", env={"A": "${NOT_SET}"})
    files.write({"hangs": HANGS, "dead": DEAD, "unset": unset, **good})
    servers = files.servers(trust=True)
    async with opened(servers) as caller:
        assert await tools(caller) == [f"s{number}_who" for number in range(4)]
        for name, reason in (
            ("dead_who", "cannot start: dead: .* exited with code 1"),
            ("unset_who", r"mcp\.json:1:\d+: unset\.env\.A: the variable NOT_SET is not set"),
        ):
            with pytest.raises(RpcError, match=reason):
                await facts(caller, name)
        instructions = servers.features().instructions or ""
        assert "cannot start: dead: " in instructions
        assert "the variable NOT_SET is not set" in instructions
    assert sorted(files.starts) == ["s0", "s1", "s2", "s3"]


class LatePart(Part):
    """A part whose start takes so many seconds, or for ever, or fails."""

    def __init__(self, start_s: float | None) -> None:
        super().__init__({"tools/list": ListToolsResult([])}, tools=True)
        self._start_s = start_s

    async def start(self, outlet: Notifier) -> None:
        if self._start_s is None:
            raise ConcertinoError("out of order")
        await asyncio.sleep(self._start_s)
        await super().start(outlet)


@pytest.mark.parametrize(
    ("tenth_s", "expected_s"),
    [
        # One that has ended does not count: the opening is that of the slowest healthy one.
        (None, 1.0),
        # One that hangs holds up the others for the time that a slow one may take.
        (1e6, 3.0),
    ],
)
def test_ten_servers_open_with_the_slowest_healthy_one_or_after_3_s(
    tenth_s: float | None, expected_s: float
) -> None:
    dice = Calm()
    loop = VirtualLoop(Poller(lambda descriptor: 0, dice), dice)
    parts = {f"s{number}": LatePart((number + 1) / 9) for number in range(9)}
    parts["tenth"] = LatePart(tenth_s)

    async def open_and_list() -> float:
        backend = ComposedBackend(
            Implementation("ten", "1"), parts, BoundedNames(parts), SHIPPED_RULES
        )
        async with client_of(backend) as caller:
            await caller.request("tools/list")
            return loop.time()

    with closing(loop):
        opened_s = loop.run_until_complete(open_and_list())
    assert opened_s == pytest.approx(expected_s, abs=0.01)
    assert [part.began for part in parts.values()] == [1] * 9 + [0]


@on_a_loop
async def test_a_server_that_is_killed_is_there_again_for_the_next_call(files: Files) -> None:
    files.write({"one": files.plain("one")})
    async with opened(files.servers(trust=True)) as caller:
        pid = (await facts(caller, "one_who"))["pid"]
        os.kill(pid, signal.SIGKILL)
        while True:
            try:
                again = (await facts(caller, "one_who"))["pid"]
                break
            except RpcError:
                # The call was read by the one that was killed.
                continue
        assert again != pid


@on_a_loop
async def test_a_server_that_could_not_start_comes_back_when_it_can(
    files: Files, tmp_path: Path
) -> None:
    program = tmp_path / "late"
    entry = files.plain("late")
    files.write({"late": {**entry, "command": str(program)}})
    told: list[str] = []
    async with opened(files.servers(trust=True), told) as caller:
        assert await tools(caller) == []
        program.symlink_to(sys.executable)
        await until(told)
        assert await tools(caller) == ["late_who"]


@on_a_loop
async def test_a_server_gets_its_variables_and_secrets_and_few_others(
    files: Files, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "token").write_text("open sesame")
    (tmp_path / "token").chmod(0o600)
    (tmp_path / ".env").write_text("MY_FILE=from the file\n")
    env = {"MY_TOKEN": "secret:file:token", "MY_WHO": "${WHO}", "MY_REGION": "${input:region}"}
    entry = files.plain("one", env=env, envFile=".env")
    files.write({"one": entry}, inputs=[{"id": "region"}])
    servers = files.servers(trust=True, inputs={"region": "eu"})
    async with opened(servers) as caller:
        found = await facts(caller, "one_who")
    assert found["env"] == {
        "MY_TOKEN": "open sesame",
        "MY_WHO": "me",
        "MY_REGION": "eu",
        "MY_FILE": "from the file",
    }
    assert (found["argv"], found["cwd"]) == (["one"], str(tmp_path))
    assert "sesame" not in caplog.text
    assert "sesame" not in files.store.stored_at(files.path.resolve()).read_text()


@on_a_loop
async def test_the_options_of_an_entry_are_applied(files: Files) -> None:
    options = {"deny": "z*", "rename": {"y": "other"}, "guards": {"rate_limit": "x=1/60"}}
    files.write({"one": files.plain("one", "x", "y", "z", **{"x-concertino": options})})
    async with opened(files.servers(trust=True)) as caller:
        assert await tools(caller) == ["one_who", "one_x", "one_other"]
        await facts(caller, "one_other")
        await facts(caller, "one_x")
        refused = await caller.request("tools/call", {"name": "one_x", "arguments": {}})
        assert refused["isError"] is True
        assert "RATE_LIMIT_EXCEEDED" in refused["content"][0]["text"]
        for name in ("one_y", "one_z"):
            with pytest.raises(RpcError, match=f"Unknown tool: {name}"):
                await facts(caller, name)


@on_a_loop
async def test_tools_are_changed_as_the_entry_says(files: Files) -> None:
    change = {"name": "other", "description": "Changed."}
    options = {"tools": {"x": change}, "resources_as_tools": True}
    files.write({"one": files.plain("one", "x", **{"x-concertino": options})})
    async with opened(files.servers(trust=True)) as caller:
        listed = (await caller.request("tools/list"))["tools"]
        assert [tool["name"] for tool in listed] == [
            "one_who",
            "one_other",
            "one_list_resources",
            "one_read_resource",
        ]
        assert listed[1]["description"] == "Changed."
        await facts(caller, "one_other")


@on_a_loop
async def test_a_hidden_argument_without_its_variable_says_so(files: Files) -> None:
    options = {"tools": {"x": {"arguments": {"a": {"env": "NOT_SET_ANYWHERE"}}}}}
    files.write({"one": files.plain("one", "x", **{"x-concertino": options})})
    async with opened(files.servers(trust=True)) as caller:
        with pytest.raises(RpcError, match=r"x\.a: the variable NOT_SET_ANYWHERE is not set"):
            await facts(caller, "one_x")


@on_a_loop
async def test_a_change_without_its_variable_changes_nothing_until_the_variable_is_set(
    files: Files, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    files.write({"one": files.plain("one", "x")})
    servers = files.servers(trust=True)
    async with opened(servers) as caller:
        options = {"deny": "x", "tools": {"x": {"arguments": {"a": {"env": "NOT_SET_ANYWHERE"}}}}}
        files.write({"one": files.plain("one", "x", **{"x-concertino": options})})
        await servers.reload()
        assert await tools(caller) == ["one_who", "one_x"]
        assert "the variable NOT_SET_ANYWHERE is not set; its options stay" in caplog.text
        monkeypatch.setenv("NOT_SET_ANYWHERE", "1")
        await servers.reload()
        assert await tools(caller) == ["one_who"]


@pytest.mark.parametrize(("isolation", "processes"), [("session", 2), ("principal", 1)])
@on_a_loop
async def test_clients_share_a_process_as_the_entry_says_and_lists_at_the_start_need_none(
    files: Files, isolation: str, processes: int
) -> None:
    files.write({"one": files.plain("one", **{"x-concertino": {"isolation": isolation}})})
    async with Host(files.servers(trust=True)) as host:
        for _ in range(2):
            ours, theirs = memory_pair()
            host.attach(theirs)
            caller = connect(ours)
            await caller.request("initialize", INITIALIZE)
            caller.notify("notifications/initialized")
            assert await tools(caller) == ["one_who"]
            await facts(caller, "one_who")
        assert files.starts == ["one"] * processes


@on_a_loop
async def test_a_disabled_server_is_not_there(files: Files) -> None:
    files.write({"on": files.plain("on"), "off": files.plain("off", disabled=True)})
    async with opened(files.servers(trust=True)) as caller:
        assert await tools(caller) == ["on_who"]
        with pytest.raises(RpcError, match="Unknown tool: off_who"):
            await facts(caller, "off_who")
    assert files.starts == ["on"]


@on_a_loop
async def test_a_server_is_reached_by_its_url(files: Files) -> None:
    with serving(Path(__file__).parent.parent / "http" / "server_for_http.py") as service:
        entry = {"type": "http", "url": service.url, "headers": {"X-Key": "${WEB_KEY:-k}"}}
        files.write({"web": entry})
        async with opened(files.servers(trust=True)) as caller:
            assert "web_add" in await tools(caller)


def test_a_file_that_cannot_be_used_is_an_error(files: Files) -> None:
    files.write({"a": {"command": "b", "x-concertino": {"alow": "x"}}})
    with pytest.raises(InvalidServerFile, match="did you mean 'allow'"):
        files.servers()


# Approval


@on_a_loop
async def test_nothing_runs_before_it_is_approved_and_then_it_runs_at_once(
    files: Files, caplog: pytest.LogCaptureFixture
) -> None:
    files.write({"one": files.plain("one", env={"MY_KEY": "hunter2hunter2"})})
    told: list[str] = []
    async with opened(files.servers(), told) as caller:
        assert await tools(caller) == []
        with pytest.raises(RpcError, match=r"one: not approved, .*: concertino approve /"):
            await facts(caller, "one_who")
        assert files.starts == []
        assert f"  + command: {sys.executable}" in caplog.text
        assert "  + env.MY_KEY: (not shown)" in caplog.text
        assert "hunter2" not in caplog.text
        told.clear()
        files.approve()
        await until(told)
        while await tools(caller) != ["one_who"]:
            await until(told)
    assert files.starts == ["one"]


@on_a_loop
async def test_what_was_approved_once_runs_the_next_time(files: Files) -> None:
    files.write({"one": files.plain("one")})
    files.approve()
    async with opened(files.servers()) as caller:
        assert await tools(caller) == ["one_who"]


@pytest.mark.parametrize(
    "change",
    [
        {"args": [SERVER, "evil"]},
        {"env": {"LD_PRELOAD": "evil.so"}},
        {"env": {"MY_KEY": "secret:command:evil"}},
        {"cwd": "/"},
        {"envFile": ".env"},
        {"x-concertino": {"inherit": "SSH_AUTH_SOCK"}},
    ],
)
@on_a_loop
async def test_a_definition_that_has_changed_is_not_started(
    files: Files, tmp_path: Path, change: dict[str, Any]
) -> None:
    (tmp_path / ".env").write_text("LD_PRELOAD=evil.so\n")
    entry = files.plain("one")
    files.write({"one": entry})
    files.approve()
    env = {**entry["env"], **change.get("env", {})}
    files.write({"one": {**entry, **change, "env": env}})
    async with opened(files.servers()) as caller:
        assert await tools(caller) == []
    assert files.starts == []


@on_a_loop
async def test_the_file_of_variables_is_part_of_what_was_approved(
    files: Files, tmp_path: Path
) -> None:
    (tmp_path / ".env").write_text("A=1\n")
    files.write({"one": files.plain("one", envFile=".env")})
    files.approve()
    (tmp_path / ".env").write_text("NODE_OPTIONS=--require=evil\n")
    async with opened(files.servers()) as caller:
        assert await tools(caller) == []
    assert files.starts == []


@on_a_loop
async def test_a_secret_command_does_not_run_before_it_is_approved(
    files: Files, tmp_path: Path
) -> None:
    env = {"MY_KEY": f"secret:command:touch {tmp_path}/ran"}
    files.write({"one": files.plain("one", env=env)})
    async with opened(files.servers()) as caller:
        await tools(caller)
    assert not (tmp_path / "ran").exists()


# Changes of the file


@on_a_loop
async def test_a_changed_definition_waits_while_the_old_one_goes_on(files: Files) -> None:
    one, two = files.plain("one"), files.plain("two")
    files.write({"one": one, "two": two})
    told: list[str] = []
    servers = files.servers(trust=True)
    async with opened(servers, told) as caller:
        before = {name: (await facts(caller, f"{name}_who"))["pid"] for name in ("one", "two")}
        files.write({"one": {**one, "args": [SERVER, "new", "x"]}, "two": two})
        await servers.reload()
        assert (await facts(caller, "one_who"))["pid"] == before["one"]
        files.approve()
        await servers.reload()
        while await tools(caller) != ["one_who", "one_x", "two_who"]:
            await until(told)
        assert (await facts(caller, "one_who"))["argv"] == ["new", "x"]
        assert (await facts(caller, "two_who"))["pid"] == before["two"]
    assert sorted(files.starts) == ["new", "one", "two"]


@on_a_loop
async def test_filters_and_guards_change_without_another_process(files: Files) -> None:
    files.write({"one": files.plain("one", "x")})
    told: list[str] = []
    servers = files.servers(trust=True)
    async with opened(servers, told) as caller:
        pid = (await facts(caller, "one_x"))["pid"]
        told.clear()
        files.write({"one": files.plain("one", "x", **{"x-concertino": {"deny": "x"}})})
        await servers.reload()
        await until(told)
        assert await tools(caller) == ["one_who"]
        with pytest.raises(RpcError, match="Unknown tool: one_x"):
            await facts(caller, "one_x")
        assert (await facts(caller, "one_who"))["pid"] == pid
    assert files.starts == ["one"]


@on_a_loop
async def test_servers_come_and_go_with_the_file(files: Files) -> None:
    one, two = files.plain("one"), files.plain("two")
    files.write({"one": one})
    files.approve()
    files.write({"one": one, "two": two})
    files.approve()
    files.write({"one": one})
    told: list[str] = []
    servers = files.servers()
    async with opened(servers, told) as caller:
        pid = (await facts(caller, "one_who"))["pid"]
        assert await tools(caller) == ["one_who"]
        files.write({"two": two})
        await servers.reload()
        while await tools(caller) != ["two_who"]:
            await until(told)
        with pytest.raises(RpcError, match="Unknown tool: one_who"):
            await facts(caller, "one_who")
        while is_running(pid):
            await asyncio.sleep(0.01)


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@on_a_loop
async def test_a_mistake_in_the_changed_file_changes_nothing(
    files: Files, caplog: pytest.LogCaptureFixture
) -> None:
    files.write({"one": files.plain("one")})
    servers = files.servers(trust=True)
    async with opened(servers) as caller:
        files.path.write_text('{"mcpServers": {"one": ')
        await servers.reload()
        assert await tools(caller) == ["one_who"]
        assert "mcp.json:1:24: expected JSON: expected a value" in caplog.text
        assert "nothing is changed" in caplog.text


@on_a_loop
async def test_a_file_that_others_can_write_meanwhile_changes_nothing(
    files: Files, caplog: pytest.LogCaptureFixture
) -> None:
    files.write({"one": files.plain("one")})
    servers = files.servers(trust=True)
    async with opened(servers) as caller:
        files.write({})
        files.path.chmod(0o666)
        await servers.reload()
        assert await tools(caller) == ["one_who"]
        assert "that every user can write" in caplog.text


@on_a_loop
async def test_a_change_of_the_file_is_noticed(files: Files) -> None:
    files.write({"one": files.plain("one", "x")})
    told: list[str] = []
    async with opened(files.servers(trust=True), told) as caller:
        assert await tools(caller) == ["one_who", "one_x"]
        told.clear()
        files.write({"one": files.plain("one", "x", **{"x-concertino": {"allow": "x"}})})
        await until(told)
        assert await tools(caller) == ["one_x"]


@on_a_loop
async def test_a_pinned_tool_that_has_changed_is_served_once_it_is_approved(
    files: Files, tmp_path: Path
) -> None:
    # The program stays the same, and what it says changes: as a server from a registry does.
    program = tmp_path / "program"

    def install(tool: str) -> None:
        program.write_text(
            f"#!{sys.executable}\nimport sys\nsys.argv.append({tool!r})\n"
            + Path(SERVER).read_text()
        )
        program.chmod(0o700)

    entry = {**files.plain("one"), "command": str(program), "args": ["one"]}
    install("first")
    files.write({"one": {**entry, "x-concertino": {"pin": True}}})
    async with opened(files.servers(trust=True)) as caller:
        assert await tools(caller) == ["one_who", "one_first"]
    install("second")
    told: list[str] = []
    servers = files.servers()
    async with opened(servers, told) as caller:
        assert await tools(caller) == ["one_who"]
        with pytest.raises(RpcError, match="the tool second is withheld"):
            await facts(caller, "one_second")
        files.approve()
        while await tools(caller) != ["one_who", "one_second"]:
            await until(told)
        await facts(caller, "one_second")


@on_a_loop
async def test_no_server_is_left_behind(files: Files) -> None:
    files.write({"one": files.plain("one"), "hangs": HANGS, "two": files.plain("two")})
    servers = files.servers(trust=True)
    async with opened(servers) as caller:
        pids = [(await facts(caller, f"{name}_who"))["pid"] for name in ("one", "two")]
        ended_by = time.monotonic() + 20
    while any(map(is_running, pids)):
        assert time.monotonic() < ended_by
        await asyncio.sleep(0.01)
