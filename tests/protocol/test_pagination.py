"""protocol/pagination.py: lists of several pages, and lists that never end."""

from __future__ import annotations

import asyncio

import pytest

from concertino.errors import INVALID_PARAMS, ProtocolError, RpcError
from concertino.protocol import pagination
from concertino.protocol.pagination import read_all_pages
from concertino.types.results import ListToolsResult, Tool


def page(name: str, next_cursor: str | None = None) -> ListToolsResult:
    return ListToolsResult([Tool(name, {"type": "object"})], next_cursor)


def names(*answers: ListToolsResult | RpcError) -> tuple[list[str], list[str | None]]:
    """Return the names of the tools on the pages, and the cursors that were asked for."""
    left = list(answers)
    cursors: list[str | None] = []

    async def fetch(cursor: str | None) -> ListToolsResult:
        cursors.append(cursor)
        answer = left.pop(0)
        if isinstance(answer, RpcError):
            raise answer
        return answer

    tools = asyncio.run(read_all_pages("tools/list", fetch, lambda page: page.tools))
    return [tool.name for tool in tools], cursors


def test_items_of_all_pages_are_returned_and_an_empty_text_is_a_cursor() -> None:
    found = names(page("a", ""), page("b", "x"), page("c"))
    assert found == (["a", "b", "c"], [None, "", "x"])


def test_a_list_that_changed_meanwhile_is_read_from_the_start_once() -> None:
    refusal = RpcError(INVALID_PARAMS, "unknown cursor")
    assert names(page("a", "x"), refusal, page("b", "x"), page("c"))[0] == ["b", "c"]
    with pytest.raises(RpcError, match="unknown cursor"):
        names(page("a", "x"), refusal, page("b", "x"), refusal)


@pytest.mark.parametrize("answers", [(RpcError(INVALID_PARAMS, "no"),), (RpcError(-32000, "no"),)])
def test_a_list_that_cannot_be_read_is_an_error(answers: tuple[RpcError]) -> None:
    with pytest.raises(RpcError, match="no"):
        names(*answers)


def test_a_cursor_that_comes_twice_is_an_error() -> None:
    with pytest.raises(
        ProtocolError, match="tools/list: the server repeats itself: the cursor 'x'"
    ):
        names(page("a", "x"), page("b", "y"), page("c", "x"))


def test_a_list_of_too_many_pages_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pagination, "MAX_PAGES", 2)
    with pytest.raises(ProtocolError, match="tools/list: more than 2 pages"):
        names(page("a", "x"), page("b", "y"))
