"""URIs of a library: the URI of a file, and parsing a URI from a client.

    scheme://agents/_fragments/typescript-core     a file: its path without `.md`
    scheme://registry                              a catalogue of everything
    scheme://agents                                a catalogue of one category (first folder)
    scheme://match?query=..., scheme://agents/match?query=...
                                                   the documents that match a query

The *key* of a URI is its decoded path. A URI is decoded once, and its key is looked up among the
listed files: it is never used as a path of the file system.
"""

from __future__ import annotations

import os
import re
from urllib.parse import quote_from_bytes, unquote_to_bytes

REGISTRY = "registry"
MATCH = "match"
SUFFIX = ".md"

# RFC 3986 3.3: the characters that a path may contain unescaped.
UNQUOTED = "/-._~!$&'()*+,;=:@"

# RFC 3986 appendix A: everything that a URI without fragment must not contain.
INVALID_IN_URI = re.compile(r"[^A-Za-z0-9\-._~:/?@!$&'()*+,;=%]+|%(?![0-9A-Fa-f]{2})")

# Characters; of a URI after its scheme, and of its decoded path.
MAX_URI = 2**20
MAX_PATH = 4096


def key_of(path: str) -> str:
    """Return the key of a file's URI: its path, without `.md` unless the result would be reserved.

    A file at the top keeps its suffix, since its key could be a category or `registry`. The key
    depends on the path alone, so that adding a file never changes the URI of another one.
    """
    folder, _, name = path.rpartition("/")
    stem = name.removesuffix(SUFFIX)
    if not folder or not stem or (stem == MATCH and "/" not in folder):
        return path
    return f"{folder}/{stem}"


def uri_of(scheme: str, key: str) -> str:
    """Return the URI of a key or a category."""
    return f"{scheme}://{quote_from_bytes(os.fsencode(key), UNQUOTED)}"


def split_uri(scheme: str, uri: str) -> tuple[str, str | None] | None:
    """Return a URI's decoded path (its key) and its query, still encoded and None without `?`.

    None if it is not a URI of this scheme, has a fragment or is too long.
    """
    prefix, separator, rest = uri.partition("://")
    if not separator or prefix.lower() != scheme or len(rest) > MAX_URI:
        return None
    path, question, query = rest.partition("?")
    try:
        decoded = os.fsdecode(unquote_to_bytes(path))
    except UnicodeError:
        return None
    if len(decoded) > MAX_PATH or "#" in path:
        return None
    return decoded, query if question else None


def escape_uri(uri: str) -> str:
    """Return a client's URI in a valid form, for the response.

    Prompts insert values into queries unescaped, so a URI may contain characters such as spaces.
    """
    return INVALID_IN_URI.sub(lambda match: quote_from_bytes(match[0].encode(), ""), uri)


def singular(name: str) -> str:
    """Return the singular of a category's name: one form for `skill` and `skills`.

    Also `policies` -> `policy`; `process` stays.
    """
    if name.endswith("ies"):
        return f"{name[:-3]}y"
    return name[:-1] if name.endswith("s") and not name.endswith("ss") else name
