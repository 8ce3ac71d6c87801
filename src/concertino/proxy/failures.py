"""Turns failures of a proxy's server into errors for the proxy's clients.

The errors say what happened to the server. They do not quote the output of the server, because it
may be about calls of another client. The log contains this output.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Raw
from msgspec.json import Decoder

from concertino.client.conversation import LAST_SKIPPED, NO_STDERR, STDERR_END
from concertino.decode_errors import DECODE_ERRORS
from concertino.errors import (
    INTERNAL_ERROR,
    ConcertinoError,
    Disconnected,
    MissingCapability,
    RpcError,
)
from concertino.types.results import CallToolResult

__all__ = ["add_name", "failure_text", "missing_capability", "to_rpc_error"]

_decode_tool_result = Decoder(CallToolResult).decode


def to_rpc_error(name: str, error: ConcertinoError, revision: str = "") -> RpcError:
    """Return the error with which a proxy answers a call that has failed.

    If the server has sent an error, returns this error. Any other failure becomes the error -32603
    with the name of the server and the reason; if the server's process has ended, with `exitStatus`
    in its data.
    name: the name of the server.
    error: why the call to the server has failed.
    revision: the revision of MCP that the server speaks. If the client's revision is of the same
        era (before 2026-07-28 or not), the client gets the code of the server's error unchanged.
        "" to translate the code for the client in any case.
    """
    if isinstance(error, RpcError):
        # The session of the client reads the attribute.
        error.revision = revision
        return error
    # Cut off the server's stderr and the line of its stdout, which a Client quotes at the end.
    text = str(error).partition(STDERR_END)[0].removesuffix(NO_STDERR).partition(LAST_SKIPPED)[0]
    data = None
    if isinstance(error, Disconnected) and error.exit_status is not None:
        data = {"exitStatus": error.exit_status}
    return RpcError(INTERNAL_ERROR, add_name(name, text), data)


def failure_text(result: Raw) -> str | None:
    """Return the text of a tools/call result with `isError`; None for any other result."""
    try:
        decoded = _decode_tool_result(result)
    except DECODE_ERRORS:
        return None
    return decoded.text if decoded.is_error else None


def missing_capability(name: str, lacked: Iterable[str], text: str) -> MissingCapability:
    """Return the error for a call that has failed because its client lacks capabilities.

    name: the name of the server.
    lacked: the capabilities that the client has not declared.
    text: the error text with which the server has answered the call. The returned error quotes it.
    """
    names = sorted(lacked)
    reason = f"the server asked for {' and '.join(names)}, which the client has not declared"
    required: dict[str, object] = {capability: {} for capability in names}
    return MissingCapability(f"{name}: {reason}; it answered: {text}", required)


def add_name(name: str, text: str) -> str:
    """Return `NAME: TEXT`; the text unchanged if it already begins so."""
    return text if text.startswith(f"{name}: ") else f"{name}: {text}"
