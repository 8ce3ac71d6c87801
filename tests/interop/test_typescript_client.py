"""The official TypeScript clients, versions 1 and 2, over stdio against a real process of ours;
version 2 in both eras.

What they accept is checked by them: they validate each message against the schemas of its revision,
and structured content against the output schema that tools/list showed. They give the server a
socket as stdin, as Node does.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from interop import node
from stdio.harness import environment

HERE = Path(__file__).parent
TOUR = HERE.parents[1] / "examples" / "tour.py"
MODERN = "2026-07-28"
WAYS = {
    "v1": ["typescript_1.mjs"],
    "v2 legacy": ["typescript_2.mjs", "legacy"],
    "v2 auto": [
        "typescript_2.mjs",
        "auto",
    ],  # asks server/discover of a server that it starts for that alone, stderr unheard
    f"v2 {MODERN}": ["typescript_2.mjs", MODERN],
}
SLOW = [pytest.param(way, marks=pytest.mark.slow) for way in WAYS if way != "v1"]


class ClientReport(dict[str, Any]):
    """What a client saw in one conversation.

    modern: whether it spoke 2026-07-28. log: what the server said on stderr.
    """

    modern: bool
    log: str


@pytest.fixture(scope="module", params=["v1", *SLOW])
def report(request: pytest.FixtureRequest) -> ClientReport:
    folder = node.packages()
    for source in HERE.glob("*.mjs"):  # modules are looked up from where the file lies
        shutil.copy(source, folder)
    script, *mode = WAYS[request.param]
    command = [node.node(), folder / script, *mode, sys.executable, TOUR]
    ran = node.run(command, environment(LOG_LEVEL="debug"))
    assert ran.code == 0, ran.stderr
    assert not ran.left, "a server was left behind"
    found = ClientReport(json.loads(ran.stdout))
    found.modern = request.param in ("v2 auto", f"v2 {MODERN}")
    found.log = ran.stderr
    return found


def test_it_connects_in_the_era_that_it_chose(report: ClientReport) -> None:
    assert report["server"] == {"name": "tour", "version": "1.0.0"}
    assert report["instructions"] == "Small tools that show what a server can do."
    assert (f'"io.modelcontextprotocol/protocolVersion":"{MODERN}"' in report.log) is report.modern
    assert ('"method":"initialize"' in report.log) is not report.modern
    assert report["capabilities"] == {"logging": {}, "tools": {"listChanged": True}}


def test_it_lists_the_tools(report: ClientReport) -> None:
    names = [tool["name"] for tool in report["tools"]]
    assert names == ["add", "statistics", "divide", "bake", "wait", "swatch", "chat"]
    add = report["tools"][0]
    assert add["inputSchema"]["properties"] == {"a": {"type": "integer"}, "b": {"type": "integer"}}
    assert add["annotations"] == {"readOnlyHint": True}


def test_it_takes_structured_content_that_fits_the_schema_shown(report: ClientReport) -> None:
    assert report["sum"]["content"] == [{"type": "text", "text": "42"}]
    assert report["sum"]["structuredContent"] == (42 if report.modern else {"result": 42})
    assert report["statistics"]["structuredContent"] == {"count": 3, "mean": 5, "largest": 8}
    assert report["picture"]["content"][0]["mimeType"] == "image/png"


def test_it_tells_failures_from_errors(report: ClientReport) -> None:
    assert report["failed"]["isError"] is True
    assert report["failed"]["content"][0]["text"] == "b is 0: give another divisor"
    assert report["refused"]["isError"] is True
    assert "Missing required field: b" in report["refused"]["content"][0]["text"]
    assert report["unknown"]["code"] == -32602
    assert "Unknown tool: multiply" in report["unknown"]["message"]


def test_it_hears_progress_and_the_log_messages_that_it_asked_for(report: ClientReport) -> None:
    # The second step comes with the result, in one read, and the client forgets the token before it
    # looks at the step: both versions handle a notification one microtask later than an answer. It
    # was sent, and before the result.
    assert report["progress"][0] == {"progress": 1, "total": 2, "message": "1 of 2 minutes"}
    assert report.log.index('"progress":2,"total":2') < report.log.index('"text":"One plum cake."')
    assert [(said["level"], said["data"]) for said in report["heard"]] == [
        ("info", "plum cake goes into the oven")
    ]


def test_a_call_that_it_gives_up_is_stopped_and_the_next_fifty_are_served(
    report: ClientReport,
) -> None:
    assert "too long" in report["cancelled"]["message"]
    assert "was cancelled: too long" in report.log
    assert report["sums"] == [str(number) for number in range(50)]


def test_a_ping_is_answered(report: ClientReport) -> None:
    if not report.modern:  # which has none
        assert report["pong"] == {}


def test_nothing_came_that_it_could_not_place(report: ClientReport) -> None:
    known = "Received a progress notification for an unknown token"  # see above
    assert [error for error in report["unexpected"] if known not in error] == []


def test_the_server_ends_by_itself_when_the_client_closes(report: ClientReport) -> None:
    assert report["exit"] == {"code": 0, "signal": None}
    assert (
        report.log.count("Starting tour MCP server")
        == report.log.count("Shutting down tour MCP server")
        > 0
    )
