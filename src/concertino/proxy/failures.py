"""Failures of a proxy's server, as the proxy's clients get them.

They say what happened to the server, and not what it wrote to stderr: that may be about calls of
another client. It is in the log.
"""

from __future__ import annotations

from concertino.errors import INTERNAL_ERROR, ConcertinoError, Disconnected, RpcError

__all__ = ["named", "to_rpc_error"]

# What precedes the end of stderr in the text of an error of Client.
STDERR = "; its stderr ends with:"
NO_STDERR = "; it wrote nothing to stderr"


def to_rpc_error(name: str, error: ConcertinoError, revision: str = "") -> RpcError:
    """Return the error response for a call that has failed: the server's own, if it has sent one.

    name, revision: of the server.
    """
    if isinstance(error, RpcError):
        error.revision = revision
        return error
    text = str(error).partition(STDERR)[0].removesuffix(NO_STDERR)
    data = None
    if isinstance(error, Disconnected) and error.exit_status is not None:
        data = {"exitStatus": error.exit_status}
    return RpcError(INTERNAL_ERROR, named(name, text), data)


def named(name: str, text: str) -> str:
    """Return a text with the name of its server in front, unless it begins with the name."""
    return text if text.startswith(f"{name}: ") else f"{name}: {text}"
