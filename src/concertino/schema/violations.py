"""Violations of a schema, and the hook that lets custom decoders take part in msgspec's decoding.

msgspec stops at the first error and words it its own way; violations_of() turns that into a path
and a plain message. A type that msgspec cannot decode is represented by a class from custom_type(),
which decode_hook() recognizes. A custom decoder reports its violations by raising InvalidValue;
msgspec keeps that exception as the cause of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from msgspec import Struct

# `Any` in this file: annotations are arbitrary objects, and a converter returns anything.

# msgspec quotes a refused enum value completely, however long it is.
MAX_MESSAGE_CHARS = 300


class SchemaViolation(Struct, frozen=True):
    """One way in which a value does not fit its schema.

    path: place in the value, such as `items[2].name`; "" for the whole value.
    message: what was expected and what came instead.
    """

    path: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message}" if self.path else self.message


class InvalidValue(ValueError):
    """A custom decoder does not accept a value. violations: every reason, paths relative to it."""

    def __init__(self, violations: list[SchemaViolation]) -> None:
        super().__init__("; ".join(map(str, violations)))
        self.violations = violations


class _CustomType(type):
    """Metaclass of the classes that represent a custom decoder.

    msgspec checks that a dec_hook returns an instance of the type it was asked for. A converter may
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
    """Convert a JSON value to a type that msgspec does not know: a custom type or a path class.

    Pass this as dec_hook to every decoder of a TypeSchema's type. Raises InvalidValue.
    """
    if isinstance(expected, _CustomType):
        return cast("Any", expected).convert(value)

    # SchemaBuilder lets no other classes through than those derived from pathlib.PurePath.
    if not isinstance(value, str):
        got = type(value).__name__
        raise InvalidValue([SchemaViolation("", f"expected a path as str, got {got}")])
    return expected(value)


def violations_of(error: Exception, path: str) -> list[SchemaViolation]:
    """Return the violations that a failed decode reports, as paths below `path`.

    There is one, the first that msgspec met; from a custom decoder there may be several.
    """
    # Servers start without a violation.
    from concertino.excerpts import shorten

    text, place = str(error), ""

    # msgspec names the place at the end: "... - at `$.a[0]`", or "... - at `key` in `$.a`" where a
    # key of a mapping is wrong.
    head, has_place, tail = text.rpartition(" - at `")
    first, is_key, rest = tail[:-1].partition("` in `") if has_place else ("", "", "")
    if has_place:
        text, place = head, (rest if is_key else first)[1:]

    cause = error.__cause__
    if isinstance(cause, InvalidValue):
        return [
            SchemaViolation(_join(path, place + violation.path), violation.message)
            for violation in cause.violations
        ]

    # Without a cause the text is msgspec's own; one of a user's class is passed on unchanged.
    if cause is None:
        text = text[:1].lower() + text[1:].replace("`", "")
    if is_key:
        text = f"{first}: {text}"
    return [SchemaViolation(_join(path, place), shorten(text, MAX_MESSAGE_CHARS))]


def _join(path: str, place: str) -> str:
    return path + place if path else place.removeprefix(".")
