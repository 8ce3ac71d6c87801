"""A whole Session, fed with anything: each request gets exactly one answer, or none once cancelled;
every line sent is JSON-RPC.

Input: a byte of switches, four that say what the backend does with each call in turn, then steps,
one a line. The first byte of a step says what happens (`_CONTROLS`, `_TEMPLATES`); a line that
begins like JSON is a frame as it is. What the frames mean is asked of jsonrpc.decode, which
messages.py holds against `json`; who is owed an answer is counted here.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from typing import Any, Protocol, cast

from msgspec import UNSET, DecodeError, Raw, Struct
from msgspec.json import Decoder, encode

from concertino.jsonrpc.limits import Limits
from concertino.jsonrpc.messages import Id, InvalidMessage, Message, decode, decode_batch
from concertino.protocol.call import ServerFeatures
from concertino.protocol.request_profile import SessionRequest
from concertino.protocol.session import Session
from concertino.types.results import CallToolResult, Implementation, TextContent

__all__ = ["MAX_BYTES", "TOKENS", "Onlooker", "one", "play"]

MAX_BYTES = 400
REVISIONS = (b"2024-11-05", b"2025-03-26", b"2025-06-18", b"2025-11-25", b"2026-07-28")
META = (
    b'"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}'
    b',"io.modelcontextprotocol/clientInfo":{"name":"f","version":"1"}'
)
TOKENS = (
    *(
        b"\nI1",
        b"\nI3",
        b"\ni",
        b'\nc"a"',
        b"\nc1",
        b"\nm2",
        b'\nm"b"',
        b"\nx1",
        b'\nx"a"',
        b"\nfa",
        b"\nh",
        b"\nw",
        b"\nb",
    ),
    *(
        b"\x1fc1",
        b"\x1fp2",
        b"\x1fx1",
        b"\nq",
        b"\nr1",
        b"\ny",
        b"\nt",
        b"\nz",
        b"\nga",
        b"\ngb",
        b"\nv",
        b'\nl"debug"',
    ),
    *(
        b'"progressToken":',
        b'"io.modelcontextprotocol/',
        b'"_meta":{',
        b'"io.modelcontextprotocol/logLevel":"info"',
        b'"requestId":',
    ),
    *(
        b'{"jsonrpc":"2.0","id":1,"method":"',
        b'"params":{',
        b"tools/call",
        b"tools/list",
        b"server/discover",
        b"notifications/",
    ),
)
DEFAULT = Limits()
TIGHT = Limits(
    max_message_bytes=700,
    high_water_bytes=600,
    low_water_bytes=200,
    max_in_flight=2,
    max_in_flight_bytes=500,
    max_waiting=2,
    max_waiting_bytes=400,
    max_batch=4,
    garbage_answers_per_s=3,
)
OFFER = ServerFeatures(Implementation("fuzzed", "1"), "Use it.", True, True, True, False, True)
TEXT = CallToolResult([TextContent("done")])
INDENTED = Raw(b'{"content":[],\n"x":[1,\r\n2]}')
LONG = CallToolResult([TextContent("long " * 200)])
CALLS = (
    b"tools/call",
    b"tools/list",
    b"prompts/get",
    b"resources/read",
    b"completion/complete",
    b"no/such",
)


class Onlooker(Protocol):
    """Somebody else who sees the wire, and raises when it should not look so: tests/wire.py holds
    it against the schemas.
    """

    def on_sent(self, line: bytes) -> None:
        """A line from the client."""
        ...

    def on_received(self, line: bytes) -> Any:
        """A line from the server."""
        ...


def one(data: bytes) -> None:
    """See the head of this file."""
    play(data, None)


def play(data: bytes, onlooker: Onlooker | None) -> None:
    """The same, with somebody else looking on."""
    if len(data) < 5:
        return
    rig = _Rig(data[0], data[1:5], onlooker)
    for line in data[5:].split(b"\n")[:48]:
        rig.step(line)
    rig.end()


class _Cancelled(Struct, rename="camel"):
    request_id: Id
    reason: str = ""


_cancelled = Decoder(_Cancelled).decode


class _Rig:
    """The session, its backend, its transport and the count of who is owed what."""

    def __init__(self, switches: int, script: bytes, onlooker: Onlooker | None) -> None:
        self.switches = switches
        self.script = script
        self.onlooker = onlooker
        self.turn = 0
        self.now = 0.0
        self.holding = False
        self.held = 0
        self.calls: list[SessionRequest] = []  # with the backend, unanswered
        self.given_up: list[SessionRequest] = []  # cancelled, but the backend does not know yet
        self.owed: Counter[object] = (
            Counter()
        )  # answers that must come, by type and value of the id
        self.perhaps: Counter[object] = (
            Counter()
        )  # ... that may come: whether the cancel was in time cannot be seen from outside
        self.batched: set[object] = (
            set()
        )  # ids that were in a batch: their answers may wait for others
        self.garbage = 0  # answers without an id that must come, or be suppressed and counted
        self.negotiated: Any = ""
        self.asked: list[int] = []  # how often each request of ours was told how it ended
        self.abandoned = 0
        self.closed = False
        self.limits = TIGHT if switches & 1 else DEFAULT
        self.session = Session(
            lambda: OFFER, self._send, self._start, self.limits, lambda: self.now
        )
        self.peer = self.session.peer

    # What happens

    def step(self, line: bytes) -> None:
        """One line of the input."""
        letter, rest = _letter(line), line[1:]
        if (control := _CONTROLS.get(letter)) is not None:
            control(self, rest[0] if rest else 0)
        else:
            frame = self._frame(line)
            self._foresee(frame)
            if self.onlooker is not None:
                self.onlooker.on_sent(frame)
            self.session.receive(frame)
        self.session.admit()
        assert len(self.peer.waiting) <= self.limits.max_waiting, "more calls wait than allowed"

    def _frame(self, line: bytes) -> bytes:
        letter, rest = _letter(line), line[1:]
        if letter == b"b":
            return b"[%b]" % b",".join(
                self._frame(part) for part in rest.split(b"\x1f") if _letter(part) != b"b"
            )
        if letter == b"~" and len(rest) > 2:  # a piece put into, or written over, another frame
            piece, _, other = rest[2:].partition(b"\x1f")
            frame = self._frame(other) if _letter(other) not in (b"~", b"b") else other
            place = int.from_bytes(rest[:2], "big") % (len(frame) + 1)
            return frame[:place] + piece + frame[place + (rest[0] & 7) :]
        template = _TEMPLATES.get(letter)
        return line if template is None else template(rest)

    def _start(self, incoming: SessionRequest) -> None:
        """The backend gets a call."""
        assert incoming.open, "a call that is answered or cancelled was started"
        assert not self.closed, "a call was started after the end"
        limits, peer = self.limits, self.peer
        assert peer.ready, "a call was started before the backend was"
        assert peer.buffered_bytes < limits.high_water_bytes, (
            "a call was started while nobody reads the answers"
        )
        assert len(peer.running) < limits.max_in_flight, "more calls in flight than allowed"
        kind = self.script[self.turn % 4] & 15
        self.turn += 1
        self.calls.append(incoming)
        if kind & 8:
            self.session.notifications.progress(incoming, 0.5, 1.0, "half")
        if kind & 7 < 5:
            self._finish(incoming, kind & 7)
        else:
            incoming.on_cancel = lambda reason: self._stopped(incoming)
            self.peer.add_running(incoming)

    def _stopped(self, incoming: SessionRequest) -> None:
        self.given_up.append(incoming)
        self.calls.remove(incoming)

    def _finish(self, incoming: SessionRequest, kind: int) -> None:
        """The backend answers; a call that was cancelled too, as happens when both cross."""
        if incoming in self.calls:
            self.calls.remove(incoming)
        if kind == 0:
            self.session.respond(incoming, TEXT)
        elif kind == 1:
            self.session.respond(incoming, CallToolResult([], {"no": object()}))
        elif kind == 2:
            self.session.respond(incoming, INDENTED)
        elif kind == 3:
            self.session.respond(incoming, LONG)
        else:
            self.peer.fail(incoming, -32000, "failed", {"why": "it had to"})
        assert not incoming.open, "answered, and open"
        before = self.owed.total()
        self.session.respond(
            incoming, TEXT
        )  # a second answer, and what comes too late, is not sent
        self.session.notifications.progress(incoming, 2.0, None, None)
        self.session.notifications.log(incoming, "error", "late", None)
        assert self.owed.total() == before

    def finish(self, which: int) -> None:
        """The backend answers one of its calls; perhaps one that was cancelled meanwhile."""
        both = self.given_up if which & 1 and self.given_up else self.calls
        if both:
            incoming = both[(which >> 4) % len(both)]
            self._finish(incoming, (which >> 1) % 5)
            if incoming in self.given_up:
                self.given_up.remove(incoming)

    def tell(self, which: int) -> None:
        """The backend says how far it is, or logs."""
        both = self.given_up if which & 1 and self.given_up else self.calls
        if both:
            incoming = both[(which >> 4) % len(both)]
            if which & 2:
                self.session.notifications.log(incoming, "warning", {"w": which}, "fuzz")
            else:
                self.session.notifications.progress(
                    incoming, float(which), 300.0, "so far" if which & 4 else None
                )

    def hold(self, _: int) -> None:
        """The client stops reading, or has read everything."""
        self.holding = not self.holding
        if not self.holding:
            self.drain(0)

    def drain(self, which: int) -> None:
        """The client reads some, or all."""
        self.held = self.held // 2 if which & 1 else 0
        self.peer.on_drain(self.held)

    def tick(self, which: int) -> None:
        """Time passes."""
        self.now += (which & 15) / 4
        self.peer.expire(self.now)

    def ready(self, _: int) -> None:
        """The backend starts, or starts again."""
        self.peer.ready = not self.peer.ready

    def ask(self, which: int) -> None:
        """We ask the client."""
        index = len(self.asked)
        self.asked.append(0)

        def done(outcome: Raw | Exception) -> None:
            self.asked[index] += 1
            assert self.asked[index] == 1, "told twice how a request of ours ended"

        deadline = self.now + (which & 7) / 4 if which & 8 else None
        outgoing = self.peer.request("ping", b"{}", done, deadline)
        if which & 16:
            self.peer.abandon(outgoing, "no longer wanted")
            self.asked[index] = 1

    def change(self, which: int) -> None:
        """What is offered changes."""
        self.session.report_change(("tools", "prompts", "resources", "completions")[which & 3])

    def on_frame_too_long(self, _: int) -> None:
        """A frame passed the limit."""
        self.garbage += 1
        self.peer.on_frame_too_long(1_000_000)

    def end(self) -> None:
        """Everything that is open comes to its end; then nothing may be owed, and nothing kept."""
        if self.switches & 2:  # the client leaves
            left = self.peer.close()
            self.closed = True
            assert all(not incoming.open for incoming in left)
            assert all(incoming in left for incoming in self.calls), (
                "a call was forgotten at the end"
            )
            for incoming in [*self.calls, *self.given_up]:
                self._finish(incoming, 0)
        else:
            self.holding = False
            self.peer.ready = True
            for _ in range(64):
                self.drain(0)
                self.session.admit()
                for incoming in [*self.calls, *self.given_up]:
                    self._finish(incoming, 0)
                self.given_up.clear()
                if not self.calls and not self.peer.waiting:
                    break
            assert not +self.owed, f"never answered: {+self.owed}"
            assert self.garbage == self.peer.invalid_input.suppressed, (
                f"{self.garbage} answers to garbage missing"
            )
            assert self.peer.close() == []
        peer = self.peer
        assert not peer.running
        assert not peer.waiting
        assert not peer.outgoing
        assert peer.waiting.size == peer.running.size == 0  # pyright: ignore[reportPrivateUsage]  # counts must not drift
        assert peer.outgoing.next_deadline is None
        assert all(told == 1 for told in self.asked), f"a request of ours hangs: {self.asked}"

    # Who is owed what

    def _foresee(self, frame: bytes) -> None:
        """Count what a frame must bring about, before it is given to the session."""
        found = decode(frame)
        if (
            type(found) is InvalidMessage
            and found.id is UNSET
            and (elements := decode_batch(frame)) is not None
        ):
            if self.negotiated != "2025-03-26" or not 0 < len(elements) <= self.limits.max_batch:
                self.garbage += 1
            else:
                for element in elements:
                    self._foresee_one(decode(element), batch=True)
        else:
            self._foresee_one(found, batch=False)

    def _foresee_one(self, found: Message | InvalidMessage, *, batch: bool) -> None:
        if isinstance(found, InvalidMessage):
            if found.code == 0:
                return
            if found.id is UNSET:
                self.garbage += 1
                return
        elif found.method is UNSET:
            return
        if found.id is not UNSET:
            key = _key(found.id)
            self.owed[key] += 1
            if batch:
                self.batched.add(key)
        elif isinstance(found, Message) and found.method == "notifications/cancelled":
            try:
                cancelled = _cancelled(encode(found.params))
            except DecodeError:
                return
            key = _key(cancelled.request_id)
            if (
                key in self.batched
            ):  # it may have been answered, and the answer wait for those of the others
                self.perhaps[key] += self.owed.pop(key, 0)
            else:
                self.owed.pop(key, None)

    def _send(self, frame: bytes, about: Id | None) -> int:
        """The transport gets a line."""
        assert not self.closed, f"sent after the end: {frame!r}"
        if self.onlooker is not None:
            self.onlooker.on_received(frame)
        assert b"\n" not in frame, f"a newline inside a frame: {frame!r}"
        value: Any = _one_json(str(frame, "utf-8"))
        if isinstance(value, list):
            assert self.negotiated == "2025-03-26", f"an array for {self.negotiated}"
            assert value, "an empty batch"
            for item in cast("list[dict[str, Any]]", value):
                assert "method" not in item, f"no answer, in a batch: {frame!r}"
                self._sent(item, None)
        else:
            self._sent(value, about)
        if self.holding:
            self.held += len(frame)
        return self.held

    def _sent(self, value: dict[str, Any], about: Id | None) -> None:
        assert value["jsonrpc"] == "2.0"
        if "method" in value:
            assert type(value["params"]) is dict
            assert value.keys() <= {"jsonrpc", "id", "method", "params"}
            if value["method"] in ("notifications/progress", "notifications/message"):
                assert about is not None
                key = _key(about)
                assert self.owed[key] + self.perhaps[key] > 0, f"after the answer: {value}"
            return
        id = value.get("id")
        assert value.keys() | {"id"} in (
            {"jsonrpc", "id", "result"},
            {"jsonrpc", "id", "error"},
        ), f"no message: {value}"
        if "error" in value:
            assert type(value["error"]["code"]) is int
            assert type(value["error"]["message"]) is str
        else:
            assert type(value["result"]) is dict
        if id is None:
            assert "error" in value
            self.garbage -= 1
            assert self.garbage >= 0, f"nobody sent garbage: {value}"
            return
        key = _key(id)
        if self.owed[key] > 0:
            self.owed[key] -= 1
        else:
            assert self.perhaps[key] > 0, f"nobody waits for this: {value}"
            self.perhaps[key] -= 1
        if about is not None:
            assert _key(about) == key
        if "result" in value and "protocolVersion" in value["result"]:
            self.negotiated = value["result"]["protocolVersion"]


def _key(id: object) -> object:
    return (type(id).__name__, id)


def _refuse(constant: str) -> object:
    raise AssertionError(f"{constant} was sent")


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    assert len(members) == len(pairs), "a member was sent twice"
    return members


_one_json = json.JSONDecoder(parse_constant=_refuse, object_pairs_hook=_once).decode


def _call(rest: bytes, meta: bytes) -> bytes:
    """A call: the rest is an id; a letter before it takes another method."""
    index = (rest[0] - 65) if rest and 65 <= rest[0] < 65 + len(CALLS) else 0
    id = rest[1:] if rest and 65 <= rest[0] < 65 + len(CALLS) else rest
    return b'{"jsonrpc":"2.0","id":%b,"method":"%b","params":{"name":"t"%b}}' % (
        id or b"0",
        CALLS[index],
        meta,
    )


def _initialize(rest: bytes) -> bytes:
    version = REVISIONS[rest[0] % 5] if rest else b""
    return (
        b'{"jsonrpc":"2.0","id":%b,"method":"initialize","params":{"protocolVersion":"%b","capabilities":{},'
        b'"clientInfo":{"name":"f","version":"1"}}}' % (rest[1:] or b"0", version)
    )


def _request(method: bytes, params: bytes) -> Callable[[bytes], bytes]:
    def frame(rest: bytes) -> bytes:
        return b'{"jsonrpc":"2.0","id":%b,"method":"%b","params":{%b}}' % (
            rest or b"0",
            method,
            params,
        )

    return frame


# What the client sends. `%b` takes what follows the letter, whatever it is.
_TEMPLATES: dict[bytes, Callable[[bytes], bytes]] = {
    b"I": _initialize,
    b"i": lambda rest: b'{"jsonrpc":"2.0","method":"notifications/initialized"%b}' % rest,
    b"c": lambda rest: _call(rest, b""),
    b"C": lambda rest: _call(rest, b',"_meta":{"progressToken":7}'),
    b"m": lambda rest: _call(rest, b',"_meta":{%b}' % META),
    b"M": lambda rest: _call(
        rest, b',"_meta":{%b,"progressToken":"k","io.modelcontextprotocol/logLevel":"info"}' % META
    ),
    b"N": lambda rest: (
        b'{"jsonrpc":"2.0","id":"n","method":"tools/list","params":{"_meta":{%b%b}}}' % (META, rest)
    ),
    b"P": lambda rest: b'{"jsonrpc":"2.0","id":"p","method":"tools/call","params":%b}' % rest,
    b"p": _request(b"ping", b""),
    b"d": _request(b"server/discover", b'"_meta":{%b}' % META),
    b"l": lambda rest: (
        b'{"jsonrpc":"2.0","id":"l","method":"logging/setLevel","params":{"level":%b}}' % rest
    ),
    b"x": lambda rest: (
        b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":%b}}' % rest
    ),
    b"r": lambda rest: b'{"jsonrpc":"2.0","id":%b,"result":{}}' % rest,
    b"R": lambda rest: b'{"jsonrpc":"2.0","id":1,"error":%b}' % rest,
}
# What happens elsewhere; the byte after the letter says which, how or how long.
_CONTROLS: dict[bytes, Callable[[_Rig, int], None]] = {
    b"f": _Rig.finish,
    b"g": _Rig.tell,
    b"h": _Rig.hold,
    b"w": _Rig.drain,
    b"t": _Rig.tick,
    b"y": _Rig.ready,
    b"q": _Rig.ask,
    b"v": _Rig.change,
    b"z": _Rig.on_frame_too_long,
}
_LETTERS = (*_CONTROLS, *_TEMPLATES, b"b", b"~")


def _letter(line: bytes) -> bytes:
    """What a step is.

    Every byte but those that JSON begins with means something: a search would be lost in garbage
    otherwise.
    """
    first = line[:1]
    return first if first in _LETTERS or first in _AS_IT_IS else _LETTERS[line[0] % len(_LETTERS)]


_AS_IT_IS = frozenset(
    [
        b"",
        b" ",
        b"{",
        b"}",
        b"[",
        b"]",
        b'"',
        b"-",
        b"\xef",
        b"\xff",
        *(b"%d" % digit for digit in range(10)),
    ]
)
