"""library/query_params.py: parameters read back as the standard library writes them; and any URI is
answered or refused.
"""

from __future__ import annotations

import random
from pathlib import Path
from urllib.parse import quote, urlencode

import pytest
from hypothesis import given
from hypothesis import strategies as st
from library.shelves import fill
from loops import on_a_loop
from server.served import Served

from concertino import Library, RpcError
from concertino.library.query import Query
from concertino.library.query_params import MODES, parse_query

KNOWN = ["agents", "best-practices", "skills"]


def read(text: str, category: str | None = None) -> Query:
    return parse_query(text, category, {name: name for name in KNOWN}.get, KNOWN)


@pytest.mark.parametrize(
    ("written", "text"),
    [
        ("a+b", "a b"),
        ("a%20b", "a b"),
        ("a b", "a b"),  # a prompt's value, put into a URI as it is
        ("a%2Bb", "a+b"),
        ("C%2B%2B", "C++"),
        ("C++", "C++"),
        ("C+++templates", "C++ templates"),
        ("modern+c++", "modern c++"),
        ("c++&mode=full", "c++"),
        ("c++11", "c  11"),  # a form's two spaces, for all that can be known
        ("1++2", "1  2"),
        ("C%23", "C#"),
        (".NET", ".NET"),
        ("%25+%26", "% &"),
        ("a%2541", "a%41"),  # once
        ("%C3%A4", "\u00e4"),
        ("a=b", "a=b"),
        ("100%", "100%"),
    ],
)
def test_a_query_is_decoded_once_and_c_plus_plus_is_one_word(written: str, text: str) -> None:
    assert read(f"query={written}").text == text


TEXTS = st.text(st.characters(codec="utf-8"), min_size=1, max_size=20).filter(str.strip)
TAGS = st.lists(
    TEXTS.map(lambda text: text.replace(",", "").strip()).filter(bool), max_size=3, unique=True
).map(tuple)


@given(
    TEXTS,
    st.integers(1, 200_000),
    st.integers(1, 100),
    st.decimals(0, 1000, places=3),
    TAGS,
    st.lists(st.sampled_from(KNOWN), unique=True).map(tuple),
    st.sampled_from(MODES),
    st.sampled_from([quote, lambda text, *rest: quote(text, *rest).replace("%20", "+")]),
)
def test_what_the_standard_library_writes_is_read_back(
    text: str,
    tokens: int,
    results: int,
    score: object,
    tags: tuple[str, ...],
    categories: tuple[str, ...],
    mode: str,
    via: object,
) -> None:
    given = {
        "query": text,
        "maxTokens": tokens,
        "maxResults": results,
        "minScore": score,
        "mode": mode,
    }
    lists = {"tags": tags, "categories": categories}
    written = urlencode(
        {**given, **{name: ",".join(values) for name, values in lists.items() if values}},
        quote_via=via,
    )  # type: ignore[call-overload]
    found = read(written)
    assert (found.text, found.max_tokens, found.max_results) == (text, tokens, results)
    assert found.min_score == float(str(score))
    assert (found.tags, found.categories, found.mode) == (tags, categories, mode)


def test_what_is_not_said_is_as_the_page_says() -> None:
    assert read("query=a") == Query("a", 3000, 15, 0.0, (), (), "full")
    assert read("query=a", "agents").categories == ("agents",)
    assert read("&&query=a&").text == "a"
    assert read("tags=a&tags=b,a&query=x").tags == ("a", "b")


@pytest.mark.parametrize(
    ("text", "details"),
    [
        (
            "&".join(f"tags={number}" for number in range(70)),
            "query: expected at most 64 parameters, got more",
        ),
        (
            "query=a&tags=" + ",".join(map(str, range(40))),
            "tags: expected at most 32 values, got more",
        ),
        (
            "query=a&maxTokens=" + "9" * 1000,
            f"maxTokens: expected a whole number from 1 to 200000, got '{'9' * 64}...'",
        ),
        ("x" * 1000 + "=1", "x" * 64 + ": expected one of query,"),
    ],
)
def test_what_comes_back_is_short(text: str, details: str) -> None:
    with pytest.raises(RpcError) as error:
        read(text)
    assert error.value.data["details"].startswith(details)
    assert len(str(error.value.data)) < 1000


PIECES = [
    *(
        "orchestr8://",
        "ORCHESTR8://",
        "agents",
        "agent",
        "/",
        "//",
        "one",
        "one.md",
        "match",
        "?",
        "query=",
        "&",
        "=",
        "mode=index",
    ),
    *(
        "maxTokens=1",
        "tags=a",
        "registry",
        "..",
        "%2e",
        "%2F",
        "%00",
        "%",
        "%FF",
        "\\",
        "#",
        "+",
        "\u00e4",
        " ",
        "\u2028",
        "{}",
        "~",
    ),
    *(
        "minScore=1",
        "categories=agents",
        "*",
        '"',
        "(",
        "alpha",
        "secret",
        "link",
        ":",
        "AND",
        "[a TO b]",
        "\U0001f600",
    ),
]


BEGINNINGS = [
    "",
    "orchestr8://",
    "orchestr8://match?query=",
    "orchestr8://agents/match?query=alpha&",
    "orchestr8://agents/",
]


@on_a_loop
async def test_any_uri_is_answered_or_refused_and_shows_nothing_from_outside(
    tmp_path: Path,
) -> None:
    fill(
        tmp_path / "resources",
        {"agents/one.md": "---\ntags: [a]\n---\n# One\n\nalpha\n", "top.md": "# Top"},
    )
    fill(tmp_path, {"secret.md": "do not show this"})
    (tmp_path / "resources" / "link.md").symlink_to(tmp_path / "secret.md")
    dice = random.Random(6)
    answered = 0
    codes: set[int] = set()
    async with Served(Library(tmp_path / "resources", watch=False)) as served:  # pyright: ignore[reportArgumentType]
        for _ in range(1500):
            uri = dice.choice(BEGINNINGS) + "".join(dice.choices(PIECES, k=dice.randint(1, 8)))
            try:
                result = await served.ask("resources/read", uri=uri)
            except RpcError as error:
                codes.add(error.code)
                continue
            answered += 1
            [contents] = result["contents"]
            assert "do not show this" not in contents["text"]
            assert str(tmp_path) not in contents["text"]
    assert answered > 200
    assert codes == {-32602, -32002}
