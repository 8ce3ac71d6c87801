"""docs/tutorial: its files are pasted and used as it says."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from docs.pages import DOCS, ask_server, environment, paste, run_shell, run_tests, serve

FIRST = DOCS / "tutorial" / "first-server.md"
RECIPES = DOCS / "tutorial" / "resources-and-prompts.md"
TESTING = DOCS / "tutorial" / "testing.md"
RAW_MESSAGES = DOCS / "how-to" / "test-with-raw-messages.md"
CLIENT = DOCS / "tutorial" / "first-client.md"


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
    [index, recipe, missing, prompt, names], _, _ = ask_server(
        [sys.executable, "recipes.py"], asking, tmp_path
    )
    assert json.loads(index["contents"][0]["text"]) == ["compote", "pancakes"]
    assert recipe["contents"][0]["text"] == "Plums, sugar. Simmer."
    assert missing["message"] == "Resource not found"
    [message] = prompt["messages"]
    assert message["role"] == "user"
    assert (
        message["content"]["text"]
        == "What do I have to buy to cook this for 2?\n\nPlums, sugar. Simmer."
    )
    assert names["completion"]["values"] == ["pancakes"]


def test_the_tests_in_memory_pass(tmp_path: Path) -> None:
    paste(FIRST, tmp_path)
    names = paste(TESTING, tmp_path)
    assert names == ["test_stock.py", "test_count.py", "refill.py", "test_refill.py"]
    assert "8 passed" in run_tests(tmp_path, *names)


def test_the_tests_with_raw_messages_pass(tmp_path: Path) -> None:
    paste(FIRST, tmp_path)
    names = paste(RAW_MESSAGES, tmp_path)
    assert names == ["test_raw_stock.py", "test_raw_count.py", "test_raw_modern.py"]
    assert "5 passed" in run_tests(tmp_path, *names)


@pytest.mark.slow
def test_the_clients_and_the_shell_show_what_it_says(tmp_path: Path) -> None:
    assert paste(CLIENT, tmp_path) == ["kitchen.py", "guest.py", "careful.py"]
    told = run_shell(CLIENT, tmp_path)
    assert "recipe cake\n  Look up how long a cake takes.\n" in told
    assert "\na plum cake\n" in told
    assert '"structuredContent":{"name":"plum","minutes":3}' in told
    assert run_python(tmp_path, "guest.py") == (
        "connected to kitchen\n1 of 3: minute 1\n2 of 3: minute 2\n3 of 3: minute 3\na plum cake\n"
        "failed: no recipe for cheese\n"
    )
    assert run_python(tmp_path, "careful.py") == (
        "['recipe', 'bake']\nexit status 1\nModuleNotFoundError: No module named 'kichen'\n"
        "refused: Unknown tool: fry (-32602)\n"
    )


def run_python(folder: Path, name: str) -> str:
    done = subprocess.run(
        [sys.executable, name],
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
