"""server/registry.py: pages and cursors, of a catalogue alone and of every list of a server.

REQUIREMENTS PG-1..5, CH-2, TO-4.
"""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Mapping
from typing import Any

import pytest
import wire
from hypothesis import given
from hypothesis import strategies as st
from loops import on_a_loop
from msgspec import Raw
from server.served import Served

from concertino import RpcError, Server
from concertino.errors import RegistrationError
from concertino.server.registry import Registry, TagSwitches

# For catalogues that everybody sees as they are.
ANYBODY: Any = None
version = pytest.mark.parametrize("version", wire.REVISIONS)


def asking(cursor: Any) -> Mapping[str, Raw]:
    return {} if cursor is None else {"cursor": Raw(json.dumps(cursor).encode())}


def rest(catalogue: Registry[int], cursor: str | None) -> list[int]:
    """Every entry from this cursor on."""
    found: list[int] = []
    while True:
        page = catalogue.page(asking(cursor), ANYBODY)
        found += page.entries
        cursor = page.next_cursor
        if cursor is None:
            return found


def of(*numbers: int, size: int = 2) -> Registry[int]:
    catalogue: Registry[int] = Registry(
        "thing", size, lambda name: f"thing {name!r} is there", TagSwitches()
    )
    for number in numbers:
        catalogue.add(str(number), number)
    return catalogue


def test_pages_hold_as_many_as_they_should_in_the_order_of_registration():
    catalogue = of(3, 1, 2, 5, 4)
    first = catalogue.page({}, ANYBODY)
    second = catalogue.page(asking(first.next_cursor), ANYBODY)
    third = catalogue.page(asking(second.next_cursor), ANYBODY)
    assert [first.entries, second.entries, third.entries] == [[3, 1], [2, 5], [4]]
    assert third.next_cursor is None


def test_a_full_last_page_ends_the_list():
    assert of(1, 2).page({}, ANYBODY).next_cursor is None
    assert of().page({}, ANYBODY).entries == []
    assert of().page({}, ANYBODY).next_cursor is None


def test_the_empty_cursor_is_the_beginning():
    assert of(1, 2, 3).page(asking(""), ANYBODY).entries == [1, 2]


def test_a_page_is_the_same_object_until_something_changes():
    catalogue = of(1, 2, 3)
    page = catalogue.page({}, ANYBODY)
    assert catalogue.page({}, ANYBODY) is catalogue.page(asking(""), ANYBODY) is page
    catalogue.add("4", 4)
    assert catalogue.page({}, ANYBODY) is not page


@given(
    st.lists(st.integers(0, 9), max_size=12, unique=True),
    st.integers(1, 4),
    st.lists(st.tuples(st.booleans(), st.integers(0, 12)), max_size=12),
)
def test_no_entry_that_stays_is_missed_or_seen_twice_whatever_comes_and_goes(
    numbers: list[int], size: int, changes: list[tuple[bool, int]]
):
    """The model is a plain list; between two pages something is added or removed."""
    catalogue = of(*numbers, size=size)
    stayed = set(numbers)
    seen: list[int] = []
    cursor: str | None = None
    while True:
        page = catalogue.page(asking(cursor), ANYBODY)
        seen += page.entries
        cursor = page.next_cursor
        if cursor is None:
            break
        if changes:
            add, number = changes.pop()
            if add and str(number) not in catalogue.entries:
                catalogue.add(str(number), number)
            elif not add and str(number) in catalogue.entries:
                catalogue.remove(str(number))
                stayed.discard(number)
    assert stayed <= set(seen)
    assert len([each for each in seen if each in stayed]) == len(stayed)
    assert [each for each in seen if each in stayed] == [each for each in numbers if each in stayed]


def test_a_cursor_holds_when_its_entry_is_gone_or_came_back():
    catalogue = of(1, 2, 3, 4)
    cursor = catalogue.page({}, ANYBODY).next_cursor
    catalogue.remove("2")
    assert rest(catalogue, cursor) == [3, 4]
    catalogue.add("2", 2)
    assert rest(catalogue, cursor) == [3, 4, 2]
    catalogue.remove("1")
    catalogue.add("0", 0)
    assert rest(catalogue, cursor) == [3, 4, 2, 0]


def test_a_cursor_of_another_process_goes_by_the_name_where_the_order_differs():
    cursor = of(1, 2, 3, 4).page({}, ANYBODY).next_cursor  # behind 2
    assert rest(of(1, 2, 3, 4), cursor) == [3, 4]
    assert rest(of(2, 1, 3, 4), cursor) == [1, 3, 4]
    assert rest(of(1, 5, 3, 4), cursor) == [3, 4]


def encode_cursor(value: Any) -> str:
    return base64.b64encode(json.dumps(value).encode()).decode()


@pytest.mark.parametrize(
    "cursor",
    [
        "x",
        "page 2",
        5,
        [],
        None,
        "é",
        "\ud800",
        "a" * 100_000,
        encode_cursor(5),
        encode_cursor(["thing", "1", "1"]),
        encode_cursor(["thing", 1]),
        encode_cursor(["thing", 0, "1"]),
        encode_cursor(["thing", -1, "1"]),
        encode_cursor(["thing", 4, "1"]),
        encode_cursor(["other", 1, "1"]),
        base64.b64encode(b"\xff").decode(),
        base64.b64encode(b"[" * 5000).decode(),
        encode_cursor(["thing", 1, "1"]) + "=",
    ],
)
def test_a_cursor_that_is_none_of_ours_is_refused(cursor: Any):
    with pytest.raises(RpcError) as refused:
        of(1, 2, 3).page({"cursor": Raw(json.dumps(cursor).encode())}, ANYBODY)
    assert refused.value.code == -32602
    assert refused.value.data["details"].startswith("cursor: not one of this server's")


def test_entries_have_one_name_each():
    catalogue = of(1)
    with pytest.raises(RegistrationError, match="thing '1' is there"):
        catalogue.add("1", 5)
    for change in (lambda: catalogue.remove("2"), lambda: catalogue.change("2", lambda each: each)):
        with pytest.raises(KeyError):
            change()
    catalogue.change("1", lambda each: each + 1)
    assert catalogue.entries == {"1": 2}


def test_threads_may_add_at_the_same_time():
    catalogue = of(size=10_000)
    threads = [
        threading.Thread(target=lambda n=n: [catalogue.add(f"{n} {m}", n) for m in range(50)])
        for n in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(catalogue.page({}, ANYBODY).entries) == sorted(
        [n for n in range(8) for _ in range(50)]
    )


# Every list of a server


def full() -> Server:
    server = Server("x", page_size=3, ttl_s=1, cache_scope="public")
    for number in range(7):
        server.add_tool(lambda: "x", name=f"t{number}")
        server.add_prompt(lambda: "x", name=f"p{number}")
        server.add_resource(f"r:{number}", text="")
        server.add_resource(f"r:{number}/{{x}}", lambda x: x)
    return server


LISTS = {
    "tools/list": ("tools", "name", "t{}"),
    "prompts/list": ("prompts", "name", "p{}"),
    "resources/list": ("resources", "uri", "r:{}"),
    "resources/templates/list": ("resourceTemplates", "uriTemplate", "r:{}/{{x}}"),
}


@version
@on_a_loop
async def test_every_list_comes_in_pages(version: str) -> None:
    async with Served(full(), version) as served:
        for method, (name, key, form) in LISTS.items():
            found = await served.all_pages(method, name)
            assert [each[key] for each in found] == [form.format(number) for number in range(7)]
            first = await served.ask(method, cursor="")
            assert len(first[name]) == 3
            second = await served.ask(method, cursor=first["nextCursor"])
            if version == wire.MODERN:  # CH-2
                assert {each["cacheScope"] for each in (first, second)} == {"public"}
            for wrong in ("nope", 5):
                assert (await served.invalid(method, cursor=wrong)).startswith("cursor: ")


@on_a_loop
async def test_a_cursor_of_one_list_is_none_of_another() -> None:
    async with Served(full()) as served:
        cursors = {method: (await served.ask(method))["nextCursor"] for method in LISTS}
        for method in LISTS:
            for other, cursor in cursors.items():
                if other != method:
                    assert "not one of this server's lists" in await served.invalid(
                        method, cursor=cursor
                    )


@on_a_loop
async def test_a_large_list_is_one_page_unless_said_otherwise() -> None:
    server = Server("x")
    for number in range(1001):
        server.add_tool(lambda: "x", name=f"t{number}")
    async with Served(server) as served:
        assert len((await served.ask("tools/list"))["tools"]) == 1000
        assert len(await served.all_pages("tools/list", "tools")) == 1001
