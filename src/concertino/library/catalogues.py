"""The catalogues of a library, which clients read as JSON resources.

`SCHEME://registry` lists all entries, and `SCHEME://CATEGORY` the entries of one category.
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
    """Return the registry: the size of each category, and every entry.

    A category with the name `match` has no catalogue, because its URI means a search.
    count: counts tokens.
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
                    **_sums(own, count),
                }
                for name, own in categories.items()
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
    """Return the catalogue of a category: its size and every entry. count: counts tokens."""
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
    documents = [item for item in items if isinstance(item, Document)]
    return {"documents": len(documents), "tokens": sum(count(doc.body) for doc in documents)}


def _entries(items: list[Item], count: Counter) -> dict[str, Any]:
    """Return as many entries as fit into MAX_BYTES, and the number of entries left out, if any."""
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
