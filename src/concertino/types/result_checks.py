"""Whether a Struct of types.py holds what its annotations say: msgspec looks at that when it decodes, not when one is made.

What a handler or a backend put together by hand would otherwise leave as it is, and break the schema at the client.
Spec: 2026-07-28 schema, whose bounds are in BOUNDS; server/resources: what is not there is an error, not an empty answer.
"""

from __future__ import annotations

import math
import types
from collections.abc import Callable, Mapping
from typing import Any, Literal, Union, cast, get_args, get_origin

from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import fields

from concertino.types.results import (
    Annotations,
    Cacheable,
    ReadResourceResult,
    Resource,
    ResourceContents,
    ResourceLink,
)

__all__ = ["check"]

# Any in this file: whatever an author gave. A Fault says what was expected, and where, below the value; None: it fits.
Fault = tuple[str, str]
Check = Callable[[Any], "Fault | None"]

BOUNDS: Mapping[tuple[type[Struct], str], tuple[float, float]] = {
    (Annotations, "priority"): (0, 1),
    (Resource, "size"): (0, math.inf),
    (ResourceLink, "size"): (0, math.inf),
    (Cacheable, "ttl_ms"): (0, math.inf),
}


def check(value: Struct, place: str = "") -> None:
    """Raises TypeError naming the first member that does not fit, what was expected, and what came. place: of the value itself."""
    fault = _struct(type(value))(value)
    if fault is not None:
        raise TypeError(f"{place}{fault[0]}: {fault[1]}".removeprefix("."))


_structs: dict[type[Struct], Check] = {}


def _struct(kind: type[Struct]) -> Check:
    """The check of one class, made when it is first needed: 20 us."""
    if kind not in _structs:
        members = [
            (each.name, _bounded(kind, each.name, _check_of(each.type))) for each in fields(kind)
        ]
        rule = _RULES.get(kind)

        def fits(value: Any) -> Fault | None:
            if type(value) is not kind:
                return _expected(kind.__name__, value)
            for name, member in members:
                if (fault := member(getattr(value, name))) is not None:
                    return f".{name}{fault[0]}", fault[1]
            return None if rule is None else rule(value)

        _structs[kind] = fits
    return _structs[kind]


def _bounded(kind: type[Struct], name: str, inner: Check) -> Check:
    bounds = next(
        (
            bounds
            for (owner, member), bounds in BOUNDS.items()
            if member == name and issubclass(kind, owner)
        ),
        None,
    )
    if bounds is None:
        return inner
    low, high = bounds

    def fits(value: Any) -> Fault | None:
        fault = inner(value)
        if fault is None and isinstance(value, (int, float)) and not low <= value <= high:
            return (
                "",
                f"expected {low} to {high}, got {value!r}"
                if high < math.inf
                else f"expected at least {low}, got {value!r}",
            )
        return fault

    return fits


def _check_of(kind: Any) -> Check:
    """The check for an annotation, of the forms that types.py uses."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return _union(arguments)
    if origin is Literal:
        choice = " or ".join(map(repr, arguments))
        return lambda value: (
            None
            if value in arguments and isinstance(value, str)
            else ("", f"expected {choice}, got {value!r}")
        )
    if origin is list:
        return _list(_check_of(arguments[0]))
    if origin is dict:
        return _dict
    if issubclass(kind, Struct):
        return _struct(kind)
    return _PLAIN[kind]


def _union(kinds: tuple[Any, ...]) -> Check:
    if Any in kinds:
        return lambda value: None
    absent = tuple(each for each in (None, UNSET) if type(each) in kinds)
    rest = [each for each in kinds if each not in (types.NoneType, UnsetType)]
    if len(rest) == 1:
        inner = _check_of(rest[0])
        return lambda value: None if any(value is each for each in absent) else inner(value)
    by_class = {each: _struct(each) for each in rest}  # of several, each is a Struct
    names = ", ".join(each.__name__ for each in by_class)

    def fits(value: Any) -> Fault | None:
        found = by_class.get(type(value))
        return _expected(f"one of {names}", value) if found is None else found(value)

    return fits


def _list(inner: Check) -> Check:
    def fits(value: Any) -> Fault | None:
        if not isinstance(value, (list, tuple)):
            return _expected("list", value)
        for index, item in enumerate(cast("list[Any]", value)):
            if (fault := inner(item)) is not None:
                return f"[{index}]{fault[0]}", fault[1]
        return None

    return fits


def _dict(value: Any) -> Fault | None:
    if not isinstance(value, dict):
        return _expected("dict", value)
    odd = next((key for key in cast("dict[Any, Any]", value) if not isinstance(key, str)), None)
    return None if odd is None else ("", f"expected keys of type str, got {odd!r}")


def _plain(name: str, *allowed: type) -> Check:
    def fits(value: Any) -> Fault | None:
        if isinstance(value, bool) and bool not in allowed:
            return _expected(name, value)
        if isinstance(value, float) and not math.isfinite(value):
            return "", f"expected a finite number, got {value!r}"
        return None if isinstance(value, allowed) else _expected(name, value)

    return fits


_PLAIN: Mapping[Any, Check] = {
    str: _plain("str", str),
    bytes: _plain("bytes", bytes, bytearray, memoryview),
    bool: _plain("bool", bool),
    int: _plain("int", int),
    float: _plain("float", int, float),
}


def _one_of_both(value: ResourceContents) -> Fault | None:
    if (value.text is UNSET) is (value.blob is UNSET):
        return "", f"expected exactly one of text and blob for {value.uri}"
    return None


def _some(value: ReadResourceResult) -> Fault | None:
    return (
        None
        if value.contents
        else (
            ".contents",
            "expected at least one piece; return None for a resource that is not there",
        )
    )


_RULES: Mapping[type[Struct], Check] = {ResourceContents: _one_of_both, ReadResourceResult: _some}


def _expected(what: str, value: Any) -> Fault:
    return "", f"expected {what}, got {type(value).__name__}"
