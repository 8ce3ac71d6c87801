"""The forms of elicitation: flat objects of strings, numbers, booleans and choices. Completed with defaults, and checked.

Spec: 2025-06-18 and later client/elicitation, `PrimitiveSchemaDefinition`; defaults: SEP-1034.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from msgspec import Struct, convert

__all__ = ["filled"]

_KINDS: Mapping[str, tuple[type, ...]] = {
    "string": (str,),
    "number": (int, float),
    "integer": (int,),
    "boolean": (bool,),
    "array": (list, tuple),
}


class _Form(Struct):
    properties: dict[str, Any] | None = None
    required: list[str] | None = None


def filled(schema: Mapping[str, Any], content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a form, those left out taken from the defaults.

    Raises ValueError that names the field, what was expected and what came; msgspec.ValidationError for a form that is none.
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
    kind = field.get("type")
    expected = _KINDS.get(kind) if isinstance(kind, str) else None
    if expected is not None and (
        not isinstance(value, expected)
        or (isinstance(value, bool) and kind in ("number", "integer"))
    ):
        raise ValueError(f"{name}: expected {kind}, got {type(value).__name__}")
    choices = _choices(field)
    if choices is not None and value not in choices:
        raise ValueError(f"{name}: expected one of {choices!r}, got {value!r}")
    if isinstance(value, str):
        _bounded(name, len(value), field.get("minLength"), field.get("maxLength"), "characters")
    elif isinstance(value, (list, tuple)):
        items = cast("list[Any]", value)
        _bounded(name, len(items), field.get("minItems"), field.get("maxItems"), "choices")
        for item in items:
            if isinstance(field.get("items"), dict):
                _check(name, field["items"], item)
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        _bounded(name, value, field.get("minimum"), field.get("maximum"), "")


def _choices(field: Mapping[str, Any]) -> list[Any] | None:
    if isinstance(field.get("enum"), list):
        return field["enum"]
    titled = field.get("oneOf") or field.get("anyOf")
    if isinstance(titled, list):
        return [
            each["const"]
            for each in cast("list[Any]", titled)
            if isinstance(each, dict) and "const" in each
        ]
    return None


def _bounded(name: str, size: float, least: Any, most: Any, unit: str) -> None:
    if isinstance(least, (int, float)) and size < least:
        raise ValueError(f"{name}: expected at least {least:g} {unit}".rstrip() + f", got {size:g}")
    if isinstance(most, (int, float)) and size > most:
        raise ValueError(f"{name}: expected at most {most:g} {unit}".rstrip() + f", got {size:g}")
