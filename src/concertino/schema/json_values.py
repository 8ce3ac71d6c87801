"""Encodes Python values as JSON, and raises for NaN and infinity.

JSON has no form for NaN and infinity. msgspec silently writes null for them, so these functions
search the value for them.
"""

from __future__ import annotations

import math
from collections import abc
from typing import Any, cast

from msgspec import json, to_builtins


def encode_finite(value: Any, path: str = "") -> bytes:
    """Return a value as JSON text.

    path: the name of the value, for the error text; "" for none.
    Raises ValueError for a NaN or an infinity; the text names its place. Raises TypeError or
    ValueError for other values that msgspec cannot encode.
    """
    text = json.encode(value)
    # msgspec writes NaN as null, so search for NaN only if the text contains null.
    if b"null" in text and (place := _nan_place(value, path)) is not None:
        where = f"{place}: " if place else ""
        raise ValueError(f"{where}expected a finite number, got NaN or infinity")
    return text


def json_value(value: Any) -> Any:
    """Convert a Python value to plain JSON values: dict, list, str, int, float, bool and None.

    Raises ValueError or TypeError for values that JSON cannot express, such as NaN.
    """
    return json.decode(encode_finite(value))


def nan_path(value: Any, path: str = "") -> str | None:
    """Return the place of the first NaN or infinity, such as `a[0].b`; None if there is none.

    value: any value; dicts, lists, tuples and sets are searched.
    path: the name of the value, with which the result begins; "" for none.
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
    """Return the place of the first NaN or infinity in any value that msgspec can encode.

    Returns None if there is none.
    """
    # to_builtins() calls the hook for msgspec.Raw objects only, and they become None. JSON text has
    # neither number.
    return nan_path(to_builtins(value, enc_hook=lambda _: None), path)
