"""What may pass, and when: every frame in and out, and every handler's beginning, in their order.

A Tap is put between the real connection and the real host; it changes nothing. The model behind it
knows the protocol, not the code: which message must be answered by what (2025-11-25
basic/lifecycle, 2026-07-28 basic/versioning, JSON-RPC 2.0, docs/architecture.md), that answers are
given once, that nothing is said about a request after its answer or its cancel, that progress
grows.

Kinds of messages: call (goes to the workshop), ping, initialize, discover, level, unknown (method),
badparams, badversion, nomethod (answered by the session), cancel, silent (never answered), garbage
(answered without an id, at a bounded rate), overlong, batch.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from concertino.jsonrpc.limits import Limits
from concertino.transports.connection import Connection, Receiver
from simulation.script import ClientLine, Id, Script
from simulation.workshop import Handler

__all__ = ["Entry", "Model", "Tap"]

ERRORS = {"unknown": -32601, "badparams": -32602, "badversion": -32022, "nomethod": -32600}
BURST = 10  # answers to garbage at once, and a second

# The error of a call that was cut off.
SHUTTING_DOWN = {"code": -32603, "message": "the server is shutting down"}


@dataclass(slots=True, eq=False)
class Batch:
    """An array that came. expected: how many answers with each id; idless: and without one."""

    expected: Counter[Id] = field(default_factory=Counter[Id])
    idless: int = 0
    calls: list[Entry] = field(default_factory=list["Entry"])
    undecided: list[Entry] = field(
        default_factory=list["Entry"]
    )  # cancelled within the same array: perhaps ended before
    perhaps: Counter[Id] = field(
        default_factory=Counter[Id]
    )  # the same, and perhaps answered as busy

    def answered_by(self, ids: Counter[Id]) -> bool:
        """Whether an array with answers to these ids can be the answer to this one."""
        perhaps = self.perhaps + Counter[Id](
            entry.client_line.id for entry in self.undecided if not entry.ended
        )  # pyright: ignore[reportArgumentType]
        surely = self.expected - perhaps
        return not surely - ids and not ids - surely - perhaps


@dataclass(slots=True, eq=False)
class Entry:
    """A call that is not answered yet."""

    client_line: ClientLine
    order: int
    batch: Batch | None = None
    handler: Handler | None = None
    progress: float = float("-inf")
    closed: bool = False  # answered (or its part of a batch is ready), or cancelled
    cancelled: bool = False
    refused: bool = False  # busy, and its batch is not complete yet

    @property
    def ended(self) -> bool:
        return self.refused or (self.handler is not None and self.handler.ended)


class Model:
    """One connection's. wrong: told of every violation. time: the virtual clock."""

    def __init__(
        self,
        script: Script,
        limits: Limits,
        wrong: Callable[[str], None],
        time: Callable[[], float],
    ) -> None:
        self.open: dict[Id, Entry] = {}
        self.calls: list[Entry] = []  # every call that came and was to be served, in order
        self.by_n: dict[int, Entry] = {}
        self.sent: list[bytes] = []
        self.sent_bytes = 0
        self.end_at: float | None = (
            None  # when input ended, the connection was lost, or the end was ordered
        )
        self.drain_by: float | None = None  # the latest moment for the calls under way
        self.closing_at: float | None = None
        self.lost = False
        self.failed = False  # the backend did not start
        self.initialized = ""
        self.wrote_answer = False  # the last frame written is the answer of a call that was started
        self.may_be_cut = script.leaving.how in ("cut", "kill")  # the last line need not be whole
        self.is_waiting: Callable[[Id], bool] = lambda id: False
        self._script = script
        self._limits = limits
        self._wrong = wrong
        self._time = time
        self._coming = [client_line for _, client_line in script.items]
        self._next = 0
        self._due: list[
            tuple[Id | None, int]
        ] = []  # direct answers: (id, error code or 0), to be written before the next frame is read
        self._batches: list[Batch] = []
        self._fresh: list[Batch] = []  # that came with the frame that is dealt with
        self._garbage = 0
        self._idless = 0
        self._last_started = -1

    # What comes in

    def on_read(self, frame: bytes) -> None:
        """The next frame is about to be dealt with."""
        self.check_direct_answers()
        if self._next >= len(self._coming):
            return self._wrong(f"a frame came that was never sent: {frame[:80]!r}")
        client_line = self._coming[self._next]
        self._next += 1
        if frame == client_line.frame:
            return self._take(client_line)
        if client_line.frame.startswith(frame) and self.may_be_cut:
            if not frame.strip():
                return None
            self._next = len(self._coming)  # the last, cut off
            return self._take(ClientLine("truncated", b"", frame))
        return self._wrong(f"expected the frame {client_line.frame[:80]!r}, got {frame[:80]!r}")

    def on_frame_too_long(self) -> None:
        self.check_direct_answers()
        client_line = self._coming[self._next] if self._next < len(self._coming) else None
        self._next += 1
        if client_line is None or client_line.kind != "overlong":
            return self._wrong(f"an overlong message was told of, expected {client_line}")
        return self._take(client_line)

    def _take(self, client_line: ClientLine) -> None:
        kind = client_line.kind
        if kind == "call":
            if self._reaches_workshop(client_line):
                self._call(client_line, None)
        elif kind == "cancel":
            self._cancel(client_line, None)
        elif kind in ("garbage", "overlong"):
            self._garbage += 1
        elif kind == "batch":
            self._array(client_line)
        elif kind not in ("silent", "truncated"):
            assert client_line.id is not None
            self._due.append((client_line.id, self._direct(client_line, None)))

    def _reaches_workshop(self, client_line: ClientLine, batch: Batch | None = None) -> bool:
        """Whether a call reaches the workshop; if not, its answer is due."""
        assert client_line.id is not None
        code = 0
        entry = self.open.get(client_line.id)
        # What a batch has an answer for is no longer in flight, although the answer waits for the
        # others.
        in_use = entry is not None and not (entry.batch is not None and entry.ended)
        if in_use or (batch is not None and batch.expected[client_line.id]):
            code = -32600
        elif not client_line.modern and not self.initialized:
            code = -32602
        if code and batch is None:
            self._due.append((client_line.id, code))
        return not code

    def _direct(self, client_line: ClientLine, batch: Batch | None) -> int:
        """The error code, or 0, of what the session answers itself."""
        kind = client_line.kind
        if kind == "initialize":
            if self.initialized or batch is not None:
                return -32600
            self.initialized = client_line.version
            return 0
        if kind == "level":
            return 0 if self.initialized else -32602
        return ERRORS.get(kind, 0)

    def _call(self, client_line: ClientLine, batch: Batch | None) -> None:
        assert client_line.id is not None
        assert client_line.n is not None
        entry = Entry(client_line, len(self.calls), batch)
        self.calls.append(entry)
        self.open[client_line.id] = self.by_n[client_line.n] = entry
        if batch is not None:
            batch.calls.append(entry)

    def _cancel(self, client_line: ClientLine, batch: Batch | None) -> None:
        assert client_line.target is not None
        entry = self.open.get(client_line.target)
        if entry is None or entry.closed:
            return
        if batch is not None and entry.batch is batch:
            if entry not in batch.undecided:
                batch.undecided.append(entry)
            return
        if entry.batch is not None:
            if entry.ended:
                return  # its answer is in the array already
            entry.batch.expected[client_line.target] -= 1
        self._on_cancelled(entry)

    def _on_cancelled(self, entry: Entry) -> None:
        entry.closed = entry.cancelled = True
        if self.open.get(entry.client_line.id) is entry:  # pyright: ignore[reportArgumentType]
            del self.open[entry.client_line.id]  # pyright: ignore[reportArgumentType]
        self._complete(entry.batch)

    def _array(self, client_line: ClientLine) -> None:
        if (
            self.initialized != "2025-03-26"
            or not 0 < len(client_line.elements) <= self._limits.max_batch
        ):
            self._garbage += 1
            return
        batch = Batch()
        self._batches.append(batch)
        self._fresh.append(batch)
        served: list[tuple[ClientLine, bool]] = []
        for item in client_line.elements:  # ids are compared before any of them is opened
            if item.kind == "garbage":
                batch.idless += 1
            elif item.id is not None:
                served.append((item, item.kind == "call" and self._reaches_workshop(item, batch)))
                batch.expected[item.id] += 1
        opened = {id(item): is_served for item, is_served in served}
        for item in client_line.elements:
            if item.kind == "cancel":
                self._cancel(item, batch)
            elif item.kind == "call" and opened[id(item)]:
                self._call(item, batch)
        self._complete(batch)

    # What handlers do

    def began(self, handler: Handler, running: int) -> None:
        entry = self.by_n.get(handler.n)
        if entry is None:
            return self._wrong(f"call {handler.n} was started without having come")
        if entry.handler is not None:
            return self._wrong(f"call {handler.n} was started twice")
        entry.handler = handler
        if entry.closed:
            self._wrong(f"call {handler.n} was started after it was answered or cancelled")
        if entry.order < self._last_started:
            self._wrong(f"call {handler.n} was started out of its turn")
        self._last_started = entry.order
        if running >= self._limits.max_in_flight:
            self._wrong(
                f"call {handler.n} was started beside {running} others; the limit is"
                f" {self._limits.max_in_flight}"
            )
        return None

    def unfinished_calls(self) -> list[Entry]:
        """Open calls whose handler is at work."""
        return [
            entry
            for entry in self.open.values()
            if not entry.closed
            and entry.handler is not None
            and not entry.handler.ended
            and (entry.batch is None or entry not in entry.batch.undecided)
        ]

    def waiting(self) -> list[Entry]:
        """Open calls that were not started."""
        return [
            entry
            for entry in self.open.values()
            if not entry.closed and not entry.refused and entry.handler is None
        ]

    # What goes out

    def on_written(self, frame: bytes, about: Id | None) -> None:
        self.sent.append(frame)
        self.sent_bytes += len(frame) + 1
        self.wrote_answer = False
        if b"\n" in frame or b"\r" in frame:
            return self._wrong(f"a frame with a line break: {frame[:80]!r}")
        try:
            message: Any = json.loads(frame.decode("utf-8"))
        except ValueError as why:
            return self._wrong(f"no JSON was written: {why}: {frame[:80]!r}")
        if isinstance(message, list):  # of answers each of which may be as long as a message
            return self._wrote_array(message)  # pyright: ignore[reportUnknownArgumentType]
        if len(frame) > self._limits.max_message_bytes:
            self._wrong(
                f"{len(frame)} bytes were written; a message has at most"
                f" {self._limits.max_message_bytes}"
            )
        if not isinstance(message, dict) or message.get("jsonrpc") != "2.0":
            return self._wrong(f"no JSON-RPC was written: {frame[:80]!r}")
        if "method" in message:
            return self._check_notification(message, about)  # pyright: ignore[reportUnknownArgumentType]
        return self._check_answer(message, None)  # pyright: ignore[reportUnknownArgumentType]

    def _check_notification(self, message: Mapping[str, Any], about: Id | None) -> None:
        if "id" in message:
            return self._wrong(f"the server asked the client: {message}")
        method, params = message["method"], message["params"]
        if method == "notifications/tools/list_changed":
            if not self.initialized:
                self._wrong("a change was told before the handshake")
            return None
        entry = self.open.get(about) if about is not None else None
        if entry is None or entry.closed:
            return self._wrong(f"{method} about {about!r}, which is not open")
        if method == "notifications/progress":
            if (
                entry.client_line.token is None
                or params["progressToken"] != entry.client_line.token
            ):
                return self._wrong(
                    f"progress with the token {params['progressToken']!r}, expected"
                    f" {entry.client_line.token!r}"
                )
            if params["progress"] <= entry.progress:
                return self._wrong(f"progress {params['progress']} after {entry.progress}")
            entry.progress = params["progress"]
            return None
        if method != "notifications/message":
            return self._wrong(f"an unexpected notification: {method}")
        return None

    def _check_answer(self, message: Mapping[str, Any], batch: Batch | None) -> None:
        """One answer, alone or of an array."""
        if ("result" in message) is ("error" in message):
            return self._wrong(f"neither a result nor an error alone: {message}")
        code = message["error"]["code"] if "error" in message else 0
        if code and not (type(code) is int and type(message["error"]["message"]) is str):
            return self._wrong(f"a malformed error: {message}")
        id = message.get("id")
        if id is None:
            self._idless += 1
            if code not in (-32700, -32600):
                self._wrong(f"an answer without an id: {message}")
            return None
        if (id, code) in self._due:
            return self._due.remove((id, code))
        entry = self.open.get(id)
        if entry is None or entry.closed or type(id) is not type(entry.client_line.id):
            return self._wrong(f"an answer to {id!r}, which is not open: {str(message)[:200]}")
        if entry.batch is not None:
            return self._wrong(f"an answer to {id!r} alone; it came in a batch")
        self._check(entry, message, code)
        self.wrote_answer = entry.handler is not None
        entry.closed = True
        del self.open[id]
        return None

    def _check(self, entry: Entry, message: Mapping[str, Any], code: int) -> None:
        """Whether the answer is what the handler gave."""
        handler = entry.handler
        if message.get("error") == SHUTTING_DOWN:
            if self.drain_by is None or self._time() < self.drain_by - 1e-6:
                self._wrong(
                    f"call {entry.client_line.n} was cut off before the drain time was over"
                )
            elif handler is not None and handler.ended and not handler.cancels:
                self._wrong(f"call {handler.n} had ended, and was cut off")
            return
        if code == -31001:
            waiting = [item for item in self.waiting() if item is not entry]
            size = sum(len(item.client_line.frame) for item in waiting)
            limits = self._limits
            if handler is not None:
                self._wrong(f"call {handler.n} was started, and is answered as busy")
            elif entry.batch is None and not (  # in a batch it was decided earlier
                len(waiting) >= limits.max_waiting
                or size + len(entry.client_line.frame) > limits.max_waiting_bytes
            ):
                self._wrong(f"busy, with {len(waiting)} calls of {size} bytes waiting")
            return
        if handler is None:
            if not (self.failed and code == -32603):
                self._wrong(
                    f"call {entry.client_line.n} was answered without being started:"
                    f" {str(message)[:200]}"
                )
            return
        text = json.dumps(message)
        end = handler.plan.end
        listing = b'"tools/list"' in entry.client_line.frame
        kind = end[0]
        if not handler.ended:
            self._wrong(f"call {handler.n} was answered before its handler ended")
        if handler.cancels:
            pass  # cut off at the end; it gave what it liked
        elif (
            entry.batch is not None
            and code == -32603
            and "the answers of unfinished batches" in text
        ):
            pass  # there are too many of them together
        elif kind in ("return", "struct", "lines", "cancel me"):
            # More than the limit is replaced by an answer that says so.
            too_much = kind == "return" and end[1] + 1500 >= self._limits.max_message_bytes
            if (code or f"n={handler.n};" not in text) and not too_much:
                self._wrong(f"call {handler.n} returned; it was answered with {text[:200]}")
        elif kind in ("odd", "too much"):
            if not (
                code == -32603 if listing else not code and message["result"].get("isError") is True
            ):
                self._wrong(
                    f"call {handler.n} returned what cannot be sent; it was answered with"
                    f" {text[:200]}"
                )
        elif kind == "rpc" and end[1] == 7:
            if code != 7 or f"n={handler.n};" not in text:
                self._wrong(
                    f"call {handler.n} raised RpcError(7); it was answered with {text[:200]}"
                )
        elif code != -32603:
            self._wrong(f"call {handler.n} ended by {end}; it was answered with {text[:200]}")

    def _wrote_array(self, answers: Sequence[Any]) -> None:
        if not answers:
            return self._wrong("an empty array was written")
        ids = Counter[Id](item["id"] for item in answers if item.get("id") is not None)
        idless = len(answers) - ids.total()
        for batch in reversed(self._batches):  # the newer of two alike was refused at once
            if batch.idless == idless and batch.answered_by(ids):
                break
        else:
            return self._wrong(
                f"an array that answers no batch: {str(answers)[:300]}; open: {self._batches}"
            )
        self._decide(batch)
        self._batches.remove(batch)
        self.wrote_answer = any(entry.handler is not None for entry in batch.calls)
        by_id = {entry.client_line.id: entry for entry in batch.calls if not entry.cancelled}
        for item in answers:
            if item.get("jsonrpc") != "2.0" or ("result" in item) is ("error" in item):
                self._wrong(f"no answer, in an array: {item}")
            entry = by_id.get(item.get("id"))
            code = item.get("error", {}).get("code", 0)
            if entry is not None and code != -32600 and not entry.closed:
                self._check(entry, item, code)
                entry.closed = True
        for entry in batch.calls:
            entry.closed = True
            if self.open.get(entry.client_line.id) is entry:  # pyright: ignore[reportArgumentType]
                del self.open[entry.client_line.id]  # pyright: ignore[reportArgumentType]
        return None

    def _complete(self, batch: Batch | None) -> None:
        """A batch of which nothing is to be answered needs no array."""
        if batch is None or batch.idless or batch.undecided or batch.perhaps or +batch.expected:
            return
        if batch in self._batches:
            self._batches.remove(batch)

    def _decide(self, batch: Batch) -> None:
        undecided, batch.undecided = batch.undecided, []
        for entry in undecided:
            assert entry.client_line.id is not None
            if entry.ended or entry.closed:
                continue
            if entry.handler is None:
                batch.perhaps[entry.client_line.id] += 1
            else:
                batch.expected[entry.client_line.id] -= 1
            self._on_cancelled(entry)

    # What must hold

    def check_direct_answers(self) -> None:
        """Direct answers are there before the next frame is dealt with."""
        if self._due:
            self._wrong(f"not answered at once: {self._due}")
            self._due.clear()
        for batch in self._fresh:
            for entry in batch.calls:
                if entry.handler is None and not entry.closed and entry not in batch.undecided:
                    entry.refused = not self.is_waiting(entry.client_line.id)  # pyright: ignore[reportArgumentType]
            self._decide(batch)
            self._complete(batch)
        self._fresh.clear()

    def at_rest(self) -> None:
        """Nothing is ready, and nothing was ended."""
        if self.closing_at is not None:
            return
        self.check_direct_answers()
        for entry in list(self.open.values()):
            handler = entry.handler
            if handler is None or not handler.ended or handler.cancels:  # cut off at the end
                continue
            if entry.batch is None or self._ready(entry.batch):
                self._wrong(f"call {handler.n} has ended, and is not answered")
        for entry in self.calls:
            if (
                entry.cancelled
                and entry.handler is not None
                and entry.handler.waits
                and not entry.handler.cancels
            ):
                self._wrong(f"call {entry.handler.n} was cancelled, and its handler was not told")
        for batch in self._batches:
            if self._ready(batch):
                self._wrong(f"a batch is ready, and is not answered: {batch}")

    def _ready(self, batch: Batch) -> bool:
        return bool(batch.idless or batch.expected - batch.perhaps) and all(
            entry.cancelled or (entry.ended and not (entry.handler and entry.handler.cancels))
            for entry in batch.calls
        )

    def cut(self) -> None:
        """The connection closes: what is open must have a reason to be."""
        if self.closing_at is not None:
            return None
        self.closing_at = self._time()
        self.check_direct_answers()
        if self.lost:
            return None
        if self.drain_by is None:
            return self._wrong("the connection closes, and nothing had ended it")
        if self.closing_at < self.drain_by - 1e-6 and self.open:
            self._wrong(
                f"closed {self.drain_by - self.closing_at:g} s before its time, without answering"
                f" {list(self.open)}"
            )
        if self.open:
            self._wrong(f"closed without answering {list(self.open)}")
        return None

    def check_garbage_answers(self) -> None:
        """As many answers without an id as the rate allows, and not fewer than a burst."""
        if self._idless < min(self._garbage, BURST):
            self._wrong(f"{self._garbage} times garbage came, {self._idless} answers went")


class _ObservedFrames(Sequence[bytes]):
    """The frames of one read, told to the model one by one as they are taken."""

    def __init__(self, frames: Sequence[bytes], on_read: Callable[[bytes], None]) -> None:
        self._frames = frames
        self._on_read = on_read

    def __len__(self) -> int:
        return len(self._frames)

    def __getitem__(self, index: Any) -> Any:
        frame = self._frames[index]
        self._on_read(frame)
        return frame

    def __iter__(self) -> Iterator[bytes]:
        for frame in self._frames:
            self._on_read(frame)
            yield frame


class Tap:
    """A Connection around the real one, and a Receiver around the real host: passes everything on,
    and tells the model.
    """

    def __init__(
        self, inner: Connection, model: Model, limits: Limits, time: Callable[[], float]
    ) -> None:
        self.inner = inner
        self.model = model
        self.to: Any = None
        self.held = 0  # as the connection said last
        self.on_written: Callable[[int], None] = lambda held: None
        self.closing: Callable[[], None] = lambda: None
        self.closed = False
        self._limits = limits
        self._time = time

    @property
    def facts(self) -> Mapping[str, object]:
        return self.inner.facts

    def open(self, to: Receiver) -> None:
        self.to = to
        self.inner.open(self)

    def write(self, frame: bytes, about: Id | None) -> int:
        if not self.closed:
            self.model.on_written(frame, about)
        self.held = self.inner.write(frame, about)
        if not self.closed:
            self.on_written(self.held)
        return self.held

    def flush(self) -> None:
        self.inner.flush()

    def pause(self, paused: bool) -> None:
        self.inner.pause(paused)

    async def close(self, within_s: float) -> None:
        self.closing()
        self.closed = True
        await self.inner.close(within_s)

    def ending(self, lost: bool = False) -> None:
        """The end was ordered, or came."""
        model = self.model
        model.lost = model.lost or lost
        if model.end_at is None:
            model.end_at = self._time()
            model.drain_by = model.end_at + self._limits.drain_s

    def on_frames(self, batch: Sequence[bytes]) -> None:
        self.to.on_frames(_ObservedFrames(batch, self.model.on_read))
        self.model.check_direct_answers()

    def on_frame_too_long(self, size: int) -> None:
        self.model.on_frame_too_long()
        self.to.on_frame_too_long(size)
        self.model.check_direct_answers()

    def on_drain(self, held: int) -> None:
        self.held = held
        self.to.on_drain(held)

    def on_eof(self) -> None:
        self.ending()
        self.to.on_eof()

    def on_disconnect(self, why: Exception) -> None:
        self.ending(lost=True)
        self.to.on_disconnect(why)
