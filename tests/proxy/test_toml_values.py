"""toml_values.py: TOML, with the places that the standard library does not tell."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from concertino.proxy.file_values import FileValue, InvalidText
from concertino.proxy.toml_values import parse_toml

DOCUMENT = '''\
model = "x"  # [not.a.header]

[mcp_servers.files]
command = "npx"
args = [
  "-y",
  "[mcp_servers.fake]",
]

  [mcp_servers.files.env]
  TOKEN = """
[mcp_servers.other]
"""
[mcp_servers."two words"]
env = { A = "1", B.C = 2 }

[[lists]]
a = 1
[[lists]]
a = 2
[lists.inner]
b = 1979-05-27
'''


def at(value: FileValue, *path: str | int) -> FileValue:
    for step in path:
        if isinstance(step, int):
            assert isinstance(value.content, tuple)
            value = value.content[step]
        else:
            assert isinstance(value.content, Mapping)
            value = value.content[step].value
    return value


@pytest.mark.parametrize(
    ("path", "place", "content"),
    [
        (("model",), (1, 1), "x"),
        (("mcp_servers", "files", "command"), (4, 1), "npx"),
        (("mcp_servers", "files", "args", 1), (5, 1), "[mcp_servers.fake]"),
        (("mcp_servers", "files", "env", "TOKEN"), (11, 3), "[mcp_servers.other]\n"),
        (("mcp_servers", "two words", "env", "A"), (15, 1), "1"),
        (("mcp_servers", "two words", "env", "B", "C"), (15, 1), 2),
        (("lists", 0, "a"), (18, 1), 1),
        (("lists", 1, "a"), (20, 1), 2),
        (("lists", 1, "inner", "b"), (22, 1), "1979-05-27"),
    ],
)
def test_a_value_stands_at_its_statement(
    path: tuple[str | int, ...], place: tuple[int, int], content: Any
) -> None:
    value = at(parse_toml(DOCUMENT), *path)
    assert (value.line, value.column, value.content) == (*place, content)


@pytest.mark.parametrize(
    ("path", "place"),
    [
        (("mcp_servers", "files"), (3, 1)),
        (("mcp_servers", "files", "env"), (10, 3)),
        (("mcp_servers", "two words"), (14, 1)),
        (("lists", 1), (19, 1)),
        (("lists", 1, "inner"), (21, 1)),
    ],
)
def test_a_table_stands_at_its_header(path: tuple[str | int, ...], place: tuple[int, int]) -> None:
    value = at(parse_toml(DOCUMENT), *path)
    assert (value.line, value.column) == place


@pytest.mark.parametrize(
    ("text", "line", "column"),
    [("a = 1\nb = \n", 2, 5), ("a = 1\na = 2\n", 2, 6), ("[a\n", 1, 3), ('a = "x', 1, 7)],
)
def test_a_mistake_has_a_place(text: str, line: int, column: int) -> None:
    with pytest.raises(InvalidText) as caught:
        parse_toml(text)
    assert (caught.value.line, caught.value.column) == (line, column)
    assert "(at " not in str(caught.value)


def test_a_statement_of_too_many_lines_is_refused() -> None:
    with pytest.raises(InvalidText, match="at most 500 lines"):
        parse_toml("a = [\n" + "1,\n" * 600 + "]\n")


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("a = " + "[" * 3000 + "]" * 3000, "expected fewer levels of lists and tables"),
        ("a = " + "9" * 6000, "expected a number of fewer digits"),
    ],
)
def test_what_the_parser_of_the_library_cannot_take_has_a_place(line: str, problem: str) -> None:
    with pytest.raises(InvalidText) as caught:
        parse_toml(f"b = 1\n{line}\nc = 2\n")
    assert (str(caught.value), caught.value.line, caught.value.column) == (problem, 2, 1)
