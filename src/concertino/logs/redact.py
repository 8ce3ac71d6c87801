r"""Removal of secrets from everything that leaves the process other than as a normal result.

Every sink uses it: logs, traces, captures, error texts, relayed stderr. There are three rules:

*Values*: the value of an environment variable with a secret name (`*_TOKEN`, `*_PASSWORD`, ...) is
replaced by `[REDACTED]` wherever it occurs, also if it was escaped on the way: `\n`, `\"`,
`\u0061`, `\x61`, up to three times over (JSON in JSON in a `repr`). To find such forms the text is
unescaped level by level. A match is mapped back to the place it came from, so that no escape
sequence is cut.

*Fields*: a string under a key such as `password` is replaced whatever its content: in objects, in
JSON texts, in JSON texts inside of JSON strings (the text content that repeats a structured
result), and in what repr() makes of dicts and objects, wherever it stands: `{'password': 'x'}`.

*Tokens*: what looks like a well-known kind of token is replaced: `ghp_...`, `sk-...`, `AKIA...`,
JSON Web Tokens, what follows `Bearer`, private keys. secret_patterns.py has the shapes.

Not found, since no rule can: a secret that was encoded (base64, percent), hashed or split.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar, cast

from msgspec import DecodeError, Raw, Struct
from msgspec.json import decode
from msgspec.structs import force_setattr

from concertino.logs.secret_checks import (
    LEAST_FIELD,
    has_quoted_key,
    is_secret_field,
    may_have_fields,
    may_have_quoted_fields,
    may_have_tokens,
)

if TYPE_CHECKING:
    from concertino.logs.escapes import Level

__all__ = [
    "REDACTED",
    "Redactor",
    "learn",
    "learn_secrets",
    "make_clean_check",
    "redactor",
    "refresh",
]

REDACTED = "[REDACTED]"

T = TypeVar("T")


class Redactor:
    """Removes the given secrets, and fields with secret names, from texts and values. Immutable.

    secrets: exact texts; overlapping matches are replaced as one. The empty text and parts of
    `[REDACTED]` are ignored. least: a text of fewer characters contains no secret of any kind.
    """

    __slots__ = ("_escapable", "_secrets", "_shortest", "least", "markers")

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        self._secrets: tuple[str, ...] = tuple(
            {secret for secret in secrets if secret not in REDACTED}
        )
        # The result of find_markers(); None until its first call.
        self.markers: Sequence[str] | None = None
        # No escaped form of a secret is shorter than the secret itself.
        self._shortest = min(map(len, self._secrets), default=sys.maxsize)
        self.least = min(self._shortest, LEAST_FIELD)
        # Most secrets contain no character with a short escape: \u0061 can hide them, \n cannot.
        # This keeps frame() fast for texts that contain \n.
        self._escapable = any(
            character in _SHORT_ESCAPED for secret in self._secrets for character in secret
        )

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Redactor:
        """Return a Redactor that knows the values of the variables with secret names.

        Each value is known as it is, and with `\\n` replaced by a newline: PEM keys are written on
        one line to fit into a variable.
        """
        values = [
            value.strip() for name, value in environment.items() if _is_secret(name, value.strip())
        ]
        return cls(values + [value.replace("\\n", "\n") for value in values])

    def including(self, secrets: Iterable[str]) -> Redactor:
        """Return a Redactor that knows these secrets too."""
        return Redactor((*self._secrets, *secrets))

    def __repr__(self) -> str:
        return f"<Redactor of {len(self._secrets)} secrets>"

    def text(self, text: str) -> str:
        """Return a plain text (a log line, an error) without secrets.

        Returns the same object if it contains none.
        """
        if len(text) < self.least:
            return text
        fields, tokens = may_have_quoted_fields(text), may_have_tokens(text)
        if not (fields or tokens or self._may_hold(text)):
            return text
        return self._without_secrets(text, False, fields, tokens)

    def string(self, text: str) -> str:
        """Return a text without secrets that may be a JSON object or array.

        Such a text is the content that repeats a structured result. Returns the same object if
        there is nothing to remove.
        """
        if len(text) < self.least:
            return text
        tokens = may_have_tokens(text)
        if text[:1] in _JSON_FIRST and may_have_fields(text.encode("utf-8", "replace")):
            text = self._without_secrets_in_strings(text, self._may_hold(text), True, tokens)
        # The body of text(): this saves a call for nearly every text.
        fields = may_have_quoted_fields(text)
        if not (fields or tokens or self._may_hold(text)):
            return text
        return self._without_secrets(text, False, fields, tokens)

    def find_markers(self) -> Sequence[str]:
        """Return a few characters such that each secret contains at least one of them.

        A text without any of them contains no secret. Looking for them takes a sixth of the time
        that looking for the secrets takes, and most texts contain none.
        """
        left: tuple[str, ...] = self._secrets
        markers: list[str] = []
        while left:
            characters = sorted({character for secret in left for character in secret})
            # Prefer the character of most secrets; among equals one that is rare in texts.
            best = max(
                characters,
                key=lambda char: (sum(char in secret for secret in left), not char.islower()),
            )
            markers.append(best)
            left = tuple(secret for secret in left if best not in secret)
        self.markers = markers
        return markers

    def frame(self, frame: bytes) -> bytes:
        """Return one JSON text without secrets and secret fields; the same object if it has none.

        Only JSON strings are changed, keys included; all other bytes stay, and valid JSON stays
        valid. Input that is not JSON (a banner, a truncated frame) is processed as far as it is
        readable, and then as plain text too. Raises nothing. Cost: linear; 1 us, or 8 ms per MB.
        A frame that contains a secret, a field or `\\u` costs more: up to 0.5 s for one MB that
        consists of escapes.
        """
        text = str(frame, "utf-8", "surrogateescape")
        search = self._may_hold(text)
        fields = may_have_fields(frame)
        tokens = may_have_tokens(text)
        if not (search or fields or tokens):
            return frame
        redacted = self._without_secrets_in_strings(text, search, fields, tokens)
        if not _is_json(frame):
            redacted = self.text(redacted)
        return frame if redacted is text else redacted.encode("utf-8", "surrogateescape")

    def value(self, value: T) -> T:
        """Return a structure of Python objects without secrets and secret fields.

        Descends into str, dict (keys too), list, tuple, Struct and Raw; anything else, bytes
        included, stays as it is. Nothing is changed in place: whatever contains a secret is copied;
        a subclass of dict, list or tuple becomes the plain type; a Struct is copied without
        __post_init__. Returns the same object if there is nothing to remove. If two keys become
        equal, both stay, and the later one gets a `'` appended. Raises RecursionError for a cyclic
        structure, as encoding does.
        """
        # A copy has the type of the original, but no type checker can follow that.
        return cast(T, self._value(value))

    def _value(self, value: object) -> object:
        if isinstance(value, str):
            return self.string(value)
        if isinstance(value, dict):
            return self._dict(cast(dict[object, object], value))
        if isinstance(value, (list, tuple)):
            return self._sequence(cast(list[object] | tuple[object, ...], value))
        if isinstance(value, Struct):
            return self._struct(value)
        if isinstance(value, Raw):
            frame = bytes(value)
            redacted = self.frame(frame)
            return value if redacted is frame else Raw(redacted)
        return value

    def _dict(self, old: dict[object, object]) -> dict[object, object]:
        new: dict[object, object] = {}
        changed = False
        for key, item in old.items():
            new_key, new_item = key, self._member(key, item)
            if isinstance(key, str) and not is_secret_field(key):
                new_key = self.text(key)
                while new_key is not key and new_key in new:
                    new_key = f"{new_key}'"
            new[new_key] = new_item
            changed = changed or new_key is not key or new_item is not item
        return new if changed else old

    def _sequence(
        self, old: list[object] | tuple[object, ...]
    ) -> list[object] | tuple[object, ...]:
        new: list[object] = []
        changed = False
        for item in old:
            new_item = self._value(item)
            new.append(new_item)
            changed = changed or new_item is not item
        if not changed:
            return old
        return new if isinstance(old, list) else tuple(new)

    def _struct(self, old: Struct) -> Struct:
        # Importing copy takes 1 ms, and few processes redact Structs.
        from copy import copy

        new = old
        for attribute, name in zip(
            old.__struct_fields__, old.__struct_encode_fields__, strict=True
        ):
            item: object = getattr(old, attribute)
            new_item = self._member(name, item)
            if new_item is not item:
                new = copy(old) if new is old else new
                force_setattr(new, attribute, new_item)
        return new

    def _member(self, name: object, item: object) -> object:
        if isinstance(item, str):
            return (
                REDACTED if isinstance(name, str) and is_secret_field(name) else self.string(item)
            )
        return self._value(item)

    def _without_secrets_in_strings(
        self,
        text: str,
        search: bool,
        fields: bool,
        tokens: bool,
    ) -> str:
        """Redact the strings of a JSON text without decoding it; the rest stays byte for byte.

        search, fields, tokens: whether the text may contain known secrets, fields and tokens.
        """
        # Few texts have any secret, so few processes need this module.
        from concertino.logs.escapes import unescape

        pieces: list[str] = []
        done = 0
        of_field = False
        for match in re.finditer(_JSON_STRING, text):
            old = new = match[1]
            is_field = match[2] is not None and is_secret_field(unescape(old)[0])
            if of_field:
                new = REDACTED
            elif not is_field:
                spans = _fields_inside(old, _MOST_LEVELS) if fields else []
                quoted = fields and may_have_quoted_fields(old)
                if spans or quoted or tokens or (search and self._may_hold(old)):
                    new = self._without_secrets(old, True, quoted, tokens, spans)

            # The string after a key that names a secret is that key's value.
            of_field = is_field
            if new is not old:
                pieces += text[done : match.start(1)], new
                done = match.end(1)
        return "".join((*pieces, text[done:])) if pieces else text

    def _may_hold(self, text: str) -> bool:
        """Return False only if the text certainly contains no secret in any form."""
        for secret in self._secrets:
            if secret in text:
                return True
        if not self._secrets or "\\" not in text:
            return False
        return self._escapable or re.search(r"\\[uUx/]", text) is not None

    def _without_secrets(
        self,
        text: str,
        escaped: bool,
        fields: bool,
        tokens: bool,
        known: Iterable[_Span] = (),
    ) -> str:
        """Replace every secret on every level of escaping.

        escaped: the text is the inside of a JSON string. fields, tokens: whether to look for these,
        too. known: spans to replace as well.
        """
        from concertino.logs.escapes import map_back, unescape

        # The inside of a JSON string that contains escapes is not searched before unescaping:
        # `\nabc` does not contain `nabc`, and replacing that would leave a lone backslash.
        spans = list(known)
        starts = {start for start, _ in spans}
        levels: list[Level] = []
        view = text
        while True:
            if levels or not escaped or "\\" not in view:
                found = list(self._find_known(view))
                if tokens:
                    found += _find_tokens(view)
                spans += [(map_back(levels, start), map_back(levels, end)) for start, end in found]
                if fields:
                    # On a deeper level the string of the same field would seem to end elsewhere.
                    for start, end in _find_quoted_fields(view):
                        span = map_back(levels, start), map_back(levels, end)
                        if span[0] not in starts:
                            starts.add(span[0])
                            spans.append(span)
            if len(levels) == _MOST_LEVELS or "\\" not in view:
                break
            view, level = unescape(view)
            levels.append(level)
        return _replace_spans(text, spans) if spans else text

    def _find_known(self, text: str) -> Iterable[_Span]:
        for secret in self._secrets:
            at = text.find(secret)
            while at >= 0:
                yield at, at + len(secret)
                at = text.find(secret, at + 1)


_default: Redactor | None = None

# Names and values of variables of other environments; a dict as an ordered set.
_learned: dict[tuple[str, str], None] = {}
# Secrets added by learn_secrets(). A dict keeps their order.
_known: dict[str, None] = {}


def redactor() -> Redactor:
    """Return the process-wide Redactor, made from os.environ at the first call.

    Do not keep it: refresh() and learn() replace it.
    """
    return _default or refresh()


def make_clean_check(most: int) -> Callable[[str], bool]:
    """Return a function that tells whether a text needs neither redaction nor a size check.

    The function returns True only if the text has at most `most` characters and
    redactor().string() would return it unchanged. It is made for checking every result: it is one
    call, and fast for a text that has no escapes and is not JSON.
    """

    def is_clean(text: str) -> bool:
        known = _default or refresh()
        length = len(text)
        if length < known.least:
            return True
        if length > most:
            return False
        # Nearly every text passes by these searches alone. In-line, since a function call takes the
        # instructions of two: together 40 % of this check's time (CPython 3.13).
        if (
            "\\" not in text
            and not ((":" in text or "=" in text) and _may_have_members(text))
            and not (
                ("_" in text or "-" in text or "A" in text or "J" in text or "earer" in text)
                and may_have_tokens(text)
            )
        ):
            markers = known.markers
            if markers is None:
                markers = known.find_markers()
            for marker in markers:
                if marker in text:
                    break
            else:
                return True
        return known.string(text) is text

    return is_clean if most >= LEAST_FIELD else lambda text: False


def _may_have_members(text: str) -> bool:
    """Return False only if a text certainly has no secret after a name and a `:` or `=`."""
    return text[0] in _JSON_FIRST or has_quoted_key(text) or "uthorization" in text


def refresh(environment: Mapping[str, str] | None = None) -> Redactor:
    """Make the process-wide Redactor anew after a change of os.environ, and return it.

    environment: instead of os.environ. Secrets added by learn() are kept.
    """
    global _default
    found = dict(os.environ if environment is None else environment)
    # The same name may have another value in another environment, so each gets a number. The two
    # underscores keep the name's words intact for _is_secret().
    found |= {f"{name}__{number}": value for number, (name, value) in enumerate(_learned)}
    _default = Redactor.from_environment(found)
    if _known:
        _default = _default.including(_known)
    return _default


def learn(environment: Mapping[str, str]) -> None:
    """Add the secrets of a child process's environment to the process-wide Redactor.

    The child knows them and may write them to its output, which we relay.
    """
    new = {
        (name, value): None
        for name, value in environment.items()
        if _is_secret(name, value.strip())
    }
    if not new.keys() <= _learned.keys():
        _learned.update(new)
        refresh()


def learn_secrets(values: Iterable[str]) -> None:
    """Add texts to the process-wide Redactor that are known to be secrets, whatever they look like.

    Those of fewer than four characters are not added: they would hide too much that is none.
    """
    new = {value: None for value in values if len(value) >= _LEAST_KNOWN}
    if not new.keys() <= _known.keys():
        _known.update(new)
        refresh()


# ---- Names and values of secrets

_SECRET_WORDS = (
    "_API_KEY_", "_ACCESS_KEY_", "_PRIVATE_KEY_", "_SECRET_", "_TOKEN_", "_PASSWORD_", "_PASSWD_",
    "_CREDENTIAL_", "_CREDENTIALS_", "_AUTHORIZATION_",
)  # fmt: skip
# Characters; shorter values are booleans, numbers and the like.
_LEAST_SECRET = 8
# Characters of a text that somebody calls a secret.
_LEAST_KNOWN = 4

_PATH = r"(?:~|\.\.?)?/|[A-Za-z]:[\\/]"


def _is_secret(name: str, value: str) -> bool:
    words = f"_{name.upper()}_"
    if len(value) < _LEAST_SECRET or not any(word in words for word in _SECRET_WORDS):
        return False
    try:
        float(value)
        return False
    except ValueError:
        return not _is_path(value)


def _is_path(value: str) -> bool:
    """Return whether a value is the path of a file rather than a secret."""
    # Base64 may begin with a slash too, so no part of a path may look like base64. If in doubt the
    # value is a secret: a hidden path does less harm than a secret that is shown.
    parts = (
        re.split(r"[\\/. ]", value)
        if re.match(_PATH, value) and not re.search("[+=]", value)
        else []
    )
    return bool(parts) and not any(
        len(part) >= 16
        and re.search("[a-z]", part)
        and re.search("[A-Z]", part)
        and re.search("[0-9]", part)
        for part in parts
    )


# Few texts have any, so few processes need secret_patterns.py. A text that was redacted before
# stays the same.


def _find_quoted_fields(text: str) -> list[_Span]:
    from concertino.logs.secret_patterns import find_fields

    spans = find_fields(text, is_secret_field)
    return [(start, end) for start, end in spans if text[start:end] != REDACTED]


def _find_tokens(text: str) -> list[_Span]:
    from concertino.logs.secret_patterns import find_tokens

    spans = find_tokens(text)
    return [(start, end) for start, end in spans if text[start:end] != REDACTED]


def _fields_inside(string: str, depth: int) -> list[_Span]:
    """Return the spans of secret fields inside of a JSON string that is itself a JSON text.

    depth: how many levels of JSON in JSON are searched.
    """
    if not re.match(_JSON_START, string) or not may_have_fields(string.encode("utf-8", "replace")):
        return []
    from concertino.logs.escapes import map_back, unescape

    spans: list[_Span] = []
    of_field = False
    view, level = unescape(string)
    for match in re.finditer(_JSON_STRING, view):
        is_field = match[2] is not None and is_secret_field(unescape(match[1])[0])
        found = (
            [(0, len(match[1]))]
            if of_field
            else _fields_inside(match[1], depth - 1)
            if depth > 1
            else []
        )
        of_field = is_field
        for span in found:
            start, end = (map_back([level], match.start(1) + offset) for offset in span)
            spans.append((start, end))
    return spans


def _is_json(frame: bytes) -> bool:
    try:
        # Decoding to Raw checks the syntax and builds no objects.
        decode(frame, type=Raw)
        return True
    except (DecodeError, RecursionError):
        return False


# ---- Texts of JSON, and spans in texts

# One JSON string. Group 2 matches if it is a key whose value is a string. A truncated string ends
# with the text.
_JSON_STRING = r'(?s)"((?:[^"\\]++|\\.)*+)(?:("\s*+:\s*+(?="))|"|)'

# The first character of a text that may be a JSON object or array, and the start of one that is
# the content of a JSON string.
_JSON_FIRST = frozenset("{[ \t\r\n")
_JSON_START = r"(?:\s|\\[nrt])*+(?:[{\[]|\\u00[57][bB])"

# The characters that have a short escape.
_SHORT_ESCAPED = "\"'\\\b\f\n\r\t"

# JSON in JSON in a repr.
_MOST_LEVELS = 3

# Start and end in a text.
_Span = tuple[int, int]


def _replace_spans(text: str, spans: list[_Span]) -> str:
    """Replace each run of overlapping spans by one [REDACTED]."""
    pieces: list[str] = []
    done = 0
    for start, end in sorted(spans):
        if start >= done:
            pieces += text[done:start], REDACTED
        done = max(done, end)
    pieces.append(text[done:])
    return "".join(pieces)
