"""The methods that call or list operations, for backends that look into the calls they forward."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from concertino.types.results import (
    ListPromptsResult,
    ListResourcesResult,
    ListResourceTemplatesResult,
    ListToolsResult,
)

__all__ = ["KINDS", "LIST_METHODS", "ListMethod"]

# The methods that call one operation, and the kind of operation.
KINDS: Mapping[str, str] = {
    "tools/call": "tool",
    "prompts/get": "prompt",
    "resources/read": "resource",
}


class ListMethod(Struct, frozen=True):
    """A method that lists operations, or templates of them.

    kind: tool, prompt or resource.
    member: the member of its result that holds the items.
    name_member: the member of an item that names it.
    """

    kind: str
    result_type: type[Struct]
    member: str
    name_member: str


LIST_METHODS: Mapping[str, ListMethod] = {
    "tools/list": ListMethod("tool", ListToolsResult, "tools", "name"),
    "prompts/list": ListMethod("prompt", ListPromptsResult, "prompts", "name"),
    "resources/list": ListMethod("resource", ListResourcesResult, "resources", "uri"),
    "resources/templates/list": ListMethod(
        "resource", ListResourceTemplatesResult, "resource_templates", "uri_template"
    ),
}
