"""resources_and_prompts.py: what a server sends, decoded from the specification's own examples and
encoded again, unchanged.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
import wire
from catalogue import ICONS
from example_messages import Example, examples

from concertino.types import resources_and_prompts
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
from concertino.types.results import Annotations, AudioContent, TextContent

E = wire.MODERN
SHAPES: dict[str, Any] = {
    "Resource": Resource,
    "ListResourcesResult": ListResourcesResult,
    "ListResourceTemplatesResult": ListResourceTemplatesResult,
    "ListPromptsResult": ListPromptsResult,
    "GetPromptResult": GetPromptResult,
    "CompleteResult": CompleteResult,
}
HINTS = Annotations(["user", "assistant"], 1.0, "2025-01-12T15:00:58Z")
META = {"example.com/k": [None]}


def to_json(value: Any) -> Any:
    return json.loads(msgspec.json.encode(value))


@pytest.mark.parametrize("example", examples(*SHAPES))
def test_an_example_is_the_same_after_decoding_and_encoding(example: Example):
    decoded = msgspec.json.decode(example.raw, type=SHAPES[example.kind])
    # The session adds resultType.
    assert to_json(decoded) == {
        name: value for name, value in example.value.items() if name != "resultType"
    }


@pytest.mark.parametrize(
    ("value", "definition"),
    [
        (Resource("a:b", "n", "t", "d", "text/plain", 5, HINTS, ICONS, META), "Resource"),
        (
            ResourceTemplate("a:{b}", "n", "t", "d", "text/plain", HINTS, ICONS, META),
            "ResourceTemplate",
        ),
        (PromptArgument("n", "t", "d", required=True), "PromptArgument"),
        (
            Prompt("n", "t", "d", [PromptArgument("a", required=False)], ICONS, META),
            "Prompt",
        ),
        (PromptMessage("assistant", AudioContent(b"", "audio/wav")), "PromptMessage"),
    ],
)
def test_every_item_is_written_in_the_shape_of_2026_07_28_and_survives_it(
    value: msgspec.Struct, definition: str
):
    wire.check(to_json(value), E, definition)
    assert msgspec.json.decode(msgspec.json.encode(value), type=type(value)) == value
    members = {field.encode_name for field in msgspec.structs.fields(value)}
    for oracle in wire.ORACLES:
        assert members <= set(wire.definitions(E, oracle)[definition]["properties"])


RESULTS: list[tuple[msgspec.Struct, str]] = [
    (
        ListResourcesResult([Resource("a:b", "n")], "", META, ttl_ms=0, cache_scope="public"),
        "resources",
    ),
    (
        ListResourceTemplatesResult([ResourceTemplate("a:{b}", "n")], "c", META, ttl_ms=5),
        "templates",
    ),
    (ListPromptsResult([Prompt("n")], "c", META, cache_scope="private"), "prompts"),
    (
        GetPromptResult([PromptMessage("user", TextContent(""))], "d", META),
        "prompt",
    ),
    (CompleteResult(Completion(["a"], 1, has_more=False), META), "completion"),
]


@pytest.mark.parametrize(("value", "name"), RESULTS)
def test_every_result_survives_the_wire_and_fits_its_schema_with_what_all_results_say(
    value: msgspec.Struct, name: str
):
    assert msgspec.json.decode(msgspec.json.encode(value), type=type(value)) == value
    definition = type(value).__name__
    complete = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private", **to_json(value)}
    wire.check(complete, E, definition)
    members = {each.encode_name for each in msgspec.structs.fields(value)}
    for oracle in wire.ORACLES:
        assert members <= set(wire.definitions(E, oracle)[definition]["properties"])


def test_caching_hints_that_were_not_given_are_not_written():
    assert to_json(ListPromptsResult([], ttl_ms=0)) == {"prompts": [], "ttlMs": 0}


def test_all_names_are_there():
    assert all(hasattr(resources_and_prompts, name) for name in resources_and_prompts.__all__)
