"""How a call asks its client, on the event loop: what Context.ask and its sugar do. Imported when a call first asks.

Before 2026-07-28 the questions go out as requests, and the handler waits for the answers. Since then the handler's round ends here,
with Suspended, until the client makes the call again with the answers: then the handler runs from its start, and gets them at once.
protocol/dialogue.py has the rules, schema/elicitation_form.py makes forms of classes.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from concurrent.futures import CancelledError as ThreadCancelled
from functools import cache, partial
from hashlib import sha256
from inspect import isawaitable
from threading import get_ident
from time import time
from typing import Any, Literal
from urllib.parse import urlsplit

from msgspec import Raw
from msgspec.json import Decoder, decode, encode

from concertino.backend.interface import Context
from concertino.errors import InvalidClientResponse, RpcError, Suspended, TimedOut
from concertino.protocol.dialogue import Dialogue, downgrade_request, to_wire_request
from concertino.protocol.seal import LIFETIME_S, Seal
from concertino.schema.elicitation_form import form_of
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

__all__ = ["ask", "elicit", "elicit_url", "once", "process_seal", "put", "roots", "sample", "wait"]

KEY = "CONCERTINO_STATE_KEY"
KEY_CHARACTERS = 32  # at least
SHOWN = 200  # characters of what came that are given back in an error

_elicited = Decoder(ElicitResult).decode
_sampled = Decoder(CreateMessageResult).decode
_roots = Decoder(ListRootsResult).decode


@cache
def process_seal() -> Seal:
    """What closes and opens the states of this process. Its key is random, unless CONCERTINO_STATE_KEY is set.

    Raises ValueError for a key that is too short to be one.
    """
    text = os.environ.get(KEY)
    if text is None:
        return Seal(os.urandom(32), time, os.urandom)
    if len(text) < KEY_CHARACTERS:
        raise ValueError(
            f"CONCERTINO_STATE_KEY: expected at least {KEY_CHARACTERS} characters, got {len(text)}"
        )
    return Seal(sha256(text.encode()).digest(), time, os.urandom)


async def ask(
    link: Any, incoming: Any, questions: Mapping[str, ClientRequest]
) -> Mapping[str, Raw]:
    """See Context.ask. link: a link.Link, incoming: a peer.Incoming; both know much that is none of this file's."""
    if not incoming.open:
        raise asyncio.CancelledError
    dialogue: Dialogue = link.session.dialogue(incoming)
    era = incoming.profile
    asked = {
        key: downgrade_request(
            to_wire_request(question),
            era.encoder.revision,
            era.client,
            partial(dialogue.elicitation_id, key),
        )
        for key, question in questions.items()
    }
    while (found := dialogue.ask(asked)) is None:
        if era.encoder.revision.modern:
            dialogue.suspended = True
            raise Suspended
        await put(link, dialogue, asked)
    return found


async def put(link: Any, dialogue: Dialogue, keys: Mapping[str, object]) -> None:
    """Ask the client what the dialogue has under these keys, all at once, and wait. Before 2026-07-28.

    When one of them is being asked already, from another place of the handler, only that is waited for, and nothing is asked.
    Raises RpcError when the client answers with an error, InvalidClientResponse, TimedOut after ten minutes, Disconnected. Then, and when the
    call is cancelled, the other questions are taken back.
    """
    if others := {dialogue.sent_futures[key] for key in keys if key in dialogue.sent_futures}:
        await asyncio.wait(others)
        return
    dialogue.count_round()
    loop = asyncio.get_running_loop()
    over: asyncio.Future[None] = loop.create_future()
    session = link.session
    futures: dict[str, asyncio.Future[Raw]] = {}
    outgoing: list[Any] = []
    try:
        for key in keys:
            if (question := dialogue.unanswered.get(key)) is not None:
                dialogue.sent_futures[key] = over
                futures[key] = future = loop.create_future()
                outgoing.append(
                    session.send_client_request(
                        question, partial(_settled, future, question.method)
                    )
                )
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
        for each in outgoing:
            session.peer.abandon(each, "the question needs no answer any more")
        for key in futures:
            dialogue.unanswered.pop(key, None)
            del dialogue.sent_futures[key]
        over.set_result(None)


def _settled(future: asyncio.Future[Raw], method: str, outcome: Raw | Exception) -> None:
    if future.done():
        return
    if isinstance(
        outcome, RpcError
    ):  # of the client's: "method not found" alone would be taken for the tool's
        outcome = RpcError(
            outcome.code, f"the client refused {method}: {outcome.message}", outcome.data
        )
    if isinstance(outcome, Exception):
        future.set_exception(outcome)
        future.exception()  # looked at: nobody may be there to do it
    else:
        future.set_result(outcome)


async def once(dialogue: Dialogue, key: str, make: Callable[[], object], kind: Any) -> Any:
    """See Context.once."""
    while (raw := dialogue.saved.get(key)) is None:
        if (made := dialogue.once_futures.get(key)) is not None:
            await asyncio.wait((made,))
            continue
        dialogue.once_futures[key] = made = asyncio.get_running_loop().create_future()
        try:
            value = make()
            dialogue.saved[key] = Raw(encode(await value if isawaitable(value) else value))
        finally:
            del dialogue.once_futures[key]
            made.set_result(None)
    return decode(raw, type=kind)


def wait(
    link: Any, dialogue: Callable[[], Dialogue], incoming: Any, awaitable: Awaitable[Any]
) -> Any:
    """See Context.wait."""
    if get_ident() == link.thread:
        if isinstance(awaitable, Coroutine):
            awaitable.close()
        raise RuntimeError(
            "Context.wait is for `def` handlers, which run in a thread; write `await` instead"
        )
    future = asyncio.run_coroutine_threadsafe(_awaited(awaitable), link.loop)
    waits = dialogue().thread_waits
    waits.add(future)
    if not incoming.open:  # it may have been cancelled before this was added
        future.cancel()
    try:
        return future.result()
    except ThreadCancelled:
        raise asyncio.CancelledError from None
    finally:
        waits.discard(future)


async def _awaited(awaitable: Awaitable[Any]) -> Any:
    return await awaitable


# The sugar: each is one question


async def elicit(context: Context, message: str, form: Any, key: str) -> Accepted[Any] | Declined:
    """See Context.elicit."""
    schema, read = form_of(form)
    answers = await context.ask({key: Elicitation(message, requested_schema=schema)})
    said = _elicited(answers[key])
    if said.action != "accept":
        return Declined(said.action)
    try:
        return Accepted(read(said.content or {}))
    except ValueError as why:
        raise InvalidClientResponse(f"{key}: {why}") from None


async def elicit_url(
    context: Context, message: str, url: str, key: str
) -> Literal["accept", "decline", "cancel"]:
    """See Context.elicit_url."""
    try:
        parts = urlsplit(url)
        secure = parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in LOCAL)
    except ValueError as why:
        raise ValueError(f"elicit_url: {url!r} is no URL: {why}") from None
    if not secure or not parts.hostname:
        raise ValueError(
            f"elicit_url: expected an https:// URL (http:// for this machine), got {url!r}"
        )
    if parts.username is not None or parts.password is not None:
        raise ValueError(
            "elicit_url: the URL holds a user's name or password; the client, and its model, would see it"
        )
    answers = await context.ask({key: Elicitation(message, "url", url=url)})
    return _elicited(answers[key]).action


LOCAL = frozenset(("localhost", "127.0.0.1", "::1"))


async def sample(
    context: Context,
    messages: str | Sequence[SamplingMessage | str],
    max_tokens: int,
    key: str,
    options: Mapping[str, Any],
) -> CreateMessageResult:
    """See Context.sample."""
    texts = [messages] if isinstance(messages, str) else messages
    said = [
        SamplingMessage("user", TextContent(each)) if isinstance(each, str) else each
        for each in texts
    ]
    _check_tools(said)
    answers = await context.ask({key: Sampling(said, max_tokens, **options)})
    return _sampled(answers[key])


def _check_tools(messages: Sequence[SamplingMessage]) -> None:
    """client/sampling "Tool Result Messages", "Tool Use and Result Balance": the results of all uses, and nothing else, follow."""
    wanted: set[str] = set()
    for message in messages:
        blocks: list[Any] = (
            message.content if isinstance(message.content, list) else [message.content]
        )
        results = [each.tool_use_id for each in blocks if isinstance(each, ToolResultContent)]
        if (results or wanted) and (
            message.role != "user"
            or len(results) < len(blocks)
            or len(results) != len(wanted)
            or set(results) != wanted
        ):
            raise ValueError(
                "sample: a message that uses tools must be followed by one of their results, and only those"
            )
        wanted = {each.id for each in blocks if isinstance(each, ToolUseContent)}
    if wanted:
        raise ValueError(
            f"sample: the results of the tools used last are missing: {', '.join(sorted(wanted))}"
        )


async def roots(context: Context, key: str) -> list[Root]:
    """See Context.roots."""
    answers = await context.ask({key: ListRoots()})
    found = _roots(answers[key]).roots
    if strange := next((each.uri for each in found if not each.uri.startswith("file://")), None):
        raise InvalidClientResponse(
            f"{key}: expected URIs that begin with file://, got {strange[:SHOWN]!r}"
        )
    return found
