"""What a guard is about: the operations of a backend by name, and patterns of their names.

A tool is meant by its name, a prompt by `prompt:NAME`, a resource by `resource:URI`. A pattern is a glob (`*`, `?`, `[a-z]`) and
case counts; without one of the three prefixes it is about tools, and then it has no colon.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from fnmatch import translate
from typing import Any
from urllib.parse import unquote

from msgspec import DecodeError, Struct
from msgspec.json import Decoder

from concertino.backend.interface import Call
from concertino.types.results import (
    ListPromptsResult,
    ListResourcesResult,
    ListResourceTemplatesResult,
    ListToolsResult,
)

__all__ = ["EVERYTHING", "LISTS", "NAMED", "Listed", "Patterns", "named", "operation"]

EVERYTHING = ("*", "prompt:*", "resource:*")
# What is called by name: method -> what it is called here, and the member of params that names it.
NAMED = {
    "tools/call": ("tool", "name"),
    "prompts/get": ("prompt", "name"),
    "resources/read": ("resource", "uri"),
}
_text = Decoder(str).decode
_PATTERN = re.compile(r"(?:(tool|prompt|resource):)?(.+)", re.DOTALL)


class Listed(Struct, frozen=True):
    """One of the lists: the kind of what it holds, its result, the member that holds the items, and what names one."""

    kind: str
    shape: type[Struct]
    member: str
    name: str


LISTS = {
    "tools/list": Listed("tool", ListToolsResult, "tools", "name"),
    "prompts/list": Listed("prompt", ListPromptsResult, "prompts", "name"),
    "resources/list": Listed("resource", ListResourcesResult, "resources", "uri"),
    "resources/templates/list": Listed(
        "resource", ListResourceTemplatesResult, "resource_templates", "uri_template"
    ),
}


class Patterns:
    """Globs of operations. kinds: those that they are about. Raises ValueError for what is no pattern."""

    def __init__(self, patterns: str | Iterable[str]) -> None:
        globs: dict[str, list[str]] = {}
        given: Any = patterns  # whatever an author gave
        several: Iterable[Any] = (
            (given,) if isinstance(given, str) or not hasattr(given, "__iter__") else given
        )
        for pattern in several:
            if not isinstance(pattern, str) or (found := _PATTERN.fullmatch(pattern)) is None:
                raise ValueError(
                    f"expected a glob like 'search_*', 'prompt:*' or 'resource:notes://*', got {pattern!r}"
                )
            if (
                found[1] is None and ":" in pattern
            ):  # it would be about no tool, so `deny` would hide nothing
                raise ValueError(
                    "expected tool:, prompt: or resource: before a name with a colon, "
                    f"such as {'resource:' + pattern!r}, got {pattern!r}"
                )
            globs.setdefault(found[1] or "tool", []).append(translate(found[2]))
        self._match = {kind: re.compile("|".join(each)).match for kind, each in globs.items()}
        self.kinds = frozenset(globs)

    def match(self, kind: str, name: str) -> bool:
        """Whether one of them is about this."""
        match = self._match.get(kind)
        return match is not None and match(name) is not None

    def match_any(self, kind: str, name: str) -> bool:
        """As match(), and a URI also in the spelling that a template would read: without its per cent escapes."""
        return self.match(kind, name) or (
            kind == "resource" and "%" in name and self.match(kind, unquote(name))
        )

    def match_all(self, kind: str, name: str) -> bool:
        """As match(), of a URI in both spellings."""
        return self.match(kind, name) and (
            kind != "resource" or "%" not in name or self.match(kind, unquote(name))
        )


def named(call: Call) -> str | None:
    """What a call names: a tool, a prompt, a URI; None for lists, and for what cannot be read."""
    try:
        return _text(call.params[NAMED[call.method][1]])
    except (KeyError, DecodeError, UnicodeError):
        return None


def operation(method: str, name: str) -> str:
    """How it is called in patterns, and to people."""
    kind = NAMED[method][0]
    return name if kind == "tool" else f"{kind}:{name}"
