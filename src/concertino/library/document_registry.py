"""What a library holds now, by URI and by alias; its categories, its prompts, and its lists.

A canonical URI is of its path and is one file's alone. An alias is any shorter or other way to say it: with `.md`, by id, by name,
by category and id. What two files could be meant by is ambiguous, and an error that names both. One lock; any thread.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from typing import Generic, TypeVar

from msgspec import Struct

from concertino.library.document import Document
from concertino.library.file_parsing import ParsedFile
from concertino.library.prompt_files import PromptFile
from concertino.library.uris import MATCH, REGISTRY, key_of

__all__ = ["Ambiguous", "Change", "DocumentRegistry", "Item", "ListPage"]

Item = Document | ParsedFile
T = TypeVar("T")


class Change(Struct):
    """What is new or other, and what is gone, by path. links: other names of files; None if they are as they were."""

    items: dict[str, Item] = {}
    gone: set[str] = set()
    prompts: dict[str, PromptFile] = {}
    prompts_gone: set[str] = set()
    links: dict[str, str] | None = None

    def __bool__(self) -> bool:
        return bool(
            self.items or self.gone or self.prompts or self.prompts_gone or self.links is not None
        )


class Ambiguous(Exception):
    """candidates: the URIs that could be meant, sorted."""

    def __init__(self, candidates: list[str]) -> None:
        super().__init__(", ".join(candidates))
        self.candidates = candidates


class ListPage(Struct, Generic[T]):
    """Some of a list. last: the name of the last one if there are more."""

    entries: list[T]
    last: str | None


class DocumentRegistry:
    """Starts empty; apply() is the one way to change it."""

    def __init__(self) -> None:
        self._items: dict[str, Item] = {}  # by path
        self._keys: dict[str, str] = {}  # canonical key -> path
        self._aliases: dict[str, set[str]] = {}  # -> paths
        self._links: dict[str, str] = {}  # path of a link -> path
        self._prompts: dict[str, PromptFile] = {}  # by path
        self._sorted: tuple[list[str], list[Item]] | None = None
        self._named: dict[str, PromptFile] | None = None
        self._counts: dict[str, int] = {}  # category -> items
        self._lock = threading.Lock()

    # Changing

    def apply(self, change: Change) -> None:
        with self._lock:
            for path in (*change.gone, *change.items):
                self._drop(path)
            for path, item in change.items.items():
                self._put(path, item)
            if change.links is not None:
                self._links = change.links
            if change.items or change.gone:
                self._sorted = None
            for path in change.prompts_gone:
                self._prompts.pop(path, None)
            self._prompts.update(change.prompts)
            if change.prompts or change.prompts_gone:
                self._named = None

    def _put(self, path: str, item: Item) -> None:
        self._items[path] = item
        if item.category:
            self._counts[item.category] = self._counts.get(item.category, 0) + 1
        key = key_of(path)
        other = self._keys.get(key)
        if other is None or (
            isinstance(item, Document) and isinstance(self._items[other], ParsedFile)
        ):
            self._keys[key] = path  # `notes` beside `notes.md`: the document has the URI
        for alias in aliases_of(item):
            self._aliases.setdefault(alias, set()).add(path)

    def _drop(self, path: str) -> None:
        item = self._items.pop(path, None)
        if item is None:
            return
        if item.category:
            self._counts[item.category] -= 1
            if not self._counts[item.category]:
                del self._counts[item.category]
        key = key_of(path)
        if self._keys.get(key) == path:
            del self._keys[key]
            beside = key if path != key else f"{key}.md"
            if beside in self._items and key_of(beside) == key:
                self._keys[key] = beside
        for alias in aliases_of(item):
            paths = self._aliases[alias]
            paths.discard(path)
            if not paths:
                del self._aliases[alias]

    # Looking up

    def find(self, key: str) -> Item | None:
        """The file that a decoded path means. Raises Ambiguous."""
        with self._lock:
            path = self._keys.get(key)
            if path is not None and not is_reserved(key):
                return self._items[path]
            category, slash, rest = key.partition("/")
            if slash and (known := self._category(category)) is not None and known != category:
                return self._by_alias(f"{known}/{rest}")
            return self._by_alias(key)

    def _by_alias(self, key: str) -> Item | None:
        for path in (
            self._keys.get(key, ""),
            key,
            self._links.get(key, ""),
            self._links.get(f"{key}.md", ""),
        ):
            if path in self._items:
                return self._items[path]
        paths = self._aliases.get(key, ())
        if len(paths) > 1:
            raise Ambiguous(sorted(self._items[each].uri for each in paths))
        return next((self._items[each] for each in paths), None)

    def category(self, name: str) -> str | None:
        """The category that a name means, in singular or plural; None if there is none."""
        with self._lock:
            return self._category(name)

    def _category(self, name: str) -> str | None:
        if name in self._counts:
            return name
        wanted = singular(name)
        return next((each for each in sorted(self._counts) if singular(each) == wanted), None)

    def at(self, path: str) -> Item | None:
        """What was made of a file."""
        return self._items.get(path)

    def has(self, path: str) -> bool:
        """Whether there is a file, or a folder of files, of this path."""
        with self._lock:
            return (
                path in self._items
                or path in self._links
                or any(each.startswith(f"{path}/") for each in self._items)
            )

    def ambiguities(self) -> dict[str, list[Item]]:
        """The names in no folder, and below a category alone, by which several files could be meant."""
        with self._lock:
            return {
                alias: [self._items[path] for path in sorted(paths)]
                for alias, paths in sorted(self._aliases.items())
                if len(paths) > 1 and alias not in self._keys and alias.count("/") < 2
            }

    def shadowed(self) -> list[Item]:
        """Files that have no URI, since another one or a catalogue has it."""
        with self._lock:
            keys = ((path, key_of(path)) for path in sorted(self._items))
            return [
                self._items[path]
                for path, key in keys
                if is_reserved(key) or self._keys[key] != path
            ]

    # Lists

    def categories(self) -> list[str]:
        with self._lock:
            return sorted(self._counts)

    def items(self) -> list[Item]:
        """Everything that has a URI, in the order of the URIs; replaced by changes, never changed itself."""
        with self._lock:
            return self._in_order()[1]

    def documents(self) -> list[Document]:
        return [each for each in self.items() if isinstance(each, Document)]

    def page(self, after: str, size: int) -> ListPage[Item]:
        """Items whose URIs come after this one."""
        with self._lock:
            uris, items = self._in_order()
        start = bisect_right(uris, after)
        return ListPage(
            items[start : start + size],
            uris[start + size - 1] if start + size < len(uris) else None,
        )

    def _in_order(self) -> tuple[list[str], list[Item]]:
        if self._sorted is None:
            shown = [self._items[path] for key, path in self._keys.items() if not is_reserved(key)]
            shown.sort(key=lambda each: each.uri)
            self._sorted = [each.uri for each in shown], shown
        return self._sorted

    def prompts(self) -> Mapping[str, PromptFile]:
        """By name, in the order of the names. Of two with one name, the one whose path comes first."""
        with self._lock:
            if self._named is None:
                named: dict[str, PromptFile] = {}
                for path in sorted(self._prompts):
                    named.setdefault(self._prompts[path].name, self._prompts[path])
                self._named = dict(sorted(named.items()))
            return self._named


def is_reserved(key: str) -> bool:
    """Whether a URI means a catalogue or a match, so that no file can have it."""
    return key in (REGISTRY, MATCH) or (key.count("/") == 1 and key.endswith(f"/{MATCH}"))


def singular(name: str) -> str:
    """One form for the singular and the plural of a category's name."""
    if name.endswith("ies"):
        return f"{name[:-3]}y"
    return name[:-1] if name.endswith("s") and not name.endswith("ss") else name


def aliases_of(item: Item) -> Iterable[str]:
    """The other ways to say an item's URI, decoded."""
    path = item.path
    folder, _, name = path.rpartition("/")
    stem = name.rpartition(".")[0] or name
    names = {name, stem, item.id} if isinstance(item, Document) else {name}
    found = {
        f"{place}/{each}" if place else each
        for place in {"", folder, item.category}
        for each in names
    }
    return found - {key_of(path)}
