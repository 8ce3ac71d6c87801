"""Results that are too large: what is left of them, the link, and the whole behind it."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from guards.asking import ask_server, text_of

from concertino import Guard, RpcError, Server, compose
from concertino.guards.single_guards import SizeLimit
from concertino.guards.sizes import OversizeStore
from concertino.types import CallToolResult, ImageContent, TextContent
from concertino.types.results import ResourceContents

PICTURE = b"\x89PNG" + bytes(3000)


def server() -> Server:
    made = Server("s")

    @made.tool
    async def text(characters: int, letter: str = "a") -> str:
        return letter * characters

    @made.tool
    async def numbers(count: int) -> list[int]:
        return list(range(count))

    @made.tool
    async def mixed() -> list[TextContent | ImageContent]:
        return [TextContent("b" * 3000), ImageContent(PICTURE, "image/png")]

    @made.tool
    async def fails() -> CallToolResult:
        return CallToolResult([TextContent("c" * 5000)], is_error=True)

    return made


def call(name: str, **arguments: Any) -> tuple[str, dict[str, Any]]:
    return "tools/call", {"name": name, "arguments": arguments}


def read_cut_result(backend: Any, request: tuple[str, dict[str, Any]]) -> tuple[Any, list[Any]]:
    """A cut result, and what its link holds: by a second conversation with the same backend."""
    [result] = ask_server(backend, request)
    [uri] = [block["uri"] for block in result["content"] if block["type"] == "resource_link"]
    [read] = ask_server(backend, ("resources/read", {"uri": uri}))
    assert {each["uri"] for each in read["contents"]} == {uri}
    return result, read["contents"]


@pytest.mark.parametrize("letter", ["a", "\u00e9", "\U0001f600", '"', "\n", "\u0001"])
def test_a_long_text_is_cut_to_the_limit_and_the_whole_is_behind_the_link(letter: str) -> None:
    result, [whole] = read_cut_result(
        SizeLimit(server(), 4000), call("text", characters=30_000, letter=letter)
    )
    assert whole == {"uri": whole["uri"], "text": letter * 30_000, "mimeType": "text/plain"}
    assert len(json.dumps(result, ensure_ascii=False).encode()) <= 4000
    first, link = result["content"]
    start, _, told = first["text"].rpartition("\n")
    assert set(start) == {letter}
    assert f"[the first {len(start)} of 30000 characters" in told
    assert whole["uri"] in told
    assert link["size"] >= 30_000
    assert not result.get("isError")


def test_a_result_of_exactly_the_limit_is_sent_as_it_is() -> None:
    [whole] = ask_server(server(), call("text", characters=3000))
    size = len(json.dumps({"content": whole["content"]}, separators=(",", ":")))
    exact, cut = (
        ask_server(SizeLimit(server(), limit), call("text", characters=3000))[0]
        for limit in (size, size - 1)
    )
    assert exact == whole
    assert cut["content"][-1]["type"] == "resource_link"


def test_structured_content_cannot_be_cut_so_it_is_an_error_with_the_link() -> None:
    result, [whole] = read_cut_result(SizeLimit(server(), 1000), call("numbers", count=2000))
    assert json.loads(whole["text"]) == list(range(2000))
    assert whole["mimeType"] == "application/json"
    assert result["isError"] is True
    assert "structuredContent" not in result
    body = json.loads(result["content"][0]["text"])
    assert (body["code"], body["limitBytes"], body["uri"]) == (
        "RESULT_TOO_LARGE",
        1000,
        whole["uri"],
    )


def test_every_piece_of_content_is_behind_the_link() -> None:
    result, [text, picture] = read_cut_result(SizeLimit(server(), 2000), call("mixed"))
    assert text["text"] == "b" * 3000
    assert base64.b64decode(picture["blob"]) == PICTURE
    assert picture["mimeType"] == "image/png"
    assert result["content"][0]["text"].startswith("bbb")


def test_an_error_that_is_too_long_stays_one() -> None:
    result, [whole] = read_cut_result(SizeLimit(server(), 1000), call("fails"))
    assert result["isError"] is True
    assert whole["text"] == "c" * 5000


def test_a_part_of_several_serves_what_it_kept() -> None:
    together = compose(a=SizeLimit(server(), 1000), b=SizeLimit(server(), 1000))
    for name in ("a_text", "b_text"):
        _, [whole] = read_cut_result(together, call(name, characters=5000))
        assert whole["text"] == "a" * 5000


def test_a_server_without_resources_lists_none_and_knows_no_other() -> None:
    answers = ask_server(
        SizeLimit(server(), 1000),
        ("resources/list", {}),
        ("resources/templates/list", {}),
        ("resources/read", {"uri": "result://concertino/0123"}),
        ("resources/read", {"uri": "file:///x"}),
    )
    assert answers[:2] == [{"resources": []}, {"resourceTemplates": []}]
    assert [error.code for error in answers[2:]] == [-32002, -32601]


def test_a_resource_and_a_prompt_that_are_too_large_are_refused() -> None:
    made = server()
    made.add_resource("a:b", text="x" * 5000)
    made.add_prompt(lambda: "x" * 5000, name="long")
    errors = ask_server(
        SizeLimit(made, 1000), ("resources/read", {"uri": "a:b"}), ("prompts/get", {"name": "long"})
    )
    for error in errors:
        assert isinstance(error, RpcError)
        assert error.data["code"] == "RESULT_TOO_LARGE"  # type: ignore[index]


def test_a_tool_says_its_own_size_and_the_server_serves_the_whole() -> None:
    made = Server("s")

    @made.tool(max_result_bytes=1000)
    async def long() -> str:
        return "a" * 5000

    @made.tool
    async def free() -> str:
        return "a" * 5000

    _result, [whole] = read_cut_result(made, call("long"))
    assert whole["text"] == "a" * 5000
    free_result, templates = ask_server(made, call("free"), ("resources/templates/list", {}))
    assert text_of(free_result) == "a" * 5000
    assert [each["uriTemplate"] for each in templates["resourceTemplates"]] == [
        "result://concertino/{id}"
    ]


# The store


def texts(size: int) -> list[ResourceContents]:
    return [ResourceContents("", text="a" * size)]


def has(kept: OversizeStore, uri: str | None) -> bool:
    assert uri is not None
    try:
        return bool(kept.read(uri).contents)
    except RpcError:
        return False


def test_the_oldest_results_make_room_by_bytes_and_by_number() -> None:
    by_bytes = OversizeStore(max_bytes=100)
    first, second, third = (by_bytes.keep(texts(40), 40) for _ in range(3))
    assert [has(by_bytes, each) for each in (first, second, third)] == [False, True, True]
    assert by_bytes.bytes == 80
    by_number = OversizeStore(max_results=2)
    first, second, third = (by_number.keep(texts(1), 1) for _ in range(3))
    assert [has(by_number, each) for each in (first, second, third)] == [False, True, True]


def test_results_are_kept_for_a_time_and_no_longer() -> None:
    now = [0.0]
    kept = OversizeStore(ttl_s=10, clock=lambda: now[0])
    uri = kept.keep(texts(1), 1)
    now[0] = 9.9
    assert has(kept, uri)
    now[0] = 10
    assert not has(kept, uri)
    assert kept.bytes == 0


def test_what_is_larger_than_the_store_is_not_kept_and_it_is_said() -> None:
    [result] = ask_server(
        SizeLimit(server(), 1000, store_bytes=2000), call("text", characters=5000)
    )
    assert [block["type"] for block in result["content"]] == ["text"]
    assert "ask for less" in text_of(result)


def test_guards_around_one_another_serve_each_what_it_kept() -> None:
    made = Server("s")

    @made.tool(max_result_bytes=1000)
    async def long() -> str:
        return "a" * 5000

    _, [whole] = read_cut_result(Guard(made, max_result_bytes=20_000), call("long"))
    assert whole["text"] == "a" * 5000


def test_what_a_guard_kept_can_be_read_whatever_resources_are_allowed() -> None:
    _, [whole] = read_cut_result(
        Guard(server(), max_result_bytes=1000, allow="resource:notes:*"),
        call("text", characters=5000),
    )
    assert whole["text"] == "a" * 5000
