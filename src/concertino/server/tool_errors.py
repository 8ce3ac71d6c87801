"""What a caller is told when something of a server went wrong, in one voice for tools, resources, prompts and completions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from msgspec.json import encode

from concertino.errors import (
    INVALID_PARAMS,
    InvalidClientResponse,
    MissingCapability,
    RpcError,
    Suspended,
    ToolError,
)
from concertino.logs.redact import redactor
from concertino.schema.violations import SchemaViolation
from concertino.types.results import CallToolResult, TextContent

__all__ = [
    "describe_exception",
    "error_result",
    "find_passthrough",
    "invalid_params",
    "sentence",
    "shorten",
    "tool_error_result",
    "unknown_name",
]

MAX_ERROR_CHARACTERS = 1000  # of an exception's text that the caller sees
REDACTED_CHARACTERS = 65536  # of that text that are looked through for secrets
MAX_NAME = (
    128  # characters of a name that nobody has, given back; 2026-07-28 server/tools "Tool Names"
)


def error_result(text: str) -> CallToolResult:
    """A tool's failure, which the model sees."""
    return CallToolResult([TextContent(text)], is_error=True)


def tool_error_result(error: Exception) -> CallToolResult:
    """What a tool raised to tell its caller: a text, or the JSON of a ToolError's body."""
    body = error.body if isinstance(error, ToolError) else None
    return error_result(str(error) if body is None else _written(body))


def _written(body: Mapping[str, Any]) -> str:
    """As JSON, whatever its author put there: a failure that cannot be written would hide what failed."""
    try:
        return encode(body, enc_hook=str).decode()
    except (
        TypeError,
        ValueError,
        OverflowError,
        RecursionError,
    ):  # keys of other types, half a surrogate pair, a cycle
        return encode({name: _fit(value) for name, value in body.items()}).decode()


def _fit(value: Any) -> Any:
    try:
        encode(value, enc_hook=str)
    except (TypeError, ValueError, OverflowError, RecursionError):
        return str(value).encode("utf-8", "backslashreplace").decode()
    return value


def invalid_params(details: str) -> RpcError:
    """Params that do not fit. details: member, what was expected, what came."""
    return RpcError(INVALID_PARAMS, "Invalid params", {"details": details})


def unknown_name(message: str, details: str) -> RpcError:
    """A name that nobody here has. message: one sentence; details: the member, and what there is not."""
    return RpcError(INVALID_PARAMS, message, {"details": details})


def find_passthrough(error: BaseException) -> BaseException | None:
    """What is neither a handler's failure nor its result: that it waits for its client, or cannot ask it. Out of a group, too."""
    if isinstance(error, ASKING):
        return error
    if not isinstance(error, BaseExceptionGroup):
        return None
    inside = cast("tuple[BaseException, ...]", error.exceptions)  # pyright: ignore[reportUnknownMemberType]
    return next((found for each in inside if (found := find_passthrough(each)) is not None), None)


ASKING = (Suspended, MissingCapability, InvalidClientResponse)


def describe_exception(error: BaseException) -> str:
    """An exception as `TypeName: text`, for the caller: shortened, without secrets."""
    kind = type(error).__name__
    try:
        text = str(error)
    except Exception:  # a __str__ that fails
        text = ""
    # Cut after the redaction, or half a secret is left; and before it, because the text may be of any length.
    return redactor().text(f"{kind}: {text[:REDACTED_CHARACTERS]}" if text else kind)[
        :MAX_ERROR_CHARACTERS
    ]


def sentence(problem: SchemaViolation) -> str:
    """One thing wrong with arguments."""
    if problem.message == "required, but missing":
        return f"Missing required field: {problem.path}"
    return f"{problem.path}: {problem.message}" if problem.path else problem.message


def shorten(name: str) -> str:
    """A name that came from outside, to be given back."""
    return name if len(name) <= MAX_NAME else name[:MAX_NAME] + "..."
