"""The official Python client, `mcp` 2.x, over stdio against examples/everything.py: what we ask it,
and what it subscribes to.

It checks every question and every notification against its own models of the revision, and drives
the rounds of 2026-07-28 itself.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import mcp_types as types
import pytest
from mcp import Client, MCPError, StdioServerParameters, stdio_client

import concertino

SOURCE = str(Path(concertino.__file__).parents[1])
EVERYTHING = Path(__file__).parents[2] / "examples" / "everything.py"
mode = pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])
ANSWERS: dict[str, Any] = {
    "name": "Ada",
    "color": "red",
    "ok": True,
    "username": "ada",
    "email": "ada@example.com",
    "context": "poetry",
}


async def answer_elicitation(context: Any, params: types.ElicitRequestParams) -> types.ElicitResult:
    assert isinstance(params, types.ElicitRequestFormParams)
    properties = params.requested_schema["properties"]
    content = {name: field.get("default", ANSWERS.get(name)) for name, field in properties.items()}
    return types.ElicitResult(action="accept", content=content)


async def answer_sampling(
    context: Any, params: types.CreateMessageRequestParams
) -> types.CreateMessageResult:
    text = f"at most {params.max_tokens}"
    return types.CreateMessageResult(
        role="assistant", content=types.TextContent(text=text), model="m"
    )


async def answer_roots(context: Any) -> types.ListRootsResult:
    return types.ListRootsResult(roots=[types.Root(uri="file:///work")])


def talk(mode: str, what: Callable[[Client], Awaitable[None]], **settings: Any) -> None:
    async def run() -> None:
        parameters = StdioServerParameters(
            command=sys.executable, args=[str(EVERYTHING)], env={"PYTHONPATH": SOURCE}
        )
        with tempfile.TemporaryFile("w+") as errlog:
            async with Client(
                stdio_client(parameters, errlog=errlog), mode=mode, **settings
            ) as client:
                await asyncio.wait_for(what(client), 30)

    asyncio.run(run())


ALL: dict[str, Any] = {
    "elicitation_callback": answer_elicitation,
    "sampling_callback": answer_sampling,
    "list_roots_callback": answer_roots,
}
EXPECTED = {
    "test_sampling": "LLM response: at most 100",
    "test_elicitation": (
        "User response: action=accept, content=Account(username='ada', email='ada@example.com')"
    ),
    "test_elicitation_sep1034_defaults": (
        "Elicitation completed: action=accept, content="
        "Profile(name='John Doe', age=30, score=95.5, status='active', verified=True)"
    ),
    "test_input_required_result_elicitation": "Hello, Ada!",
    "test_input_required_result_sampling": "at most 100",
    "test_input_required_result_list_roots": "Roots: file:///work",
    "test_input_required_result_request_state": "state-ok: accept",
    "test_input_required_result_multiple_inputs": "accept, and 3 answers",
    "test_input_required_result_multi_round": "Name(name='Ada') likes Color(color='red')",
}
ARGUMENTS = {"test_sampling": {"prompt": "hi"}, "test_elicitation": {"message": "Who?"}}


@mode
def test_it_answers_every_question(mode: str) -> None:
    async def what(client: Client) -> None:
        for tool, expected in EXPECTED.items():
            result = await client.call_tool(tool, ARGUMENTS.get(tool, {}))
            [block] = result.content
            assert isinstance(block, types.TextContent)
            assert block.text == expected
        prompt = await client.get_prompt("test_input_required_result_prompt")
        assert "poetry" in str(prompt.messages[0].content)

    talk(mode, what, **ALL)


@mode
def test_it_declines_and_is_told_so(mode: str) -> None:
    async def no(context: Any, params: Any) -> types.ElicitResult:
        return types.ElicitResult(action="decline")

    async def what(client: Client) -> None:
        result = await client.call_tool("test_input_required_result_elicitation", {})
        assert result.content[0] == types.TextContent(text="Hello, nobody!")

    talk(mode, what, elicitation_callback=no)


@mode
def test_what_it_did_not_offer_is_not_asked(mode: str) -> None:
    async def what(client: Client) -> None:
        if mode == "legacy":
            result = await client.call_tool("test_missing_capability", {})
            assert result.is_error
            return
        with pytest.raises(MCPError) as error:
            await client.call_tool("test_missing_capability", {})
        assert error.value.error.code == -32021
        assert error.value.error.data == {"requiredCapabilities": {"sampling": {}}}

    talk(mode, what, elicitation_callback=answer_elicitation)


def test_it_listens_to_several_at_once_and_hears_what_it_asked_for() -> None:
    async def what(client: Client) -> None:
        async with (
            client.listen(tools_list_changed=True) as tools,
            client.listen(
                prompts_list_changed=True, resource_subscriptions=["test://watched-resource"]
            ) as prompts,
        ):
            assert tools.honored.tools_list_changed
            assert prompts.honored.prompts_list_changed
            assert prompts.honored.resource_subscriptions == ["test://watched-resource"]
            await client.call_tool("test_trigger_prompt_change", {})
            await client.call_tool("test_trigger_tool_change", {})
            assert type(await anext(aiter(tools))).__name__ == "ToolsListChanged"
            assert type(await anext(aiter(prompts))).__name__ == "PromptsListChanged"

    talk("2026-07-28", what)


@pytest.mark.filterwarnings("ignore::mcp.MCPDeprecationWarning")
@pytest.mark.parametrize("level", ["debug", "warning"])
@mode
def test_it_gets_log_messages_of_the_level_that_it_wants(level: str, mode: str) -> None:
    heard: list[Any] = []

    async def logged(params: types.LoggingMessageNotificationParams) -> None:
        heard.append(params.data)

    async def what(client: Client) -> None:
        if mode == "legacy":
            await client.set_logging_level(level)  # pyright: ignore[reportArgumentType, reportDeprecated]
        await client.call_tool("test_tool_with_logging", {})
        assert len(heard) == (3 if level == "debug" else 0)

    settings: dict[str, Any] = {} if mode == "legacy" else {"log_level": level}
    talk(mode, what, logging_callback=logged, **settings)
