"""Converts values of handlers to CallToolResults by the type of the value, not by an annotation.

    shape_any([1, 2])           # CallToolResult([TextContent("[1,2]")], Raw(b"[1,2]"))

return_values.py adds what depends on the annotation of a handler: the output schema, and the check
whether a value conforms to it.

Spec: 2026-07-28 server/tools "Tool Result", "Structured Content".
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence, Set
from typing import Any, TypeVar, cast, get_args

import msgspec
from msgspec import UNSET, Raw, json
from msgspec.structs import replace

from concertino.errors import ConcertinoError
from concertino.schema.json_values import find_nan
from concertino.types.results import CallToolResult, ContentBlock, TextContent

# `Any` in this file: a handler may return anything.

S = TypeVar("S", bound=msgspec.Struct)
# JSON of this many bytes is large: to check it against a type takes up to 10 ms.
LARGE_JSON = 512 * 1024
# The classes of content blocks.
CONTENT: tuple[type, ...] = get_args(ContentBlock)
# The types whose values need blob() or image().
BYTES: tuple[Any, ...] = (bytes, bytearray, memoryview)
_SURROGATE = (
    "the result holds a lone surrogate, which JSON cannot: replace it, as in "
    "s.encode(errors='replace').decode()"
)


class InvalidResult(ConcertinoError):
    """A handler returned a value that cannot be sent. The text says what to return instead."""


class NotAwaited(InvalidResult):
    """A handler returned a coroutine that it should have awaited.

    The text of this exception is `returned a coroutine that was not awaited: ...`. The caller puts
    the handler's name before it.
    """


def shape_any(value: Any) -> CallToolResult:
    """Return the result for a value, by the type of the value and not by an annotation.

    Used for handlers without an output schema. Raises InvalidResult for a value that cannot be
    sent, such as bytes.
    """
    if isinstance(value, str):
        return CallToolResult([_text_block(value)])
    if value is None:
        return CallToolResult([])
    if isinstance(value, CallToolResult):
        return check_result(value)
    if isinstance(value, CONTENT):
        return CallToolResult([_to_block(value)])
    if isinstance(value, BYTES):
        raise InvalidResult(
            f"the result is {_kind(value)}: return concertino.blob(...) or concertino.image(...) "
            f"with it"
        )
    if isinstance(value, (list, tuple)) and holds_content(cast("Sequence[Any]", value)):
        return CallToolResult([_to_block(item) for item in cast("Sequence[Any]", value)])
    return structured_result(*encode_json(cast("Any", value)))


def shape_text(value: Any) -> CallToolResult:
    """Return the result for the value of a handler with the annotation `-> str`.

    Raises InvalidResult if the value is neither a str nor a CallToolResult.
    """
    # Fast path for nearly every value: 0.2 us.
    if type(value) is str and value.isascii():
        return CallToolResult([TextContent(value)])
    if isinstance(value, str):
        return CallToolResult([_text_block(value)])
    if isinstance(value, CallToolResult):
        return check_result(value)
    refuse_awaitable(value)
    raise InvalidResult(
        f"expected str, got {_kind(value)}: return a str, or correct the return annotation"
    )


def text_of(value: Any) -> str:
    """Convert a value that a generator has yielded to a string, for a progress notification.

    A value that is neither a string nor a content block becomes JSON. Returns "" for a content
    block that is not text. Raises InvalidResult for a value that cannot be sent.
    """
    if isinstance(value, str):
        return _text_block(value).text
    if isinstance(value, CONTENT):
        return value.text if isinstance(value, TextContent) else ""
    return encode_json(value)[1]


def _text_block(value: str) -> TextContent:
    """Return a str as a text block. Raises InvalidResult for a lone surrogate."""
    # msgspec does not encode subclasses of str, so convert them to str.
    text = str.__str__(value)
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            raise InvalidResult(_SURROGATE) from None
    return TextContent(text)


def holds_content(items: Sequence[Any]) -> bool:
    """Return whether any item of a list is a content block."""
    return any(isinstance(item, CONTENT) for item in items)


def _to_block(item: Any) -> Any:
    """Return an item of a list with content as a content block.

    Raises InvalidResult if it is neither a content block nor a str.
    """
    if isinstance(item, str):
        return _text_block(item)
    if not isinstance(item, CONTENT):
        refuse_awaitable(item)
        raise InvalidResult(
            f"expected only content blocks and str in the list, got {_kind(item)} among them"
        )
    return check_struct(item)


def check_result(result: CallToolResult) -> CallToolResult:
    """Check a CallToolResult that the handler has made, and encode its structured content.

    Raises InvalidResult if the result does not conform to the MCP schema, or if JSON cannot express
    its structured content.
    """
    check_struct(result)
    if result.structured_content is UNSET or type(result.structured_content) is Raw:
        return result
    return replace(result, structured_content=Raw(encode_json(result.structured_content)[0]))


def check_struct(value: S) -> S:
    """Return a Struct of concertino.types unchanged if it conforms to the MCP schema.

    Raises InvalidResult otherwise.
    value: the Struct, which a handler has made.
    """
    # Imported here because few handlers make such Structs.
    from concertino.types.result_checks import check

    try:
        check(value)
    except TypeError as exc:
        raise InvalidResult(f"{type(value).__name__}: {exc}") from None
    return value


def refuse_awaitable(value: Any) -> None:
    """Raise NotAwaited if a value is a coroutine, a task or any other awaitable."""
    if not inspect.isawaitable(value):
        return
    kind = _kind(value)
    call = "..."
    if inspect.iscoroutine(value):
        call = f"{value.__name__}(...)"
        # Without this, Python would warn later that the coroutine was never awaited, and name an
        # unrelated line.
        value.close()
    raise NotAwaited(f"returned a {kind} that was not awaited: write `return await {call}`")


def structured_result(raw: bytes | bytearray, text: str) -> CallToolResult:
    """Return the result whose structured content is a value as JSON, and whose text is this JSON.

    raw, text: the results of encode_json(): the JSON as bytes, and as text so that it is not
        decoded again.
    """
    return CallToolResult([TextContent(text)], Raw(raw))


def encode_json(value: Any) -> tuple[bytes, str]:
    """Return a value as JSON without newlines, as bytes and as text.

    Raises InvalidResult for a value that has no JSON form, such as NaN.
    """
    try:
        raw = _encode(value)
        text = raw.decode()

        # A Raw from the author may be invalid JSON, or contain a newline, which would end the
        # frame.
        if "\n" in text or type(value) is Raw:
            raw = json.encode(json.decode(raw))
            text = raw.decode()

        # msgspec writes NaN as null, so search for NaN only if the text contains null.
        path = None
        if "null" in text:
            path = find_nan(value, enc_hook=_encode_hook)
    except RecursionError:
        raise InvalidResult("the result is nested too deeply, or contains itself") from None
    except UnicodeEncodeError:
        raise InvalidResult(_SURROGATE) from None
    except (TypeError, ValueError, OverflowError) as exc:
        raise InvalidResult(f"the result cannot be written as JSON: {exc}") from None

    if path is not None:
        where = f" at {path}" if path else ""
        raise InvalidResult(
            f"the result holds NaN or infinity{where}, which JSON cannot: return None or a str "
            f"for it"
        )
    return raw, text


def _encode_hook(value: Any) -> Any:
    """Convert a value that msgspec cannot encode to a value that it can encode (an enc_hook)."""
    # msgspec encodes these types itself, except as keys of an object.
    if type(value) in (tuple, frozenset, bool, type(None)):
        raise TypeError(f"{_kind(value)} cannot be a key of a JSON object; make it a str")

    # Subclasses of str, int and float.
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, (int, float)):
        return int(value) if isinstance(value, int) else float(value)

    # to_builtins(), which is called by find_nan(), passes a Raw to this hook.
    if isinstance(value, Raw):
        return json.decode(value)

    # A pydantic model, recognized without importing pydantic.
    if callable(dump := getattr(value, "model_dump", None)):
        return dump(mode="json", by_alias=True)
    if callable(path := getattr(value, "__fspath__", None)):
        return path()
    if isinstance(value, Mapping):
        return dict(cast("Mapping[Any, Any]", value))
    if isinstance(value, (Sequence, Set)):
        return list(cast("Sequence[Any]", value))
    refuse_awaitable(value)
    raise TypeError(
        f"{_kind(value)} has no JSON form; return a str, number, list, dict, dataclass or "
        f"pydantic model"
    )


_encode = json.Encoder(enc_hook=_encode_hook).encode


def _kind(value: object) -> str:
    return type(value).__name__
