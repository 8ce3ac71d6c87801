"""Checks, before a result is sent, that its fields have the declared types.

    check(CallToolResult(content=[TextContent(5)]))
    # TypeError: content[0].text: expected str, got int

msgspec checks types when it decodes a Struct, but not when Python code creates one. Without this
check, a handler that creates a result itself could send a result that violates the schema.

A check function is made for each class when it is first used, from the annotations of the class.
Most fields have their default value or exactly the declared type, and are not checked further.

Encoding and decoding the result with msgspec would not find all errors: for example, a dict in
place of a Struct, or a base64 string in place of bytes, has the right form when it is encoded.
Spec: 2026-07-28 schema, for BOUNDS; server/resources, for _check_read_result().
"""

from __future__ import annotations

import math
import types
from collections.abc import Callable, Mapping
from typing import Any, Literal, Union, cast, get_args, get_origin

from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import fields

from concertino.types.results import ReadResourceResult, ResourceContents

# The description of a wrong value: the path of the wrong field in the value, and the error text.
Fault = tuple[str, str]

# The type of a function that returns the Fault of a value, or None if the value is right.
Check = Callable[[Any], "Fault | None"]

# Name of a number -> its smallest and largest value, in every class that has such a field.
BOUNDS: Mapping[str, tuple[float, float]] = {
    "priority": (0, 1),
    "size": (0, math.inf),
    "ttl_ms": (0, math.inf),
}


def check(value: Struct, place: str = "") -> None:
    """Raise TypeError if a field of a Struct, at any depth, has a wrong value.

    The text names the first wrong field and the expected type.
    value: the result, or another Struct of concertino.types.
    place: the path of the Struct itself, for the error text; "" for none.
    """
    fault = _get_struct_check(type(value))(value)
    if fault is not None:
        path, text = fault
        raise TypeError(f"{place}{path}: {text}".removeprefix("."))


_struct_checks: dict[type[Struct], Check] = {}


def _get_struct_check(struct_type: type[Struct]) -> Check:
    """Return the check function of a class. The first call for a class makes it, in 20 us."""
    if struct_type not in _struct_checks:
        # For each field: its name, its default, its type if a value of exactly this type needs no
        # further check (otherwise None), and the check function for all other values.
        members: list[tuple[str, Any, Any, Check]] = []
        for field in fields(struct_type):
            kind = _without_absent(field.type)
            exact = kind if kind in (str, bytes, bool) else None
            members.append((field.name, field.default, exact, _make_check(kind, field.name)))
        rule = _RULES.get(struct_type)

        def find_fault(value: Any) -> Fault | None:
            if type(value) is not struct_type:
                return _wrong_type(struct_type.__name__, value)
            for name, default, exact, find_member_fault in members:
                member = getattr(value, name)
                if member is default or type(member) is exact:
                    continue
                if (fault := find_member_fault(member)) is not None:
                    path, text = fault
                    return f".{name}{path}", text
            return None if rule is None else rule(value)

        _struct_checks[struct_type] = find_fault
    return _struct_checks[struct_type]


def _without_absent(annotation: Any) -> Any:
    """Return an annotation without None and UNSET, which are defaults and need no check."""
    if get_origin(annotation) not in (Union, types.UnionType):
        return annotation
    rest = [kind for kind in get_args(annotation) if kind not in (types.NoneType, UnsetType)]
    # The operator `|` cannot join a tuple of any length. A union of one type is the type itself.
    return Union[tuple(rest)]  # noqa: UP007


def _make_check(annotation: Any, name: str = "") -> Check:
    """Return the check function for an annotation.

    All annotations of the Structs in this package are supported.
    name: the name of the field with this annotation, for BOUNDS.
    """
    origin, arguments = get_origin(annotation), get_args(annotation)
    if annotation is Any:
        return lambda value: None
    if origin in (Union, types.UnionType):
        return _make_union_check(arguments)
    if origin is Literal:
        choice = " or ".join(map(repr, arguments))
        return lambda value: (
            None
            if value in arguments and isinstance(value, str)
            else ("", f"expected {choice}, got {value!r}")
        )
    if origin is list:
        return _make_list_check(_make_check(arguments[0]))
    if origin is dict:
        return _check_dict
    if issubclass(annotation, Struct):
        return _get_struct_check(annotation)
    low, high = BOUNDS.get(name, (-math.inf, math.inf))
    return _make_plain_check(annotation, low, high)


def _make_union_check(members: tuple[Any, ...]) -> Check:
    """Return the check function for a union of Structs."""
    by_class = {member: _get_struct_check(member) for member in members}
    names = ", ".join(member.__name__ for member in members)

    def find_fault(value: Any) -> Fault | None:
        member = by_class.get(type(value))
        return _wrong_type(f"one of {names}", value) if member is None else member(value)

    return find_fault


def _make_list_check(inner: Check) -> Check:
    """Return the check function for a list.

    inner: the check function of its items.
    """

    def find_fault(value: Any) -> Fault | None:
        if not isinstance(value, (list, tuple)):
            return _wrong_type("list", value)
        for index, item in enumerate(cast("list[Any]", value)):
            if (fault := inner(item)) is not None:
                path, text = fault
                return f"[{index}]{path}", text
        return None

    return find_fault


def _check_dict(value: Any) -> Fault | None:
    """Return the Fault of a value that must be a dict with str keys."""
    if not isinstance(value, dict):
        return _wrong_type("dict", value)
    keys = cast("dict[Any, Any]", value)
    for key in keys:
        if not isinstance(key, str):
            return "", f"expected keys of type str, got {key!r}"
    return None


# Declared type -> the types that are accepted in its place.
_ALLOWED: Mapping[type, Any] = {bytes: (bytes, bytearray, memoryview), float: (int, float)}


def _make_plain_check(kind: Any, low: float, high: float) -> Check:
    """Return the check function for a plain type, such as str or int.

    low, high: the bounds of a number.
    """
    allowed = _ALLOWED.get(kind, kind)

    def find_fault(value: Any) -> Fault | None:
        if isinstance(value, float) and not math.isfinite(value):
            return "", f"expected a finite number, got {value!r}"
        # isinstance(True, int) is true, but a bool is not a number in MCP.
        if not isinstance(value, allowed) or (isinstance(value, bool) and kind is not bool):
            return _wrong_type(kind.__name__, value)
        if isinstance(value, (int, float)) and not low <= value <= high:
            expected = f"{low} to {high}" if high < math.inf else f"at least {low}"
            return "", f"expected {expected}, got {value!r}"
        return None

    return find_fault


def _check_contents(value: ResourceContents) -> Fault | None:
    """Return the Fault of contents that have both text and bytes, or neither."""
    has_text, has_blob = value.text is not UNSET, value.blob is not UNSET
    if has_text == has_blob:
        return "", f"expected exactly one of text and blob for {value.uri}"
    return None


def _check_read_result(value: ReadResourceResult) -> Fault | None:
    """Return the Fault of a result of resources/read without contents."""
    if value.contents:
        return None
    text = "expected at least one piece; return None for a resource that is not there"
    return ".contents", text


# Rules that annotations cannot express, by class.
_RULES: Mapping[type[Struct], Check] = {
    ResourceContents: _check_contents,
    ReadResourceResult: _check_read_result,
}


def _wrong_type(expected: str, value: Any) -> Fault:
    """Return the Fault of a value of another type than the expected one."""
    return "", f"expected {expected}, got {type(value).__name__}"
