"""task_lists.py: the tasks of several parts as one list."""

from __future__ import annotations

from typing import Any

import pytest
from loops import on_a_loop
from msgspec import Raw
from msgspec.json import decode, encode

from concertino.backend.interface import Call
from concertino.composition.task_lists import list_tasks
from concertino.errors import RpcError

PAGES: dict[tuple[str, str | None], Any] = {
    ("a", None): {"tasks": [{"taskId": "a1"}], "nextCursor": "2:x"},
    ("a", "2:x"): {"tasks": [{"taskId": "a2"}]},
    ("b", None): RpcError(-32603, "broken"),
    ("c", None): {"tasks": [{"taskId": "c1"}]},
    ("d", None): {"tasks": {"taskId": "d1"}},
}


@on_a_loop
async def test_pages_of_all_parts_follow_each_other_without_those_that_fail() -> None:
    failures: list[tuple[str, str]] = []

    async def fetch(name: str, call: Call) -> Raw:
        cursor = call.params.get("cursor")
        page = PAGES[name, None if cursor is None else decode(cursor)]
        if isinstance(page, Exception):
            raise page
        return Raw(encode(page))

    found: list[list[str]] = []
    params: dict[str, Raw] = {}
    while not found or params:
        page = decode(
            await list_tasks(
                ["a", "b", "c", "d"],
                Call("tasks/list", params),
                fetch,
                lambda name, method, exc: failures.append((name, str(exc))),
            )
        )
        found.append([task["taskId"] for task in page["tasks"]])
        params = {"cursor": Raw(encode(page["nextCursor"]))} if "nextCursor" in page else {}
    assert found == [["a1"], ["a2", "c1"]]
    assert [name for name, _ in failures] == ["b", "d"]
    assert failures[0][1] == "broken (-32603)"
    assert failures[1][1] == "Expected `array`, got `object` - at `$.tasks`"


@pytest.mark.parametrize("cursor", [b'"z:1"', b'"a"', b"5"])
@on_a_loop
async def test_a_cursor_that_was_never_given_is_refused(cursor: bytes) -> None:
    async def fetch(name: str, call: Call) -> Raw:
        raise AssertionError("nobody is asked")

    call = Call("tasks/list", {"cursor": Raw(cursor)})
    with pytest.raises(RpcError) as caught:
        await list_tasks(["a"], call, fetch, lambda name, method, exc: None)
    assert caught.value.code == -32602
