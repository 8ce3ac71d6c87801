"""docs/how-to/plugin.md: its plugin is listed, served alone and called over a socket, by the
commands of the page.
"""

from __future__ import annotations

import json
import runpy
from pathlib import Path

import pytest
from docs.pages import DOCS, paste, run_shell
from loops import on_a_loop

from concertino import Client

PAGE = DOCS / "how-to" / "plugin.md"


@pytest.mark.slow
def test_the_page_s_commands_do_what_it_says(tmp_path: Path) -> None:
    assert paste(PAGE, tmp_path) == [
        "greeter.py",
        "ask.py",
        "counter.py",
        "kitchen.py",
    ]
    said = run_shell(PAGE, tmp_path).splitlines()
    manifest = json.loads(said[0])
    assert (manifest["id"], manifest["provides_tools"]) == ("tools.greeter", ["greet"])
    assert any("Greet somebody." in line for line in said)
    assert said.count("Hello, Ada!") == 2  # served alone, and called over the socket
    assert (tmp_path / "certs" / "orchestrator-to-tools.greeter.key").exists()
    assert said[-1].startswith("tools.greeter-client")


@on_a_loop
async def test_the_counter_of_the_page_reports_its_numbers(tmp_path: Path) -> None:
    paste(PAGE, tmp_path)
    server = runpy.run_path(str(tmp_path / "counter.py"))["plugin"]
    heard: list[str | None] = []
    async with Client(server) as client:
        await client.call_tool(
            "count", {"to": 2}, progress=lambda done, total, message: heard.append(message)
        )
    assert heard[-1] == "number 1"


def test_the_kitchen_of_the_page_wants_urgent_orders(tmp_path: Path) -> None:
    paste(PAGE, tmp_path)
    manifest = runpy.run_path(str(tmp_path / "kitchen.py"))["plugin"].manifest()
    assert list(manifest.needs_events) == ["orders"]
    [subscription] = manifest.subscriptions
    assert (subscription.topic, dict(subscription.filters)) == ("orders", {"kind": "urgent"})
