"""Tables of the MCP methods that call or list tools, prompts and resources ("operations").

Backends that forward calls, such as those of compose() and guards, use the tables to find the name
in a call or the items in a list.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from concertino.types.resources_and_prompts import (
    ListPromptsResult,
    ListResourcesResult,
    ListResourceTemplatesResult,
)
from concertino.types.results import ListToolsResult

__all__ = ["KINDS", "LIST_METHODS", "ListMethod"]

# Method that calls one operation -> the kind of the operation.
KINDS: Mapping[str, str] = {
    "tools/call": "tool",
    "prompts/get": "prompt",
    "resources/read": "resource",
}


class ListMethod(Struct, frozen=True):
    """A method that lists operations or resource templates.

    kind: what the items are: "tool", "prompt" or "resource", which includes resource templates.
    result_type: the class of the method's result.
    member: the attribute of the result that contains the items, such as `resource_templates`.
    name_member: the attribute of an item that identifies it, such as `uri_template`.
    json_member, json_name_member: the names of these two attributes in JSON.
    """

    kind: str
    result_type: type[Struct]
    member: str
    name_member: str
    json_member: str
    json_name_member: str


LIST_METHODS: Mapping[str, ListMethod] = {
    "tools/list": ListMethod("tool", ListToolsResult, "tools", "name", "tools", "name"),
    "prompts/list": ListMethod("prompt", ListPromptsResult, "prompts", "name", "prompts", "name"),
    "resources/list": ListMethod(
        "resource", ListResourcesResult, "resources", "uri", "resources", "uri"
    ),
    "resources/templates/list": ListMethod(
        "resource",
        ListResourceTemplatesResult,
        "resource_templates",
        "uri_template",
        "resourceTemplates",
        "uriTemplate",
    ),
}
