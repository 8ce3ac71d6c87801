"""The schemas of the five revisions as the official Python package `mcp-types` has them: an oracle
that is installed everywhere.

`document(revision)` is what schema.json of that revision is: a JSON Schema document whose `$defs`
have the official names. The models are made from the official schemas of 2025-11-25 and 2026-07-28.
What a JSON Schema says and a model does not is added in FORMATS; what the three older revisions do
not have yet is taken away in `_older`.
"""

from __future__ import annotations

import copy
import importlib
from typing import Any

__all__ = ["document"]

REF = "#/$defs/"
# A member of a definition -> its format. Models hold all of them as plain texts.
FORMATS = {
    **dict.fromkeys(
        [("ImageContent", "data"), ("AudioContent", "data"), ("BlobResourceContents", "blob")],
        "byte",
    ),
    **dict.fromkeys(
        [("Icon", "src"), ("Implementation", "websiteUrl"), ("ElicitRequestURLParams", "url")],
        "uri",
    ),
    **{
        (name, "uri"): "uri"
        for name in (
            *(
                "BlobResourceContents",
                "TextResourceContents",
                "ResourceContents",
                "Resource",
                "ResourceLink",
                "Root",
            ),
            *("ReadResourceRequestParams", "SubscribeRequestParams", "UnsubscribeRequestParams"),
            *("ResourceRequestParams", "ResourceUpdatedNotificationParams"),
        )
    },
}
# What the models import, and what is no part of a schema.
IMPORTED = {
    "Annotated",
    "Any",
    "ConfigDict",
    "Field",
    "Literal",
    "TypeAliasType",
    "Union",
    "WireModel",
    "annotations",
}
# The first revision that has each kind of content. 2026-07-28 lost none.
CONTENT = {
    "AudioContent": "2025-03-26",
    "ResourceLink": "2025-06-18",
    "ToolUseContent": "2025-11-25",
    "ToolResultContent": "2025-11-25",
}


def document(revision: str) -> dict[str, Any]:
    """Return the JSON Schema document of one revision, made from the models.

    It is the caller's to change.
    """
    from mcp_types.methods import CLIENT_REQUESTS
    from pydantic import TypeAdapter

    # The one public way to the models of a revision; older revisions have those of 2025-11-25.
    module = importlib.import_module(CLIENT_REQUESTS["tools/list", revision].__module__)
    names = [name for name in vars(module) if not name.startswith("_") and name not in IMPORTED]
    kinds = [(name, "validation", TypeAdapter(getattr(module, name))) for name in names]
    schemas, whole = TypeAdapter.json_schemas(kinds)  # type: ignore[arg-type]
    definitions = copy.deepcopy(whole["$defs"])
    for name in names:
        definitions.setdefault(name, copy.deepcopy(schemas[name, "validation"]))  # type: ignore[index]

    for name, definition in definitions.items():
        for member, schema in definition.get("properties", {}).items():
            _restore(name, member, schema)
            if member == "io.modelcontextprotocol/serverInfo":
                # Models take anything here, and in forms.
                schema |= {"$ref": f"{REF}Implementation"}
    form = definitions["RequestedSchema"]["properties"]["properties"]
    form["additionalProperties"] = {"$ref": f"{REF}PrimitiveSchemaDefinition"}
    if revision < "2025-11-25":
        definitions = _older(definitions, revision)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "$defs": definitions}


def _restore(definition: str, member: str, schema: dict[str, Any]) -> None:
    """Give a member its format, and take away the null by which a model says that it may
    be absent.
    """
    if "default" in schema and schema["default"] is None:
        del schema["default"]
        kept = [each for each in schema.get("anyOf", ()) if each != {"type": "null"}]
        if len(kept) == 1:
            del schema["anyOf"]
            schema |= kept[0]
        elif kept:
            schema["anyOf"] = kept
    if (definition, member) in FORMATS:
        schema["format"] = FORMATS[definition, member]


def _older(definitions: dict[str, Any], revision: str) -> dict[str, Any]:
    """The definitions of 2025-11-25 without what was added after this revision, and with the names
    that it had.
    """
    from mcp_types import methods

    tables = (methods.CLIENT_REQUESTS, methods.SERVER_REQUESTS)
    tables += (methods.CLIENT_NOTIFICATIONS, methods.SERVER_NOTIFICATIONS)
    known = {method for table in tables for method, version in table if version == revision}
    absent = {name for name, since in CONTENT.items() if revision < since}
    for name, definition in definitions.items():
        method = definition.get("properties", {}).get("method", {}).get("const", "")
        if name.endswith(("Request", "Notification")) and method and method not in known:
            absent.add(name)
    definitions = _drop_absent(
        {name: each for name, each in definitions.items() if name not in absent}, absent
    )

    # An answer was JSONRPCResponse if it went well and JSONRPCError if not, which had to have an
    # id.
    error = definitions.pop("JSONRPCErrorResponse")
    definitions["JSONRPCError"] = {**error, "required": sorted({*error["required"], "id"})}
    definitions["JSONRPCResponse"] = definitions.pop("JSONRPCResultResponse")
    singles = ("JSONRPCRequest", "JSONRPCNotification")
    answers = ("JSONRPCResponse", "JSONRPCError")
    messages = [*singles, *answers]
    if revision == "2025-03-26":
        messages += ["JSONRPCBatchRequest", "JSONRPCBatchResponse"]
        definitions["JSONRPCBatchRequest"] = {"type": "array", "items": _any_of(singles)}
        definitions["JSONRPCBatchResponse"] = {"type": "array", "items": _any_of(answers)}
    definitions["JSONRPCMessage"] = _any_of(messages)
    return definitions


def _any_of(names: Any) -> dict[str, Any]:
    return {"anyOf": [{"$ref": REF + name} for name in names]}


def _drop_absent(value: Any, absent: set[str]) -> Any:
    """The same schemas without the alternatives that are absent."""
    if isinstance(value, list):
        refs = {REF + name for name in absent}
        return [
            _drop_absent(each, absent)
            for each in value
            if not (isinstance(each, dict) and each.get("$ref") in refs)
        ]
    if isinstance(value, dict):
        # A discriminator maps to what may be absent, and decides nothing.
        return {
            name: _drop_absent(each, absent)
            for name, each in value.items()
            if name != "discriminator"
        }
    return value
