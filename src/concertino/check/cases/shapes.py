"""Section 3: the shape of JSON-RPC messages.

`concertino check` has its cases in sections (SECTIONS in case.py). Each public function is one
case. It gets the CaseContext of a server process, causes a fault, and raises a finding if the
server reacts wrongly. A Violation breaks a MUST of the specification, a Deviation only a stricter
rule of this project, and in a Hang the process no longer answers (findings.py). CASES, at the end,
has the name and the expected reaction of each case.
"""

from __future__ import annotations

from concertino.check.case import Case
from concertino.check.case_context import CaseContext
from concertino.check.cases.refused_input import (
    INVALID_PARAMS,
    INVALID_REQUEST,
    NOT_FOUND,
    PARSE_ERROR,
    make_cases,
    send_malformed_line,
)
from concertino.check.findings import SkipCase, Violation
from concertino.check.messages import UNUSED_ID, Message, encode_line, excerpt

JSON = "RFC 8259; JSON-RPC 2.0 section 5.1"
OBJECT = "JSON-RPC 2.0 section 4: a request is an object"
MEMBERS = "JSON-RPC 2.0 section 4"
PARAMS = "schema: params is an object"
ID = "basic: an id is a string or an integer, and not null"


def send_two_objects(context: CaseContext) -> None:
    """Send two pings on one line. One error -32700 must come back."""
    line = b'{"jsonrpc":"2.0","id":"a","method":"ping"}{"jsonrpc":"2.0","id":"b","method":"ping"}'
    # The server must answer the line with one error, so it need not answer the second ping.
    context.expect("b", "the second of two requests on a line", least=0)
    send_malformed_line(context, line, (PARSE_ERROR,), "a")


def use_fraction_as_id(context: CaseContext) -> None:
    """Send a ping with the id 1.5. An error -32600 without an id must come back."""
    context.is_unknown_id_allowed = lambda id: id == 1.5
    line = b'{"jsonrpc":"2.0","id":1.5,"method":"ping"}'
    # Only responses without an id are looked for here, so silence may also be a response to 1.5.
    response = send_malformed_line(context, line, (INVALID_REQUEST,), may_be_silent=True)
    if response is not None:
        return
    if responses := context.responses(1.5):
        context.report_deviation(f"an id of 1.5 was answered {excerpt(responses[0])}")
    else:
        context.report_deviation(f"{excerpt(line)} was answered with silence")


def _encode_batch(*messages: Message) -> bytes:
    """Return a line with an array of messages."""
    return b"[" + b",".join(encode_line(message).rstrip() for message in messages) + b"]\n"


def send_batch(context: CaseContext) -> None:
    """Send an array of two pings. An error or both responses must come back."""
    # Only 2025-03-26 has batches. A server may refuse this one or serve it, but silence would let
    # the client wait for the two requests in it.
    first, second = context.make_ping(), context.make_ping()
    context.allow_missing_response(second["id"])
    context.process.output.allow_batch = True
    response = context.probe_line(_encode_batch(first, second), first["id"])
    if response is None:
        context.report_deviation("an array of two requests was answered with silence")
    elif response.get("id") is None and response["error"]["code"] != INVALID_REQUEST:
        context.report_deviation(
            f"an array was answered {excerpt(response)}; {INVALID_REQUEST} expected"
        )


def send_negotiated_batch(context: CaseContext) -> None:
    """Send an array of three messages in 2025-03-26. The two responses must come back."""
    result = context.open("2025-03-26")
    if result.get("protocolVersion") != "2025-03-26":
        raise SkipCase("the server does not speak 2025-03-26")
    context.process.output.allow_batch = True
    ping, listing = context.make_request("ping"), context.make_request("tools/list")
    notification: Message = {"jsonrpc": "2.0", "method": "notifications/nobody/knows/this"}
    context.write(_encode_batch(ping, notification, listing))
    context.wait_for_responses([ping["id"], listing["id"]])


def call_unknown_method(context: CaseContext) -> None:
    """Send a request with an unknown method. Error -32601 must come back."""
    response = context.request("nobody/knows/this")
    if "error" not in response:
        raise Violation(f"a method that does not exist gave a result: {excerpt(response)}")
    code = response["error"]["code"]
    if code != NOT_FOUND:
        raise Violation(f"{code} instead of {NOT_FOUND}: {excerpt(response)}")


def use_valid_ids(context: CaseContext) -> None:
    """Send pings with unusual valid ids. Results with the same ids must come back."""
    for id in (
        # The same digits in two types, and values that are false in many languages.
        "1",
        1,
        "",
        0,
        -1,
        # Characters outside ASCII and the basic plane, and those that JSON escapes.
        "ü🎻",
        'a"b\\c',
        "a\nb",
        # Beyond 32 bits, and the limits of what JSON promises (RFC 8259 section 6).
        2**31,
        -(2**53) + 1,
        2**53 - 1,
        "x" * 1000,
    ):
        context.require_success(context.make_ping(id))


def use_large_ids(context: CaseContext) -> None:
    """Send pings with integer ids beyond 2^53. The same ids or errors must come back."""
    # Beyond 2^53 a server may round the id, so the response may come on a neighbouring one.
    context.is_unknown_id_allowed = lambda id: isinstance(id, int | float) and abs(id) >= 2**53
    messages = context.process.output.messages
    for id in (2**53 + 1, -(2**63) - 1, 2**70):
        message = context.make_ping(id)
        context.allow_missing_response(id)
        # The server may refuse the message without an id, because it cannot represent the id.
        context.max_errors_without_id += 1
        count_before = len(messages)
        context.send(message)
        context.require_service()
        if context.responses(id) and "error" not in context.responses(id)[0]:
            continue

        new = [item for item in messages[count_before:] if "method" not in item]
        # The last response belongs to require_service().
        if len(new) < 2:
            context.report_deviation(f"a request with the id {id} was answered with silence")
        elif "error" not in new[0]:
            context.report_deviation(
                f"a request with the id {id} was answered on the id {new[0].get('id')}"
            )


def add_unknown_members(context: CaseContext) -> None:
    """Send a ping with keys that JSON-RPC does not know. A result must come back."""
    message: Message = {**context.make_ping(), "example": {"x": 1}, "trace": None}
    response = context.probe_line(encode_line(message), message["id"])
    subject = "a request with members that JSON-RPC does not know"
    if response is None:
        context.report_deviation(f"{subject} was answered with silence")
    elif "error" in response:
        context.report_deviation(f"{subject} was refused: {excerpt(response)}")


def add_unknown_meta(context: CaseContext) -> None:
    """Send a ping with unknown keys in `_meta`. A result must come back."""
    meta = {"example.com/anything": {"x": [1, None]}, "plain": 1}
    context.require_success(context.make_ping(params={"_meta": meta}))


def escape_member_names(context: CaseContext) -> None:
    """Send a ping with escapes in its keys, such as `\\u006dethod`. A result must come back."""
    message = context.make_ping()
    # Spaces beside colons are valid, too.
    line = (
        encode_line(message)
        .replace(b'"method"', b'"\\u006dethod"')
        .replace(b'"id"', b'"i\\u0064"')
        .replace(b":", b" : ")
    )
    context.write(line)
    context.require_results([message["id"]])


def send_unrelated_responses(context: CaseContext) -> None:
    """Send responses to requests that the server has never sent. Nothing must come back."""
    output = context.process.output
    count_before = len(output.messages)
    lines = (
        b'{"jsonrpc":"2.0","id":987654,"result":{}}',
        b'{"jsonrpc":"2.0","id":"nobody","result":{"x":1}}',
        b'{"jsonrpc":"2.0","id":987655,"error":{"code":-32600,"message":"x"}}',
        b'{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"x"}}',
    )
    for line in lines:
        context.write(line + b"\n")
    context.require_service()
    context.process.read_for(min(0.1, context.settings.grace_s))

    errors = [message for message in output.messages[count_before:] if "error" in message]
    if errors:
        context.report(Violation(f"a response was answered: {excerpt(errors[0])}"))
        # Reported here, so the invariants need not report them again.
        context.is_unknown_id_allowed = lambda id: id in (987654, 987655, "nobody")
        context.max_errors_without_id += len(lines)


def send_malformed_responses(context: CaseContext) -> None:
    """Send malformed responses. Nothing must come back."""
    context.is_unknown_id_allowed = lambda id: id in (1, "nobody")
    for line in (
        b'{"jsonrpc":"2.0","id":"nobody","error":5}',
        b'{"jsonrpc":"2.0","id":{},"result":{}}',
        b'{"jsonrpc":"2.0","result":{}}',
        b'{"jsonrpc":"1.0","id":"nobody","result":null}',
    ):
        context.write_malformed_lines(line + b"\n")
    context.require_service()

    # An error in response to these would make two broken peers answer each other forever.
    without_id = context.process.output.responses_without_id
    context.process.wait_until(lambda: bool(without_id), min(0.1, context.settings.grace_s))
    if without_id:
        context.report_deviation(f"a malformed response was answered: {excerpt(without_id[0])}")


def send_notifications(context: CaseContext) -> None:
    """Send unknown and malformed notifications. Nothing must come back."""
    output = context.process.output
    count_before = len(output.messages)
    progress = {"progressToken": 1, "progress": 1}
    messages: tuple[Message, ...] = (
        # Unknown notifications, with and without the usual prefix.
        {"jsonrpc": "2.0", "method": "notifications/nobody/knows/this"},
        {"jsonrpc": "2.0", "method": "nobody/knows/this", "params": {"x": 1}},
        # Notifications of the specification that refer to no request.
        {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": UNUSED_ID}},
        {"jsonrpc": "2.0", "method": "notifications/progress", "params": progress},
        # A request without an id, which is a notification, and a notification without its params.
        {"jsonrpc": "2.0", "method": "tools/list"},
        {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {}},
    )
    for message in messages:
        context.send(message)
    context.require_service()
    context.process.read_for(min(0.1, context.settings.grace_s))

    # Some servers answer a cancellation on the id that it names.
    answers = [
        message
        for message in output.messages[count_before:]
        if "error" in message or message.get("id") == UNUSED_ID
    ]
    if answers:
        # Reported here, so the invariants need not report them again.
        context.max_errors_without_id += len(output.responses_without_id)
        context.report(Violation(f"a notification was answered: {excerpt(answers[0])}"))


CASES = (
    # Valid JSON that is not an object.
    *make_cases(
        3,
        (INVALID_REQUEST,),
        ("json-number", "sends 42", b"42"),
        ("json-string", 'sends "x"', b'"x"'),
        ("json-true", "sends true", b"true"),
        ("json-null", "sends null", b"null"),
        source=OBJECT,
    ),
    *make_cases(
        3,
        (INVALID_REQUEST,),
        ("batch-empty", "sends []", b"[]"),
        source="JSON-RPC 2.0 section 6",
    ),
    *make_cases(
        3,
        (INVALID_REQUEST,),
        ("object-empty", "sends {}", b"{}"),
        source=OBJECT,
    ),
    # Wrong or missing `jsonrpc`.
    *make_cases(
        3,
        (INVALID_REQUEST,),
        ("jsonrpc-missing", "leaves jsonrpc out", b'{"id":"a","method":"ping"}'),
        ("jsonrpc-1-0", "says jsonrpc 1.0", b'{"jsonrpc":"1.0","id":"a","method":"ping"}'),
        id="a",
        source=MEMBERS,
    ),
    # Params that are not an object.
    *make_cases(
        3,
        (INVALID_PARAMS, INVALID_REQUEST),
        (
            "params-array",
            "sends params as an array",
            b'{"jsonrpc":"2.0","id":"a","method":"ping","params":[1]}',
        ),
        (
            "params-string",
            "sends params as a string",
            b'{"jsonrpc":"2.0","id":"a","method":"ping","params":"x"}',
        ),
        (
            "params-null",
            "sends params as null",
            b'{"jsonrpc":"2.0","id":"a","method":"ping","params":null}',
        ),
        id="a",
        source=PARAMS,
    ),
    # Wrong or missing `method`.
    *make_cases(
        3,
        (INVALID_REQUEST,),
        ("method-number", "names method 5", b'{"jsonrpc":"2.0","id":"a","method":5}'),
        id="a",
        source=MEMBERS,
    ),
    *make_cases(
        3,
        (INVALID_REQUEST, NOT_FOUND),
        (
            "method-empty",
            "names a method of no characters",
            b'{"jsonrpc":"2.0","id":"a","method":""}',
        ),
        id="a",
        source=MEMBERS,
    ),
    *make_cases(
        3,
        (INVALID_REQUEST,),
        ("method-missing", "names no method", b'{"jsonrpc":"2.0","id":"a"}'),
        # Half request, half response.
        (
            "method-and-result",
            "sends a request with a result",
            b'{"jsonrpc":"2.0","id":"a","method":"ping","result":{}}',
        ),
        id="a",
        source=MEMBERS,
    ),
    *make_cases(
        3,
        (INVALID_REQUEST,),
        (
            "result-and-error",
            "sends a response with a result and an error",
            b'{"jsonrpc":"2.0","id":"a","result":{},"error":{"code":1,"message":"x"}}',
        ),
        id="a",
        source="JSON-RPC 2.0 section 5: exactly one of the two",
        may_be_silent=True,
    ),
    # Values that cannot be ids.
    *make_cases(
        3,
        (INVALID_REQUEST,),
        ("id-null", "uses the id null", b'{"jsonrpc":"2.0","id":null,"method":"ping"}'),
        ("id-true", "uses the id true", b'{"jsonrpc":"2.0","id":true,"method":"ping"}'),
        ("id-array", "uses the id []", b'{"jsonrpc":"2.0","id":[],"method":"ping"}'),
        ("id-object", "uses the id {}", b'{"jsonrpc":"2.0","id":{},"method":"ping"}'),
        source=ID,
    ),
    # Texts that some parsers accept although they are not JSON.
    *make_cases(
        3,
        (PARSE_ERROR,),
        (
            "nan",
            "has NaN in its params",
            b'{"jsonrpc":"2.0","id":"a","method":"ping","params":{"_meta":{"example.com/x":NaN}}}',
        ),
        (
            "infinity",
            "has -Infinity in its params",
            b'{"jsonrpc":"2.0","id":"a","method":"ping",'
            b'"params":{"_meta":{"example.com/x":-Infinity}}}',
        ),
        (
            "trailing-garbage",
            "has a brace too many at the end",
            b'{"jsonrpc":"2.0","id":"a","method":"ping"}}',
        ),
        (
            "comment",
            "has a comment in it",
            b'{"jsonrpc":"2.0","id":"a","method":"ping" /* please */}',
        ),
        (
            "trailing-comma",
            "has a comma after the last member",
            b'{"jsonrpc":"2.0","id":"a","method":"ping",}',
        ),
        (
            "single-quotes",
            "is quoted as Python quotes",
            b"{'jsonrpc':'2.0','id':'a','method':'ping'}",
        ),
        id="a",
        source=JSON,
    ),
    # Several messages on one line.
    Case(
        name="two-objects",
        section=3,
        does="puts two requests on one line",
        expected="one error -32700; neither is served",
        source="stdio: one message per line",
        run=send_two_objects,
    ),
    Case(
        name="id-fraction",
        section=3,
        does="uses the id 1.5",
        expected="an error -32600 without an id",
        source=ID,
        run=use_fraction_as_id,
    ),
    Case(
        name="batch",
        section=3,
        does="sends an array of two requests in a revision that has no batches",
        expected="an error -32600, or both answers; not silence",
        source="policy; 2025-06-18 took batches out",
        run=send_batch,
    ),
    Case(
        name="batch-2025-03-26",
        section=3,
        does="sends an array of two requests and a notification once 2025-03-26 was agreed on",
        expected="both answers (nothing is asked of a server that does not agree to 2025-03-26)",
        source="2025-03-26 basic, Batching: MUST support receiving batches",
        run=send_negotiated_batch,
        era="legacy",
        opens=False,
    ),
    # Valid requests that a server must answer.
    Case(
        name="unknown-method",
        section=3,
        does="calls a method that does not exist",
        expected="an error -32601 on the id",
        source="JSON-RPC 2.0 section 5.1",
        run=call_unknown_method,
    ),
    # Ids must come back as they were.
    Case(
        name="ids-kept",
        section=3,
        does='uses the ids "1", 1, "", 0, -1, text of many kinds, and integers up to 2^53 - 1',
        expected="each answer has the same id, of the same type",
        source="basic, Responses: the same id as the request",
        run=use_valid_ids,
    ),
    Case(
        name="ids-large",
        section=3,
        does="uses the ids 2^53 + 1, -2^63 - 1 and 2^70",
        expected="exactly the same id, or an error",
        source="policy; RFC 8259 section 6 promises 2^53 - 1",
        run=use_large_ids,
    ),
    # Members that the receiver does not know.
    Case(
        name="members-unknown",
        section=3,
        does="adds members that JSON-RPC does not know to a request",
        expected="served",
        source="policy; the schema allows them",
        run=add_unknown_members,
    ),
    Case(
        name="meta-unknown",
        section=3,
        does="adds keys of its own to _meta",
        expected="served",
        source="basic, _meta: no assumptions about values at these keys",
        run=add_unknown_meta,
    ),
    Case(
        name="escaped-names",
        section=3,
        does="writes method as \\u006dethod, and blanks around the colons",
        expected="served",
        source="RFC 8259 sections 2 and 7",
        run=escape_member_names,
    ),
    # Messages that must not be answered.
    Case(
        name="stray-responses",
        section=3,
        does="sends responses to requests that were never made",
        expected="no answer",
        source="JSON-RPC 2.0 sections 4 and 5: only requests are answered",
        run=send_unrelated_responses,
    ),
    Case(
        name="broken-responses",
        section=3,
        does="sends responses that are malformed",
        expected="no answer",
        source="policy",
        run=send_malformed_responses,
    ),
    Case(
        name="notifications-unanswered",
        section=3,
        does="sends notifications: unknown ones, malformed ones, and requests without an id",
        expected="no answer",
        source="basic, Notifications: the receiver MUST NOT send a response",
        run=send_notifications,
    ),
)
