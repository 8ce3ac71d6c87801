"""Document: one parsed Markdown file of a library.

file_parsing.py creates Documents, document_registry.py finds them by URI, and index.py searches
them.
"""

from __future__ import annotations

from msgspec import Struct


class Document(Struct, frozen=True):
    """One Markdown file that can be searched and read.

    uri: the URI that follows from the path, such as
        `orchestr8://agents/_fragments/typescript-core`. In a URI, clients may also use shorter
        names of the document (aliases, document_registry.py).
    category: the first directory of the path, such as `agents`; "" for a file at the top.
    id: the value in the front matter, or else the file's name without its suffix.
    title: the value in the front matter, or else the first heading, or else the file's name.
    description: the value in the front matter, or else the first paragraph; "" if there is none.
    tags: the value in the front matter; () if there is none.
    capabilities: what the document helps with, from the front matter or from a list below a heading
        "Capabilities"; () if there is none.
    use_when: for which tasks to read the document, from the front matter or from a list below a
        heading "When to use"; () if there is none.
    body: the text without the front matter.
    estimated_tokens: the author's value in the front matter, which may be wrong; None if there is
        none.
    related: the value in the front matter, unchanged: URIs or ids of other documents.
    path: the path relative to the directory of resources, with `/` as separator.
    size: the size of the file, in bytes.
    mtime_ns: the modification time of the file, in nanoseconds.
    digest: a hash of the file's bytes.
    """

    uri: str
    category: str
    id: str
    title: str
    description: str
    tags: tuple[str, ...]
    capabilities: tuple[str, ...]
    use_when: tuple[str, ...]
    body: str
    estimated_tokens: int | None
    related: tuple[str, ...]
    path: str
    size: int
    mtime_ns: int
    digest: str
