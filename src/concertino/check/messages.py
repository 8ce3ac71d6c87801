"""Encodes and parses JSON-RPC messages for the check.

This module uses the standard json module and not concertino's own codec, so that an error in the
codec cannot hide the same error in a server that is built with concertino.
"""

from __future__ import annotations

import json
from typing import Any, TypeGuard, cast

from msgspec import Struct

# The type of the id of a request or response. Also float, because a server may send back a fraction
# as an id although that is invalid.
Id = int | str | float
# JSON from the server may contain anything.
Message = dict[str, Any]

# The revisions that the check speaks. LEGACY is the newest one with a handshake (`initialize`). In
# MODERN there is no handshake: each request has the revision and the capabilities in `_meta`.
LEGACY = "2025-11-25"
MODERN = "2026-07-28"
# The keys of these two in `_meta`.
VERSION_KEY = "io.modelcontextprotocol/protocolVersion"
CAPABILITIES_KEY = "io.modelcontextprotocol/clientCapabilities"

# An id of no request. Cases refer to it where the server must not find a request.
UNUSED_ID = 987654

# At most this many bytes of a stray line are kept, for the report.
KEPT_STRAY_BYTES = 1000


class StrayLine(Struct, frozen=True):
    """A line of stdout that is not a JSON-RPC message.

    line: the beginning of the line.
    reason: why the line is not a message.
    """

    line: bytes
    reason: str


def encode_line(message: object) -> bytes:
    """Return a message as one line of JSON, with its newline."""
    return json.dumps(message, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


def as_object(value: object) -> Message | None:
    """Return the value if it is a JSON object; None otherwise."""
    # The keys of an object from json.loads() are always strings.
    return cast("Message", value) if isinstance(value, dict) else None


def as_array(value: object) -> list[Any] | None:
    """Return the value if it is a JSON array; None otherwise."""
    return cast("list[Any]", value) if isinstance(value, list) else None


def parse_line(line: bytes, *, allow_batch: bool) -> list[Message] | StrayLine:
    """Return the messages in one line of stdout, or a StrayLine if it is not valid JSON-RPC.

    allow_batch: whether the line may be an array of messages, which only 2025-03-26 allows.
    Spec: JSON-RPC 2.0 sections 4 and 5; basic/transports "stdio": the server MUST NOT write
    anything to its stdout that is not a valid MCP message.
    """
    start = line[:KEPT_STRAY_BYTES]
    try:
        content: object = json.loads(str(line, "utf-8"), parse_constant=_reject_constant)
    except UnicodeDecodeError as exc:
        return StrayLine(start, f"not UTF-8 at byte {exc.start}")
    except (ValueError, RecursionError):
        return StrayLine(start, "not JSON")

    batch = as_array(content) if allow_batch else None
    # An empty array is no batch, and so stays a value that is not an object.
    elements: list[object] = batch or [content]
    messages: list[Message] = []
    for element in elements:
        message = as_object(element)
        reason = "not a JSON object" if message is None else _find_error(message)
        if message is None or reason:
            return StrayLine(start, reason)
        messages.append(message)
    return messages


def _find_error(message: Message) -> str:
    """Return the reason why an object is not a JSON-RPC message; "" if it is one."""
    if message.get("jsonrpc") != "2.0":
        return 'jsonrpc is not "2.0"'
    if "method" in message:
        return _find_request_error(message)
    has_result, has_error = "result" in message, "error" in message
    if has_result == has_error:
        return "neither or both of result and error, and no method"

    has_id = is_id(message.get("id"))
    if "result" in message:
        if as_object(message["result"]) is None:
            return "result is not an object"
        # JSON-RPC allows the id null in requests, and therefore in results.
        has_null = "id" in message and message["id"] is None
        return "" if has_id or has_null else "a result without an id"

    error = as_object(message["error"])
    if error is None or type(error.get("code")) is not int or type(error.get("message")) is not str:
        return "error lacks an integer code or a string message"
    # An error may have no id, because the id of a malformed request cannot always be read.
    return "" if has_id or message.get("id") is None else "id is neither a string nor a number"


def _find_request_error(message: Message) -> str:
    """Return the reason why an object with a method is not a valid message; "" if it is one.

    A request of the server with an invalid id counts as valid.
    """
    if not isinstance(message["method"], str):
        return "method is not a string"
    if "result" in message or "error" in message:
        return "a method together with a result or an error"
    return "" if as_object(message.get("params", {})) is not None else "params is not an object"


def is_id(value: object) -> TypeGuard[Id]:
    """Return whether a value can be the id of a request: a string or a number, and no boolean."""
    return isinstance(value, int | str | float) and not isinstance(value, bool)


def _reject_constant(name: str) -> object:
    # json.loads() accepts NaN and Infinity, which JSON does not have.
    raise ValueError(f"{name} is not JSON")


# The beginnings of stack traces as Python, Node, Go, Rust, Java and .NET print them.
TRACES = (
    "Traceback (most recent call last)",
    "\n    at ",
    "goroutine 1 [",
    "stack backtrace:",
    "\n\tat ",
    "\n   at ",
)


def find_stack_trace(message: Message) -> str:
    """Return the text that marks a stack trace in a message; "" if there is none."""
    # JSON escapes the newlines and tabs that TRACES contain.
    text = json.dumps(message, ensure_ascii=False).replace("\\n", "\n").replace("\\t", "\t")
    return next((mark.strip() for mark in TRACES if mark in text), "")


def excerpt(value: object, limit: int = 240) -> str:
    """Return a value as one line that is safe to print on a terminal.

    Control characters and invisible characters are escaped.
    value: a text, or another value, which is written as JSON.
    limit: the largest number of characters. The middle of a longer text is replaced by "...".
    """
    # Decode and escape only the beginning of a huge text. A character has at most four bytes.
    if isinstance(value, bytes | bytearray):
        text = bytes(value[: 4 * limit]).decode("utf-8", "backslashreplace")
    elif isinstance(value, str):
        text = value[: 4 * limit]
    else:
        text = json.dumps(value, ensure_ascii=False)
    text = "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in text
    )
    size = len(value) if isinstance(value, bytes | bytearray | str) else len(text)
    if len(text) <= limit:
        return text

    # Show two thirds of the limit from the beginning, and a quarter from the end. A text that was
    # cut above has no known end.
    tail = f"{text[-(limit // 4) :]} " if size <= 4 * limit else ""
    return f"{text[: limit * 2 // 3]} ... {tail}({size} in all)"
