"""protocol/host_limits.py: the sentences about what hosts would cut, and where they begin."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from concertino.protocol.host_limits import (
    describe_instructions,
    describe_list,
    describe_names,
)


def test_instructions_may_have_2048_characters() -> None:
    assert describe_instructions("") == ""
    assert describe_instructions("é" * 2048) == ""
    assert describe_instructions("é" * 2049) == (
        "instructions: 2,049 characters, of which hosts such as Claude Code show the model the "
        "first 2,048; put what matters most first, or shorten them"
    )


def test_a_name_may_have_64_characters_with_its_prefix() -> None:
    # `mcp__notes__` has 12.
    assert describe_names("notes", ["a" * 52]) == ""
    assert describe_names("notes", []) == ""
    name = "a" * 53
    assert describe_names("notes", ["b", name]) == (
        f"tool '{name}': 65 characters with the usual prefix 'mcp__notes__', and some hosts leave "
        "out tools with more than 64; shorten the names of tools or server"
    )


def test_the_longest_of_several_names_is_given() -> None:
    text = describe_names("notes", ["a" * 60, "b" * 61, "c" * 59])
    assert text.startswith(f"tool '{'b' * 61}' and 2 others: 73 characters with the usual prefix")


def test_a_list_may_have_10_000_tokens() -> None:
    # A word of two letters and a space has about a token, and never less than half of one.
    assert describe_list(["to be " * 100] * 10, 10) == ""
    text = describe_list(["to be " * 1000] * 30, 30)
    assert text.startswith("list of tools: the first ")
    assert " of 30 tools have about " in text
    assert text.endswith(
        "hosts hold tools back above 10,000; shorten descriptions and schemas, or split the server"
    )


def test_a_list_is_read_until_it_is_too_long_only() -> None:
    def endless() -> Iterator[str]:
        while True:
            yield "to be " * 1000

    assert "of 1,000,000 tools" in describe_list(endless(), 1_000_000)


@pytest.mark.parametrize("size", [0, 1])
def test_a_short_list_is_fine(size: int) -> None:
    assert describe_list(["{}"] * size, size) == ""
