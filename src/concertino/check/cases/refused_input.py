"""Cases that send one malformed line and look at the error that it gets.

No client that keeps the rules sends such a line, so whatever the response is, or if there is none,
the verdict is at most `differs`. The invariants still hold: the server must survive and serve the
next request.
"""

from __future__ import annotations

from msgspec import Struct

from concertino.check.case import Case
from concertino.check.case_context import CaseContext
from concertino.check.findings import Deviation
from concertino.check.messages import Id, Message, excerpt

__all__ = [
    "INVALID_PARAMS",
    "INVALID_REQUEST",
    "NOT_FOUND",
    "PARSE_ERROR",
    "MalformedLine",
    "make_case",
    "send_malformed_line",
]

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


class MalformedLine(Struct, frozen=True):
    """One malformed line and the error that should come for it.

    sends: the line without its newline. codes: the acceptable error codes. id: the id of the
    response; None if the line has none that can be read. silence: no response is fine, too.
    """

    name: str
    section: int
    does: str
    sends: bytes
    codes: tuple[int, ...]
    id: Id | None = None
    source: str = "JSON-RPC 2.0 section 5.1; policy: malformed input is answered"
    silence: bool = False


def make_case(line: MalformedLine) -> Case:
    """Return the case for a malformed line."""
    codes = " or ".join(f"{code} ({CODES[code]})" for code in line.codes)
    place = "without an id or with null" if line.id is None else f"on id {excerpt(line.id)}"
    # A server that cannot parse a line cannot know its id.
    if line.id is not None and PARSE_ERROR in line.codes:
        place += ", or without one"
    silence = ", or silence" if line.silence else ""
    expected = f"one error {codes} {place}{silence}; the next request is served"

    def run(context: CaseContext) -> None:
        send_malformed_line(context, line.sends, line.codes, line.id, silence=line.silence)

    return Case(line.name, line.section, line.does, expected, line.source, run)


def send_malformed_line(
    context: CaseContext,
    line: bytes,
    codes: tuple[int, ...],
    id: Id | None = None,
    *,
    silence: bool = False,
) -> Message | None:
    """Send a malformed line, require service, and return the response to the line, if any.

    The parameters are those of MalformedLine. Reports a Deviation unless the response is one of
    the expected errors.
    """
    without_id = context.process.output.responses_without_id
    count_before = len(without_id)
    if id is not None:
        context.expect(id, f"the line {excerpt(line, 60)}", least=0)
    context.write_malformed_lines(line + b"\n")
    context.require_service()
    shown_line = excerpt(line, 80)

    def has_response() -> bool:
        return len(without_id) > count_before or (id is not None and bool(context.responses(id)))

    context.process.wait_until(has_response, context.settings.grace_s)
    if not has_response():
        if not silence:
            context.report(Deviation(f"{shown_line} was answered with silence"))
        return None

    # A response on the id tells more than one without.
    on_id = [] if id is None else context.responses(id)
    response = on_id[0] if on_id else without_id[count_before]
    if "error" not in response:
        text = f"{shown_line} was taken for a request and answered {excerpt(response)}"
        context.report(Deviation(text))
        return response

    code = response["error"]["code"]
    if code not in codes:
        context.report(Deviation(f"{shown_line} was answered with {code}: {excerpt(response)}"))
    elif id is not None and response.get("id") != id and code != PARSE_ERROR:
        text = f"{shown_line} was answered, but not on its id: {excerpt(response)}"
        context.report(Deviation(text))
    return response
