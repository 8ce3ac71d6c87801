"""hub.py, plugin_process.py, plugin_run.py, routes.py: real plugins behind a hub in this
process.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from loops import on_a_loop
from msgspec import Raw
from msgspec.json import encode
from orchestra.hubs import (
    GREETER,
    SOMEBODY,
    SOURCES,
    call_tool,
    entry,
    is_gone,
    raw,
    read,
    running,
    sdk,
    store,
    until,
    until_tools,
    write_plugins_file,
)

from concertino import RpcError
from concertino.backend import Call
from concertino.backend.caller import DetachedCaller
from concertino.orchestra import plugin_process, plugin_run, start_waits
from concertino.orchestra.certificates import Certificates
from concertino.orchestra.hub import Hub
from concertino.orchestra.hub_backend import HubBackend
from concertino.orchestra.link import open_link
from concertino.orchestra.plugin_pb2 import (
    HealthRequest,
    HealthResult,
    ListPromptsRequest,
    ListToolsRequest,
    PluginManifest,
    PluginRequest,
    PromptGetRequest,
    Subscribe,
    ToolRequest,
)
from concertino.orchestra.plugins_file import read_plugins
from concertino.orchestra.rpc_interface import RemotePeer
from concertino.orchestra.structs import pack, unpack

STORE = """
from concertino import Plugin
from concertino.orchestra.storage import StorageEntry, StoredDocument
plugin = Plugin("storage.memory", version="0.1")
class Memory:
    def __init__(self): self.held = {}
    def read(self, path): return StoredDocument(self.held[path], {}, 1)
    def write(self, path, content, metadata, expected_version):
        self.held[path] = content
        return 1
    def delete(self, path): del self.held[path]
    def list(self, prefix, pattern): return []
plugin.add_storage(Memory(), "memory")
@plugin.prompt
def ask(topic: str) -> str:
    "Ask about something."
    return f"What is {topic}?"
plugin.run()
"""


def tools_of(hub: Hub) -> list[str]:
    return [tool.name for tool in hub.routes.tool_list.list_tools.tools]


@on_a_loop
async def test_a_plugin_under_another_id_than_it_was_started_as_is_refused_when_it_registers(
    folder: Path,
) -> None:
    impostor = """
async def pretend():
    link = await open_link(hub)
    answer = await link.request(PluginRequest(register=PluginManifest(id="another")))
    with open(__file__ + ".said", "w") as file:
        file.write(answer.register.reject_reason)
    os.rename(__file__ + ".said", __file__ + ".told")
easy = answer
async def answer(request, peer):
    if request.HasField("boot"):
        await pretend()
    return await easy(request, peer)
"""
    async with running(write_plugins_file(folder, raw(folder, "impostor", impostor))):
        told = (folder / "impostor.py.told").read_text()
    assert told == "the hub started this process as impostor, not as another"


@on_a_loop
async def test_lines_of_a_plugin_have_one_time_and_their_own_level(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    noisy = """
say("[2026-11-22T05:55:30.262Z] [WARNING] [noisy] the disk is nearly full")
say("[2026-11-22T05:55:30.262Z] [INFO] [noisy.disk] of its own name")
say("[not a log line] as it is")
"""
    caplog.set_level(logging.INFO, "concertino.hub")
    async with running(write_plugins_file(folder, raw(folder, "noisy", noisy))):
        pass
    said = [
        (each.levelname, each.getMessage())
        for each in caplog.records
        if each.name == "concertino.hub.noisy"
    ]
    assert ("WARNING", "the disk is nearly full") in said
    assert ("INFO", "[noisy.disk] of its own name") in said
    assert ("INFO", "[not a log line] as it is") in said


@on_a_loop
async def test_ready_is_found_behind_a_line_that_somebody_else_has_not_ended(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "concertino.hub")
    body = "tools.append('echo'); os.write(2, b'loading ...')"
    async with running(write_plugins_file(folder, raw(folder, "loud", body))) as hub:
        assert hub.plugins["loud"].state == "running"
    assert "loading ..." in [each.getMessage() for each in caplog.records]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("foreign.sh", '#!/bin/sh\necho $$ > "$0.pid"\nexec sleep 600\n'),
        (
            "foreign.py",
            "import os, time\nopen(__file__ + '.pid', 'w').write(str(os.getpid()))\n"
            "time.sleep(600)\n",
        ),
    ],
)
@on_a_loop
async def test_a_program_that_knows_nothing_of_hubs_ends_with_a_hub_that_is_killed(
    folder: Path, name: str, text: str
) -> None:
    (folder / name).write_text(text)
    (folder / name).chmod(0o755)
    path = write_plugins_file(folder, entry("foreign", f"./{name}"))
    command = [
        sys.executable,
        "-m",
        "concertino",
        "orchestrate",
        path,
        "--listen-addr",
        f"unix:{folder}/hub",
    ]
    environment = {**os.environ, "PYTHONPATH": SOURCES}
    with subprocess.Popen(command, stderr=subprocess.DEVNULL, env=environment) as hub:
        told = folder / f"{name}.pid"
        while not told.exists() or not told.read_text():
            await asyncio.sleep(0.01)
        hub.kill()
    foreign = os.pidfd_open(int(told.read_text()))
    assert select.select([foreign], [], [], 10)[0], "it lives on"
    os.close(foreign)


@on_a_loop
async def test_tools_prompts_and_storage_of_several_plugins_are_behind_one_address(
    folder: Path,
) -> None:
    path = write_plugins_file(
        folder, sdk(folder, "tools.greeter", GREETER), sdk(folder, "storage.memory", STORE)
    )
    async with running(path, is_private=False, listen_addr=f"unix:{folder}/hub") as hub:
        link = await open_link(f"unix:{folder}/hub")
        tools = await link.request(PluginRequest(list_tools=ListToolsRequest()))
        assert [tool.name for tool in tools.list_tools.tools] == ["greet"]
        assert unpack(tools.list_tools.tools[0].input_schema)["properties"] == {
            "name": {"type": "string"}
        }
        greeted = await link.request(_asking("greet", name="Ada"))
        assert greeted.request_id == "mine"
        assert unpack(greeted.tool_call.result) == {"text": "Hello, Ada!"}
        prompts = await link.request(PluginRequest(list_prompts=ListPromptsRequest()))
        assert [prompt.name for prompt in prompts.list_prompts.prompts] == ["ask"]
        asked = PluginRequest(
            prompt_get=PromptGetRequest(prompt_name="ask", arguments={"topic": "life"})
        )
        assert (await link.request(asked)).prompt_get.messages[0].content.text == "What is life?"
        # Its type of storage is in no file: the plugin says so when it registers itself.
        while "memory" not in hub.routes.storage:
            await asyncio.sleep(0.01)
        assert hub.plugins["storage.memory"].features.manifest.version == "0.1"
        assert (await store(hub, "a", b"content", "memory")).storage_write.success
        assert (await read(hub, "a", "memory")).storage_read.content == b"content"
        nobody = await read(hub, "a")
        assert nobody.storage_read.failure.code == "storage_not_found"
        assert nobody.storage_read.failure.message == "no plugin has the storage 'markdown'"
        health = (await link.request(PluginRequest(health=HealthRequest()))).health
        assert (health.status, health.message) == (HealthResult.HEALTHY, "2 of 2 plugins run")
        unknown = await link.request(PluginRequest(subscribe=Subscribe(topic="x")))
        assert unknown.tool_call.error_code == "not_a_plugin"
        missing = await link.request(_asking("missing"))
        assert missing.tool_call.error_code == "tool_not_found"
        await link.close()


def _asking(tool: str, **arguments: str) -> PluginRequest:
    return PluginRequest(
        request_id="mine", tool_call=ToolRequest(tool_name=tool, arguments=pack(arguments).struct)
    )


@on_a_loop
async def test_structs_and_fields_that_the_hub_does_not_know_pass_as_they_are(folder: Path) -> None:
    path = write_plugins_file(folder, raw(folder, "echo", "tools.append('echo')"))
    async with running(path) as hub:
        # Bytes that are no Struct at all come back: nothing on the way has looked at them.
        request = PluginRequest(
            request_id="1", tool_call=ToolRequest(tool_name="echo", arguments=b"\xff\x00 no Struct")
        )
        assert (await hub.answer(request, SOMEBODY)).tool_call.result == b"\xff\x00 no Struct"


@pytest.mark.slow
@on_a_loop
async def test_a_killed_plugin_fails_its_calls_at_once_is_reaped_and_comes_back(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The death of its process is noticed, not that no ping is answered.
    monkeypatch.setattr(plugin_run, "HEALTH_S", 600.0)
    body = """
tools += ["hang", "echo"]
easy = answer
async def answer(request, peer):
    if request.tool_call.tool_name == "hang":
        say("hanging")
        await asyncio.Event().wait()
    return await easy(request, peer)
"""
    path = write_plugins_file(
        folder, raw(folder, "tools.raw", body), sdk(folder, "tools.greeter", GREETER)
    )
    async with running(path) as hub:
        plugin = hub.plugins["tools.raw"]
        first = plugin.pid
        assert first is not None
        hanging = asyncio.ensure_future(call_tool(hub, "hang"))
        while not plugin._in_flight:
            await asyncio.sleep(0)
        # One that takes its time keeps no other waiting.
        assert unpack((await call_tool(hub, "greet", name="Ada")).tool_call.result) == {
            "text": "Hello, Ada!"
        }
        assert unpack((await call_tool(hub, "echo", n=1)).tool_call.result) == {"n": 1}
        os.kill(first, signal.SIGKILL)
        failed = (await hanging).tool_call
        assert failed.error_code == "plugin_unavailable"
        assert failed.error_message == (
            "tools.raw: it was ended by signal 9; this call got no response"
        )
        down = await call_tool(hub, "echo")
        assert down.tool_call.error_code == "plugin_unavailable"
        assert unpack((await call_tool(hub, "greet", name="Ada")).tool_call.result) == {
            "text": "Hello, Ada!"
        }
        assert tools_of(hub) == ["echo", "greet", "hang"]  # lists do not flap
        await until(hub, "tools.raw", "running")
        assert plugin.restarts == 1
        assert plugin.pid != first
        assert is_gone(first)
        assert unpack((await call_tool(hub, "echo", n=1)).tool_call.result) == {"n": 1}


@pytest.mark.slow
@on_a_loop
async def test_a_stopped_plugin_is_noticed_by_its_health_and_replaced(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plugin_run, "HEALTH_S", 0.3)
    path = write_plugins_file(folder, raw(folder, "tools.raw", "tools.append('echo')"))
    async with running(path) as hub:
        first = hub.plugins["tools.raw"].pid
        assert first is not None
        os.kill(first, signal.SIGSTOP)
        waiting = asyncio.ensure_future(call_tool(hub, "echo"))
        await until(hub, "tools.raw", "backing-off")
        failed = (await waiting).tool_call
        assert failed.error_code == "plugin_unavailable"
        assert failed.error_message == (
            "tools.raw: it did not answer a health ping within 0.3 s; this call got no response"
        )
        assert "did not answer a health ping within 0.3 s" in hub.plugins["tools.raw"].reason
        assert (await call_tool(hub, "echo")).tool_call.error_code == "plugin_unavailable"
        await until(hub, "tools.raw", "running")
        assert is_gone(first)


@pytest.mark.slow
@on_a_loop
async def test_whatever_else_a_plugin_does_wrong_the_others_run(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(plugin_run, "READY_S", 5.0)
    monkeypatch.setattr(plugin_process, "FIRST_S", 60.0)  # one attempt each
    refuses = """
easy = answer
async def answer(request, peer):
    if request.HasField("WHICH"):
        return PluginResponse(WHICH=RESULT)
    return await easy(request, peer)
"""
    exits = """
async def answer(request, peer):
    if request.HasField("boot"):
        os._exit(9)
    return PluginResponse(register=RegistrationResult(accepted=True))
"""
    twice = """
tools.append("echo")
once = listen_for_links
async def listen_for_links(*all):
    await once(*all)
    say("READY " + address)
"""
    no_register = refuses.replace("WHICH", "register").replace(
        "RESULT", "RegistrationResult(reject_reason='not me')"
    )
    no_boot = refuses.replace("WHICH", "boot").replace("RESULT", "BootResult(error='no disk')")
    path = write_plugins_file(
        folder,
        raw(folder, "mute", "async def main():\n    await asyncio.Event().wait()\n"),
        raw(folder, "leaves", "os._exit(7)"),
        raw(folder, "leaves.in.boot", exits),
        raw(folder, "not.me", no_register),
        raw(folder, "no.disk", no_boot),
        raw(
            folder,
            "elsewhere",
            "async def main():\n    say('READY unix:/tmp/other')\n"
            "    await asyncio.Event().wait()\n",
        ),
        raw(
            folder,
            "nobody.there",
            "async def main():\n    say('READY ' + address)\n    await asyncio.Event().wait()\n",
        ),
        entry("missing", "./missing"),
        entry("no.command", "no-command-of-this-name"),
        raw(folder, "twice", twice),
    )
    async with running(path) as hub:
        assert unpack((await call_tool(hub, "echo", n=1)).tool_call.result) == {"n": 1}
        assert hub.plugins["twice"].state == "running"
        why = {id: plugin.reason for id, plugin in hub.plugins.items() if plugin.state != "running"}
        assert why == {
            "mute": "expected READY on its stderr within 5 s, got none "
            "(an MCP server needs `protocol: mcp`)",
            "leaves": "it ended with exit code 7",
            "leaves.in.boot": "it ended with exit code 9",
            "not.me": "it refuses to be not.me: not me",
            "no.disk": "it could not boot: no disk",
            "elsewhere": f"expected READY "
            f"unix:{hub._listeners.folder}/5.sock, got READY "
            f"unix:/tmp/other",
            "nobody.there": f"unix:{hub._listeners.folder}/6.sock: No such file or directory",
            "missing": f"{folder}/missing: no such file",
            "no.command": why["no.command"],
        }
        assert "no-command-of-this-name: command not found in PATH=" in why["no.command"]
        assert "it says READY again" in caplog.text
        health = (await hub.answer(PluginRequest(health=HealthRequest()), SOMEBODY)).health
        assert (health.status, health.message) == (HealthResult.DEGRADED, "1 of 10 plugins run")
        assert health.details["leaves"] == "backing-off: it ended with exit code 7"


@on_a_loop
async def test_a_flood_of_stderr_is_read_and_bounded_and_the_plugin_answers(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "concertino")
    body = """
tools.append("echo")
os.write(2, b"flooding\\n" * 100_000)
easy = answer
async def answer(request, peer):
    if request.HasField("tool_call"):
        for _ in range(100):
            os.write(2, b"x" * 65536 + b"\\n" + b"\\x1b[31mred\\n")
    return await easy(request, peer)
"""
    path = write_plugins_file(folder, raw(folder, "loud", body))
    began = time.monotonic()
    async with running(path) as hub:
        assert unpack((await call_tool(hub, "echo", n=1)).tool_call.result) == {"n": 1}
        lines = [
            record.getMessage() for record in caplog.records if record.name == "concertino.hub.loud"
        ]
        later = 20 * (time.monotonic() - began)
        count = re.compile(r"\d+ lines of its output were dropped: it writes more than 20 a second")
        async with asyncio.timeout(10):  # although it is quiet now
            while not any(count.fullmatch(record.getMessage()) for record in caplog.records):
                await asyncio.sleep(0.01)
        assert (
            200 <= lines.count("flooding") <= 200 + later
        )  # the burst that one plugin has, and 20 a second
        assert len(lines) <= 200 + later + 100


@on_a_loop
async def test_secrets_of_a_plugin_s_environment_and_control_characters_are_not_in_its_log_lines(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "concertino")
    body = "say('key ' + os.environ['SHOP_API_KEY'] + ' \\x1b[31m'); print('to stdout', flush=True)"
    secret = "sk-0123456789abcdef"
    path = write_plugins_file(folder, raw(folder, "talks", body, env={"SHOP_API_KEY": secret}))
    async with running(path) as hub:
        assert hub.plugins["talks"].state == "running"
    lines = [
        record.getMessage() for record in caplog.records if record.name == "concertino.hub.talks"
    ]
    assert "key [REDACTED] \\x1b[31m" in lines
    assert "to stdout" in lines
    assert secret not in caplog.text


@pytest.mark.slow
@on_a_loop
async def test_a_plugin_cannot_register_as_another(folder: Path) -> None:
    liar = """
async def lie():
    link = await open_link(hub)
    manifest = PluginManifest(id="victim", version="666", provides_storage=["markdown"])
    answer = await link.request(PluginRequest(register=manifest))
    with open(__file__ + ".said", "w") as file:
        file.write(answer.register.reject_reason)
    os.rename(__file__ + ".said", __file__ + ".told")
easy = answer
async def answer(request, peer):
    if request.HasField("boot"):
        await lie()
    return await easy(request, peer)
"""
    path = write_plugins_file(
        folder, raw(folder, "victim"), raw(folder, "liar", liar, depends_on=["victim"])
    )
    async with running(path) as hub:
        assert hub.plugins["liar"].state == "running"
        told = (folder / "liar.py.told").read_text()
        assert told == "this process is not one that the hub started as victim"
        assert (hub.plugins["victim"].features.manifest.version, hub.routes.storage) == ("", {})


@on_a_loop
async def test_a_certificate_binds_the_id_that_registers_and_the_caller_of_a_tool(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The call would wait for the plugin, which is never started.
    monkeypatch.setattr(start_waits, "START_S", 0.05)
    hub = Hub(read_plugins(write_plugins_file(folder, entry("tools.greeter", "./x"))))
    for name, id, accepted in (
        ("tools.greeter-client", "tools.greeter", True),
        ("tools.other-client", "tools.greeter", False),
        ("transport.stdio-client", "transport.stdio", True),
        ("tools.other-client", "transport.stdio", False),
    ):
        request = PluginRequest(register=PluginManifest(id=id, version="3"))
        answer = await hub.answer(request, RemotePeer("127.0.0.1:1", name))
        assert answer.register.accepted is accepted, (name, id)
    assert hub.plugins["tools.greeter"].features.manifest.version == "3"
    call = PluginRequest(tool_call=ToolRequest(tool_name="x", caller_plugin="somebody.else"))
    await hub.answer(call, RemotePeer("127.0.0.1:1", "tools.other-client"))
    assert call.tool_call.caller_plugin == "tools.other"


@pytest.mark.slow
@on_a_loop
async def test_of_two_plugins_with_the_same_tool_the_first_in_the_file_has_it(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    who = """
tools += ["same", "own_WHO"]
easy = answer
async def answer(request, peer):
    if request.HasField("tool_call"):
        return PluginResponse(tool_call=ToolResponse(success=True, error_code="WHO"))
    return await easy(request, peer)
"""
    path = write_plugins_file(
        folder,
        raw(
            folder,
            "first",
            "time.sleep(0.5)\n" + who.replace("WHO", "first"),
            provides_storage=["markdown"],
        ),
        raw(folder, "second", who.replace("WHO", "second"), provides_storage=["markdown"]),
    )
    collision = "second offers the tool 'same', which is first's: it is refused"
    async with running(path) as hub:
        async with asyncio.timeout(5):
            while collision not in [
                record.getMessage() for record in caplog.records
            ]:  # without anybody asking
                await asyncio.sleep(0.001)
        assert tools_of(hub) == ["own_first", "own_second", "same"]
        assert (await call_tool(hub, "same")).tool_call.error_code == "first"
        assert (await call_tool(hub, "own_second")).tool_call.error_code == "second"
        assert hub.routes.storage["markdown"].id == "first"
    said = [record.getMessage() for record in caplog.records if "refused" in record.getMessage()]
    assert said.count(collision) == 1
    assert "second offers storage 'markdown', which is first's: it is refused" in said


@on_a_loop
async def test_a_call_for_an_ai_provider_reaches_its_bridge_and_no_other(folder: Path) -> None:
    bridge = """
from concertino import Plugin
plugin = Plugin("bridge.WHO", provides_ai=["WHO"])
@plugin.tool
def ai_prompt(prompt: str) -> str:
    return "WHO: " + prompt
plugin.run()
"""
    path = write_plugins_file(
        folder,
        *(
            sdk(folder, f"bridge.{ai}", bridge.replace("WHO", ai))
            for ai in ("openai", "claude", "gemini")
        ),
    )
    arguments = b'{"prompt": "hi"}'
    async with running(path) as hub:
        backend = HubBackend(lambda request, _: hub.answer(request, SOMEBODY))

        async def ask(provider: str | None) -> Any:
            meta = {} if provider is None else {"orchestra/provider": provider}
            params = {"name": Raw(b'"ai_prompt"'), "arguments": Raw(arguments)}
            call = Call("tools/call", params, {key: Raw(encode(meta[key])) for key in meta})
            return await backend.handle(call, cast(Any, SimpleNamespace(caller=DetachedCaller())))

        for provider, expected in (
            (None, "claude: hi"),
            ("gemini", "gemini: hi"),
            ("kimi", "openai: hi"),
        ):
            result = await ask(provider)
            assert result.content[0].text == expected
        refused = await ask("mistral")
        assert refused.is_error
        assert refused.content[0].text == (
            "no plugin is a bridge to the AI provider 'mistral'; available: claude, gemini, openai"
        )
        with pytest.raises(RpcError, match=r"params\._meta\.orchestra/provider: expected a string"):
            await ask(7)  # type: ignore[arg-type]


@on_a_loop
async def test_plugins_start_after_those_they_depend_on_and_end_before_them(folder: Path) -> None:
    history = folder / "history"
    body = f"""
def note(what):
    with open({str(history)!r}, "a") as file:
        file.write(what + " " + __file__.rpartition("/")[2][:-3] + "\\n")
note("start")
easy = answer
async def answer(request, peer):
    if request.HasField("boot"):
        note("boot")
    if request.HasField("shutdown"):
        note("shutdown")
        asyncio.get_running_loop().call_later(0.05, os._exit, 0)
        return PluginResponse(shutdown=ShutdownResult(clean=True))
    return await easy(request, peer)
"""
    path = write_plugins_file(
        folder,
        raw(folder, "c", body, depends_on=["b"]),
        raw(folder, "b", body, depends_on=["a"]),
        raw(folder, "a", body),
    )
    async with running(path):
        pass
    said = history.read_text().splitlines()
    assert said == [
        *(f"{what} {id}" for id in "abc" for what in ("start", "boot")),
        *(f"shutdown {id}" for id in "cba"),
    ]


@pytest.mark.slow
@on_a_loop
async def test_a_plugin_waits_for_one_that_fails_and_starts_when_that_runs(folder: Path) -> None:
    path = write_plugins_file(
        folder, entry("late", "./late.py"), raw(folder, "needs.late", "", depends_on=["late"])
    )
    async with running(path) as hub:
        needs = hub.plugins["needs.late"]
        assert (needs.state, needs.reason) == ("waiting", "it depends on late, which does not run")
        raw(folder, "late")
        await until(hub, "needs.late", "running")
        assert hub.plugins["late"].state == "running"


@on_a_loop
async def test_a_cancelled_call_is_cancelled_at_the_plugin(folder: Path) -> None:
    body = f"""
tools.append("hang")
easy = answer
async def answer(request, peer):
    if request.HasField("tool_call"):
        open({str(folder / "begun")!r}, "w").close()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            open({str(folder / "cancelled")!r}, "w").close()
            raise
    return await easy(request, peer)
"""
    path = write_plugins_file(folder, raw(folder, "tools.raw", body))
    async with running(path, is_private=False, listen_addr=f"unix:{folder}/hub"):
        link = await open_link(f"unix:{folder}/hub")
        asking = asyncio.ensure_future(link.request(_asking("hang")))
        while not (folder / "begun").exists():
            await asyncio.sleep(0.01)
        asking.cancel()
        while not (folder / "cancelled").exists():
            await asyncio.sleep(0.01)
        await link.close()


@pytest.mark.slow
@on_a_loop
async def test_a_hub_that_ends_lets_calls_finish_and_leaves_nothing(folder: Path) -> None:
    slow = """
@plugin.tool
async def slow() -> str:
    "Take a moment."
    import asyncio
    await asyncio.sleep(0.3)
    return "done"
plugin.run()
"""
    stubborn = (
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nif not os.fork():\n    signal.pause()\n"
    )
    before = set(os.listdir("/proc/self/fd"))
    path = write_plugins_file(
        folder,
        sdk(folder, "tools.greeter", GREETER.replace("plugin.run()\n", slow)),
        raw(folder, "stubborn", stubborn),
    )
    async with running(path) as hub:
        pids = [plugin.pid for plugin in hub.plugins.values()]
        sockets = hub._listeners.folder
        calling = asyncio.ensure_future(call_tool(hub, "slow"))
        while not hub.plugins["tools.greeter"]._in_flight:
            await asyncio.sleep(0)
    assert unpack((await calling).tool_call.result) == {"text": "done"}
    assert all(pid is not None and is_gone(pid) for pid in pids)
    assert pids[1] not in _groups()
    assert sockets is not None
    assert not sockets.exists()
    assert set(os.listdir("/proc/self/fd")) == before
    assert (await call_tool(hub, "slow")).tool_call.error_code == "plugin_unavailable"


def _groups() -> set[int]:
    """The process groups that have members; zombies, which init is slow to reap in some containers,
    are none.
    """
    groups: set[int] = set()
    for place in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, group = place.read_text().rpartition(")")[2].split()[:3]
        except OSError:
            continue
        if state != "Z":
            groups.add(int(group))
    return groups


FORGETFUL = """
tools += ["one"]
easy, lists = answer, 0
async def answer(request, peer):
    global lists
    kind = request.WhichOneof("request")
    if kind == "list_tools":
        lists += 1
        if lists == 2:
            return error_response("", "list_tools_error", "the server has ended")
    if kind == "list_prompts" and lists < 3:
        prompts = [PromptDefinition(name="ask")] * (lists == 1)
        if not prompts:
            return error_response("", "list_prompts_error", "the server has ended")
        return PluginResponse(list_prompts=ListPromptsResponse(prompts=prompts))
    if kind == "tool_call":
        tools[:] = ["one", "two"]
        link = await open_link(hub)
        await link.request(PluginRequest(register=PluginManifest(id="tools.raw")))
    return await easy(request, peer)
"""


@on_a_loop
async def test_a_plugin_that_cannot_list_its_tools_for_a_while_keeps_them(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(write_plugins_file(folder, raw(folder, "tools.raw", FORGETFUL))) as hub:
        assert (await call_tool(hub, "one")).tool_call.success
        while "it does not list its tools: the server has ended" not in caplog.messages:
            await asyncio.sleep(0.001)
        fetching = hub.plugins["tools.raw"]._run._fetching
        assert fetching is not None
        await fetching
        assert tools_of(hub) == ["one"]
        assert list(hub.routes.prompts) == ["ask"]
        # The next time, it can.
        assert (await call_tool(hub, "one")).tool_call.success
        await until_tools(hub, ["one", "two"])


@pytest.mark.slow
@on_a_loop
async def test_what_a_plugin_offers_after_a_restart_is_on_change(folder: Path) -> None:
    body = f"tools += ['echo'] + (['more'] if os.path.exists({str(folder / 'more')!r}) else [])"
    path = write_plugins_file(folder, raw(folder, "tools.raw", body))
    async with running(path) as hub:
        told: asyncio.Queue[str] = asyncio.Queue()
        hub._list_changes._last = hub._serialize_lists()
        hub.on_change = told.put_nowait
        (folder / "more").touch()
        descriptors = set(os.listdir("/proc/self/fd"))
        assert hub.plugins["tools.raw"].pid is not None
        os.kill(hub.plugins["tools.raw"].pid, signal.SIGKILL)
        assert await told.get() == "tools"
        assert tools_of(hub) == ["echo", "more"]
        assert told.empty()
        assert (
            set(os.listdir("/proc/self/fd")) == descriptors
        )  # a restart keeps nothing of the one before


@on_a_loop
async def test_a_plugin_without_a_socket_is_reached_over_quic(
    folder: Path, certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The death of its process is noticed, not that no ping is answered.
    monkeypatch.setattr(plugin_run, "HEALTH_S", 600.0)
    # From what was issued, without the authority's key.
    shutil.copytree(certificates.folder, folder / "certs", ignore=shutil.ignore_patterns("ca.key"))
    path = write_plugins_file(
        folder, {**sdk(folder, "tools.greeter", GREETER), "socket": False}, certs_dir="certs"
    )
    async with running(path, is_private=False, listen_addr="127.0.0.1:0") as hub:
        [address] = hub.addresses
        name = "tools.greeter-client"
        link = await open_link(
            address, certificates=certificates, name=name, expects="orchestrator"
        )
        greeted = await link.request(_asking("greet", name="Ada"))
        assert unpack(greeted.tool_call.result) == {"text": "Hello, Ada!"}
        while hub.plugins["tools.greeter"].features.manifest.version != "1.2.0":
            await asyncio.sleep(0.01)
        os.kill(hub.plugins["tools.greeter"].pid or 0, signal.SIGSTOP)
        hanging = asyncio.ensure_future(call_tool(hub, "greet", name="x"))
        while not hub.plugins["tools.greeter"]._in_flight:
            await asyncio.sleep(0)
        os.kill(hub.plugins["tools.greeter"].pid or 0, signal.SIGKILL)
        await until(hub, "tools.greeter", "backing-off")
        failed = await hanging
        # Told by the process or by its port, whichever is first.
        seen = ("it was ended by signal 9", "Connection refused")
        reason, _, effect = failed.tool_call.error_message.partition("; ")
        assert reason.removeprefix("tools.greeter: ") in seen
        assert effect == "this call got no response"
        assert (
            await call_tool(hub, "greet", name="x")
        ).tool_call.error_code == "plugin_unavailable"
        await until(hub, "tools.greeter", "running")
        await link.close()


@on_a_loop
async def test_a_hub_that_cannot_listen_leaves_nothing(
    folder: Path, certificates: Certificates
) -> None:
    path = write_plugins_file(folder, raw(folder, "tools.raw"))
    (folder / "hub").write_text("no socket")
    before = set(os.listdir("/proc/self/fd"))
    hub = Hub(read_plugins(path), listen_addr=f"unix:{folder}/hub")
    with pytest.raises(OSError, match="hub"):
        await hub.start()
    assert hub._listeners.folder is None
    assert set(os.listdir("/proc/self/fd")) == before


@on_a_loop
async def test_what_a_killed_hub_has_left_is_removed_and_nothing_else(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    held: list[socket.socket] = []
    for name, age_s, listens in (
        ("dead_old", 100, False),
        ("dead_new", 0, False),
        ("alive_ol", 100, True),
    ):
        place = folder / f"orchestra-{name}"
        place.mkdir(mode=0o700)
        sock = socket.socket(socket.AF_UNIX)
        sock.bind(str(place / "hub.sock"))
        if listens:
            sock.listen()
            held.append(sock)
        else:
            sock.close()
        then = time.time() - age_s
        os.utime(place, (then, then))
    (folder / "orchestra-somebody").mkdir()
    (folder / "orchestra-notahub1").mkdir()
    os.utime(folder / "orchestra-notahub1", (1, 1))
    async with running(write_plugins_file(folder)) as hub:
        own = hub._listeners.folder
    assert own is not None
    left = {place.name for place in folder.glob("orchestra-*")} - {own.name}
    assert left == {
        f"orchestra-{name}" for name in ("dead_new", "alive_ol", "somebody", "notahub1")
    }
    held[0].close()
