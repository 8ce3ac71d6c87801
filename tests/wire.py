"""What may stand on the wire: every line against the official types of the revision it was written
for.

`check(value, revision, definition)` validates one value; a `Conversation` follows both directions
of a whole dialogue and knows which revision, and which result type, each line from the server must
have. Two oracles must agree: the models of the official package `mcp-types`, always, and the
official schema.json files where they are, in `../shared/spec` beside the repository or in
`CONCERTINO_SPEC`. So a clone with nothing beside it validates every line too. Two deviations from
the published schemas, REQUIREMENTS A.27-6 and RELIABILITY "Policies": NumberSchema's `integer` is
patched to `number`, and an error answer may say `"id": null` before a message of 2025-11-25 or
later was seen.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
import re
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import model_schemas

__all__ = [
    "LEGACY",
    "MODERN",
    "ORACLES",
    "REVISIONS",
    "Conversation",
    "Violation",
    "check",
    "check_result",
    "check_sent",
    "definitions",
    "one_json",
]

LEGACY = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
MODERN = "2026-07-28"
REVISIONS = (*LEGACY, MODERN)
NULL_ID = ("2024-11-05", "2025-03-26", "2025-06-18")  # revisions in which an id cannot be left out
SPEC = Path(
    os.environ.get("CONCERTINO_SPEC", Path(__file__).resolve().parents[2] / "shared" / "spec")
)
# What says which values are right. A value must be so by each of them.
ORACLES = ("models", "schemas") if (SPEC / "schema").is_dir() else ("models",)
VERSION = "io.modelcontextprotocol/protocolVersion"
# Errors that 2026-07-28 gives a type of their own.
ERRORS = {-32021: "MissingRequiredClientCapabilityError", -32022: "UnsupportedProtocolVersionError"}


class Violation(AssertionError):
    """A line that must not be on the wire."""


def one_json(line: bytes) -> Any:
    """One line as the JSON value it holds, by the strictest reading: UTF-8, one line, RFC 8259."""
    if b"\n" in line:
        raise Violation(f"a newline inside a frame: {line!r}")

    def refuse(constant: str) -> object:
        raise Violation(f"{constant} is not JSON: {line!r}")

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        members = dict(pairs)
        if len(members) < len(pairs):
            raise Violation(f"a member stands twice: {line!r}")
        return members

    try:
        return json.loads(line.decode("utf-8"), parse_constant=refuse, object_pairs_hook=once)
    except ValueError as why:
        raise Violation(f"no JSON: {why}: {line!r}") from None


def check(value: Any, revision: str, definition: str) -> None:
    """Raise Violation unless the value is what this revision calls by this name, by each oracle
    that has the name.
    """
    oracles = [oracle for oracle in ORACLES if definition in definitions(revision, oracle)]
    if not oracles:
        raise Violation(f"{revision} has no {definition}")
    for oracle in oracles:
        best = jsonschema.exceptions.best_match(
            _validator(revision, definition, oracle).iter_errors(value)
        )
        if best is not None:
            why = f"{best.json_path}: {best.message} ({oracle})"
            raise Violation(f"no {definition} of {revision}: {why}\n{json.dumps(value)[:2000]}")


def check_result(method: str, result: Any, revision: str) -> None:
    """Raise Violation unless this is a result of the method in this revision."""
    check(result, revision, _result_type(method, revision, result))


def check_sent(message: Any, revision: str) -> None:
    """Raise Violation unless a client may send this request or notification in this revision."""
    ending = "Request" if "id" in message else "Notification"
    definition = _methods(revision, ending).get(message["method"])
    if definition is None:
        raise Violation(f"{message['method']} does not exist in {revision}")
    check(message, revision, definition)
    check(message, revision, f"Client{ending}")


def definitions(revision: str, oracle: str) -> dict[str, Any]:
    """Return what one oracle says of a revision: the name of each definition to its JSON Schema."""
    document = _document(revision, oracle)
    return document.get("$defs") or document["definitions"]


class Conversation:
    """Both directions of one connection, as a schema-abiding onlooker sees it.

    Feed it every line; it raises Violation.
    """

    def __init__(self) -> None:
        self.negotiated: str | None = None
        self.asked: dict[
            object, list[tuple[str, str | None]]
        ] = {}  # id -> method and revision of `_meta` of open requests
        self.tokens: dict[object, str] = {}  # progress token -> revision
        self.modern = False  # a message of the modern revision was seen, be it malformed
        self.idless = False  # one was served: from now on an unknown id is left out
        self.answers: list[Any] = []
        self.questions: set[object] = set()  # ids of the server's own requests

    def on_sent(self, line: bytes) -> None:
        """A line from the client; anything at all."""
        try:
            value = json.loads(line)
        except ValueError:
            return
        for each in value if isinstance(value, list) else [value]:
            if isinstance(each, dict) and isinstance(each.get("method"), str):
                params = each.get("params")
                meta = params.get("_meta") if isinstance(params, dict) else None
                version = meta.get(VERSION) if isinstance(meta, dict) else None
                self.modern = self.modern or version == MODERN
                if isinstance(each.get("id"), str | int):
                    self.asked.setdefault(_key(each["id"]), []).append((each["method"], version))
                elif each["method"] == "notifications/cancelled" and isinstance(params, dict):
                    id = params.get("requestId")
                    if isinstance(id, str | int) and isinstance(params.get("reason", ""), str):
                        self.asked.pop(_key(id), None)
                if isinstance(meta, dict) and isinstance(
                    token := meta.get("progressToken"), str | int
                ):
                    self.tokens[_key(token)] = version or self.negotiated or LEGACY[-1]

    def on_received(self, line: bytes) -> Any:
        """A line from the server. Returns its value."""
        value = one_json(line)
        if isinstance(value, list):
            if self.negotiated != "2025-03-26":
                raise Violation(f"an array outside 2025-03-26: {line!r}")
            check(value, self.negotiated, "JSONRPCBatchResponse")
            for each in value:
                self._one(each)
        else:
            self._one(value)
        return value

    def _one(self, value: Any) -> None:
        if not isinstance(value, dict) or value.get("jsonrpc") != "2.0":
            raise Violation(f"no JSON-RPC message: {value!r}")
        if "method" in value:
            self._notification(value)
        elif set(value) - {"id"} == {"jsonrpc", "error"}:
            self._error(value)
        elif set(value) == {"jsonrpc", "id", "result"}:
            self._result(value)
        else:
            raise Violation(f"neither a notification nor a response: {value!r}")

    def _asked(self, id: object, place: int) -> tuple[str, str]:
        """The request that is answered now: its method and its revision."""
        key = _key(id)
        if key not in self.asked:
            raise Violation(f"nobody asked, or it was answered, or cancelled: {id!r}")
        method, version = self.asked[key].pop(place)
        if not self.asked[key]:
            del self.asked[key]
        return method, version if version == MODERN else self.negotiated or LEGACY[-1]

    def _result(self, value: dict[str, Any]) -> None:
        method, revision = self._asked(value["id"], 0)
        if method == "initialize":
            revision = value["result"].get("protocolVersion")
            if revision not in LEGACY:
                raise Violation(f"initialize was answered with {revision}")
            self.negotiated = revision
        # A ping before any handshake is answered too, and shows no revision.
        if self.negotiated is not None or revision == MODERN:
            self.idless = self.idless or revision not in NULL_ID
        check(
            value,
            revision,
            "JSONRPCResultResponse" if revision in ("2025-11-25", MODERN) else "JSONRPCResponse",
        )
        check_result(method, value["result"], revision)
        self.answers.append(value)

    def _error(self, value: dict[str, Any]) -> None:
        code = value["error"]["code"]
        if "id" not in value:
            if not (self.idless or self.modern):
                raise Violation(f"an error without an id before 2025-11-25: {value!r}")
            revision = MODERN
        elif value["id"] is None and not self.idless:
            value = {**value, "id": 0}  # the one exemption
            revision = LEGACY[0]
        else:
            # Of two requests with one id it is the second that is refused while the first is in
            # flight.
            _, revision = self._asked(value["id"], -1 if code == -32600 else 0)
        check(
            value,
            revision,
            "JSONRPCErrorResponse" if revision in ("2025-11-25", MODERN) else "JSONRPCError",
        )
        if typed := ERRORS.get(code):
            check(value, MODERN, typed)
        if -32099 <= code <= -32020 and not typed:
            raise Violation(f"a reserved error code: {value!r}")
        self.answers.append(value)

    def _request(self, value: dict[str, Any]) -> None:
        """A question to the client: before 2026-07-28 only (FR-13), after the handshake, and with
        an id of its own (JR-4).
        """
        if self.negotiated is None:
            raise Violation(f"a request from a server: {value!r}")
        definition = _methods(self.negotiated, "Request").get(value["method"])
        if definition is None or value["method"] == "ping":  # a server of ours needs none
            raise Violation(f"{value['method']} is nothing that is asked in {self.negotiated}")
        check(value, self.negotiated, definition)
        check(value, self.negotiated, "ServerRequest")
        if _key(value["id"]) in self.questions:
            raise Violation(f"an id used twice: {value!r}")
        self.questions.add(_key(value["id"]))

    def _notification(self, value: dict[str, Any]) -> None:
        method = value["method"]
        if "id" in value:
            self._request(value)
            return
        token = value.get("params", {}).get("progressToken")
        if method == "notifications/progress" and _key(token) not in self.tokens:
            raise Violation(f"nobody has this progress token: {value!r}")
        if method == "notifications/progress":
            revisions = [self.tokens[_key(token)]]
        else:
            revisions = [
                each for each in (self.negotiated, MODERN if self.modern else None) if each
            ]
        failures: list[str] = []
        for revision in revisions:
            definition = _methods(revision, "Notification").get(method)
            try:
                if definition is None:
                    raise Violation(f"{method} does not exist in {revision}")
                check(value, revision, definition)
                check(value, revision, "ServerNotification")
                return
            except Violation as why:
                failures.append(str(why))
        raise Violation(
            "\n".join(failures) or f"a notification before any revision is known: {value!r}"
        )


def _key(id: object) -> object:
    return (type(id).__name__, id)


@cache
def _document(revision: str, oracle: str) -> dict[str, Any]:
    if oracle == "models":
        document = model_schemas.document(revision)
    else:
        document = json.loads((SPEC / "schema" / revision / "schema.json").read_bytes())
    place = "$defs" if "$defs" in document else "definitions"
    number = document[place].get("NumberSchema", {})
    for name in ("minimum", "maximum", "default"):
        if name in number.get("properties", {}):
            number["properties"][name]["type"] = "number"
    return document


def _methods(revision: str, ending: str) -> dict[str, str]:
    """Method to the name of the definition that has it as its only method."""
    return _methods_of(revision, ending, ORACLES[-1])


@cache
def _methods_of(revision: str, ending: str, oracle: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, definition in definitions(revision, oracle).items():
        method = definition.get("properties", {}).get("method", {}).get("const")
        if method is not None and name.endswith(ending):
            found[method] = name
    return found


def _result_type(method: str, revision: str, result: Any) -> str:
    """The definition of a request's result: `ListToolsRequest` has `ListToolsResult`; what has none
    is answered with nothing.
    """
    request = _methods(revision, "Request").get(method)
    if request is None:
        raise Violation(f"{method} does not exist in {revision} and was answered with a result")
    if isinstance(result, dict) and result.get("resultType") == "input_required":
        return "InputRequiredResult"
    own = request.removesuffix("Request") + "Result"
    return own if own in definitions(revision, ORACLES[-1]) else "EmptyResult"


_formats = jsonschema.FormatChecker(formats=())


@_formats.checks("byte", raises=binascii.Error)
def _is_base64(value: object) -> bool:
    return not isinstance(value, str) or base64.b64decode(value, validate=True) is not None


@_formats.checks("uri")
def _is_uri(value: object) -> bool:
    return (
        not isinstance(value, str)
        or re.fullmatch(r"[A-Za-z][A-Za-z0-9+.-]*:[!-~]*", value) is not None
    )


@cache
def _validator(revision: str, definition: str, oracle: str) -> Any:
    document = _document(revision, oracle)
    place = "$defs" if "$defs" in document else "definitions"
    schema = {
        "$schema": document["$schema"],
        place: document[place],
        "$ref": f"#/{place}/{definition}",
    }
    kind = jsonschema.validators.validator_for(schema)
    return kind(schema, format_checker=_formats)
