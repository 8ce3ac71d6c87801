"""Section 1, first part: bytes and framing, and the pieces in which input arrives.

`concertino check` has its cases in sections (SECTIONS in case.py). Each public function is one
case. It gets the CaseContext of a server process, causes a fault, and raises a finding if the
server reacts wrongly. A Violation breaks a MUST of the specification, a Deviation only a stricter
rule of this project, and in a Hang the process no longer answers (findings.py). CASES, at the end,
has the name and the expected reaction of each case.
"""

from __future__ import annotations

import json
import signal

from concertino.check import process_stats
from concertino.check.case import Case
from concertino.check.case_context import INITIALIZED, CaseContext, tool_result_text
from concertino.check.cases.refused_input import (
    INVALID_REQUEST,
    PARSE_ERROR,
    make_cases,
    send_malformed_line,
)
from concertino.check.findings import Deviation, Violation
from concertino.check.messages import encode_line, excerpt

MIB = 2**20
BOM = b"\xef\xbb\xbf"
STDIO = "basic/transports, stdio: messages are UTF-8, one per line"
# str.splitlines() takes these characters for the end of a line; JSON and stdio do not.
SEPARATORS = "a\u2028b\u2029c\x85d\x0be\x1cf"
MANY_LANGUAGES = "Grüße, 你好, здравствуйте, 🎻"


def send_100_malformed_lines(context: CaseContext) -> None:
    """Send 100 lines that are no JSON. At least one error must come back.

    The next request must get a response, too.
    """
    output = context.process.output
    context.write_malformed_lines(b"{not json}\n" * 100, lines=100)
    context.require_service()
    # Wait for all of them, so that the invariants see more than 100, too.
    context.process.wait_until(
        lambda: len(output.responses_without_id) >= 100, context.settings.grace_s
    )
    # A server may limit the rate of its errors, so one is enough.
    if not output.responses_without_id:
        context.report_deviation("100 lines that are no JSON were answered with silence")


def send_invalid_utf8_argument(context: CaseContext) -> None:
    """Call echo with an argument that is not UTF-8. An error must come back.

    The tool must not be called with U+FFFD in place of the invalid bytes.
    """
    id = context.new_id()
    params = context.find_tool("echo").make_params(text="MARK")
    frame = encode_line(context.make_request("tools/call", params, id))
    line = frame.rstrip().replace(b"MARK", b"caf\xff")
    response = send_malformed_line(context, line, (PARSE_ERROR,), id)
    if response is not None and "\ufffd" in (tool_result_text(response) or ""):
        context.report_deviation("the tool was called with U+FFFD in place of what was no UTF-8")


def send_bom_first(context: CaseContext) -> None:
    """Begin the session with a byte order mark and a request. A result must come back."""
    opening = (
        context.make_request("server/discover") if context.modern else context.make_initialize()
    )
    id = opening["id"]
    context.allow_missing_response(id)
    context.max_errors_without_id += 1
    context.write(BOM + encode_line(opening))

    if context.find_missing_responses([id], context.start_grace_s):
        context.report_deviation("a byte order mark before the first message: no answer on its id")
    elif "error" in context.responses(id)[0]:
        error = excerpt(context.responses(id)[0])
        context.report_deviation(f"a byte order mark before the first message: {error}")
    else:
        # The message has opened the session.
        context.is_open = True
        if not context.modern:
            context.send(INITIALIZED)


def send_bom_later(context: CaseContext) -> None:
    """Send a byte order mark and a ping in an open session. A result must come back."""
    message = context.make_ping()
    response = context.probe_line(BOM + encode_line(message), message["id"])
    if response is None or "error" in response:
        context.report_deviation(
            "a byte order mark before a later message: the message was not served"
        )


def send_crlf(context: CaseContext) -> None:
    """Send three pings in lines that end with CR LF. Three results must come back."""
    messages = [context.make_ping() for _ in range(3)]
    context.write(b"".join(encode_line(message)[:-1] + b"\r\n" for message in messages))
    context.require_results([message["id"] for message in messages])


def send_blank_lines(context: CaseContext) -> None:
    """Send five lines without content. Nothing must come back."""
    without_id = context.process.output.responses_without_id
    context.write_malformed_lines(b"\n\n   \n\t\n\r\n", lines=5)
    context.require_service()
    context.process.wait_until(lambda: bool(without_id), context.settings.grace_s)
    if without_id:
        context.report_deviation(
            f"blank lines were answered {len(without_id)} times: {excerpt(without_id[0])}"
        )


def echo_separators(context: CaseContext) -> None:
    """Call echo with characters that some programs take for line ends.

    The same text must come back.
    """
    for text in (SEPARATORS, MANY_LANGUAGES):
        context.require_echo(text)


def send_separators_in_ids(context: CaseContext) -> None:
    """Send pings whose ids have characters that some programs take for line ends.

    Results with the same ids must come back.
    """
    for id in (SEPARATORS, MANY_LANGUAGES):
        context.require_success(context.make_ping(id))


def send_escaped_nul(context: CaseContext) -> None:
    """Send escaped NULs in an id, and in a text for echo. The same id and text must come back."""
    context.require_success(context.make_ping("a\x00b"))
    if "echo" in context.server.tools:
        context.require_echo("a\x00b\x1f\x7f")


def write_single_bytes(context: CaseContext) -> None:
    """Write a ping byte by byte. Its result must come back."""
    message = context.make_ping(MANY_LANGUAGES)
    for byte in encode_line(message):
        context.write(bytes([byte]))
        # Without the wait, the server would find several bytes in the pipe at once.
        context.process.wait_until_read(0.05)
    context.require_results([MANY_LANGUAGES])


def split_at_every_byte(context: CaseContext) -> None:
    """Write two pings in two pieces, cut at each byte in turn. Both responses must come back."""
    # The id of the first request holds characters of 2, 3 and 4 bytes.
    first = context.make_ping("ü你🎻-0000")
    second = context.make_ping("second-0000")
    # These ids are never sent; the messages only serve as templates of constant length.
    del context.expected[str, first["id"]], context.expected[str, second["id"]]

    size = len(encode_line(first) + encode_line(second))
    for cut in range(1, size):
        first["id"], second["id"] = f"ü你🎻-{cut:04}", f"second-{cut:04}"
        context.expect(first["id"], f"the first of two requests cut at byte {cut}")
        context.expect(second["id"], f"the second of two requests cut at byte {cut}")
        data = encode_line(first) + encode_line(second)
        context.write(data[:cut])
        context.process.wait_until_read(0.05)
        context.write(data[cut:])
        context.wait_for_responses([first["id"], second["id"]])


def send_1000_requests(context: CaseContext) -> None:
    """Send 1,000 pings in one write. 1,000 results must come back."""
    context.require_success(*(context.make_ping() for _ in range(1000)))


def echo_70_kb(context: CaseContext) -> None:
    """Call echo with 70,000 bytes. The same bytes must come back."""
    # More than the 64 KiB that a pipe holds. Numbers show where bytes are lost.
    context.require_echo("".join(f"{number:07} " for number in range(70_000 // 8)))


def echo_10_mb(context: CaseContext) -> None:
    """Call echo with the longest text that fits into a message. The same text must come back."""
    before, after = context.server.echo_frame
    # Leave 2 KiB for the rest of the message, in the request and in the response.
    text = "x" * (context.settings.message_limit_bytes - 2048 - len(before) - len(after))
    message = context.make_call("echo", text=text)
    # A server with a lower limit may refuse the message before it knows the id.
    context.max_errors_without_id += 1
    context.write(encode_line(message), 3 * context.settings.timeout_s)
    response = context.wait_for_response(message["id"], 3 * context.settings.timeout_s)

    echoed = tool_result_text(response)
    if echoed is None:
        raise Deviation(f"an echo of {len(text)} bytes was refused: {excerpt(response)}")
    if echoed != before + text + after:
        difference = f"gave back {len(echoed)}, which are not the same"
        raise Violation(f"an echo of {len(text)} bytes {difference}")


def _make_padded_ping(context: CaseContext, size: int) -> tuple[int, bytes]:
    """Return the id and the line of a ping.

    size: the size of the line in bytes, without its newline.
    """
    message = context.make_ping(params={"_meta": {"example.com/padding": ""}})
    padding = "x" * (size - len(encode_line(message)) + 1)
    message["params"]["_meta"]["example.com/padding"] = padding
    line = encode_line(message)
    assert len(line) == size + 1
    return message["id"], line


def send_largest_message(context: CaseContext) -> None:
    """Send a ping of exactly the largest size. A result must come back."""
    limit = context.settings.message_limit_bytes
    id, line = _make_padded_ping(context, limit)
    response = context.probe_line(line, id, within_s=3 * context.settings.timeout_s)
    if response is None or "error" in response:
        answer = excerpt(response) if response else "no answer"
        raise Deviation(f"a message of {limit} bytes was not served: {answer}")


def send_too_large_message(context: CaseContext) -> None:
    """Send a ping that is one byte too long. An error that names the limit must come back."""
    limit = context.settings.message_limit_bytes
    id, line = _make_padded_ping(context, limit + 1)
    response = context.probe_line(line, id, within_s=3 * context.settings.timeout_s)
    if response is None:
        raise Deviation(f"a message of {limit + 1} bytes was answered with silence")
    if "error" not in response:
        option = f"the limit is {limit} (--message-limit-bytes)"
        raise Deviation(f"a message of {limit + 1} bytes was served; {option}")
    error = response["error"]
    if error["code"] != INVALID_REQUEST or str(limit) not in json.dumps(error):
        expected = f"no {INVALID_REQUEST} that tells the limit"
        raise Deviation(f"the refusal is {expected}: {excerpt(response)}")


def compare_message_sizes(context: CaseContext) -> None:
    """Send the same number of bytes as one ping and as sixteen, and compare the CPU time.

    The one ping may take at most twice the time of the sixteen.
    """
    total_bytes = min(8 * MIB, context.settings.message_limit_bytes // 2)

    # CPU time and not elapsed time is compared, since the machine may be busy.
    def measure_cpu_s(count: int) -> float:
        before = process_stats.measure(context.process.pid)
        ids: list[int] = []
        for _ in range(count):
            id, line = _make_padded_ping(context, total_bytes // count)
            ids.append(id)
            context.write(line, 3 * context.settings.timeout_s)
        context.wait_for_responses(ids, 3 * context.settings.timeout_s)
        after = process_stats.measure(context.process.pid)
        return after.cpu_s - before.cpu_s if before and after else 0.0

    # The first large message makes the server allocate memory; its time does not count.
    measure_cpu_s(1)
    many_s = min(measure_cpu_s(16) for _ in range(3))
    one_s = min(measure_cpu_s(1) for _ in range(3))
    # CPU time has a resolution of 0.01 s, and is added up over several processes and measurements.
    if one_s > 2 * many_s + 0.1:
        size = f"{total_bytes / MIB:.1f} MiB"
        raise Deviation(
            f"{size} in one message cost {one_s:.2f} s of processor, in 16 messages {many_s:.2f} s"
        )


def stop_and_continue(context: CaseContext) -> None:
    """Send 25 pings, each while the process is stopped. Each response must come back."""
    # A stopped process wakes up in the middle of a system call, which then fails with EINTR or
    # returns early. SIGWINCH and SIGCHLD do the same without stopping it.
    for _ in range(25):
        message = context.make_ping()
        context.process.send_signal(signal.SIGSTOP)
        context.send(message)
        context.process.send_signal(signal.SIGCONT)
        context.process.send_signal(signal.SIGWINCH)
        context.process.send_signal(signal.SIGCHLD)
        context.wait_for_response(message["id"])


CASES = (
    # Not JSON at all, or only a part of it.
    *make_cases(
        1,
        (PARSE_ERROR,),
        ("not-json", "sends {not json}", b"{not json}"),
        ("truncated-request", "sends half a request", b'{"jsonrpc":"2.0","id":77,"method":"pi'),
        ("not-utf8", "sends the bytes ff fe 80 as a line", b"\xff\xfe\x80"),
    ),
    # JSON strings must escape control characters.
    *make_cases(
        1,
        (PARSE_ERROR,),
        (
            "nul-raw",
            "sends a request with a raw NUL byte in a string",
            b'{"jsonrpc":"2.0","id":"a","method":"ping",'
            b'"params":{"_meta":{"example.com/x":"a\x00b"}}}',
        ),
        id="a",
        source="RFC 8259 section 7: control characters are escaped",
    ),
    # Malformed lines and other encodings.
    Case(
        name="bad-lines-100",
        section=1,
        does="sends 100 lines that are no JSON in one write",
        expected="at least one and at most 100 answers without an id; the next request is served",
        source="policy: malformed input is answered, at a bounded rate",
        run=send_100_malformed_lines,
    ),
    Case(
        name="not-utf8-in-argument",
        section=1,
        does="sends a tool call whose text holds the byte ff",
        expected="an error -32700; the tool is not called with U+FFFD in its place",
        source="policy; " + STDIO,
        run=send_invalid_utf8_argument,
        needs=("echo",),
    ),
    # RFC 8259 lets a reader ignore a byte order mark; Windows programs write one.
    Case(
        name="bom-first",
        section=1,
        does="sends a byte order mark before the very first message",
        expected="the message is served",
        source="policy; RFC 8259 section 8.1 lets a reader ignore it",
        run=send_bom_first,
        opens=False,
    ),
    Case(
        name="bom-later",
        section=1,
        does="sends a byte order mark before a later message",
        expected="the message is served",
        source="policy",
        run=send_bom_later,
    ),
    # Line ends.
    Case(
        name="crlf",
        section=1,
        does="ends lines with CR LF",
        expected="served",
        source="RFC 8259 section 2: CR is whitespace",
        run=send_crlf,
    ),
    Case(
        name="blank-lines",
        section=1,
        does="sends empty lines and lines of blanks",
        expected="no answer",
        source="policy",
        run=send_blank_lines,
    ),
    # Characters that some languages take for line ends.
    Case(
        name="separators-in-text",
        section=1,
        does="has U+2028, U+2029, U+0085, VT, FS and many languages echoed",
        expected="the same text",
        source=STDIO,
        run=echo_separators,
        needs=("echo",),
    ),
    Case(
        name="separators-in-ids",
        section=1,
        does="uses the same characters in the id of a request, unescaped where JSON allows it",
        expected="the same id",
        source="basic, Responses: the same id as the request; " + STDIO,
        run=send_separators_in_ids,
    ),
    Case(
        name="nul-escaped",
        section=1,
        does="uses \\u0000 in an id, and in a text where there is an echo",
        expected="the same id and text",
        source="RFC 8259 section 7",
        run=send_escaped_nul,
    ),
    # Messages that arrive in pieces, or many at once.
    Case(
        name="one-byte-per-write",
        section=1,
        does="writes a request byte by byte, also inside characters of several bytes",
        expected="served",
        source=STDIO,
        run=write_single_bytes,
    ),
    Case(
        name="split-everywhere",
        section=1,
        does="writes two requests in two pieces, cut at every byte in turn",
        expected="each time both answers",
        source=STDIO,
        run=split_at_every_byte,
    ),
    Case(
        name="messages-1000",
        section=1,
        does="sends 1,000 requests in one write",
        expected="1,000 answers",
        source=STDIO,
        run=send_1000_requests,
    ),
    # Large messages, up to the limit and beyond.
    Case(
        name="echo-70-kb",
        section=1,
        does="has 70,000 bytes echoed",
        expected="the same bytes",
        source=STDIO,
        run=echo_70_kb,
        needs=("echo",),
    ),
    Case(
        name="echo-10-mb",
        section=1,
        does="has a text echoed that almost fills the largest message (--message-limit-bytes)",
        expected="the same bytes; or, if the server's limit is lower, an error",
        source="policy: the limit",
        run=echo_10_mb,
        needs=("echo",),
    ),
    Case(
        name="message-at-limit",
        section=1,
        does="sends a request of exactly --message-limit-bytes (10 MiB)",
        expected="served",
        source="policy: the limit",
        run=send_largest_message,
    ),
    Case(
        name="message-over-limit",
        section=1,
        does="sends a request of one byte more",
        expected="an error -32600 that tells the limit; the next request is served",
        source="policy: the limit",
        run=send_too_large_message,
    ),
    Case(
        name="time-per-byte",
        section=1,
        does="sends 5 to 8 MiB as one message and as sixteen",
        expected="not more than twice the processor time for the one",
        source="policy: linear time",
        run=compare_message_sizes,
        slow=True,
    ),
    # Interrupted system calls.
    Case(
        name="stop-and-continue",
        section=1,
        does="stops and continues the process 25 times while requests come "
        "(interrupted system calls)",
        expected="all are answered",
        source="invariant",
        run=stop_and_continue,
    ),
)
