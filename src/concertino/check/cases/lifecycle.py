"""Section 4: the beginning of a conversation, in each era."""

from __future__ import annotations

from concertino.check.case import Case, Deviation, Hang, Violation
from concertino.check.case_context import CaseContext
from concertino.check.messages import (
    CAPABILITIES,
    LEGACY,
    MODERN,
    VERSION,
    Message,
    frame,
    list_of,
    object_of,
    shown,
)

__all__ = ["CASES"]

LEGACY_REVISIONS = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
UNSUPPORTED = -32022  # 2026-07-28 basic/index "Error codes"
INITIALIZED: Message = {"jsonrpc": "2.0", "method": "notifications/initialized"}
LIFECYCLE = "basic/lifecycle"
VERSIONING = "2026-07-28 basic/versioning"


def call_before_initialize(trial: CaseContext) -> None:
    message = trial.request("tools/list", modern=False)
    trial.due[int, message["id"]].least = 0
    trial.send(message)
    trial.open()
    trial.come([message["id"]], trial.settings.grace_s)
    answers = trial.answers(message["id"])
    if not answers:
        trial.note(Deviation("a call before initialize was answered with silence"))
    elif "error" not in answers[0]:
        trial.note(Deviation(f"a call before initialize was served: {shown(answers[0])}"))


def ping_before_initialize(trial: CaseContext) -> None:
    message = trial.request("ping", modern=False)
    trial.due[int, message["id"]].least = 0
    trial.send(message)
    trial.open()
    trial.come([message["id"]], trial.settings.grace_s)
    answers = trial.answers(message["id"])
    if not answers or "error" in answers[0]:
        trial.note(
            Deviation(f"a ping before initialize: {shown(answers[0]) if answers else 'silence'}")
        )


def no_initialized(trial: CaseContext) -> None:
    opener = trial.initialize()
    trial.send(opener)
    trial.answer(opener["id"], trial.settings.start_s)
    trial.opened = True
    answer = trial.ask("tools/list" if trial.subject.tool_names else "ping", modern=False)
    if "error" in answer:
        trial.note(
            Deviation(
                f"a call of a client that forgot notifications/initialized was refused: {shown(answer)}"
            )
        )


def pipelined(trial: CaseContext) -> None:
    opener, ping = trial.initialize(), trial.request("ping", modern=False)
    trial.send(opener, INITIALIZED, ping)
    trial.all_answered([opener["id"], ping["id"]], trial.settings.start_s)
    trial.opened = True
    for id in (opener["id"], ping["id"]):
        if "error" in trial.answers(id)[0]:
            raise Violation(f"in a pipelined handshake: {shown(trial.answers(id)[0])}")


def twice(trial: CaseContext) -> None:
    again = trial.initialize()
    trial.due[int, again["id"]].least = 0
    trial.send(again)
    trial.must_serve()
    trial.come([again["id"]], trial.settings.grace_s)
    answers = trial.answers(again["id"])
    if not answers:
        trial.note(Deviation("a second initialize was answered with silence"))
    elif "error" not in answers[0]:
        trial.note(Deviation("a second initialize was accepted"))
    if trial.subject.tool_names and "error" in (answer := trial.ask("tools/list")):
        trial.note(Deviation(f"after a second initialize calls are refused: {shown(answer)}"))


def malformed_initialize(trial: CaseContext) -> None:
    client = {"name": "check", "version": "1"}
    bad: tuple[Message, ...] = (
        {},
        {"protocolVersion": 5, "capabilities": {}, "clientInfo": client},
        {"protocolVersion": LEGACY, "capabilities": "all", "clientInfo": client},
        {"protocolVersion": LEGACY, "capabilities": {}, "clientInfo": "check"},
    )
    for params in bad:
        message = trial.request("initialize", params, modern=False)
        trial.due[int, message["id"]].least = 0
        trial.send(message)
    last = [key[1] for key in trial.due]
    trial.child.pump(lambda: len(trial.child.order) >= len(bad), trial.first_s)
    for id in last:
        answers = trial.answers(id)
        if not answers:
            trial.note(Deviation("initialize with malformed params was answered with silence"))
        elif "error" not in answers[0]:
            trial.note(Deviation("initialize with malformed params was accepted"))
            return
    trial.open()


def _negotiated(trial: CaseContext, version: str) -> str:
    """What initialize with this version leads to; empty when it is refused."""
    message = trial.initialize(version)
    trial.send(message)
    answer = trial.answer(message["id"], trial.settings.start_s)
    if "error" in answer:
        return ""
    came = answer["result"].get("protocolVersion")
    for name in ("capabilities", "serverInfo"):
        if not isinstance(answer["result"].get(name), dict):
            raise Violation(f"the result of initialize has no {name}: {shown(answer['result'])}")
    if not isinstance(came, str):
        raise Violation(
            f"the result of initialize has no protocolVersion: {shown(answer['result'])}"
        )
    return came


def unknown_version(trial: CaseContext) -> None:
    came = _negotiated(trial, "1999-12-31")
    if came == "1999-12-31":
        raise Violation("the server agrees to speak revision 1999-12-31, which does not exist")
    if not came:
        trial.ended = True  # refused: it need not be served any further
    elif came not in LEGACY_REVISIONS:
        trial.note(Deviation(f"revision {shown(came)} was offered in a handshake"))
    else:
        trial.send(INITIALIZED)
        trial.opened = True


def modern_version_in_handshake(trial: CaseContext) -> None:
    came = _negotiated(trial, MODERN)
    if came == MODERN:
        raise Deviation(f"initialize was answered with {MODERN}, which has no handshake")
    if not came:
        trial.ended = True
    else:
        trial.send(INITIALIZED)
        trial.opened = True


def _revision(version: str) -> Case:
    def run(trial: CaseContext) -> None:
        came = _negotiated(trial, version)
        if not came:
            trial.ended = True
            raise Deviation(
                f"initialize with {version} was refused; another version may be offered instead"
            )
        trial.send(INITIALIZED)
        trial.opened = True
        if came not in LEGACY_REVISIONS:
            raise Violation(f"initialize with {version} was answered with {shown(came)}")
        if trial.subject.tool_names and "error" in (answer := trial.ask("tools/list")):
            raise Violation(f"tools/list is refused once {came} is agreed on: {shown(answer)}")

    return Case(
        f"initialize-{version}",
        4,
        f"opens with revision {version}",
        "the same revision or another with a handshake; then tools are listed",
        LIFECYCLE + ", Version Negotiation",
        run,
        era="legacy",
        opens=False,
    )


def discover_unopened(trial: CaseContext) -> None:
    """What a client that speaks both eras begins with: a legacy server answers with an error and can be initialized."""
    probe = trial.request("server/discover", modern=True)
    trial.due[int, probe["id"]].least = 0
    trial.send(probe)
    trial.come([probe["id"]], trial.first_s)
    if not trial.answers(probe["id"]):
        if trial.child.exit is not None:
            raise trial.child.gone("server/discover ended it")
        trial.note(Deviation("server/discover before initialize was answered with silence"))
    elif "result" in trial.answers(probe["id"])[0]:
        # The client has its answer. That the handshake is still open is a MAY (2026-07-28 basic/versioning).
        opener = trial.initialize()
        trial.send(opener)
        if "error" in (answer := trial.answer(opener["id"])):
            trial.note(
                Deviation(
                    f"initialize behind a served server/discover was refused: {shown(answer)}"
                )
            )
            trial.ended = True
        else:
            trial.send(INITIALIZED)
            trial.opened = True
        return
    trial.open()


def discover(trial: CaseContext) -> None:
    answer = trial.ask("server/discover", modern=True)
    result = object_of(answer.get("result"))
    if result is None:
        raise Violation(f"server/discover was refused: {shown(answer)}")
    wanted = {
        "supportedVersions": list,
        "capabilities": dict,
        "resultType": str,
        "ttlMs": int,
        "cacheScope": str,
    }
    for name, kind in wanted.items():
        if not isinstance(result.get(name), kind):
            raise Violation(f"the result of server/discover has no {name}: {shown(answer)}")
    if MODERN not in result["supportedVersions"]:
        raise Violation(f"supportedVersions lacks {MODERN}, in which it was asked: {shown(answer)}")


def interleaved(trial: CaseContext) -> None:
    """Each request is answered by the rules of its own era."""
    for _ in range(3):
        if trial.findings:
            return
        legacy = trial.request("tools/list", modern=False)
        modern = trial.request("tools/list", modern=True)
        ping = trial.request("ping", modern=False)
        removed = trial.request("ping", modern=True)
        trial.send(legacy, modern, ping, removed)
        trial.all_answered([each["id"] for each in (legacy, modern, ping, removed)])
        one, other = trial.answers(legacy["id"])[0], trial.answers(modern["id"])[0]
        if ("error" in one) is not ("error" in other):
            trial.note(
                Deviation(f"tools/list differs between eras: {shown(one)} and {shown(other)}")
            )
        if "result" in other and "resultType" not in other["result"]:
            raise Violation(f"a {MODERN} result without resultType: {shown(other)}")
        if "error" in trial.answers(ping["id"])[0]:
            raise Violation(
                f"a legacy ping beside {MODERN} requests was refused: {shown(trial.answers(ping['id'])[0])}"
            )
        if trial.answers(removed["id"])[0].get("error", {}).get("code") != -32601:
            trial.note(
                Deviation(
                    f"ping of {MODERN}, which has none, was answered {shown(trial.answers(removed['id'])[0])}"
                )
            )


def unsupported_modern(trial: CaseContext) -> None:
    message = trial.request(
        "tools/list", {"_meta": {VERSION: "2099-01-01", CAPABILITIES: {}}}, modern=False
    )
    trial.send(message)
    error = trial.answer(message["id"]).get("error", {})
    if error.get("code") != UNSUPPORTED:
        raise Violation(
            f"a request of revision 2099-01-01 was answered {shown(trial.answer(message['id']))}"
        )
    data = error.get("data")
    if MODERN not in (list_of((object_of(data) or {}).get("supported")) or ()):
        raise Violation(f"the error does not list the supported versions: {shown(error)}")


def no_capabilities(trial: CaseContext) -> None:
    message = trial.request("tools/list", {"_meta": {VERSION: MODERN}}, modern=False)
    trial.send(message)
    answer = trial.answer(message["id"])
    if answer.get("error", {}).get("code") != -32602:
        raise Violation(
            f"a {MODERN} request without clientCapabilities was answered {shown(answer)}"
        )


def bare(trial: CaseContext) -> None:
    """Neither a handshake nor `_meta`."""
    message = trial.request("tools/list", modern=False)
    trial.send(message)
    answer = trial.answer(message["id"], trial.settings.start_s)
    if "error" not in answer:
        trial.note(Deviation(f"a request of no era was served: {shown(answer)}"))
    elif answer["error"]["code"] != -32602 or MODERN not in str(answer["error"].get("data")):
        trial.note(Deviation(f"expected -32602 with the supported versions, got {shown(answer)}"))
    trial.opened = True
    if "error" in (answer := trial.ask("server/discover")):  # an era was guessed, and kept: MAY
        trial.note(
            Deviation(f"server/discover behind a request of no era was refused: {shown(answer)}")
        )


def slow_reader_at_start(trial: CaseContext) -> None:
    """All of a conversation in one write before the process can have read anything."""
    messages: list[Message] = [] if trial.modern else [trial.initialize(), INITIALIZED]
    messages += [trial.light() for _ in range(20)]
    trial.write(b"".join(map(frame, messages)))
    ids = [each["id"] for each in messages if "id" in each]
    if len(trial.come(ids, trial.settings.start_s)) == len(ids):
        raise Hang("nothing was answered that was written while the process started")
    trial.must_succeed(ids)
    trial.opened = True


CASES = (
    Case(
        "request-at-start",
        4,
        "writes the opening and 20 requests at once, before the process has finished to start",
        "all are kept and answered",
        LIFECYCLE,
        slow_reader_at_start,
        opens=False,
    ),
    Case(
        "call-before-initialize",
        4,
        "calls tools/list before initialize",
        "an error; initialize works afterwards",
        "policy; " + LIFECYCLE + ": initialization is the first interaction",
        call_before_initialize,
        era="legacy",
        opens=False,
    ),
    Case(
        "ping-before-initialize",
        4,
        "pings before initialize",
        "answered; initialize works afterwards",
        "policy; " + LIFECYCLE,
        ping_before_initialize,
        era="legacy",
        opens=False,
    ),
    Case(
        "initialized-missing",
        4,
        "calls without having sent notifications/initialized",
        "served",
        "policy",
        no_initialized,
        era="legacy",
        opens=False,
    ),
    Case(
        "handshake-pipelined",
        4,
        "writes initialize, initialized and ping in one go",
        "both requests answered",
        LIFECYCLE,
        pipelined,
        era="legacy",
        opens=False,
    ),
    Case(
        "initialize-twice",
        4,
        "initializes a second time",
        "an error; the first handshake holds",
        "policy",
        twice,
        era="legacy",
    ),
    Case(
        "initialize-malformed",
        4,
        "initializes with malformed params in four ways",
        "an error for each; a sound initialize works afterwards",
        "policy; schema",
        malformed_initialize,
        era="legacy",
        opens=False,
    ),
    Case(
        "initialize-unknown-version",
        4,
        "opens with revision 1999-12-31",
        "another revision, or an error",
        LIFECYCLE + ", Version Negotiation: MUST respond with another version it supports",
        unknown_version,
        era="legacy",
        opens=False,
    ),
    Case(
        "initialize-modern-version",
        4,
        f"opens a handshake with {MODERN}",
        "a revision that has a handshake, or an error",
        "policy; " + VERSIONING,
        modern_version_in_handshake,
        era="legacy",
        opens=False,
    ),
    *map(_revision, LEGACY_REVISIONS),
    Case(
        "discover-first",
        4,
        "probes with server/discover before initialize, as clients of both eras do",
        "a result, or an error and an initialize that works afterwards",
        "policy; 2026-07-28 stdio, Backward compatibility",
        discover_unopened,
        era="legacy",
        opens=False,
    ),
    Case(
        "discover",
        4,
        "calls server/discover",
        "supportedVersions, capabilities, resultType, ttlMs and cacheScope",
        "2026-07-28 server/discover",
        discover,
        era="modern",
    ),
    Case(
        "eras-interleaved",
        4,
        "mixes requests of both eras on one connection",
        "each is answered by the rules of its own",
        VERSIONING,
        interleaved,
        needs=("modern",),
        era="legacy",
    ),
    Case(
        "version-unsupported",
        4,
        "sends a request of revision 2099-01-01",
        "an error -32022 with data.supported",
        VERSIONING + ": MUST",
        unsupported_modern,
        era="modern",
    ),
    Case(
        "capabilities-missing",
        4,
        f"leaves clientCapabilities out of a {MODERN} request",
        "an error -32602",
        "2026-07-28 basic: required in every request",
        no_capabilities,
        era="modern",
    ),
    Case(
        "no-era",
        4,
        "calls tools/list with neither a handshake nor _meta",
        "an error -32602 that lists the supported versions",
        "policy; " + VERSIONING,
        bare,
        era="modern",
        opens=False,
    ),
)
