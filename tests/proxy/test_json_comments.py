"""json_comments.py: JSON with comments, and the places of values and mistakes."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from concertino.proxy.file_values import FileValue, InvalidText
from concertino.proxy.json_comments import parse_json


def plain(value: FileValue) -> Any:
    content = value.content
    if isinstance(content, Mapping):
        return {name: plain(member.value) for name, member in content.items()}
    return [plain(item) for item in content] if isinstance(content, tuple) else content


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("{}", {}),
        ("[]", []),
        (" [1, -2, 0.5, 1e3, true, false, null] ", [1, -2, 0.5, 1000.0, True, False, None]),
        ('{"a": {"b": []}, "c": ""}', {"a": {"b": []}, "c": ""}),
        ("[1, 2,]", [1, 2]),
        ('{"a": 1,\n}', {"a": 1}),
        ('// first\n{/* in */"a"/**/:// end\r\n1}\n//last', {"a": 1}),
        ('["// no comment", "/* nor this */"]', ["// no comment", "/* nor this */"]),
        (r'["\"\\\/\b\f\n\r\té"]', ['"\\/\b\f\n\r\té']),
        (r'["\ud83d\ude00"]', ["\U0001f600"]),
        ('\ufeff{"bom": 1}', {"bom": 1}),
        ("[/* a ** b */ 1]", [1]),
    ],
)
def test_a_text_has_this_value(text: str, value: Any) -> None:
    assert plain(parse_json(text)) == value


@pytest.mark.parametrize(
    ("text", "line", "column", "problem"),
    [
        ("", 1, 1, "expected a value, got the end of the file"),
        ("{", 1, 2, "expected a name or '}', got the end of the file"),
        ('{"a" 1}', 1, 6, "expected ':' after the name 'a', got '1'"),
        ('{"a": 1 "b": 2}', 1, 9, "expected ',' or the '}' of line 1, column 1, got '\"'"),
        ('{\n  "a": [1\n}', 3, 1, "expected ',' or the ']' of line 2, column 8, got '}'"),
        ("[\n  1 2]", 2, 5, "expected ',' or the ']' of line 1, column 1, got '2'"),
        ("[1,,2]", 1, 4, "expected a value, got ','"),
        ("[,]", 1, 2, "expected a value, got ','"),
        ("{,}", 1, 2, "expected a name or '}', got ','; names stand in double quotes"),
        ("{a: 1}", 1, 2, "expected a name or '}', got 'a'; names stand in double quotes"),
        ("['a']", 1, 2, 'expected a value, got "\'"; texts stand in double quotes'),
        ("[\n\n  yes]", 3, 3, "expected a value, got 'yes'; texts stand in double quotes"),
        ('{"a": 1}\n}', 2, 1, "expected nothing after the value, got '}'"),
        ('{"a": 1,\n "a": 2}', 2, 2, "expected 'a' once, got it again; it is in line 1"),
        ('["open]', 1, 2, "expected '\"' at the end of this text, got the end of the file"),
        ('["a\nb"]', 1, 2, "expected '\"' at the end of this text, got '\\n'"),
        ('["a\tb"]', 1, 4, "expected '\"' at the end of this text, got '\\t'"),
        (r'["C:\dir"]', 1, 5, r"expected an escape such as \n or \\, got '\\d'"),
        (r'["\u12"]', 1, 3, r"expected four hexadecimal digits after \u"),
        (r'["\ud83d"]', 1, 2, "expected both halves of a surrogate pair in this text"),
        ("[1] /* open", 1, 5, "expected */ at the end of this comment, got the end of the file"),
        ("[01]", 1, 2, "expected a value, got '01'; texts stand in double quotes"),
        ("[1e999]", 1, 2, "expected a smaller number, got 1e999"),
        ("[NaN]", 1, 2, "expected a value, got 'NaN'; texts stand in double quotes"),
        ("é [", 1, 1, "expected a value, got 'é'"),
        ("\r\n\r[x]", 3, 2, "expected a value, got 'x'; texts stand in double quotes"),
        ("[" * 65, 1, 65, "expected at most 64 levels of lists and objects"),
        ("[" + "9" * 301 + "]", 1, 2, "expected a number of fewer digits"),
    ],
)
def test_a_mistake_has_a_place(text: str, line: int, column: int, problem: str) -> None:
    with pytest.raises(InvalidText) as caught:
        parse_json(text)
    assert (str(caught.value), caught.value.line, caught.value.column) == (problem, line, column)


def test_values_and_names_have_places() -> None:
    value = parse_json('{\n  "servers": {"a": ["x",\n "y"]}\n}')
    assert isinstance(value.content, Mapping)
    servers = value.content["servers"]
    assert (servers.line, servers.column) == (2, 3)
    assert isinstance(servers.value.content, Mapping)
    items = servers.value.content["a"].value.content
    assert isinstance(items, tuple)
    assert [(item.line, item.column) for item in items] == [(2, 21), (3, 2)]


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**18), 10**18)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=("Cs",))),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4)
    ),
    max_leaves=20,
)


@given(JSON, st.sampled_from([None, 1, "\t"]), st.booleans())
def test_json_has_the_value_that_the_standard_library_reads(
    value: Any, indent: Any, ascii_only: bool
) -> None:
    text = json.dumps(value, indent=indent, ensure_ascii=ascii_only)
    assert plain(parse_json(text)) == json.loads(text)


@given(st.text(st.sampled_from('{}[]":,\\ \n1a-.e'), max_size=40))
def test_what_is_refused_is_no_json_and_the_place_is_in_the_text(text: str) -> None:
    expected, value = loaded(text), read(text)
    if isinstance(value, InvalidText):
        lines = text.split("\n")
        assert 1 <= value.line <= len(lines)
        assert 1 <= value.column <= len(lines[value.line - 1]) + 1
        # The standard library takes the last of two equal names.
        assert isinstance(expected, ValueError) or "once" in str(value)
    elif isinstance(expected, ValueError):
        assert re.search(r",\s*[]}]", text)
    else:
        assert value == expected


def read(text: str) -> Any:
    try:
        return plain(parse_json(text))
    except InvalidText as exc:
        return exc


def loaded(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as exc:
        return exc
