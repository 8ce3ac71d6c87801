"""The official TypeScript clients, versions 1 and 2, read what examples/notes.py offers, over
stdio; version 2 in both eras.

They validate each result and each notification against the schemas of its revision. One
conversation per client, catalogue.mjs; what it saw is asserted here. What is expected stands in the
example; codes and caching are those of the specification.
"""

from __future__ import annotations

import base64
import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from interop import node
from stdio.harness import environment

CONVERSATION = Path(__file__).with_name("catalogue.mjs")
NOTES = Path(__file__).parents[2] / "examples" / "notes.py"
MODERN = "2026-07-28"
SLOW = [pytest.param(way, marks=pytest.mark.slow) for way in ("legacy", MODERN)]  # of version 2
IDEAS = "notes://notes/ideas"
OFFERED = ["notes://source", "notes://logo", "notes://index"]
MISSING = ["notes://notes/none", f"{IDEAS}?style=sung", "notes://notes/..%2Fideas", "other://x"]
CACHED = {"ttlMs": 60_000, "cacheScope": "private"}  # the example says ttl_s=60


class ClientReport(dict[str, Any]):
    """What a client saw in one conversation.

    way: which client. log: what the server said on stderr, each message among it.
    """

    way: str
    log: str

    @property
    def modern(self) -> bool:
        return self.way == MODERN

    def text(self, name: str) -> str:
        """What reading gave, text alone."""
        [contents] = self[name]["contents"]
        return contents["text"]


@pytest.fixture(scope="module", params=["v1", *SLOW])
def report(request: pytest.FixtureRequest) -> ClientReport:
    script = shutil.copy(
        CONVERSATION, node.packages()
    )  # modules are looked up from where the file lies
    ran = node.run(
        [node.node(), script, request.param, sys.executable, NOTES], environment(LOG_LEVEL="debug")
    )
    assert ran.code == 0, ran.stderr
    assert not ran.left, "a server was left behind"
    found = ClientReport(json.loads(ran.stdout))
    found.way, found.log = request.param, ran.stderr
    return found


def test_it_is_told_what_there_is(report: ClientReport) -> None:
    assert ('"method":"initialize"' in report.log) is not report.modern
    assert (f'"io.modelcontextprotocol/protocolVersion":"{MODERN}"' in report.log) is report.modern
    changes = {"listChanged": True}
    assert report["capabilities"] == {
        "logging": {},
        "completions": {},
        "prompts": changes,
        "resources": {"subscribe": True, **changes},
        "tools": changes,
    }


def test_it_lists_resources_and_templates(report: ClientReport) -> None:
    source, logo, index = report["resources"]["resources"]
    assert source == {
        "uri": "notes://source",
        "name": "notes.py",
        "title": "The source of this server",
        "mimeType": "text/x-python",
        "size": NOTES.stat().st_size,
    }
    assert (logo["mimeType"], logo["size"]) == ("image/png", 8)
    assert (index["description"], index["annotations"]) == (
        "The number of characters in each note.",
        {"audience": ["user"], "priority": 1},
    )
    assert report["templates"]["resourceTemplates"] == [
        {
            "uriTemplate": "notes://notes/{name}{?style}",
            "name": "note",
            "description": "One note.",
            "mimeType": "text/plain",
        }
    ]


def test_it_reads_a_file_bytes_a_function_and_a_template(report: ClientReport) -> None:
    assert report.text("source") == NOTES.read_text()
    [logo] = report["logo"]["contents"]
    assert base64.b64decode(logo["blob"]) == b"\x89PNG\r\n\x1a\n"
    assert logo["mimeType"] == "image/png"
    assert json.loads(report.text("index")) == {"shopping": 19, "ideas": 23}
    assert report.text("plain") == "A cake without an oven."
    assert report.text("shouted") == "A CAKE WITHOUT AN OVEN."
    assert report["shouted"]["contents"][0]["uri"] == f"{IDEAS}?style=shouted"


@pytest.mark.requirement("EC-6", "EC-7")
def test_a_resource_that_is_not_there_has_the_code_of_its_era_and_its_uri(
    report: ClientReport,
) -> None:
    assert list(report["missing"]) == MISSING
    for uri, error in report["missing"].items():
        assert error["data"]["uri"] == uri
        assert "Resource not found" in error["message"]
        # Version 2 gives its own error for it one code, whatever came; so the code is looked up
        # among the messages too.
        assert error["code"] == (-32002 if report.way == "v1" else -32602)
        code = -32602 if report.modern else -32002
        assert (
            f'"error":{{"code":{code},"message":"Resource not found","data":{{"uri":"{uri}"'
            in report.log
        )


@pytest.mark.slow
def test_version_2_knows_a_resource_that_is_not_there_from_params_that_do_not_fit(
    report: ClientReport,
) -> None:
    if report.way == "v1":  # which has one error for everything
        assert {error["kind"] for error in report["missing"].values()} == {"McpError"}
        return
    kinds = {uri: error["kind"] for uri, error in report["missing"].items()}
    # -32602 with more than the URI in its data is invalid params to this client, and ours says
    # which variable does not fit.
    unfit = "ProtocolError" if report.modern else "ResourceNotFoundError"
    assert kinds == {
        **dict.fromkeys(MISSING, "ResourceNotFoundError"),
        f"{IDEAS}?style=sung": unfit,
    }


def test_it_lists_and_gets_prompts(report: ClientReport) -> None:
    assert report["prompts"]["prompts"] == [
        {
            "name": "improve",
            "title": "Improve a note",
            "description": "Ask for a better note.",
            "arguments": [
                {"name": "name", "description": "The name of the note.", "required": True},
                {
                    "name": "sentences",
                    "description": "The most sentences that the new note may have.",
                    "required": False,
                },
                {"name": "tone", "required": False},
            ],
        }
    ]
    assert report["prompt"]["description"] == "Ask for a better note."
    resource = {"uri": IDEAS, "mimeType": "text/plain", "text": "A cake without an oven."}
    question = "Improve this note in at most 2 formal sentences."
    assert report["prompt"]["messages"] == [
        {"role": "user", "content": {"type": "resource", "resource": resource}},
        {"role": "user", "content": {"type": "text", "text": question}},
        {"role": "assistant", "content": {"type": "text", "text": "Here is a better one:"}},
    ]


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("withoutArgument", "Missing required field: name"),
        ("wrongArgument", "sentences: expected int, got str"),
        ("noPrompt", "there is no prompt 'worsen'"),
        ("noneToComplete", "there is no argument 'colour'"),
    ],
)
def test_what_does_not_fit_is_invalid_params_and_is_named(
    report: ClientReport, what: str, said: str
) -> None:
    assert report[what]["code"] == -32602
    assert said in report[what]["data"]["details"]


def test_it_completes_arguments_and_variables(report: ClientReport) -> None:
    expected = {
        "prompt name": ["shopping", "ideas"],
        "prompt name sh": ["shopping"],
        "prompt tone f": ["friendly", "formal"],
        "template name i": ["ideas"],
        "template style s": ["shouted"],
    }
    found = report["completed"]
    assert {name: item["values"] for name, item in found.items()} == expected
    assert {name: item["total"] for name, item in found.items()} == {
        name: len(expected[name]) for name in expected
    }


@pytest.mark.requirement("SU-13", "SU-14")
def test_it_hears_of_updates_and_changed_lists(report: ClientReport) -> None:
    sent = re.findall(r'"method":"(notifications/(?:resources|prompts|tools)/\w+)"', report.log)
    assert report.text("afresh") == "None."
    assert [item["uri"] for item in report["resourcesAfterPin"]["resources"]] == [
        *OFFERED,
        "notes://pinned/ideas",
    ]
    assert report.text("last") == "Eggs, flour, plums."
    if report.modern:
        assert report["heard"] == [
            {"method": "notifications/resources/list_changed"}
        ]  # which it listens for
        assert sent == ["notifications/resources/list_changed"]
        assert (
            report["subscribed"]["code"] == "METHOD_NOT_SUPPORTED_BY_PROTOCOL_VERSION"
        )  # it did not even ask
        assert report["listened"]["result"]["honoredFilter"] == {"resourcesListChanged": True}
        return
    assert (report["subscribed"], report["unsubscribed"]) == ({}, {})
    assert report["heard"] == [
        {
            "method": "notifications/resources/updated",
            "uri": IDEAS,
        },  # and not of the index, which changed too
        {
            "method": "notifications/resources/list_changed"
        },  # and, unsubscribed, not of what was written before it
    ]
    assert sent == [item["method"] for item in report["heard"]]


@pytest.mark.requirement("CH-1")
@pytest.mark.slow
def test_it_keeps_what_it_read_for_as_long_as_2026_07_28_says(report: ClientReport) -> None:
    for name in ("resources", "templates", "prompts", "source", "index", "plain"):
        assert {member: report[name].get(member) for member in CACHED} == (
            CACHED if report.modern else dict.fromkeys(CACHED)
        )
    if report.modern:
        assert (
            report.text("held") == "A cake without an oven."
        )  # the note was written anew meanwhile
        # ... and the list, for which it listens, not longer than it is true.
        assert [item["uri"] for item in report["resourcesHeld"]["resources"]] == [
            *OFFERED,
            "notes://pinned/ideas",
        ]


def test_nothing_came_that_it_could_not_place(report: ClientReport) -> None:
    assert report["unexpected"] == []


def test_the_server_ends_by_itself_when_the_client_closes(report: ClientReport) -> None:
    assert report["exit"] == {"code": 0, "signal": None}
    assert (
        report.log.count("Starting notes MCP server")
        == report.log.count("Shutting down notes MCP server")
        == 1
    )
