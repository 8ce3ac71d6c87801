"""results.shape and its way to the wire: what a tool returns arrives as the same JSON value, in
every revision, or is refused.

Input: one byte for the return annotation, one for the revision, then the returned value as JSON
text; `$nan`, `$set`, `$bytes` and `$raw` in it stand for what JSON cannot say.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

from msgspec import UNSET, Raw

from concertino.protocol.revisions import REVISIONS
from concertino.protocol.wire_results import ResultEncoder
from concertino.schema.return_values import InvalidResult, ResultShaper, result_shaper
from concertino.types.results import CallToolResult, Implementation, TextContent
from fuzz.messages import strict

__all__ = ["MAX_BYTES", "TOKENS", "one"]

MAX_BYTES = 512
TOKENS = (
    *(
        b'"$nan"',
        b'"$inf"',
        b'"$set"',
        b'"$bytes"',
        b'"$raw"',
        b'"$half"',
        b"null",
        b"true",
        b"1.0",
        b"1e300",
        b"18446744073709551616",
    ),
    *(
        b'{"x":',
        b'"y":',
        b'"name":',
        b"[[",
        b"]]",
        b"[]",
        b"{}",
        b'"\\u0000"',
        b'"\\u2028"',
        b"\xc3\xbc",
        b"-0.0",
        b"9007199254740993",
    ),
)


@dataclass
class Place:
    """What a tool may return."""

    name: str
    x: float


def _text() -> str: ...  # pyright: ignore[reportReturnType]
def _any() -> Any: ...
def _none() -> None: ...
def _whole() -> int: ...  # pyright: ignore[reportReturnType]
def _number() -> float: ...  # pyright: ignore[reportReturnType]
def _object() -> dict[str, Any]: ...  # pyright: ignore[reportReturnType]
def _numbers() -> list[int]: ...  # pyright: ignore[reportReturnType]
def _maybe() -> int | None: ...
def _place() -> Place: ...  # pyright: ignore[reportReturnType]
def _either() -> dict[str, int] | list[str] | bool: ...  # pyright: ignore[reportReturnType]


HANDLERS: tuple[Callable[[], object], ...] = (
    *(_text, _any, _none, _whole, _number, _object, _numbers, _maybe, _place, _either),
)
READ: tuple[ResultShaper, ...] = tuple(result_shaper(handler) for handler in HANDLERS)
LOWERINGS = tuple(ResultEncoder(revision, Implementation("fuzzed", "1")) for revision in REVISIONS)
UNSAYABLE: dict[str, object] = {
    "$nan": float("nan"),
    "$inf": float("-inf"),
    "$half": "\ud83c",
    "$object": object(),
}
SAYABLE: dict[str, tuple[object, object]] = {  # what a tool returns, and the JSON value that it is
    "$tuple": ((1, "t"), [1, "t"]),
    "$set": (frozenset([5]), [5]),
    "$bytes": (
        b"\xff",
        "/w==",
    ),  # base64, as the output schema says; on its own it is refused: blob() and image() say more
    "$raw": (Raw(b'{"r":\n[1, 2]}'), {"r": [1, 2]}),
}


def one(data: bytes) -> None:
    """See the head of this file."""
    if len(data) < 2:
        return
    which = data[0] % len(HANDLERS)
    lowering = LOWERINGS[data[1] % len(LOWERINGS)]
    try:
        given = strict(data[2:])
    except (ValueError, RecursionError):
        return
    returned, wanted, sayable = _make_value(given)
    refused = ""
    result = CallToolResult([])
    try:
        result = READ[which].shape(returned)
    except InvalidResult as bad:
        refused = str(bad) or "without a word"
    if refused:
        assert refused != "without a word"
        name = HANDLERS[which].__name__
        assert not _must(which, returned, sayable), (
            f"{name} may return {returned!r}, and was refused: {refused}"
        )
        return
    assert sayable, f"{returned!r} has no JSON form, and was sent as {result}"
    structured = result.structured_content
    if structured is not UNSET:
        assert type(structured) is Raw
        sent = strict(bytes(structured))
        assert _same(sent, wanted), f"{returned!r} was sent as {sent!r}"
        assert b"\n" not in bytes(structured)
        block = result.content[0]
        assert type(block) is TextContent
        assert _same(strict(block.text.encode()), wanted), (
            "the text says something else than the structured content"
        )
    elif type(wanted) is str:
        assert result == CallToolResult([TextContent(wanted)])
    else:
        assert wanted is None, f"{returned!r} was sent as {result}"
        assert result.content == []
    on_wire = cast("dict[str, Any]", strict(lowering.encode(result, "tools/call")))
    assert type(on_wire["content"]) is list
    if "structuredContent" in on_wire:
        seen: object = on_wire["structuredContent"]
        modern = lowering.revision.modern
        assert modern or on_wire["structuredContent"].__class__ is dict, (
            f"{lowering.revision.name} knows only objects here: {on_wire}"
        )
        wrapped: object = {"result": wanted}
        assert _same(seen, wanted) or (not modern and _same(seen, wrapped)), (
            f"{wanted!r} arrived as {on_wire}"
        )


def _make_value(value: object) -> tuple[object, object, bool]:
    """The value a tool returns, the JSON value that is, and whether it is one at all."""
    if type(value) is str:
        if value in UNSAYABLE:
            return UNSAYABLE[value], None, False
        if value in SAYABLE:
            return *SAYABLE[value], True
        return value, value, True
    if isinstance(value, list):
        parts = [_make_value(item) for item in cast("list[object]", value)]
        return [a for a, _, _ in parts], [b for _, b, _ in parts], all(ok for _, _, ok in parts)
    if isinstance(value, dict):
        members = {
            name: _make_value(item) for name, item in cast("dict[str, object]", value).items()
        }
        made = {name: a for name, (a, _, _) in members.items()}
        return (
            made,
            {name: b for name, (_, b, _) in members.items()},
            all(ok for _, _, ok in members.values()),
        )
    if type(value) is float and value in (float("inf"), float("-inf")):  # 1e400
        return value, None, False
    return value, value, True


def _must(which: int, returned: object, sayable: bool) -> bool:
    """Whether a value certainly conforms to the annotation; only what needs no thought."""
    if not sayable:
        return False
    handler = HANDLERS[which]
    if handler is _any:
        return type(returned) is not bytes
    kind = type(returned)
    exact: dict[Callable[[], object], type] = {_text: str, _whole: int, _object: dict}
    if handler in exact:
        return kind is exact[handler]
    return handler is _maybe and (returned is None or kind is int)


def _same(one: object, other: object) -> bool:
    """Whether two JSON values are the same: 1 is not true, and 1.0 is 1 (JSON has one kind of
    number).
    """
    return json.dumps(_plain(one)) == json.dumps(_plain(other))


def _plain(value: object) -> object:
    if type(value) is float and value.is_integer() and abs(value) <= 2**53:
        return int(value)
    if isinstance(value, list):
        return [_plain(item) for item in cast("list[object]", value)]
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in cast("dict[str, object]", value).items()}
    return value
