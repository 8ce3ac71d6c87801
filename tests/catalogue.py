"""One of everything that a server can list and give back, for the tests that validate every line.

TOOLS and RESULTS: a tool, and its result, by name. ANSWERS: method -> canonical results for it.
"""

from __future__ import annotations

from typing import Any

from msgspec import UNSET, Raw, Struct

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
    Icon,
    ImageContent,
    Implementation,
    ListToolsResult,
    ReadResourceResult,
    ResourceContents,
    ResourceLink,
    TextContent,
    Tool,
    ToolAnnotations,
)

__all__ = ["ANSWERS", "ICONS", "INFO", "LIST", "RESULTS", "TOOLS"]

ICONS = [
    Icon("https://example.com/i.png", "image/png", ["48x48", "any"], "dark"),
    Icon("data:image/png;base64,AA=="),
]
INFO = Implementation(
    "catalogue", "1.2.3", "A catalogue", "One of everything", "https://example.com/", ICONS
)
ANY_ARGUMENTS: dict[str, Any] = {"type": "object"}
HINTS = Annotations(["user", "assistant"], 0.5, "2025-01-12T15:00:58Z")
META = {"example.com/k": {"deep": [1, None]}}
TEXT = TextContent("see the other blocks")

POINT: dict[str, Any] = {
    "type": "object",
    "properties": {"x": {"type": "integer"}, "y": {"type": "integer"}},
    "required": ["x", "y"],
    "additionalProperties": False,
}


def gives(
    *content: ContentBlock, structured: Any = UNSET, meta: Any = None, is_error: bool = False
) -> CallToolResult:
    return CallToolResult([TEXT, *content], structured, is_error, meta)


CONTENT: dict[str, CallToolResult] = {
    "nothing": CallToolResult([]),
    "plain-text": gives(),
    "strange-text": gives(TextContent("\u2028\u2029\u0085\0\n\r\x7f🎻é")),
    "annotated-text": gives(TextContent("t", HINTS, META)),
    "empty-annotations": gives(TextContent("t", Annotations())),
    "image": gives(ImageContent(b"\x89PNG\xff", "image/png")),
    "annotated-image": gives(ImageContent(b"", "image/png", HINTS, META)),
    "audio": gives(AudioContent(b"RIFF\x00", "audio/wav")),
    "annotated-audio": gives(AudioContent(b"RIFF\x00", "audio/wav", HINTS, META)),
    "link": gives(ResourceLink("file:///a", "a")),
    "full-link": gives(
        ResourceLink(
            "file:///a",
            "a",
            "An a",
            "about a",
            "text/plain",
            5,
            ICONS,
            annotations=HINTS,
            meta=META,
        )
    ),
    "embedded-text": gives(
        EmbeddedResource(ResourceContents("file:///a", text="", mime_type="text/plain"))
    ),
    "embedded-blob": gives(EmbeddedResource(ResourceContents("file:///b", blob=b"\x00\xff"))),
    "full-embedded": gives(
        EmbeddedResource(
            ResourceContents("file:///a", text="a", mime_type="text/plain", meta=META), HINTS, META
        )
    ),
    "everything": gives(
        ImageContent(b"i", "image/png"),
        AudioContent(b"a", "audio/wav"),
        ResourceLink("file:///a", "a"),
        EmbeddedResource(ResourceContents("file:///b", blob=b"b")),
    ),
    "an-error": gives(is_error=True),
    "with-meta": gives(meta=META),
}

# name -> output schema, structured content
STRUCTURED: dict[str, tuple[dict[str, Any] | None, Any]] = {
    "unpromised-object": (None, {"a": 1}),
    "object": (POINT, {"x": 1, "y": 2}),
    "raw-object": (POINT, Raw(b'{"x":1,"y":2}')),
    "indented-object": (POINT, Raw(b'\n{\n  "x": 1,\n  "y": 2\n}\n')),
    "object-by-reference": ({"$ref": "#/$defs/Point", "$defs": {"Point": POINT}}, {"x": 1, "y": 2}),
    "object-by-two-references": (
        {"$ref": "#/$defs/P", "$defs": {"P": {"$ref": "#/$defs/Point"}, "Point": POINT}},
        {"x": 1, "y": 2},
    ),
    "object-with-boolean-properties": (
        {"type": "object", "properties": {"x": True, "y": False, "z": {"type": "string"}}},
        {"x": [], "z": "z"},
    ),
    "integer": ({"type": "integer"}, 5),
    "number": ({"type": "number", "$schema": "https://json-schema.org/draft/2020-12/schema"}, 1.5),
    "string": ({"type": "string"}, "s"),
    "boolean": ({"type": "boolean"}, False),
    "null": ({"type": "null"}, None),
    "array": (
        {"type": "array", "items": {"$ref": "#/$defs/Point"}, "$defs": {"Point": POINT}},
        [{"x": 1, "y": 2}],
    ),
    "array-by-old-reference": (
        {
            "type": "array",
            "items": {"$ref": "#/definitions/Point"},
            "definitions": {"Point": POINT},
        },
        [{"x": 1, "y": 2}],
    ),
    "raw-array": ({"type": "array"}, Raw(b"[1,\n 2]")),
    "array-of-itself": ({"type": "array", "items": {"$ref": "#"}}, [[[]], []]),
    "array-by-pointer": (
        {"type": "array", "prefixItems": [{"type": "integer"}, {"$ref": "#/prefixItems/0"}]},
        [1, 2],
    ),
    "definition-of-the-whole": (
        {
            "type": "array",
            "items": {"$ref": "#/$defs/Any"},
            "$defs": {"Any": {"anyOf": [{"type": "null"}, {"$ref": "#"}]}},
        },
        [None, [None]],
    ),
    "integer-or-null": ({"type": ["integer", "null"]}, None),
    "object-or-null-as-null": ({"anyOf": [POINT, {"type": "null"}]}, None),
    "object-or-null-as-object": ({"anyOf": [POINT, {"type": "null"}]}, {"x": 1, "y": 2}),
    "object-or-string": ({"type": ["object", "string"]}, "s"),
    "tree": (
        {"anyOf": [{"type": "integer"}, {"type": "object", "additionalProperties": {"$ref": "#"}}]},
        {"a": 1, "b": {"c": 2}},
    ),
    "anything-as-object": ({}, {"result": 1}),
    "anything-as-number": ({}, 1e300),
    "constant": ({"const": "yes"}, "yes"),
    "nothing-known": ({"$ref": "#/$defs/T", "$defs": {"T": True}}, 5),
    "reference-to-itself": ({"$ref": "#/$defs/A", "$defs": {"A": {"$ref": "#/$defs/A"}}}, UNSET),
    "reference-elsewhere": (
        {"type": "array", "items": {"$ref": "https://example.com/schema"}},
        UNSET,
    ),
}

INPUTS: dict[str, dict[str, Any]] = {
    "input-none": {"type": "object", "additionalProperties": False},
    "input-booleans": {
        "type": "object",
        "properties": {"yes": True, "no": False, "some": {"type": "string"}},
    },
    "input-composed": {
        "type": "object",
        "oneOf": [{"required": ["a"]}, {"required": ["b"]}],
        "$defs": {"D": True},
    },
    "input-draft-07": {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "type": "object",
        "required": ["a"],
    },
}

TOOLS: dict[str, Tool] = {
    **{name: Tool(name, ANY_ARGUMENTS) for name in CONTENT},
    **{
        name: Tool(name, ANY_ARGUMENTS, output_schema=schema)
        for name, (schema, _) in STRUCTURED.items()
    },
    **{name: Tool(name, schema) for name, schema in INPUTS.items()},
    "dressed": Tool(
        "dressed",
        ANY_ARGUMENTS,
        "A title",
        "A description\nin two lines",
        POINT,
        ToolAnnotations(
            "A title too", read_only_hint=True, destructive_hint=False, idempotent_hint=True
        ),
        ICONS,
        META,
    ),
    "open-world": Tool(
        "open-world", ANY_ARGUMENTS, annotations=ToolAnnotations(open_world_hint=False)
    ),
}
RESULTS: dict[str, CallToolResult] = {
    **{name: gives() for name in TOOLS},
    **CONTENT,
    **{name: gives(structured=value) for name, (_, value) in STRUCTURED.items()},
    "dressed": gives(structured={"x": 1, "y": 2}, meta=META),
}
LIST = ListToolsResult(list(TOOLS.values()))

RESOURCES = [
    Resource("file:///plain", "plain"),
    Resource(
        "file:///dressed", "dressed", "A title", "about it", "text/plain", 5, HINTS, ICONS, META
    ),
    Resource("file:///undated", "undated", annotations=Annotations(["user"], 0.0)),
]
TEMPLATES = [
    ResourceTemplate("note://{id}", "plain"),
    ResourceTemplate(
        "note://{id}{?q}", "dressed", "A title", "about it", "text/plain", HINTS, ICONS, META
    ),
]
PROMPTS = [
    Prompt("plain"),
    Prompt("without-arguments", arguments=[]),
    Prompt(
        "dressed",
        "A title",
        "about it",
        [PromptArgument("a", "An A", "about a", True)],
        ICONS,
        META,
    ),
    Prompt("choice", arguments=[PromptArgument("a", required=False), PromptArgument("b")]),
]
MESSAGES = [PromptMessage("user", block) for result in CONTENT.values() for block in result.content]
ANSWERS: dict[str, list[Struct]] = {
    "resources/list": [
        ListResourcesResult(RESOURCES),
        ListResourcesResult([], "", META, ttl_ms=60_000, cache_scope="public"),
    ],
    "resources/templates/list": [
        ListResourceTemplatesResult(TEMPLATES, "next", META, ttl_ms=0),
        ListResourceTemplatesResult([], cache_scope="public"),
    ],
    "resources/read": [
        ReadResourceResult(
            [ResourceContents("file:///a", text="", mime_type="text/plain")], ttl_ms=1
        ),
        ReadResourceResult(
            [
                ResourceContents("file:///a", text="a\u2028", meta=META),
                ResourceContents("file:///b", blob=b"\xff"),
            ],
            META,
        ),
    ],
    "prompts/list": [
        ListPromptsResult(PROMPTS),
        ListPromptsResult([], "next", META, ttl_ms=5, cache_scope="private"),
    ],
    "prompts/get": [
        GetPromptResult(MESSAGES, "about it", META),
        GetPromptResult([PromptMessage("assistant", TextContent("a"))]),
        GetPromptResult([]),
    ],
    "completion/complete": [
        CompleteResult(Completion([])),
        CompleteResult(Completion(["a"] * 100, total=101, has_more=True), META),
    ],
}
