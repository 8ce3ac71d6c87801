"""Headers that repeat arguments, at a real server. Rows HM-40 to HM-51 (HTTP.md)."""

from __future__ import annotations

import http.client
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from http_service import Answer, HttpService, modern, modern_headers, post, serving, text_of

from concertino import Server
from concertino.errors import RegistrationError

SERVERS = """
from typing import Annotated

from msgspec import Meta

from concertino import Server, compose
from concertino.guards import Guard
from concertino.transforms import ArgumentChange, ToolChange, Transform

plain = Server("weather")


@plain.tool
async def forecast(
    city: Annotated[str, Meta(extra_json_schema={"x-mcp-header": "City"})], days: int = 1
) -> str:
    return f"{city} {days}"


guarded = Guard(plain, max_in_flight=5)
composed = compose(w=plain)
changed = Transform(
    plain, tools={"forecast": ToolChange("look", arguments={"city": ArgumentChange(name="place")})}
)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("params")
    (folder / "weather.py").write_text(SERVERS)
    return folder


@pytest.fixture(
    params=[
        ("plain", "forecast", "city"),
        ("guarded", "forecast", "city"),
        ("composed", "w_forecast", "city"),
        ("changed", "look", "place"),
    ],
    ids=lambda item: item[0],
    scope="module",
)
def server(request: Any, folder: Path) -> Iterator[tuple[HttpService, str, str]]:
    attribute, tool, argument = request.param
    with serving(f"{folder / 'weather.py'}:{attribute}") as running:
        yield running, tool, argument


def call(
    connection: http.client.HTTPConnection, tool: str, arguments: Any, **headers: str
) -> Answer:
    message = modern("tools/call", name=tool, arguments=arguments)
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return post(connection, message, {**modern_headers(message), **named})


def test_the_header_must_agree_with_the_argument(server: tuple[HttpService, str, str]) -> None:
    service, tool, argument = server
    connection = service.connect()

    answer = call(connection, tool, {argument: "Bern"}, Mcp_Param_City="Bern")
    assert text_of(answer.json) == "Bern 1"

    for headers in ({}, {"Mcp_Param_City": "Basel"}, {"Mcp_Param_City": "=?base64?QmVybg?="}):
        answer = call(connection, tool, {argument: "Bern"}, **headers)
        assert (answer.status, answer.json["error"]["code"]) == (400, -32020)
        assert answer.json["id"] == 1
        assert "Mcp-Param-City" in answer.json["error"]["message"]

    # Not annotated, so nobody looks at it.
    answer = call(
        connection, tool, {argument: "Bern", "days": 2}, Mcp_Param_City="Bern", Mcp_Param_Days="9"
    )
    assert text_of(answer.json) == "Bern 2"


def test_a_missing_argument_is_an_error_of_the_tool(server: tuple[HttpService, str, str]) -> None:
    service, tool, _ = server

    answer = call(service.connect(), tool, {})

    assert answer.status == 200
    assert answer.json["result"]["isError"] is True


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "number", "x-mcp-header": "A"},
        {"type": "string", "x-mcp-header": "a b"},
        {"type": "array", "items": {"type": "string", "x-mcp-header": "A"}},
    ],
)
def test_an_annotation_that_clients_would_refuse_is_refused_at_once(schema: Any) -> None:
    server = Server("s")

    with pytest.raises(RegistrationError, match="x-mcp-header"):

        @server.tool(input_schema={"type": "object", "properties": {"a": schema}})
        async def take(arguments: dict[str, Any]) -> str:
            return str(arguments)
