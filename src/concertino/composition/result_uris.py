"""Replaces the URIs of a part of a composition by the URIs that clients see.

A composition serves several backends, its parts, as one. Clients see a URI of a part with a prefix
if another part lists the same URI (resource_owners.py). URIs are replaced in the contents of
resources, and in resources and resource links in the content of results and of messages for a
model. URIs inside texts are not replaced.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, cast

from msgspec import Raw, Struct
from msgspec.json import decode, encode

from concertino.decode_errors import DECODE_ERRORS
from concertino.protocol.call import InputRequired

__all__ = ["map_request_uris", "map_result_uris"]

# Returns the URI that clients see for a part's own URI.
MapUri = Callable[[str], str]


def map_result_uris(
    method: str,
    result: Struct | Raw,
    map_uri: MapUri,
) -> Struct | Raw:
    """Return the result of a call with the URIs that clients see.

    Returns the same object if nothing changes. Otherwise it returns JSON, and for an InputRequired
    another InputRequired.

    method: the method of the call, such as `tools/call`.
    result: the result of the backend, with its own URIs.
    map_uri: called with each URI; returns the URI that clients see.
    """
    if isinstance(result, InputRequired):
        return _map_questions(result, map_uri)
    if not isinstance(result, Raw):
        raw = Raw(encode(result))
        mapped = map_result_uris(method, raw, map_uri)
        return result if mapped is raw else mapped
    find = _contents_of if method == "resources/read" else _holders_of
    return _map_json(result, find, map_uri)


def map_request_uris(params: bytes, map_uri: MapUri) -> bytes:
    """Return the params of a part's request to the client with the URIs that clients see.

    Only the messages of `sampling/createMessage` contain URIs of the part.
    """
    return bytes(_map_json(Raw(params), _holders_of, map_uri))


def _map_questions(result: InputRequired, map_uri: MapUri) -> InputRequired:
    """Map the questions that another server has asked, which are undecoded requests."""
    questions = {
        key: _map_json(question, lambda members: _holders_of(members.get("params")), map_uri)
        if isinstance(question, Raw)
        else question
        for key, question in result.questions.items()
    }
    if all(questions[key] is question for key, question in result.questions.items()):
        return result
    return InputRequired(questions, result.state)


def _map_json(
    value: Raw,
    find: Callable[[dict[str, Any]], Iterable[dict[str, Any]]],
    map_uri: MapUri,
) -> Raw:
    """Return a JSON object with its URIs replaced; the same Raw if there is nothing to replace.

    find: returns the objects inside the value whose `uri` is replaced.
    """
    # Most results have no URI, and need not be decoded.
    if b'"uri"' not in bytes(value):
        return value
    try:
        members = decode(value)
    except DECODE_ERRORS:
        return value
    if not isinstance(members, dict):
        return value
    changed = False
    for holder in find(cast("dict[str, Any]", members)):
        if isinstance(uri := holder.get("uri"), str) and (mapped := map_uri(uri)) != uri:
            holder["uri"] = mapped
            changed = True
    return Raw(encode(members)) if changed else value


def _contents_of(members: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the contents of a resource in the result of `resources/read`."""
    return _objects(members.get("contents"))


# Any: a JSON value.
def _holders_of(members: Any) -> list[dict[str, Any]]:
    """Return the objects with a URI in the content of a result, or of messages in it.

    members: a result, the params of `sampling/createMessage`, a message or a `tool_result`.
    """
    holders: list[dict[str, Any]] = []
    for owner in _objects([members]):
        for message in _objects(owner.get("messages")):
            holders += _holders_of(message)
        content = owner.get("content")
        # In a message, the content may be one block instead of a list.
        for block in _objects([content] if isinstance(content, dict) else content):
            if block.get("type") == "resource_link":
                holders.append(block)
            elif block.get("type") == "resource":
                holders += _objects([block.get("resource")])
            elif block.get("type") == "tool_result":
                holders += _holders_of(block)
    return holders


def _objects(value: Any) -> list[dict[str, Any]]:
    """Return the objects in a list; an empty list if the value is not a list."""
    if not isinstance(value, list):
        return []
    return [
        cast("dict[str, Any]", item) for item in cast("list[Any]", value) if isinstance(item, dict)
    ]
