"""arguments.py: binding, problems, and whether the decoder and the published schema agree.

The differential test asks `jsonschema` about the same values. Where the two differ on purpose
stands in LENIENT and NARROW, and for numbers in test_numbers_that_differ.
"""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import functools
import json
import math
import pathlib
import re
import uuid
from collections.abc import Callable
from typing import Annotated, Any, Literal, NamedTuple, TypedDict

import annotated_types as at
import jsonschema
import msgspec
import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from concertino.errors import ConcertinoError, RegistrationError
from concertino.schema.arguments import ArgumentDecoder, InvalidArguments, argument_decoder


class Context: ...


class Color(enum.Enum):
    RED = "r"
    BLUE = "b"


@dataclasses.dataclass
class Item:
    name: str
    size: int = 1


class Movie(TypedDict, total=False):
    title: str


class Point(NamedTuple):
    x: int
    y: int = 0


class Struct(msgspec.Struct):
    a: int | None = None


def taking(annotation: Any, **options: Any) -> ArgumentDecoder:
    def handler(x: Any) -> None: ...

    handler.__annotations__["x"] = annotation
    return argument_decoder(handler, **options)


def problems(arguments: ArgumentDecoder, raw: bytes) -> list[tuple[str, str]]:
    with pytest.raises(InvalidArguments) as caught:
        arguments.bind(raw, None)
    return [(problem.path, problem.message) for problem in caught.value.violations]


def test_a_simple_handler() -> None:
    def search(
        query: str, limit: int = 10, *, exact: bool = False, tags: list[str] | None = None
    ) -> str: ...

    arguments = argument_decoder(
        search, descriptions={"query": "What to look for.", "other": "Not there."}
    )
    assert arguments.schema == {
        "type": "object",
        "properties": {
            "query": {"type": "string", "description": "What to look for."},
            "limit": {"type": "integer", "default": 10},
            "exact": {"type": "boolean", "default": False},
            "tags": {
                "anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "null"}],
                "default": None,
            },
        },
        "required": ["query"],
        "additionalProperties": False,
    }
    assert arguments.injected == ()
    assert arguments.bind(b'{"query": "x"}', None) == (("x", 10), {"exact": False, "tags": None})
    assert arguments.bind(msgspec.Raw(b'{"tags":["a"],"limit":1,"query":"x"}'), None) == (
        ("x", 1),
        {"exact": False, "tags": ["a"]},
    )


@pytest.mark.requirement("TO-6")
def test_no_parameters() -> None:
    arguments = argument_decoder(lambda: None)
    assert arguments.schema == {"type": "object", "additionalProperties": False}  # TO-6
    for raw in (b"", msgspec.Raw(), b"{}", msgspec.Raw(b" {} ")):
        assert arguments.bind(raw, None) == ((), {})
    assert problems(arguments, b'{"a": 1}') == [("a", "unknown argument; it takes no arguments")]


def test_the_annotations_description_comes_first() -> None:
    def handler(a: Annotated[int, "From the annotation."]) -> None: ...

    schema = argument_decoder(handler, descriptions={"a": "From the docstring."}).schema
    assert schema["properties"]["a"]["description"] == "From the annotation."


def test_definitions_stand_at_the_root() -> None:
    schema = taking(list[Item]).schema
    assert schema["properties"] == {"x": {"type": "array", "items": {"$ref": "#/$defs/Item"}}}
    assert list(schema["$defs"]) == ["Item"]


def test_injected_parameters_are_passed_and_not_published() -> None:
    def first(ctx: Context, a: int) -> None: ...
    def middle(a: int, ctx: Context | None, b: int = 2) -> None: ...
    def keyword(a: int, *, ctx: Context | None = None, b: int = 2) -> None: ...
    def twice(one: Context, a: int, two: Context, *, b: int, three: Context) -> None: ...
    def only(ctx: Context) -> None: ...

    context = Context()
    for handler, raw, expected, injected in (
        (first, b'{"a":1}', ((context, 1), {}), ("ctx",)),
        (middle, b'{"a":1.0}', ((1, context, 2), {}), ("ctx",)),
        (keyword, b'{"a":1}', ((1,), {"ctx": context, "b": 2}), ("ctx",)),
        (
            twice,
            b'{"a":1,"b":2}',
            ((context, 1, context), {"b": 2, "three": context}),
            ("one", "two", "three"),
        ),
        (only, b"", ((context,), {}), ("ctx",)),
    ):
        arguments = argument_decoder(handler, inject=(Context,))
        assert arguments.bind(raw, context) == expected
        assert arguments.injected == injected
        assert not set(injected) & set(arguments.schema.get("properties", ()))
        assert handler(*expected[0], **expected[1]) is None  # Python takes them so


def test_bound_arguments_fit_methods_and_partials() -> None:
    class Adder:
        def add(self, a: int, b: int = 2) -> int:
            return a + b

        @classmethod
        def cls_add(cls, a: int, /, *, b: int) -> int:
            return a + b

        def __call__(self, a: int, b: int) -> int:
            return a + b

    handlers: list[Callable[..., int]] = [
        Adder().add,
        Adder.cls_add,
        Adder(),
        functools.partial(Adder().add, b=2),
        functools.partial(Adder().add, 1),
    ]
    for handler in handlers:
        arguments = argument_decoder(handler)
        given = json.dumps(
            {name: {"a": 1, "b": 2}[name] for name in arguments.schema["properties"]}
        )
        args, kwargs = arguments.bind(given.encode(), None)
        assert handler(*args, **kwargs) == 3


def test_awkward_names_work() -> None:
    names = ("self", "_x", "class_", "__init__", "__struct_fields__", "f1", "été")
    scope: dict[str, Any] = {}
    exec(f"def handler({', '.join(f'{name}: int' for name in names)}): ...", scope)
    arguments = argument_decoder(scope["handler"])
    given = {name: index for index, name in enumerate(names)}
    assert arguments.bind(json.dumps(given).encode(), None) == (tuple(range(7)), {})
    assert list(arguments.schema["properties"]) == list(names)


def test_defaults_are_the_functions_own_objects() -> None:
    mutable, item, odd = [1], Item("x"), object()

    def handler(
        a: list[int] = mutable,
        b: Item = item,
        c: Any = odd,
        d: float = math.nan,
        e: Color = Color.RED,
        f: tuple[int, ...] = (1,),
        g: pathlib.Path = pathlib.Path("p"),
    ) -> None: ...

    arguments = argument_decoder(handler)
    for raw in (b"", b'{"f":[1.0]}'):
        args, _ = arguments.bind(raw, None)
        assert args[0] is mutable
        assert args[1] is item
        assert args[2] is odd
        assert math.isnan(args[3])
        assert args[4:] == (Color.RED, (1,), pathlib.Path("p"))
    properties = arguments.schema["properties"]
    assert {
        name: schema["default"] for name, schema in properties.items() if "default" in schema
    } == {
        "a": [1],
        "b": {"name": "x", "size": 1},
        "e": "r",
        "f": [1],
    }
    assert "required" not in arguments.schema


def test_none_as_a_default_allows_null() -> None:
    def handler(
        a: str = None,  # noqa: RUF013 # pyright: ignore
        b: Annotated[Item, "Which."] = None,  # pyright: ignore
        c: int | None = None,
        d=None,
        e: Literal["x", None] = None,
        f: Annotated[Any, "Any."] = None,
    ) -> None: ...

    arguments = argument_decoder(handler)
    null = {"type": "null"}
    assert arguments.schema["properties"] == {
        "a": {"anyOf": [{"type": "string"}, null], "default": None},
        "b": {"anyOf": [{"$ref": "#/$defs/Item"}, null], "description": "Which.", "default": None},
        "c": {"anyOf": [{"type": "integer"}, null], "default": None},
        "d": {"default": None},
        "e": {"enum": ["x", None], "default": None},
        "f": {"description": "Any.", "default": None},
    }
    nulls = json.dumps(dict.fromkeys("abcdef"))
    assert arguments.bind(nulls.encode(), None) == ((None,) * 6, {})


def test_a_default_that_its_type_does_not_allow_is_refused() -> None:
    def text(a: int = "5") -> None: ...  # pyright: ignore
    def number(a: str = 5) -> None: ...  # pyright: ignore
    def flag(a: list[int] = False) -> None: ...  # pyright: ignore
    def low(a: Annotated[int, at.Ge(1)] = 0) -> None: ...
    def other(a: Literal["x", "y"] = "z") -> None: ...  # pyright: ignore
    def field(a: int = pydantic.Field(10, le=9)) -> None: ...

    for handler, problem in [
        (text, "'5' does not fit: expected int, got str"),
        (number, "5 does not fit: expected str, got int"),
        (flag, "False does not fit: expected array, got bool"),
        (low, "0 does not fit: expected int >= 1"),
        (other, """'z' does not fit: expected one of ["x","y"], got 'z'"""),
        (field, "10 does not fit: expected int <= 9"),
    ]:
        where = f"{handler.__name__}(): parameter 'a': its default "
        with pytest.raises(RegistrationError, match=re.escape(where + problem)):
            argument_decoder(handler)


def test_a_default_may_be_a_number_that_json_writes_in_another_way() -> None:
    def handler(a: float = 1, b: int | str = "x", c: bool | None = True, d: Any = 5) -> None: ...

    assert argument_decoder(handler).bind(b"", None) == ((1, "x", True, 5), {})


def test_a_pydantic_field_as_a_default() -> None:
    def handler(
        a: int = pydantic.Field(ge=1, description="How many."),
        b: int = pydantic.Field(5, le=9),
        c: list[int] = pydantic.Field(default_factory=list),  # noqa: B008
    ) -> None: ...

    arguments = argument_decoder(handler)
    assert arguments.schema["properties"] == {
        "a": {"type": "integer", "minimum": 1, "description": "How many."},
        "b": {"type": "integer", "maximum": 9, "default": 5},
        "c": {"type": "array", "items": {"type": "integer"}},
    }
    assert arguments.schema["required"] == ["a"]
    assert arguments.bind(b'{"a":1}', None) == ((1, 5, []), {})
    assert arguments.bind(b'{"a":1}', None)[0][2] is not arguments.bind(b'{"a":1}', None)[0][2]


@pytest.mark.requirement("TO-10")
def test_every_problem_is_reported() -> None:
    def handler(
        a: int, b: list[Item], c: str, d: Color = Color.RED, even: Annotated[int, at.Ge(1)] = 1
    ) -> None: ...

    arguments = argument_decoder(handler)
    raw = b'{"a":"x","b":[{"name":"y"},{"name":1}],"d":"g","even":0,"evn":1,"zzz":2}'
    assert problems(arguments, raw) == [
        ("a", "expected int, got str"),
        ("b[1].name", "expected str, got int"),
        ("c", "required, but missing"),
        ("d", 'expected one of ["r","b"], got \'g\''),
        ("even", "expected int >= 1"),
        ("evn", "unknown argument; did you mean even?"),
        ("zzz", "unknown argument; expected a, b, c, d, even"),
    ]
    with pytest.raises(InvalidArguments) as caught:
        arguments.bind(b'{"a":1,"b":[]}', None)
    assert str(caught.value) == "c: required, but missing"
    assert isinstance(caught.value, ConcertinoError)


def test_arguments_that_are_no_object() -> None:
    arguments = taking(int)
    assert problems(arguments, b"[]") == [("", "expected object, got array")]
    assert problems(arguments, b"null") == [("", "expected object, got null")]
    assert problems(arguments, b'"x"') == [("", "expected object, got str")]


def test_reports_are_bounded() -> None:
    arguments = taking(int)
    raw = json.dumps({"x": 1} | {f"{'y' * 100}{index}": 1 for index in range(100)}).encode()
    found = problems(arguments, raw)
    assert len(found) == 21
    assert found[0] == ("y" * 80, "unknown argument; expected x")
    assert found[20] == ("", "80 more unknown arguments")
    assert problems(taking(Color), b'{"x":"%s"}' % (b"g" * 1000)) == [
        ("x", 'expected one of ["r","b"], got \'' + "g" * 79)
    ]


def test_what_cannot_be_read_is_a_problem() -> None:
    assert problems(taking(str), b'{"x":"\\ud800"}') == [
        ("", "not readable as JSON (a lone surrogate, or broken text): Input data was truncated")
    ]
    assert problems(taking(float), b'{"x":NaN}')[0][1].startswith("not readable as JSON")
    assert problems(taking(Any), b'{"x":"\xff"}')[0][1].startswith("not readable as JSON")
    assert problems(taking(float), b'{"x":1e400}') == [("x", "number out of range")]
    assert problems(taking(int), b'{"x":' + b"1" * 5000 + b"}") == [
        ("x", "integer value out of range")
    ]
    assert problems(taking(list[Any]), b'{"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}") == [
        ("", "nested too deeply")
    ]


def test_depth_within_one_argument() -> None:
    # The raw pass refuses deep input first; a user's own class may still recurse.
    @dataclasses.dataclass
    class Deep:
        def __post_init__(self) -> None:
            raise RecursionError("deep")

    assert problems(taking(Deep), b'{"x":{}}') == [("x", "nested too deeply")]


def test_other_errors_of_a_users_class_are_its_own() -> None:
    @dataclasses.dataclass
    class Failing:
        def __post_init__(self) -> None:
            raise KeyError("mine")

    with pytest.raises(KeyError):
        taking(Failing).bind(b'{"x":{}}', None)


def test_strict_unless_coerced() -> None:
    assert problems(taking(int), b'{"x":"1"}') == [("x", "expected int, got str")]
    coerced = taking(int | None, coerce=True)
    assert coerced.bind(b'{"x":"1"}', None) == ((1,), {})
    assert coerced.bind(b'{"x":"null"}', None) == ((None,), {})
    assert problems(coerced, b'{"x":"y"}') == [("x", "expected int | null, got str")]
    number = taking(float, coerce=True)
    assert number.bind(b'{"x":"1.5"}', None) == ((1.5,), {})
    for text in ("nan", "inf", "-Infinity"):  # no JSON could say them
        expected = [("x", "expected a finite number, got NaN or infinity")]
        assert problems(number, b'{"x":"%b"}' % text.encode()) == expected
    assert problems(taking(list[float], coerce=True), b'{"x":["1","nan"]}') == [
        ("x[1]", "expected a finite number, got NaN or infinity")
    ]
    assert taking(datetime.date | Color | int, coerce=True).bind(b'{"x":"1"}', None) == ((1,), {})


def test_integral_numbers_are_integers_and_floats_stay_floats() -> None:
    # JSON Schema 2020-12 validation 6.1.1: "integer" matches any number with a zero fractional
    # part.
    def handler(a: int, b: list[int], c: dict[str, Any], d: Struct, e: float) -> None: ...

    arguments = argument_decoder(handler)
    args, _ = arguments.bind(b'{"a":1.0,"b":[2e0,3],"c":{"k":4.0},"d":{"a":-5.0},"e":6}', None)
    assert args == (1, [2, 3], {"k": 4.0}, Struct(-5), 6.0)
    assert [type(value) for value in (args[0], args[1][0], args[2]["k"], args[3].a, args[4])] == [
        int,
        int,
        float,
        int,
        float,
    ]


def test_of_a_member_that_comes_twice_the_last_counts_at_any_depth() -> None:
    assert taking(int).bind(b'{"x":"no","x":5}', None) == ((5,), {})
    assert taking(Struct).bind(b'{"x":{"a":"no","a":5}}', None) == ((Struct(5),), {})
    assert taking(list[Struct]).bind(b'{"x":[{"a":{},"a":1.0}]}', None) == (([Struct(1)],), {})
    assert problems(taking(Struct), b'{"x":{"a":5,"a":"no"}}') == [
        ("x.a", "expected int | null, got str")
    ]
    assert problems(taking(str), b'{"x":1.0}') == [("x", "expected str, got float")]


def test_a_missing_or_unknown_member_of_a_struct_is_named_with_its_path() -> None:
    class Point(msgspec.Struct, forbid_unknown_fields=True):
        x: int

    assert problems(taking(list[Point]), b'{"x": [{}]}') == [("x[0].x", "required, but missing")]
    assert problems(taking(Point), b'{"x": {"x": 1, "z": 2}}') == [("x.z", "unknown argument")]


def test_numbers_that_differ() -> None:
    """Known differences to JSON Schema: integral numbers beyond 2**53 written as floats are
    refused.
    """
    assert taking(int).bind(b'{"x":9007199254740992.0}', None) == ((2**53,), {})
    assert problems(taking(int), b'{"x":1e16}') == [("x", "expected int, got float")]
    assert taking(int).bind(b'{"x":1%s}' % (b"0" * 30), None) == ((10**30,), {})


def test_registration_errors_name_function_and_parameter() -> None:
    def handler(a: int, b: list[complex]) -> None: ...
    def spread(*things: int) -> None: ...

    with pytest.raises(
        RegistrationError, match=r"^handler\(\): parameter 'b': complex is not supported; write a"
    ):
        argument_decoder(handler)
    with pytest.raises(RegistrationError, match=r"^spread\(\): \*things has no names"):
        argument_decoder(spread)


# --- schema and decoder, asked about the same values ---

AGREEING: list[Any] = [
    str,
    int,
    float,
    bool,
    None,
    Any,
    int | None,
    int | str,
    float | str | None,
    Literal["a", 1, None],
    Literal[True],
    Color,
    list[int],
    list[str | None],
    tuple[int, str],
    tuple[int, ...],
    dict[str, int],
    dict[Color, bool],
    Item,
    Item | None,
    list[Item],
    Movie,
    Point,
    Struct,
    Literal["a"] | str,
    Item | Point | int,
    Item | Struct,
    list[Item | Color] | dict[str, Item | Struct],
    Annotated[int, at.Ge(0), at.Lt(3)],
    Annotated[float, at.Gt(0.5)],
    Annotated[int, at.MultipleOf(2)],
    Annotated[str, at.MinLen(1), at.MaxLen(2)],
    Annotated[str, msgspec.Meta(pattern="^a+$")],
    Annotated[list[Annotated[int, at.Ge(0)]], at.MinLen(1), at.MaxLen(2)],
    Annotated[dict[str, Any], at.MaxLen(1)],
    Annotated[int | str | None, at.Ge(0)],
]
# The schema promises less than we take: duplicates in a set, a Decimal as a number, pydantic's own
# conversions.
LENIENT: list[Any] = [
    set[int],
    frozenset[str],
    decimal.Decimal,
    pydantic.create_model("M", a=(int, ...)),
]
# The schema cannot say it, or says it as a `format`, which is a hint: the decoder refuses more.
NARROW: list[Any] = [
    datetime.datetime,
    datetime.date,
    datetime.time,
    datetime.timedelta,
    uuid.UUID,
    bytes,
    list[bytes],
    dict[datetime.date, int],
    dict[int, str],
]

_scalars = (
    st.none()
    | st.booleans()
    | st.integers(-3, 4)
    | st.sampled_from([2**53, -(2**70), 0.0, 1.0, 2.5, -1.0, 1e3])
    | st.sampled_from(
        ["", "a", "r", "b", "aa", "aé", "1", "true", "2020-01-01", "2020-01-01T00:00:00Z", "YQ=="]
    )
)
_keys = st.sampled_from(["name", "size", "title", "a", "r", "b", "x", "1", "-7"])
_values = st.recursive(
    _scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_keys, inner, max_size=3),
    max_leaves=6,
)
_items = st.fixed_dictionaries({"name": _scalars}, optional={"size": _scalars, "a": _scalars})
_json = _values | _items | st.lists(_items, max_size=2) | st.lists(st.integers(-1, 3), max_size=3)


def is_accepted(arguments: ArgumentDecoder, given: Any) -> bool:
    try:
        arguments.bind(json.dumps(given).encode(), None)
    except InvalidArguments:
        return False
    return True


@pytest.mark.no_cover
@pytest.mark.parametrize("annotation", AGREEING + LENIENT + NARROW, ids=str)
def test_decoder_and_schema_agree(annotation: Any) -> None:
    arguments = taking(annotation)
    jsonschema.Draft202012Validator.check_schema(arguments.schema)
    validator = jsonschema.Draft202012Validator(arguments.schema)

    @settings(derandomize=True, database=None, deadline=None, max_examples=60)
    @given(_json, st.sampled_from([("x",), ("x",), ("x",), (), ("y",), ("x", "y")]))
    def agree(value: Any, names: tuple[str, ...]) -> None:
        given_ = dict.fromkeys(names, value)
        ours, theirs = is_accepted(arguments, given_), validator.is_valid(given_)
        if annotation in LENIENT:
            assert ours >= theirs
        elif annotation in NARROW:
            assert ours <= theirs
        else:
            assert ours == theirs

    agree()


@pytest.mark.no_cover
@pytest.mark.parametrize(
    "annotation",
    [
        int,
        str,
        bool,
        int | None,
        list[int],
        dict[str, int],
        Item,
        Color,
        Annotated[int, at.Ge(0)],
        tuple[int, str],
    ],
    ids=str,
)
def test_pydantic_agrees_on_values(annotation: Any) -> None:
    """A second opinion on what is made of what is accepted: pydantic in strict mode, from JSON."""
    arguments = taking(annotation)
    adapter = pydantic.TypeAdapter(annotation)

    @settings(derandomize=True, database=None, deadline=None, max_examples=60)
    @given(_json)
    def agree(value: Any) -> None:
        try:
            theirs = adapter.validate_json(json.dumps(value), strict=True)
        except pydantic.ValidationError:
            return
        assert arguments.bind(json.dumps({"x": value}).encode(), None) == ((theirs,), {})

    agree()


def test_a_pattern_that_cannot_be_matched_in_linear_time_is_refused_by_the_name_of_its_parameter():
    def find(name: Annotated[str, msgspec.Meta(pattern="(?=a)b")]): ...

    with pytest.raises(
        RegistrationError, match=r"find\(\): parameter 'name': the pattern '\(\?=a\)b' could take"
    ):
        argument_decoder(find)
