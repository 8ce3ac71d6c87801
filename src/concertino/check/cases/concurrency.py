"""Section 6: concurrent calls, cancellation and progress.

`concertino check` has its cases in sections (SECTIONS in case.py). Each public function is one
case. It gets the CaseContext of a server process, causes a fault, and raises a finding if the
server reacts wrongly. A Violation breaks a MUST of the specification, a Deviation only a stricter
rule of this project, and in a Hang the process no longer answers (findings.py). CASES, at the end,
has the name and the expected reaction of each case.

require_service() waits until the server has read everything that was sent before.
"""

from __future__ import annotations

import time

from concertino.check import process_stats
from concertino.check.case import Case
from concertino.check.case_context import CaseContext
from concertino.check.findings import Deviation, Hang, Violation
from concertino.check.messages import UNUSED_ID, Message, excerpt

PING = "basic/utilities/ping: MUST respond promptly"
CANCEL = "basic/utilities/cancellation (2026-07-28: basic/patterns/cancellation)"
PROGRESS = "basic/utilities/progress"


def _ping_during_call(context: CaseContext, tool: str) -> None:
    """Start a call of three seconds, send a ping, and require a prompt response to the ping."""
    message = context.make_call(tool, seconds=3)
    ping = context.make_ping()
    watch = process_stats.Stopwatch(context.process.pid)
    context.send(message)
    context.send(ping)
    context.wait_for_response(ping["id"])

    took_s = watch.elapsed_s(context.process.output.arrival_times[int, ping["id"]])
    context.wait_for_response(message["id"])
    if took_s > context.settings.served_s:
        text = f"{ping['method']} was answered after {took_s:.1f} s, because a call was under way"
        # A prompt response is a MUST of `ping`, which 2026-07-28 does not have.
        raise Deviation(text) if context.modern else Violation(text)


def ping_during_sleep(context: CaseContext) -> None:
    """Send a ping during a call that waits. Its response must come back within a second."""
    _ping_during_call(context, "sleep")


def ping_during_block(context: CaseContext) -> None:
    """Send a ping during a call that blocks its thread. Its response must come within a second."""
    _ping_during_call(context, "block")


def block_64_threads(context: CaseContext) -> None:
    """Send 64 calls that block, and a ping. At most 32 calls may be answered before the ping."""
    calls = [context.make_call("block", seconds=0.3) for _ in range(64)]
    context.send(*calls)
    ping = context.make_ping()
    context.send(ping)

    # Even a server that runs one call after the other must answer in the end.
    within_s = 64 * 0.3 + context.settings.timeout_s
    context.wait_for_response(ping["id"], within_s)
    earlier = [call for call in calls if context.responses(call["id"])]
    context.wait_for_responses([call["id"] for call in calls], within_s)
    if len(earlier) > len(calls) // 2:
        blocking = f"{len(earlier)} of 64 blocking calls"
        raise Deviation(f"{blocking} had ended before a later ping was answered")


def sleep_500_times(context: CaseContext) -> None:
    """Send 500 calls that wait half a second. All responses must come back within 5 s."""
    seconds = 0.5
    # Concurrently, 500 calls take half a second; in sequence, more than four minutes. Ten calls are
    # enough to tell which it is.
    few = [context.make_call("sleep", seconds=seconds) for _ in range(10)]
    began = time.monotonic()
    context.exchange(*few, within_s=10 * seconds + context.settings.timeout_s)
    if time.monotonic() - began > 9 * seconds:
        raise Deviation("10 concurrent sleeps took as long as 10 sleeps in sequence")

    calls = [context.make_call("sleep", seconds=seconds) for _ in range(500)]
    watch = process_stats.Stopwatch(context.process.pid)
    context.exchange(*calls, within_s=6 * context.settings.timeout_s)
    took_s = watch.elapsed_s()
    if took_s > 5:
        raise Deviation(f"500 sleeps of {seconds} s took {took_s:.1f} s")


def cancel_call(context: CaseContext) -> None:
    """Send a call and its cancellation. No response to the call must come back."""
    # Two seconds, so that the cancellation arrives before the call ends.
    message = context.make_call("sleep", seconds=2)
    id = message["id"]
    context.send(message)
    context.require_service()
    context.send(context.make_cancellation(id))
    context.require_service()
    if context.responses(id):
        raise Deviation("the call was answered before it was over")

    # Wait until after the two seconds of the call.
    context.process.wait_until(lambda: bool(context.responses(id)), 3.0)
    if context.responses(id):
        text = f"a cancelled call was answered: {excerpt(context.responses(id)[0])}"
        # Only 2026-07-28 forbids the response; before it was a SHOULD NOT.
        raise Violation(text) if context.modern else Deviation(text)


def cancel_invalid_ids(context: CaseContext) -> None:
    """Send cancellations with ids of no pending request. Nothing must come back."""
    done = context.make_ping()
    context.exchange(done)
    output = context.process.output
    count_before = len(output.messages)

    params: tuple[object, ...] = (
        # A request that was answered already, and one that was never sent.
        {"requestId": done["id"], "reason": "too late"},
        {"requestId": UNUSED_ID, "reason": "nobody"},
        # The right digits with the wrong type, and values that cannot be ids.
        {"requestId": str(done["id"])},
        {"requestId": None},
        {"requestId": {"x": 1}},
        {"requestId": 1.5, "reason": 5},
        # Params of the wrong shape.
        {},
        [],
        "x",
        None,
    )
    for value in params:
        context.send({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": value})
    context.require_service()
    context.process.read_for(min(0.1, context.settings.grace_s))

    errors = [message for message in output.messages[count_before:] if "error" in message]
    if errors:
        # Reported here, so the invariants need not report them again.
        context.max_errors_without_id += len(output.responses_without_id)
        raise Violation(f"a cancellation was answered: {excerpt(errors[0])}")


def cancel_other_id_type(context: CaseContext) -> None:
    """Send a call with an integer id, and cancel the same digits as a string.

    The two ids are different, so the call must get its response.
    """
    message = context.make_call("sleep", seconds=1)
    cancellation = context.make_cancellation(str(message["id"]), excuses_response=False)
    context.send(message, cancellation)
    context.wait_for_response(message["id"])


def race_cancellations(context: CaseContext) -> None:
    """Send 200 requests, and cancel some before their responses come, and some after.

    No request may get two responses.
    """
    # The invariants count the responses.
    if "sleep" in context.server.tools:
        messages = [context.make_call("sleep", seconds=0.002 * (i % 10)) for i in range(200)]
    else:
        messages = [context.make_request("tools/list") for _ in range(200)]
    for number, message in enumerate(messages):
        context.send(message)
        # Vary the delay, so that some cancellations come early and some late.
        if number % 3:
            context.process.read_for(0.001 * (number % 5))
        context.send(context.make_cancellation(message["id"]))
    context.require_service()
    context.wait_for_stragglers()


def reuse_id(context: CaseContext) -> None:
    """Send a call, and a request with its id. Error -32600 and the call's result must come back."""
    message = context.make_call("sleep", seconds=1)
    id = message["id"]
    context.expect(id, "two requests with one id at a time", least=1, most=2)
    context.send(message)
    # The params of the call are unknown to tools/list, which ignores them.
    context.send({**message, "method": "tools/list"})
    context.wait_for_response(id)
    # Wait until after the second of the call.
    context.process.wait_until(lambda: len(context.responses(id)) > 1, 3.0)

    responses = context.responses(id)
    if not any("error" in item and item["error"]["code"] == -32600 for item in responses):
        context.report_deviation(f"no error -32600 for an id that is in use: {excerpt(responses)}")
    if not any("result" in item for item in responses):
        context.report_deviation(
            f"the request that had the id first was not served: {excerpt(responses)}"
        )


def _find_progress(messages: list[Message]) -> list[Message]:
    """Return the progress notifications among messages."""
    return [item for item in messages if item.get("method") == "notifications/progress"]


def _call_with_progress(
    context: CaseContext,
    tool: str,
    token: str,
    **arguments: object,
) -> int:
    """Send a call that asks for progress, and return its id."""
    params = context.find_tool(tool).make_params(**arguments)
    message = context.make_request("tools/call", {**params, "_meta": {"progressToken": token}})
    context.send(message)
    return message["id"]


def report_progress_20000_times(context: CaseContext) -> None:
    """Call a tool that reports progress 20,000 times.

    Growing progress with the right token must come back, and none after the response.
    """
    token = "check"
    id = _call_with_progress(context, "count", token, to=20_000)
    response = context.wait_for_response(id, 6 * context.settings.timeout_s)
    context.require_service()
    context.wait_for_stragglers()

    messages = context.process.output.messages
    end = next(index for index, item in enumerate(messages) if item is response)
    if late := _find_progress(messages[end:]):
        raise Violation(f"progress after the answer: {excerpt(late[0])}")
    notifications = _find_progress(messages[:end])
    if not notifications:
        raise Deviation("no progress at all was reported for a call that asked for it")

    last = float("-inf")
    for notification in notifications:
        params: Message = notification["params"]
        if params.get("progressToken") != token:
            raise Violation(f"progress with another token: {excerpt(notification)}")
        # Throttling may drop values, but those that are sent must increase.
        if not isinstance(params.get("progress"), int | float) or params["progress"] <= last:
            raise Violation(f"progress that does not grow: {excerpt(notification)} after {last}")
        last = params["progress"]


def report_progress_without_token(context: CaseContext) -> None:
    """Call a tool that reports progress, without a token. No progress must come back."""
    context.call_tool("count", to=100)
    context.require_service()
    if notifications := _find_progress(context.process.output.notifications):
        raise Violation(f"progress of a call without a progressToken: {excerpt(notifications[0])}")


def report_progress_after_response(context: CaseContext) -> None:
    """Call a tool that reports progress after its result. That progress must not come back."""
    # The tool keeps reporting after it has returned. The library must drop that, since the author
    # of a tool may not notice.
    id = _call_with_progress(context, "tell_late", "late")
    context.wait_for_response(id)
    # The tool reports 0.2 s after its result.
    context.process.read_for(1.0)
    messages = context.process.output.messages
    if late := _find_progress(messages[messages.index(context.responses(id)[0]) :]):
        raise Violation(f"progress after the answer: {excerpt(late[0])}")


def cancel_call_with_progress(context: CaseContext) -> None:
    """Cancel a call that reports progress. Neither progress nor a response must come any more."""
    id = _call_with_progress(context, "count", "check", to=1_000_000)
    process = context.process
    notifications = process.output.notifications
    process.wait_until(
        lambda: bool(notifications) or bool(context.responses(id)), context.settings.timeout_s
    )
    context.send(context.make_cancellation(id))
    context.require_service()
    if context.responses(id):
        # The call was faster than the cancellation. report_progress_after_response() checks the
        # progress after a response.
        return

    # Progress that was under way when the server read the cancellation may still arrive.
    context.wait_for_stragglers()
    count_before = len(notifications)
    process.wait_until(lambda: len(notifications) > count_before, 0.5)
    if len(notifications) > count_before:
        text = f"progress of a cancelled call: {excerpt(notifications[count_before])}"
        raise Violation(text) if context.modern else Deviation(text)


def send_pings_after_slow_call(context: CaseContext) -> None:
    """Send a slow call and 50 pings. The responses to the pings must come back first."""
    slow = context.make_call("sleep", seconds=1.5)
    pings = [context.make_ping() for _ in range(50)]
    context.send(slow, *pings)
    context.wait_for_responses([ping["id"] for ping in pings])
    overtaken = not context.responses(slow["id"])
    context.wait_for_response(slow["id"])
    if not overtaken:
        raise Deviation("50 requests after a slow call waited for it")


def cancel_1000_calls(context: CaseContext) -> None:
    """Send 1,000 long calls and cancel them. The next call must not wait for them."""
    calls = [context.make_call("sleep", seconds=30) for _ in range(1000)]
    context.send(*calls)
    context.require_service()
    context.send(*(context.make_cancellation(call["id"]) for call in calls))
    context.require_service()

    # If the cancelled calls still count as running, this call must wait for half a minute.
    after = context.make_call("sleep", seconds=0.1)
    context.send(after)
    if context.find_missing_responses([after["id"]]):
        context.allow_missing_response(after["id"])
        if not context.is_serving():
            raise Hang("after 1,000 cancelled calls the server no longer responds")
        raise Deviation("1,000 cancelled calls still delay the next call")


CASES = (
    # Calls must not hold each other up.
    Case(
        name="ping-during-sleep",
        section=6,
        does="pings while a tool waits for 3 s",
        expected="answered in a second",
        source=PING,
        run=ping_during_sleep,
        needs=("sleep",),
        slow=True,
    ),
    Case(
        name="ping-during-block",
        section=6,
        does="pings while a tool blocks its thread for 3 s",
        expected="answered in a second",
        source=PING,
        run=ping_during_block,
        needs=("block",),
        slow=True,
    ),
    Case(
        name="answers-as-ready",
        section=6,
        does="sends 50 light requests after a slow call",
        expected="they do not wait for it",
        source="policy",
        run=send_pings_after_slow_call,
        needs=("sleep",),
    ),
    Case(
        name="blocking-64",
        section=6,
        does="calls a blocking tool 64 times at once and pings",
        expected="the ping does not wait for most of them; all are answered",
        source="policy",
        run=block_64_threads,
        needs=("block",),
    ),
    Case(
        name="sleeps-500",
        section=6,
        does="makes 500 calls at once of a tool that waits half a second",
        expected="all are answered within 5 s",
        source="policy",
        run=sleep_500_times,
        needs=("sleep",),
    ),
    # Cancellation.
    Case(
        name="cancel-in-flight",
        section=6,
        does="cancels a call of 2 s",
        expected="no answer",
        source=CANCEL,
        run=cancel_call,
        needs=("sleep",),
        slow=True,
    ),
    Case(
        name="cancel-nothing",
        section=6,
        does="cancels requests that are done or unknown, and invalid ids",
        expected="no answer",
        source="basic, Notifications: MUST NOT be answered",
        run=cancel_invalid_ids,
    ),
    Case(
        name="cancel-other-type",
        section=6,
        does='cancels id 5 as "5"',
        expected="the call is answered",
        source='policy; basic: 5 is not "5"',
        run=cancel_other_id_type,
        needs=("sleep",),
    ),
    Case(
        name="cancel-races",
        section=6,
        does="cancels 200 requests about when they are answered",
        expected="at most one answer each",
        source=CANCEL,
        run=race_cancellations,
    ),
    Case(
        name="cancelled-frees",
        section=6,
        does="cancels 1,000 calls of 30 s, and calls again",
        expected="the next call is served",
        source="policy; " + CANCEL,
        run=cancel_1000_calls,
        needs=("sleep",),
    ),
    # Ids.
    Case(
        name="id-in-use",
        section=6,
        does="uses the id of a call that is under way",
        expected="an error -32600 on that id; the first call is answered",
        source="policy; basic: an id MUST NOT be reused",
        run=reuse_id,
        needs=("sleep",),
    ),
    # Progress.
    Case(
        name="progress-20000",
        section=6,
        does="lets a tool report progress 20,000 times",
        expected="it grows, comes before the result, and stops",
        source=PROGRESS,
        run=report_progress_20000_times,
        needs=("count",),
        slow=True,
    ),
    Case(
        name="progress-not-asked",
        section=6,
        does="lets a tool report progress of a call without a progressToken",
        expected="none is sent",
        source=PROGRESS,
        run=report_progress_without_token,
        needs=("count",),
    ),
    Case(
        name="progress-after-cancel",
        section=6,
        does="cancels a call that keeps reporting progress",
        expected="no more progress, no answer",
        source="2026-07-28 stdio: no further message for a cancelled request; policy in other "
        "revisions",
        run=cancel_call_with_progress,
        needs=("count",),
    ),
    Case(
        name="progress-late",
        section=6,
        does="lets a tool report progress after its result",
        expected="none is sent",
        source=PROGRESS + ": MUST stop after completion",
        run=report_progress_after_response,
        needs=("tell_late",),
    ),
)
