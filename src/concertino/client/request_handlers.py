"""RequestHandlers: answers the requests of a server to its client, with the user's functions.

The server sends three kinds: elicitation (filling in a form or opening a URL), sampling (asking a
model) and listing roots. A request for which the user has passed no function to Client is refused.
Before the values of a form are sent, the form's defaults are added and all values are checked. This
module opens no URL: the user's function may do so, after it has asked a person.
Spec: 2026-07-28 client/elicitation, client/sampling, client/roots.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from inspect import isawaitable
from typing import Any

from msgspec import Raw
from msgspec.json import decode, encode

from concertino.client.elicitation_filler import fill_form
from concertino.decode_errors import DECODE_ERRORS
from concertino.errors import INTERNAL_ERROR, INVALID_PARAMS, METHOD_NOT_FOUND, RpcError
from concertino.types.client_requests import (
    CLIENT_REQUESTS,
    CreateMessageResult,
    Elicitation,
    ElicitResult,
    ListRootsResult,
    Root,
    Sampling,
)
from concertino.types.results import Implementation, TextContent

__all__ = ["AnswerAny", "Elicit", "RequestHandlers", "Roots", "Sample"]

log = logging.getLogger("concertino.client")

# The types of the user's functions `elicit` and `sample`. Their arguments are the request, and the
# server's name and version.
Elicit = Callable[[Elicitation, Implementation], object]
Sample = Callable[[Sampling, Implementation], object]
# The type of a user's function that takes the method and the undecoded params of a client request,
# and returns the undecoded result.
AnswerAny = Callable[[str, bytes], Awaitable[bytes]]
# file:// URIs or Roots, or a function that returns them.
Roots = Sequence[Root | str] | Callable[[], Sequence[Root | str] | Awaitable[Sequence[Root | str]]]


class RequestHandlers:
    """Answers the server's requests with the user's functions, and tells the client's capabilities.

    The parameters are arguments of Client. None: the user has not passed this function.

    elicit: lets the user fill in a form, or open a URL if elicit_urls is True.
    sample: asks a model.
    sampling: the content of the capability `sampling`.
    roots: file:// URIs or Roots, or a function that returns them.
    answer_any: a function that answers all requests of the server, in place of the functions above.
    capabilities: the client capabilities to declare; None to declare a capability for each function
        that was passed.
    Raises ValueError for a root that does not begin with file://.
    """

    def __init__(
        self,
        elicit: Elicit | None,
        elicit_urls: bool,
        sample: Sample | None,
        sampling: Mapping[str, Any] | None,
        roots: Roots | None,
        answer_any: AnswerAny | None = None,
        capabilities: Mapping[str, Any] | None = None,
    ) -> None:
        if roots is not None and not callable(roots):
            _parse_roots(roots)
        self._roots = roots
        self._answer_any = answer_any
        self._capabilities = capabilities
        self._elicit = elicit
        self._elicit_urls = elicit_urls
        self._sample = sample
        self._sampling = sampling or {}

    @property
    def has_roots(self) -> bool:
        """Return whether this client offers roots."""
        return self._roots is not None

    def replace_roots(self, roots: Roots) -> None:
        """Replace the roots. Raises ValueError for a URI that does not begin with file://."""
        if not callable(roots):
            _parse_roots(roots)
        self._roots = roots

    def capabilities(self) -> dict[str, Any]:
        """Return the capabilities to declare to the server."""
        if self._capabilities is not None:
            return dict(self._capabilities)
        capabilities: dict[str, Any] = {}
        if self._elicit is not None:
            modes = ("form", "url") if self._elicit_urls else ("form",)
            capabilities["elicitation"] = {mode: {} for mode in modes}
        if self._sample is not None:
            capabilities["sampling"] = dict(self._sampling)
        if self._roots is not None:
            capabilities["roots"] = {}
        return capabilities

    async def answer(
        self,
        method: str,
        params: bytes | Raw,
        server: Implementation,
    ) -> bytes:
        """Answer one request of the server, such as elicitation/create. Returns the result as JSON.

        method, params: the method and the undecoded params of the request.
        server: the server's name and version, for the user's function.
        With `answer_any`, calls this function and raises its exceptions unchanged. Otherwise raises
        RpcError, which the caller sends to the server as the error response:

        - if the client has not declared the capability for this request,
        - if the params are malformed,
        - if the user's function returns an invalid value or raises an exception. An RpcError of the
          function is raised unchanged. Other exceptions are logged.
        """
        if self._answer_any is not None:
            return await self._answer_any(method, bytes(params))
        if CLIENT_REQUESTS.get(method, "") not in self.capabilities():
            raise RpcError(
                METHOD_NOT_FOUND, f"method not found: {method[:200]} was not offered by this client"
            )
        try:
            if method == "elicitation/create":
                return await self._answer_elicitation(decode(params, type=Elicitation), server)
            if method == "sampling/createMessage":
                return await self._answer_sampling(decode(params, type=Sampling), server)
            return encode(ListRootsResult(await self._list_roots()))
        except DECODE_ERRORS as exc:
            raise RpcError(INVALID_PARAMS, f"Invalid params: {exc}") from None

    async def _answer_elicitation(self, request: Elicitation, server: Implementation) -> bytes:
        """Return the result of elicitation/create.

        Raises RpcError, and one of DECODE_ERRORS for a malformed form.
        """
        is_url = request.mode == "url"
        if is_url and not self._elicit_urls:
            raise RpcError(INVALID_PARAMS, "Invalid params: mode: this client did not offer url")
        if is_url and not request.url:
            raise RpcError(INVALID_PARAMS, "Invalid params: url: missing")

        answer = _elicit_result(await _call("elicit", self._elicit, request, server))
        if answer.action != "accept" or is_url:
            return encode(ElicitResult(answer.action))
        try:
            values = fill_form(request.requested_schema or {}, answer.content or {})
            return encode(ElicitResult("accept", values))
        except DECODE_ERRORS:
            # The form itself is malformed, which is the server's fault. Most of these are
            # subclasses of ValueError.
            raise
        except ValueError as exc:
            # No traceback: a person may have entered the values, so this is probably no bug.
            log.error("the answer to a form does not fit it: %s", exc)
            raise RpcError(
                INTERNAL_ERROR, "Internal error: the answer does not fit the form"
            ) from None

    async def _answer_sampling(self, request: Sampling, server: Implementation) -> bytes:
        """Return the result of sampling/createMessage. Raises RpcError."""
        if (request.tools or request.tool_choice) and "tools" not in self._sampling:
            raise RpcError(
                INVALID_PARAMS, "Invalid params: tools: this client did not offer sampling.tools"
            )
        answer = await _call("sample", self._sample, request, server)
        if isinstance(answer, str):
            content = TextContent(answer)
            answer = CreateMessageResult(
                "assistant", content, model="unknown", stop_reason="endTurn"
            )
        if not isinstance(answer, CreateMessageResult):
            raise _wrong_answer("sample", "a str or a CreateMessageResult", answer)
        return encode(answer)

    async def _list_roots(self) -> list[Root]:
        """Return the roots, from the user's function if there is one. Raises RpcError."""
        roots: Any = self._roots
        if callable(roots):
            roots = await _call("roots", roots)
        try:
            return _parse_roots(roots)
        except (TypeError, ValueError) as exc:
            raise _wrong_answer("roots", "file:// URIs", exc) from None


def _elicit_result(answer: object) -> ElicitResult:
    """Convert the return value of the user's function `elicit`.

    Raises RpcError if the value is invalid.
    """
    if isinstance(answer, ElicitResult):
        return answer
    if isinstance(answer, Mapping):
        return ElicitResult("accept", dict(answer))  # pyright: ignore[reportUnknownArgumentType]
    if answer is None:
        return ElicitResult("cancel")
    if answer in ("accept", "decline", "cancel"):
        return ElicitResult(answer)  # pyright: ignore[reportArgumentType]  # one of the three
    expected = "a dict, 'accept', 'decline', 'cancel', None or an ElicitResult"
    raise _wrong_answer("elicit", expected, answer)


def _parse_roots(roots: Sequence[Root | str]) -> list[Root]:
    """Return roots as Structs.

    Raises ValueError for a URI that does not begin with file:// (client/roots).
    """
    if isinstance(roots, str):
        raise ValueError(f"roots: expected a list of file:// URIs, got {roots!r}")
    parsed = [root if isinstance(root, Root) else Root(root) for root in roots]
    for root in parsed:
        if not str(root.uri).startswith("file://"):
            raise ValueError(f"roots: expected a URI that begins with file://, got {root.uri!r}")
    return parsed


async def _call(name: str, handler: Callable[..., object] | None, *args: object) -> object:
    """Call a user's function, `def` or `async def`, and return its result.

    name: the argument of Client with which the function was passed, for the log.
    Raises an RpcError of the function unchanged. Logs any other exception, and raises RpcError
    instead.
    """
    assert handler is not None
    try:
        answer = handler(*args)
        return await answer if isawaitable(answer) else answer
    except RpcError:
        raise
    except Exception as exc:
        log.exception("the %s function of this client failed", name)
        raise RpcError(INTERNAL_ERROR, "Internal error: the client could not answer") from exc


def _wrong_answer(name: str, expected: str, got: object) -> RpcError:
    """Log that a user's function has returned an invalid value, and return the error to send.

    The error does not quote the value, which the server must not see.
    name: the argument of Client with which the function was passed.
    got: the value, or an exception that describes it.
    """
    log.error("the %s function of this client: expected %s, got %r", name, expected, got)
    return RpcError(INTERNAL_ERROR, "Internal error: the client could not answer")
