"""CaseContext: the methods with which a case talks to its server process.

A case is one fault that `concertino check` causes in a new process of the server, such as a
malformed message. make_...() methods create messages, send() and write() send them, and wait_...()
and require_...() methods wait for responses, with a time limit.

Every request is registered with the number of responses that it may get, so that invariants.py can
check afterwards that each was answered exactly once. A missing response raises an exception, which
becomes a finding of the case. To choose the exception, one more request is sent: Crash if the
process has ended, Violation if it answers that request, and otherwise Hang.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from msgspec import Struct

from concertino.check import process_stats
from concertino.check.findings import CheckFinding, Crash, Deviation, Hang, SkipCase, Violation
from concertino.check.messages import (
    CAPABILITIES_KEY,
    LEGACY,
    MODERN,
    VERSION_KEY,
    Id,
    Message,
    as_array,
    as_object,
    encode_line,
    excerpt,
)
from concertino.check.server_output import IdKey
from concertino.check.server_process import ServerProcess
from concertino.check.server_under_test import CheckTool, ServerUnderTest

INITIALIZED: Message = {"jsonrpc": "2.0", "method": "notifications/initialized"}


class ExpectedResponses(Struct):
    """How many responses a request may get.

    subject: a name for the request, for the texts of findings.
    least, most: the smallest and the largest number of responses.
    """

    subject: str
    least: int = 1
    most: int = 1


class CaseContext:
    """What a case uses to talk to its server process. run.py makes one for each case.

    server: the facts about the server that were found out before the first case.
    process: the process of this case.
    era: the era of the session: "legacy" for revisions with a handshake (`initialize`), "modern"
        for 2026-07-28; "" for the server's own era, ServerUnderTest.era.

    Attributes:
    modern: whether the era is "modern".
    is_open: whether the session is open.
    may_end: whether the case has ended the process, or has asked it to end. Then the process need
        not answer requests any more.
    findings: what the server has done wrong so far.
    settings: the time limits of the check, which users can change.
    expected: (type of an id, id) of a request -> how many responses it may get. The type is needed
        because 1 and 1.0 are equal in Python.
    max_errors_without_id: how many error responses without an id the server may send: one for each
        malformed line, and for each message whose id the server might not be able to read. A case
        that has reported such an error raises the number, so that invariants.py does not report
        it again.
    is_unknown_id_allowed: a function that gets the id of a response that belongs to no request, and
        returns whether the server may send that response. By default it may not.
    """

    def __init__(
        self,
        server: ServerUnderTest,
        process: ServerProcess,
        era: str = "",
    ) -> None:
        self.server = server
        self.settings = server.settings
        self.process = process
        self.modern = (era or server.era) == "modern"
        self.is_open = False
        self.may_end = False
        self.findings: list[CheckFinding] = []
        self.expected: dict[IdKey, ExpectedResponses] = {}
        self.max_errors_without_id = 0
        self.is_unknown_id_allowed: Callable[[Id], bool] = lambda _: False
        # The first new id is 2, because cases use the ids 0 and 1 themselves.
        self._last_id = 1
        process.output.on_request = self._on_server_request

    def _on_server_request(self, message: Message) -> None:
        """Answer a request of the server: a ping with a result, all others with an error."""
        response: Message = {"jsonrpc": "2.0", "id": message["id"]}
        if message["method"] == "ping":
            response["result"] = {}
        else:
            # The check declares no client capability.
            response["error"] = {"code": -32601, "message": "method not found"}
        # If the pipe is full, the server gets no response: waiting would block the check. The
        # descriptor is -1 if the case has closed stdin.
        if self.process.ends.stdin >= 0:
            self.process.write_available(encode_line(response))

    # Findings

    def report(self, finding: CheckFinding) -> None:
        """Record a finding. The case continues."""
        self.findings.append(finding)

    def report_deviation(self, text: str) -> None:
        """Record that the server breaks a policy of this project. The case continues.

        text: what the server has done.
        """
        self.report(Deviation(text))

    # Making messages

    def new_id(self) -> int:
        """Return an id that was not used before."""
        self._last_id += 1
        return self._last_id

    def make_request(
        self,
        method: str,
        params: Message | None = None,
        id: Id | None = None,
        *,
        modern: bool | None = None,
    ) -> Message:
        """Return a request, and register that one response to it is expected.

        params: the params. A request of 2026-07-28 gets the keys for the revision and the client's
            capabilities in `_meta`, unless `params` has them.
        id: the id of the request; None for a new id.
        modern: whether the request is one of 2026-07-28; None for the era of the session.
        """
        id = self.new_id() if id is None else id
        whole_params = dict(params or {})
        if modern is None:
            modern = self.modern
        if modern:
            meta: Message = {VERSION_KEY: MODERN, CAPABILITIES_KEY: {}}
            whole_params["_meta"] = {**meta, **whole_params.get("_meta", {})}
        # The method is the name of the request in findings.
        self.expect(id, method)
        message: Message = {"jsonrpc": "2.0", "id": id, "method": method}
        if whole_params:
            message["params"] = whole_params
        return message

    def make_call(self, tool: str, **arguments: object) -> Message:
        """Return a tools/call request, registered as by make_request().

        tool: a key of server_under_test.TOOLS.
        arguments: the arguments, by the names that cases use. The tool of the server may have other
            names for them.
        Raises SkipCase if the server does not have the tool.
        """
        return self.make_request("tools/call", self.find_tool(tool).make_params(**arguments))

    def make_ping(self, id: Id | None = None, params: Message | None = None) -> Message:
        """Return a cheap request that every server must answer, registered as by make_request().

        This is `ping`, or server/discover in 2026-07-28, which has no ping.

        id: the id of the request; None for a new id.
        params: as in make_request().
        """
        return self.make_request("server/discover" if self.modern else "ping", params, id)

    def make_listing(self) -> Message:
        """Return make_request("tools/list"), or make_ping() if the server has no tools."""
        return self.make_request("tools/list") if self.server.tool_names else self.make_ping()

    def make_initialize(self, version: str = LEGACY, **more: Any) -> Message:
        """Return an initialize request, registered as by make_request().

        version: the revision to offer.
        more: fields to add to the usual params, or to replace usual fields.
        """
        client = {"name": "concertino-check", "version": "1"}
        params = {"protocolVersion": version, "capabilities": {}, "clientInfo": client, **more}
        return self.make_request("initialize", params, modern=False)

    def make_cancellation(self, id: object, *, excuses_response: bool = True) -> Message:
        """Return notifications/cancelled for a request, which then need not get a response.

        id: the id of the request to cancel, or an invalid id.
        excuses_response: False if the notification must have no effect, so that the request must
            get its response.
        """
        if excuses_response and isinstance(id, int | str) and (type(id), id) in self.expected:
            self.allow_missing_response(id)
        return {
            "jsonrpc": "2.0",
            "method": "notifications/cancelled",
            "params": {"requestId": id, "reason": "check"},
        }

    def find_tool(self, name: str) -> CheckTool:
        """Return a tool of the server. Raises SkipCase if the server does not have it.

        name: a key of server_under_test.TOOLS.
        """
        tool = self.server.tools.get(name)
        if tool is None:
            raise SkipCase(f"the server has no tool {name}")
        return tool

    def expect(
        self,
        id: Id,
        subject: str,
        least: int = 1,
        most: int = 1,
    ) -> None:
        """Register how many responses a request may get, instead of what was registered before.

        id: the id of the request.
        subject: a name for the request, for the texts of findings.
        least, most: the smallest and the largest number of responses.
        """
        self.expected[type(id), id] = ExpectedResponses(subject, least, most)

    def allow_missing_response(self, id: Id) -> None:
        """Accept that a registered request gets no response, as after its cancellation."""
        self.expected[type(id), id].least = 0

    # Writing

    def send(self, *messages: Message) -> None:
        """Write messages, one line each, in one write.

        Raises Hang or Crash if the pipe has not accepted them within timeout_s of the settings.
        """
        self.write(b"".join(map(encode_line, messages)))

    def write(self, data: bytes, within_s: float | None = None) -> None:
        """Write bytes to the server's stdin, and wait until the pipe has accepted them.

        within_s: the time limit; None for timeout_s of the settings.
        Raises Hang or Crash if the pipe has not accepted them in time.
        """
        self.process.write(data, self.settings.timeout_s if within_s is None else within_s)

    def write_malformed_lines(
        self,
        data: bytes,
        lines: int = 1,
        within_s: float | None = None,
    ) -> None:
        """Write malformed lines. The server may answer each of them once, without an id.

        lines: the number of lines in `data`.
        within_s: as in write().
        Raises Hang or Crash if the pipe has not accepted them in time.
        """
        self.max_errors_without_id += lines
        self.write(data, within_s)

    # Reading

    def responses(self, id: Id) -> list[Message]:
        """Return all responses with an id that have arrived. The ids 1 and "1" are different."""
        return self.process.output.responses.get((type(id), id), [])

    def find_missing_responses(self, ids: Sequence[Id], within_s: float | None = None) -> list[Id]:
        """Wait for a response to each id. Return the ids that have no response in time.

        within_s: how long to wait; None for timeout_s of the settings.
        """
        within_s = self.settings.timeout_s if within_s is None else within_s
        responses = self.process.output.responses
        missing: set[IdKey] = {(type(id), id) for id in ids}
        seen = -1

        def all_came() -> bool:
            nonlocal seen
            # This is called after each event, with up to thousands of ids, so search only if new
            # responses have arrived.
            if len(responses) != seen:
                seen = len(responses)
                missing.difference_update([key for key in missing if key in responses])
            return not missing

        self.process.wait_until(all_came, within_s)
        return [id for _, id in missing]

    def wait_for_response(self, id: Id, within_s: float | None = None) -> Message:
        """Wait for the first response to a request, and return it.

        within_s: how long to wait; None for timeout_s of the settings.
        Raises Crash, Hang or Violation if there is no response, as wait_for_responses() does.
        """
        self.wait_for_responses([id], within_s)
        return self.responses(id)[0]

    def wait_for_responses(self, ids: Sequence[Id], within_s: float | None = None) -> None:
        """Wait for a response to each id.

        within_s: how long to wait; None for timeout_s of the settings.
        If a response is missing, raises Crash if the process has ended. Otherwise sends a ping, and
        raises Violation if the server answers the ping, or Hang if it does not.
        """
        within_s = self.settings.timeout_s if within_s is None else within_s
        missing = self.find_missing_responses(ids, within_s)
        if not missing:
            return

        subject = self.expected[type(missing[0]), missing[0]].subject
        text = f"no answer to {subject} (id {excerpt(missing[0])})"
        if len(missing) > 1:
            text = f"{len(missing)} of {len(ids)} requests not answered, the first: {text}"
        # After the end of stdout, the wait has ended before its time limit.
        if self.process.exit_code is not None or self.process.eof:
            raise self.process.crash_or_hang(text)

        text += f" in {within_s:g} s"
        # The invariants must not report these missing responses again.
        for id in missing:
            self.allow_missing_response(id)
        # Before the session is open, the server may ignore the ping of is_serving().
        if self.is_open and self.is_serving():
            raise Violation(text + "; the next request was served")
        raise Hang(text)

    def require_results(self, ids: Sequence[Id], within_s: float | None = None) -> None:
        """Wait for a result to each id.

        within_s: how long to wait; None for timeout_s of the settings.
        Raises Violation for an error response, and Crash, Hang or Violation if a response is
        missing.
        """
        self.wait_for_responses(ids, within_s)
        for id in ids:
            response = self.responses(id)[0]
            if "error" in response:
                subject = self.expected[type(id), id].subject
                raise Violation(f"{subject} was refused: {excerpt(response)}")

    def exchange(self, *messages: Message, within_s: float | None = None) -> list[Message]:
        """Send messages and return the first response to each request, in the requests' order.

        within_s: how long to wait for the responses; None for timeout_s of the settings.
        Raises Crash, Hang or Violation when a response is missing.
        """
        self.send(*messages)
        ids = [message["id"] for message in messages if "id" in message]
        self.wait_for_responses(ids, within_s)
        return [self.responses(id)[0] for id in ids]

    def require_success(self, *requests: Message, within_s: float | None = None) -> None:
        """Send requests and wait for a result to each. Raises Violation for an error response.

        within_s: how long to wait for the responses; None for timeout_s of the settings.
        Raises Crash, Hang or Violation when a response is missing.
        """
        self.send(*requests)
        self.require_results([request["id"] for request in requests], within_s)

    def request(
        self,
        method: str,
        params: Message | None = None,
        id: Id | None = None,
        *,
        modern: bool | None = None,
    ) -> Message:
        """Send a request and return its response.

        params, id, modern: as in make_request().
        Raises Crash, Hang or Violation when there is no response.
        """
        return self.exchange(self.make_request(method, params, id, modern=modern))[0]

    def call_tool(self, name: str, **arguments: object) -> Message:
        """Call a tool and return the response.

        name: a key of server_under_test.TOOLS.
        arguments: as in make_call().
        Raises SkipCase if the server does not have the tool. Raises Crash, Hang or Violation when
        there is no response.
        """
        return self.exchange(self.make_call(name, **arguments))[0]

    def probe_line(
        self,
        line: bytes,
        id: Id | None = None,
        *,
        within_s: float | None = None,
        grace_s: float | None = None,
    ) -> Message | None:
        """Write a line that the server may refuse, and a ping. Return the response to the line.

        The response may be an error without an id. Returns None if there is no response. Raises
        Hang or Crash if the server does not answer the ping.

        line: the line, with its newline.
        id: the id in the line, which the caller has registered with expect(); None if the line has
            no id.
        within_s: how long to wait until the pipe has accepted the line; None for timeout_s of the
            settings.
        grace_s: how long to wait for the response to the line; None for grace_s of the settings.
        """
        without_id = self.process.output.responses_without_id
        count_before = len(without_id)
        # The caller decides what a missing response means.
        if id is not None:
            self.allow_missing_response(id)
        self.write_malformed_lines(line, within_s=within_s)
        self.require_service()

        def find_responses() -> list[Message]:
            # Prefer a response with the id to one without an id.
            on_id = [] if id is None else self.responses(id)
            return on_id or without_id[count_before:]

        grace_s = self.settings.grace_s if grace_s is None else grace_s
        self.process.wait_until(lambda: bool(find_responses()), grace_s)
        return next(iter(find_responses()), None)

    def require_echo(self, text: str) -> None:
        """Call the tool `echo`. Raises Violation if it does not return `text`.

        Also raises the exceptions of call_tool().
        """
        before, after = self.server.echo_frame
        response = self.call_tool("echo", text=text)
        echoed = tool_result_text(response)
        if echoed is None:
            raise Violation(f"echo answered {excerpt(response)}")
        if echoed != before + text + after:
            raise Violation(f"echo of {excerpt(text)} gave back {excerpt(echoed)}")

    def is_serving(self) -> bool:
        """Send a ping, and return whether the server answers it within timeout_s of the settings.

        Reports a Deviation if that takes longer than served_s of the settings. Raises Crash if the
        process has ended.
        """
        message = self.make_ping()
        key: IdKey = (int, message["id"])
        stopwatch = process_stats.Stopwatch(self.process.pid)
        try:
            self.send(message)
        except Hang:
            return False
        if self.find_missing_responses([message["id"]]):
            if self.process.exit_code is not None:
                raise self.process.crash_or_hang("the next request was not answered")
            return False

        arrival = self.process.output.arrival_times[key]
        took_s = arrival - stopwatch.began
        # A server on a busy machine is not slow because it has waited for a CPU. Subtract this time
        # for late responses only, because reading it from /proc takes long.
        if took_s > self.settings.served_s:
            took_s = stopwatch.elapsed_s(arrival)
        if took_s > self.settings.served_s:
            allowed = f"{self.settings.served_s:g} s are allowed"
            self.report_deviation(f"the next request was served after {took_s:.1f} s; {allowed}")
        return True

    def require_service(self) -> None:
        """Send a ping, as is_serving() does, and raise Hang unless the server answers it.

        The response also shows that the server has read everything that was sent before.
        """
        if not self.is_serving():
            raise Hang(f"the next request was not answered in {self.settings.timeout_s:g} s")

    def wait_for_stragglers(self) -> None:
        """Read output for a short time, so that messages which should not arrive are noticed."""
        # Every case that calls this waits for all of the time, so it is short.
        self.process.read_for(min(0.05, self.settings.grace_s))

    def read_until_exit(self, seconds: float) -> None:
        """Read output for some seconds, or until the process has ended."""
        self.process.wait_until(lambda: self.process.exit_code is not None, seconds)

    # Opening and closing

    @property
    def start_grace_s(self) -> float:
        """Return how many seconds to wait for a response that may not come to a first message.

        This is longer than grace_s of the settings, because the process must start first.
        """
        # The opening before the first case shows how fast the server starts. The start may take
        # longer now, because several cases may run at the same time.
        return max(2.0, 4 * self.server.opening_s)

    def open(self, version: str = LEGACY, within_s: float | None = None) -> Message:
        """Open the session. Returns the result of initialize, or of server/discover in 2026-07-28.

        version: the revision to offer in `initialize`.
        within_s: how long to wait for the response; None for start_s of the settings.
        Raises a CheckFinding if the session cannot be opened.
        """
        if self.modern:
            response = self._send_opening(self.make_request("server/discover"), within_s)
        else:
            response = self._send_opening(self.make_initialize(version), within_s)
            if "result" in response:
                self.send(INITIALIZED)
        if "result" not in response:
            raise Violation(f"the opening was refused: {excerpt(response['error'])}")
        self.is_open = True
        return response["result"]

    def _send_opening(self, message: Message, within_s: float | None) -> Message:
        """Send the first request of the session, and return its response."""
        # After a Crash, let wait_for_response() raise one, because its text names the request.
        with suppress(Crash):
            self.send(message)
        within_s = self.settings.start_s if within_s is None else within_s
        return self.wait_for_response(message["id"], within_s)

    def close_stdin(self) -> None:
        """Close stdin. From then on, the process may end."""
        self.may_end = True
        self.process.close_stdin()

    def wait_for_exit(
        self,
        cause: str,
        failure: type[CheckFinding] = Hang,
        within_s: float | None = None,
    ) -> int:
        """Wait until the process and all processes that it started have ended. Sets may_end.

        cause: the reason why the process should end, for the text of the finding.
        failure: the class of the finding that is raised if one of the processes still runs.
        within_s: how long to wait; None for exit_s of the settings.
        Returns the exit code of the process.
        """
        self.may_end = True
        within_s = self.settings.exit_s if within_s is None else within_s
        if not self.process.wait_for_exit(within_s):
            raise failure(f"still running {within_s:g} s after {cause}")
        code = self.process.exit_code
        assert code is not None
        return code

    def require_exit(self, cause: str) -> int:
        """Wait as wait_for_exit() does, but raise Violation if only child processes still run.

        cause: the reason why the process should end, for the text of the finding.
        Returns the exit code of the process. Raises Hang if the process itself still runs.
        """
        try:
            return self.wait_for_exit(cause)
        except Hang:
            # The Hang may be due to the processes that the process has started.
            if self.process.exit_code is None:
                raise
            left = sorted(process_stats.find_group_pids(self.process.pid) or ())
            text = f"ended after {cause}, but left processes behind: {left}"
            raise Violation(text) from None


def tool_result_text(response: Message) -> str | None:
    """Return the text blocks of a tool's result as one text.

    Returns None for an error response, for a result with isError, and for a result without text.
    """
    result = as_object(response.get("result"))
    content = as_array(result.get("content")) if result and not result.get("isError") else None
    blocks = [
        block
        for element in content or ()
        if (block := as_object(element)) and block.get("type") == "text"
    ]
    texts = [text for block in blocks if isinstance(text := block.get("text"), str)]
    return "".join(texts) if texts else None
