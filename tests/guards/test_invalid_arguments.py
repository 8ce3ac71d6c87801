"""Calls with invalid arguments use up no rate limit, whatever stands between guard and server."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from guards.asking import asked, text_of

from concertino import RpcError, Server, compose
from concertino.backend import Backend
from concertino.guards import Guard, Metrics, RateLimit, Redact


def make_server(argument_errors: Any = "result", **guards: Any) -> Server:
    server = Server("s", argument_errors=argument_errors)

    @server.tool(**guards)
    def add(a: int) -> int:
        return a + 1

    return server


def codes(backend: Backend, *arguments: dict[str, Any], tool: str = "add") -> list[str]:
    """How each call ended, in order: `ok`, the code in the result, or the number of the error."""
    results = asked(
        backend, *[("tools/call", {"name": tool, "arguments": item}) for item in arguments]
    )
    return [
        str(result.code)
        if isinstance(result, RpcError)
        else json.loads(text_of(result))["code"]
        if result.get("isError")
        else "ok"
        for result in results
    ]


GOOD = {"a": 1}
BAD: list[dict[str, Any]] = [{}, {"a": "x"}, {"a": 1, "b": 2}]
GUARDS: dict[str, Callable[[Path], tuple[Backend, str]]] = {
    "a guard": lambda path: (RateLimit(make_server(), 2), "add"),
    "a guard with more to do": lambda path: (
        Guard(make_server(), rate_limit="2/60", redact=True, timeout_s=5, max_in_flight=1),
        "add",
    ),
    "a guard inside another": lambda path: (Redact(RateLimit(make_server(), 2)), "add"),
    "a guard around another": lambda path: (RateLimit(Redact(make_server()), 2), "add"),
    "a guard around metrics": lambda path: (RateLimit(Metrics(make_server(), path), 2), "add"),
    "a guard around parts": lambda path: (RateLimit(compose(math=make_server()), 2), "math_add"),
    "a guarded part": lambda path: (compose(math=RateLimit(make_server(), 2)), "math_add"),
    "a guarded tool": lambda path: (make_server(rate_limit="2/60"), "add"),
    "a guarded tool in a guard": lambda path: (
        RateLimit(make_server(rate_limit="9/60", timeout_s=5), 2),
        "add",
    ),
}


@pytest.mark.parametrize("make", GUARDS.values(), ids=GUARDS)
def test_calls_with_invalid_arguments_use_up_no_rate(
    make: Callable[[Path], tuple[Backend, str]], tmp_path: Path
) -> None:
    backend, tool = make(tmp_path / "metrics.prom")
    expected = ["INVALID_ARGUMENTS"] * 6 + ["ok"] + ["INVALID_ARGUMENTS"] * 3
    expected += ["ok", "RATE_LIMIT_EXCEEDED"]
    assert codes(backend, *BAD, *BAD, GOOD, *BAD, GOOD, GOOD, tool=tool) == expected


def test_errors_of_the_protocol_use_up_no_rate() -> None:
    backend = RateLimit(make_server("protocol"), 1)
    assert codes(backend, *BAD, GOOD, GOOD) == ["-32602"] * 3 + ["ok", "RATE_LIMIT_EXCEEDED"]
    backend = RateLimit(make_server(), 1)
    assert codes(backend, *[GOOD] * 3, tool="none") == ["-32602"] * 3


def test_a_tool_that_fails_uses_up_its_rate() -> None:
    server = Server("s")

    @server.tool(input_schema={"type": "object", "required": ["a"]})
    def fail(arguments: dict[str, Any]) -> None:
        raise ValueError("no")

    results = asked(
        RateLimit(server, 1),
        *[("tools/call", {"name": "fail", "arguments": item}) for item in ({}, GOOD, GOOD)],
    )
    texts = [text_of(result) for result in results]
    assert "Missing required field: a" in texts[0]
    assert texts[1] == "ValueError: no"
    assert "RATE_LIMIT_EXCEEDED" in texts[2]


def test_a_tool_that_is_removed_and_added_again_is_still_checked() -> None:
    server = make_server()
    guard = Guard(server, rate_limit="1/60")
    assert codes(guard, {}) == ["INVALID_ARGUMENTS"]
    server.remove_tool("add")

    @server.tool
    def add(b: int) -> int:
        return b

    assert codes(guard, {"a": 1}, {"b": 1}, {"b": 1})[1:] == ["ok", "RATE_LIMIT_EXCEEDED"]
