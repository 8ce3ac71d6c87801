"""Section 2: limits and bombs. Much, long, deep, and colliding input."""

from __future__ import annotations

import itertools
import json
import time

from concertino.check import process_stats
from concertino.check.case import Case, Deviation
from concertino.check.case_context import CaseContext, text_of
from concertino.check.messages import frame, shown

__all__ = ["CASES", "discarded", "memory"]

MIB = 2**20
PATIENCE_S = 10.0  # for what is large: docs/reference/check.md
ALLOWED = 64 * MIB


class memory:  # noqa: N801  # reads as a statement: with memory(trial, bound):
    """Notes when the peak of the server's memory grew by more than `allowed` bytes inside the block."""

    def __init__(self, trial: CaseContext, allowed: int = ALLOWED) -> None:
        self._trial = trial
        self._allowed = allowed
        self._before = process_stats.take(trial.child.pid)

    def __enter__(self) -> None:
        return

    def __exit__(self, kind: object, *_: object) -> None:
        after = process_stats.take(self._trial.child.pid)
        if kind is None and self._before and after:
            grown = after.peak_bytes - self._before.rss_bytes
            if after.peak_bytes > self._before.peak_bytes and grown > self._allowed:
                text = f"memory grew by {grown / MIB:.0f} MiB; {self._allowed / MIB:.0f} MiB are allowed"
                self._trial.note(Deviation(text))


def discarded(trial: CaseContext, size: int) -> None:
    """Write so many bytes without a newline, then one; they are refused once and not kept."""
    limit = trial.settings.message_limit_bytes
    chunk = b"x" * MIB
    trial.garbage += 1
    with memory(trial, limit + ALLOWED):
        for _ in range(size // MIB):
            trial.write(chunk, PATIENCE_S)
        trial.child.pump(lambda: bool(trial.child.idless), trial.settings.grace_s)
        early = bool(trial.child.idless)
        trial.write(b"\n")
        trial.must_serve()
    if not trial.child.idless:
        trial.note(Deviation(f"{size // MIB} MiB without a newline were answered with silence"))
    elif not early:
        trial.note(
            Deviation(
                "they were refused only when the newline came, not when the limit was crossed"
            )
        )


def endless_line(trial: CaseContext) -> None:
    discarded(trial, 100 * MIB)


def _answered(trial: CaseContext, data: bytes, what: str, *, may_fail: bool = True) -> None:
    """One large request, `#ID#` in it stands for its id: it is answered, somehow, in time."""
    id = trial.id()
    trial.expect(id, what, least=0)
    trial.garbage += 1
    trial.write(data.replace(b'"#ID#"', b"%d" % id) + b"\n", PATIENCE_S)
    trial.must_serve()
    child = trial.child
    child.pump(
        lambda: bool(trial.answers(id)) or bool(child.idless), PATIENCE_S if not may_fail else 1.0
    )
    if not trial.answers(id) and not child.idless:
        trial.note(Deviation(f"{what}: no answer"))


def _light_with(trial: CaseContext, value: bytes) -> bytes:
    """The light request with a member in its `_meta`, JSON that need not be sound."""
    message = trial.light(params={"_meta": {"example.com/x": "#VALUE#"}})
    del trial.due[int, message["id"]]
    message["id"] = "#ID#"
    return frame(message).rstrip().replace(b'"#VALUE#"', value)


def nested_arrays(trial: CaseContext) -> None:
    line = b"[" * 200_000 + b"]" * 200_000
    trial.write_garbage(line + b"\n", within_s=PATIENCE_S)
    trial.must_serve()
    trial.child.pump(lambda: bool(trial.child.idless), trial.settings.grace_s)
    if not trial.child.idless:
        trial.note(Deviation("200,000 nested arrays were answered with silence"))


def nested_in_params(trial: CaseContext) -> None:
    _answered(
        trial, _light_with(trial, b"[" * 200_000 + b"]" * 200_000), "a request nested 200,000 deep"
    )
    _answered(
        trial,
        _light_with(trial, b'{"a":' * 200_000 + b"1" + b"}" * 200_000),
        "one of 200,000 nested objects",
    )


def many_members(trial: CaseContext) -> None:
    members = b",".join(b'"k%d":%d' % (number, number) for number in range(200_000))
    _answered(trial, _light_with(trial, b"{" + members + b"}"), "200,000 members", may_fail=False)
    _answered(
        trial,
        _light_with(trial, b"[" + b"0," * 999_999 + b"0]"),
        "1,000,000 elements",
        may_fail=False,
    )


def colliding_keys(trial: CaseContext) -> None:
    # "Aa" and "BB" have the same hash under h = 31 h + c, and so has every string of the same number of the two: 2^16 keys.
    keys = ("".join(each) for each in itertools.product(("Aa", "BB"), repeat=16))
    _answered(
        trial,
        _light_with(trial, b"{" + b",".join(b'"%b":0' % key.encode() for key in keys) + b"}"),
        "65,536 keys with one hash",
        may_fail=False,
    )


def long_number(trial: CaseContext) -> None:
    _answered(trial, _light_with(trial, b"1" * 1_000_000), "a number of 1,000,000 digits")
    _answered(trial, _light_with(trial, b"1e999999999"), "the number 1e999999999")
    _answered(trial, _light_with(trial, b"0." + b"3" * 1_000_000), "a fraction of 1,000,000 digits")


def escapes(trial: CaseContext) -> None:
    """Six bytes for one character: the limit is one of bytes that come, before anything is decoded."""
    count = trial.settings.message_limit_bytes // 6 + 100
    with memory(trial, trial.settings.message_limit_bytes + ALLOWED):
        id = trial.id()
        trial.expect(id, "a string of escapes longer than the limit", least=0)
        trial.garbage += 1
        line = _light_with(trial, b'"' + rb"\u0041" * count + b'"').replace(b'"#ID#"', b"%d" % id)
        trial.write(line + b"\n", PATIENCE_S)
        trial.must_serve()
        child = trial.child
        child.pump(lambda: bool(child.idless) or bool(trial.answers(id)), trial.settings.grace_s)
    answer = next(iter(trial.answers(id) or trial.child.idless), None)
    if answer is None:
        trial.note(
            Deviation(
                f"{len(line)} bytes, {count} characters when decoded, were answered with silence"
            )
        )
    elif "error" not in answer:
        trial.note(
            Deviation(
                f"{len(line)} bytes were served: counted as the {count} characters that they decode to?"
            )
        )


def long_texts(trial: CaseContext) -> None:
    """Whatever is repeated in an error has an end."""
    for method in ("x" * MIB, "\u202e" * 100_000):
        message = trial.request(method)
        trial.send(message)
        answer = trial.answer(message["id"])
        if (size := len(json.dumps(answer, ensure_ascii=False))) > 64 * 1024:
            trial.note(
                Deviation(f"an unknown method of {len(method)} characters was answered with {size}")
            )


def notifications(trial: CaseContext) -> None:
    flood(trial, 1.0)


def flood(trial: CaseContext, seconds: float) -> None:
    """Notifications as fast as the pipe takes them, for so long; then the next request is served at once."""
    data = frame(
        {
            "jsonrpc": "2.0",
            "method": "notifications/progress",
            "params": {"progressToken": 0, "progress": 1},
        }
    )
    data += frame({"jsonrpc": "2.0", "method": "notifications/nobody/knows/this"})
    block = data * 500
    with memory(trial):
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            trial.write(block)
        trial.must_serve()


def in_flight(trial: CaseContext) -> None:
    """10,000 calls at once, each of them a second long: answered, or told that the server is busy."""
    queued = process_stats.queued_s(trial.child.pid)
    began = time.monotonic()
    few = [trial.call("sleep", seconds=0.2) for _ in range(50)]
    trial.send(*few)
    trial.all_answered([each["id"] for each in few], 3 * trial.settings.timeout_s)
    if time.monotonic() - began - (process_stats.queued_s(trial.child.pid) - queued) > 5.0:
        raise Deviation(
            "50 sleeps of 0.2 s took more than 5 s: calls run one after the other, so 10,000 were not tried"
        )
    ids: list[int] = []
    with memory(trial, 2 * ALLOWED):
        for _ in range(10):
            calls = [trial.call("sleep", seconds=0.5) for _ in range(1000)]
            ids += [each["id"] for each in calls]
            trial.write(b"".join(map(frame, calls)), 3 * trial.settings.timeout_s)
        trial.must_serve()
        trial.all_answered(ids, 6 * trial.settings.timeout_s)
    for id in ids:
        answer = trial.answers(id)[0]
        if "error" in answer:
            if answer["error"]["code"] in (-32700, -32600, -32601, -32602, -32603):
                raise Deviation(f"one of 10,000 sound calls was answered {shown(answer)}")
        elif text_of(answer) is None:
            raise Deviation(f"one of 10,000 sound calls failed: {shown(answer)}")


CASES = (
    Case(
        "endless-line-100-mb",
        2,
        "writes 100 MiB without a newline, then one",
        "one error as soon as the limit is crossed; memory grows by at most the limit and 64 MiB; the next request is served",
        "policy: the limit",
        endless_line,
    ),
    Case(
        "nested-arrays",
        2,
        "sends a line of 200,000 nested arrays",
        "an error; the process lives",
        "the oracle",
        nested_arrays,
    ),
    Case(
        "nested-in-params",
        2,
        "sends requests whose params are nested 200,000 deep",
        "an answer or an error; the process lives",
        "the oracle",
        nested_in_params,
    ),
    Case(
        "many-members",
        2,
        "sends 200,000 members, and 1,000,000 elements",
        "answered in 10 s",
        "policy",
        many_members,
    ),
    Case(
        "colliding-keys",
        2,
        "sends 65,536 keys that collide in the usual hash",
        "answered in 10 s",
        "policy",
        colliding_keys,
    ),
    Case(
        "long-numbers",
        2,
        "sends numbers of 1,000,000 digits and the number 1e999999999",
        "an answer or an error; the process lives",
        "the oracle",
        long_number,
    ),
    Case(
        "escapes",
        2,
        "sends a string of \\u0041 that is longer than the limit, but not once it is decoded",
        "an error: what counts are the bytes that come",
        "policy: the limit",
        escapes,
    ),
    Case(
        "long-method",
        2,
        "asks for methods with names of a million characters",
        "an error that does not give all of it back",
        "policy",
        long_texts,
    ),
    Case(
        "notifications-flood",
        2,
        "sends notifications for a second as fast as the pipe takes them",
        "memory is bounded; the next request is served in a second",
        "the oracle",
        notifications,
        slow=True,
    ),
    Case(
        "calls-10000",
        2,
        "sends 10,000 calls that take half a second each",
        "each is answered, or told that the server is busy; never out of memory",
        "policy; basic: every request is answered",
        in_flight,
        needs=("sleep",),
        slow=True,
    ),
)
