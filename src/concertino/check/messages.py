"""Messages as the check writes and reads them: with json, on purpose another reader and writer than concertino's own."""

from __future__ import annotations

import json
from typing import Any, TypeGuard, cast

from msgspec import Struct

__all__ = [
    "CAPABILITIES",
    "LEGACY",
    "MODERN",
    "VERSION",
    "Id",
    "Message",
    "Stray",
    "frame",
    "is_id",
    "list_of",
    "looks_like_a_traceback",
    "messages_of",
    "object_of",
    "shown",
]

Id = int | str | float
Message = dict[str, Any]  # JSON from outside: anything

LEGACY = "2025-11-25"  # the newest revision with a handshake
MODERN = "2026-07-28"  # the revision in which each request speaks for itself
VERSION = "io.modelcontextprotocol/protocolVersion"
CAPABILITIES = "io.modelcontextprotocol/clientCapabilities"


class Stray(Struct, frozen=True):
    """A line of stdout that is no JSON-RPC message, and why it is none."""

    line: bytes
    why: str


def frame(message: object) -> bytes:
    """One message as a line."""
    return json.dumps(message, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


def object_of(value: object) -> Message | None:
    """The value as a JSON object, if it is one."""
    return cast("Message", value) if isinstance(value, dict) else None  # json gives str keys


def list_of(value: object) -> list[Any] | None:
    """The value as a JSON array, if it is one."""
    return cast("list[Any]", value) if isinstance(value, list) else None


def messages_of(line: bytes, *, arrays: bool) -> list[Message] | Stray:
    """What a line of stdout holds. arrays: a batch is allowed.

    Spec: JSON-RPC 2.0 sections 4 and 5; basic/transports "stdio": the server MUST NOT write anything to its stdout that is not a
    valid MCP message.
    """
    try:
        content: object = json.loads(str(line, "utf-8"), parse_constant=_no_constant)
    except UnicodeDecodeError as why:
        return Stray(line[:1000], f"not UTF-8 at byte {why.start}")
    except (ValueError, RecursionError):
        return Stray(line[:1000], "not JSON")
    elements: list[object] = (list_of(content) if arrays else None) or [content]
    found: list[Message] = []
    for each in elements:
        message = object_of(each)
        why = "no JSON object" if message is None else _wrong_with(message)
        if message is None or why:
            return Stray(line[:1000], why)
        found.append(message)
    return found


def _wrong_with(message: Message) -> str:
    """Why this is no message; empty if it is one."""
    if message.get("jsonrpc") != "2.0":
        return 'jsonrpc is not "2.0"'
    if "method" in message:
        if not isinstance(message["method"], str):
            return "method is no string"
        if "result" in message or "error" in message:
            return "a method together with a result or an error"
        return "" if object_of(message.get("params", {})) is not None else "params is no object"
    if ("result" in message) is ("error" in message):
        return "neither or both of result and error, and no method"
    has_id = is_id(message.get("id"))
    if "result" in message:
        if object_of(message["result"]) is None:
            return "result is no object"
        return "" if has_id else "a result without an id"
    error = object_of(message["error"])
    if error is None or type(error.get("code")) is not int or type(error.get("message")) is not str:
        return "error lacks an integer code or a string message"
    return "" if has_id or message.get("id") is None else "id is no id"


def is_id(value: object) -> TypeGuard[Id]:
    """Whether this may stand for a request. A fraction may not, but is an id that a server can give back."""
    return isinstance(value, int | str | float) and not isinstance(value, bool)


def _no_constant(name: str) -> object:
    raise ValueError(f"{name} is no JSON")


TRACES = (  # as printed by Python, Node, Go, Rust, Java and .NET
    "Traceback (most recent call last)",
    "\n    at ",
    "goroutine 1 [",
    "stack backtrace:",
    "\n\tat ",
    "\n   at ",
)


def looks_like_a_traceback(message: Message) -> str:
    """The mark of a stack trace in the text of an answer, or nothing."""
    text = json.dumps(message, ensure_ascii=False).replace("\\n", "\n").replace("\\t", "\t")
    return next((mark.strip() for mark in TRACES if mark in text), "")


def shown(what: object, limit: int = 240) -> str:
    """Anything on one line for a terminal: control and invisible characters escaped, the middle cut out."""
    if isinstance(what, bytes | bytearray):
        text = bytes(what[: 4 * limit]).decode("utf-8", "backslashreplace")
    elif isinstance(what, str):
        text = what[: 4 * limit]
    else:
        text = json.dumps(what, ensure_ascii=False)
    text = "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode() for each in text
    )
    size = len(what) if isinstance(what, bytes | bytearray | str) else len(text)
    if len(text) <= limit:
        return text
    tail = f"{text[-(limit // 4) :]} " if size <= 4 * limit else ""
    return f"{text[: limit * 2 // 3]} ... {tail}({size} in all)"
