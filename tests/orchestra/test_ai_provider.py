"""ai_provider.py, chat_messages.py, plugin_sampling.py: AI providers as plugins, and the sampling
of other plugins' tools. The models are those of a ChatServer on this machine.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from loops import on_a_loop
from orchestra.chat_server import (
    CUT,
    HANG,
    HELLO,
    RATE_LIMIT,
    REFUSAL,
    SERVER_ERROR,
    WEATHER,
    ChatServer,
    chat_server,
)
from orchestra.hubs import (
    SOMEBODY,
    call_tool,
    entry,
    raw,
    running,
    sdk,
    write_plugins_file,
)

from concertino.errors import ToolError
from concertino.orchestra.ai_accounts import AiAccounts
from concertino.orchestra.hub import Hub
from concertino.orchestra.plugin_pb2 import (
    PluginRequest,
    StreamStart,
    ToolRequest,
    ToolResponse,
)
from concertino.orchestra.structs import pack, unpack

ROOT = Path(__file__).parents[2]

ASKING = """
from concertino import Context, Plugin
from concertino.types.client_requests import SamplingMessage
from concertino.types.results import TextContent
plugin = Plugin("tools.asking")
@plugin.tool
async def ask(question: str, context: Context) -> str:
    answer = await context.sample(question, 100, system_prompt="Be brief.")
    return f"{answer.model} says: {answer.text} ({answer.stop_reason})"
plugin.run()
"""
# An MCP server whose tool asks its client for a model.
SERVER = """
from concertino import Context, Server
server = Server("asking")
@server.tool
async def ask_client(question: str, context: Context) -> str:
    if "sampling" not in context.client.capabilities:
        return "no model"
    return (await context.sample(question, 50)).text
server.run()
"""


def provider(kind: str, chat: ChatServer | None = None, **members: Any) -> dict[str, Any]:
    """The entry of an AI provider."""
    config = {"model": "gpt-4o-mini", **members.pop("config", {})}
    if chat is not None:
        config["base_url"] = chat.url
    key = {"OPENAI_API_KEY": "sk-test-123456"} if kind == "openai" else {}
    env = {**key, **members.pop("env", {})}
    args = ["plugin", kind]
    return entry(f"ai.{kind}", "concertino", args=args, config=config, env=env, **members)


async def respond_to(hub: Hub, caller: str, tool: str, **arguments: Any) -> ToolResponse:
    call = ToolRequest(tool_name=tool, arguments=pack(arguments).struct, caller_plugin=caller)
    return (await hub.answer(PluginRequest(tool_call=call), SOMEBODY)).tool_call


async def call_as(hub: Hub, caller: str, tool: str, **arguments: Any) -> dict[str, Any]:
    response = await respond_to(hub, caller, tool, **arguments)
    assert response.success, response.error_message
    return unpack(response.result, response.result_json)


@on_a_loop
async def test_a_prompt_is_answered_streamed_and_counted_for_its_caller(folder: Path) -> None:
    async with chat_server(HELLO) as chat:
        path = write_plugins_file(folder, provider("openai", chat))
        async with running(path) as hub:
            answer = await call_as(hub, "tools.a", "ai_prompt", prompt="Hi", system_prompt="Greet.")
            assert answer == {"text": "Hello there"}
            start = StreamStart(stream_id="s", tool_name="ai_prompt", window=2**20)
            start.arguments = pack({"prompt": "Hi"}).struct
            start.caller_plugin = "tools.b"
            *chunks, end = [item async for item in hub.stream(start, SOMEBODY)]
            assert [item.stream_chunk.data for item in chunks] == [b"Hello", b" there"]
            assert end.stream_end.success

            accounts = await call_as(hub, "tools.a", "ai_usage")
            for caller in ("tools.a", "tools.b"):
                account = accounts[caller]
                assert account.pop("seconds") > 0
                expected = {"calls": 1, "failures": 0, "input_tokens": 9, "output_tokens": 12}
                assert account == expected
        headers, body = chat.requests[0]
    assert headers["authorization"] == "Bearer sk-test-123456"
    assert body["messages"] == [
        {"role": "system", "content": "Greet."},
        {"role": "user", "content": "Hi"},
    ]
    assert (body["model"], body["max_completion_tokens"]) == ("gpt-4o-mini", 4096)


@on_a_loop
async def test_sampling_with_tools_is_translated_both_ways(folder: Path) -> None:
    conversation = [
        {"role": "user", "content": {"type": "text", "text": "The weather in Boston?"}},
        {
            "role": "assistant",
            "content": {"type": "tool_use", "id": "call_1", "name": "where", "input": {"a": 1}},
        },
        {
            "role": "user",
            "content": {
                "type": "tool_result",
                "toolUseId": "call_1",
                "content": [{"type": "text", "text": "here"}],
            },
        },
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "Look:"},
                {"type": "image", "data": "AAEC", "mimeType": "image/png"},
            ],
        },
    ]
    request = {
        "messages": conversation,
        "maxTokens": 77,
        "temperature": 0.5,
        "stopSequences": ["END"],
        "tools": [{"name": "get_current_weather", "inputSchema": {"type": "object"}}],
        "toolChoice": {"mode": "required"},
    }
    async with chat_server(WEATHER, REFUSAL) as chat:
        path = write_plugins_file(folder, provider("local", chat))
        async with running(path) as hub:
            answer = await call_as(hub, "tools.a", "ai_sample", request=request)
            assert answer == {
                "role": "assistant",
                "content": {
                    "type": "tool_use",
                    "id": "call_abc123",
                    "name": "get_current_weather",
                    "input": {"location": "Boston, MA"},
                },
                "model": "gpt-4o-mini",
                "stopReason": "toolUse",
            }
            refused = await call_as(hub, "tools.a", "ai_sample", request=request)
            assert refused["stopReason"] == "refusal"
            assert refused["content"]["text"] == "I'm sorry, I cannot assist with that request."
        _, body = chat.requests[0]
    assert body["messages"] == [
        {"role": "user", "content": "The weather in Boston?"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {
                    "id": "call_1",
                    "type": "function",
                    "function": {"name": "where", "arguments": '{"a":1}'},
                }
            ],
        },
        {"role": "tool", "tool_call_id": "call_1", "content": "here"},
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "Look:"},
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAEC"}},
            ],
        },
    ]
    function = {"name": "get_current_weather", "description": "", "parameters": {"type": "object"}}
    assert body["tools"] == [{"type": "function", "function": function}]
    assert (body["tool_choice"], body["max_tokens"]) == ("required", 77)
    assert (body["temperature"], body["stop"]) == (0.5, ["END"])


class Failure(NamedTuple):
    """Answers of the model's server, and what the caller gets.

    code: of the error; "" if there is none. requests: how often the server is asked.
    used: the tokens that the caller has used then, of its prompt and of the answer.
    """

    answers: list[Any]
    code: str
    requests: int
    used: tuple[int, int]


# The texts are "Hi" and "Hello there": by the tokenizers of OpenAI, 1 and 2 tokens.
FAILURES = [
    Failure([(429, RATE_LIMIT)], "RATE_LIMITED", 3, (0, 0)),
    Failure([(500, SERVER_ERROR)], "API_ERROR", 3, (0, 0)),
    Failure([(400, SERVER_ERROR)], "API_ERROR", 1, (0, 0)),
    Failure([HELLO[:3]], "INCOMPLETE", 1, (1, 2)),
    Failure([HELLO[:4]], "", 1, (1, 2)),
    Failure([[*HELLO[:3], CUT]], "INCOMPLETE", 1, (1, 2)),
    Failure([[*HELLO[:3], SERVER_ERROR]], "API_ERROR", 1, (1, 2)),
    # The SDK tries again, and the caller does not notice.
    Failure([(429, RATE_LIMIT), (503, SERVER_ERROR), HELLO], "", 3, (9, 12)),
]
TIMEOUTS = [
    Failure([None], "TIMEOUT", 3, (1, 0)),
    Failure([[*HELLO[:3], HANG]], "TIMEOUT", 1, (1, 2)),
]


@pytest.mark.parametrize(
    ("failures", "config"),
    [(FAILURES, {}), (TIMEOUTS, {"timeout_s": "0.3"})],
    ids=["failures", "timeouts"],
)
@on_a_loop
async def test_failures_of_the_provider_and_what_they_cost(
    folder: Path, failures: list[Failure], config: dict[str, str]
) -> None:
    """One provider meets all of them, since a failure must leave it able to answer the next."""
    async with (
        chat_server(HELLO) as chat,
        running(write_plugins_file(folder, provider("openai", chat, config=config))) as hub,
    ):
        for number, failure in enumerate(failures):
            chat.answers = list(failure.answers)
            chat.requests.clear()
            caller = f"tools.caller{number}"
            response = await respond_to(hub, caller, "ai_prompt", prompt="Hi")
            account = (await call_as(hub, "x", "ai_usage"))[caller]
            outcome = (response.error_code, len(chat.requests), account["failures"])
            assert outcome == (failure.code, failure.requests, 1 if failure.code else 0), failure
            assert "sk-test" not in response.error_message
            # An estimate has 5 tokens more, since providers count some besides the text of a
            # message.
            assert failure.used[0] <= account["input_tokens"] <= failure.used[0] * 9, failure
            assert failure.used[1] <= account["output_tokens"] <= failure.used[1] * 4, failure


@on_a_loop
async def test_a_caller_whose_tokens_are_used_up_is_refused(folder: Path) -> None:
    async with chat_server(HELLO) as chat:
        config = {"max_tokens_per_caller": "21"}
        async with running(
            write_plugins_file(folder, provider("openai", chat, config=config))
        ) as hub:
            await call_as(hub, "tools.a", "ai_prompt", prompt="Hi")
            refused = await respond_to(hub, "tools.a", "ai_prompt", prompt="Hi")
            assert refused.error_code == "TOKENS_USED_UP"
            assert refused.error_message.startswith("tools.a has used 21 of 21 tokens; ")
            await call_as(hub, "tools.b", "ai_prompt", prompt="Hi")


def test_calls_in_progress_count_with_the_tokens_that_they_may_use() -> None:
    accounts = AiAccounts(max_tokens=100)
    with (
        accounts.count_call("tools.a", 60) as (account, first),
        accounts.count_call("tools.a", 60) as (_, second),
    ):
        # The second call gets what is left.
        assert (first, second) == (60, 40)
        with (
            pytest.raises(ToolError, match=r"used 0 of 100 tokens, and its calls .* use 100 more"),
            accounts.count_call("tools.a", 60),
        ):
            pass
        with accounts.count_call("tools.b", 60):
            pass
        account.output_tokens += 15
    # The answers had fewer tokens, so there is room for another call.
    with accounts.count_call("tools.a", 60):
        pass
    assert (account.calls, account.failures) == (3, 0)


@on_a_loop
async def test_a_cancelled_answer_costs_its_tokens_and_makes_room_for_the_next(
    folder: Path,
) -> None:
    async with chat_server([*HELLO[:3], HANG], HELLO) as chat:
        config = {"max_tokens_per_caller": "100"}
        path = write_plugins_file(folder, provider("openai", chat, config=config))
        async with running(path) as hub:
            start = StreamStart(stream_id="s", tool_name="ai_prompt", window=2**20)
            start.arguments = pack({"prompt": "Hi", "max_tokens": 100}).struct
            start.caller_plugin = "tools.a"
            stream = hub.stream(start, SOMEBODY)
            chunks = [(await anext(stream)).stream_chunk.data for _ in range(2)]
            assert chunks == [b"Hello", b" there"]
            await stream.aclose()
            while (await call_as(hub, "x", "ai_usage"))["tools.a"]["failures"] == 0:
                await asyncio.sleep(0)
            account = (await call_as(hub, "x", "ai_usage"))["tools.a"]
            assert account["input_tokens"] >= 1
            assert account["output_tokens"] >= 2
            await call_as(hub, "tools.a", "ai_prompt", prompt="Hi")
        spent = account["input_tokens"] + account["output_tokens"]
        assert chat.requests[1][1]["max_completion_tokens"] == 100 - spent


@on_a_loop
async def test_a_limit_of_tokens_below_1_is_refused_before_the_provider_is_asked(
    folder: Path,
) -> None:
    """A negative number would take tokens from the account while the call runs."""
    async with chat_server(HELLO) as chat:
        async with running(write_plugins_file(folder, provider("openai", chat))) as hub:
            for number in (0, -1, -(10**9)):
                response = await call_tool(hub, "ai_prompt", prompt="Hi", max_tokens=number)
                refused = response.tool_call
                message = f"max_tokens: expected a positive number, got {number}"
                assert (refused.error_code, refused.error_message) == ("INVALID_REQUEST", message)
        assert not chat.requests


@on_a_loop
async def test_without_a_key_or_a_model_a_provider_does_not_boot(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    local = provider("local")
    del local["config"]["model"]
    path = write_plugins_file(
        folder,
        provider("gemini"),
        provider("openai", env={"OPENAI_API_KEY": "secret:file:none.txt"}),
        local,
    )
    async with running(path) as hub:
        reasons = {plugin.id: plugin.reason for plugin in hub.plugins.values()}
    expected = "it could not boot: GEMINI_API_KEY is not set: name it under `env` in plugins.yaml"
    assert reasons["ai.gemini"].startswith(expected)
    assert "none.txt" in reasons["ai.openai"]
    assert reasons["ai.local"].endswith("config.model: expected the name of a model, got none")


@on_a_loop
async def test_sampling_of_a_tool_of_another_plugin_asks_the_provider(folder: Path) -> None:
    async with chat_server(HELLO) as chat:
        (folder / "server.py").write_text(SERVER)
        command = [sys.executable, "server.py"]
        path = write_plugins_file(
            folder,
            provider("openai", chat),
            sdk(folder, "tools.asking", ASKING),
            {"id": "tools.mcp", "protocol": "mcp", "command": command, "enabled": True},
        )
        async with running(path) as hub:
            answer = await call_as(hub, "somebody", "ask", question="Hi")
            assert answer == {"text": "gpt-4o-mini says: Hello there (endTurn)"}
            answer = await call_as(hub, "somebody", "ask_client", question="Hi you")
            assert answer == {"text": "Hello there"}
            # The plugin that asks pays, whoever has called its tool.
            assert set(await call_as(hub, "x", "ai_usage")) == {"tools.asking", "tools.mcp"}
        bodies = [body for _, body in chat.requests]
    assert bodies[0]["messages"][0] == {"role": "system", "content": "Be brief."}
    assert bodies[0]["max_completion_tokens"] == 100
    assert bodies[1]["messages"] == [{"role": "user", "content": "Hi you"}]


BRIDGE = """
tools.append("ai_prompt")
easy = answer
async def answer(request, peer):
    if request.HasField("tool_call"):
        from concertino.orchestra.structs import pack, unpack
        got = unpack(request.tool_call.arguments)
        text = f"{got['system_prompt']} {got['prompt']}"
        return PluginResponse(tool_call=ToolResponse(success=True, result=pack({"text": text})[0]))
    return await easy(request, peer)
"""


@on_a_loop
async def test_a_bridge_of_the_go_implementation_answers_single_texts(folder: Path) -> None:
    bridge = raw(folder, "bridge.openai", BRIDGE, provides_ai=["openai"])
    path = write_plugins_file(folder, bridge, sdk(folder, "tools.asking", ASKING))
    async with running(path) as hub:
        answer = await call_as(hub, "somebody", "ask", question="Hi")
        assert answer == {"text": "unknown says: Be brief. Hi (None)"}


@on_a_loop
async def test_without_a_provider_sampling_says_so(folder: Path) -> None:
    (folder / "server.py").write_text(SERVER)
    command = [sys.executable, "server.py"]
    path = write_plugins_file(
        folder,
        sdk(folder, "tools.asking", ASKING),
        {"id": "tools.mcp", "protocol": "mcp", "command": command, "enabled": True},
    )
    async with running(path) as hub:
        refused = (await call_tool(hub, "ask", question="Hi")).tool_call
        expected = "the hub has no AI provider for this: no plugin has the tool 'ai_prompt'"
        assert refused.error_message == expected
        assert await call_as(hub, "x", "ask_client", question="Hi") == {"text": "no model"}


@pytest.mark.slow
@on_a_loop
async def test_the_planning_example_asks_the_provider_of_its_plugins_file(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-test-123456")
    example = yaml.safe_load((ROOT / "examples" / "orchestre" / "plugins.yaml").read_text())
    async with chat_server(HELLO) as chat:
        ai, server = example["plugins"]
        ai["config"]["base_url"] = chat.url
        server["command"] = [sys.executable, "-m", *server["command"]]
        server["cwd"] = str(ROOT / "examples" / "orchestre")
        async with running(write_plugins_file(folder, ai, server)) as hub:
            requirements = "A web shop with payments, a catalogue and users"
            response = await call_tool(hub, "analyze_project", requirements=requirements)
            assert response.tool_call.success, response.tool_call.error_message
            assert set(await call_as(hub, "x", "ai_usage")) == {"tools.orchestre"}
        assert chat.requests
