"""plugin.py, plugin_requests.py, plugin_main.py: requests as a hub sends them, also to
processes.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import json_format, struct_pb2
from loops import on_a_loop

from concertino import Context, Plugin, ToolError, image
from concertino.errors import Disconnected, RegistrationError
from concertino.orchestra.certificates import CertificateError, Certificates
from concertino.orchestra.link import listen_for_links, open_link
from concertino.orchestra.plugin_pb2 import (
    BootRequest,
    HealthRequest,
    HealthResult,
    ListPromptsRequest,
    ListToolsRequest,
    PluginManifest,
    PluginRequest,
    PluginResponse,
    PromptGetRequest,
    Publish,
    RegistrationResult,
    ShutdownRequest,
    StorageDeleteRequest,
    StorageListRequest,
    StorageReadRequest,
    StorageWriteRequest,
    Subscribe,
    ToolRequest,
)
from concertino.orchestra.rpc_interface import RemotePeer
from concertino.orchestra.storage import StorageEntry, StorageError, StoredDocument
from concertino.orchestra.structs import pack, unpack

HUB = RemotePeer("unix:/hub", None, 1, 0)


def ask(plugin: Plugin, request: PluginRequest) -> PluginResponse:
    async def asked() -> PluginResponse | bytes:
        return await plugin.answer(request, HUB)

    response = asyncio.run(asked())
    return PluginResponse.FromString(response) if isinstance(response, bytes) else response


def call(name: str, arguments: Mapping[str, Any] | None = None, **others: str) -> PluginRequest:
    request = ToolRequest(tool_name=name, caller_plugin="transport.stdio", **others)
    if arguments is not None:
        request.arguments, json = pack(arguments)
        if json:
            request.arguments_json = json
    return PluginRequest(tool_call=request)


def result(response: PluginResponse) -> dict[str, Any]:
    """The result as upstream reads it: by the official Struct."""
    assert response.tool_call.success, response.tool_call.error_message
    return json_format.MessageToDict(struct_pb2.Struct.FromString(response.tool_call.result))


@pytest.fixture
def plugin() -> Plugin:
    made = Plugin(
        "tools.greeter",
        version="1.2.3",
        description="Greets.",
        author="Ada",
        needs_storage=["markdown"],
    )

    @made.tool
    async def greet(name: str, loud: bool = False) -> str:
        """Greet somebody."""
        return f"Hello, {name.upper() if loud else name}!"

    @made.tool
    def count(n: int) -> int:
        return n + 1

    @made.tool
    def both(n: int) -> dict[str, int]:
        return {"n": n, "square": n * n}

    @made.tool
    def fails() -> str:
        raise ToolError("the oven is cold")

    @made.tool
    def breaks() -> str:
        raise RuntimeError("boom")

    @made.tool
    def picture() -> Any:
        return ["a square", image(b"\x89PNG", "image/png")]

    @made.tool
    async def who(context: Context) -> dict[str, Any]:
        await context.progress(1)
        await context.log("info", "asked")
        return {"client": context.client.name, **context.meta}

    @made.prompt
    def poem(topic: str, lines: int = 4) -> str:
        """Write a poem."""
        return f"A poem about {topic} of {lines} lines."

    return made


def test_a_text_is_the_field_text(plugin: Plugin) -> None:
    assert result(ask(plugin, call("greet", {"name": "Ada"}))) == {"text": "Hello, Ada!"}
    assert result(ask(plugin, call("greet", {"name": "Ada", "loud": True}))) == {
        "text": "Hello, ADA!"
    }


def test_an_object_is_itself_and_another_value_is_data_with_its_text(plugin: Plugin) -> None:
    assert result(ask(plugin, call("both", {"n": 3}))) == {"n": 3.0, "square": 9.0}
    assert result(ask(plugin, call("count", {"n": 3}))) == {"text": "4", "data": 4.0}


def test_integers_stay_exact_beyond_doubles(plugin: Plugin) -> None:
    response = ask(plugin, call("both", {"n": 2**53 + 1}))
    square = (2**53 + 1) ** 2
    exact = unpack(response.tool_call.result, response.tool_call.result_json)
    assert exact == {"n": 2**53 + 1, "square": square}
    assert result(response) == {"n": float(2**53), "square": float(square)}


def test_content_that_is_no_text_comes_as_mcp_has_it(plugin: Plugin) -> None:
    found = result(ask(plugin, call("picture")))
    assert found["text"] == "a square"
    assert [each["type"] for each in found["content"]] == ["text", "image"]
    assert found["content"][1]["data"] == "iVBORw=="


@pytest.mark.parametrize(
    ("request_", "code", "text"),
    [
        (call("fails"), "handler_error", "the oven is cold"),
        (call("breaks"), "handler_error", "RuntimeError: boom"),
        (call("nobody"), "tool_not_found", "tools.greeter has no tool 'nobody'"),
        (call("greet", {}), "validation_error", "Missing required field: name"),
        (call("greet"), "validation_error", "Missing required field: name"),
        (call("count", {"n": "3"}), "validation_error", "n: expected int, got str"),
        (call("count", {"n": 2.5}), "validation_error", "n: expected int"),
        (
            PluginRequest(tool_call=ToolRequest(tool_name="greet", arguments=b"\x0a\xff")),
            "validation_error",
            "the data is truncated",
        ),
        (PluginRequest(), "unknown_request", "does not answer nothing"),
        (
            PluginRequest(subscribe=Subscribe()),
            "unknown_request",
            "does not answer subscribe",
        ),
    ],
)
def test_what_goes_wrong_has_upstream_s_code_and_a_text(
    plugin: Plugin, request_: PluginRequest, code: str, text: str
) -> None:
    response = ask(plugin, request_)
    assert not response.tool_call.success
    assert response.tool_call.error_code == code
    assert text in response.tool_call.error_message


def test_a_result_that_no_struct_holds_is_an_error_of_the_call(plugin: Plugin) -> None:
    @plugin.tool
    def huge() -> dict[str, int]:
        return {"n": 10**400}

    response = ask(plugin, call("huge"))
    assert response.tool_call.error_code == "handler_error"
    assert "too large for a double" in response.tool_call.error_message


def test_a_tool_error_keeps_its_code_and_its_message_on_the_wire(plugin: Plugin) -> None:
    @plugin.tool
    def coded() -> str:
        raise ToolError("NO_SHELF", "there is no shelf")

    @plugin.tool
    def advised() -> str:
        raise ToolError("NO_SHELF", "there is no shelf", suggestion="Build one")

    @plugin.tool
    def uncoded() -> str:
        raise ToolError("there is no shelf", suggestion="Build one")

    found = ask(plugin, call("coded")).tool_call
    assert (found.success, found.error_code, found.error_message) == (
        False,
        "NO_SHELF",
        "there is no shelf",
    )
    # What has more than that keeps it: upstream's bridge shows the model this text.
    found = ask(plugin, call("advised")).tool_call
    assert (found.error_code, found.error_message) == (
        "NO_SHELF",
        '{"error":"there is no shelf","code":"NO_SHELF","suggestion":"Build one"}',
    )
    assert ask(plugin, call("uncoded")).tool_call.error_code == "handler_error"


def test_tools_are_listed_with_their_output_schemas(plugin: Plugin) -> None:
    tools = ask(plugin, PluginRequest(list_tools=ListToolsRequest())).list_tools.tools
    found = {tool.name: json.loads(tool.output_schema) for tool in tools if tool.output_schema}
    assert set(found) == {"count", "both", "who"}
    assert found["count"] == {"type": "integer"}
    assert found["both"]["additionalProperties"] == {"type": "integer"}


def test_tools_are_listed_in_order_with_their_schemas(plugin: Plugin) -> None:
    tools = ask(plugin, PluginRequest(list_tools=ListToolsRequest())).list_tools.tools
    assert [tool.name for tool in tools] == [
        "greet",
        "count",
        "both",
        "fails",
        "breaks",
        "picture",
        "who",
    ]
    assert tools[0].description == "Greet somebody."
    schema = json_format.MessageToDict(struct_pb2.Struct.FromString(tools[0].input_schema))
    assert schema["required"] == ["name"]
    assert schema["properties"]["loud"]["type"] == "boolean"
    assert (
        json_format.MessageToDict(struct_pb2.Struct.FromString(tools[6].input_schema)).get(
            "properties", {}
        )
        == {}
    )


def test_who_asks_is_told_to_the_tool(plugin: Plugin) -> None:
    said = result(
        ask(plugin, call("who", session_id="s1", provider="claude", trace_parent="00-ab-cd-01"))
    )
    assert said == {
        "client": "transport.stdio",
        "traceparent": "00-ab-cd-01",
        "orchestra/caller": "transport.stdio",
        "orchestra/session": "s1",
        "orchestra/provider": "claude",
    }


def test_a_tool_calls_another_and_nobody_can_be_asked(plugin: Plugin) -> None:
    @plugin.tool
    async def twice(name: str, context: Context) -> str:
        first = await context.call_tool("greet", {"name": name}, into=str)
        return first + await context.once("second", lambda: " " + first)

    @plugin.tool
    def from_a_thread(context: Context) -> str:
        return context.wait(context.call_tool("greet", {"name": "Eve"}, into=str))

    @plugin.tool
    async def asks(context: Context) -> str:
        return str(await context.elicit("Who are you?", {"type": "object", "properties": {}}))

    assert result(ask(plugin, call("twice", {"name": "Ada"}))) == {
        "text": "Hello, Ada! Hello, Ada!"
    }
    assert result(ask(plugin, call("from_a_thread"))) == {"text": "Hello, Eve!"}
    refused = ask(plugin, call("asks")).tool_call
    assert not refused.success
    assert "the plugin protocol cannot ask a client" in refused.error_message


def test_prompts_are_listed_and_filled_in(plugin: Plugin) -> None:
    [prompt] = ask(plugin, PluginRequest(list_prompts=ListPromptsRequest())).list_prompts.prompts
    assert (prompt.name, prompt.description) == ("poem", "Write a poem.")
    assert [(each.name, each.required) for each in prompt.arguments] == [
        ("topic", True),
        ("lines", False),
    ]
    asked = PromptGetRequest(prompt_name="poem", arguments={"topic": "rain", "lines": "2"})
    got = ask(plugin, PluginRequest(prompt_get=asked)).prompt_get
    assert got.description == "Write a poem."
    assert [(each.role, each.content.type, each.content.text) for each in got.messages] == [
        ("user", "text", "A poem about rain of 2 lines.")
    ]
    for wrong, code in (
        (PromptGetRequest(prompt_name="x"), "prompt_not_found"),
        (asked, "validation_error"),
    ):
        wrong.arguments.pop("topic", "")
        response = ask(plugin, PluginRequest(prompt_get=wrong))
        # The description is all that upstream's peers see.
        assert response.prompt_get.failure.code == code
        assert response.prompt_get.description == response.prompt_get.failure.message
        assert not response.prompt_get.messages


def test_a_plugin_without_prompts_has_none() -> None:
    bare = Plugin("bare")
    assert not ask(bare, PluginRequest(list_prompts=ListPromptsRequest())).list_prompts.prompts
    assert not ask(bare, PluginRequest(list_tools=ListToolsRequest())).list_tools.tools


def test_registration_boot_health_and_shutdown(plugin: Plugin) -> None:
    done: list[object] = []
    plugin.on_boot(done.append)

    @plugin.on_shutdown
    async def first() -> None:
        done.append("first")

    @plugin.on_shutdown
    def second() -> None:
        done.append("second")
        raise RuntimeError("cold")

    def register(id: str) -> RegistrationResult:
        return ask(plugin, PluginRequest(register=PluginManifest(id=id))).register

    assert register("tools.greeter").accepted
    refused = register("tools.other")
    assert not refused.accepted
    assert refused.reject_reason == "this is tools.greeter, not tools.other"
    assert ask(plugin, PluginRequest(boot=BootRequest(config={"a": "b"}))).boot.ready
    assert ask(plugin, PluginRequest(health=HealthRequest())).health.status == HealthResult.HEALTHY
    assert not ask(plugin, PluginRequest(shutdown=ShutdownRequest())).shutdown.clean
    assert ask(plugin, PluginRequest(shutdown=ShutdownRequest())).shutdown.clean
    assert done == [{"a": "b"}, "second", "first"]


def test_a_boot_that_fails_says_why(plugin: Plugin) -> None:
    @plugin.on_boot
    async def boot(config: dict[str, str]) -> None:
        raise KeyError("api_url")

    booted = ask(plugin, PluginRequest(boot=BootRequest())).boot
    assert not booted.ready
    assert booted.error == "KeyError: 'api_url'"


def test_what_the_protocol_has_not_is_refused_when_it_is_written() -> None:
    with pytest.raises(RegistrationError, match="the plugin protocol has no resources"):
        Plugin("x").resource("a://b")
    with pytest.raises(CertificateError, match="not a valid name of a certificate"):
        Plugin("../x")
    storing = Plugin("x")
    storing.add_storage(Shelf())
    with pytest.raises(RegistrationError, match="already provided"):
        storing.add_storage(Shelf())


# --- storage ---


class Shelf:
    """Storage in memory."""

    def __init__(self) -> None:
        self.kept: dict[str, StoredDocument] = {}

    def read(self, path: str) -> StoredDocument:
        if path == "broken":
            raise RuntimeError("secret place")
        if path not in self.kept:
            raise StorageError("not_found", f"{path}: there is nothing")
        return self.kept[path]

    def write(
        self, path: str, content: bytes, metadata: Mapping[str, Any], expected_version: int
    ) -> int:
        current = self.kept[path].version if path in self.kept else 0
        if expected_version not in (-1, current):
            raise StorageError(
                "conflict", f"version conflict: expected {expected_version}, current {current}"
            )
        self.kept[path] = StoredDocument(content, dict(metadata), current + 1)
        return current + 1

    def delete(self, path: str) -> None:
        if self.kept.pop(path, None) is None:
            raise StorageError("not_found", path)

    def list(self, prefix: str, pattern: str) -> list[StorageEntry]:
        when = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
        return [
            StorageEntry(path, len(each.content), each.version, when)
            for path, each in self.kept.items()
        ]


def test_a_function_for_all_topics_gets_the_events_of_a_go_hub() -> None:
    plugin = Plugin("tools.clerk", needs_events=["orders"])
    heard: list[str] = []

    @plugin.on_event("*")
    async def hear(event: Any) -> None:
        heard.append(event.topic)

    # A Go hub sends no subscription id.
    ask(plugin, PluginRequest(publish=Publish(topic="orders", source_plugin="tools.shop")))
    assert heard == ["orders"]


def test_storage_is_written_read_listed_and_deleted() -> None:
    plugin = Plugin("storage.shelf")
    plugin.add_storage(Shelf())
    metadata = {"title": "T", "n": 2**60}
    packed = pack(metadata)
    write = StorageWriteRequest(
        path="a.md", content=b"x", metadata=packed.struct, metadata_json=packed.json
    )
    assert ask(plugin, PluginRequest(storage_write=write)).storage_write.new_version == 1
    again = ask(plugin, PluginRequest(storage_write=write)).storage_write
    assert (again.success, again.error) == (False, "version conflict: expected 0, current 1")
    write.expected_version = -1
    assert ask(plugin, PluginRequest(storage_write=write)).storage_write.new_version == 2
    read = ask(plugin, PluginRequest(storage_read=StorageReadRequest(path="a.md"))).storage_read
    assert (read.content, read.version) == (b"x", 2)
    assert unpack(read.metadata, read.metadata_json) == metadata
    [entry] = ask(plugin, PluginRequest(storage_list=StorageListRequest())).storage_list.entries
    assert (entry.path, entry.size, entry.version, entry.modified_at.seconds) == (
        "a.md",
        1,
        2,
        1795262400,
    )
    delete = PluginRequest(
        storage_delete=StorageDeleteRequest(path="a.md", storage_type="markdown")
    )
    assert ask(plugin, delete).storage_delete.success
    assert not ask(plugin, delete).storage_delete.success


@pytest.mark.parametrize(
    ("path", "kind", "code", "said"),
    [
        ("none", "", "not_found", "there is nothing"),
        ("broken", "", "storage_error", "storage_read failed: RuntimeError"),
        (
            "a",
            "sqlite",
            "storage_error",
            "there is no storage of type 'sqlite' here; there is 'markdown'",
        ),
    ],
)
def test_an_error_of_storage_is_told_from_an_empty_answer(
    path: str, kind: str, code: str, said: str
) -> None:
    plugin = Plugin("storage.shelf")
    plugin.add_storage(Shelf())
    request = PluginRequest(storage_read=StorageReadRequest(path=path, storage_type=kind))
    read = ask(plugin, request).storage_read
    assert (read.content, read.version) == (b"", 0)  # all that upstream's peers see
    assert read.failure.code == code
    assert said in read.failure.message


# --- processes ---

GREETER = """
import sys, time, asyncio
from concertino import Plugin

plugin = Plugin("tools.greeter", version="1.0.0")

@plugin.tool
def greet(name: str) -> str:
    "Greet somebody."
    print("a stray print")
    return f"Hello, {name}!"

@plugin.tool
async def hang() -> str:
    sys.stderr.write("hanging\\n")
    await asyncio.sleep(3600)
    return "never"

@plugin.tool
async def hold() -> str:
    time.sleep(0.5)
    return "held"

@plugin.tool
async def other(name: str) -> str:
    from concertino.orchestra.plugin_pb2 import PluginRequest, ToolRequest
    assert plugin.hub
    response = await plugin.hub.request(PluginRequest(tool_call=ToolRequest(tool_name=name)))
    return response.tool_call.error_message

@plugin.on_shutdown
def bye() -> None:
    sys.stderr.write("bye\\n")

plugin.run()
"""


class Process:
    """A plugin that was started, and what it says on stderr."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.said: list[str] = []

    async def until(self, word: str) -> str:
        assert self.process.stderr is not None
        while line := (await self.process.stderr.readline()).decode():
            self.said.append(line.rstrip())
            if word in line:
                return line.rstrip()
        raise AssertionError(f"never said {word!r}: {self.said}")

    async def wait_for_end(self) -> int:
        assert self.process.stderr is not None
        self.said += (await self.process.stderr.read()).decode().splitlines()
        return await self.process.wait()


@asynccontextmanager
async def start_plugin(
    folder: Path, *flags: object, env: Mapping[str, str] = {}
) -> AsyncIterator[Process]:
    path = folder / "greeter.py"
    path.write_text(GREETER)
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        path,
        *map(str, flags),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env={**os.environ, **env},
    )
    try:
        yield Process(process)
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


def places(transport: str, folder: Path) -> tuple[str, str]:
    """Where plugin and hub listen."""
    if transport == "unix":
        return f"unix:{folder}/plugin", f"unix:{folder}/hub"
    return "127.0.0.1:0", "127.0.0.1:0"


@on_a_loop
async def test_a_plugin_logs_a_call_that_holds_its_event_loop(folder: Path) -> None:
    async with start_plugin(folder, "--listen-addr", f"unix:{folder}/plugin") as plugin:
        link = await open_link((await plugin.until("READY ")).removeprefix("READY "))
        assert result(await link.request(call("hold"))) == {"text": "held"}
        line = await plugin.until("has blocked the event loop")
        assert "hold() has blocked the event loop for 250 ms, and stands at greeter.py:21" in line
        await link.close()


@pytest.mark.parametrize("transport", ["unix", "quic"])
@on_a_loop
async def test_a_plugin_s_life_under_a_hub(
    transport: str, folder: Path, certificates: Certificates
) -> None:
    """READY, register both ways, boot, list, call, ask the hub, shut down: over each transport, in
    a process of its own.
    """
    at, hub_at = places(transport, folder)
    registered: asyncio.Future[tuple[PluginManifest, RemotePeer]] = (
        asyncio.get_running_loop().create_future()
    )

    async def hub(request: PluginRequest, peer: RemotePeer) -> PluginResponse:
        if request.HasField("register"):
            registered.set_result((request.register, peer))
            return PluginResponse(register=RegistrationResult(accepted=True))
        response = PluginResponse()
        response.tool_call.error_message = f"nobody has {request.tool_call.tool_name}"
        return response

    listening = await listen_for_links(hub_at, hub, certificates=certificates, name="orchestrator")
    flags = (
        "--listen-addr",
        at,
        "--orchestrator-addr",
        listening.address,
        "--certs-dir",
        certificates.folder,
    )
    async with start_plugin(folder, *flags) as plugin:
        ready = (await plugin.until("READY ")).removeprefix("READY ")
        manifest, peer = await registered
        assert manifest.id == "tools.greeter"
        assert list(manifest.provides_tools) == ["greet", "hang", "hold", "other"]
        assert peer.may_register_as("tools.greeter")
        assert (
            (peer.name == "tools.greeter-client")
            if transport == "quic"
            else (peer.pid == plugin.process.pid)
        )
        link = await open_link(
            ready,
            certificates=certificates,
            name="orchestrator-to-tools.greeter",
            expects="tools.greeter",
        )
        assert (
            await link.request(PluginRequest(register=PluginManifest(id="tools.greeter")))
        ).register.accepted
        assert (await link.request(PluginRequest(boot=BootRequest()))).boot.ready
        tools = (await link.request(PluginRequest(list_tools=ListToolsRequest()))).list_tools.tools
        assert [tool.name for tool in tools] == ["greet", "hang", "hold", "other"]
        assert result(await link.request(call("greet", {"name": "Ada"}))) == {"text": "Hello, Ada!"}
        assert result(await link.request(call("other", {"name": "x"}))) == {"text": "nobody has x"}
        assert (await link.request(PluginRequest(shutdown=ShutdownRequest()))).shutdown.clean
        assert await plugin.wait_for_end() == 0
        assert plugin.said.count("bye") == 1
        await link.end_reason
        await link.close()
    await listening.close()


@pytest.mark.parametrize("transport", ["unix", pytest.param("quic", marks=pytest.mark.slow)])
@on_a_loop
async def test_a_plugin_ends_when_its_parent_and_the_hub_are_gone_whatever_the_hub_is(
    transport: str, folder: Path, certificates: Certificates
) -> None:
    """Upstream's hub starts a plugin too, and says nothing of its process id."""
    at, hub_at = places(transport, folder)
    registered = asyncio.Semaphore(0)

    async def hub(request: PluginRequest, peer: RemotePeer) -> PluginResponse:
        if request.HasField("register"):
            registered.release()
        return PluginResponse(register=RegistrationResult(accepted=True))

    listening = await listen_for_links(hub_at, hub, certificates=certificates, name="orchestrator")
    (folder / "greeter.py").write_text(GREETER)
    flags = ("--orchestrator-addr", listening.address, "--certs-dir", str(certificates.folder))
    parent = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", "import subprocess, sys; subprocess.run(sys.argv[1:])"),
        *(sys.executable, folder / "greeter.py", "--listen-addr", at, *flags),
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        plugin = Process(parent)
        ready = (await plugin.until("READY ")).removeprefix("READY ")
        await registered.acquire()
        parent.kill()
        # A program that somebody has put into the background is served as long as its hub is there.
        link = await open_link(
            ready,
            certificates=certificates,
            name="orchestrator-to-tools.greeter",
            expects="tools.greeter",
        )
        assert result(await link.request(call("greet", {"name": "Ada"}))) == {"text": "Hello, Ada!"}
        await link.close()
        await listening.close()
        # Its stderr ends with it.
        await plugin.wait_for_end()
        assert "bye" in plugin.said
        assert "the hub and the process that started this plugin are gone" in plugin.said[-2]
    finally:
        with suppress(ProcessLookupError):
            os.killpg(parent.pid, signal.SIGKILL)


@pytest.mark.slow
@on_a_loop
async def test_a_signal_drains_and_ends_the_plugin(folder: Path) -> None:
    async with start_plugin(folder, "--listen-addr", f"unix:{folder}/p") as plugin:
        await plugin.until("READY ")
        link = await open_link(f"unix:{folder}/p")
        hanging = asyncio.create_task(link.request(call("hang")))
        await plugin.until("hanging")
        plugin.process.send_signal(signal.SIGTERM)
        assert await plugin.wait_for_end() == 0
        assert plugin.said.count("bye") == 1
        with pytest.raises(Exception, match="ended"):
            await hanging
        await link.close()
    assert not (folder / "p").exists()


FLOODING = """
import sys
from collections.abc import Iterator
from concertino import Plugin

plugin = Plugin("tools.loud")

@plugin.lifespan
def opened() -> Iterator[None]:
    for number in range(4000):
        print("x" * 99, file=sys.stderr)
    yield None

plugin.run()
"""


@on_a_loop
async def test_ready_is_not_among_the_lines_that_are_dropped(folder: Path) -> None:
    """The hub of a busy machine does not read for a while, and the plugin says more than
    is held.
    """
    (folder / "loud.py").write_text(FLOODING)
    process = subprocess.Popen(
        [sys.executable, folder / "loud.py", "--listen-addr", f"unix:{folder}/p"],
        stderr=subprocess.PIPE,
    )
    assert process.stderr is not None
    try:
        async with asyncio.timeout(20):
            # A socket file may exist a moment before the plugin listens there.
            while True:
                try:
                    link = await open_link(f"unix:{folder}/p")
                    break
                except Disconnected:
                    await asyncio.sleep(0.01)
            # It answers, so all of that has been said.
            await link.request(PluginRequest(health=HealthRequest()))
            await link.close()
        os.set_blocking(process.stderr.fileno(), False)
        said = b""
        async with asyncio.timeout(10):
            while f"READY unix:{folder}/p\n".encode() not in said:
                said += process.stderr.read() or b""
                await asyncio.sleep(0.01)
        # A line of its own, and the flood was more than could be held.
        assert f"\nREADY unix:{folder}/p\n".encode() in said
        assert said.count(b"x" * 99 + b"\n") < 4000
    finally:
        process.kill()
        process.communicate()


@on_a_loop
async def test_a_plugin_ends_with_the_process_of_its_hub(folder: Path) -> None:
    hub = await asyncio.create_subprocess_exec("sleep", "600")
    env = {"CONCERTINO_HUB_PID": str(hub.pid)}
    async with start_plugin(folder, "--listen-addr", f"unix:{folder}/p", env=env) as plugin:
        await plugin.until("READY ")
        hub.kill()
        await hub.wait()
        assert await plugin.wait_for_end() == 0


@on_a_loop
async def test_a_hub_that_refuses_ends_the_plugin_with_the_reason(folder: Path) -> None:
    async def hub(request: PluginRequest, peer: RemotePeer) -> PluginResponse:
        return PluginResponse(register=RegistrationResult(reject_reason="two of you"))

    listening = await listen_for_links(f"unix:{folder}/hub", hub)
    flags = ("--listen-addr", f"unix:{folder}/p", "--orchestrator-addr", listening.address)
    async with start_plugin(folder, *flags) as plugin:
        assert await plugin.wait_for_end() == 1
        assert any("refuses this plugin: two of you" in line for line in plugin.said)
    await listening.close()


@on_a_loop
async def test_a_hub_that_comes_back_is_registered_at_again(folder: Path) -> None:
    registered = asyncio.Semaphore(0)

    async def hub(request: PluginRequest, peer: RemotePeer) -> PluginResponse:
        registered.release()
        return PluginResponse(register=RegistrationResult(accepted=True))

    flags = ("--listen-addr", f"unix:{folder}/p", "--orchestrator-addr", f"unix:{folder}/hub")
    async with start_plugin(folder, *flags) as plugin:
        await plugin.until("READY ")
        for _ in range(2):
            listening = await listen_for_links(f"unix:{folder}/hub", hub)
            await registered.acquire()
            await listening.close()
        assert plugin.process.returncode is None


@on_a_loop
async def test_who_is_no_hub_may_not_call_a_plugin_over_quic(
    folder: Path, certificates: Certificates
) -> None:
    async with start_plugin(
        folder, "--listen-addr", "127.0.0.1:0", "--certs-dir", certificates.folder
    ) as plugin:
        ready = (await plugin.until("READY ")).removeprefix("READY ")
        with pytest.raises(Exception, match="may not come in here"):
            await open_link(ready, certificates=certificates, name="tools.greeter-client")
        await plugin.until("was refused: 'tools.greeter-client' may not come in here")


@pytest.mark.parametrize(
    ("flags", "code", "said"),
    [
        (["--listen-addr", "nowhere"], 1, "expected HOST:PORT"),
        (["--orchestrator-addr", "nowhere"], 1, "the orchestrator's address: expected HOST:PORT"),
        (
            ["--orchestrator-addr", "localhost:0"],
            1,
            "the orchestrator's address: expected HOST:PORT",
        ),
        (["--certs-dir", "/nonexistent"], 1, "concertino certs init"),
        (["--nonsense"], 2, "unrecognized arguments"),
    ],
)
@on_a_loop
async def test_a_start_that_fails_says_why_in_one_line(
    folder: Path, certificates: Certificates, flags: list[str], code: int, said: str
) -> None:
    if "--certs-dir" not in flags:
        flags = [*flags, "--certs-dir", str(certificates.folder)]
    async with start_plugin(folder, *flags) as plugin:
        assert await plugin.wait_for_end() == code
        assert sum(said in line for line in plugin.said) == 1
        assert not any("Traceback" in line for line in plugin.said)


OPENING = """
import sys
from collections.abc import Iterator
from concertino import Plugin

plugin = Plugin("tools.opening")

@plugin.lifespan
def opened() -> Iterator[None]:
    yield
    print("closed", file=sys.stderr)

plugin.run()
"""


def test_a_plugin_that_cannot_listen_ends_its_lifespan_functions(tmp_path: Path) -> None:
    (tmp_path / "opening.py").write_text(OPENING)
    done = subprocess.run(
        [sys.executable, tmp_path / "opening.py", "--listen-addr", "nowhere"],
        stderr=subprocess.PIPE,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert done.stderr.splitlines()[0].endswith("closed"), done.stderr


def test_the_manifest_is_one_line_of_json_without_null(tmp_path: Path) -> None:
    """The members are those that upstream's SDK prints."""
    (tmp_path / "greeter.py").write_text(GREETER)
    done = subprocess.run(
        [sys.executable, tmp_path / "greeter.py", "--manifest"], capture_output=True, text=True
    )
    assert done.returncode == 0
    assert done.stderr == ""
    said = json.loads(done.stdout)
    assert done.stdout.count("\n") == 1
    assert said["id"] == "tools.greeter"
    assert said["provides_tools"] == ["greet", "hang", "hold", "other"]
    lists = {f"provides_{name}" for name in ("tools", "storage", "transport", "ai", "prompts")}
    lists |= {f"needs_{name}" for name in ("storage", "ai", "tools")}
    assert lists <= said.keys()
    assert {"id", "version", "description", "author", "language"} <= said.keys()
    assert None not in said.values()


def test_the_same_file_is_an_mcp_server_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "greeter.py").write_text(GREETER)
    lines = [
        {
            "jsonrpc": "2.0",
            "id": 1,
            "method": "initialize",
            "params": {"protocolVersion": "2025-11-25"},
        },
        {
            "jsonrpc": "2.0",
            "id": 2,
            "method": "tools/call",
            "params": {"name": "greet", "arguments": {"name": "Ada"}},
        },
    ]
    done = subprocess.run(
        [sys.executable, "-m", "concertino", "serve", tmp_path / "greeter.py"],
        input="".join(json.dumps(line) + "\n" for line in lines),
        capture_output=True,
        text=True,
    )
    assert json.loads(done.stdout.splitlines()[1])["result"]["content"][0]["text"] == "Hello, Ada!"


@pytest.mark.parametrize("missing", ["google.protobuf", "cryptography"])
def test_without_the_extra_a_plugin_names_it(missing: str) -> None:
    code = f"import sys; sys.modules[{missing!r}] = None\nfrom concertino import Plugin\n"
    done = subprocess.run(
        [sys.executable, "-c", code + "Plugin('tools.greeter')"], capture_output=True, text=True
    )
    assert re.search(r"pip install .*\[orchestra\]'\n\Z", done.stderr)
