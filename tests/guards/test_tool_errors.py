"""ToolError with a code, and arguments that do not fit: shapes of the Orchestre system's protocol
reference.
"""

from __future__ import annotations

import json
import pickle
from typing import Any

import pytest
from guards.asking import ask_server, text_of

from concertino import Server, ToolError


def failing(error: BaseException) -> Server:
    server = Server("failing")

    @server.tool
    async def fail() -> str:
        raise error

    return server


def call_raising(error: BaseException) -> str:
    [result] = ask_server(failing(error), ("tools/call", {"name": "fail"}))
    assert result["isError"] is True
    return text_of(result)


def test_a_code_makes_the_text_json_with_error_code_suggestion_and_what_else_is_given() -> None:
    error = ToolError(
        "TEMPLATE_NOT_FOUND",
        "Template not found",
        suggestion="Choose one of the available templates",
        availableTemplates=["makerkit-nextjs", "cloudflare-hono"],
    )
    assert call_raising(error) == (
        '{"error":"Template not found","code":"TEMPLATE_NOT_FOUND","suggestion":"Choose one '
        'of the available templates",'
        '"availableTemplates":["makerkit-nextjs","cloudflare-hono"]}'
    )


def test_a_text_alone_stays_a_text() -> None:
    assert call_raising(ToolError("in my words")) == "in my words"
    assert (
        str(ToolError("in my words")),
        ToolError("in my words").code,
        ToolError("in my words").body,
    ) == (
        "in my words",
        None,
        None,
    )
    assert (str(ToolError()), str(ToolError(404))) == ("", "404")


def test_a_suggestion_without_a_code_has_the_general_one() -> None:
    assert json.loads(call_raising(ToolError("no", suggestion="yes"))) == {
        "error": "no",
        "code": "TOOL_FAILED",
        "suggestion": "yes",
    }


def test_what_is_given_besides_does_not_replace_what_has_a_name() -> None:
    body = json.loads(call_raising(ToolError("A", "no", error="x", code="B", more=1)))
    assert body == {"error": "no", "code": "A", "more": 1}


def test_str_is_the_message_and_it_can_be_pickled() -> None:
    error = pickle.loads(pickle.dumps(ToolError("A", "no", suggestion="yes", more=[1])))
    assert (str(error), error.code, error.body) == (
        "no",
        "A",
        {"error": "no", "code": "A", "suggestion": "yes", "more": [1]},
    )


CYCLE: list[Any] = []
CYCLE.append(CYCLE)


@pytest.mark.parametrize(
    "odd",
    [{(1, 2): 3}, "\ud800", CYCLE, object, 2**70],
    ids=["key", "surrogate", "cycle", "class", "large"],
)
def test_what_json_cannot_hold_does_not_hide_the_failure(odd: Any) -> None:
    body = json.loads(call_raising(ToolError("A", "no", odd=odd, good=[1])))
    assert (body["error"], body["code"], body["good"]) == ("no", "A", [1])
    assert "odd" in body


def test_of_a_resource_it_is_an_error_answer_with_the_body_as_data() -> None:
    server = Server("failing")

    @server.resource("a:b")
    def read() -> str:
        raise ToolError("GONE", "no more", suggestion="ask later")

    [error] = ask_server(server, ("resources/read", {"uri": "a:b"}))
    assert (error.code, error.message) == (-32603, "no more")
    assert error.data == {"error": "no more", "code": "GONE", "suggestion": "ask later"}


def test_arguments_that_do_not_fit_have_the_same_shape_with_an_entry_for_each() -> None:
    async def analyze_project(requirements: str, count: int = 1) -> str:
        return requirements

    server, protocol = Server("a"), Server("b", argument_errors="protocol")
    for each in (server, protocol):
        each.tool(analyze_project)
    call = ("tools/call", {"name": "analyze_project", "arguments": {"count": "x"}})
    [result] = ask_server(server, call)
    body = json.loads(text_of(result))
    assert (result["isError"], body["code"]) == (True, "INVALID_ARGUMENTS")
    assert [each["path"] for each in body["details"]] == ["requirements", "count"]
    assert {"error", "code", "suggestion"} <= body.keys()
    [error] = ask_server(protocol, ("tools/call", {"name": "analyze_project", "arguments": {}}))
    assert (error.code, error.message, error.data) == (
        -32602,
        "Invalid params",
        {"details": "Missing required field: requirements"},
    )
