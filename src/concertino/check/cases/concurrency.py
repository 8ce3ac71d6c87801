"""Section 6: calls beside each other, cancellation, progress."""

from __future__ import annotations

import time

from concertino.check import process_stats
from concertino.check.case import Case, CheckFinding, Deviation, Hang, Violation
from concertino.check.case_context import CaseContext
from concertino.check.messages import Message, frame, shown

__all__ = ["CASES"]

PING = "basic/utilities/ping: MUST respond promptly"
CANCEL = "basic/utilities/cancellation (2026-07-28: basic/patterns/cancellation)"
PROGRESS = "basic/utilities/progress"


def _ping_during(trial: CaseContext, tool: str) -> None:
    """A call that takes three seconds, and the light request behind it."""
    message = trial.call(tool, seconds=3)
    ping = trial.light()
    queued = process_stats.queued_s(trial.child.pid)
    began = time.monotonic()
    trial.send(message)
    trial.send(ping)
    trial.answer(ping["id"])
    took = (
        trial.child.arrived[int, ping["id"]]
        - began
        - (process_stats.queued_s(trial.child.pid) - queued)
    )
    trial.answer(message["id"])
    if took > trial.settings.served_s:
        text = f"{ping['method']} was answered after {took:.1f} s, because a call was under way"
        found: CheckFinding = Deviation(text) if trial.modern else Violation(text)
        raise found


def ping_during_sleep(trial: CaseContext) -> None:
    _ping_during(trial, "sleep")


def ping_during_block(trial: CaseContext) -> None:
    _ping_during(trial, "block")


def blocking_64(trial: CaseContext) -> None:
    calls = [trial.call("block", seconds=0.3) for _ in range(64)]
    trial.send(*calls)
    ping = trial.light()
    trial.send(ping)
    trial.answer(ping["id"], 64 * 0.3 + trial.settings.timeout_s)
    waited = [each for each in calls if trial.answers(each["id"])]
    trial.all_answered([each["id"] for each in calls], 64 * 0.3 + trial.settings.timeout_s)
    if len(waited) > 32:
        raise Deviation(
            f"{len(waited)} of 64 blocking calls had ended before a ping behind them was answered"
        )


def sleeps_500(trial: CaseContext) -> None:
    """Side by side they take half a second, one after the other more than four minutes: then a few are enough to see it."""
    seconds = 0.5
    few = [trial.call("sleep", seconds=seconds) for _ in range(10)]
    began = time.monotonic()
    trial.send(*few)
    trial.all_answered([each["id"] for each in few], 10 * seconds + trial.settings.timeout_s)
    if time.monotonic() - began > 9 * seconds:
        raise Deviation("10 sleeps took as long as one after the other")
    calls = [trial.call("sleep", seconds=seconds) for _ in range(500)]
    queued = process_stats.queued_s(trial.child.pid)
    began = time.monotonic()
    trial.send(*calls)
    trial.all_answered([each["id"] for each in calls], 6 * trial.settings.timeout_s)
    took = time.monotonic() - began - (process_stats.queued_s(trial.child.pid) - queued)
    if took > 5:
        raise Deviation(f"500 sleeps of {seconds} s took {took:.1f} s")


def cancel_in_flight(trial: CaseContext) -> None:
    """Long enough that the cancellation is there first, beyond doubt."""
    message = trial.call("sleep", seconds=2)
    trial.send(message)
    trial.must_serve()
    trial.send(trial.cancel(message["id"]))
    trial.must_serve()
    if trial.answers(message["id"]):
        raise Deviation("the call was answered before it was over")
    trial.child.pump(lambda: bool(trial.answers(message["id"])), 3.0)
    if trial.answers(message["id"]):
        text = f"a cancelled call was answered: {shown(trial.answers(message['id'])[0])}"
        found: CheckFinding = Violation(text) if trial.modern else Deviation(text)
        raise found


def cancel_nothing(trial: CaseContext) -> None:
    """Cancellations of requests that do not exist, are done, or cannot be meant: nothing is answered."""
    done = trial.light()
    trial.send(done)
    trial.answer(done["id"])
    child = trial.child
    before = len(child.order)
    params: tuple[object, ...] = (
        {"requestId": done["id"], "reason": "too late"},
        {"requestId": 987654, "reason": "nobody"},
        {"requestId": str(done["id"])},
        {"requestId": None},
        {"requestId": {"x": 1}},
        {"requestId": 1.5, "reason": 5},
        {},
        [],
        "x",
        None,
    )
    for each in params:
        trial.send({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": each})
    trial.must_serve()
    child.pump(lambda: False, min(0.1, trial.settings.grace_s))
    answered = [each for each in child.order[before:] if "error" in each]
    if answered:
        trial.garbage += len(child.idless)
        raise Violation(f"a cancellation was answered: {shown(answered[0])}")


def cancel_other_type(trial: CaseContext) -> None:
    message = trial.call("sleep", seconds=1)
    trial.send(message, trial.cancel(str(message["id"]), counts=False))
    trial.answer(message["id"])


def cancel_races(trial: CaseContext) -> None:
    """Cancellations that meet their answers half-way: at most one answer each, whoever wins."""
    if "sleep" in trial.subject.tools:
        pairs = [trial.call("sleep", seconds=0.002 * (number % 10)) for number in range(200)]
    else:
        pairs = [trial.request("tools/list") for _ in range(200)]
    for number, message in enumerate(pairs):
        trial.send(message)
        if number % 3:
            trial.child.pump(lambda: False, 0.001 * (number % 5))
        trial.send(trial.cancel(message["id"]))
    trial.must_serve()
    trial.settle()


def id_in_use(trial: CaseContext) -> None:
    message = trial.call("sleep", seconds=1)
    trial.expect(message["id"], "two requests with one id at a time", least=1, most=2)
    trial.send(message)
    trial.send({**message, "method": "tools/list", "params": message["params"]})
    trial.answer(message["id"])
    trial.child.pump(lambda: len(trial.answers(message["id"])) > 1, 3.0)
    answers = trial.answers(message["id"])
    if not any("error" in each and each["error"]["code"] == -32600 for each in answers):
        trial.note(Deviation(f"no error -32600 for an id that is in use: {shown(answers)}"))
    if not any("result" in each for each in answers):
        trial.note(Deviation(f"the request that had the id first was not served: {shown(answers)}"))


def progress_20000(trial: CaseContext) -> None:
    token = "check"
    call = trial.tool("count").params(to=20_000)
    message = trial.request("tools/call", {**call, "_meta": {"progressToken": token}})
    trial.send(message)
    trial.answer(message["id"], 6 * trial.settings.timeout_s)
    trial.must_serve()
    trial.settle()
    last = float("-inf")
    done = False
    told = 0
    for each in trial.child.order:
        if each.get("id") == message["id"]:
            done = True
        elif each.get("method") == "notifications/progress":
            told += 1
            params: Message = each["params"]
            if done:
                raise Violation(f"progress after the answer: {shown(each)}")
            if params.get("progressToken") != token:
                raise Violation(f"progress with another token: {shown(each)}")
            if not isinstance(params.get("progress"), int | float) or params["progress"] <= last:
                raise Violation(f"progress that does not grow: {shown(each)} after {last}")
            last = params["progress"]
    if not told:
        raise Deviation("no progress at all was told of a call that asked for it")


def progress_not_asked(trial: CaseContext) -> None:
    trial.use("count", to=100)
    trial.must_serve()
    told = [
        each for each in trial.child.notifications if each["method"] == "notifications/progress"
    ]
    if told:
        raise Violation(f"progress of a call without a progressToken: {shown(told[0])}")


def progress_late(trial: CaseContext) -> None:
    """A tool that goes on telling when it has answered: the library drops it, not the author."""
    call = trial.tool("tell_late").params()
    message = trial.request("tools/call", {**call, "_meta": {"progressToken": "late"}})
    trial.send(message)
    trial.answer(message["id"])
    trial.child.pump(lambda: False, 1.0)
    order = trial.child.order
    behind = order[order.index(trial.answers(message["id"])[0]) :]
    told = [each for each in behind if each.get("method") == "notifications/progress"]
    if told:
        raise Violation(f"progress after the answer: {shown(told[0])}")


def progress_after_cancel(trial: CaseContext) -> None:
    call = trial.tool("count").params(to=1_000_000)
    message = trial.request("tools/call", {**call, "_meta": {"progressToken": "check"}})
    child = trial.child
    trial.send(message)
    child.pump(
        lambda: bool(child.notifications) or bool(trial.answers(message["id"])),
        trial.settings.timeout_s,
    )
    trial.send(trial.cancel(message["id"]))
    trial.must_serve()
    if trial.answers(message["id"]):
        return  # it was quicker; that nothing follows an answer is another case
    trial.settle()
    before = len(child.notifications)
    child.pump(lambda: len(child.notifications) > before, 0.5)
    if len(child.notifications) > before:
        text = f"progress of a cancelled call: {shown(child.notifications[before])}"
        found: CheckFinding = Violation(text) if trial.modern else Deviation(text)
        raise found


def interleaved_answers(trial: CaseContext) -> None:
    """Answers come as they are ready; a slow call does not hold the quick ones behind it."""
    slow = trial.call("sleep", seconds=1.5)
    quick = [trial.light() for _ in range(50)]
    trial.write(b"".join(map(frame, (slow, *quick))))
    trial.all_answered([each["id"] for each in quick])
    early = not trial.answers(slow["id"])
    trial.answer(slow["id"])
    if not early:
        raise Deviation("50 requests behind a slow call waited for it")


def cancelled_frees(trial: CaseContext) -> None:
    """A thousand cancelled calls hold nothing: the next sleep still runs."""
    calls = [trial.call("sleep", seconds=30) for _ in range(1000)]
    trial.send(*calls)
    trial.must_serve()
    trial.send(*(trial.cancel(each["id"]) for each in calls))
    trial.must_serve()
    after = trial.call("sleep", seconds=0.1)
    trial.send(after)
    if trial.come([after["id"]], trial.settings.timeout_s):
        trial.due[int, after["id"]].least = 0
        if not trial.served():
            raise Hang("after 1,000 cancelled calls the server serves no more")
        raise Deviation("1,000 cancelled calls are still in the way of the next")


CASES = (
    Case(
        "ping-during-sleep",
        6,
        "pings while a tool waits for 3 s",
        "answered in a second",
        PING,
        ping_during_sleep,
        needs=("sleep",),
        slow=True,
    ),
    Case(
        "ping-during-block",
        6,
        "pings while a tool blocks its thread for 3 s",
        "answered in a second",
        PING,
        ping_during_block,
        needs=("block",),
        slow=True,
    ),
    Case(
        "answers-as-ready",
        6,
        "sends 50 light requests behind a slow call",
        "they do not wait for it",
        "policy",
        interleaved_answers,
        needs=("sleep",),
    ),
    Case(
        "blocking-64",
        6,
        "calls a blocking tool 64 times at once and pings",
        "the ping does not wait for most of them; all are answered",
        "policy",
        blocking_64,
        needs=("block",),
    ),
    Case(
        "sleeps-500",
        6,
        "calls a tool that waits half a second 500 times at once",
        "all are answered within 5 s",
        "policy",
        sleeps_500,
        needs=("sleep",),
    ),
    Case(
        "cancel-in-flight",
        6,
        "cancels a call of 2 s",
        "no answer",
        CANCEL,
        cancel_in_flight,
        needs=("sleep",),
        slow=True,
    ),
    Case(
        "cancel-nothing",
        6,
        "cancels what is done, unknown, or no id",
        "no answer",
        "basic, Notifications: MUST NOT be answered",
        cancel_nothing,
    ),
    Case(
        "cancel-other-type",
        6,
        'cancels id 5 as "5"',
        "the call is answered",
        'policy; basic: 5 is not "5"',
        cancel_other_type,
        needs=("sleep",),
    ),
    Case(
        "cancel-races",
        6,
        "cancels 200 requests about when they are answered",
        "at most one answer each",
        CANCEL,
        cancel_races,
    ),
    Case(
        "cancelled-frees",
        6,
        "cancels 1,000 calls of 30 s, and calls again",
        "the next call is served",
        "policy; " + CANCEL,
        cancelled_frees,
        needs=("sleep",),
    ),
    Case(
        "id-in-use",
        6,
        "uses the id of a call that is under way",
        "an error -32600 on that id; the first call is answered",
        "policy; basic: an id MUST NOT be reused",
        id_in_use,
        needs=("sleep",),
    ),
    Case(
        "progress-20000",
        6,
        "lets a tool tell progress 20,000 times",
        "it grows, comes before the result, and stops",
        PROGRESS,
        progress_20000,
        needs=("count",),
        slow=True,
    ),
    Case(
        "progress-not-asked",
        6,
        "lets a tool tell progress of a call without a progressToken",
        "none is sent",
        PROGRESS,
        progress_not_asked,
        needs=("count",),
    ),
    Case(
        "progress-after-cancel",
        6,
        "cancels a call that tells progress all the time",
        "no more progress, no answer",
        "2026-07-28 stdio: no further message for a cancelled request; policy in other revisions",
        progress_after_cancel,
        needs=("count",),
    ),
    Case(
        "progress-late",
        6,
        "lets a tool tell progress when it has answered",
        "none is sent",
        PROGRESS + ": MUST stop after completion",
        progress_late,
        needs=("tell_late",),
    ),
)
