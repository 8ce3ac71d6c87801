"""parse_query(): parses the parameters of a search URI.

An example of such a URI is `orchestr8://match?query=retry&mode=index`. Unknown and malformed
parameters are errors, so that a typo is reported instead of ignored. `+` is a space, as in HTML
forms, except in `++` after a letter at the end of a word, as in `C++`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar, get_args
from urllib.parse import unquote

from concertino.errors import INVALID_PARAMS, RpcError
from concertino.excerpts import shorten
from concertino.library.query import Mode, Query

MODES: tuple[Mode, ...] = get_args(Mode)
PARAMETERS = ("query", "maxTokens", "maxResults", "minScore", "tags", "categories", "mode")

# The largest values of maxTokens and maxResults.
MAX_TOKENS = 200_000
MAX_RESULTS = 100
# The largest value of minScore. No score is as high.
MAX_SCORE = 1e9

# The largest number of tags, and of categories.
MAX_VALUES = 32

# The largest number of parameters in a URI.
MAX_PARAMETERS = 64

# An error quotes at most this many characters of a wrong value.
QUOTED = 64

# Categories that are no errors even if the library does not have them, because the authors of
# prompts write URIs for many libraries.
COMMON_CATEGORIES = frozenset(
    ("agents", "skills", "examples", "patterns", "guides", "workflows", "best-practices")
)

# `++` after a letter at the end of a word.
PLUSES = re.compile(r"(?<=[A-Za-z])\+\+(?![A-Za-z0-9])")
N = TypeVar("N", int, float)


def parse_query(
    text: str,
    category: str | None,
    category_of: Callable[[str], str | None],
    all_categories: Sequence[str],
) -> Query:
    """Return the Query for a search URI.

    text: the part of the URI after `?`, not yet decoded.
    category: the category before `match` in the URI, to search only in this category. The parameter
        `categories` is not allowed then. None if there is no category before `match`.
    category_of: called with a name in singular or plural. Returns the library's category with this
        name; None if there is none.
    all_categories: all categories of the library, for the error text.
    Raises RpcError -32602, whose text names the parameter, the expected and the actual value.
    """
    allowed = PARAMETERS
    if category is not None:
        allowed = tuple(name for name in PARAMETERS if name != "categories")
    params = _split_params(text, allowed)

    words = _single(params, "query")
    if words is None:
        raise _invalid("query", "the words to look for", remark="nothing")
    if not words.strip():
        raise _invalid("query", "the words to look for", words)
    mode = _single(params, "mode") or "full"
    if mode not in MODES:
        raise _invalid("mode", f"{', '.join(MODES[:-1])} or {MODES[-1]}", mode)
    if category is not None:
        categories = (category,)
    else:
        categories = _find_categories(_texts(params, "categories"), category_of, all_categories)
    # Query has the same defaults.
    return Query(
        words,
        max_tokens=_number(params, "maxTokens", 3000, int, 1, MAX_TOKENS),
        max_results=_number(params, "maxResults", 15, int, 1, MAX_RESULTS),
        min_score=_number(params, "minScore", 0.0, float, 0, MAX_SCORE),
        tags=_texts(params, "tags"),
        categories=categories,
        mode=mode,
    )


def _split_params(text: str, allowed: Sequence[str]) -> Mapping[str, list[str]]:
    """Return name -> decoded values of each parameter in the part of a URI after `?`.

    allowed: the names of parameters that are no errors.
    """
    params: dict[str, list[str]] = {}
    pieces = text.split("&", MAX_PARAMETERS)
    if len(pieces) > MAX_PARAMETERS:
        raise _invalid("query", f"at most {MAX_PARAMETERS} parameters", remark="more")
    for piece in pieces:
        if not piece:
            continue
        name, _, value = piece.partition("=")
        # If the name cannot be decoded, the error names the whole part after `?`, the query.
        name = _decode("query", name)
        if name not in allowed:
            expected = f"one of {', '.join(allowed)}"
            raise _invalid(name[:QUOTED], expected, remark="an unknown parameter")
        params.setdefault(name, []).append(_decode(name, value))
    return params


def _decode(name: str, value: str) -> str:
    """Decode `+` and percent signs in a parameter.

    name: the name of the parameter, for the error.
    """
    value = PLUSES.sub("%2B%2B", value) if "++" in value else value
    try:
        return unquote(value.replace("+", " "), errors="strict")
    except UnicodeDecodeError:
        raise _invalid(name, "UTF-8 after its percent signs", value) from None


def _single(params: Mapping[str, list[str]], name: str) -> str | None:
    """Return the value of a parameter that may occur only once; None if it is missing."""
    values = params.get(name)
    if values is None:
        return None
    if len(values) > 1:
        raise _invalid(name, "one value", remark=f"{len(values)}")
    return values[0]


def _texts(params: Mapping[str, list[str]], name: str) -> tuple[str, ...]:
    """Return the values of a parameter that may occur several times, without duplicates.

    Each occurrence may have several values, separated by commas.
    """
    values = [
        text.strip() for value in params.get(name, ()) for text in value.split(",", MAX_VALUES)
    ]
    if len(values) > MAX_VALUES:
        raise _invalid(name, f"at most {MAX_VALUES} values", remark="more")
    if params.get(name) and not all(values):
        raise _invalid(name, "values with commas between them", params[name][0])
    return tuple(dict.fromkeys(values))


def _number(
    params: Mapping[str, list[str]],
    name: str,
    default: N,
    kind: type[N],
    least: N,
    most: N,
) -> N:
    """Return the value of a parameter that is a number; `default` if the parameter is missing.

    kind: int or float.
    least, most: the smallest and the largest allowed number.
    """
    text = _single(params, name)
    if text is None:
        return default
    expected = f"{'a whole' if kind is int else 'a'} number from {least} to {most:g}"
    pattern = r"\d{1,12}" if kind is int else r"\d{1,12}(\.\d{1,12})?"
    if re.fullmatch(pattern, text, re.ASCII) is None:
        raise _invalid(name, expected, text)
    value = kind(text)
    if not least <= value <= most:
        raise _invalid(name, expected, text)
    return value


def _find_categories(
    names: tuple[str, ...], category_of: Callable[[str], str | None], all_categories: Sequence[str]
) -> tuple[str, ...]:
    """Return the categories with these names, without duplicates.

    A name of COMMON_CATEGORIES is returned even if the library does not have this category. Raises
    RpcError for any other name that is not a category of the library.
    """
    found: list[str] = []
    for name in names:
        category = category_of(name) or category_of(name.lower())
        if category is None and not {name, f"{name}s"} & COMMON_CATEGORIES:
            expected = f"some of {', '.join(all_categories) or '(there are none)'}"
            raise _invalid("categories", expected, name)
        found.append(category or name)
    return tuple(dict.fromkeys(found))


def _invalid(
    name: str,
    expected: str,
    value: str = "",
    *,
    remark: str = "",
) -> RpcError:
    """Return the error for an invalid parameter.

    value: the wrong value, which is quoted in the text.
    remark: used instead of the value, such as "nothing" for a missing parameter.
    """
    value = shorten(value, QUOTED)
    text = f"{name}: expected {expected}, got {remark or repr(value)}"
    details = {"details": text, "parameter": name, "expected": expected, "got": remark or value}
    return RpcError(INVALID_PARAMS, f"Invalid parameter {text}", details)
