"""revisions.py: the table of the five revisions, and canonical results made fit for each.

The table's expectations are REQUIREMENTS B.1 and B.3, written out; shapes are the official schemas'. What each result becomes is
written out beside it, and the whole catalogue is validated in each revision in test_session.py.
"""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest
import wire
from catalogue import ICONS, INFO, LIST, RESULTS, STRUCTURED, TOOLS
from msgspec import UNSET, DecodeError, Raw, Struct

from concertino.protocol import revisions
from concertino.protocol.revisions import REQUESTS, Lowering, by_name, negotiate
from concertino.protocol.types import (
    Annotations,
    AudioContent,
    CallToolResult,
    ContentBlock,
    EmbeddedResource,
    Implementation,
    ListToolsResult,
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


def lowered(result: Struct | Raw, revision: str, method: str = "tools/call", info: Implementation = SMALL) -> Any:
    return wire.one_json(revisions.Lowering(by_name[revision], info).result(result, method).replace(b"\n", b""))


def content(block: ContentBlock, revision: str) -> Any:
    [found] = lowered(CallToolResult([block]), revision)["content"]
    return found


# The table


def test_there_are_five_revisions_and_the_last_is_the_modern_one():
    assert [each.name for each in revisions.REVISIONS] == [A, B, C, D, E]
    assert [each.name for each in revisions.REVISIONS if each.modern] == [E]
    assert [each.name for each in revisions.LEGACY] == [A, B, C, D]
    assert (revisions.MODERN.name, revisions.LATEST_LEGACY.name) == (E, D)


@pytest.mark.parametrize(
    ("flag", "known"),
    [
        ("batches", [B]),
        ("idless_errors", [D, E]),
        ("audio", [B, C, D, E]),
        ("links", [C, D, E]),
        ("annotations", [B, C, D, E]),
        ("icons", [D, E]),
        ("completions", [B, C, D, E]),
        ("progress_text", [B, C, D, E]),
    ],
)
def test_each_revision_knows_what_its_specification_has(flag: str, known: list[str]):
    assert [each.name for each in revisions.REVISIONS if getattr(each, flag)] == known


@pytest.mark.parametrize("version", wire.REVISIONS)
def test_every_request_that_is_served_exists_in_the_revisions_that_serve_it(version: str):
    definitions = json.loads((wire.spec() / "schema" / version / "schema.json").read_bytes())
    named = {
        each["properties"]["method"]["const"]
        for name, each in (definitions.get("$defs") or definitions["definitions"]).items()
        if name.endswith("Request") and "const" in each.get("properties", {}).get("method", {})
    }
    served = {method for method, rule in REQUESTS.items() if (rule.modern if version == E else rule.legacy)}
    assert served <= named
    assert not {method for method in named & set(REQUESTS) if method not in served}


@pytest.mark.parametrize(("asked", "answered"), [(A, A), (B, B), (C, C), (D, D), (E, D), ("1.0.0", D), ("", D)])
def test_a_handshake_is_answered_with_its_version_or_our_newest_that_has_one(asked: str, answered: str):
    assert negotiate(asked).name == answered


@pytest.mark.parametrize(
    ("version", "members"),
    [
        (A, ["name", "version"]),
        (B, ["name", "version"]),
        (C, ["name", "title", "version"]),
        (D, ["description", "icons", "name", "title", "version", "websiteUrl"]),
        (E, ["description", "icons", "name", "title", "version", "websiteUrl"]),
    ],
)
def test_an_implementation_says_what_the_revision_knows(version: str, members: list[str]):
    from msgspec import to_builtins

    assert sorted(to_builtins(revisions.implementation(INFO, by_name[version]))) == members


def test_capabilities_are_those_of_the_revision():
    offer = {"tools": {}, "completions": {}, "extensions": {"a/b": {}}}
    assert revisions.capabilities(offer, by_name[A]) == {"tools": {}}
    for version in (B, C, D):
        assert revisions.capabilities(offer, by_name[version]) == {"tools": {}, "completions": {}}
    assert revisions.capabilities(offer, by_name[E]) == offer
    assert revisions.capabilities({"tools": {}}, by_name[A]) == {"tools": {}}


# What every 2026-07-28 result says


def test_a_modern_result_says_that_it_is_complete_and_whose_it_is():
    assert lowered(CallToolResult([TextContent("a")]), E) == {
        "resultType": "complete",
        "_meta": SERVER,
        "content": [{"type": "text", "text": "a"}],
    }


def test_a_result_keeps_its_own_meta_beside_the_servers():
    assert lowered(CallToolResult([], meta=META), E) == {
        "resultType": "complete",
        "_meta": {**META, **SERVER},
        "content": [],
    }


def test_a_server_info_of_its_own_is_not_replaced():
    other = {"io.modelcontextprotocol/serverInfo": {"name": "behind", "version": "2"}}
    assert lowered(CallToolResult([], meta=other), E)["_meta"] == other


def test_a_modern_list_is_stale_at_once_and_private():
    assert lowered(ListToolsResult([]), E, "tools/list") == {
        "resultType": "complete",
        "_meta": SERVER,
        "ttlMs": 0,
        "cacheScope": "private",
        "tools": [],
    }


def test_a_list_with_meta_and_cursor_keeps_them():
    found = lowered(ListToolsResult([], "", META), E, "tools/list")
    assert found["nextCursor"] == ""  # a valid cursor: server/utilities/pagination
    assert found["_meta"] == {**META, **SERVER}
    assert lowered(ListToolsResult([], "", META), D, "tools/list") == {"tools": [], "nextCursor": "", "_meta": META}


class Nothing(Struct):
    pass


def test_a_result_without_members_gets_those_that_all_have():
    assert lowered(Nothing(), E, "x") == {"resultType": "complete", "_meta": SERVER}
    assert lowered(Nothing(), D, "x") == {}


def test_an_older_result_says_nothing_of_the_kind():
    for version in wire.LEGACY:
        assert lowered(CallToolResult([TextContent("a")]), version) == {"content": [{"type": "text", "text": "a"}]}
        assert lowered(ListToolsResult([]), version, "tools/list") == {"tools": []}


def test_a_tool_list_is_written_once_for_as_long_as_it_stays_the_same():
    lowering = Lowering(by_name[C], SMALL)
    tools = ListToolsResult([Tool("a", {"type": "object"})])
    assert lowering.result(tools, "tools/list") is lowering.result(tools, "tools/list")
    assert lowering.result(ListToolsResult([]), "tools/list") == b'{"tools":[]}'


# Results that come as JSON


def test_a_result_that_comes_as_json_is_completed_for_the_modern():
    raw = Raw(b'{"contents":[{"uri":"a:b","text":""}],"_meta":{"example.com/k":1},"ttlMs":5}')
    assert lowered(raw, E, "resources/read") == {
        "resultType": "complete",
        "_meta": {**META, **SERVER},
        "ttlMs": 5,
        "cacheScope": "private",
        "contents": [{"uri": "a:b", "text": ""}],
    }


def test_caching_hints_stand_on_complete_results_only():
    asked = Raw(b'{"resultType":"input_required","requestState":"s"}')
    assert lowered(asked, E, "resources/read") == {
        "resultType": "input_required",
        "_meta": SERVER,
        "requestState": "s",
    }


def test_a_tool_result_that_comes_as_json_is_lowered_like_any_other():
    raw = Raw(b'{"content":[{"type":"audio","data":"AA==","mimeType":"audio/wav"}],"structuredContent":5}')
    assert [each["type"] for each in lowered(raw, A)["content"]] == ["resource"]
    assert lowered(raw, C)["structuredContent"] == {"result": 5}
    assert lowered(raw, E)["structuredContent"] == 5


def test_a_list_that_comes_as_json_is_lowered_like_any_other():
    raw = Raw(b'{"tools":[{"name":"a","inputSchema":{"type":"object"},"title":"A"}]}')
    assert lowered(raw, B, "tools/list") == {"tools": [{"name": "a", "inputSchema": {"type": "object"}}]}
    assert lowered(raw, E, "tools/list")["tools"][0]["title"] == "A"


def test_another_result_that_comes_as_json_stays_as_it_is_for_the_older():
    assert lowered(Raw(b'{"prompts":[]}'), D, "prompts/list") == {"prompts": []}


# Content


def test_text_without_decoration_is_the_same_for_all():
    for version in wire.REVISIONS:
        assert content(TextContent("a"), version) == {"type": "text", "text": "a"}


def test_the_date_of_annotations_is_known_since_2025_06_18():
    block = TextContent("a", HINTS, META)
    old = {"type": "text", "text": "a", "annotations": {"audience": ["user"], "priority": 1}}
    new = {**old, "annotations": {**old["annotations"], "lastModified": HINTS.last_modified}, "_meta": META}  # type: ignore[dict-item]
    assert [content(block, version) for version in wire.REVISIONS] == [old, old, new, new, new]


def test_audio_is_embedded_as_a_blob_for_2024_11_05():
    block = AudioContent(b"\x00", "audio/wav", HINTS, META)
    assert content(block, A) == {
        "type": "resource",
        "resource": {"uri": "audio:1", "blob": "AA==", "mimeType": "audio/wav"},
        "annotations": {"audience": ["user"], "priority": 1},
    }
    assert content(block, B)["type"] == "audio"


def test_two_sounds_get_different_uris():
    found = lowered(CallToolResult([AudioContent(b"", "a/b"), AudioContent(b"", "a/b")]), A)
    assert [each["resource"]["uri"] for each in found["content"]] == ["audio:1", "audio:2"]


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
        assert content(block, version) == {"type": "resource", "resource": {"uri": "file:///a", "text": "a"}}
    for version in (C, D, E):
        assert content(block, version)["_meta"] == content(block, version)["resource"]["_meta"] == META


# Structured content and its schemas


@pytest.mark.parametrize("value", [5, "s", None, [1], False, Raw(b"[1]"), Raw(b' "{" ')])
def test_structured_content_that_is_no_object_travels_as_a_result_before_2026_07_28(value: object):
    plain = json.loads(bytes(value)) if isinstance(value, Raw) else value
    result = CallToolResult([], value)
    assert "structuredContent" not in lowered(result, A)
    assert "structuredContent" not in lowered(result, B)
    assert lowered(result, C)["structuredContent"] == {"result": plain}
    assert lowered(result, D)["structuredContent"] == {"result": plain}
    assert lowered(result, E)["structuredContent"] == plain


@pytest.mark.parametrize("value", [{"a": 1}, Raw(b'{"a":1}'), Raw(b' \n{"a":1}')])
def test_structured_content_that_is_an_object_travels_as_it_is(value: object):
    for version in (C, D, E):
        assert lowered(CallToolResult([], value), version)["structuredContent"] == {"a": 1}


def test_no_structured_content_is_not_null():
    for version in wire.REVISIONS:
        assert "structuredContent" not in lowered(CallToolResult([TextContent("a", HINTS)], UNSET), version)


def listed(tool: Tool, revision: str) -> Any:
    [found] = lowered(ListToolsResult([tool]), revision, "tools/list")["tools"]
    return found


def test_a_tool_shows_what_the_revision_knows():
    tool = Tool("a", {"type": "object"}, "T", "D", {"type": "object"}, ToolAnnotations("TT"), ICONS, META)
    members = {"name", "description", "inputSchema"}
    assert set(listed(tool, A)) == members
    assert set(listed(tool, B)) == members | {"annotations"}
    assert set(listed(tool, C)) == members | {"annotations", "title", "outputSchema", "_meta"}
    for version in (D, E):
        assert set(listed(tool, version)) == members | {"annotations", "title", "outputSchema", "_meta", "icons"}


def test_boolean_property_schemas_are_spelled_out_before_2026_07_28():
    schema = {"type": "object", "properties": {"yes": True, "no": False, "s": {"type": "string"}}, "required": ["s"]}
    spelled = {**schema, "properties": {"yes": {}, "no": {"not": {}}, "s": {"type": "string"}}}
    for version in (C, D):
        found = listed(Tool("a", schema, output_schema=schema), version)
        assert found["inputSchema"] == found["outputSchema"] == spelled
    found = listed(Tool("a", schema, output_schema=schema), E)
    assert found["inputSchema"] == found["outputSchema"] == schema


def test_an_input_schema_without_booleans_keeps_all_its_keywords():
    schema = {"type": "object", "allOf": [True], "x-unknown": 1, "$defs": {"a": False}, "properties": {"a": {}}}
    for version in wire.REVISIONS:
        assert listed(Tool("a", schema), version)["inputSchema"] == schema


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        (
            {"type": "integer"},
            {"type": "object", "properties": {"result": {"type": "integer"}}, "required": ["result"]},
        ),
        (
            {"$ref": "#/$defs/P", "$defs": {"P": {"type": "object"}}},
            {"type": "object", "$ref": "#/$defs/P", "$defs": {"P": {"type": "object"}}},
        ),
        (
            {"anyOf": [{"type": "object"}, {"type": "null"}]},
            {
                "type": "object",
                "anyOf": [
                    {
                        "properties": {"result": {"anyOf": [{"type": "object"}, {"type": "null"}]}},
                        "required": ["result"],
                    },
                    {"anyOf": [{"type": "object"}, {"type": "null"}]},
                ],
            },
        ),
        (
            {"type": "array", "items": {"$ref": "#"}, "$defs": {"D": {"$ref": "#/items"}}, "$schema": "s"},
            {
                "type": "object",
                "properties": {"result": {"type": "array", "items": {"$ref": "#/properties/result"}}},
                "required": ["result"],
                "$defs": {"D": {"$ref": "#/properties/result/items"}},
                "$schema": "s",
            },
        ),
    ],
)
def test_an_output_schema_describes_what_travels(schema: dict[str, Any], expected: dict[str, Any]):
    for version in (C, D):
        assert listed(Tool("a", {"type": "object"}, output_schema=schema), version)["outputSchema"] == expected


U = "https://example.com/s"
ARRAY = {"type": "array", "items": {"$ref": "#/$defs/i"}, "$defs": {"i": {"type": "integer"}}}
TREE = {"anyOf": [{"type": "integer"}, {"type": "array", "items": {"$ref": "#"}}]}
P = {"$anchor": "p", "type": "object", "propertyNames": {"const": "a"}}
POINT = {"anyOf": [{"$ref": "#/$defs/p"}, {"type": "null"}], "$defs": {"p": P}}
NAMED: list[tuple[dict[str, Any], Any, Any]] = [  # a schema, what fits it, what does not
    ({"$id": U, **ARRAY}, [1], ["a"]),
    ({"$id": f"{U}#", **ARRAY}, [1], ["a"]),
    ({"$id": "urn:a:b", **ARRAY}, [1], ["a"]),
    ({"$id": U, **POINT}, {"a": 1}, 5),
    ({"$id": U, **POINT}, None, [1]),
    (POINT, {"a": 1}, 5),
    ({"$id": U, **ARRAY, "items": {"$ref": f"{U}#/$defs/i"}}, [1], ["a"]),
    ({"$id": U, **TREE}, [[1], 2], [["a"]]),
    ({"$id": U, "type": ["array", "integer"], "items": {"$ref": U}}, [[1], 2], [["a"]]),
    ({"$id": U, "type": ["array", "integer"], "items": {"$ref": "s#"}}, [[1], 2], [["a"]]),
    ({"$id": U, "type": ["array", "integer"], "items": {"$dynamicRef": "#"}}, [[1], 2], [["a"]]),
    ({"type": ["array", "integer"], "items": {"$ref": "#me"}, "$anchor": "me"}, [[1], 2], [["a"]]),
    ({"type": ["array", "object"], "maxProperties": 0, "items": {"$ref": "#me"}, "$anchor": "me"}, [[], {}], [["a"]]),
    (
        {"type": "array", "items": {"$id": U, "type": ["array", "integer"], "items": {"$ref": "#"}}},
        [[1, [2]]],
        [[1, ["a"]]],
    ),
    (
        {
            "type": "array",
            "items": {"$ref": U},
            "$defs": {"e": {"$id": U, "$ref": "#/$defs/f", "$defs": {"f": {"const": 1}}}},
        },
        [1],
        [2],
    ),
]


@pytest.mark.parametrize(("schema", "good", "bad"), NAMED, ids=str)
def test_an_output_schema_with_names_of_its_own_describes_what_travels(schema: dict[str, Any], good: Any, bad: Any):
    assert jsonschema.Draft202012Validator(schema).is_valid(good)
    assert not jsonschema.Draft202012Validator(schema).is_valid(bad)
    for version in (C, D):
        found = listed(Tool("a", {"type": "object"}, output_schema=schema), version)["outputSchema"]
        assert found["type"] == "object"
        validator = jsonschema.Draft202012Validator(found)
        travels = good if isinstance(good, dict) else {"result": good}
        validator.validate(travels)
        assert not validator.is_valid({"result": bad})


@pytest.mark.parametrize("version", [C, D, E])
@pytest.mark.parametrize(
    "name", [name for name, (schema, value) in STRUCTURED.items() if schema and value is not UNSET]
)
def test_what_is_sent_is_what_was_promised_in_the_same_revision(name: str, version: str):
    schema = listed(TOOLS[name], version)["outputSchema"]
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(lowered(RESULTS[name], version)["structuredContent"], schema, jsonschema.Draft202012Validator)


def test_the_canonical_catalogue_is_not_changed_by_writing_it():
    before = repr(LIST)
    for version in wire.REVISIONS:
        lowered(LIST, version, "tools/list")
    assert repr(LIST) == before


def test_structured_content_without_a_text_block_becomes_one_for_callers_who_know_no_other_form() -> None:
    result = CallToolResult([], structured_content={"sum": 3})
    for name in ("2024-11-05", "2025-03-26"):
        lowered = revisions.Lowering(revisions.by_name[name], INFO).result(result, "tools/call")
        assert json.loads(lowered) == {"content": [{"type": "text", "text": '{"sum":3}'}]}


def test_what_is_no_result_is_refused() -> None:
    for name in ("2025-11-25", "2026-07-28"):
        with pytest.raises(TypeError, match="expected a Struct or Raw, got NoneType"):
            Lowering(by_name[name], INFO).result(None, "tools/call")  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["2025-11-25", "2026-07-28"])
@pytest.mark.parametrize("broken", [b"", b"oops", b"{} {}", b"[]", b'{"a":"\xff"}'])
def test_json_of_a_backend_that_is_no_object_is_refused(name: str, broken: bytes) -> None:
    with pytest.raises((ValueError, DecodeError)):
        Lowering(by_name[name], INFO).result(Raw(broken), "prompts/list")


@pytest.mark.parametrize("name", ["2025-11-25", "2026-07-28"])
def test_content_that_is_no_content_block_is_refused(name: str) -> None:
    with pytest.raises(TypeError, match="expected content blocks, got str"):
        Lowering(by_name[name], INFO).result(CallToolResult(["hi"]), "tools/call")  # type: ignore[list-item]
