"""Renders the catalogues of a library, which clients read as JSON resources.

A catalogue lists files, each with its URI, title, description and so on. `SCHEME://registry` lists
all files, and `SCHEME://CATEGORY` the files of one category, which is a directory at the top.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from msgspec import Raw
from msgspec.json import encode

from concertino.library.document import Document
from concertino.library.document_registry import DocumentRegistry, Item
from concertino.library.tokens import Counter
from concertino.library.uris import MATCH, uri_of

# The largest size of a catalogue, since a message may have 10 MiB. Entries beyond it are left out;
# `resources/list` returns all entries, in pages.
MAX_BYTES = 4 * 2**20


def render_registry(documents: DocumentRegistry, scheme: str, count: Counter) -> str:
    """Return the registry, as JSON: the categories, and all files with URI, title and so on.

    Each category has the number of its documents, the number of their tokens, and the URI of its
    catalogue. Only a category named `match` has no URI, because `SCHEME://match` is a search.

    documents: the files of the library.
    scheme: the scheme of the library's URIs.
    count: counts the tokens of a text.
    """
    items = documents.items()
    categories = {
        name: [item for item in items if item.category == name] for name in documents.categories()
    }
    return _encode(
        {
            "scheme": scheme,
            "categories": [
                {
                    "category": name,
                    **({} if name == MATCH else {"uri": uri_of(scheme, name)}),
                    **_sums(members, count),
                }
                for name, members in categories.items()
            ],
            **_sums(items, count),
            **_entries(items, count),
        }
    )


def render_category(
    documents: DocumentRegistry,
    scheme: str,
    category: str,
    count: Counter,
) -> str:
    """Return the catalogue of a category, as JSON: all its files with URI, title and so on.

    The catalogue also has the number of documents, and the number of their tokens.

    documents: the files of the library.
    scheme: the scheme of the library's URIs.
    category: the name of the category, which is a directory at the top.
    count: counts the tokens of a text.
    """
    items = [item for item in documents.items() if item.category == category]
    return _encode(
        {
            "category": category,
            "uri": uri_of(scheme, category),
            "match": f"{uri_of(scheme, category)}/match?query=",
            **_sums(items, count),
            **_entries(items, count),
        }
    )


def _sums(items: Iterable[Item], count: Counter) -> dict[str, int]:
    """Return how many of the files are documents, and how many tokens the documents have."""
    documents = [item for item in items if isinstance(item, Document)]
    return {"documents": len(documents), "tokens": sum(count(doc.body) for doc in documents)}


def _entries(items: list[Item], count: Counter) -> dict[str, Any]:
    """Return the field `resources` with as many entries as fit into MAX_BYTES.

    If entries are left out, the field `more` has their number.
    """
    entries: list[Raw] = []
    size = 0
    for item in items:
        entry = encode(_entry(item, count))
        size += len(entry)
        if size > MAX_BYTES:
            break
        entries.append(Raw(entry))
    omitted = len(items) - len(entries)
    return {"resources": entries, **({"more": omitted} if omitted else {})}


def _entry(item: Item, count: Counter) -> dict[str, Any]:
    """Return the entry of a file, without empty fields."""
    if not isinstance(item, Document):
        return {"uri": item.uri, "size": item.size}
    fields: dict[str, Any] = {
        "uri": item.uri,
        "id": item.id,
        "title": item.title,
        "description": item.description,
        "category": item.category,
        "tags": item.tags,
        "capabilities": item.capabilities,
        "useWhen": item.use_when,
    }
    return {name: value for name, value in fields.items() if value} | {"tokens": count(item.body)}


def _encode(value: dict[str, Any]) -> str:
    return encode(value).decode()
