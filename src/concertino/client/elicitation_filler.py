"""fill_form(): adds the defaults of an elicitation's form to the user's values, and checks them.

A client calls fill_form() before it sends the answer to `elicitation/create`. A form is a JSON
Schema of an object whose properties ("fields") are strings, numbers, booleans or choices.
Spec: 2025-06-18 and later client/elicitation, `PrimitiveSchemaDefinition`; defaults: SEP-1034.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from msgspec import Struct, convert

__all__ = ["fill_form"]

_PYTHON_TYPES: Mapping[str, tuple[type, ...]] = {
    "string": (str,),
    "number": (int, float),
    "integer": (int,),
    "boolean": (bool,),
    "array": (list, tuple),
}


class _Form(Struct):
    """The parts of a form that this module reads.

    properties: name of a field -> the JSON Schema of the field.
    required: the names of the fields that must have a value.
    """

    properties: dict[str, Any] | None = None
    required: list[str] | None = None


def fill_form(schema: Mapping[str, Any], content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a form: the user's values, and the form's defaults for the other fields.

    schema: the form, a JSON Schema.
    content: name of a field -> the user's value. Values for fields that the form does not have are
        returned unchanged.
    Raises ValueError if a required value is missing or a value does not fit its field. Its text
    names the field, the expected and the actual value. Raises msgspec.ValidationError if the form
    is malformed.
    """
    form = convert(schema, _Form)
    fields = form.properties or {}
    values = dict(content)
    for name, field in fields.items():
        if name not in values and isinstance(field, dict) and "default" in field:
            values[name] = field["default"]

    for name in form.required or ():
        if name not in values:
            raise ValueError(f"{name}: required, and not given")
    for name, value in values.items():
        if isinstance(fields.get(name), dict):
            _check(name, fields[name], value)
    return values


def _check(name: str, field: Mapping[str, Any], value: Any) -> None:
    """Raise ValueError if a value does not fit its field.

    name: the name of the field, for the error.
    field: the JSON Schema of the field.
    """
    _check_type(name, field.get("type"), value)
    choices = _choices(field)
    if choices is not None and value not in choices:
        raise ValueError(f"{name}: expected one of {choices!r}, got {value!r}")

    if isinstance(value, str):
        lower, upper = field.get("minLength"), field.get("maxLength")
        _check_bounds(name, len(value), lower, upper, "characters")
    elif isinstance(value, (list, tuple)):
        items = cast("list[Any]", value)
        _check_bounds(name, len(items), field.get("minItems"), field.get("maxItems"), "choices")
        if isinstance(field.get("items"), dict):
            for item in items:
                _check(name, field["items"], item)
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        _check_bounds(name, value, field.get("minimum"), field.get("maximum"), "")


def _check_type(name: str, kind: object, value: Any) -> None:
    """Raise ValueError if a value does not have the type that its field names, such as "string"."""
    expected = _PYTHON_TYPES.get(kind) if isinstance(kind, str) else None
    if expected is None:
        return
    # bool is a subclass of int in Python, but not a number in JSON.
    is_bool_as_number = isinstance(value, bool) and kind in ("number", "integer")
    if not isinstance(value, expected) or is_bool_as_number:
        raise ValueError(f"{name}: expected {kind}, got {type(value).__name__}")


def _choices(field: Mapping[str, Any]) -> list[Any] | None:
    """Return the values that a field allows; None if the field does not list its values.

    An option of `oneOf` or `anyOf` without `const` allows no value.
    """
    if isinstance(field.get("enum"), list):
        return field["enum"]
    options = field.get("oneOf") or field.get("anyOf")
    if isinstance(options, list):
        return [
            option["const"]
            for option in cast("list[Any]", options)
            if isinstance(option, dict) and "const" in option
        ]
    return None


def _check_bounds(
    name: str,
    size: float,
    lower: Any,
    upper: Any,
    unit: str,
) -> None:
    """Raise ValueError if a number, or the length of a value, is not between two bounds.

    size: the number, or the length of the value.
    lower, upper: the bounds, from the form; None for no bound.
    unit: the unit of the length, such as "characters", for the error; "" for a number.
    """
    suffix = f" {unit}" if unit else ""
    if isinstance(lower, (int, float)) and size < lower:
        raise ValueError(f"{name}: expected at least {lower:g}{suffix}, got {size:g}")
    if isinstance(upper, (int, float)) and size > upper:
        raise ValueError(f"{name}: expected at most {upper:g}{suffix}, got {size:g}")
