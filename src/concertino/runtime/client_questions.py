"""Requests of a call to its client, on the event loop: Context.ask and what is built on it.

Loaded when a call first asks its client something. Before 2026-07-28 the questions go out as
requests, and the handler waits for the responses. Since then the handler's round ends here, by
Suspended; the client repeats the call with the answers, the handler runs again from its start and
gets them at once. The rules are in protocol/dialogue.py; schema/elicitation_form.py makes forms of
classes.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import cache, partial
from hashlib import sha256
from inspect import isawaitable
from time import time
from typing import Any, Literal
from urllib.parse import urlsplit

from msgspec import Raw
from msgspec.json import Decoder, decode

from concertino.backend.interface import Context
from concertino.errors import INTERNAL_ERROR, InvalidClientResponse, RpcError, Suspended, TimedOut
from concertino.jsonrpc.requests import OutgoingRequest
from concertino.protocol.dialogue import Dialogue, downgrade_request, to_wire_request
from concertino.protocol.request_profile import SessionRequest
from concertino.protocol.seal import LIFETIME_S, Seal
from concertino.protocol.session import Session
from concertino.runtime.call_connection import CallConnection
from concertino.runtime.thread_waits import wait_in_thread
from concertino.schema.elicitation_form import form_of
from concertino.schema.json_values import encode_finite
from concertino.types.client_requests import (
    Accepted,
    ClientRequest,
    CreateMessageResult,
    Declined,
    Elicitation,
    ElicitResult,
    ListRoots,
    ListRootsResult,
    Root,
    Sampling,
    SamplingMessage,
    ToolResultContent,
    ToolUseContent,
)
from concertino.types.results import TextContent

__all__ = [
    "ask",
    "elicit",
    "elicit_url",
    "once",
    "process_seal",
    "roots",
    "sample",
    "send_questions",
    "wait",
]

log = logging.getLogger("concertino.host")

KEY = "CONCERTINO_STATE_KEY"
MIN_KEY_CHARACTERS = 32
# How many characters of a client's answer an error repeats.
SHOWN = 200
# Hosts of which `elicit_url` accepts plain http.
LOCAL_HOSTS = frozenset(("localhost", "127.0.0.1", "::1"))

_decode_elicit_result = Decoder(ElicitResult).decode
_decode_sample_result = Decoder(CreateMessageResult).decode
_decode_roots = Decoder(ListRootsResult).decode


@cache
def process_seal() -> Seal:
    """Return the Seal of this process's states.

    Its key is random, unless CONCERTINO_STATE_KEY is set. Raises RpcError if that is too short, so
    that only the calls fail that ask their client.
    """
    text = os.environ.get(KEY)
    if text is None:
        return Seal(os.urandom(32), time, os.urandom)
    if len(text) < MIN_KEY_CHARACTERS:
        log.error(
            "a client cannot be asked: CONCERTINO_STATE_KEY: expected at least %d characters, "
            "got %d",
            MIN_KEY_CHARACTERS,
            len(text),
        )
        raise RpcError(INTERNAL_ERROR, "Internal error: the client could not be asked")
    return Seal(sha256(text.encode()).digest(), time, os.urandom)


async def ask(
    session: Session, request: SessionRequest, questions: Mapping[str, ClientRequest]
) -> Mapping[str, Raw]:
    """Return the client's answers by key. See Context.ask."""
    if not request.open:
        raise asyncio.CancelledError
    dialogue = session.dialogues.open(request)
    revision = request.profile.encoder.revision
    wire_requests = {
        key: downgrade_request(
            to_wire_request(question),
            revision,
            request.profile.client,
            partial(dialogue.elicitation_id, key),
        )
        for key, question in questions.items()
    }
    while (answers := dialogue.ask(wire_requests)) is None:
        if revision.modern:
            dialogue.suspended = True
            raise Suspended
        await send_questions(session, dialogue, wire_requests)
    return answers


async def send_questions(session: Session, dialogue: Dialogue, keys: Mapping[str, object]) -> None:
    """Send the dialogue's requests under these keys, all at once, and wait. Before 2026-07-28.

    If the handler is already asking one of them elsewhere, only wait for that, and send nothing.
    Raises RpcError when the client responds with an error, InvalidClientResponse, TimedOut after
    ten minutes, Disconnected. Then, and when the call is cancelled, the others are withdrawn.
    """
    sent_elsewhere = {dialogue.sent_futures[key] for key in keys if key in dialogue.sent_futures}
    if sent_elsewhere:
        await asyncio.wait(sent_elsewhere)
        return

    dialogue.count_round()
    loop = asyncio.get_running_loop()
    done_here: asyncio.Future[None] = loop.create_future()
    futures: dict[str, asyncio.Future[Raw]] = {}
    outgoing: list[OutgoingRequest] = []
    try:
        for key in keys:
            if (question := dialogue.unanswered.get(key)) is not None:
                dialogue.sent_futures[key] = done_here
                futures[key] = future = loop.create_future()
                on_response = partial(_set_outcome, future, question.method)
                outgoing.append(session.send_client_request(question, on_response))
        done, waiting = await asyncio.wait(
            futures.values(), timeout=LIFETIME_S, return_when=asyncio.FIRST_EXCEPTION
        )
        for future in done:
            future.result()
        if waiting:
            raise TimedOut(f"the client has not answered within {LIFETIME_S:g} s")
        for key, future in futures.items():
            dialogue.add_answer(key, future.result())
    finally:
        for request in outgoing:
            session.peer.abandon(request, "the question needs no answer any more")
        for key in futures:
            dialogue.unanswered.pop(key, None)
            del dialogue.sent_futures[key]
        done_here.set_result(None)


def _set_outcome(future: asyncio.Future[Raw], method: str, outcome: Raw | Exception) -> None:
    """Set a client's response, or why there is none, as the outcome of a future."""
    if future.done():
        return
    if isinstance(outcome, RpcError):
        # Name the client and the method: a bare "method not found" would be taken for the tool's.
        outcome = RpcError(
            outcome.code, f"the client refused {method}: {outcome.message}", outcome.data
        )
    if isinstance(outcome, Exception):
        future.set_exception(outcome)
        # Mark the exception as retrieved: nobody may be left to do it.
        future.exception()
    else:
        future.set_result(outcome)


async def once(
    dialogue: Dialogue,
    key: str,
    make: Callable[[], object],
    kind: Any,
) -> Any:
    """Return the value saved under `key`, made first if there is none. See Context.once."""
    while (raw := dialogue.saved.get(key)) is None:
        if (made := dialogue.once_futures.get(key)) is not None:
            await asyncio.wait((made,))
            continue
        dialogue.once_futures[key] = made = asyncio.get_running_loop().create_future()
        try:
            value = make()
            value = await value if isawaitable(value) else value
            dialogue.saved[key] = Raw(encode_finite(value, f"once({key!r})"))
        finally:
            del dialogue.once_futures[key]
            made.set_result(None)
    return decode(raw, type=kind)


def wait(
    connection: CallConnection,
    dialogue: Callable[[], Dialogue],
    request: SessionRequest,
    awaitable: Awaitable[Any],
) -> Any:
    """Return what an awaitable gives, waiting in a thread. See Context.wait."""
    return wait_in_thread(
        awaitable, connection.loop, dialogue().thread_waits, lambda: not request.open
    )


# The methods of Context that ask one question each.


async def elicit(
    context: Context,
    message: str,
    form: Any,
    key: str,
) -> Accepted[Any] | Declined:
    """Ask a person to fill in a form. See Context.elicit."""
    schema, read = form_of(form)
    answers = await context.ask({key: Elicitation(message, requested_schema=schema)})
    reply = _decode_elicit_result(answers[key])
    if reply.action != "accept":
        return Declined(reply.action)
    try:
        return Accepted(read(reply.content or {}))
    except ValueError as exc:
        raise InvalidClientResponse(f"{key}: {exc}") from None


async def elicit_url(
    context: Context,
    message: str,
    url: str,
    key: str,
) -> Literal["accept", "decline", "cancel"]:
    """Ask a person to open a page. See Context.elicit_url."""
    try:
        parts = urlsplit(url)
        secure = parts.scheme == "https" or (
            parts.scheme == "http" and parts.hostname in LOCAL_HOSTS
        )
    except ValueError as exc:
        raise ValueError(f"elicit_url: {url!r} is no URL: {exc}") from None
    if not secure or not parts.hostname:
        raise ValueError(
            f"elicit_url: expected an https:// URL (http:// for this machine), got {url!r}"
        )
    if parts.username is not None or parts.password is not None:
        raise ValueError(
            "elicit_url: the URL holds a user's name or password; "
            "the client, and its model, would see it"
        )
    answers = await context.ask({key: Elicitation(message, "url", url=url)})
    return _decode_elicit_result(answers[key]).action


async def sample(
    context: Context,
    messages: str | Sequence[SamplingMessage | str],
    max_tokens: int,
    key: str,
    options: Mapping[str, Any],
) -> CreateMessageResult:
    """Ask the client's model to continue a conversation. See Context.sample."""
    texts = [messages] if isinstance(messages, str) else messages
    conversation = [
        SamplingMessage("user", TextContent(item)) if isinstance(item, str) else item
        for item in texts
    ]
    _check_tool_results(conversation)
    answers = await context.ask({key: Sampling(conversation, max_tokens, **options)})
    return _decode_sample_result(answers[key])


def _check_tool_results(messages: Sequence[SamplingMessage]) -> None:
    """Raise ValueError unless each use of tools is followed by the results of all, and only them.

    Spec: client/sampling "Tool Result Messages", "Tool Use and Result Balance".
    """
    # The ids of the tool uses in the previous message.
    wanted: set[str] = set()
    for message in messages:
        blocks: list[Any] = (
            message.content if isinstance(message.content, list) else [message.content]
        )
        results = [block.tool_use_id for block in blocks if isinstance(block, ToolResultContent)]
        if (results or wanted) and (
            message.role != "user"
            or len(results) < len(blocks)
            or len(results) != len(wanted)
            or set(results) != wanted
        ):
            raise ValueError(
                "sample: a message that uses tools must be followed by one of their results, "
                "and only those"
            )
        wanted = {block.id for block in blocks if isinstance(block, ToolUseContent)}
    if wanted:
        raise ValueError(
            f"sample: the results of the tools used last are missing: {', '.join(sorted(wanted))}"
        )


async def roots(context: Context, key: str) -> list[Root]:
    """Return the client's roots. See Context.roots."""
    answers = await context.ask({key: ListRoots()})
    items = _decode_roots(answers[key]).roots
    if foreign := next((root.uri for root in items if not root.uri.startswith("file://")), None):
        raise InvalidClientResponse(
            f"{key}: expected URIs that begin with file://, got {foreign[:SHOWN]!r}"
        )
    return items
