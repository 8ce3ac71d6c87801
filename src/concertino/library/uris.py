"""URIs of a library: how a file's is made of its path, and what a URI from outside asks for.

A URI is decoded once, and what comes out is looked up among what was listed: it never becomes a path.

    scheme://agents/_fragments/typescript-core     a file: its path, without `.md`
    scheme://registry                              a catalogue of everything
    scheme://agents                                a catalogue of one category, the first folder of a path
    scheme://match?query=..., scheme://agents/match?query=...
                                                   what fits a query
"""

from __future__ import annotations

import os
import re
from urllib.parse import quote_from_bytes, unquote_to_bytes

__all__ = ["MATCH", "REGISTRY", "key_of", "parts_of", "uri_of", "written"]

REGISTRY = "registry"
MATCH = "match"
ENDING = ".md"
UNQUOTED = "/-._~!$&'()*+,;=:@"  # RFC 3986 3.3: what a path may hold as it is
NO_URI = re.compile(
    r"[^A-Za-z0-9\-._~:/?@!$&'()*+,;=%]+|%(?![0-9A-Fa-f]{2})"
)  # RFC 3986 appendix A; a fragment is not known here
MAX_PATH = 4096  # characters of a decoded path


def key_of(path: str) -> str:
    """What a file's URI names, decoded: its path, without `.md` where that cannot be a catalogue or a match.

    Of the path alone, so that no file's URI depends on which others there are.
    """
    folder, _, name = path.rpartition("/")
    stem = name.removesuffix(ENDING)
    if not folder or not stem or (stem == MATCH and "/" not in folder):
        return path
    return f"{folder}/{stem}"


def uri_of(scheme: str, key: str) -> str:
    """The URI of a key, or of a category."""
    return f"{scheme}://{quote_from_bytes(os.fsencode(key), UNQUOTED)}"


def parts_of(scheme: str, uri: str) -> tuple[str, str | None] | None:
    """A URI's path, decoded once, and its query, undecoded; None if it is no URI of this scheme."""
    begin, separator, rest = uri.partition("://")
    if not separator or begin.lower() != scheme or len(rest) > 2**20:
        return None
    path, question, query = rest.partition("?")
    try:
        decoded = os.fsdecode(unquote_to_bytes(path))
    except UnicodeError:
        return None
    if len(decoded) > MAX_PATH or "#" in path:
        return None
    return decoded, query if question else None


def written(uri: str) -> str:
    """A URI as it is to be written, of one that was asked for: prompts put values into queries as they are, with spaces and all."""
    return NO_URI.sub(lambda found: quote_from_bytes(found[0].encode(), ""), uri)
