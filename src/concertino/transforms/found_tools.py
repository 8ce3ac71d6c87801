"""describe_found(): writes the tools that a search has found as JSON, within a token budget.

ToolSearch returns this JSON as the result of find_tools. The model reads it and calls one of the
tools, so a tool is shortened rather than left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from msgspec.json import decode, encode

from concertino.token_estimate import estimate
from concertino.transforms.tool_pages import RawTool
from concertino.transforms.tool_text import summary_of

__all__ = ["describe_found"]

# Keywords of a JSON Schema that do not restrict the arguments.
NOTES = ("title", "$schema", "examples", "description")


def describe_found(tools: Sequence[RawTool], budget: int) -> str:
    """Return the names, descriptions and input schemas of tools as JSON, in the given order.

    The tools get their shares of the budget in this order. The share of a tool is twice as large as
    that of each tool after it; what it does not use goes to these tools. Each tool gets the longest
    form that fits into its share:

    1. The whole name, description and schema.
    2. The description is cut to its first sentence.
    3. Titles, descriptions and examples are also removed from the schema.
    4. The schema is left out.
    5. Only the name is left.

    A tool whose name does not fit is left out.
    tools: the definitions of the tools, the best tool first.
    budget: the largest size of the JSON, in estimated tokens.
    """
    shown: list[str] = []
    tokens_left = budget - estimate('{"tools":[]}')
    for number, tool in enumerate(tools):
        tools_left = len(tools) - number
        # This tool counts twice, each later tool once. The last tool may take all that is left.
        share = tokens_left if tools_left == 1 else 2 * tokens_left // (tools_left + 1)
        for text in _make_forms(tool):
            if (tokens := estimate(text)) <= share:
                shown.append(text)
                tokens_left -= tokens
                break
    return '{"tools":[' + ",".join(shown) + "]}"


# Any: the values in tools and schemas are any JSON values.
def _make_forms(tool: RawTool) -> list[str]:
    """Return the JSON of a tool in several forms, from the longest to the shortest."""
    value: dict[str, Any] = decode(encode(tool))
    name = value.get("name")
    text = value.get("description")
    schema = value.get("inputSchema", {"type": "object"})
    whole = {"name": name, "description": text or "", "inputSchema": schema}
    short = {**whole, "description": summary_of(text) if isinstance(text, str) else ""}
    plain = {**short, "inputSchema": _without_notes(schema)}
    # The model can ask for the whole definition by searching for this name.
    least = {"name": name, "description": short["description"]}
    return [encode(form).decode() for form in (whole, short, plain, least, {"name": name})]


def _without_notes(schema: Any) -> Any:
    """Return a schema without the keywords in NOTES.

    An argument that has the name of such a keyword, for example `title`, is kept.
    """
    if isinstance(schema, list):
        return [_without_notes(item) for item in cast("list[Any]", schema)]
    if not isinstance(schema, Mapping):
        return schema
    short: dict[str, Any] = {}
    for key, value in cast("Mapping[str, Any]", schema).items():
        if key in ("properties", "$defs", "definitions") and isinstance(value, Mapping):
            members = cast("Mapping[str, Any]", value)
            short[key] = {name: _without_notes(own) for name, own in members.items()}
        elif key in ("enum", "const", "default", "required"):
            short[key] = value
        elif key not in NOTES:
            short[key] = _without_notes(value)
    return short
