"""All exceptions that concertino raises, and the JSON-RPC error codes that it sends.

    ConcertinoError              the root: catches everything that concertino raises on purpose
    ├── RegistrationError        a tool, resource, prompt, server or library is declared wrongly
    ├── NotRegistered            nothing is registered under a name; also a KeyError
    ├── TargetError              a command-line target contains no server, or an extra is missing
    ├── ToolError                raised by a tool; the client gets its text as an `isError` result
    ├── RpcError                 a JSON-RPC error response, sent or received
    │   ├── ResourceNotFound     no resource has the requested URI
    │   ├── MissingCapability    the client lacks the capability that a client request needs
    │   ├── InsufficientScope    the caller's token lacks a scope that the operation needs
    │   └── InvalidClientResponse  the client answered a client request with a malformed response
    ├── AuthorizationError       access to a server over HTTP was not obtained
    │   └── LoginRequired        a person has to log in first
    ├── SpawnError               a program could not be started
    ├── NotSupported             the server has not declared the feature
    ├── TimedOut                 no response arrived in time; also a TimeoutError
    ├── ProtocolError            the other side violated the protocol
    │   ├── Incompatible         client and server have no protocol revision in common
    │   └── NotAServer           the program is not an MCP server
    └── Disconnected             the connection ended before the response arrived

    BaseException
    └── Suspended                ends a handler until the client has answered; never catch it

Mistakes of the program itself (RegistrationError, NotRegistered, TargetError, SpawnError,
NotSupported) and misbehaviour of the other side (ProtocolError) have different types. The protocol
layer (concertino.jsonrpc and concertino.protocol) raises none of these for malformed input.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

__all__ = [
    "BUSY",
    "HEADER_MISMATCH",
    "HTTP_FAILURE",
    "INSUFFICIENT_SCOPE",
    "INTERNAL_ERROR",
    "INVALID_PARAMS",
    "INVALID_REQUEST",
    "METHOD_NOT_FOUND",
    "MISSING_CAPABILITY",
    "PARSE_ERROR",
    "RESOURCE_NOT_FOUND",
    "UNSUPPORTED_VERSION",
    "URL_ELICITATION_REQUIRED",
    "AuthorizationError",
    "ConcertinoError",
    "Disconnected",
    "Incompatible",
    "InsufficientScope",
    "InvalidClientResponse",
    "LoginRequired",
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
HEADER_MISMATCH = -32020
MISSING_CAPABILITY = -32021
UNSUPPORTED_VERSION = -32022

# Up to 2025-11-25: server/resources "Error Handling". Since 2026-07-28 INVALID_PARAMS replaces this
# code; protocol/wire_results.py translates between the two.
RESOURCE_NOT_FOUND = -32002

# Only in 2025-11-25: client/elicitation "URL Elicitation Required Error". Since 2026-07-28 it must
# not be sent; protocol/wire_results.py replaces it.
URL_ELICITATION_REQUIRED = -32042

# A limit is reached; the error's data names the limit. This code and the next two are concertino's
# own. MCP 2026-07-28 asks that such codes lie outside of -32768..-32000.
BUSY = -31001

# A server with a URL has not answered with JSON-RPC, because the HTTP status reports a failure or
# the connection was lost. The error's data contains the status.
HTTP_FAILURE = -31002

# The caller's token lacks scopes; the error's data names the scopes that the operation needs. Over
# HTTP the response has the status 403.
INSUFFICIENT_SCOPE = -31003


class ConcertinoError(Exception):
    """The base class of all exceptions that concertino raises on purpose."""


class RegistrationError(ConcertinoError):
    """The author of a tool, resource, prompt, server or library has declared it wrongly.

    The text says what is wrong, where, and what to write instead.
    """


class NotRegistered(ConcertinoError, KeyError):
    """Raised by methods that remove or hide a tool, prompt or resource that is not registered.

    The text suggests the most similar registered name, if there is a similar one.
    """

    def __str__(self) -> str:
        # KeyError.__str__ would return the repr of the text, in quotes.
        return str(self.args[0])


class TargetError(ConcertinoError):
    """The target of a command such as `concertino serve` contains no server.

    Also raised if the target needs an extra (an optional dependency of concertino) that is not
    installed. The text names the target and what was found there, or the command that installs the
    extra.
    """


class ToolError(ConcertinoError):
    """Raised by a tool to tell its caller what went wrong.

        raise ToolError("there is no shelf for 'apples'")
        raise ToolError(
            "TEMPLATE_NOT_FOUND",
            "Template not found",
            suggestion="Use a or b",
            available=["a", "b"],
        )

    Pass the text alone, or a code and the text; keyword arguments may follow in both cases. The
    text becomes the content of a result with `isError: true`, which the model sees. If a code or
    keyword arguments are passed, the content is a JSON object instead, which programs can read. Its
    members are `error` (the text), `code` (`TOOL_FAILED` if none was passed), `suggestion` (what
    the caller can do), and all other keyword arguments under their own names.

    If a tool raises an exception of another class, the client gets a result with `isError: true`
    and the text `TypeName: text`, shortened and without secrets. The traceback is logged.

    Attributes:
    message: the text, which str() returns too.
    body: the JSON object; None if only a text was passed.
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
        is_text_only = message is None and suggestion is None and not extra
        # A single positional argument is the text and not the code.
        if message is None:
            super().__init__(code)
            code, message = "TOOL_FAILED", code
        else:
            super().__init__(code, message)
        self.message = str(message)

        self.body: dict[str, Any] | None = None
        if not is_text_only:
            own = {"error": self.message, "code": code}
            if suggestion is not None:
                own["suggestion"] = suggestion
            # The first `own` puts these keys first; the second one protects them from `extra`.
            self.body = {**own, **extra, **own}

    @property
    def code(self) -> str | None:
        """Return the `code` in the body; None if there is only a text."""
        return None if self.body is None else self.body["code"]

    def __str__(self) -> str:
        return self.message


class RpcError(ConcertinoError):
    """A JSON-RPC error response.

        raise RpcError(INVALID_PARAMS, "Invalid params", {"details": "uri: expected str"})

    A handler or backend raises it to send an error response. A client raises it when it receives
    one.

    code: an integer, usually a constant of concertino.errors, such as INVALID_PARAMS.
    message: one short sentence.
    data: any JSON value; None for no data.

    Attribute:
    revision: if a proxy passes on the error of a server, the protocol revision of that server;
        otherwise "". It decides whether the code is translated for the client, because some codes
        differ between revisions.
    """

    def __init__(
        self,
        code: int,
        message: str,
        data: object = None,
    ) -> None:
        super().__init__(code, message, data)
        self.revision = ""
        self.code = code
        self.message = message
        self.data = data

    def __str__(self) -> str:
        return f"{self.message} ({self.code})"


class ResourceNotFound(RpcError):
    """There is no resource with this URI.

    The function of a resource template raises it, or returns None, if it has no resource for the
    requested URI. The client gets the error -32602, or -32002 before MCP 2026-07-28. The data of
    the error contains the URI (server/resources "Error Handling").

    uri: the URI; "" for the URI that the client has requested.
    """

    def __init__(self, uri: str = "") -> None:
        super().__init__(INVALID_PARAMS, "Resource not found", {"uri": uri})
        self.uri = uri


class MissingCapability(RpcError):
    """The client has not declared the capability that a client request needs.

    The methods elicit(), sample(), roots() and ask() of Context send a client request, which is a
    request of a server to its client, and raise this error. A handler may catch it to continue
    without the client's answer. Otherwise the client gets the error -32021 with
    `data.requiredCapabilities` (MCP 2026-07-28 basic/index "Error codes"). A client of an earlier
    revision that has called a tool gets a result with `isError` and the text of this error instead.

    required: the capabilities that the client would have to declare, such as {"roots": {}}.
    """

    def __init__(self, text: str, required: Mapping[str, object]) -> None:
        super().__init__(MISSING_CAPABILITY, text, {"requiredCapabilities": required})
        self.required = required


class InsufficientScope(RpcError):
    """The caller's token lacks a scope that the call needs.

    A server raises it for a tool, prompt or resource with the option `scopes`. A handler raises it
    if the needed scopes depend on the arguments. Over HTTP the response has the status 403 and
    names the scopes, so that the client can ask its user for them. On other connections the client
    gets the error -31003.

    scopes: all scopes that the call needs, such as {"files:write"}.
    Raises ValueError for a scope that is empty, or contains a character that a scope may not have:
    a blank, a quote, a backslash, a control character or a character outside ASCII (RFC 6749,
    section 3.3).
    """

    def __init__(self, scopes: Collection[str]) -> None:
        self.scopes = check_scopes(scopes)
        super().__init__(INSUFFICIENT_SCOPE, "Insufficient scope", {"scopes": sorted(self.scopes)})


class InvalidClientResponse(RpcError):
    """The client has answered a client request, such as an elicitation, with a malformed response.

    The methods elicit(), sample(), roots() and ask() of Context raise it. The text names the
    request, the expected and the actual value. If the handler does not catch this error, the client
    gets the error -32602. A client of a revision before MCP 2026-07-28 that has called a tool gets
    a result with `isError` and the text of this error instead.
    """

    def __init__(self, text: str) -> None:
        super().__init__(INVALID_PARAMS, f"Invalid params: inputResponses: {text}")


class Suspended(BaseException):
    """Ends a handler that needs an answer from its client. A handler must not catch it.

    The methods ask(), elicit(), sample() and roots() of Context raise it if the client uses MCP
    2026-07-28 or later. Such a client gets the question as the result of its call, and repeats the
    call with the answer. The handler then runs again from its start, and this time the method
    returns the answer. `finally` blocks run each time.
    """


class AuthorizationError(ConcertinoError):
    """A client could not get or use an access token for a server over HTTP.

    The text says what the user can do, such as `concertino login URL`, if anything. It contains no
    token and no authorization code.
    """


class LoginRequired(AuthorizationError):
    """A server over HTTP needs an access token, and a person has to log in to get one.

    command: the command with which the person logs in, `concertino login ...`.
    """

    def __init__(self, text: str, command: str) -> None:
        super().__init__(text)
        self.command = command


class SpawnError(ConcertinoError):
    """A program could not be started.

    The text names the program, the places where it was searched for, and the reason.
    """


class NotSupported(ConcertinoError):
    """The server has not declared the feature that a request needs, so the client has not sent it.

    The text names the features that the server has declared.
    """


class TimedOut(ConcertinoError, TimeoutError):
    """No response arrived within the time limit. The text names the request and the limit.

    The side that waits for the response raises it. Usually it also sends notifications/cancelled to
    the other side.
    """


class ProtocolError(ConcertinoError):
    """The other side has violated the protocol, for example with a malformed result.

    The text quotes the beginning of the message.
    """


class Incompatible(ProtocolError):
    """Client and server have no protocol revision in common.

    The text names the revisions of the other side.
    """


class NotAServer(ProtocolError):
    """The program that a client has started or connected to is not an MCP server.

    The program sends its input back, as `cat` does, or prints text and answers no request. The text
    of the error names the command of the program and quotes the first line that it has sent.
    """


class Disconnected(ConcertinoError):
    """The connection ended before the response arrived (MCP 2026-07-28 basic/index).

    The side that waits for the response raises it. The text contains `exit_status` and `stderr`,
    too.

    exit_status: if the server was a process that has ended, its exit code, or minus the number of
        the signal that has ended it; otherwise None.
    stderr: the last output of that process on stderr, without secrets; "" if there is none.
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


def check_scopes(scopes: Collection[str]) -> frozenset[str]:
    """Return scopes as a set.

    Raises ValueError if `scopes` is a single str instead of a collection, or contains a string that
    is not a scope (RFC 6749, section 3.3).
    """
    if isinstance(scopes, str):
        raise ValueError(f"scopes: expected a set such as {{{scopes!r}}}, got the text {scopes!r}")
    # The type is Any, because authors may pass anything.
    items: Collection[Any] = scopes
    for scope in items:
        is_text = isinstance(scope, str) and scope
        if not is_text or not all(map(_is_scope_character, scope)):
            raise ValueError(
                f"scopes: expected texts of printable ASCII without blanks, quotes and "
                f"backslashes, got {scope!r}"
            )
    return frozenset(scopes)


def _is_scope_character(char: str) -> bool:
    """Return whether a scope may contain a character."""
    return "!" <= char <= "~" and char not in '"\\'


def invalid_params(details: str) -> RpcError:
    """Return the RpcError -32602 for invalid params.

    details: a text for the client: which of the params is wrong, and what was expected.
    """
    return RpcError(INVALID_PARAMS, "Invalid params", {"details": details})


def unknown_name(kind: str, name: str, member: str = "name") -> RpcError:
    """Return the RpcError -32602 for a tool, prompt or template that does not exist.

    kind: the kind of thing that does not exist, such as "tool".
    name: the name that the client has sent.
    member: the path of the name in the params, such as "name" or "ref.name".
    """
    # Imported here, because the import takes time and a server rarely needs it.
    from concertino.excerpts import shorten_name

    name = shorten_name(name)
    return RpcError(
        INVALID_PARAMS,
        f"Unknown {kind}: {name}",
        {"details": f"{member}: there is no {kind} {name!r}"},
    )
