"""yaml_core.py: what yaml.v3 reads and writes, as kept answers of Go and by hand from its
source.
"""

from __future__ import annotations

import json
from math import inf, isnan
from pathlib import Path
from typing import Any

import pytest
from yaml_documents import difference, read

from concertino.yaml_core import DisallowedYaml, InvalidYaml, read_node
from concertino.yaml_writer import write_mapping

ANSWERS = Path(__file__).parent / "yaml_v3_answers.jsonl"


def write(**members: Any) -> str:
    return write_mapping(members, max_depth=8)


def test_500_documents_are_read_and_written_as_yaml_v3_does() -> None:
    """interop/test_yaml_v3.py asks Go about these and 100,000 others."""
    kept = [json.loads(line) for line in ANSWERS.read_text().split("\n") if line]
    assert len(kept) == 500
    for entry in kept:
        assert difference(entry["request"], entry["answer"]) is None, entry


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e+06", 1000000),
        ("1.5e+300", 1.5e300),
        ("1e3", 1000),
        ("0o17", 15),
        ("017", 15),
        ("08", 8),
        ("0x1f", 31),
        ("0b11", 3),
        ("1_000", 1000),
        ("-0", 0),
        ("1180591620717411303424", 2**70),
        ("1e400", "1e400"),
        ("0xfffffffffffffffff", "0xfffffffffffffffff"),
        (".inf", inf),
        ("yes", "yes"),
        ("On", "On"),
        ("12:30", "12:30"),
        ("2026-01-01", "2026-01-01"),
        ("=", "="),
        ("<<", "<<"),
        ("!!binary aGk=", "hi"),
        ("!!str 1", "1"),
        ("!!float 1", 1),
        ("!!timestamp 2026-01-01", "2026-01-01"),
        ("! 5", 5),
        ("{!!int 1: 2}", {"1": 2}),
        ("'1e3'", "1e3"),
        ("~", None),
        ("TRUE", True),
    ],
)
def test_a_scalar_has_the_value_of_yaml_v3(text: str, value: object) -> None:
    found = read(f"a: {text}\n")["a"]
    assert (found, type(found)) == (value, type(value))


def test_a_number_that_is_none_is_read() -> None:
    assert isnan(read("a: .nan\n")["a"])


def test_every_key_is_a_text() -> None:
    text = "yes: 1\non: 2\n1: 3\nnull: 4\ntrue: 5\n2026-01-01: 6\n'': 7\na: {1: {~: x}}\n"
    assert read(text) == {
        "yes": 1,
        "on": 2,
        "1": 3,
        "null": 4,
        "true": 5,
        "2026-01-01": 6,
        "": 7,
        "a": {"1": {"~": "x"}},
    }


def test_a_merge_adds_what_is_not_there() -> None:
    assert read("<<: [{a: 1, b: 2}, {b: 3, c: 4}]\na: 5\n") == {"a": 5, "b": 2, "c": 4}
    assert read("'<<': 1\n") == {"<<": 1}


@pytest.mark.parametrize(
    ("text", "line", "problem"),
    [
        ("a: 1\nb: 2\na: 3\n", 3, "already in line 1"),
        ("a: !!int x\n", 1, "as a int"),
        ("a: !!binary '?'\n", 1, "base64"),
        ("!!int a: 1\n", 1, "as a int"),
        ("a: {!!bool b: 1}\n", 1, "as a bool"),
        ("<<: 1\n", 1, "expected a mapping"),
        ("a: [\n", 2, "did not find"),
        ("a: 1\n---\nb: 2\n", 3, "single document"),
        ("a: 1\nb: !![x]\n", 2, "tag URI; '!' begins a tag.*put a text that begins with it into"),
        ("a: !e!x y\n", 1, "undefined tag handle; '!' begins a tag"),
        ("a: !{x} y\n", 1, "; '!' begins a tag"),
        # libyaml would read {"a": 1, "b": {"c": 2}}.
        ("a: 1\nb:\n\ufeffc: 2\n", 3, "byte order mark"),
    ],
)
def test_an_error_names_its_line(text: str, line: int, problem: str) -> None:
    with pytest.raises(InvalidYaml, match=problem) as caught:
        read(text)
    assert caught.value.line == line


def test_limits_are_those_of_the_caller() -> None:
    for text in ("a: [[1]]\n", "a: &x 1\nb: *x\n", "? [a]\n: 1\n", "[1, 2, 3, 4, 5]\n"):
        with pytest.raises(DisallowedYaml):
            read_node(text, max_depth=2, max_values=5)
    root = read_node("a: &x 1\nb: *x\n", max_depth=2, aliases=True)
    assert root is not None
    assert [value.value for _, value in root.value] == ["1", "1"]
    with pytest.raises(InvalidYaml, match="undefined alias 'x'"):
        read_node("*x", max_depth=2, aliases=True)


def test_bytes_are_those_of_yaml_v3() -> None:
    """The lines of yaml.v3 3.0.1 for the same values."""
    text = write(
        million=1000000,
        hash="1234e56",
        big=2**60,
        half=0.5,
        day="2026-01-01",
        old=["yes", "12:30"],
        items=[{"a": 1, "b": []}, [1, {}]],
        quoted=["- a", "it's: x", "tab\t", "😀", ""],
        lines="a\n b\n\n",
        inner={"a10": None, "a2": True, "1": ""},
    )
    assert text == (
        "big: 1152921504606846976\n"
        'day: "2026-01-01"\n'
        "half: 0.5\n"
        'hash: "1234e56"\n'
        "inner:\n"
        '    "1": ""\n'
        "    a2: true\n"
        "    a10: null\n"
        "items:\n"
        "    - a: 1\n"
        "      b: []\n"
        "    - - 1\n"
        "      - {}\n"
        "lines: |+\n"
        "    a\n"
        "     b\n"
        "\n"
        "million: 1e+06\n"
        "old:\n"
        '    - "yes"\n'
        '    - "12:30"\n'
        "quoted:\n"
        "    - '- a'\n"
        "    - 'it''s: x'\n"
        '    - "tab\\t"\n'
        '    - "\\U0001F600"\n'
        '    - ""\n'
    )


@pytest.mark.parametrize("text", ["\na", "\n", "\ta\nb", "<<", "a\u2028b", " a\nb"])
def test_a_text_that_others_would_lose_is_quoted(text: str) -> None:
    written = write(a=[text])
    assert written.startswith('a:\n    - "')
    assert read(written) == {"a": [text]}


@pytest.mark.parametrize("value", [inf, "\ud800", b"", {1: 2}, [[[[[[[[[1]]]]]]]]]])
def test_a_value_that_nobody_could_read_is_refused(value: object) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        write(a=value)
