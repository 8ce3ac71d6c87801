"""manifests.py: openings and lists of a server that has not started yet."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from client.scripted import LEGACY, MODERN, on_a_loop
from proxy.proxy_rig import Caller

from concertino.backend import Host
from concertino.client import ServerParameters
from concertino.proxy import Proxy
from concertino.proxy.manifest_cache import ManifestCache
from concertino.proxy.manifests import make_manifests
from concertino.proxy.proxy import SHUTDOWN
from concertino.transports.memory import memory_pair

SERVER = str(Path(__file__).with_name("slow_server.py"))
CHANGED = "notifications/tools/list_changed"


class Slow:
    """A folder of slow_server.py, and proxies of it that have one cache."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.offer()
        self.go()

    @property
    def server(self) -> ServerParameters:
        return ServerParameters(sys.executable, [SERVER, str(self.folder)], ladder=SHUTDOWN)

    def offer(self, version: str = "1", *tools: str, **members: Any) -> None:
        """Set what the server offers when it starts next."""
        offer = {"version": version, "tools": tools or ("add", "sub", "mul"), **members}
        (self.folder / "offer").write_text(json.dumps(offer))

    def go(self) -> None:
        """Let the server start."""
        (self.folder / "go").touch()

    def hold(self) -> None:
        """Let servers wait from now on before they answer anything."""
        (self.folder / "go").unlink(missing_ok=True)

    def lines(self, name: str) -> list[str]:
        path = self.folder / name
        return path.read_text().split("\n")[:-1] if path.exists() else []

    @asynccontextmanager
    async def proxy(self, revision: str = LEGACY, **options: Any) -> AsyncIterator[Caller]:
        """Provide a caller that has not opened its session."""
        cache = ManifestCache(self.folder / "cache")
        async with Host(Proxy(self.server, **{"cache": cache, "name": "slow", **options})) as host:
            ours, theirs = memory_pair()
            served = host.attach(theirs)
            yield Caller(ours, revision, {})
            await ours.close(1)
            await served.closed

    async def learn(self, revision: str = LEGACY, **options: Any) -> None:
        """Let a proxy learn what the server offers now."""
        async with self.proxy(revision, **options) as caller:
            await caller.initialize()
            await until(lambda: list((self.folder / "cache").glob("*.json")))


async def until(condition: Any) -> None:
    """Wait for something that another process or task does; on_a_loop() is the bound."""
    while not condition():
        await asyncio.sleep(0.005)


async def names(caller: Caller) -> list[str]:
    result = (await caller.call("tools/list"))["result"]
    return [tool["name"] for tool in result["tools"]]


async def call(caller: Caller) -> str:
    result = (await caller.call("tools/call", name="add", arguments={}))["result"]
    return result["content"][0]["text"]


@on_a_loop
async def test_a_list_that_a_known_server_has_not_declared_does_not_wait_for_its_start(
    tmp_path: Path,
) -> None:
    slow = Slow(tmp_path)
    await slow.learn()
    slow.hold()
    async with slow.proxy() as caller:
        await caller.initialize()
        assert (await caller.call("prompts/list"))["error"]["code"] == -32601
        slow.go()


@pytest.mark.parametrize("revision", ["2024-11-05", LEGACY, MODERN])
@on_a_loop
async def test_a_known_server_opens_and_lists_before_it_has_started(
    tmp_path: Path, revision: str
) -> None:
    slow = Slow(tmp_path)
    await slow.learn()
    slow.hold()
    async with slow.proxy(revision) as caller:
        opened = (await caller.initialize())["result"]
        assert opened["instructions"] == "Be brief."
        assert "tools" in opened["capabilities"]
        # All pages as one.
        assert await names(caller) == ["add", "sub", "mul"]
        # The call waits for the server.
        id = caller.ask("tools/call", name="add", arguments={})
        await caller.call("tools/list")
        assert all(line.get("id") != id for line in caller.lines)
        slow.go()
        result = (await caller.response(id))["result"]
        assert result["content"] == [{"type": "text", "text": "1"}]


@on_a_loop
async def test_a_server_that_is_as_it_was_is_not_announced(tmp_path: Path) -> None:
    slow = Slow(tmp_path)
    await slow.learn()
    slow.lines("lists")
    async with slow.proxy() as caller:
        await caller.initialize()
        await caller.call("tools/list")
        # Two pages of each start.
        await until(lambda: len(slow.lines("lists")) >= 4)
        await call(caller)
        assert caller.of(CHANGED) == []


@on_a_loop
async def test_what_differs_is_announced_and_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    slow = Slow(tmp_path)
    await slow.learn()
    slow.hold()
    slow.offer("2", "add", "divide", instructions="Be long.")
    with caplog.at_level(logging.INFO, "concertino.proxy"):
        async with slow.proxy() as caller:
            await caller.initialize()
            assert await names(caller) == ["add", "sub", "mul"]
            slow.go()
            await caller.until(lambda: caller.of(CHANGED))
            assert await names(caller) == ["add", "divide"]
    assert (
        "slow: it has changed since its last start: version 1 -> 2, instructions" in caplog.messages
    )
    slow.hold()
    async with slow.proxy() as caller:
        assert (await caller.initialize())["result"]["instructions"] == "Be long."
        assert await names(caller) == ["add", "divide"]


@on_a_loop
async def test_private_lists_are_not_kept_and_public_ones_may_not_be_relied_on(
    tmp_path: Path,
) -> None:
    slow = Slow(tmp_path)
    slow.offer("1", private=True)
    await slow.learn(MODERN)
    slow.hold()
    async with slow.proxy(MODERN) as caller:
        assert (await caller.initialize())["result"]["instructions"] == "Be brief."
        id = caller.ask("tools/list")
        await caller.call("server/discover")
        assert all(line.get("id") != id for line in caller.lines)
        slow.offer("1", private=False)
        slow.go()
        assert (await caller.response(id))["result"]["ttlMs"] == 60000
        [file] = (tmp_path / "cache").glob("*.json")
        await until(lambda: b'"add"' in file.read_bytes())
    slow.hold()
    async with slow.proxy(MODERN) as caller:
        listed = (await caller.call("tools/list"))["result"]
        assert listed["ttlMs"] == 0
        assert [tool["name"] for tool in listed["tools"]] == ["add", "sub", "mul"]


@on_a_loop
async def test_a_lazy_proxy_starts_a_known_server_with_the_first_call(tmp_path: Path) -> None:
    slow = Slow(tmp_path)
    await slow.learn()
    assert len(slow.lines("starts")) == 1
    async with slow.proxy(lazy=True) as caller:
        await caller.initialize()
        assert await names(caller) == ["add", "sub", "mul"]
        assert len(slow.lines("starts")) == 1
        assert await call(caller) == "1"
        assert len(slow.lines("starts")) == 2


@on_a_loop
async def test_a_server_that_ended_when_idle_is_not_started_for_a_list(tmp_path: Path) -> None:
    slow = Slow(tmp_path)
    await slow.learn()
    async with slow.proxy(lazy=True, idle_s=0.05) as caller:
        await caller.initialize()
        await call(caller)
        pid = slow.lines("starts")[-1]
        await until(lambda: not Path(f"/proc/{pid}").exists())
        assert await names(caller) == ["add", "sub", "mul"]
        assert len(slow.lines("starts")) == 2


@on_a_loop
async def test_a_waiting_call_is_told_what_the_server_does(tmp_path: Path) -> None:
    slow = Slow(tmp_path)
    await slow.learn()
    slow.hold()
    async with slow.proxy() as caller:
        await caller.initialize()
        id = caller.ask("tools/call", meta={"progressToken": "p"}, name="add", arguments={})
        told = re.compile(
            r"slow is still starting after [\d.]+ s; it wrote last: added 12 packages"
        )
        await caller.until(
            lambda: any(
                told.fullmatch(line["params"]["message"])
                for line in caller.of("notifications/progress")
            )
        )
        slow.go()
        assert "result" in await caller.response(id)


@pytest.mark.parametrize("revision", [LEGACY, MODERN])
@on_a_loop
async def test_an_unknown_server_is_waited_for_until_the_limit(
    tmp_path: Path, revision: str
) -> None:
    slow = Slow(tmp_path)
    slow.hold()
    async with slow.proxy(revision, opening_s=0.5) as caller:
        refused = (await caller.initialize())["error"]
        # It may take its time until it writes something.
        while "it wrote last" not in refused["message"]:
            refused = (await caller.initialize())["error"]
        assert refused == {
            "code": -32603,
            "message": "Internal error: slow is still starting after 0.5 s; it wrote last: "
            "added 12 packages; try again later",
        }
        slow.go()
        # It goes on starting, and the next opening succeeds.
        await until(lambda: list((tmp_path / "cache").glob("*.json")))
        assert (await caller.initialize())["result"]["instructions"] == "Be brief."
        assert len(slow.lines("starts")) == 1


@on_a_loop
async def test_of_a_silent_server_the_refusal_names_the_unanswered_request() -> None:
    proxy = Proxy([sys.executable, "-c", "input()\ninput()"], name="mute", opening_s=0.5)
    async with Host(proxy) as host:
        ours, theirs = memory_pair()
        host.attach(theirs)
        caller = Caller(ours, LEGACY, {})
        assert (await caller.initialize())["error"]["message"] == (
            "Internal error: mute is still starting after 0.5 s; it has not answered initialize; "
            "try again later"
        )


@on_a_loop
async def test_a_damaged_file_is_replaced_by_what_the_server_says(tmp_path: Path) -> None:
    slow = Slow(tmp_path)
    await slow.learn()
    [file] = (tmp_path / "cache").glob("*.json")
    before = file.read_bytes()
    file.write_bytes(before[:50])
    async with slow.proxy() as caller:
        assert "result" in await caller.initialize()
        await until(lambda: file.read_bytes() == before)


@on_a_loop
async def test_nothing_is_kept_without_a_cache(tmp_path: Path) -> None:
    slow = Slow(tmp_path)
    async with slow.proxy(cache=None) as caller:
        await caller.initialize()
        assert await names(caller) == ["add", "sub"]
        assert slow.lines("lists") == [""]
    assert not (tmp_path / "cache").exists()


@on_a_loop
async def test_a_known_server_that_cannot_start_fails_calls_with_the_reason(
    tmp_path: Path,
) -> None:
    slow = Slow(tmp_path)
    await slow.learn()
    (tmp_path / "offer").write_text("{}")
    async with slow.proxy() as caller:
        await caller.initialize()
        assert await names(caller) == ["add", "sub", "mul"]
        error = (await caller.call("tools/call", name="add", arguments={}))["error"]
        assert error["message"].startswith("slow: ")
        assert "exited with code 1" in error["message"]
        slow.offer()
        assert await call(caller) == "1"


@on_a_loop
async def test_users_do_not_see_the_lists_of_each_other(tmp_path: Path) -> None:
    slow = Slow(tmp_path)
    await slow.learn()
    slow.hold()
    proxy = Proxy(slow.server, cache=ManifestCache(tmp_path / "cache"))
    async with Host(proxy) as host:
        ours, theirs = memory_pair()
        theirs.facts = {"transport": "memory", "uid": 4711}
        served = host.attach(theirs)
        caller = Caller(ours, LEGACY, {})
        await caller.initialize()
        id = caller.ask("tools/list")
        await caller.call("ping")
        assert all(line.get("id") != id for line in caller.lines)
        slow.go()
        assert "result" in await caller.response(id)
        # The user of this process, and the user 4711.
        await until(lambda: len(list((tmp_path / "cache").glob("*.json"))) == 2)
        await ours.close(1)
        await served.closed


@on_a_loop
async def test_no_list_is_read_after_the_end_even_if_it_changes_during_the_end(
    tmp_path: Path,
) -> None:
    class Silent:
        protocol_version, server_info, instructions = LEGACY, None, None
        capabilities: Mapping[str, Any] = {"tools": {}}

        async def request(self, *_: Any, **_options: Any) -> None:
            await asyncio.Event().wait()

    # Any: of a Client, only what read_manifest() needs.
    client: Any = Silent()
    manifests = make_manifests("mute", ["mute"], "auto", ManifestCache(tmp_path), lazy=False)
    assert manifests is not None
    before = asyncio.all_tasks()
    manifests.learn(client, b"")
    closing = asyncio.create_task(manifests.close())
    await asyncio.sleep(0)
    manifests.learn(client, b"")
    await closing
    assert asyncio.all_tasks() == before
