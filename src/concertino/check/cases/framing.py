"""Section 1: bytes and framing. What comes over stdin in which pieces, and what the pipes are."""

from __future__ import annotations

import json
import signal
import time

from concertino.check import process_stats
from concertino.check.case import Case, Crash, Deviation, Hang, Violation
from concertino.check.case_context import CaseContext, text_of
from concertino.check.cases.refused_input import (
    INVALID_REQUEST,
    PARSE_ERROR,
    Line,
    case_of,
    refused,
)
from concertino.check.child_process import StdioSetup
from concertino.check.messages import frame, shown

__all__ = ["CASES"]

MIB = 2**20
BOM = b"\xef\xbb\xbf"
STDIO = "basic/transports, stdio: messages are UTF-8, one per line"
SEPARATORS = "a\u2028b\u2029c\x85d\x0be\x1cf"  # what str.splitlines() takes for the end of a line, and JSON does not
MANY_LANGUAGES = "Grüße, 你好, здравствуйте, 🎻"


def hundred_bad_lines(trial: CaseContext) -> None:
    trial.write_garbage(b"{not json}\n" * 100, lines=100)
    trial.must_serve()
    trial.child.pump(lambda: len(trial.child.idless) >= 100, trial.settings.grace_s)
    if not trial.child.idless:
        trial.note(Deviation("100 lines that are no JSON were answered with silence"))


def bad_argument(trial: CaseContext) -> None:
    id = trial.id()
    message = trial.request("tools/call", trial.tool("echo").params(text="MARK"), id)
    answer = refused(
        trial, frame(message).rstrip().replace(b"MARK", b"caf\xff"), (PARSE_ERROR,), id
    )
    if answer is not None and "\ufffd" in (text_of(answer) or ""):
        trial.note(Deviation("the tool was called with U+FFFD in place of what was no UTF-8"))


def bom_first(trial: CaseContext) -> None:
    opener = trial.request("server/discover") if trial.modern else trial.initialize()
    trial.due[type(opener["id"]), opener["id"]].least = 0
    trial.garbage = 1
    trial.write(BOM + frame(opener))
    came = trial.come([opener["id"]], trial.first_s)
    if came:
        trial.note(Deviation("a byte order mark before the first message: no answer on its id"))
    elif "error" in trial.answers(opener["id"])[0]:
        trial.note(
            Deviation(
                f"a byte order mark before the first message: {shown(trial.answers(opener['id'])[0])}"
            )
        )
    else:
        trial.opened = True
        if not trial.modern:
            trial.send({"jsonrpc": "2.0", "method": "notifications/initialized"})


def bom_later(trial: CaseContext) -> None:
    message = trial.light()
    trial.due[type(message["id"]), message["id"]].least = 0
    trial.garbage += 1
    trial.write(BOM + frame(message))
    trial.must_serve()
    if (
        trial.come([message["id"]], trial.settings.grace_s)
        or "error" in trial.answers(message["id"])[0]
    ):
        trial.note(
            Deviation("a byte order mark before a later message: the message was not served")
        )


def crlf(trial: CaseContext) -> None:
    messages = [trial.light() for _ in range(3)]
    trial.write(b"".join(frame(each).replace(b"\n", b"\r\n") for each in messages))
    trial.must_succeed([each["id"] for each in messages])


def blank_lines(trial: CaseContext) -> None:
    trial.write_garbage(b"\n\n   \n\t\n\r\n", lines=5)
    trial.must_serve()
    trial.child.pump(lambda: bool(trial.child.idless), trial.settings.grace_s)
    if trial.child.idless:
        trial.note(
            Deviation(
                f"blank lines were answered {len(trial.child.idless)} times: {shown(trial.child.idless[0])}"
            )
        )


def separators(trial: CaseContext) -> None:
    for text in (SEPARATORS, MANY_LANGUAGES):
        trial.echoed(text)


def separators_in_ids(trial: CaseContext) -> None:
    for id in (SEPARATORS, MANY_LANGUAGES):
        message = trial.light(id)
        trial.write(json.dumps(message, ensure_ascii=False).encode() + b"\n")
        trial.must_succeed([id])


def nul_escaped(trial: CaseContext) -> None:
    message = trial.light("a\x00b")
    trial.write(frame(message))
    trial.must_succeed(["a\x00b"])
    if "echo" in trial.subject.tools:
        trial.echoed("a\x00b\x1f\x7f")


def one_byte_per_write(trial: CaseContext) -> None:
    message = trial.light(MANY_LANGUAGES)
    for byte in frame(message):
        trial.write(bytes([byte]))
        trial.child.swallowed(0.05)
    trial.must_succeed([MANY_LANGUAGES])


def split_everywhere(trial: CaseContext) -> None:
    # About 200 bytes: two requests, the first with characters of 2, 3 and 4 bytes in its id.
    first = trial.light("ü你🎻-0000")
    again = trial.light("second-0000")
    size = len(frame(first) + frame(again))
    for cut in range(1, size):
        first["id"], again["id"] = f"ü你🎻-{cut:04}", f"second-{cut:04}"
        trial.expect(first["id"], f"the first of two requests cut at byte {cut}")
        trial.expect(again["id"], f"the second of two requests cut at byte {cut}")
        data = frame(first) + frame(again)
        trial.write(data[:cut])
        trial.child.swallowed(0.05)
        trial.write(data[cut:])
        trial.all_answered([first["id"], again["id"]])
    del trial.due[str, "ü你🎻-0000"], trial.due[str, "second-0000"]


def thousand_messages(trial: CaseContext) -> None:
    messages = [trial.light() for _ in range(1000)]
    trial.send(*messages)
    trial.must_succeed([each["id"] for each in messages])


def echo_70_kb(trial: CaseContext) -> None:
    trial.echoed("".join(f"{number:07} " for number in range(70_000 // 8)))


def echo_10_mb(trial: CaseContext) -> None:
    """Almost as much as a message may hold; one that cannot be served may be refused on its id."""
    before, after = trial.subject.around
    text = "x" * (trial.settings.message_limit_bytes - 2048 - len(before) - len(after))
    message = trial.call("echo", text=text)
    trial.garbage += 1
    trial.write(frame(message), 3 * trial.settings.timeout_s)
    answer = trial.answer(message["id"], 3 * trial.settings.timeout_s)
    came = text_of(answer)
    if came is None:
        raise Deviation(f"an echo of {len(text)} bytes was refused: {shown(answer)}")
    if came != before + text + after:
        raise Violation(
            f"an echo of {len(text)} bytes gave back {len(came)}, which are not the same"
        )


def _padded(trial: CaseContext, size: int) -> tuple[int, bytes]:
    """A light request whose line without newline has exactly so many bytes. (its id, the line)"""
    message = trial.light(params={"_meta": {"example.com/padding": ""}})
    message["params"]["_meta"]["example.com/padding"] = "x" * (size - len(frame(message)) + 1)
    data = frame(message)
    assert len(data) == size + 1
    return message["id"], data


def at_limit(trial: CaseContext) -> None:
    limit = trial.settings.message_limit_bytes
    id, data = _padded(trial, limit)
    trial.garbage += 1
    trial.due[int, id].least = 0
    trial.write(data, 3 * trial.settings.timeout_s)
    trial.must_serve()
    if trial.come([id], trial.settings.grace_s) or "error" in trial.answers(id)[0]:
        answer = trial.answers(id) or trial.child.idless
        raise Deviation(
            f"a message of {limit} bytes was not served: {shown(answer[0]) if answer else 'no answer'}"
        )


def over_limit(trial: CaseContext) -> None:
    limit = trial.settings.message_limit_bytes
    id, data = _padded(trial, limit + 1)
    trial.garbage += 1
    trial.due[int, id].least = 0
    trial.write(data, 3 * trial.settings.timeout_s)
    trial.must_serve()
    child = trial.child
    child.pump(lambda: bool(child.idless) or bool(trial.answers(id)), trial.settings.grace_s)
    answer = next(iter(trial.answers(id) or child.idless), None)
    if answer is None:
        raise Deviation(f"a message of {limit + 1} bytes was answered with silence")
    if "error" not in answer:
        raise Deviation(
            f"a message of {limit + 1} bytes was served; the limit is {limit} (--message-limit-bytes)"
        )
    if answer["error"]["code"] != INVALID_REQUEST or str(limit) not in json.dumps(answer["error"]):
        raise Deviation(
            f"the refusal is no {INVALID_REQUEST} that tells the limit: {shown(answer)}"
        )


def time_per_byte(trial: CaseContext) -> None:
    """Processor time, not time: the same bytes as one message and as sixteen, on a machine that may be busy."""
    whole = min(8 * MIB, trial.settings.message_limit_bytes // 2)

    def used(pieces: int) -> float:
        before = process_stats.take(trial.child.pid)
        ids: list[int] = []
        for _ in range(pieces):
            id, data = _padded(trial, whole // pieces)
            ids.append(id)
            trial.write(data, 3 * trial.settings.timeout_s)
        trial.all_answered(ids, 3 * trial.settings.timeout_s)
        after = process_stats.take(trial.child.pid)
        return after.cpu_s - before.cpu_s if before and after else 0.0

    used(1)  # memory that is fetched once
    many = min(used(16) for _ in range(3))
    one = min(used(1) for _ in range(3))
    if one > 2 * many + 0.1:
        size = f"{whole / MIB:.1f} MiB"
        raise Deviation(
            f"{size} in one message cost {one:.2f} s of processor, in 16 messages {many:.2f} s"
        )


def stop_and_continue(trial: CaseContext) -> None:
    """Stopping a process interrupts what it waits in: reads and polls end with EINTR, or early."""
    for _ in range(25):
        message = trial.light()
        trial.child.signal(signal.SIGSTOP)
        trial.send(message)
        trial.child.signal(signal.SIGCONT)
        trial.child.signal(signal.SIGWINCH)
        trial.child.signal(signal.SIGCHLD)
        trial.answer(message["id"])


def still_answers(trial: CaseContext) -> None:
    """Unusual descriptors: the opening has been answered; so is what follows."""
    messages = [trial.light() for _ in range(100)]
    trial.send(*messages)
    trial.must_succeed([each["id"] for each in messages])


def slow_reader(trial: CaseContext) -> None:
    """Fill a pipe of 4 KiB many times over, and read late."""
    messages = [
        trial.request("tools/list") if trial.subject.tool_names else trial.light()
        for _ in range(50)
    ]
    trial.child.write(b"".join(map(frame, messages)), trial.settings.timeout_s, read=False)
    time.sleep(0.3)  # the server is to find its pipe full; there is no event that tells
    trial.must_succeed([each["id"] for each in messages])


def _whole_dialogue() -> bytes:
    params = {
        "protocolVersion": "2025-11-25",
        "capabilities": {},
        "clientInfo": {"name": "check", "version": "1"},
    }
    return (
        frame({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params})
        + frame({"jsonrpc": "2.0", "method": "notifications/initialized"})
        + frame({"jsonrpc": "2.0", "id": 2, "method": "ping"})
    )


def from_file(trial: CaseContext) -> None:
    for id in (1, 2):
        trial.expect(id, "a request in a file", least=0)
    trial.ended = True
    if not trial.child.wait(trial.settings.start_s):
        raise Hang(
            f"still running {trial.settings.start_s:g} s after a file as stdin was at its end"
        )
    if not (trial.answers(1) and trial.answers(2)):
        raise Deviation("stdin was a file with a handshake and a ping; not both were answered")
    if trial.child.exit != 0:
        raise Deviation(f"exit code {trial.child.exit} after the end of the file")


def ends_cleanly(trial: CaseContext) -> None:
    """Nothing to read at all: exit 0 or 1, and not many words."""
    trial.ended = True
    if not trial.child.wait(trial.settings.start_s):
        raise Hang(f"still running after {trial.settings.start_s:g} s with nothing to read")
    code = trial.child.exit
    if code is not None and code < 0:
        raise Crash(f"died of signal {-code}")
    if code not in (0, 1):
        raise Deviation(f"exit code {code}; 0 or 1 expected")
    if b"Traceback" in trial.child.stderr or b"\n    at " in trial.child.stderr:
        raise Deviation("a stack trace on stderr; one line expected")


LINES = (
    Line("not-json", 1, "sends {not json}", b"{not json}", (PARSE_ERROR,)),
    Line(
        "truncated-request",
        1,
        "sends half a request",
        b'{"jsonrpc":"2.0","id":77,"method":"pi',
        (PARSE_ERROR,),
    ),
    Line("not-utf8", 1, "sends the bytes ff fe 80 as a line", b"\xff\xfe\x80", (PARSE_ERROR,)),
    Line(
        "nul-raw",
        1,
        "sends a request with a raw NUL byte in a string",
        b'{"jsonrpc":"2.0","id":"a","method":"ping","params":{"_meta":{"example.com/x":"a\x00b"}}}',
        (PARSE_ERROR,),
        "a",
        "RFC 8259 section 7: control characters are escaped",
    ),
)

NOT_SERVED = "served like over a pipe"
CASES = (
    *map(case_of, LINES),
    Case(
        "bad-lines-100",
        1,
        "sends 100 lines that are no JSON in one write",
        "at least one and at most 100 answers without an id; the next request is served",
        "policy: garbage is answered, at a bounded rate",
        hundred_bad_lines,
    ),
    Case(
        "not-utf8-in-argument",
        1,
        "sends a tool call whose text holds the byte ff",
        "an error -32700; the tool is not called with U+FFFD in its place",
        "policy; " + STDIO,
        bad_argument,
        needs=("echo",),
    ),
    Case(
        "bom-first",
        1,
        "sends a byte order mark before the very first message",
        "the message is served",
        "policy; RFC 8259 section 8.1 lets a reader ignore it",
        bom_first,
        opens=False,
    ),
    Case(
        "bom-later",
        1,
        "sends a byte order mark before a later message",
        "the message is served",
        "policy",
        bom_later,
    ),
    Case(
        "crlf", 1, "ends lines with CR LF", "served", "RFC 8259 section 2: CR is whitespace", crlf
    ),
    Case(
        "blank-lines",
        1,
        "sends empty lines and lines of blanks",
        "no answer",
        "policy",
        blank_lines,
    ),
    Case(
        "separators-in-text",
        1,
        "has U+2028, U+2029, U+0085, VT, FS and many languages echoed",
        "the same text",
        STDIO,
        separators,
        needs=("echo",),
    ),
    Case(
        "separators-in-ids",
        1,
        "uses them in the id of a request, unescaped where JSON allows it",
        "the same id",
        "basic, Responses: the same id as the request; " + STDIO,
        separators_in_ids,
    ),
    Case(
        "nul-escaped",
        1,
        "uses \\u0000 in an id, and in a text where there is an echo",
        "the same id and text",
        "RFC 8259 section 7",
        nul_escaped,
    ),
    Case(
        "one-byte-per-write",
        1,
        "writes a request byte by byte, also inside characters of several bytes",
        "served",
        STDIO,
        one_byte_per_write,
    ),
    Case(
        "split-everywhere",
        1,
        "writes two requests in two pieces, cut at every byte in turn",
        "each time both answers",
        STDIO,
        split_everywhere,
    ),
    Case(
        "messages-1000",
        1,
        "sends 1,000 requests in one write",
        "1,000 answers",
        STDIO,
        thousand_messages,
    ),
    Case(
        "echo-70-kb",
        1,
        "has 70,000 bytes echoed",
        "the same bytes",
        STDIO,
        echo_70_kb,
        needs=("echo",),
    ),
    Case(
        "echo-10-mb",
        1,
        "has a text echoed that almost fills the largest message (--message-limit-bytes)",
        "the same bytes; or, if the server's limit is lower, an error",
        "policy: the limit",
        echo_10_mb,
        needs=("echo",),
    ),
    Case(
        "message-at-limit",
        1,
        "sends a request of exactly --message-limit-bytes (10 MiB)",
        "served",
        "policy: the limit",
        at_limit,
    ),
    Case(
        "message-over-limit",
        1,
        "sends a request of one byte more",
        "an error -32600 that tells the limit; the next request is served",
        "policy: the limit",
        over_limit,
    ),
    Case(
        "time-per-byte",
        1,
        "sends 5 to 8 MiB as one message and as sixteen",
        "not more than twice the processor time for the one",
        "policy: linear time",
        time_per_byte,
        slow=True,
    ),
    Case(
        "stop-and-continue",
        1,
        "stops and continues the process 25 times while requests come (interrupted system calls)",
        "all are answered",
        "the oracle",
        stop_and_continue,
    ),
    Case(
        "stdin-socket",
        1,
        "gives sockets as stdin and stdout, as Node does",
        NOT_SERVED,
        "the oracle",
        still_answers,
        surroundings=StdioSetup(stdin="socket", stdout="socket"),
    ),
    Case(
        "stdin-terminal",
        1,
        "gives a terminal as stdin and stdout, without echo",
        NOT_SERVED,
        "policy",
        still_answers,
        surroundings=StdioSetup(stdin="terminal", stdout="terminal"),
        firm=False,
    ),
    Case(
        "stdin-file",
        1,
        "gives a file with a handshake and a ping as stdin",
        "both answered, then exit code 0",
        "policy",
        from_file,
        needs=("legacy",),
        opens=False,
        surroundings=StdioSetup(stdin="file", content=_whole_dialogue()),
        firm=False,
    ),
    Case(
        "stdin-null",
        1,
        "gives /dev/null as stdin",
        "exit code 0 or 1, no stack trace",
        "policy",
        ends_cleanly,
        opens=False,
        surroundings=StdioSetup(stdin="null"),
        firm=False,
    ),
    Case(
        "stdin-closed",
        1,
        "starts with descriptor 0 closed",
        "exit code 0 or 1, no stack trace",
        "policy",
        ends_cleanly,
        opens=False,
        surroundings=StdioSetup(stdin="closed"),
        firm=False,
    ),
    Case(
        "nonblocking-pipes",
        1,
        "gives pipes that are O_NONBLOCK already, and reads late",
        "every answer, whole",
        "policy",
        slow_reader,
        surroundings=StdioSetup(nonblocking=True, small_pipe=True),
        firm=False,
    ),
    Case(
        "small-pipe",
        1,
        "gives a stdout pipe of 4 KiB and reads late",
        "every answer, whole",
        STDIO,
        slow_reader,
        surroundings=StdioSetup(small_pipe=True),
    ),
)
