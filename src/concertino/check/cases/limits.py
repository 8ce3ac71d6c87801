"""Section 2: limits and bombs. Input that is too long, too deeply nested, too wide or too much.

`concertino check` has its cases in sections (SECTIONS in case.py). Each public function is one
case. It gets the CaseContext of a server process, causes a fault, and raises a finding if the
server reacts wrongly. A Violation breaks a MUST of the specification, a Deviation only a stricter
rule of this project, and in a Hang the process no longer answers (findings.py). CASES, at the end,
has the name and the expected reaction of each case.
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Generator
from contextlib import contextmanager

from concertino.check import process_stats
from concertino.check.case import Case
from concertino.check.case_context import CaseContext, tool_result_text
from concertino.check.cases.refused_input import CODES
from concertino.check.findings import Deviation
from concertino.check.messages import encode_line, excerpt

MIB = 2**20
# How long the server may take for one large message, in seconds; docs/reference/check.md names it.
LARGE_MESSAGE_S = 10.0
ALLOWED_GROWTH_BYTES = 64 * MIB
INTERNAL_ERROR = -32603


@contextmanager
def limit_memory(context: CaseContext, allowed: int = ALLOWED_GROWTH_BYTES) -> Generator[None]:
    """Report a Deviation if the server's memory grows too much inside the `with` block.

    Does nothing without /proc.

    allowed: by how many bytes the peak may exceed the memory at the beginning; by default 64 MiB.
    """
    pid = context.process.pid
    before = process_stats.measure(pid)
    yield
    after = process_stats.measure(pid)
    if before and after:
        growth = after.peak_bytes - before.rss_bytes
        # A peak from before the block says nothing about the block.
        if after.peak_bytes > before.peak_bytes and growth > allowed:
            limit = f"{allowed / MIB:.0f} MiB are allowed"
            context.report_deviation(f"memory grew by {growth / MIB:.0f} MiB; {limit}")


def write_endless_line(context: CaseContext) -> None:
    """Write 100 MiB without a newline. An error must come back before the newline is sent."""
    without_id = context.process.output.responses_without_id
    chunk = b"x" * MIB
    context.max_errors_without_id += 1
    with limit_memory(context, context.settings.message_limit_bytes + ALLOWED_GROWTH_BYTES):
        for _ in range(100):
            context.write(chunk, LARGE_MESSAGE_S)
        context.process.wait_until(lambda: bool(without_id), context.settings.grace_s)
        is_early = bool(without_id)
        context.write(b"\n")
        context.require_service()

    if not without_id:
        context.report_deviation("100 MiB without a newline were answered with silence")
    elif not is_early:
        context.report_deviation(
            "100 MiB were refused only when the newline came, not when the limit was crossed"
        )


def _send_large_request(
    context: CaseContext,
    value: bytes,
    subject: str,
    *,
    within_s: float = 1.0,
) -> None:
    """Send a ping with a large value in its `_meta`. Report a Deviation if there is no response.

    value: the JSON text of the value, which may be invalid.
    subject: the value in words, for messages.
    within_s: the time limit for the response.
    """
    id, line = _make_ping_line(context, value, subject)
    if context.probe_line(line, id, within_s=LARGE_MESSAGE_S, grace_s=within_s) is None:
        context.report_deviation(f"{subject}: no answer")


def _make_ping_line(context: CaseContext, value: bytes, subject: str) -> tuple[int, bytes]:
    """Return the id and the line of a ping with a value in its `_meta`."""
    message = context.make_ping(params={"_meta": {"example.com/x": "#VALUE#"}})
    context.expect(message["id"], subject)
    # The value may be invalid JSON, so it is put in after the message is encoded.
    return message["id"], encode_line(message).replace(b'"#VALUE#"', value)


def send_nested_arrays(context: CaseContext) -> None:
    """Send a line of 200,000 nested arrays. An error must come back, and the process stay alive."""
    # A recursive parser that does not count its depth runs out of stack, which kills the process.
    line = b"[" * 200_000 + b"]" * 200_000 + b"\n"
    if context.probe_line(line, within_s=LARGE_MESSAGE_S) is None:
        context.report_deviation("200,000 nested arrays were answered with silence")


def send_nested_params(context: CaseContext) -> None:
    """Send pings with 200,000 nested arrays and objects. A response must come back to each."""
    arrays = b"[" * 200_000 + b"]" * 200_000
    _send_large_request(context, arrays, "a request nested 200,000 deep")
    objects = b'{"a":' * 200_000 + b"1" + b"}" * 200_000
    _send_large_request(context, objects, "a request with 200,000 nested objects")


def send_many_members(context: CaseContext) -> None:
    """Send a ping with an object of 200,000 keys, and one with an array of 1,000,000 elements.

    Each must get a response within 10 s.
    """
    members = b",".join(b'"k%d":%d' % (number, number) for number in range(200_000))
    for value, subject in (
        (b"{" + members + b"}", "200,000 members"),
        (b"[" + b"0," * 999_999 + b"0]", "1,000,000 elements"),
    ):
        _send_large_request(context, value, subject, within_s=LARGE_MESSAGE_S)


def send_colliding_keys(context: CaseContext) -> None:
    """Send a ping with keys that have the same hash. A response must come back in 10 s."""
    # "Aa" and "BB" have the same hash under h = 31 h + c, and so have all strings made of the same
    # number of these pairs. 16 pairs give 2^16 keys with one hash.
    keys = ("".join(pairs) for pairs in itertools.product(("Aa", "BB"), repeat=16))
    value = b"{" + b",".join(b'"%b":0' % key.encode() for key in keys) + b"}"
    _send_large_request(context, value, "65,536 keys with one hash", within_s=LARGE_MESSAGE_S)


def send_long_numbers(context: CaseContext) -> None:
    """Send pings with numbers of a million digits. A response must come back to each."""
    # Naive conversion of digits to an integer takes quadratic time.
    for value, subject in (
        (b"1" * 1_000_000, "a number of 1,000,000 digits"),
        (b"1e999999999", "the number 1e999999999"),
        (b"0." + b"3" * 1_000_000, "a fraction of 1,000,000 digits"),
    ):
        _send_large_request(context, value, subject)


def send_escapes(context: CaseContext) -> None:
    """Send a string of escapes that is too long for a message, although its characters are not.

    An error must come back.
    """
    # Each escape is six bytes on the wire and one character in memory. The limit counts the bytes
    # on the wire, before anything is decoded.
    count = context.settings.message_limit_bytes // 6 + 100
    value = b'"' + rb"\u0041" * count + b'"'
    id, line = _make_ping_line(context, value, "a string of escapes longer than the limit")
    with limit_memory(context, context.settings.message_limit_bytes + ALLOWED_GROWTH_BYTES):
        response = context.probe_line(line, id, within_s=LARGE_MESSAGE_S)

    size = len(line.rstrip())
    if response is None:
        context.report_deviation(
            f"{size} bytes, {count} characters when decoded, were answered with silence"
        )
    elif "error" not in response:
        question = f"counted as the {count} characters that they decode to?"
        context.report_deviation(f"{size} bytes were served: {question}")


def send_long_methods(context: CaseContext) -> None:
    """Send requests with very long methods. Short errors must come back."""
    # The second name consists of right-to-left overrides, which would garble a log or a terminal.
    for method in ("x" * MIB, "\u202e" * 100_000):
        response = context.request(method)
        if (size := len(json.dumps(response, ensure_ascii=False))) > 64 * 1024:
            context.report_deviation(
                f"an unknown method of {len(method)} characters was answered with {size}"
            )


def flood_for_1_s(context: CaseContext) -> None:
    """Send notifications for 1 s, and require what flood_notifications() requires."""
    flood_notifications(context, 1.0)


# No case by itself: soak/pressure.py calls it, too, with another time.
def flood_notifications(context: CaseContext, seconds: float) -> None:
    """Send notifications as fast as the server reads them, and then a ping.

    The ping must get a prompt response, and the server's memory must stay bounded.
    seconds: how long to send notifications.
    """
    # A known notification that refers to nothing, and an unknown one.
    progress = {"progressToken": 0, "progress": 1}
    data = encode_line({"jsonrpc": "2.0", "method": "notifications/progress", "params": progress})
    data += encode_line({"jsonrpc": "2.0", "method": "notifications/nobody/knows/this"})
    block = data * 500
    with limit_memory(context):
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            context.write(block)
        context.require_service()


def send_10000_calls(context: CaseContext) -> None:
    """Send 10,000 calls of a tool that waits. Each must get a result or an error "busy".

    The memory must stay bounded.
    """
    # A server that runs one call after the other would need 5,000 s. Try 50 calls of 0.2 s first,
    # which take such a server 10 s.
    watch = process_stats.Stopwatch(context.process.pid)
    few = [context.make_call("sleep", seconds=0.2) for _ in range(50)]
    context.exchange(*few, within_s=3 * context.settings.timeout_s)
    if watch.elapsed_s() > 5.0:
        consequence = "calls run one after the other, so 10,000 were not tried"
        raise Deviation(f"50 sleeps of 0.2 s took more than 5 s: {consequence}")

    ids: list[int] = []
    with limit_memory(context, 2 * ALLOWED_GROWTH_BYTES):
        for _ in range(10):
            calls = [context.make_call("sleep", seconds=0.5) for _ in range(1000)]
            ids += [call["id"] for call in calls]
            context.write(b"".join(map(encode_line, calls)), 3 * context.settings.timeout_s)
        context.require_service()
        context.wait_for_responses(ids, 6 * context.settings.timeout_s)

    for id in ids:
        response = context.responses(id)[0]
        if "error" in response:
            # A busy server may refuse a call, but not as if the call were malformed, nor with an
            # internal error.
            if response["error"]["code"] in (*CODES, INTERNAL_ERROR):
                raise Deviation(f"one of 10,000 sound calls was answered {excerpt(response)}")
        elif tool_result_text(response) is None:
            raise Deviation(f"one of 10,000 sound calls failed: {excerpt(response)}")


CASES = (
    # Long lines.
    Case(
        name="endless-line-100-mb",
        section=2,
        does="writes 100 MiB without a newline, then one",
        expected="one error as soon as the limit is crossed; memory grows by at most the limit and "
        "64 MiB; the next request is served",
        source="policy: the limit",
        run=write_endless_line,
    ),
    # Deep nesting, which overflows the stack of a recursive parser.
    Case(
        name="nested-arrays",
        section=2,
        does="sends a line of 200,000 nested arrays",
        expected="an error; the process lives",
        source="invariant",
        run=send_nested_arrays,
    ),
    Case(
        name="nested-in-params",
        section=2,
        does="sends requests whose params are nested 200,000 deep",
        expected="an answer or an error; the process lives",
        source="invariant",
        run=send_nested_params,
    ),
    # Wide and colliding objects, which take quadratic time in a naive parser.
    Case(
        name="many-members",
        section=2,
        does="sends 200,000 members, and 1,000,000 elements",
        expected="answered in 10 s",
        source="policy",
        run=send_many_members,
    ),
    Case(
        name="colliding-keys",
        section=2,
        does="sends 65,536 keys that collide in the usual hash",
        expected="answered in 10 s",
        source="policy",
        run=send_colliding_keys,
    ),
    # Numbers that are expensive to convert.
    Case(
        name="long-numbers",
        section=2,
        does="sends numbers of 1,000,000 digits and the number 1e999999999",
        expected="an answer or an error; the process lives",
        source="invariant",
        run=send_long_numbers,
    ),
    # Texts that shrink or grow when they are decoded or repeated.
    Case(
        name="escapes",
        section=2,
        does="sends a string of \\u0041 that is longer than the limit, but not once it is decoded",
        expected="an error: the limit counts the bytes on the wire",
        source="policy: the limit",
        run=send_escapes,
    ),
    Case(
        name="long-method",
        section=2,
        does="asks for methods with names of a million characters",
        expected="an error that does not repeat all of it",
        source="policy",
        run=send_long_methods,
    ),
    # Too many messages.
    Case(
        name="notifications-flood",
        section=2,
        does="sends notifications for a second as fast as the pipe takes them",
        expected="memory is bounded; the next request is served in a second",
        source="invariant",
        run=flood_for_1_s,
        slow=True,
    ),
    Case(
        name="calls-10000",
        section=2,
        does="sends 10,000 calls that take half a second each",
        expected="each gets a result or an error that the server is busy; memory stays bounded",
        source="policy; basic: every request is answered",
        run=send_10000_calls,
        needs=("sleep",),
        slow=True,
    ),
)
