"""Texts and results for the errors of handlers, as clients see them.

Tools, resources, prompts and completions use these functions, so that their errors have the same
wording.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from msgspec import Raw
from msgspec.json import encode

from concertino.errors import (
    InsufficientScope,
    InvalidClientResponse,
    MissingCapability,
    RpcError,
    Suspended,
    ToolError,
    unknown_name,
)
from concertino.jsonrpc.unread_results import ResultDropped
from concertino.protocol.call import read_text_param
from concertino.schema.violations import SchemaViolation
from concertino.types.results import CallToolResult, error_result

# A client sees at most this many characters of an exception's text.
MAX_ERROR_CHARACTERS = 1000
# The text is cut to this many characters before it is searched for secrets.
MAX_REDACTED_CHARACTERS = 65536
# The exceptions that the runtime handles; see find_passthrough().
PASSTHROUGH = (
    Suspended,
    MissingCapability,
    InvalidClientResponse,
    InsufficientScope,
    ResultDropped,
)


def tool_error_result(error: Exception) -> CallToolResult:
    """Return the result for an exception whose text is meant for the client, such as ToolError.

    The text of the result is the text of the exception, or the body of a ToolError as JSON.
    """
    body = error.body if isinstance(error, ToolError) else None
    return error_result(str(error) if body is None else _encode_body(body))


# The exceptions of encode(): TypeError for an unknown type, ValueError for a lone surrogate in a
# text, OverflowError for a number out of range, RecursionError for a reference cycle.
_UNENCODABLE = (TypeError, ValueError, OverflowError, RecursionError)


def _encode_body(body: Mapping[str, Any]) -> str:
    """Return a ToolError's body as JSON. Never raises, because that would hide the tool's error."""
    try:
        return encode(body, enc_hook=str).decode()
    except _UNENCODABLE:
        return encode({name: _make_encodable(value) for name, value in body.items()}).decode()


def _make_encodable(value: Any) -> Any:
    """Return a value unchanged if it can be encoded as JSON; otherwise return its str()."""
    try:
        encode(value, enc_hook=str)
    except _UNENCODABLE:
        return str(value).encode("utf-8", "backslashreplace").decode()
    return value


def find_passthrough(error: BaseException) -> BaseException | None:
    """Return the exception in `error` that the runtime must handle; None if there is none.

    The runtime handles these exceptions, which must not become error results of the tool:

    - the exceptions of Context.ask(): the handler needs an answer of its client, or the client
      cannot answer,
    - InsufficientScope: the caller's token lacks a scope,
    - ResultDropped: there is no memory for the result.

    error: an exception that a handler has raised. An exception group is searched.
    """
    if isinstance(error, PASSTHROUGH):
        return error
    if not isinstance(error, BaseExceptionGroup):
        return None
    inner = cast(
        "tuple[BaseException, ...]",
        error.exceptions,  # pyright: ignore[reportUnknownMemberType]
    )
    for exc in inner:
        found = find_passthrough(exc)
        if found is not None:
            return found
    return None


def describe_exception(error: BaseException) -> str:
    """Return an exception as `TypeName: text` for the client, shortened and without secrets."""
    # Both imports are here because they take time, and few servers need them at their start.
    from concertino.excerpts import exception_text
    from concertino.logs.redact import redactor

    kind = type(error).__name__
    text = exception_text(error)

    # Cut a very long text before the redaction, to limit the work. Cut it to its final length after
    # the redaction, which would not recognize half of a secret.
    excerpt = f"{kind}: {text[:MAX_REDACTED_CHARACTERS]}" if text else kind
    return redactor().text(excerpt)[:MAX_ERROR_CHARACTERS]


def describe_violation(violation: SchemaViolation) -> str:
    """Return a sentence for the client about an invalid argument."""
    # This is the message of schema/violations.py. Clients may search for the text below.
    if violation.message == "required, but missing":
        return f"Missing required field: {violation.path}"
    return str(violation)


def unknown_tool(params: Mapping[str, Raw]) -> RpcError:
    """Return the error for a call of a tool that the server does not have.

    The error is a JSON-RPC error -32602, never a tool result with isError (MCP 2026-07-28
    server/tools "Error Handling"). If `params` has no valid name, the error says that instead.
    params: the params of the call.
    """
    try:
        return unknown_name("tool", read_text_param(params, "name"))
    except RpcError as exc:
        return exc
