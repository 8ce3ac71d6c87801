"""What one simulated client sends, and how it leaves; and what the handlers of its calls do. Made
from a seed.

A Said is one line with what it means: the model takes the meaning from here, never from concertino.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from simulation.dice import Dice

__all__ = [
    "MODERN",
    "ClientLine",
    "Leaving",
    "Plan",
    "Script",
    "batch",
    "call",
    "cancel",
    "initialize",
    "make_script",
    "ping",
]

Id = int | str
MODERN: dict[str, Any] = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {},
    "io.modelcontextprotocol/clientInfo": {"name": "simulated", "version": "1"},
}
VERSIONS = ("2025-11-25", "2025-03-26", "2024-11-05", "2025-06-18", "2025-03-26")


@dataclass(frozen=True, slots=True)
class Plan:
    """What the handler of call n does: steps in order, then an end. See workshop.py."""

    steps: Sequence[tuple[Any, ...]] = ()
    end: tuple[Any, ...] = ("return", 0)
    when_cancelled: str = "leave"  # leave, swallow, linger
    linger_s: float = 0.0


@dataclass(slots=True, eq=False)
class ClientLine:
    """One line of the client's.

    kind: see model.py; line: the bytes, with the newline; frame: what the framer makes of it.
    """

    kind: str
    line: bytes
    frame: bytes
    id: Id | None = None
    n: int | None = None  # of a call
    modern: bool = False
    token: Id | None = None
    target: Id | None = None  # of a cancel
    version: str = ""
    elements: Sequence[ClientLine] = ()  # of a batch


@dataclass(slots=True)
class Leaving:
    """How the connection ends.

    how: end (input ends `after_s` after all is said), cut (it ends after `at` bytes), kill (both
    directions, after `at` bytes), deaf (stops reading for good and closes that direction after `at`
    bytes received, sends on), drain (the server ends it, after `after_s`), cancel (the task that
    serves is cancelled, after `after_s`), by hand (the client does nothing but read).
    """

    how: str = "end"
    at: int = 0
    after_s: float = 0.0


@dataclass(slots=True)
class Script:
    """items: (seconds before it is said, or -1: when all answers so far are there, or a second has
    passed; what is said).
    """

    items: list[tuple[float, ClientLine]] = field(default_factory=list[tuple[float, ClientLine]])
    plans: dict[int, Plan] = field(default_factory=dict[int, Plan])
    leaving: Leaving = field(default_factory=Leaving)
    stalls: list[tuple[int, float]] = field(
        default_factory=list[tuple[int, float]]
    )  # (bytes received, seconds without reading)
    chunk: int = 1 << 16  # most bytes at once, either way
    pace_s: float = 0.0  # between two acts, at most

    def add(self, client_line: ClientLine, gap_s: float = 0.0) -> ClientLine:
        self.items.append((gap_s, client_line))
        return client_line


def line_of(message: object) -> bytes:
    return json.dumps(message, separators=(",", ":")).encode()


def make_line(kind: str, message: object, **about: Any) -> ClientLine:
    frame = line_of(message)
    return ClientLine(kind, frame + b"\n", frame, **about)


def request(id: Id, method: str, params: object = None) -> dict[str, Any]:
    message: dict[str, Any] = {"jsonrpc": "2.0", "id": id, "method": method}
    if params is not None:
        message["params"] = params
    return message


def initialize(id: Id, version: str = "2025-11-25") -> ClientLine:
    params = {
        "protocolVersion": version,
        "capabilities": {},
        "clientInfo": {"name": "simulated", "version": "1"},
    }
    return make_line("initialize", request(id, "initialize", params), id=id, version=version)


def call(
    id: Id,
    n: int,
    *,
    modern: bool = False,
    token: Id | None = None,
    listing: bool = False,
    pad: int = 0,
) -> ClientLine:
    """A call that the workshop answers by plan n.

    The session passes unknown members of params on.
    """
    params: dict[str, Any] = {"n": n} if listing else {"name": "t", "n": n}
    if pad:
        params["pad"] = "x" * pad
    meta: dict[str, Any] = dict(MODERN) if modern else {}
    if modern and n % 2:
        meta["io.modelcontextprotocol/logLevel"] = "debug"
    if token is not None:
        meta["progressToken"] = token
    if meta:
        params["_meta"] = meta
    message = request(id, "tools/list" if listing else "tools/call", params)
    return make_line("call", message, id=id, n=n, modern=modern, token=token)


def cancel(target: Id, reason: str = "") -> ClientLine:
    params = {"requestId": target, "reason": reason}
    return make_line(
        "cancel",
        {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params},
        target=target,
    )


def ping(id: Id) -> ClientLine:
    return make_line("ping", request(id, "ping"), id=id)


def batch(elements: Sequence[ClientLine]) -> ClientLine:
    frame = b"[" + b",".join(each.frame for each in elements) + b"]"
    return ClientLine("batch", frame + b"\n", frame, elements=elements)


GARBAGE = (
    b"{not json}", b"42", b'"x"', b"null", b"true", b"{}", b'{"jsonrpc":"2.0"}', b"\xff\xfe\x80",
    b'{"jsonrpc":"1.0","method":"x"}',
    b'{"jsonrpc":"2.0","id":null,"method":"ping"}', b'{"jsonrpc":"2.0","id":{},"method":"ping"}',
    b"\x00", b"{", b"[1,2", b"}" * 40,
    b'{"jsonrpc":"2.0","id":1.5,"method":"ping"}', b"[" * 50,
)  # fmt: skip
# Read as silence: broken responses, notifications that are wrong, blank lines that have a byte.
SILENT = (
    b'{"jsonrpc":"2.0","id":5,"result":{},"error":{"code":1,"message":"m"}}',
    b'{"jsonrpc":"2.0","id":null,"error":{"code":1,"message":"m"}}',
    b'{"jsonrpc":"2.0","id":77,"result":{}}',
    b'{"jsonrpc":"2.0","id":"z","error":{"code":-1,"message":"no"}}',
    b'{"jsonrpc":"2.0","method":"notifications/initialized"}',
    b'{"jsonrpc":"2.0","method":"notifications/unheard_of","params":{"a":[1,2]}}',
    b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":{}}}',
    b'{"jsonrpc":"2.0","method":"notifications/cancelled"}',
    b'{"jsonrpc":"2.0","method":"notifications/x","params":[]}',
    b"   ", b"\t",
)  # fmt: skip


class _Writer:
    """Makes one script."""

    def __init__(
        self, dice: Dice, serial: count[int], max_message_bytes: int, limits_batch: int
    ) -> None:
        self.dice = dice
        self.serial = serial
        self.limit = max_message_bytes
        self.max_batch = limits_batch
        self.script = Script()
        self.ids: list[Id] = []  # of calls
        self.next_id = dice.pick((0, 1, 1, 2**53, -3))

    def fresh_id(self) -> Id:
        self.next_id += 1
        return self.dice.pick(
            (self.next_id, self.next_id, self.next_id, str(self.next_id), f"é-{self.next_id}")
        )

    def plan(self) -> Plan:
        dice = self.dice
        steps: list[tuple[Any, ...]] = []
        for _ in range(dice.pick((0, 0, 1, 1, 2, 4))):
            kind = dice.pick(
                ("wait", "wait", "wait", "yield", "progress", "progress", "log",
                 "awaited progress", "awaited log",
                 "posted progress", "posted log", "changed", "posted changed")
            )  # fmt: skip
            if kind == "wait":
                steps.append((kind, dice.pick((0.0, 1e-4, 0.01, 0.01, 0.1, 0.7))))
            elif "progress" in kind:
                steps.append(
                    (
                        kind,
                        dice.pick((1, 1, 2, 3, 0.5, 10)),
                        dice.pick((1, 1, 3, 30)),
                        dice.pick((5, 5, 50, 9000)),
                    )
                )
            elif "log" in kind:
                steps.append(
                    (
                        kind,
                        dice.pick(("debug", "info", "error")),
                        dice.pick((5, 50, 500)),
                        dice.pick((1, 1, 4)),
                    )
                )
            else:
                steps.append((kind,))
        if dice.chance(0.03):
            steps.append(("forever",))
        end: tuple[Any, ...] = ("return", dice.pick((0, 0, 10, 300, 2000)))
        if dice.chance(0.2):
            end = dice.pick(
                (("raise", ValueError), ("raise", SystemExit), ("raise", KeyError), ("rpc", 7),
                    ("rpc", "odd"), ("rpc", 7, 30_000),
                 ("cancelled",),
                 ("odd",), ("too much",), ("struct", 40), ("raise", MemoryError), ("cancel me",),
                     ("lines",))
            )  # fmt: skip
        how = dice.pick(("leave", "leave", "leave", "swallow", "linger"))
        return Plan(steps, end, how, dice.pick((0.0, 0.01, 0.3, 0.9)))

    def any_call(self, id: Id | None = None) -> ClientLine:
        n = next(self.serial)
        self.script.plans[n] = self.plan()
        id = self.fresh_id() if id is None else id
        self.ids.append(id)
        token: Id | None = self.dice.pick((None, n + 10**6, f"t{n}"))
        return call(
            id,
            n,
            modern=self.dice.chance(0.4),
            token=token,
            listing=self.dice.chance(0.1),
            pad=self.dice.pick((0, 0, 0, 100, min(1000, self.limit // 2))),
        )

    def one(self, in_batch: bool = False) -> ClientLine:
        """One message of any kind."""
        dice = self.dice
        roll = dice.fraction()
        if roll < 0.5:
            return self.any_call()
        if roll < 0.62 and self.ids:
            target = (
                dice.pick(self.ids[-4:])
                if dice.chance(0.8)
                else dice.pick((*self.ids, 999999, "nobody"))
            )
            return cancel(target, dice.pick(("", "changed my mind")))
        if roll < 0.66 and self.ids:
            return self.any_call(dice.pick(self.ids[-3:]))  # an id that was used, or is in use
        if roll < 0.72:
            return ping(self.fresh_id())
        if roll < 0.78:
            frame = dice.pick(GARBAGE)
            if in_batch:
                frame = dice.pick((b"42", b"null", b'{"jsonrpc":"2.0"}', b"{}"))
            return ClientLine("garbage", frame + b"\n", frame)
        if roll < 0.82:
            frame = dice.pick(SILENT[:-2] if in_batch else SILENT)
            return ClientLine("silent", frame + b"\n", frame)
        return self.rarer(in_batch)

    def rarer(self, in_batch: bool) -> ClientLine:
        dice = self.dice
        id = self.fresh_id()
        kind = dice.pick(
            (
                "unknown",
                "badparams",
                "badversion",
                "discover",
                "level",
                "nomethod",
                "again",
                "batch",
                "overlong",
                "exact",
            )
        )
        if in_batch and kind in ("batch", "overlong", "exact"):
            kind = "unknown"
        if kind == "unknown":
            return make_line(kind, request(id, "no/such"), id=id)
        if kind == "badparams":
            return make_line(kind, request(id, "tools/call", [1]), id=id)
        if kind == "badversion":
            meta = MODERN | {"io.modelcontextprotocol/protocolVersion": "1999-01-01"}
            return make_line(kind, request(id, "tools/call", {"name": "t", "_meta": meta}), id=id)
        if kind == "discover":
            return make_line(
                kind, request(id, "server/discover", {"_meta": MODERN}), id=id, modern=True
            )
        if kind == "level":
            return make_line(
                kind,
                request(id, "logging/setLevel", {"level": dice.pick(("debug", "error"))}),
                id=id,
            )
        if kind == "nomethod":
            return make_line(kind, {"jsonrpc": "2.0", "id": id}, id=id)
        if kind == "again":
            return initialize(id, dice.pick(VERSIONS))
        if kind == "batch":
            return batch([self.one(in_batch=True) for _ in range(dice.pick((0, 1, 2, 3, 5, 8)))])
        size = self.limit + (1 + dice.below(3000) if kind == "overlong" else 0)
        frame = b'{"a":"%b"}' % (b"x" * (size - 8))  # 8: what is around; sound JSON, but no message
        return ClientLine("garbage" if kind == "exact" else "overlong", frame + b"\n", frame)

    def write(self) -> Script:
        dice, script = self.dice, self.script
        greeting = dice.fraction()
        if greeting < 0.75:
            script.add(
                initialize(self.fresh_id(), dice.pick(VERSIONS)), dice.pick((0.0, 0.0, 0.01))
            )
            if dice.chance(0.5):
                script.add(
                    ClientLine(
                        "silent",
                        b'{"jsonrpc":"2.0","method":"notifications/initialized"}\n',
                        SILENT[4],
                    ),
                    dice.pick((-1, 0.0)),
                )
        many_batches = dice.chance(0.15)
        for _ in range(dice.pick((1, 3, 6, 6, 12, 12, 25, 40))):
            if many_batches and dice.chance(0.4):
                item = batch([self.one(in_batch=True) for _ in range(dice.pick((1, 2, 3, 5)))])
            else:
                item = self.one()
            script.add(
                self.disguise(item), dice.pick((0.0, 0.0, 0.0, 0.0, 1e-4, 0.005, 0.05, 0.3, -1))
            )
        total = sum(len(each.line) for _, each in script.items)
        how = dice.pick(
            ("end", "end", "end", "end", "cut", "kill", "deaf", "drain", "drain", "cancel")
        )
        script.leaving = Leaving(
            how, dice.below(total + 1), dice.pick((0.0, 0.001, 0.05, 0.5, 3.0))
        )
        if how == "deaf":
            script.leaving.at = dice.below(2000)
        for _ in range(dice.pick((0, 0, 0, 1, 1, 2))):
            script.stalls.append((dice.below(3000), dice.pick((0.01, 0.3, 3.0, 30.0))))
        script.stalls.sort()
        script.chunk = dice.pick((7, 64, 1000, 1 << 16, 1 << 16))
        script.pace_s = dice.pick((0.0, 0.0, 1e-4, 0.003))
        return script

    def disguise(self, item: ClientLine) -> ClientLine:
        """The same, as some clients write it: CRLF, a byte order mark, spaces, blank
        lines before.
        """
        if len(item.frame) > self.limit:
            item.kind = "overlong"
        roll = self.dice.fraction()
        if roll < 0.9 or item.kind in ("overlong", "garbage", "silent"):
            return item
        if roll < 0.94:
            item.line = item.frame + b"\r\n"
        elif roll < 0.96:
            item.frame = b"\xef\xbb\xbf" + item.frame
            item.line = item.frame + b"\n"
        elif roll < 0.98:
            item.line = b"\n\r\n\n" + item.line
        else:
            item.frame = b" " + item.frame + b" \t"
            item.line = item.frame + b"\n"
        return item


def make_script(dice: Dice, serial: count[int], max_message_bytes: int, max_batch: int) -> Script:
    """A client's conversation. serial: numbers for calls, of the whole world."""
    return _Writer(dice, serial, max_message_bytes, max_batch).write()
