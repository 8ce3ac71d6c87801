"""What handlers put together by hand and the schema forbids never leaves: the caller is told what
does not fit, the author too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from loops import on_a_loop
from server.served import Served

from concertino import Server
from concertino.types.resources_and_prompts import GetPromptResult, PromptMessage
from concertino.types.results import (
    Annotations,
    CallToolResult,
    ImageContent,
    ReadResourceResult,
    ResourceContents,
    ResourceLink,
    TextContent,
)

A: Any = None  # what a type checker would not let an author write
BLOCKS: list[tuple[Callable[[], Any], str]] = [
    (lambda: TextContent(A), "TextContent: text: expected str, got NoneType"),
    (
        lambda: ["a", TextContent("b", Annotations(priority=9))],
        "TextContent: annotations.priority: expected 0 to 1, got 9",
    ),
    (
        lambda: ImageContent("notbase64!!", "image/png"),
        "ImageContent: data: expected bytes, got str",
    ),  # type: ignore[arg-type]
    (lambda: ResourceLink("a:b", A), "ResourceLink: name: expected str, got NoneType"),
    (
        lambda: CallToolResult([TextContent("x")], meta=A or 5),
        "CallToolResult: meta: expected dict, got int",
    ),
    (
        lambda: CallToolResult([TextContent("x")], is_error=A or 1),
        "CallToolResult: is_error: expected bool, got int",
    ),
]
VERSIONS = ["2024-11-05", "2025-11-25", "2026-07-28"]


@pytest.mark.parametrize("version", VERSIONS)
@on_a_loop
async def test_a_tool_whose_content_does_not_fit_fails_as_a_tool(version: str) -> None:
    server = Server("x")
    for number, (handler, _) in enumerate(BLOCKS):
        server.add_tool(handler, name=f"t{number}")
    async with Served(server, version) as served:
        for number, (_, message) in enumerate(BLOCKS):
            result = await served.ask("tools/call", name=f"t{number}")
            assert (result["isError"], result["content"]) == (
                True,
                [{"type": "text", "text": message}],
            )


@pytest.mark.parametrize("version", VERSIONS)
@on_a_loop
async def test_a_prompt_that_does_not_fit_is_an_internal_error(version: str) -> None:
    server = Server("x")
    wrong: list[tuple[Any, str]] = [
        (
            PromptMessage("system", TextContent("x")),
            "GetPromptResult: messages[0].role: expected 'user' or 'assistant', got 'system'",
        ),  # type: ignore[arg-type]
        (GetPromptResult([], description=5), "GetPromptResult: description: expected str, got int"),  # type: ignore[arg-type]
    ]
    for number, (value, _) in enumerate(wrong):
        server.add_prompt(_gives(value), name=f"p{number}")
    async with Served(server, version) as served:
        for number, (_, message) in enumerate(wrong):
            error = await served.refused("prompts/get", name=f"p{number}")
            assert (error.code, error.message) == (-32603, message)


@pytest.mark.parametrize("version", VERSIONS)
@on_a_loop
async def test_a_resource_that_does_not_fit_is_an_internal_error(version: str) -> None:
    server = Server("x")
    piece = ResourceContents("a:b", text="x")
    wrong: list[tuple[Any, str]] = [
        (ResourceContents("a:b", text=A), "ResourceContents: text: expected str, got NoneType"),
        (ResourceContents("a:b", blob="zzz!"), "ResourceContents: blob: expected bytes, got str"),  # type: ignore[arg-type]
        (
            ReadResourceResult([]),
            "ReadResourceResult: contents: expected at least one piece; return None for a "
            "resource that is not there",
        ),
        (
            ReadResourceResult([piece], ttl_ms=-5),
            "ReadResourceResult: ttl_ms: expected at least 0, got -5",
        ),
        (
            ReadResourceResult([piece], cache_scope="all"),
            "ReadResourceResult: cache_scope: expected 'public' or 'private', got 'all'",
        ),  # type: ignore[arg-type]
    ]
    for number, (value, _) in enumerate(wrong):
        server.add_resource(f"r:{number}", _gives(value))
    async with Served(server, version) as served:
        for number, (_, message) in enumerate(wrong):
            error = await served.refused("resources/read", uri=f"r:{number}")
            assert (error.code, error.message) == (-32603, message)


def _gives(value: object) -> Callable[[], Any]:
    return lambda: value
