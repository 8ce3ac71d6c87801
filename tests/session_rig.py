"""A session beside a client's view of its wire, for the tests of protocol/.

Every line that the session sends is checked by the official schema of its revision (wire.py).
"""

from __future__ import annotations

import json
from typing import Any, cast

import wire
from catalogue import INFO

from concertino.jsonrpc.limits import Limits
from concertino.protocol.call import InputRequired, ServerFeatures
from concertino.protocol.request_profile import SessionRequest
from concertino.protocol.seal import Seal
from concertino.protocol.session import Session
from concertino.types.client_requests import Elicitation
from concertino.types.results import CallToolResult, TextContent

PARSE, INVALID, NO_METHOD, BAD_PARAMS, INTERNAL, VERSION_ERROR = (
    -32700,
    -32600,
    -32601,
    -32602,
    -32603,
    -32022,
)
VERSION = "io.modelcontextprotocol/protocolVersion"
CAPABILITIES = "io.modelcontextprotocol/clientCapabilities"
CLIENT = "io.modelcontextprotocol/clientInfo"
LOG_LEVEL = "io.modelcontextprotocol/logLevel"
A, B, C, D, E = wire.REVISIONS
META: dict[str, Any] = {VERSION: E, CAPABILITIES: {}, CLIENT: {"name": "c", "version": "1"}}
EVERYTHING = ServerFeatures(
    INFO,
    "Use it.",
    True,
    True,
    True,
    True,
    True,
    {"x": {}},
    {"example.com/x": {"a": 1}},
    True,
    60_000,
    "public",
)
TEXT = CallToolResult([TextContent("a")])


class Rig:
    """A session, a client's view of its wire, and the calls that reached the backend."""

    def __init__(self, offer: ServerFeatures = EVERYTHING, **limits: Any) -> None:
        self.offer = offer
        self.lines: list[Any] = []
        self.started: list[SessionRequest] = []
        self.held = 0
        self.onlooker: wire.Conversation | None = wire.Conversation()
        self.session = Session(
            lambda: self.offer, self._send, self.started.append, Limits(**limits), lambda: 0.0
        )

    def _send(self, frame: bytes, about: object) -> int:
        self.lines.append(
            wire.one_json(frame) if self.onlooker is None else self.onlooker.on_received(frame)
        )
        return self.held

    def feed(self, message: Any) -> list[Any]:
        """Send the session one message; returns the lines that came back at once."""
        frame = message if isinstance(message, bytes) else json.dumps(message).encode()
        if self.onlooker is not None:
            self.onlooker.on_sent(frame)
        self.session.receive(frame)
        return self.take_sent()

    def take_sent(self) -> list[Any]:
        lines, self.lines = self.lines, []
        return lines

    def ask(self, id: int | str, method: str, params: Any = None) -> Any:
        """A request that is answered at once."""
        [answer] = self.feed(request(id, method, params))
        assert answer["id"] == id
        assert type(answer["id"]) is type(id)
        return answer

    def call(self, id: int | str, method: str, params: Any = None) -> SessionRequest:
        """A request that reaches the backend and is being worked on."""
        assert self.feed(request(id, method, params)) == []
        incoming = self.started.pop()
        self.session.peer.add_running(incoming)
        return incoming

    def answer(self, incoming: SessionRequest, result: Any) -> Any:
        self.session.respond(incoming, result)
        [answer] = self.take_sent()
        return answer

    def opened(self, version: str = D) -> Rig:
        """After a handshake."""
        assert (
            self.ask("hello", "initialize", opening(version))["result"]["protocolVersion"]
            == version
        )
        self.feed({"jsonrpc": "2.0", "method": "notifications/initialized"})
        return self


def request(id: int | str, method: str, params: Any = None) -> dict[str, Any]:
    message: dict[str, Any] = {"jsonrpc": "2.0", "id": id, "method": method}
    return message if params is None else {**message, "params": params}


def opening(version: str) -> dict[str, Any]:
    return {
        "protocolVersion": version,
        "capabilities": {"roots": {}},
        "clientInfo": {"name": "c", "version": "1"},
    }


def modern(params: dict[str, Any] | None = None, **meta: Any) -> dict[str, Any]:
    return {**(params or {}), "_meta": {**META, **meta}}


def code(answer: Any) -> int:
    return answer["error"]["code"]


def sealing(rig: Rig) -> Rig:
    """Give the session a seal whose nonces count, and whose clock stands still."""
    numbers = iter(range(1, 1000))
    seal = Seal(b"k" * 32, lambda: 1e6, lambda size: next(numbers).to_bytes(size, "big"))
    rig.session.dialogues._get_seal = lambda: seal  # pyright: ignore[reportPrivateUsage]
    return rig


FORM: dict[str, Any] = {"type": "object", "properties": {"name": {"type": "string"}}}
WHO = Elicitation("Who?", requested_schema=FORM)
ADA = {"action": "accept", "content": {"name": "Ada"}}
DECLARED = {CAPABILITIES: {"elicitation": {}}}
CALL = {"name": "x", "arguments": {"a": 1}}


def input_required_result(rig: Rig, id: int, params: Any, wanted: InputRequired) -> Any:
    """Return the result of a call whose backend asks its client."""
    incoming = rig.call(id, "tools/call", params)
    rig.session.reply_input_required(incoming, wanted)
    [answer] = rig.take_sent()
    return answer["result"]


LEVELS = ["debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"]


def received_levels(rig: Rig, incoming: SessionRequest) -> list[str]:
    """Log one message of each level; return the levels of those that were sent."""
    for level in LEVELS:
        rig.session.notifications.log(incoming, cast(Any, level), {"at": level}, None)
    return [line["params"]["level"] for line in rig.take_sent()]
