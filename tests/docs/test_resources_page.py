"""docs/how-to/resources-and-prompts.md: its server, run in a process of its own, and its table of
templates.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from docs import pages
from docs.pages import DOCS, paste

from concertino.schema.uri_template import UriTemplate

PAGE = DOCS / "how-to" / "resources-and-prompts.md"


def ask_page_server(folder: Path, *requests: tuple[str, dict[str, Any]]) -> list[Any]:
    """The answers of the page's server, result or error, and at the end all notifications."""
    assert paste(PAGE, folder) == ["notes.py"]
    answers, notifications, _ = pages.ask_server(
        [sys.executable, "notes.py"], list(requests), folder
    )
    return [*answers, notifications]


def test_its_resources_are_read(tmp_path: Path) -> None:
    uris = [
        "notes://motto",
        "notes://source",
        "notes://index",
        "notes://notes/ideas?style=shouted",
        "notes://notes/x",
    ]
    listed, *found, missing, _ = ask_page_server(
        tmp_path, ("resources/list", {}), *(("resources/read", {"uri": uri}) for uri in uris)
    )
    assert [item["uri"] for item in listed["resources"]] == uris[:3]
    motto, source, index, shouted = (item["contents"][0]["text"] for item in found)
    assert (motto, source) == ("Write it down.", (tmp_path / "notes.py").read_text())
    assert json.loads(index) == {"shopping": 19, "ideas": 23}
    assert shouted == "A CAKE WITHOUT AN OVEN."
    assert missing["message"] == "Resource not found"


def test_its_prompts_are_filled_in_and_completed(tmp_path: Path) -> None:
    argument = {"name": "name", "value": "i"}
    improved, pictured, refused, prompt, template, _ = ask_page_server(
        tmp_path,
        ("prompts/get", {"name": "improve", "arguments": {"name": "ideas", "sentences": "2"}}),
        ("prompts/get", {"name": "describe_picture"}),
        ("prompts/get", {"name": "improve", "arguments": {"sentences": "many", "tone": "x"}}),
        (
            "completion/complete",
            {"ref": {"type": "ref/prompt", "name": "improve"}, "argument": argument},
        ),
        (
            "completion/complete",
            {
                "ref": {"type": "ref/resource", "uri": "notes://notes/{name}{?style}"},
                "argument": argument,
            },
        ),
    )
    assert [item["role"] for item in improved["messages"]] == ["user", "user", "assistant"]
    assert improved["messages"][1]["content"]["text"] == "Improve this note in at most 2 sentences."
    assert [item["content"]["type"] for item in pictured["messages"]] == ["image", "text"]
    assert refused["code"] == -32602
    for name in ("name", "sentences", "tone"):
        assert name in refused["data"]["details"]
    assert prompt["completion"]["values"] == template["completion"]["values"] == ["ideas"]


def test_who_subscribed_hears_of_a_note_that_was_written(tmp_path: Path) -> None:
    *_, notifications = ask_page_server(
        tmp_path,
        ("resources/subscribe", {"uri": "notes://notes/ideas"}),
        ("tools/call", {"name": "write", "arguments": {"name": "ideas", "text": "None."}}),
    )
    assert [item["params"] for item in notifications] == [{"uri": "notes://notes/ideas"}]


ROWS = re.findall(r"^\| `(\S+\{\S+)` \| `(\S+)` \| `(.*?)`", PAGE.read_text(), re.MULTILINE)


@pytest.mark.parametrize(("template", "uri", "given"), ROWS)
def test_a_template_gives_what_the_table_says(template: str, uri: str, given: str) -> None:
    values: dict[str, Any] = {}
    exec(f"values = dict({given})", {"dict": dict}, values)
    assert UriTemplate(template).match(uri) == values["values"]


def test_the_table_is_read() -> None:
    assert len(ROWS) == 5
