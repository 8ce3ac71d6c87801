"""Document: one parsed Markdown file of a library.

file_parsing.py creates Documents, document_registry.py finds them by URI, and index.py searches
them.
"""

from __future__ import annotations

from msgspec import Struct


class Document(Struct, frozen=True):
    """One Markdown file that can be searched and read.

    uri: the URI that follows from the path, such as
        `orchestr8://agents/_fragments/typescript-core`. Clients may also use other names of the
        document in a URI.
    category: the first folder of the path, such as `agents`; "" for a file at the top.
    id: from the front matter, or else the file's name without its suffix.
    title, description, tags, capabilities, use_when: from the front matter, or else from headings
        and lists of the body; may be empty. `capabilities` say what the document helps with,
        `use_when` for which tasks to read it.
    body: the text without the front matter.
    estimated_tokens: the author's value in the front matter, which may be wrong; None if it has
        none.
    related: the URIs or ids of other documents in the front matter, unchanged.
    path: the path relative to the folder of resources, with `/` as separator.
    size: the size of the file, in bytes.
    mtime_ns: the modification time of the file.
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
