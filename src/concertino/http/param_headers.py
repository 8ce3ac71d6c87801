"""Headers that repeat arguments of a tool: `x-mcp-header` in its input schema (2026-07-28).

A property annotated with `"x-mcp-header": "Region"` is sent in the header `Mcp-Param-Region` too,
so that a load balancer can see it. Clients write these headers, and servers compare them with the
arguments. A tool whose annotations are invalid must not be used.
Spec: 2026-07-28 basic/transports/streamable-http "Custom Headers from Tool Parameters".
"""

from __future__ import annotations

import base64
import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any, cast

from concertino.backend.call_hooks import ParamHeaders
from concertino.http.envelope import BASE64_PREFIX, BASE64_SUFFIX, decode_header_text

__all__ = [
    "InvalidAnnotation",
    "encode_header_text",
    "find_mismatch",
    "param_header_lines",
    "read_annotations",
]

ANNOTATION = "x-mcp-header"
# RFC 9110, section 5.6.2.
TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
# The types of arguments that may be sent in a header.
TYPES = ("integer", "string", "boolean")
# JSON numbers beyond this are not exact in all languages.
MAX_INTEGER = 2**53 - 1
# An integer in a header. A fraction of zeros is allowed, such as in `5.0`.
INTEGER = re.compile(r"(-?[0-9]{1,17})(?:\.0+)?")
# A text that a header can contain as it is.
PLAIN = re.compile(r"[ -~]*")
# Keywords whose value is a schema, a list of schemas, or schemas by name. In drafts before 2020-12,
# the value of `items` may also be a list.
ONE_SCHEMA = (
    "items", "additionalProperties", "not", "if", "then", "else", "contains", "propertyNames",
    "unevaluatedItems", "unevaluatedProperties", "additionalItems", "contentSchema",
)  # fmt: skip
LISTS = ("oneOf", "anyOf", "allOf", "prefixItems", "items")
BY_NAME = ("$defs", "definitions", "patternProperties", "dependentSchemas", "dependencies")


class InvalidAnnotation(ValueError):
    """Raised for an input schema with an `x-mcp-header` that is malformed or in a wrong place."""


def read_annotations(schema: object) -> ParamHeaders:
    """Return the properties of an input schema that have an `x-mcp-header`.

    schema: the JSON Schema of a tool's arguments.
    Returns path -> name. The path consists of the names of the properties that lead to the
    annotated property. The name is the value of the annotation, without `Mcp-Param-`.
    Raises InvalidAnnotation if an annotation is malformed or in a wrong place.
    """
    found: dict[tuple[str, ...], str] = {}
    try:
        _read_schema(schema, (), found, is_property=True)
    except RecursionError:
        raise InvalidAnnotation("the schema is nested too deeply") from None
    names = [name.lower() for name in found.values()]
    if len(set(names)) < len(names):
        raise InvalidAnnotation(f"{ANNOTATION}: two properties have the same name")
    return found


def _read_schema(
    schema: object, path: tuple[str, ...], found: dict[tuple[str, ...], str], *, is_property: bool
) -> None:
    """Add the annotations of a schema, and of the schemas in it, to `found`.

    path: the names of the properties that lead to the schema.
    found: path of a property -> name in its annotation.
    is_property: whether only the keyword `properties` leads to the schema. Annotations in other
        places are invalid.
    """
    if not isinstance(schema, dict):
        return
    keywords = cast("dict[str, Any]", schema)
    if ANNOTATION in keywords:
        where = ".".join(path) or "the schema"
        # Without a path, the schema is that of all arguments together.
        if not is_property or not path:
            raise InvalidAnnotation(f"{where}: {ANNOTATION} is allowed on properties only")
        found[path] = _check_annotation(keywords, where)

    properties = keywords.get("properties")
    if isinstance(properties, dict):
        for name, inner in cast("dict[str, Any]", properties).items():
            _read_schema(inner, (*path, name), found, is_property=is_property)
    for inner in _other_schemas(keywords):
        _read_schema(inner, path, found, is_property=False)


def _other_schemas(keywords: dict[str, Any]) -> Iterator[object]:
    """Yield the schemas inside of a schema, except those in `properties`; None for a missing one.

    keywords: the schema, as keyword -> value.
    """
    for keyword in ONE_SCHEMA:
        yield keywords.get(keyword)
    for keyword in LISTS:
        if isinstance(inner := keywords.get(keyword), list):
            yield from cast("list[object]", inner)
    for keyword in BY_NAME:
        if isinstance(inner := keywords.get(keyword), dict):
            yield from cast("dict[str, object]", inner).values()


def _check_annotation(keywords: dict[str, Any], where: str) -> str:
    """Return the name in the annotation of a property. Raises InvalidAnnotation.

    keywords: the schema of the property, as keyword -> value.
    where: the path of the property, for the error.
    """
    name = keywords[ANNOTATION]
    if not isinstance(name, str) or not TOKEN.fullmatch(name):
        raise InvalidAnnotation(f"{where}: {ANNOTATION} is no name of a header: {name!r}")
    kind = keywords.get("type")
    kinds = cast("list[Any]", kind) if isinstance(kind, list) else [kind]
    kinds = [item for item in kinds if item != "null"]
    if len(kinds) != 1 or kinds[0] not in TYPES:
        raise InvalidAnnotation(f"{where}: {ANNOTATION} needs the type integer, string or boolean")
    return name


def param_header_lines(headers: ParamHeaders, arguments: object) -> bytes:
    """Return the lines `Mcp-Param-...` for the arguments of a call.

    Only strings, booleans, and integers up to 2**53 - 1 get a header. A missing argument gets none.

    headers: path of an argument -> the name in its header.
    arguments: the arguments of the call, decoded.
    """
    lines: list[str] = []
    for path, name in headers.items():
        text = _header_text(_find_value(arguments, path))
        if text is not None:
            lines.append(f"Mcp-Param-{name}: {encode_header_text(text)}\r\n")
    return "".join(lines).encode("ascii")


def find_mismatch(
    headers: ParamHeaders,
    values: Mapping[bytes, bytes],
    repeated: Collection[bytes],
    arguments: object,
) -> str | None:
    """Compare the `Mcp-Param-...` headers of a request with the arguments of the call in it.

    Returns a text that describes the first difference; None if they agree.
    headers: path of an argument that must be repeated -> the name in its header.
    values: the headers of the request, by lower-case name.
    repeated: the lower-case names of the headers that came more than once.
    arguments: the arguments of the call, decoded.
    """
    for path, name in headers.items():
        header = f"Mcp-Param-{name}"
        key = header.lower().encode()
        given, value = values.get(key), _find_value(arguments, path)
        expected = _header_text(value)
        if given is None:
            if expected is not None:
                return f"{header} is missing"
        elif key in repeated:
            return f"{header} came more than once"
        elif expected is None or not _agrees(decode_header_text(given), expected, value):
            return f"{header} is not the argument {'.'.join(path)}"
    return None


def _find_value(arguments: object, path: tuple[str, ...]) -> Any:
    """Return the argument at a path; None if there is none."""
    value: Any = arguments
    for key in path:
        value = cast("dict[str, Any]", value).get(key) if isinstance(value, dict) else None
    return value


def _header_text(value: Any) -> str | None:
    """Return an argument as text. None if the argument has no header because of its type."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, int) and abs(value) <= MAX_INTEGER:
        return str(value)
    return value if isinstance(value, str) else None


def _agrees(given: str | None, expected: str, value: object) -> bool:
    """Return whether a header contains an argument. Integers are compared as numbers."""
    if given is not None and not isinstance(value, str | bool):
        match = INTEGER.fullmatch(given)
        return match is not None and int(match[1]) == int(expected)
    return given == expected


def encode_header_text(text: str) -> str:
    """Return a text as the value of an `Mcp-Name` or `Mcp-Param-...` header.

    A text that a header cannot contain is written as `=?base64?...?=`, with Base64 of its UTF-8.
    """
    # The other side would decode a text that looks encoded, and would not see spaces at the ends.
    looks_encoded = text.startswith(BASE64_PREFIX) and text.endswith(BASE64_SUFFIX)
    if PLAIN.fullmatch(text) and text == text.strip(" ") and not looks_encoded:
        return text
    encoded = base64.b64encode(text.encode("utf-8", "surrogatepass")).decode()
    return f"{BASE64_PREFIX}{encoded}{BASE64_SUFFIX}"
