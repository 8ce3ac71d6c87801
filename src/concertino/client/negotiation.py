"""How a client finds out which revision a server speaks, and opens the conversation in it.

`server/discover` is asked first. An answer to it, or an error that only newer revisions have, settles the matter; anything else, or
silence, means a server with a handshake, and `initialize` follows. An answer that comes later is dropped. The two are not mixed on
one process, but for the case that the server refuses `initialize` by naming a newer revision: it was only slow to answer.
A server that ends when it is asked is started once more, and opened by its handshake.
Spec: 2026-07-28 basic/transports/stdio "Backward compatibility", basic/versioning, server/discover; 2025-11-25 basic/lifecycle.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Literal

from msgspec import DecodeError, Raw, Struct
from msgspec.json import Decoder, encode

from concertino.client.conversation import Conversation, is_offered_again
from concertino.client.pending_request import shortened
from concertino.errors import (
    MISSING_CAPABILITY,
    UNSUPPORTED_VERSION,
    Disconnected,
    Incompatible,
    ProtocolError,
    RpcError,
    TimedOut,
)
from concertino.protocol.revisions import LATEST_LEGACY, MODERN, Revision, by_name, implementation
from concertino.types.results import Implementation

__all__ = ["Era", "open_conversation"]

Era = Literal["auto", "modern", "legacy"]
SERVER_INFO = "io.modelcontextprotocol/serverInfo"
MODERN_ERRORS = frozenset((UNSUPPORTED_VERSION, MISSING_CAPABILITY))


class _Discovered(Struct, rename="camel"):
    supported_versions: list[str]
    capabilities: dict[str, Any] = {}
    instructions: str | None = None


class _Initialized(Struct, rename="camel"):
    protocol_version: str
    capabilities: dict[str, Any] = {}
    server_info: Raw = Raw(b"{}")
    instructions: str | None = None


_discovered = Decoder(_Discovered).decode
_initialized = Decoder(_Initialized).decode


async def open_conversation(
    start: Callable[[], Awaitable[Conversation]],
    again: bool,
    era: Era,
    within_s: float,
    probe_s: float,
) -> Conversation:
    """Start a server and open the conversation.

    start: called once; a second time if the first question ended the server, and `again` says that it can be. within_s: for all of
    it; probe_s: for the answer to the first question.
    Raises SpawnError, Disconnected, TimedOut, Incompatible, ProtocolError, RpcError. Nothing is left open then.
    """
    loop = asyncio.get_running_loop()
    until = loop.time() + within_s

    def remaining_s() -> float:
        """Return the seconds that are left. Raises TimedOut when there are none."""
        if (seconds := until - loop.time()) > 0:
            return seconds
        raise TimedOut(f"the session was not opened within {within_s:.3g} s")

    conversation = await _started(start, within_s)
    try:
        if era != "legacy":
            patient = era == "modern"
            try:
                if await _discover(
                    conversation, remaining_s() if patient else min(probe_s, remaining_s()), patient
                ):
                    return conversation
            except Disconnected:
                if patient or not again:
                    raise
                conversation.log.info(
                    "the server ended when it was asked for its revisions; it is started once more"
                )
                await conversation.close()
                conversation = await _started(start, remaining_s())
        try:
            await _initialize(conversation, remaining_s())
        except RpcError as refused:
            if era == "legacy" or refused.code not in MODERN_ERRORS:
                raise Incompatible(f"the server refused initialize: {refused}") from refused
            await _discover(conversation, until - loop.time(), patient=True)
    except BaseException:
        await conversation.close()
        raise
    return conversation


async def _started(start: Callable[[], Awaitable[Conversation]], within_s: float) -> Conversation:
    try:
        async with asyncio.timeout(within_s):
            return await start()
    except TimeoutError:
        raise TimedOut(f"no connection within {within_s:.3g} s") from None


async def _discover(
    conversation: Conversation, within_s: float, patient: bool, again: bool = True
) -> bool:
    """Ask for the revisions. Whether the server speaks ours; False: it is one with a handshake. patient: never False.

    again: ask once more if the server refuses ours and names it among its own.
    """
    what = "server/discover"
    params = encode({"_meta": conversation.meta_of(MODERN)})
    try:
        raw = await conversation.channel.request(
            what, params, "", within_s, within_s, cancels=False
        )
    except RpcError as error:
        if again and is_offered_again(error):
            return await _discover(conversation, within_s, patient, again=False)
        if error.code in MODERN_ERRORS or patient:
            raise Incompatible(
                f"the server does not speak {MODERN.name}: {error} {_said(error)}".rstrip()
            ) from error
        return False
    except ProtocolError:
        if patient:
            raise
        return False
    except TimedOut:
        if patient:
            raise
        conversation.log.info(
            "no answer to server/discover within %g s: initialize follows", within_s
        )
        return False
    try:
        found = _discovered(raw)
    except (DecodeError, RecursionError) as why:
        if patient:
            raise ProtocolError(
                f"{what}: expected supportedVersions, got {shortened(raw)}: {why}"
            ) from None
        return False
    if MODERN.name not in found.supported_versions:
        raise Incompatible(
            f"the server speaks {', '.join(found.supported_versions)[:200]}; this client {MODERN.name}"
        )
    conversation.offered = found.capabilities
    conversation.instructions = found.instructions
    try:
        conversation.server = _info(Decoder(dict[str, Raw]).decode(raw), conversation.server)
    except DecodeError:
        pass
    conversation.speaks(MODERN)
    return True


async def _initialize(conversation: Conversation, within_s: float) -> None:
    """The handshake of the older revisions. It is never cancelled."""
    what = "initialize"
    params = {
        "protocolVersion": LATEST_LEGACY.name,
        "capabilities": _legacy(conversation.answers.capabilities()),
        "clientInfo": implementation(conversation.info, LATEST_LEGACY),
    }
    raw = await conversation.channel.request(
        what, encode(params), "", within_s, within_s, cancels=False
    )
    try:
        answer = _initialized(raw)
    except (DecodeError, RecursionError) as why:
        raise ProtocolError(
            f"{what}: expected protocolVersion, got {shortened(raw)}: {why}"
        ) from None
    revision: Revision | None = by_name.get(answer.protocol_version)
    if revision is None or revision.modern:
        raise Incompatible(
            f"the server speaks {answer.protocol_version[:100]!r}, which this client does not"
        )
    conversation.offered = answer.capabilities
    conversation.instructions = answer.instructions
    conversation.server = _implementation(answer.server_info, conversation.server)
    conversation.speaks(revision)
    conversation.channel.notify("notifications/initialized", b"{}")


def _legacy(offered: dict[str, Any]) -> dict[str, Any]:
    """Roots tell when they change, before 2026-07-28."""
    return {**offered, "roots": {"listChanged": True}} if "roots" in offered else offered


def _info(members: dict[str, Raw], default: Implementation) -> Implementation:
    meta = Decoder(dict[str, Raw]).decode(members.get("_meta", Raw(b"{}")))
    return _implementation(meta.get(SERVER_INFO, Raw(b"{}")), default)


def _implementation(raw: Raw, default: Implementation) -> Implementation:
    """Who the server says it is. What is malformed is left out: nothing may depend on it (basic/index)."""
    try:
        return Decoder(Implementation).decode(raw)
    except DecodeError:
        return default


def _said(error: RpcError) -> str:
    return shortened(encode(error.data)) if error.data else ""
