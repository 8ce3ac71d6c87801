"""schema.py: what a type becomes. Schemas are written out by hand after JSON Schema 2020-12; every
one is checked against its meta-schema by `jsonschema`. Whether schema and decoder agree is
test_arguments.py's.
"""

# ruff: noqa: UP035 # the old names in typing are still written

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import pathlib
import re
import sys
import uuid
from collections import abc
from typing import (
    AbstractSet,
    Annotated,
    Any,
    Callable,
    Dict,
    Generic,
    Iterable,
    List,
    Literal,
    Mapping,
    MutableMapping,
    NamedTuple,
    Never,
    NewType,
    NotRequired,
    Optional,
    Required,
    Sequence,
    TypedDict,
    TypeVar,
    Union,
)

import annotated_types as at
import attrs
import jsonschema
import msgspec
import pydantic
import pytest
from msgspec import Meta, Raw, json

from concertino.errors import RegistrationError
from concertino.schema.type_schema import SchemaBuilder, TypeSchema
from concertino.schema.violations import decode_hook, violations_of


class Color(enum.Enum):
    RED = "r"
    BLUE = "b"


class Size(enum.IntEnum):
    S = 1
    L = 2


class Odd(enum.Enum):
    HALF = 1.5
    TEXT = "x"
    PAIR = (1, 2)
    TRUE = True


@dataclasses.dataclass
class Item:
    """A thing."""

    name: str
    where: pathlib.PurePath | None = None


@dataclasses.dataclass
class Node:
    value: int
    children: list[Node] = dataclasses.field(default_factory=list)


class Movie(TypedDict):
    title: Required[str]
    year: NotRequired[int]


class Point(NamedTuple):
    x: int
    y: int = 0


class Strict(msgspec.Struct, forbid_unknown_fields=True):
    a: int


@attrs.define
class Attrs:
    a: int


class Address(pydantic.BaseModel):
    zip: str


class Person(pydantic.BaseModel):
    name: str
    homes: list[Address] = []


@dataclasses.dataclass
class Owner:
    person: Person


@dataclasses.dataclass
class Unionised:
    when: datetime.datetime | str


@dataclasses.dataclass
class Defaulted:
    where: pathlib.PurePath = pathlib.PurePath(".")  # noqa: RUF009


@dataclasses.dataclass
class Lost:
    where: Nowhere  # noqa: F821 # pyright: ignore


T = TypeVar("T")
Bound = TypeVar("Bound", bound=int)
Either = TypeVar("Either", int, str)
UserId = NewType("UserId", int)


@dataclasses.dataclass
class Box(Generic[T]):
    content: T


def form(t: Any, **options: bool) -> tuple[TypeSchema, dict[str, Any]]:
    builder = SchemaBuilder(**options)
    made = builder.build(t)
    jsonschema.Draft202012Validator.check_schema({**made.schema, "$defs": builder.definitions})
    return made, builder.definitions


def schema(t: Any, **options: bool) -> dict[str, Any]:
    return form(t, **options)[0].schema


def decode(t: Any, text: str, **options: bool) -> Any:
    return json.decode(text.encode(), type=form(t, **options)[0].type, dec_hook=decode_hook)


def problems(t: Any, text: str) -> list[str]:
    with pytest.raises(msgspec.ValidationError) as caught:
        decode(t, text)
    return [str(problem) for problem in violations_of(caught.value, "")]


STRING = {"type": "string"}
INTEGER = {"type": "integer"}
NULL = {"type": "null"}

SCHEMAS: list[tuple[Any, dict[str, Any]]] = [
    (str, STRING),
    (int, INTEGER),
    (float, {"type": "number"}),
    (bool, {"type": "boolean"}),
    (None, NULL),
    (type(None), NULL),
    (Any, {}),
    (object, {}),
    (Raw, {}),
    (bytes, {"type": "string", "contentEncoding": "base64"}),
    (datetime.datetime, {"type": "string", "format": "date-time"}),
    (datetime.date, {"type": "string", "format": "date"}),
    (datetime.time, {"type": "string", "format": "time"}),
    (datetime.timedelta, {"type": "string", "format": "duration"}),
    (uuid.UUID, {"type": "string", "format": "uuid"}),
    (decimal.Decimal, {"type": "string", "format": "decimal"}),
    (pathlib.Path, {"type": "string", "format": "path"}),
    (Optional[int], {"anyOf": [INTEGER, NULL]}),  # noqa: UP045
    (int | str | None, {"anyOf": [INTEGER, STRING, NULL]}),
    (Union[datetime.datetime, str], {"anyOf": [{"type": "string", "format": "date-time"}, STRING]}),  # noqa: UP007
    (Literal["a", "b"], {"type": "string", "enum": ["a", "b"]}),
    (Literal[1, "a", None], {"enum": [1, "a", None]}),
    (Literal[Color.RED, 2], {"enum": ["r", 2]}),
    (Color, {"type": "string", "enum": ["r", "b"]}),
    (Size, {"type": "integer", "enum": [1, 2]}),
    (Odd, {"enum": [1.5, "x", [1, 2], True]}),
    (list, {"type": "array"}),
    (List, {"type": "array"}),  # noqa: UP006
    (list[Any], {"type": "array"}),
    (list[int], {"type": "array", "items": INTEGER}),
    (Sequence[int], {"type": "array", "items": INTEGER}),
    (Iterable[int], {"type": "array", "items": INTEGER}),
    (abc.Collection[int], {"type": "array", "items": INTEGER}),
    (tuple, {"type": "array"}),
    (tuple[int, ...], {"type": "array", "items": INTEGER}),
    (
        tuple[int, str],
        {
            "type": "array",
            "prefixItems": [INTEGER, STRING],
            "items": False,
            "minItems": 2,
            "maxItems": 2,
        },
    ),
    (set[int], {"type": "array", "uniqueItems": True, "items": INTEGER}),
    (frozenset, {"type": "array", "uniqueItems": True}),
    (AbstractSet[str], {"type": "array", "uniqueItems": True, "items": STRING}),
    (dict, {"type": "object"}),
    (Dict[str, Any], {"type": "object"}),  # noqa: UP006
    (dict[Any, int], {"type": "object", "additionalProperties": INTEGER}),
    (Mapping[str, int], {"type": "object", "additionalProperties": INTEGER}),
    (
        MutableMapping[str, list[int]],
        {"type": "object", "additionalProperties": {"type": "array", "items": INTEGER}},
    ),
    (
        dict[int, str],
        {
            "type": "object",
            "propertyNames": {"pattern": "^-?(0|[1-9][0-9]*)$"},
            "additionalProperties": STRING,
        },
    ),
    (dict[Color, Any], {"type": "object", "propertyNames": {"enum": ["r", "b"]}}),
    (
        dict[Annotated[str, at.MinLen(2)], Any],
        {"type": "object", "propertyNames": {"minLength": 2}},
    ),
    (UserId, INTEGER),
    (T, {}),
    (Bound, INTEGER),
    (Either, {"anyOf": [INTEGER, STRING]}),
    (Item, {"$ref": "#/$defs/Item"}),
    (Annotated[int, "How many."], {"type": "integer", "description": "How many."}),
    (Annotated[Item, "Which."], {"$ref": "#/$defs/Item", "description": "Which."}),
    (Annotated[int, at.Ge(1), at.Lt(9)], {"type": "integer", "minimum": 1, "exclusiveMaximum": 9}),
    (
        Annotated[float, at.Gt(0.5), at.Le(9)],
        {"type": "number", "exclusiveMinimum": 0.5, "maximum": 9},
    ),
    (Annotated[int, at.Interval(ge=1, le=9)], {"type": "integer", "minimum": 1, "maximum": 9}),
    (Annotated[int, at.MultipleOf(5)], {"type": "integer", "multipleOf": 5}),
    (Annotated[str, at.Len(1, 3)], {"type": "string", "minLength": 1, "maxLength": 3}),
    (Annotated[list[int], at.MinLen(1)], {"type": "array", "items": INTEGER, "minItems": 1}),
    (
        Annotated[dict[str, int], at.MaxLen(3)],
        {"type": "object", "additionalProperties": INTEGER, "maxProperties": 3},
    ),
    (Annotated[int, at.Predicate(bool)], INTEGER),
    (Annotated[int | None, at.Ge(0)], {"anyOf": [{"type": "integer", "minimum": 0}, NULL]}),
    (
        Annotated[int | Annotated[str, at.MaxLen(2)], at.Ge(0)],
        {"anyOf": [{"type": "integer", "minimum": 0}, {"type": "string", "maxLength": 2}]},
    ),
    (
        Annotated[list[Annotated[int, at.Ge(0)]], at.MaxLen(2)],
        {"type": "array", "items": {"type": "integer", "minimum": 0}, "maxItems": 2},
    ),
    (
        Annotated[
            str,
            Meta(
                pattern="^a",
                title="A",
                description="D",
                examples=["ab"],
                extra_json_schema={"x-y": 1},
            ),
        ],
        {
            "type": "string",
            "pattern": "^a",
            "title": "A",
            "description": "D",
            "examples": ["ab"],
            "x-y": 1,
        },
    ),
    (Annotated[datetime.datetime, Meta(tz=True)], {"type": "string", "format": "date-time"}),
    (
        Annotated[int, pydantic.Field(ge=1, title="N", description="D", examples=[2])],
        {"type": "integer", "minimum": 1, "title": "N", "description": "D", "examples": [2]},
    ),
    (
        Annotated[str, pydantic.Field(pattern=re.compile("^a"), max_length=3)],
        {"type": "string", "pattern": "^a", "maxLength": 3},
    ),
]


@pytest.mark.parametrize(("t", "expected"), SCHEMAS, ids=[str(t) for t, _ in SCHEMAS])
def test_schema_of(t: Any, expected: dict[str, Any]) -> None:
    assert schema(t) == expected


def test_a_documentation_object_describes() -> None:
    doc = type("Doc", (), {"documentation": "How many."})()  # as typing_extensions.Doc
    assert schema(Annotated[int, doc]) == {"type": "integer", "description": "How many."}


def test_fixed_schemas_are_not_shared() -> None:
    schema(str)["description"] = "mine"
    schema(list)["description"] = "mine"
    schema(pathlib.Path)["description"] = "mine"
    assert schema(str) == STRING
    assert schema(list) == {"type": "array"}


def test_classes_become_definitions() -> None:
    made, definitions = form(dict[str, Item] | list[Node] | None)
    assert made.schema == {
        "anyOf": [
            {"type": "object", "additionalProperties": {"$ref": "#/$defs/Item"}},
            {"type": "array", "items": {"$ref": "#/$defs/Node"}},
            NULL,
        ]
    }
    assert definitions == {
        "Item": {
            "title": "Item",
            "description": "A thing.",
            "type": "object",
            "properties": {
                "name": STRING,
                "where": {"anyOf": [{"type": "string", "format": "path"}, NULL], "default": None},
            },
            "required": ["name"],
        },
        "Node": {
            "title": "Node",
            "type": "object",
            "properties": {
                "value": INTEGER,
                "children": {"type": "array", "items": {"$ref": "#/$defs/Node"}},
            },
            "required": ["value"],
        },
    }


@pytest.mark.parametrize(
    ("t", "text", "value"),
    [
        (Movie, '{"title": "x"}', {"title": "x"}),
        (Point, "[1]", Point(1)),
        (Strict, '{"a": 1}', Strict(1)),
        (Attrs, '{"a": 1}', Attrs(1)),
        (Box[int], '{"content": 1}', Box(1)),
        (Item, '{"name": "x", "where": "/a"}', Item("x", pathlib.PurePath("/a"))),
        (Odd, "1.5", Odd.HALF),
        (Odd, "[1, 2]", Odd.PAIR),
        (Odd, "true", Odd.TRUE),
        (Literal[Color.RED, 2], '"r"', Color.RED),
        (datetime.datetime | str, '"2020-01-01T00:00:00"', datetime.datetime(2020, 1, 1)),
        (datetime.datetime | str, '"soon"', "soon"),
        (str | datetime.datetime, '"2020-01-01T00:00:00"', "2020-01-01T00:00:00"),
        (Item | Node | None, '{"value": 1}', Node(1)),
        (Item | Node | None, "null", None),
        (
            list[datetime.date | Color],
            '["r", "2020-01-01"]',
            [Color.RED, datetime.date(2020, 1, 1)],
        ),
        (dict[int, Item | Node], '{"1": {"name": "x"}}', {1: Item("x")}),
        (tuple[Item | Node, int], '[{"value": 1}, 2]', (Node(1), 2)),
        (pathlib.Path | int, '"a"', pathlib.Path("a")),
        (dict[pathlib.Path, int], '{"a": 1}', {pathlib.Path("a"): 1}),
        (
            Person,
            '{"name": "x", "homes": [{"zip": "1"}]}',
            Person(name="x", homes=[Address(zip="1")]),
        ),
        (list[Person] | None, '[{"name": "x"}]', [Person(name="x")]),
        (Owner, '{"person": {"name": "x"}}', Owner(Person(name="x"))),
        (Annotated[str, pydantic.AfterValidator(str.upper)], '"x"', "X"),
        (object, "1.5", 1.5),
    ],
    ids=str,
)
def test_decodes(t: Any, text: str, value: Any) -> None:
    assert decode(t, text) == value


def test_an_integer_union_member_takes_text_when_coerced() -> None:
    assert decode(datetime.date | Color | int, '"7"', coerce=True) == 7
    assert problems(datetime.datetime | Color, "7") == [
        "fits no member of the union: expected datetime, got int; or expected str, got int"
    ]


@pytest.mark.parametrize(
    ("t", "text", "expected"),
    [
        (int, '"x"', ["expected int, got str"]),
        (
            list[Node],
            '[{"value": 1, "children": [{"value": "x"}]}]',
            ["[0].children[0].value: expected int, got str"],
        ),
        (Item, '{"name": 1}', ["name: expected str, got int"]),
        (Item, '{"name": "x", "where": 1}', ["where: expected a path as str, got int"]),
        (dict[int, int], '{"x": 1}', ["key: expected int, got str"]),
        (list[dict[int, int]], '[{"x": 1}]', ["[0]: key: expected int, got str"]),
        (dict[str, int], '{"x": "y"}', ["[...]: expected int, got str"]),
        (Odd, '"y"', ['expected one of 1.5, "x", [1,2], true']),
        (Odd, "1", ['expected one of 1.5, "x", [1,2], true']),
        (list[Odd], '["y"]', ['[0]: expected one of 1.5, "x", [1,2], true']),
        (
            pathlib.Path | int,
            "null",
            [
                "fits no member of the union: expected a path as str, got NoneType; or "
                "expected int, got null"
            ],
        ),
        (
            dict[str, list[Person]],
            '{"a": [{"name": 1}, {}]}',
            ["a[0].name: Input should be a valid string", "a[1].name: Field required"],
        ),
        (Literal["a"], '"' + "b" * 1000 + '"', ["invalid enum value '" + "b" * 280 + "..."]),
    ],
    ids=str,
)
def test_problems_say_where(t: Any, text: str, expected: list[str]) -> None:
    assert problems(t, text) == expected


def test_texts_of_users_classes_are_kept() -> None:
    @dataclasses.dataclass
    class Even:
        n: int

        def __post_init__(self) -> None:
            if self.n % 2:
                raise ValueError("Not `even`")

    Even.__annotations__["n"] = int
    assert problems(list[Even], '[{"n": 1}]') == ["[0]: Not `even`"]


def test_two_classes_of_one_name_get_two_definitions() -> None:
    def movie(annotation: Any) -> Any:
        return msgspec.defstruct("Movie", [("inner", annotation)])

    builder = SchemaBuilder()
    first, second, again = movie(Strict), movie(Attrs), movie(list[Strict])
    schemas = [builder.build(t).schema for t in (first, second, first, again)]
    assert schemas == [
        {"$ref": "#/$defs/Movie"},
        {"$ref": "#/$defs/2.Movie"},
        {"$ref": "#/$defs/Movie"},
        {"$ref": "#/$defs/4.Movie"},
    ]
    assert builder.definitions["2.Movie"]["properties"] == {"inner": {"$ref": "#/$defs/2.Attrs"}}
    assert builder.definitions["4.Movie"]["properties"]["inner"]["items"] == {
        "$ref": "#/$defs/4.Strict"
    }


def test_pydantic_definitions_are_hoisted_and_renamed_too() -> None:
    other = pydantic.create_model("Address", street=(str, ...))
    builder = SchemaBuilder()
    builder.build(list[Address])
    form = builder.build(list[other])
    assert form.schema == {"type": "array", "items": {"$ref": "#/$defs/1.Address"}}
    assert form.adapter is not None
    assert set(builder.definitions) == {"Address", "1.Address"}


def test_promised_schemas_leave_out_formats_that_output_may_not_meet() -> None:
    @dataclasses.dataclass
    class Times:
        format: str
        default: datetime.timedelta
        day: datetime.date
        span: datetime.timedelta = datetime.timedelta()

    Times.__annotations__.update(
        format=str, default=datetime.timedelta, day=datetime.date, span=datetime.timedelta
    )
    made, definitions = form(tuple[Times, datetime.datetime | None], for_results=True)
    assert made.schema["prefixItems"] == [{"$ref": "#/$defs/Times"}, {"anyOf": [STRING, NULL]}]
    assert definitions["Times"]["properties"] == {
        "format": STRING,
        "default": STRING,
        "day": {"type": "string", "format": "date"},
        "span": {"type": "string", "default": "P0D"},
    }
    assert schema(datetime.datetime, for_results=True) == STRING
    assert schema(Literal["format"], for_results=True) == {"type": "string", "enum": ["format"]}


def test_pydantic_promises_what_it_writes() -> None:
    class Computed(pydantic.BaseModel):
        a: int

        @pydantic.computed_field
        @property
        def b(self) -> int:
            return 1

    assert set(schema(Computed, for_results=True)["properties"]) == {"a", "b"}
    assert set(schema(Computed)["properties"]) == {"a"}


@pytest.mark.parametrize(
    ("t", "text"),
    [
        (complex, "complex is not supported; write a dataclass, TypedDict"),
        (Callable, "Callable is not supported; write"),
        (list[complex], "complex is not supported; write"),
        (5, "5 is not supported: Type '5' is not supported"),
        ([int], "is not supported: unhashable type"),
        (Never, "is not supported"),
        (
            Unionised,
            "Unionised is not supported: Type unions may not .* but not of a field of a class",
        ),
        (enum.Enum("Empty", []), "Empty is not supported: Enum types must have at least one item"),
        (Defaulted, "Encoding objects of type .* is unsupported; .* write default_factory=lambda"),
        (Lost, "Lost: name 'Nowhere' is not defined; define the name at module level"),
        (dict[float, int], "float cannot be a key in JSON; write str"),
        (dict[Item, int], "Item cannot be a key"),
        (Annotated[Item, at.Ge(1)], "ge does not fit Item"),
        (Annotated[str, at.Ge(1), at.MultipleOf(2)], "ge, multiple_of does not fit str"),
        (Annotated[bytes, at.MinLen(1)], "min_length does not fit bytes"),
        (Annotated[int, at.Ge(0.5)], "is not supported: 'float' object"),
        (Annotated[int, at.Ge("x")], "`ge` must be an int or float"),
        (Annotated[int, at.Ge(2**70)], "don't fit in an int64"),
        (
            list[Annotated[Strict, pydantic.AfterValidator(repr)]],
            "not supported by pydantic: Unable to generate",
        ),
        (tuple[Person, Strict], "not supported by pydantic"),
    ],
    ids=str,
)
def test_unsupported_types_are_refused_with_a_way_out(t: Any, text: str) -> None:
    with pytest.raises(RegistrationError, match=text):
        SchemaBuilder().build(t)


def test_pydantic_classes_are_nothing_special_without_pydantic(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delitem(sys.modules, "pydantic")
    with pytest.raises(RegistrationError, match="Person is not supported; write"):
        SchemaBuilder().build(Person)
    validator = pydantic.AfterValidator(str.upper)
    assert SchemaBuilder().build(Annotated[str, validator]).schema == STRING


@pytest.mark.skipif(sys.version_info < (3, 12), reason="the `type` statement is 3.12's")
def test_type_aliases() -> None:
    scope: dict[str, Any] = {}
    exec(
        "type Name = str\ntype Pair[T] = tuple[T, T]\ntype Json = list[Json]\ntype Lost = Nowhere",
        scope,
    )
    assert schema(scope["Name"]) == STRING
    assert schema(scope["Pair"][int])["prefixItems"] == [INTEGER, INTEGER]
    with pytest.raises(RegistrationError, match="Json contains itself; write Any in its place"):
        SchemaBuilder().build(scope["Json"])
    with pytest.raises(RegistrationError, match="Lost: name 'Nowhere' is not defined"):
        SchemaBuilder().build(scope["Lost"])


class Alias:
    """Stands for a TypeAliasType where there is none (3.11)."""

    def __init__(self, value: Any) -> None:
        self.__value__ = value

    def __call__(self) -> None: ...


def test_type_aliases_by_their_shape() -> None:
    assert schema(Alias(int)) == INTEGER
    recursive = Alias(None)
    recursive.__value__ = list[recursive]  # pyright: ignore
    with pytest.raises(RegistrationError, match="contains itself"):
        SchemaBuilder().build(recursive)


def test_generic_aliases_by_their_shape() -> None:
    class Pair(Generic[T]):
        __value__ = list[T]

    assert schema(Pair[int]) == {"type": "array", "items": INTEGER}


# Patterns that `re` could take very long for

SLOW = "^(a+)+$"


@dataclasses.dataclass
class Slow:
    quick: Annotated[str, Meta(pattern="^a+$")]
    slow: Annotated[str, Meta(pattern=SLOW)]


@dataclasses.dataclass
class Quick:
    quick: Annotated[str, Meta(pattern="^a+$")]


def read(form: TypeSchema, text: str) -> Any:
    return json.decode(text, type=form.type, dec_hook=decode_hook)


@pytest.mark.parametrize(
    ("annotation", "schema", "good", "bad"),
    [
        (Annotated[str, Meta(pattern=SLOW)], {"type": "string", "pattern": SLOW}, "aa", "aab"),
        (
            Annotated[str, Meta(pattern=SLOW, max_length=2)],
            {"type": "string", "pattern": SLOW, "maxLength": 2},
            "aa",
            "aaa",
        ),
        (
            Annotated[str, Meta(pattern=SLOW)] | None,
            {"anyOf": [{"type": "string", "pattern": SLOW}, {"type": "null"}]},
            None,
            5,
        ),
        (
            list[Annotated[str, Meta(pattern=SLOW)]],
            {"type": "array", "items": {"type": "string", "pattern": SLOW}},
            ["a"],
            ["b"],
        ),
        (
            Annotated[str | int, Meta(pattern=SLOW)],
            {"anyOf": [{"type": "string", "pattern": SLOW}, {"type": "integer"}]},
            5,
            "b",
        ),
        (
            dict[Annotated[str, Meta(pattern=SLOW)], int],
            {"type": "object", "propertyNames": {"pattern": SLOW}},
            {"a": 1},
            {"b": 1},
        ),
        (
            Annotated[str, pydantic.Field(pattern=SLOW)],
            {"type": "string", "pattern": SLOW},
            "aa",
            "aab",
        ),
        (
            Annotated[list[Annotated[str, pydantic.Field(pattern=SLOW)]], Meta(min_length=1)],
            {"type": "array", "items": {"type": "string", "pattern": SLOW}},
            ["a"],
            ["b"],
        ),
    ],
)
def test_a_slow_pattern_is_matched_by_a_linear_engine(
    annotation: Any, schema: dict[str, Any], good: Any, bad: Any
) -> None:
    form = SchemaBuilder().build(annotation)
    assert form.schema.items() >= schema.items()
    assert read(form, json.encode(good).decode()) == good
    with pytest.raises(msgspec.ValidationError):
        read(form, json.encode(bad).decode())


def test_a_slow_pattern_takes_its_time_from_nobody() -> None:
    """Python's own `re` needs 2 ** 30,000 steps for this."""
    for annotation in (
        Annotated[str, Meta(pattern=SLOW)],
        Annotated[str, pydantic.Field(pattern=SLOW)],
    ):
        with pytest.raises(msgspec.ValidationError):
            read(SchemaBuilder().build(annotation), f'"{"a" * 30_000}!"')


def test_what_does_not_match_a_slow_pattern_is_told_as_any_other() -> None:
    told = list[str]()
    for pattern in (SLOW, "^a+$"):
        form = SchemaBuilder().build(Annotated[str, Meta(pattern=pattern, max_length=3)])
        for text in ('"b"', "5", '"aaaa"'):
            with pytest.raises(msgspec.ValidationError) as raised:
                read(form, text)
            told += [
                str(problem).replace(pattern, "...") for problem in violations_of(raised.value, "x")
            ]
    assert (
        told[:3]
        == told[3:]
        == [
            "x: expected str matching regex '...'",
            "x: expected str, got int",
            "x: expected str of length <= 3",
        ]
    )


def test_a_slow_pattern_without_the_linear_engine_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "jsonschema_rs", None)
    with pytest.raises(RegistrationError, match=r"pip install .*\[validate\]'"):
        SchemaBuilder().build(Annotated[str, Meta(pattern=SLOW)])
    SchemaBuilder().build(Annotated[str, Meta(pattern="^a+$")])
    SchemaBuilder().build(Annotated[str, pydantic.Field(pattern=SLOW)])


def test_a_slow_pattern_of_a_field_is_refused_by_its_name() -> None:
    with pytest.raises(RegistrationError, match=r"^Slow\.slow: the pattern"):
        SchemaBuilder().build(list[Slow])
    builder = SchemaBuilder()
    assert builder.build(Quick).schema == builder.build(Quick).schema == {"$ref": "#/$defs/Quick"}
