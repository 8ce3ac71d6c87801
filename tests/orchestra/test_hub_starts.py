"""The first starts of a hub's plugins: one that is never ready holds up nobody, and who starts
when.
"""

from __future__ import annotations

import asyncio
import re
import time
from pathlib import Path
from typing import Any

import pytest
from loops import on_a_loop
from orchestra.bridges import make_certificates
from orchestra.hubs import (
    GREETER,
    SOMEBODY,
    call_tool,
    entry,
    raw,
    running,
    sdk,
    until,
    write_plugins_file,
)
from orchestra.test_embedded_hub import ENVIRONMENT, client_of, command, text_of

from concertino import Client, ServerParameters
from concertino.orchestra import first_start, plugin_run, start_waits
from concertino.orchestra.certificates import Certificates
from concertino.orchestra.hub import Hub
from concertino.orchestra.plugin_pb2 import ListToolsRequest, PluginRequest, ToolRequest
from concertino.orchestra.plugins_file import read_plugins
from concertino.orchestra.structs import unpack

# Less than the time limit for READY, however loaded the machine is.
SOON_S = 8.0
MUTE = "import time\ntime.sleep(600)\n"


def mute(folder: Path, id: str, **members: Any) -> dict[str, Any]:
    """A plugin that never says READY."""
    (folder / f"{id}.py").write_text(MUTE)
    return entry(id, f"{id}.py", **members)


async def names(hub: Hub) -> list[str]:
    listed = await hub.answer(PluginRequest(list_tools=ListToolsRequest()), SOMEBODY)
    return [tool.name for tool in listed.list_tools.tools]


@pytest.mark.parametrize("first", ["call", "list"])
@on_a_loop
async def test_a_client_s_first_request_does_not_wait_for_a_plugin_that_is_never_ready(
    folder: Path, first: str
) -> None:
    # More than the hub starts at once.
    mutes = [mute(folder, f"mute{number}") for number in range(6)]
    path = write_plugins_file(folder, *mutes, sdk(folder, "tools.greeter", GREETER))
    async with asyncio.timeout(SOON_S), client_of(str(path)) as client:
        if first == "list":
            assert [tool.name for tool in await client.list_tools()] == ["greet"]
        assert await text_of(client, "greet", name="Ada") == (False, "Hello, Ada!")


@on_a_loop
async def test_over_quic_too_although_plugins_start_one_by_one(
    folder: Path, certificates: Certificates
) -> None:
    path = write_plugins_file(
        folder,
        mute(folder, "mute", socket=False),
        sdk(folder, "tools.greeter", GREETER, socket=False),
        certs_dir=str(certificates.folder),
    )
    async with asyncio.timeout(SOON_S), client_of(str(path)) as client:
        assert await text_of(client, "greet", name="Ada") == (False, "Hello, Ada!")
        assert [tool.name for tool in await client.list_tools()] == ["greet"]


@pytest.mark.parametrize("is_first", [True, False], ids=["before", "after"])
@on_a_loop
async def test_nor_for_one_over_quic_that_computes_for_ever(
    folder: Path, certificates: Certificates, is_first: bool
) -> None:
    (folder / "busy.py").write_text("while True: pass\n")
    plugins = [
        entry("busy", "busy.py", socket=False),
        sdk(folder, "tools.greeter", GREETER, socket=False),
    ]
    path = write_plugins_file(
        folder, *(plugins if is_first else plugins[::-1]), certs_dir=str(certificates.folder)
    )
    async with asyncio.timeout(SOON_S), client_of(str(path)) as client:
        assert await text_of(client, "greet", name="Ada") == (False, "Hello, Ada!")


@on_a_loop
async def test_neither_does_it_wait_for_one_that_never_boots_or_for_its_dependents(
    folder: Path,
) -> None:
    never = """
easy = answer
async def answer(request, peer):
    if request.HasField("boot"):
        await asyncio.Event().wait()
    return await easy(request, peer)
"""
    path = write_plugins_file(
        folder,
        raw(folder, "never", never),
        raw(folder, "dependent", depends_on=["never"]),
        sdk(folder, "tools.greeter", GREETER),
    )
    hub = Hub(read_plugins(path), is_private=True)
    try:
        async with asyncio.timeout(SOON_S):
            await hub.launch()
            response = await call_tool(hub, "greet", name="Ada")
            assert unpack(response.tool_call.result) == {"text": "Hello, Ada!"}
            assert await names(hub) == ["greet"]
            assert hub.plugins["never"].state == "starting"
            assert hub.plugins["dependent"].state == "waiting"
    finally:
        await hub.stop()


@pytest.mark.parametrize(
    ("status", "message", "reason"),
    [
        ("DEGRADED", "http://x/mcp has not answered initialize", ""),
        ("DEGRADED", "", "it has not booted within 0.05 s"),
        ("HEALTHY", "all is well", "it has not booted within 0.05 s"),
    ],
)
@on_a_loop
async def test_a_plugin_that_does_not_boot_says_what_it_waits_for_and_dependents_do_so_too(
    folder: Path, monkeypatch: pytest.MonkeyPatch, status: str, message: str, reason: str
) -> None:
    monkeypatch.setattr(plugin_run, "SLOW_BOOT_S", 0.05)
    late = f"""
easy, may_boot = answer, asyncio.Event()
tools.append("late")
async def answer(request, peer):
    if request.HasField("boot"):
        await may_boot.wait()
    if request.HasField("health"):
        may_boot.set()
        health = HealthResult(status=HealthResult.{status}, message={message!r})
        return PluginResponse(health=health)
    return await easy(request, peer)
"""
    path = write_plugins_file(
        folder, raw(folder, "late", late), raw(folder, "dependent", depends_on=["late"])
    )
    hub = Hub(read_plugins(path), is_private=True)
    reported: list[str] = []
    plugin, dependent = hub.plugins["late"], hub.plugins["dependent"]
    monkeypatch.setattr(
        dependent, "_on_failed_dependency", lambda id: reported.append(hub.plugins[id].reason)
    )
    try:
        await hub.launch()
        await until(hub, "late", "running")
        await until(hub, "dependent", "running")
        assert reported == [reason or message]
        assert (await call_tool(hub, "late")).tool_call.success
        assert plugin.reason == ""
        assert plugin.restarts == 0
    finally:
        await hub.stop()


@on_a_loop
async def test_only_the_first_list_waits_for_one_that_is_still_busy_after_the_limit(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(start_waits, "START_S", 0.1)
    busy = """
easy = answer
async def answer(request, peer):
    while request.HasField("boot"):
        await asyncio.sleep(0)
    return await easy(request, peer)
"""
    path = write_plugins_file(folder, raw(folder, "busy", busy))
    hub = Hub(read_plugins(path), is_private=True)
    try:
        await hub.launch()
        assert await names(hub) == []
        monkeypatch.setattr(start_waits, "START_S", 600.0)
        async with asyncio.timeout(SOON_S):
            assert await names(hub) == []
    finally:
        await hub.stop()


BRIDGE = """
tools += ["ai_prompt"]
known = answer
async def answer(request, peer):
    if request.HasField("tool_call"):
        return error_response("", "who", os.path.basename(__file__))
    while GO and request.HasField("boot") and not os.path.exists(GO):
        await asyncio.sleep(0)
    return await known(request, peer)
"""


@pytest.mark.parametrize(
    ("provider", "expected"),
    [
        ("", "several AI providers have the tool 'ai_prompt': name one of grok, openai"),
        ("grok", "bridge_grok.py"),
        ("openai", "bridge_openai.py"),
    ],
)
@on_a_loop
async def test_a_prompt_reaches_the_same_provider_whichever_has_started_first(
    folder: Path, provider: str, expected: str
) -> None:
    path = write_plugins_file(
        folder,
        raw(folder, "bridge.openai", f"GO = ''{BRIDGE}", provides_ai=["openai"]),
        raw(folder, "bridge.grok", f"GO = {str(folder / 'go')!r}{BRIDGE}", provides_ai=["grok"]),
    )
    hub = Hub(read_plugins(path), is_private=True)
    try:
        await hub.launch()
        call = ToolRequest(tool_name="ai_prompt", provider=provider)
        asking = asyncio.ensure_future(hub.answer(PluginRequest(tool_call=call), SOMEBODY))
        await until(hub, "bridge.openai", "running")
        # Let the call go to the bridge that runs, if it does not wait.
        named = ToolRequest(tool_name="ai_prompt", provider="openai")
        await hub.answer(PluginRequest(tool_call=named), SOMEBODY)
        (folder / "go").touch()
        assert (await asking).tool_call.error_message == expected
    finally:
        await hub.stop()


@on_a_loop
async def test_a_missing_tool_is_explained_by_the_plugins_that_have_never_run(
    folder: Path,
) -> None:
    (folder / "broken.py").write_text("raise SystemExit(3)\n")
    path = write_plugins_file(
        folder,
        sdk(folder, "tools.greeter", GREETER),
        entry("tools.broken", "broken.py"),
        entry("tools.lost", "./lost.py"),
    )
    async with running(path) as hub:
        hub.withheld = {"tools.new": "not approved"}
        assert (await call_tool(hub, "mend")).tool_call.error_message == (
            "no plugin has the tool 'mend'; these plugins do not run: "
            "tools.broken (it ended with exit code 3), "
            f"tools.lost ({folder / 'lost.py'}: no such file), "
            "tools.new (not approved)"
        )


@on_a_loop
async def test_a_list_waits_for_a_plugin_that_works_until_it_is_ready(folder: Path) -> None:
    works = (
        "tools.append('late')\nuntil = time.process_time() + 1.0\n"
        "while time.process_time() < until: pass"
    )
    path = write_plugins_file(folder, raw(folder, "works", works), mute(folder, "mute"))
    hub = Hub(read_plugins(path), is_private=True)
    try:
        await hub.launch()
        assert await names(hub) == ["late"]
        assert hub.plugins["mute"].state == "starting"
    finally:
        await hub.stop()


@on_a_loop
async def test_a_call_waits_for_a_plugin_that_starts_and_no_longer_than_that(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Longer than a list waits.
    sleeps = "tools.append('late')\ntime.sleep(1.0)"
    path = write_plugins_file(folder, raw(folder, "sleeps", sleeps))
    hub = Hub(read_plugins(path), is_private=True)
    try:
        await hub.launch()
        assert await names(hub) == []
        response = await call_tool(hub, "late", n=1)
        assert unpack(response.tool_call.result) == {"n": 1}
        unknown = await call_tool(hub, "none")
        assert unknown.tool_call.error_code == "tool_not_found"
    finally:
        await hub.stop()

    monkeypatch.setattr(start_waits, "START_S", 0.2)
    hub = Hub(read_plugins(write_plugins_file(folder, mute(folder, "mute"))), is_private=True)
    try:
        await hub.launch()
        assert (await call_tool(hub, "late")).tool_call.error_code == "tool_not_found"
    finally:
        await hub.stop()


@on_a_loop
async def test_a_client_that_has_listed_is_told_of_a_plugin_that_comes_late(folder: Path) -> None:
    sleeps = "tools.append('late')\ntime.sleep(1.0)"
    path = write_plugins_file(
        folder, raw(folder, "sleeps", sleeps), sdk(folder, "tools.greeter", GREETER)
    )
    changed = asyncio.Event()
    program, *arguments = command(str(path))
    parameters = ServerParameters(program, arguments, env=ENVIRONMENT)

    async with asyncio.timeout(20), Client(parameters, changed=lambda _: changed.set()) as client:
        assert [tool.name for tool in await client.list_tools()] == ["greet"]
        await changed.wait()
        assert [tool.name for tool in await client.list_tools()] == ["greet", "late"]


# Who starts when

TIMES = """
def note(word):
    with open(os.path.join(os.path.dirname(__file__), "times"), "a") as file:
        file.write(f"{os.path.basename(__file__)} {word}\\n")
note("begins")
tools.append(os.path.basename(__file__))
async def main():
    from concertino.orchestra.authority import ensure_certificate
    from concertino.orchestra.certificates import Certificates
    certificates = Certificates(flags["--certs-dir"])
    id = os.path.basename(__file__).removesuffix(".py")
    until = time.process_time() + 0.2
    while time.process_time() < until: pass
    ensure_certificate(certificates, id)
    listening = await listen_for_links(address, answer, certificates=certificates, name=id)
    note("is ready")
    say("READY " + listening.address)
    await asyncio.Event().wait()
easy = answer
async def answer(request, peer):
    if request.HasField("list_prompts"):
        note("runs")
    return await easy(request, peer)
"""


@on_a_loop
async def test_plugins_over_quic_start_one_by_one_in_the_order_of_the_file(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # These programs in Python use more processor time before they are ready than those in Go.
    monkeypatch.setattr(first_start, "NEXT_S", 60)
    certificates = make_certificates(folder)
    ids = ["c", "a", "d", "b"]
    path = write_plugins_file(
        folder,
        *(
            raw(folder, id, TIMES, socket=False, depends_on=["b"] if id == "a" else [])
            for id in ids
        ),
        certs_dir=str(certificates.folder),
    )
    async with running(path):
        said = (folder / "times").read_text().splitlines()
    # A dependency comes before the plugin that needs it.
    assert said == [
        f"{id}.py {word}" for id in ("c", "d", "b", "a") for word in ("begins", "is ready", "runs")
    ]


@on_a_loop
async def test_plugins_with_a_socket_start_at_once(folder: Path) -> None:
    # Each is ready when the other has begun.
    meet = """
open(__file__ + ".begun", "w").close()
while not os.path.exists(os.path.join(os.path.dirname(__file__), "OTHER.py.begun")):
    time.sleep(0.01)
"""
    path = write_plugins_file(
        folder,
        raw(folder, "one", meet.replace("OTHER", "two")),
        raw(folder, "two", meet.replace("OTHER", "one")),
    )
    began = time.monotonic()
    async with running(path) as hub:
        assert {plugin.state for plugin in hub.plugins.values()} == {"running"}
    assert time.monotonic() - began < plugin_run.READY_S


SHARED = """
import os
from concertino import Plugin
from concertino.orchestra.sqlite import SqliteStorage
plugin = Plugin("ID", version="1.0.0")
# As early as a plugin can: all processes create the same file.
storage = SqliteStorage(os.path.join(os.path.dirname(__file__), "shared", "kept.db"))
@plugin.tool(name="ID")
def write() -> int:
    return storage.write("ID.md", b"text", {}, 0)
plugin.run()
"""


@on_a_loop
async def test_plugins_that_create_one_sqlite_file_at_once_all_start_and_write(
    folder: Path,
) -> None:
    ids = [f"tools.writer{number}" for number in range(8)]
    path = write_plugins_file(folder, *(sdk(folder, id, SHARED.replace("ID", id)) for id in ids))
    async with running(path) as hub:
        assert {plugin.state for plugin in hub.plugins.values()} == {"running"}
        assert [plugin.restarts for plugin in hub.plugins.values()] == [0] * len(ids)
        for response in await asyncio.gather(*(call_tool(hub, id) for id in ids)):
            assert unpack(response.tool_call.result)["text"] == "1"


SAME = """
tools += ["same", os.path.basename(__file__)]
known = answer
async def answer(request, peer):
    if request.HasField("tool_call"):
        return error_response("", "who", os.path.basename(__file__))
    return await known(request, peer)
"""


@on_a_loop
async def test_the_first_call_already_gets_the_last_plugin_over_quic_that_offers_its_tool(
    folder: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(first_start, "LATE_S", 60)
    certificates = make_certificates(folder)
    path = write_plugins_file(
        folder,
        *(raw(folder, id, TIMES + SAME, socket=False) for id in ("first", "second", "third")),
        mute(folder, "mute", socket=False),
        certs_dir=str(certificates.folder),
    )
    hub = Hub(read_plugins(path), is_private=True)
    try:
        await hub.launch()
        async with asyncio.timeout(SOON_S):
            assert (await call_tool(hub, "same")).tool_call.error_message == "third.py"
        assert hub.plugins["mute"].state == "starting"
        for _ in range(3):
            assert (await call_tool(hub, "same")).tool_call.error_message == "third.py"
    finally:
        await hub.stop()
    # The second plugin is named only if it was ready before the third.
    messages = [record.getMessage() for record in caplog.records]
    assert any(
        re.fullmatch(
            r"third offers the tool 'same', as (first|second) does, and comes later: it is used",
            message,
        )
        for message in messages
    )
