"""Errors that clients see: the same wording for tools, resources, prompts and completions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from msgspec import DecodeError, Raw
from msgspec.json import Decoder, encode

from concertino.errors import (
    InvalidClientResponse,
    MissingCapability,
    RpcError,
    Suspended,
    ToolError,
    invalid_params,
    unknown_name,
)
from concertino.schema.violations import SchemaViolation
from concertino.types.results import CallToolResult, TextContent

# How much of an exception's text a client sees, and how much of it is searched for secrets.
MAX_ERROR_CHARACTERS = 1000
MAX_REDACTED_CHARACTERS = 65536


def error_result(text: str) -> CallToolResult:
    """Return the result of a tool that failed; the model sees the text."""
    return CallToolResult([TextContent(text)], is_error=True)


def tool_error_result(error: Exception) -> CallToolResult:
    """Return the result for an error that a tool raised on purpose.

    Its text is that of the exception, or the JSON of a ToolError's body.
    """
    body = error.body if isinstance(error, ToolError) else None
    return error_result(str(error) if body is None else _encode_body(body))


# An unknown type, a number out of range, a cycle; ValueError includes half a surrogate pair.
_UNENCODABLE = (TypeError, ValueError, OverflowError, RecursionError)


def _encode_body(body: Mapping[str, Any]) -> str:
    """Return the body as JSON. Never fails, because a failure would hide the tool's own error."""
    try:
        return encode(body, enc_hook=str).decode()
    except _UNENCODABLE:
        return encode({name: _make_encodable(value) for name, value in body.items()}).decode()


def _make_encodable(value: Any) -> Any:
    try:
        encode(value, enc_hook=str)
    except _UNENCODABLE:
        return str(value).encode("utf-8", "backslashreplace").decode()
    return value


def find_passthrough(error: BaseException) -> BaseException | None:
    """Return the exception that must reach the runtime; None if the handler itself has failed.

    Such an exception means that the handler waits for an answer of its client, or that the client
    does not support the client request. Exception groups are searched, too.
    """
    if isinstance(error, PASSTHROUGH):
        return error
    if not isinstance(error, BaseExceptionGroup):
        return None
    inner = cast(
        "tuple[BaseException, ...]",
        error.exceptions,  # pyright: ignore[reportUnknownMemberType]
    )
    return next((found for exc in inner if (found := find_passthrough(exc)) is not None), None)


PASSTHROUGH = (Suspended, MissingCapability, InvalidClientResponse)


def describe_exception(error: BaseException) -> str:
    """Return an exception as `TypeName: text` for the client, shortened and without secrets."""
    kind = type(error).__name__
    try:
        text = str(error)
    except Exception:
        # A user's __str__ may fail.
        text = ""

    # The text may be very long, so cut it before the redaction to bound the work. Cut it to the
    # final length only after the redaction, which would not recognize half of a secret.
    excerpt = f"{kind}: {text[:MAX_REDACTED_CHARACTERS]}" if text else kind
    # Imported here, because a server is made faster without it.
    from concertino.logs.redact import redactor

    return redactor().text(excerpt)[:MAX_ERROR_CHARACTERS]


def describe_violation(violation: SchemaViolation) -> str:
    """Return one violation of the arguments as a sentence for the client."""
    if violation.message == "required, but missing":
        return f"Missing required field: {violation.path}"
    return str(violation)


def unknown_tool(params: Mapping[str, Raw]) -> RpcError:
    """Return the error for a call whose params name no tool of the server.

    It is a protocol error in every case: 2026-07-28 server/tools "Error Handling".
    """
    if "name" not in params:
        return invalid_params("Missing required field: name")
    try:
        name = _decode_name(params["name"])
    except DecodeError:
        return invalid_params("name: expected str")
    return unknown_name("tool", name)


_decode_name = Decoder(str).decode
