"""Converters for values that msgspec cannot decode itself.

Each function here returns the `convert` of a custom type (violations.py): it takes a JSON value,
and returns the value for the handler or raises InvalidValue. type_schema.py imports this module
when a handler first has such a type, which is rare.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Annotated, Any

import msgspec
from msgspec import Meta, json

from concertino.schema.violations import (
    InvalidValue,
    SchemaViolation,
    decode_hook,
    violations_of,
)

# `Any` in this file: annotations are arbitrary objects, JSON values are open trees.

# Per argument. pydantic reports as many as there are.
MAX_VIOLATIONS = 20
# A key in a path comes from the caller, and may have any length.
MAX_KEY_CHARS = 80


def decode_first_match(members: list[Any], strict: bool) -> Callable[[Any], Any]:
    """Return a converter for a union that msgspec refuses: the first member that fits is decoded.

    strict: as for msgspec.convert.
    """

    def convert(value: Any) -> Any:
        messages: list[str] = []
        for member in members:
            try:
                return msgspec.convert(
                    value, member, strict=strict, dec_hook=decode_hook, str_keys=True
                )
            except msgspec.ValidationError as exc:
                messages += [str(violation) for violation in violations_of(exc, "")]

        # Members may refuse a value for the same reason; each reason is reported once.
        reasons = "; or ".join(dict.fromkeys(messages))
        raise InvalidValue([SchemaViolation("", f"fits no member of the union: {reasons}")])

    return convert


def look_up_member(members: list[tuple[Any, Any]]) -> Callable[[Any], Any]:
    """Return a converter from the JSON form of a member to the member.

    members: pairs of (JSON form, member). They are distinguished by type and value: 1 is neither
    True nor 1.0.
    """

    def convert(value: Any) -> Any:
        for written, member in members:
            if type(value) is type(written) and value == written:
                return member
        allowed = ", ".join(json.encode(written).decode() for written, _ in members)
        raise InvalidValue([SchemaViolation("", f"expected one of {allowed}")])

    return convert


def match_linearly(pattern: str, constraints: dict[str, Any], reason: str) -> Callable[[Any], Any]:
    """Return a converter that accepts a str in which a linear engine finds the pattern.

    constraints: other arguments of msgspec.Meta for the str. reason: from find_backtracking().
    Raises RegistrationError if no linear engine is installed.
    """
    # No other converter needs the module.
    from concertino.schema.regex_safety import linear_matcher

    matches = linear_matcher(pattern, reason)
    annotation = Annotated[str, Meta(**constraints)]

    def convert(value: Any) -> Any:
        try:
            text = msgspec.convert(value, annotation)
        except msgspec.ValidationError as exc:
            raise InvalidValue(violations_of(exc, "")) from None
        if not matches(text):
            raise InvalidValue([SchemaViolation("", f"expected str matching regex {pattern!r}")])
        return text

    return convert


def validate_with(adapter: Any) -> Callable[[Any], Any]:
    """Return a converter that has pydantic validate the value. adapter: a pydantic.TypeAdapter."""

    def convert(value: Any) -> Any:
        try:
            return adapter.validate_json(json.encode(value))
        except sys.modules["pydantic"].ValidationError as exc:
            errors: Any = exc.errors(include_url=False, include_input=False)[:MAX_VIOLATIONS]
            raise InvalidValue(
                [SchemaViolation(_path(error["loc"]), error["msg"]) for error in errors]
            ) from None

    return convert


def _path(steps: tuple[str | int, ...]) -> str:
    return "".join(
        f"[{step}]" if isinstance(step, int) else f".{step[:MAX_KEY_CHARS]}" for step in steps
    )
