"""Every exception that concertino raises, and the error codes of the wire.

    ConcertinoError
    ├── RegistrationError   a tool, resource or prompt that cannot be offered: its signature, name, URI (author's mistake)
    ├── TargetError         a command-line target that holds no server
    ├── ToolError           raised by a tool: its text goes to the caller, as it is, as an `isError` result
    ├── RpcError            an error answer: raised by a backend to give one, by a caller when it got one
    │   └── ResourceNotFound  raised by the function of a resource that has nothing under this URI
    ├── SpawnError          a program that cannot be started
    ├── NotOffered          a feature that the server has not declared
    ├── TimedOut            an answer did not come in time; a TimeoutError too
    ├── ProtocolError       the other side said what the protocol does not allow
    │   └── Incompatible    there is no protocol revision that both sides speak
    └── Disconnected        the connection ended before the answer came

Bytes from outside never raise any of these out of the protocol; they become events or answers.
"""

from __future__ import annotations

__all__ = [
    "BUSY",
    "INTERNAL_ERROR",
    "INVALID_PARAMS",
    "INVALID_REQUEST",
    "METHOD_NOT_FOUND",
    "MISSING_CAPABILITY",
    "PARSE_ERROR",
    "RESOURCE_NOT_FOUND",
    "UNSUPPORTED_VERSION",
    "ConcertinoError",
    "Disconnected",
    "Incompatible",
    "NotOffered",
    "ProtocolError",
    "RegistrationError",
    "ResourceNotFound",
    "RpcError",
    "SpawnError",
    "TargetError",
    "TimedOut",
    "ToolError",
]

# JSON-RPC 2.0 section 5.1.
PARSE_ERROR = -32700
INVALID_REQUEST = -32600
METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602
INTERNAL_ERROR = -32603
# MCP 2026-07-28, basic/index "Error codes".
MISSING_CAPABILITY = -32021
UNSUPPORTED_VERSION = -32022
# Before 2026-07-28, server/resources "Error Handling"; since then it is INVALID_PARAMS. lowering.py translates.
RESOURCE_NOT_FOUND = -32002
# Ours: outside -32768..-32000, as MCP 2026-07-28 asks of new codes. data holds the limit that was reached.
BUSY = -31001


class ConcertinoError(Exception):
    """The root of the tree above; catch it to catch whatever concertino raises on purpose."""


class RegistrationError(ConcertinoError):
    """A tool, resource or prompt cannot be offered as it was written. The text names what is wrong, where, and what to write."""


class TargetError(ConcertinoError):
    """A command-line target does not lead to a server. The text names the target and what was found there."""


class ToolError(ConcertinoError):
    """Raise it in a tool to tell the caller what went wrong, in your words.

    The text becomes the content of a result with `isError: true`, which the model sees. Any other exception becomes
    such a result too, but as `TypeName: text`, shortened and redacted, with the traceback in the log.
    """


class RpcError(ConcertinoError):
    """A JSON-RPC error answer.

    code: an integer, see the table above and JSON-RPC 2.0 section 5.1. message: one short sentence. data: any JSON
    value, or None for none. A backend raises it to answer so; `Caller.request` raises it when it was answered so.
    """

    def __init__(self, code: int, message: str, data: object = None) -> None:
        super().__init__(code, message, data)
        self.code = code
        self.message = message
        self.data = data

    def __str__(self) -> str:
        return f"{self.message} ({self.code})"


class ResourceNotFound(RpcError):
    """There is no resource of this URI. Raise it in a resource's function; it may also return None, which says the same.

    The caller gets -32602, or -32002 before 2026-07-28, with the URI in the data (2026-07-28 server/resources "Error Handling").
    """

    def __init__(self, uri: str = "") -> None:
        super().__init__(INVALID_PARAMS, "Resource not found", {"uri": uri})
        self.uri = uri


class SpawnError(ConcertinoError):
    """A program could not be started. The text names it, where it was looked for, and why."""


class NotOffered(ConcertinoError):
    """A feature was asked for that the server has not declared; nothing was sent. The text names what it declares."""


class TimedOut(ConcertinoError, TimeoutError):
    """An answer did not come within its time limit. The text says what was awaited, and for how long.

    The other side was told that the answer is no longer wanted. Raised here, never by the other side.
    """


class ProtocolError(ConcertinoError):
    """The other side said what the protocol does not allow: an answer of another shape, a question nobody offered to answer.

    The text quotes the beginning of what came.
    """


class Incompatible(ProtocolError):
    """There is no protocol revision that both sides speak. The text names those of the other side."""


class Disconnected(ConcertinoError):
    """The connection ended before an answer came. Raised here, never by the other side (MCP 2026-07-28 basic/index).

    exit_status: of the server's process, if there is one and it has ended: its exit code, or minus the signal that ended it.
    stderr: the end of what the process wrote there, without secrets. The text holds both.
    """

    def __init__(self, text: str, exit_status: int | None = None, stderr: str = "") -> None:
        super().__init__(text)
        self.exit_status = exit_status
        self.stderr = stderr
