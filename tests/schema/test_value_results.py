"""value_results.py: a value becomes a result by its own type. JSON texts are written by hand."""

from __future__ import annotations

import asyncio
import collections
import math
import pathlib
from typing import Any

import pydantic
import pytest
from msgspec import UNSET, Raw

from concertino.schema.value_results import (
    InvalidResult,
    NotAwaited,
    encode_json,
    shape_any,
    shape_text,
    text_of,
)
from concertino.types.results import CallToolResult, ImageContent, TextContent

IMAGE = ImageContent(b"\0", "image/png")
TEXT = TextContent("a")
WRONG_TEXT: Any = TextContent(5)  # type: ignore[arg-type]


class Word(str):
    __slots__ = ()


class Number(int):
    pass


class Fraction(float):
    pass


class Model(pydantic.BaseModel):
    number: int = pydantic.Field(serialization_alias="n")


@pytest.mark.parametrize(
    ("value", "content"),
    [
        ("a", [TEXT]),
        (Word("\u00e9"), [TextContent("\u00e9")]),
        (None, []),
        (TEXT, [TEXT]),
        ([IMAGE, "a"], [IMAGE, TEXT]),
    ],
)
def test_text_and_content_stay_as_they_are(value: object, content: list[Any]) -> None:
    assert shape_any(value) == CallToolResult(content)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ([1, None], "[1,null]"),
        ([Word("a"), Number(1), Fraction(0.5)], '["a",1,0.5]'),
        ({"raw": Raw(b"[1]"), "none": None}, '{"raw":[1],"none":null}'),
        (Raw(b'{"a":\n1}'), '{"a":1}'),
        (Model(number=1), '{"n":1}'),
        (pathlib.PurePosixPath("/a"), '"/a"'),
        (collections.UserDict({"a": 1}), '{"a":1}'),
        (collections.deque([1]), "[1]"),
    ],
)
def test_any_other_value_is_written_as_json(value: object, text: str) -> None:
    assert encode_json(value) == (text.encode(), text)
    assert shape_any(value) == CallToolResult([TextContent(text)], Raw(text.encode()))


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"a", r"^the result is bytes: return concertino\.blob\(\.\.\.\)"),
        ("\ud800", "lone surrogate"),
        (["\ud800"], "lone surrogate"),
        ([TEXT, 1], "only content blocks and str in the list, got int among them"),
        (WRONG_TEXT, "^TextContent: "),
        ([math.nan], r"holds NaN or infinity at \S+, which"),
        ({"raw": Raw(b"1"), "b": math.nan}, "holds NaN or infinity at b, which"),
        (math.inf, "holds NaN or infinity, which"),
        ({(1, 2): 1}, "tuple cannot be a key of a JSON object"),
        (object(), "object has no JSON form"),
    ],
)
def test_a_value_that_cannot_be_sent_is_refused_with_the_reason(value: object, reason: str) -> None:
    with pytest.raises(InvalidResult, match=reason):
        shape_any(value)


def test_a_value_that_contains_itself_is_refused() -> None:
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(InvalidResult, match="contains itself"):
        shape_any(endless)


def test_a_result_of_the_author_is_kept_and_its_structured_content_written() -> None:
    for content in (UNSET, Raw(b"1")):
        result = CallToolResult([TEXT], content)
        assert shape_any(result) is result
    assert shape_any(CallToolResult([], {"a": 1})).structured_content == Raw(b'{"a":1}')


def test_a_handler_that_promises_text_returns_it_or_a_result() -> None:
    for value in ("a", Word("a"), CallToolResult([TEXT])):
        assert shape_text(value) == CallToolResult([TEXT])
    with pytest.raises(InvalidResult, match=r"^expected str, got int: return a str"):
        shape_text(1)


def test_a_coroutine_or_future_that_was_not_awaited_is_named() -> None:
    async def work() -> str:
        return "a"

    said = r"coroutine .* `return await work\(\.\.\.\)`"
    with pytest.raises(NotAwaited, match=said):
        shape_text(work())
    for value in (work(), [TEXT, work()]):
        with pytest.raises(NotAwaited, match=said):
            shape_any(value)
    loop = asyncio.new_event_loop()
    with pytest.raises(NotAwaited, match=r"Future .* `return await \.\.\.`"):
        shape_text(loop.create_future())
    loop.close()


@pytest.mark.parametrize(
    ("value", "text"), [("a", "a"), (TEXT, "a"), (IMAGE, ""), ({"a": 1}, '{"a":1}')]
)
def test_a_part_of_a_stream_is_a_text_for_people(value: object, text: str) -> None:
    assert text_of(value) == text
