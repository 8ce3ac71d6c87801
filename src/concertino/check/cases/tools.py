"""Section 5: tools that fail, return unsendable values, write to stdout, or start processes.

These cases need tools that a server has for this purpose; docs/reference/check.md describes them.

`concertino check` has its cases in sections (SECTIONS in case.py). Each public function is one
case. It gets the CaseContext of a server process, causes a fault, and raises a finding if the
server reacts wrongly. A Violation breaks a MUST of the specification, a Deviation only a stricter
rule of this project, and in a Hang the process no longer answers (findings.py). CASES, at the end,
has the name and the expected reaction of each case.
"""

from __future__ import annotations

from concertino.check.case import Case
from concertino.check.case_context import CaseContext, tool_result_text
from concertino.check.findings import Deviation, Violation
from concertino.check.messages import Message, encode_line, excerpt
from concertino.check.server_under_test import SECRET

TOOL = "server/tools, Error Handling"
STDOUT = "stdio: nothing on stdout that is not a valid MCP message"
# All of them ASCII, so this is the size in bytes, too.
RESULT_CHARACTERS = 200_000_000


def call_unknown_tool(context: CaseContext) -> None:
    """Call a tool that does not exist. Error -32602 must come back.

    A server without the capability `tools`, to which the method is unknown, must send -32601.
    """
    code = -32602 if context.server.offers_tools else -32601
    response = context.request("tools/call", {"name": "nobody_has_this_tool", "arguments": {}})
    if "error" not in response:
        if not response["result"].get("isError"):
            raise Violation(f"a tool that does not exist gave a result: {excerpt(response)}")
        expected = f"a protocol error {code} expected"
        raise Deviation(f"a tool that does not exist gave a result with isError; {expected}")
    if response["error"]["code"] != code:
        raise Deviation(f"expected {code}, got {excerpt(response)}")


def send_invalid_arguments(context: CaseContext) -> None:
    """Call echo with arguments that its schema forbids. An error must come back each time."""
    tool = context.find_tool("echo").shape
    (name,) = tool.arguments.values()
    # Objects that do not match the tool's schema.
    for arguments in ({}, {name: 5}, {name: None}, {name: ["x"]}):
        response = context.request("tools/call", {"name": tool.name, "arguments": arguments})
        if "result" in response and not response["result"].get("isError"):
            context.report_deviation(
                f"arguments {excerpt(arguments)} were accepted: {excerpt(response)}"
            )

    # Values that are not objects. The request itself is malformed, so silence breaks no MUST.
    for arguments in ([1], "x", 5):
        message = context.make_request("tools/call", {"name": tool.name, "arguments": arguments})
        reply = context.probe_line(encode_line(message), message["id"])
        if reply is None:
            context.report_deviation(f"arguments {excerpt(arguments)} were answered with silence")
        elif "result" in reply and not reply["result"].get("isError"):
            context.report_deviation(f"arguments {excerpt(arguments)} were accepted")


def fail_in_all_ways(context: CaseContext) -> None:
    """Call the tool `fail` once for each value of its argument `how`.

    Each value makes the tool fail in another way. A result with isError must come back each time.
    """
    for how in context.find_tool("fail").choices:
        response = context.call_tool("fail", how=how)
        if "error" in response:
            expected = "a protocol error, a result with isError expected"
            context.report_deviation(f"{how}: {expected}: {excerpt(response)}")
        elif not response["result"].get("isError"):
            context.report(Violation(f"{how}: a result without isError: {excerpt(response)}"))
        context.require_service()


def return_unsendable_values(context: CaseContext) -> None:
    """Call the tool `give` once for each value of its argument `what`.

    Each value makes the tool return something that JSON cannot hold. A response must come back each
    time.
    """
    for kind in context.find_tool("give").choices:
        response = context.call_tool("give", what=kind)
        if "result" in response and not isinstance(response["result"].get("content"), list):
            context.report(
                Violation(f"{kind}: a tool's result without content: {excerpt(response)}")
            )
        context.require_service()


def return_200_mb(context: CaseContext) -> None:
    """Call a tool that returns 200 MB. An error must come back."""
    message = context.make_call("big", characters=RESULT_CHARACTERS)
    (response,) = context.exchange(message, within_s=6 * context.settings.timeout_s)
    if "error" not in response and not response["result"].get("isError"):
        raise Deviation("a result of 200 MB was sent")


def write_to_stdout(context: CaseContext) -> None:
    """Call the tool `say` once for each value of its argument `how`.

    Each value makes the tool write a line to stdout in another way. None of the lines must arrive
    among the messages.
    """
    choices = context.find_tool("say").choices
    for number, how in enumerate(choices):
        context.call_tool("say", how=how, text=f"stray {number}")
        context.require_service()
        # The invariants report the line. This finding adds how the tool has written it.
        if context.process.output.stray_lines:
            raise Violation(f"{how}: reached stdout")

    # A valid response to an id that was never sent: the invariants find it if it reaches stdout.
    forged: Message = {"jsonrpc": "2.0", "id": context.new_id(), "result": {}}
    context.call_tool("say", how=choices[0], text=encode_line(forged).decode().rstrip())


def fork_in_all_ways(context: CaseContext) -> None:
    """Call the tool `fork` once for each value of its argument `how`.

    Each value makes the tool start a child that writes to all descriptors, and end the child in
    another way. None of the child's lines must arrive among the messages.
    """
    for how in context.find_tool("fork").choices:
        context.call_tool("fork", how=how)
        context.require_service()
        if context.process.output.stray_lines:
            raise Violation(f"{how}: the forked child wrote to stdout")


def disturb_process(context: CaseContext) -> None:
    """Call a tool that changes settings of the process. The next request must be served."""
    context.call_tool("disturb")
    context.require_service()
    if "echo" in context.server.tools:
        context.require_echo("Grüße 🎻")
    # The tool has closed descriptor 0, so even the end of input must arrive on another one.
    context.close_stdin()
    context.require_exit("the end of input")


def leak_secret(context: CaseContext) -> None:
    """Call a tool that fails with a secret in its message. The secret must not be on stderr."""
    context.call_tool("leak", secret=SECRET)
    context.require_service()
    context.wait_for_stragglers()
    if SECRET.encode() in context.process.stderr.tail:
        raise Deviation("the secret in the exception is on stderr")


def fail_300_times(context: CaseContext) -> None:
    """Call a failing tool 300 times. 300 responses must come back, and a short log."""
    how = context.find_tool("fail").choices[0]
    context.exchange(*(context.make_call("fail", how=how) for _ in range(300)))
    context.require_service()
    total = context.process.stderr.total_bytes
    if total > 512 * 1024:
        raise Deviation(f"300 failing calls wrote {total} bytes to stderr")


def echo_special_characters(context: CaseContext) -> None:
    """Call echo with newlines and quotes. The same text must come back."""
    # Characters that end lines or strings must be escaped inside a result.
    for text in ("a\nb\r\nc", "\\n", '"', "\x00", "{}\n{}", "</script>", "\u2028"):
        context.require_echo(text)


def fork_then_close_stdin(context: CaseContext) -> None:
    """Call a tool that forks, and close stdin. No process may be left."""
    for how in context.find_tool("fork").choices:
        context.call_tool("fork", how=how)
    context.close_stdin()
    context.require_exit("the end of input")


def measure_error_texts(context: CaseContext) -> None:
    """Call the tool `fail` once for each value of its argument `how`.

    Each value makes the tool fail in another way. Each error must have at most 16 KiB.
    """
    for how in context.find_tool("fail").choices:
        response = context.call_tool("fail", how=how)
        size = len(encode_line(response))
        if tool_result_text(response) is None and size > 16 * 1024:
            context.report_deviation(f"{how}: the error has {size} bytes")


CASES = (
    # Calls that do not fit.
    Case(
        name="tool-unknown",
        section=5,
        does="calls a tool that does not exist",
        expected="an error -32602; -32601 from a server that declares no tools",
        source=TOOL,
        run=call_unknown_tool,
    ),
    Case(
        name="arguments-bad",
        section=5,
        does="calls a tool with arguments that do not fit",
        expected="a result with isError, or an error -32602; an answer in any case",
        source="policy; " + TOOL,
        run=send_invalid_arguments,
        needs=("echo",),
    ),
    # Results that are awkward to encode.
    Case(
        name="text-kept",
        section=5,
        does="has newlines, quotes and braces echoed",
        expected="the same text, in one line of stdout each",
        source=STDOUT,
        run=echo_special_characters,
        needs=("echo",),
    ),
    # Tools that fail.
    Case(
        name="tool-raises",
        section=5,
        does="lets a tool fail in every way it knows",
        expected="a result with isError each time; the server lives",
        source=TOOL,
        run=fail_in_all_ways,
        needs=("fail",),
    ),
    Case(
        name="tool-error-texts",
        section=5,
        does="looks at the errors of failing tools",
        expected="no stack trace, at most 16 KiB",
        source="invariant",
        run=measure_error_texts,
        needs=("fail",),
    ),
    # Results that cannot be sent.
    Case(
        name="result-unsendable",
        section=5,
        does="lets a tool return what JSON cannot hold",
        expected="one answer each time; the writer lives",
        source="invariant",
        run=return_unsendable_values,
        needs=("give",),
    ),
    Case(
        name="result-200-mb",
        section=5,
        does="lets a tool return 200 MB",
        expected="an error on the id; the server lives",
        source="policy: the limit",
        run=return_200_mb,
        needs=("big",),
        slow=True,
    ),
    # Tools that write where only messages belong.
    Case(
        name="stdout-written",
        section=5,
        does="lets a tool write to stdout in every way it knows, also what looks like an answer",
        expected="none of it reaches stdout",
        source=STDOUT,
        run=write_to_stdout,
        needs=("say",),
    ),
    Case(
        name="tool-forks",
        section=5,
        does="lets a tool fork children that write to every descriptor",
        expected="nothing of it on stdout; one answer each",
        source=STDOUT,
        run=fork_in_all_ways,
        needs=("fork",),
    ),
    # Tools that affect the whole process.
    Case(
        name="children-end",
        section=5,
        does="lets a tool fork, then ends the input",
        expected="no process is left",
        source="invariant",
        run=fork_then_close_stdin,
        needs=("fork",),
    ),
    Case(
        name="process-disturbed",
        section=5,
        does="lets a tool change the directory, umask, locale, signal handlers and standard "
        "streams of the process",
        expected="requests are still served",
        source="invariant",
        run=disturb_process,
        needs=("disturb",),
    ),
    # What failing tools write to the log.
    Case(
        name="secret-in-exception",
        section=5,
        does="lets a tool fail with a secret in its message that is also in the environment "
        "(CHECK_API_KEY)",
        expected="the secret is not on stderr",
        source="policy: redaction",
        run=leak_secret,
        needs=("leak",),
    ),
    Case(
        name="tracebacks-300",
        section=5,
        does="lets a tool fail 300 times",
        expected="300 answers; at most 512 KiB on stderr",
        source="policy: logs are rate-limited",
        run=fail_300_times,
        needs=("fail",),
    ),
)
