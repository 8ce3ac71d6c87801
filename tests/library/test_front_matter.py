"""library/front_matter.py and outline.py: what a file says of itself, and what becomes of one that
says it wrongly.

Expected values are PyYAML's own where YAML is well-formed, and hand-written where a policy of ours
decides.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from corpora import each_corpus
from hypothesis import given
from hypothesis import strategies as st

import concertino
from concertino.library.front_matter import MAX_CHARACTERS, MAX_DEPTH, parse_front_matter
from concertino.library.outline import lines_outside_fences, parse_outline


def texts(value: object) -> object:
    """What PyYAML's BaseLoader gives, which knows texts alone, with an empty one for nothing."""
    if isinstance(value, dict):
        return {key: texts(item) for key, item in value.items()}
    if isinstance(value, list):
        return [texts(item) for item in value]
    return "" if value in (None, "~", "null", "Null", "NULL") else value


@each_corpus
def test_a_corpus_is_read_as_pyyaml_reads_it(corpus: Path) -> None:
    paths = sorted(corpus.rglob("*.md"))
    assert len(paths) > 60
    for path in paths:
        text = path.read_text()
        if not text.startswith("---\n"):
            assert parse_front_matter(text).values == {}
            continue
        block, _, body = text[4:].partition("\n---\n")
        head = parse_front_matter(text)
        assert texts(head.values) == texts(yaml.load(block, Loader=yaml.BaseLoader)), path
        assert head.body == body
        assert head.problems == ()


def test_values_are_as_they_are_written() -> None:
    head = parse_front_matter(
        "---\ntitle: On\nversion: 1.10\nid: 007\nat: 12:30\nday: 2026-07-28\nnone:"
        " ~\nempty:\n---\ntext"
    )
    assert head.values == {
        "title": "On",
        "version": "1.10",
        "id": "007",
        "at": "12:30",
        "day": "2026-07-28",
        "none": None,
        "empty": None,
    }
    assert parse_front_matter('---\nname: "~"\n---\n').values == {"name": "~"}


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_line_ends_of_any_system_are_taken(end: str) -> None:
    head = parse_front_matter(
        end.join(["---", "id: a", "tags: [b, c]", "---", "# Title", "---", "text"])
    )
    assert head.values == {"id": "a", "tags": ["b", "c"]}
    assert head.body == end.join(["# Title", "---", "text"])
    assert head.body_line == 5


@pytest.mark.parametrize(
    "text",
    ["", "# Title\n", "\n---\nid: a\n---\n", " ---\nid: a\n---\n", "----\nid: a\n----\n", "---"],
)
def test_what_does_not_begin_with_a_fence_has_none(text: str) -> None:
    assert parse_front_matter(text).values == {}
    assert parse_front_matter(text).body == text
    assert parse_front_matter(text).problems == ()


def test_a_fence_that_is_not_closed_is_text() -> None:
    head = parse_front_matter("---\nid: a\n# Title\n")
    assert (head.values, head.body) == ({}, "---\nid: a\n# Title\n")
    assert [item.rule for item in head.problems] == ["front-matter"]


def test_only_the_first_closing_fence_closes() -> None:
    assert parse_front_matter("---\nid: a\n---\none\n---\ntwo\n").body == "one\n---\ntwo\n"
    assert parse_front_matter("---\nid: a\n...\none\n").body == "one\n"


@pytest.mark.parametrize(
    ("block", "line", "said"),
    [
        ("\tid: a", 2, "is not YAML"),
        ("id: a\ntitle: 'b", 4, "is not YAML"),
        ("id: a\x00", 2, "is not YAML"),
        ('id: "\\ud800"', 2, "is not YAML"),
        ("- a\n- b", 2, "expected `key: value` lines, got a list"),
        ("only words", 2, "expected `key: value` lines, got a text"),
        ("? [a]\n: b", 2, "a key that is not a text"),
        ("a: &x [1, 2]\nb: *x", 3, "alias"),
        ("a: &x [*x]", 2, "alias"),
        ("a: " + "[" * 60000, 2, f"more than {MAX_DEPTH} deep"),
        ("a: " + "{b: " * 15000, 2, f"more than {MAX_DEPTH} deep"),
        ("- " * 30000 + "x", 2, f"more than {MAX_DEPTH} deep"),
        ("a: [" + "1," * 20000 + "]", 2, "more than 4096 values"),
        ("a: " + "x" * MAX_CHARACTERS, 1, "the limit is"),
    ],
    ids=lambda value: str(value)[:12] if isinstance(value, str) else None,
)
def test_what_is_no_front_matter_is_a_problem_and_the_text_stays(
    block: str, line: int, said: str
) -> None:
    head = parse_front_matter(f"---\n{block}\n---\nbody\n")
    assert (head.values, head.body) == ({}, "body\n")
    [problem] = head.problems
    assert problem.rule == "front-matter"
    assert problem.line == line
    assert said in problem.message


def test_of_a_key_that_comes_twice_the_last_counts_and_it_is_said() -> None:
    head = parse_front_matter("---\nid: a\ntitle: x\nid: b\n---\n")
    assert head.values == {"id": "b", "title": "x"}
    assert [(item.line, item.rule) for item in head.problems] == [(4, "front-matter")]


def test_tags_of_python_objects_are_texts() -> None:
    assert parse_front_matter("---\na: !!python/object/apply:os.system ['x']\n---\n").values == {
        "a": ["x"]
    }


def test_depth_does_not_end_the_process() -> None:
    """30,000 brackets are a segmentation fault to a composer that recurses in C."""
    code = (
        "from concertino.library.front_matter import parse_front_matter\n"
        "print(parse_front_matter('---\\na: ' + '[' * 30000 + '\\n---\\n').values)"
    )
    environment = {"PYTHONPATH": str(Path(concertino.__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=20
    )
    assert (done.returncode, done.stdout) == (0, "{}\n")


KEYS = st.text("abcxyz", min_size=1, max_size=5)
VALUES = st.recursive(
    st.text(
        st.characters(
            codec="utf-8",
            exclude_categories=("Cc", "Cs"),
            exclude_characters="\x85\u2028\u2029\ufeff",
        ),
        max_size=12,
    ),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(KEYS, VALUES, min_size=1, max_size=5), st.text(max_size=40))
def test_what_pyyaml_writes_is_read_back(values: dict[str, object], body: str) -> None:
    block = yaml.safe_dump(values, allow_unicode=True)
    head = parse_front_matter(f"---\n{block}---\n{body}")
    assert texts(head.values) == texts(values)
    assert head.body == body
    assert head.problems == ()


@given(st.text(max_size=200))
def test_nothing_raises(text: str) -> None:
    head = parse_front_matter(f"---\n{text}")
    assert text.endswith(head.body) or head.body == f"---\n{text}"
    parse_outline(text)


# Outline


BODY = """\
Some words first,
in two lines.

```sh
# no heading
```

# **The** title #

## When to Use This

- One
* Two

1. not a bullet

## Capabilities:
- Three

## Else
- Four
"""


def test_headings_and_lists_stand_in_for_fields() -> None:
    found = parse_outline(BODY)
    assert found.title == "The title"
    assert found.description == "Some words first, in two lines."
    assert found.use_when == ("One", "Two")
    assert found.capabilities == ("Three",)


def test_lists_are_left_out_if_they_are_not_wanted() -> None:
    assert parse_outline("# A\n\ntext\n\n## Capabilities\n- b\n", lists=False).capabilities == ()


@pytest.mark.parametrize(
    ("body", "lines"),
    [
        ("a\n```\nb\n```\nc", ["a", "c"]),
        ("a\n````\n```\nb\n````\nc", ["a", "c"]),
        ("a\n~~~ sh\n```\n~~~\nc", ["a", "c"]),
        ("a\n```\nb", ["a"]),
        ("a\n``` x\nb\n``` y\nc\n```\nd", ["a", "d"]),  # a closing fence has nothing behind it
        ("a\n    ```\nb", ["a", "    ```", "b"]),  # indented by four: code, and no fence
    ],
)
def test_lines_inside_of_fences_are_code(body: str, lines: list[str]) -> None:
    """CommonMark 4.5."""
    assert [line for _, line in lines_outside_fences(body)] == lines
