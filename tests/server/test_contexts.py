"""server/contexts.py: in memory and in a file, its tools in both eras, and a model of it under
hypothesis. The clock is a fake.
"""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
import stat
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
import wire
from hypothesis import given, settings
from hypothesis import strategies as st
from loops import on_a_loop
from server.served import Served

from concertino import Context, Server, ToolError
from concertino.errors import RegistrationError
from concertino.server.contexts import Contexts


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture(params=["memory", "file"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path | None:
    return None if request.param == "memory" else tmp_path / "contexts.db"


async def refusal_of(work: Coroutine[Any, Any, Any]) -> str:
    with pytest.raises(ToolError) as error:
        await work
    assert error.value.body is not None
    assert set(error.value.body) >= {"error", "code", "suggestion"}
    return str(error.value.code)


@on_a_loop
async def test_what_was_set_comes_back_under_its_handle_alone(path: Path | None) -> None:
    store = Contexts(path)
    value = {"ä": [1, None, True, 2.5, "x"]}
    first = await store.set(None, "theme", value)
    second = await store.set(None, "theme", "other")
    assert first != second
    assert await store.set(first, "size", 3) == first
    assert await store.get(first, "theme") == value
    assert await store.all(first) == {"size": 3, "theme": value}
    assert await store.all(second) == {"theme": "other"}
    await store.set(first, "size", None)
    assert await store.get(first, "size") is None
    await store.close()


@on_a_loop
async def test_what_is_not_there_is_told_by_its_code(path: Path | None) -> None:
    store = Contexts(path, max_value_bytes=10)
    handle = await store.set(None, "k", 1)
    assert await refusal_of(store.get("ctx_nobody", "k")) == "CONTEXT_NOT_FOUND"
    assert await refusal_of(store.set("x" * 10_000, "k", 1)) == "CONTEXT_NOT_FOUND"
    assert await refusal_of(store.set(handle, "", 1)) == "INVALID_KEY"
    assert await refusal_of(store.set(handle, "k" * 257, 1)) == "INVALID_KEY"
    with pytest.raises(ToolError) as error:
        await store.get(handle, "other")
    assert error.value.body is not None
    assert (error.value.code, error.value.body["availableKeys"]) == ("KEY_NOT_FOUND", ["k"])
    await store.delete(handle)
    await store.delete(handle)
    assert await refusal_of(store.all(handle)) == "CONTEXT_NOT_FOUND"
    await store.close()


@on_a_loop
async def test_a_value_may_be_as_large_as_its_limit_and_no_larger(path: Path | None) -> None:
    store = Contexts(path, max_value_bytes=10)
    handle = await store.set(None, "k", "x" * 8)  # and two quotes
    assert await refusal_of(store.set(handle, "k", "x" * 9)) == "VALUE_TOO_LARGE"
    assert await store.get(handle, "k") == "x" * 8
    await store.close()


@pytest.mark.parametrize("number", [float("inf"), float("-inf"), float("nan")])
@pytest.mark.parametrize("nest", [lambda n: n, lambda n: [0.5, None, {"a": [n]}]], ids=["", "in"])
@on_a_loop
async def test_numbers_that_json_does_not_have_are_refused_instead_of_stored_as_null(
    path: Path | None, number: float, nest: Callable[[float], object]
) -> None:
    store = Contexts(path)
    handle = await store.set(None, "k", [0.5, None])
    with pytest.raises(ToolError, match="NaN") as error:
        await store.set(handle, "k", nest(number))
    assert error.value.code == "INVALID_VALUE"
    assert await refusal_of(store.set(None, "k", nest(number))) == "INVALID_VALUE"
    assert await store.all(handle) == {"k": [0.5, None]}
    await store.close()


@on_a_loop
async def test_a_context_is_forgotten_so_long_after_its_last_use(path: Path | None) -> None:
    clock = Clock()
    store = Contexts(path, ttl_s=60, clock=clock)
    handle = await store.set(None, "k", 1)
    for _ in range(3):
        clock.now += 59.9
        assert await store.get(handle, "k") == 1
    clock.now += 60
    assert await refusal_of(store.get(handle, "k")) == "CONTEXT_NOT_FOUND"
    await store.close()


@on_a_loop
async def test_a_context_has_so_many_keys_and_replacing_one_is_no_more(path: Path | None) -> None:
    store = Contexts(path, max_keys=2)
    handle = await store.set(None, "a", 1)
    await store.set(handle, "b", 1)
    await store.set(handle, "a", 2)
    assert await refusal_of(store.set(handle, "c", 1)) == "CONTEXT_FULL"
    assert await store.all(handle) == {"a": 2, "b": 1}
    await store.close()


@on_a_loop
async def test_beyond_the_bounds_those_unused_for_longest_go(path: Path | None) -> None:
    clock = Clock()
    for bounds in (
        {"max_contexts": 2},
        {"max_bytes": 25},
    ):  # a value below has 10 bytes with its key
        store = Contexts(path, clock=clock, **bounds)
        handles: list[str] = []
        for _ in range(2):
            clock.now += 1
            handles.append(await store.set(None, "k", "x" * 7))
        clock.now += 1
        await store.get(handles[0], "k")
        clock.now += 1
        third = await store.set(None, "k", "x" * 7)
        assert await refusal_of(store.all(handles[1])) == "CONTEXT_NOT_FOUND"
        for handle in (handles[0], third):
            assert await store.all(handle) == {"k": "x" * 7}
            await store.delete(handle)
        await store.close()


@on_a_loop
async def test_a_context_larger_than_all_of_them_may_be_stays_alone() -> None:
    store = Contexts(max_bytes=10)
    other = await store.set(None, "k", 1)
    handle = await store.set(None, "k", "x" * 50)
    assert await store.get(handle, "k") == "x" * 50
    assert await refusal_of(store.all(other)) == "CONTEXT_NOT_FOUND"
    await store.close()


@on_a_loop
async def test_a_file_outlives_the_store_and_is_its_owner_s(tmp_path: Path) -> None:
    path = tmp_path / "contexts.db"
    store = Contexts(path)
    handle = await store.set(None, "k", [1])
    assert {stat.S_IMODE(os.stat(each).st_mode) for each in tmp_path.iterdir()} == {0o600}
    await store.close()
    again = Contexts(path)
    assert await again.get(handle, "k") == [1]
    await again.close()


def test_several_processes_share_a_file(tmp_path: Path) -> None:
    path = tmp_path / "contexts.db"

    async def begun() -> str:
        store = Contexts(path)
        handle = await store.set(None, "0", 0)
        await store.close()
        return handle

    handle = asyncio.run(begun())
    source = """
import asyncio, sys
from concertino.server.contexts import Contexts
async def main():
    store = Contexts(sys.argv[1])
    for number in range(20):
        await store.set(sys.argv[2], f"{sys.argv[3]}-{number}", number)
    await store.close()
asyncio.run(main())
"""

    async def written() -> dict[str, Any]:
        processes = [
            await asyncio.create_subprocess_exec(
                sys.executable, "-c", source, str(path), handle, str(number)
            )
            for number in range(3)
        ]
        assert [await process.wait() for process in processes] == [0, 0, 0]
        store = Contexts(path)
        found = await store.all(handle)
        await store.close()
        return found

    found = asyncio.run(asyncio.wait_for(written(), 30))
    assert found == {"0": 0} | {
        f"{process}-{number}": number for process in range(3) for number in range(20)
    }


@on_a_loop
async def test_a_file_that_cannot_be_used_is_told_and_may_be_mended(tmp_path: Path) -> None:
    path = tmp_path / "contexts.db"
    path.write_text(
        "this is no database, but a text of a certain length that SQLite takes for none" * 20
    )
    store = Contexts(path)
    assert await refusal_of(store.set(None, "k", 1)) == "CONTEXT_UNAVAILABLE"
    path.unlink()
    assert await store.get(await store.set(None, "k", 1), "k") == 1
    await store.close()
    assert (
        await refusal_of(Contexts(tmp_path / "missing" / "contexts.db").set(None, "k", 1))
        == "CONTEXT_UNAVAILABLE"
    )


@on_a_loop
async def test_what_fails_half_way_is_not_kept(tmp_path: Path) -> None:
    store = Contexts(tmp_path / "contexts.db")
    handle = await store.set(None, "k", 1)
    with sqlite3.connect(tmp_path / "contexts.db") as other:
        other.execute(
            "CREATE TRIGGER t BEFORE UPDATE OF bytes ON contexts BEGIN SELECT RAISE(ABORT, "
            "'full'); END"
        )
    other.close()
    assert await refusal_of(store.set(handle, "other", 2)) == "CONTEXT_UNAVAILABLE"
    assert await store.all(handle) == {"k": 1}
    await store.close()


@pytest.mark.parametrize("version", ["2025-11-25", wire.MODERN])
@on_a_loop
async def test_the_tools_keep_and_give_back(version: str) -> None:
    server, contexts = Server("x"), Contexts()
    contexts.add_tools(server)

    @server.tool
    async def themed(handle: str, contexts: Contexts, context: Context) -> dict[str, bool]:
        return await contexts.get(handle, "theme")

    async with Served(server, version) as first, Served(server, version) as second:
        kept = await first.ask(
            "tools/call", name="set_context", arguments={"key": "theme", "value": {"dark": True}}
        )
        body = kept["structuredContent"]
        assert (body["success"], body["expiresAfterSeconds"]) == (True, 3600)
        assert json.loads(kept["content"][0]["text"]) == body
        handle = body["context"]
        more = {"key": "size", "value": None, "context": handle}
        assert (await second.ask("tools/call", name="set_context", arguments=more))[
            "structuredContent"
        ]["context"] == (handle)
        for arguments, values in (
            ({"context": handle}, {"size": None, "theme": {"dark": True}}),
            ({"context": handle, "key": "theme"}, {"theme": {"dark": True}}),
        ):
            got = await second.ask("tools/call", name="get_context", arguments=arguments)
            assert got["structuredContent"] == {"context": handle, "values": values}
        missing = await second.ask(
            "tools/call", name="get_context", arguments={"context": handle, "key": "x"}
        )
        assert (missing["isError"], json.loads(missing["content"][0]["text"])["code"]) == (
            True,
            "KEY_NOT_FOUND",
        )
        for arguments in ({"key": "", "value": 1}, {"value": 1}, {"key": "k"}):
            refusal = await first.ask("tools/call", name="set_context", arguments=arguments)
            assert json.loads(refusal["content"][0]["text"])["code"] == "INVALID_ARGUMENTS"
        used = await first.ask("tools/call", name="themed", arguments={"handle": handle})
        assert json.loads(used["content"][0]["text"]) == {"dark": True}
    assert contexts._database is None


def test_what_does_not_fit_is_refused_when_it_is_made() -> None:
    with pytest.raises(ValueError, match="contexts: ttl_s: expected a positive number, got 0"):
        Contexts(ttl_s=0)
    server = Server("x")
    Contexts().add_tools(server)
    with pytest.raises(RegistrationError):
        Contexts().add_tools(server)


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("set"), st.integers(-1, 3), st.sampled_from("abc"), st.integers(0, 9)),
        st.tuples(st.just("all"), st.integers(0, 3)),
        st.tuples(st.just("delete"), st.integers(0, 3)),
        st.tuples(st.just("wait"), st.integers(1, 40)),
    ),
    max_size=30,
)


@settings(max_examples=60, deadline=None)
@given(STEPS)
def test_it_is_a_dict_of_dicts_with_a_time_limit_and_a_bound(steps: list[tuple[Any, ...]]) -> None:
    """The model: handle -> (last use, values); at most three contexts, of two keys, for
    60 seconds.
    """

    async def run() -> None:
        clock = Clock()
        store = Contexts(ttl_s=60, max_contexts=3, max_keys=2, clock=clock)
        model: dict[str, tuple[float, dict[str, int]]] = {}
        handles: list[str] = []
        for what, *rest in steps:
            clock.now += 0.5  # so that no two uses are at once
            model = {handle: each for handle, each in model.items() if clock.now - each[0] < 60}
            handle = handles[rest[0]] if what != "wait" and 0 <= rest[0] < len(handles) else None
            if what == "wait":
                clock.now += rest[0]
            elif what == "delete":
                await store.delete(handle or "none")
                model.pop(handle or "none", None)
            elif what == "all":
                if handle in model:
                    model[handle] = clock.now, model[handle][1]
                    assert await store.all(handle) == model[handle][1]
                else:
                    assert await refusal_of(store.all(handle or "none")) == "CONTEXT_NOT_FOUND"
            elif handle is None:
                handles.append(await store.set(None, rest[1], rest[2]))
                model[handles[-1]] = clock.now, {rest[1]: rest[2]}
                if len(model) > 3:
                    del model[min(model, key=lambda each: model[each][0])]
            elif handle not in model:
                assert await refusal_of(store.set(handle, rest[1], rest[2])) == "CONTEXT_NOT_FOUND"
            elif len(model[handle][1].keys() | {rest[1]}) > 2:
                assert await refusal_of(store.set(handle, rest[1], rest[2])) == "CONTEXT_FULL"
            else:
                await store.set(handle, rest[1], rest[2])
                model[handle] = clock.now, {**model[handle][1], rest[1]: rest[2]}
        await store.close()

    asyncio.run(run())


def test_a_setting_of_the_wrong_type_is_named_with_what_was_expected() -> None:
    with pytest.raises(
        ValueError, match=r"^contexts: max_keys: expected a positive whole number, got '7'$"
    ):
        Contexts(max_keys="7")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"^contexts: path: expected a path, got 5$"):
        Contexts(5)  # type: ignore[arg-type]
