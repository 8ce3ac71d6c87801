"""encoder.py: canonical results and errors, made fit for each revision.

Shapes are the official schemas'. What each result becomes is written out beside it, and the whole
catalogue is validated in each revision in test_session.py.
"""

from __future__ import annotations

import json
import re
from typing import Any

import jsonschema
import pytest
import wire
from catalogue import ANSWERS, ICONS, INFO, LIST, RESULTS, STRUCTURED, TOOLS
from msgspec import UNSET, DecodeError, Raw, Struct
from msgspec.json import encode

from concertino.protocol.call import InputRequired
from concertino.protocol.revisions import REVISION_BY_NAME
from concertino.protocol.wire_results import InputRequiredSignal, ResultEncoder
from concertino.types.resources_and_prompts import (
    CompleteResult,
    Completion,
    GetPromptResult,
    ListPromptsResult,
    ListResourcesResult,
    ListResourceTemplatesResult,
    Prompt,
    PromptArgument,
    PromptMessage,
    Resource,
    ResourceTemplate,
)
from concertino.types.results import (
    Annotations,
    AudioContent,
    CallToolResult,
    ContentBlock,
    EmbeddedResource,
    Implementation,
    ListToolsResult,
    ReadResourceResult,
    ResourceContents,
    ResourceLink,
    TextContent,
    Tool,
    ToolAnnotations,
)

A, B, C, D, E = wire.REVISIONS
SMALL = Implementation("n", "1")
SERVER = {"io.modelcontextprotocol/serverInfo": {"name": "n", "version": "1"}}
HINTS = Annotations(["user"], 1, "2025-01-12T15:00:58Z")
META = {"example.com/k": 1}


def encode_for(
    result: Struct | Raw, revision: str, method: str = "tools/call", info: Implementation = SMALL
) -> Any:
    return wire.one_json(
        ResultEncoder(REVISION_BY_NAME[revision], info).encode(result, method).replace(b"\n", b"")
    )


def content(block: ContentBlock, revision: str) -> Any:
    [found] = encode_for(CallToolResult([block]), revision)["content"]
    return found


# What every 2026-07-28 result says


@pytest.mark.requirement("ME-7", "ME-13")
def test_a_modern_result_says_that_it_is_complete_and_whose_it_is():
    assert encode_for(CallToolResult([TextContent("a")]), E) == {
        "resultType": "complete",
        "_meta": SERVER,
        "content": [{"type": "text", "text": "a"}],
    }


def test_a_result_keeps_its_own_meta_beside_the_servers():
    assert encode_for(CallToolResult([], meta=META), E) == {
        "resultType": "complete",
        "_meta": {**META, **SERVER},
        "content": [],
    }


def test_a_server_info_of_its_own_is_not_replaced():
    other = {"io.modelcontextprotocol/serverInfo": {"name": "behind", "version": "2"}}
    assert encode_for(CallToolResult([], meta=other), E)["_meta"] == other


def test_a_modern_list_is_stale_at_once_and_private():
    assert encode_for(ListToolsResult([]), E, "tools/list") == {
        "resultType": "complete",
        "_meta": SERVER,
        "ttlMs": 0,
        "cacheScope": "private",
        "tools": [],
    }


def test_a_list_with_meta_and_cursor_keeps_them():
    found = encode_for(ListToolsResult([], "", META), E, "tools/list")
    assert found["nextCursor"] == ""  # a valid cursor: server/utilities/pagination
    assert found["_meta"] == {**META, **SERVER}
    assert encode_for(ListToolsResult([], "", META), D, "tools/list") == {
        "tools": [],
        "nextCursor": "",
        "_meta": META,
    }


class Nothing(Struct):
    pass


def test_a_result_without_members_gets_those_that_all_have():
    assert encode_for(Nothing(), E, "x") == {"resultType": "complete", "_meta": SERVER}
    assert encode_for(Nothing(), D, "x") == {}


def test_an_older_result_says_nothing_of_the_kind():
    for version in wire.LEGACY:
        assert encode_for(CallToolResult([TextContent("a")]), version) == {
            "content": [{"type": "text", "text": "a"}]
        }
        assert encode_for(ListToolsResult([]), version, "tools/list") == {"tools": []}


def test_a_tool_list_is_written_once_for_as_long_as_it_stays_the_same():
    encoder = ResultEncoder(REVISION_BY_NAME[C], SMALL)
    tools = ListToolsResult([Tool("a", {"type": "object"})])
    assert encoder.encode(tools, "tools/list") is encoder.encode(tools, "tools/list")
    assert encoder.encode(ListToolsResult([]), "tools/list") == b'{"tools":[]}'


# Results that come as JSON


@pytest.mark.requirement("ME-13")
def test_a_result_that_comes_as_json_is_completed_for_the_modern():
    raw = Raw(b'{"contents":[{"uri":"a:b","text":""}],"_meta":{"example.com/k":1},"ttlMs":5}')
    assert encode_for(raw, E, "resources/read") == {
        "resultType": "complete",
        "_meta": {**META, **SERVER},
        "ttlMs": 5,
        "cacheScope": "private",
        "contents": [{"uri": "a:b", "text": ""}],
    }


@pytest.mark.requirement("MR-18")
def test_caching_hints_stand_on_complete_results_only():
    asked = Raw(b'{"resultType":"input_required","requestState":"s"}')
    assert encode_for(asked, E, "resources/read") == {
        "resultType": "input_required",
        "_meta": SERVER,
        "requestState": "s",
    }


def test_a_tool_result_that_comes_as_json_is_lowered_like_any_other():
    raw = Raw(
        b'{"content":[{"type":"audio","data":"AA==","mimeType":"audio/wav"}],"structuredContent":5}'
    )
    assert [each["type"] for each in encode_for(raw, A)["content"]] == ["resource"]
    assert encode_for(raw, C)["structuredContent"] == {"result": 5}
    assert encode_for(raw, E)["structuredContent"] == 5


def test_a_list_that_comes_as_json_is_lowered_like_any_other():
    raw = Raw(b'{"tools":[{"name":"a","inputSchema":{"type":"object"},"title":"A"}]}')
    assert encode_for(raw, B, "tools/list") == {
        "tools": [{"name": "a", "inputSchema": {"type": "object"}}]
    }
    assert encode_for(raw, E, "tools/list")["tools"][0]["title"] == "A"


def test_another_result_that_comes_as_json_stays_as_it_is_for_the_older():
    assert encode_for(Raw(b'{"x":[]}'), D, "x") == {"x": []}


@pytest.mark.parametrize("version", wire.REVISIONS)
@pytest.mark.parametrize("method", ANSWERS)
def test_what_comes_as_json_is_written_as_the_typed_result_is(method: str, version: str):
    for result in ANSWERS[method]:
        assert encode_for(Raw(encode(result)), version, method) == encode_for(
            result, version, method
        )


def test_what_only_2026_07_28_says_is_taken_out_of_json_for_the_older():
    raw = Raw(
        b'{"resultType":"complete","ttlMs":5,"cacheScope":"public","prompts":[{"name":"a",'
        b'"icons":[]}]}'
    )
    for version in (A, B, C):
        assert encode_for(raw, version, "prompts/list") == {"prompts": [{"name": "a"}]}
    assert encode_for(raw, D, "prompts/list") == {"prompts": [{"name": "a", "icons": []}]}


# Resources, prompts, completion


def test_the_caching_hints_of_a_result_stand_in_the_place_of_ours():
    def hints(**given: Any) -> Any:
        found = encode_for(ListPromptsResult([], **given), E, "prompts/list")
        return found["ttlMs"], found["cacheScope"]

    assert hints() == (0, "private")
    assert hints(ttl_ms=7) == (7, "private")
    assert hints(cache_scope="public") == (0, "public")
    assert hints(ttl_ms=7, cache_scope="public") == (7, "public")
    for version in wire.LEGACY:
        assert encode_for(ListPromptsResult([], ttl_ms=7, cache_scope="public"), version, "x") == {
            "prompts": []
        }


@pytest.mark.parametrize(
    ("item", "method", "name"),
    [
        (
            Resource("a:b", "n", "T", "D", "m/t", 5, HINTS, ICONS, META),
            "resources/list",
            "resources",
        ),
        (
            ResourceTemplate("a:{b}", "n", "T", "D", "m/t", HINTS, ICONS, META),
            "resources/templates/list",
            "resourceTemplates",
        ),
    ],
)
def test_a_resource_shows_what_the_revision_knows(item: Any, method: str, name: str):
    result = (
        ListResourcesResult([item])
        if method == "resources/list"
        else ListResourceTemplatesResult([item])
    )
    always = {"uri", "size"} if method == "resources/list" else {"uriTemplate"}
    always |= {"name", "description", "mimeType", "annotations"}
    for version in wire.REVISIONS:
        [found] = encode_for(result, version, method)[name]
        titled = {"title", "_meta"} if version not in (A, B) else set()
        drawn = {"icons"} if version in (D, E) else set()
        assert set(found) == always | titled | drawn
        assert ("lastModified" in found["annotations"]) is (version not in (A, B))
        assert found["annotations"]["audience"] == ["user"]


def test_a_prompt_shows_what_the_revision_knows():
    argument = PromptArgument("a", "An A", "about a", True)
    result = ListPromptsResult([Prompt("n", "T", "D", [argument], ICONS, META), Prompt("m")])
    for version in wire.REVISIONS:
        found, bare = encode_for(result, version, "prompts/list")["prompts"]
        titled = {"title", "_meta"} if version not in (A, B) else set()
        drawn = {"icons"} if version in (D, E) else set()
        assert set(found) == {"name", "description", "arguments"} | titled | drawn
        assert set(found["arguments"][0]) == {"name", "description", "required"} | (
            titled & {"title"}
        )
        assert bare == {"name": "m"}


def test_contents_lose_their_meta_before_2025_06_18():
    result = ReadResourceResult([ResourceContents("a:b", text="t", mime_type="m/t", meta=META)])
    plain = {"uri": "a:b", "text": "t", "mimeType": "m/t"}
    for version in (A, B):
        assert encode_for(result, version, "resources/read") == {"contents": [plain]}
    for version in (C, D):
        assert encode_for(result, version, "resources/read") == {
            "contents": [{**plain, "_meta": META}]
        }


def test_messages_hold_what_the_revision_knows():
    blocks = (AudioContent(b"\x00", "audio/wav"), ResourceLink("file:///a", "a"), TextContent("t"))
    result = GetPromptResult([PromptMessage("user", block) for block in blocks], "about it")

    def kinds(version: str) -> list[str]:
        found = encode_for(result, version, "prompts/get")
        assert found["description"] == "about it"
        assert {each["role"] for each in found["messages"]} == {"user"}
        return [each["content"]["type"] for each in found["messages"]]

    assert kinds(A) == ["resource", "text", "text"]
    assert kinds(B) == ["audio", "text", "text"]
    for version in (C, D, E):
        assert kinds(version) == ["audio", "resource_link", "text"]


def test_a_completion_is_the_same_for_all():
    result = CompleteResult(Completion(["a", "b"], 3, True))
    for version in wire.LEGACY:
        assert encode_for(result, version, "completion/complete") == {
            "completion": {"values": ["a", "b"], "total": 3, "hasMore": True}
        }


def test_a_list_is_written_again_when_another_of_its_kind_came_between():
    encoder = ResultEncoder(REVISION_BY_NAME[D], SMALL)
    first, second = ListPromptsResult([Prompt("a")]), ListPromptsResult([Prompt("b")])
    tools = encoder.encode(LIST, "tools/list")
    for result, name in ((first, b"a"), (second, b"b"), (first, b"a")):
        assert encoder.encode(result, "prompts/list") == b'{"prompts":[{"name":"%b"}]}' % name
    assert encoder.encode(LIST, "tools/list") is tools


@pytest.mark.parametrize("version", wire.REVISIONS)
@pytest.mark.parametrize(
    ("result", "text"),
    [
        (
            ReadResourceResult([ResourceContents("a:b")]),
            "contents[0]: expected exactly one of text and blob for a:b",
        ),
        (
            ReadResourceResult([ResourceContents("a:b", text="", blob=b"")]),
            "exactly one of text and blob",
        ),
        (ReadResourceResult(["x"]), "contents[0]: expected ResourceContents, got str"),  # type: ignore[list-item]
        (
            GetPromptResult([PromptMessage("user", "x")]),
            "messages[0].content: expected one of TextContent, ",
        ),  # type: ignore[arg-type]
        (
            CallToolResult([EmbeddedResource(ResourceContents("a:b"))]),
            "content[0].resource: expected exactly one",
        ),
    ],
)
def test_what_no_client_could_read_is_refused(result: Struct, text: str, version: str):
    with pytest.raises(TypeError, match=re.escape(text)):
        encode_for(result, version, "x")


def test_a_resource_that_is_not_there_has_the_code_of_the_revision():
    """REQUIREMENTS B.4; EC-3, EC-6, EC-7."""
    gone = {"uri": "a:b"}
    for version in wire.LEGACY:
        code = ResultEncoder(REVISION_BY_NAME[version], SMALL).error_code
        assert (
            code(-32602, gone, "resources/read") == code(-32002, None, "resources/read") == -32002
        )
        assert (
            code(-32602, {"details": "uri: missing"}, "resources/read")
            == code(-32602, gone, "x")
            == -32602
        )
        assert code(-32602, None, "resources/read") == -32602
        assert code(-32603, gone, "resources/read") == -32603
    code = ResultEncoder(REVISION_BY_NAME[E], SMALL).error_code
    assert code(-32602, gone, "resources/read") == code(-32002, gone, "resources/read") == -32602
    assert code(-32603, gone, "resources/read") == -32603


# Content


def test_text_without_decoration_is_the_same_for_all():
    for version in wire.REVISIONS:
        assert content(TextContent("a"), version) == {"type": "text", "text": "a"}


@pytest.mark.requirement("RE-8")
def test_the_date_of_annotations_is_known_since_2025_06_18():
    block = TextContent("a", HINTS, META)
    old = {"type": "text", "text": "a", "annotations": {"audience": ["user"], "priority": 1}}
    new = {
        **old,
        "annotations": {**old["annotations"], "lastModified": HINTS.last_modified},
        "_meta": META,
    }  # type: ignore[dict-item]
    assert [content(block, version) for version in wire.REVISIONS] == [old, old, new, new, new]


@pytest.mark.requirement("CO-1", "CO-2")
def test_audio_is_embedded_as_a_blob_for_2024_11_05():
    block = AudioContent(b"\x00", "audio/wav", HINTS, META)
    assert content(block, A) == {
        "type": "resource",
        "resource": {"uri": "audio:1", "blob": "AA==", "mimeType": "audio/wav"},
        "annotations": {"audience": ["user"], "priority": 1},
    }
    assert content(block, B)["type"] == "audio"


def test_two_sounds_get_different_uris():
    found = encode_for(CallToolResult([AudioContent(b"", "a/b"), AudioContent(b"", "a/b")]), A)
    assert [each["resource"]["uri"] for each in found["content"]] == ["audio:1", "audio:2"]


@pytest.mark.requirement("CO-1", "CO-3")
def test_a_link_is_told_in_text_before_2025_06_18():
    link = ResourceLink("file:///a", "a", annotations=HINTS)
    described = ResourceLink("file:///a", "a", "An a", "about it")
    for version in (A, B):
        assert content(link, version) == {"type": "text", "text": "a: file:///a"}
        assert content(described, version) == {"type": "text", "text": "An a: file:///a (about it)"}


def test_a_links_icons_are_known_since_2025_11_25():
    link = ResourceLink("file:///a", "a", icons=ICONS, meta=META)
    plain = {"type": "resource_link", "uri": "file:///a", "name": "a", "_meta": META}
    assert content(link, C) == plain
    for version in (D, E):
        assert len(content(link, version)["icons"]) == 2


def test_an_embedded_resource_loses_its_meta_before_2025_06_18():
    block = EmbeddedResource(ResourceContents("file:///a", text="a", meta=META), meta=META)
    for version in (A, B):
        assert content(block, version) == {
            "type": "resource",
            "resource": {"uri": "file:///a", "text": "a"},
        }
    for version in (C, D, E):
        assert (
            content(block, version)["_meta"] == content(block, version)["resource"]["_meta"] == META
        )


# Structured content and its schemas


@pytest.mark.requirement("TO-15")
@pytest.mark.parametrize("value", [5, "s", None, [1], False, Raw(b"[1]"), Raw(b' "{" ')])
def test_structured_content_that_is_no_object_travels_as_a_result_before_2026_07_28(value: object):
    plain = json.loads(bytes(value)) if isinstance(value, Raw) else value
    result = CallToolResult([], value)
    assert "structuredContent" not in encode_for(result, A)
    assert "structuredContent" not in encode_for(result, B)
    assert encode_for(result, C)["structuredContent"] == {"result": plain}
    assert encode_for(result, D)["structuredContent"] == {"result": plain}
    assert encode_for(result, E)["structuredContent"] == plain


@pytest.mark.parametrize("value", [{"a": 1}, Raw(b'{"a":1}'), Raw(b' \n{"a":1}')])
def test_structured_content_that_is_an_object_travels_as_it_is(value: object):
    for version in (C, D, E):
        assert encode_for(CallToolResult([], value), version)["structuredContent"] == {"a": 1}


@pytest.mark.requirement("TO-16")
def test_no_structured_content_is_not_null():
    for version in wire.REVISIONS:
        assert "structuredContent" not in encode_for(
            CallToolResult([TextContent("a", HINTS)], UNSET), version
        )


def list_tool(tool: Tool, revision: str) -> Any:
    [found] = encode_for(ListToolsResult([tool]), revision, "tools/list")["tools"]
    return found


@pytest.mark.requirement("IC-1", "IC-3")
def test_a_tool_shows_what_the_revision_knows():
    tool = Tool(
        "a", {"type": "object"}, "T", "D", {"type": "object"}, ToolAnnotations("TT"), ICONS, META
    )
    members = {"name", "description", "inputSchema"}
    assert set(list_tool(tool, A)) == members
    assert set(list_tool(tool, B)) == members | {"annotations"}
    assert set(list_tool(tool, C)) == members | {"annotations", "title", "outputSchema", "_meta"}
    for version in (D, E):
        assert set(list_tool(tool, version)) == members | {
            "annotations",
            "title",
            "outputSchema",
            "_meta",
            "icons",
        }


def test_boolean_property_schemas_are_spelled_out_before_2026_07_28():
    schema = {
        "type": "object",
        "properties": {"yes": True, "no": False, "s": {"type": "string"}},
        "required": ["s"],
    }
    spelled = {**schema, "properties": {"yes": {}, "no": {"not": {}}, "s": {"type": "string"}}}
    for version in (C, D):
        found = list_tool(Tool("a", schema, output_schema=schema), version)
        assert found["inputSchema"] == found["outputSchema"] == spelled
    found = list_tool(Tool("a", schema, output_schema=schema), E)
    assert found["inputSchema"] == found["outputSchema"] == schema


def test_an_input_schema_without_booleans_keeps_all_its_keywords():
    schema = {
        "type": "object",
        "allOf": [True],
        "x-unknown": 1,
        "$defs": {"a": False},
        "properties": {"a": {}},
    }
    for version in wire.REVISIONS:
        assert list_tool(Tool("a", schema), version)["inputSchema"] == schema


@pytest.mark.parametrize("version", [C, D, E])
@pytest.mark.parametrize(
    "name", [name for name, (schema, value) in STRUCTURED.items() if schema and value is not UNSET]
)
def test_what_is_sent_is_what_was_promised_in_the_same_revision(name: str, version: str):
    schema = list_tool(TOOLS[name], version)["outputSchema"]
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(
        encode_for(RESULTS[name], version)["structuredContent"],
        schema,
        jsonschema.Draft202012Validator,
    )


def test_the_canonical_catalogue_is_not_changed_by_writing_it():
    before = repr(LIST)
    for version in wire.REVISIONS:
        encode_for(LIST, version, "tools/list")
    assert repr(LIST) == before


def test_structured_content_becomes_text_for_clients_that_only_know_text() -> None:
    result = CallToolResult([], structured_content={"sum": 3})
    for name in ("2024-11-05", "2025-03-26"):
        lowered = ResultEncoder(REVISION_BY_NAME[name], INFO).encode(result, "tools/call")
        assert json.loads(lowered) == {"content": [{"type": "text", "text": '{"sum":3}'}]}


def test_every_raw_result_of_a_method_is_made_fit_for_an_older_revision() -> None:
    encoder = ResultEncoder(REVISION_BY_NAME["2025-06-18"], INFO)
    for number in (b"1", b"2"):
        raw = Raw(b'{"content":[],"structuredContent":%b}' % number)
        assert encoder.encode(raw, "tools/call") == (
            b'{"content":[],"structuredContent":{"result":%b}}' % number
        )


def test_what_is_no_result_is_refused() -> None:
    for name in ("2025-11-25", "2026-07-28"):
        with pytest.raises(TypeError, match="expected a Struct or Raw, got NoneType"):
            ResultEncoder(REVISION_BY_NAME[name], INFO).encode(None, "tools/call")  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["2025-11-25", "2026-07-28"])
@pytest.mark.parametrize("broken", [b"", b"oops", b"{} {}", b"[]", b'{"a":"\xff"}'])
def test_json_of_a_backend_that_is_no_object_is_refused(name: str, broken: bytes) -> None:
    with pytest.raises((ValueError, DecodeError)):
        ResultEncoder(REVISION_BY_NAME[name], INFO).encode(Raw(broken), "prompts/list")


@pytest.mark.parametrize("name", ["2025-11-25", "2026-07-28"])
def test_content_that_is_no_content_block_is_refused(name: str) -> None:
    with pytest.raises(TypeError, match=r"expected one of TextContent, .*, got str"):
        ResultEncoder(REVISION_BY_NAME[name], INFO).encode(CallToolResult(["hi"]), "tools/call")  # type: ignore[list-item]


def test_what_asks_is_no_result() -> None:
    for revision in wire.REVISIONS:
        with pytest.raises(InputRequiredSignal):
            ResultEncoder(REVISION_BY_NAME[revision], INFO).encode(
                InputRequired(state=b"x"), "tools/call"
            )


@pytest.mark.requirement("EC-8")
def test_a_code_of_one_era_is_an_internal_error_in_the_other() -> None:
    """REQUIREMENTS EC-3: "MUST NOT emit -32002 or -32042"; part B.4."""
    codes = [
        [
            ResultEncoder(REVISION_BY_NAME[each], INFO).error_code(code, None, "tools/call")
            for each in wire.REVISIONS
        ]
        for code in (-32042, -32021)
    ]
    assert codes == [[-32042] * 4 + [-32603], [-32603] * 4 + [-32021]]


def test_a_closing_result_has_its_meta_beside_who_we_are() -> None:
    body = json.loads(ResultEncoder(REVISION_BY_NAME[wire.MODERN], INFO).encode_closing({"x": 1}))
    assert body["resultType"] == "complete"
    assert body["_meta"]["x"] == 1
    assert body["_meta"]["io.modelcontextprotocol/serverInfo"]["name"] == INFO.name


def test_a_plain_text_that_passes_leaves_as_it_is() -> None:
    asked: list[str] = []

    def passes(text: str) -> bool:
        asked.append(text)
        return text == "fine"

    encoder = ResultEncoder(REVISION_BY_NAME["2025-11-25"], INFO)
    body = encoder.encode(CallToolResult([TextContent("fine")]), "tools/call", passes)
    assert json.loads(body) == {"content": [{"type": "text", "text": "fine"}]}
    assert encoder.encode(CallToolResult([TextContent("other")]), "tools/call", passes) == b""
    assert asked == ["fine", "other"]


@pytest.mark.parametrize(
    "result",
    [
        CallToolResult([]),
        CallToolResult([TextContent("fine")], structured_content={"a": 1}),
        CallToolResult([TextContent("fine", meta={"a": 1})]),
        CallToolResult([TextContent("fine"), TextContent("fine")]),
        Raw(b'{"content":[]}'),
        ListToolsResult([]),
    ],
)
def test_nothing_is_written_of_what_is_no_plain_text_where_it_is_asked_what_passes(
    result: Any,
) -> None:
    encoder = ResultEncoder(REVISION_BY_NAME["2025-11-25"], INFO)
    assert encoder.encode(result, "tools/call") != b""
    assert encoder.encode(result, "tools/call", lambda text: True) == b""


@pytest.mark.parametrize("revision", ["2025-11-25", "2026-07-28"])
def test_a_list_that_is_json_is_encoded_once_while_it_is_the_same_object(revision: str) -> None:
    encoder = ResultEncoder(REVISION_BY_NAME[revision], INFO)
    page = Raw(b'{"tools":[{"name":"a","inputSchema":{"type":"object"},"x":1}]}')
    first = encoder.encode(page, "tools/list")
    assert encoder.encode(page, "tools/list") is first
    assert ('"x":1' in first.decode()) == (revision == "2026-07-28")
    other = Raw(b'{"tools":[]}')
    assert json.loads(encoder.encode(other, "tools/list"))["tools"] == []


@pytest.mark.parametrize("rest", [{}, {"x.example/a": 1}])
def test_an_older_client_gets_no_server_info_of_a_2026_server_in_results(
    rest: dict[str, int],
) -> None:
    meta = {"io.modelcontextprotocol/serverInfo": {"name": "s", "version": "1"}, **rest}
    result = Raw(encode({"resultType": "complete", "content": [], "_meta": meta}))
    encoded = json.loads(
        ResultEncoder(REVISION_BY_NAME["2025-11-25"], INFO).encode(result, "tools/call")
    )
    assert encoded == ({"content": [], "_meta": rest} if rest else {"content": []})


@pytest.mark.parametrize(
    ("result", "revisions"),
    [
        (CallToolResult([TextContent("a")]), [C, D, E]),
        (CallToolResult([TextContent("a")], {"a": "a"}), [C, D, E]),
        (CallToolResult([AudioContent(b"", "audio/wav")]), [E]),
        (Raw(b"{}"), [E]),
        (InputRequired({}, {}), []),
    ],
    ids=["text", "structured", "audio", "JSON", "questions"],
)
def test_it_is_known_which_results_are_sent_whole(result: Struct, revisions: list[str]) -> None:
    sending = [
        name
        for name in wire.REVISIONS
        if ResultEncoder(REVISION_BY_NAME[name], SMALL).sends_all(result)
    ]
    assert sending == revisions


def test_a_long_text_is_completed_for_the_modern_as_a_short_one_is() -> None:
    long = "x" * 100_000
    expected = encode_for(CallToolResult([TextContent("short")]), E)
    expected["content"][0]["text"] = long
    assert encode_for(CallToolResult([TextContent(long)]), E) == expected
