"""Replaces the secrets in a text by `[REDACTED]`, even if they were escaped several times.

The Redactor (redact.py) describes what a secret is. It imports this module when a text may contain
a secret for the first time. replace_secrets() is for plain texts, replace_in_strings() for JSON.

To find secrets that were escaped, the text is unescaped level by level. The position of a match is
mapped back to the original text, so that no escape sequence is cut (escapes.py).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence

from concertino.logs.escapes import EscapeMap, map_back, unescape
from concertino.logs.secret_checks import (
    REDACTED,
    is_secret_field,
    may_have_fields,
    may_have_quoted_fields,
)
from concertino.logs.secret_patterns import Span, find_assignments, find_fields, find_tokens

__all__ = ["replace_in_strings", "replace_secrets"]

# How many levels of escaping are searched, for JSON in JSON in a repr().
MOST_LEVELS = 3

# One JSON string. Group 2 matches if the string is a key whose value is a string. At the end of the
# text, a string without its closing quote matches too.
_JSON_STRING = r'(?s)"((?:[^"\\]++|\\.)*+)(?:("\s*+:\s*+(?="))|"|)'
# The beginning of a JSON object or array inside a JSON string.
_JSON_START = r"(?:\s|\\[nrt])*+(?:[{\[]|\\u00[57][bB])"


def replace_secrets(
    text: str,
    secrets: Sequence[str],
    *,
    fields: bool,
    tokens: bool,
    assignments: bool = False,
    is_json_string: bool = False,
    spans: Iterable[Span] = (),
) -> str:
    """Return a text in which all secrets, on all levels of escaping, are replaced.

    secrets: exact texts to replace.
    fields: whether to search for secret fields in quotes: the result of may_have_quoted_fields().
    tokens: whether to search for tokens of known shapes: the result of may_have_tokens().
    assignments: whether to search for assignments such as `password=x`: the result of
        may_have_assignments().
    is_json_string: whether the text is the inside of a JSON string.
    spans: the start and end of further parts of the text to replace.
    """
    found = list(spans)
    # The positions at which the spans begin, in the original text.
    starts = {start for start, _ in found}
    levels: list[EscapeMap] = []
    view = text
    while True:
        # The inside of a JSON string must be unescaped before it is searched. For example, `\nabc`
        # does not contain the secret `nabc`, and replacing it would leave a lone backslash.
        must_unescape_first = is_json_string and not levels and "\\" in view
        if not must_unescape_first:
            by_value = list(_find_exact(view, secrets))
            if tokens:
                by_value += _skip_redacted(view, find_tokens(view))
            found += [(map_back(levels, start), map_back(levels, end)) for start, end in by_value]
            if fields or assignments:
                by_name = find_fields(view, is_secret_field) if fields else []
                by_name += find_assignments(view) if assignments else []
                # Ignore a field that was found on an outer level already. There its end is right;
                # on this level, the value seems to end at another position.
                for view_start, view_end in _skip_redacted(view, by_name):
                    start, end = map_back(levels, view_start), map_back(levels, view_end)
                    if start not in starts:
                        starts.add(start)
                        found.append((start, end))
        if len(levels) == MOST_LEVELS or "\\" not in view:
            break
        view, level = unescape(view)
        levels.append(level)
    return _replace_spans(text, found) if found else text


def replace_in_strings(
    text: str,
    secrets: Sequence[str],
    may_contain_known: Callable[[str], bool] | None,
    *,
    fields: bool,
    tokens: bool,
) -> str:
    """Return a JSON text in which the secrets in strings are replaced. The JSON is not decoded.

    secrets: exact texts to replace.
    may_contain_known: a fast check whether a string may contain one of `secrets`; None if the
        whole text contains none.
    fields: whether the text may have secret fields: the result of may_have_fields().
    tokens: whether to search for tokens of known shapes: the result of may_have_tokens().
    """
    pieces: list[str] = []
    done = 0
    # Whether the next string is the value of a secret field.
    is_secret_value = False
    for match in re.finditer(_JSON_STRING, text):
        old = new = match[1]
        is_secret_key = match[2] is not None and is_secret_field(unescape(old)[0])
        if is_secret_value:
            new = REDACTED
        elif not is_secret_key:
            spans = _find_nested_fields(old, MOST_LEVELS) if fields else []
            quoted = fields and may_have_quoted_fields(old)
            has_known = may_contain_known is not None and may_contain_known(old)
            if spans or quoted or tokens or has_known:
                new = replace_secrets(
                    old, secrets, fields=quoted, tokens=tokens, is_json_string=True, spans=spans
                )
        is_secret_value = is_secret_key
        if new is not old:
            pieces += text[done : match.start(1)], new
            done = match.end(1)
    return "".join((*pieces, text[done:])) if pieces else text


def _find_exact(text: str, secrets: Sequence[str]) -> Iterable[Span]:
    """Yield the spans of the given secrets in a text."""
    for secret in secrets:
        start = text.find(secret)
        while start >= 0:
            yield start, start + len(secret)
            start = text.find(secret, start + 1)


def _skip_redacted(text: str, spans: Iterable[Span]) -> list[Span]:
    """Return spans without those of `[REDACTED]`, so that a redacted text does not change again."""
    return [(start, end) for start, end in spans if text[start:end] != REDACTED]


def _find_nested_fields(string: str, depth: int) -> list[Span]:
    """Return the spans of the values of secret fields in a JSON string that is itself JSON.

    depth: how many levels of JSON inside JSON to search.
    """
    if not re.match(_JSON_START, string) or not may_have_fields(string.encode("utf-8", "replace")):
        return []
    spans: list[Span] = []
    # Whether the next string is the value of a secret field.
    is_secret_value = False
    view, level = unescape(string)
    for match in re.finditer(_JSON_STRING, view):
        is_secret_key = match[2] is not None and is_secret_field(unescape(match[1])[0])
        if is_secret_value:
            found = [(0, len(match[1]))]
        else:
            found = _find_nested_fields(match[1], depth - 1) if depth > 1 else []
        is_secret_value = is_secret_key
        for span in found:
            start, end = (map_back([level], match.start(1) + offset) for offset in span)
            spans.append((start, end))
    return spans


def _replace_spans(text: str, spans: Iterable[Span]) -> str:
    """Return a text in which each group of overlapping spans is replaced by one [REDACTED]."""
    pieces: list[str] = []
    done = 0
    for start, end in sorted(spans):
        if start >= done:
            pieces += text[done:start], REDACTED
        done = max(done, end)
    pieces.append(text[done:])
    return "".join(pieces)
