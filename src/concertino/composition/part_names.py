"""PartNames: makes the names of a composition's tools and prompts that clients see.

A composition serves several backends, its parts, as one. Two parts may have a tool of the same
name. So clients see the names of tools with a prefix for the part, such as `math_add`. compose()
uses PrefixNames. For the servers that a file such as mcp.json lists, BoundedNames is used, because
users choose the names in these files freely.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable
from hashlib import sha256
from typing import Protocol

__all__ = ["BoundedNames", "PartNames", "PrefixNames"]

log = logging.getLogger("concertino.composition")

# The longest name of a tool that the models of all vendors, and the hosts, accept.
MAX_NAME = 64
# The longest prefix. It leaves half of the name for the part's own name of the tool.
MAX_PREFIX = 32
# The length of the hash at the end of a shortened name.
HASH_CHARS = 8


class PartNames(Protocol):
    """Makes the names that clients see for the tools and prompts of all parts.

    A composition serves several backends, its parts, as one. Two parts may use the same name for a
    tool; clients see two different names.
    """

    def set_parts(self, parts: Iterable[str]) -> None:
        """Replace the parts of the composition.

        parts: the names of the parts. If two names give the same prefix, the first part gets this
            prefix, and the second part a different prefix.
        """
        ...

    def show(self, part: str, own_name: str) -> str:
        """Return the name that clients see for a tool or prompt.

        part: the name of the part, which may have been removed: results of its last calls may still
            contain names.
        own_name: the part's own name of the tool or prompt.
        """
        ...

    def find(self, name: str) -> tuple[str, str] | None:
        """Return the part that has a tool or prompt, and the part's own name of this item.

        Only the prefix of the name is examined, so the part need not have such a tool or prompt.
        Returns None if the name does not begin with the prefix of a part.
        name: the name that the client has sent, such as `math_add`.
        """
        ...

    def can_find(self, name: str) -> bool:
        """Return whether find() knows the whole name behind a name that a client has sent.

        show() shortens long names, and find() knows only those that show() has shortened in this
        run of the program. A client may have a shortened name from an earlier run. If this method
        returns False, call show() for all tools and prompts of the part before find().
        """
        ...

    def uri_prefix(self, part: str) -> str:
        """Return the prefix of a part for URIs and task ids, without the `+` that follows it.

        A URI gets the prefix only if another part has listed the same URI before. A task id always
        gets the prefix.
        """
        ...


class PrefixNames:
    """Makes names of the form `PART_NAME`, such as `math_add`. Implements PartNames.

    The name of a part must not begin with another part's name and `_`; compose() checks this. So
    each name of a tool belongs to one part.
    """

    def __init__(self, parts: Iterable[str]) -> None:
        self._parts = frozenset(parts)

    def set_parts(self, parts: Iterable[str]) -> None:
        self._parts = frozenset(parts)

    def show(self, part: str, own_name: str) -> str:
        return f"{part}_{own_name}"

    def find(self, name: str) -> tuple[str, str] | None:
        # The split is unique, because no part's name begins with another part's name and `_`.
        at = name.find("_")
        while at > 0:
            if name[:at] in self._parts:
                return name[:at], name[at + 1 :]
            at = name.find("_", at + 1)
        return None

    def can_find(self, name: str) -> bool:
        return True

    def uri_prefix(self, part: str) -> str:
        return part


class BoundedNames:
    """Makes names of the form `PREFIX_NAME` that all models accept: at most 64 characters.

    Implements PartNames. The parts may have any names:

    - The prefix is the name of the part, with `-` in place of all characters but letters and
      digits. A prefix has no underscore, so the first underscore of a name ends the prefix.
    - If two parts would have the same prefix, the second one gets `-2` at its end.
    - A name that is too long is cut, and ends with a hash of the whole name. The result is the same
      in each run of the program.

    Attributes:
    prefixes: name of a part -> its prefix.
    """

    def __init__(self, parts: Iterable[str] = ()) -> None:
        self.prefixes: dict[str, str] = {}
        # Part that has been removed -> its prefix, for the results of its last calls.
        self._former: dict[str, str] = {}
        # Prefix -> part.
        self._parts: dict[str, str] = {}
        # Shortened name -> the part, and the part's own name.
        self._shortened: dict[str, tuple[str, str]] = {}
        self.set_parts(parts)

    def set_parts(self, parts: Iterable[str]) -> None:
        prefixes: dict[str, str] = {}
        # Prefix in lower case -> part. Some hosts treat names as equal that differ only in case.
        owners: dict[str, str] = {}
        for part in parts:
            plain = prefix = _make_prefix(part)
            number = 2
            while prefix.lower() in owners:
                prefix = f"{plain}-{number}"
                number += 1
            # Warn only if the part did not have this prefix before.
            if prefix != plain and self.prefixes.get(part) != prefix:
                owner = owners[plain.lower()]
                log.warning(
                    "%s: its tools are named %s_..., because those of %s are named %s_...; rename "
                    "one of the two",
                    part,
                    prefix,
                    owner,
                    prefixes[owner],
                )
            owners[prefix.lower()] = part
            prefixes[part] = prefix
        self._former |= self.prefixes
        self.prefixes = prefixes
        self._parts = {prefix: part for part, prefix in prefixes.items()}
        self._shortened = {
            name: found for name, found in self._shortened.items() if found[0] in prefixes
        }

    def show(self, part: str, own_name: str) -> str:
        name = f"{self._prefix(part)}_{own_name}"
        if len(name) <= MAX_NAME:
            return name
        # surrogatepass: a name in JSON may contain half of a surrogate pair.
        digest = sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:HASH_CHARS]
        shortened = f"{name[: MAX_NAME - HASH_CHARS - 1]}_{digest}"
        if part in self.prefixes:
            self._shortened[shortened] = part, own_name
        return shortened

    def find(self, name: str) -> tuple[str, str] | None:
        if (found := self._shortened.get(name)) is not None:
            return found
        prefix, _, own_name = name.partition("_")
        part = self._parts.get(prefix)
        return None if part is None else (part, own_name)

    def can_find(self, name: str) -> bool:
        # A name that was shortened always has MAX_NAME characters.
        return len(name) < MAX_NAME or name in self._shortened

    def uri_prefix(self, part: str) -> str:
        # RFC 3986 section 3.1: a scheme begins with a letter, and is not case-sensitive.
        prefix = self._prefix(part).lower()
        return prefix if prefix[0].isalpha() else f"s{prefix}"

    def _prefix(self, part: str) -> str:
        return self.prefixes.get(part) or self._former[part]


def _make_prefix(part: str) -> str:
    """Return the prefix for a part, without regard to the prefixes of other parts.

    A prefix that is too long is cut, and ends with a hash of the part's name.
    """
    plain = re.sub(r"[^A-Za-z0-9]+", "-", part).strip("-") or "server"
    if len(plain) <= MAX_PREFIX:
        return plain
    # The hash and the hyphen before it are the last five characters.
    digest = sha256(part.encode("utf-8", "surrogatepass")).hexdigest()[:4]
    return f"{plain[: MAX_PREFIX - 5]}-{digest}"
