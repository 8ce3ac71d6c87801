"""map_fields(): replaces the values of one field, such as `uri`, in some objects of a JSON text."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, cast

from msgspec import Raw
from msgspec.json import decode, encode

from concertino.decode_errors import DECODE_ERRORS

__all__ = ["map_fields"]


def map_fields(
    value: Raw,
    field: str,
    find: Callable[[dict[str, Any]], Iterable[dict[str, Any]]],
    map_text: Callable[[str], str | None],
) -> Raw:
    """Return a JSON object in which the texts of a field are replaced in some inner objects.

    Returns the same Raw if nothing changes, also if the JSON is malformed or not an object.
    field: the name of the field.
    find: called with the decoded object; returns the inner objects whose field is replaced.
    map_text: called with each text; returns the new text, or None to keep the text.
    """
    # Most objects do not have the field, and need not be decoded.
    if f'"{field}"'.encode() not in bytes(value):
        return value
    try:
        members = decode(value)
    except DECODE_ERRORS:
        return value
    if not isinstance(members, dict):
        return value
    changed = False
    for holder in find(cast("dict[str, Any]", members)):
        text = holder.get(field)
        if isinstance(text, str) and (mapped := map_text(text)) not in (None, text):
            holder[field] = mapped
            changed = True
    return Raw(encode(members)) if changed else value
