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
    """A method that lists tools, prompts, resources or resource templates.

    kind: the kind of the items: "tool", "prompt" or "resource". Resource templates count as
        "resource".
    result_type: the class of the method's result.
    member: the attribute of the result that contains the items, such as `resource_templates`.
    name_member: the attribute of an item with its name or URI, such as `uri_template`.
    json_member, json_name_member: the JSON names of these two attributes, such as
        `resourceTemplates` and `uriTemplate`.
    """

    kind: str
    result_type: type[Struct]
    member: str
    name_member: str
    json_member: str
    json_name_member: str


LIST_METHODS: Mapping[str, ListMethod] = {
    "tools/list": ListMethod(
        kind="tool",
        result_type=ListToolsResult,
        member="tools",
        name_member="name",
        json_member="tools",
        json_name_member="name",
    ),
    "prompts/list": ListMethod(
        kind="prompt",
        result_type=ListPromptsResult,
        member="prompts",
        name_member="name",
        json_member="prompts",
        json_name_member="name",
    ),
    "resources/list": ListMethod(
        kind="resource",
        result_type=ListResourcesResult,
        member="resources",
        name_member="uri",
        json_member="resources",
        json_name_member="uri",
    ),
    "resources/templates/list": ListMethod(
        kind="resource",
        result_type=ListResourceTemplatesResult,
        member="resource_templates",
        name_member="uri_template",
        json_member="resourceTemplates",
        json_name_member="uriTemplate",
    ),
}
