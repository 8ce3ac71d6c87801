"""schema/json_parts.py: the parts of a JSON text conform to a type if, and only if, the text does.

What conforms is decided by msgspec, which decodes the whole text.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, Generic, NamedTuple, Optional, TypedDict, TypeVar

import attrs
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Meta, Raw, json

from concertino.schema import json_parts
from concertino.schema.json_parts import divide

T = TypeVar("T")


@dataclass
class Row:
    number: int
    text: str | None = None


@dataclass
class Page:
    total: int
    rows: list[Row]
    names: list[str] = field(default_factory=list)
    next: Optional[Page] = None  # noqa: UP045 # a forward reference


class Found(msgspec.Struct, tag="found", rename="camel", omit_defaults=True):
    all_rows: list[Row] = []
    at_most_two: Annotated[list[int], Meta(max_length=2)] = []


class Missing(msgspec.Struct, tag="missing", forbid_unknown_fields=True):
    rows: list[str]


class Pair(msgspec.Struct, array_like=True):
    left: list[int]
    right: list[str]


class Movie(TypedDict, total=False):
    title: str
    cast: list[str]


class Point(NamedTuple):
    x: list[int]
    y: float = 0.0


@attrs.define
class Frozen:
    rows: list[int]
    others: dict[str, Row] = attrs.Factory(dict)


@attrs.define
class Validated:
    rows: list[int] = attrs.field(validator=attrs.validators.max_len(3))


@dataclass
class Short:
    rows: list[int]

    def __post_init__(self) -> None:
        if len(self.rows) > 3:
            raise ValueError("too long")


@dataclass
class Box(Generic[T]):
    items: list[T]
    label: str = ""


class Rest(msgspec.Struct):
    a: Any
    b: list[Any] | dict[str, int] | None = None


TYPES: list[Any] = [
    list[int],
    list[list[Row]],
    dict[str, list[Row]],
    dict[str, Row],
    tuple[list[int], str, list[str]],
    tuple[Row, ...],
    set[int],
    Page,
    Page | None,
    Found | Missing,
    list[Found | Missing],
    Pair,
    Movie,
    Point,
    Frozen,
    Validated,
    Short,
    Box[Row],
    Box[list[int]],
    Rest,
    Annotated[list[int], Meta(min_length=1, max_length=3)],
    dict[str, Any],
]
LEAVES = st.none() | st.booleans() | st.integers(-9, 9) | st.text('aé"', max_size=3)
TREES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab"), inner, max_size=3),
    max_leaves=4,
)


def values_of(annotation: Any) -> st.SearchStrategy[Any]:
    """Return a strategy for values of a type, as JSON values."""
    if annotation == Found | Missing:
        return values_of(Found) | values_of(Missing)
    if annotation == list[Found | Missing]:
        return st.lists(values_of(Found) | values_of(Missing), max_size=5)
    if annotation is Pair:
        return st.tuples(values_of(list[int]), values_of(list[str]))
    if annotation in (Found, Missing):
        fields = {item.encode_name: item for item in msgspec.structs.fields(annotation)}
        required = {name: item for name, item in fields.items() if item.required}
        tag = st.just(annotation.__struct_config__.tag)
        return st.fixed_dictionaries(
            {"type": tag, **{name: values_of(item.type) for name, item in required.items()}},
            optional={
                name: values_of(item.type) for name, item in fields.items() if name not in required
            },
        )
    if annotation is Rest:
        b = st.lists(TREES) | st.dictionaries(st.text(), st.integers(-9, 9)) | st.none()
        return st.fixed_dictionaries({"a": TREES}, optional={"b": b})
    if annotation == dict[str, Any]:
        return st.dictionaries(st.text("ab"), TREES)
    if annotation == Box[Row] or annotation == Box[list[int]]:
        (item,) = annotation.__args__
        return st.fixed_dictionaries({"items": st.lists(values_of(item))})
    if annotation is Validated or annotation is Short:
        return st.fixed_dictionaries({"rows": st.lists(st.integers(-9, 9), max_size=5)})
    return st.from_type(annotation).map(lambda value: json.decode(json.encode(value)))


@st.composite
def damage(draw: st.DrawFn, tree: Any) -> Any:
    """Replace one value in a JSON tree by another one, add a value, or leave the tree unchanged."""
    if isinstance(tree, list) and tree and draw(st.booleans()):
        index = draw(st.integers(0, len(tree) - 1))
        return [*tree[:index], draw(damage(tree[index])), *tree[index + 1 :]]
    if isinstance(tree, dict) and tree and draw(st.booleans()):
        name = draw(st.sampled_from(sorted(tree)))
        return {**tree, name: draw(damage(tree[name]))}
    if isinstance(tree, dict):
        return draw(
            st.just(tree) | st.builds(lambda tree, x: {**tree, "new": x}, st.just(tree), TREES)
        )
    return draw(st.just(tree) | TREES)


def conforms(text: bytes, annotation: Any) -> bool:
    try:
        json.decode(text, type=annotation)
    except msgspec.ValidationError:
        return False
    return True


@pytest.mark.no_cover
@pytest.mark.parametrize("annotation", TYPES, ids=str)
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_the_parts_conform_if_and_only_if_the_text_does(
    annotation: Any, data: st.DataObject
) -> None:
    tree = data.draw(values_of(annotation))
    if data.draw(st.booleans()):
        tree = data.draw(damage(tree))
    text = json.encode(tree)
    is_right = conforms(text, annotation)
    with pytest.MonkeyPatch.context() as patch:
        for size in (3, 12, 40):
            patch.setattr(json_parts, "LARGE_JSON", size)
            try:
                are_right = all(
                    conforms(part, annotation) for part in divide(Raw(text), annotation)
                )
            except (msgspec.ValidationError, ValueError):
                # A list in the place of an object, for example.
                are_right = False
            # The whole text is checked if a part does not conform.
            assert are_right <= is_right, text
            if annotation not in (Short, Validated):
                assert are_right == is_right, text


def test_each_part_has_the_members_around_a_list_and_no_items_of_other_lists(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(json_parts, "LARGE_JSON", 60)
    text = b'{"total":4,"rows":[%b],"names":[%b]}'
    row, name = b'{"number":1}', b'"%b"' % (b"x" * 18)
    whole = text % (b",".join([row] * 7), b",".join([name] * 5))
    # Five rows have 60 bytes, and three names.
    assert list(divide(Raw(whole), Page)) == [
        text % (b",".join([row] * 5), b""),
        text % (b",".join([row] * 2), b""),
        text % (b"", b",".join([name] * 3)),
        text % (b"", b",".join([name] * 2)),
    ]


@pytest.mark.parametrize(
    ("annotation", "value", "parts"),
    [
        (list[int], [5] * 2000, 2),
        (dict[str, int], {str(number): 5 for number in range(100, 300)}, 1),
        (dict[str, list[int]], {"a": [5] * 2000, "b": [5] * 2000}, 4),
        # The dict has two large lists, and many small ones around them.
        (dict[str, list[int]], {"a": [5] * 2000, "c": [5], "d": [5], "b": [5] * 2000}, 5),
        (tuple[list[int], str], ([5] * 2000, "x"), 2),
        (Box[list[int]], Box([[5] * 2000, [5] * 2000]), 4),
        (Box[list[int]] | None, Box([[5] * 2000, [5] * 2000]), 4),
        (Found | Missing, Found([Row(1)] * 100), 3),
        (list[Found | Missing], [Missing(["x"] * 500), Found([Row(1)] * 100)], 5),
        (Page, Page(1, [], next=Page(2, [Row(1)] * 100)), 3),
        (Rest, Rest({"x": [5] * 2000}), 2),
        (frozenset[int], list(range(1000)), 3),
        (Annotated[list[int], Meta(title="numbers")], [5] * 2000, 2),
        # These are not divided.
        (list[int], [5] * 100, 1),
        (str, "x" * 2000, 1),
        (Found | Missing, Found(at_most_two=[5] * 2000), 1),
        (Short, {"rows": [5] * 2000}, 1),
        (Validated, {"rows": [5] * 2000}, 1),
        (Pair, Pair([5] * 2000, []), 1),
        (Annotated[list[int], Meta(max_length=9)], [5] * 2000, 1),
    ],
    ids=[f"{number}" for number in range(20)],
)
def test_long_lists_are_divided_where_their_length_is_not_limited(
    annotation: Any, value: Any, parts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(json_parts, "LARGE_JSON", 1000)
    sizes = [len(part) for part in divide(Raw(json.encode(value)), annotation)]
    assert len(sizes) == parts
    # Brackets, commas and what is around a list come on top.
    assert max(sizes) <= 2100 or parts == 1


def test_small_members_that_are_many_are_checked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each part of a list would have them, too."""
    monkeypatch.setattr(json_parts, "LARGE_JSON", 1000)
    text = json.encode(Rest("x" * 1500, [5] * 2000))
    assert list(divide(Raw(text), Rest)) == [text]
