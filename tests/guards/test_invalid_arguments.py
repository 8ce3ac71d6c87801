"""Calls with invalid arguments use up no rate limit, whatever stands between guard and server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from guards.asking import ask_server, text_of
from msgspec import Raw, Struct
from msgspec.structs import replace

from concertino import Context as ToolContext
from concertino import Library, Plugin, RpcError, Server, compose
from concertino.backend import Backend, BackendWrapper, Call, Context
from concertino.guards import Guard, Metrics, RateLimit, Redact
from concertino.orchestra.hub_backend import HubBackend
from concertino.orchestra.plugin_messages import PluginRequest, PluginResponse
from concertino.orchestra.rpc_interface import RemotePeer
from concertino.types.results import CallToolResult


def make_server(argument_errors: Any = "result", **guards: Any) -> Server:
    server = Server("s", argument_errors=argument_errors)

    @server.tool(**guards)
    def add(a: int) -> int:
        return a + 1

    return server


def codes(backend: Backend, *arguments: dict[str, Any], tool: str = "add") -> list[str]:
    """How each call ended, in order: `ok`, the code in the result, or the number of the error."""
    results = ask_server(
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


class Renaming(BackendWrapper):
    """A user's wrapper: it sees each call and may change each result."""

    async def handle(self, call: Call, context: Context) -> Struct | Raw:
        result = await self.inner.handle(call, context)
        if isinstance(result, CallToolResult):
            return replace(result, meta={"seen": True})
        return result


class InATask(BackendWrapper):
    """A user's wrapper that handles each call in a task of its own."""

    async def handle(self, call: Call, context: Context) -> Struct | Raw:
        return await asyncio.create_task(_await(self.inner.handle(call, context)))


async def _await(work: Awaitable[Struct | Raw]) -> Struct | Raw:
    return await work


class Repairing(BackendWrapper):
    """A user's wrapper that tries a call again, with the argument that was missing."""

    async def handle(self, call: Call, context: Context) -> Struct | Raw:
        result = await self.inner.handle(call, context)
        if isinstance(result, CallToolResult) and result.is_error:
            params = {**call.params, "arguments": Raw(b'{"a": 1}')}
            return await self.inner.handle(Call(call.method, params), context)
        return result


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
    "a guard around a wrapper": lambda path: (RateLimit(Renaming(make_server()), 2), "add"),
    "a guard around a wrapper with tasks": lambda path: (
        RateLimit(InATask(make_server()), 2),
        "add",
    ),
    "a guard with a time limit around a wrapper": lambda path: (
        Guard(Renaming(make_server()), rate_limit="2/60", timeout_s=60, redact=True),
        "add",
    ),
    "a guard around a wrapper around a guard": lambda path: (
        RateLimit(Renaming(RateLimit(make_server(), 9)), 2),
        "add",
    ),
    "a guard around a wrapper around a guard around a wrapper": lambda path: (
        RateLimit(Renaming(RateLimit(Renaming(make_server()), 9)), 2),
        "add",
    ),
    "a guard around a wrapper around parts": lambda path: (
        RateLimit(Renaming(compose(math=make_server())), 2),
        "math_add",
    ),
    "a guard around a wrapper around a guarded tool": lambda path: (
        RateLimit(Renaming(make_server(rate_limit="9/60")), 2),
        "add",
    ),
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


def test_a_call_that_a_wrapper_repairs_uses_up_its_rate() -> None:
    backend = RateLimit(Repairing(make_server()), 1)
    assert codes(backend, {}, GOOD) == ["ok", "RATE_LIMIT_EXCEEDED"]


def test_invalid_arguments_of_a_call_inside_a_tool_do_not_make_its_own_call_free() -> None:
    server = make_server()

    @server.tool
    async def outer(context: ToolContext) -> str:
        assert (await context.call_tool("add", {})).is_error
        raise ValueError("no")

    backend = RateLimit(Renaming(server), 1, match="outer")
    results = ask_server(backend, *[("tools/call", {"name": "outer"})] * 2)
    assert "RATE_LIMIT_EXCEEDED" in text_of(results[1])
    assert text_of(results[0]) == "ValueError: no"


def library_prompts(path: Path) -> Backend:
    path.mkdir()
    text = "---\narguments:\n  - name: word\n    required: true\n---\nSay {{word}}.\n"
    (path / "say.md").write_text(text)
    return Library(prompts=path)


def server_prompts(path: Path) -> Backend:
    server = Server("s")

    @server.prompt
    async def say(word: str) -> str:
        return f"Say {word}."

    return server


@pytest.mark.parametrize("make", [library_prompts, server_prompts])
def test_prompts_with_invalid_arguments_use_up_no_rate(
    make: Callable[[Path], Backend], tmp_path: Path
) -> None:
    backend = Guard(
        make(tmp_path / "prompts"), rate_limit="prompt:*=2/60", max_in_flight=1, timeout_s=5
    )
    good = {"name": "say", "arguments": {"word": "hello"}}
    bad = [{"name": "say"}, {"name": "say", "arguments": {"word": 1}}]
    *results, last = ask_server(
        backend, *[("prompts/get", params) for params in (*bad, good, *bad, good, good)]
    )
    outcomes = [getattr(result, "code", "ok") for result in results]
    assert outcomes == [-32602, -32602, "ok", -32602, -32602, "ok"]
    assert last.message.startswith("Too many calls")


class HubOfOnePlugin:
    """Answers a tool as a hub does: 'valid' arguments with a text, others with an error code."""

    def __init__(self, code: str) -> None:
        self._code = code
        self.plugin = Plugin("tools.adder")

        @self.plugin.tool
        def add(a: int) -> int:
            if self._code == "handler_error":
                raise ValueError("no")
            return a + 1

    async def ask(self, request: PluginRequest, timeout_s: float) -> PluginResponse:
        response = await self.plugin.answer(request, RemotePeer("unix:/hub", None, 1, 0))
        return PluginResponse.FromString(response) if isinstance(response, bytes) else response


@pytest.mark.parametrize("is_wrapped", [False, True])
def test_arguments_that_a_plugin_refuses_use_up_no_rate(is_wrapped: bool) -> None:
    hub = HubBackend(HubOfOnePlugin("").ask)
    backend = RateLimit(Renaming(hub) if is_wrapped else hub, 1)
    results = ask_server(
        backend,
        *[("tools/call", {"name": "add", "arguments": item}) for item in (*BAD, GOOD, GOOD)],
    )
    texts = [text_of(result) for result in results]
    assert [result.get("isError", False) for result in results] == [True] * 3 + [False, True]
    assert "Missing required field: a" in texts[0]
    assert "RATE_LIMIT" not in texts[2]
    assert texts[3] == "2"
    assert "RATE_LIMIT_EXCEEDED" in texts[4]


def test_a_tool_of_a_plugin_that_fails_uses_up_its_rate() -> None:
    backend = RateLimit(HubBackend(HubOfOnePlugin("handler_error").ask), 1)
    failed, refused = ask_server(backend, *[("tools/call", {"name": "add", "arguments": GOOD})] * 2)
    assert text_of(failed) == "ValueError: no"
    assert "RATE_LIMIT_EXCEEDED" in text_of(refused)


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

    results = ask_server(
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
