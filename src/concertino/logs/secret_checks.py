"""Fast checks whether a text may contain a secret field or a token.

A secret field is a field such as `"password": "x"`. A token is a secret of a known shape, such as
`ghp_...`. If a check returns False, as for most texts, the text certainly contains no secret of
that kind. If a check returns True, the Redactor (redact.py) searches the text.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

__all__ = [
    "MIN_FIELD_CHARS",
    "REDACTED",
    "is_secret_field",
    "may_have_assignments",
    "may_have_authorization",
    "may_have_fields",
    "may_have_quoted_fields",
    "may_have_tokens",
]

# The text that replaces each secret.
REDACTED = "[REDACTED]"

# The names of fields whose values are secrets. Only whole names are compared, so that MCP's
# progressToken, maxTokens and nextCursor are not secrets.
_FIELDS = frozenset(
    (
        "apikey",
        "accesstoken",
        "refreshtoken",
        "secret",
        "clientsecret",
        "password",
        "authorization",
        "privatekey",
    )
)

# The length of the shortest text with such a field, or with an assignment such as `pwd=x`.
MIN_FIELD_CHARS = len("pwd=x")
# The name of each assignment that secret_patterns.py finds contains one of these words.
_ASSIGNED = ("passw", "passphrase", "secret", "token", "key", "pwd")
# A table for str.translate() that removes the characters which are ignored in names of fields.
_SEPARATORS = dict.fromkeys(map(ord, "-_ ."))

# Each token in secret_patterns.py that has an underscore or a hyphen contains one of these markers.
# The two patterns below find the same markers. Each pattern begins with `_` or `-`, and then
# looks at the characters before that. In long texts this is faster than to search for each marker.
_UNDERSCORE_MARKERS = (
    "ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_", "npm_", "hf_", "k_live_", "k_test_",
)  # fmt: skip
_HYPHEN_MARKERS = ("sk-", "xox", "xapp-", "glpat-", "pypi-", "-----BEGIN ")
_TOKEN_UNDERSCORES = (
    r"_(?:(?<=gh[pousr]_)|(?<=b_pat_)|(?<=npm_)|(?<=hf_)|(?<=k_live_)|(?<=k_test_))"
)
_TOKEN_HYPHENS = r"-(?:(?<=sk-)|(?<=xox[abeoprs]-)|(?<=xapp-)|(?<=glpat-)|(?<=pypi-)|----BEGIN )"
# Texts of fewer characters are searched for the markers, and longer ones with the patterns.
_SHORT_TEXT = 128


# A look-up in the cache takes 0.06 us, the function 0.7 us.
@lru_cache(maxsize=1024)
def is_secret_field(name: str) -> bool:
    """Return whether the values of a field with this name, such as `password`, are secrets.

    Upper and lower case and the characters `-_ .` make no difference, as in `Client-Secret`.
    """
    return name.translate(_SEPARATORS).lower() in _FIELDS


def may_have_fields(frame: bytes) -> bool:
    """Return False only if a JSON text certainly has no field with a secret name."""
    # Searching a str takes a fifth of the time of searching bytes.
    squeezed = str(frame.translate(None, b"-_ ."), "latin-1").lower()
    # any() with a generator would take 2 us more.
    for field in _FIELDS:
        if field in squeezed:
            return True
    # The name of a field may be written with escapes.
    return "\\u" in squeezed


def may_have_quoted_fields(text: str) -> bool:
    """Return False only if a text certainly has no quoted field with a secret name.

    A quoted field is one such as `'password': 'x'` or `password=b'x'`.
    """
    # Only single characters are searched for. A search for `':` would miss fields with spaces or a
    # prefix, and take ten times as long. Quotes and separators may also be written with escapes.
    has_quotes_and_separators = ("'" in text or '"' in text) and (":" in text or "=" in text)
    if has_quotes_and_separators or "\\" in text:
        return may_have_fields(text.encode("utf-8", "replace"))
    return False


def may_have_assignments(text: str) -> bool:
    """Return False only if a text certainly has no assignment of a secret such as `password=x`."""
    if "=" not in text and ":" not in text:
        return False
    # str.lower() takes nine times as long for a text with one character outside ASCII.
    folded = text.lower() if text.isascii() else _fold(text)
    # any() with a generator would take longer.
    return any(map(folded.__contains__, _ASSIGNED))


def _fold(text: str) -> str:
    """Return a text with ASCII letters in lower case, and other characters replaced."""
    return str(text.encode("utf-8", "replace").lower(), "latin-1")


def may_have_tokens(text: str) -> bool:
    """Return False only if a text certainly has no token of a known shape."""
    # Each token contains one of `_`, `-`, `A`, `J`, or comes after `bearer` or after
    # `authorization:` or `authorization=`, in upper or lower case, or before the `@` of a URL.
    # Search for one character first, which is fifty times as fast as searching for several.
    return (
        ("_" in text and _has_marker(text, _UNDERSCORE_MARKERS, _TOKEN_UNDERSCORES))
        or ("-" in text and _has_marker(text, _HYPHEN_MARKERS, _TOKEN_HYPHENS))
        or ("A" in text and ("AKIA" in text or "ASIA" in text or "AIza" in text))
        or ("J" in text and "eyJ" in text)
        or ("@" in text and "://" in text)
        # `bearer` or `Bearer`, which are the usual spellings.
        or "earer" in text
        # `bearer` with a capital letter after the first letter: E, A or R.
        or (
            ("E" in text or "R" in text or "A" in text)
            and ("b" in text or "B" in text)
            and _has_in_any_case(text, "earer")
        )
        or ((":" in text or "=" in text) and may_have_authorization(text))
    )


def may_have_authorization(text: str) -> bool:
    """Return False only if a text certainly has no `authorization` in any case."""
    return ("z" in text or "Z" in text) and _has_in_any_case(text, "uthorization")


def _has_in_any_case(text: str, word: str) -> bool:
    """Return whether a text has a word, in upper or lower case.

    word: lower-case ASCII letters.
    """
    if text.isascii():
        return word in text.lower()
    # str.lower() takes nine times as long for a text with one character outside ASCII.
    return word.encode() in text.encode("utf-8", "replace").lower()


def _has_marker(text: str, markers: Sequence[str], pattern: str) -> bool:
    """Return whether a text has one of the markers.

    pattern: a regular expression that finds the same markers, for long texts.
    """
    # Use no patterns for short texts, so that the first log lines of a process need not compile
    # them.
    if len(text) >= _SHORT_TEXT:
        return re.search(pattern, text) is not None
    # any() with map() would take twice the time.
    for marker in markers:  # noqa: SIM110
        if marker in text:
            return True
    return False
