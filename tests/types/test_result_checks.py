"""result_checks.py: what a Struct must hold.

The official schema of 2026-07-28 has the last word on each value.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
import wire
from hypothesis import given
from hypothesis import strategies as some
from msgspec import UNSET, Struct

from concertino.types import result_checks
from concertino.types.resources_and_prompts import (
    CompleteResult,
    Completion,
    GetPromptResult,
    ListPromptsResult,
    ListResourcesResult,
    Prompt,
    PromptArgument,
    PromptMessage,
    Resource,
)
from concertino.types.result_checks import check
from concertino.types.results import (
    Annotations,
    AudioContent,
    CallToolResult,
    EmbeddedResource,
    Icon,
    ImageContent,
    ListToolsResult,
    ReadResourceResult,
    ResourceContents,
    ResourceLink,
    TextContent,
    Tool,
    ToolAnnotations,
)

TEXT = TextContent("hello")
A: Any = None  # what a type checker would not let us write


@pytest.fixture(autouse=True, scope="module")
def no_cached_checks() -> Iterator[None]:
    """Make the checks anew here, so that these tests reach all code that makes them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(result_checks, "_struct_checks", {})
        yield


def of_schema(value: Struct, definition: str) -> bool:
    """Whether the official schema takes it. What every result says alike is added."""
    written = json.loads(msgspec.json.encode(value))
    written |= {"resultType": "complete"}
    if definition.startswith(("List", "Read")):
        written = {"ttlMs": 0, "cacheScope": "private", **written}
    try:
        wire.check(written, wire.MODERN, definition)
    except wire.Violation:
        return False
    return True


def problem_of(value: Struct) -> str | None:
    try:
        check(value)
    except TypeError as why:
        return str(why)
    return None


def text(**members: Any) -> CallToolResult:
    return CallToolResult([TextContent("x", **members)])


def prompt(*messages: Any, **members: Any) -> GetPromptResult:
    return GetPromptResult(list(messages), **members)


def read(**members: Any) -> ReadResourceResult:
    return ReadResourceResult([ResourceContents("a:b", **members)])


WRONG: list[tuple[Struct, str, str]] = [
    (
        CallToolResult([TextContent(A)]),
        "CallToolResult",
        "content[0].text: expected str, got NoneType",
    ),
    (
        CallToolResult([TEXT, A]),
        "CallToolResult",
        "content[1]: expected one of TextContent, ImageContent, AudioContent, "
        "ResourceLink, EmbeddedResource, got NoneType",
    ),
    (CallToolResult("hello"), "CallToolResult", "content: expected list, got str"),  # type: ignore[arg-type]
    (CallToolResult([], is_error=1), "CallToolResult", "is_error: expected bool, got int"),  # type: ignore[arg-type]
    (CallToolResult([], meta=[1]), "CallToolResult", "meta: expected dict, got list"),  # type: ignore[arg-type]
    (
        text(annotations=Annotations(priority=9)),
        "CallToolResult",
        "content[0].annotations.priority: expected 0 to 1, got 9",
    ),
    (
        text(annotations=Annotations(priority=-0.1)),
        "CallToolResult",
        "content[0].annotations.priority: expected 0 to 1, got -0.1",
    ),
    (
        text(annotations=Annotations(priority=True)),
        "CallToolResult",
        "content[0].annotations.priority: expected float, got bool",
    ),
    (
        text(annotations=Annotations(audience=["all"])),
        "CallToolResult",  # type: ignore[list-item]
        "content[0].annotations.audience[0]: expected 'user' or 'assistant', got 'all'",
    ),
    (
        text(annotations={"priority": 9}),
        "CallToolResult",
        "content[0].annotations: expected Annotations, got dict",
    ),
    (
        CallToolResult([ImageContent(A, "image/png")]),
        "CallToolResult",
        "content[0].data: expected bytes, got NoneType",
    ),
    (
        CallToolResult([ImageContent(b"x", A)]),
        "CallToolResult",
        "content[0].mime_type: expected str, got NoneType",
    ),
    (
        CallToolResult([AudioContent(b"x", 5)]),
        "CallToolResult",
        "content[0].mime_type: expected str, got int",
    ),  # type: ignore[arg-type]
    (
        CallToolResult([ResourceLink("a:b", A)]),
        "CallToolResult",
        "content[0].name: expected str, got NoneType",
    ),
    (
        CallToolResult([ResourceLink("a:b", "b", icons=[Icon("https://a", theme="grey")])]),
        "CallToolResult",  # type: ignore[arg-type]
        "content[0].icons[0].theme: expected 'light' or 'dark', got 'grey'",
    ),
    (
        CallToolResult([EmbeddedResource(ResourceContents("a:b"))]),
        "CallToolResult",
        "content[0].resource: expected exactly one of text and blob for a:b",
    ),
    (
        prompt(PromptMessage("system", TEXT)),
        "GetPromptResult",
        "messages[0].role: expected 'user' or 'assistant', got 'system'",
    ),  # type: ignore[arg-type]
    (
        prompt(PromptMessage(["user"], TEXT)),
        "GetPromptResult",
        "messages[0].role: expected 'user' or 'assistant', got ['user']",
    ),  # type: ignore[arg-type]
    (prompt("hello"), "GetPromptResult", "messages[0]: expected PromptMessage, got str"),
    (prompt(description=5), "GetPromptResult", "description: expected str, got int"),
    (read(), "ReadResourceResult", "contents[0]: expected exactly one of text and blob for a:b"),
    (read(text=5), "ReadResourceResult", "contents[0].text: expected str, got int"),
    (read(blob="zzz!"), "ReadResourceResult", "contents[0].blob: expected bytes, got str"),
    (
        ReadResourceResult([ResourceContents("a:b", text="")], ttl_ms=-5),
        "ReadResourceResult",
        "ttl_ms: expected at least 0, got -5",
    ),
    (
        ReadResourceResult([ResourceContents("a:b", text="")], cache_scope="all"),
        "ReadResourceResult",  # type: ignore[arg-type]
        "cache_scope: expected 'public' or 'private', got 'all'",
    ),
    (
        ListToolsResult([Tool("t", [])]),
        "ListToolsResult",
        "tools[0].input_schema: expected dict, got list",
    ),  # type: ignore[arg-type]
    (
        ListPromptsResult([Prompt("p", arguments=[PromptArgument("a", required=1)])]),
        "ListPromptsResult",  # type: ignore[arg-type]
        "prompts[0].arguments[0].required: expected bool, got int",
    ),
    (
        CompleteResult(Completion(["a", 5])),
        "CompleteResult",
        "completion.values[1]: expected str, got int",
    ),  # type: ignore[list-item]
]
# What the schema lets through, since JSON and its encoding say less than the specification's words
# and Python's types.
WRONG_IN_WORDS: list[tuple[Struct, str]] = [
    (read(text="a", blob=b""), "contents[0]: expected exactly one of text and blob for a:b"),
    (
        ReadResourceResult([]),
        "contents: expected at least one piece; return None for a resource that is not there",
    ),
    (
        ListResourcesResult([Resource("a:b", "b", size=-1)]),
        "resources[0].size: expected at least 0, got -1",
    ),
    (text(meta={1: 2}), "content[0].meta: expected keys of type str, got 1"),
    (
        text(annotations=Annotations(priority=float("nan"))),
        "content[0].annotations.priority: expected a finite number, got nan",
    ),
    (
        CallToolResult([ImageContent("AAAA", "image/png")]),
        "content[0].data: expected bytes, got str",
    ),  # type: ignore[arg-type]
]
RIGHT: list[tuple[Struct, str]] = [
    (CallToolResult([]), "CallToolResult"),
    (
        CallToolResult((TEXT,), structured_content=5, is_error=True, meta={"a": [1]}),
        "CallToolResult",
    ),  # type: ignore[arg-type]
    (
        text(annotations=Annotations(["user", "assistant"], 0, "2025-01-12T15:00:58Z")),
        "CallToolResult",
    ),
    (text(annotations=Annotations(priority=1.0)), "CallToolResult"),
    (
        CallToolResult(
            [ImageContent(b"x", "image/png"), AudioContent(bytearray(b"y"), "audio/wav")]
        ),
        "CallToolResult",
    ),
    (
        CallToolResult(
            [ResourceLink("a:b", "b", size=0, icons=[Icon("https://a", "x/y", ["any"], "dark")])]
        ),
        "CallToolResult",
    ),
    (
        CallToolResult([EmbeddedResource(ResourceContents("a:b", blob=memoryview(b"z")))]),
        "CallToolResult",
    ),  # type: ignore[arg-type]
    (prompt(PromptMessage("assistant", TEXT), description="d", meta={}), "GetPromptResult"),
    (
        ReadResourceResult(
            [ResourceContents("a:b", text="", meta={})], ttl_ms=0, cache_scope="public"
        ),
        "ReadResourceResult",
    ),
    (
        ListToolsResult(
            [Tool("t", {"type": "object"}, annotations=ToolAnnotations(read_only_hint=True))]
        ),
        "ListToolsResult",
    ),
    (CompleteResult(Completion([], total=0, has_more=False)), "CompleteResult"),
]


@pytest.mark.parametrize(("value", "definition", "message"), WRONG)
def test_what_the_schema_forbids_is_named(value: Struct, definition: str, message: str) -> None:
    assert not of_schema(value, definition)
    assert problem_of(value) == message


@pytest.mark.parametrize(("value", "message"), WRONG_IN_WORDS)
def test_what_only_the_words_forbid_is_named(value: Struct, message: str) -> None:
    assert problem_of(value) == message


@pytest.mark.parametrize(("value", "definition"), RIGHT)
def test_what_the_schema_allows_is_allowed(value: Struct, definition: str) -> None:
    assert of_schema(value, definition)
    assert problem_of(value) is None


def test_the_place_of_the_value_is_put_in_front() -> None:
    with pytest.raises(TypeError, match=r"^item 3\.text: expected str, got int$"):
        check(TextContent(5), "item 3")  # type: ignore[arg-type]


junk = some.sampled_from(
    [None, True, 5, -1, 0.5, 7.5, "x", "user", b"x", [], ["user"], [5], {}, {"a": 1}, UNSET]
)
mostly_right = [some.just(value) for value in ("x", b"x", None)]


@pytest.mark.no_cover
@given(some.data())
def test_schema_and_checks_agree_on_anything(data: some.DataObject) -> None:
    def pick(*right: Any) -> Any:
        return data.draw(some.one_of(some.sampled_from(right), some.sampled_from(right), junk))

    annotations = pick(
        None,
        Annotations(
            pick(None, ["user"]), pick(None, 0.5, 1, 0), pick(None, "2025-01-12T15:00:58Z")
        ),
    )
    block = pick(
        TextContent(pick("x"), annotations, pick(None, {})),
        ImageContent(pick(b"x"), pick("image/png"), annotations),
        ResourceLink(
            pick("a:b"),
            pick("b"),
            title=pick(None, "t"),
            size=pick(None, 3),
            annotations=annotations,
        ),
        EmbeddedResource(
            ResourceContents(pick("a:b"), text=pick("x"), mime_type=pick(None, "x/y")), annotations
        ),
    )
    value: Struct = data.draw(
        some.sampled_from(
            [
                CallToolResult(pick([block]), is_error=pick(True, False)),
                GetPromptResult(
                    pick([PromptMessage(pick("user", "assistant"), block)]), pick(None, "d")
                ),
            ]
        )
    )
    said = problem_of(value)
    # msgspec writes bytes as a base64 text and None as absent, so JSON shows less than Python
    # knows.
    if said is None:
        assert of_schema(value, type(value).__name__)
    elif (
        "got bytes" not in said
        and "expected bytes" not in said
        and "got NoneType" not in said
        and "got UnsetType" not in said
        and "size" not in said
    ):
        assert not of_schema(value, type(value).__name__), said
