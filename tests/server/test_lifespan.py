"""server/lifespan.py: entered in order, left in reverse, in one task."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import pytest

from concertino.errors import RegistrationError
from concertino.server.lifespan import Lifespans


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
        assert {kind: type(value) for kind, value in lifespans.values.items()} == {One: One, Two: Two}
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
    [(plain, "expected a generator"), (unannotated, "annotate the class"), (asks, "takes no parameters")],
)
def test_what_is_no_lifespan_function_is_refused(function: Callable[[], Any], text: str) -> None:
    with pytest.raises(RegistrationError, match=text):
        Lifespans().add(function)


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
    with pytest.raises(RegistrationError, match="gives a One already"):
        lifespans.add(one)
    asyncio.run(main())
