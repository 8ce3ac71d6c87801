"""What a caller is told when something of a server went wrong, in one voice for tools, resources, prompts and completions."""

from __future__ import annotations

from concertino.errors import INVALID_PARAMS, RpcError
from concertino.protocol.arguments import Problem
from concertino.protocol.types import CallToolResult, TextContent
from concertino.redact import redactor

__all__ = ["failed", "invalid", "said", "sentence", "shortened", "unknown"]

MAX_ERROR_CHARACTERS = 1000  # of an exception's text that the caller sees
REDACTED_CHARACTERS = 65536  # of that text that are looked through for secrets
MAX_NAME = 128  # characters of a name that nobody has, given back; 2026-07-28 server/tools "Tool Names"


def failed(text: str) -> CallToolResult:
    """A tool's failure, which the model sees."""
    return CallToolResult([TextContent(text)], is_error=True)


def invalid(details: str) -> RpcError:
    """Params that do not fit. details: member, what was expected, what came."""
    return RpcError(INVALID_PARAMS, "Invalid params", {"details": details})


def unknown(message: str, details: str) -> RpcError:
    """A name that nobody here has. message: one sentence; details: the member, and what there is not."""
    return RpcError(INVALID_PARAMS, message, {"details": details})


def said(error: BaseException) -> str:
    """An exception as `TypeName: text`, for the caller: shortened, without secrets."""
    kind = type(error).__name__
    try:
        text = str(error)
    except Exception:  # a __str__ that fails
        text = ""
    # Cut after the redaction, or half a secret is left; and before it, because the text may be of any length.
    return redactor().text(f"{kind}: {text[:REDACTED_CHARACTERS]}" if text else kind)[:MAX_ERROR_CHARACTERS]


def sentence(problem: Problem) -> str:
    """One thing wrong with arguments."""
    if problem.message == "required, but missing":
        return f"Missing required field: {problem.path}"
    return f"{problem.path}: {problem.message}" if problem.path else problem.message


def shortened(name: str) -> str:
    """A name that came from outside, to be given back."""
    return name if len(name) <= MAX_NAME else name[:MAX_NAME] + "..."
