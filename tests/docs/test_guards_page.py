"""docs/how-to/guards.md: its guards count, log and refuse, whichever way the file is started."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from docs.pages import DOCS, ask_server, paste

SERVE = ["-m", "concertino", "serve"]
PAGE = DOCS / "how-to" / "guards.md"


@pytest.mark.parametrize(
    "command",
    [["limited.py"], [*SERVE, "limited.py"], [*SERVE, "limited.py:guarded"]],
    ids=["run", "serve", "named"],
)
def test_the_fourth_call_within_a_minute_is_refused_and_each_is_logged(
    command: list[str], tmp_path: Path
) -> None:
    assert paste(PAGE, tmp_path) == ["shop.py", "limited.py"]
    call = ("tools/call", {"name": "price", "arguments": {"item": "apple"}})
    requests: list[tuple[str, dict[str, Any]]] = [call, call, ("tools/list", {}), call, call]
    results, _, log = ask_server([sys.executable, *command], requests, tmp_path)
    prices = [results[at] for at in (0, 1, 3)]
    assert [each["structuredContent"] for each in prices] == [{"result": 1.5}] * 3
    assert [tool["name"] for tool in results[2]["tools"]] == ["price"]
    assert results[4]["isError"] is True
    assert re.fullmatch(
        r"Too many calls; try again in (60|59|5\d) s\.", results[4]["content"][0]["text"]
    )
    assert len(re.findall(r"\[INFO\] .* called 'price': \d+\.\d ms$", log, re.MULTILINE)) == 4


def test_a_guard_is_served_without_a_run_too(tmp_path: Path) -> None:
    paste(PAGE, tmp_path)
    source = (tmp_path / "limited.py").read_text()
    assert source.endswith('\nif __name__ == "__main__":\n    run(guarded)\n')
    (tmp_path / "limited.py").write_text(source.rpartition("\nif ")[0])
    call = ("tools/call", {"name": "price", "arguments": {"item": "apple"}})
    results, _, _ = ask_server([sys.executable, *SERVE, "limited.py"], [call] * 4, tmp_path)
    assert sum(result.get("isError", False) for result in results) == 1


def test_a_call_without_a_name_is_answered_by_the_server_and_logged(tmp_path: Path) -> None:
    paste(PAGE, tmp_path)
    [answer], _, log = ask_server([sys.executable, "limited.py"], [("tools/call", {})], tmp_path)
    assert answer["code"] == -32602
    assert " called None: " in log


OTHERS = """
from dataclasses import dataclass

import msgspec

from concertino import compose, RpcError, run, Server
from concertino.backend import BackendWrapper, Call

server = Server("letters")

@server.tool
def a() -> str:
    return "a"

@server.tool
def b() -> str:
    return "b"

@dataclass
class Named:
    name: str

class Swapped(BackendWrapper):
    async def handle(self, call, context):
        try:
            named = call.decode_params(Named)
        except msgspec.ValidationError:
            return await super().handle(call, context)
        if named.name == "c":
            raise RpcError(-32602, "there is no c")
        swapped = msgspec.Raw(b'"b"' if named.name == "a" else b'"a"')
        params = {**call.params, "name": swapped}
        return await super().handle(Call(call.method, params, call.meta), context)

run(compose(swapped=Swapped(server), plain=server))
"""


def test_a_guard_changes_refuses_and_forwards_the_calls_of_one_part(tmp_path: Path) -> None:
    (tmp_path / "letters.py").write_text(OTHERS)
    names = ("swapped_a", "swapped_b", "swapped_c", "plain_a")
    requests: list[tuple[str, dict[str, Any]]] = [("tools/call", {"name": name}) for name in names]
    (first, second, refused, plain, tools), _, _ = ask_server(
        [sys.executable, "letters.py"], [*requests, ("tools/list", {})], tmp_path
    )
    assert [each["content"][0]["text"] for each in (first, second, plain)] == ["b", "a", "a"]
    assert refused["message"] == "there is no c"
    assert [each["name"] for each in tools["tools"]] == [
        "swapped_a",
        "swapped_b",
        "plain_a",
        "plain_b",
    ]


def test_the_shop_is_guarded_as_the_page_says(tmp_path: Path) -> None:
    paste(PAGE, tmp_path)

    def call(name: str, **arguments: Any) -> tuple[str, dict[str, Any]]:
        return "tools/call", {"name": name, "arguments": arguments}

    prices = [call("price", item=item) for item in ("apples", "plums", "pears", "pears")]
    requests = [
        *prices,
        call("order", item="apples"),
        call("catalogue"),
        call("opening_hours"),
        call("drop_everything"),
    ]
    results, _, _ = ask_server(
        [sys.executable, "shop.py"], [*requests, ("tools/list", {})], tmp_path
    )
    apples, plums, pears, refused, order, catalogue, hours, dropped, tools = results
    assert [apples["structuredContent"], pears["structuredContent"]] == [
        {"result": 1.5},
        {"result": 2.0},
    ]

    def body(result: dict[str, Any]) -> dict[str, Any]:
        assert result["isError"] is True
        return json.loads(result["content"][0]["text"])

    assert body(plums)["items"] == ["apples", "pears"]
    assert body(refused)["code"] == "RATE_LIMIT_EXCEEDED"
    assert body(order)["code"] == "TIMED_OUT"
    assert [block["type"] for block in catalogue["content"]] == ["text", "resource_link"]
    assert json.loads(hours["content"][0]["text"])["metadata"]["version"] == "1.2.0"
    assert dropped["message"] == "Unknown tool: drop_everything"
    assert [tool["name"] for tool in tools["tools"]] == [
        "price",
        "order",
        "catalogue",
        "opening_hours",
    ]
