"""Answers to what a server asks while it works: elicitation, sampling, roots. Given once, used in every revision.

What was not offered is refused, and never reaches anybody. A form's values are completed with its defaults and checked against its
schema before they leave. Nothing here opens a URL: that is the handler's, which has a person to ask.
Spec: 2026-07-28 client/elicitation, client/sampling, client/roots.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from inspect import isawaitable
from typing import Any

from msgspec import DecodeError, Raw
from msgspec.json import Decoder, encode

from concertino.client.elicitation_filler import filled
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

__all__ = ["Elicit", "RequestHandlers", "Roots", "Sample"]

log = logging.getLogger("concertino.client")

Elicit = Callable[[Elicitation, Implementation], object]
Sample = Callable[[Sampling, Implementation], object]
Roots = Sequence[Root | str] | Callable[[], Sequence[Root | str] | Awaitable[Sequence[Root | str]]]

_elicitation = Decoder(Elicitation).decode
_sampling = Decoder(Sampling).decode


class RequestHandlers:
    """What a client offers to answer, and how. See Client for what the functions are given and may return."""

    def __init__(
        self,
        elicit: Elicit | None,
        elicit_urls: bool,
        sample: Sample | None,
        sampling: Mapping[str, Any] | None,
        roots: Roots | None,
    ) -> None:
        if roots is not None and not callable(roots):
            _roots(roots)
        self.roots = roots
        self._elicit = elicit
        self._urls = elicit_urls
        self._sample = sample
        self._sampling = sampling or {}

    def with_roots(self, roots: Roots) -> RequestHandlers:
        """The same, with other roots. Raises ValueError for what is no file:// URI."""
        return RequestHandlers(self._elicit, self._urls, self._sample, self._sampling, roots)

    def capabilities(self) -> dict[str, Any]:
        """What is declared to the server."""
        offered: dict[str, Any] = {}
        if self._elicit is not None:
            offered["elicitation"] = {"form": {}, "url": {}} if self._urls else {"form": {}}
        if self._sample is not None:
            offered["sampling"] = dict(self._sampling)
        if self.roots is not None:
            offered["roots"] = {}
        return offered

    async def answer(self, method: str, params: bytes | Raw, server: Implementation) -> bytes:
        """Answer one question: a JSON object.

        Raises RpcError for what was not offered, cannot be understood, or was refused with one by the handler; also when the
        handler failed, which is logged.
        """
        if CLIENT_REQUESTS.get(method, "") not in self.capabilities():
            raise RpcError(
                METHOD_NOT_FOUND, f"method not found: {method[:200]} was not offered by this client"
            )
        try:
            if method == "elicitation/create":
                return await self._elicited(_elicitation(params), server)
            if method == "sampling/createMessage":
                return await self._sampled(_sampling(params), server)
            return encode(ListRootsResult(await self._given_roots()))
        except (DecodeError, RecursionError) as why:
            raise RpcError(INVALID_PARAMS, f"Invalid params: {why}") from None

    async def _elicited(self, question: Elicitation, server: Implementation) -> bytes:
        if question.mode == "url" and not self._urls:
            raise RpcError(INVALID_PARAMS, "Invalid params: mode: this client did not offer url")
        if question.mode == "url" and not question.url:
            raise RpcError(INVALID_PARAMS, "Invalid params: url: missing")
        said = await _handled("elicit", self._elicit, question, server)
        if isinstance(said, Mapping):
            said = ElicitResult("accept", dict(said))  # pyright: ignore[reportUnknownArgumentType]
        elif said is None:
            said = ElicitResult("cancel")
        elif said in ("accept", "decline", "cancel"):
            said = ElicitResult(said)  # pyright: ignore[reportArgumentType]  # one of the three
        if not isinstance(said, ElicitResult):
            return _wrong(
                "elicit", "a dict, 'accept', 'decline', 'cancel', None or an ElicitResult", said
            )
        if said.action != "accept" or question.mode == "url":
            return encode(ElicitResult(said.action))
        try:
            return encode(
                ElicitResult("accept", filled(question.requested_schema or {}, said.content or {}))
            )
        except DecodeError:  # a ValueError too: the form is none
            raise
        except ValueError as why:
            log.error("the answer to a form does not fit it: %s", why)  # no fault of the program's
            raise RpcError(
                INTERNAL_ERROR, "Internal error: the answer does not fit the form"
            ) from None

    async def _sampled(self, question: Sampling, server: Implementation) -> bytes:
        if (question.tools or question.tool_choice) and "tools" not in self._sampling:
            raise RpcError(
                INVALID_PARAMS, "Invalid params: tools: this client did not offer sampling.tools"
            )
        said = await _handled("sample", self._sample, question, server)
        if isinstance(said, str):
            said = CreateMessageResult(
                "assistant", TextContent(said), model="unknown", stop_reason="endTurn"
            )
        if not isinstance(said, CreateMessageResult):
            return _wrong("sample", "a str or a CreateMessageResult", said)
        return encode(said)

    async def _given_roots(self) -> list[Root]:
        roots: Any = self.roots
        if callable(roots):
            roots = await _handled("roots", lambda *_: self.roots())  # pyright: ignore[reportCallIssue, reportOptionalCall, reportUnknownLambdaType]
        try:
            return _roots(roots)
        except (TypeError, ValueError) as why:
            return _wrong("roots", "file:// URIs", why)


def _roots(roots: Sequence[Root | str]) -> list[Root]:
    """client/roots: every URI must be a file:// one."""
    if isinstance(roots, str):
        raise ValueError(f"roots: expected a list of file:// URIs, got {roots!r}")
    found = [each if isinstance(each, Root) else Root(each) for each in roots]
    for each in found:
        if not str(each.uri).startswith("file://"):
            raise ValueError(f"roots: expected a URI that begins with file://, got {each.uri!r}")
    return found


async def _handled(what: str, handler: Callable[..., object] | None, *arguments: object) -> object:
    assert handler is not None
    try:
        said = handler(*arguments)
        return await said if isawaitable(said) else said
    except RpcError:
        raise
    except Exception as error:
        log.exception("the %s function of this client failed", what)
        raise RpcError(INTERNAL_ERROR, "Internal error: the client could not answer") from error


def _wrong(what: str, expected: str, said: object) -> Any:
    log.error("the %s function of this client: expected %s, got %r", what, expected, said)
    raise RpcError(INTERNAL_ERROR, "Internal error: the client could not answer")
