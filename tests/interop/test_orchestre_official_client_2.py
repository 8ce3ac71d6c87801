"""examples/orchestre driven end to end by the official Python client, `mcp` 2.x, in both eras, a
scripted model behind sampling.

The client validates every result against its own models and structured content against the output
schemas that tools/list showed.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import IO, Any

import mcp_types as types
import pytest
from mcp import Client, MCPError, StdioServerParameters, stdio_client

import concertino

SOURCE = str(Path(concertino.__file__).parents[1])
ORCHESTRE = Path(__file__).parents[2] / "examples" / "orchestre" / "server.py"
ERAS = {"legacy": "2025-11-25", "2026-07-28": "2026-07-28"}
mode = pytest.mark.parametrize("mode", ERAS)
IDEA = "Build a SaaS application with user authentication and subscription billing"

Talk = Callable[[Client], Awaitable[Any]]


def talk(mode: str, root: Path, what: Talk, **settings: Any) -> str:
    """Run `what` with a client of examples/orchestre, whose projects go to root; returns what the
    server logged.
    """

    async def run(errlog: IO[str]) -> None:
        environment = {"PYTHONPATH": SOURCE, "ORCHESTRE_ROOT": str(root)}
        parameters = StdioServerParameters(
            command=sys.executable, args=[str(ORCHESTRE)], env=environment
        )
        async with Client(stdio_client(parameters, errlog=errlog), mode=mode, **settings) as client:
            assert client.protocol_version == ERAS[mode]
            await asyncio.wait_for(what(client), 30)

    with tempfile.TemporaryFile("w+") as errlog:
        asyncio.run(run(errlog))
        errlog.seek(0)
        return errlog.read()


def body(result: types.CallToolResult) -> Any:
    [block] = result.content
    assert isinstance(block, types.TextContent)
    assert result.structured_content is None
    found = json.loads(block.text)
    if result.is_error:
        return found
    assert list(found) == ["success", "data", "metadata"]
    return found["data"]


class Model:
    """Answers as its script says, by role; keeps what it was asked."""

    def __init__(self, **script: str) -> None:
        self.script = script
        self.asked: list[types.CreateMessageRequestParams] = []

    async def __call__(
        self, context: Any, params: types.CreateMessageRequestParams
    ) -> types.CreateMessageResult:
        self.asked.append(params)
        system = params.system_prompt or ""
        role = next((role for role in self.script if role in system), "other")
        text = types.TextContent(type="text", text=self.script.get(role, "nothing to add"))
        return types.CreateMessageResult(
            role="assistant", content=text, model=f"scripted-{role}", stop_reason="endTurn"
        )


async def make_plan(client: Client) -> tuple[Any, Any]:
    """An analysis and a plan, as the source document composes them."""
    await client.list_tools()
    analysis = body(await client.call_tool("analyze_project", {"requirements": IDEA}))
    plan = body(
        await client.call_tool("generate_plan", {"analysis": analysis, "requirements": IDEA})
    )
    return analysis, plan


@mode
def test_from_an_idea_to_files_without_any_model(mode: str, tmp_path: Path) -> None:
    async def what(client: Client) -> None:
        prompt = await client.get_prompt("orchestrate", {"requirements": IDEA})
        assert IDEA in prompt.messages[0].content.text  # type: ignore[union-attr]
        analysis, plan = await make_plan(client)
        assert analysis["complexity"]["level"] == "medium"
        assert analysis["secondOpinion"] is None
        assert plan["phases"][0]["name"] == "Foundation"
        review = body(await client.call_tool("multi_llm_review", {"plan": plan}))
        assert {item["source"] for item in review["reviewers"]} == {"rules"}
        assert {item["why"] for item in review["reviewers"]} == {"the client offers no sampling"}
        kept = body(await client.call_tool("set_context", {"key": "plan", "value": plan}))
        got = body(
            await client.call_tool("get_context", {"context": kept["context"], "key": "plan"})
        )
        assert got["values"] == {"plan": plan}
        made = {"projectName": "shop", "template": "makerkit-nextjs", "projectPath": "new"}
        project = body(await client.call_tool("initialize_project", made))
        assert project["path"] == str(tmp_path / "new" / "shop")
        again = await client.call_tool("initialize_project", made)
        assert (again.is_error, body(again)["code"]) == (True, "PROJECT_EXISTS")

    talk(mode, tmp_path, what)
    assert json.loads((tmp_path / "new" / "shop" / "package.json").read_text())["name"] == "shop"


@mode
def test_the_same_requirements_have_the_same_analysis_and_plan(mode: str, tmp_path: Path) -> None:
    found: list[Any] = []

    async def what(client: Client) -> None:
        found.append(await make_plan(client))

    for _ in range(2):
        talk(mode, tmp_path, what)
    assert found[0] == found[1]


@mode
def test_three_models_review_a_plan_each_in_its_role_and_are_merged(
    mode: str, tmp_path: Path
) -> None:
    shared = {
        "severity": "medium",
        "finding": "Nothing is said of load.",
        "suggestion": "Measure it",
    }
    grave = {
        "severity": "high",
        "finding": "Webhooks are not signed",
        "suggestion": "Check their signatures",
    }
    model = Model(
        architect=json.dumps({"verdict": "approve", "findings": [shared]}),
        security="Here it is:\n```json\n"
        + json.dumps({"verdict": "revise", "findings": [grave, shared]})
        + "\n```",
        delivery="It seems fine to me.",
    )

    async def what(client: Client) -> None:
        _, plan = await make_plan(client)
        before = len(model.asked)
        review = body(await client.call_tool("multi_llm_review", {"plan": plan}))
        assert [
            (item["role"], item["source"], item["verdict"], item["model"])
            for item in review["reviewers"]
        ] == [
            ("architect", "model", "approve", "scripted-architect"),
            ("security", "model", "revise", "scripted-security"),
            ("delivery", "model", "approve", "scripted-delivery"),
        ]
        assert review["reviewers"][2]["comment"] == "It seems fine to me."
        assert review["findings"] == [
            {**grave, "by": ["security"]},
            {**shared, "by": ["architect", "security"]},
        ]
        assert (review["verdict"], review["agreement"]) == ("revise", 0.33)
        asked = model.asked[before:]
        assert len({item.system_prompt for item in asked}) == len(asked) == 3
        for item in asked:
            assert item.max_tokens == 1500
            assert plan["criticalPath"][0] in item.messages[0].content.text  # type: ignore[union-attr]

    talk(mode, tmp_path, what, sampling_callback=model)


@mode
def test_a_model_adds_its_opinion_to_an_analysis_that_stays_what_the_rules_say(
    mode: str, tmp_path: Path
) -> None:
    model, found = Model(other="You forgot support."), list[Any]()

    async def what(client: Client) -> None:
        found.append(body(await client.call_tool("analyze_project", {"requirements": IDEA})))

    talk(mode, tmp_path, what, sampling_callback=model)
    talk(mode, tmp_path, what)
    assert found[0] == {**found[1], "secondOpinion": "You forgot support."}
    [asked] = model.asked
    assert IDEA in asked.messages[0].content.text  # type: ignore[union-attr]


def test_rules_speak_where_the_model_refuses(tmp_path: Path) -> None:
    async def refuse(context: Any, params: types.CreateMessageRequestParams) -> types.ErrorData:
        return types.ErrorData(code=-1, message="User rejected sampling request")

    async def what(client: Client) -> None:
        analysis, plan = await make_plan(client)
        assert analysis["secondOpinion"] is None
        review = body(await client.call_tool("multi_llm_review", {"plan": plan}))
        assert {item["source"] for item in review["reviewers"]} == {"rules"}
        assert "User rejected sampling request" in review["reviewers"][0]["why"]

    talk("legacy", tmp_path, what, sampling_callback=refuse)


@mode
def test_what_goes_wrong_is_told_in_the_forms_of_the_source_document(
    mode: str, tmp_path: Path
) -> None:
    async def what(client: Client) -> None:
        with pytest.raises(MCPError) as error:
            await client.call_tool("analyze_project", {})
        assert error.value.error.code == -32602
        assert error.value.error.data == {"details": "Missing required field: requirements"}
        blank = await client.call_tool("analyze_project", {"requirements": "\n" * 10})
        assert (blank.is_error, body(blank)["code"]) == (True, "MISSING_REQUIREMENTS")
        for name, code in (("Shop!", "INVALID_PROJECT_NAME"), ("shop", "TEMPLATE_NOT_FOUND")):
            made = {"projectName": name, "template": "none", "projectPath": "."}
            failed = await client.call_tool("initialize_project", made)
            assert (failed.is_error, body(failed)["code"]) == (True, code)
        made = {"projectName": "shop", "template": "cloudflare-hono", "projectPath": "/"}
        assert (
            body(await client.call_tool("initialize_project", made))["code"] == "PERMISSION_DENIED"
        )
        for _ in range(10):
            last = await client.call_tool("set_context", {"key": "k", "value": 1})
            assert not last.is_error
        assert (
            body(await client.call_tool("set_context", {"key": "k", "value": 1}))["code"]
            == "RATE_LIMIT_EXCEEDED"
        )

    talk(mode, tmp_path, what)
    assert list(tmp_path.iterdir()) == []
