r"""What must not be read by anybody: secrets, and the one place that takes them out.

Every sink uses it: logs, traces, captures, error texts, relayed stderr. Two rules:

*Values*: what a secretly named environment variable holds is replaced by `[REDACTED]` wherever it stands, also when it
was escaped on the way: `\n`, `\"`, `\u0061`, `\x61`, up to three times over (JSON in JSON in a `repr`). To find such
forms the text is unescaped level by level, and what is found there is replaced at the place it came from, so that an
escape sequence is never cut. *Fields*: a string under a name such as `password` is replaced whatever it holds. Only
objects and JSON texts have fields, also a JSON text in a string of another (the text twin of a structured result);
plain text has none.

Not found, since no rule can tell: a secret that was encoded (base64, per cent), hashed or cut in pieces.
"""

from __future__ import annotations

import os
import re
import sys
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import TypeVar, cast

from msgspec import DecodeError, Raw, Struct
from msgspec.json import decode
from msgspec.structs import force_setattr

__all__ = ["REDACTED", "Redactor", "clean", "learn", "redactor", "refresh"]

REDACTED = "[REDACTED]"

T = TypeVar("T")


class Redactor:
    """Takes the given secrets, and the fields with secret names, out of what is to be written. Immutable.

    secrets: exact texts; overlapping ones are replaced as one. The empty text and parts of `[REDACTED]` are left out.
    least: characters of a text that may hold one, or a field.
    """

    __slots__ = ("_escapable", "_secrets", "_shortest", "least", "markers")

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        self._secrets: tuple[str, ...] = tuple(
            {secret for secret in secrets if secret not in REDACTED}
        )
        self.markers: Sequence[str] | None = None  # see marked(); None until it is asked
        self._shortest = min(
            map(len, self._secrets), default=sys.maxsize
        )  # no form of a secret is shorter
        self.least = min(self._shortest, _LEAST_FIELD)
        # Most secrets hold nothing that must be escaped: \\u0061 can hide them, \\n cannot. Measured in frame().
        self._escapable = any(
            character in _SHORT_ESCAPED for secret in self._secrets for character in secret
        )

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Redactor:
        """Make one that knows the values of the secretly named variables, as they are and with `\\n` made a newline.

        The second form is that of keys in PEM, which are put on one line to fit a variable.
        """
        values = [
            value.strip() for name, value in environment.items() if _is_secret(name, value.strip())
        ]
        return cls(values + [value.replace("\\n", "\n") for value in values])

    def __repr__(self) -> str:
        return f"<Redactor of {len(self._secrets)} secrets>"

    def text(self, text: str) -> str:
        """Return a plain text (a log line, an error) without the secrets; the same object when it holds none."""
        if len(text) < self._shortest or not self._may_hold(text):
            return text
        return self._without_secrets(text, escaped=False)

    def string(self, text: str) -> str:
        """As text(); and if it is the JSON of an object or array, without its fields too: the text twin of a structured result."""
        if text[:1] in _JSON_FIRST and _may_have_fields(text.encode("utf-8", "replace")):
            text = self._without_secrets_in_strings(text, self._may_hold(text), fields=True)
        if len(text) < self._shortest or not self._may_hold(
            text
        ):  # as text(), without a call more for nearly every text
            return text
        return self._without_secrets(text, escaped=False)

    def marked(self) -> Sequence[str]:
        """Few characters, one of which is in each secret; texts rarely have them, and they are found in a sixth of the time."""
        left: tuple[str, ...] = self._secrets
        markers: list[str] = []
        while left:
            characters = sorted({character for secret in left for character in secret})
            best = max(
                characters,
                key=lambda each: (sum(each in secret for secret in left), not each.islower()),
            )
            markers.append(best)
            left = tuple(secret for secret in left if best not in secret)
        self.markers = markers
        return markers

    def frame(self, frame: bytes) -> bytes:
        """Return one JSON text without the secrets and fields; the same object when it holds none.

        Only JSON strings are touched, keys among them; every byte outside stays as it is, and valid JSON stays valid.
        What is not JSON (a banner, a cut frame) is treated so far as it goes, and as plain text besides. Raises
        nothing. Cost: linear; 1 us, or 8 ms for each
        MB; only one that holds something (or has `\\u` in it) costs more, up to 0.5 s for a MB of nothing but escapes.
        """
        text = str(frame, "utf-8", "surrogateescape")
        search = self._may_hold(text)
        fields = _may_have_fields(frame)
        if not search and not fields:
            return frame
        redacted = self._without_secrets_in_strings(text, search, fields)
        if search and not _is_json(frame):
            redacted = self.text(redacted)
        return frame if redacted is text else redacted.encode("utf-8", "surrogateescape")

    def value(self, value: T) -> T:
        """Return a structure that is yet to be encoded, without the secrets and fields; the same object if it has none.

        Looks into str, dict (keys too), list, tuple, Struct and Raw; anything else stays as it is, bytes among them.
        Nothing is changed in place: what holds a secret is copied, subclasses of dict, list and tuple as the plain
        type, Structs without __post_init__. Where two keys become one, both stay, the later with a `'` added.
        Raises RecursionError for a cyclic structure, as encoding does.
        """
        # cast: a copy has the type of what it was made from, which no checker can follow through isinstance.
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
            if self._secrets and isinstance(key, str) and not _is_field(key):
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
        from copy import copy  # 1 ms, for the few that have Structs to redact

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
            return REDACTED if isinstance(name, str) and _is_field(name) else self.string(item)
        return self._value(item)

    def _without_secrets_in_strings(self, text: str, search: bool, fields: bool) -> str:
        """Go through the strings of a JSON text, without decoding it: the rest stays byte for byte."""
        pieces: list[str] = []
        done = 0
        of_field = False
        for match in re.finditer(_JSON_STRING, text):
            old = new = match[1]
            is_field = match[2] is not None and _is_field(_unescaped(old)[0])
            if of_field:
                new = REDACTED
            elif not is_field:
                spans = _fields_inside(old, _MOST_LEVELS) if fields else []
                if spans or (search and self._may_hold(old)):
                    new = self._without_secrets(old, escaped=True, known=spans)
            of_field = is_field
            if new is not old:
                pieces += text[done : match.start(1)], new
                done = match.end(1)
        return "".join((*pieces, text[done:])) if pieces else text

    def _may_hold(self, text: str) -> bool:
        """Say whether the text may hold a secret in some form; False is certain."""
        for secret in self._secrets:
            if secret in text:
                return True
        if not self._secrets or "\\" not in text:
            return False
        return self._escapable or re.search(r"\\[uUx/]", text) is not None

    def _without_secrets(self, text: str, escaped: bool, known: Iterable[_Span] = ()) -> str:
        """Replace every secret, on every level of escaping. escaped: the text is the inside of a JSON string.

        known: what is to be replaced as well.
        The inside of a JSON string that has escapes is not searched as it stands: `\\nabc` does not hold `nabc`, and
        to replace that would leave a lone backslash.
        """
        spans = list(known)
        levels: list[_Level] = []
        view = text
        while True:
            if levels or not escaped or "\\" not in view:
                for secret in self._secrets:
                    at = view.find(secret)
                    while at >= 0:
                        spans.append((_origin(levels, at), _origin(levels, at + len(secret))))
                        at = view.find(secret, at + 1)
            if len(levels) == _MOST_LEVELS or "\\" not in view:
                break
            view, level = _unescaped(view)
            levels.append(level)
        return _replaced(text, spans) if spans else text


_default: Redactor | None = None
_learned: dict[tuple[str, str], None] = {}  # names and values of other environments, each once


def redactor() -> Redactor:
    """Return the process-wide one, made from os.environ when it is first asked for. Do not keep it: see refresh()."""
    return _default or refresh()


def clean(most: int) -> Callable[[str], bool]:
    """A function: whether a text surely has no more than so many characters, and redactor().string() leaves it as it is.

    For what is asked of every answer: one call, and quick for a text that has no escapes and is no JSON.
    """

    def is_clean(text: str) -> bool:
        known = _default or refresh()
        length = len(text)
        if length < known.least:
            return True
        if length > most:
            return False
        if text[0] not in _JSON_FIRST and "\\" not in text:
            markers = known.markers
            for marker in known.marked() if markers is None else markers:
                if marker in text:
                    break
            else:
                return True
        return known.string(text) is text

    return is_clean if most >= _LEAST_FIELD else lambda text: False


def refresh(environment: Mapping[str, str] | None = None) -> Redactor:
    """Make the process-wide one again: os.environ changed. What was learned is kept."""
    global _default
    found = dict(os.environ if environment is None else environment)
    # The same name may stand for another secret elsewhere; two underscores keep its words what they are.
    found |= {f"{name}__{number}": value for number, (name, value) in enumerate(_learned)}
    _default = Redactor.from_environment(found)
    return _default


def learn(environment: Mapping[str, str]) -> None:
    """Add the secrets of another environment, a child's, to the process-wide redactor: what it knows, it may say."""
    new = {
        (name, value): None
        for name, value in environment.items()
        if _is_secret(name, value.strip())
    }
    if not new.keys() <= _learned.keys():
        _learned.update(new)
        refresh()


# ---- what is secret

_SECRET_WORDS = (
    "_API_KEY_", "_ACCESS_KEY_", "_PRIVATE_KEY_", "_SECRET_", "_TOKEN_", "_PASSWORD_", "_PASSWD_",
    "_CREDENTIAL_", "_CREDENTIALS_", "_AUTHORIZATION_",
)  # fmt: skip
_LEAST_SECRET = 8  # characters; no word for a boolean is as long
_PATH = r"(?:~|\.\.?)?/|[A-Za-z]:[\\/]"

# Whole names, so neither progressToken, maxTokens, *Tokens, nextCursor nor requestState is among them.
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
_LEAST_FIELD = min(map(len, _FIELDS)) + len(
    '{"":"'
)  # characters of a JSON text, cut or not, that has one
_SEPARATORS = dict.fromkeys(map(ord, "-_ ."))


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
    """Base64 may begin with a slash as well, so no part may look like it: to hide a path does less harm."""
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


@lru_cache(maxsize=1024)  # 0.06 us instead of 0.7
def _is_field(name: str) -> bool:
    return name.translate(_SEPARATORS).lower() in _FIELDS


def _may_have_fields(frame: bytes) -> bool:
    """Say whether a JSON text may have a field with a secret name; False is certain, and cheap."""
    squeezed = str(
        frame.translate(None, b"-_ ."), "latin-1"
    ).lower()  # a search in str costs a fifth of one in bytes
    for field in _FIELDS:  # not any(): a generator costs 2 us more
        if field in squeezed:
            return True
    return "\\u" in squeezed


def _fields_inside(string: str, depth: int) -> list[_Span]:
    """Find the values of fields in the inside of a JSON string that is itself a JSON text, or holds one, `depth` deep."""
    if not re.match(_JSON_START, string) or not _may_have_fields(string.encode("utf-8", "replace")):
        return []
    spans: list[_Span] = []
    of_field = False
    view, level = _unescaped(string)
    for match in re.finditer(_JSON_STRING, view):
        is_field = match[2] is not None and _is_field(_unescaped(match[1])[0])
        found = (
            [(0, len(match[1]))]
            if of_field
            else _fields_inside(match[1], depth - 1)
            if depth > 1
            else []
        )
        of_field = is_field
        for place in found:
            start, end = (_origin([level], match.start(1) + each) for each in place)
            spans.append((start, end))
    return spans


def _is_json(frame: bytes) -> bool:
    try:
        decode(frame, type=Raw)  # checks the syntax and builds nothing
        return True
    except (DecodeError, RecursionError):
        return False


# ---- escapes

# One JSON string; group 2 matches when it is the key of another string. A cut-off string ends with the text.
_JSON_STRING = r'(?s)"((?:[^"\\]++|\\.)*+)(?:("\s*+:\s*+(?="))|"|)'
_JSON_FIRST = frozenset("{[ \t\r\n")  # of a text that may be JSON
_JSON_START = r"(?:\s|\\[nrt])*+(?:[{\[]|\\u00[57][bB])"  # an object or array, in a string
_HEX = "[0-9a-fA-F]"
# JSON's, with a pair of surrogates as one, and those of repr(). What is no escape stands for the character after it.
_ESCAPE = (
    rf"(?s)\\(?:u[dD][89abAB]{_HEX}{{2}}\\u[dD][c-fC-F]{_HEX}{{2}}|u{_HEX}{{4}}"
    rf"|x{_HEX}{{2}}|U00(?:0{_HEX}|10){_HEX}{{4}}|.)"
)
_SHORT_ESCAPED = "\"'\\\b\f\n\r\t"
_SHORT = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_PAIR = len(r"\ud83d\ude00")
_MOST_LEVELS = 3  # JSON in JSON in a repr

# Where each escape ended: in the unescaped text, and in the text it was made from. Begins with 0 and 0.
_Level = tuple[list[int], list[int]]
_Span = tuple[int, int]  # start and end in a text


def _unescaped(text: str) -> tuple[str, _Level]:
    if "\\" not in text:
        return text, ([0], [0])
    pieces: list[str] = []
    ends, origins = [0], [0]
    end = 0
    for match in re.finditer(_ESCAPE, text):
        escape = match[0]
        if len(escape) == 2:
            character = _SHORT.get(escape[1], escape[1])
        elif len(escape) == _PAIR:
            character = chr(
                0x10000 + ((int(escape[2:6], 16) & 0x3FF) << 10) + (int(escape[8:], 16) & 0x3FF)
            )
        else:
            character = chr(int(escape[2:], 16))
        pieces += text[origins[-1] : match.start()], character
        end += match.start() - origins[-1] + 1
        ends.append(end)
        origins.append(match.end())
    pieces.append(text[origins[-1] :])
    return "".join(pieces), (ends, origins)


def _origin(levels: list[_Level], place: int) -> int:
    """Map a place of the last level back to the text: the start of an escape to its start, the end to its end."""
    for ends, origins in reversed(levels):
        last = bisect_right(ends, place) - 1
        place = origins[last] + place - ends[last]
    return place


def _replaced(text: str, spans: list[_Span]) -> str:
    """Put one [REDACTED] for each run of overlapping spans."""
    pieces: list[str] = []
    done = 0
    for start, end in sorted(spans):
        if start >= done:
            pieces += text[done:start], REDACTED
        done = max(done, end)
    pieces.append(text[done:])
    return "".join(pieces)
