"""Rewords validation errors of jsonschema_rs in the same way as errors of typed parameters.

A tool has either typed parameters (arguments.py) or a hand-written input schema that jsonschema_rs
checks (validation.py). In both cases a client gets messages such as `Missing required field: name`
or `age: expected int >= 0`. For keywords that typed parameters do not have, the message comes from
jsonschema_rs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from concertino.schema.arguments import (
    MISSING_ARGUMENT,
    UNKNOWN_ARGUMENT,
    describe_unknown,
)
from concertino.schema.violations import SchemaViolation

__all__ = ["make_error_converter"]

# `Any` in this file: errors of jsonschema_rs, which has no stubs, and JSON values.

# JSON Schema's name of a type -> the name in msgspec's messages, in msgspec's order.
_TYPES = {
    "integer": "int",
    "number": "float",
    "string": "str",
    "array": "array",
    "object": "object",
    "boolean": "bool",
    "null": "null",
}
_VALUE_TYPES: Mapping[type, str] = {
    int: "int",
    float: "float",
    str: "str",
    list: "array",
    dict: "object",
    bool: "bool",
    type(None): "null",
}

# Keyword -> the words between "expected TYPE" and the keyword's value in a message.
_LIMITS = {
    "minimum": ">=",
    "maximum": "<=",
    "exclusiveMinimum": ">",
    "exclusiveMaximum": "<",
    "multipleOf": "that's a multiple of",
    "minLength": "of length >=",
    "maxLength": "of length <=",
    "minItems": "of length >=",
    "maxItems": "of length <=",
    "minProperties": "of length >=",
    "maxProperties": "of length <=",
}
# A message quotes at most this many characters of a text.
MAX_QUOTED = 80


def make_error_converter(schema: Mapping[str, Any]) -> Callable[[Any], list[SchemaViolation]]:
    """Return a function convert(error) that converts one error of jsonschema_rs to violations.

    convert() returns several violations if the error is about several unknown arguments.
    schema: the input schema. For an unknown argument, a similar property of the schema is
        suggested.
    """

    def convert(error: Any) -> list[SchemaViolation]:
        steps: list[str | int] = error.instance_path
        kind = error.kind
        if kind.name == "required":
            return [SchemaViolation(join_path([*steps, kind.property]), MISSING_ARGUMENT)]
        if kind.name == "additionalProperties":
            return _describe_unknown_members(
                steps, kind.unexpected, list(schema.get("properties", ()))
            )
        # Without declared properties, jsonschema_rs does not say which name is unknown.
        if kind.name == "falseSchema" and error.schema_path[-1:] == ["additionalProperties"]:
            text = f"{UNKNOWN_ARGUMENT}; it takes no arguments"
            return [SchemaViolation(join_path(steps), text)]
        return [SchemaViolation(join_path(steps), _describe_value(error) or error.message)]

    return convert


def join_path(steps: Iterable[str | int]) -> str:
    """Return the steps of a path, such as ["items", 2, "name"], as `items[2].name`."""
    path = ""
    for step in steps:
        if isinstance(step, int):
            path += f"[{step}]"
        elif path:
            path += f".{step}"
        else:
            path = step
    return path


def _describe_unknown_members(
    steps: Sequence[str | int], unknown: Sequence[str], names: Sequence[str]
) -> list[SchemaViolation]:
    """Return the violations for unknown members of the arguments, or of an object inside of them.

    steps: the path to the object; empty for the arguments.
    unknown: the names of the unknown members.
    names: the names of the tool's arguments, for suggestions.
    """
    if not steps:
        return describe_unknown(unknown, names)
    return [SchemaViolation(join_path([*steps, name]), UNKNOWN_ARGUMENT) for name in unknown]


def _describe_value(error: Any) -> str:
    """Return the message for an error of jsonschema_rs, such as `expected int, got str`.

    Returns "" if the error is about a keyword for which typed parameters have no message.
    """
    kind, value = error.kind, error.instance
    got = _VALUE_TYPES[type(value)]
    types = _expected_types(error)
    if types:
        expected = " | ".join(word for name, word in _TYPES.items() if name in types)
        return f"expected {expected}, got {got}"
    if kind.name in ("enum", "const"):
        options = kind.options if kind.name == "enum" else [kind.expected_value]
        # A list or object may be large, so show only its type.
        if isinstance(value, list | dict):
            shown = got
        elif isinstance(value, str):
            shown = repr(value[:MAX_QUOTED])
        else:
            shown = repr(value)
        return f"expected one of {_to_json(options)}, got {shown}"
    if kind.name == "pattern":
        return f"expected str matching regex {kind.pattern!r}"
    # The type is right, and only the value is not, so the type that was expected is the one of it.
    if kind.name in _LIMITS:
        return f"expected {got} {_LIMITS[kind.name]} {kind.value}"
    return ""


def _expected_types(error: Any) -> list[str]:
    """Return the allowed JSON Schema types; empty if the error is not about the type."""
    kind = error.kind
    if kind.name == "type":
        return list(kind.types)
    if kind.name != "anyOf":
        return []
    # An optional value is `anyOf: [{"type": "string"}, {"type": "null"}]`.
    types: list[str] = []
    for errors in kind.context:
        if not all(_is_about(item, error) and item.kind.name == "type" for item in errors):
            return []
        types += [name for item in errors for name in item.kind.types]
    return types


def _is_about(error: Any, outer: Any) -> bool:
    """Return whether an error inside an anyOf is about the same value as the anyOf's error."""
    # The path of such an error may be relative to the anyOf, and is then empty.
    return list(error.instance_path) in ([], list(outer.instance_path))


def _to_json(value: Any) -> str:
    # msgspec's encoder rejects integers of more than 64 bits, so use the standard library's.
    from json import dumps

    return dumps(value, ensure_ascii=False, separators=(",", ":"))
