"""transform.py and changed_tool.py: tools under other names, with other arguments and texts."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any

import pytest
from composition.parts import Part, client_of
from loops import on_a_loop
from msgspec import Raw
from msgspec.json import encode

from concertino import RpcError, Server, ToolError
from concertino.backend import Backend
from concertino.errors import ConcertinoError
from concertino.transforms import ArgumentChange, ToolChange, Transform

ISSUE: dict[str, Any] = {
    "name": "create_issue",
    "description": "Create an issue.\n\nArgs:\n    owner: Who owns it.\n    body: Its text.",
    "x-unknown": {"kept": True},
    "inputSchema": {
        "type": "object",
        "properties": {
            "owner": {"type": "string"},
            "title": {"type": "string", "description": "At most 80 characters, unlike `owner`"},
            "body": {"type": "string", "enum": ["owner", "other"]},
            "labels": {"type": "array", "x-more": 1},
        },
        "required": ["owner", "title", "body"],
        "anyOf": [{"required": ["owner"]}],
        "additionalProperties": False,
    },
}
OTHER: dict[str, Any] = {"name": "ping", "inputSchema": {"type": "object"}, "x-other": 1}
CHANGES = {
    "create_issue": ToolChange(
        "report_bug",
        tags=("bugs",),
        arguments={
            "owner": ArgumentChange(value="octocat-secret"),
            "title": ArgumentChange("headline", description="What happens"),
            "body": ArgumentChange(default="other"),
        },
    )
}


def part(result: Any = None) -> Part:
    page = {"tools": [ISSUE, OTHER], "x-page": 1}
    answer = result if result is not None else Raw(b'{"content":[]}')
    return Part({"tools/list": Raw(encode(page)), "tools/call": answer}, tools=True)


async def tools_of(backend: Backend) -> list[dict[str, Any]]:
    async with client_of(backend) as caller:
        return (await caller.request("tools/list"))["tools"]


async def call(backend: Backend, name: str, arguments: Mapping[str, Any]) -> Any:
    async with client_of(backend) as caller:
        return await caller.request("tools/call", {"name": name, "arguments": arguments})


@on_a_loop
async def test_a_definition_is_shown_as_the_changes_say() -> None:
    bug, ping = await tools_of(Transform(part(), tools=CHANGES))
    assert bug["name"] == "report_bug"
    assert bug["_meta"]["concertino/tags"] == ["bugs"]
    schema = bug["inputSchema"]
    assert list(schema["properties"]) == ["headline", "body", "labels"]
    assert schema["properties"]["headline"]["description"] == "What happens"
    assert schema["properties"]["body"]["default"] == "other"
    # What has a default is not required, and a rule about a hidden argument is the server's.
    assert schema["required"] == ["headline"]
    assert "anyOf" not in schema
    # Values are not texts.
    assert schema["properties"]["body"]["enum"] == ["owner", "other"]
    assert ping["name"] == "ping"


@on_a_loop
async def test_members_that_nobody_knows_are_kept() -> None:
    from concertino.backend.listing import _ListingContext  # pyright: ignore[reportPrivateUsage]
    from concertino.protocol.call import Call

    context: Any = _ListingContext()
    transform = Transform(part(), tools=CHANGES)
    result = await transform.handle(Call("tools/list"), context)
    assert isinstance(result, Raw)
    page = json.loads(bytes(result))
    assert page["x-page"] == 1
    assert page["tools"][0]["x-unknown"] == {"kept": True}
    assert page["tools"][0]["inputSchema"]["properties"]["labels"] == {"type": "array", "x-more": 1}
    assert page["tools"][1] == OTHER
    # The same list is the same object, whose encoded form is kept.
    assert await transform.handle(Call("tools/list"), context) is result


@on_a_loop
async def test_a_hidden_argument_is_in_no_list() -> None:
    tools = json.dumps(await tools_of(Transform(part(), tools=CHANGES)))
    assert "octocat" not in tools
    assert '"owner"' in tools  # the value of an enum
    assert "owner:" not in tools
    assert "`owner`" not in tools


@on_a_loop
async def test_the_server_gets_its_own_names_and_the_hidden_values() -> None:
    inner = part()
    await call(Transform(inner, tools=CHANGES), "report_bug", {"headline": "h", "labels": []})
    assert inner.calls[-1] == (
        "tools/call",
        {
            "name": "create_issue",
            "arguments": {"body": "other", "title": "h", "labels": [], "owner": "octocat-secret"},
        },
    )


@on_a_loop
async def test_a_value_of_the_client_goes_before_the_default() -> None:
    inner = part()
    await call(Transform(inner, tools=CHANGES), "report_bug", {"headline": "h", "body": "b"})
    assert inner.calls[-1][1]["arguments"]["body"] == "b"


@pytest.mark.parametrize("argument", ["owner", "title"])
@on_a_loop
async def test_hidden_arguments_and_old_names_are_refused(argument: str) -> None:
    inner = part()
    with pytest.raises(RpcError) as caught:
        await call(Transform(inner, tools=CHANGES), "report_bug", {argument: "x"})
    assert caught.value.code == -32602
    assert caught.value.data == {"details": f"Unexpected argument: {argument}"}
    assert all(method != "tools/call" for method, _ in inner.calls)


@pytest.mark.parametrize("name", ["create_issue", "none"])
@on_a_loop
async def test_the_old_name_is_unknown(name: str) -> None:
    server = Server("s")
    with pytest.raises(RpcError, match=f"Unknown tool: {name}"):
        await call(Transform(server, tools=CHANGES), name, {})


@on_a_loop
async def test_an_unknown_tool_is_named_as_the_client_named_it() -> None:
    with pytest.raises(RpcError, match="Unknown tool: report_bug"):
        await call(Transform(Server("s"), tools=CHANGES), "report_bug", {})


def failing() -> Server:
    server = Server("s")

    @server.tool
    def create_issue(owner: str, title: str, body: str = "") -> str:
        raise ToolError(f"create_issue: 'title' is wrong for {owner}, see argument owner")

    return server


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({}, "Missing required field: headline"),
        ({"headline": 1}, "headline: expected str, got int"),
        ({"headline": "a"}, "report_bug: 'headline' is wrong for [hidden], see argument [hidden]"),
    ],
)
@on_a_loop
async def test_failures_name_what_the_client_knows(arguments: Any, text: str) -> None:
    result = await call(Transform(failing(), tools=CHANGES), "report_bug", arguments)
    assert result["isError"]
    said = result["content"][0]["text"]
    assert text in said
    assert "octocat" not in said
    assert "owner" not in said
    assert "title" not in said


@on_a_loop
async def test_protocol_errors_name_what_the_client_knows() -> None:
    error = RpcError(
        -32602, "Invalid params", {"details": "Missing required field: title", "got": ["owner"]}
    )
    with pytest.raises(RpcError) as caught:
        await call(Transform(part(error), tools=CHANGES), "report_bug", {})
    assert caught.value.data == {
        "details": "Missing required field: headline",
        "got": ["[hidden]"],
    }


@on_a_loop
async def test_failures_of_other_servers_are_reworded() -> None:
    # As pydantic words it, in a server of FastMCP.
    text = "1 validation error for create_issue\ntitle\n  Field required\nowner='octocat-secret'"
    result = Raw(encode({"content": [{"type": "text", "text": text}], "isError": True}))
    said = await call(Transform(part(result), tools=CHANGES), "report_bug", {})
    assert said["content"][0]["text"] == (
        "1 validation error for report_bug\nheadline\n  Field required\n[hidden]='[hidden]'"
    )


@on_a_loop
async def test_results_stay_as_they_are() -> None:
    text = "title: create_issue of owner"
    result = Raw(encode({"content": [{"type": "text", "text": text}]}))
    said = await call(Transform(part(result), tools=CHANGES), "report_bug", {})
    assert said["content"][0]["text"] == text


@on_a_loop
async def test_names_can_be_exchanged() -> None:
    def swapped() -> Transform:
        server = Server("s")

        @server.tool
        def one(a: str, b: str) -> str:
            return f"one {a} {b}"

        @server.tool
        def two() -> str:
            return "two"

        swap = {"a": ArgumentChange("b"), "b": ArgumentChange("a")}
        return Transform(server, tools={"one": ToolChange("two", arguments=swap), "two": "one"})

    tools = await tools_of(swapped())
    assert [tool["name"] for tool in tools] == ["two", "one"]
    result = await call(swapped(), "two", {"a": "x", "b": "y"})
    assert result["content"][0]["text"] == "one y x"
    assert (await call(swapped(), "one", {}))["content"][0]["text"] == "two"


@on_a_loop
async def test_a_tool_that_has_the_new_name_already_is_hidden() -> None:
    tools = await tools_of(Transform(part(), tools={"create_issue": "ping"}))
    assert [(tool["name"], "x-other" in tool) for tool in tools] == [("ping", False)]


@on_a_loop
async def test_allow_and_deny_take_the_servers_names() -> None:
    tools = await tools_of(Transform(part(), tools=CHANGES, deny="ping"))
    assert [tool["name"] for tool in tools] == ["report_bug"]
    tools = await tools_of(Transform(part(), tools=CHANGES, allow="ping"))
    assert [tool["name"] for tool in tools] == ["ping"]


@on_a_loop
async def test_a_value_may_come_from_the_environment() -> None:
    inner = part()
    change = ToolChange(arguments={"owner": ArgumentChange(env="OWNER")})
    transform = Transform(inner, tools={"create_issue": change}, environment={"OWNER": "ada-9x7"})
    await call(transform, "create_issue", {})
    assert inner.calls[-1][1]["arguments"] == {"owner": "ada-9x7"}


def test_a_variable_that_is_not_set_is_named() -> None:
    change = ToolChange(arguments={"owner": ArgumentChange(env="OWNER")})
    with pytest.raises(ConcertinoError, match=r"create_issue\.owner: the variable OWNER is not"):
        Transform(part(), tools={"create_issue": change}, environment={})


def test_two_tools_cannot_have_one_name() -> None:
    with pytest.raises(ValueError, match="both 'a' and 'b' would be called 'c'"):
        Transform(part(), tools={"a": "c", "b": "c"})


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"value": 1, "env": "X"}, "value and env"),
        ({"value": 1, "name": "x"}, "a hidden argument has no name"),
        ({"name": ""}, "name: expected"),
        ({"env": ""}, "env: expected"),
    ],
)
def test_changes_that_contradict_each_other_are_refused(fields: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ArgumentChange(**fields)


def test_two_arguments_cannot_have_one_name() -> None:
    with pytest.raises(ValueError, match="both 'a' and 'b' would be called 'b'"):
        ToolChange(arguments={"a": ArgumentChange("b"), "b": ArgumentChange()})


@pytest.mark.parametrize("schema", [True, {"properties": 1}, {"properties": {"owner": True}}])
@on_a_loop
async def test_a_schema_of_any_shape_is_passed_on(schema: Any) -> None:
    from concertino.transforms.changed_tool import ChangedTool

    tool = ChangedTool("create_issue", CHANGES["create_issue"], {"owner": 1})
    shown = tool.show({"name": Raw(b'"create_issue"'), "inputSchema": Raw(encode(schema))})
    assert "owner" not in bytes(shown["inputSchema"]).decode()


async def call_undecoded(backend: Backend, arguments: bytes) -> Any:
    """Call the tool `report_bug` with any JSON as its arguments."""
    from concertino.backend.listing import _ListingContext  # pyright: ignore[reportPrivateUsage]
    from concertino.protocol.call import Call

    context: Any = _ListingContext()
    params = {"name": Raw(b'"report_bug"'), "arguments": Raw(arguments)}
    return await backend.handle(Call("tools/call", params), context)


@on_a_loop
async def test_null_for_the_arguments_does_not_leave_the_hidden_ones_out() -> None:
    inner = part()
    await call_undecoded(Transform(inner, tools=CHANGES), b"null")
    _, params = inner.calls[-1]
    assert params["arguments"] == {"body": "other", "owner": "octocat-secret"}


@pytest.mark.parametrize("arguments", [b"[]", b"5", b'"x"', b"false"])
@on_a_loop
async def test_arguments_that_are_no_object_do_not_reach_the_server(arguments: bytes) -> None:
    inner = part()
    with pytest.raises(RpcError) as caught:
        await call_undecoded(Transform(inner, tools=CHANGES), arguments)
    assert caught.value.code == -32602
    assert "arguments: expected an object" in str(caught.value.data)
    assert inner.calls == []


@on_a_loop
async def test_an_argument_whose_name_another_one_takes_is_not_required() -> None:
    changes = {"create_issue": ToolChange(arguments={"title": ArgumentChange("body")})}
    schema = (await tools_of(Transform(part(), tools=changes)))[0]["inputSchema"]
    assert schema["required"] == ["owner", "body"]
    assert schema["properties"]["body"]["description"].startswith("At most 80")


@on_a_loop
async def test_changes_of_what_is_not_there_are_reported_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    changes = {
        "create_isue": "report_bug",
        "create_issue": ToolChange(arguments={"ovner": ArgumentChange(value="me")}),
    }
    transform = Transform(part(), tools=changes)
    await tools_of(transform)
    await tools_of(transform)
    assert sorted(record.getMessage() for record in caplog.records) == [
        "tools: create_issue: there is no argument 'ovner' to change",
        "tools: there is no tool 'create_isue' to change; did you mean 'create_issue'?",
    ]


@on_a_loop
async def test_a_required_argument_whose_name_another_one_takes_is_reported(
    caplog: pytest.LogCaptureFixture,
) -> None:
    changes = {
        "create_issue": ToolChange(
            arguments={
                "title": ArgumentChange("body"),
                # Neither of these is missing in a call, or required.
                "owner": ArgumentChange(value="me"),
                "labels": ArgumentChange("owner"),
            }
        )
    }
    await tools_of(Transform(part(), tools=changes))
    assert [record.getMessage() for record in caplog.records] == [
        "tools: create_issue: no call can have the required argument 'body', because its name is "
        "that of another one now; rename it, or give it a value"
    ]


@on_a_loop
async def test_a_hidden_argument_is_in_no_text_and_no_rule_of_the_schema() -> None:
    schema = (
        rb'{"type": "object", "description": "The `t\u00f6ken` is checked",'
        rb'"properties": {"t\u00f6ken": {}, "a": {"$ref": "#/$defs/A"}},'
        rb'"$defs": {"A": {"description": "Beside `t\u00f6ken`", "default": "t\u00f6ken"}},'
        rb'"anyOf": [{"required": ["t\u00f6ken"]}, {"required": ["a"]}]}'
    )
    page = Raw(b'{"tools": [{"name": "t", "inputSchema": %b}]}' % schema)
    server = Part({"tools/list": page}, tools=True)
    change = ToolChange(arguments={"töken": ArgumentChange(value=1)})
    [tool] = await tools_of(Transform(server, tools={"t": change}))
    assert tool["inputSchema"] == {
        "type": "object",
        "description": "The `[hidden]` is checked",
        "properties": {"a": {"$ref": "#/$defs/A"}},
        # Values are not texts.
        "$defs": {"A": {"description": "Beside `[hidden]`", "default": "töken"}},
    }


@pytest.mark.parametrize("refers_to_itself", [False, True])
@on_a_loop
async def test_arguments_of_a_schema_that_is_only_a_reference(refers_to_itself: bool) -> None:
    """The form that pydantic gives to the schema of a class that refers to itself."""
    child = {"$ref": "#/$defs/Node"} if refers_to_itself else {"type": "null"}
    node = {
        "type": "object",
        "properties": {"token": {"type": "string"}, "name": {}, "child": child},
        "required": ["token", "name"],
    }
    schema = {"$ref": "#/$defs/Node", "$defs": {"Node": node, "X": {}}, "description": "A node."}
    page = Raw(encode({"tools": [{"name": "t", "inputSchema": schema}]}))
    server = Part({"tools/list": page}, tools=True)
    change = ToolChange(
        arguments={"token": ArgumentChange(value=1), "name": ArgumentChange("title")}
    )
    [tool] = await tools_of(Transform(server, tools={"t": change}))
    assert tool["inputSchema"] == {
        "type": "object",
        "description": "A node.",
        "properties": {"title": {}, "child": child},
        "required": ["title"],
        # The inner nodes have all arguments: the change is one of the tool's own arguments.
        "$defs": {"Node": node, "X": {}} if refers_to_itself else {"X": {}},
    }


@pytest.mark.parametrize(
    "reference",
    [b'"$defs": null', b'"$ref": null', b'"$ref": "#/$defs/A", "$defs": {"A": 1}', b'"$ref": "A"'],
)
@on_a_loop
async def test_a_hidden_argument_is_hidden_beside_a_reference_to_nothing(reference: bytes) -> None:
    schema = b'{"properties": {"token": {}, "a": {}}, %b}' % reference
    page = Raw(b'{"tools": [{"name": "t", "inputSchema": %b}]}' % schema)
    server = Part({"tools/list": page}, tools=True)
    change = ToolChange(arguments={"token": ArgumentChange(value=1)})
    [tool] = await tools_of(Transform(server, tools={"t": change}))
    assert tool["inputSchema"]["properties"] == {"a": {}}


def test_the_time_for_a_failure_does_not_grow_with_the_square_of_its_length() -> None:
    from concertino.transforms.changed_tool import ChangedTool

    tool = ChangedTool("t", ToolChange(arguments={"repo": ArgumentChange("r")}), {})
    blank = "\n" * 100_000
    started = time.process_time()
    assert tool.reword(f"{blank}  repo{blank}") == f"{blank}  r{blank}"
    # The square would take 30 s.
    assert time.process_time() - started < 5


@on_a_loop
async def test_a_list_with_a_cursor_of_another_type_is_named(
    caplog: pytest.LogCaptureFixture,
) -> None:
    server = Part({"tools/list": Raw(b'{"tools": [], "nextCursor": 5}')}, tools=True)
    with pytest.raises(RpcError):
        await tools_of(Transform(server, tools={"a": "b"}))
    assert "ProtocolError: tools/list: not a list of tools" in caplog.text


@on_a_loop
async def test_tools_of_other_pages_are_not_reported(caplog: pytest.LogCaptureFixture) -> None:
    def answer() -> str:
        return "x"

    server = Server("s", page_size=1)
    for name in ("a", "b", "c"):
        server.tool(name=name)(answer)
    async with client_of(Transform(server, tools={"c": "d"})) as caller:
        page = await caller.request("tools/list")
        while (cursor := page.get("nextCursor")) is not None:
            page = await caller.request("tools/list", {"cursor": cursor})
    assert page["tools"][0]["name"] == "d"
    assert caplog.records == []


# Any: what a type checker would refuse.
@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"tags": "read"}, "tags: expected a tuple of texts, got 'read'"),
        ({"tags": (5,)}, r"tags: expected a tuple of texts, got \(5,\)"),
        ({"name": 5}, "name: expected a name, got 5"),
        ({"description": 5}, "description: expected a text, got 5"),
        ({"arguments": {"a": "b"}}, "arguments: a: expected an ArgumentChange, got 'b'"),
    ],
)
def test_a_change_of_another_type_is_refused(fields: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ToolChange(**fields)


def test_a_value_that_is_no_json_is_refused() -> None:
    with pytest.raises(ValueError, match="value: expected a JSON value"):
        ArgumentChange(value=object())
    changes: Any = {"create_issue": 5}
    with pytest.raises(ValueError, match="create_issue: expected a ToolChange or a new name, got"):
        Transform(part(), tools=changes)


@pytest.mark.parametrize("meta", [None, [], 5])
def test_tags_replace_a_meta_that_is_no_object(meta: Any) -> None:
    from concertino.transforms.changed_tool import ChangedTool

    tool = ChangedTool("a", ToolChange(tags=("x",)), {})
    shown = tool.show({"name": Raw(b'"a"'), "_meta": Raw(encode(meta))})
    assert json.loads(bytes(shown["_meta"])) == {"concertino/tags": ["x"]}
