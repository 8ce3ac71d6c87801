"""docs/tutorial: its files are pasted and used as it says."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from pages import DOCS, asked, paste, run_tests, serve

FIRST = DOCS / "tutorial" / "first-server.md"
RECIPES = DOCS / "tutorial" / "resources-and-prompts.md"
TESTING = DOCS / "tutorial" / "testing.md"


def test_the_servers_do_what_it_says(tmp_path: Path) -> None:
    assert paste(FIRST, tmp_path) == ["shop.py", "stock.py"]
    [price] = serve(["shop.py"], [("price", {"item": "apple", "amount": 2})], tmp_path)
    assert price["structuredContent"] == {"result": 3.0}
    command = ["-m", "concertino", "serve", "stock.py"]
    shelf, missing, counted = serve(
        command, [("shelf", {"item": "plum"}), ("shelf", {"item": "pear"}), ("count", {})], tmp_path
    )
    assert shelf["structuredContent"] == {"item": "plum", "left": 0}
    assert missing["isError"] is True
    assert counted["structuredContent"] == {"apple": 4, "plum": 0}


def test_the_resources_and_the_prompt_say_what_it_says(tmp_path: Path) -> None:
    assert paste(RECIPES, tmp_path) == ["recipes.py"]
    reference = {"type": "ref/prompt", "name": "shopping_list"}
    asking = [
        ("resources/read", {"uri": "recipes://index"}),
        ("resources/read", {"uri": "recipes://compote"}),
        ("resources/read", {"uri": "recipes://soup"}),
        ("prompts/get", {"name": "shopping_list", "arguments": {"name": "compote"}}),
        ("completion/complete", {"ref": reference, "argument": {"name": "name", "value": "p"}}),
    ]
    [index, recipe, missing, prompt, names], _, _ = asked([sys.executable, "recipes.py"], asking, tmp_path)
    assert json.loads(index["contents"][0]["text"]) == ["compote", "pancakes"]
    assert recipe["contents"][0]["text"] == "Plums, sugar. Simmer."
    assert missing["message"] == "Resource not found"
    [message] = prompt["messages"]
    assert message["role"] == "user"
    assert message["content"]["text"] == "What do I have to buy to cook this for 2?\n\nPlums, sugar. Simmer."
    assert names["completion"]["values"] == ["pancakes"]


def test_the_tests_in_memory_pass(tmp_path: Path) -> None:
    paste(FIRST, tmp_path)
    names = paste(TESTING, tmp_path)
    assert names == ["test_stock.py", "test_count.py", "test_modern.py"]
    assert "5 passed" in run_tests(tmp_path, *names)
