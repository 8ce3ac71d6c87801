"""Resources, prompts and completions in their 2026-07-28 shape, as msgspec Structs.

An attribute such as mime_type is mimeType on the wire, and meta is `_meta`. A server that has only
tools never imports this module.
Spec: 2026-07-28 schema; server/resources, server/prompts, server/utilities/completion.
"""

# No `from __future__ import annotations` here: msgspec compiles annotations that are strings when
# it decodes their Struct, in 10 us each.

from msgspec import Struct, field

from concertino.types.results import Annotations, ContentBlock, Icon, ListResult, Meta, Role

__all__ = [
    "CompleteResult",
    "Completion",
    "GetPromptResult",
    "ListPromptsResult",
    "ListResourceTemplatesResult",
    "ListResourcesResult",
    "Prompt",
    "PromptArgument",
    "PromptMessage",
    "Resource",
    "ResourceTemplate",
]


class Resource(Struct, frozen=True, omit_defaults=True, repr_omit_defaults=True, rename="camel"):
    """A resource as `resources/list` returns it.

    name, title: the name for programs, and the name for people.
    mime_type: the type of its content; None if it is not known.
    size: the size of its content in bytes; None if it is not known.
    """

    uri: str
    name: str
    title: str | None = None
    description: str | None = None
    mime_type: str | None = None
    size: int | None = None
    annotations: Annotations | None = None
    icons: list[Icon] | None = None
    meta: Meta | None = field(name="_meta", default=None)


class ResourceTemplate(
    Struct, frozen=True, omit_defaults=True, repr_omit_defaults=True, rename="camel"
):
    """A resource template as `resources/templates/list` returns it.

    uri_template: an RFC 6570 template for the URIs of its resources.
    mime_type: the type of the content; None if the resources have different types.
    """

    uri_template: str
    name: str
    title: str | None = None
    description: str | None = None
    mime_type: str | None = None
    annotations: Annotations | None = None
    icons: list[Icon] | None = None
    meta: Meta | None = field(name="_meta", default=None)


class ListResourcesResult(
    ListResult, frozen=True, omit_defaults=True, repr_omit_defaults=True, rename="camel"
):
    """One page of the available resources. Resources of templates are not in this list."""

    resources: list[Resource]
    next_cursor: str | None = None
    meta: Meta | None = field(name="_meta", default=None)


class ListResourceTemplatesResult(
    ListResult, frozen=True, omit_defaults=True, repr_omit_defaults=True, rename="camel"
):
    """One page of the available resource templates."""

    resource_templates: list[ResourceTemplate]
    next_cursor: str | None = None
    meta: Meta | None = field(name="_meta", default=None)


class PromptArgument(Struct, frozen=True, omit_defaults=True, repr_omit_defaults=True):
    """An argument of a prompt. Clients send its value as a string.

    required: whether the client must send the argument; None means the same as False.
    """

    name: str
    title: str | None = None
    description: str | None = None
    required: bool | None = None


class Prompt(Struct, frozen=True, omit_defaults=True, repr_omit_defaults=True):
    """A prompt as `prompts/list` returns it."""

    name: str
    title: str | None = None
    description: str | None = None
    arguments: list[PromptArgument] | None = None
    icons: list[Icon] | None = None
    meta: Meta | None = field(name="_meta", default=None)


class PromptMessage(Struct, frozen=True):
    """A message of a prompt, with one content block.

    role: the speaker, "user" or "assistant".
    """

    role: Role
    content: ContentBlock


class GetPromptResult(Struct, frozen=True, omit_defaults=True, repr_omit_defaults=True):
    """The result of prompts/get: the messages of a prompt, with its arguments filled in."""

    messages: list[PromptMessage]
    description: str | None = None
    meta: Meta | None = field(name="_meta", default=None)


class ListPromptsResult(
    ListResult, frozen=True, omit_defaults=True, repr_omit_defaults=True, rename="camel"
):
    """One page of the available prompts."""

    prompts: list[Prompt]
    next_cursor: str | None = None
    meta: Meta | None = field(name="_meta", default=None)


class Completion(Struct, frozen=True, omit_defaults=True, repr_omit_defaults=True, rename="camel"):
    """Suggested values for an argument.

    values: the suggested values; the client gets at most 100.
    total: how many values there are in all; None if that is not known.
    has_more: whether there are more values than these.
    """

    values: list[str]
    total: int | None = None
    has_more: bool | None = None


class CompleteResult(Struct, frozen=True, omit_defaults=True, repr_omit_defaults=True):
    """The result of `completion/complete`."""

    completion: Completion
    meta: Meta | None = field(name="_meta", default=None)
