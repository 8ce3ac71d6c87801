"""results.py: what is promised, and what a value becomes. JSON texts are written out by hand; every
published schema is checked against the 2020-12 meta-schema, and every structured value against its
schema, by `jsonschema`.
"""

from __future__ import annotations

import asyncio
import collections
import dataclasses
import datetime
import decimal
import enum
import functools
import gc
import json
import math
import pathlib
import re
import uuid
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Generator,
    Iterable,
    Iterator,
)
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, NewType, Optional, TypedDict, cast

import attrs
import jsonschema
import msgspec
import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import UNSET, Raw

from concertino.errors import ConcertinoError, RegistrationError
from concertino.schema.return_values import (
    ResultShaper,
    chunk_shaper,
    custom_result_shaper,
    is_generator,
    result_shaper,
)
from concertino.schema.value_results import InvalidResult, NotAwaited, text_of
from concertino.types.results import (
    AudioContent,
    CallToolResult,
    ContentBlock,
    EmbeddedResource,
    ImageContent,
    ResourceContents,
    ResourceLink,
    TextContent,
)

NAN = math.nan


class Context: ...


class Color(enum.Enum):
    RED = "r"


class Level(enum.IntEnum):
    LOW = 1


class Mode(enum.StrEnum):
    FAST = "fast"


class Text(str):
    def __str__(self) -> str:
        return "not this"


class Number(float): ...


class Count(int): ...


@dataclasses.dataclass
class Item:
    name: str
    where: pathlib.Path | None = None
    span: datetime.timedelta = datetime.timedelta()


@dataclasses.dataclass
class Node:
    value: int
    children: list[Node] = dataclasses.field(default_factory=list)


class Movie(TypedDict, total=False):
    title: str


class Point(NamedTuple):
    x: int
    y: float = 0.0


class Struct(msgspec.Struct):
    a: float | None


@attrs.define
class Attrs:
    a: int


class Model(pydantic.BaseModel):
    a: int
    b: float | None = pydantic.Field(None, serialization_alias="bee")


def returning(annotation: Any) -> ResultShaper:
    def handler() -> None: ...

    handler.__annotations__["return"] = annotation
    return result_shaper(handler)


def anything() -> ResultShaper:
    return result_shaper(lambda: None)


def texts(result: CallToolResult) -> list[str]:
    return [block.text for block in result.content if isinstance(block, TextContent)]


def structured_text(returns: ResultShaper, value: object) -> str:
    """The structured value as text, after checking that the text block and the schema agree with
    it.
    """
    result = returns.shape(value)
    assert type(result.structured_content) is Raw
    text = bytes(result.structured_content).decode()
    assert texts(result) == [text]
    assert len(result.content) == 1
    if returns.schema is not None:
        jsonschema.Draft202012Validator.check_schema(returns.schema)
        jsonschema.validate(json.loads(text), returns.schema, jsonschema.Draft202012Validator)
    return text


def refusal(returns: ResultShaper, value: object) -> str:
    with pytest.raises(InvalidResult) as caught:
        returns.shape(value)
    assert isinstance(caught.value, ConcertinoError)
    return str(caught.value)


@pytest.mark.parametrize(
    "annotation",
    [
        *(
            str,
            None,
            Any,
            object,
            bytes,
            Raw,
            TextContent,
            list[ImageContent],
            CallToolResult,
            ContentBlock,
        ),
        *(
            list[TextContent | str],
            str | None,
            Optional[str],  # noqa: UP045
            Annotated[str, "x"],
            Awaitable[str],
            int | CallToolResult,
        ),
    ],
    ids=str,
)
def test_nothing_is_promised(annotation: Any) -> None:
    assert returning(annotation).schema is None


def test_nothing_is_promised_without_an_annotation() -> None:
    assert anything().schema is None


@pytest.mark.parametrize(
    ("annotation", "schema"),
    [
        (int, {"type": "integer"}),
        (int | None, {"anyOf": [{"type": "integer"}, {"type": "null"}]}),
        (int | str, {"anyOf": [{"type": "integer"}, {"type": "string"}]}),
        (list[str], {"type": "array", "items": {"type": "string"}}),
        (dict[str, Any], {"type": "object"}),
        (Awaitable[Coroutine[Any, Any, bool]], {"type": "boolean"}),
        (Literal["a"], {"type": "string", "enum": ["a"]}),
        (datetime.datetime, {"type": "string"}),
        (NewType("UserId", int), {"type": "integer"}),
        (
            Attrs,
            {
                "title": "Attrs",
                "type": "object",
                "properties": {"a": {"type": "integer"}},
                "required": ["a"],
            },
        ),
    ],
    ids=str,
)
def test_a_schema_is_promised(annotation: Any, schema: dict[str, Any]) -> None:
    assert returning(annotation).schema == schema


def test_the_root_of_a_class_is_written_out() -> None:
    schema = returning(Annotated[Item, "A thing."]).schema
    assert schema == {
        "title": "Item",
        "description": "A thing.",
        "type": "object",
        "properties": {
            "name": {"type": "string"},
            "where": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None},
            "span": {"type": "string", "default": "P0D"},
        },
        "required": ["name"],
    }


def test_a_recursive_root_keeps_its_definition() -> None:
    schema = returning(Node).schema
    assert schema is not None
    assert schema["type"] == "object"
    assert schema["$defs"]["Node"]["properties"]["children"]["items"] == {"$ref": "#/$defs/Node"}
    assert (
        structured_text(returning(Node), Node(1, [Node(2)]))
        == '{"value":1,"children":[{"value":2,"children":[]}]}'
    )


def test_definitions_below_the_root_stay() -> None:
    schema = returning(list[Item]).schema
    assert schema is not None
    assert schema["items"] == {"$ref": "#/$defs/Item"}
    assert list(schema["$defs"]) == ["Item"]


def test_text_stays_text() -> None:
    for returns in (returning(str), anything(), returning(str | None), returning(bytes)):
        for value, text in (
            ("hi", "hi"),
            ("é\n☃", "é\n☃"),
            (Text("plain"), "plain"),
            (Mode.FAST, "fast"),
        ):
            result = returns.shape(value)
            assert result == CallToolResult([TextContent(text)])
            assert type(texts(result)[0]) is str


@pytest.mark.requirement("TO-22")
def test_none_is_no_content_unless_it_is_a_value() -> None:
    for returns in (returning(None), anything(), returning(str | None)):
        assert returns.shape(None) == CallToolResult([])
    assert structured_text(returning(int | None), None) == "null"


def test_content_blocks_stay_as_they_are() -> None:
    blocks: list[ContentBlock] = [
        TextContent("t"),
        ImageContent(b"i", "image/png"),
        AudioContent(b"a", "audio/wav"),
        ResourceLink("file:///a", "a"),
        EmbeddedResource(ResourceContents("file:///a", text="x")),
    ]
    for returns in (anything(), returning(list[ContentBlock]), returning(int | TextContent)):
        assert returns.shape(blocks) == CallToolResult(blocks)
        assert returns.shape(tuple(blocks)).content == blocks
        for block in blocks:
            assert returns.shape(block) == CallToolResult([block])
        assert returns.shape([blocks[1], "and text"]).content == [
            blocks[1],
            TextContent("and text"),
        ]
        assert refusal(returns, [blocks[0], 3]) == (
            "expected only content blocks and str in the list, got int among them"
        )
        assert refusal(returns, TextContent(5)) == "TextContent: text: expected str, got int"  # type: ignore[arg-type]
        assert (
            refusal(returns, CallToolResult("x"))
            == "CallToolResult: content: expected list, got str"
        )  # type: ignore[arg-type]
    assert returning(list[TextContent]).shape([]) == CallToolResult([])
    assert structured_text(returning(TextContent | int), 3) == "3"
    assert structured_text(anything(), []) == "[]"


def test_a_result_stays_as_it_is() -> None:
    plain = CallToolResult([TextContent("x")], is_error=True)
    for annotation in (CallToolResult, str, int, list[Model], None):
        assert returning(annotation).shape(plain) is plain
    raw = CallToolResult([], Raw(b"1"))
    assert anything().shape(raw) is raw


def test_the_structured_content_of_a_result_is_written_out() -> None:
    for annotation in (CallToolResult, str, dict | None):
        returns = returning(annotation)
        shaped = returns.shape(CallToolResult([], {"a": Item("x")}, meta={"m": 1}))
        assert shaped == CallToolResult([], shaped.structured_content, meta={"m": 1})
        assert bytes(shaped.structured_content) == b'{"a":{"name":"x","where":null,"span":"P0D"}}'
        assert bytes(returns.shape(CallToolResult([], None)).structured_content) == b"null"
        assert "NaN or infinity at a" in refusal(returns, CallToolResult([], {"a": NAN}))
    assert anything().shape(CallToolResult([])).structured_content is UNSET


@pytest.mark.parametrize(
    ("annotation", "good"), [(int, 5), (list[Item], [Item("x")]), (Model, Model(a=1))]
)
def test_a_result_must_hold_what_its_annotation_promises_unless_it_is_an_error(
    annotation: Any, good: Any
) -> None:
    returns = returning(annotation)
    whole = returns.shape(CallToolResult([], good))
    assert whole.structured_content == returns.shape(good).structured_content
    assert returns.shape(whole) is whole
    assert returns.shape(CallToolResult([], json.loads(bytes(whole.structured_content)))) == whole
    for bad in ("x", {"no": 1}, Raw(b'{"no":1}'), Raw(b'{"a":"\xff"}'), None):
        assert "does not conform to its annotation: " in refusal(returns, CallToolResult([], bad))
        assert returns.shape(CallToolResult([], bad, is_error=True)).is_error
    assert refusal(returns, CallToolResult([])) == (
        "the tool's return annotation gives it an output schema, so its result needs "
        "structured_content; set it, or set is_error=True"
    )


@pytest.mark.requirement("TO-12", "TO-14")
@pytest.mark.parametrize(
    ("annotation", "value", "text"),
    [
        (int, 1, "1"),
        (int, 2**70, "1180591620717411303424"),
        (int, Level.LOW, "1"),
        (int, Count(3), "3"),
        (bool, True, "true"),
        (float, 1.5, "1.5"),
        (float, 1, "1"),
        (float, Number(1.5), "1.5"),
        (int | str, "x", '"x"'),
        (list[int], (1, 2), "[1,2]"),
        (Iterable[int], range(2), "[0,1]"),
        (list[int], collections.deque([1]), "[1]"),
        (list[str], {"a": 1}.keys(), '["a"]'),
        (set[int], {1}, "[1]"),
        (tuple[int, str], (1, "a"), '[1,"a"]'),
        (dict, {"a": None}, '{"a":null}'),
        (dict[str, Any], collections.ChainMap({"a": 1}), '{"a":1}'),
        (dict[str, int], {1: 2}, '{"1":2}'),
        (dict[int, int], {1: 2}, '{"1":2}'),
        (Color, Color.RED, '"r"'),
        (Mode, Mode.FAST, '"fast"'),
        (Literal[Color.RED], Color.RED, '"r"'),
        (datetime.datetime, datetime.datetime(2020, 1, 2, 3), '"2020-01-02T03:00:00"'),
        (datetime.datetime | Color, Color.RED, '"r"'),
        (uuid.UUID, uuid.UUID(int=1), '"00000000-0000-0000-0000-000000000001"'),
        (decimal.Decimal, decimal.Decimal("1.50"), '"1.50"'),
        (pathlib.PurePath, pathlib.PurePosixPath("/a"), '"/a"'),
        (Item, Item("x", pathlib.Path("a")), '{"name":"x","where":"a","span":"P0D"}'),
        (Item, {"name": "x"}, '{"name":"x"}'),
        (Movie, {"title": "x"}, '{"title":"x"}'),
        (Point, Point(1), "[1,0.0]"),
        (Struct, Struct(None), '{"a":null}'),
        (Attrs, Attrs(1), '{"a":1}'),
        (Model, Model(a=1), '{"a":1,"bee":null}'),
        (list[Model] | None, [Model(a=1, b=2)], '[{"a":1,"bee":2.0}]'),
        (float | None, None, "null"),
        (None, [Text("x")], '["x"]'),
    ],
    ids=str,
)
def test_values_are_written_and_conform(annotation: Any, value: object, text: str) -> None:
    assert structured_text(returning(annotation), value) == text
    if value is not None and not isinstance(value, str):
        assert structured_text(anything(), value) == text


def test_a_pydantic_model_inside_other_values_is_written_by_its_names() -> None:
    assert structured_text(anything(), {"m": [Model(a=1, b=1.5)]}) == '{"m":[{"a":1,"bee":1.5}]}'


@pytest.mark.requirement("TO-10", "TO-12")
@pytest.mark.parametrize(
    ("annotation", "value", "text"),
    [
        (int, "x", "expected int, got str"),
        (int, True, "expected int, got bool"),
        (int, 1.0, "expected int, got float"),
        (bool, 1, "expected bool, got int"),
        (float, "x", "expected float, got str"),
        (dict, [], "expected object, got array"),
        (list[int], [1, "x"], "[1]: expected int, got str"),
        (Item, Item(3), "name: expected str, got int"),  # pyright: ignore
        (Item, None, "expected object, got null"),
        (list[Node], [Node(1, [Node("x")])], "[0].children[0].value: expected int, got str"),  # pyright: ignore
        (Color, "g", "invalid enum value 'g'"),
        (Movie, {"title": 1}, "title: expected str, got int"),
    ],
    ids=str,
)
def test_what_does_not_conform_is_refused(annotation: Any, value: object, text: str) -> None:
    assert (
        refusal(returning(annotation), value)
        == f"the result does not conform to its annotation: {text}"
    )


def test_pydantic_refuses_what_does_not_conform() -> None:
    for annotation, value in (
        (Model, Model.model_construct(a="x")),
        (list[Model], [3]),
        (Model, {"a": 1}),
    ):
        assert "does not conform to its annotation" in refusal(returning(annotation), value)


def test_text_is_promised_as_text() -> None:
    assert (
        refusal(returning(str), 3)
        == "expected str, got int: return a str, or correct the return annotation"
    )


def test_nan_and_infinity_are_refused_wherever_they_are() -> None:
    for value, where in (
        (NAN, ""),
        (-math.inf, ""),
        (Number("nan"), ""),
        ({"a": [1.0, {"b": NAN}]}, " at a[1].b"),
        (Struct(NAN), " at a"),
        ({"n": None, "m": {NAN}}, " at m[0]"),
        (Point(1, math.inf), " at [1]"),
        (Model(a=1, b=NAN), " at bee"),
    ):
        expected = (
            f"the result holds NaN or infinity{where}, which JSON cannot: return None or a str "
            f"for it"
        )
        assert refusal(anything(), value) == expected
    for annotation, value in (
        (float, NAN),
        (float | None, NAN),
        (dict, {"a": NAN}),
        (Struct, Struct(NAN)),
    ):
        assert "NaN or infinity" in refusal(returning(annotation), value)
    assert "NaN or infinity at bee" in refusal(returning(Model), Model(a=1, b=NAN))


def test_bytes_are_refused_with_what_to_return() -> None:
    for value in (b"x", bytearray(b"x"), memoryview(b"x")):
        expected = (
            f"the result is {type(value).__name__}: return concertino.blob(...) or "
            f"concertino.image(...) with it"
        )
        assert refusal(returning(bytes), value) == expected
        assert refusal(anything(), value) == expected


def test_lone_surrogates_are_refused() -> None:
    for returns in (returning(str), anything()):
        assert "lone surrogate" in refusal(returns, "\ud800")
    for value in (["\ud800"], {"\udfff": 1}, [TextContent("a"), "\ud800"]):
        assert "lone surrogate" in refusal(anything(), value)


def test_cycles_and_depth_are_refused() -> None:
    cycle: list[Any] = []
    cycle.append(cycle)
    assert refusal(anything(), cycle) == "the result is nested too deeply, or contains itself"
    node = Node(1)
    node.children.append(node)
    assert "contains itself" in refusal(returning(Node), node)


def test_what_has_no_json_form_is_refused() -> None:
    for value, kind in (
        (object(), "object"),
        (1j, "complex"),
        ((i for i in ()), "generator"),
        ({1: int}, "type"),
    ):
        assert refusal(anything(), value) == (
            f"the result cannot be written as JSON: {kind} has no JSON form; "
            f"return a str, number, list, dict, dataclass or pydantic model"
        )
    for key in ((1, 2), frozenset({1}), True, None):
        kind = type(key).__name__
        assert refusal(anything(), {key: 3}) == (
            f"the result cannot be written as JSON: {kind} cannot be a key of a JSON object; "
            f"make it a str"
        )


@pytest.mark.requirement("FR-3")
def test_raw_json_is_carried_without_newlines() -> None:
    assert structured_text(anything(), Raw(b'{"a": 1}')) == '{"a":1}'
    assert structured_text(anything(), {"a": Raw(b"[1,\n2]")}) == '{"a":[1,2]}'
    assert structured_text(anything(), [Raw(b"null"), None]) == "[null,null]"
    assert "cannot be written as JSON" in refusal(anything(), Raw(b'{"a'))
    assert "cannot be written as JSON: 'utf-8' codec can't decode" in refusal(
        anything(), [Raw(b'"\xff"')]
    )


def test_generators_and_unsupported_types_are_refused_at_registration() -> None:
    def sync() -> Generator[int]:  # pyright: ignore
        yield 1

    async def asynchronous() -> AsyncIterator[int]:
        yield 1

    def unannotated():
        yield 1

    def iterator() -> Iterator[int]: ...
    def complicated() -> complex: ...

    handlers: list[Callable[..., object]] = [
        sync,
        asynchronous,
        unannotated,
        functools.partial(unannotated),
        iterator,
    ]
    sync.__annotations__["return"] = Generator[int, None, None]
    for handler in handlers:
        with pytest.raises(
            RegistrationError, match=r"\(\): a generator cannot be a result; return a list"
        ):
            result_shaper(handler)
    with pytest.raises(
        RegistrationError,
        match=r"complicated\(\): return: complex is not supported; write a dataclass",
    ):
        result_shaper(complicated)


def test_an_injected_class_need_not_be_importable() -> None:
    def handler(ctx: Gone) -> int: ...  # noqa: F821 # pyright: ignore

    assert result_shaper(handler, inject=(type("Gone", (), {}),)).schema == {"type": "integer"}


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=8,
)


@settings(derandomize=True, database=None, deadline=None)
@given(_json)
def test_any_json_value_is_carried_exactly_or_refused(value: Any) -> None:
    """Against the standard library's json: what it writes without NaN comes out equal, the rest is
    refused.
    """
    try:
        json.dumps(value, allow_nan=False, ensure_ascii=False).encode()
    except ValueError:  # NaN, a lone surrogate
        refusal(anything(), value)
        return
    if value is None or isinstance(value, str):
        return
    assert json.loads(structured_text(anything(), value)) == value


# Hand-written output schemas


def by_hand(handler: Callable[..., Any] = lambda: None) -> tuple[ResultShaper, list[bytes]]:
    """The results of a handler whose schema allows everything but the JSON text `5`, and what was
    checked.
    """
    checked: list[bytes] = []

    def conform(raw: Raw | bytes) -> None:
        checked.append(bytes(raw))
        if bytes(raw) == b"5":
            raise InvalidResult("not 5")

    return custom_result_shaper(handler, {"not": {"const": 5}}, conform), checked


@pytest.mark.parametrize(
    ("value", "written"),
    [
        ("x", b'"x"'),
        (None, b"null"),
        ([1, "b"], b'[1,"b"]'),
        (Item("n"), b'{"name":"n","where":null,"span":"P0D"}'),
        (Raw(b'{\n"a":1}'), b'{"a":1}'),
    ],
)
def test_a_result_by_hand_is_checked_and_carried_twice(value: object, written: bytes) -> None:
    returns, checked = by_hand()
    assert returns.schema == {"not": {"const": 5}}
    result = returns.shape(value)
    assert (bytes(cast(Raw, result.structured_content)), result.content) == (
        written,
        [TextContent(written.decode())],
    )
    assert checked == [written]


@pytest.mark.parametrize("value", [5, CallToolResult([], 5), CallToolResult([], Raw(b"5"))])
def test_a_result_by_hand_that_is_not_allowed_is_refused(value: object) -> None:
    with pytest.raises(InvalidResult, match="not 5"):
        by_hand()[0].shape(value)


def test_a_whole_result_by_hand_keeps_its_content() -> None:
    returns, checked = by_hand()
    result = returns.shape(CallToolResult([TextContent("t")], {"a": 1}))
    assert (bytes(cast(Raw, result.structured_content)), result.content, checked) == (
        b'{"a":1}',
        [TextContent("t")],
        [b'{"a":1}'],
    )
    failed = CallToolResult([TextContent("t")], is_error=True)
    assert returns.shape(failed) == failed
    with pytest.raises(InvalidResult, match="set it, or set is_error=True"):
        returns.shape(CallToolResult([TextContent("t")]))


def test_a_generator_has_no_result_by_hand() -> None:
    def generate() -> Any:
        yield 1

    async def generate_slowly() -> Any:
        yield 1

    for handler in (generate, generate_slowly):
        with pytest.raises(RegistrationError, match="return a list"):
            by_hand(handler)


# Generators: what was yielded, taken together


def yielding(annotation: Any) -> ResultShaper:
    async def handler() -> Any:
        yield 1

    handler.__annotations__["return"] = annotation
    assert is_generator(handler)
    return chunk_shaper(handler)


def test_texts_that_were_yielded_are_one_text() -> None:
    for annotation in (
        AsyncIterator[str],
        Iterator[str],
        Generator[str, None, None],
        AsyncIterator,
        Any,
    ):
        returns = yielding(annotation)
        assert returns.schema is None
        assert returns.shape(["a", "b", ""]) == CallToolResult([TextContent("ab")])
        assert returns.shape([]) == CallToolResult([TextContent("")])
    assert yielding(Any).shape([1, "b"]).structured_content == Raw(b'[1,"b"]')


def test_what_else_was_yielded_is_a_list_with_its_schema() -> None:
    numbers = yielding(AsyncIterator[int])
    assert numbers.schema == {"type": "array", "items": {"type": "integer"}}
    assert structured_text(numbers, [1, 2]) == "[1,2]"
    assert "does not conform to its annotation" in refusal(numbers, [1, "b"])


def test_content_that_was_yielded_stays_content() -> None:
    returns = yielding(AsyncIterator[TextContent])
    assert returns.shape([TextContent("a"), TextContent("b")]) == CallToolResult(
        [TextContent("a"), TextContent("b")]
    )
    assert returns.shape([]) == CallToolResult([])


def test_a_generator_is_annotated_by_what_it_yields() -> None:
    with pytest.raises(
        RegistrationError,
        match="annotate a generator with the type that it yields, as in "
        r"`-> AsyncIterator\[str\]`; got",
    ):
        yielding(int)
    assert not is_generator(lambda: None)


@pytest.mark.parametrize(
    ("part", "text"),
    [
        ("a", "a"),
        (TextContent("b"), "b"),
        (ImageContent(b"x", "image/png"), ""),
        ({"n": 1}, '{"n":1}'),
        (3, "3"),
    ],
)
def test_a_part_of_a_result_as_text_for_people(part: Any, text: str) -> None:
    assert text_of(part) == text


def test_a_part_that_cannot_be_sent_is_refused() -> None:
    with pytest.raises(InvalidResult):
        text_of(object())


PNG = ImageContent(b"\x89PNG", "image/png")


@pytest.mark.parametrize(
    "annotation",
    [
        list,
        tuple,
        list[Any],
        list[object],
        collections.abc.Sequence[Any],
        tuple[Any, ...],
        tuple[str, Any],
        list[Any | None],
        list | None,
        int | list,
        Annotated[list, "what was found"],
    ],
    ids=str,
)
def test_a_list_whose_items_are_open_is_content_if_it_holds_content(annotation: Any) -> None:
    shaper = returning(annotation)
    assert shaper.schema is None
    for kind in (list, tuple):
        assert shaper.shape(kind(["a cat", PNG])).content == [TextContent("a cat"), PNG]
    assert shaper.shape(PNG).content == [PNG]
    assert shaper.shape(CallToolResult([PNG])) == CallToolResult([PNG])
    assert structured_text(shaper, ["a cat", "a"]) == '["a cat","a"]'
    # Other values have to fit the annotation, as ever.
    with pytest.raises(InvalidResult, match="does not conform to its annotation"):
        shaper.shape("text")


@pytest.mark.parametrize("annotation", [list[dict], list[int], dict, tuple[int, str]], ids=str)
def test_a_type_that_names_its_items_keeps_its_schema(annotation: Any) -> None:
    assert returning(annotation).schema is not None


async def fetch() -> int:
    return 3


@pytest.mark.parametrize(
    "annotation", [str, int, Any, list, list[int], str | ImageContent, Item, Model], ids=str
)
def test_a_coroutine_that_was_not_awaited_is_named(annotation: Any) -> None:
    with pytest.raises(NotAwaited) as failure:
        returning(annotation).shape(fetch())
    assert (
        str(failure.value)
        == "returned a coroutine that was not awaited: write `return await fetch(...)`"
    )


def test_a_coroutine_among_other_items_is_named() -> None:
    for items in ([1, fetch()], ["a cat", PNG, fetch()]):
        with pytest.raises(NotAwaited, match="a coroutine that was not awaited"):
            anything().shape(items)


def test_a_future_that_was_not_awaited_is_named() -> None:
    loop = asyncio.new_event_loop()
    with pytest.raises(NotAwaited) as failure:
        anything().shape(loop.create_future())
    loop.close()
    assert str(failure.value) == "returned a Future that was not awaited: write `return await ...`"


def test_large_json_is_written_first_and_then_checked_in_parts() -> None:
    shaper = returning(dict[str, list[int]])
    wrong = r"\[0\]: expected int, got str$"
    with pytest.raises(InvalidResult, match=wrong):
        shaper.encode({"a": ["1"]})

    def count_parts(value: object) -> int:
        content = shaper.encode(value).structured_content
        assert isinstance(content, Raw)
        assert shaper.check_parts is not None
        return len(list(shaper.check_parts(content)))

    assert count_parts({"a": [1]}) == 0
    assert count_parts({"a": [1] * 600_000}) > 1
    with pytest.raises(InvalidResult, match=wrong):
        count_parts({"a": ["1"] * 300_000})


def test_json_inside_a_value_with_null_is_carried() -> None:
    [block] = anything().shape({"a": msgspec.Raw(b'{"b": 1}'), "c": None}).content
    assert block == TextContent('{"a":{"b": 1},"c":null}')
    text = refusal(anything(), {"a": msgspec.Raw(b"1"), "b": float("nan")})
    assert "NaN or infinity at b" in text


def test_parts_of_a_list_are_written_as_the_list_is() -> None:
    integers = returning(list[int]).encode_items
    models = returning(list[Model]).encode_items
    assert integers is not None
    assert models is not None
    assert integers([1, 2]) == b"[1,2]"
    assert models([Model(a=1)]) == b'[{"a":1,"bee":null}]'
    with pytest.raises(InvalidResult, match=re.escape("[1]: expected int, got str")):
        integers([1, "2"])
    with pytest.raises(InvalidResult, match="does not conform to its annotation"):
        models([2])


@dataclasses.dataclass
class Watched:
    """An object that records whether garbage collection was enabled when it was made."""

    a: int
    collects: ClassVar[list[bool]] = []

    def __post_init__(self) -> None:
        self.collects.append(gc.isenabled())


@pytest.mark.parametrize("is_enabled", [True, False])
def test_large_json_is_checked_without_garbage_collection_which_is_as_before_then(
    is_enabled: bool,
) -> None:
    returns = returning(list[Watched])
    items = [Watched(1)] * 20_000
    wrong = Watched("x")  # pyright: ignore[reportArgumentType]
    Watched.collects.clear()
    (gc.enable if is_enabled else gc.disable)()
    try:
        returns.shape(items)
        with pytest.raises(InvalidResult, match=re.escape("[20000].a: expected int, got str")):
            returns.shape([*items, wrong])
        assert gc.isenabled() is is_enabled
    finally:
        gc.enable()
    assert Watched.collects == [False] * 40_000


@pytest.mark.parametrize(
    "annotation", [str, dict[str, int], Annotated[list[int], msgspec.Meta(max_length=2)]]
)
def test_only_lists_of_any_length_are_written_in_parts(annotation: Any) -> None:
    assert returning(annotation).encode_items is None
