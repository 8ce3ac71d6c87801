"""arguments.bind: any JSON text becomes arguments of the handler's types, where its schema allows
them, or BadArguments.

Input: one byte that chooses a handler, then the arguments as JSON text. Each handler below says in
plain Python what it may be called with; what the schema allows is asked of a JSON Schema validator,
and both must agree but for what `_is_meant` says.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypedDict, cast

import msgspec
from msgspec import Meta

from concertino.schema.arguments import ArgumentDecoder, InvalidArguments, argument_decoder
from fuzz.messages import strict

__all__ = ["MAX_BYTES", "TOKENS", "one"]

MAX_BYTES = 512
TOKENS = (
    *(
        b'{"a":',
        b'"b":',
        b'"name":',
        b'"size":',
        b'"tags":[',
        b'"x":',
        b'"y":',
        b"1.0",
        b"-1",
        b"1e2",
        b"9007199254740992.0",
        b"1e16",
    ),
    *(
        b"true",
        b"false",
        b"null",
        b'"red"',
        b'"1"',
        b'"\\ud800"',
        b"1e400",
        b"18446744073709551616",
        b'"aa"',
        b"NaN",
        b"-0.0",
        b"{}",
    ),
)


class Colour(enum.Enum):
    """An enum of text."""

    RED = "red"
    BLUE = "blue"


class Mixed(enum.Enum):
    """An enum that msgspec does not know."""

    ONE = 1
    TRUE = True
    TEXT = "one"


@dataclass
class Item:
    """A class with a required, an optional and a nested member."""

    name: str
    size: int = 0
    tags: list[str] | None = None


class Movie(TypedDict, total=False):
    """Open to nothing but these."""

    title: str
    year: int


class Point(msgspec.Struct):
    """msgspec's own."""

    x: float
    y: int | str


def plain(a: int, b: str = "b", c: bool = False, d: float = 0.5) -> None:
    """The common case."""
    assert type(a) is int
    assert type(b) is str
    assert type(c) is bool
    assert type(d) is float


def lists(a: list[int], b: dict[str, float] | None = None, c: tuple[int, str] = (0, "")) -> None:
    """Containers."""
    assert type(a) is list
    assert all(type(item) is int for item in a)
    assert b is None or all(type(key) is str and type(value) is float for key, value in b.items())
    assert type(c) is tuple
    assert (type(c[0]), type(c[1])) == (int, str)


def classes(a: Item, b: Point | None = None, c: Movie | None = None) -> None:
    """Classes of three kinds."""
    assert type(a) is Item
    assert type(a.name) is str
    assert type(a.size) is int
    assert a.tags is None or all(type(tag) is str for tag in a.tags)
    assert b is None or (type(b.x) is float and type(b.y) in (int, str))
    assert c is None or (type(c.get("title", "")) is str and type(c.get("year", 0)) is int)


def choices(
    a: Literal["x", 1, None],
    b: Colour = Colour.RED,
    c: Mixed = Mixed.ONE,
    d: Item | Point | int = 0,
) -> None:
    """Values out of a list, and a union that msgspec refuses."""
    assert a is None or (type(a), a) in ((str, "x"), (int, 1))
    assert type(b) is Colour
    assert type(c) is Mixed
    assert type(d) in (Item, Point, int)


def bounded(
    a: Annotated[int, Meta(ge=-2, lt=100)],
    b: Annotated[str, Meta(min_length=1, max_length=3, pattern="^[a-c]+$")] = "a",
    c: Annotated[list[Annotated[float, Meta(gt=0)]], Meta(max_length=2)] = [],  # noqa: B006 # it is not changed
) -> None:
    """Constraints."""
    assert -2 <= a < 100
    assert 1 <= len(b) <= 3
    assert not b.strip("abc")
    assert len(c) <= 2
    assert all(item > 0 for item in c)


def anything(
    a: Any = None, b: object = None, *, c: dict[str, Any] | list[Any] | None = None
) -> None:
    """What is not looked at; and an argument by keyword."""
    assert c is None or type(c) in (dict, list)


def nothing() -> None:
    """No arguments at all."""


Handler = Callable[..., None]
HANDLERS: tuple[Handler, ...] = (plain, lists, classes, choices, bounded, anything, nothing)
READ: tuple[ArgumentDecoder, ...] = tuple(argument_decoder(handler) for handler in HANDLERS)
Validator = Callable[[object], bool]


DIALECT = "https://json-schema.org/draft/2020-12/schema"
try:
    from jsonschema_rs import validator_for as _validator
except ImportError:  # a hundred times slower, and of the same opinion
    from jsonschema.validators import validator_for as _class_for

    def _validator(schema: dict[str, Any]) -> Any:
        return _class_for(schema)(schema)


validators: tuple[Validator, ...] = tuple(
    _validator({**item.schema, "$schema": DIALECT}).is_valid for item in READ
)


def one(data: bytes) -> None:
    """See the head of this file."""
    if not data:
        return
    which = data[0] % len(HANDLERS)
    handler, arguments, raw = HANDLERS[which], READ[which], data[1:]
    try:
        args, kwargs = arguments.bind(raw, None)
    except InvalidArguments as bad:
        _check_complaint(bad, arguments, raw)
        accepted = False
    else:
        handler(*args, **kwargs)
        accepted = True
    if not raw:
        assert accepted is ("required" not in arguments.schema), (
            "no arguments are no error where none is required"
        )
        return
    try:
        given = strict(raw)
        str(raw, "utf-8")  # without the byte order mark that a frame may begin with
    except (ValueError, RecursionError):
        # The peer has refused such a frame before: members kept raw are taken for the JSON they are
        # known to be.
        return
    allowed = validators[which](given)
    if allowed != accepted:
        assert _is_meant(given, accepted=accepted), (
            f"the schema says {allowed}, bind {accepted}: {raw!r}"
        )


def _check_complaint(bad: InvalidArguments, arguments: ArgumentDecoder, raw: bytes) -> None:
    """Every problem names a place that exists, and says something."""
    assert bad.violations
    names = set(arguments.schema.get("properties", ()))
    try:
        given = strict(raw)
    except (ValueError, RecursionError):
        given = None
    if isinstance(given, dict):
        names |= {name[:80] for name in cast("dict[str, object]", given)}
    for problem in bad.violations:
        assert problem.message
        assert len(problem.message) < 1000, f"{len(problem.message)} characters of message"
        if problem.path and given is not None:
            # A name may hold dots and brackets itself, so the path is not taken apart.
            assert any(problem.path.startswith(name) for name in names), (
                f"{problem.path!r} is nowhere in {raw!r}"
            )


def _is_meant(given: object, *, accepted: bool) -> bool:
    """Whether schema and decoder are meant to differ here.

    Only refusals: nothing is accepted that the schema forbids.
    """
    return not accepted and any(_numbers(given))


def _numbers(value: object) -> list[float]:
    """The numbers in a value that are integers to JSON Schema, and that Python cannot hold exactly
    as such or at all:
    integral floats beyond 2**53, and what overflows (1e400)."""
    if type(value) is float:
        return [1.0] if abs(value) > 2**53 else []
    if isinstance(value, list):
        return [found for item in cast("list[object]", value) for found in _numbers(item)]
    if isinstance(value, dict):
        return [
            found for item in cast("dict[str, object]", value).values() for found in _numbers(item)
        ]
    return []
