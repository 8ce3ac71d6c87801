"""runtime/client_questions.py: handlers that ask, from the loop and from threads, in both eras.

A Client of ours is at the other end of each. What is expected: 2026-07-28 basic/patterns/mrtr and
client/*; 2025-11-25 client/*; REQUIREMENTS A.8, A.20.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from loops import on_a_loop
from msgspec import Raw
from msgspec.json import decode

import concertino
from concertino import Accepted, Client, Context, Limits, RpcError, Server, compose
from concertino.backend import BackendWrapper, Call, Host, InputRequired, Notifier, ServerFeatures
from concertino.errors import InvalidClientResponse, MissingCapability, Suspended
from concertino.schema.elicitation_form import form_of
from concertino.transports import connect, memory_pair
from concertino.types import (
    Elicitation,
    Implementation,
    ListRoots,
    Sampling,
    SamplingMessage,
    TextContent,
)
from concertino.types.client_requests import CreateMessageResult, ToolResultContent, ToolUseContent

ERAS = ("legacy", "modern")
both = pytest.mark.parametrize("era", ERAS)
FORM = {"type": "object", "properties": {"name": {"type": "string"}}}


@dataclass
class Name:
    name: str
    age: int = 3


def ada(question: Elicitation, of: Implementation) -> dict[str, Any]:
    return {"name": "Ada"}


def server_of(handler: Callable[..., Any]) -> Server:
    server = Server("s")
    server.add_tool(handler, name="ask")
    return server


async def text_of(era: Any, handler: Callable[..., Any], **client: Any) -> str:
    async with Client(server_of(handler), era=era, **client) as it:
        result = await it.call_tool("ask")
        [block] = result.content
        assert isinstance(block, TextContent)
        return f"error: {block.text}" if result.is_error else block.text


@both
@on_a_loop
async def test_a_form_gives_an_object_of_its_class(era: str) -> None:
    async def ask(context: Context) -> str:
        said = await context.elicit("Who?", Name)
        assert isinstance(said, Accepted)
        return repr(said.content)

    assert await text_of(era, ask, elicit=ada) == "Name(name='Ada', age=3)"


@pytest.mark.requirement("EL-7")
@both
@pytest.mark.parametrize("answer", ["decline", "cancel"])
@on_a_loop
async def test_no_and_silence_are_told_apart(answer: str, era: str) -> None:
    """REQUIREMENTS EL-7."""

    async def ask(context: Context) -> str:
        said = await context.elicit("Who?", Name)
        return f"{said.action} {said.content}"

    assert await text_of(era, ask, elicit=lambda *_: answer) == f"{answer} None"


@both
@on_a_loop
async def test_a_def_handler_waits_in_its_thread(era: str) -> None:
    def ask(context: Context) -> str:
        said = context.wait(context.elicit("Who?", Name))
        roots = context.wait(context.roots())
        return f"{said.action} {[each.uri for each in roots]}"

    assert await text_of(era, ask, elicit=ada, roots=["file:///a"]) == "accept ['file:///a']"


@both
@on_a_loop
async def test_wait_is_not_for_the_loop(era: str) -> None:
    async def ask(context: Context) -> str:
        return context.wait(context.elicit("Who?", Name)).action

    assert "write `await`" in await text_of(era, ask, elicit=ada)


@both
@on_a_loop
async def test_the_same_question_from_two_places_at_once_is_put_once(era: str) -> None:
    put: list[str] = []

    def elicit(question: Elicitation, of: Implementation) -> dict[str, Any]:
        put.append(question.message)
        return {"name": "Ada"}

    async def ask(context: Context) -> str:
        said = await asyncio.gather(
            context.elicit("Who?", Name, key="who"),
            context.elicit("Who?", Name, key="who"),
            context.ask(
                {
                    "who": Elicitation("Who?", requested_schema=form_of(Name)[0]),
                    "where": ListRoots(),
                }
            ),
        )
        return f"{said[0].action} {said[1].action} {sorted(said[2])}"

    assert await text_of(era, ask, elicit=elicit, roots=[]) == "accept accept ['where', 'who']"
    assert put == ["Who?"]


@on_a_loop
async def test_an_error_of_an_older_client_is_told_from_one_of_the_server() -> None:
    def elicit(question: Elicitation, of: Implementation) -> dict[str, Any]:
        raise RpcError(-1, "User rejected", {"by": "Ada"})

    async def ask(context: Context) -> str:
        try:
            await context.elicit("Who?", Name)
        except RpcError as error:
            return f"{error.code} {error.message} {error.data}"
        return "no error"

    said = await text_of("legacy", ask, elicit=elicit)
    assert said == "-1 the client refused elicitation/create: User rejected {'by': 'Ada'}"


@both
@on_a_loop
async def test_several_at_once_take_one_round(era: str) -> None:
    runs: list[int] = []

    async def ask(context: Context) -> str:
        runs.append(1)
        request_handlers = await context.ask(
            {
                "who": Elicitation("Who?", requested_schema=FORM),
                "where": ListRoots(),
                "what": Sampling([SamplingMessage("user", TextContent("hi"))], 10),
            }
        )
        return ",".join(sorted(request_handlers))

    said = await text_of(era, ask, elicit=ada, roots=["file:///a"], sample=lambda *_: "x")
    assert said == "what,where,who"
    assert len(runs) == (2 if era == "modern" else 1)


@both
@pytest.mark.parametrize("group", [False, True])
@on_a_loop
async def test_questions_of_tasks_are_asked_together(group: bool, era: str) -> None:
    runs: list[int] = []

    async def ask(context: Context) -> str:
        runs.append(1)
        if group:
            async with asyncio.TaskGroup() as tasks:
                made = [tasks.create_task(context.elicit(f"{n}?", Name)) for n in range(3)]
            said = [each.result() for each in made]
        else:
            said = await asyncio.gather(*(context.elicit(f"{n}?", Name) for n in range(3)))
        return " ".join(each.action for each in said)

    assert await text_of(era, ask, elicit=ada) == "accept accept accept"
    assert len(runs) == (2 if era == "modern" else 1)


@both
@on_a_loop
async def test_once_is_once_and_gives_the_same_every_time(era: str) -> None:
    made: list[int] = []

    async def make() -> Name:
        made.append(1)
        await asyncio.sleep(0)
        return Name("x", len(made))

    async def ask(context: Context) -> str:
        first, other = await asyncio.gather(
            context.once("a", make, Name), context.once("a", make, Name)
        )
        plain = await context.once("b", lambda: [1, None])
        await context.elicit("1?", Name)
        await context.elicit("2?", Name)
        return f"{first} {first == other} {plain}"

    assert await text_of(era, ask, elicit=ada) == "Name(name='x', age=1) True [1, None]"
    assert made == [1]


@both
@on_a_loop
async def test_what_once_could_not_make_is_tried_again(era: str) -> None:
    async def ask(context: Context) -> str:
        with pytest.raises(ZeroDivisionError):
            await context.once("a", lambda: 1 // 0)
        return str(await context.once("a", lambda: 5))

    assert await text_of(era, ask) == "5"


@pytest.mark.requirement("ME-6")
@both
@on_a_loop
async def test_what_was_not_declared_is_an_error_that_says_what_is_missing(era: str) -> None:
    """REQUIREMENTS ME-6."""

    async def ask(context: Context) -> str:
        return (await context.sample("hi", 10)).text

    async with Client(server_of(ask), era=era, elicit=ada) as client:  # pyright: ignore[reportArgumentType]
        if era == "legacy":
            result = await client.call_tool("ask")
            assert result.is_error
            assert "has not declared sampling" in str(result.content)
            return
        with pytest.raises(RpcError) as error:
            await client.call_tool("ask")
    assert (error.value.code, error.value.data) == (
        -32021,
        {"requiredCapabilities": {"sampling": {}}},
    )


@pytest.mark.requirement("RE-9", "PM-6")
@both
@on_a_loop
async def test_a_prompt_and_a_resource_ask_too_and_fail_likewise(era: str) -> None:
    """REQUIREMENTS RE-9, PM-6."""
    server = Server("s")

    @server.prompt
    async def greet(context: Context) -> str:
        said = await context.elicit("Who?", Name)
        return f"Greet {said.content}"

    @server.resource("notes://mine")
    async def mine(context: Context) -> str:
        return (await context.roots())[0].uri

    async with Client(server, era=era, elicit=ada, roots=["file:///r"]) as client:  # pyright: ignore[reportArgumentType]
        assert "Ada" in str((await client.get_prompt("greet")).messages[0].content)
        assert (await client.read_resource("notes://mine")).contents[0].text == "file:///r"
    async with Client(server, era=era) as client:  # pyright: ignore[reportArgumentType]
        with pytest.raises(RpcError) as error:
            await client.get_prompt("greet")
        assert error.value.code == (-32021 if era == "modern" else -32603)


@both
@on_a_loop
async def test_a_handler_can_do_without_the_answer(era: str) -> None:
    async def ask(context: Context) -> str:
        try:
            await context.elicit("Who?", Name)
        except MissingCapability as missing:
            return str(missing.required)
        return "no"

    assert await text_of(era, ask) == "{'elicitation': {}}"


@both
@on_a_loop
async def test_a_suspension_that_a_handler_swallows_is_one_all_the_same(era: str) -> None:
    async def ask(context: Context) -> str:
        try:
            said = await context.elicit("Who?", Name)
        except (Suspended, GeneratorExit):
            return "swallowed"
        return said.action

    assert await text_of(era, ask, elicit=ada) == "accept"


@pytest.mark.requirement("EL-6")
@both
@on_a_loop
async def test_what_does_not_fit_the_form_is_a_bad_answer(era: str) -> None:
    """REQUIREMENTS EL-6.

    The schema lets more through than the class: what the client checks is not enough.
    """

    @dataclass
    class Even:
        count: int

        def __post_init__(self) -> None:
            if self.count % 2:
                raise ValueError("expected an even number")

    async def ask(context: Context) -> str:
        return (await context.elicit("How many?", Even)).action

    async with Client(server_of(ask), era=era, elicit=lambda *_: {"count": 3}) as client:  # pyright: ignore[reportArgumentType]
        if era == "legacy":
            assert "expected an even number" in str((await client.call_tool("ask")).content)
        else:
            with pytest.raises(RpcError, match=r"q1: .*expected an even number") as error:
                await client.call_tool("ask")
            assert error.value.code == -32602


@on_a_loop
async def test_an_older_client_s_refusal_is_raised_and_the_other_questions_are_taken_back() -> None:
    heard: list[str] = []
    gate = asyncio.Event()

    async def slowly(*_: object) -> str:
        try:
            await gate.wait()
        except asyncio.CancelledError:
            heard.append("taken back")
            raise
        return "x"

    def no(*_: object) -> object:
        raise RpcError(-1, "User rejected")

    async def ask(context: Context) -> str:
        try:
            await context.ask(
                {
                    "slow": Sampling([SamplingMessage("user", TextContent("hi"))], 10),
                    "no": Elicitation("Who?", requested_schema=FORM),
                }
            )
        except RpcError as error:
            return str(error)
        return "no"

    async with Client(server_of(ask), era="legacy", elicit=no, sample=slowly) as client:
        assert "User rejected (-1)" in str((await client.call_tool("ask")).content)
        while not heard:
            await asyncio.sleep(0)
    assert heard == ["taken back"]


@pytest.mark.parametrize("thread", [False, True])
@on_a_loop
async def test_a_cancelled_call_takes_its_question_back_and_frees_its_thread(thread: bool) -> None:
    asked, taken_back = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    ended: list[type[BaseException]] = []

    async def never(*_: object) -> str:
        asked.set()
        try:
            await asyncio.Event().wait()
        finally:
            taken_back.set()
        return "x"

    over = asyncio.Event()

    def in_thread(context: Context) -> str:
        try:
            return context.wait(context.sample("hi", 10)).text
        except BaseException as error:
            ended.append(type(error))
            raise
        finally:
            loop.call_soon_threadsafe(over.set)

    async def on_loop(context: Context) -> str:
        try:
            return (await context.sample("hi", 10)).text
        except BaseException as error:
            ended.append(type(error))
            raise
        finally:
            over.set()

    async with Client(
        server_of(in_thread if thread else on_loop), era="legacy", sample=never
    ) as client:
        call = asyncio.create_task(client.call_tool("ask"))
        await asked.wait()
        call.cancel()
        await taken_back.wait()
        await over.wait()
    assert ended == [asyncio.CancelledError]


@on_a_loop
async def test_a_client_that_is_gone_leaves_no_handler_waiting() -> None:
    failed: list[str] = []
    asked = asyncio.Event()

    async def ask(context: Context) -> str:
        asked.set()
        try:
            await context.elicit("Who?", Name)
        except concertino.Disconnected as gone:
            failed.append(str(gone))
        return "x"

    async with Host(server_of(ask), Limits(drain_s=100)) as host:
        ours, theirs = memory_pair()
        link = host.attach(theirs)
        caller = connect(ours)
        opening = {"protocolVersion": "2025-11-25", "capabilities": {"elicitation": {}}}
        await caller.request("initialize", {**opening, "clientInfo": {"name": "c", "version": "1"}})
        call = asyncio.create_task(caller.request("tools/call", {"name": "ask"}))
        await asked.wait()
        await caller.aclose()
        with pytest.raises(concertino.Disconnected):
            await call
        await link.closed
    assert failed == ["the input ended before the answer came"]


@pytest.mark.requirement("SA-7")
@both
@on_a_loop
async def test_a_call_asks_at_most_sixteen_times(era: str) -> None:
    """REQUIREMENTS SA-7."""

    async def ask(context: Context) -> str:
        for number in range(17):
            await context.elicit(f"{number}?", Name)
        return "no end"

    async with Client(server_of(ask), era=era, elicit=ada, rounds=100) as client:  # pyright: ignore[reportArgumentType]
        if era == "legacy":  # the handler is told, and fails
            assert "asked 16 times" in str((await client.call_tool("ask")).content)
        else:
            with pytest.raises(RpcError, match="asked 16 times"):
                await client.call_tool("ask")


@pytest.mark.requirement("CO-5", "SA-5")
@both
@on_a_loop
async def test_sampling_with_tools_goes_on_from_use_to_result(era: str) -> None:
    """REQUIREMENTS CO-5, SA-5."""
    tools = [{"name": "add", "inputSchema": {"type": "object"}}]

    def model(question: Sampling, of: Implementation) -> CreateMessageResult:
        if len(question.messages) == 1:
            use = ToolUseContent("u1", "add", {"a": 1})
            return CreateMessageResult(
                "assistant", [TextContent("let me add"), use], "m", "toolUse"
            )
        return CreateMessageResult("assistant", TextContent("3"), "m", "endTurn")

    async def ask(context: Context) -> str:
        messages = [SamplingMessage("user", TextContent("1+2?"))]
        first = await context.sample(messages, 100, tools=tools)
        assert isinstance(first.content, list)
        messages.append(SamplingMessage("assistant", first.content))
        with pytest.raises(ValueError, match="results of the tools used last are missing: u1"):
            await context.sample(messages, 100, tools=tools)
        with pytest.raises(ValueError, match="must be followed by one of their results"):
            await context.sample([*messages, "and?"], 100, tools=tools)
        messages.append(SamplingMessage("user", ToolResultContent("u1", [TextContent("3")])))
        return (await context.sample(messages, 100, key="second", tools=tools)).text

    assert await text_of(era, ask, sample=model, sampling={"tools": {}}) == "3"


@pytest.mark.requirement("EL-11")
@both
@on_a_loop
async def test_a_visit_is_to_a_page_without_secrets(era: str) -> None:
    """REQUIREMENTS EL-11."""
    shown: list[str | None] = []

    def visit(question: Elicitation, of: Implementation) -> str:
        shown.append(question.url)
        return "accept"

    async def ask(context: Context) -> str:
        for url in (
            "http://example.com",
            "ftp://example.com",
            "https://u:p@example.com/",
            "https://",
            "https://[",
            "x",
        ):
            with pytest.raises(ValueError, match="elicit_url"):
                await context.elicit_url("Open?", url)
        return await context.elicit_url("Open?", "https://example.com/pay", key="pay")

    assert await text_of(era, ask, elicit=visit, elicit_urls=True) == "accept"
    assert shown == ["https://example.com/pay"]


@both
@on_a_loop
async def test_roots_are_files(era: str) -> None:
    """REQUIREMENTS RO-1; a client that does not keep to it is not believed."""

    async def ask(context: Context) -> str:
        try:
            await context.roots()
        except InvalidClientResponse as error:
            return str(error)
        return "no"

    from concertino.client import request_handlers

    async with Client(server_of(ask), era=era, roots=["file:///a"]) as client:  # pyright: ignore[reportArgumentType]
        bad = concertino.types.Root("https://a")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(request_handlers, "_parse_roots", lambda _: [bad])  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType]
            said = await client.call_tool("ask")
    assert "expected URIs that begin with file://, got 'https://a'" in str(said.content)


# A backend's own questions


class Asking:
    """Asks a name, then a place; keeps the first in its state. Behind it nothing runs twice."""

    def __init__(self) -> None:
        self.calls: list[tuple[list[str], bytes]] = []

    async def start(self, outlet: Notifier) -> None: ...
    async def watch(self, uris: frozenset[str]) -> None: ...
    async def close(self) -> None: ...

    def features(self) -> ServerFeatures:
        return ServerFeatures(Implementation("asking", "1"), tools=True)

    async def handle(self, call: Call, context: Context) -> Any:
        if call.method == "tools/list":
            return concertino.types.results.ListToolsResult([])
        self.calls.append((sorted(call.answers), call.state))
        if not call.state:
            return InputRequired({"who": Elicitation("Who?", requested_schema=FORM)}, b"first")
        if call.state == b"first":
            name = decode(call.answers["who"])["content"]["name"]
            return InputRequired({"where": ListRoots()}, f"second:{name}".encode())
        roots = decode(call.answers["where"])["roots"]
        return Raw(
            b'{"content":[{"type":"text","text":"%b at %b"}]}'
            % (call.state, roots[0]["uri"].encode())
        )


@both
@pytest.mark.parametrize("composed", [False, True])
@on_a_loop
async def test_a_backend_that_asks_is_called_again_with_its_state_and_the_answers(
    composed: bool, era: str
) -> None:
    backend = Asking()
    served: Any = BackendWrapper(compose(part=backend)) if composed else BackendWrapper(backend)
    async with Client(served, era=era, elicit=ada, roots=["file:///r"]) as client:  # pyright: ignore[reportArgumentType]
        result = await client.call_tool("part_it" if composed else "it")
    [block] = result.content
    assert isinstance(block, TextContent)
    assert block.text == "second:Ada at file:///r"
    assert backend.calls == [([], b""), (["who"], b"first"), (["where", "who"], b"second:Ada")]


@both
@on_a_loop
async def test_a_backend_that_asks_for_nothing_or_nonsense_is_an_internal_error(
    era: str, caplog: pytest.LogCaptureFixture
) -> None:
    class Wrong(Asking):
        async def handle(self, call: Call, context: Context) -> Any:
            return (
                InputRequired({"x": Elicitation("no schema")}) if call.params else InputRequired()
            )

    async with Client(Wrong(), era=era, elicit=ada) as client:  # pyright: ignore[reportArgumentType]
        for params in ({"name": "x"}, {}):
            with pytest.raises(RpcError) as error:
                await client.request("tools/call", params)
            assert error.value.code == -32603


@both
@on_a_loop
async def test_a_call_inside_a_call_may_ask(era: str) -> None:
    server = Server("s")

    @server.tool
    async def inner(context: Context) -> str:
        return (await context.elicit("Who?", Name)).action

    @server.tool
    async def ask(context: Context) -> str:
        return await context.call_tool("inner", into=str)

    async with Client(server, era=era, elicit=ada) as client:  # pyright: ignore[reportArgumentType]
        result = await client.call_tool("ask")
    assert "accept" in str(result.content)


# The key


def states_of(folder: Path, key: str | None, *states: str, name: str = "s") -> list[Any]:
    """What a process says to a call, and to the same call with each state. name: the server's."""
    script = """
import asyncio, json, sys
from concertino import Context, RpcError, Server
from concertino.backend import Host
from concertino.transports import connect, memory_pair
server = Server("s")
@server.tool
async def ask(context: Context) -> str:
    form = {"type": "object", "properties": {"n": {"type": "string"}}}
    return (await context.elicit("Who?", form)).action
async def main():
    async with Host(server) as host:
        ours, theirs = memory_pair()
        host.attach(theirs)
        caller = connect(ours)
        p = "io.modelcontextprotocol/"
        meta = {p + "protocolVersion": "2026-07-28", p + "clientCapabilities": {"elicitation": {}}}
        said = []
        for state in [None, *sys.argv[1:]]:
            params = {"name": "ask", "_meta": meta}
            if state is not None:
                params |= {"requestState": state, "inputResponses": {"q1": {"action": "decline"}}}
            try:
                said.append(await caller.request("tools/call", params))
            except RpcError as error:
                said.append(error.code)
        print(json.dumps(said))
        await caller.aclose()
asyncio.run(main())
"""
    environment = {**os.environ, "PYTHONPATH": str(Path(concertino.__file__).parents[1])}
    environment.pop("CONCERTINO_STATE_KEY", None)
    if key is not None:
        environment["CONCERTINO_STATE_KEY"] = key
    command = [sys.executable, "-c", script.replace('Server("s")', f"Server({name!r})"), *states]
    done = subprocess.run(
        command, env=environment, cwd=folder, capture_output=True, text=True, timeout=30, check=True
    )
    return decode(done.stdout)


@pytest.mark.requirement("ME-12", "MR-9")
def test_a_state_outlives_its_process_if_there_is_a_key_and_only_then(tmp_path: Path) -> None:
    for key, accepted in (("k" * 32, True), (None, False)):
        [first] = states_of(tmp_path, key)
        _, retried, doubled = states_of(tmp_path, key, first["requestState"], first["requestState"])
        if accepted:
            assert retried["content"][0]["text"] == "decline"
            assert doubled == -32602
        else:
            assert (retried, doubled) == (-32602, -32602)


def test_a_state_is_of_one_server_although_another_has_the_same_key_and_tool(
    tmp_path: Path,
) -> None:
    [first] = states_of(tmp_path, "k" * 32)
    assert states_of(tmp_path, "k" * 32, first["requestState"], name="other")[1] == -32602


def test_a_key_that_is_too_short_seals_nothing(tmp_path: Path) -> None:
    assert states_of(tmp_path, "short") == [-32603]


def test_a_key_that_is_too_short_does_not_let_a_state_end_the_connection(tmp_path: Path) -> None:
    assert states_of(tmp_path, "short", "AAAA", "AAAA") == [-32603] * 3
