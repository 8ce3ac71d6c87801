"""Replaces the URIs of a part of a composition by the URIs that clients see.

A composition serves several backends, its parts, as one. Clients see a URI of a part with a prefix
if another part lists the same URI (resource_owners.py). URIs are replaced in the contents of
resources, and in resources and resource links in the content of results and of messages for a
model. URIs inside texts are not replaced.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from msgspec import Raw, Struct
from msgspec.json import encode

from concertino.composition.mapped_fields import map_fields
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
    return map_fields(result, "uri", find, map_uri)


def map_request_uris(params: bytes, map_uri: MapUri) -> bytes:
    """Return the params of a part's request to the client with the URIs that clients see.

    Only the messages of `sampling/createMessage` contain URIs of the part.
    """
    return bytes(map_fields(Raw(params), "uri", _holders_of, map_uri))


def _map_questions(result: InputRequired, map_uri: MapUri) -> InputRequired:
    """Map the questions that another server has asked, which are undecoded requests."""
    questions = {
        key: map_fields(question, "uri", _holders_in_request, map_uri)
        if isinstance(question, Raw)
        else question
        for key, question in result.questions.items()
    }
    if all(questions[key] is question for key, question in result.questions.items()):
        return result
    return InputRequired(questions, result.state)


def _holders_in_request(request: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the objects with a URI in the params of a request."""
    return _holders_of(request.get("params"))


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
