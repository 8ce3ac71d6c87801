"""Encodes Python values as JSON, and raises for NaN and infinity.

JSON has no form for NaN and infinity. msgspec silently writes null for them, so these functions
search the value for them.
"""

from __future__ import annotations

import math
import re
from collections import abc
from collections.abc import Callable
from typing import Any, cast

from msgspec import json, msgpack, to_builtins

# A float in MessagePack, which begins with the byte 0xcb, whose exponent has all bits set. All such
# floats are NaN or an infinity. Text never contains these bytes, because they are invalid UTF-8.
_NOT_FINITE = rb"\xcb[\x7f\xff][\xf0-\xff]"


def encode_finite(value: Any, path: str = "") -> bytes:
    """Return a value as JSON text.

    path: the name of the value, for the error text; "" for none.
    Raises ValueError for a NaN or an infinity; the text names its place. Raises TypeError or
    ValueError for other values that msgspec cannot encode.
    """
    text = json.encode(value)
    # msgspec writes NaN as null, so search for NaN only if the text contains null.
    if b"null" in text and (place := find_nan(value, path)) is not None:
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

    Unlike find_nan(), this searches only dicts, lists, tuples and sets.
    value: any value.
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


def find_nan(
    value: Any, path: str = "", enc_hook: Callable[[Any], Any] = lambda _: None
) -> str | None:
    """Return the place of the first NaN or infinity in any value that msgspec can encode as JSON.

    Returns None if there is none.
    path: the name of the value, with which the result begins; "" for none.
    enc_hook: as in msgspec. The default is called for msgspec.Raw objects only, which cannot hold
        such numbers.
    """
    # MessagePack can express these numbers. So encode the value, and search the bytes for them.
    # That takes a fortieth of the time of nan_path().
    try:
        if re.search(_NOT_FINITE, msgpack.encode(value, enc_hook=enc_hook)) is None:
            return None
    except (OverflowError, RecursionError, TypeError, ValueError):
        # MessagePack has no integers of more than 64 bits.
        pass
    return nan_path(to_builtins(value, enc_hook=enc_hook), path)
