"""Implements the methods of Context that ask the client something: ask, elicit, sample, roots.

A "question" is a client request: an elicitation, a sampling or a roots request. How it reaches the
client depends on the client's revision of MCP:

- Before MCP 2026-07-28, the server sends a JSON-RPC request for each question, and the handler
  waits for the responses.
- Since 2026-07-28, ask() raises Suspended, which ends the handler. The call's response says
  `input_required` and lists the questions. The client repeats the call with its answers; the
  handler runs again from its start, and ask() then returns the answers at once.

protocol/dialogue.py stores the questions and answers of a call, protocol/client_request_forms.py
translates the questions, and schema/elicitation_form.py turns a class into a form. CallContext
imports this module when a call first asks its client something.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from functools import cache, partial
from inspect import isawaitable
from pathlib import Path
from time import time
from typing import Any, Literal
from urllib.parse import urlsplit

from msgspec import Raw
from msgspec.json import Decoder, decode

from concertino.backend.interface import Context
from concertino.errors import INTERNAL_ERROR, InvalidClientResponse, RpcError, Suspended, TimedOut
from concertino.jsonrpc.messages import Id
from concertino.jsonrpc.outgoing_requests import OutgoingRequest
from concertino.protocol.client_request_forms import to_wire_request, translate_request
from concertino.protocol.dialogue import Dialogue
from concertino.protocol.request_profile import SessionRequest
from concertino.protocol.seal import LIFETIME_S, Seal, UsedStates
from concertino.protocol.session import Session
from concertino.runtime.call_connection import CallConnection
from concertino.runtime.state_keys import derive_keys
from concertino.runtime.thread_waits import wait_in_thread
from concertino.schema.elicitation_form import form_of
from concertino.schema.json_values import encode_finite
from concertino.transports.addresses import is_loopback
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
    "open_record",
    "process_seal",
    "roots",
    "sample",
    "send_questions",
    "wait",
]

log = logging.getLogger("concertino.host")

# The environment variable with the path of the file for FileUsedStates, or with the address of the
# servers for NatsUsedStates.
STATE_RECORD = "CONCERTINO_STATE_RECORD"
# The environment variable with the directory of the certificate with which this process identifies
# itself to the NATS servers.
STATE_CERTS = "CONCERTINO_STATE_CERTS"
# An error message shows at most this many characters of a client's answer.
SHOWN_CHARS = 200

_decode_elicit_result = Decoder(ElicitResult).decode
_decode_sample_result = Decoder(CreateMessageResult).decode
_decode_roots = Decoder(ListRootsResult).decode


@cache
def process_seal() -> Seal:
    """Return the Seal (protocol/seal.py) that signs each `requestState` that this process sends.

    The Seal signs with a key that is derived from the secret in CONCERTINO_STATE_KEY; without that
    variable, with a random key. Processes with the same secret accept each other's states. To
    accept each state only once, they need a shared record of the used states, whose path or address
    is in CONCERTINO_STATE_RECORD.
    Raises RpcError if the secret is too short, or if the record cannot be used.
    """
    # The two variables are not checked at the start of the server, so that only calls that ask
    # their client fail.
    place = os.environ.get(STATE_RECORD)
    try:
        keys = derive_keys("requestState")
        record = open_record(place) if keys and place else None
    except (ValueError, OSError) as exc:
        log.error("a client cannot be asked: %s", exc)
        text = "Internal error: the client could not be asked"
        raise RpcError(INTERNAL_ERROR, text) from None
    if not keys:
        return Seal(os.urandom(32), clock=time, random=os.urandom)
    return Seal(keys[0], clock=time, random=os.urandom, old_keys=keys[1:], record=record)


def open_record(place: str) -> UsedStates:
    """Return a record shared by several processes, so that no `requestState` is used twice.

    place: the path of a file, or the address of NATS servers (nats:// or tls://).
    Raises ValueError or OSError if the record cannot be used.
    """
    if place.startswith(("nats://", "tls://")):
        from concertino.nats.used_states import NatsUsedStates

        certs = os.environ.get(STATE_CERTS)
        return NatsUsedStates(place, Path(certs) if certs else None)
    from concertino.runtime.used_states import FileUsedStates

    return FileUsedStates(Path(place))


async def ask(
    session: Session, request: SessionRequest, questions: Mapping[str, ClientRequest]
) -> Mapping[str, Raw]:
    """Ask the client several questions at once, and return its undecoded answers by key.

    request: the request of the call whose handler asks.
    questions: key -> a request to the client: an Elicitation, Sampling or ListRoots.
    Raises CancelledError if the call has ended. Since MCP 2026-07-28, raises Suspended if an answer
    is missing: this exception must end the handler, and the client then repeats the call with the
    answers. Before 2026-07-28, raises the exceptions of send_questions(), such as TimedOut.
    """
    if not request.open:
        raise asyncio.CancelledError
    dialogue = session.dialogues.open(request)
    revision = request.profile.encoder.revision
    wire_requests = {
        key: translate_request(
            to_wire_request(question),
            revision,
            request.profile.client,
            # A function, because few questions need an id, and making one imports a module.
            partial(dialogue.elicitation_id, key),
        )
        for key, question in questions.items()
    }
    # ask() returns None while an answer is missing.
    while (answers := dialogue.ask(wire_requests)) is None:
        if revision.modern:
            dialogue.suspended = True
            raise Suspended
        await send_questions(session, dialogue, wire_requests, request.id)
    return answers


async def send_questions(
    session: Session, dialogue: Dialogue, keys: Collection[str], call_id: Id
) -> None:
    """Send the questions (client requests) with these keys to the client, and wait for all answers.

    Only for revisions before MCP 2026-07-28.
    If another task of the handler already waits for the answer to one of the questions, this
    function sends no question. It waits for that task, and returns. Therefore the caller must check
    `dialogue` after each call, and call this function again while answers are missing.

    dialogue: the questions and answers of the call. dialogue.ask() has put the questions into
        `unanswered`; this function adds the answers.
    call_id: the id of the call whose handler asks.

    Raises RpcError when the client responds with an error, InvalidClientResponse for a malformed
    answer, TimedOut after ten minutes, and Disconnected. After an exception or a cancellation,
    notifications/cancelled is sent for the questions without an answer.
    """
    # waits.client_answers: key of a question that was sent -> a future that is done when it needs
    # no answer any more.
    sent_elsewhere = {
        dialogue.waits.client_answers[key] for key in keys if key in dialogue.waits.client_answers
    }
    if sent_elsewhere:
        await asyncio.wait(sent_elsewhere)
        return

    dialogue.count_round()
    loop = asyncio.get_running_loop()
    # Other tasks of the handler that ask one of these questions wait for this future.
    done_here: asyncio.Future[None] = loop.create_future()
    futures: dict[str, asyncio.Future[Raw]] = {}
    outgoing: list[OutgoingRequest] = []
    try:
        for key in keys:
            if (question := dialogue.unanswered.get(key)) is not None:
                dialogue.waits.client_answers[key] = done_here
                futures[key] = future = loop.create_future()
                on_response = partial(_set_outcome, future, question.method)
                outgoing.append(session.send_client_request(question, on_response, call_id))
        # A question is as old as the state that a client of MCP 2026-07-28 returns with its answer,
        # so the same limit holds.
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
        # abandon() does nothing for a request that was answered.
        for sent_request in outgoing:
            session.peer.abandon(sent_request, "the question needs no answer any more", call_id)
        for key in futures:
            dialogue.unanswered.pop(key, None)
            del dialogue.waits.client_answers[key]
        done_here.set_result(None)


def _set_outcome(future: asyncio.Future[Raw], method: str, outcome: Raw | Exception) -> None:
    """Complete a future with the client's response, or with an exception.

    method: the method of the client request, for the error text.
    """
    if future.done():
        return
    if isinstance(outcome, RpcError):
        # Say that the client has refused: "method not found" alone would seem to mean the tool.
        outcome = RpcError(
            outcome.code, f"the client refused {method}: {outcome.message}", outcome.data
        )
    if isinstance(outcome, Exception):
        future.set_exception(outcome)
        # Reading the exception stops asyncio from logging "exception was never retrieved" if the
        # handler no longer waits.
        future.exception()
    else:
        future.set_result(outcome)


async def once(
    dialogue: Dialogue,
    key: str,
    make: Callable[[], object],
    kind: Any,
) -> Any:
    """Return the value saved under `key`; if there is none, call `make` and save its result.

    Since MCP 2026-07-28, a handler that asks its client runs again from its start when the answers
    come. A saved value is then not computed again.
    dialogue: the Dialogue of the call, which keeps the saved values.
    make: returns the value, or an awaitable of the value. The value must have a JSON form.
    kind: the type of the returned value. The value is saved as JSON and decoded as this type, even
        the first time.
    """
    while (raw := dialogue.saved.get(key)) is None:
        if (done_elsewhere := dialogue.waits.saved_values.get(key)) is not None:
            # Another task of the handler is making the value.
            await asyncio.wait((done_elsewhere,))
            continue
        dialogue.waits.saved_values[key] = done_here = asyncio.get_running_loop().create_future()
        try:
            value = make()
            value = await value if isawaitable(value) else value
            dialogue.saved[key] = Raw(encode_finite(value, f"once({key!r})"))
        finally:
            del dialogue.waits.saved_values[key]
            done_here.set_result(None)
    return decode(raw, type=kind)


def wait(
    connection: CallConnection,
    open_dialogue: Callable[[], Dialogue],
    request: SessionRequest,
    awaitable: Awaitable[Any],
) -> Any:
    """Run an awaitable on the event loop, and block the calling thread until it is done.

    connection, request: the connection and the request of the call whose handler waits.
    open_dialogue: returns the Dialogue of the call, and creates it if there is none. The Dialogue
        records the wait, so that it can be cancelled.
    Returns the result of the awaitable, or raises its exception. Raises CancelledError when the
    client cancels the call, and RuntimeError if the calling thread is the one of the event loop.
    """
    return wait_in_thread(
        awaitable, connection.loop, open_dialogue().waits.threads, lambda: not request.open
    )


# The following functions implement the methods of Context that ask the client one question each.
# `context` is the handler's context, or a wrapper around it. `key` is the key of the question.


async def elicit(
    context: Context,
    message: str,
    form: Any,
    key: str,
) -> Accepted[Any] | Declined:
    """Ask the user of the client to fill in a form.

    message: the question, for the user.
    form: a class whose fields are strings, numbers, bools or choices; or a JSON Schema.
    key: identifies the question in the call.
    Returns Accepted if the user has filled in the form: its `content` is an object of the class, or
    a dict if `form` is a JSON Schema. Returns Declined if the user has declined or cancelled.
    Raises InvalidClientResponse if the answer does not fit the form.
    """
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
    """Ask the user of the client to open a web page, for example to enter a password there.

    message: the question, for the user.
    url: an https:// URL, or an http:// URL of localhost; without a user name or password, and
        without any other secret.
    key: identifies the question. No other question of the call may have the same key.
    Returns the user's answer. `accept` means only that the user has agreed to open the page, not
    that anything was done there.
    Raises ValueError for a URL with another scheme or host, or with a user name or password.
    """
    try:
        parts = urlsplit(url)
        is_local = parts.scheme == "http" and is_loopback(parts.hostname or "")
    except ValueError as exc:
        raise ValueError(f"elicit_url: {url!r} is no URL: {exc}") from None
    is_secure = parts.scheme == "https" or is_local
    if not is_secure or not parts.hostname:
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
    """Ask the client's model to continue a conversation.

    messages: the conversation; a str is a message of the user.
    max_tokens: the maximum length of the model's message, in tokens.
    key: identifies the question in the call.
    options: the other fields of concertino.types.Sampling, such as system_prompt.
    Raises ValueError if a message that uses a tool is not followed by the tool's result.
    """
    texts = [messages] if isinstance(messages, str) else messages
    conversation = [
        SamplingMessage("user", TextContent(item)) if isinstance(item, str) else item
        for item in texts
    ]
    _check_tool_results(conversation)
    answers = await context.ask({key: Sampling(conversation, max_tokens, **options)})
    return _decode_sample_result(answers[key])


def _check_tool_results(messages: Sequence[SamplingMessage]) -> None:
    """Raise ValueError unless the results of all tool uses are in the message right after them.

    Spec: client/sampling "Tool Result Messages", "Tool Use and Result Balance".
    """
    # The ids of the tool uses in the previous message, which need a result now.
    used: set[str] = set()
    for message in messages:
        blocks: list[Any] = (
            message.content if isinstance(message.content, list) else [message.content]
        )
        results = [block.tool_use_id for block in blocks if isinstance(block, ToolResultContent)]
        # Such a message has one result for each tool use, and nothing else.
        is_valid = (
            message.role == "user"
            and len(results) == len(blocks)
            and len(results) == len(used)
            and set(results) == used
        )
        if (results or used) and not is_valid:
            raise ValueError(
                "sample: a message that uses tools must be followed by one of their results, "
                "and only those"
            )
        used = {block.id for block in blocks if isinstance(block, ToolUseContent)}
    if used:
        raise ValueError(
            f"sample: the results of the tools used last are missing: {', '.join(sorted(used))}"
        )


async def roots(context: Context, key: str) -> list[Root]:
    """Ask the client for its roots, the directories and files that this server may use.

    key: identifies the question in the call.
    Raises InvalidClientResponse if a root is not a file:// URI.
    """
    answers = await context.ask({key: ListRoots()})
    items = _decode_roots(answers[key]).roots
    for root in items:
        if not root.uri.startswith("file://"):
            raise InvalidClientResponse(
                f"{key}: expected URIs that begin with file://, got {root.uri[:SHOWN_CHARS]!r}"
            )
    return items
