"""Example messages of 2026-07-28, by the names of their types: `examples("Tool")` gives them to
pytest as parameters.

Of each type there are two that are made here, from the models of `mcp-types`: one with all its
members and one with those alone that it must have. The specification's own examples are added where
they are, in `../shared/spec` or in `CONCERTINO_SPEC`.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import pytest
import wire

__all__ = ["OFFICIAL", "Example", "examples"]

FOLDER = wire.SPEC / "examples" / wire.MODERN
# The types that the specification has examples of, where they can be seen.
OFFICIAL = sorted(each.name for each in FOLDER.glob("*"))
# What a schema calls any text, and what is read as more than that.
TEXTS = {
    "io.modelcontextprotocol/protocolVersion": wire.MODERN,
    "uriTemplate": "file:///{path}",
    "resultType": "complete",
    "lastModified": "2025-01-12T15:00:58Z",
    "nextCursor": "",
}
FORMATS = {"byte": "AAEC", "uri": "file:///a"}


class Example(NamedTuple):
    """One value of a type. raw: its JSON text."""

    kind: str
    raw: bytes

    @property
    def value(self) -> Any:
        """The value, each time anew."""
        return json.loads(self.raw)


def examples(*kinds: str) -> list[Any]:
    """Return all examples of these types as pytest parameters, at least one for each type that the
    models have.
    """
    found: dict[str, Example] = {}
    definitions = wire.definitions(wire.MODERN, "models")
    for kind in kinds:
        for extent in ("whole", "least") if kind in definitions else ():
            value = _value(definitions[kind], kind, extent == "whole", definitions)
            if kind == "InputRequiredResult":
                value["resultType"] = "input_required"
            found[f"{kind}/{extent}"] = Example(kind, json.dumps(value).encode())
        for path in sorted((FOLDER / kind).glob("*.json")):
            found[f"{kind}/{path.stem}"] = Example(kind, path.read_bytes())
    return [pytest.param(example, id=name) for name, example in found.items()]


def _value(schema: dict[str, Any], name: str, whole: bool, definitions: dict[str, Any]) -> Any:
    """A value of this schema. name: of the member that it is for. whole: with the members that may
    be absent.
    """
    if "$ref" in schema:
        target = schema["$ref"].rpartition("/")[2]
        if target == "JSONValue":
            # What is official of 2026-07-28 knows no null and no fraction here.
            return ["any", 1]
        return _value(definitions[target], name, whole, definitions)
    for literal in ("const", "enum"):
        if literal in schema:
            return schema[literal] if literal == "const" else schema[literal][0]
    alternatives = schema.get("anyOf") or schema.get("oneOf")
    if alternatives:
        # A result before one that only asks for more input.
        alternatives = sorted(
            alternatives, key=lambda each: each.get("$ref") == "#/$defs/InputRequiredResult"
        )
        return _value(alternatives[0], name, whole, definitions)

    match schema.get("type"):
        case "object":
            return _object(schema, whole, definitions)
        case "array":
            items = schema.get("items", {})
            while "$ref" in items and items["$ref"] != "#/$defs/JSONValue":
                items = definitions[items["$ref"].rpartition("/")[2]]
            # One of each kind that may be in it, or one.
            kinds = items.get("anyOf") or items.get("oneOf") or [items]
            return [
                _value(each, name, whole, definitions) for each in (kinds if whole else kinds[:1])
            ]
        case "string":
            return FORMATS.get(schema.get("format", ""), TEXTS.get(name, f"some {name}"))
        case "integer" | "number":
            return schema.get("maximum", schema.get("minimum", 7))
        case "boolean":
            return True
        case "null":
            return None
        case _:
            return {"any": ["thing", None]}


def _object(schema: dict[str, Any], whole: bool, definitions: dict[str, Any]) -> dict[str, Any]:
    required = schema.get("required", ())
    members = {
        name: _value(each, name, whole, definitions)
        for name, each in schema.get("properties", {}).items()
        if whole or name in required
    }
    other = schema.get("additionalProperties")
    if whole and isinstance(other, dict):
        members["key"] = _value(other, "key", whole, definitions)
    return members
