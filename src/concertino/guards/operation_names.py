"""The names of operations, and the patterns with which options of guards select operations.

An operation is a tool (`NAME`), a prompt (`prompt:NAME`) or a resource (`resource:URI`). A pattern
is a case-sensitive glob (`*`, `?`, `[a-z]`) with the prefix `tool:`, `prompt:` or `resource:`, such
as `prompt:draft_*`. A pattern without a prefix is for tools, and must not contain a colon.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from fnmatch import fnmatchcase, translate
from typing import Any

from concertino.backend.methods import KINDS

__all__ = [
    "EVERYTHING",
    "Patterns",
    "Visibility",
    "operation_name",
]

# Patterns that match all operations.
EVERYTHING = ("*", "prompt:*", "resource:*")

_PATTERN = re.compile(r"(?:(tool|prompt|resource):)?(.+)", re.DOTALL)


class Patterns:
    """A set of patterns for operations (tools, prompts and resources).

        Patterns(("search_*", "prompt:*")).match("tool", "search_notes")     # True

    patterns: one pattern, or an iterable of patterns.
    Raises ValueError for an invalid pattern.

    Attributes:
    kinds: the kinds of operations that the patterns are for: "tool", "prompt", "resource".
    """

    def __init__(self, patterns: str | Iterable[str]) -> None:
        # Any: patterns come from users, so their types are checked at run time.
        items: Any = patterns
        if isinstance(items, str) or not hasattr(items, "__iter__"):
            items = (items,)
        globs: dict[str, list[str]] = {}
        # Triples of a pattern, its kind and its glob.
        self._patterns: list[tuple[str, str, str]] = []
        for pattern in items:
            kind, glob = _split_pattern(pattern)
            self._patterns.append((pattern, kind, glob))
            globs.setdefault(kind, []).append(translate(glob))
        self._match = {
            kind: re.compile("|".join(expressions)).match for kind, expressions in globs.items()
        }
        self.kinds = frozenset(globs)

    def unmatched(self, kind: str, names: Collection[str]) -> list[str]:
        """Return the patterns for one kind of operation that match none of `names`.

        kind: "tool", "prompt" or "resource".
        names: the names or URIs of all operations of this kind.
        """
        return [
            pattern
            for pattern, own_kind, glob in self._patterns
            if own_kind == kind and not any(fnmatchcase(name, glob) for name in names)
        ]

    def match(self, kind: str, name: str) -> bool:
        """Return whether a pattern matches an operation.

        kind: "tool", "prompt" or "resource".
        name: the name or URI of the operation, without a prefix.
        """
        match = self._match.get(kind)
        return match is not None and match(name) is not None

    def match_any_spelling(self, kind: str, name: str) -> bool:
        """Return whether a pattern matches a name, or at least one of two spellings of a URI.

        Use this method for patterns that deny. The two spellings are the URI itself and the
        percent-decoded URI. Both lead to the same resource, because URI templates decode URIs.
        kind: "tool", "prompt" or "resource".
        name: the name or URI of the operation, without a prefix.
        """
        return any(self.match(kind, spelling) for spelling in _spellings(kind, name))

    def match_all_spellings(self, kind: str, name: str) -> bool:
        """Return whether a pattern matches a name, or each of two spellings of a URI.

        Use this method for patterns that allow. The two spellings are the URI itself and the
        percent-decoded URI. The two spellings may match different patterns.
        kind: "tool", "prompt" or "resource".
        name: the name or URI of the operation, without a prefix.
        """
        return all(self.match(kind, spelling) for spelling in _spellings(kind, name))


def _spellings(kind: str, name: str) -> list[str]:
    """Return a name and, for a URI with percent-encoding, also the decoded URI."""
    if kind != "resource" or "%" not in name:
        return [name]
    # Imported here, because the import takes memory, and few servers need it.
    from urllib.parse import unquote

    return [name, unquote(name)]


class Visibility:
    """The `allow` and `deny` patterns of a Guard, which decide what clients may see and call.

    allow, deny: one pattern, or an iterable of patterns; () for none.
    Raises ValueError for an invalid pattern.

    Attributes:
    is_limited: whether there is any pattern. Without patterns, everything is visible.
    has_allow: whether there is an `allow` pattern.
    """

    def __init__(self, allow: str | Iterable[str], deny: str | Iterable[str]) -> None:
        self._allow = Patterns(allow)
        self._deny = Patterns(deny)
        self.is_limited = bool(self._allow.kinds or self._deny.kinds)
        self.has_allow = bool(self._allow.kinds)

    def unmatched(self, kind: str, names: Collection[str]) -> list[str]:
        """Return the `allow` patterns for one kind of operation that match none of `names`.

        kind: "tool", "prompt" or "resource".
        names: the names or URIs of all operations of this kind.
        """
        return self._allow.unmatched(kind, names)

    def allows(self, kind: str, name: str) -> bool:
        """Return whether clients may see and call an operation.

        kind: "tool", "prompt" or "resource".
        name: the name or URI of the operation.
        """
        # A client must not be able to avoid a pattern by percent-encoding. Therefore one spelling
        # of a URI that matches `deny` is enough, while both spellings must match `allow`.
        if kind in self._deny.kinds and self._deny.match_any_spelling(kind, name):
            return False
        return kind not in self._allow.kinds or self._allow.match_all_spellings(kind, name)


def operation_name(method: str, name: str) -> str:
    """Return an operation's name with its prefix, as in patterns.

    Examples are `prompt:greet` for a prompt, and `add` for a tool, which needs no prefix.
    method: the method that calls the operation, such as "prompts/get".
    name: the name or URI of the operation.
    """
    kind = KINDS[method]
    return name if kind == "tool" else f"{kind}:{name}"


def _split_pattern(pattern: Any) -> tuple[str, str]:
    """Split a pattern into the kind of its operations and its glob.

    Raises ValueError for an invalid pattern.
    """
    if not isinstance(pattern, str) or (match := _PATTERN.fullmatch(pattern)) is None:
        raise ValueError(
            f"expected a glob like 'search_*', 'prompt:*' or 'resource:notes://*', got {pattern!r}"
        )
    # Names of tools have no colons, so a `deny` pattern like this would silently hide nothing.
    if match[1] is None and ":" in pattern:
        raise ValueError(
            "expected tool:, prompt: or resource: before a name with a colon, "
            f"such as {'resource:' + pattern!r}, got {pattern!r}"
        )
    return match[1] or "tool", match[2]
