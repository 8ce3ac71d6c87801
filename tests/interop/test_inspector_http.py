"""The official inspector's command line over HTTP, against a real server of ours, in its legacy and
its modern mode, with a token and without.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from http_service import HttpService, serving
from interop import node
from stdio.harness import environment

pytestmark = pytest.mark.slow

HTTP = Path(__file__).parents[1] / "http"
SERVER = HTTP / "server_for_http.py"
ERAS = {"legacy": "2025-11-25", "modern": "2026-07-28", "auto": "2026-07-28"}
eras = pytest.mark.parametrize("era", ERAS)


@pytest.fixture(scope="module")
def service() -> Iterator[HttpService]:
    with serving(SERVER) as running:
        yield running


def inspect(url: str, era: str, *arguments: str, home: Path) -> node.Ran:
    """Run the inspector once: it connects, asks one thing, and ends."""
    modules = node.packages() / "node_modules"
    command = [
        modules / ".bin" / "node",
        modules / ".bin" / "mcp-inspector",
        *("--cli", "--transport", "http", "--server-url", url),
        *("--protocol-era", era, "--format", "json"),
        *arguments,
    ]
    return node.run(command, {**environment(), "HOME": str(home)}, cwd=home)


def call(name: str, arguments: dict[str, Any]) -> tuple[str, ...]:
    words = ("--method", "tools/call", "--tool-name", name)
    return (*words, "--tool-args-json", json.dumps(arguments))


def result(ran: node.Ran, code: int = 0) -> Any:
    assert ran.code == code, (ran.stdout, ran.stderr)
    return json.loads(ran.stdout)["result"]


@eras
def test_it_lists_the_tools_and_calls_one(service: HttpService, era: str, tmp_path: Path) -> None:
    listed = result(inspect(service.url, era, "--method", "tools/list", home=tmp_path))
    assert {"add", "count", "ask"} <= {tool["name"] for tool in listed["tools"]}

    called = result(inspect(service.url, era, *call("add", {"a": 2, "b": 40}), home=tmp_path))
    assert called["content"] == [{"type": "text", "text": "42"}]


@eras
def test_it_gets_the_result_behind_events_and_failures(
    service: HttpService, era: str, tmp_path: Path
) -> None:
    counted = result(inspect(service.url, era, *call("count", {}), home=tmp_path))
    assert counted["content"] == [{"type": "text", "text": "counted"}]

    refused = inspect(service.url, era, *call("add", {"a": "x", "b": 1}), home=tmp_path)
    assert result(refused, code=5)["isError"] is True


@eras
def test_two_hundred_calls_twenty_at_once_are_all_answered(
    service: HttpService, era: str, tmp_path: Path
) -> None:
    load = ("--load", "--load-requests", "200", "--load-concurrency", "20")
    said = result(inspect(service.url, era, *call("add", {"a": 1, "b": 2}), *load, home=tmp_path))
    assert (said["ok"], said["errors"], said["toolErrors"]) == (200, 0, 0)


@pytest.mark.parametrize("era", ["legacy", "modern"])
def test_it_sends_a_token_and_is_refused_without(era: str, tmp_path: Path) -> None:
    options = (
        "--auth", f"{HTTP / 'verifier_for_http.py'}:verify",
        "--public-url", "http://127.0.0.1:8000/mcp",
    )  # fmt: skip
    with serving(SERVER, *options) as service:
        token = ("--header", "Authorization: Bearer good")
        called = inspect(service.url, era, *call("whoami", {}), *token, home=tmp_path)
        assert result(called)["content"] == [{"type": "text", "text": "good"}]

        refused = inspect(service.url, era, *call("whoami", {}), home=tmp_path)
        assert refused.code != 0
        assert not refused.stdout.strip()
