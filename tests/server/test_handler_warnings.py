"""server/handler_warnings.py: likely mistakes of a handler that are logged when it is
registered.
"""

from __future__ import annotations

import asyncio
from functools import partial

import pytest

from concertino import Client, Context, Server


@pytest.fixture
def server() -> Server:
    return Server("s")


def place_of(function: object) -> str:
    return f"(test_handler_warnings.py:{function.__code__.co_firstlineno})"  # type: ignore[attr-defined]


def test_missing_annotations_are_reported_once(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    def add(a, b):  # type: ignore[no-untyped-def]
        return a + b

    server.add_tool(add)
    server.add_tool(add, name="plus")
    assert caplog.messages == [
        f"add() {place_of(add)}: no parameter has a type, so models are not told any, and every "
        "JSON value is accepted; write `def add(a: ..., b: ...)` with types (reported once)"
    ]


def test_a_handler_without_parameters_or_with_one_annotation_is_not_reported(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    def now():  # type: ignore[no-untyped-def]
        return 0

    def scale(value, factor: int):  # type: ignore[no-untyped-def]
        """Scale.

        Args:
            value: any JSON.
            factor: how much.
        """

    server.add_tool(now)
    server.add_tool(scale)
    assert caplog.messages == []


@pytest.mark.parametrize("name", ["ctx", "context"])
def test_a_context_without_annotation_is_reported(
    server: Server, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    scope: dict[str, object] = {}
    exec(f"def add({name}, a: int): ...\ndef greet({name}, a: str): ...", scope)
    server.add_tool(scope["add"])  # type: ignore[arg-type]
    server.add_prompt(scope["greet"])  # type: ignore[arg-type]
    server.add_resource(f"notes://{{{name}}}/{{a}}", scope["greet"])  # type: ignore[arg-type]
    wanted = (
        f"clients are asked for '{name}', since it has no annotation; write `{name}: Context` to "
        "get the context of the call (from concertino import Context)"
    )
    places = ["add() (<string>:1)", "greet() (<string>:2)", "greet() (<string>:2)"]
    assert caplog.messages == [f"{place}: {wanted}" for place in places]


def test_a_documented_parameter_that_does_not_exist_is_reported(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    def scale(factor: int) -> int:
        """Scale.

        Args:
            facto: how much.
            unit: of the value.
        """
        return factor

    server.add_tool(scale)
    start = f"scale() {place_of(scale)}: the docstring describes"
    assert caplog.messages == [
        f"{start} 'facto', and there is no such parameter; did you mean 'factor'?",
        f"{start} 'unit', and there is no such parameter; its parameters are: factor",
    ]


def test_parameters_that_clients_do_not_see_may_be_documented(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    async def scale(value: int, factor: int, context: Context) -> int:
        """Scale.

        Args:
            value: any number.
            factor: how much.
            context: of the call.
        """
        return value * factor

    server.add_tool(partial(scale, factor=3), name="triple")
    server.add_tool(scale)
    assert caplog.messages == []


def test_a_coroutine_that_was_not_awaited_is_named(server: Server) -> None:
    async def fetch() -> int:
        return 3

    @server.tool
    async def add() -> int:
        return fetch()  # type: ignore[return-value]

    @server.prompt
    async def greet() -> str:
        return fetch()  # type: ignore[return-value]

    async def main() -> tuple[str, str]:
        async with Client(server) as client:
            result = await client.call_tool("add")
            with pytest.raises(Exception, match="not awaited") as failure:
                await client.get_prompt("greet")
            return result.text, str(failure.value)

    text = "returned a coroutine that was not awaited: write `return await fetch(...)`"
    assert asyncio.run(main()) == (f"add() {place_of(add)} {text}", f"{text} (-32603)")
