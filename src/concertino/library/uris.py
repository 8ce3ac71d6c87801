"""Builds the URIs of a library's files, and parses the URIs that clients send.

    scheme://agents/_fragments/typescript-core     a file: its path without `.md`
    scheme://registry                              the registry: a catalogue of everything
    scheme://agents                                the catalogue of a category (first directory)
    scheme://match?query=...                       the result of a search
    scheme://agents/match?query=...                the result of a search in a category

The *key* of a URI is the part after `scheme://` and before `?`, percent-decoded once. A key is
looked up among the listed files; it is never used as a path of the file system.
"""

from __future__ import annotations

import os
import re
from urllib.parse import quote_from_bytes, unquote_to_bytes

REGISTRY = "registry"
MATCH = "match"
SUFFIX = ".md"

# The characters that a path may contain without escaping (RFC 3986 3.3).
UNQUOTED = "/-._~!$&'()*+,;=:@"

# Matches characters that a URI without a fragment must not contain (RFC 3986 appendix A).
INVALID_IN_URI = re.compile(r"[^A-Za-z0-9\-._~:/?@!$&'()*+,;=%]+|%(?![0-9A-Fa-f]{2})")

# The longest URI, without its scheme, and the longest key, in characters.
MAX_URI = 2**20
MAX_PATH = 4096


def key_of(path: str) -> str:
    """Return the key of a file, which is the part of its URI after `scheme://`.

    The key is the path without `.md`. Two kinds of files keep `.md`, because their URIs could
    otherwise mean something else:

    - a file at the top, whose URI could equal that of a category or of the registry;
    - a file whose URI would be `scheme://CATEGORY/match`, which means a search.

    path: the path relative to the directory of resources.
    """
    folder, _, name = path.rpartition("/")
    stem = name.removesuffix(SUFFIX)
    if not folder or not stem or (stem == MATCH and "/" not in folder):
        return path
    return f"{folder}/{stem}"


def uri_of(scheme: str, key: str) -> str:
    """Return the URI for a key, which is percent-encoded in the URI.

    key: the part after `scheme://`: the result of key_of(), or the name of a category.
    """
    return f"{scheme}://{quote_from_bytes(os.fsencode(key), UNQUOTED)}"


def split_uri(scheme: str, uri: str) -> tuple[str, str | None] | None:
    """Split a client's URI into its key and its query.

    The key is the part between `scheme://` and `?`, percent-decoded. The query is the undecoded
    part after `?`; None if there is no `?`.
    Returns None instead of the two values if the URI does not have this scheme, has a `#` before
    the `?`, or is too long.
    """
    prefix, separator, rest = uri.partition("://")
    if not separator or prefix.lower() != scheme or len(rest) > MAX_URI:
        return None
    path, question, query = rest.partition("?")
    try:
        decoded = os.fsdecode(unquote_to_bytes(path))
    except UnicodeError:
        return None
    # In a query, `#` belongs to the text, as in `query=C#`: clients do not always encode it.
    if len(decoded) > MAX_PATH or "#" in path:
        return None
    return decoded, query if question else None


def escape_uri(uri: str) -> str:
    """Return a client's URI with all invalid characters percent-encoded, for the response."""
    # Prompts insert values into URIs without encoding them, so clients send URIs with spaces.
    return INVALID_IN_URI.sub(lambda match: quote_from_bytes(match[0].encode(), ""), uri)


def singular(name: str) -> str:
    """Return the singular of a name: skills -> skill, policies -> policy; process stays."""
    if name.endswith("ies"):
        return f"{name[:-3]}y"
    return name[:-1] if name.endswith("s") and not name.endswith("ss") else name
