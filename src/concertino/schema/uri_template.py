"""UriTemplate: matches URIs with a template (RFC 6570), and returns the values of its variables.

    UriTemplate("note://{id}{?lang}").match("note://7?lang=en")     # {"id": "7", "lang": "en"}

The RFC defines how templates are expanded, but not how they are matched. The rules here are:

    {x} {a,b} {.x} {/x}   each variable is present and not empty; it has unreserved characters and
                          percent-encodings
    {+x}                  the same, and reserved characters; without `?` and `#` if the template has
                          a query or a fragment
    {#x}                  the same, or absent
    {x*} {+x*} {.x*}      a list of at least one item; {/x*} and {#x*} may be absent
    {?a,b} {&a} {;a}      name=value pairs in any order, each at most once or absent
    {?x*} {&x*} {;x*}     a list of the values of all pairs with the name x. If there is no such
                          pair, the last such variable is a dict of all pairs that belong to no
                          other variable

If a URI can be split in several ways, a variable gets as much text as possible before the variables
to the right of it do. Matching takes time proportional to the length of the URI times the number of
expressions, even for malicious URIs. Values are percent-decoded once, as UTF-8.

Values that could be used for path traversal do not match. For {x} {.x} {/x} {;x} these are `.`,
`..`, and all values with a slash or a backslash, even a percent-encoded one. {+x} {#x} {?x} {&x}
are meant for paths and text, so only values with `..` between slashes or backslashes, and values
that begin with a slash, a backslash or a drive such as `C:\\`, do not match. NUL and invalid UTF-8
never match.

Source: RFC 6570; 2026-07-28 server/resources "Resource Templates", "Security Considerations".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence

from msgspec import Struct

# The value of a variable: a list or a dict only if the variable has a star.
Value = str | list[str] | dict[str, str]

# URIs with more characters do not match. RFC 9110 4.1 recommends to support at least 8000.
MAX_URI = 8192


class Operator(Struct, frozen=True):
    """How an expression is expanded, by RFC 6570 appendix A.

    first: the text before the first value.
    between: the text between two values.
    reserved: whether values may contain reserved characters.
    """

    first: str
    between: str
    reserved: bool


# The first character of an expression -> its operator; "" for expressions such as {x}.
OPERATORS: Mapping[str, Operator] = {
    "": Operator("", ",", reserved=False),
    "+": Operator("", ",", reserved=True),
    "#": Operator("#", ",", reserved=True),
    ".": Operator(".", ".", reserved=False),
    "/": Operator("/", "/", reserved=False),
    ";": Operator(";", ";", reserved=False),
    "?": Operator("?", "&", reserved=False),
    "&": Operator("&", "&", reserved=False),
}


class Variable(Struct, frozen=True):
    """One variable of an expression.

    name: the name of the variable.
    prefix: the number in {name:3}, which limits the characters of the value; 0 for no limit.
    star: whether the variable is written as {name*}, so that its value is a list or a dict.
    """

    name: str
    prefix: int = 0
    star: bool = False


class Expression(Struct, frozen=True):
    """An expression such as `{?a,b*}`.

    operator: the character of its operator, such as "?"; "" for a simple expression.
    variables: its variables, in order.
    """

    operator: str
    variables: tuple[Variable, ...]


class UriTemplate:
    """One URI template.

        UriTemplate("note://{id}{?lang}").match("note://7?lang=en")     # {"id": "7", "lang": "en"}

    Raises ValueError for a text that is not a template; the message names the place and the reason.
    A valid template may still be one that match() does not support; check() finds that out.

    text: the template.
    variables: the names of its variables, in order.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        # Literal strings and expressions, in order.
        self._parts = tuple(_parse(text))
        # Pairs (operator of the variable's expression, variable).
        self._variables = [
            (part.operator, variable)
            for part in self._parts
            if isinstance(part, Expression)
            for variable in part.variables
        ]
        self.variables = tuple(dict.fromkeys(variable.name for _, variable in self._variables))
        self._pattern: list[_Literal | _Run] | None = None

    @property
    def optional(self) -> frozenset[str]:
        """Return the names of the variables that may be missing from the result of match()."""
        return frozenset(
            variable.name
            for operator, variable in self._variables
            if operator in OPTIONAL or (variable.star and operator == "/")
        )

    @property
    def lists(self) -> frozenset[str]:
        """Return the names of the variables whose values are lists or dicts in match()."""
        return frozenset(variable.name for _, variable in self._variables if variable.star)

    def check(self) -> None:
        """Raise ValueError if match() does not support the template, for example because of {x:3}.

        The message names the reason.
        """
        self._compile()

    def match(self, uri: str) -> dict[str, Value] | None:
        """Return the values of the variables in a URI: name -> value, percent-decoded.

        Returns None if the URI does not match, or if a value could be used for path traversal. For
        example, `note://{id}` matches `note://7` with {"id": "7"}, but not `note://7/8`. The module
        docstring has all rules.
        Raises ValueError if match() does not support the template, as check() does.
        """
        pattern = self._compile()
        if len(uri) > MAX_URI:
            return None

        # First pass, from the last part to the first: find the places where a part can begin so
        # that it and all parts after it match the rest of the URI. A place is an index in the URI.
        # Each bytearray has one flag for each place; `after` belongs to the empty rest, which
        # begins at the end only.
        after = bytearray(len(uri) + 1)
        after[-1] = True
        matches = [after]
        for part in reversed(pattern):
            matches.append(part.find_starts(uri, matches[-1]))
        if not matches.pop()[0]:
            return None

        # Second pass, from the first part to the last: give each part as much text as possible, so
        # that the parts after it still match.
        values: Values = {}
        place = 0
        for part in pattern:
            end = part.find_end(uri, place, matches.pop())
            part_values = part.read(uri[place:end])
            if part_values is None:
                return None
            values |= part_values
            place = end
        return values

    def _compile(self) -> list[_Literal | _Run]:
        if self._pattern is None:
            _check_variables([variable for _, variable in self._variables])
            self._pattern = _compile_pattern(self._parts)
        return self._pattern

    def __repr__(self) -> str:
        return f"UriTemplate({self.text!r})"


# Parsing a template

# Text outside of expressions: RFC 6570 2.1 and erratum 6937. A `%` must begin a percent-encoding.
_LITERAL = re.compile(r"(?:[^\x00-\x20\"%<>\\^`{|}\x7f]|%[0-9A-Fa-f]{2})+")
_NAME = r"(?:\w|%[0-9A-Fa-f]{2})+(?:\.(?:\w|%[0-9A-Fa-f]{2})+)*"
_EXPRESSION = re.compile(
    rf"\{{([+#./;?&]?)({_NAME}(?::[1-9]\d{{0,3}}|\*)?(?:,{_NAME}(?::[1-9]\d{{0,3}}|\*)?)*)\}}",
    re.ASCII,
)


def _parse(text: str) -> Iterable[str | Expression]:
    """Yield the literal strings and expressions of a template.

    Raises ValueError for a string that is not a template.
    """
    place = 0
    while place < len(text):
        if literal := _LITERAL.match(text, place):
            yield _encode_literal(literal[0])
            place = literal.end()
        elif expression := _EXPRESSION.match(text, place):
            variables = tuple(_parse_variable(item) for item in expression[2].split(","))
            yield Expression(expression[1], variables)
            place = expression.end()
        else:
            raise ValueError(
                f"URI template {text!r}: at character {place + 1}: expected an expression such as "
                f"{{name}}, or characters that a URI may hold, got {text[place : place + 20]!r}"
            )


def _parse_variable(text: str) -> Variable:
    if text.endswith("*"):
        return Variable(text[:-1], star=True)
    name, _, prefix = text.partition(":")
    return Variable(name, int(prefix or 0))


# RFC 3986 2.3 and 2.2
UNRESERVED = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")
RESERVED = frozenset(":/?#[]@!$&'()*+,;=")
IN_LITERAL = UNRESERVED | RESERVED | {"%"}
_TRIPLET = re.compile("(%[0-9A-Fa-f]{2})")


def _encode_literal(text: str) -> str:
    """Return a literal as it appears in URIs: characters that URIs do not allow are encoded.

    A `%` in a literal always begins a percent-encoding, so it stays (RFC 6570 3.1).
    """
    encoded = ""
    for char in text:
        if char in IN_LITERAL:
            encoded += char
        else:
            encoded += "".join(f"%{byte:02X}" for byte in char.encode("utf-8", "surrogatepass"))
    return encoded


# Matching

# Operators of expressions that may be absent.
OPTIONAL = frozenset("#;?&")
# The characters that may be in a value of {x}, in a value of {+x}, and in a query or fragment.
SIMPLE = UNRESERVED | {"%"}
WITH_RESERVED = UNRESERVED | RESERVED | {"%"}
IN_QUERY = WITH_RESERVED - {"#"}
# Operators of expressions with name=value pairs -> the characters that these may contain.
PAIRS = {";": SIMPLE | {";", "="}, "?": IN_QUERY, "&": IN_QUERY}
_DRIVE = re.compile(r"[A-Za-z]:[/\\]")
_LONE_PERCENT = re.compile("%(?![0-9A-Fa-f]{2})")

# Name of a variable -> its value.
Values = dict[str, Value]
# A function that reads the values in a part of a URI; None if a value is not allowed.
ReadValues = Callable[[str], Values | None]


class _Literal(Struct, frozen=True):
    """A fixed text between expressions."""

    text: str

    def find_starts(self, uri: str, after: bytearray) -> bytearray:
        """Return the places of the URI where this part can begin.

        A place is an index from 0 to len(uri). The result and `after` have a flag for each place.
        after: the places where the next part can begin.
        """
        starts = bytearray(len(uri) + 1)
        place = uri.find(self.text)
        while place >= 0:
            starts[place] = after[place + len(self.text)]
            place = uri.find(self.text, place + 1)
        return starts

    def find_end(
        self,
        uri: str,
        place: int,
        after: bytearray,
    ) -> int:
        """Return the furthest end of this part after which the following parts still match.

        place: the place where this part begins.
        after: the places where the next part can begin.
        """
        return place + len(self.text)

    def read(self, text: str) -> Values | None:
        """Return the values of the variables in this part; None if a value is not allowed.

        text: the text of the URI that this part matches.
        """
        return {}


class _Run(Struct, frozen=True):
    """A part with variables: the text `first`, followed by one or more characters.

    It is a whole expression, or one variable of an expression.
    allowed: the characters that may follow `first`.
    optional: whether the whole part may be absent.
    read_values: a function that gets the characters after `first`, and returns the values of the
        variables in them: name -> value. It returns None if a value is not allowed.
    """

    first: str
    allowed: frozenset[str]
    optional: bool
    read_values: ReadValues

    def find_starts(self, uri: str, after: bytearray) -> bytearray:
        # The places from which one or more allowed characters lead to a place where the next part
        # can begin. Go from the end to the beginning, because each flag depends on the next flag.
        runs = bytearray(len(uri) + 1)
        for place in range(len(uri) - 1, -1, -1):
            runs[place] = uri[place] in self.allowed and (after[place + 1] or runs[place + 1])

        starts = bytearray(after) if self.optional else bytearray(len(uri) + 1)
        for place in range(len(uri)):
            # Near the end of the URI there is no room for `first`. Then look at the flag of the
            # end, which is never set, because a run has at least one character.
            run_start = min(place + len(self.first), len(uri))
            if runs[run_start] and uri.startswith(self.first, place):
                starts[place] = True
        return starts

    def find_end(
        self,
        uri: str,
        place: int,
        after: bytearray,
    ) -> int:
        # At first the empty match, which only an optional part can have. find_starts() has made
        # sure that any other part has a longer one.
        furthest = place
        if uri.startswith(self.first, place):
            place += len(self.first)
            while place < len(uri) and uri[place] in self.allowed:
                place += 1
                if after[place]:
                    furthest = place
        return furthest

    def read(self, text: str) -> Values | None:
        return self.read_values(text[len(self.first) :]) if text else {}


def _compile_pattern(parts: Sequence[str | Expression]) -> list[_Literal | _Run]:
    """Return the parts that match() needs.

    Raises ValueError for a template that match() does not support, because its rules would be
    ambiguous.
    """
    # If the template has a query or a fragment, {+x} ends where the query or fragment begins.
    has_query = any(map(_begins_query, parts))
    in_path = WITH_RESERVED - {"?", "#"} if has_query else WITH_RESERVED
    pattern: list[_Literal | _Run] = []
    # The operator of the query or fragment that has begun; "" if none has. Text after a query could
    # also be a part of the query's last value, unless the text begins with `&` or `#`.
    query = ""
    for part in parts:
        if isinstance(part, str):
            if query:
                raise ValueError(
                    f"{part!r} after {{{query}...}} cannot be matched: write a query last"
                )
            pattern.append(_Literal(part))
            continue

        if query:
            _check_after_query(part.operator, query)
        if part.operator in PAIRS:
            # {;a} belongs to the path, so other parts may follow it.
            query = part.operator if part.operator != ";" else ""
            read = _make_pairs_reader(part)
            pattern.append(
                _Run(part.operator, PAIRS[part.operator], optional=True, read_values=read)
            )
        elif part.operator == "#":
            query = "#"
            read = _make_fragment_reader(part.variables)
            pattern.append(_Run("#", IN_QUERY, optional=True, read_values=read))
        else:
            pattern += _make_value_parts(part, in_path)
    return pattern


def _begins_query(part: str | Expression) -> bool:
    """Return whether the query or the fragment of a URI begins in a part of a template."""
    if isinstance(part, Expression):
        return part.operator in ("?", "&", "#")
    return "?" in part or "#" in part


def _check_variables(variables: list[Variable]) -> None:
    """Raise ValueError for a variable with a prefix, and for a variable that occurs twice."""
    names: set[str] = set()
    for variable in variables:
        if variable.prefix:
            raise ValueError(
                f"{{{variable.name}:{variable.prefix}}} cannot be matched: the rest of its value "
                f"is unknown"
            )
        if variable.name in names:
            raise ValueError(
                f"{{{variable.name}}} stands twice and cannot be matched: give each variable its "
                f"own name"
            )
        names.add(variable.name)


def _check_after_query(operator: str, query: str) -> None:
    """Raise ValueError if an expression after a query cannot be matched.

    operator: the operator of the expression.
    query: the operator of the query.
    """
    if operator not in ("#", "&"):
        raise ValueError(
            f"{{{operator}...}} after {{{query}...}} cannot be matched: write a query last"
        )
    if operator == "&":
        raise ValueError(
            "{&...} after {?...} or {&...} cannot be matched: write all in one, as in {?a,b}"
        )


def _make_value_parts(expression: Expression, in_path: frozenset[str]) -> Iterable[_Literal | _Run]:
    """Yield the parts of an expression with plain values, not with name=value pairs."""
    operator = OPERATORS[expression.operator]
    allowed = in_path if operator.reserved else SIMPLE
    for number, variable in enumerate(expression.variables):
        # Operators such as `.` and `/` stand before each value. Without one, commas separate them.
        if number and not operator.first:
            yield _Literal(operator.between)
        if variable.star:
            yield _Run(
                operator.first,
                allowed | {operator.between},
                optional=operator.first == "/",
                read_values=_make_list_reader(variable.name, operator),
            )
        else:
            read = _make_single_reader(variable.name, operator)
            yield _Run(operator.first, allowed, optional=False, read_values=read)


def _make_single_reader(name: str, operator: Operator) -> ReadValues:
    """Return the function that reads the value of one variable."""

    def read(text: str) -> Values | None:
        value = _decode(text, operator.reserved)
        return None if value is None else {name: value}

    return read


def _make_list_reader(name: str, operator: Operator) -> ReadValues:
    """Return the function that reads the list of a variable such as {x*}."""

    def read(text: str) -> Values | None:
        items: list[str] = []
        for item in text.split(operator.between):
            value = _decode(item, operator.reserved)
            if not value:
                return None
            items.append(value)
        return {name: items}

    return read


def _make_fragment_reader(variables: tuple[Variable, ...]) -> ReadValues:
    """Return the function that reads the variables of a fragment, such as {#a,b}.

    Values in a fragment may contain commas that are not encoded.
    """

    def read(text: str) -> Values | None:
        # A value may contain commas. If there are more commas than between the variables, the first
        # variable gets as much as possible.
        items = text.rsplit(",", len(variables) - 1)
        values: Values = {}
        for variable, item in zip(variables, items, strict=False):
            # Split a list before it is decoded, so that each of its items is checked.
            parts = item.split(",") if variable.star else [item]
            decoded = [value for part in parts if (value := _decode(part, allow_slashes=True))]
            # A missing value is not allowed, or is empty.
            if len(decoded) < len(parts):
                return None
            values[variable.name] = decoded if variable.star else decoded[0]
        return values if len(items) == len(variables) else None

    return read


def _make_pairs_reader(expression: Expression) -> ReadValues:
    """Return the function that reads the name=value pairs of an expression such as {?a,b}."""
    between = OPERATORS[expression.operator].between
    allow_slashes = expression.operator != ";"
    names = {variable.name for variable in expression.variables if not variable.star}
    stars = [variable.name for variable in expression.variables if variable.star]

    def read(text: str) -> Values | None:
        values: Values = {}
        others: list[tuple[str, str]] = []
        for pair in text.split(between):
            name, _, encoded_value = pair.partition("=")
            value = _decode(encoded_value, allow_slashes)
            key = _decode(name, allow_slashes)
            if value is None or not key:
                return None
            if key not in names:
                others.append((key, value))
            elif key in values:
                return None
            else:
                values[key] = value
        return _assign_stars(values, others, stars)

    return read


def _assign_stars(values: Values, others: list[tuple[str, str]], stars: list[str]) -> Values | None:
    """Assign the remaining name=value pairs to the variables with a star, and return all values.

    values: the values so far.
    others: the pairs that belong to no variable without a star.
    stars: the names of the variables with a star. A variable gets a list of the values of pairs
        with its name. The last variable gets all other pairs as a dict.
    Returns None if a pair belongs to no variable.
    """
    for star in stars:
        if own := [value for key, value in others if key == star]:
            values[star] = own
            others = [pair for pair in others if pair[0] != star]
    if not others:
        return values
    # A dict cannot contain two pairs with the same name.
    if not stars or stars[-1] in values or len(dict(others)) < len(others):
        return None
    return {**values, stars[-1]: dict(others)}


def _decode(text: str, allow_slashes: bool) -> str | None:
    """Return a percent-decoded value; None if the value is not allowed.

    allow_slashes: whether slashes and backslashes are allowed. Values for path traversal are never
        allowed.
    """
    if _LONE_PERCENT.search(text):
        return None
    try:
        # split() returns the texts between the percent-encodings, and these at the odd indexes.
        value = b"".join(
            bytes.fromhex(part[1:]) if number % 2 else part.encode()
            for number, part in enumerate(_TRIPLET.split(text))
        ).decode()
    except UnicodeDecodeError:
        return None
    if "\0" in value:
        return None

    segments = value.replace("\\", "/").split("/")
    if not allow_slashes:
        return None if len(segments) > 1 or value in (".", "..") else value
    is_absolute = len(segments) > 1 and not segments[0]
    if ".." in segments or is_absolute or _DRIVE.match(value):
        return None
    return value
