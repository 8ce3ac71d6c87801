"""What is known of one Markdown file once it was read: where it is, what it says of itself, and its text.

How a file becomes one is in reading.py; how several are found among many is in index.py.
"""

from __future__ import annotations

from msgspec import Struct

__all__ = ["Document"]


class Document(Struct, frozen=True):
    """One Markdown file that can be found and read.

    uri: canonical, e.g. `orchestr8://agents/_fragments/typescript-core`; no two documents have the same. category: the first
    folder, `agents`; empty for a file that lies in no folder. id: of the front matter, else the file's name without its ending.
    title, description, tags, capabilities, use_when: of the front matter, else from headings and lists of the body; may be empty.
    body: the text without the front matter. estimated_tokens: what the front matter claims. related: what it names as related,
    as it is written there. path: of the file below its root, with `/`. size, mtime_ns, digest: of the file as it was read; two
    documents of the same digest hold the same bytes.
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
