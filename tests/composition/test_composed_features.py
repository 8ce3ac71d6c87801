"""composed_features.py: the features of several parts as those of one server."""

from __future__ import annotations

from typing import Any

import pytest

from concertino.composition.composed_features import ComposedFeatures
from concertino.composition.other_methods import find_part
from concertino.protocol.call import ServerFeatures
from concertino.types.results import Implementation

INFO = Implementation("part", "1")


def part(**features: Any) -> ServerFeatures:
    return ServerFeatures(INFO, other_methods=True, **features)


def test_a_capability_of_two_parts_is_the_first_one_s_and_said_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    parts = {
        "one": part(extensions={"com.example/acme": {"by": "one"}}),
        "two": part(extensions={"com.example/acme": {"by": "two"}, "com.example/x": {}}),
    }
    composed = ComposedFeatures(INFO)
    for _ in range(2):
        features = composed.join(parts)
    assert features.extensions == {"com.example/acme": {"by": "one"}, "com.example/x": {}}
    assert features.other_methods
    assert find_part("acme/run", parts) == "one"
    assert caplog.messages == [
        "both one and two have the capability com.example/acme: its requests go to one"
    ]


def test_capabilities_of_tasks_are_joined_and_no_conflict(
    caplog: pytest.LogCaptureFixture,
) -> None:
    parts = {
        "one": part(other_capabilities={"tasks": {"requests": {"tools": {"call": {}}}}}),
        "two": part(other_capabilities={"tasks": {"list": {}, "requests": {"x": {}}}}),
    }
    features = ComposedFeatures(INFO).join(parts)
    assert features.other_capabilities == {
        "tasks": {"requests": {"tools": {"call": {}}, "x": {}}, "list": {}}
    }
    assert caplog.messages == []
