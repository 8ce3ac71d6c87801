"""schema/elicitation_form.py: forms that fit the official schema, of classes and of schemas written
by hand.

The shapes: `ElicitRequestFormParams` of the 2026-07-28 schema, with `PrimitiveSchemaDefinition`
closed by hand (its members are told apart by what they may hold; REQUIREMENTS EL-5).
"""

from __future__ import annotations

import datetime
import enum
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, Optional, TypedDict

import pytest
import wire
from msgspec import Meta, Struct
from pydantic import BaseModel

from concertino.errors import RegistrationError
from concertino.schema import elicitation_form
from concertino.schema.elicitation_form import choices, form_of


class Plan(enum.Enum):
    FREE = "free"
    PRO = "pro"


class Titled(enum.Enum):
    SMALL = "s", "Small"
    LARGE = "l", "Large"

    label: str

    def __new__(cls, value: str, label: str) -> Titled:
        member = object.__new__(cls)
        member._value_ = value
        member.label = label
        return member


SIZES = choices({"s": "Small", "m": "Medium"})


@dataclass
class Everything:
    name: str
    age: Annotated[int, Meta(ge=0, le=150, description="In years.")]
    score: float
    agreed: bool
    day: datetime.date
    at: Annotated[datetime.datetime, Meta(tz=True)]
    plan: Plan
    title: Titled
    size: Annotated[Literal["s", "m"], SIZES]
    kind: Literal["a", "b"]
    one: Literal["only"]
    tags: list[Literal["x", "y"]]
    sizes: list[Annotated[Literal["s", "m"], SIZES]]
    titles: Annotated[list[Titled], Meta(min_length=1, max_length=2)]
    plans: frozenset[Plan]
    nickname: (
        Annotated[str, Meta(min_length=1, max_length=9, title="Nickname", pattern="^a")] | None
    )
    note: Optional[str] = None  # noqa: UP045  # both ways of writing it
    color: Plan = Plan.FREE
    count: int = 3


TITLES = [{"const": "s", "title": "Small"}, {"const": "l", "title": "Large"}]
MEDIUM = [{"const": "s", "title": "Small"}, {"const": "m", "title": "Medium"}]


@pytest.mark.requirement("EL-5")
def test_every_kind_of_field() -> None:
    schema, _ = form_of(Everything)
    assert schema == {
        "type": "object",
        "properties": {
            "name": {"type": "string"},
            "age": {"type": "integer", "minimum": 0, "maximum": 150, "description": "In years."},
            "score": {"type": "number"},
            "agreed": {"type": "boolean"},
            "day": {"type": "string", "format": "date"},
            "at": {"type": "string", "format": "date-time"},
            "plan": {"type": "string", "enum": ["free", "pro"]},
            "title": {"type": "string", "oneOf": TITLES},
            "size": {"type": "string", "oneOf": MEDIUM},
            "kind": {"type": "string", "enum": ["a", "b"]},
            "one": {"type": "string", "enum": ["only"]},
            "tags": {"type": "array", "items": {"type": "string", "enum": ["x", "y"]}},
            "sizes": {"type": "array", "items": {"anyOf": MEDIUM}},
            "titles": {"type": "array", "items": {"anyOf": TITLES}, "minItems": 1, "maxItems": 2},
            "plans": {"type": "array", "items": {"type": "string", "enum": ["free", "pro"]}},
            "nickname": {"type": "string", "minLength": 1, "maxLength": 9, "title": "Nickname"},
            "note": {"type": "string"},
            "color": {"type": "string", "enum": ["free", "pro"], "default": "free"},
            "count": {"type": "integer", "default": 3},
        },
        "required": [
            *(
                "name",
                "age",
                "score",
                "agreed",
                "day",
                "at",
                "plan",
                "title",
                "size",
                "kind",
                "one",
                "tags",
            ),
            *("sizes", "titles", "plans"),
        ],
    }
    params = {"message": "?", "requestedSchema": schema}
    wire.check(params, wire.MODERN, "ElicitRequestFormParams")


def test_the_only_choice_of_a_model_is_a_list_of_one() -> None:
    """Pydantic's schema has `const` for it, which forms do not have."""

    class Model(BaseModel):
        one: Literal["only"]

    assert form_of(Model)[0]["properties"]["one"]["enum"] == ["only"]


@pytest.mark.requirement("EL-6")
def test_what_was_filled_in_is_an_object_of_the_class() -> None:
    _, read = form_of(Everything)
    values = {
        "name": "Ada",
        "age": 36,
        "score": 1,
        "agreed": True,
        "day": "1815-12-10",
        "at": "1815-12-10T00:00:00Z",
        "plan": "pro",
        "title": "l",
        "size": "m",
        "kind": "a",
        "one": "only",
        "tags": ["x"],
        "sizes": [],
        "titles": ["s"],
        "plans": ["free"],
    }
    made = read(values)
    assert isinstance(made, Everything)
    assert (made.plan, made.title, made.nickname, made.note, made.count) == (
        Plan.PRO,
        Titled.LARGE,
        None,
        None,
        3,
    )
    assert made.day == datetime.date(1815, 12, 10)
    for wrong, said in (
        ({"age": 200}, "age"),
        ({"kind": "c"}, "kind"),
        ({"nickname": "b"}, "nickname"),
    ):
        with pytest.raises(ValueError, match=said):
            read({**values, **wrong})
    with pytest.raises(ValueError, match="name"):
        read({})


class AsTypedDict(TypedDict):
    name: str


class AsStruct(Struct):
    name: str = "x"


@pytest.mark.parametrize("form", [AsTypedDict, AsStruct])
def test_classes_of_other_kinds(form: Any) -> None:
    schema, read = form_of(form)
    assert schema["properties"]["name"]["type"] == "string"
    made = read({"name": "y"})
    assert (made["name"] if isinstance(made, dict) else made.name) == "y"
    assert form_of(form)[0] is schema  # made once


@dataclass
class Inner:
    name: str


def bad(annotation: Any) -> Any:
    return dataclass(type("Bad", (), {"__annotations__": {"it": annotation}}))


@pytest.mark.requirement("EL-5")
@pytest.mark.parametrize(
    "annotation",
    [
        Inner,
        list[str],
        list[int],
        list[Inner],
        dict[str, str],
        str | int,
        Literal[1, 2],
        list[Literal[1, 2]],
        Literal["a", 1],
        Any,
        None,
    ],
)
def test_what_a_form_cannot_ask_is_refused(annotation: Any) -> None:
    with pytest.raises(RegistrationError, match=r"Bad\.it: a form has texts, numbers"):
        form_of(bad(annotation))


@pytest.mark.parametrize("form", [int, list[int], str])
def test_what_is_no_class_with_fields_is_refused(form: Any) -> None:
    with pytest.raises(RegistrationError, match="expected a class with fields"):
        form_of(form)


@pytest.mark.requirement("EL-8")
@pytest.mark.parametrize(
    "name", ["password", "apiKey", "api_key", "client_secret", "accessToken", "Passphrase", "cvv"]
)
@pytest.mark.parametrize(
    "shape", [lambda name: {"type": "object", "properties": {name: {"type": "string"}}}, None]
)
def test_secrets_are_not_asked_for_in_a_form(name: str, shape: Callable[[str], Any] | None) -> None:
    """2026-07-28 client/elicitation: "Servers MUST NOT use form mode elicitation to request
    sensitive information".
    """
    form = shape(name) if shape else dataclass(type("Form", (), {"__annotations__": {name: str}}))
    with pytest.raises(RegistrationError, match="must not ask for a secret"):
        form_of(form)


def test_a_schema_by_hand_is_taken_as_it_is_and_gives_a_dict() -> None:
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {
            "a": {"type": "string", "enum": ["x"], "enumNames": ["X"]},
            "b": {"type": "array", "items": {"anyOf": [{"const": "x", "title": "X"}]}},
        },
    }
    made, read = form_of(schema)
    assert made == schema
    assert read({"a": "x"}) == {"a": "x"}


@pytest.mark.parametrize(
    "schema",
    [
        {},
        {"type": "object"},
        {"type": "array", "properties": {}},
        {"type": "object", "properties": {"a": {"type": "object"}}},
        {"type": "object", "properties": {"a": True}},
        {"type": "object", "properties": {"a": {"type": "array", "items": {"type": "string"}}}},
    ],
)
def test_a_schema_by_hand_that_is_no_form_is_refused(schema: Any) -> None:
    with pytest.raises(RegistrationError, match="a form"):
        form_of(schema)


def test_classes_made_in_a_loop_are_not_all_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(elicitation_form, "MAX_CACHE", 3)
    made = [
        dataclass(type(f"F{n}", (), {"__annotations__": {"a": str}, "b": field})) for n in range(10)
    ]
    for each in made:
        form_of(each)
    assert len(elicitation_form._CACHE) <= 3
