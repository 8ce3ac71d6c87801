"""Every exception that concertino raises, and the error codes of the wire.

    ConcertinoError
    ├── RegistrationError   a tool, resource or prompt that cannot be offered: its signature, name, URI (author's mistake)
    ├── TargetError         a command-line target that holds no server
    ├── ToolError           raised by a tool: its text goes to the caller, as it is, as an `isError` result
    ├── RpcError            an error answer: raised by a backend to give one, by a caller when it got one
    │   ├── ResourceNotFound  raised by the function of a resource that has nothing under this URI
    │   ├── MissingCapability  the client cannot be asked this: it did not declare that it answers such questions
    │   └── InvalidClientResponse       the client's answer to a question does not fit the question
    ├── SpawnError          a program that cannot be started
    ├── NotSupported          a feature that the server has not declared
    ├── TimedOut            an answer did not come in time; a TimeoutError too
    ├── ProtocolError       the other side said what the protocol does not allow
    │   └── Incompatible    there is no protocol revision that both sides speak
    └── Disconnected        the connection ended before the answer came

    BaseException
    └── Suspended           ends one round of a call whose question waits for its answer; let it pass

Bytes from outside never raise any of these out of the protocol; they become events or answers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

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
    "URL_ELICITATION_REQUIRED",
    "ConcertinoError",
    "Disconnected",
    "Incompatible",
    "InvalidClientResponse",
    "MissingCapability",
    "NotSupported",
    "ProtocolError",
    "RegistrationError",
    "ResourceNotFound",
    "RpcError",
    "SpawnError",
    "Suspended",
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
# 2025-11-25 client/elicitation "URL Elicitation Required Error"; since 2026-07-28 it must not be sent. lowering.py sees to it.
URL_ELICITATION_REQUIRED = -32042
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

        raise ToolError("there is no shelf for 'apples'")
        raise ToolError("TEMPLATE_NOT_FOUND", "Template not found", suggestion="Choose one of these", availableTemplates=["a", "b"])

    The text becomes the content of a result with `isError: true`, which the model sees. With a code before it, or anything after
    it, the content is a JSON object that programs can read as well: `error` (the text), `code`, `suggestion`, and the rest under
    the names it was given; the code is then `TOOL_FAILED` unless given. Any other exception becomes such a result too, but as
    `TypeName: text`, shortened and redacted, with the traceback in the log.
    body: that object, None for a text alone. str() gives the text.
    """

    def __init__(
        self,
        code: object = "",
        message: object = None,
        /,
        *,
        suggestion: str | None = None,
        **extra: Any,
    ) -> None:
        super().__init__(*((code,) if message is None else (code, message)))
        self.message = str(code if message is None else message)
        self.body: dict[str, Any] | None = None
        if message is not None or suggestion is not None or extra:
            said = {"error": self.message, "code": "TOOL_FAILED" if message is None else code}
            if suggestion is not None:
                said["suggestion"] = suggestion
            self.body = {**said, **extra, **said}

    @property
    def code(self) -> str | None:
        """Of its body; None for a text alone."""
        return None if self.body is None else self.body["code"]

    def __str__(self) -> str:
        return self.message


class RpcError(ConcertinoError):
    """A JSON-RPC error answer.

    code: an integer, see the table above and JSON-RPC 2.0 section 5.1. message: one short sentence. data: any JSON
    value, or None for none. A backend raises it to answer so; `RawClient.request` raises it when it was answered so.
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


class MissingCapability(RpcError):
    """The client did not declare that it answers such a question. required: what it would have to declare, as an object.

    Catch it to do without the answer. Uncaught, the caller gets -32021 with `data.requiredCapabilities` (2026-07-28 basic/index
    "Error codes"); before 2026-07-28 a tool's result says it, with `isError`.
    """

    def __init__(self, text: str, required: Mapping[str, object]) -> None:
        super().__init__(MISSING_CAPABILITY, text, {"requiredCapabilities": required})
        self.required = required


class InvalidClientResponse(RpcError):
    """The client's answer to a question does not fit it. The text names the question, what was expected and what came.

    Uncaught, the caller gets -32602; before 2026-07-28 a tool's result says it, with `isError`.
    """

    def __init__(self, text: str) -> None:
        super().__init__(INVALID_PARAMS, f"Invalid params: inputResponses: {text}")


class Suspended(BaseException):
    """A question was asked whose answer comes with a later request: this round of the call is over.

    Raised by Context.ask and what is built on it. Like CancelledError it is to be let pass; `finally` blocks run on every round.
    """


class SpawnError(ConcertinoError):
    """A program could not be started. The text names it, where it was looked for, and why."""


class NotSupported(ConcertinoError):
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
