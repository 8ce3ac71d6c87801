"""Values that msgspec cannot decode itself: each function here makes the `convert` of a stand-in class (schema.py).

A convert takes a JSON value, and gives the value for the handler or raises Refused. Imported when a handler first has such a type:
few have any.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Annotated, Any

import msgspec
from msgspec import Meta, json

from concertino.schema.type_schema import (
    SchemaViolation,
    UnsupportedType,
    decode_hook,
    violations_of,
)

__all__ = ["choice", "matching", "member_of", "validation"]

# `Any` in this file: annotations are arbitrary objects, JSON values are open trees.
MAX_PROBLEMS = 20  # of one argument; pydantic finds all
MAX_STEP = 80  # characters of a caller's key in a path


def choice(members: list[Any], strict: bool) -> Callable[[Any], Any]:
    """A union that msgspec refuses: the first member that takes the value has it."""

    def convert(value: Any) -> Any:
        messages: list[str] = []
        for member in members:
            try:
                return msgspec.convert(
                    value, member, strict=strict, dec_hook=decode_hook, str_keys=True
                )
            except msgspec.ValidationError as error:
                messages += [str(problem) for problem in violations_of(error, "")]
        raise UnsupportedType(
            [
                SchemaViolation(
                    "", "fits no member of the union: " + "; or ".join(dict.fromkeys(messages))
                )
            ]
        )

    return convert


def member_of(known: list[tuple[Any, Any]]) -> Callable[[Any], Any]:
    """One of these: pairs of what is written and what it stands for. By type and value: 1 is neither True nor 1.0."""

    def convert(value: Any) -> Any:
        for written, member in known:
            if type(value) is type(written) and value == written:
                return member
        raise UnsupportedType(
            [
                SchemaViolation(
                    "", f"expected one of {', '.join(json.encode(w).decode() for w, _ in known)}"
                )
            ]
        )

    return convert


def matching(pattern: str, others: dict[str, Any], why: str) -> Callable[[Any], Any]:
    """Takes a str that a linear engine finds the pattern in. others: the limits that go with it; why: of patterns.why_not_linear.

    Raises RegistrationError when there is no such engine.
    """
    from concertino.schema.regex_safety import linear  # nothing else here needs it

    matches = linear(pattern, why)
    kind = Annotated[str, Meta(**others)]

    def convert(value: Any) -> Any:
        try:
            text = msgspec.convert(value, kind)
        except msgspec.ValidationError as error:
            raise UnsupportedType(violations_of(error, "")) from None
        if not matches(text):
            raise UnsupportedType([SchemaViolation("", f"expected str matching regex {pattern!r}")])
        return text

    return convert


def validation(adapter: Any) -> Callable[[Any], Any]:
    """What pydantic takes. adapter: a TypeAdapter."""

    def convert(value: Any) -> Any:
        try:
            return adapter.validate_json(json.encode(value))
        except sys.modules["pydantic"].ValidationError as error:
            found: Any = error.errors(include_url=False, include_input=False)[:MAX_PROBLEMS]
            raise UnsupportedType(
                [SchemaViolation(_path(item["loc"]), item["msg"]) for item in found]
            ) from None

    return convert


def _path(steps: tuple[str | int, ...]) -> str:
    return "".join(
        f"[{step}]" if isinstance(step, int) else f".{step[:MAX_STEP]}" for step in steps
    )
