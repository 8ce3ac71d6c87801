"""other_methods.py: to which part the requests of extensions are sent."""

from __future__ import annotations

from typing import Any

import pytest

from concertino.composition.other_methods import find_part
from concertino.errors import RpcError
from concertino.protocol.call import ServerFeatures
from concertino.types.results import Implementation

INFO = Implementation("part", "1")


def part(**features: Any) -> ServerFeatures:
    return ServerFeatures(INFO, other_methods=True, **features)


@pytest.mark.parametrize(
    "declared",
    [
        {"other_capabilities": {"acme": {}}},
        {"extensions": {"com.example/acme": {}}},
        {"experimental": {"acme": {}}},
    ],
)
def test_a_method_goes_to_the_part_that_declares_a_capability_of_its_name(declared: Any) -> None:
    parts = {"other": part(extensions={"com.example/else": {}}), "named": part(**declared)}
    assert find_part("acme/run", parts) == "named"


def test_a_whole_name_of_an_extension_is_the_beginning_of_its_methods() -> None:
    parts = {"other": part(), "named": part(extensions={"com.example/x": {}})}
    assert find_part("com.example/x/run", parts) == "named"


def test_a_method_without_a_capability_goes_to_the_only_part_that_declares_any() -> None:
    parts = {"plain": part(), "extended": part(extensions={"com.example/x": {}})}
    assert find_part("run/it", parts) == "extended"


def test_a_method_without_a_capability_goes_to_the_only_part_that_takes_any() -> None:
    parts = {"plain": ServerFeatures(INFO), "open": part()}
    assert find_part("run/it", parts) == "open"


@pytest.mark.parametrize(
    ("parts", "text"),
    [
        ({"a": ServerFeatures(INFO)}, "method not found: run/it"),
        (
            {"a": part(), "b": part()},
            "method not found: run/it: none of a, b declares a capability of this name",
        ),
    ],
)
def test_the_params_of_a_method_go_to_nobody_if_it_may_be_either_s(parts: Any, text: str) -> None:
    with pytest.raises(RpcError) as caught:
        find_part("run/it", parts)
    assert (caught.value.code, caught.value.message) == (-32601, text)
