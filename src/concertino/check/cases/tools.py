"""Section 5: tools that fail, that return what cannot be sent, that write where the protocol is, that have children.

All need tools that a server offers on purpose: docs/reference/check.md names them.
"""

from __future__ import annotations

from concertino.check import process_stats
from concertino.check.case import Case, Deviation, Violation
from concertino.check.case_context import CaseContext, text_of
from concertino.check.messages import frame, shown
from concertino.check.server_under_test import SECRET

__all__ = ["CASES"]

TOOL = "server/tools, Error Handling"
STDOUT = "stdio: nothing on stdout that is not a valid MCP message"
RESULT_BYTES = 200_000_000


def unknown_tool(trial: CaseContext) -> None:
    answer = trial.ask("tools/call", {"name": "nobody_has_this_tool", "arguments": {}})
    if "error" not in answer:
        if not answer["result"].get("isError"):
            raise Violation(f"a tool that does not exist gave a result: {shown(answer)}")
        raise Deviation(
            "a tool that does not exist gave a result with isError; a protocol error -32602 expected"
        )
    if answer["error"]["code"] != -32602:
        raise Deviation(f"expected -32602, got {shown(answer)}")


def bad_arguments(trial: CaseContext) -> None:
    (name,) = trial.tool("echo").shape.arguments.values()
    for arguments in ({}, {name: 5}, {name: None}, {name: ["x"]}):
        answer = trial.ask("tools/call", {"name": "echo", "arguments": arguments})
        if "result" in answer and not answer["result"].get("isError"):
            trial.note(Deviation(f"arguments {shown(arguments)} were accepted: {shown(answer)}"))
    for arguments in ([1], "x", 5):
        message = trial.request("tools/call", {"name": "echo", "arguments": arguments})
        trial.due[int, message["id"]].least = 0
        trial.garbage += 1
        trial.send(message)
        trial.must_serve()
        if trial.come([message["id"]], trial.settings.grace_s):
            trial.note(Deviation(f"arguments {shown(arguments)} were answered with silence"))
        elif not trial.answers(message["id"])[0].get("result", {}).get("isError", True):
            trial.note(Deviation(f"arguments {shown(arguments)} were accepted"))


def raises(trial: CaseContext) -> None:
    for how in trial.tool("fail").choices:
        answer = trial.use("fail", how=how)
        if "error" in answer:
            trial.note(
                Deviation(
                    f"{how}: a protocol error, a result with isError expected: {shown(answer)}"
                )
            )
        elif not answer["result"].get("isError"):
            trial.note(Violation(f"{how}: a result that is no error: {shown(answer)}"))
        trial.must_serve()


def unsendable(trial: CaseContext) -> None:
    for what in trial.tool("give").choices:
        answer = trial.use("give", what=what)
        if "result" in answer and not isinstance(answer["result"].get("content"), list):
            trial.note(Violation(f"{what}: a tool's result without content: {shown(answer)}"))
        trial.must_serve()


def huge_result(trial: CaseContext) -> None:
    message = trial.call("big", characters=RESULT_BYTES)
    trial.send(message)
    answer = trial.answer(message["id"], 6 * trial.settings.timeout_s)
    if "error" not in answer and not answer["result"].get("isError"):
        raise Deviation("a result of 200 MB was sent; other limits are there for that")


def writes_to_stdout(trial: CaseContext) -> None:
    for number, how in enumerate(trial.tool("say").choices):
        trial.use("say", how=how, text=f"stray {number}")
        trial.must_serve()
        if trial.child.strays:
            raise Violation(f"{how}: reached stdout")  # the oracle shows the line
    forged = trial.id()
    how = trial.tool("say").choices[0]
    trial.use(
        "say", how=how, text=frame({"jsonrpc": "2.0", "id": forged, "result": {}}).decode().rstrip()
    )


def forks(trial: CaseContext) -> None:
    for how in trial.tool("fork").choices:
        trial.use("fork", how=how)
        trial.must_serve()
        if trial.child.strays:
            raise Violation(f"{how}: the forked child wrote to stdout")


def disturbs(trial: CaseContext) -> None:
    trial.use("disturb")
    trial.must_serve()
    if "echo" in trial.subject.tools:
        trial.echoed("Grüße 🎻")
    trial.end_of_input()
    trial.must_end(5.0, "the end of input")


def secret(trial: CaseContext) -> None:
    trial.use("leak", secret=SECRET)
    trial.must_serve()
    trial.settle()
    if SECRET.encode() in trial.child.stderr:
        raise Deviation("the secret in the exception is on stderr")


def tracebacks(trial: CaseContext) -> None:
    how = trial.tool("fail").choices[0]
    calls = [trial.call("fail", how=how) for _ in range(300)]
    trial.send(*calls)
    trial.all_answered([each["id"] for each in calls])
    trial.must_serve()
    if trial.child.stderr_bytes > 512 * 1024:
        raise Deviation(f"300 failing calls wrote {trial.child.stderr_bytes} bytes to stderr")


def text_kept(trial: CaseContext) -> None:
    """Bytes that end lines, inside the result of a tool."""
    for text in ("a\nb\r\nc", "\\n", '"', "\x00", "{}\n{}", "</script>", "\u2028"):
        trial.echoed(text)


def no_child_left(trial: CaseContext) -> None:
    """Whatever tools forked, the end of input ends all of it."""
    for how in trial.tool("fork").choices:
        trial.use("fork", how=how)
    trial.end_of_input()
    trial.must_end(5.0, "the end of input")
    if left := process_stats.members(trial.child.pid):
        raise Violation(f"processes are left: {left}")


def error_texts(trial: CaseContext) -> None:
    for how in trial.tool("fail").choices:
        answer = trial.use("fail", how=how)
        if text_of(answer) is None and len(str(answer)) > 16 * 1024:
            trial.note(Deviation(f"{how}: the error has {len(str(answer))} characters"))


CASES = (
    Case(
        "tool-unknown", 5, "calls a tool that does not exist", "an error -32602", TOOL, unknown_tool
    ),
    Case(
        "arguments-bad",
        5,
        "calls a tool with arguments that do not fit",
        "a result with isError, or an error -32602; an answer in any case",
        "policy; " + TOOL,
        bad_arguments,
        needs=("echo",),
    ),
    Case(
        "text-kept",
        5,
        "has newlines, quotes and braces echoed",
        "the same text, in one line of stdout each",
        STDOUT,
        text_kept,
        needs=("echo",),
    ),
    Case(
        "tool-raises",
        5,
        "lets a tool fail in every way it knows",
        "a result with isError each time; the server lives",
        TOOL,
        raises,
        needs=("fail",),
    ),
    Case(
        "tool-error-texts",
        5,
        "looks at the errors of failing tools",
        "no stack trace, at most 16 KiB",
        "the oracle",
        error_texts,
        needs=("fail",),
    ),
    Case(
        "result-unsendable",
        5,
        "lets a tool return what JSON cannot hold",
        "one answer each time; the writer lives",
        "the oracle",
        unsendable,
        needs=("give",),
    ),
    Case(
        "result-200-mb",
        5,
        "lets a tool return 200 MB",
        "an error on the id; the server lives",
        "policy: the limit",
        huge_result,
        needs=("big",),
        slow=True,
    ),
    Case(
        "stdout-written",
        5,
        "lets a tool write to stdout in every way it knows, also what looks like an answer",
        "nothing of it on stdout",
        STDOUT,
        writes_to_stdout,
        needs=("say",),
    ),
    Case(
        "tool-forks",
        5,
        "lets a tool fork children that write to every descriptor",
        "nothing of it on stdout; one answer each",
        STDOUT,
        forks,
        needs=("fork",),
    ),
    Case(
        "children-end",
        5,
        "lets a tool fork, then ends the input",
        "no process is left",
        "the oracle",
        no_child_left,
        needs=("fork",),
    ),
    Case(
        "process-disturbed",
        5,
        "lets a tool change directory, umask, locale, signal handlers and standard streams of the process",
        "the protocol goes on",
        "the oracle",
        disturbs,
        needs=("disturb",),
    ),
    Case(
        "secret-in-exception",
        5,
        "lets a tool fail with a secret in its message, which is also in the environment (CHECK_API_KEY)",
        "the secret is not on stderr",
        "policy: redaction",
        secret,
        needs=("leak",),
    ),
    Case(
        "tracebacks-300",
        5,
        "lets a tool fail 300 times",
        "300 answers; at most 512 KiB on stderr",
        "policy: logs are rate-limited",
        tracebacks,
        needs=("fail",),
    ),
)
