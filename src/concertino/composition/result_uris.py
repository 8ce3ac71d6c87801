"""map_result_uris(): replaces the URIs in results of a part by the URIs that clients see.

A part is one of the backends that a composition serves as one. Clients see a URI of a part with a
prefix if another part lists the same URI (resource_owners.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from msgspec import Raw, Struct
from msgspec.json import decode, encode

from concertino.decode_errors import DECODE_ERRORS
from concertino.protocol.call import InputRequired

__all__ = ["map_result_uris"]

# Returns the URI that clients see for a part's own URI.
MapUri = Callable[[str], str]


def map_result_uris(
    method: str,
    result: Struct | Raw,
    map_uri: MapUri,
) -> Struct | Raw:
    """Return the result of a call with the URIs that clients see.

    Returns the same object if nothing changes, and otherwise JSON. URIs are replaced in the
    contents of resources, and in resources and resource links in the content of tools and prompts.
    URIs inside texts are not replaced.

    method: the method of the call, such as `tools/call`.
    result: the result of the backend, with its own URIs.
    map_uri: called with each URI; returns the URI that clients see.
    """
    if not isinstance(result, Raw):
        if isinstance(result, InputRequired):
            return result
        raw = Raw(encode(result))
        mapped = map_result_uris(method, raw, map_uri)
        return result if mapped is raw else mapped
    if b'"uri"' not in bytes(result):
        return result
    try:
        members = decode(result)
    except DECODE_ERRORS:
        return result
    if not isinstance(members, dict):
        return result
    changed = _map_members(method, cast("dict[str, Any]", members), map_uri)
    return Raw(encode(members)) if changed else result


def _map_members(
    method: str,
    members: dict[str, Any],
    map_uri: MapUri,
) -> bool:
    """Replace the URIs in a result in place. Returns whether a URI has changed."""
    if method == "resources/read":
        holders = _objects(members.get("contents"))
    elif method == "prompts/get":
        holders = [
            holder
            for message in _objects(members.get("messages"))
            for item in _content(message.get("content"))
            for holder in _holders(item)
        ]
    else:
        holders = [holder for item in _content(members.get("content")) for holder in _holders(item)]
    changed = False
    for holder in holders:
        if isinstance(uri := holder.get("uri"), str) and (mapped := map_uri(uri)) != uri:
            holder["uri"] = mapped
            changed = True
    return changed


def _content(value: Any) -> list[dict[str, Any]]:
    """Return the content of a message or result, one block or a list of them, as a list."""
    return _objects([value] if isinstance(value, dict) else value)


def _holders(item: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the object with a URI in a block of content, as a list of one or no object."""
    if item.get("type") == "resource_link":
        return [item]
    return _objects([item.get("resource")]) if item.get("type") == "resource" else []


def _objects(value: Any) -> list[dict[str, Any]]:
    """Return the objects in a list; an empty list if the value is not a list."""
    if not isinstance(value, list):
        return []
    return [
        cast("dict[str, Any]", item) for item in cast("list[Any]", value) if isinstance(item, dict)
    ]
