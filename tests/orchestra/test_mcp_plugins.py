"""mcp_plugin.py, mcp_sessions.py, mcp_resources.py: MCP servers as plugins of a hub.

The servers are processes behind `concertino plugin mcp`: one of concertino, one of the official
SDK, and one by hand that only knows a handshake.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from http_service import serving
from loops import on_a_loop
from orchestra.hubs import (
    GREETER,
    SOMEBODY,
    SOURCES,
    call_tool,
    running,
    sdk,
    until,
    until_tools,
    write_plugins_file,
)
from process_waits import wait_for_end

from concertino import Client, RpcError, ToolError
from concertino.orchestra import mcp_updates, start_waits
from concertino.orchestra.certificates import Certificates
from concertino.orchestra.embedded_hub import EmbeddedHub
from concertino.orchestra.hub import Hub
from concertino.orchestra.mcp_plugin import McpPlugin
from concertino.orchestra.mcp_updates import McpUpdates
from concertino.orchestra.plugin_events import EventHandlers, publish_request
from concertino.orchestra.plugin_pb2 import (
    BootRequest,
    HealthRequest,
    ListPromptsRequest,
    PluginRequest,
    PluginResponse,
    PromptGetRequest,
    StorageListRequest,
    StorageReadRequest,
    StorageWriteRequest,
    StreamStart,
    ToolRequest,
)
from concertino.orchestra.plugins_file import InvalidPluginsFile, read_plugins
from concertino.orchestra.structs import pack, unpack

TESTS = Path(__file__).parents[1]
OFFICIAL = TESTS / "interop" / "servers" / "mcp_2.py"
PLAIN = TESTS / "proxy" / "plain_server.py"
OURS = """
import os
from concertino import Context, Server, ToolError
server = Server("ours")

@server.tool
def join(left: str, right: str) -> dict[str, str]:
    "Join two texts."
    return {"joined": left + right}

@server.tool
async def work(context: Context) -> str:
    await context.progress(1, 2, "half")
    return "done"

@server.tool
def refuse() -> str:
    raise ToolError("NO", "not today")

@server.tool
def process() -> int:
    return os.getpid()

@server.tool
def end() -> str:
    os._exit(7)

@server.tool
async def grow(context: Context) -> str:
    @server.tool(name="grown")
    def grown() -> str:
        return "new"
    return "grown"

@server.prompt
def ask(topic: str) -> str:
    "Ask about something."
    return f"What is {topic}?"

@server.resource("memo://one", mime_type="text/plain")
def memo() -> str:
    return "the first memo"

@server.resource("memo://by/{name}")
def memo_by(name: str) -> str:
    return f"a memo by {name}"

server.run()
"""


def mcp(id: str, *command: str | Path, **members: Any) -> dict[str, Any]:
    """An entry of a plugins file for an MCP server that runs in this Python."""
    words = [sys.executable, *map(str, command)]
    return {"id": id, "protocol": "mcp", "command": words, "enabled": True, **members}


def ours(folder: Path, id: str = "tools.ours", **members: Any) -> dict[str, Any]:
    (folder / "ours.py").write_text(OURS)
    return mcp(id, "ours.py", **members)


async def ask_hub(hub: Hub, **content: Any) -> PluginResponse:
    return await hub.answer(PluginRequest(request_id="1", **content), SOMEBODY)


def result_of(response: PluginResponse) -> dict[str, Any]:
    call = response.tool_call
    assert call.success, call.error_message
    return unpack(call.result, call.result_json)


@on_a_loop
async def test_servers_of_both_eras_offer_their_tools_through_the_plugin_protocol(
    folder: Path,
) -> None:
    path = write_plugins_file(
        folder,
        ours(folder),
        mcp("tools.official", OFFICIAL),
        mcp("tools.plain", PLAIN, "plain", env={"STARTS": str(folder / "starts")}),
    )
    async with running(path) as hub:
        names = [tool.name for tool in hub.routes.tool_list.list_tools.tools]
        assert names == [
            "add", "end", "fail", "greet", "grow", "join", "process", "refuse", "sleep", "slow",
            "who", "work",
        ]  # fmt: skip
        assert result_of(await call_tool(hub, "join", left="a", right="b")) == {"joined": "ab"}
        assert result_of(await call_tool(hub, "add", a=1, b=2))["text"] == "3"
        facts = json.loads(result_of(await call_tool(hub, "who"))["text"])
        assert facts["argv"] == ["plain"]

        refused = (await call_tool(hub, "refuse")).tool_call
        assert (refused.error_code, refused.error_message) == ("NO", "not today")
        invalid = (await call_tool(hub, "join", left="a")).tool_call
        assert invalid.error_code == "INVALID_ARGUMENTS"
        assert "right" in invalid.error_message

        start = StreamStart(stream_id="s", tool_name="work", window=2**20)
        chunk, end = [item async for item in hub.stream(start, SOMEBODY)]
        assert (chunk.stream_chunk.progress, chunk.stream_chunk.total) == (1, 2)
        assert chunk.stream_chunk.data == b"half"
        assert unpack(end.stream_end.result.result) == {"text": "done"}


@on_a_loop
async def test_prompts_and_resources_reach_other_plugins(folder: Path) -> None:
    async with running(
        write_plugins_file(folder, ours(folder), mcp("tools.official", OFFICIAL))
    ) as hub:
        prompts = (await ask_hub(hub, list_prompts=ListPromptsRequest())).list_prompts.prompts
        assert [prompt.name for prompt in prompts] == ["ask", "review"]
        found = await ask_hub(
            hub, prompt_get=PromptGetRequest(prompt_name="ask", arguments={"topic": "time"})
        )
        assert found.prompt_get.messages[0].content.text == "What is time?"

        wanted = StorageListRequest(storage_type="mcp")
        entries = (await ask_hub(hub, storage_list=wanted)).storage_list.entries
        assert [entry.path for entry in entries] == ["memo://one"]
        read = StorageReadRequest(storage_type="mcp", path="memo://one")
        document = (await ask_hub(hub, storage_read=read)).storage_read
        assert document.content == b"the first memo"
        assert unpack(document.metadata) == {"uri": "memo://one", "mimeType": "text/plain"}
        # The second plugin has this one.
        read = StorageReadRequest(storage_type="mcp", path="note://bob")
        assert (await ask_hub(hub, storage_read=read)).storage_read.content == b"about bob"
        read = StorageReadRequest(storage_type="mcp", path="none://x")
        failure = (await ask_hub(hub, storage_read=read)).storage_read.failure
        assert failure.code == "not_found"
        write = StorageWriteRequest(storage_type="mcp", path="memo://one", content=b"x")
        answer = (await ask_hub(hub, storage_write=write)).storage_write
        assert not answer.success
        assert answer.error == "resources of MCP servers can only be read and listed"


@on_a_loop
async def test_a_client_of_the_hub_has_everything_of_a_server(folder: Path) -> None:
    path = write_plugins_file(folder, ours(folder), mcp("tools.official", OFFICIAL))
    async with Client(EmbeddedHub(read_plugins(path))) as client:
        result = await client.call_tool("join", {"left": "a", "right": "b"})
        assert result.structured_content == {"joined": "ab"}
        with pytest.raises(ToolError, match="not today"):
            await client.call_tool("refuse", into=str)
        heard: list[object] = []
        await client.call_tool("slow", progress=lambda *report: heard.append(report))
        assert heard[-1] == (3, 3, "step 3")

        prompt = await client.get_prompt("review", {"code": "x = 1"})
        assert prompt.messages[0].content.text == "Review x = 1"  # type: ignore[union-attr]
        [resource] = await client.list_resources()
        assert (resource.uri, resource.mime_type) == ("memo://one", "text/plain")
        templates = [item.uri_template for item in await client.list_resource_templates()]
        assert templates[3:] == ["memo://by/{name}", "note://{name}"]
        [content] = (await client.read_resource("memo://by/ann")).contents
        assert content.text == "a memo by ann"
        with pytest.raises(RpcError, match="Resource not found"):
            await client.read_resource("none://x")


@on_a_loop
async def test_a_changed_list_of_a_server_reaches_the_hub(folder: Path) -> None:
    async with running(write_plugins_file(folder, ours(folder))) as hub:
        changed = asyncio.Event()
        hub.on_change = lambda name: changed.set()
        await call_tool(hub, "grow")
        async with asyncio.timeout(60):
            while "grown" not in hub.routes.tools:
                await changed.wait()
                changed.clear()
        assert result_of(await call_tool(hub, "grown")) == {"text": "new"}


@on_a_loop
async def test_a_list_that_changes_while_the_plugin_registers_is_registered_again() -> None:
    class Registry:
        """A hub that answers when it may."""

        def __init__(self) -> None:
            self.asked: asyncio.Queue[asyncio.Future[PluginResponse]] = asyncio.Queue()

        async def request(self, request: PluginRequest) -> PluginResponse:
            assert request.HasField("register")
            answer: asyncio.Future[PluginResponse] = asyncio.get_running_loop().create_future()
            self.asked.put_nowait(answer)
            return await answer

    plugin, hub = McpPlugin("tools.memo"), Registry()

    async def learn() -> None:
        pass

    plugin._learn_prompts = learn
    plugin.hub = cast("Any", hub)
    plugin._on_change("tools")
    first = await hub.asked.get()
    # The hub may have fetched the lists already.
    plugin._on_change("tools")
    plugin._on_change("prompts")
    first.set_result(PluginResponse())
    (await hub.asked.get()).set_result(PluginResponse())
    assert plugin._registering is not None
    await plugin._registering
    assert hub.asked.empty()


@on_a_loop
async def test_a_server_that_ends_is_started_again_and_its_plugin_goes_on(folder: Path) -> None:
    async with running(write_plugins_file(folder, ours(folder))) as hub:
        plugin = hub.plugins["tools.ours"]
        pid = plugin.pid
        first = result_of(await call_tool(hub, "process"))["data"]
        ended = (await call_tool(hub, "end")).tool_call
        assert ended.error_code == "handler_error"
        assert "exited with code 7" in ended.error_message
        second = result_of(await call_tool(hub, "process"))["data"]
        assert second != first
        assert (plugin.pid, plugin.restarts) == (pid, 0)

        # With its plugin's process, the server ends.
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        await until(hub, "tools.ours", "backing-off")
        await until(hub, "tools.ours", "running")
        wait_for_end(second)
        assert result_of(await call_tool(hub, "process"))["data"] not in (first, second)


@on_a_loop
async def test_each_session_gets_a_process_of_its_own_with_isolation(folder: Path) -> None:
    starts = {"STARTS": str(folder / "starts")}

    async def processes(hub: Hub) -> list[int]:
        pids: list[int] = []
        for session in ("one", "two", "one"):
            call = ToolRequest(tool_name="who", arguments=pack({}).struct, session_id=session)
            facts = result_of(await ask_hub(hub, tool_call=call))["text"]
            pids.append(json.loads(facts)["pid"])
        return pids

    for isolation, expected in (("session", 2), ("principal", 1)):
        options = {"isolation": isolation}
        entry = mcp("tools.plain", PLAIN, "plain", env=starts, **{"x-concertino": options})
        async with running(write_plugins_file(folder, entry)) as hub:
            pids = await processes(hub)
            assert len(set(pids)) == expected
            assert pids[0] == pids[2]


@on_a_loop
async def test_guards_of_the_entry_apply(folder: Path) -> None:
    options = {"allow": ["join", "work"], "rename": {"join": "concatenate"}}
    path = write_plugins_file(folder, ours(folder, **{"x-concertino": options}))
    async with running(path) as hub:
        assert sorted(hub.routes.tools) == ["concatenate", "work"]
        assert result_of(await call_tool(hub, "concatenate", left="a", right="b")) == {
            "joined": "ab"
        }


@on_a_loop
async def test_a_server_that_cannot_start_says_why(folder: Path) -> None:
    path = write_plugins_file(
        folder,
        {"id": "tools.none", "protocol": "mcp", "command": "no-such-program", "enabled": True},
        mcp("tools.ends", "-c", "import sys; sys.exit('no licence')"),
        mcp("tools.unset", "x.py", env={"KEY": "${NOT_SET_ANYWHERE}"}),
        ours(folder),
    )
    async with running(path) as hub:
        reasons = {plugin.id: plugin.reason for plugin in hub.plugins.values()}
        expected = "it could not boot: no-such-program: command not found in PATH="
        assert reasons["tools.none"].startswith(expected)
        assert "no licence" in reasons["tools.ends"]
        expected = "it could not boot: env.KEY: the variable NOT_SET_ANYWHERE is not set; set it"
        assert reasons["tools.unset"].startswith(expected)
        assert reasons["tools.ours"] == ""


WEATHER = """
import asyncio
from concertino import Context, Server
server = Server("weather")
now = {"rome": "sunny", "oslo": "snow"}

@server.resource("weather://{place}")
def weather(place: str) -> str:
    return now[place]

@server.tool
def report(place: str, weather: str) -> str:
    now[place] = weather
    server.resource_updated(f"weather://{place}")
    return "noted"

@server.tool
async def wait() -> str:
    await asyncio.Event().wait()

@server.tool
def delete_all() -> str:
    now.clear()

@server.prompt
def forecast(place: str) -> str:
    return f"How will the weather in {place} be?"
"""


@on_a_loop
async def test_a_server_at_a_url_is_a_plugin_with_guards_prompts_and_updates(
    folder: Path,
) -> None:
    (folder / "weather.py").write_text(WEATHER)
    with serving(folder / "weather.py") as service:
        entry = {
            "id": "tools.weather",
            "protocol": "mcp",
            "url": service.url,
            "enabled": True,
            "x-concertino": {"deny": ["delete_*"], "guards": {"timeout_s": 1}},
        }
        path = write_plugins_file(folder, entry)
        updates: asyncio.Queue[str] = asyncio.Queue()
        hub = EmbeddedHub(read_plugins(path))
        async with Client(hub, updated=updates.put_nowait) as client:
            names = sorted(tool.name for tool in await client.list_tools())
            assert names == ["report", "wait"]
            with pytest.raises(ToolError, match="delete_all"):
                await client.call_tool("delete_all", into=str)
            with pytest.raises(ToolError, match="1 s"):
                await client.call_tool("wait", into=str)
            prompt = await client.get_prompt("forecast", {"place": "Rome"})
            assert prompt.messages[0].content.text.startswith("How will")  # type: ignore[union-attr]

            # The subscription reaches the server by an event, so the change may come before it.
            await client.subscribe("weather://rome")
            while updates.empty():
                await client.call_tool("report", {"place": "oslo", "weather": "sun"})
                await client.call_tool("report", {"place": "rome", "weather": "rain"})
                await asyncio.sleep(0.05)
            assert {updates.get_nowait() for _ in range(updates.qsize())} == {"weather://rome"}
            [content] = (await client.read_resource("weather://rome")).contents
            assert content.text == "rain"


@pytest.mark.slow
@on_a_loop
async def test_a_server_at_a_url_that_hangs_is_named_after_seconds_and_comes_in_later(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (folder / "weather.py").write_text(WEATHER)
    with serving(folder / "weather.py") as service:
        # It accepts connections, but answers nothing.
        service.process.send_signal(signal.SIGSTOP)
        entry = {"id": "tools.weather", "protocol": "mcp", "url": service.url, "enabled": True}
        path = write_plugins_file(folder, entry, sdk(folder, "tools.greeter", GREETER))
        hub = Hub(read_plugins(path), is_private=True)
        try:
            await hub.launch()
            # The other plugins do not wait.
            result = result_of(await call_tool(hub, "greet", name="Ada"))
            assert result == {"text": "Hello, Ada!"}

            plugin = hub.plugins["tools.weather"]
            while "still starting" not in plugin.reason:
                await asyncio.sleep(0.1)
            assert plugin.state == "starting"
            assert plugin.reason == (
                "tools.weather is still starting after 10 s; "
                f"{service.url} has not answered initialize; try again later"
            )
            # Calls do not wait any more.
            async with asyncio.timeout(start_waits.START_S / 2):
                missing = (await call_tool(hub, "report")).tool_call.error_message
            assert plugin.reason in missing
            assert any(plugin.reason in record.getMessage() for record in caplog.records)

            service.process.send_signal(signal.SIGCONT)
            await until(hub, "tools.weather", "running")
            assert "wait" in hub.routes.tools
            # It is the process that had to wait.
            assert plugin.restarts == 0
        finally:
            await hub.stop()


@on_a_loop
async def test_a_list_that_a_server_never_answers_is_named_while_the_plugin_boots() -> None:
    code = """
import json
while True:
    request = json.loads(input())
    info = {"supportedVersions": ["2026-07-28"], "capabilities": {"prompts": {}}}
    if request["method"] == "server/discover":
        result = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private", **info}
        print(json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": result}), flush=True)
"""
    server = {"command": sys.executable, "args": ["-c", code]}
    config = {"server": json.dumps({"mcpServers": {"tools.mute": server}})}
    plugin = McpPlugin("tools.mute")
    peer = SOMEBODY
    boot = PluginRequest(boot=BootRequest(config=config))
    booting = asyncio.ensure_future(plugin.answer(boot, peer))
    try:
        message = ""
        while "prompts/list" not in message:
            response = await plugin.answer(PluginRequest(health=HealthRequest()), peer)
            message = cast(PluginResponse, response).health.message
            await asyncio.sleep(0.01)
        assert message == "tools.mute has not answered prompts/list"
    finally:
        booting.cancel()
        await plugin.close()


class MemoSession:
    """A session with a server that has two resources and two templates, one of them malformed."""

    def __init__(self) -> None:
        self.watched: asyncio.Queue[frozenset[str]] = asyncio.Queue()

    async def list_resources(self) -> list[Any]:
        return [SimpleNamespace(uri=uri) for uri in ("memo://one", "memo://two")]

    async def list_resource_templates(self) -> list[Any]:
        return [SimpleNamespace(uri_template=text) for text in ("memo://by/{name}", "{")]

    async def watch(self, uris: frozenset[str]) -> None:
        self.watched.put_nowait(uris)


async def publish_wanted(events: EventHandlers, watcher: str, *uris: object) -> None:
    [subscription] = events.subscriptions()
    payload = {"watcher": watcher, "uris": list(uris)}
    request = publish_request("resources.watched", payload, "", "")
    request.publish.subscription_id = subscription.subscription_id
    await events.answer(request)


@on_a_loop
async def test_only_resources_of_the_server_are_subscribed_and_forgotten_in_the_end(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mcp_updates, "FORGET_S", 0.2)
    session = MemoSession()
    events = EventHandlers("tools.memo", asyncio.to_thread)
    updates = McpUpdates("tools.memo", events, lambda: cast("Any", session), lambda: None)
    await publish_wanted(events, "x", "memo://one", "memo://by/ann", "other://one", 7)
    assert await session.watched.get() == {"memo://one", "memo://by/ann"}
    # Whoever wanted them has not said so again.
    assert await session.watched.get() == frozenset()
    await updates.close()


@on_a_loop
async def test_a_known_hub_backend_is_heard_even_if_no_further_one_is_admitted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(mcp_updates, "MAX_WATCHERS", 1)
    session = MemoSession()
    events = EventHandlers("tools.memo", asyncio.to_thread)
    updates = McpUpdates("tools.memo", events, lambda: cast("Any", session), lambda: None)
    await publish_wanted(events, "known", "memo://one")
    assert session.watched.get_nowait() == {"memo://one"}
    await publish_wanted(events, "further", "memo://by/ann")
    assert session.watched.empty()
    await publish_wanted(events, "known", "memo://two")
    assert session.watched.get_nowait() == {"memo://two"}
    await updates.close()


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        ("protocol: mcp", ":2: plugins[0] (a): expected command or url, got neither"),
        ("protocol: mcp\n  command: x\n  url: y", ":5: plugins[0] (a).url: expected command or"),
        ("protocol: mcp\n  binary: x", ":4: plugins[0] (a).binary: expected no `protocol: mcp`"),
        ("binary: x\n  url: y", ":4: plugins[0] (a).url: expected `protocol: mcp` beside it"),
        ("protocol: grpc", ":3: plugins[0].protocol: expected one of orchestra, mcp, got 'grpc'"),
        ("protocol: mcp\n  command: 'x \"'", ":4: plugins[0] (a).command: expected a command: No"),
        ("protocol: mcp\n  url: y\n  args: [x]", ":5: plugins[0] (a).args: expected a command"),
        (
            "protocol: mcp\n  command: x\n  x-concertino: {allwo: [y]}",
            ":5: plugins[0] (a).x-concertino.allwo: no such member",
        ),
        (
            "protocol: mcp\n  command: x\n  x-concertino: {pin: true}",
            ":5: plugins[0] (a).x-concertino.pin: not possible for a plugin",
        ),
    ],
)
def test_a_mistake_in_the_entry_of_a_server_is_named(
    tmp_path: Path, entry: str, expected: str
) -> None:
    path = tmp_path / "plugins.yaml"
    path.write_text(f"plugins:\n- id: a\n  {entry}\n")
    with pytest.raises(InvalidPluginsFile) as raised:
        read_plugins(path)
    assert str(raised.value).startswith(f"{path}{expected}")


def test_the_words_of_a_command_are_split_as_in_a_shell(tmp_path: Path) -> None:
    path = tmp_path / "plugins.yaml"
    path.write_text(
        "plugins:\n- id: a\n  protocol: mcp\n  command: npx -y 'a b' --port=1\n  args: [c]\n"
        "  env: {HOME: , KEY: '7'}\n"
    )
    [entry] = read_plugins(path).plugins
    assert json.loads(entry.config["server"]) == {
        "mcpServers": {
            "a": {
                "command": "npx",
                "args": ["-y", "a b", "--port=1", "c"],
                "env": {"HOME": "${HOME}", "KEY": "7"},
            }
        }
    }
    assert not entry.enabled


@pytest.mark.parametrize("transport", ["unix", "quic"])
@on_a_loop
async def test_a_hub_offers_another_hub_s_tools_through_a_bridge(
    folder: Path, certificates: Certificates, transport: str
) -> None:
    (folder / "far").mkdir(mode=0o700)
    far = write_plugins_file(
        folder / "far", ours(folder / "far"), certs_dir=str(certificates.folder)
    )
    address = f"unix:{folder}/far/hub" if transport == "unix" else "localhost:0"
    async with running(far, is_private=False, listen_addr=address) as far_hub:
        [listening] = far_hub.addresses
        bridge = mcp(
            "hub.far",
            *("-m", "concertino", "bridge", "--orchestrator-addr", listening),
            *("--certs-dir", certificates.folder),
            env={"PYTHONPATH": SOURCES},
        )
        async with running(write_plugins_file(folder, bridge)) as hub:
            assert result_of(await call_tool(hub, "join", left="a", right="b")) == {"joined": "ab"}
            prompt = PromptGetRequest(prompt_name="ask", arguments={"topic": "time"})
            found = (await ask_hub(hub, prompt_get=prompt)).prompt_get
            assert found.messages[0].content.text == "What is time?"
            read = StorageReadRequest(storage_type="mcp", path="memo://one")
            document = (await ask_hub(hub, storage_read=read)).storage_read
            assert document.content == b"the first memo"
            refused = (await call_tool(hub, "refuse")).tool_call
            assert "not today" in refused.error_message


FAR = """
import os
from concertino import Plugin
plugin = Plugin("tools.far")
@plugin.tool(name=os.environ["WORD"])
async def word() -> str:
    return os.environ["WORD"]
plugin.run()
"""


@on_a_loop
async def test_another_hub_that_restarts_is_used_again_with_its_new_tools(folder: Path) -> None:
    far = folder / "far"
    far.mkdir(mode=0o700)

    def write(word: str) -> Path:
        plugin = sdk(far, "tools.far", FAR, env={"WORD": word})
        return write_plugins_file(far, plugin, listen_addr=f"unix:{far}/hub")

    near = {"id": "hub.far", "hub": f"unix:{far}/hub", "enabled": True}
    near["env"] = {"PYTHONPATH": SOURCES}
    async with AsyncExitStack() as stack:
        async with running(write("one"), is_private=False):
            hub = await stack.enter_async_context(running(write_plugins_file(folder, near)))
            assert result_of(await call_tool(hub, "one")) == {"text": "one"}
        down = (await call_tool(hub, "one")).tool_call
        assert f"unix:{far}/hub" in down.error_message
        async with running(write("two"), is_private=False):
            await until_tools(hub, ["two"])
            assert result_of(await call_tool(hub, "two")) == {"text": "two"}
