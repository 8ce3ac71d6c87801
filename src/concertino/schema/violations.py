"""Violations of a schema, and types that msgspec decodes with a converter function.

violations_of() converts an error of msgspec to SchemaViolations: paths and plain messages.

For a type that msgspec cannot decode, custom_type() returns a class with a converter function. To
decode this class, msgspec calls decode_hook(), which calls the converter. A converter raises
InvalidValue to report violations; msgspec makes it the cause of its own ValidationError.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from msgspec import Struct

# `Any` in this file: annotations are arbitrary objects, and a converter returns anything.

# The longest message. msgspec quotes an invalid enum value completely, however long it is.
MAX_MESSAGE_CHARS = 300


class SchemaViolation(Struct, frozen=True):
    """One reason why a value is invalid by its schema.

    path: the place in the value, such as `items[2].name`; "" for the whole value.
    message: the expected and the actual value, such as `expected int, got str`.
    """

    path: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message}" if self.path else self.message


class InvalidValue(ValueError):
    """Raised by a converter that does not accept a value.

    violations: the reasons. Their paths are relative to the value.
    """

    def __init__(self, violations: list[SchemaViolation]) -> None:
        super().__init__("; ".join(map(str, violations)))
        self.violations = violations


class _CustomType(type):
    """Metaclass of the classes from custom_type().

    msgspec checks that a dec_hook returns an instance of the requested class. A converter may
    return anything, so every object counts as an instance.
    """

    def __instancecheck__(cls, instance: object) -> bool:
        return True


def custom_type(convert: Callable[[Any], Any]) -> Any:
    """Return a class that msgspec decodes by calling `convert` with the JSON value.

    convert: returns the value for the handler, or raises InvalidValue.
    """
    return _CustomType("CustomType", (), {"convert": staticmethod(convert)})


def decode_hook(expected: Any, value: Any) -> Any:
    """Convert a JSON value to a custom type, or to a path class of pathlib.

    msgspec calls this function for types that it does not know. It must be passed as `dec_hook` to
    every decoder whose type SchemaBuilder has made.
    expected: the type in the annotation.
    Raises InvalidValue if the value is not accepted.
    """
    if isinstance(expected, _CustomType):
        return cast("Any", expected).convert(value)

    # The only other classes that SchemaBuilder accepts derive from pathlib.PurePath.
    if not isinstance(value, str):
        got = type(value).__name__
        raise InvalidValue([SchemaViolation("", f"expected a path as str, got {got}")])
    return expected(value)


def violations_of(error: Exception, path: str) -> list[SchemaViolation]:
    """Return the violations that an exception of msgspec's decoder reports.

    Usually there is one, because msgspec stops at the first violation. If a converter has raised
    InvalidValue, there may be several.
    error: the exception, whose cause may be an InvalidValue.
    path: the place of the decoded value; "" for none. The paths of the violations begin with it.
    """
    # Imported here because a server without violations does not need it.
    from concertino.excerpts import shorten

    # msgspec writes the place at the end: "... - at `$.a[0]`", or "... - at `key` in `$.a`" if the
    # key of a mapping is invalid.
    text, has_place, place = str(error).rpartition(" - at `")
    if not has_place:
        text, place = str(error), ""
    key_label, is_key, mapping = place.partition("` in `")
    if is_key:
        place = mapping
    place = place.removeprefix("$").removesuffix("`")

    cause = error.__cause__
    if isinstance(cause, InvalidValue):
        return [
            SchemaViolation(_join(path, place + violation.path), violation.message)
            for violation in cause.violations
        ]

    # If there is no cause, the text is msgspec's own and is reworded. The text of an exception from
    # a user's class stays unchanged.
    if cause is None:
        text = text[:1].lower() + text[1:].replace("`", "")
    if is_key:
        text = f"{key_label}: {text}"
    return [SchemaViolation(_join(path, place), shorten(text, MAX_MESSAGE_CHARS))]


def _join(path: str, place: str) -> str:
    return path + place if path else place.removeprefix(".")
