"""client/output_types.py: what a tool returns, as whatever type a tool's arguments may have."""

from __future__ import annotations

import decimal
import enum
import json
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Annotated, Any, NamedTuple, TypedDict

import attrs
import pytest
from client.scripted import on_a_loop, opened
from msgspec import Meta, Struct
from pydantic import BaseModel, Field

from concertino import Server
from concertino.client.client import Client
from concertino.errors import ProtocolError


class City(BaseModel):
    name: str
    inhabitants: int = Field(ge=0, alias="population")


@attrs.define
class Bird:
    name: str
    wings: int = 2


@dataclass
class Tour:
    days: int
    cities: list[City]


class Kind(enum.Enum):
    SMALL = ("s", 1)
    LARGE = ("l", 2)


class Size(TypedDict):
    width: int


class Place(NamedTuple):
    x: int
    y: int


class Box(Struct):
    size: int


BERN = {"name": "Bern", "population": 134_000}
CITY = City(name="Bern", population=134_000)
CASES: list[tuple[Any, Any, Any]] = [
    (BERN, City, CITY),
    ({"result": [BERN, BERN]}, list[City], [CITY, CITY]),
    ([BERN], list[City], [CITY]),
    ({"a": BERN}, dict[str, City], {"a": CITY}),
    (BERN, City | None, CITY),
    (None, City | None, None),
    ({"days": 3, "cities": [BERN]}, Tour, Tour(3, [CITY])),
    ({"name": "tit"}, Bird, Bird("tit")),
    ([{"name": "tit", "wings": 1}], list[Bird], [Bird("tit", 1)]),
    ({"size": 1.0}, Box, Box(1)),
    ({"1": "a"}, dict[int, str], {1: "a"}),
    (["s", 1], Kind, Kind.SMALL),
    ([3, 4], Place, Place(3, 4)),
    ({"width": 2}, Size, {"width": 2}),
    ("a/b", PurePosixPath, PurePosixPath("a/b")),
    ("1.50", decimal.Decimal, decimal.Decimal("1.50")),
    (7, Annotated[int, Meta(ge=0)], 7),
]


@pytest.mark.requirement("TO-16", side="client")
@pytest.mark.parametrize("is_text", [False, True])
@pytest.mark.parametrize(("output", "into", "value"), CASES, ids=lambda case: str(case)[:30])
@on_a_loop
async def test_output_becomes_any_type_that_arguments_may_have(
    output: Any, into: Any, value: Any, is_text: bool
) -> None:
    if is_text and output == {"result": [BERN, BERN]}:
        output = output["result"]  # only structured content is wrapped
    content = [{"type": "text", "text": json.dumps(output)}] if is_text else []
    result: dict[str, Any] = {"resultType": "complete", "content": content}
    if not is_text:
        result["structuredContent"] = output
    async with opened({"tools/call": result}) as (client, _):
        for _ in range(2):
            assert await client.call_tool("x", into=into) == value


@on_a_loop
async def test_results_of_other_requests_become_pydantic_models_too() -> None:
    async with opened({"x/city": {"resultType": "complete", **BERN}}) as (client, _):
        assert await client.request("x/city", into=City) == CITY


@pytest.mark.parametrize(
    ("output", "into", "text"),
    [
        ({"name": "Bern"}, City, r"the result is no City: population: Field required"),
        (
            {"result": [BERN, {**BERN, "population": -1}]},
            list[City],
            r"\[1\]\.population: Input should be greater than or equal to 0",
        ),
        ({"days": 3, "cities": [{"name": 4}]}, Tour, r"cities"),
        ({"name": 5}, Bird, r"the result is no Bird: Expected `str`, got `int` - at `\$\.name`"),
    ],
)
@on_a_loop
async def test_output_that_does_not_fit_is_reported_with_its_path(
    output: Any, into: Any, text: str
) -> None:
    result = {"resultType": "complete", "content": [], "structuredContent": output}
    async with opened({"tools/call": result}) as (client, _):
        with pytest.raises(ProtocolError, match=text):
            await client.call_tool("x", into=into)


@on_a_loop
async def test_a_type_without_a_json_form_is_the_mistake_of_the_caller() -> None:
    result = {"resultType": "complete", "content": [], "structuredContent": {}}
    async with opened({"tools/call": result}) as (client, _):
        with pytest.raises(TypeError, match=r"into: .*complex"):
            await client.call_tool("x", into=complex)


@on_a_loop
async def test_what_a_typed_tool_returns_comes_back_as_its_type() -> None:
    server = Server("tours")

    @server.tool
    async def cities(tour: Tour) -> list[City]:
        return tour.cities

    async with Client(server) as client:
        assert await client.call_tool(
            "cities", {"tour": {"days": 1, "cities": [BERN]}}, into=list[City]
        ) == [CITY]
