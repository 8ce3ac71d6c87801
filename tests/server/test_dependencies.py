"""server/dependencies.py and dependency_scope.py: what Depends provides in a call, and its end.

Annotations are not postponed here: most providers are local to a test.
"""

import asyncio
import gc
import logging
import re
import sqlite3
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from inspect import signature
from typing import Annotated, Any, Literal

import pydantic
import pytest
import wire
from hypothesis import given, settings
from hypothesis import strategies as st
from loops import on_a_loop
from server.served import Served

from concertino import Accepted, Client, Context, Depends, Server, ToolError
from concertino.errors import RegistrationError
from concertino.server import Operations, dependency_scope
from concertino.types import Completion


class Session:
    """open: whether it was not closed yet. error: what was thrown into its provider."""

    def __init__(self) -> None:
        self.open = True
        self.error: BaseException | None = None
        self.threads = [threading.get_ident()]

    def close(self, error: BaseException | None = None) -> None:
        assert self.open
        self.open = False
        self.error = error
        self.threads.append(threading.get_ident())


class Sessions:
    """Providers of sessions, of each kind that has a clean-up. made: all sessions."""

    def __init__(self) -> None:
        self.made: list[Session] = []

    def _make(self) -> Session:
        self.made.append(Session())
        return self.made[-1]

    def generator(self) -> Iterator[Session]:
        session = self._make()
        try:
            yield session
        except BaseException as exc:
            session.close(exc)
            raise
        session.close()

    async def async_generator(self) -> AsyncIterator[Session]:
        session = self._make()
        try:
            yield session
        except BaseException as exc:
            session.close(exc)
            raise
        session.close()

    def managed(self) -> Callable[[], Any]:
        return contextmanager(self.generator)

    def async_managed(self) -> Callable[[], Any]:
        return asynccontextmanager(self.async_generator)


CLOSING: dict[str, Callable[[Sessions], Callable[..., Any]]] = {
    "generator": lambda sessions: sessions.generator,
    "async generator": lambda sessions: sessions.async_generator,
    "contextmanager": lambda sessions: sessions.managed(),
    "asynccontextmanager": lambda sessions: sessions.async_managed(),
}
closing = pytest.mark.parametrize("kind", CLOSING)
handlers = pytest.mark.parametrize("handler", ["async", "def", "inline"])


def add_tool(
    server: Server, handler: str, provider: Callable[..., Any], work: Callable[[Any], Any]
) -> None:
    """Register a tool `use` of one of three kinds, which returns work(value of the provider)."""

    async def use_async(text: str, session: Annotated[Any, Depends(provider)]) -> Any:
        return work(session)

    def use(text: str, session: Annotated[Any, Depends(provider)]) -> Any:
        return work(session)

    if handler == "async":
        server.add_tool(use_async, name="use")
    else:
        server.add_tool(use, name="use", inline=handler == "inline")


async def call(served: Served, name: str = "", **arguments: Any) -> Any:
    """Call a tool, `use` with a text by default; its text, or ("error", text)."""
    params = (
        {"name": name, "arguments": arguments}
        if name
        else {"name": "use", "arguments": {"text": "x", **arguments}}
    )
    result = await served.ask("tools/call", **params)
    text = result["content"][0]["text"]
    return ("error", text) if result.get("isError") else text


# What a provider may be


class Maker:
    def method(self) -> str:
        return "value"

    async def async_method(self) -> str:
        return "value"

    def __call__(self) -> str:
        return "value"


class FromClass(str):
    def __new__(cls) -> "FromClass":
        return super().__new__(cls, "value")


def sync() -> str:
    return "value"


async def not_sync() -> str:
    return "value"


def generator() -> Iterator[str]:
    yield "value"


async def async_generator() -> AsyncIterator[str]:
    yield "value"


def with_default(text: str = "value") -> str:
    return text


PROVIDERS: dict[str, Callable[..., Any]] = {
    "def": sync,
    "async def": not_sync,
    "generator": generator,
    "async generator": async_generator,
    "contextmanager": contextmanager(generator),
    "asynccontextmanager": asynccontextmanager(async_generator),
    "class": FromClass,
    "method": Maker().method,
    "async method": Maker().async_method,
    "callable object": Maker(),
    "partial": partial(with_default, text="value"),
    "partial of async": partial(not_sync),
    "default": with_default,
    "def that returns a coroutine": lambda: not_sync(),
}


@handlers
@pytest.mark.parametrize("provider", PROVIDERS)
@on_a_loop
async def test_every_kind_of_function_provides_its_value(provider: str, handler: str) -> None:
    server = Server("x")
    add_tool(server, handler, PROVIDERS[provider], str)
    async with Served(server) as served:
        assert await call(served) == "value"
        [tool] = (await served.ask("tools/list"))["tools"]
        assert list(tool["inputSchema"]["properties"]) == ["text"]


@on_a_loop
async def test_clients_neither_see_nor_set_the_parameter() -> None:
    server = Server("x")
    add_tool(server, "async", sync, str)
    async with Served(server) as served:
        kind, text = await call(served, text="x", session="forged")
        assert kind == "error"
        assert "session: unknown argument" in text


# Where it may be used


@closing
@handlers
@on_a_loop
async def test_a_tool_has_it_open_and_it_is_closed_after_the_result(
    kind: str, handler: str
) -> None:
    server, sessions = Server("x"), Sessions()
    add_tool(server, handler, CLOSING[kind](sessions), lambda session: str(session.open))
    async with Served(server) as served:
        for number in (1, 2):
            assert await call(served) == "True"
            assert [session.open for session in sessions.made] == [False] * number


@closing
@on_a_loop
async def test_the_result_is_made_while_it_is_open(kind: str) -> None:
    """An object that reads its session when it becomes JSON, as those of an ORM do."""
    server, sessions = Server("x"), Sessions()
    provider = CLOSING[kind](sessions)

    class Row(pydantic.BaseModel):
        _session: Any = None

        @pydantic.computed_field
        def is_open(self) -> bool:
            return self._session.open

    async def row_async(session: Annotated[Session, Depends(provider)]) -> Row:
        row = Row()
        row._session = session
        return row

    def row(session: Annotated[Session, Depends(provider)]) -> Row:
        made = Row()
        made._session = session
        return made

    operations = Operations(server)
    for number, handler in enumerate((row_async, row)):
        server.add_tool(handler, name=f"tool{number}")
        operations.tool(name=f"long{number}", answer_after_s=30)(handler)
    async with Served(server) as served:
        for name in ("tool0", "tool1", "long0", "long1"):
            result = await served.ask("tools/call", name=name, arguments={})
            assert result["structuredContent"] == {"is_open": True}, name
    assert [session.open for session in sessions.made] == [False] * 4


@closing
@pytest.mark.parametrize("is_async", [True, False])
@on_a_loop
async def test_prompts_resources_and_completions_have_it_too(kind: str, is_async: bool) -> None:
    server, sessions = Server("x"), Sessions()
    Wanted = Annotated[Session, Depends(CLOSING[kind](sessions))]

    def prompt(topic: str, session: Wanted) -> str:
        return f"{topic}: {session.open}"

    def fixed(session: Wanted) -> str:
        return str(session.open)

    def template(day: str, session: Wanted) -> str:
        return f"{day}: {session.open}"

    def complete(value: str, session: Wanted) -> list[str]:
        return [f"{value}: {session.open}"]

    def maybe_async(function: Any) -> Any:
        if not is_async:
            return function

        async def call(*args: Any, **kwargs: Any) -> Any:
            return function(*args, **kwargs)

        call.__signature__ = signature(function)  # type: ignore[attr-defined]
        call.__annotations__ = function.__annotations__
        return call

    server.prompt(name="p")(maybe_async(prompt))
    server.add_resource("a://fixed", maybe_async(fixed))
    server.add_resource("a://of/{day}", maybe_async(template), name="t")
    server.complete("p", "topic")(maybe_async(complete))
    async with Served(server) as served:
        [listed] = (await served.ask("prompts/list"))["prompts"]
        assert [argument["name"] for argument in listed["arguments"]] == ["topic"]
        got = await served.ask("prompts/get", name="p", arguments={"topic": "tea"})
        assert got["messages"][0]["content"]["text"] == "tea: True"
        read = await served.ask("resources/read", uri="a://fixed")
        assert read["contents"][0]["text"] == "True"
        read = await served.ask("resources/read", uri="a://of/monday")
        assert read["contents"][0]["text"] == "monday: True"
        completed = await served.ask(
            "completion/complete",
            ref={"type": "ref/prompt", "name": "p"},
            argument={"name": "topic", "value": "t"},
        )
        assert completed["completion"]["values"] == ["t: True"]
    assert [session.open for session in sessions.made] == [False] * 4


@closing
@pytest.mark.parametrize("is_async", [True, False])
@pytest.mark.parametrize("inline", [True, False])
@on_a_loop
async def test_a_generator_has_it_open_until_its_last_chunk(
    kind: str, is_async: bool, inline: bool
) -> None:
    server, sessions = Server("x"), Sessions()
    Wanted = Annotated[Session, Depends(CLOSING[kind](sessions))]

    async def stream_async(count: int, session: Wanted) -> AsyncIterator[str]:
        for number in range(count):
            await asyncio.sleep(0)
            yield f"{number}{session.open} "

    def stream(count: int, session: Wanted) -> Iterator[str]:
        for number in range(count):
            yield f"{number}{session.open} "

    handler = stream_async if is_async else stream
    server.add_tool(handler, name="use", inline=inline)
    Operations(server).tool(name="long", answer_after_s=30, inline=inline)(handler)
    async with Served(server) as served:
        for name in ("use", "long"):
            assert await call(served, name, count=3) == "0True 1True 2True "
    assert [session.open for session in sessions.made] == [False] * 2


@closing
@on_a_loop
async def test_a_long_operation_has_it_open_until_it_ends_not_until_it_is_answered(
    kind: str,
) -> None:
    server, sessions = Server("x"), Sessions()
    go = asyncio.Event()

    @Operations(server).tool(answer_after_s=0)
    async def render(session: Annotated[Session, Depends(CLOSING[kind](sessions))]) -> str:
        await go.wait()
        return str(session.open)

    async with Served(server) as served:
        started = await served.ask("tools/call", name="render", arguments={})
        handle = started["structuredContent"]["operationId"]
        while not sessions.made:
            await served.pause()
        assert sessions.made[0].open
        go.set()
        arguments = {"operationId": handle, "waitSeconds": 30}
        assert await call(served, "get_operation", **arguments) == "True"
        assert not sessions.made[0].open


# One provider and another


@handlers
@on_a_loop
async def test_each_provider_runs_once_in_a_call_whoever_needs_it(handler: str) -> None:
    server, sessions = Server("x"), Sessions()

    async def users(session: Annotated[Session, Depends(sessions.generator)]) -> tuple[Any, ...]:
        return ("users", session)

    def orders(
        session: Annotated[Session, Depends(sessions.generator)],
        users: Annotated[Any, Depends(users)],
    ) -> tuple[Any, ...]:
        return ("orders", session, *users)

    def describe(
        orders: Annotated[Any, Depends(orders)],
        session: Annotated[Any, Depends(sessions.generator)],
    ) -> str:
        return f"{orders[0]} {orders[2]} {orders[1] is orders[3] is session}"

    add_tool(server, handler, describe, str)
    async with Served(server) as served:
        for number in (1, 2):
            assert await call(served) == "orders users True"
            assert len(sessions.made) == number


class Database: ...


@pytest.mark.parametrize("is_async", [True, False])
@on_a_loop
async def test_a_provider_may_have_the_context_and_lifespan_values(is_async: bool) -> None:
    server = Server("x")

    @server.lifespan
    def database() -> Iterator[Database]:
        yield Database()

    def get(database: Database, context: Context, *, unit: str = "kg") -> str:
        return f"{type(database).__name__} {context.client.name} {unit}"

    async def get_async(database: Database, context: Context, *, unit: str = "kg") -> str:
        return get(database, context, unit=unit)

    provider = get_async if is_async else get

    @server.tool
    def use(
        a: int, text: Annotated[str, Depends(provider)], database: Database, *, b: int = 2
    ) -> str:
        return f"{a} {b} {text} {type(database).__name__}"

    @server.tool
    async def use_with_context(
        context: Context, a: int, text: Annotated[str, Depends(provider)], b: int = 2
    ) -> str:
        return f"{a} {b} {text} {context.client.name}"

    async with Served(server) as served:
        assert await call(served, "use", a=1, b=3) == "1 3 Database c kg Database"
        assert await call(served, "use_with_context", a=1) == "1 2 Database c kg c"


@on_a_loop
async def test_depends_comes_before_the_class_of_a_lifespan_value_and_the_context() -> None:
    server = Server("x")

    @server.lifespan
    def database() -> Iterator[Database]:
        yield Database()

    class Replica(Database): ...

    def replica() -> Database:
        return Replica()

    def fake() -> Any:
        return "a context of one's own"

    @server.tool
    def use(
        database: Annotated[Database, Depends(replica)], context: Annotated[Context, Depends(fake)]
    ) -> str:
        return f"{type(database).__name__} {context}"

    async with Served(server) as served:
        assert await call(served, "use") == "Replica a context of one's own"


@on_a_loop
async def test_a_tool_with_a_schema_written_by_hand_has_it_too() -> None:
    server = Server("x")

    def use(arguments: dict[str, Any], text: Annotated[str, Depends(not_sync)]) -> str:
        return f"{arguments} {text}"

    schema = {"type": "object", "properties": {"n": {"type": "integer"}}}
    server.add_tool(use, input_schema=schema)
    async with Served(server) as served:
        assert await call(served, "use", n=1) == "{'n': 1} value"


@on_a_loop
async def test_a_def_tool_and_def_providers_share_a_thread() -> None:
    """sqlite3 refuses a connection of another thread."""
    server = Server("x")
    closed: list[bool] = []

    def connection() -> Iterator[sqlite3.Connection]:
        database = sqlite3.connect(":memory:")
        yield database
        database.close()
        closed.append(True)

    def cursor(database: Annotated[sqlite3.Connection, Depends(connection)]) -> sqlite3.Cursor:
        return database.cursor()

    @server.tool
    def count(cursor: Annotated[sqlite3.Cursor, Depends(cursor)]) -> int:
        [(number,)] = cursor.execute("SELECT 41 + 1").fetchall()
        return number

    @server.tool
    def stream(cursor: Annotated[sqlite3.Cursor, Depends(cursor)]) -> Iterator[str]:
        for (number,) in cursor.execute("SELECT 1 UNION SELECT 2"):
            yield f"{number} "

    async with Served(server) as served:
        for _ in range(3):
            assert await call(served, "count") == "42"
            assert await call(served, "stream") == "1 2 "
    assert closed == [True] * 6


@handlers
@on_a_loop
async def test_a_hundred_parallel_calls_have_one_each(handler: str) -> None:
    server, sessions = Server("x"), Sessions()

    async def wrapped(
        session: Annotated[Session, Depends(sessions.generator)],
    ) -> AsyncIterator[Session]:
        await asyncio.sleep(0)
        yield session

    add_tool(server, handler, wrapped, lambda session: f"{id(session)} {session.open}")
    async with Served(server) as served:
        texts = await asyncio.gather(*(call(served) for _ in range(100)))
    assert sorted(texts) == sorted(f"{id(session)} True" for session in sessions.made)
    assert len(set(texts)) == 100
    assert not any(session.open for session in sessions.made)


KINDS = ("def", "async def", "generator", "async generator")


@settings(max_examples=60, deadline=None)
@given(
    graph=st.integers(1, 6).flatmap(
        lambda count: st.tuples(
            *(
                st.tuples(
                    st.sampled_from(KINDS),
                    st.sets(st.integers(0, number - 1)) if number else st.just(set[int]()),
                )
                for number in range(count)
            )
        )
    ),
    is_async=st.booleans(),
    fails=st.booleans(),
)
def test_each_opens_after_what_it_needs_and_closes_in_reverse(
    graph: tuple[tuple[str, set[int]], ...], is_async: bool, fails: bool
) -> None:
    events: list[tuple[str, int]] = []
    providers: list[Callable[..., Any]] = []

    def make(number: int, kind: str, needs: set[int]) -> Callable[..., Any]:
        def begin() -> int:
            events.append(("open", number))
            return number

        def get(**_: Any) -> int:
            return begin()

        async def get_async(**_: Any) -> int:
            return begin()

        def generate(**_: Any) -> Iterator[int]:
            try:
                yield begin()
            finally:
                events.append(("close", number))

        async def generate_async(**_: Any) -> AsyncIterator[int]:
            try:
                yield begin()
            finally:
                events.append(("close", number))

        function: Any = dict(zip(KINDS, (get, get_async, generate, generate_async), strict=True))[
            kind
        ]
        return with_parameters(function, {f"n{need}": providers[need] for need in needs})

    for number, (kind, needs) in enumerate(graph):
        providers.append(make(number, kind, needs))

    def use(**_: Any) -> str:
        events.append(("use", -1))
        if fails:
            raise ToolError("it fails")
        return "done"

    async def use_async(**_: Any) -> str:
        return use()

    server = Server("x")
    wanted = {f"p{number}": provider for number, provider in enumerate(providers)}
    handler = with_parameters(use_async if is_async else use, wanted)
    server.add_tool(handler, name="use")

    async def main() -> None:
        async with Served(server) as served:
            await served.ask("tools/call", name="use", arguments={})

    asyncio.run(main())
    at = events.index(("use", -1))
    opened = [number for _, number in events[:at]]
    assert sorted(opened) == list(range(len(graph)))
    for number, (_, needs) in enumerate(graph):
        assert all(opened.index(need) < opened.index(number) for need in needs)
    closed = [number for number in reversed(opened) if "generator" in graph[number][0]]
    assert events[at + 1 :] == [("close", number) for number in closed]


def with_parameters(function: Any, providers: dict[str, Callable[..., Any]]) -> Any:
    """Return the function with a keyword parameter for each provider."""
    parameters = [
        parameter.replace(
            name=name, kind=parameter.KEYWORD_ONLY, annotation=Annotated[Any, Depends(provider)]
        )
        for name, provider in providers.items()
        for parameter in signature(lambda x: x).parameters.values()
    ]
    function.__signature__ = signature(function).replace(parameters=parameters)
    function.__annotations__ = {item.name: item.annotation for item in parameters}
    return function


# Failures


@closing
@handlers
@on_a_loop
async def test_the_failure_of_a_call_is_thrown_into_its_providers(kind: str, handler: str) -> None:
    server, sessions = Server("x"), Sessions()
    errors = [ToolError("NO", "no"), KeyError("x"), SystemExit(1)]

    def fail(session: Session) -> Any:
        raise errors[len(sessions.made) - 1]

    add_tool(server, handler, CLOSING[kind](sessions), fail)
    async with Served(server) as served:
        outcomes = [await call(served) for _ in errors]
    assert [outcome for outcome, _ in outcomes] == ["error"] * 3
    assert ['"NO"' in outcomes[0][1], "KeyError" in outcomes[1][1]] == [True, True]
    assert [session.error for session in sessions.made] == errors


@handlers
@pytest.mark.parametrize("is_async", [True, False])
@on_a_loop
async def test_a_provider_cannot_turn_a_failure_into_a_success(
    handler: str, is_async: bool
) -> None:
    def swallow() -> Iterator[str]:
        try:
            yield "x"
        except ToolError:
            pass

    async def swallow_async() -> AsyncIterator[str]:
        try:
            yield "x"
        except ToolError:
            pass

    def fail(value: str) -> Any:
        raise ToolError("it failed")

    server = Server("x")
    add_tool(server, handler, swallow_async if is_async else swallow, fail)
    async with Served(server) as served:
        assert await call(served) == ("error", "it failed")


@handlers
@pytest.mark.parametrize("is_async", [True, False])
@pytest.mark.parametrize("fails", [True, False])
@on_a_loop
async def test_the_failure_of_a_clean_up_is_logged_and_not_sent(
    handler: str, is_async: bool, fails: bool, caplog: pytest.LogCaptureFixture
) -> None:
    server, sessions = Server("x"), Sessions()

    def broken(session: Annotated[Session, Depends(sessions.generator)]) -> Iterator[str]:
        try:
            yield "fine"
        finally:
            raise OSError("the disk is full")

    async def broken_async(
        session: Annotated[Session, Depends(sessions.generator)],
    ) -> AsyncIterator[str]:
        try:
            yield "fine"
        finally:
            raise OSError("the disk is full")

    def work(value: str) -> str:
        if fails:
            raise ToolError("it failed")
        return value

    add_tool(server, handler, broken_async if is_async else broken, work)
    with caplog.at_level(logging.ERROR, "concertino.dependencies"):
        async with Served(server) as served:
            assert await call(served) == (("error", "it failed") if fails else "fine")
    [record] = caplog.records
    name = "broken_async" if is_async else "broken"
    assert re.fullmatch(
        rf"{name}\(\) \(test_dependencies.py:\d+\) failed to clean up after a call",
        record.getMessage(),
    )
    assert record.exc_info is not None
    assert "the disk is full" in str(record.exc_info[1])
    assert [session.open for session in sessions.made] == [False]


@handlers
@pytest.mark.parametrize("is_async", [True, False])
@on_a_loop
async def test_a_provider_that_fails_fails_the_call_and_the_others_are_closed(
    handler: str, is_async: bool
) -> None:
    server, sessions = Server("x"), Sessions()

    def refuse(session: Annotated[Session, Depends(sessions.generator)]) -> str:
        raise ToolError("FORBIDDEN", "only for Ann")

    async def refuse_async(session: Annotated[Session, Depends(sessions.generator)]) -> str:
        return refuse(session)

    add_tool(server, handler, refuse_async if is_async else refuse, pytest.fail)
    async with Served(server) as served:
        kind, text = await call(served)
        assert kind == "error"
        assert '"FORBIDDEN"' in text
    assert [type(session.error) for session in sessions.made] == [ToolError]


@pytest.mark.parametrize("handler", ["async", "def"])
@pytest.mark.parametrize("provider", ["async", "def"])
@on_a_loop
async def test_a_clean_up_that_hangs_does_not_hold_up_the_result(
    handler: str, provider: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(dependency_scope, "CLEANUP_S", 0.05)
    server, sessions = Server("x"), Sessions()
    release = threading.Event()

    def hang(
        session: Annotated[
            Session, Depends(sessions.async_generator if handler == "async" else sessions.generator)
        ],
    ) -> Iterator[str]:
        yield "done"
        release.wait(30)

    async def hang_async(
        session: Annotated[Session, Depends(sessions.async_generator)],
    ) -> AsyncIterator[str]:
        yield "done"
        await asyncio.Event().wait()

    add_tool(server, handler, hang if provider == "def" else hang_async, str)
    try:
        with caplog.at_level(logging.ERROR, "concertino.dependencies"):
            async with Served(server) as served:
                assert await call(served) == "done"
                assert "did not clean up within 0.05 s after a call" in caplog.text
    finally:
        release.set()
    if (handler, provider) != ("def", "def"):
        assert not sessions.made[0].open


# Cancelled calls


async def cancel(task: "asyncio.Task[Any]", served: Served) -> None:
    task.cancel()
    await asyncio.wait([task])
    await served.pause()


async def until(is_true: Callable[[], bool], served: Served) -> None:
    while not is_true():
        await served.pause()


@closing
@on_a_loop
async def test_a_cancelled_call_closes_what_it_had_open(kind: str) -> None:
    server, sessions = Server("x"), Sessions()

    @server.tool
    async def use(session: Annotated[Session, Depends(CLOSING[kind](sessions))]) -> str:
        await asyncio.Event().wait()
        return "never"

    async with Served(server) as served:
        task = asyncio.create_task(served.ask("tools/call", name="use", arguments={}))
        await until(lambda: bool(sessions.made), served)
        await cancel(task, served)
        await until(lambda: not sessions.made[0].open, served)
        assert type(sessions.made[0].error) is asyncio.CancelledError


@closing
@on_a_loop
async def test_a_call_that_takes_too_long_closes_what_it_had_open(kind: str) -> None:
    server, sessions = Server("x"), Sessions()

    @server.tool(timeout_s=0.05)
    async def use(session: Annotated[Session, Depends(CLOSING[kind](sessions))]) -> str:
        await asyncio.Event().wait()
        return "never"

    async with Served(server) as served:
        assert "TIMED_OUT" in (await call(served, "use"))[1]
        await until(lambda: not sessions.made[0].open, served)


@on_a_loop
async def test_a_cancel_during_the_set_up_closes_what_is_open_and_opens_nothing_more() -> None:
    server, sessions = Server("x"), Sessions()
    later: list[str] = []
    began = asyncio.Event()

    async def slow(
        session: Annotated[Session, Depends(sessions.async_generator)],
    ) -> AsyncIterator[str]:
        began.set()
        try:
            await asyncio.Event().wait()
            yield "never"
        finally:
            later.append("left")

    async def last(slow: Annotated[str, Depends(slow)]) -> None:
        later.append("opened")

    @server.tool
    async def use(last: Annotated[None, Depends(last)]) -> None:
        later.append("called")

    async with Served(server) as served:
        task = asyncio.create_task(served.ask("tools/call", name="use", arguments={}))
        await began.wait()
        await cancel(task, served)
        await until(lambda: not sessions.made[0].open, served)
    assert later == ["left"]


@pytest.mark.parametrize("is_async", [True, False])
@on_a_loop
async def test_what_a_thread_opens_for_a_cancelled_call_is_closed(is_async: bool) -> None:
    server, sessions = Server("x"), Sessions()
    began, go = threading.Event(), threading.Event()

    def slow() -> Iterator[Session]:
        began.set()
        go.wait(30)
        yield from sessions.generator()

    async def use_async(session: Annotated[Session, Depends(slow)]) -> None:
        pytest.fail("the call was cancelled")

    def use(session: Annotated[Session, Depends(slow)]) -> None: ...

    server.add_tool(use_async if is_async else use, name="use")
    async with Served(server) as served:
        task = asyncio.create_task(served.ask("tools/call", name="use", arguments={}))
        await until(began.is_set, served)
        await cancel(task, served)
        go.set()
        await until(lambda: bool(sessions.made) and not sessions.made[0].open, served)


@on_a_loop
async def test_nothing_is_closed_while_the_thread_of_a_cancelled_call_uses_it() -> None:
    server, sessions = Server("x"), Sessions()
    began, go = threading.Event(), threading.Event()
    seen: list[bool] = []

    @server.tool
    def use(session: Annotated[Session, Depends(sessions.async_generator)]) -> None:
        began.set()
        go.wait(30)
        seen.append(session.open)

    async with Served(server) as served:
        task = asyncio.create_task(served.ask("tools/call", name="use", arguments={}))
        await until(began.is_set, served)
        await cancel(task, served)
        assert sessions.made[0].open
        go.set()
        await until(lambda: not sessions.made[0].open, served)
    assert seen == [True]


@on_a_loop
async def test_a_call_whose_thread_step_has_not_begun_drops_it() -> None:
    scope = dependency_scope.Scope(lambda step: asyncio.Event().wait())  # type: ignore[arg-type, return-value]
    task = asyncio.create_task(scope.run(lambda: pytest.fail("it was dropped")))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()


@on_a_loop
async def test_a_clean_up_that_waits_for_a_thread_is_made_although_nobody_waits_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dependency_scope, "CLEANUP_S", 0.05)
    server, sessions = Server("x"), Sessions()
    go = threading.Event()
    # One permit for each of the 32 threads of the server that has begun a call.
    began = asyncio.Semaphore(0)
    loop = asyncio.get_running_loop()

    @server.tool
    async def use(session: Annotated[Session, Depends(sessions.generator)]) -> str:
        for _ in range(32):
            await began.acquire()
        return "done"

    @server.tool
    def occupy() -> None:
        loop.call_soon_threadsafe(began.release)
        go.wait(30)

    async with Served(server) as served:
        # Until a call has returned, the server has to expect large results, and starts the calls
        # of the tool slowly.
        go.set()
        await served.ask("tools/call", name="occupy")
        await began.acquire()
        go.clear()
        task = asyncio.create_task(call(served, "use"))
        await until(lambda: bool(sessions.made), served)
        others = [asyncio.create_task(served.ask("tools/call", name="occupy")) for _ in range(32)]
        assert await task == "done"
        assert sessions.made[0].open
        go.set()
        await asyncio.gather(*others)
        await until(lambda: not sessions.made[0].open, served)


@pytest.mark.parametrize("version", ["2025-11-25", wire.MODERN])
@on_a_loop
async def test_a_call_that_asks_the_user_opens_and_closes_in_each_round(version: str) -> None:
    server, sessions = Server("x"), Sessions()

    class Form(pydantic.BaseModel):
        name: str

    @server.tool
    async def greet(
        context: Context, session: Annotated[Session, Depends(sessions.async_generator)]
    ) -> str:
        answer = await context.elicit(
            "Who are you?", {"type": "object", "properties": {"name": {"type": "string"}}}
        )
        assert isinstance(answer, Accepted)
        return f"{answer.content['name']} {session.open}"

    era: Literal["modern", "legacy"] = "modern" if version == wire.MODERN else "legacy"
    async with Client(server, era=era, elicit=lambda request, server: {"name": "Ada"}) as client:
        result = await client.call_tool("greet")
        assert result.content[0].text == "Ada True"  # type: ignore[union-attr]
    assert [session.open for session in sessions.made] == [False] * (2 if era == "modern" else 1)


@handlers
@pytest.mark.parametrize("is_async", [False, True], ids=["def", "async def"])
@on_a_loop
async def test_a_provider_that_yields_nothing_is_named(handler: str, is_async: bool) -> None:
    server = Server("x")

    def nothing() -> Iterator[str]:
        yield from ()

    async def nothing_async() -> AsyncIterator[str]:
        for _ in ():
            yield ""

    add_tool(server, handler, nothing_async if is_async else nothing, str)
    async with Served(server) as served:
        kind, text = await call(served)
    name = "nothing_async" if is_async else "nothing"
    assert kind == "error"
    assert re.fullmatch(
        rf"RuntimeError: {name}\(\) \(test_dependencies\.py:\d+\) ended before its yield; it must "
        r"yield a value",
        text,
    )


# Overriding


@handlers
@pytest.mark.parametrize("fake", ["def", "async def", "generator", "async generator"])
@pytest.mark.parametrize("real", ["def", "async def", "generator", "async generator"])
@on_a_loop
async def test_a_test_may_put_any_provider_in_the_place_of_another(
    handler: str, fake: str, real: str
) -> None:
    server = Server("x")
    fakes: dict[str, Callable[..., Any]] = {}

    def fake_def() -> str:
        return "fake"

    async def fake_async() -> str:
        return "fake"

    def fake_generator() -> Iterator[str]:
        yield "fake"

    async def fake_async_generator() -> AsyncIterator[str]:
        yield "fake"

    fakes = dict(
        zip(KINDS, (fake_def, fake_async, fake_generator, fake_async_generator), strict=True)
    )

    def nested(text: Annotated[str, Depends(PROVIDERS[real])]) -> str:
        return text

    add_tool(server, handler, nested, str)
    async with Served(server) as served:
        assert await call(served) == "value"
        with server.override(PROVIDERS[real], fakes[fake]):
            assert await call(served) == "fake"
            with server.override(PROVIDERS[real], lambda: "other"):
                assert await call(served) == "other"
            assert await call(served) == "fake"
        assert await call(served) == "value"


@on_a_loop
async def test_overrides_of_one_provider_may_end_in_any_order() -> None:
    """As in two tests that run at the same time."""
    server = Server("x")
    add_tool(server, "async", sync, str)
    async with Served(server) as served:
        original = await call(served)
        first = server.override(sync, lambda: "first")
        second = server.override(sync, lambda: "second")
        first.__enter__()
        second.__enter__()
        assert await call(served) == "second"
        first.__exit__(None, None, None)
        assert await call(served) == "second"
        second.__exit__(None, None, None)
        assert await call(served) == original


def test_an_override_that_cannot_be_is_refused() -> None:
    server = Server("x")
    add_tool(server, "async", sync, str)

    def around(text: Annotated[str, Depends(sync)]) -> str:
        return text

    def lost(path: str) -> str:
        return path

    with pytest.raises(
        LookupError,
        match=r"override: no handler of this server depends on not_sync\(\) "
        r"\(test_dependencies.py:\d+\)",
    ):
        server.override(not_sync, sync).__enter__()
    with pytest.raises(RegistrationError, match=r"sync\(\) .* depends on itself: sync > sync"):
        server.override(sync, around).__enter__()
    with pytest.raises(RegistrationError, match=r"lost\(\) .*: nothing fills the parameter 'path'"):
        server.override(sync, lost).__enter__()


def test_an_override_in_which_another_provider_needs_the_first_is_refused() -> None:
    server = Server("x")

    def outer(text: Annotated[str, Depends(sync)]) -> str:
        return text

    def fake(text: Annotated[str, Depends(outer)]) -> str:
        return text

    add_tool(server, "async", outer, str)
    with pytest.raises(RegistrationError, match="override: sync > outer > sync"):
        server.override(sync, fake).__enter__()
    with server.override(sync, not_sync):
        pass


def test_providers_are_forgotten_with_the_last_handler_that_needs_them() -> None:
    """A server may register and remove tools for as long as it runs."""
    server = Server("x")
    for _ in range(5):

        def inner() -> str:
            return "x"

        def outer(text: Annotated[str, Depends(inner)]) -> str:
            return text

        add_tool(server, "def", outer, str)
        assert len(server._filled.dependencies()._providers) == 2
        server.remove_tool("use")
        gc.collect()


# Registration


def first(second: "Annotated[str, Depends(second)]") -> str:
    return second


def second(third: "Annotated[str, Depends(third)]") -> str:
    return third


def third(second: Annotated[str, Depends(second)]) -> str:
    return second


def lacks(url: str) -> str:
    return url


PLACE = r" \(test_dependencies.py:\d+\)"


def with_annotation(annotation: Any, default: Any = ...) -> Any:
    def f(a: int, value: annotation = default) -> str: ...

    def g(a: int, value: annotation) -> str: ...

    return f if default is not ... else g


@pytest.mark.parametrize(
    ("handler", "message"),
    [
        (
            with_annotation(Annotated[str, Depends(first)]),
            rf"second\(\){PLACE} depends on itself: second > third > second",
        ),
        (
            with_annotation(Annotated[str, Depends(lacks)]),
            rf"lacks\(\){PLACE}: nothing fills the parameter 'url'; annotate it with Context, "
            r"a class that a lifespan function yields, or Annotated\[..., Depends\(...\)\], "
            r"or give it a default",
        ),
        (
            with_annotation(str, Depends(sync)),
            rf"f\(\){PLACE}: parameter 'value': write Depends\(sync\) into the annotation, "
            r"as in value: Annotated\[Session, Depends\(sync\)\]",
        ),
        (
            with_annotation(Annotated[str, Depends(sync)] | None),
            rf"g\(\){PLACE}: parameter 'value': put Depends around the whole type, "
            r"as in Annotated\[Session \| None, Depends\(sync\)\]",
        ),
        (
            with_annotation(list[Annotated[str, Depends(sync)]]),
            rf"g\(\){PLACE}: parameter 'value': put Depends around the whole type, .*",
        ),
        (
            with_annotation(Annotated[str, Depends(sync), Depends(not_sync)]),
            rf"g\(\){PLACE}: parameter 'value': expected one Depends, got 2",
        ),
        (
            with_annotation(Annotated[str, Depends(Maker.method)]),
            rf"Maker.method\(\){PLACE}: Maker.method is a method without its object; "
            r"pass a bound method, as in Depends\(object.method\)",
        ),
    ],
)
def test_what_cannot_be_provided_is_refused_with_its_place(handler: Any, message: str) -> None:
    server = Server("x")
    for register in (
        server.add_tool,
        server.add_prompt,
        partial(server.add_resource, "a://{a}"),
        Operations(Server("y")).tool,
    ):
        with pytest.raises(RegistrationError, match=f"^{message}$"):
            register(handler)


def test_a_parameter_that_is_passed_by_position_only_is_refused() -> None:
    def f(value: Annotated[str, Depends(sync)], /, a: int) -> str: ...

    with pytest.raises(RegistrationError, match="it is passed by name; move the / before it"):
        Server("x").add_tool(f)


@on_a_loop
async def test_other_parameters_may_be_passed_by_position_only() -> None:
    server = Server("x")

    @server.tool
    def f(a: int, b: int = 2, /, *, value: Annotated[str, Depends(sync)]) -> str:
        return f"{a} {b} {value}"

    async with Served(server) as served:
        assert await call(served, "f", a=1, b=3) == "1 3 value"


@pytest.mark.parametrize("given", ["text", None, 5])
def test_depends_takes_a_function(given: Any) -> None:
    with pytest.raises(RegistrationError, match="expected a function, as in Depends"):
        Depends(given)


def test_depends_of_a_call_says_what_to_write() -> None:
    message = r"Depends\(get_session\) without parentheses, got coroutine"
    with pytest.raises(RegistrationError, match=message):
        Depends(not_sync())  # type: ignore[arg-type]


def test_the_decorated_function_stays_as_it_was() -> None:
    server = Server("x")

    @server.tool
    async def use(text: str, value: Annotated[str, Depends(sync)]) -> str:
        return f"{text} {value}"

    assert asyncio.run(use("a", "b")) == "a b"
    server.disable(use)
    assert list(server._registered_tools.entries) == []


@on_a_loop
async def test_a_provider_that_yields_twice_is_named_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def twice() -> Iterator[str]:
        yield "once"
        yield "again"

    server = Server("x")

    @server.tool
    def b(value: Annotated[str, Depends(twice)]) -> str:
        return value

    async with Served(server) as served:
        assert await call(served, "b") == "once"
        assert "twice() (test_dependencies.py" in caplog.text


@on_a_loop
async def test_completions_may_be_a_completion() -> None:
    server = Server("x")

    @server.prompt
    def p(topic: str) -> str:
        return topic

    @server.complete("p", "topic")
    async def complete(value: str, text: Annotated[str, Depends(sync)]) -> Completion:
        return Completion([text], 1, False)

    async with Served(server) as served:
        completed = await served.ask(
            "completion/complete",
            ref={"type": "ref/prompt", "name": "p"},
            argument={"name": "topic", "value": "t"},
        )
        assert completed["completion"]["values"] == ["value"]
