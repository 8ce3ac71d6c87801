"""Every exception that concertino raises, and the error codes that it sends.

    ConcertinoError              the root: catches everything that concertino raises on purpose
    ├── RegistrationError        a tool, resource, prompt, server or library is declared wrongly
    ├── NotRegistered            nothing is registered under this name; also a KeyError
    ├── TargetError              a command-line target contains no server, or an extra is missing
    ├── ToolError                raised by a tool; the caller gets its text as an `isError` result
    ├── RpcError                 a JSON-RPC error response, sent or received
    │   ├── ResourceNotFound     no resource exists under this URI
    │   ├── MissingCapability    the client lacks the capability that a client request needs
    │   └── InvalidClientResponse  the client answered a client request with a malformed response
    ├── SpawnError               a program could not be started
    ├── NotSupported             the server has not declared the feature
    ├── TimedOut                 no response arrived in time; also a TimeoutError
    ├── ProtocolError            the peer violated the protocol
    │   ├── Incompatible         the peers have no protocol revision in common
    │   └── NotAServer           the program repeats its input, or prints text: no MCP
    └── Disconnected             the connection ended before the response arrived

    BaseException
    └── Suspended                ends one round of a call that waits for the client; never catch it

Local mistakes (RegistrationError, NotRegistered, TargetError, SpawnError, NotSupported) and
misbehaviour of the peer (ProtocolError) are separate types. Input from outside never raises any of
these out of the protocol layer: it becomes an event or an error response.
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
    "NotAServer",
    "NotRegistered",
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

# Until 2025-11-25, server/resources "Error Handling". From 2026-07-28 on the code is
# INVALID_PARAMS; protocol/wire_results.py translates between the two.
RESOURCE_NOT_FOUND = -32002

# 2025-11-25 client/elicitation "URL Elicitation Required Error". From 2026-07-28 on it must not
# be sent; protocol/wire_results.py replaces it.
URL_ELICITATION_REQUIRED = -32042

# Our own code. MCP 2026-07-28 asks that new codes lie outside -32768..-32000. The error's data
# names the limit that was reached.
BUSY = -31001


class ConcertinoError(Exception):
    """Root of all exceptions that concertino raises on purpose."""


class RegistrationError(ConcertinoError):
    """A tool, resource, prompt, server or library is declared wrongly: a mistake of its author.

    The text says what is wrong, where, and what to write instead.
    """


class NotRegistered(ConcertinoError, KeyError):
    """No tool, prompt or resource is registered under this name, so it cannot be removed or hidden.

    The text contains the closest name that is registered.
    """

    def __str__(self) -> str:
        # KeyError would put the text into quotes.
        return str(self.args[0])


class TargetError(ConcertinoError):
    """A command-line target contains no server, or needs an extra that is not installed.

    The text names the target and what was found there, or the command that installs the extra.
    """


class ToolError(ConcertinoError):
    """Raise it in a tool to tell the caller what went wrong, in your own words.

        raise ToolError("there is no shelf for 'apples'")
        raise ToolError(
            "TEMPLATE_NOT_FOUND",
            "Template not found",
            suggestion="Use a or b",
            available=["a", "b"],
        )

    The text becomes the content of a result with `isError: true`, which the model sees. If a code
    precedes the text, or keyword arguments follow it, the content is a JSON object that programs
    can read: `error` (the text), `code` (`TOOL_FAILED` unless given), `suggestion`, and all other
    keyword arguments under their own names. Any other exception also becomes such a result, but
    as `TypeName: text`, shortened and redacted, with the traceback in the log.

    body: the JSON object; None for a text alone. str() returns the text.
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
        # With one positional argument, that argument is the text and there is no code.
        super().__init__(*((code,) if message is None else (code, message)))
        self.message = str(code if message is None else message)

        self.body: dict[str, Any] | None = None
        if message is not None or suggestion is not None or extra:
            own = {"error": self.message, "code": "TOOL_FAILED" if message is None else code}
            if suggestion is not None:
                own["suggestion"] = suggestion
            # Our own keys come first and cannot be overwritten by keyword arguments.
            self.body = {**own, **extra, **own}

    @property
    def code(self) -> str | None:
        """Return the `code` of the body; None for a text alone."""
        return None if self.body is None else self.body["code"]

    def __str__(self) -> str:
        return self.message


class RpcError(ConcertinoError):
    """A JSON-RPC error response.

    code: an integer; see the constants above and JSON-RPC 2.0 section 5.1. message: one short
    sentence. data: any JSON value; None for none. A backend raises it to send an error response;
    `RawClient.request` raises it when it receives one.
    """

    def __init__(
        self,
        code: int,
        message: str,
        data: object = None,
    ) -> None:
        super().__init__(code, message, data)
        self.code = code
        self.message = message
        self.data = data

    def __str__(self) -> str:
        return f"{self.message} ({self.code})"


class ResourceNotFound(RpcError):
    """No resource exists under this URI.

    Raise it in the function of a resource or return None there, which has the same effect. The
    caller gets -32602 (-32002 before 2026-07-28) with the URI in the data; see 2026-07-28
    server/resources "Error Handling".
    """

    def __init__(self, uri: str = "") -> None:
        super().__init__(INVALID_PARAMS, "Resource not found", {"uri": uri})
        self.uri = uri


class MissingCapability(RpcError):
    """The client did not declare the capability that a client request needs.

    required: the capabilities object that the client would have to declare. Catch it to go on
    without the client's answer. If it is not caught, the caller gets -32021 with
    `data.requiredCapabilities` (2026-07-28 basic/index "Error codes"); before 2026-07-28 a tool
    returns its text with `isError`.
    """

    def __init__(self, text: str, required: Mapping[str, object]) -> None:
        super().__init__(MISSING_CAPABILITY, text, {"requiredCapabilities": required})
        self.required = required


class InvalidClientResponse(RpcError):
    """The client answered a client request with something that does not fit the request.

    The text names the request, what was expected and what arrived. If it is not caught, the caller
    gets -32602; before 2026-07-28 a tool returns its text with `isError`.
    """

    def __init__(self, text: str) -> None:
        super().__init__(INVALID_PARAMS, f"Invalid params: inputResponses: {text}")


class Suspended(BaseException):
    """Ends one round of a call: the client's answer arrives with a later request.

    Context.ask and everything built on it raise it. Do not catch it, as with CancelledError.
    `finally` blocks run in every round.
    """


class SpawnError(ConcertinoError):
    """A program could not be started.

    The text names the program, the places where it was searched for, and the reason.
    """


class NotSupported(ConcertinoError):
    """The server has not declared this feature, so nothing was sent.

    The text says what the server declares.
    """


class TimedOut(ConcertinoError, TimeoutError):
    """No response arrived within the time limit. The text names the request and the limit.

    Raised locally. The peer gets a cancellation, because the response is no longer needed.
    """


class ProtocolError(ConcertinoError):
    """The peer sent something the protocol forbids, e.g. a malformed result or an unknown request.

    The text quotes the beginning of the message.
    """


class Incompatible(ProtocolError):
    """The peers have no protocol revision in common. The text names the revisions of the peer."""


class NotAServer(ProtocolError):
    """The program that was started, or that listens, is no MCP server.

    It repeats what it is sent, as `cat` does, or prints text and answers no request. The text names
    its command and quotes its first line.
    """


class Disconnected(ConcertinoError):
    """The connection ended before the response arrived (MCP 2026-07-28 basic/index).

    Raised locally, never sent. exit_status: of the server's process if it has one that ended: its
    exit code, or minus the number of the signal that ended it. stderr: the end of the process's
    stderr output, without secrets. The text contains both.
    """

    def __init__(
        self,
        text: str,
        exit_status: int | None = None,
        stderr: str = "",
    ) -> None:
        super().__init__(text)
        self.exit_status = exit_status
        self.stderr = stderr


def invalid_params(details: str) -> RpcError:
    """Return the error for params that do not fit.

    details: the member, the expected value and the actual value.
    """
    return RpcError(INVALID_PARAMS, "Invalid params", {"details": details})


def unknown_name(kind: str, name: str, member: str = "name") -> RpcError:
    """Return the error for a tool, prompt or template that does not exist.

    member: the member of the params that holds the name.
    """
    # Imported here, because a server that gets only known names is made faster without it.
    from concertino.excerpts import shorten_name

    name = shorten_name(name)
    return RpcError(
        INVALID_PARAMS,
        f"Unknown {kind}: {name}",
        {"details": f"{member}: there is no {kind} {name!r}"},
    )
