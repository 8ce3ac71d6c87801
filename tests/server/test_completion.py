"""server/completion.py: values to choose from. REQUIREMENTS A.17."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Any, Literal

import pytest
import wire
from loops import on_a_loop
from server.served import Served

from concertino import Context, Server
from concertino.errors import RegistrationError
from concertino.types import Completion

A, B, C, D, E = wire.REVISIONS
version = pytest.mark.parametrize("version", wire.REVISIONS)


class Size(Enum):
    SMALL = "small"
    LARGE = "large"


def shop() -> Server:
    server = Server("x")

    @server.prompt
    def order(
        what: str,
        size: Size,
        kind: Literal["red", "Rose", "white"] = "red",
        warm: bool | None = None,
        number: Literal[6, 12] = 6,
        note: str = "",
    ) -> str:
        return what

    @server.resource("stock://{shelf}{?kind}")
    def stock(shelf: str, kind: Literal["full", "empty"] = "full") -> str:
        return shelf

    @server.complete("order", "what")
    def whats(value: str, others: Mapping[str, str]) -> list[str]:
        return [f"{value}{others.get('size', '')}{number}" for number in range(250)]

    return server


class Mixed(Enum):
    LETTER = "A"
    NUMBER = 2
    TEXT = "3"
    THREE = 3


@version
@on_a_loop
async def test_whatever_completion_offers_the_prompt_takes(version: str) -> None:
    server = Server("x")

    @server.prompt
    def pick(mixed: Mixed, either: Literal["on", 5, True, "true"] = "on") -> str:
        return f"{mixed!r} {either!r}"

    async with Served(server, version) as served:
        offered = [
            (await complete(served, name, target="pick"))["values"] for name in ("mixed", "either")
        ]
        assert offered == [["A", "2", "3"], ["on", "5", "true"]]
        for mixed, member in zip(offered[0], (Mixed.LETTER, Mixed.NUMBER, Mixed.TEXT), strict=True):
            for either, value in zip(offered[1], ("on", 5, "true"), strict=True):
                got = await served.ask(
                    "prompts/get", name="pick", arguments={"mixed": mixed, "either": either}
                )
                assert got["messages"][0]["content"]["text"] == f"{member!r} {value!r}"


@version
@on_a_loop
async def test_values_that_are_made_as_they_are_asked_for_may_never_end(version: str) -> None:
    server = Server("x")
    loops: list[bool] = []

    @server.prompt
    def count(number: str, few: str) -> str:
        return number

    def numbers(value: str) -> Iterator[str]:
        for number in itertools.count():
            loops.append(asyncio._get_running_loop() is not None)
            yield f"{value}{number}"

    @server.complete("count", "number")
    async def endless(value: str) -> Iterator[str]:
        return numbers(value)

    @server.complete("count", "few")
    def three(value: str) -> Iterator[str]:
        return itertools.islice(numbers(value), 3)

    async with Served(server, version) as served:
        got = await complete(served, "number", "n", target="count")
        assert got == {"values": [f"n{number}" for number in range(100)], "hasMore": True}
        assert await complete(served, "few", target="count") == {
            "values": ["0", "1", "2"],
            "total": 3,
            "hasMore": False,
        }
    assert set(loops) == {False}  # what waits there holds up nobody else


async def complete(
    served: Served, name: str, value: str = "", target: str = "order", **context: str
) -> Any:
    ref = (
        {"type": "ref/resource", "uri": target}
        if "{" in target
        else {"type": "ref/prompt", "name": target}
    )
    params: dict[str, Any] = {"ref": ref, "argument": {"name": name, "value": value}}
    if context:
        params["context"] = {"arguments": context}
    return (await served.ask("completion/complete", **params))["completion"]


@version
@on_a_loop
async def test_choices_complete_by_themselves(version: str) -> None:
    async with Served(shop(), version) as served:
        if version != A:
            assert served.opened["capabilities"]["completions"] == {}
        for name, value, expected in (
            ("size", "", ["small", "large"]),
            ("size", "L", ["large"]),
            ("size", "x", []),
            ("kind", "r", ["red", "Rose"]),
            ("warm", "t", ["true"]),
            ("number", "1", ["12"]),
            ("note", "", []),
        ):
            assert (await complete(served, name, value)).get("values") == expected
        found = await complete(served, "kind", "", "stock://{shelf}{?kind}")
        assert found == {"values": ["full", "empty"], "total": 2, "hasMore": False}
        assert await complete(served, "shelf", "", "stock://{shelf}{?kind}") == {"values": []}


@version
@on_a_loop
async def test_a_function_gets_the_value_and_the_other_arguments_and_gives_a_hundred(
    version: str,
) -> None:
    async with Served(shop(), version) as served:
        found = await complete(served, "what", "w", size="l")
        assert found == {
            "values": [f"wl{number}" for number in range(100)],
            "total": 250,
            "hasMore": True,
        }
        assert (await complete(served, "what", "w"))["values"][0] == "w0"


@pytest.mark.parametrize(
    ("returned", "text"),
    [
        (Completion("abc"), "a Completion: values: expected array, got str"),  # type: ignore[arg-type]
        (Completion(["a"], total="many"), "total: expected int"),  # type: ignore[arg-type]
        (Completion(["a"], has_more=5), "has_more: expected bool"),  # type: ignore[arg-type]
        (Completion(None), "values: expected array"),  # type: ignore[arg-type]
    ],
)
@on_a_loop
async def test_a_completion_that_the_schema_does_not_allow_is_not_sent(
    returned: Completion, text: str
) -> None:
    server = Server("x")
    server.add_prompt(lambda a: a, name="p")
    server.complete("p", "a")(lambda value: returned)
    async with Served(server) as served:
        ref = {"type": "ref/prompt", "name": "p"}
        error = await served.refused(
            "completion/complete", ref=ref, argument={"name": "a", "value": ""}
        )
        assert error.code == -32603
        assert text in error.message


@on_a_loop
async def test_functions_may_be_of_any_shape() -> None:
    server = Server("x")

    @server.prompt
    def p(a: str, b: str, c: str, d: str, e: str, f: str, g: str) -> str:
        return a

    @server.complete("p", "a")
    async def waiting(value: str, context: Context) -> set[str]:
        await asyncio.sleep(0)
        return {value + context.client.name}

    @server.complete("p", "b")
    def named(context: Context, so_far: str, *, arguments: dict[str, str]) -> list[str]:
        return [so_far, *arguments]

    server.complete("p", "c")(lambda value: Completion(["x"] * 101, total=None, has_more=False))
    server.complete("p", "d")(lambda value: Completion([], total=7))
    server.complete("p", "e")(lambda value: None)
    server.complete("p", "f")(lambda value: "text")
    server.complete("p", "g")(lambda value: ["a", 5])
    async with Served(server) as served:
        assert await complete(served, "a", "v", "p") == {
            "values": ["vc"],
            "total": 1,
            "hasMore": False,
        }
        assert (await complete(served, "b", "v", "p", z="1"))["values"] == ["v", "z"]
        found = await complete(served, "c", "v", "p")
        assert (len(found.pop("values")), found) == (100, {"hasMore": True})
        assert await complete(served, "d", "v", "p") == {"values": [], "total": 7}
        assert await complete(served, "e", "v", "p") == {
            "values": [],
            "total": 0,
            "hasMore": False,
        }
        for name, text in (("f", "got str"), ("g", "got int among them")):
            ref = {"type": "ref/prompt", "name": "p"}
            error = await served.refused(
                "completion/complete", ref=ref, argument={"name": name, "value": ""}
            )
            assert error.code == -32603
            assert text in error.message


@on_a_loop
async def test_a_function_stands_in_front_of_the_choices_of_the_type() -> None:
    server = shop()
    server.complete("order", "kind")(lambda value: ["blue"])
    server.complete("stock://{shelf}{?kind}", "shelf")(lambda value: ["top"])
    async with Served(server) as served:
        assert (await complete(served, "kind"))["values"] == ["blue"]
        assert (await complete(served, "shelf", "", "stock://{shelf}{?kind}"))["values"] == ["top"]


@on_a_loop
async def test_what_there_is_not_is_refused_by_name() -> None:
    """REQUIREMENTS CP-4."""
    async with Served(shop()) as served:
        prompt = {"type": "ref/prompt", "name": "order"}
        argument = {"name": "what", "value": ""}
        for params, message in (
            ({"ref": {**prompt, "name": "nope"}, "argument": argument}, "Unknown prompt: nope"),
            (
                {"ref": {"type": "ref/resource", "uri": "stock://{x}"}, "argument": argument},
                "Unknown resource template: stock://{x}",
            ),
            (
                {"ref": prompt, "argument": {"name": "who", "value": ""}},
                "Unknown argument of the prompt order: who",
            ),
            ({"ref": {"type": "ref/tool", "name": "x"}, "argument": argument}, "Invalid params"),
            ({"ref": prompt}, "Invalid params"),
            ({"ref": prompt, "argument": {"name": "what", "value": 5}}, "Invalid params"),
            ({"argument": argument}, "Invalid params"),
        ):
            error = await served.refused("completion/complete", **params)
            assert (error.code, error.message) == (-32602, message)
            assert error.data["details"]


@on_a_loop
async def test_completion_is_offered_where_something_can_be_completed() -> None:
    server = Server("x")
    server.prompt(name="p")(lambda a: a)
    async with Served(server) as served:
        assert "completions" not in served.opened["capabilities"]
        assert (await served.refused("completion/complete")).code == -32601
        server.complete("p", "a")(lambda value: ["b"])
        assert (await complete(served, "a", "", "p"))["values"] == ["b"]


@pytest.mark.parametrize(
    ("target", "argument", "handler", "text"),
    [
        (
            "nope",
            "a",
            lambda value: [],
            "no prompt and no resource template is registered under this name",
        ),
        (
            "order",
            "a",
            lambda value: [],
            "expected one of its arguments (what, size, kind, warm, number, note)",
        ),
        (
            "stock://{shelf}{?kind}",
            "a",
            lambda value: [],
            "expected one of its arguments (shelf, kind)",
        ),
        ("bare", "a", lambda value: [], "it has no arguments"),
        (
            "order",
            "what",
            lambda: ["x"],
            "expected a function of (value) or (value, arguments), got 0 parameters",
        ),
        ("order", "what", lambda a, b, c: [], "got 3 parameters"),
        ("order", "what", 5, "expected a function, got 5"),
    ],
)
def test_what_completes_nothing_is_refused(
    target: str, argument: str, handler: Any, text: str
) -> None:
    server = shop()
    server.add_prompt(lambda: "x", name="bare")
    with pytest.raises(RegistrationError) as refused:
        server.complete(target, argument)(handler)
    assert text in str(refused.value)


@on_a_loop
async def test_a_server_of_tools_alone_has_no_target() -> None:
    with pytest.raises(RegistrationError, match="no prompt and no resource template"):
        Server("x").complete("p", "a")(lambda value: [])
