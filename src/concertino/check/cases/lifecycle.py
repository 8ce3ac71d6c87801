"""Section 4: the opening of a session in each era.

`concertino check` has its cases in sections (SECTIONS in case.py). Each public function is one
case. It gets the CaseContext of a server process, causes a fault, and raises a finding if the
server reacts wrongly. A Violation breaks a MUST of the specification, a Deviation only a stricter
rule of this project, and in a Hang the process no longer answers (findings.py). CASES, at the end,
has the name and the expected reaction of each case.

An era is "legacy" for the revisions up to 2025-11-25, which begin with `initialize`, or "modern"
for 2026-07-28, which has no handshake.
"""

from __future__ import annotations

from concertino.check.case import Case
from concertino.check.case_context import INITIALIZED, CaseContext
from concertino.check.findings import Deviation, Hang, Violation
from concertino.check.messages import (
    CAPABILITIES_KEY,
    LEGACY,
    MODERN,
    VERSION_KEY,
    Id,
    Message,
    as_array,
    as_object,
    excerpt,
)

LEGACY_REVISIONS = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
# 2026-07-28 basic/index "Error codes".
UNSUPPORTED_VERSION = -32022
LIFECYCLE = "basic/lifecycle"
VERSIONING = "2026-07-28 basic/versioning"


def _send_before_initialize(context: CaseContext, method: str) -> list[Message]:
    """Send a legacy request, open the session, and return the responses to the request."""
    message = context.make_request(method, modern=False)
    context.allow_missing_response(message["id"])
    context.send(message)
    context.open()
    context.find_missing_responses([message["id"]], context.settings.grace_s)
    return context.responses(message["id"])


def call_before_initialize(context: CaseContext) -> None:
    """Send tools/list before initialize. An error must come back; initialize must still work."""
    responses = _send_before_initialize(context, "tools/list")
    if not responses:
        context.report_deviation("a call before initialize was answered with silence")
    elif "error" not in responses[0]:
        context.report_deviation(f"a call before initialize was served: {excerpt(responses[0])}")


def ping_before_initialize(context: CaseContext) -> None:
    """Send a ping before initialize. A result must come back; initialize must still work."""
    responses = _send_before_initialize(context, "ping")
    if not responses or "error" in responses[0]:
        answer = excerpt(responses[0]) if responses else "silence"
        context.report_deviation(f"a ping before initialize: {answer}")


def omit_initialized_notification(context: CaseContext) -> None:
    """Send a request without notifications/initialized before it. A result must come back."""
    context.exchange(context.make_initialize(), within_s=context.settings.start_s)
    context.is_open = True
    # Some clients never send the notification; their first request implies it.
    (response,) = context.exchange(context.make_listing())
    if "error" in response:
        client = "a client that forgot notifications/initialized"
        context.report_deviation(f"a call of {client} was refused: {excerpt(response)}")


def pipeline_handshake(context: CaseContext) -> None:
    """Send initialize, its notification and a ping at once. Two results must come back."""
    opening = context.make_initialize()
    ping = context.make_request("ping", modern=False)
    responses = context.exchange(opening, INITIALIZED, ping, within_s=context.settings.start_s)
    context.is_open = True
    for response in responses:
        if "error" in response:
            raise Violation(f"in a pipelined handshake: {excerpt(response)}")


def initialize_again(context: CaseContext) -> None:
    """Send initialize twice. An error must come back, and the session must stay open."""
    message = context.make_initialize()
    context.allow_missing_response(message["id"])
    context.send(message)
    context.require_service()
    context.find_missing_responses([message["id"]], context.settings.grace_s)
    responses = context.responses(message["id"])
    if not responses:
        context.report_deviation("a second initialize was answered with silence")
    elif "error" not in responses[0]:
        context.report_deviation("a second initialize was accepted")

    # Whatever the response was, the first handshake must still hold.
    if context.server.tool_names and "error" in (response := context.request("tools/list")):
        context.report_deviation(
            f"after a second initialize calls are refused: {excerpt(response)}"
        )


def send_malformed_initialize(context: CaseContext) -> None:
    """Send four malformed initialize requests. Errors must come; a valid one must still work."""
    client = {"name": "check", "version": "1"}
    malformed: tuple[Message, ...] = (
        {},
        {"protocolVersion": 5, "capabilities": {}, "clientInfo": client},
        {"protocolVersion": LEGACY, "capabilities": "all", "clientInfo": client},
        {"protocolVersion": LEGACY, "capabilities": {}, "clientInfo": "check"},
    )
    ids: list[Id] = []
    for params in malformed:
        message = context.make_request("initialize", params, modern=False)
        context.allow_missing_response(message["id"])
        ids.append(message["id"])
        context.send(message)
    messages = context.process.output.messages
    context.process.wait_until(lambda: len(messages) >= len(malformed), context.start_grace_s)

    for id in ids:
        responses = context.responses(id)
        if not responses:
            context.report_deviation("initialize with malformed params was answered with silence")
        elif "error" not in responses[0]:
            # The session is open now, so another initialize would be a second one.
            context.report_deviation("initialize with malformed params was accepted")
            return
    context.open()


def _negotiate(context: CaseContext, version: str) -> str:
    """Send initialize and return the revision in its result; "" for an error response.

    Raises Violation when the result lacks a required field.
    """
    message = context.make_initialize(version)
    (response,) = context.exchange(message, within_s=context.settings.start_s)
    if "error" in response:
        return ""

    result = response["result"]
    for name in ("capabilities", "serverInfo"):
        if not isinstance(result.get(name), dict):
            raise Violation(f"the result of initialize has no {name}: {excerpt(result)}")
    revision = result.get("protocolVersion")
    if not isinstance(revision, str):
        raise Violation(f"the result of initialize has no protocolVersion: {excerpt(result)}")
    return revision


def _complete_handshake(context: CaseContext) -> None:
    """Send notifications/initialized, which opens the session."""
    context.send(INITIALIZED)
    context.is_open = True


def offer_unknown_version(context: CaseContext) -> None:
    """Offer revision 1999-12-31. Another revision or an error must come back."""
    revision = _negotiate(context, "1999-12-31")
    if revision == "1999-12-31":
        raise Violation("the server agrees to speak revision 1999-12-31, which does not exist")
    if not revision:
        # After a refusal the server need not serve anything.
        context.may_end = True
    elif revision not in LEGACY_REVISIONS:
        context.report_deviation(f"revision {excerpt(revision)} was offered in a handshake")
    else:
        _complete_handshake(context)


def offer_modern_version(context: CaseContext) -> None:
    """Offer 2026-07-28 in a handshake. An earlier revision or an error must come back."""
    revision = _negotiate(context, MODERN)
    if revision == MODERN:
        raise Deviation(f"initialize was answered with {MODERN}, which has no handshake")
    if not revision:
        context.may_end = True
    else:
        _complete_handshake(context)


def _make_revision_case(version: str) -> Case:
    """Return a case that offers a revision. A revision with a handshake must come back."""

    def run(context: CaseContext) -> None:
        revision = _negotiate(context, version)
        if not revision:
            context.may_end = True
            hint = "another version may be offered instead"
            raise Deviation(f"initialize with {version} was refused; {hint}")
        _complete_handshake(context)
        if revision not in LEGACY_REVISIONS:
            raise Violation(f"initialize with {version} was answered with {excerpt(revision)}")
        if context.server.tool_names and "error" in (response := context.request("tools/list")):
            raise Violation(
                f"tools/list is refused once {revision} is agreed on: {excerpt(response)}"
            )

    return Case(
        name=f"initialize-{version}",
        section=4,
        does=f"opens with revision {version}",
        expected="the same revision or another with a handshake; then tools are listed",
        source=LIFECYCLE + ", Version Negotiation",
        run=run,
        era="legacy",
        opens=False,
    )


def discover_before_initialize(context: CaseContext) -> None:
    """Send server/discover, and initialize if that fails. One of the two must succeed."""
    # A client of both eras begins with this request, and falls back to initialize on an error.
    probe = context.make_request("server/discover", modern=True)
    context.allow_missing_response(probe["id"])
    context.send(probe)
    context.find_missing_responses([probe["id"]], context.start_grace_s)
    responses = context.responses(probe["id"])
    if responses and "result" in responses[0]:
        _initialize_after_discover(context)
        return

    if not responses:
        if context.process.exit_code is not None:
            raise context.process.crash_or_hang("server/discover ended it")
        context.report_deviation("server/discover before initialize was answered with silence")
    context.open()


def _initialize_after_discover(context: CaseContext) -> None:
    """Send initialize after server/discover was served. A result must come back."""
    # The client has its answer. Serving a handshake afterwards is a MAY
    # (2026-07-28 basic/versioning).
    (response,) = context.exchange(context.make_initialize())
    if "error" in response:
        context.report_deviation(
            f"initialize after a served server/discover was refused: {excerpt(response)}"
        )
        context.may_end = True
    else:
        _complete_handshake(context)


def discover(context: CaseContext) -> None:
    """Send server/discover. A result with all required fields must come back."""
    response = context.request("server/discover", modern=True)
    result = as_object(response.get("result"))
    if result is None:
        raise Violation(f"server/discover was refused: {excerpt(response)}")

    required = {
        "supportedVersions": list,
        "capabilities": dict,
        "resultType": str,
        "ttlMs": int,
        "cacheScope": str,
    }
    for name, kind in required.items():
        if not isinstance(result.get(name), kind):
            raise Violation(f"the result of server/discover has no {name}: {excerpt(response)}")
    if MODERN not in result["supportedVersions"]:
        raise Violation(
            f"supportedVersions lacks {MODERN}, the revision of the request: {excerpt(response)}"
        )


def interleave_eras(context: CaseContext) -> None:
    """Send requests with and without the `_meta` of 2026-07-28 in one session.

    Each response must follow the rules of its request's era: 2026-07-28, or the revisions before.
    """
    for _ in range(3):
        # One round with findings is enough.
        if context.findings:
            return
        legacy = context.make_request("tools/list", modern=False)
        modern = context.make_request("tools/list", modern=True)
        ping = context.make_request("ping", modern=False)
        modern_ping = context.make_request("ping", modern=True)
        _check_eras(context, *context.exchange(legacy, modern, ping, modern_ping))


def _check_eras(
    context: CaseContext,
    legacy: Message,
    modern: Message,
    ping: Message,
    modern_ping: Message,
) -> None:
    """Check that each response follows the rules of its request's own era."""
    if ("error" in legacy) is not ("error" in modern):
        context.report_deviation(
            f"tools/list differs between eras: {excerpt(legacy)} and {excerpt(modern)}"
        )
    if "result" in modern and "resultType" not in modern["result"]:
        raise Violation(f"a {MODERN} result without resultType: {excerpt(modern)}")
    if "error" in ping:
        raise Violation(f"a legacy ping beside {MODERN} requests was refused: {excerpt(ping)}")
    # 2026-07-28 removed ping.
    if modern_ping.get("error", {}).get("code") != -32601:
        context.report_deviation(
            f"ping of {MODERN}, which has none, was answered {excerpt(modern_ping)}"
        )


def request_unsupported_version(context: CaseContext) -> None:
    """Send a request of revision 2099-01-01. Error -32022 must list the supported revisions."""
    meta: Message = {VERSION_KEY: "2099-01-01", CAPABILITIES_KEY: {}}
    # With modern=False, request() adds nothing to the `_meta`.
    response = context.request("tools/list", {"_meta": meta}, modern=False)
    error = response.get("error", {})
    if error.get("code") != UNSUPPORTED_VERSION:
        raise Violation(f"a request of revision 2099-01-01 was answered {excerpt(response)}")
    data = as_object(error.get("data")) or {}
    if MODERN not in (as_array(data.get("supported")) or ()):
        raise Violation(f"the error does not list the supported versions: {excerpt(error)}")


def request_without_capabilities(context: CaseContext) -> None:
    """Send a request of 2026-07-28 without clientCapabilities. Error -32602 must come back."""
    # With modern=False, request() does not add the capabilities.
    response = context.request("tools/list", {"_meta": {VERSION_KEY: MODERN}}, modern=False)
    if response.get("error", {}).get("code") != -32602:
        raise Violation(
            f"a {MODERN} request without clientCapabilities was answered {excerpt(response)}"
        )


def request_without_era(context: CaseContext) -> None:
    """Send a request without a handshake and without `_meta`. Error -32602 must come back."""
    message = context.make_request("tools/list", modern=False)
    (response,) = context.exchange(message, within_s=context.settings.start_s)
    if "error" not in response:
        context.report_deviation(f"a request of no era was served: {excerpt(response)}")
    else:
        error = response["error"]
        if error["code"] != -32602 or MODERN not in str(error.get("data")):
            context.report_deviation(
                f"expected -32602 with the supported versions, got {excerpt(response)}"
            )

    context.is_open = True
    # A server MAY settle on one era by the first request, but that locks out a modern client.
    if "error" in (response := context.request("server/discover")):
        context.report_deviation(
            f"server/discover after a request of no era was refused: {excerpt(response)}"
        )


def write_session_at_start(context: CaseContext) -> None:
    """Send the handshake and 20 pings before the process can read. All responses must come back."""
    messages: list[Message] = [] if context.modern else [context.make_initialize(), INITIALIZED]
    messages += [context.make_ping() for _ in range(20)]
    context.send(*messages)
    ids: list[Id] = [message["id"] for message in messages if "id" in message]
    if len(context.find_missing_responses(ids, context.settings.start_s)) == len(ids):
        raise Hang("nothing was answered that was written while the process started")
    context.require_results(ids)
    context.is_open = True


CASES = (
    # Requests that come too early.
    Case(
        name="request-at-start",
        section=4,
        does="writes the opening and 20 requests at once, before the process has finished starting",
        expected="all are kept and answered",
        source=LIFECYCLE,
        run=write_session_at_start,
        opens=False,
    ),
    Case(
        name="call-before-initialize",
        section=4,
        does="calls tools/list before initialize",
        expected="an error; initialize works afterwards",
        source="policy; " + LIFECYCLE + ": initialization is the first interaction",
        run=call_before_initialize,
        era="legacy",
        opens=False,
    ),
    Case(
        name="ping-before-initialize",
        section=4,
        does="pings before initialize",
        expected="answered; initialize works afterwards",
        source="policy; " + LIFECYCLE,
        run=ping_before_initialize,
        era="legacy",
        opens=False,
    ),
    # Handshakes that are unusual, but work in practice.
    Case(
        name="initialized-missing",
        section=4,
        does="calls without having sent notifications/initialized",
        expected="served",
        source="policy",
        run=omit_initialized_notification,
        era="legacy",
        opens=False,
    ),
    Case(
        name="handshake-pipelined",
        section=4,
        does="writes initialize, initialized and ping in one go",
        expected="both requests answered",
        source=LIFECYCLE,
        run=pipeline_handshake,
        era="legacy",
        opens=False,
    ),
    # Handshakes that must be refused.
    Case(
        name="initialize-twice",
        section=4,
        does="initializes a second time",
        expected="an error; the first handshake holds",
        source="policy",
        run=initialize_again,
        era="legacy",
    ),
    Case(
        name="initialize-malformed",
        section=4,
        does="initializes with malformed params in four ways",
        expected="an error for each; a sound initialize works afterwards",
        source="policy; schema",
        run=send_malformed_initialize,
        era="legacy",
        opens=False,
    ),
    # The negotiation of a revision.
    Case(
        name="initialize-unknown-version",
        section=4,
        does="opens with revision 1999-12-31",
        expected="another revision, or an error",
        source=LIFECYCLE + ", Version Negotiation: MUST respond with another version it supports",
        run=offer_unknown_version,
        era="legacy",
        opens=False,
    ),
    Case(
        name="initialize-modern-version",
        section=4,
        does=f"opens a handshake with {MODERN}",
        expected="a revision that has a handshake, or an error",
        source="policy; " + VERSIONING,
        run=offer_modern_version,
        era="legacy",
        opens=False,
    ),
    *map(_make_revision_case, LEGACY_REVISIONS),
    # The revision without a handshake, and both eras on one connection.
    Case(
        name="discover-first",
        section=4,
        does="probes with server/discover before initialize, as clients of both eras do",
        expected="a result, or an error and an initialize that works afterwards",
        source="policy; 2026-07-28 stdio, Backward compatibility",
        run=discover_before_initialize,
        era="legacy",
        opens=False,
    ),
    Case(
        name="discover",
        section=4,
        does="calls server/discover",
        expected="supportedVersions, capabilities, resultType, ttlMs and cacheScope",
        source="2026-07-28 server/discover",
        run=discover,
        era="modern",
    ),
    Case(
        name="eras-interleaved",
        section=4,
        does="mixes requests of both eras on one connection",
        expected="each is answered by the rules of its own",
        source=VERSIONING,
        run=interleave_eras,
        needs=("modern",),
        era="legacy",
    ),
    # Requests of 2026-07-28 with incomplete `_meta`.
    Case(
        name="version-unsupported",
        section=4,
        does="sends a request of revision 2099-01-01",
        expected="an error -32022 with data.supported",
        source=VERSIONING + ": MUST",
        run=request_unsupported_version,
        era="modern",
    ),
    Case(
        name="capabilities-missing",
        section=4,
        does=f"leaves clientCapabilities out of a {MODERN} request",
        expected="an error -32602",
        source="2026-07-28 basic: required in every request",
        run=request_without_capabilities,
        era="modern",
    ),
    Case(
        name="no-era",
        section=4,
        does="calls tools/list with neither a handshake nor _meta",
        expected="an error -32602 that lists the supported versions",
        source="policy; " + VERSIONING,
        run=request_without_era,
        era="modern",
        opens=False,
    ),
)
