"""Converters for values that msgspec cannot decode itself.

Each public function returns a converter for violations.custom_type(): a function that takes a JSON
value, and returns the value for the handler or raises InvalidValue. type_schema.py and
constraints.py import this module when a handler first has such a type, which is rare.
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

# At most this many violations are reported for one argument, because pydantic has no limit.
MAX_VIOLATIONS = 20
# The path of a violation has at most this many characters of a key, because clients choose keys.
MAX_KEY_CHARS = 80


def make_union_converter(members: list[Any], strict: bool) -> Callable[[Any], Any]:
    """Return a converter for a union that msgspec does not support.

    The converter tries the members in order, and returns the first value that can be decoded. It
    raises InvalidValue if no member fits.
    members: the types in the union, without None.
    strict: False to convert strings, such as "1" to an int, as for msgspec.convert().
    """

    def convert(value: Any) -> Any:
        messages: list[str] = []
        for member in members:
            try:
                # str_keys: the keys of JSON objects are strings, also for a dict[int, ...].
                return msgspec.convert(
                    value, member, strict=strict, dec_hook=decode_hook, str_keys=True
                )
            except msgspec.ValidationError as exc:
                messages += [str(violation) for violation in violations_of(exc, "")]

        # Several members may reject a value for the same reason. Report each reason once.
        reasons = "; or ".join(dict.fromkeys(messages))
        raise InvalidValue([SchemaViolation("", f"fits no member of the union: {reasons}")])

    return convert


def make_member_converter(members: list[tuple[Any, Any]]) -> Callable[[Any], Any]:
    """Return a converter that returns the member of an enum or Literal for its JSON value.

    The type of the value must match, too: for the value 1, the converter returns neither a member
    whose JSON value is true nor one whose JSON value is 1.0. It raises InvalidValue if no member
    fits.
    members: pairs of (JSON value, member).
    """

    # The members are not in a dict, because 1, True and 1.0 would be the same key.
    def convert(value: Any) -> Any:
        for json_value, member in members:
            if type(value) is type(json_value) and value == json_value:
                return member
        allowed = ", ".join(json.encode(json_value).decode() for json_value, _ in members)
        raise InvalidValue([SchemaViolation("", f"expected one of {allowed}")])

    return convert


def make_pattern_converter(
    pattern: str, constraints: dict[str, Any], reason: str
) -> Callable[[Any], Any]:
    """Return a converter that accepts a str if the pattern matches somewhere in it.

    It raises InvalidValue otherwise, and for a value that is no str. It uses a regex engine that
    takes linear time, unlike Python's `re`.
    constraints: the other constraints of the str, such as its length, as arguments of msgspec.Meta.
    reason: why `re` may be slow with this pattern, from regex_safety.find_backtracking().
    Raises RegistrationError if no linear engine is installed, or if the engine does not know the
    syntax of the pattern.
    """
    # Imported here because only this converter needs it.
    from concertino.schema.regex_safety import make_linear_matcher

    matches = make_linear_matcher(pattern, reason)
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


def make_pydantic_converter(adapter: Any) -> Callable[[Any], Any]:
    """Return a converter that validates a value with pydantic, and raises InvalidValue.

    adapter: a pydantic.TypeAdapter.
    """

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
    """Return the path of a violation, such as `.items[2].name`, for a location of pydantic."""
    return "".join(
        f"[{step}]" if isinstance(step, int) else f".{step[:MAX_KEY_CHARS]}" for step in steps
    )
