"""runtime/result_turns.py: how much of large results is sent in one iteration of the event loop."""

from __future__ import annotations

import asyncio
import datetime
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, NotRequired, TypedDict

import attrs
import pydantic
import pytest
from loops import on_a_loop
from msgspec import Meta, Raw, Struct
from msgspec.json import encode

from concertino import Client, Depends, Server, serve
from concertino.jsonrpc.limits import Limits
from concertino.jsonrpc.peer import Peer
from concertino.runtime import result_sizes, result_turns
from concertino.runtime.result_sizes import is_large_result, least_size, probable_size
from concertino.runtime.result_turns import convert_in_turn, result_turns_of
from concertino.runtime.tasks import busy_loops
from concertino.schema import json_parts, return_values, value_results
from concertino.schema.return_values import result_shaper
from concertino.schema.value_results import InvalidResult
from concertino.transports import connect, memory_pair
from concertino.types.results import CallToolResult, TextContent

MIB = 2**20
INITIALIZE = {
    "protocolVersion": "2025-11-25",
    "capabilities": {},
    "clientInfo": {"name": "c", "version": "1"},
}


@on_a_loop
async def test_results_beyond_2_mib_are_sent_in_later_iterations_in_order() -> None:
    turns = result_turns_of(asyncio.get_running_loop())
    sent: list[int] = []
    for number in range(7):
        if turns.may_send(MIB * 3 // 4):
            sent.append(number)
        else:
            turns.send_later(MIB * 3 // 4, lambda number=number: sent.append(number))
    assert sent == [0, 1, 2]
    # A result that comes now waits behind the others, although it is a new iteration.
    await asyncio.sleep(0)
    assert sent == [0, 1, 2, 3, 4, 5]
    assert not turns.may_send(MIB * 3 // 4)
    turns.send_later(MIB * 3 // 4, lambda: sent.append(7))
    await asyncio.sleep(0)
    assert sent == [0, 1, 2, 3, 4, 5, 6, 7]
    await asyncio.sleep(0)
    assert turns.may_send(10 * MIB)


@on_a_loop
async def test_a_result_that_cannot_be_sent_does_not_keep_the_others() -> None:
    loop = asyncio.get_running_loop()
    failures: list[object] = []
    loop.set_exception_handler(lambda _, context: failures.append(context.get("exception")))
    turns = result_turns_of(loop)
    sent: list[int] = []
    assert turns.may_send(8 * MIB)

    def fail() -> None:
        raise ValueError("no")

    turns.send_later(MIB, fail)
    turns.send_later(MIB, lambda: sent.append(1))
    for _ in range(3):
        await asyncio.sleep(0)
    assert sent == [1]
    assert [type(failure) for failure in failures] == [ValueError]


@on_a_loop
async def test_results_of_a_tool_known_for_small_ones_are_sent_in_turns_or_dropped_unencoded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = Server("server")
    may_end = asyncio.Event()
    waiting = 0

    @server.tool
    async def read(size: int) -> str:
        nonlocal waiting
        waiting += 1
        await may_end.wait()
        return "x" * size

    # The large responses that are encoded in each iteration of the loop.
    iterations: list[list[int]] = [[]]
    send_response = Peer[Any].send_response

    def count(peer: Any, incoming: Any, frame: bytes) -> None:
        if len(frame) > MIB:
            iterations[-1].append(len(frame))
        send_response(peer, incoming, frame)

    monkeypatch.setattr(Peer, "send_response", count)
    limits = Limits(max_unread_bytes=16 * MIB, drain_s=60)
    ours, theirs = memory_pair()
    serving = asyncio.create_task(serve(server, theirs, limits=limits))
    client = connect(ours)
    await client.request("initialize", INITIALIZE)
    calls: list[asyncio.Task[Any]] = []

    def call(size: int) -> None:
        params = {"name": "read", "arguments": {"size": size}}
        calls.append(asyncio.create_task(client.request("tools/call", params)))

    call(1)
    while not waiting:
        await asyncio.sleep(0)
    may_end.set()
    await calls.pop()
    may_end.clear()
    for _ in range(20):
        call(5_000_000)
    while waiting < 21:
        await asyncio.sleep(0)
    # The client does not read.
    ours.pause(True)
    may_end.set()
    for _ in range(50):
        iterations.append([])
        await asyncio.sleep(0)
    # 3 results fit into 16 MiB, and 4 into the 20 MiB of those that may wait. One, which has more
    # than 2 MiB, is sent in each iteration.
    assert [len(sizes) for sizes in iterations if sizes] == [1] * 7

    ours.pause(False)
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    errors = [str(outcome) for outcome in outcomes if isinstance(outcome, BaseException)]
    assert len(errors) == 13
    assert "result of 5000000 bytes dropped: 16 MiB are unread" in errors[0]
    await client.aclose()
    await serving


@on_a_loop
async def test_values_are_converted_one_in_an_iteration_after_the_results_that_wait() -> None:
    turns = result_turns_of(asyncio.get_running_loop())
    done: list[str] = []

    async def convert(name: str) -> None:
        await turns.wait_to_convert()
        done.append(name)
        turns.count_conversion(2 * MIB)
        turns.send_later(2 * MIB, lambda: done.append(f"{name} sent"))

    tasks = [asyncio.create_task(convert(name)) for name in "abc"]
    await asyncio.sleep(0)
    turns.call_after_waiting(lambda: done.append("after"))
    # A call that is cancelled while it waits leaves its turn to the next one.
    tasks[1].cancel()
    iterations: list[list[str]] = []
    while len(done) < 5:
        before = len(done)
        await asyncio.sleep(0)
        iterations.append(done[before:])
    assert done == ["a", "a sent", "c", "c sent", "after"]
    assert max(len([name for name in names if len(name) == 1]) for names in iterations) == 1
    await asyncio.sleep(0)
    assert not busy_loops


@on_a_loop
async def test_a_callback_comes_after_a_value_that_becomes_a_small_result() -> None:
    turns = result_turns_of(asyncio.get_running_loop())
    done: list[str] = []

    async def convert() -> None:
        await turns.wait_to_convert()
        done.append("converted")

    task = asyncio.create_task(convert())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    turns.call_after_waiting(lambda: done.append("after"))
    await task
    for _ in range(3):
        await asyncio.sleep(0)
    assert done == ["converted", "after"]


class Row(Struct):
    number: int
    text: str | None = None


@dataclass(frozen=True, slots=True)
class Page:
    total: int
    rows: list[Row]


class Conversions:
    """A client of a server whose tools return a list of dicts or an object, and what is converted.

    iterations: the sizes in bytes of the values that were encoded in each iteration of the loop.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **limits: Any) -> None:
        server = Server("server")
        self.may_end = asyncio.Event()
        self.begun = 0
        self.iterations: list[list[int]] = [[]]

        @server.tool
        async def rows(size: int) -> list[dict[str, str]]:
            self.begun += 1
            await self.may_end.wait()
            return [{"text": "x" * 988}] * (size // 1000)

        @server.tool
        async def page(size: int) -> Page:
            self.begun += 1
            await self.may_end.wait()
            return Page(1, [Row(1, "x" * 988)] * (size // 1000))

        encode = value_results._encode

        def count(value: Any) -> bytes:
            encoded = encode(value)
            if len(encoded) > 1000:
                self.iterations[-1].append(len(encoded))
            return encoded

        monkeypatch.setattr(value_results, "_encode", count)
        self.ours, theirs = memory_pair()
        serving = serve(server, theirs, limits=Limits(**limits))
        self._serving = asyncio.create_task(serving)
        self.client = connect(self.ours)
        self.calls: list[asyncio.Task[Any]] = []

    def call(self, size: int, tool: str = "rows") -> None:
        params = {"name": tool, "arguments": {"size": size}}
        self.calls.append(asyncio.create_task(self.client.request("tools/call", params)))

    async def know(self, size: int, tool: str = "rows") -> None:
        """Let the tool return one result, so that it is known for its size."""
        await self.client.request("initialize", INITIALIZE)
        self.may_end.set()
        self.call(size, tool)
        await self.calls.pop()
        self.may_end.clear()

    async def end_all(self) -> list[Any]:
        """Let all calls end, and return their results and exceptions."""
        self.may_end.set()
        answers = asyncio.gather(*self.calls, return_exceptions=True)
        while not answers.done():
            self.iterations.append([])
            await asyncio.sleep(0)
        await self.client.aclose()
        await self._serving
        return answers.result()


@on_a_loop
async def test_large_lists_of_many_calls_are_converted_in_one_iteration_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    conversions = Conversions(monkeypatch)
    await conversions.know(1)
    for _ in range(20):
        conversions.call(2_000_000)
    while conversions.begun < 21:
        await asyncio.sleep(0)
    answers = await conversions.end_all()
    assert [len(answer["structuredContent"]["result"]) for answer in answers] == [2000] * 20
    sizes = [sizes for sizes in conversions.iterations if sizes]
    # Each list is converted in four parts.
    assert [len(item) for item in sizes] == [1] * 80
    assert max(size for item in sizes for size in item) < 600_000


@on_a_loop
async def test_large_objects_of_many_calls_are_converted_in_one_iteration_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    conversions = Conversions(monkeypatch)
    await conversions.know(1, "page")
    for _ in range(20):
        conversions.call(2_000_000, "page")
    while conversions.begun < 21:
        await asyncio.sleep(0)
    answers = await conversions.end_all()
    assert [len(answer["structuredContent"]["rows"]) for answer in answers] == [2000] * 20
    # Each object is encoded as a whole, while no other one is being checked.
    sizes = [sizes for sizes in conversions.iterations if sizes]
    assert [len(item) for item in sizes] == [1] * 20


@dataclass
class Point:
    name: str
    x: int


@on_a_loop
async def test_a_long_list_is_converted_in_parts_and_others_run_meanwhile() -> None:
    server = Server("server")
    rows = [Row(number, "é" * 100 if number % 3 else None) for number in range(20_000)]
    ticks = 0
    has_begun = False

    @server.tool
    async def read() -> list[Row]:
        nonlocal has_begun
        has_begun = True
        return rows

    @server.tool
    async def read_wrong() -> list[Row]:
        return [*rows, Row("x")]  # pyright: ignore[reportArgumentType]

    async def tick() -> None:
        nonlocal ticks
        while True:
            ticks += 1
            # The rest of the list that is being converted does not change.
            if has_begun and busy_loops:
                rows.clear()
            await asyncio.sleep(0)

    expected = [
        {"number": number, "text": "é" * 100 if number % 3 else None} for number in range(20_000)
    ]
    ticker = asyncio.create_task(tick())
    async with Client(server) as client:
        wrong = await client.call_tool("read_wrong")
        assert wrong.is_error
        assert "does not conform to its annotation: [20000].number" in wrong.text
        ticks = 0
        result = await client.call_tool("read")
        # The list of 3 MB is converted in six parts.
        assert ticks >= 6
        assert not rows
        assert result.structured_content == expected
        assert json.loads(result.text) == expected
    ticker.cancel()
    assert not busy_loops


@pytest.mark.parametrize(
    ("annotation", "items"),
    [
        (list[int], [1, -(2**63), 2**64 - 1]),
        (list[int], [1, True, "x"]),
        (list[float | None], [1.5, None, float("inf")]),
        (list[str], ['é\n"', "𝄞", ""]),
        (list[str], ["a", "\ud800"]),
        (list[Row], [Row(1), Row(2, "x"), {"number": 3}]),
        (list[Row], [Row(1), {"number": "3"}]),
        (list[dict[str, Any]], [{"a": None}, {"b": Raw(b'{"q": \n1}')}, {}]),
        (tuple[int, ...], [1, 2, 3]),
        (Annotated[list[int], Meta(max_length=5)], [1]),
    ],
)
@on_a_loop
async def test_a_list_in_parts_has_the_result_or_error_of_the_whole_list(
    annotation: Any, items: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def handler() -> Any: ...

    handler.__annotations__["return"] = annotation
    shaper = result_shaper(handler)
    monkeypatch.setattr(result_turns, "LARGE_ITEMS", 2)
    monkeypatch.setattr(result_turns, "LARGE_BYTES", 1)
    monkeypatch.setattr(result_sizes, "LARGE_BYTES", 1)
    monkeypatch.setattr(result_turns, "PART_BYTES", 20)
    for count in (1, 2, 3, 7, 50):
        value = (items * count)[:count]
        try:
            whole: object = shaper.shape(value)
        except InvalidResult as exc:
            with pytest.raises(InvalidResult, match=f"^{re.escape(str(exc))}$"):
                await convert_in_turn(value, shaper)
        else:
            result = await convert_in_turn(value, shaper)
            assert encode(result) == encode(whole)
    assert not result_turns_of(asyncio.get_running_loop()).must_wait()


class Renamed(Struct, frozen=True, rename="camel", omit_defaults=True):
    long_list: list[Point] = []
    other: float | None = None


class Movie(TypedDict):
    cast: NotRequired[list[Row]]


@attrs.frozen
class Album:
    songs: list[Point]
    notes: dict[str, list[Any]] = attrs.Factory(dict)


@dataclass
class Checked:
    """A class that does not accept its parts."""

    rows: list[Row]
    total: int

    def __post_init__(self) -> None:
        if self.total != len(self.rows):
            raise ValueError(f"expected {self.total} rows")


class Model(pydantic.BaseModel):
    rows: list[int]


class Numbers(list[int]): ...


LONG = [Row(number, "é" if number % 3 else None) for number in range(50)]
POINTS = [Point("a", number) for number in range(50)]
WRONG: Any = Row("x")  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (Page, Page(50, LONG)),
        (Page, Page(50, [*LONG, WRONG])),
        (Page, Page("50", LONG)),  # pyright: ignore[reportArgumentType]
        (Page, {"total": 50, "rows": LONG}),
        (Page, {"rows": LONG}),
        (Page, CallToolResult([], Page(50, [*LONG, WRONG]))),
        (Page, CallToolResult([TextContent("x" * 90)], Page(50, LONG))),
        (Page, CallToolResult([TextContent("x" * 90)], {"x": LONG}, is_error=True)),
        (Page | None, Page(50, LONG)),
        (Renamed, Renamed(POINTS)),
        (Renamed, Renamed([], float("inf"))),
        (Renamed, Renamed(POINTS, float("nan"))),
        (Movie, {"cast": LONG}),
        (Movie, {"cast": [*LONG, WRONG], "more": LONG}),
        (Album, Album(POINTS, {"a": [LONG] * 3})),
        (Album, Album(POINTS, {"a": [*LONG, float("nan")]})),
        (Checked, Checked(LONG, 50)),
        (dict[str, list[Row]], {"a": LONG, "b": [], "c": [*LONG, WRONG]}),
        (dict[str, Any], {"a": LONG, "b": Raw(b'{"q": \n1}')}),
        (list[list[Row]], [LONG, [], LONG]),
        (list[Page], [Page(1, LONG), Page(2, [])]),
        (tuple[list[Row], str], (LONG, "x")),
        (list[int], Numbers(range(50))),
        (list[int], tuple(range(50))),
        (Page | Renamed, Page(50, LONG)),
        (Page | Renamed, Page(50, [*LONG, WRONG])),
        (Model, Model(rows=list(range(50)))),
        (Annotated[list[int], Meta(max_length=49)], list(range(50))),
    ],
)
@on_a_loop
async def test_an_object_in_parts_has_the_result_or_error_of_the_whole_object(
    annotation: Any, value: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def handler() -> Any: ...

    handler.__annotations__["return"] = annotation
    shaper = result_shaper(handler)
    monkeypatch.setattr(result_turns, "LARGE_BYTES", 1)
    monkeypatch.setattr(result_sizes, "LARGE_BYTES", 1)
    try:
        whole: object = shaper.shape(value)
    except InvalidResult as exc:
        whole = exc
    for size in (1, 20, 300):
        monkeypatch.setattr(return_values, "LARGE_JSON", size)
        monkeypatch.setattr(json_parts, "LARGE_JSON", size)
        if isinstance(whole, InvalidResult):
            with pytest.raises(InvalidResult, match=f"^{re.escape(str(whole))}$"):
                await convert_in_turn(value, shaper)
        else:
            assert encode(await convert_in_turn(value, shaper)) == encode(whole)
        await asyncio.sleep(0)
    assert not result_turns_of(asyncio.get_running_loop()).must_wait()


@on_a_loop
async def test_an_object_with_a_long_list_is_checked_in_parts_and_others_run_meanwhile() -> None:
    server = Server("server")
    page = Page(20_000, [Row(number, "é" * 100) for number in range(20_000)])
    ticks = 0

    @server.tool
    async def read() -> Page:
        return page

    @server.tool
    async def read_wrong() -> Page:
        return Page(1, [*page.rows, WRONG])

    async def tick() -> None:
        nonlocal ticks
        while True:
            ticks += 1
            # What is sent is what the tool has returned.
            if ticks > 1 and busy_loops:
                page.rows.clear()
            await asyncio.sleep(0)

    expected = [{"number": number, "text": "é" * 100} for number in range(20_000)]
    async with Client(server) as client:
        wrong = await client.call_tool("read_wrong")
        assert wrong.is_error
        assert "does not conform to its annotation: rows[20000].number" in wrong.text
        ticker = asyncio.create_task(tick())
        result = await client.call_tool("read")
        # The list of 4.6 MB is checked in nine parts.
        assert ticks >= 9
        assert not page.rows
        assert result.structured_content == {"total": 20_000, "rows": expected}
        ticker.cancel()
    assert not busy_loops


steps: list[str] = []


def database() -> Iterator[str]:
    steps.append("open")
    yield "database"
    steps.append("close")


@pytest.mark.parametrize("in_thread", [False, True])
@on_a_loop
async def test_a_large_object_of_a_tool_with_dependencies_is_checked_in_parts(
    in_thread: bool,
) -> None:
    server = Server("server")
    rows = [Row(number, "é" * 100) for number in range(20_000)]
    steps.clear()

    async def read(total: int, name: Annotated[str, Depends(database)]) -> Page:
        return Page(total, rows if total else [*rows, WRONG])

    def read_in_thread(total: int, name: Annotated[str, Depends(database)]) -> Page:
        return Page(total, rows if total else [*rows, WRONG])

    server.add_tool(read_in_thread if in_thread else read, name="read")
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            # Those of the check, which is after the last step of the dependency.
            ticks += "close" in steps and bool(busy_loops)
            await asyncio.sleep(0)

    async with Client(server) as client:
        ticker = asyncio.create_task(tick())
        result = await client.call_tool("read", {"total": 1})
        ticker.cancel()
        assert len(result.structured_content["rows"]) == 20_000
        # The list of 4.6 MB is checked in nine parts.
        assert ticks >= 9
        wrong = await client.call_tool("read", {"total": 0})
        assert wrong.is_error
        assert "does not conform to its annotation: rows[20000].number" in wrong.text
    assert steps == ["open", "close"] * 2


@pytest.mark.parametrize(("revision", "is_sent"), [("2024-11-05", True), ("2025-11-25", False)])
@on_a_loop
async def test_a_result_is_refused_by_the_size_that_its_client_would_get(
    revision: str, is_sent: bool
) -> None:
    """Revision 2024-11-05 has no structured content, which is half of this result."""
    server = Server("server")

    @server.tool
    async def read() -> list[str]:
        await asyncio.sleep(0)
        return ["x" * 600_000]

    ours, theirs = memory_pair()
    serving = asyncio.create_task(serve(server, theirs, limits=Limits(max_message_bytes=MIB)))
    client = connect(ours)
    await client.request("initialize", {**INITIALIZE, "protocolVersion": revision})
    # The size is known from the second call on.
    for _ in range(2):
        result = await client.request("tools/call", {"name": "read"})
        assert ("isError" not in result) is is_sent
    text = result["content"][0]["text"]
    expected = '["xx' if is_sent else "the result makes a message of more than 1200008 bytes; the"
    assert text.startswith(expected), text[:90]
    await client.aclose()
    await serving


@on_a_loop
async def test_a_call_that_is_cancelled_while_its_list_is_converted_leaves_its_turn() -> None:
    server = Server("server")
    begun = asyncio.Event()

    @server.tool
    async def read(size: int) -> list[dict[str, str]]:
        begun.set()
        return [{"text": "x" * 88}] * (size // 100)

    async with Client(server) as client:
        call = asyncio.create_task(client.call_tool("read", {"size": 4_000_000}))
        await begun.wait()
        assert busy_loops
        call.cancel()
        result = await client.call_tool("read", {"size": 3_000_000})
        assert len(result.structured_content) == 30_000
        with pytest.raises(asyncio.CancelledError):
            await call
    assert not busy_loops


@on_a_loop
async def test_large_lists_without_memory_are_dropped_before_they_are_converted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    conversions = Conversions(monkeypatch, max_unread_bytes=4 * MIB)
    await conversions.know(1)
    for _ in range(40):
        conversions.call(1_000_000)
    while conversions.begun < 41:
        await asyncio.sleep(0)
    answers = await conversions.end_all()
    errors = [str(answer) for answer in answers if isinstance(answer, BaseException)]
    text = "result of 2016000 bytes dropped: 4 MiB are unread; the call itself was carried out"
    # The first list is converted at once, and its message of 2 MB waits. 11 lists may wait beside
    # it, because 24 MiB fit altogether.
    assert len([error for error in errors if text in error]) == 40 - 1 - 11
    assert len([sizes for sizes in conversions.iterations if sizes]) == 1 + 11


@on_a_loop
async def test_a_result_beyond_the_limit_of_a_message_counts_as_large(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    conversions = Conversions(monkeypatch, max_message_bytes=MIB, max_unread_bytes=4 * MIB)
    await conversions.know(2_000_000)
    for _ in range(20):
        conversions.call(1)
    for _ in range(50):
        await asyncio.sleep(0)
    # 1 MiB is expected, and an eighth less after the error, which is small.
    assert conversions.begun == 1 + 4
    assert len(await conversions.end_all()) == 20


@pytest.mark.parametrize(
    ("value", "size"),
    [
        ("x" * 300_000, 300_000),
        # Each item has 10 bytes beside its text.
        ([{"a": "x" * 980, "b": 1}] * 1000, 1_010_000),
        ([[1] * 10] * 10_000, 1_100_000),
        ([], 262_144),
        # Objects of dataclasses, which have two members of 10 bytes beside the text.
        ([Point("x" * 70, 1)] * 10_000, 1_000_000),
    ],
)
def test_the_size_of_a_value_is_estimated_from_its_first_items(value: Any, size: int) -> None:
    assert probable_size(value) == size


@pytest.mark.parametrize(
    ("result", "size"),
    [
        (CallToolResult([TextContent("x" * 9), TextContent("y")]), 10),
        (CallToolResult([TextContent("x" * 9)], Raw(b'"xxxx"')), 15),
        (CallToolResult([TextContent("x")], {"a": "x" * 9}), 10),
        (Raw(b'{"a":1}'), 7),
    ],
)
def test_the_least_size_of_a_result_is_that_of_its_texts(result: Any, size: int) -> None:
    assert least_size(result) == size


@pytest.mark.parametrize(
    ("value", "is_large"),
    [
        ("x" * (256 * 1024), True),
        ("x" * (256 * 1024 - 1), False),
        (["x" * 100_000] * 3, True),
        ({"a": [{"b": "x" * 300_000}]}, True),
        (CallToolResult([TextContent("x" * 300_000)]), True),
        ([0] * 1024, True),
        ({"a": dict.fromkeys(range(1024))}, True),
        (set(range(1024)), True),
        (Page(1, [Row(1)] * 1024), True),
        (Album([Point("x" * 300_000, 1)]), True),
        (Checked([Row(1)] * 1024, 1024), True),
        (Model(rows=list(range(1024))), True),
        (Page(1, [Row(1)]), False),
        (datetime.date(2026, 1, 1), False),
        ([0] * 1000, False),
        (7, False),
        # Deeper than what is examined.
        ([[[[["x" * 300_000]]]]], False),
    ],
)
def test_a_result_is_large_by_its_texts_or_its_number_of_items(value: Any, is_large: bool) -> None:
    assert is_large_result(value) is is_large


def test_a_result_that_cannot_be_examined_is_large() -> None:
    class Odd(list[int]):
        def __len__(self) -> int:
            raise ValueError("no length")

    assert is_large_result(Odd())
    assert least_size(Odd()) == 0
