"""Cases that are one line of bytes and the answer it should get: nothing a rule-keeping client would send.

So whatever is answered, or nothing, is at most `differs`; what counts is that the server lives and serves the
next request.
"""

from __future__ import annotations

from msgspec import Struct

from concertino.check.case import Case, Deviation
from concertino.check.case_context import CaseContext
from concertino.check.messages import Id, Message, shown

__all__ = [
    "INVALID_PARAMS",
    "INVALID_REQUEST",
    "NOT_FOUND",
    "PARSE_ERROR",
    "Line",
    "case_of",
    "refused",
]

PARSE_ERROR, INVALID_REQUEST, NOT_FOUND, INVALID_PARAMS = (
    -32700,
    -32600,
    -32601,
    -32602,
)  # JSON-RPC 2.0 section 5.1
CODES = {
    PARSE_ERROR: "parse error",
    INVALID_REQUEST: "invalid request",
    NOT_FOUND: "method not found",
}
CODES[INVALID_PARAMS] = "invalid params"


class Line(Struct, frozen=True):
    """A row. sends: the line without its newline. codes: of the error that should come. id: the one that can be read, if any.

    silence: whether no answer is as good.
    """

    name: str
    section: int
    does: str
    sends: bytes
    codes: tuple[int, ...]
    id: Id | None = None
    source: str = "JSON-RPC 2.0 section 5.1; policy: garbage is answered"
    silence: bool = False


def case_of(line: Line) -> Case:
    """The case of a row."""
    wanted = " or ".join(f"{code} ({CODES[code]})" for code in line.codes)
    where = "without an id or with null" if line.id is None else f"on id {shown(line.id)}"
    if line.id is not None and PARSE_ERROR in line.codes:
        where += ", or without one"
    silence = ", or silence" if line.silence else ""
    expected = f"one error {wanted} {where}{silence}; the next request is served"

    def run(trial: CaseContext) -> None:
        refused(trial, line.sends, line.codes, line.id, silence=line.silence)

    return Case(line.name, line.section, line.does, expected, line.source, run)


def refused(
    trial: CaseContext,
    line: bytes,
    codes: tuple[int, ...],
    id: Id | None = None,
    *,
    silence: bool = False,
) -> Message | None:
    """Send a line that is no message, see the next request served, and look at what came for the line."""
    child = trial.child
    before = len(child.idless)
    if id is not None:
        trial.expect(id, f"the line {shown(line, 60)}", least=0)
    trial.write_garbage(line + b"\n")
    trial.must_serve()
    seen = shown(line, 80)

    def answered() -> bool:
        return len(child.idless) > before or (id is not None and bool(trial.answers(id)))

    child.pump(answered, trial.settings.grace_s)
    if not answered():
        if not silence:
            trial.note(Deviation(f"{seen} was answered with silence"))
        return None
    answer = trial.answers(id)[0] if id is not None and trial.answers(id) else child.idless[before]
    if "error" not in answer:
        trial.note(Deviation(f"{seen} was taken for a request and answered {shown(answer)}"))
    elif answer["error"]["code"] not in codes:
        trial.note(
            Deviation(f"{seen} was answered with {answer['error']['code']}: {shown(answer)}")
        )
    elif (
        id is not None and answer.get("id") != id and answer["error"]["code"] != PARSE_ERROR
    ):  # whose id need not be read
        trial.note(Deviation(f"{seen} was answered, but not on its id: {shown(answer)}"))
    return answer
