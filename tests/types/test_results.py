"""types.py: what a server sends, decoded from the specification's own examples and encoded again,
unchanged.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
import wire
from catalogue import ICONS, INFO
from example_messages import Example, examples
from msgspec import UNSET

from concertino.types import completion, results
from concertino.types.results import (
    LEVELS,
    Annotations,
    AudioContent,
    CallToolResult,
    ContentBlock,
    EmbeddedResource,
    Icon,
    ImageContent,
    Implementation,
    ListToolsResult,
    ResourceContents,
    ResourceLink,
    TextContent,
    Tool,
    ToolAnnotations,
    error_result,
)

E = wire.MODERN
SHAPES: dict[str, Any] = {
    "TextContent": ContentBlock,
    "ImageContent": ContentBlock,
    "AudioContent": ContentBlock,
    "ResourceLink": ContentBlock,
    "EmbeddedResource": ContentBlock,
    "TextResourceContents": ResourceContents,
    "BlobResourceContents": ResourceContents,
    "Tool": Tool,
    "CallToolResult": CallToolResult,
    "ListToolsResult": ListToolsResult,
    "ReadResourceResult": results.ReadResourceResult,
    "CompleteRequestParams": completion.CompleteParams,
}
ADDED = ("resultType",)  # on all results alike: lowering.py's
TAKEN = {"CompleteRequestParams": ("_meta",)}  # by the session, before anybody decodes the rest
OMITTED: dict[str, Any] = {"isError": False}  # says the same when it is not there


def to_json(value: Any) -> Any:
    return json.loads(msgspec.json.encode(value))


@pytest.mark.parametrize("example", examples(*SHAPES))
def test_an_example_is_the_same_after_decoding_and_encoding(example: Example):
    kind = SHAPES[example.kind]
    absent = (*ADDED, *TAKEN.get(example.kind, ()))
    members = example.value.items()
    kept = {
        name: each
        for name, each in members
        if name not in absent and OMITTED.get(name, UNSET) != each
    }
    decoded = msgspec.json.decode(example.raw, type=kind)
    assert to_json(decoded) == kept
    assert msgspec.json.decode(msgspec.json.encode(decoded), type=kind) == decoded


HINTS = Annotations(["user", "assistant"], 1.0, "2025-01-12T15:00:58Z")
META = {"example.com/k": [None]}


@pytest.mark.parametrize(
    ("value", "definition"),
    [
        (Icon("https://example.com/i.png"), "Icon"),
        (Icon("data:,", "image/png", ["any"], "light"), "Icon"),
        (INFO, "Implementation"),
        (Implementation("n", "1"), "Implementation"),
        (HINTS, "Annotations"),
        (Annotations(), "Annotations"),
        (TextContent("", HINTS, META), "TextContent"),
        (ImageContent(b"\x00", "image/png", HINTS, META), "ImageContent"),
        (AudioContent(b"\x00", "audio/wav", HINTS, META), "AudioContent"),
        (ResourceLink("a:b", "n", "t", "d", "a/b", 0, ICONS, HINTS, META), "ResourceLink"),
        (ResourceContents("a:b", text="", mime_type="a/b", meta=META), "TextResourceContents"),
        (ResourceContents("a:b", blob=b"", mime_type="a/b", meta=META), "BlobResourceContents"),
        (EmbeddedResource(ResourceContents("a:b", text=""), HINTS, META), "EmbeddedResource"),
        (ToolAnnotations("t", True, False, True, False), "ToolAnnotations"),
        (
            Tool(
                "n",
                {"type": "object"},
                "t",
                "d",
                {"type": "array"},
                ToolAnnotations("t"),
                ICONS,
                META,
            ),
            "Tool",
        ),
        (completion.PromptReference("n", "t"), "PromptReference"),
        (completion.ResourceTemplateReference("a:{b}"), "ResourceTemplateReference"),
    ],
)
def test_every_type_is_written_in_the_shape_of_2026_07_28_and_survives_it(
    value: msgspec.Struct, definition: str
):
    wire.check(to_json(value), E, definition)
    assert msgspec.json.decode(msgspec.json.encode(value), type=type(value)) == value
    members = {each.encode_name for each in msgspec.structs.fields(value)}
    for oracle in wire.ORACLES:
        assert members - {"text", "blob"} <= set(
            wire.definitions(E, oracle)[definition]["properties"]
        )


def test_the_result_of_a_read_survives_the_wire_and_fits_its_schema():
    value = results.ReadResourceResult(
        [ResourceContents("a:b", blob=b"")], META, ttl_ms=1, cache_scope="private"
    )
    assert msgspec.json.decode(msgspec.json.encode(value), type=type(value)) == value
    wire.check({"resultType": "complete", **to_json(value)}, E, "ReadResourceResult")
    members = {each.encode_name for each in msgspec.structs.fields(value)}
    for oracle in wire.ORACLES:
        assert members <= set(wire.definitions(E, oracle)["ReadResourceResult"]["properties"])


def test_caching_hints_that_were_not_given_are_not_written():
    assert to_json(ListToolsResult([], ttl_ms=0)) == {"tools": [], "ttlMs": 0}
    assert to_json(results.ReadResourceResult([], cache_scope="private")) == {
        "contents": [],
        "cacheScope": "private",
    }


def test_what_is_not_given_is_not_written():
    assert to_json(Tool("n", {"type": "object"})) == {
        "name": "n",
        "inputSchema": {"type": "object"},
    }
    assert to_json(CallToolResult([])) == {"content": []}
    assert to_json(ListToolsResult([])) == {"tools": []}
    assert to_json(ToolAnnotations()) == {}


@pytest.mark.requirement("TO-16")
def test_structured_content_that_is_null_is_written_and_absent_is_not():
    assert to_json(CallToolResult([], None)) == {"content": [], "structuredContent": None}
    assert (
        msgspec.json.decode(
            b'{"content":[],"structuredContent":null}', type=CallToolResult
        ).structured_content
        is None
    )
    assert msgspec.json.decode(b'{"content":[]}', type=CallToolResult).structured_content is UNSET


def test_an_empty_cursor_is_written():
    assert to_json(ListToolsResult([], "")) == {"tools": [], "nextCursor": ""}


def test_hints_that_are_false_are_written():
    assert to_json(ToolAnnotations(read_only_hint=False, open_world_hint=False)) == {
        "readOnlyHint": False,
        "openWorldHint": False,
    }


@pytest.mark.requirement("PM-5")
@pytest.mark.requirement("CO-2", "CO-3", side="client")
def test_bytes_travel_as_base64():
    assert to_json(ImageContent(b"\xff\x00\xfe", "image/png"))["data"] == "/wD+"


@pytest.mark.requirement("LO-7")
def test_the_levels_are_those_of_rfc_5424_least_severe_first():
    assert list(LEVELS) == [
        "debug",
        "info",
        "notice",
        "warning",
        "error",
        "critical",
        "alert",
        "emergency",
    ]
    assert sorted(LEVELS, key=LEVELS.__getitem__) == list(LEVELS)
    for oracle in wire.ORACLES:
        assert set(LEVELS) == set(wire.definitions(E, oracle)["LoggingLevel"]["enum"])


def test_values_do_not_change():
    for value in (INFO, HINTS, TextContent(""), CallToolResult([]), Tool("n", {})):
        with pytest.raises(AttributeError):
            value.name = "other"  # type: ignore[union-attr]


def test_content_of_an_unknown_kind_is_refused():
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(b'{"type":"video"}', type=ContentBlock)


def test_all_names_are_there():
    assert all(hasattr(results, name) for name in results.__all__)


def test_the_text_of_a_result_is_that_of_all_its_text_blocks() -> None:
    blocks = [TextContent("one"), ImageContent(b"\x89PNG", "image/png"), TextContent("two")]
    assert CallToolResult(blocks).text == "one\ntwo"
    assert CallToolResult([]).text == ""


@pytest.mark.parametrize(
    ("result", "value"),
    [
        (CallToolResult([TextContent("the sum is 3")], 3), 3),
        (CallToolResult([TextContent("nothing")], None), None),
        (CallToolResult([], msgspec.Raw(b'{"sum":3}')), {"sum": 3}),
        (CallToolResult([TextContent("[1, 2]")]), [1, 2]),
        (CallToolResult([TextContent('{"error":"no"}')], is_error=True), {"error": "no"}),
    ],
)
def test_the_json_of_a_result_is_its_structured_content_or_else_its_text_decoded(
    result: CallToolResult, value: Any
) -> None:
    assert result.json() == value


@pytest.mark.parametrize("text", ["[" * 2_000, '"\ud800"'])
def test_a_text_that_cannot_be_decoded_is_not_json(text: str) -> None:
    with pytest.raises(ValueError, match="its text is not JSON"):
        CallToolResult([TextContent(text)]).json()


def test_a_text_that_is_not_json_is_quoted() -> None:
    with pytest.raises(ValueError, match="its text is not JSON") as failure:
        CallToolResult([TextContent("three " * 100)]).json()
    text = str(failure.value)
    assert text.startswith("the result has no structured content, and its text is not JSON (")
    assert "'three three" in text
    assert len(text) < 400


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (
            CallToolResult([TextContent("3")], msgspec.Raw(b"3")),
            "CallToolResult(content=[TextContent(text='3')], structured_content=3)",
        ),
        (
            CallToolResult([ImageContent(b"12345", "image/png")], is_error=True),
            "CallToolResult(content=[ImageContent(data=<5 bytes>, mime_type='image/png')], "
            "is_error=True)",
        ),
        (AudioContent(b"", "audio/wav"), "AudioContent(data=<0 bytes>, mime_type='audio/wav')"),
        (ResourceContents("a://b", blob=b"12"), "ResourceContents(uri='a://b', blob=<2 bytes>)"),
        (ResourceContents("a://b", "text"), "ResourceContents(uri='a://b', text='text')"),
        (
            Tool("add", {"type": "object"}),
            "Tool(name='add', input_schema={'type': 'object'})",
        ),
        (Icon("data:,"), "Icon(src='data:,')"),
    ],
)
def test_a_repr_shows_what_differs_from_the_defaults(value: Any, shown: str) -> None:
    assert repr(value) == shown


def test_the_result_of_a_failed_tool_has_a_text_and_says_that_it_failed() -> None:
    """2025-11-25 server/tools, "Error Handling"."""
    assert json.loads(msgspec.json.encode(error_result("no such city"))) == {
        "content": [{"type": "text", "text": "no such city"}],
        "isError": True,
    }
