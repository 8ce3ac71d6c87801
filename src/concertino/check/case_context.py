"""What a case works with: a child of its own, requests in the server's era, and waits that end.

Every id that is sent is on the books here (`due`), so that the oracle can ask afterwards whether each was answered once. An answer
that does not come is told apart: the process is gone (Crash), the next request is not served either (Hang), or it is (Wrong).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from msgspec import Struct

from concertino.check import process_stats
from concertino.check.case import CheckFinding, Crash, Deviation, Hang, Skipped, Violation
from concertino.check.child_process import ServerProcess
from concertino.check.messages import (
    CAPABILITIES,
    LEGACY,
    MODERN,
    VERSION,
    Id,
    Message,
    frame,
    list_of,
    object_of,
    shown,
)
from concertino.check.server_under_test import ServerUnderTest, ToolShape

__all__ = ["CaseContext", "ExpectedReplies", "modern_meta", "text_of"]


class ExpectedReplies(Struct):
    """How often an id may be answered, and what it was sent for."""

    what: str
    least: int = 1
    most: int = 1


def modern_meta(version: str = MODERN) -> Message:
    """The `_meta` of a 2026-07-28 request."""
    return {VERSION: version, CAPABILITIES: {}}


class CaseContext:
    """One case against one child. era: the one to speak, when not the subject's."""

    def __init__(self, subject: ServerUnderTest, child: ServerProcess, era: str = "") -> None:
        self.subject = subject
        self.settings = subject.settings
        self.child = child
        self.modern = (
            era or subject.era
        ) == "modern"  # how requests are written that do not say it
        self.opened = False
        self.ended = False  # the case ended the process, or asked it to: nothing is served any more
        self.findings: list[CheckFinding] = []
        self.due: dict[tuple[type, Id], ExpectedReplies] = {}
        self.garbage = 0  # lines sent whose answer may lack an id
        self.tolerated: Callable[[Id], bool] = lambda _: (
            False
        )  # ids that may be answered though they were never sent
        self.secret = ""  # what must not appear in an answer
        self._next = 1
        child.on_request = self._asked

    def _asked(self, message: Message) -> None:
        """The server asks us something: a ping is answered, anything else is refused; we declared no capability."""
        answer: Message = {"jsonrpc": "2.0", "id": message["id"]}
        if message["method"] == "ping":
            answer["result"] = {}
        else:
            answer["error"] = {"code": -32601, "message": "method not found"}
        if self.child.writing >= 0:
            self.child.write_now(
                frame(answer)
            )  # into an empty pipe; a server that asks and does not read goes without

    # Findings

    def note(self, finding: CheckFinding) -> None:
        """Something to report, and the case goes on."""
        self.findings.append(finding)

    @property
    def first_s(self) -> float:
        """How long a first answer may take that need not come at all: a few times what the first of all took."""
        return max(2.0, 4 * self.subject.opening_s)

    # Writing

    def id(self) -> int:
        """A new id."""
        self._next += 1
        return self._next

    def request(
        self,
        method: str,
        params: Message | None = None,
        id: Id | None = None,
        *,
        modern: bool | None = None,
    ) -> Message:
        """A request in the server's era; its id is on the books from now on."""
        id = self.id() if id is None else id
        members = dict(params or {})
        if self.modern if modern is None else modern:
            members["_meta"] = {**modern_meta(), **members.get("_meta", {})}
        self.expect(id, method)
        message: Message = {"jsonrpc": "2.0", "id": id, "method": method}
        if members:
            message["params"] = members
        return message

    def expect(self, id: Id, what: str, least: int = 1, most: int = 1) -> None:
        """Put an id on the books: it is to be answered so often."""
        self.due[type(id), id] = ExpectedReplies(what, least, most)

    def call(self, name: str, **arguments: object) -> Message:
        """A tools/call of one of subject.TOOLS."""
        return self.request("tools/call", self.tool(name).params(**arguments))

    def tool(self, name: str) -> ToolShape:
        """One of subject.TOOLS. Raises Skipped when the server has none; Case.needs says so before a child is started."""
        found = self.subject.tools.get(name)
        if found is None:
            raise Skipped(f"the server has no tool {name}")
        return found

    def light(self, id: Id | None = None, params: Message | None = None) -> Message:
        """The lightest request that every server must serve: `ping`, or server/discover, which took its place."""
        return self.request("server/discover" if self.modern else "ping", params, id)

    def send(self, *messages: Message) -> None:
        """Write messages, one line each, in one go."""
        self.write(b"".join(map(frame, messages)))

    def write(self, data: bytes, within_s: float | None = None) -> None:
        """Write bytes. Raises Hang or Crash when they are not taken in time."""
        self.child.write(data, self.settings.timeout_s if within_s is None else within_s)

    def write_garbage(self, data: bytes, lines: int = 1, within_s: float | None = None) -> None:
        """Write lines that are no messages: each may be answered once without an id."""
        self.garbage += lines
        self.write(data, within_s)

    def cancel(self, id: object, *, counts: bool = True) -> Message:
        """A cancellation. counts: the id need not be answered from now on."""
        if counts and isinstance(id, int | str) and (type(id), id) in self.due:
            self.due[type(id), id].least = 0
        return {
            "jsonrpc": "2.0",
            "method": "notifications/cancelled",
            "params": {"requestId": id, "reason": "check"},
        }

    # Reading

    def answers(self, id: Id) -> list[Message]:
        """Every answer with this id so far; equal in type too."""
        return self.child.answers.get((type(id), id), [])

    def come(self, ids: Sequence[Id], within_s: float | None = None) -> list[Id]:
        """Wait until all of these are answered; those that are not when time is up."""
        within_s = self.settings.timeout_s if within_s is None else within_s
        missing = {(type(id), id) for id in ids}

        def none_missing() -> bool:
            missing.difference_update([each for each in missing if each in self.child.answers])
            return not missing

        answers = self.child.answers
        left = len(ids)
        seen = -1

        def all_there() -> bool:
            nonlocal seen, left
            if len(answers) != seen:  # only looked through when something came
                seen = len(answers)
                none_missing()
                left = len(missing)
            return left == 0

        self.child.pump(all_there, within_s)
        return [id for _, id in missing]

    def answer(self, id: Id, within_s: float | None = None) -> Message:
        """The answer to a request. Raises Crash, Hang or Wrong when none comes."""
        self.all_answered([id], within_s)
        return self.answers(id)[0]

    def all_answered(self, ids: Sequence[Id], within_s: float | None = None) -> None:
        """Wait for the answers to all of these. Raises Crash, Hang or Wrong when one does not come."""
        within_s = self.settings.timeout_s if within_s is None else within_s
        missing = self.come(ids, within_s)
        if not missing:
            return
        what = self.due[type(missing[0]), missing[0]].what
        one = f"no answer to {what} (id {shown(missing[0])})"
        text = (
            one
            if len(missing) == 1
            else f"{len(missing)} of {len(ids)} requests not answered, the first: {one}"
        )
        if self.child.exit is not None or self.child.eof:
            raise self.child.gone(text)
        text += f" in {within_s:g} s"
        for id in missing:
            self.due[type(id), id].least = 0  # said once
        if self.opened and self.served():
            raise Violation(text + "; the next request was served")
        raise Hang(text)

    def must_succeed(self, ids: Sequence[Id], within_s: float | None = None) -> None:
        """Wait for the answers to all of these; none may be an error. Raises Crash, Hang or Wrong."""
        self.all_answered(ids, within_s)
        for id in ids:
            answer = self.answers(id)[0]
            if "error" in answer:
                raise Violation(f"{self.due[type(id), id].what} was refused: {shown(answer)}")

    def ask(
        self,
        method: str,
        params: Message | None = None,
        id: Id | None = None,
        *,
        modern: bool | None = None,
    ) -> Message:
        """Send a request and return its answer."""
        message = self.request(method, params, id, modern=modern)
        self.send(message)
        return self.answer(message["id"])

    def use(self, name: str, **arguments: object) -> Message:
        """Call one of subject.TOOLS and return the answer."""
        message = self.call(name, **arguments)
        self.send(message)
        return self.answer(message["id"])

    def echoed(self, text: str, within_s: float | None = None) -> None:
        """Have a text echoed. Raises Wrong when it comes back as another."""
        before, after = self.subject.around
        message = self.call("echo", text=text)
        self.write(frame(message), within_s)
        answer = self.answer(message["id"], within_s)
        came = text_of(answer)
        if came is None:
            raise Violation(f"echo answered {shown(answer)}")
        if came != before + text + after:
            raise Violation(f"echo of {shown(text)} gave back {shown(came)}")

    def served(self, within_s: float | None = None) -> bool:
        """Whether the next request is answered. Notes when that took longer than it should. Raises Crash when nobody is there."""
        within_s = self.settings.timeout_s if within_s is None else within_s
        message = self.light()
        key: tuple[type, Id] = (int, message["id"])
        queued = process_stats.queued_s(self.child.pid)
        began = time.monotonic()
        try:
            self.send(message)
        except Hang:
            self.due.pop(key)
            return False
        if self.come([message["id"]], within_s):
            self.due.pop(key)
            if self.child.exit is not None:
                raise self.child.gone("the next request was not answered")
            return False
        took = self.child.arrived[key] - began
        if took > self.settings.served_s:
            took -= process_stats.queued_s(self.child.pid) - queued
        if took > self.settings.served_s:
            self.note(
                Deviation(
                    f"the next request was served after {took:.1f} s; {self.settings.served_s:g} s are allowed"
                )
            )
        return True

    def must_serve(self) -> None:
        """Raises Hang when the next request is not served."""
        if not self.served():
            raise Hang(f"the next request was not answered in {self.settings.timeout_s:g} s")

    def settle(self) -> None:
        """Give what may still come a moment to come."""
        self.child.pump(lambda: False, min(0.05, self.settings.grace_s))

    def spend(self, seconds: float) -> None:
        """Let time pass, reading what comes; ends early when the process does."""
        self.child.pump(lambda: self.child.exit is not None, seconds)

    # The handshake

    def open(self, version: str = LEGACY, within_s: float | None = None) -> Message:
        """The handshake of a legacy server, or the discovery of a modern one. Returns the result; raises when there is none."""
        if self.modern:
            answer = self._opening(self.request("server/discover"), within_s)
        else:
            answer = self._opening(self.initialize(version), within_s)
            if "result" in answer:
                self.send({"jsonrpc": "2.0", "method": "notifications/initialized"})
        self.opened = True
        if "result" not in answer:
            raise Violation(f"the opening was refused: {shown(answer['error'])}")
        return answer["result"]

    def initialize(self, version: str = LEGACY, **more: Any) -> Message:
        """An initialize request."""
        client = {"name": "concertino-check", "version": "1"}
        params = {"protocolVersion": version, "capabilities": {}, "clientInfo": client, **more}
        return self.request("initialize", params, modern=False)

    def _opening(self, message: Message, within_s: float | None) -> Message:
        try:
            self.send(message)
        except Crash:
            if self.child.exit is None:
                raise
        return self.answer(message["id"], self.settings.start_s if within_s is None else within_s)

    # The end

    def end_of_input(self) -> None:
        """Close stdin: from now on the process may end."""
        self.ended = True
        self.child.close_stdin()

    def must_end(self, within_s: float, why: str) -> int:
        """Wait for the end of the process and of all it started; the exit code. Raises Hang."""
        self.ended = True
        if not self.child.wait(within_s):
            if self.child.exit is None:
                raise Hang(f"still running {within_s:g} s after {why}")
            raise Violation(
                f"ended after {why}, but left processes behind: {sorted(process_stats.members(self.child.pid) or ())}"
            )
        code = self.child.exit
        assert code is not None
        return code


def text_of(answer: Message) -> str | None:
    """The text of a tool's result that is no error, its text blocks put together; None if it has none."""
    result = object_of(answer.get("result"))
    content = list_of(result.get("content")) if result and not result.get("isError") else None
    blocks = [
        block
        for each in content or ()
        if (block := object_of(each)) and block.get("type") == "text"
    ]
    texts = [text for each in blocks if isinstance(text := each.get("text"), str)]
    return "".join(texts) if texts else None
