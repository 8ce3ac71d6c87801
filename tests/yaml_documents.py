"""Documents for comparing two implementations of YAML: the same ones for the same seed.

Requests and answers are those of interop/yaml_v3/main.go.
"""

from __future__ import annotations

import random
import re
from typing import Any

from concertino.orchestra.storage import StorageError, clean_path, compile_pattern
from concertino.yaml_core import (
    NULLS,
    InvalidYaml,
    is_null,
    read_node,
    read_value,
)
from concertino.yaml_writer import write_mapping

__all__ = ["difference", "make_object", "make_request", "make_text", "numbers", "read"]

_WORDS = """
yes no on off y n Y N true false True FALSE null Null ~ = << .inf -.inf +.INF .nan .NaN
. .. ... --- -- - 1e3 1234e56 0o17 0O17 017 08 0x1F 0X1f -0x1f 0b11 0b-11 0o-7 0x 0o 0b
0b2 0o8 1_000 _1 1_ 1__0 -_1 +1 -0 +0 0 00 0.0 -0.0 1.0 1. .5 .5e3 .e3 1.5e3 1e400
1e-400 -1e400 123456 1000000 1234567 1234567.5 0.0001 0.00001 20260101 9007199254740992
9007199254740993 9223372036854775807 9223372036854775808 18446744073709551615
18446744073709551616 +18446744073709551615 -9223372036854775808 -9223372036854775809
0xFFFFFFFFFFFFFFFF 0x1FFFFFFFFFFFFFFFF 2026-01-01 2026-1-1 2026-02-30 2024-02-29
2023-02-29 2026-13-01 0000-02-29 2026-01-01T10:00:00Z 2026-01-01t1:2:3.5+01:00
2026-01-01T10:00:00 2026-01-01T10:00:00+0100 2026-01-01T10:00:00-24:60
2026-01-01T10:00:00+25:00 2026-01-01T24:00:00Z 12:30 12:30:45 1:2:60 1:30.5 190:20:30
-1:30 !a &a *a @a `a %a ,a ?a :a -a #a a# a:b a: :a a? |a >a 'a "a [a ]a {a }a a'b a"b
a\\b http://x/y?z=1#frag C:\\dir é ü 日本 😀 \ufeff a\ufeffb \x07 \x1b \x7f \u200b \ufffd
"""
NASTY = [
    *_WORDS.replace("\n", " ").split(" "),
    "", " ", "  ", " a", "a ", "a b", "- a", "-\ta", "? a", ": a", "a: b", "a :b", "a #b", "a\t#b",
    "a\tb", "\ta", "a\t",
    "2026-01-01 10:00:00", "2026-01-01  1:2:3.5", "2026-01-01 10:00:00Z", "2026-01-01 1:2:3,5",
    "[a]", "{a: b}", "a, b",
    "a\nb", "a\nb\n", "a\n\nb\n\n", "\na", "\n", "\n\n", " a\nb", "a\n b", "a \nb", "a\nb ",
    "a\n\tb", "\ta\nb", "a\r\nb",
    "# a\n- b\n", "a\n---\nb", "---\na", "é\n日本", "😀\n", "a\u2028b", "a\n\u2028b", "a\x85b",
    "!!binary aGk=", "x" * 200,
    "word " * 60, "é" * 65, "a" * 128, "a" * 129, "'", '"', "''", "\\", "a\\nb", "\ufeffa b",
    "\x00", "a\x00#b", "a\u00a0b",
]  # fmt: skip
ALPHABET = "ab01 :-#'\"\n\t,[]{}&*!|>%@`?=~._+e\\é日😀\u00a0"
WORDS = """
title status priority tags notes id v1 v10 v2 a b B Z z a1 a10 a02 item-9 item-10 é created_at
""".strip().split(" ")
STRUCTURES = [
    "a: &x [1, 2]\nb: 3\n", "<<: {a: 1, b: 2}\nb: 3\n", "<<: [{a: 1}, {a: 2, b: 3}]\n", "<<: 5\n",
    '"<<": 5\n',
    "a: 1\na: 2\n", "a: 1\n'a': 2\n", "n: {1: x, 01: y}\n", "1: a\nyes: b\ntrue: c\non: d\n",
    "? a\n: b\n", "? [a]\n: b\n",
    "a: !!str 5\n", "a: !!int '5'\n", "a: !!int x\n", "a: !!float 1\n", "a: !!binary aGk=\n",
    "a: !!binary '?'\n",
    "a: !!null x\n", "a: !!bool true\n", "a: !!bool yes\n", "a: !foo 5\n", "a: ! 5\n",
    "a: !!set {b, c}\n",
    "a: |\n  x\n   y\n\nb: >\n  x\n  y\n\n  z\n", "a: |+\n  x\n\nb: |-\n  y\n",
    "a: 'it''s'\nb: \"\\u263a \\x41 \\\n  b\"\n",
    "a:\n- 1\n- - 2\n  - 3\n- b: 1\n  c: 2\n", "a: {b: [1, {c: d}], e: }\n", "# only\n", "",
    "a: b # c\n", "- a\n", "text\n",
    "a: b: c\n", "a:\n\tb: c\n", "a: [1\n", "a: 'x\n", "{a: 1}\n", "a: x\n  y\n  z\n",
    "!!binary aGk=: a\n", "a: @x\n",
    "%YAML 1.1\n---\na: 1\n", "a: 'b\n\n  c'\n", "a: [yes, 1e3, 017, =, <<, ~]\n",
    "a: &x 1\nb: *y\n",
]  # fmt: skip


def _text(random: random.Random) -> str:
    kind = random.randrange(6)
    if kind < 2:
        return random.choice(NASTY)
    if kind == 2:
        # As git shortens a hash.
        return f"{random.getrandbits(28):07x}"
    if kind == 3:
        return "".join(random.choices(ALPHABET, k=random.randrange(12)))
    if kind == 4:
        lines = ("".join(random.choices("ab :-# \t", k=random.randrange(8))) for _ in range(4))
        return "\n".join(lines)
    return " ".join(random.choices(WORDS, k=random.randrange(1, 40)))


def _number(random: random.Random) -> int | float:
    kind = random.randrange(4)
    if kind == 0:
        return random.randrange(-2000, 2000)
    if kind == 1:
        return random.randrange(-(2**53), 2**53) >> random.randrange(53)
    if kind == 2:
        return random.uniform(-1, 1) * 10 ** random.randrange(-20, 25)
    return 10 ** random.randrange(16)


def _value(random: random.Random, depth: int) -> Any:
    kind = random.randrange(10)
    if kind < 5:
        return _text(random)
    if kind == 5:
        return _number(random)
    if kind == 6:
        return random.choice((True, False, None))
    if depth > 3:
        return []
    if kind < 9:
        return make_object(random, depth + 1)
    return [_value(random, depth + 1) for _ in range(random.randrange(4))]


def make_object(random: random.Random, depth: int = 0) -> dict[str, Any]:
    """Return a JSON object whose numbers are all exact as doubles."""
    keys = (random.choice(WORDS) if random.random() < 0.6 else _text(random) for _ in range(9))
    return {key: _value(random, depth) for key in list(keys)[: random.randrange(5)]}


def make_text(random: random.Random) -> str:
    """Return a text that is a YAML document, or nearly one."""
    if random.random() < 0.1:
        return random.choice(STRUCTURES)
    lines: list[str] = []
    for number in range(random.randrange(1, 6)):
        key = random.choice(NASTY) if random.random() < 0.2 else f"k{number}"
        scalar = _number(random) if random.random() < 0.2 else _text(random)
        form = random.randrange(6)
        value = (scalar, scalar, f"'{scalar}'", f"[{scalar}, x]", f'"{scalar}"', "")[form]
        lines.append(f"{key}: {value}")
        if form == 5:
            lines.append(f"  - {scalar}\n  - k: {scalar}")
    return "\n".join(lines) + "\n"


def make_request(random: random.Random) -> dict[str, Any]:
    """Return a document to read, an object to write, a glob and a name, or a path."""
    kind = random.random()
    if kind < 0.45:
        return {"read": make_text(random)}
    if kind < 0.9:
        return {"write": make_object(random)}
    if kind < 0.97:
        glob = "".join(random.choices(["*", "?", *"ab[]^-\\!", "[^a]", "[a-b]"], k=5))
        return {"match": [glob, "".join(random.choices("ab]^-!\\[", k=random.randrange(5)))]}
    return {"clean": "".join(random.choices(["/", ".", "..", "a", "b"], k=6))}


# Comparison


# What PyYAML's parser refuses and yaml.v3's does not: a colon at the end of a text in brackets, a
# byte order mark inside of a document, a tab at the beginning of a block.
# Refused by concertino: aliases, and text behind the first document.
STRICTER = (
    "found unexpected ':'",
    "did not find expected key",
    "did not find expected <document start>",
    "found character that cannot start any token",
    "found a byte order mark",
    "found a tab character",
    "found unknown escape character",
    "did not find expected whitespace",
    "did not find expected node content",
    "while scanning",
    "has an alias",
    "expected a single document",
)


def numbers(value: Any) -> Any:
    """Return a value with every number as the text of a double, as JSON has no other numbers."""
    if isinstance(value, dict):
        if [*value] == ["$float"]:
            return f"number {float(value['$float'])}"
        return {key: numbers(item) for key, item in value.items()}
    if isinstance(value, list):
        return [numbers(item) for item in value]
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return value
    # A Struct's whole numbers are integers here, so that zero has no sign.
    return f"number {float(value) + 0.0}"


def read(text: str) -> dict[str, Any]:
    """Return the metadata of a document. Raises InvalidYaml."""
    root = read_node(text, max_depth=32)
    if root is None or is_null(root):
        return {}
    if root.kind != "mapping":
        raise InvalidYaml(root.line, "not a mapping")
    return read_value(root)


def difference(request: dict[str, Any], answer: dict[str, Any]) -> str | None:
    """Return how concertino differs from an answer of Go in a way that is not intended."""
    [(kind, value)] = request.items()
    return COMPARISONS[kind](value, answer)


def _compare_reading(text: str, answer: dict[str, Any]) -> str | None:
    error = answer.get("error")
    try:
        found = read(text)
    except InvalidYaml as exc:
        # Upstream cannot read times, and keys inside of a value that are not texts.
        is_readable = error is None or error.startswith("struct: ")
        is_intended = str(exc).startswith(STRICTER) or not is_readable
        return None if is_intended else f"unreadable: {exc}"
    if error is not None:
        return None
    expected = answer["value"]
    # Go drops them.
    nulls = {key for key in ("", *NULLS) if key in found and key not in expected}
    found = {key: item for key, item in found.items() if key not in nulls}
    # Go drops a value that has only a tag of its own.
    if numbers(found) == numbers(expected) or re.search(r"(?:^|[\s\[])![^!\s]", text):
        return None
    return f"read {found!r}, expected {expected!r}"


def _compare_writing(value: dict[str, Any], answer: dict[str, Any]) -> str | None:
    text = write_mapping(value, max_depth=32)
    if numbers(read(text)) != numbers(value):
        return f"wrote {text!r}, which is read as {read(text)!r}"
    # Texts that yaml.v3 cannot read back, or reads back otherwise, are quoted here. So are these:
    # YAML 1.2 has other line breaks, other readers know no tag for merges, and PyYAML wants no
    # tab at the beginning of a block.
    go_text = answer.get("text", "")
    if (
        not answer.get("same")
        or "!!merge" in go_text
        or re.search("[\u2028\u2029]|[|]-?[+]?\n *\t", go_text)
    ):
        return None
    return None if text == go_text else f"wrote {text!r}, expected {go_text!r}"


def _compare_matching(value: list[str], answer: dict[str, Any]) -> str | None:
    glob, name = value
    try:
        found = compile_pattern(glob).fullmatch(name) is not None
    except StorageError as exc:
        # Go does not look at the rest of a glob once a name does not match.
        return None if not answer.get("value") else f"refused: {exc}"
    if answer.get("error") is None and found == answer["value"]:
        return None
    return f"matches: {found}, expected {answer}"


def _compare_cleaning(path: str, answer: dict[str, Any]) -> str | None:
    cleaned: str = answer["value"]
    try:
        found = "/".join(clean_path(path))
    except StorageError as exc:
        parts = cleaned.strip("/").split("/")
        return f"refused: {exc}" if parts[0] not in ("", ".", "..") else None
    return None if found == cleaned.lstrip("/") else f"{found!r}, expected {cleaned!r}"


COMPARISONS = {
    "read": _compare_reading,
    "write": _compare_writing,
    "match": _compare_matching,
    "clean": _compare_cleaning,
}
