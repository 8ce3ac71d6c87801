"""What a library says of itself as JSON: `registry`, everything by category, and one catalogue for each category."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from msgspec import Raw
from msgspec.json import encode

from concertino.library.document import Document
from concertino.library.document_registry import DocumentRegistry, Item
from concertino.library.tokens import Counter
from concertino.library.uris import MATCH, uri_of

__all__ = ["catalogue", "registry"]

MAX_BYTES = (
    4 * 2**20
)  # of entries; a message holds 10 MiB. resources/list has all of them, in pages


def registry(shelf: DocumentRegistry, scheme: str, count: Counter) -> str:
    """How much there is in each category, and every entry. One called `match` has no catalogue: its URI is that of a match."""
    items = shelf.items()
    categories = {
        name: [each for each in items if each.category == name] for name in shelf.categories()
    }
    return _written(
        {
            "scheme": scheme,
            "categories": [
                {
                    "category": name,
                    **({} if name == MATCH else {"uri": uri_of(scheme, name)}),
                    **_sums(some, count),
                }
                for name, some in categories.items()
            ],
            **_sums(items, count),
            **_entries(items, count),
        }
    )


def catalogue(shelf: DocumentRegistry, scheme: str, category: str, count: Counter) -> str:
    """Every entry of one category."""
    items = [each for each in shelf.items() if each.category == category]
    return _written(
        {
            "category": category,
            "uri": uri_of(scheme, category),
            "match": f"{uri_of(scheme, category)}/match?query=",
            **_sums(items, count),
            **_entries(items, count),
        }
    )


def _entry(item: Item, count: Counter) -> dict[str, Any]:
    if not isinstance(item, Document):
        return {"uri": item.uri, "size": item.size}
    shown: dict[str, Any] = {
        "uri": item.uri,
        "id": item.id,
        "title": item.title,
        "description": item.description,
    }
    shown |= {
        "category": item.category,
        "tags": item.tags,
        "capabilities": item.capabilities,
        "useWhen": item.use_when,
    }
    return {name: value for name, value in shown.items() if value} | {"tokens": count(item.body)}


def _sums(items: Iterable[Item], count: Counter) -> dict[str, int]:
    documents = [each for each in items if isinstance(each, Document)]
    return {"documents": len(documents), "tokens": sum(count(each.body) for each in documents)}


def _entries(items: list[Item], count: Counter) -> dict[str, Any]:
    """As many as there is room for, and how many more there are."""
    shown: list[Raw] = []
    size = 0
    for each in items:
        entry = encode(_entry(each, count))
        size += len(entry)
        if size > MAX_BYTES:
            break
        shown.append(Raw(entry))
    return {
        "resources": shown,
        **({"more": len(items) - len(shown)} if len(shown) < len(items) else {}),
    }


def _written(value: dict[str, Any]) -> str:
    return encode(value).decode()
