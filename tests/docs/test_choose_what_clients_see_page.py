"""docs/how-to/choose-what-clients-see.md: its server in a process, its test, and what it says of
the last call.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest
from docs.pages import DOCS, ask_server, blocks, paste, run_tests

PAGE = DOCS / "how-to" / "choose-what-clients-see.md"


def test_a_sale_begins_for_those_who_may_see_it(tmp_path: Path) -> None:
    assert paste(PAGE, tmp_path) == ["shop.py", "test_shop.py"]
    requests = [
        ("prompts/list", {}),
        ("tools/call", {"name": "start_sale"}),
        ("prompts/list", {}),
        ("tools/call", {"name": "reduce", "arguments": {"item": "tea", "cents": 5}}),
    ]
    (before, _, after, reduced), notifications, _ = ask_server(
        [sys.executable, "shop.py"], requests, tmp_path
    )
    assert before["prompts"] == []
    [announce] = after["prompts"]
    assert announce["_meta"] == {"concertino/tags": ["sale"]}
    assert reduced["message"] == "Unknown tool: reduce"
    assert {item["method"] for item in notifications} <= {
        "notifications/prompts/list_changed",
        "notifications/tools/list_changed",
    }


@pytest.mark.slow
def test_its_test_passes(tmp_path: Path) -> None:
    paste(PAGE, tmp_path)
    assert "1 passed" in run_tests(tmp_path, "test_shop.py")


def test_the_calls_that_it_shows_select_what_it_says(tmp_path: Path) -> None:
    paste(PAGE, tmp_path)
    spec = importlib.util.spec_from_file_location("shop_of_the_page", tmp_path / "shop.py")
    assert spec is not None
    assert spec.loader is not None
    shop = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(shop)
    server = shop.server
    server.add_resource("notes://{day}", lambda day: day, name="note")
    server.disable("notes://{day}")

    [calls] = blocks(PAGE.read_text(), "text")
    server.enable(tags={"sale"})
    exec(calls, {"server": server, "announce": shop.announce})
    assert list(server._registered_tools.entries) == ["price", "start_sale"]
    assert list(server._features.prompts.prompts.entries) == []
    assert list(server._features.resources.templates.entries) == ["notes://{day}"]

    server.enable("announce")  # the last call that selects it
    assert list(server._features.prompts.prompts.entries) == ["announce"]
