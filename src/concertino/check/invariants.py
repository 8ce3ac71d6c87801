"""What holds after every case, whatever it did.

The process lives unless the case asked otherwise; the next request is served; every id was answered exactly once, or not at
all when cancelled; stdout held nothing but JSON-RPC messages; no answer carries a stack trace; memory and descriptors are back; no
process is left over. `served()` and the books it reads are in trial.py.
"""

from __future__ import annotations

from concertino.check import process_stats
from concertino.check.case import Crash, Deviation, Hang, Violation
from concertino.check.case_context import CaseContext
from concertino.check.messages import looks_like_a_traceback, shown
from concertino.check.process_stats import ProcessStats

__all__ = ["after", "closed", "said"]

MIB = 2**20
SPARE_BYTES = 64 * MIB  # what memory may grow by, beside one message of the allowed size
SPARE_DESCRIPTORS = 4  # opened when first needed, and kept: an event loop's, a log's


def after(trial: CaseContext, before: ProcessStats | None) -> None:
    """Ask while the process still runs. Notes what it finds; raises Crash or Hang."""
    child = trial.child
    if child.exit is not None:
        raise child.gone("nobody had asked it to")
    if not trial.opened:
        trial.open()
    missing = [
        id for (kind, id), due in trial.due.items() if due.least and (kind, id) not in child.answers
    ]
    if missing:
        trial.all_answered(missing)
    trial.must_serve()
    trial.settle()
    if child.exit is not None:
        raise child.gone("right after it had served the next request")
    if child.eof and child.reading >= 0:
        raise Hang("stdout was closed, and the process lives")
    _holds(trial, before)


def said(trial: CaseContext) -> None:
    """What came through stdout in the whole life of the child. Notes what it finds."""
    child = trial.child
    for stray in child.strays[:3]:
        trial.note(
            Violation(
                f"stdout held a line that is no JSON-RPC message ({stray.why}): {shown(stray.line)}"
            )
        )
    known = trial.due
    for key, answers in child.answers.items():
        due = known.get(key)
        if due is None:
            if not trial.tolerated(key[1]):
                trial.note(
                    Violation(f"an answer with an id that was never sent: {shown(answers[0])}")
                )
        elif len(answers) > due.most:
            trial.note(
                Violation(
                    f"{due.what} (id {shown(key[1])}) was answered {len(answers)} times: {shown(answers[-1])}"
                )
            )
    if len(child.idless) > trial.garbage:
        trial.note(
            Violation(
                f"{len(child.idless)} answers without an id for {trial.garbage} malformed lines: {shown(child.idless[-1])}"
            )
        )
    if trial.modern and child.requests:
        trial.note(
            Violation(
                f"a request to the client, which 2026-07-28 does not allow: {shown(child.requests[0])}"
            )
        )
    for message in (
        *child.idless,
        *(each for answers in child.answers.values() for each in answers),
    ):
        if mark := looks_like_a_traceback(message):
            trial.note(
                Violation(f"a stack trace ({mark}) was sent to the client: {shown(message, 400)}")
            )
            break


def closed(trial: CaseContext) -> None:
    """End the child as a client does: close its stdin, and see that nothing is left over when it goes by itself."""
    child = trial.child
    if trial.ended or child.exit is not None:
        return
    child.close_stdin()
    within_s = 2.0 if trial.subject.obeys_eof else 0.2
    child.pump(lambda: child.exit is not None, within_s)
    if child.exit is None:
        return  # that it outlives its input is said by the cases of section 7
    if not child.wait(2.0):
        left = sorted(process_stats.members(child.pid) or ())
        trial.note(Violation(f"the process ended and left others behind: {left}"))
    code = child.exit
    if code < 0:
        trial.note(Crash(f"died of signal {-code} after the end of its input"))


def _holds(trial: CaseContext, before: ProcessStats | None) -> None:
    """Memory, descriptors and children are as they were, within reason."""
    if before is None:
        return
    allowed = trial.settings.message_limit_bytes + SPARE_BYTES

    def settled() -> bool:
        now = process_stats.take(trial.child.pid)
        return (
            now is not None
            and now.rss_bytes - before.rss_bytes <= allowed
            and now.descriptors - before.descriptors <= SPARE_DESCRIPTORS
            and now.pids <= before.pids
        )

    if settled() or trial.child.pump(settled, 2.0):
        return
    now = process_stats.take(trial.child.pid)
    if now is None:
        return
    if (grown := now.rss_bytes - before.rss_bytes) > allowed:
        trial.note(
            Deviation(
                f"memory grew by {grown / MIB:.0f} MiB and stayed; {allowed / MIB:.0f} MiB are allowed"
            )
        )
    if (more := now.descriptors - before.descriptors) > SPARE_DESCRIPTORS:
        trial.note(Deviation(f"{more} more descriptors are open than before"))
    if left := now.pids - before.pids:
        trial.note(Deviation(f"processes that were not there before are left: {sorted(left)}"))
