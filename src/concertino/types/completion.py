"""The params of `completion/complete`: the argument for which a client wants suggestions.

These types are not in results.py, because few servers need them.
Spec: 2026-07-28 server/utilities/completion.
"""

from __future__ import annotations

from msgspec import Struct

__all__ = [
    "CompleteParams",
    "CompletionArgument",
    "CompletionContext",
    "PromptReference",
    "ResourceTemplateReference",
]


class PromptReference(Struct, frozen=True, omit_defaults=True, tag_field="type", tag="ref/prompt"):
    """Names the prompt for whose argument the client wants suggestions."""

    name: str
    title: str | None = None


class ResourceTemplateReference(Struct, frozen=True, tag_field="type", tag="ref/resource"):
    """Names the resource template for whose variable the client wants suggestions.

    uri: the URI template.
    """

    uri: str


class CompletionArgument(Struct, frozen=True):
    """The argument to complete.

    name: the argument of the prompt, or the variable of the template.
    value: the text that the user has typed so far.
    """

    name: str
    value: str


class CompletionContext(Struct, frozen=True, omit_defaults=True):
    """The values of other arguments that the user has filled in already. Since 2025-06-18."""

    arguments: dict[str, str] = {}


class CompleteParams(Struct, frozen=True, omit_defaults=True):
    """The params of `completion/complete`."""

    ref: PromptReference | ResourceTemplateReference
    argument: CompletionArgument
    context: CompletionContext = CompletionContext()
