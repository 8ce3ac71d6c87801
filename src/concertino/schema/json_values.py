"""Python values as JSON trees, and the numbers that JSON has no form for.

Defaults of parameters and values of enums are written into schemas, and results into messages. NaN
and infinity are looked for beforehand, because msgspec writes null for them without a word.
"""

from __future__ import annotations

import math
from collections import abc
from typing import Any, cast

from msgspec import json, to_builtins


def encode_finite(value: Any, path: str = "") -> bytes:
    """Return a value as JSON text.

    path: what the value is, for the error. Raises ValueError that says where a NaN or an infinity
    is, and TypeError or ValueError for what msgspec cannot write.
    """
    text = json.encode(value)
    # msgspec writes null for such numbers, so nearly always there is nothing to look for.
    if b"null" in text and (place := _nan_place(value, path)) is not None:
        where = f"{place}: " if place else ""
        raise ValueError(f"{where}expected a finite number, got NaN or infinity")
    return text


def json_value(value: Any) -> Any:
    """Return a Python value as the JSON tree that msgspec writes for it.

    Raises ValueError or TypeError if it has none; NaN and infinity have none either.
    """
    return json.decode(encode_finite(value))


def nan_path(value: Any, path: str = "") -> str | None:
    """Return the place of a NaN or an infinity in a tree of dicts, lists, tuples and sets.

    Returns a path that starts with `path`, such as `a[0].b`; None if every number is finite.
    """
    if isinstance(value, float):
        return None if math.isfinite(value) else path

    items: abc.Iterable[tuple[str, Any]] = ()
    if isinstance(value, dict):
        tree = cast("dict[Any, Any]", value)
        items = ((f"{path}.{key}" if path else str(key), item) for key, item in tree.items())
    elif isinstance(value, (list, tuple, set, frozenset)):
        members = cast("abc.Iterable[Any]", value)
        items = ((f"{path}[{index}]", item) for index, item in enumerate(members))
    for place, item in items:
        if (found := nan_path(item, place)) is not None:
            return found
    return None


def _nan_place(value: Any, path: str) -> str | None:
    """Return the place of a NaN or an infinity in any value that has JSON text; or None."""
    # The hook gets only what is JSON text already.
    return nan_path(to_builtins(value, enc_hook=lambda _: None), path)
