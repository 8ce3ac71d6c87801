"""Reads YAML in the same way as Go's library yaml.v3: the core schema of YAML 1.2, with additions.

    node = read_node("port: 8080", max_depth=8)       # nodes with line numbers
    read_value(node)                                  # {"port": 8080}

PyYAML parses the text to events, and this module makes nodes and values from the events. PyYAML's
own conversion to values is not used, because it follows YAML 1.1, where `yes` is a boolean and
`1e3` is a string. Its composer, which makes nodes, is not used either, because it is recursive:
30,000 brackets crash the process.

Some rules of yaml.v3 3.0.1 (resolve.go, decode.go) that other libraries do not have:

- Numbers may have underscores. `0x1f`, `0b11`, `0o17` and `017` are integers.
- `yes`, `on` and `=` are strings. `<<` as a key merges a mapping into the mapping that contains it.
  `!!binary` is decoded to a string.
- A repeated key in a mapping is an error.

This module differs from yaml.v3 in these points:

- Times stay strings, and every key is a string.
- Integers beyond 64 bits are exact.
- Whole numbers up to 2^53 become integers, even if they are written as `8080.0`.
"""

from __future__ import annotations

import re
from base64 import b64decode
from binascii import Error as InvalidBase64
from calendar import monthrange
from collections.abc import Iterator, Mapping
from math import isfinite
from typing import Any, Literal

from msgspec import Struct

__all__ = [
    "EXACT",
    "MERGE",
    "NULLS",
    "DisallowedYaml",
    "InvalidYaml",
    "InvalidYamlKey",
    "YamlNode",
    "import_parser",
    "is_null",
    "is_time",
    "read_node",
    "read_value",
    "resolve_plain",
]

# Every integer up to this number is exact as a double.
EXACT = 2**53
# Unquoted scalar -> its value, for all that are neither numbers of digits nor strings.
_WORDS: Mapping[str, bool | float | None] = {
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys((".nan", ".NaN", ".NAN"), float("nan")),
    **dict.fromkeys((".inf", ".Inf", ".INF", "+.inf", "+.Inf", "+.INF"), float("inf")),
    **dict.fromkeys(("-.inf", "-.Inf", "-.INF"), float("-inf")),
}
NULLS = frozenset(word for word, value in _WORDS.items() if value is None)
MERGE = "<<"
# What to do about a malformed tag: most people who write one mean a text.
TAG_ADVICE = "'!' begins a tag such as !!str, so put a text that begins with it into quotes"
_TAG = "tag:yaml.org,2002:"
_TYPES = {"null": type(None), "bool": bool, "int": int, "float": float}

_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_DECIMAL = re.compile(r"[-+]?[0-9]+")
# (base, pattern) of integers with a prefix. In the last two, the sign comes after the prefix.
_BASES = (
    (16, re.compile(r"([-+]?)0[xX]([0-9a-fA-F]+)")),
    (8, re.compile(r"([-+]?)0[oO]([0-7]+)")),
    (8, re.compile(r"([-+]?)(0[0-7]*)")),
    (2, re.compile(r"([-+]?)0[bB]([01]+)")),
    (8, re.compile(r"0o([-+])([0-7]+)")),
    (2, re.compile(r"0b([-+])([01]+)")),
)
_TIME = re.compile(
    r"(?P<year>[0-9]{4})-(?P<month>[0-9]{1,2})-(?P<day>[0-9]{1,2})"
    r"(?:(?:(?P<t>[Tt])| +)(?P<hour>[0-9]{1,2}):(?P<minute>[0-9]{1,2}):(?P<second>[0-9]{1,2})"
    r"(?:[.,][0-9]+)?(?P<zone>Z|[-+][0-9]{2}:[0-9]{2})?)?"
)


class InvalidYaml(Exception):
    """Raised if a text is not valid YAML.

    line: the number of the line with the mistake, from 1; None if it is not known.
    """

    def __init__(self, line: int | None, problem: str) -> None:
        super().__init__(problem)
        self.line = line


class DisallowedYaml(InvalidYaml):
    """Raised if YAML is valid but not allowed, for example because it nests too deeply."""


class InvalidYamlKey(DisallowedYaml):
    """Raised if a key is a list or a mapping."""


class YamlNode(Struct, frozen=True):
    """A node of a document.

    kind: whether the node is a scalar (a single value), a sequence (a list) or a mapping.
    value: for a scalar its text, for a sequence the list of its nodes, and for a mapping the list
        of its pairs (node of the key, node of the value).
    tag: the explicit tag in its long form, such as `tag:yaml.org,2002:int` for `!!int`; None if
        there is none.
    plain: whether the node is a plain scalar, which has no quotes and is not a block (`|` or `>`).
    line: the line number, from 1.
    """

    kind: Literal["scalar", "sequence", "mapping"]
    value: Any
    tag: str | None
    plain: bool
    line: int


def read_node(
    text: str | bytes,
    *,
    max_depth: int,
    max_values: int | None = None,
    aliases: bool = False,
) -> YamlNode | None:
    """Parse a text with one document, and return its root node; None if the text has no document.

    max_depth: the largest depth of sequences and mappings.
    max_values: the largest number of nodes; None for no limit.
    aliases: whether aliases (`*name`) are allowed; by default they are an error, because a few
        lines with aliases can expand to gigabytes.
    Raises InvalidYaml for a text that is not YAML, DisallowedYaml if it exceeds one of these limits
    or has aliases or keys (InvalidYamlKey) that are not allowed, and ModuleNotFoundError if PyYAML
    is not installed.
    """
    yaml = import_parser()
    # libyaml skips a byte order mark at the beginning of a line, but counts it as indentation. So
    # it would read a key after such a mark as a part of the value before.
    encoded = text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")
    before, mark, _ = encoded.partition(b"\n\xef\xbb\xbf")
    if mark:
        problem = "found a byte order mark inside of the document"
        raise InvalidYaml(before.count(b"\n") + 2, problem)
    # The loader of libyaml, if PyYAML was built with it, is ten times as fast.
    loader: Any = getattr(yaml, "CSafeLoader", None) or yaml.SafeLoader
    try:
        events = yaml.parse(text, Loader=loader)
        return _NodeReader(events, max_depth, max_values, aliases).read_document()
    except yaml.MarkedYAMLError as exc:
        line = exc.problem_mark.line + 1 if exc.problem_mark else None
        # libyaml 0.2.6 reads ahead of the events, and itself raises at a depth of 1,000. Report
        # that like a depth that exceeds max_depth.
        if exc.problem == "exceeded maximum nesting depth":
            raise DisallowedYaml(line, f"is nested more than {max_depth} deep") from None
        problem = exc.problem or "cannot be read"
        if "tag" in f"{exc.context} {problem}":
            problem += f"; {TAG_ADVICE}"
        raise InvalidYaml(line, problem) from None
    # The text contains a character that YAML does not allow, for which PyYAML reports no line.
    except (yaml.YAMLError, UnicodeDecodeError) as exc:
        raise InvalidYaml(None, "; ".join(str(exc).splitlines())) from None


def import_parser() -> Any:
    """Return the module of PyYAML. Raises ModuleNotFoundError if it is not installed."""
    import yaml

    return yaml


class _NodeReader:
    """Builds nodes from the events of PyYAML's parser.

    The type of events is Any, because PyYAML has no type annotations.
    max_depth: the largest depth of sequences and mappings.
    max_values: the largest number of nodes; None for no limit.
    aliases: whether aliases (`*name`) are allowed.
    """

    def __init__(
        self,
        events: Iterator[Any],
        max_depth: int,
        max_values: int | None,
        aliases: bool,
    ) -> None:
        self._events = events
        self._max_depth = max_depth
        self._max_values = max_values
        self._count = 0
        self._anchors: dict[str, YamlNode] | None = {} if aliases else None

    def read_document(self) -> YamlNode | None:
        """Return the root node of the only document; None if there is no document."""
        root: YamlNode | None = None
        for event in self._events:
            kind = type(event).__name__
            if kind.startswith(("Stream", "Document")):
                continue
            if root is not None:
                raise InvalidYaml(_line(event), "expected a single document")
            root = self._read(event, kind, 0)
        return root

    def _read(
        self,
        event: Any,
        kind: str,
        depth: int,
    ) -> YamlNode:
        """Return the node that begins with an event.

        kind: the name of the event's type.
        depth: how many collections contain the node.
        """
        self._count += 1
        if self._max_values is not None and self._count > self._max_values:
            raise DisallowedYaml(_line(event), f"has more than {self._max_values} values")
        if depth > self._max_depth:
            raise DisallowedYaml(_line(event), f"is nested more than {self._max_depth} deep")

        if kind == "ScalarEvent":
            return self._read_scalar(event)
        if kind == "AliasEvent":
            return self._resolve_alias(event)
        if kind == "SequenceStartEvent":
            items: list[YamlNode] = []
            node = YamlNode("sequence", items, event.tag, plain=False, line=_line(event))
            self._add_anchor(event, node)
            for item, item_kind in self._events_until("SequenceEndEvent"):
                items.append(self._read(item, item_kind, depth + 1))
            return node

        pairs: list[tuple[YamlNode, YamlNode]] = []
        node = YamlNode("mapping", pairs, event.tag, plain=False, line=_line(event))
        self._add_anchor(event, node)
        for key, key_kind in self._events_until("MappingEndEvent"):
            key_node = self._read_key(key, key_kind)
            value = next(self._events)
            pairs.append((key_node, self._read(value, type(value).__name__, depth + 1)))
        return node

    def _read_scalar(self, event: Any) -> YamlNode:
        """Return the node of a scalar."""
        # The style of a plain scalar is None, or "" from the C parser.
        plain = not event.style
        node = YamlNode("scalar", event.value, event.tag, plain, event.start_mark.line + 1)
        return node if self._anchors is None else self._add_anchor(event, node)

    def _add_anchor(self, event: Any, node: YamlNode) -> YamlNode:
        """Store a node by its anchor (`&name`), if it has one, and return the node."""
        if self._anchors is not None and event.anchor is not None:
            self._anchors[event.anchor] = node
        return node

    def _read_key(self, event: Any, kind: str) -> YamlNode:
        """Return the node of a key. Raises InvalidYamlKey if it is not a scalar."""
        if kind == "ScalarEvent":
            return self._read_scalar(event)
        node = self._resolve_alias(event) if kind == "AliasEvent" else None
        if node is None or node.kind != "scalar":
            raise InvalidYamlKey(_line(event), "has a key that is not a text")
        return node

    def _resolve_alias(self, event: Any) -> YamlNode:
        """Return the node that an alias refers to. Raises DisallowedYaml if none are allowed."""
        if self._anchors is None:
            raise DisallowedYaml(_line(event), "has an alias (*name), which is not allowed")
        if event.anchor not in self._anchors:
            raise InvalidYaml(_line(event), f"found undefined alias {event.anchor!r}")
        return self._anchors[event.anchor]

    def _events_until(self, end: str) -> Iterator[tuple[Any, str]]:
        """Yield events with the names of their types, up to the event of type `end`."""
        for event in self._events:
            kind = type(event).__name__
            if kind == end:
                return
            yield event, kind


def _line(event: Any) -> int:
    """Return the number of the line in which an event begins, from 1."""
    return event.start_mark.line + 1


# Values


def is_null(node: YamlNode) -> bool:
    """Return whether a node is null: an empty scalar, or `~` or `null` without quotes."""
    if node.kind != "scalar":
        return False
    return node.tag == f"{_TAG}null" or (node.tag is None and node.plain and node.value in NULLS)


def read_value(node: YamlNode) -> Any:
    """Return the value of a node: dicts, lists, strings, numbers, bools and None.

    Unlike JSON, YAML has NaN and infinity, which are returned as floats.

    Raises InvalidYaml for invalid values, such as a repeated key.
    """
    if node.kind == "sequence":
        return [read_value(item) for item in node.value]
    if node.kind == "mapping":
        return _read_mapping(node)

    tag = node.tag.removeprefix(_TAG) if node.tag else None
    # `!` alone is the tag of no type.
    if tag is None or tag == "!":
        return resolve_plain(node.value) if node.plain else node.value
    if tag == "binary":
        return _decode_binary(node)
    if tag == "timestamp" and is_time(node.value):
        return node.value
    # An unknown tag, such as `!secret`, is ignored.
    if tag not in _TYPES and tag != "timestamp":
        return node.value

    value = resolve_plain(node.value)
    # resolve_plain() makes an int of a whole float.
    if tag == "float" and type(value) is int:
        return value
    # Other values have the type of the tag, or are an error: no time is left here.
    if tag == "timestamp" or type(value) is not _TYPES[tag]:
        raise InvalidYaml(node.line, f"cannot read {node.value[:80]!r} as a {tag}")
    return value


def _read_mapping(node: YamlNode) -> dict[str, Any]:
    """Return a mapping as a dict. Its own keys override those that `<<` merges into it."""
    members: dict[str, Any] = {}
    merged: YamlNode | None = None
    lines: dict[str, int] = {}
    for key, value in node.value:
        if key.value in lines:
            problem = f"has the key {key.value[:80]!r} already in line {lines[key.value]}"
            raise InvalidYaml(key.line, problem)
        lines[key.value] = key.line
        # Without a tag, a plain `<<` merges, and a quoted one is an ordinary key.
        may_merge = key.plain if key.tag is None else key.tag == f"{_TAG}merge"
        if key.value == MERGE and may_merge:
            merged = value
            continue
        name = _decode_binary(key) if key.tag == f"{_TAG}binary" else key.value
        if key.tag is not None:
            # The key stays a string. read_value() raises InvalidYaml if the key does not have the
            # form that its tag requires, as in `!!int x`.
            read_value(key)
        members[name] = read_value(value)

    if merged is not None:
        for source in merged.value if merged.kind == "sequence" else [merged]:
            if source.kind != "mapping":
                raise InvalidYaml(source.line, "expected a mapping, or a list of them, after <<")
            for name, value in _read_mapping(source).items():
                members.setdefault(name, value)
    return members


def _decode_binary(node: YamlNode) -> str:
    """Return the string of a scalar with the tag `!!binary`, which is base64 of UTF-8."""
    try:
        return b64decode(re.sub(r"[\r\n]", "", node.value), validate=True).decode()
    except (InvalidBase64, ValueError):
        raise InvalidYaml(node.line, "expected base64 of a UTF-8 text after !!binary") from None


def resolve_plain(text: str) -> Any:
    """Return the value of an unquoted scalar: None, a bool, a number or the string itself."""
    if text in _WORDS:
        return _WORDS[text]
    # The text is not empty: "" is one of the words.
    first = text[0]
    if first == ".":
        return _to_float(text) if _FLOAT.fullmatch(text) else text
    if first in "+-0123456789" and not is_time(text):
        return _resolve_number(text)
    return text


def _resolve_number(text: str) -> Any:
    """Return the number in an unquoted scalar; the string itself if it is not a number."""
    digits = text.replace("_", "")
    for base, pattern in _BASES:
        if match := pattern.fullmatch(digits):
            number = int(match[1] + match[2], base)
            # yaml.v3 reads a number with a sign as int64, and one without a sign as uint64, too.
            if -(2**63) <= number < (2**63 if match[1] else 2**64):
                return number
    if _DECIMAL.fullmatch(digits) and digits.lstrip("+-")[0] != "0" and _fits_double(digits):
        return int(digits)
    return _to_float(digits, text) if _FLOAT.fullmatch(digits) else text


def _fits_double(digits: str) -> bool:
    """Return whether an integer is not too large for a double. The largest has 309 digits."""
    return len(digits) <= 310 and isfinite(float(digits))


def _to_float(digits: str, text: str | None = None) -> int | float | str:
    """Return a number, or a string if the number is too large for a double.

    digits: the number without underscores.
    text: the string to return for a number that is too large; None for `digits`.
    """
    number = float(digits)
    if not isfinite(number):
        return digits if text is None else text
    # An int has no negative zero.
    is_negative_zero = number == 0 and str(number) == "-0.0"
    if number.is_integer() and abs(number) <= EXACT and not is_negative_zero:
        return int(number)
    return number


def is_time(text: str) -> bool:
    """Return whether an unquoted scalar is a time, by the rules of yaml.v3, the library for Go.

    The plugins' files are read by Go programs, too, and must mean the same there.
    """
    if not (match := _TIME.fullmatch(text)):
        return False
    # Between date and time there is a `T` or a space. After `T` a time zone is required, and after
    # a space none is allowed.
    if match["hour"] and bool(match["t"]) != bool(match["zone"]):
        return False
    month, day = int(match["month"]), int(match["day"])
    # Go has a year 0, which is a leap year. Python's calendar begins with the year 1.
    if not 1 <= month <= 12 or not 1 <= day <= monthrange(int(match["year"]) or 4, month)[1]:
        return False
    if not match["hour"]:
        return True
    if int(match["hour"]) >= 24 or int(match["minute"]) >= 60 or int(match["second"]) >= 60:
        return False
    zone = match["zone"]
    return zone in (None, "Z") or (int(zone[1:3]) <= 24 and int(zone[4:]) <= 60)
