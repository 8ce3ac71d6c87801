"""The parameters of `match?query=...`: read strictly, so that a caller who misspells one is told instead of served something else.

`+` is a space, as in forms; but `C++` is what it looks like: two plus signs behind a letter, at the end of a word.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar, get_args
from urllib.parse import unquote

from concertino.errors import INVALID_PARAMS, RpcError
from concertino.library.query import Mode, Query

__all__ = ["MODES", "PARAMETERS", "query_of"]

MODES: tuple[Mode, ...] = get_args(Mode)
PARAMETERS = ("query", "maxTokens", "maxResults", "minScore", "tags", "categories", "mode")
MAX_TOKENS = (
    200_000  # far more than a message may hold at four characters each is refused here, not there
)
MAX_RESULTS = 100
MAX_VALUES = 32  # tags, categories
USUAL = frozenset(
    ("agents", "skills", "examples", "patterns", "guides", "workflows", "best-practices")
)
PLUSES = re.compile(r"(?<=[A-Za-z])\+\+(?![A-Za-z0-9])")
PIECES = 64  # parameters in a URI
SHOWN = 64  # characters of a value, given back
N = TypeVar("N", int, float)


def query_of(
    text: str, category: str | None, category_of: Callable[[str], str | None], known: Sequence[str]
) -> Query:
    """What the text behind a `?` asks for.

    category: what stands before `match`, which leaves no room for the parameter `categories`. category_of: the category that a
    name means; known: all of them. Raises RpcError -32602 that names the parameter, what was expected and what came.
    """
    allowed = (
        PARAMETERS
        if category is None
        else tuple(name for name in PARAMETERS if name != "categories")
    )
    given = _pieces(text, allowed)
    words = _one(given, "query")
    if words is None:
        raise _bad("query", "the words to look for", said="nothing")
    if not words.strip():
        raise _bad("query", "the words to look for", words)
    mode = _one(given, "mode") or "full"
    if mode not in MODES:
        raise _bad("mode", " or ".join((", ".join(MODES[:-1]), MODES[-1])), mode)
    categories = (
        (category,)
        if category is not None
        else _categories(_list(given, "categories"), category_of, known)
    )
    return Query(
        words,
        max_tokens=_number(given, "maxTokens", 3000, int, 1, MAX_TOKENS),
        max_results=_number(given, "maxResults", 15, int, 1, MAX_RESULTS),
        min_score=_number(given, "minScore", 0.0, float, 0, 1e9),
        tags=_list(given, "tags"),
        categories=categories,
        mode=mode,
    )


def _pieces(text: str, allowed: Sequence[str]) -> Mapping[str, list[str]]:
    given: dict[str, list[str]] = {}
    pieces = text.split("&", PIECES)
    if len(pieces) > PIECES:
        raise _bad("query", f"at most {PIECES} parameters", said="more")
    for piece in pieces:
        if not piece:
            continue
        name, _, value = piece.partition("=")
        name = _decoded("query", name)
        if name not in allowed:
            raise _bad(name[:SHOWN], f"one of {', '.join(allowed)}", said="an unknown parameter")
        given.setdefault(name, []).append(_decoded(name, value))
    return given


def _decoded(name: str, value: str) -> str:
    value = PLUSES.sub("%2B%2B", value) if "++" in value else value
    try:
        return unquote(value.replace("+", " "), errors="strict")
    except UnicodeDecodeError:
        raise _bad(name, "UTF-8 behind its percent signs", value) from None


def _one(given: Mapping[str, list[str]], name: str) -> str | None:
    values = given.get(name)
    if values is None:
        return None
    if len(values) > 1:
        raise _bad(name, "one value", said=f"{len(values)}")
    return values[0]


def _list(given: Mapping[str, list[str]], name: str) -> tuple[str, ...]:
    values = [
        each.strip() for value in given.get(name, ()) for each in value.split(",", MAX_VALUES)
    ]
    if len(values) > MAX_VALUES:
        raise _bad(name, f"at most {MAX_VALUES} values", said="more")
    if given.get(name) and not all(values):
        raise _bad(name, "values with commas between them", given[name][0])
    return tuple(dict.fromkeys(values))


def _number(
    given: Mapping[str, list[str]], name: str, default: N, kind: type[N], least: N, most: N
) -> N:
    text = _one(given, name)
    if text is None:
        return default
    expected = f"{'a whole' if kind is int else 'a'} number from {least} to {most:g}"
    if (
        re.fullmatch(r"\d{1,12}" if kind is int else r"\d{1,12}(\.\d{1,12})?", text, re.ASCII)
        is None
    ):
        raise _bad(name, expected, text)
    value = kind(text)
    if not least <= value <= most:
        raise _bad(name, expected, text)
    return value


def _categories(
    names: tuple[str, ...], category_of: Callable[[str], str | None], known: Sequence[str]
) -> tuple[str, ...]:
    """Those that there are. The usual ones may be named in a library that has none of them: prompts name them as they come."""
    found: list[str] = []
    for name in names:
        category = category_of(name) or category_of(name.lower())
        if category is None and not {name, f"{name}s"} & USUAL:
            raise _bad("categories", f"some of {', '.join(known) or '(there are none)'}", name)
        found.append(category or name)
    return tuple(dict.fromkeys(found))


def _bad(name: str, expected: str, got: str = "", *, said: str = "") -> RpcError:
    """got: the value that came; said: in words, where it is no value that is wrong."""
    got = got if len(got) <= SHOWN else got[:SHOWN] + "..."
    text = f"{name}: expected {expected}, got {said or repr(got)}"
    details = {"details": text, "parameter": name, "expected": expected, "got": said or got}
    return RpcError(INVALID_PARAMS, f"Invalid parameter {text}", details)
