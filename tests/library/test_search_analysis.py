"""analysis.py: which words are the same to a search. Expected terms are said by hand;
stems are those of the Snowball project's page on its English stemmer
(snowballstem.org/algorithms/english).
"""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from concertino.library.analysis import MAX_TERM, STOP_WORDS, Analyser, shared_analyser


def terms(text: str) -> list[str]:
    return shared_analyser().analyse(text).split()


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("node.js", "NodeJS"),
        ("node.js", "nodejs"),
        ("CI/CD", "cicd"),
        ("CI/CD", "ci-cd"),
        ("k8s", "Kubernetes"),
        ("i18n", "internationalization"),
        ("snake_case", "snake case"),
        ("getUserName", "user name"),
        ("HTTPServer", "http server"),
        ("event-driven", "event driven"),
        ("event-driven", "eventdriven"),
        ("ASP.NET", ".NET"),
        ("ASP.NET", "asp.net"),
        (".net", "dotnet"),
        ("Golang", "go"),
        ("postgres", "PostgreSQL"),
        ("testing", "tests"),
        ("caf\u00e9", "cafe"),
        ("C++11", "C++"),
        ("v3.11", "3.11"),
        ("user's", "users"),
        ("\u65e5\u672c\u8a9e", "\u672c\u8a9e"),  # Japanese: no spaces, so pairs of characters
    ],
)
def test_different_spellings_share_a_term(one: str, other: str) -> None:
    assert set(terms(one)) & set(terms(other))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("C++", "C"),
        ("C#", "C"),
        ("C#", "C++"),
        (".NET", "net"),
        ("JavaScript", "Java"),
        ("3.11", "3.12"),
        ("GitHub", "hub"),
    ],
)
def test_what_is_not_the_same_shares_no_term(one: str, other: str) -> None:
    assert not set(terms(one)) & set(terms(other))


def test_stop_words_and_signs_are_no_terms() -> None:
    assert terms(" ".join(sorted(STOP_WORDS))) == []
    assert terms("-- ... ??? ## __ ++ \U0001f600") == []


def test_a_key_or_a_hash_is_no_term() -> None:
    assert terms("a" * (MAX_TERM + 1)) == []
    assert terms("b" * MAX_TERM) == ["b" * MAX_TERM]


@pytest.mark.parametrize(
    ("stem", "words"),
    [
        ("consign", "consign consigned consigning consignment"),
        ("consist", "consist consisted consistency consistent consistently consisting consists"),
        ("consol", "consolation consolations"),
        ("knight", "knightly knight knights"),
        ("knock", "knock knocked knocking knocks"),
        ("sky", "skies sky"),
    ],
)
def test_words_are_stemmed_as_snowball_stems_them(stem: str, words: str) -> None:
    assert set(terms(words)) == {stem}


@given(st.text())
def test_any_text_gives_terms_that_are_lower_case_without_spaces(text: str) -> None:
    for term in terms(text):
        assert term == term.lower() or not term.isascii()
        assert len(term) <= MAX_TERM
        assert not any(map(str.isspace, term))


@given(st.text())
def test_what_was_seen_before_changes_nothing(text: str) -> None:
    assert Analyser().analyse(text).split() == terms(text)


@given(st.text(st.one_of(st.sampled_from("aB1.+#/&'\u2019_- \n\u00a0\u2014"), st.characters())))
def test_a_text_has_the_terms_of_its_words_one_by_one(text: str) -> None:
    """The words are those of the pattern, however the text is cut before."""
    assert terms(text) == [
        term for word in shared_analyser().words(text) for term in Analyser().terms(word)
    ]


@pytest.mark.parametrize("sound_mark", ["\uff9e", "\uff9f"])
def test_a_letter_that_is_nothing_but_an_accent_is_no_term(sound_mark: str) -> None:
    """Unicode 16: letters (Lm) whose compatibility decomposition is a combining mark alone; there
    are no others.
    """
    assert terms(f"alpha {sound_mark} beta {sound_mark}# .{sound_mark}") == ["alpha", "beta"]


def test_a_megabyte_of_what_looks_like_a_word_takes_no_more_than_its_length() -> None:
    """Each would take hours if the pattern could be read in two ways."""
    for piece in (
        "-" * 1_000_000,
        "a" + "-" * 1_000_000,
        "a-" * 500_000,
        "a." * 500_000 + "!",
        "." * 1_000_000,
        "+" * 1_000_000,
    ):
        assert len(terms(piece)) <= 1


def test_without_tantivy_the_extra_is_named() -> None:
    code = (
        "import sys; sys.modules['tantivy'] = None\n"
        "from concertino.errors import TargetError\n"
        "from concertino.library.analysis import shared_analyser\n"
        "try: shared_analyser()\n"
        "except TargetError as why: print(why)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=20
    )
    assert re.fullmatch(
        r"searching a library needs the extra 'library' .*: .*pip install .*\[library\]'\n",
        done.stdout,
    )
