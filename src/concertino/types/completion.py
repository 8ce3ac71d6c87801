"""The params of `completion/complete`: which argument of what a client wants suggestions for.

Apart from results.py, because few servers complete arguments.
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
    """Names the prompt whose argument is completed."""

    name: str
    title: str | None = None


class ResourceTemplateReference(Struct, frozen=True, tag_field="type", tag="ref/resource"):
    """Names the resource template whose variable is completed. uri: the template."""

    uri: str


class CompletionArgument(Struct, frozen=True):
    """The argument to complete. value: what was typed so far."""

    name: str
    value: str


class CompletionContext(Struct, frozen=True, omit_defaults=True):
    """The arguments that were filled in already, by name. Since 2025-06-18."""

    arguments: dict[str, str] = {}


class CompleteParams(Struct, frozen=True, omit_defaults=True):
    """The params of `completion/complete`."""

    ref: PromptReference | ResourceTemplateReference
    argument: CompletionArgument
    context: CompletionContext = CompletionContext()
