"""Output schemas for revisions in which the structured content of a tool is always an object.

    to_object_schema({"type": "integer"})    # describes {"result": 5} instead of 5

Since MCP 2026-07-28, structured content can be any JSON value, and an output schema can describe
any JSON value. protocol/wire_results.py wraps values and schemas for clients of older revisions.
Spec: 2025-11-25 and 2026-07-28 server/tools "Structured Content", "Output Schema".
"""

from __future__ import annotations

from typing import Any, cast

from msgspec.json import encode

__all__ = ["WRAPS_RESULT", "to_object_schema"]

# This keyword in a schema marks an object that only wraps the value: {"result": value}. FastMCP has
# introduced the keyword. FastMCP's client and ours unwrap the value.
WRAPS_RESULT = "x-fastmcp-wrap-result"


def to_object_schema(schema: dict[str, Any]) -> dict[str, Any]:
    """Return an output schema for revisions in which structured content is always an object.

    In these revisions, a value that is not an object is sent as `{"result": value}`. There are
    three cases:

    - `schema` allows only objects: it is returned.
    - It allows no objects: the returned schema describes `{"result": value}`, and has the keyword
      `x-fastmcp-wrap-result`, by which clients know that they must unwrap the value.
    - It allows both, as for `Point | None`: the returned schema allows both forms.

    Definitions move to the root of the returned schema, and references are adapted. For example,
    `{"type": "array", "items": {"$ref": "#"}}` becomes

        {"type": "object", "required": ["result"], "x-fastmcp-wrap-result": true, "properties":
         {"result": {"type": "array", "items": {"$ref": "#/properties/result"}}}}
    """
    kind = _resolve_root(schema).get("type")
    if kind == "object":
        return {**schema, "type": "object"}

    # Whether the schema allows objects and other values. A schema without a type may allow both.
    allows_both = kind is None or (isinstance(kind, list) and "object" in kind)
    base = schema.get("$id", "")
    if not isinstance(base, str):
        base = ""
    # Below, the schema becomes the second member of an anyOf, or the schema of `result`.
    new_root = "#/anyOf/1" if allows_both else "#/properties/result"
    schema = _rebase_refs(schema, new_root, base.rstrip("#"))
    # These are valid at the root only, or are referred to by their path from the root.
    root_members = {
        key: schema.pop(key) for key in ("$defs", "definitions", "$schema", "$id") if key in schema
    }

    inner = schema
    text = encode(schema)
    has_names = b'"$id"' in text or b'"$anchor"' in text or b'"$dynamicAnchor"' in text
    if allows_both and has_names:
        # A second copy of the schema would define the same `$id` or anchor twice, so refer to the
        # first copy.
        inner = {"$ref": "#/anyOf/1"}
    wrapped: dict[str, Any] = {
        "properties": {"result": inner},
        "required": ["result"],
        WRAPS_RESULT: True,
    }
    if allows_both:
        wrapped = {"anyOf": [wrapped, schema]}
    return {"type": "object", **wrapped, **root_members}


def _resolve_root(schema: dict[str, Any]) -> dict[str, Any]:
    """Follow the `$ref` of a schema that has no `type`, and return the schema at the end."""
    defs: dict[str, Any] = schema.get("$defs", {})
    targets: dict[str, dict[str, Any]] = {
        f"#/$defs/{name}": value for name, value in defs.items() if isinstance(value, dict)
    }
    root = schema
    visited: set[str] = set()
    while "type" not in root and isinstance(ref := root.get("$ref"), str) and ref not in visited:
        visited.add(ref)
        root = targets.get(ref, {})
    return root


def _rebase_refs(part: Any, new_root: str, base: str) -> Any:
    """Return a copy of a schema whose references are valid when it is part of a larger schema.

    References to the root of the schema, or to a place below the root, get the prefix `new_root`.
    part: the schema, or any part of it.
    new_root: the place of the schema in the larger schema, such as "#/properties/result".
    base: the `$id` of the schema, which moves to the larger schema; "" if there is none.
    """
    if isinstance(part, list):
        items = cast("list[Any]", part)
        return [_rebase_refs(item, new_root, base) for item in items]
    if not isinstance(part, dict):
        return part

    copy: dict[str, Any] = {}
    for key, value in cast("dict[str, Any]", part).items():
        # References inside an embedded schema, which has its own `$id`, are relative to that
        # schema.
        embedded = isinstance(value, dict) and isinstance(
            cast("dict[str, Any]", value).get("$id"), str
        )
        copy[key] = value if embedded else _rebase_refs(value, new_root, base)

    for word in ("$ref", "$dynamicRef"):
        target = copy.get(word)
        if not isinstance(target, str):
            continue
        # A reference may name the schema by its own `$id`.
        if base and not target.startswith("#"):
            from urllib.parse import urldefrag, urljoin

            uri, fragment = urldefrag(urljoin(base, target))
            target = f"#{fragment}" if uri == base else target
        # The definitions move to the root of the larger schema, so references to them stay valid.
        # So do references to anchors, such as `#name`.
        is_path = target == "#" or target.startswith("#/")
        if is_path and not target.startswith(("#/$defs/", "#/definitions/")):
            copy[word] = new_root + target.removeprefix("#")
    return copy
