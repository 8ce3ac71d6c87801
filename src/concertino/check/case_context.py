"""What a case works with: one server process, requests in the server's era, and bounded waits.

Every request is registered here together with the number of responses that it may get, so that
invariants.py can check afterwards that each was answered exactly once. A missing response becomes
one of three findings: Crash if the process is gone, Hang if it does not serve the next request
either, and Violation if it does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from msgspec import Struct

from concertino.check import process_stats
from concertino.check.findings import CheckFinding, Crash, Deviation, Hang, SkipCase, Violation
from concertino.check.messages import (
    CAPABILITIES,
    LEGACY,
    MODERN,
    VERSION,
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


class ExpectedReplies(Struct):
    """How many responses an id may get: least and most. subject: the purpose of its request."""

    subject: str
    least: int = 1
    most: int = 1


class CaseContext:
    """One case and its server process.

    era: the era to speak if it is not the server's preferred one. opened: the session is open.
    ended: the case ended the process, or asked it to end, so it need not serve requests any more.
    expected: the expected responses to each id. malformed_lines: the number of lines sent that may
    be answered without an id. allows_unknown_id: returns whether a response to an id is acceptable
    although the id was never sent.
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
        self.opened = False
        self.ended = False
        self.findings: list[CheckFinding] = []
        self.expected: dict[IdKey, ExpectedReplies] = {}
        self.malformed_lines = 0
        self.allows_unknown_id: Callable[[Id], bool] = lambda _: False
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
        # Do not wait for room in the pipe: a server that asks and does not read gets no response.
        if self.process.ends.stdin >= 0:
            self.process.write_available(encode_line(response))

    # Findings

    def report(self, finding: CheckFinding) -> None:
        """Record a finding and continue the case."""
        self.findings.append(finding)

    def report_deviation(self, text: str) -> None:
        """Record that a policy is not met, and continue the case."""
        self.report(Deviation(text))

    @property
    def start_grace_s(self) -> float:
        """Return how long to wait for a first response that may never come, in seconds.

        A few times as long as the first opening of the server took.
        """
        return max(2.0, 4 * self.server.opening_s)

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
        """Return a request in the server's era, and expect one response to it.

        id: a new one by default. modern: overrides the era.
        """
        id = self.new_id() if id is None else id
        members = dict(params or {})
        if self.modern if modern is None else modern:
            meta: Message = {VERSION: MODERN, CAPABILITIES: {}}
            members["_meta"] = {**meta, **members.get("_meta", {})}
        self.expect(id, method)
        message: Message = {"jsonrpc": "2.0", "id": id, "method": method}
        if members:
            message["params"] = members
        return message

    def make_call(self, tool: str, **arguments: object) -> Message:
        """Return a tools/call request. tool: one of server_under_test.TOOLS."""
        return self.make_request("tools/call", self.find_tool(tool).make_params(**arguments))

    def make_ping(self, id: Id | None = None, params: Message | None = None) -> Message:
        """Return the cheapest request that every server must serve.

        This is `ping`, or server/discover in 2026-07-28, which has no ping.
        """
        return self.make_request("server/discover" if self.modern else "ping", params, id)

    def make_listing(self) -> Message:
        """Return a tools/list request, or a ping for a server without tools."""
        return self.make_request("tools/list") if self.server.tool_names else self.make_ping()

    def make_initialize(self, version: str = LEGACY, **more: Any) -> Message:
        """Return an initialize request. more: further members of its params."""
        client = {"name": "concertino-check", "version": "1"}
        params = {"protocolVersion": version, "capabilities": {}, "clientInfo": client, **more}
        return self.make_request("initialize", params, modern=False)

    def make_cancellation(self, id: object, *, excuses_response: bool = True) -> Message:
        """Return a notifications/cancelled. excuses_response: the id need not be answered now."""
        if excuses_response and isinstance(id, int | str) and (type(id), id) in self.expected:
            self.make_optional(id)
        return {
            "jsonrpc": "2.0",
            "method": "notifications/cancelled",
            "params": {"requestId": id, "reason": "check"},
        }

    def find_tool(self, name: str) -> CheckTool:
        """Return one of server_under_test.TOOLS. Raises SkipCase when the server has none."""
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
        """Register how many responses an id may get. subject: the purpose of its request."""
        self.expected[type(id), id] = ExpectedReplies(subject, least, most)

    def make_optional(self, id: Id) -> None:
        """Accept that a registered id gets no response."""
        self.expected[type(id), id].least = 0

    # Writing

    def send(self, *messages: Message) -> None:
        """Write messages, one line each, in one write. Raises as write() does."""
        self.write(b"".join(map(encode_line, messages)))

    def write(self, data: bytes, within_s: float | None = None) -> None:
        """Write bytes. Raises Hang or Crash when the server does not read them in time."""
        self.process.write(data, self.settings.timeout_s if within_s is None else within_s)

    def write_malformed_lines(
        self,
        data: bytes,
        lines: int = 1,
        within_s: float | None = None,
    ) -> None:
        """Write malformed lines. The server may answer each of them once, without an id."""
        self.malformed_lines += lines
        self.write(data, within_s)

    # Reading

    def responses(self, id: Id) -> list[Message]:
        """Return every response to an id so far. The type of the id must be equal too."""
        return self.process.output.responses.get((type(id), id), [])

    def wait_for_missing(self, ids: Sequence[Id], within_s: float | None = None) -> list[Id]:
        """Wait for a response to each id, and return the ids without one when the time is up."""
        within_s = self.settings.timeout_s if within_s is None else within_s
        responses = self.process.output.responses
        missing: set[IdKey] = {(type(id), id) for id in ids}
        seen = -1

        def all_came() -> bool:
            nonlocal seen
            # Called after each event, with thousands of ids: look only if something new came.
            if len(responses) != seen:
                seen = len(responses)
                missing.difference_update([key for key in missing if key in responses])
            return not missing

        self.process.wait_until(all_came, within_s)
        return [id for _, id in missing]

    def wait_for_response(self, id: Id, within_s: float | None = None) -> Message:
        """Return the first response to a request. Raises as wait_for_responses() does."""
        self.wait_for_responses([id], within_s)
        return self.responses(id)[0]

    def wait_for_responses(self, ids: Sequence[Id], within_s: float | None = None) -> None:
        """Wait for a response to each id. Raises Crash, Hang or Violation when one is missing."""
        within_s = self.settings.timeout_s if within_s is None else within_s
        missing = self.wait_for_missing(ids, within_s)
        if not missing:
            return

        subject = self.expected[type(missing[0]), missing[0]].subject
        text = f"no answer to {subject} (id {excerpt(missing[0])})"
        if len(missing) > 1:
            text = f"{len(missing)} of {len(ids)} requests not answered, the first: {text}"
        if self.process.exit_code is not None or self.process.eof:
            raise self.process.crash_or_hang(text)

        text += f" in {within_s:g} s"
        # The invariants must not report the same responses again.
        for id in missing:
            self.make_optional(id)
        if self.opened and self.is_serving():
            raise Violation(text + "; the next request was served")
        raise Hang(text)

    def require_results(self, ids: Sequence[Id], within_s: float | None = None) -> None:
        """Wait for a result to each id. Raises Crash, Hang or Violation, the last for an error."""
        self.wait_for_responses(ids, within_s)
        for id in ids:
            response = self.responses(id)[0]
            if "error" in response:
                subject = self.expected[type(id), id].subject
                raise Violation(f"{subject} was refused: {excerpt(response)}")

    def exchange(self, *messages: Message, within_s: float | None = None) -> list[Message]:
        """Send messages and return the first response to each request among them.

        Raises as wait_for_responses() does.
        """
        self.send(*messages)
        ids = [message["id"] for message in messages if "id" in message]
        self.wait_for_responses(ids, within_s)
        return [self.responses(id)[0] for id in ids]

    def require_success(self, *requests: Message, within_s: float | None = None) -> None:
        """Send requests and wait for a result to each. Raises as require_results() does."""
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
        """Send a request and return its response. Raises as wait_for_responses() does."""
        return self.exchange(self.make_request(method, params, id, modern=modern))[0]

    def call_tool(self, name: str, **arguments: object) -> Message:
        """Call one of server_under_test.TOOLS and return the response."""
        return self.exchange(self.make_call(name, **arguments))[0]

    def probe_line(
        self,
        line: bytes,
        id: Id | None = None,
        *,
        within_s: float | None = None,
        grace_s: float | None = None,
    ) -> Message | None:
        """Write a line that the server may refuse, require service, and return the response.

        id: of the request in the line, registered before; None if it has none. A refusal may come
        without an id. within_s: the longest wait until the server reads the line. grace_s: the
        longest wait for the response; None is returned when there is none by then.
        """
        without_id = self.process.output.responses_without_id
        count_before = len(without_id)
        if id is not None:
            self.make_optional(id)
        self.write_malformed_lines(line, within_s=within_s)
        self.require_service()

        def find_responses() -> list[Message]:
            # A response on the id tells more than one without.
            on_id = [] if id is None else self.responses(id)
            return on_id or without_id[count_before:]

        grace_s = self.settings.grace_s if grace_s is None else grace_s
        self.process.wait_until(lambda: bool(find_responses()), grace_s)
        return next(iter(find_responses()), None)

    def require_echo(self, text: str) -> None:
        """Call the echo tool. Raises Violation when it returns another text."""
        before, after = self.server.echo_frame
        response = self.call_tool("echo", text=text)
        echoed = tool_result_text(response)
        if echoed is None:
            raise Violation(f"echo answered {excerpt(response)}")
        if echoed != before + text + after:
            raise Violation(f"echo of {excerpt(text)} gave back {excerpt(echoed)}")

    def is_serving(self) -> bool:
        """Send one more request and return whether it is answered.

        Reports a Deviation if the response took too long. Raises Crash when the process is gone.
        """
        message = self.make_ping()
        key: IdKey = (int, message["id"])
        watch = process_stats.Stopwatch(self.process.pid)
        try:
            self.send(message)
        except Hang:
            self.expected.pop(key)
            return False
        if self.wait_for_missing([message["id"]]):
            self.expected.pop(key)
            if self.process.exit_code is not None:
                raise self.process.crash_or_hang("the next request was not answered")
            return False

        arrival = self.process.output.arrival_times[key]
        took_s = arrival - watch.began
        # Reading /proc costs more than the request, so only a late response is corrected.
        if took_s > self.settings.served_s:
            took_s = watch.elapsed_s(arrival)
        if took_s > self.settings.served_s:
            allowed = f"{self.settings.served_s:g} s are allowed"
            self.report_deviation(f"the next request was served after {took_s:.1f} s; {allowed}")
        return True

    def require_service(self) -> None:
        """Raise Hang unless the server answers one more request."""
        if not self.is_serving():
            raise Hang(f"the next request was not answered in {self.settings.timeout_s:g} s")

    def wait_for_stragglers(self) -> None:
        """Give unexpected messages a moment to arrive."""
        self.process.read_for(min(0.05, self.settings.grace_s))

    def read_for(self, seconds: float) -> None:
        """Let time pass and read output. Returns early when the process ends."""
        self.process.wait_until(lambda: self.process.exit_code is not None, seconds)

    # Opening and closing

    def open(self, version: str = LEGACY, within_s: float | None = None) -> Message:
        """Open the session and return the result of initialize or server/discover.

        version: the revision to offer to a legacy server. Raises a CheckFinding on failure.
        """
        if self.modern:
            response = self._send_opening(self.make_request("server/discover"), within_s)
        else:
            response = self._send_opening(self.make_initialize(version), within_s)
            if "result" in response:
                self.send(INITIALIZED)
        self.opened = True
        if "result" not in response:
            raise Violation(f"the opening was refused: {excerpt(response['error'])}")
        return response["result"]

    def _send_opening(self, message: Message, within_s: float | None) -> Message:
        try:
            self.send(message)
        except Crash:
            # If it ended, wait_for_response() names the request in its report.
            if self.process.exit_code is None:
                raise
        within_s = self.settings.start_s if within_s is None else within_s
        return self.wait_for_response(message["id"], within_s)

    def close_stdin(self) -> None:
        """Send the end of input, after which the process may end."""
        self.ended = True
        self.process.close_stdin()

    def wait_for_exit(
        self,
        cause: str,
        failure: type[CheckFinding] = Hang,
        within_s: float | None = None,
    ) -> int:
        """Wait for the end of the process and all it started, and return the exit code.

        Raises `failure` when one of them still runs. within_s: exit_s of the settings by default.
        """
        self.ended = True
        within_s = self.settings.exit_s if within_s is None else within_s
        if not self.process.wait_for_exit(within_s):
            raise failure(f"still running {within_s:g} s after {cause}")
        code = self.process.exit_code
        assert code is not None
        return code

    def require_exit(self, cause: str) -> int:
        """Wait for the end of the process and return its exit code.

        Raises Hang when it still runs, and Violation when it left other processes behind.
        """
        try:
            return self.wait_for_exit(cause)
        except Hang:
            if self.process.exit_code is None:
                raise
            left = sorted(process_stats.find_group_pids(self.process.pid) or ())
            text = f"ended after {cause}, but left processes behind: {left}"
            raise Violation(text) from None


def tool_result_text(response: Message) -> str | None:
    """Return the joined text blocks of a tool's result. None for an error, or without text."""
    result = as_object(response.get("result"))
    content = as_array(result.get("content")) if result and not result.get("isError") else None
    blocks = [
        block
        for element in content or ()
        if (block := as_object(element)) and block.get("type") == "text"
    ]
    texts = [text for block in blocks if isinstance(text := block.get("text"), str)]
    return "".join(texts) if texts else None
