"""cli/shell_words.py: words as a POSIX shell splits them, and JSON objects."""

from __future__ import annotations

import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from concertino.cli.shell_words import split_line


@pytest.mark.parametrize(
    "text",
    [
        "add a=1 b=2",
        "  add   a=1",
        "add text='two words'",
        'add text="a \\"quoted\\" word"',
        "add text=two\\ words",
        "add text=''",
        "add text=it\\'s",
        "add 'a'b\"c\"",
    ],
)
def test_a_line_is_split_as_a_shell_splits_it(text: str) -> None:
    line = split_line(text)
    assert line.words == shlex.split(text)
    assert line.is_complete


@given(st.lists(st.text(st.characters(codec="utf-8", exclude_characters="{\0"), min_size=1)))
def test_words_that_are_quoted_come_back(words: list[str]) -> None:
    line = split_line(shlex.join(words) + " ")
    assert line.words == [*words, ""]
    assert line.is_complete


def test_a_json_object_lasts_until_the_end_of_the_line() -> None:
    assert split_line('add {"a": "two words", "b": [1, 2]} ').words == [
        "add",
        '{"a": "two words", "b": [1, 2]}',
    ]


@pytest.mark.parametrize("text", ["add text='two", 'add text="two', "add a=1 'b"])
def test_an_open_quote_is_told(text: str) -> None:
    assert not split_line(text).is_complete


@pytest.mark.parametrize(
    ("text", "start"), [("", 0), ("add", 0), ("add ", 4), ("add a=1 b", 8), ("add 'x y", 4)]
)
def test_the_last_word_begins_where_it_is_typed(text: str, start: int) -> None:
    assert split_line(text).last_start == start
