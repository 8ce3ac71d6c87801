"""jsonrpc: any frame is what the standard library's `json` and JSON-RPC 2.0 say it is, and survives
being written again.

Input: one frame. `json` reads more than RFC 8259, so the model here makes it strict; what is left
of differences is written in `strict`, one line each with its reason. Values are compared by repr:
1, 1.0 and true are equal in Python, and not the same.
"""

from __future__ import annotations

import json
from typing import Any, cast

from msgspec import UNSET, DecodeError, Raw
from msgspec.json import encode

from concertino.jsonrpc.messages import (
    ABSENT,
    InvalidMessage,
    Message,
    decode,
    decode_batch,
    decode_request,
    encode_notification,
    encode_request,
)

__all__ = ["MAX_BYTES", "TOKENS", "one"]

MAX_BYTES = 512  # nesting stays below what makes either reader give up
PARSE, REQUEST, PARAMS = -32700, -32600, -32602
BOM = b"\xef\xbb\xbf"
SILENCE = ("bad", 0, None)
Verdict = tuple[object, ...]

TOKENS = (
    *(
        b'"jsonrpc":"2.0"',
        b'"id":',
        b'"method":',
        b'"params":{}',
        b'"result":{}',
        b'"error":{}',
        b'{"jsonrpc":"2.0","id":1,',
    ),
    *(
        b"null",
        b"true",
        b"false",
        b"NaN",
        b"-Infinity",
        b"1e400",
        b"-0",
        b"0.0",
        b"1E+2",
        b"9007199254740993",
        b"18446744073709551616",
    ),
    *(
        b"\\u0000",
        b"\\ud83c\\udfbb",
        b"\\ud800",
        b"\\udc00",
        b"\\/",
        b"\\q",
        b"\xef\xbb\xbf",
        b"\xc3\xbc",
        b"\xf0\x9f\x8e\xbb",
    ),
    *(
        b"\xed\xa0\x80",
        b"\xc0\x80",
        b"\xf4\x90\x80\x80",
        b"\x00",
        b"\x7f",
        b"\x0b",
        b"[[[[",
        b"]]]]",
        b'{"":',
        b"{}",
        b"[]",
        b'""',
    ),
)


def one(data: bytes) -> None:
    """See the head of this file."""
    found = decode(data)
    _compare(data, found)
    if isinstance(found, Message):
        _again(found)
    _plainly(data, found)
    elements = decode_batch(data)
    try:
        value = strict(data)
    except (ValueError, RecursionError):
        assert elements is None, "no JSON, and a batch of it"
        return
    if not isinstance(value, list):
        assert elements is None, "no array, and a batch of it"
        return
    wanted = cast("list[object]", value)
    assert elements is not None, "an array, and no batch of it"
    assert repr([json.loads(bytes(item)) for item in elements]) == repr(wanted)
    for item in elements:
        _compare(bytes(item), decode(item))


def _plainly(data: bytes, found: Message | InvalidMessage) -> None:
    """What decode_request() takes of UTF-8 is the request that decode() finds."""
    try:
        str(data, "utf-8")
        plain = decode_request(data)
    except (DecodeError, UnicodeDecodeError, RecursionError):
        return
    assert isinstance(found, Message), f"a plain request, taken for {found}"
    assert found.result is found.error is ABSENT
    assert repr((found.id, found.method, _raw(found.params))) == repr(
        (plain.id, plain.method, _raw(plain.params))
    )


def _raw(params: dict[str, Raw]) -> dict[str, bytes]:
    return {name: bytes(raw) for name, raw in params.items()}


def strict(frame: bytes) -> object:
    """RFC 8259 by `json`; ValueError for what is not that."""
    text = str(
        frame.removeprefix(BOM), "utf-8"
    )  # 8.1: UTF-8 alone (`json` also takes 16 and 32); a mark may be ignored
    value = json.loads(
        text, parse_constant=_refuse, object_pairs_hook=_object
    )  # NaN and Infinity are not in the grammar
    json.dumps(
        value, ensure_ascii=False
    ).encode()  # 8.2: half a surrogate pair is no character; it cannot be passed on in UTF-8
    return value


def _refuse(constant: str) -> object:
    raise ValueError(constant)


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """Of a member that stands twice the last counts.

    Written out for the search, which sees branches and not what `json` does.
    """
    members: dict[str, object] = {}
    for name, value in pairs:
        if name in members:
            json.dumps(
                members[name], ensure_ascii=False
            ).encode()  # as in strict(), which will not see this value
        members[name] = value
    return members


def meaning(frame: bytes) -> Verdict:
    """What a frame is. The id of what cannot be parsed is not foreseen."""
    if not frame.removeprefix(BOM).strip():
        return SILENCE
    try:
        value = strict(frame)
    except (ValueError, RecursionError):
        return ("bad", PARSE)
    if not isinstance(value, dict):
        return ("bad", REQUEST, None)
    members = cast("dict[str, Any]", value)
    id = members.get("id")
    no_id = "id" not in members
    usable = no_id or type(id) in (int, str)
    sound = members.get("jsonrpc") == "2.0" and type(members.get("params", {})) is dict
    answers = [name for name in ("result", "error") if name in members]
    if "method" not in members and answers:
        return ("response", id, answers[0]) if len(answers) == 1 and sound and usable else SILENCE
    if not usable:
        return ("bad", REQUEST, None)
    if members.get("jsonrpc") != "2.0" or type(members.get("method")) is not str:
        return ("bad", REQUEST, id)
    if not sound:
        return SILENCE if no_id else ("bad", PARAMS, id)
    if answers or not members["method"]:
        return ("bad", REQUEST, id)
    kind = "notification" if no_id else "request"
    return (kind, id, members["method"], members.get("params", {}))


def _compare(frame: bytes, found: Message | InvalidMessage) -> None:
    wanted = meaning(frame)
    if wanted == ("bad", PARSE) and isinstance(found, Message):
        # A response that follows other text.
        ends = (frame[place:] for place in range(1, len(frame)) if frame[place] == ord("{"))
        responses = [repr(end) for end in map(meaning, ends) if end[0] == "response"]
        assert repr(_describe(found)) in responses, f"no JSON, taken for {found}"
    elif wanted == ("bad", PARSE):
        assert type(found) is InvalidMessage
        id, answers = _forgiving(frame)
        if answers:  # what cannot be read, but would be a response if it could, is not answered
            assert found.code in (0, PARSE), found
        else:  # text that is no JSON may contain responses, and then names their ids
            assert (found.code == PARSE) is not bool(found.answered_ids), found
        assert found.id is UNSET or repr(found.id) == repr(id), f"{found.id!r} is not the id"
    elif isinstance(found, InvalidMessage):
        actual = ("bad", found.code, None if found.id is UNSET else found.id)
        assert repr(actual) == repr(wanted), f"{actual}, expected {wanted}"
        assert found.message.isprintable()
    else:
        actual = _describe(found)
        assert repr(actual) == repr(wanted), f"{actual}, expected {wanted}"


def _describe(found: Message) -> Verdict:
    id = None if found.id is UNSET else found.id
    if found.method is UNSET:
        return ("response", id, "error" if found.result is ABSENT else "result")
    kind = "notification" if found.id is UNSET else "request"
    return (
        kind,
        id,
        found.method,
        {name: json.loads(bytes(raw)) for name, raw in found.params.items()},
    )


def _forgiving(frame: bytes) -> tuple[object, bool]:
    """Return the id that a lenient reader would see, and whether the message is a response."""
    try:
        value: object = json.loads(str(frame.removeprefix(BOM), "utf-8", "replace"), strict=False)
    except (ValueError, RecursionError):
        return UNSET, False
    if not isinstance(value, dict):
        return UNSET, False
    found = cast("dict[str, object]", value)
    return found.get("id", UNSET), "result" in found or "error" in found


def _again(found: Message) -> None:
    """A message written again is the same JSON value, on one line where it was read from one."""
    if found.method is UNSET:
        return
    params = encode(found.params)
    members: dict[str, object] = {"jsonrpc": "2.0"}
    if found.id is UNSET:
        frame = encode_notification(found.method, params)
    else:
        frame = encode_request(found.id, found.method, params)
        members["id"] = found.id
    members |= {
        "method": found.method,
        "params": {name: json.loads(bytes(raw)) for name, raw in found.params.items()},
    }
    assert b"\n" not in frame, "a newline inside a frame"
    assert repr(json.loads(frame)) == repr(members), f"{frame}, expected {members}"
    second = decode(Raw(frame))
    assert isinstance(second, Message)
    assert repr(_describe(second)) == repr(_describe(found))
