"""`hub:` in a plugins file, and request_path.py: hubs that call other hubs. All are real."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from loops import on_a_loop
from msgspec import Raw
from msgspec.json import decode, encode
from orchestra.hubs import (
    GREETER,
    SOMEBODY,
    SOURCES,
    WORKSHOP,
    call_tool,
    running,
    sdk,
    until,
    until_tools,
    write_plugins_file,
)

from concertino import RpcError
from concertino.orchestra.hub import Hub
from concertino.orchestra.plugin_pb2 import (
    PluginRequest,
    PluginResponse,
    PromptGetRequest,
    StorageListRequest,
    StorageReadRequest,
    StreamStart,
)
from concertino.orchestra.plugins_file import InvalidPluginsFile, read_plugins
from concertino.orchestra.request_path import extend_path, read_path
from concertino.orchestra.structs import unpack

MEMO = """
from concertino import Server
server = Server("memo")

@server.resource("memo://one", mime_type="text/plain")
def memo() -> str:
    return "the first memo"

server.run()
"""


def other_hub(id: str, folder: Path, **members: Any) -> dict[str, Any]:
    """The entry of another hub, which listens in a folder."""
    environment = {"PYTHONPATH": SOURCES, "PYTHONDONTWRITEBYTECODE": "1"}
    address = f"unix:{folder / 'run' / 'hub'}"
    return {"id": id, "hub": address, "enabled": True, "env": environment, **members}


def memo(folder: Path) -> dict[str, Any]:
    (folder / "memo.py").write_text(MEMO)
    command = [sys.executable, "memo.py"]
    return {"id": "tools.memo", "protocol": "mcp", "command": command, "enabled": True}


@asynccontextmanager
async def listening(folder: Path, *entries: Mapping[str, Any]) -> AsyncIterator[Hub]:
    """A hub that listens in a folder."""
    (folder / "run").mkdir(mode=0o700, parents=True)
    address = f"unix:{folder / 'run' / 'hub'}"
    path = write_plugins_file(folder, *entries)
    async with running(path, is_private=False, listen_addr=address) as hub:
        yield hub


async def ask(hub: Hub, **content: Any) -> PluginResponse:
    return await hub.answer(PluginRequest(request_id="1", **content), SOMEBODY)


@on_a_loop
async def test_the_features_of_another_hub_are_those_of_a_plugin(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    there.mkdir()
    plugins = sdk(there, "tools.workshop", WORKSHOP), memo(there)
    async with listening(there, *plugins), listening(here, other_hub("hub.there", there)) as hub:
        await until_tools(hub, ["count"])
        response = await call_tool(hub, "count")
        assert unpack(response.tool_call.result) == {"text": "done"}

        start = StreamStart(stream_id="1", tool_name="count", window=1 << 20)
        responses = [item async for item in hub.stream(start, SOMEBODY)]
        assert [item.stream_chunk.data for item in responses[:-1]] == [b"half"]

        prompt = PromptGetRequest(prompt_name="ask", arguments={"topic": "a hub"})
        got = await ask(hub, prompt_get=prompt)
        assert got.prompt_get.messages[0].content.text == "What is a hub?"

        listed = await ask(hub, storage_list=StorageListRequest(storage_type="mcp"))
        assert "memo://one" in [entry.path for entry in listed.storage_list.entries]
        read = StorageReadRequest(path="memo://one", storage_type="mcp")
        assert (await ask(hub, storage_read=read)).storage_read.content == b"the first memo"


@on_a_loop
async def test_a_request_that_comes_back_to_a_hub_is_refused_with_its_path(
    tmp_path: Path,
) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    there.mkdir()
    own = [sdk(there, "tools.greeter", GREETER), sdk(there, "tools.workshop", WORKSHOP)]
    circle = other_hub("hub.here", here)
    async with (
        listening(there, *own) as other,
        listening(here, other_hub("hub.there", there)) as hub,
    ):
        await until_tools(hub, ["count", "greet"])
        assert (await call_tool(hub, "greet", name="Ada")).tool_call.success
        # First a circle, then one in which each hub has the tools only by the other one.
        for plugins in ([*own, circle], [circle]):
            path = write_plugins_file(there, *plugins)
            await other.change_plugins(read_plugins(path).enabled)
            await until(other, "hub.here", "running")
        problem = (
            "the request has come back to a hub that it has passed: hub.there -> hub.here -> "
            "hub.there; these plugins connect hubs in a circle: remove one of them"
        )
        response = await call_tool(hub, "greet", name="Ada")
        assert not response.tool_call.success
        assert problem in response.tool_call.error_message

        start = StreamStart(stream_id="1", tool_name="count", window=1 << 20)
        responses = [item async for item in hub.stream(start, SOMEBODY)]
        assert problem in responses[-1].stream_end.result.error_message

        got = await ask(
            hub, prompt_get=PromptGetRequest(prompt_name="ask", arguments={"topic": "x"})
        )
        assert problem in got.prompt_get.failure.message

        # Each list asks the other hub, which asks back.
        listed = await ask(hub, storage_list=StorageListRequest(storage_type="mcp"))
        assert not listed.storage_list.entries
        read = StorageReadRequest(path="memo://one", storage_type="mcp")
        assert problem in (await ask(hub, storage_read=read)).storage_read.failure.message


def test_what_may_not_stand_beside_another_hub_is_named(tmp_path: Path) -> None:
    path = write_plugins_file(tmp_path, {**other_hub("hub.a", tmp_path), "command": "x"})
    with pytest.raises(InvalidPluginsFile, match=r"\(?.*command: expected no `hub` beside it"):
        read_plugins(path)
    path = write_plugins_file(tmp_path, {"id": "hub.a", "hub": "nowhere"})
    with pytest.raises(InvalidPluginsFile, match="hub: expected HOST:PORT or unix:PATH"):
        read_plugins(path)


def test_the_bridge_uses_the_certificates_of_the_file(tmp_path: Path) -> None:
    entry = {"id": "hub.a", "hub": "a.example:50100", "enabled": True}
    [read] = read_plugins(write_plugins_file(tmp_path, entry, certs_dir="certs")).enabled
    assert f"--certs-dir={tmp_path / 'certs'}" in read.config["server"]
    assert "--orchestrator-addr=a.example:50100" in read.config["server"]


@on_a_loop
async def test_the_hub_s_folder_of_certificates_is_also_that_of_its_bridges(tmp_path: Path) -> None:
    path = write_plugins_file(tmp_path, other_hub("hub.a", tmp_path), certs_dir="certs")
    entries = read_plugins(path).enabled
    before = entries[0].config["server"]
    async with running(write_plugins_file(tmp_path), certs_dir=tmp_path / "others") as hub:
        await hub.change_plugins(entries)
        [bridge] = decode(hub.plugins["hub.a"].entry.config["server"])["mcpServers"].values()
        # The last one counts.
        assert bridge["args"][-1] == f"--certs-dir={tmp_path / 'others'}"
    # What is approved does not depend on the option.
    assert entries[0].config["server"] == before
    hub = Hub(read_plugins(write_plugins_file(tmp_path, other_hub("hub.a", tmp_path))))
    assert "--certs-dir" not in hub.plugins["hub.a"].entry.config["server"]
    hub = Hub(
        read_plugins(write_plugins_file(tmp_path, other_hub("hub.a", tmp_path))), certs_dir="."
    )
    assert f"--certs-dir={Path.cwd()}" in hub.plugins["hub.a"].entry.config["server"]


def test_a_path_has_a_bound() -> None:
    path: list[str] = []
    for number in range(16):
        path = extend_path(path, f"hub.{number}#1")
    with pytest.raises(RpcError, match=r"more than 16 hubs: hub\.0 -> hub\.1 "):
        extend_path(path, "hub.16#1")


@pytest.mark.parametrize(
    "value", [b"1", b'["a", 2]', b'"a"', encode(["x" * 129]), encode(["a"] * 17)]
)
def test_a_path_that_no_hub_makes_is_refused(value: bytes) -> None:
    with pytest.raises(RpcError, match=r"orchestra/path: expected at most 16 strings"):
        read_path({"orchestra/path": Raw(value)})


def test_a_request_without_a_path_has_an_empty_one() -> None:
    assert read_path({}) == []
