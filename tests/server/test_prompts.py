"""server/prompts.py and server/functions.py: what is offered, and what a prompt becomes.

REQUIREMENTS A.15, A.16, B.5.
"""

from __future__ import annotations

import asyncio
import datetime
import threading
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Annotated, Any, Literal

import pytest
import wire
from annotated_types import Ge
from loops import on_a_loop
from server.served import Served

from concertino import Context, Server, ToolError, assistant, audio, blob, image, user
from concertino.errors import RegistrationError
from concertino.types import (
    GetPromptResult,
    Icon,
    PromptMessage,
    ResourceContents,
    ResourceLink,
    TextContent,
)

version = pytest.mark.parametrize("version", wire.REVISIONS)
A, B, C, D, E = wire.REVISIONS
PNG = b"\x89PNG\r\n\x1a\n"
WAV = b"RIFF\x00\x00\x00\x00WAVE"


@dataclass
class Point:
    x: int
    y: int


class Size(Enum):
    SMALL = "s"
    LARGE = "l"


async def text(served: Served, name: str, /, **arguments: str) -> str:
    """What a prompt of one text message says."""
    [message] = (await served.ask("prompts/get", name=name, arguments=arguments))["messages"]
    assert message["role"] == "user"
    return message["content"]["text"]


# What is listed


@version
@on_a_loop
async def test_a_prompt_is_listed_with_what_was_said_of_it(version: str) -> None:
    server = Server("x")

    @server.prompt(
        title="Greet", icons=[Icon("https://example.com/i.png")], meta={"example.com/k": 1}
    )
    def greet(name: str, context: Context, times: Annotated[int, Ge(1)] = 1) -> str:
        """Greet somebody.

        Args:
            name: Whom to greet.
            times: How often.
        """
        return name * times

    server.add_prompt(lambda: "x", name="any name/at all", description="Says x.")
    async with Served(server, version) as served:
        found, other = (await served.ask("prompts/list"))["prompts"]
    expected: dict[str, Any] = {
        "name": "greet",
        "description": "Greet somebody.",
        "arguments": [
            {"name": "name", "description": "Whom to greet.", "required": True},
            {"name": "times", "description": "How often.", "required": False},
        ],
    }
    if version not in (A, B):
        expected |= {"title": "Greet", "_meta": {"example.com/k": 1}}
    if version in (D, E):
        expected["icons"] = [{"src": "https://example.com/i.png"}]
    assert found == expected
    assert other == {"name": "any name/at all", "description": "Says x."}


@on_a_loop
async def test_prompts_are_offered_when_there_are_some_and_changes_are_told() -> None:
    server = Server("x")
    async with Served(server) as served:
        assert "prompts" not in served.opened["capabilities"]
        assert (await served.refused("prompts/list")).code == -32601
    server.add_prompt(lambda: "x", name="a")
    async with Served(server) as served:
        assert served.opened["capabilities"]["prompts"] == {"listChanged": True}
        await served.pause()
        await asyncio.to_thread(server.add_prompt, lambda: "x", name="b")
        server.remove_prompt("a")
        await served.pause()
        assert [method for method, _ in served.heard] == ["notifications/prompts/list_changed"] * 2
        assert [each["name"] for each in (await served.ask("prompts/list"))["prompts"]] == ["b"]
        assert (await served.refused("prompts/get", name="a")).message == "Unknown prompt: a"
    with pytest.raises(KeyError):
        server.remove_prompt("a")


# Arguments


@on_a_loop
async def test_texts_become_what_the_function_wants() -> None:
    server = Server("x")

    @server.prompt
    async def show(
        a: int = 0,
        b: float = 0,
        c: bool = False,
        d: str = "",
        e: Literal[1, 2] = 1,
        f: Size = Size.SMALL,
        g: list[int] | None = None,
        h: Point | None = None,
        i: datetime.date | None = None,
        j: int | str = 0,
        k: Any = None,
        m: dict[str, int] | None = None,
    ) -> str:
        return " ".join(repr(each) for each in (a, b, c, d, e, f, g, h, i, j, k, m))

    untouched = [
        "0",
        "0",
        "False",
        "''",
        "1",
        "<Size.SMALL:",
        "'s'>",
        "None",
        "None",
        "None",
        "0",
        "None",
        "None",
    ]
    async with Served(server) as served:
        for name, given, expected in (
            ("a", "5", "5"),
            ("b", "1.5", "1.5"),
            ("c", "true", "True"),
            ("d", "5", "'5'"),
            ("e", "2", "2"),
            ("g", "[1, 2]", "[1, 2]"),
            ("h", '{"x":1,"y":2}', "Point(x=1, y=2)"),
            ("i", "2026-07-28", "datetime.date(2026, 7, 28)"),
            ("j", "5", "'5'"),
            ("k", "[1]", "'[1]'"),
            ("m", '{"a":1}', "{'a': 1}"),
            ("a", "", "0"),  # forms send what was not filled in
            ("d", "", "''"),
        ):
            place = "abcde f ghijkm".replace(" ", "").index(name)
            shown = await text(served, "show", **{name: given})
            before, after = untouched[:place], untouched[place + 1 :]
            if place < 5:
                after = untouched[place + 1 : 5] + untouched[5:]
            elif place > 5:
                before = untouched[: place + 1]
                after = untouched[place + 2 :]
            assert shown == " ".join([*before, expected, *after]), name
        assert "<Size.LARGE: 'l'>" in await text(served, "show", f="l")


@pytest.mark.requirement("PM-4")
@on_a_loop
async def test_what_does_not_fit_is_named() -> None:
    """REQUIREMENTS PM-3, PM-4."""
    server = Server("x")

    @server.prompt
    def greet(name: str, size: Size, times: int = 1, points: list[Point] | None = None) -> str:
        return name

    async with Served(server) as served:

        async def details(arguments: Any) -> str:
            return await served.invalid("prompts/get", name="greet", arguments=arguments)

        assert await details({}) == "Missing required field: name; Missing required field: size"
        assert (
            await details({"name": "", "size": "s", "times": "x"}) == "times: expected int, got str"
        )
        assert (
            await details({"name": "", "size": ""}) == 'size: expected one of ["s","l"], got \'\''
        )
        assert (
            await details({"name": "", "size": "s", "points": "{"})
            == "points: expected array | null, got str"
        )
        assert (await details({"name": "", "size": "s", "nam": ""})).startswith(
            "nam: unknown argument; did you mean name?"
        )
        assert await details({"name": 5}) == "arguments: expected str, got int - at $[...]"
        assert await details([]) == "arguments: expected object, got array"
        assert await served.invalid("prompts/get") == "Missing required field: name"
        assert await served.invalid("prompts/get", name=5) == "name: expected str"
        unknown = await served.refused("prompts/get", name="g" * 500)
        assert (unknown.code, unknown.message) == (-32602, "Unknown prompt: " + "g" * 128 + "...")
        assert await text(served, "greet", name="n", size="s") == "n"


# What a prompt becomes


def everything() -> Any:
    return [
        "first",
        TextContent("second"),
        assistant("third"),
        user(image(PNG)),
        user(audio(WAV)),
        user(blob(b"\x00", "a:b", "x/y")),
        assistant(ResourceLink("a:b", "b")),
        user(ResourceContents("a:b", text="t")),
        ResourceContents("a:c", text="u"),
        PromptMessage("assistant", TextContent("last")),
    ]


@version
@on_a_loop
async def test_messages_are_of_any_content_in_the_shape_of_the_revision(version: str) -> None:
    server = Server("x")
    server.add_prompt(everything, description="All kinds.")
    async with Served(server, version) as served:
        found = await served.ask("prompts/get", name="everything")
    assert found["description"] == "All kinds."
    shown = [(each["role"], each["content"]["type"]) for each in found["messages"]]
    assert shown == [
        ("user", "text"),
        ("user", "text"),
        ("assistant", "text"),
        ("user", "image"),
        ("user", "resource" if version == A else "audio"),
        ("user", "resource"),
        ("assistant", "text" if version in (A, B) else "resource_link"),
        ("user", "resource"),
        ("user", "resource"),
        ("assistant", "text"),
    ]


class Text(str):
    pass


@pytest.mark.parametrize(
    ("value", "messages"),
    [
        ("a", [("user", "a")]),
        (Text("a"), [("user", "a")]),
        (TextContent("a"), [("user", "a")]),
        (assistant("a"), [("assistant", "a")]),
        (["a", assistant("b")], [("user", "a"), ("assistant", "b")]),
        (("a",), [("user", "a")]),
        ([], []),
        (GetPromptResult([user(Text("a"))], "other"), [("user", "a")]),
    ],
)
@pytest.mark.parametrize("way", ["async", "thread", "inline"])
@on_a_loop
async def test_what_a_function_returns_becomes_messages(
    value: Any, messages: list[tuple[str, str]], way: str
) -> None:
    server = Server("x")
    ran_in: list[int] = []

    def plain() -> Any:
        ran_in.append(threading.get_ident())
        return value

    async def waiting() -> Any:
        await asyncio.sleep(0)
        return plain()

    server.add_prompt(
        waiting if way == "async" else plain, name="p", inline=way == "inline", description="own"
    )
    async with Served(server) as served:
        found = await served.ask("prompts/get", name="p")
    assert [(each["role"], each["content"]["text"]) for each in found["messages"]] == messages
    assert found["description"] == ("other" if isinstance(value, GetPromptResult) else "own")
    assert (ran_in == [threading.get_ident()]) is (way != "thread")


@on_a_loop
async def test_what_goes_wrong_is_an_internal_error() -> None:
    server = Server("x")

    def told() -> str:
        raise ToolError("come back tomorrow")

    def broken() -> str:
        return str(1 / 0)

    server.add_prompt(told)
    server.add_prompt(broken)
    server.add_prompt(lambda: None, name="nothing")
    server.add_prompt(lambda: [5], name="number")
    server.add_prompt(lambda: user(5), name="wrong")  # type: ignore[arg-type]
    async with Served(server) as served:
        for name, message in (
            ("told", "come back tomorrow"),
            ("broken", "Internal error: ZeroDivisionError: division by zero"),
            ("nothing", "expected str, content or messages as a prompt, got NoneType"),
            ("number", "expected str, content or messages as a prompt, got int"),
        ):
            error = await served.refused("prompts/get", name=name)
            assert (error.code, error.message) == (-32603, message)
        wrong = await served.refused("prompts/get", name="wrong")
        assert wrong.code == -32603
        assert wrong.message.startswith(
            "GetPromptResult: messages[0].content: expected one of TextContent, "
        )


@on_a_loop
async def test_a_prompt_has_its_context_and_progress() -> None:
    server = Server("x")

    @server.prompt
    async def slow(context: Context) -> str:
        await context.progress(1, 2)
        return context.client.protocol_version

    async with Served(server) as served:
        result = await served.ask("prompts/get", name="slow", _meta={"progressToken": "t"})
        assert result["messages"][0]["content"]["text"] == D
        assert served.heard == [
            ("notifications/progress", {"progressToken": "t", "progress": 1, "total": 2})
        ]


@on_a_loop
async def test_a_partial_is_described_by_its_function() -> None:
    def greet(greeting: str, name: str) -> str:
        """Greet somebody."""
        return f"{greeting} {name}"

    server = Server("x")
    hello = partial(greet, "Hello")
    server.add_prompt(hello, name="hello")
    server.add_tool(hello, name="hello")
    server.add_resource("a:{name}", hello)
    async with Served(server) as served:
        assert await text(served, "hello", name="Ada") == "Hello Ada"
        for method, kind in (
            ("prompts/list", "prompts"),
            ("tools/list", "tools"),
            ("resources/templates/list", "resourceTemplates"),
        ):
            [found] = (await served.ask(method))[kind]
            assert found["description"] == "Greet somebody."


# What is refused when it is said


def generated() -> Iterator[str]:
    yield "x"


async def generated_later() -> AsyncIterator[str]:
    yield "x"


class Shelf:
    def read(self) -> str:
        return "read"


@pytest.mark.parametrize(
    ("handler", "options", "text"),
    [
        (lambda: "x", {}, "pass name=..."),
        (lambda: "x", {"name": ""}, "got none; pass name=..."),
        (lambda: "x", {"name": "a\nb"}, "expected 1 to 128 printable characters"),
        (lambda: "x", {"name": "a" * 129}, "expected 1 to 128 printable characters"),
        (lambda: "x", {"name": "a", "title": 5}, "prompt 'a': title: expected str"),
        (lambda: "x", {"name": "a", "description": "\ud800"}, "prompt 'a': description"),
        ("x", {"name": "a"}, "prompt 'a': expected a function, got 'x'"),
        (Shelf.read, {}, "prompt 'read': Shelf.read is a method without its object"),
        (generated, {}, "prompt 'generated': a generator cannot be a result; return a list"),
        (generated_later, {}, "a generator cannot be a result; return a list"),
        (lambda *a: "x", {"name": "a"}, "*a has no names that a client could use"),
    ],
)
def test_what_could_not_be_offered_as_it_is_is_refused(
    handler: Any, options: dict[str, Any], text: str
) -> None:
    server = Server("x")
    with pytest.raises(RegistrationError) as refused:
        server.add_prompt(handler, **options)
    assert text in str(refused.value)
    assert not server.features().prompts


def test_the_same_name_twice_is_refused_and_an_unknown_option_too() -> None:
    server = Server("x")
    server.add_prompt(lambda: "x", name="a")
    with pytest.raises(
        RegistrationError, match=r"pass name=... or call remove_prompt\('a'\) first"
    ):
        server.add_prompt(lambda: "x", name="a")
    with pytest.raises(TypeError, match="colour"):
        server.add_prompt(lambda: "x", name="b", colour="red")  # type: ignore[call-arg]
