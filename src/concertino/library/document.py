"""Document: one parsed Markdown file. file_parsing.py creates Documents; index.py searches them."""

from __future__ import annotations

from msgspec import Struct


class Document(Struct, frozen=True):
    """One Markdown file that can be searched and read.

    uri: canonical and unique, e.g. `orchestr8://agents/_fragments/typescript-core`.
    category: the first folder, e.g. `agents`; empty for a file at the top.
    id: from the front matter, else the file's name without its suffix.
    title, description, tags, capabilities, use_when: from the front matter, else from headings and
        lists of the body; may be empty.
    body: the text without the front matter.
    estimated_tokens: the value in the front matter, which may be wrong.
    related: URIs or ids from the front matter, unchanged.
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
