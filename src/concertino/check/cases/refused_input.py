"""make_cases(): makes cases that send one malformed line each, and check the error response.

A case is one test of `concertino check`. These cases send a malformed line to a new server process,
and then a valid request. A client that keeps the rules never sends such a line. So a wrong reaction
to the line breaks no MUST of the specification, and the verdict on it is `differs`. A server that
does not answer the valid request gets a worse verdict.
"""

from __future__ import annotations

from concertino.check.case import Case
from concertino.check.case_context import CaseContext
from concertino.check.messages import Id, Message, excerpt

# JSON-RPC 2.0 section 5.1.
PARSE_ERROR = -32700
INVALID_REQUEST = -32600
NOT_FOUND = -32601
INVALID_PARAMS = -32602
CODES = {
    PARSE_ERROR: "parse error",
    INVALID_REQUEST: "invalid request",
    NOT_FOUND: "method not found",
    INVALID_PARAMS: "invalid params",
}


# The name of a case, what it does (Case.does), and the line that it sends, without its newline.
MalformedLine = tuple[str, str, bytes]


def make_cases(
    section: int,
    codes: tuple[int, ...],
    *lines: MalformedLine,
    id: Id | None = None,
    source: str = "JSON-RPC 2.0 section 5.1; policy: malformed input is answered",
    may_be_silent: bool = False,
) -> list[Case]:
    """Return a case for each malformed line.

    section: the section of the cases, a key of SECTIONS in case.py.
    codes: the acceptable error codes.
    lines: each is (Case.name, Case.does, the line without its newline).
    id: the id in the lines; None if they have no readable id.
    source: the rule that demands the error.
    may_be_silent: whether it is also acceptable not to respond.
    """
    names = " or ".join(f"{code} ({CODES[code]})" for code in codes)
    place = "without an id or with null" if id is None else f"on id {excerpt(id)}"
    # A server that cannot parse a line cannot know its id.
    if id is not None and PARSE_ERROR in codes:
        place += ", or without one"
    allowed = ", or silence" if may_be_silent else ""
    expected = f"one error {names} {place}{allowed}; the next request is served"

    def make_case(name: str, does: str, line: bytes) -> Case:
        def run(context: CaseContext) -> None:
            send_malformed_line(context, line, codes, id, may_be_silent=may_be_silent)

        return Case(
            name=name, section=section, does=does, expected=expected, source=source, run=run
        )

    return [make_case(*line) for line in lines]


def send_malformed_line(
    context: CaseContext,
    line: bytes,
    codes: tuple[int, ...],
    id: Id | None = None,
    *,
    may_be_silent: bool = False,
) -> Message | None:
    """Send a malformed line and then a valid request, and return the response to the line.

    Reports a Deviation if the response to the line is not one of the acceptable errors. Returns
    None if there is no response to the line. Raises Hang or Crash if there is none to the request.

    line: the line, without its newline.
    codes: the acceptable error codes.
    id: the id in the line; None if it has no readable id.
    may_be_silent: whether it is also acceptable not to respond.
    """
    if id is not None:
        context.expect(id, f"the line {excerpt(line, 60)}")
    response = context.probe_line(line + b"\n", id)
    shown_line = excerpt(line, 80)
    if response is None:
        if not may_be_silent:
            context.report_deviation(f"{shown_line} was answered with silence")
        return None
    if "error" not in response:
        context.report_deviation(
            f"{shown_line} was taken for a request and answered {excerpt(response)}"
        )
        return response

    code = response["error"]["code"]
    if code not in codes:
        context.report_deviation(f"{shown_line} was answered with {code}: {excerpt(response)}")
    elif id is not None and response.get("id") != id and code != PARSE_ERROR:
        context.report_deviation(
            f"{shown_line} was answered, but not on its id: {excerpt(response)}"
        )
    return response
