"""server/lifespan.py: entered in order, left in reverse, in one task."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial, wraps
from typing import Annotated, Any

import pytest

from concertino import Context, Server
from concertino.backend import Host
from concertino.errors import RegistrationError
from concertino.server.lifespan import Lifespans
from concertino.transports import connect, memory_pair


class One: ...


class Two: ...


def test_values_are_there_between_open_and_close_and_all_are_left_in_reverse() -> None:
    events: list[str] = []
    lifespans = Lifespans()

    async def one() -> AsyncIterator[One]:
        events.append("one in")
        yield One()
        events.append("one out")

    def two() -> Iterator[Two]:
        events.append("two in")
        yield Two()
        events.append("two out")

    async def nothing() -> AsyncGenerator[None, None]:
        events.append("nothing in")
        yield
        events.append("nothing out")

    async def main() -> None:
        await lifespans.open()
        assert {kind: type(value) for kind, value in lifespans.values.items()} == {
            One: One,
            Two: Two,
        }
        await lifespans.close()
        assert lifespans.values == {}

    for function in (one, two, nothing):
        lifespans.add(function)
    assert lifespans.classes == (One, Two)
    for _ in range(2):  # a server may be served again
        events.clear()
        asyncio.run(main())
        assert events == ["one in", "two in", "nothing in", "nothing out", "two out", "one out"]


def test_context_managers_functions_are_taken_as_they_are() -> None:
    events: list[str] = []
    lifespans = Lifespans()

    @asynccontextmanager
    async def one() -> AsyncIterator[One]:
        yield One()
        events.append("one out")

    @contextmanager
    def two() -> Generator[Two, None, None]:
        yield Two()
        events.append("two out")

    async def main() -> None:
        await lifespans.open()
        assert set(lifespans.values) == {One, Two}
        await lifespans.close()

    lifespans.add(one)
    lifespans.add(two)
    asyncio.run(main())
    assert events == ["two out", "one out"]


def test_a_generator_function_may_be_decorated() -> None:
    lifespans = Lifespans()

    def noted(function: Callable[[], Any]) -> Callable[[], Any]:
        @wraps(function)
        def call() -> Any:
            return function()

        return call

    @noted
    def one() -> Iterator[One]:
        yield One()

    @noted
    async def two() -> AsyncIterator[Two]:
        yield Two()

    lifespans.add(one)
    lifespans.add(two)

    async def main() -> None:
        await lifespans.open()
        assert {kind: type(value) for kind, value in lifespans.values.items()} == {
            One: One,
            Two: Two,
        }
        await lifespans.close()

    asyncio.run(main())


def test_it_is_left_in_the_task_in_which_it_was_entered() -> None:
    tasks: list[Any] = []
    lifespans = Lifespans()

    async def group() -> AsyncIterator[asyncio.TaskGroup]:
        tasks.append(asyncio.current_task())
        async with asyncio.TaskGroup() as group, asyncio.timeout(60):
            yield group
        tasks.append(asyncio.current_task())

    async def main() -> None:
        lifespans.add(group)
        await asyncio.create_task(lifespans.open())
        await asyncio.create_task(lifespans.close())

    asyncio.run(main())
    assert tasks[0] is tasks[1] is not None


def test_one_that_fails_is_raised_and_those_before_it_are_left() -> None:
    events: list[str] = []
    lifespans = Lifespans()

    async def one() -> AsyncIterator[One]:
        yield One()
        events.append("one out")

    async def two() -> AsyncIterator[Two]:
        raise OSError("no such database")
        yield Two()

    async def main() -> None:
        with pytest.raises(OSError, match="no such database"):
            await lifespans.open()
        assert lifespans.values == {}
        await lifespans.close()

    lifespans.add(one)
    lifespans.add(two)
    asyncio.run(main())
    assert events == ["one out"]


def test_one_that_fails_at_the_end_is_raised_and_the_others_are_left() -> None:
    events: list[str] = []
    lifespans = Lifespans()

    async def one() -> AsyncIterator[One]:
        yield One()
        events.append("one out")

    async def two() -> AsyncIterator[Two]:
        yield Two()
        raise OSError("not flushed")

    async def main() -> None:
        await lifespans.open()
        with pytest.raises(OSError, match="not flushed"):
            await lifespans.close()

    lifespans.add(one)
    lifespans.add(two)
    asyncio.run(main())
    assert events == ["one out"]


@pytest.mark.parametrize("during", ["open", "close"])
def test_a_cancel_while_it_opens_or_closes_leaves_nothing_behind(during: str) -> None:
    events: list[str] = []
    lifespans = Lifespans()

    async def one() -> AsyncIterator[One]:
        try:
            if during == "open":
                await reached.wait()
            yield One()
            if during == "close":
                await reached.wait()
        finally:
            events.append("one out")

    async def main() -> None:
        global reached
        reached = asyncio.Event()
        task = asyncio.create_task(lifespans.open())
        if during == "close":
            await task
            task = asyncio.create_task(lifespans.close())
        for _ in range(5):
            await asyncio.sleep(0)
        task.cancel()
        async with asyncio.timeout(20):
            await asyncio.wait([task])
        assert task.cancelled()
        assert events == ["one out"]
        assert asyncio.all_tasks() == {asyncio.current_task()}

    lifespans.add(one)
    asyncio.run(main())


reached: asyncio.Event


async def plain() -> One:
    return One()


async def unannotated():  # type: ignore[no-untyped-def]
    yield One()


async def asks(name: str) -> AsyncIterator[One]:
    yield One()


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (plain, "expected a generator"),
        (unannotated, "annotate the class"),
        (asks, "takes no parameters"),
    ],
)
def test_what_is_no_lifespan_function_is_refused(function: Callable[[], Any], text: str) -> None:
    with pytest.raises(RegistrationError, match=text):
        Lifespans().add(function)


class Database:
    """What handlers ask for."""

    def __init__(self) -> None:
        self.rows = {"a": "1", "b": "2"}


def make_server() -> tuple[Server, list[str]]:
    server = Server("s")
    events: list[str] = []

    @server.lifespan
    async def database() -> AsyncIterator[Database]:
        events.append("open")
        yield Database()
        events.append("closed")

    return server, events


def ask(server: Server, *requests: tuple[str, dict[str, Any]]) -> list[Any]:
    async def main() -> list[Any]:
        async with asyncio.timeout(20), Host(server) as host:
            ours, theirs = memory_pair()
            host.attach(theirs)
            caller = connect(ours)
            hello = {
                "protocolVersion": "2025-11-25",
                "capabilities": {},
                "clientInfo": {"name": "c", "version": "1"},
            }
            await caller.request("initialize", hello)
            answers = [await caller.request(method, params) for method, params in requests]
            await caller.aclose()
            return answers

    return asyncio.run(main())


def test_handlers_of_every_kind_get_what_they_ask_for_and_clients_see_nothing_of_it() -> None:
    server, events = make_server()

    @server.tool
    async def waits(key: str, db: Database, times: int = 1) -> str:
        await asyncio.sleep(0)
        return db.rows[key] * times

    @server.tool
    def threaded(db: Database, context: Context, key: str) -> str:
        return db.rows[key] + context.client.name

    @server.tool(inline=True)
    def inline(key: str, /, *, db: Annotated[Database, "the one"]) -> str:
        return db.rows[key]

    class Tools:
        async def method(self, db: Database | None, key: str) -> str:
            return "" if db is None else db.rows[key]

    server.add_tool(Tools().method)

    @server.resource("row://{key}")
    def row(key: str, db: Database) -> str:
        return db.rows[key]

    @server.prompt
    async def about(db: Database, key: str) -> str:
        return f"What is {db.rows[key]}?"

    @server.complete("about", "key")
    async def keys(value: str, db: Database) -> list[str]:
        return [key for key in db.rows if key.startswith(value)]

    names = ("waits", "threaded", "inline", "method")
    calls = [("tools/call", {"name": name, "arguments": {"key": "a"}}) for name in names]
    more: list[tuple[str, dict[str, Any]]] = [
        ("tools/call", {"name": "waits", "arguments": {"key": "b", "times": 3}}),
        ("resources/read", {"uri": "row://b"}),
        ("prompts/get", {"name": "about", "arguments": {"key": "b"}}),
        (
            "completion/complete",
            {
                "ref": {"type": "ref/prompt", "name": "about"},
                "argument": {"name": "key", "value": ""},
            },
        ),
        ("tools/list", {}),
        ("prompts/list", {}),
    ]
    answers = ask(server, *calls, *more)
    assert [each["content"][0]["text"] for each in answers[:5]] == ["1", "1c", "1", "1", "222"]
    assert answers[5]["contents"][0]["text"] == "2"
    assert answers[6]["messages"][0]["content"]["text"] == "What is 2?"
    assert answers[7]["completion"]["values"] == ["a", "b"]
    shown = {tool["name"]: list(tool["inputSchema"]["properties"]) for tool in answers[8]["tools"]}
    assert shown == {
        "waits": ["key", "times"],
        "threaded": ["key"],
        "inline": ["key"],
        "method": ["key"],
    }
    assert [each["name"] for each in answers[9]["prompts"][0]["arguments"]] == ["key"]
    assert events == ["open", "closed"]


def test_a_lifespan_that_fails_is_why_the_server_does_not_start() -> None:
    server = Server("s")

    @server.lifespan
    def broken() -> Iterator[None]:
        raise OSError("no such database")
        yield

    async def main() -> None:
        async with Host(server) as host:
            await asyncio.wait([host.started])
            assert isinstance(host.started.exception(), OSError)

    asyncio.run(main())


def test_a_lifespan_that_ends_before_the_server_is_why_calls_that_need_it_fail(
    caplog: pytest.LogCaptureFixture,
) -> None:
    server = Server("s")

    async def main() -> None:
        lost = asyncio.Event()

        async def watches_the_connection() -> None:
            await lost.wait()
            raise ConnectionError("the other end hung up")

        @server.lifespan
        async def connection() -> AsyncIterator[One]:
            async with asyncio.TaskGroup() as group:
                group.create_task(watches_the_connection())
                yield One()

        @server.tool
        async def needs(one: One) -> str:
            return "there"

        @server.tool
        async def other() -> str:
            return "still here"

        async with Host(server) as host:
            ours, theirs = memory_pair()
            host.attach(theirs)
            caller = connect(ours)
            client = {
                "protocolVersion": "2025-11-25",
                "capabilities": {},
                "clientInfo": {"name": "c", "version": "1"},
            }
            await caller.request("initialize", client)
            caller.notify("notifications/initialized")

            async def said(name: str) -> str:
                return (await caller.request("tools/call", {"name": name}))["content"][0]["text"]

            assert await said("needs") == "there"
            (task,) = (
                each for each in asyncio.all_tasks() if each.get_name() == "concertino lifespan"
            )
            lost.set()
            await asyncio.wait([task])
            assert (
                "there is no One any more: its lifespan function ended: ExceptionGroup"
                in await said("needs")
            )
            assert await said("other") == "still here"

    asyncio.run(asyncio.wait_for(main(), 20))
    assert any("ended before the server" in each.message for each in caplog.records)


def test_a_lifespan_that_waits_for_what_was_cancelled_is_why_the_server_does_not_start() -> None:
    server = Server("x")

    @server.lifespan
    async def cancelled() -> AsyncIterator[One]:
        connecting = asyncio.get_running_loop().create_future()
        connecting.cancel()
        await connecting
        yield One()

    class Nobody:
        def report_change(self, what: object) -> None: ...
        def report_update(self, uri: str) -> None: ...

    async def main() -> None:
        async with asyncio.timeout(10):
            with pytest.raises(RuntimeError, match="waited for something that was cancelled"):
                await server.start(Nobody())
            await server.close()

    asyncio.run(main())


def test_a_second_start_meanwhile_fails_as_the_first_does() -> None:
    lifespans = Lifespans()

    async def failing() -> AsyncIterator[One]:
        await asyncio.sleep(0)
        raise OSError("no disk")
        yield One()

    lifespans.add(failing)

    async def main() -> None:
        async with asyncio.timeout(10):
            ends = await asyncio.gather(lifespans.open(), lifespans.open(), return_exceptions=True)
        assert [repr(end) for end in ends] == ["OSError('no disk')"] * 2

    asyncio.run(main())


def test_a_server_that_is_served_twice_at_once_opens_once_and_closes_with_the_last() -> None:
    server, events = make_server()

    async def main() -> None:
        async with Host(server) as one:
            async with Host(server) as other:
                await asyncio.gather(one.started, other.started)
            assert events == ["open"]
        assert events == ["open", "closed"]

    asyncio.run(main())


def test_a_call_without_a_start_says_what_is_missing() -> None:
    lifespans = Lifespans()

    async def one() -> AsyncIterator[One]:
        yield One()

    lifespans.add(one)

    def handler(value: One) -> None: ...

    with pytest.raises(RuntimeError, match="there is no One yet"):
        lifespans.fill(handler)()


def test_what_is_passed_by_name_cannot_be_positional_only() -> None:
    lifespans = Lifespans()

    async def one() -> AsyncIterator[One]:
        yield One()

    lifespans.add(one)

    def handler(value: One, /) -> None: ...

    with pytest.raises(RegistrationError, match=r"value: .*passed by name"):
        lifespans.fill(handler)


def test_a_partial_that_asks_has_no_name_of_its_own_and_the_description_of_its_function() -> None:
    server = Server("x")

    @server.lifespan
    def one() -> Iterator[One]:
        yield One()

    def told(text: str, one: One) -> str:
        """Say it again."""
        return text

    with pytest.raises(RegistrationError, match="got none; pass name="):
        server.add_tool(partial(told, text="a"))
    server.add_tool(partial(told, text="a"), name="a")
    server.add_prompt(partial(told, text="a"), name="a")

    async def main() -> list[Any]:
        ours, theirs = memory_pair()
        async with Host(server) as host:
            host.attach(theirs)
            caller = connect(ours)
            opening = {
                "protocolVersion": "2025-11-25",
                "capabilities": {},
                "clientInfo": {"name": "c", "version": "1"},
            }
            await caller.request("initialize", opening)
            listed = [
                (await caller.request(f"{kind}/list"))[kind][0] for kind in ("tools", "prompts")
            ]
            await caller.aclose()
            return listed

    assert [(each["name"], each["description"]) for each in asyncio.run(main())] == [
        ("a", "Say it again.")
    ] * 2


def test_a_handler_that_asks_for_nothing_is_left_as_it_is() -> None:
    server, _ = make_server()

    def handler(key: str) -> str:
        return key

    assert server.fill(handler) is handler
    assert Lifespans().fill(handler) is handler


def test_two_for_one_class_and_one_after_the_start_are_refused() -> None:
    lifespans = Lifespans()

    async def one() -> AsyncIterator[One]:
        yield One()

    async def two() -> AsyncIterator[Two]:
        yield Two()

    async def main() -> None:
        await lifespans.open()
        with pytest.raises(RegistrationError, match="has started"):
            lifespans.add(two)
        await lifespans.close()

    lifespans.add(one)
    with pytest.raises(RegistrationError, match="already provides One"):
        lifespans.add(one)
    asyncio.run(main())
