r"""Redactor: replaces secrets by `[REDACTED]` in texts, JSON and Python objects.

    redactor().text("GET /?key=ghp_0123456789abcdef")      # "GET /?key=[REDACTED]"

All texts that leave this process, except normal results, pass through the Redactor: logs, traces,
captured messages, error texts, and the stderr of other processes that is passed on. The Redactor
replaces three kinds of secrets:

*Values* of environment variables with secret names (`*_TOKEN`, `*_PASSWORD`, ...). The values are
found wherever they occur, even if they were escaped up to three times (`\n`, `\"`, `\u0061`,
`\x61`), as in JSON in JSON in a repr().

*Fields* with secret names such as `password`. String values of such fields are replaced. Fields are
found in objects, in JSON, in JSON inside JSON strings (MCP repeats a structured result as text),
and in the repr() of dicts and objects, such as `{'password': 'x'}`. In plain texts, such as log
lines and exceptions, values without quotes are found too: `password=x`, `token: a1b2c3`.

*Tokens* of well-known kinds: `ghp_...`, `sk-...`, `AKIA...`, JSON Web Tokens, credentials after
`Bearer`, and private keys (secret_patterns.py).

A secret that was encoded (base64, percent), hashed or split is not found.

Most texts contain no secret. So this module only checks quickly whether a text may contain one
(secret_checks.py). For such a text, it calls secret_replacement.py, which searches the text and
replaces the secrets.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar, cast

from msgspec import Raw, Struct
from msgspec.json import decode
from msgspec.structs import force_setattr

from concertino.decode_errors import DECODE_ERRORS
from concertino.logs.secret_checks import (
    MIN_FIELD_CHARS,
    REDACTED,
    is_secret_field,
    may_have_assignments,
    may_have_authorization,
    may_have_fields,
    may_have_quoted_fields,
    may_have_tokens,
)

__all__ = [
    "REDACTED",
    "Redactor",
    "learn_current_secrets",
    "learn_named_secrets",
    "learn_secrets",
    "make_clean_check",
    "redactor",
    "refresh",
]

# The first characters of a JSON object or array.
_JSON_FIRST = frozenset("{[ \t\r\n")

# Each token of a known shape contains one of these characters, or `earer`, or stands before an `@`.
# Nearly all secrets contain one of them, too.
_TOKEN_CHARACTERS = frozenset("_-AJER@")

# The characters that have a short escape.
_SHORT_ESCAPED = "\"'\\\b\f\n\r\t"

T = TypeVar("T")


class Redactor:
    """Replaces secrets by `[REDACTED]` in texts, JSON and Python objects.

        Redactor(["hunter22"]).text("log in with hunter22")     # "log in with [REDACTED]"

    A Redactor finds the given secrets, the values of fields with names such as `password`, and
    tokens of well-known kinds, such as `ghp_...`. The secrets of a Redactor never change.
    redactor() returns the Redactor with the secrets of this process.

    secrets: exact texts. Overlapping matches are replaced by one [REDACTED]. The empty text and
        texts that are parts of `[REDACTED]` are ignored.

    Attributes:
    min_chars: the length of the shortest text that may contain a secret of any kind.
    """

    # These two attributes are for make_clean_check():
    #
    # markers: a few characters of which each given secret contains at least one; None before
    #     find_markers() is called
    # has_plain: whether a given secret may contain none of _TOKEN_CHARACTERS, the characters that
    #     all tokens contain; True before find_markers() is called
    __slots__ = ("_escapable", "_secrets", "has_plain", "markers", "min_chars")

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        self._secrets: tuple[str, ...] = tuple(
            {secret for secret in secrets if secret not in REDACTED}
        )
        self.markers: Sequence[str] | None = None
        self.has_plain = True
        # No escaped form of a secret is shorter than the secret itself.
        self.min_chars = min([MIN_FIELD_CHARS, *map(len, self._secrets)])
        # Whether a secret contains a character with a short escape such as \n. Most secrets contain
        # none, and then frame() need not unescape texts that contain only such escapes.
        self._escapable = any(
            character in _SHORT_ESCAPED for secret in self._secrets for character in secret
        )

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Redactor:
        """Return a Redactor for the values of the variables with secret names.

        The Redactor finds each value as it is, and also with `\\n` replaced by a newline, because a
        PEM key in a variable is often written on one line.
        """
        values = [
            value.strip() for name, value in environment.items() if _is_secret(name, value.strip())
        ]
        return cls(values + [value.replace("\\n", "\n") for value in values])

    def including(self, secrets: Iterable[str]) -> Redactor:
        """Return a Redactor for the secrets of this Redactor, and for more secrets."""
        return Redactor((*self._secrets, *secrets))

    def __repr__(self) -> str:
        return f"<Redactor of {len(self._secrets)} secrets>"

    def text(self, text: str) -> str:
        """Return a plain text, such as a log line, with its secrets replaced.

        Unlike string(), this finds secrets in assignments such as `password=x`, too.
        Returns the same object if the text contains no secrets.
        """
        if len(text) < self.min_chars:
            return text
        fields, tokens = may_have_quoted_fields(text), may_have_tokens(text)
        assignments = may_have_assignments(text)
        if not (fields or tokens or assignments or self._may_contain_known(text)):
            return text
        return self._without_secrets(text, fields, tokens, assignments)

    def string(self, text: str) -> str:
        """Return a text that may be JSON, such as the text of a tool, with its secrets replaced.

        Unlike text(), this does not look for assignments without quotes, such as `password=x`.
        Returns the same object if the text contains no secrets.
        """
        if len(text) < self.min_chars:
            return text
        tokens = may_have_tokens(text)
        if text[:1] in _JSON_FIRST and may_have_fields(text.encode("utf-8", "replace")):
            text = self._without_secrets_in_strings(
                text, has_known=self._may_contain_known(text), fields=True, tokens=tokens
            )
        # These lines do the same as text(), but do not search for assignments such as `password=x`:
        # only log lines and exceptions have these.
        fields = may_have_quoted_fields(text)
        if not (fields or tokens or self._may_contain_known(text)):
            return text
        return self._without_secrets(text, fields, tokens)

    def find_markers(self) -> Sequence[str]:
        """Return a few characters, such that each given secret contains at least one of them.

        A text without these characters contains none of the given secrets, and searching for the
        characters is faster than searching for the secrets.
        """
        # Also sets `markers` and `has_plain`.
        left: tuple[str, ...] = self._secrets
        markers: list[str] = []
        while left:
            characters = sorted({character for secret in left for character in secret})
            # Take the character that most secrets contain. Among several of these, take one that is
            # not a lower-case letter, because lower-case letters are frequent in texts.
            best = max(
                characters,
                key=lambda char: (sum(char in secret for secret in left), not char.islower()),
            )
            markers.append(best)
            left = tuple(secret for secret in left if best not in secret)
        self.has_plain = any(_TOKEN_CHARACTERS.isdisjoint(secret) for secret in self._secrets)
        self.markers = markers
        return markers

    def frame(self, frame: bytes) -> bytes:
        """Return a protocol message, which is JSON, with its secrets replaced. Raises nothing.

        Only JSON strings, including keys, are changed, so valid JSON stays valid. Input that is not
        JSON, such as a banner or a truncated message, is also searched as plain text.
        Returns the same object if the message contains no secrets.
        """
        # This takes 1 us for a short message, and 8 ms per MB. A message with a secret, a secret
        # field or `\u` takes longer: up to 0.5 s for one MB of escapes.
        text = str(frame, "utf-8", "surrogateescape")
        has_known = self._may_contain_known(text)
        fields = may_have_fields(frame)
        tokens = may_have_tokens(text)
        if not (has_known or fields or tokens):
            return frame
        redacted = self._without_secrets_in_strings(
            text, has_known=has_known, fields=fields, tokens=tokens
        )
        if not _is_json(frame):
            redacted = self.text(redacted)
        return frame if redacted is text else redacted.encode("utf-8", "surrogateescape")

    def value(self, value: T) -> T:
        """Return a structure of Python objects with its secrets replaced.

        Searches str, dict (also the keys), list, tuple, Struct and Raw. Other objects, such as
        bytes, stay as they are. Nothing is changed in place: an object that contains a secret is
        copied, and an object without secrets is returned itself.

        - The copy of a subclass of dict, list or tuple has the plain type.
        - A Struct is copied without calling __post_init__.
        - If two keys of a dict become equal, a `'` is appended to the later one.

        Raises RecursionError for a cyclic structure.
        """
        # The result has the type of the argument, which a type checker cannot infer.
        return cast(T, self._value(value))

    def _value(self, value: object) -> object:
        """Return an object with its secrets replaced, as value() does."""
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
        """Return a dict without secrets in its keys and items; the same dict if it has none."""
        new: dict[object, object] = {}
        changed = False
        for key, item in old.items():
            new_key, new_item = key, self._field(key, item)
            # A key may contain a secret, too. The name of a secret field, such as `password`, stays
            # as it is.
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
        """Return a list or tuple without secrets; the same object if it has none."""
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
        """Return a Struct without secrets; the same object if it has none."""
        # Imported here because it takes 1 ms, and few processes redact Structs.
        from copy import copy

        new = old
        for attribute, name in zip(
            old.__struct_fields__, old.__struct_encode_fields__, strict=True
        ):
            item: object = getattr(old, attribute)
            new_item = self._field(name, item)
            if new_item is not item:
                new = copy(old) if new is old else new
                force_setattr(new, attribute, new_item)
        return new

    def _field(self, name: object, item: object) -> object:
        """Return the value of a field without secrets.

        name: the name of the field. If it is the name of a secret field, a str is replaced.
        item: the value.
        """
        if not isinstance(item, str):
            return self._value(item)
        if isinstance(name, str) and is_secret_field(name):
            return REDACTED
        return self.string(item)

    def _without_secrets(
        self, text: str, fields: bool, tokens: bool, assignments: bool = False
    ) -> str:
        """Return a text with its secrets replaced.

        fields, tokens, assignments: whether the text may have quoted secret fields, tokens, and
            unquoted fields.
        """
        # Imported here, because few processes ever see a text that may contain a secret.
        from concertino.logs.secret_replacement import replace_secrets

        return replace_secrets(
            text, self._secrets, fields=fields, tokens=tokens, assignments=assignments
        )

    def _without_secrets_in_strings(
        self, text: str, *, has_known: bool, fields: bool, tokens: bool
    ) -> str:
        """Return a JSON text with the secrets in its strings replaced.

        has_known: whether the text may contain one of the given secrets.
        fields, tokens: whether the text may have secret fields, and tokens.
        """
        from concertino.logs.secret_replacement import replace_in_strings

        may_contain_known = self._may_contain_known if has_known else None
        return replace_in_strings(
            text, self._secrets, may_contain_known, fields=fields, tokens=tokens
        )

    def _may_contain_known(self, text: str) -> bool:
        """Return False only if a text certainly contains none of the given secrets in any form."""
        for secret in self._secrets:
            if secret in text:
                return True
        if not self._secrets or "\\" not in text:
            return False
        # A secret may be escaped: any character as in \u0061, \x61 or \/, and the characters of
        # _SHORT_ESCAPED also with a short escape such as \n.
        return self._escapable or re.search(r"\\[uUx/]", text) is not None


# The Redactor of this process; None before its first use. refresh() makes it from os.environ and
# from the secrets below, and is called after each change of these.
_current: Redactor | None = None

# The names and values of variables that learn_named_secrets() has added. The dict is used as an
# ordered set.
_named_secrets: dict[tuple[str, str], None] = {}
# The secrets that learn_secrets() has added. The dict is used as an ordered set.
_exact_secrets: dict[str, None] = {}
# Owner -> its current and its previous secrets, which learn_current_secrets() sets.
_owner_secrets: dict[str, tuple[frozenset[str], frozenset[str]]] = {}
_NO_SECRETS: tuple[frozenset[str], frozenset[str]] = frozenset(), frozenset()


def redactor() -> Redactor:
    """Return the Redactor of this process. The first call creates it from os.environ.

    Do not store the Redactor, but call this function each time: refresh() and the functions that
    learn secrets make a new Redactor.
    """
    return _current or refresh()


def make_clean_check(max_chars: int) -> Callable[[str], bool]:
    """Return a fast function that returns True only for short texts without secrets.

    redactor().string() would return such a text unchanged. The function may return False for a text
    without secrets. It is fast for texts that are not JSON and contain no escapes, such as most
    results of tools.

    max_chars: the largest number of characters of a short text.
    """

    def is_clean(text: str) -> bool:
        """Return True only if a text is short and contains no secret."""
        current = _current
        if current is None:
            current = refresh()
        length = len(text)
        if length < current.min_chars:
            return True
        if length > max_chars:
            return False
        # Nearly every text passes these searches without a call of string(). They are written
        # in-line, because two function calls would take 40 % of this check's time (CPython 3.13).
        if "\\" in text or ((":" in text or "=" in text) and _may_have_named_secret(text)):
            return current.string(text) is text
        if (
            "_" in text
            or "-" in text
            or "A" in text
            or "J" in text
            or "E" in text
            or "R" in text
            or "@" in text
            # These are _TOKEN_CHARACTERS. Each spelling of `bearer` contains one of them, or this.
            or "earer" in text
        ):
            if may_have_tokens(text):
                return current.string(text) is text
        elif not current.has_plain:
            # The text contains none of _TOKEN_CHARACTERS, while each secret contains one.
            return True
        markers = current.markers
        if markers is None:
            markers = current.find_markers()
        for marker in markers:
            if marker in text:
                return current.string(text) is text
        return True

    # is_clean() may return True for a text of up to MIN_FIELD_CHARS - 1 characters before it looks
    # at max_chars. So for a smaller max_chars, use a function that is always right.
    return is_clean if max_chars >= MIN_FIELD_CHARS else lambda text: False


def _may_have_named_secret(text: str) -> bool:
    """Return False only if a text certainly has no secret after a name and a `:` or `=`."""
    return text[0] in _JSON_FIRST or may_have_quoted_fields(text) or may_have_authorization(text)


def refresh(environment: Mapping[str, str] | None = None) -> Redactor:
    """Replace the Redactor of this process after a change of os.environ, and return the new one.

    The secrets that the learn_...() functions have added are kept.
    environment: the environment variables; None for os.environ.
    """
    global _current
    found = dict(os.environ if environment is None else environment)
    # Append `__` and a number to each learned name, because the same variable may have another
    # value in os.environ. _is_secret() still recognizes the name, such as API_TOKEN__3, because it
    # looks for words between underscores.
    found |= {f"{name}__{number}": value for number, (name, value) in enumerate(_named_secrets)}
    _current = Redactor.from_environment(found)
    renewed = [secret for pair in _owner_secrets.values() for secrets in pair for secret in secrets]
    if _exact_secrets or renewed:
        _current = _current.including([*_exact_secrets, *renewed])
    return _current


def learn_named_secrets(environment: Mapping[str, str]) -> None:
    """Add the secrets in the environment of a child process, or in the headers for a server.

    The Redactor of this process replaces these secrets from now on, for example in the stderr of
    the child, which this process passes on.

    environment: name -> value, of environment variables or HTTP headers. Only values with the name
        of a secret, such as API_TOKEN, are added.
    """
    new = {
        (name, value): None
        for name, value in environment.items()
        if _is_secret(name, value.strip())
    }
    if not new.keys() <= _named_secrets.keys():
        _named_secrets.update(new)
        refresh()


def learn_secrets(values: Iterable[str]) -> None:
    """Add secrets to the Redactor of this process: from now on, these texts are replaced.

    Texts of fewer than four characters are not added, because too many harmless texts contain them.
    """
    new = {value: None for value in values if len(value) >= _MIN_LEARNED_CHARS}
    if not new.keys() <= _exact_secrets.keys():
        _exact_secrets.update(new)
        refresh()


def learn_current_secrets(owner: str, values: Iterable[str]) -> None:
    """Set the current secrets of an owner that renews its secrets, such as the tokens of a login.

    From now on, these texts are redacted, and so are the owner's previous secrets, which may still
    be valid. Older secrets are forgotten. Otherwise a process that runs for weeks would search each
    text for thousands of secrets.

    owner: a name for the owner, such as the URL of the login.
    values: the secrets that the owner has now.
    """
    new = frozenset(value for value in values if len(value) >= _MIN_LEARNED_CHARS)
    current, _ = _owner_secrets.get(owner, _NO_SECRETS)
    if not new <= current:
        _owner_secrets[owner] = new, current
        refresh()


# ---- Names and values of secrets

_SECRET_WORDS = (
    "_API_KEY_", "_ACCESS_KEY_", "_PRIVATE_KEY_", "_SECRET_", "_TOKEN_", "_PASSWORD_", "_PASSWD_",
    "_CREDENTIAL_", "_CREDENTIALS_", "_AUTHORIZATION_",
)  # fmt: skip
# The shortest secret, in characters. Shorter values are booleans, numbers and the like.
_MIN_SECRET_CHARS = 8
# The shortest text, in characters, that learn_secrets() accepts.
_MIN_LEARNED_CHARS = 4

_PATH = r"(?:~|\.\.?)?/|[A-Za-z]:[\\/]"


def _is_secret(name: str, value: str) -> bool:
    """Return whether the value of an environment variable or HTTP header is a secret.

    The name must contain a word such as TOKEN. Short values, numbers and paths are not secrets.
    """
    words = f"_{name.upper().replace('-', '_')}_"
    if len(value) < _MIN_SECRET_CHARS or not any(word in words for word in _SECRET_WORDS):
        return False
    # A number, as in MAX_TOKEN_COUNT=12345678, and the path of a file are not secrets.
    try:
        float(value)
        return False
    except ValueError:
        return not _is_path(value)


def _is_path(value: str) -> bool:
    """Return whether a value is the path of a file rather than a secret."""
    if not re.match(_PATH, value) or re.search("[+=]", value):
        return False
    # Base64 may also begin with a slash, so a value with a part that looks like base64 is not a
    # path. In case of doubt the value is a secret, because hiding a path does less harm than
    # showing a secret.
    return not any(map(_may_be_base64, re.split(r"[\\/. ]", value)))


def _may_be_base64(text: str) -> bool:
    """Return whether a text has the length of a secret, and letters of both cases and digits."""
    needed = ("[a-z]", "[A-Z]", "[0-9]")
    return len(text) >= 16 and all(re.search(characters, text) for characters in needed)


def _is_json(frame: bytes) -> bool:
    """Return whether a frame is valid JSON."""
    try:
        # Decoding to Raw checks the syntax without building objects.
        decode(frame, type=Raw)
        return True
    except DECODE_ERRORS:
        return False
