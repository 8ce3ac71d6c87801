"""The official Python client, `mcp` 2.x, and the official conformance suite, whose client is the
TypeScript SDK, over HTTP against real servers of ours, in both eras.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import mcp_types as types
import pytest
from conformance import suite
from http_service import HttpService, serving
from interop.tools import node_program, not_available
from mcp import Client, MCPError

ROOT = Path(__file__).parents[2]
TOUR = ROOT / "examples" / "tour.py"
SERVER = ROOT / "tests" / "http" / "server_for_http.py"
ERAS = {"legacy": "2025-11-25", "auto": "2026-07-28", "2026-07-28": "2026-07-28"}
mode = pytest.mark.parametrize("mode", ERAS)

Talk = Callable[[Client], Awaitable[Any]]


@pytest.fixture(scope="module")
def service() -> Iterator[HttpService]:
    with serving(SERVER) as running:
        yield running


def talk(service: HttpService, mode: str, what: Talk, **settings: Any) -> None:
    """Run `what` with a client connected to the server."""

    async def run() -> None:
        async with Client(service.url, mode=mode, **settings) as client:
            await asyncio.wait_for(what(client), 20)

    asyncio.run(run())


def text_of(result: types.CallToolResult) -> str:
    [block] = result.content
    assert isinstance(block, types.TextContent)
    return block.text


@mode
def test_the_official_client_lists_and_calls(service: HttpService, mode: str) -> None:
    async def what(client: Client) -> None:
        assert client.protocol_version == ERAS[mode]
        names = {tool.name for tool in (await client.list_tools()).tools}
        assert {"add", "count", "ask"} <= names
        result = await client.call_tool("add", {"a": 1, "b": 2})
        assert result.structured_content == {"result": 3} or result.structured_content == 3
        contents = (await client.read_resource("text://note")).contents
        assert [item.text for item in contents] == ["a note"]  # type: ignore[union-attr]

    talk(service, mode, what)


@mode
def test_the_official_client_gets_progress(service: HttpService, mode: str) -> None:
    heard: list[float] = []

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        heard.append(progress)

    async def what(client: Client) -> None:
        result = await client.call_tool("count", {}, progress_callback=on_progress)
        assert text_of(result) == "counted"

    talk(service, mode, what)
    assert heard
    assert heard[-1] == 2


@mode
def test_the_official_client_answers_questions(service: HttpService, mode: str) -> None:
    async def answer(_: Any, params: types.ElicitRequestParams) -> types.ElicitResult:
        return types.ElicitResult(action="accept", content={"name": "Ada"})

    async def what(client: Client) -> None:
        assert text_of(await client.call_tool("ask", {})) == "hello Ada"

    talk(service, mode, what, elicitation_callback=answer)


@mode
def test_the_official_client_gets_errors(service: HttpService, mode: str) -> None:
    async def what(client: Client) -> None:
        with pytest.raises(MCPError):
            await client.read_resource("text://none")
        assert (await client.call_tool("add", {"a": "x", "b": 2})).is_error

    talk(service, mode, what)


@mode
def test_fifty_calls_of_the_official_client_side_by_side(service: HttpService, mode: str) -> None:
    async def what(client: Client) -> None:
        results = await asyncio.gather(
            *(client.call_tool("add", {"a": at, "b": 0}) for at in range(50))
        )
        assert [text_of(result) for result in results] == [str(at) for at in range(50)]

    talk(service, mode, what)


@pytest.fixture(scope="module")
def everything_url() -> Iterator[str]:
    """Serve everything that the conformance suite asks for, once the suite is installed."""
    node_program("npm")
    try:
        suite.install()
    except RuntimeError as exc:
        not_available(str(exc))
    with serving(suite.EVERYTHING, *suite.HTTP_OPTIONS) as service:
        # One scenario asks for this name, and not for the address.
        yield service.url.replace("127.0.0.1", "localhost")


@pytest.mark.slow
@pytest.mark.parametrize("requirements", suite.SCORED)
def test_the_conformance_suite_passes_without_a_front(
    requirements: str, everything_url: str, tmp_path: Path
) -> None:
    verdict = suite.judge(requirements, suite.run_at(everything_url, requirements, tmp_path))

    assert not verdict.wrong, "\n".join(verdict.wrong)
    assert len(verdict.passed) == suite.SCORED[requirements]


@pytest.mark.slow
@pytest.mark.parametrize("scenario", suite.NAMED, ids="{0.name}-{0.revision}".format)
def test_each_conformance_scenario_of_http_alone_passes(
    scenario: suite.NamedScenario, everything_url: str, tmp_path: Path
) -> None:
    assert suite.run_named(everything_url, scenario, tmp_path) == {}
