"""open_conversation(): starts a server and negotiates the revision.

There are two eras of MCP. "Modern" is revision 2026-07-28; "legacy" are the earlier revisions,
which have a handshake (`initialize`). A client does not know the era of its server. So it first
sends `server/discover`, a request of the modern era, and then:

- If the response is a result, or an error that only the modern revision has, the server is modern.
- If the response lists only earlier revisions, the server is legacy. The client sends `initialize`.
- If the response is another error, the server is legacy, too.
- If no response comes within probe_s, the server counts as legacy. A late response to
  `server/discover` is ignored.
- If the server exits, the client starts it once more and sends `initialize` first.

If the server then refuses `initialize` with an error that only the modern revision has, the server
is modern and was only slow.

A server that speaks both eras chooses the era of the first message. A proxy whose own client is
legacy therefore sends `initialize` first, and `server/discover` only if the server refuses
`initialize` (HandshakeChoice).
Spec: 2026-07-28 basic/transports/stdio "Backward compatibility", basic/versioning, server/discover;
2025-11-25 basic/lifecycle.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Literal

from msgspec import Raw, Struct
from msgspec.json import Decoder, encode

from concertino.client.conversation import Conversation, ServerDescription, lists_our_revision
from concertino.client.pending_request import quote_frame
from concertino.decode_errors import DECODE_ERRORS
from concertino.errors import (
    HTTP_FAILURE,
    INTERNAL_ERROR,
    MISSING_CAPABILITY,
    UNSUPPORTED_VERSION,
    Disconnected,
    Incompatible,
    NotAServer,
    ProtocolError,
    RpcError,
    TimedOut,
)
from concertino.protocol.revisions import (
    LATEST_LEGACY,
    LEGACY,
    MODERN,
    REVISION_BY_NAME,
    Revision,
    limit_implementation,
)
from concertino.types.results import Implementation

__all__ = ["Era", "HandshakeChoice", "open_conversation"]

Era = Literal["auto", "modern", "legacy"]
# A function that is called after the server was started. If it returns True, the client sends
# `initialize` first; if False, it finds out the era as with "auto".
HandshakeChoice = Callable[[], Awaitable[bool]]
SERVER_INFO = "io.modelcontextprotocol/serverInfo"
# The codes of errors that only the modern revision has.
MODERN_ERRORS = frozenset((UNSUPPORTED_VERSION, MISSING_CAPABILITY))


class _DiscoverResult(Struct, rename="camel"):
    """The result of `server/discover`."""

    supported_versions: list[str]
    capabilities: dict[str, Any] = {}
    instructions: str | None = None


class _InitializeResult(Struct, rename="camel"):
    """The result of `initialize`."""

    protocol_version: str
    capabilities: dict[str, Any] = {}
    server_info: Raw = Raw(b"{}")
    instructions: str | None = None


_decode_discover_result = Decoder(_DiscoverResult).decode
_decode_initialize_result = Decoder(_InitializeResult).decode


async def open_conversation(
    start: Callable[[], Awaitable[Conversation]],
    can_restart: bool,
    era: Era | HandshakeChoice,
    within_s: float,
    probe_s: float,
) -> Conversation:
    """Start a server, negotiate the revision, and return the Conversation, which sends requests.

    If open_conversation() raises, it has closed the connection and ended the server.

    start: starts the server or connects to it, and returns a Conversation without a revision.
    can_restart: whether `start` may be called a second time, if the server exits upon
        `server/discover`.
    era: one of

        - "modern" for a server of revision 2026-07-28,
        - "legacy" for a server of an earlier revision,
        - "auto" to send `server/discover`, and then `initialize` to a server that does not know
          this request,
        - an async function that is called after the start. If it returns True, `initialize` is
          sent first, and `server/discover` only if the server refuses `initialize`. False means
          the same as "auto".

    within_s: the time limit for everything, in seconds.
    probe_s: how many seconds to wait for the response to `server/discover` before `initialize` is
        sent, but at most half of the time that is left. Not used for "modern" and "legacy".
    Raises
    - Disconnected if the server cannot be reached or ends,
    - TimedOut after within_s,
    - Incompatible if client and server have no revision in common,
    - NotAServer if the program does not speak MCP,
    - ProtocolError for a malformed response,
    - RpcError with the code HTTP_FAILURE if an HTTP request fails,
    - the exceptions of `start`.
    """
    loop = asyncio.get_running_loop()
    until = loop.time() + within_s

    def remaining_s() -> float:
        """Return the seconds that are left. Raises TimedOut when there are none."""
        seconds = until - loop.time()
        if seconds <= 0:
            raise TimedOut(f"the session was not opened within {within_s:.3g} s")
        return seconds

    conversation = await _start(start, within_s)
    try:
        if era == "modern":
            await _discover(conversation, remaining_s(), must_be_modern=True)
            return conversation

        is_discover_first = era == "auto" or (callable(era) and not await era())
        if is_discover_first:
            # Leave half of the time for `initialize`.
            probe_s = min(probe_s, remaining_s() / 2)
            try:
                if await _discover(conversation, probe_s, must_be_modern=False):
                    return conversation
            except Disconnected:
                if not can_restart:
                    raise
                conversation.log.info(
                    "the server ended upon server/discover; it is started again for a handshake"
                )
                await conversation.close()
                conversation = await _start(start, remaining_s())

        try:
            await _initialize(conversation, remaining_s())
        except RpcError as exc:
            # A modern server may refuse `initialize`. If the server has not answered
            # `server/discover` before, it is modern only if its error is one of 2026-07-28.
            may_be_modern = exc.code in MODERN_ERRORS or not is_discover_first
            if era == "legacy" or not may_be_modern or exc.code == HTTP_FAILURE:
                raise Incompatible(f"the server refused initialize: {exc}") from exc
            await _discover(conversation, remaining_s(), must_be_modern=True)
    except BaseException as exc:
        await conversation.close()
        error = _explain(conversation, exc)
        # `from` hides `exc` in the traceback of an error that replaces it.
        raise error from error.__cause__
    return conversation


def _explain(conversation: Conversation, error: BaseException) -> BaseException:
    """Return the error that says most about a failure of the negotiation.

    error: the exception that was raised, which is returned if there is no better one.
    """
    if isinstance(error, Disconnected):
        return conversation.opening.explain_end(error)
    # If a Backend in this process has failed to start, its exception says more than the error
    # response that it has led to.
    failure = conversation.opened.start_failure
    if isinstance(error, Incompatible) and failure is not None:
        return failure
    return error


async def _start(start: Callable[[], Awaitable[Conversation]], within_s: float) -> Conversation:
    """Start a server and return its conversation. Raises TimedOut, and the errors of `start`."""
    try:
        async with asyncio.timeout(within_s):
            return await start()
    except TimeoutError:
        raise TimedOut(f"no connection within {within_s:.3g} s") from None


async def _discover(
    conversation: Conversation,
    within_s: float,
    must_be_modern: bool,
    may_retry: bool = True,
) -> bool:
    """Send `server/discover`, and start the session if the server is modern.

    Returns True for a modern server, False for a legacy one.
    within_s: how many seconds to wait for the response.
    must_be_modern: whether to raise for a legacy server, instead of returning False.
    may_retry: whether to send the request once more if the server refuses revision 2026-07-28 but
        lists it among the supported ones.
    """
    params = encode({"_meta": conversation.requests.meta_of(MODERN)})
    conversation.opening.on_send(is_optional=not must_be_modern)
    try:
        raw = await conversation.channel.request(
            "server/discover", params, "", within_s, within_s, cancels=False
        )
    except RpcError as exc:
        conversation.opening.stop()
        if may_retry and lists_our_revision(exc):
            return await _discover(conversation, within_s, must_be_modern, may_retry=False)
        if exc.code == HTTP_FAILURE:
            # A failure of HTTP says nothing about the era.
            raise
        # The server is a legacy one if it lists only legacy revisions, or if its error is not one
        # of 2026-07-28. Otherwise it is modern, and does not support this revision.
        lists_only_legacy = exc.code == UNSUPPORTED_VERSION and _lists_only_legacy(
            _listed_revisions(exc.data)
        )
        if lists_only_legacy and not must_be_modern:
            return False
        if must_be_modern or exc.code in MODERN_ERRORS:
            # A server with an internal error, for example because it cannot start, may support this
            # revision. So the text for such a server does not deny this.
            problem = f"does not speak {MODERN.name}"
            if exc.code == INTERNAL_ERROR:
                problem = "refused server/discover"
            text = f"the server {problem}: {exc} {_quote_data(exc)}".rstrip()
            raise Incompatible(text) from exc
        return False
    except (ProtocolError, TimedOut) as exc:
        if must_be_modern or isinstance(exc, NotAServer):
            raise
        if isinstance(exc, TimedOut):
            conversation.log.info("no answer to server/discover (%s): initialize follows", exc)
        return False
    conversation.opening.stop()
    return _use_discover_result(conversation, raw, must_be_modern)


def _use_discover_result(conversation: Conversation, raw: Raw, must_be_modern: bool) -> bool:
    """Start a modern session with the result of `server/discover`, and return True.

    Returns False if the result is malformed or lists only legacy revisions. With `must_be_modern`,
    raises ProtocolError or Incompatible instead. Also raises Incompatible if the server supports
    neither 2026-07-28 nor a legacy revision.
    """
    try:
        result = _decode_discover_result(raw)
    except DECODE_ERRORS as exc:
        if must_be_modern:
            raise ProtocolError(
                f"server/discover: expected supportedVersions, got {quote_frame(raw)}: {exc}"
            ) from None
        return False
    if MODERN.name not in result.supported_versions:
        # A server of older revisions may answer `server/discover` too.
        if not must_be_modern and _lists_only_legacy(result.supported_versions):
            return False
        versions = ", ".join(result.supported_versions)[:200]
        raise Incompatible(f"the server speaks {versions}; this client {MODERN.name}")

    default = conversation.server.info
    try:
        info = _info_of_meta(raw, default)
    except DECODE_ERRORS:
        info = default
    conversation.start_session(
        ServerDescription(info, MODERN, result.capabilities, result.instructions)
    )
    return True


def _lists_only_legacy(versions: Sequence[object]) -> bool:
    """Return whether a list of revisions contains a legacy revision, but not the modern one."""
    names = {revision.name for revision in LEGACY}
    listed = [version for version in versions if isinstance(version, str)]
    return MODERN.name not in listed and any(version in names for version in listed)


def _listed_revisions(data: Any) -> Sequence[object]:
    """Return the revisions that the data of an error lists as `supported`; () if it lists none."""
    try:
        return list(data["supported"])
    except (TypeError, KeyError):
        return ()


async def _initialize(conversation: Conversation, within_s: float) -> None:
    """Perform the handshake of the legacy revisions, and start the session.

    within_s: how many seconds to wait for the response.
    Raises RpcError if the server refuses `initialize`, Incompatible if the server chooses a
    revision that this client does not support, ProtocolError for a malformed response, and
    TimedOut.
    """
    requests = conversation.requests
    params = {
        "protocolVersion": LATEST_LEGACY.name,
        "capabilities": _legacy_capabilities(requests.handlers.capabilities()),
        "clientInfo": limit_implementation(requests.info, LATEST_LEGACY),
    }
    conversation.opening.on_send(is_optional=False)
    # The specification forbids notifications/cancelled for `initialize`.
    raw = await conversation.channel.request(
        "initialize", encode(params), "", within_s, within_s, cancels=False
    )
    conversation.opening.stop()
    try:
        result = _decode_initialize_result(raw)
    except DECODE_ERRORS as exc:
        raise ProtocolError(
            f"initialize: expected protocolVersion, got {quote_frame(raw)}: {exc}"
        ) from None

    revision: Revision | None = REVISION_BY_NAME.get(result.protocol_version)
    if revision is None or revision.modern:
        version = result.protocol_version[:100]
        raise Incompatible(f"the server speaks {version!r}, which this client does not")
    info = _decode_info(result.server_info, conversation.server.info)
    conversation.start_session(
        ServerDescription(info, revision, result.capabilities, result.instructions)
    )
    conversation.channel.peer.notify("notifications/initialized", b"{}")


def _legacy_capabilities(capabilities: dict[str, Any]) -> dict[str, Any]:
    """Return the client's capabilities for `initialize`: legacy revisions add `listChanged`."""
    if "roots" not in capabilities:
        return capabilities
    return {**capabilities, "roots": {"listChanged": True}}


def _info_of_meta(raw: Raw, default: Implementation) -> Implementation:
    """Return the `serverInfo` in the `_meta` of a result; `default` if it is malformed or missing.

    Raises one of DECODE_ERRORS if `_meta` itself is malformed.
    """
    members = Decoder(dict[str, Raw])
    meta = members.decode(members.decode(raw).get("_meta", Raw(b"{}")))
    return _decode_info(meta.get(SERVER_INFO, Raw(b"{}")), default)


def _decode_info(raw: Raw, default: Implementation) -> Implementation:
    """Decode a `serverInfo`. Returns `default` if it is malformed.

    Clients must not rely on `serverInfo` (basic/index), so they need not fail if it is malformed.
    """
    try:
        return Decoder(Implementation).decode(raw)
    except DECODE_ERRORS:
        return default


def _quote_data(error: RpcError) -> str:
    """Return the data of an error response, shortened; "" if it has none."""
    return quote_frame(encode(error.data)) if error.data else ""
