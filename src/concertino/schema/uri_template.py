"""URI templates (RFC 6570): expand all four levels, and match URIs against what MCP servers use of them.

Expansion is the RFC's. Matching is not in it; these are the rules here, for an expression's variables to have one meaning each:

    {x} {a,b} {.x} {/x}     every variable is there, not empty: unreserved characters and percent-encodings
    {+x}                    the same with reserved characters; without `?` and `#` where the template has a query or a fragment
    {#x}                    the same, or absent
    {x*} {+x*} {.x*}        a list of at least one; {/x*} may be absent
    {?a,b} {&a} {;a}        name=value pairs in any order, each at most once, or absent; a variable with a star collects the rest:
                            as a list if they bear its name, else as a dict

Where a URI could be cut in several ways, a variable further left gets as much as possible. Time grows with the length of the URI
times the number of expressions, whatever the URI. Values are percent-decoded once, as UTF-8.

What would lead out of a folder is no match. In {x} {.x} {/x} {;x}: a value that is `.` or `..`, or holds a slash or a backslash,
however it was encoded. In {+x} {#x} {?x} {&x}, which are for paths and texts: a value with a segment `..`, between slashes or
backslashes, or one that begins with a slash or a backslash or like `C:\\`. Anywhere: NUL, and what is not UTF-8.
Source: RFC 6570; 2026-07-28 server/resources "Resource Templates", "Security Considerations".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import cast

from msgspec import Struct

__all__ = ["UriTemplate", "Value", "Values"]

Value = str | list[str] | dict[str, str]
Values = Mapping[
    str, "str | int | float | Sequence[str] | Mapping[str, str] | None"
]  # None: undefined

MAX_URI = 8192  # characters of a URI that are looked at; RFC 9110 4.1 asks for 8000


class Operator(Struct, frozen=True):
    """How an expression is written out: RFC 6570 appendix A. named: `x=value`; empty: `x=` for an empty value."""

    first: str
    between: str
    named: bool
    empty: str
    reserved: bool  # reserved characters stay as they are


OPERATORS: Mapping[str, Operator] = {
    "": Operator("", ",", False, "", False),
    "+": Operator("", ",", False, "", True),
    "#": Operator("#", ",", False, "", True),
    ".": Operator(".", ".", False, "", False),
    "/": Operator("/", "/", False, "", False),
    ";": Operator(";", ";", True, "", False),
    "?": Operator("?", "&", True, "=", False),
    "&": Operator("&", "&", True, "=", False),
}


class Variable(Struct, frozen=True):
    """One variable of an expression. prefix: how many characters of its value are taken, 0 for all; star: a list or a dict."""

    name: str
    prefix: int = 0
    star: bool = False


class Expression(Struct, frozen=True):
    """`{?a,b*}`: its operator's character and its variables."""

    operator: str
    variables: tuple[Variable, ...]


class UriTemplate:
    """One template. text: as it was given; variables: their names, in order.

    Raises ValueError that says what was expected, and where, for what is no template.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self._parts = tuple(_parse(text))
        self._expressions = [part for part in self._parts if isinstance(part, Expression)]
        self.variables = tuple(
            dict.fromkeys(
                each.name for expression in self._expressions for each in expression.variables
            )
        )
        self._pattern: list[_Literal | _Run] | None = None

    def expand(self, values: Values) -> str:
        """The URI for these values. What is not among them, None, and an empty list or dict are undefined: they leave nothing.

        Raises ValueError for a prefix (`{x:3}`) of a list or dict.
        """
        return "".join(
            part if isinstance(part, str) else _expanded(part, values) for part in self._parts
        )

    @property
    def optional(self) -> frozenset[str]:
        """The names that match() may leave out."""
        return frozenset(
            each.name
            for expression in self._expressions
            for each in expression.variables
            if expression.operator in OPTIONAL or (each.star and expression.operator == "/")
        )

    @property
    def lists(self) -> frozenset[str]:
        """The names whose values match() gives as lists or dicts."""
        return frozenset(
            each.name
            for expression in self._expressions
            for each in expression.variables
            if each.star
        )

    def check(self) -> None:
        """Raise ValueError for what can be expanded but not matched."""
        self._compiled()

    def match(self, uri: str) -> dict[str, Value] | None:
        """The values in a URI, or None if it is none of this template. See the head of this file for the rules.

        Raises ValueError if the template is of a kind that cannot be matched, whatever the URI; see check().
        """
        pattern = self._compiled()
        if len(uri) > MAX_URI:
            return None
        after = bytearray(len(uri) + 1)
        after[-1] = True
        fits = [after]
        for part in reversed(pattern):
            fits.append(part.fits(uri, fits[-1]))
        if not fits.pop()[0]:
            return None
        found: Found = {}
        place = 0
        for part in pattern:
            end = part.end(uri, place, fits.pop())
            values = part.read(uri[place:end])
            if values is None:
                return None
            found |= values
            place = end
        return found

    def _compiled(self) -> list[_Literal | _Run]:
        if self._pattern is None:
            self._pattern = _pattern(self._parts)
        return self._pattern

    def __repr__(self) -> str:
        return f"UriTemplate({self.text!r})"


# Reading a template

# RFC 6570 2.1 and erratum 6937: what stands outside of expressions. `%` begins a percent-encoding only.
_LITERAL = re.compile(r"(?:[^\x00-\x20\"%<>\\^`{|}\x7f]|%[0-9A-Fa-f]{2})+")
_NAME = r"(?:\w|%[0-9A-Fa-f]{2})+(?:\.(?:\w|%[0-9A-Fa-f]{2})+)*"
_EXPRESSION = re.compile(
    rf"\{{([+#./;?&]?)({_NAME}(?::[1-9]\d{{0,3}}|\*)?(?:,{_NAME}(?::[1-9]\d{{0,3}}|\*)?)*)\}}",
    re.ASCII,
)


def _parse(text: str) -> Iterable[str | Expression]:
    place = 0
    while place < len(text):
        if literal := _LITERAL.match(text, place):
            yield _encoded(literal[0], reserved=True)
            place = literal.end()
        elif expression := _EXPRESSION.match(text, place):
            yield Expression(
                expression[1], tuple(_variable(each) for each in expression[2].split(","))
            )
            place = expression.end()
        else:
            raise ValueError(
                f"URI template {text!r}: at character {place + 1}: expected an expression such as {{name}}, or characters "
                f"that a URI may hold, got {text[place : place + 20]!r}"
            )


def _variable(text: str) -> Variable:
    if text.endswith("*"):
        return Variable(text[:-1], star=True)
    name, _, prefix = text.partition(":")
    return Variable(name, int(prefix or 0))


# Expanding

PLAIN = frozenset(
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~"
)  # RFC 3986 2.3, unreserved
ANY = PLAIN | frozenset(":/?#[]@!$&'()*+,;=")  # 2.2, reserved
_TRIPLET = re.compile("(%[0-9A-Fa-f]{2})")


def _encoded(text: str, *, reserved: bool) -> str:
    if not reserved:
        return _quoted(text, PLAIN)
    # What is percent-encoded already stays so (RFC 6570 3.2.3).
    parts = _TRIPLET.split(text)
    return "".join(part if number % 2 else _quoted(part, ANY) for number, part in enumerate(parts))


def _quoted(text: str, kept: frozenset[str]) -> str:
    return "".join(
        each
        if each in kept
        else "".join(f"%{byte:02X}" for byte in each.encode("utf-8", "surrogatepass"))
        for each in text
    )


def _expanded(expression: Expression, values: Values) -> str:
    operator = OPERATORS[expression.operator]
    written = [
        text
        for variable in expression.variables
        if (value := values.get(variable.name)) is not None
        for text in _written(variable, value, operator)
    ]
    return operator.first + operator.between.join(written) if written else ""


def _written(variable: Variable, value: object, operator: Operator) -> Iterable[str]:
    """What one variable with a value adds: nothing, one text, or several."""
    if isinstance(value, Mapping):
        pairs = [
            (str(key), str(each))
            for key, each in cast("Mapping[object, object]", value).items()
            if each is not None
        ]
    elif isinstance(value, Sequence) and not isinstance(value, str):
        pairs = [
            (None, _text(each)) for each in cast("Sequence[object]", value) if each is not None
        ]
    else:
        text = _text(value)
        return [
            _named(
                variable.name,
                _encoded(text[: variable.prefix or None], reserved=operator.reserved),
                operator,
            )
        ]
    if variable.prefix:
        raise ValueError(
            f"{{{variable.name}:{variable.prefix}}}: expected a text to take a prefix of, got {value!r}"
        )

    def encoded(text: str) -> str:
        return _encoded(text, reserved=operator.reserved)

    if not pairs:
        return []
    if not variable.star:
        flat = ",".join(
            encoded(each) if key is None else f"{encoded(key)},{encoded(each)}"
            for key, each in pairs
        )
        return [_named(variable.name, flat, operator)]
    return [
        (
            _named(variable.name, encoded(each), operator)
            if key is None
            else f"{encoded(key)}={encoded(each)}"
        )
        for key, each in pairs
    ]


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _named(name: str, text: str, operator: Operator) -> str:
    if not operator.named:
        return text
    return f"{name}={text}" if text else name + operator.empty


# Matching

OPTIONAL = frozenset("#;?&")  # operators whose variables may be absent
SIMPLE = PLAIN | {"%"}
WITH_RESERVED = ANY | {"%"}
IN_QUERY = WITH_RESERVED - {"#"}
PAIRS = {";": SIMPLE | {";", "="}, "?": IN_QUERY, "&": IN_QUERY}  # in a region of name=value pairs
_DRIVE = re.compile(r"[A-Za-z]:[/\\]")
_LONE_PERCENT = re.compile("%(?![0-9A-Fa-f]{2})")

Found = dict[str, Value]


class _Literal(Struct, frozen=True):
    text: str

    def fits(self, uri: str, after: bytearray) -> bytearray:
        """For each place of the URI whether this can begin there, so that what follows fits. after: the same of what follows."""
        found = bytearray(len(uri) + 1)
        place = uri.find(self.text)
        while place >= 0:
            found[place] = after[place + len(self.text)]
            place = uri.find(self.text, place + 1)
        return found

    def end(self, uri: str, place: int, after: bytearray) -> int:
        """Where what begins here ends: as far on as it can, so that what follows fits."""
        return place + len(self.text)

    def read(self, text: str) -> Found | None:
        """The values in this stretch of the URI; None if they are not allowed."""
        return {}


class _Run(Struct, frozen=True):
    """A stretch of at least one character of one kind, behind `first`. values: of the stretch, see read()."""

    first: str
    kind: frozenset[str]
    optional: bool
    values: Callable[[str], Found | None]

    def fits(self, uri: str, after: bytearray) -> bytearray:
        stretch = bytearray(
            len(uri) + 1
        )  # whether the characters from here on, at least one, lead to where what follows fits
        for place in range(len(uri) - 1, -1, -1):
            stretch[place] = uri[place] in self.kind and (after[place + 1] or stretch[place + 1])
        found = bytearray(after) if self.optional else bytearray(len(uri) + 1)
        for place in range(len(uri)):
            if stretch[min(place + len(self.first), len(uri))] and uri.startswith(
                self.first, place
            ):
                found[place] = True
        return found

    def end(self, uri: str, place: int, after: bytearray) -> int:
        furthest = place
        if uri.startswith(self.first, place):
            place += len(self.first)
            while place < len(uri) and uri[place] in self.kind:
                place += 1
                if after[place]:
                    furthest = place
        return furthest

    def read(self, text: str) -> Found | None:
        return self.values(text[len(self.first) :]) if text else {}


def _pattern(parts: Sequence[str | Expression]) -> list[_Literal | _Run]:
    """What match() walks along. Raises ValueError for what has no one meaning."""
    pattern: list[_Literal | _Run] = []
    names: set[str] = set()
    bounded = any(
        part.operator in ("?", "&", "#")
        if isinstance(part, Expression)
        else ("?" in part or "#" in part)
        for part in parts
    )
    wide = WITH_RESERVED - {"?", "#"} if bounded else WITH_RESERVED
    queried = ""  # the operator of the query that has begun
    for part in parts:
        if isinstance(part, str):
            if queried:
                raise ValueError(
                    f"{part!r} behind {{{queried}...}} cannot be matched: write a query last"
                )
            pattern.append(_Literal(part))
            continue
        for variable in part.variables:
            if variable.prefix:
                raise ValueError(
                    f"{{{variable.name}:{variable.prefix}}} cannot be matched: the rest of its value is unknown"
                )
            if variable.name in names:
                raise ValueError(
                    f"{{{variable.name}}} stands twice and cannot be matched: give each variable its own name"
                )
            names.add(variable.name)
        if queried and part.operator not in ("#", "&"):
            raise ValueError(
                f"{{{part.operator}...}} behind {{{queried}...}} cannot be matched: write a query last"
            )
        if part.operator in PAIRS:
            if part.operator == "&" and queried:
                raise ValueError(
                    "{&...} behind {?...} or {&...} cannot be matched: write all in one, as in {?a,b}"
                )
            queried = part.operator if part.operator != ";" else ""
            pattern.append(_Run(part.operator, PAIRS[part.operator], True, _pairs(part)))
        elif part.operator == "#":
            queried = "#"
            pattern.append(_Run("#", IN_QUERY, True, _fragment(part.variables)))
        else:
            pattern += _values(part, wide)
    return pattern


def _values(expression: Expression, wide: frozenset[str]) -> Iterable[_Literal | _Run]:
    """The parts of an expression whose values stand there without their names."""
    operator = OPERATORS[expression.operator]
    kind = wide if operator.reserved else SIMPLE
    for number, variable in enumerate(expression.variables):
        if number and not operator.first:
            yield _Literal(operator.between)
        if variable.star:
            values = _list(variable.name, operator)
            yield _Run(operator.first, kind | {operator.between}, operator.first == "/", values)
        else:
            yield _Run(operator.first, kind, False, _single(variable.name, operator))


def _single(name: str, operator: Operator) -> Callable[[str], Found | None]:
    def values(text: str) -> Found | None:
        value = _decoded(text, operator.reserved)
        return None if value is None else {name: value}

    return values


def _list(name: str, operator: Operator) -> Callable[[str], Found | None]:
    def values(text: str) -> Found | None:
        items: list[str] = []
        for each in text.split(operator.between):
            value = _decoded(each, operator.reserved)
            if not value:
                return None
            items.append(value)
        return {name: items}

    return values


def _fragment(variables: tuple[Variable, ...]) -> Callable[[str], Found | None]:
    def values(text: str) -> Found | None:
        texts = text.rsplit(",", len(variables) - 1)
        found: Found = {}
        for variable, each in zip(variables, texts, strict=False):
            value = _decoded(each, True)
            if not value:
                return None
            found[variable.name] = value.split(",") if variable.star else value
        return found if len(texts) == len(variables) else None

    return values


def _pairs(expression: Expression) -> Callable[[str], Found | None]:
    between = OPERATORS[expression.operator].between
    lenient = expression.operator != ";"
    names = {each.name for each in expression.variables if not each.star}
    stars = [each.name for each in expression.variables if each.star]

    def values(text: str) -> Found | None:
        found: Found = {}
        rest: list[tuple[str, str]] = []
        for pair in text.split(between):
            name, _, written = pair.partition("=")
            value = _decoded(written, lenient)
            key = _decoded(name, lenient)
            if value is None or not key:
                return None
            if key not in names:
                rest.append((key, value))
            elif key in found:
                return None
            else:
                found[key] = value
        return _collected(found, rest, stars)

    return values


def _collected(found: Found, rest: list[tuple[str, str]], stars: list[str]) -> Found | None:
    """Give the pairs that no variable bears the name of to those with a star: to their own, and all others to the last."""
    for star in stars:
        if own := [value for key, value in rest if key == star]:
            found[star] = own
            rest = [pair for pair in rest if pair[0] != star]
    if not rest:
        return found
    if not stars or stars[-1] in found or len(dict(rest)) < len(rest):
        return None
    return {**found, stars[-1]: dict(rest)}


def _decoded(text: str, lenient: bool) -> str | None:
    """A value, percent-decoded once; None for what is not allowed. lenient: slashes are."""
    if _LONE_PERCENT.search(text):
        return None
    try:
        value = b"".join(
            bytes.fromhex(part[1:]) if number % 2 else part.encode()
            for number, part in enumerate(_TRIPLET.split(text))
        ).decode()
    except UnicodeDecodeError:
        return None
    if "\0" in value:
        return None
    segments = value.replace("\\", "/").split("/")
    if not lenient:
        return None if len(segments) > 1 or value in (".", "..") else value
    absolute = len(segments) > 1 and not segments[0]
    return None if ".." in segments or absolute or _DRIVE.match(value) else value
