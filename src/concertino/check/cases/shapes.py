"""Section 3: the shape of JSON-RPC messages."""

from __future__ import annotations

from concertino.check.case import Case, Deviation, Violation
from concertino.check.case_context import CaseContext
from concertino.check.cases.refused_input import (
    INVALID_PARAMS,
    INVALID_REQUEST,
    NOT_FOUND,
    PARSE_ERROR,
    Line,
    case_of,
    refused,
)
from concertino.check.messages import Message, frame, shown

__all__ = ["CASES"]

REQUEST = INVALID_REQUEST
JSON = "RFC 8259; JSON-RPC 2.0 section 5.1"
OBJECT = "JSON-RPC 2.0 section 4: a request is an object"
MEMBERS = "JSON-RPC 2.0 section 4"
PARAMS = "schema: params is an object"
ID = "basic: an id is a string or an integer, and not null"

LINES = (
    Line("json-number", 3, "sends 42", b"42", (REQUEST,), source=OBJECT),
    Line("json-string", 3, 'sends "x"', b'"x"', (REQUEST,), source=OBJECT),
    Line("json-true", 3, "sends true", b"true", (REQUEST,), source=OBJECT),
    Line("json-null", 3, "sends null", b"null", (REQUEST,), source=OBJECT),
    Line("batch-empty", 3, "sends []", b"[]", (REQUEST,), source="JSON-RPC 2.0 section 6"),
    Line("object-empty", 3, "sends {}", b"{}", (REQUEST,), source=OBJECT),
    Line(
        "jsonrpc-missing",
        3,
        "leaves jsonrpc out",
        b'{"id":"a","method":"ping"}',
        (REQUEST,),
        "a",
        MEMBERS,
    ),
    Line(
        "jsonrpc-1-0",
        3,
        "says jsonrpc 1.0",
        b'{"jsonrpc":"1.0","id":"a","method":"ping"}',
        (REQUEST,),
        "a",
        MEMBERS,
    ),
    Line(
        "params-array",
        3,
        "sends params as an array",
        b'{"jsonrpc":"2.0","id":"a","method":"ping","params":[1]}',
        (INVALID_PARAMS, REQUEST),
        "a",
        PARAMS,
    ),
    Line(
        "params-string",
        3,
        "sends params as a string",
        b'{"jsonrpc":"2.0","id":"a","method":"ping","params":"x"}',
        (INVALID_PARAMS, REQUEST),
        "a",
        PARAMS,
    ),
    Line(
        "params-null",
        3,
        "sends params as null",
        b'{"jsonrpc":"2.0","id":"a","method":"ping","params":null}',
        (INVALID_PARAMS, REQUEST),
        "a",
        PARAMS,
    ),
    Line(
        "method-number",
        3,
        "names method 5",
        b'{"jsonrpc":"2.0","id":"a","method":5}',
        (REQUEST,),
        "a",
        MEMBERS,
    ),
    Line(
        "method-empty",
        3,
        "names a method of no characters",
        b'{"jsonrpc":"2.0","id":"a","method":""}',
        (REQUEST, NOT_FOUND),
        "a",
        MEMBERS,
    ),
    Line(
        "method-missing",
        3,
        "names no method",
        b'{"jsonrpc":"2.0","id":"a"}',
        (REQUEST,),
        "a",
        MEMBERS,
    ),
    Line(
        "method-and-result",
        3,
        "sends a request with a result",
        b'{"jsonrpc":"2.0","id":"a","method":"ping","result":{}}',
        (REQUEST,),
        "a",
        MEMBERS,
    ),
    Line(
        "result-and-error",
        3,
        "sends a response with a result and an error",
        b'{"jsonrpc":"2.0","id":"a","result":{},"error":{"code":1,"message":"x"}}',
        (REQUEST,),
        "a",
        "JSON-RPC 2.0 section 5: exactly one of the two",
        silence=True,
    ),
    Line(
        "id-null",
        3,
        "uses the id null",
        b'{"jsonrpc":"2.0","id":null,"method":"ping"}',
        (REQUEST,),
        source=ID,
    ),
    Line(
        "id-true",
        3,
        "uses the id true",
        b'{"jsonrpc":"2.0","id":true,"method":"ping"}',
        (REQUEST,),
        source=ID,
    ),
    Line(
        "id-array",
        3,
        "uses the id []",
        b'{"jsonrpc":"2.0","id":[],"method":"ping"}',
        (REQUEST,),
        source=ID,
    ),
    Line(
        "id-object",
        3,
        "uses the id {}",
        b'{"jsonrpc":"2.0","id":{},"method":"ping"}',
        (REQUEST,),
        source=ID,
    ),
    Line(
        "nan",
        3,
        "has NaN in its params",
        b'{"jsonrpc":"2.0","id":"a","method":"ping","params":{"_meta":{"example.com/x":NaN}}}',
        (PARSE_ERROR,),
        "a",
        JSON,
    ),
    Line(
        "infinity",
        3,
        "has -Infinity in its params",
        b'{"jsonrpc":"2.0","id":"a","method":"ping","params":{"_meta":{"example.com/x":-Infinity}}}',
        (PARSE_ERROR,),
        "a",
        JSON,
    ),
    Line(
        "trailing-garbage",
        3,
        "has a brace too many at the end",
        b'{"jsonrpc":"2.0","id":"a","method":"ping"}}',
        (PARSE_ERROR,),
        "a",
        JSON,
    ),
    Line(
        "comment",
        3,
        "has a comment in it",
        b'{"jsonrpc":"2.0","id":"a","method":"ping" /* please */}',
        (PARSE_ERROR,),
        "a",
        JSON,
    ),
    Line(
        "trailing-comma",
        3,
        "has a comma behind the last member",
        b'{"jsonrpc":"2.0","id":"a","method":"ping",}',
        (PARSE_ERROR,),
        "a",
        JSON,
    ),
    Line(
        "single-quotes",
        3,
        "is quoted as Python quotes",
        b"{'jsonrpc':'2.0','id':'a','method':'ping'}",
        (PARSE_ERROR,),
        "a",
        JSON,
    ),
)


def two_objects(trial: CaseContext) -> None:
    line = b'{"jsonrpc":"2.0","id":"a","method":"ping"}{"jsonrpc":"2.0","id":"b","method":"ping"}'
    trial.expect("b", "the second of two requests on a line", least=0)
    refused(trial, line, (PARSE_ERROR,), "a")


def fraction_as_id(trial: CaseContext) -> None:
    trial.tolerated = lambda id: id == 1.5
    answer = refused(trial, b'{"jsonrpc":"2.0","id":1.5,"method":"ping"}', (REQUEST,))
    if answer is None and trial.answers(1.5):
        trial.note(Deviation(f"an id of 1.5 was answered {shown(trial.answers(1.5)[0])}"))
        trial.findings[:] = [each for each in trial.findings if "silence" not in str(each)]


def batch(trial: CaseContext) -> None:
    """Revisions other than 2025-03-26 have no batches: refused, or served; never silent, for there are requests in it."""
    one, other = trial.light(), trial.light()
    for each in (one, other):
        trial.due[int, each["id"]].least = 0
    child = trial.child
    child.arrays = True
    trial.write_garbage(b"[" + frame(one).rstrip() + b"," + frame(other).rstrip() + b"]\n")
    trial.must_serve()
    child.pump(lambda: bool(child.idless) or bool(trial.answers(one["id"])), trial.settings.grace_s)
    if not child.idless and not trial.answers(one["id"]):
        trial.note(Deviation("an array of two requests was answered with silence"))
    elif child.idless and child.idless[0]["error"]["code"] != REQUEST:
        trial.note(Deviation(f"an array was answered {shown(child.idless[0])}; {REQUEST} expected"))


def batch_agreed(trial: CaseContext) -> None:
    """The one revision that has them; the server may refuse to speak it."""
    result = trial.open("2025-03-26")
    if result.get("protocolVersion") != "2025-03-26":
        return
    child = trial.child
    child.arrays = True
    one, other = trial.request("ping", modern=False), trial.request("tools/list", modern=False)
    note = {"jsonrpc": "2.0", "method": "notifications/nobody/knows/this"}
    trial.write(b"[" + b",".join(frame(each).rstrip() for each in (one, note, other)) + b"]\n")
    trial.all_answered([one["id"], other["id"]])


def unknown_method(trial: CaseContext) -> None:
    answer = trial.ask("nobody/knows/this")
    if "error" not in answer:
        raise Violation(f"a method that does not exist gave a result: {shown(answer)}")
    if answer["error"]["code"] != NOT_FOUND:
        raise Violation(f"{answer['error']['code']} instead of {NOT_FOUND}: {shown(answer)}")


def ids_kept(trial: CaseContext) -> None:
    for id in (
        "1",
        1,
        "",
        0,
        -1,
        "ü🎻",
        'a"b\\c',
        "a\nb",
        2**31,
        -(2**53) + 1,
        2**53 - 1,
        "x" * 1000,
    ):
        message = trial.light(id)
        trial.send(message)
        trial.must_succeed([id])


def large_ids(trial: CaseContext) -> None:
    trial.tolerated = lambda id: isinstance(id, int | float) and abs(id) >= 2**53
    for id in (2**53 + 1, -(2**63) - 1, 2**70):
        message = trial.light(id)
        trial.due[int, id].least = 0
        before = len(trial.child.order)
        trial.garbage += 1
        trial.send(message)
        trial.must_serve()
        if not trial.answers(id) or "error" in trial.answers(id)[0]:
            answers = [each for each in trial.child.order[before:] if "method" not in each]
            came = (
                answers[0] if len(answers) > 1 else None
            )  # the other one answers what asked whether it still serves
            if came is None:
                trial.note(Deviation(f"a request with the id {id} was answered with silence"))
            elif "error" not in came:
                trial.note(
                    Deviation(f"a request with the id {id} was answered on the id {came.get('id')}")
                )


def unknown_members(trial: CaseContext) -> None:
    message: Message = {**trial.light(), "example": {"x": 1}, "trace": None}
    trial.due[int, message["id"]].least = 0
    trial.garbage += 1
    trial.send(message)
    trial.must_serve()
    trial.come([message["id"]], trial.settings.grace_s)
    answers = trial.answers(message["id"])
    if not answers:
        trial.note(
            Deviation(
                "a request with members that JSON-RPC does not know was answered with silence"
            )
        )
    elif "error" in answers[0]:
        trial.note(
            Deviation(
                f"a request with members that JSON-RPC does not know was refused: {shown(answers[0])}"
            )
        )


def unknown_meta(trial: CaseContext) -> None:
    message = trial.light(params={"_meta": {"example.com/anything": {"x": [1, None]}, "plain": 1}})
    trial.send(message)
    trial.must_succeed([message["id"]])


def escaped_names(trial: CaseContext) -> None:
    message = trial.light()
    data = (
        frame(message)
        .replace(b'"method"', b'"\\u006dethod"')
        .replace(b'"id"', b'"i\\u0064"')
        .replace(b":", b" : ")
    )
    trial.write(data)
    trial.must_succeed([message["id"]])


def stray_responses(trial: CaseContext) -> None:
    """Well-formed responses that answer nothing: ignored."""
    child = trial.child
    before = len(child.order)
    for line in (
        b'{"jsonrpc":"2.0","id":987654,"result":{}}',
        b'{"jsonrpc":"2.0","id":"nobody","result":{"x":1}}',
        b'{"jsonrpc":"2.0","id":987655,"error":{"code":-32600,"message":"x"}}',
        b'{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"x"}}',
    ):
        trial.write(line + b"\n")
    trial.must_serve()
    child.pump(lambda: False, min(0.1, trial.settings.grace_s))
    answered = [each for each in child.order[before:] if "error" in each]
    if answered:
        trial.note(Violation(f"a response was answered: {shown(answered[0])}"))
        trial.tolerated = lambda id: id in (987654, 987655, "nobody")
        trial.garbage += 4


def broken_responses(trial: CaseContext) -> None:
    trial.tolerated = lambda id: id in (1, "nobody")
    for line in (
        b'{"jsonrpc":"2.0","id":"nobody","error":5}',
        b'{"jsonrpc":"2.0","id":{},"result":{}}',
        b'{"jsonrpc":"2.0","result":{}}',
        b'{"jsonrpc":"1.0","id":"nobody","result":null}',
    ):
        trial.write_garbage(line + b"\n")
    trial.must_serve()
    child = trial.child
    child.pump(lambda: bool(child.idless), min(0.1, trial.settings.grace_s))
    if child.idless:
        trial.note(Deviation(f"a malformed response was answered: {shown(child.idless[0])}"))


def notifications(trial: CaseContext) -> None:
    """Whatever a notification is, nobody answers it."""
    child = trial.child
    before = len(child.order)
    messages: tuple[Message, ...] = (
        {"jsonrpc": "2.0", "method": "notifications/nobody/knows/this"},
        {"jsonrpc": "2.0", "method": "nobody/knows/this", "params": {"x": 1}},
        {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 987654}},
        {
            "jsonrpc": "2.0",
            "method": "notifications/progress",
            "params": {"progressToken": 1, "progress": 1},
        },
        {"jsonrpc": "2.0", "method": "tools/list"},
        {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {}},
    )
    for message in messages:
        trial.send(message)
    trial.must_serve()
    child.pump(lambda: False, min(0.1, trial.settings.grace_s))
    wrong = [each for each in child.order[before:] if "error" in each or each.get("id") == 987654]
    if wrong:
        trial.garbage += len(child.idless)
        trial.note(Violation(f"a notification was answered: {shown(wrong[0])}"))


CASES = (
    *map(case_of, LINES),
    Case(
        "two-objects",
        3,
        "puts two requests on one line",
        "one error -32700; neither is served",
        "stdio: one message per line",
        two_objects,
    ),
    Case("id-fraction", 3, "uses the id 1.5", "an error -32600 without an id", ID, fraction_as_id),
    Case(
        "batch",
        3,
        "sends an array of two requests in a revision that has no batches",
        "an error -32600, or both answers; not silence",
        "policy; 2025-06-18 took batches out",
        batch,
    ),
    Case(
        "batch-2025-03-26",
        3,
        "sends an array of two requests and a notification once 2025-03-26 was agreed on",
        "both answers (nothing is asked of a server that does not agree to 2025-03-26)",
        "2025-03-26 basic, Batching: MUST support receiving batches",
        batch_agreed,
        era="legacy",
        opens=False,
    ),
    Case(
        "unknown-method",
        3,
        "calls a method that does not exist",
        "an error -32601 on the id",
        "JSON-RPC 2.0 section 5.1",
        unknown_method,
    ),
    Case(
        "ids-kept",
        3,
        'uses the ids "1", 1, "", 0, -1, text of many kinds, and integers up to 2^53 - 1',
        "each answer has the same id, of the same type",
        "basic, Responses: the same id as the request",
        ids_kept,
    ),
    Case(
        "ids-large",
        3,
        "uses the ids 2^53 + 1, -2^63 - 1 and 2^70",
        "exactly the same id, or an error",
        "policy; RFC 8259 section 6 promises 2^53 - 1",
        large_ids,
    ),
    Case(
        "members-unknown",
        3,
        "adds members that JSON-RPC does not know to a request",
        "served",
        "policy; the schema allows them",
        unknown_members,
    ),
    Case(
        "meta-unknown",
        3,
        "adds keys of its own to _meta",
        "served",
        "basic, _meta: no assumptions about values at these keys",
        unknown_meta,
    ),
    Case(
        "escaped-names",
        3,
        "writes method as \\u006dethod, and blanks around the colons",
        "served",
        "RFC 8259 sections 2 and 7",
        escaped_names,
    ),
    Case(
        "stray-responses",
        3,
        "sends responses to requests that nobody made",
        "no answer",
        "JSON-RPC 2.0 sections 4 and 5: only requests are answered",
        stray_responses,
    ),
    Case(
        "broken-responses",
        3,
        "sends responses that are malformed",
        "no answer",
        "policy",
        broken_responses,
    ),
    Case(
        "notifications-unanswered",
        3,
        "sends notifications: unknown ones, malformed ones, and requests without an id",
        "no answer",
        "basic, Notifications: the receiver MUST NOT send a response",
        notifications,
    ),
)
