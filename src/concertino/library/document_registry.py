"""DocumentRegistry: finds the files, categories and prompts of a library by name.

The URI of a file follows from its path: `agents/dev/go.md` has the URI `SCHEME://agents/dev/go`.
The part after `SCHEME://` is the key of the file. The first directory, `agents`, is its category.

Clients may also use other names of the file in a URI (aliases): the file name with or without
`.md`, or the id in its front matter. Each of these names can stand alone, as in `SCHEME://go`,
after the directory, as in `SCHEME://agents/dev/go.md`, or after the category, as in
`SCHEME://agents/go`. If several files have the same alias, looking it up raises Ambiguous.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping

from msgspec import Struct

from concertino.library.document import Document
from concertino.library.file_parsing import PlainFile
from concertino.library.prompt_files import PromptFile
from concertino.library.uris import MATCH, REGISTRY, key_of, singular

# A file of the directory of resources.
Item = Document | PlainFile


class Change(Struct):
    """The changes in the directories of a library. Its truth value is False if there are none.

    items: path -> file, for the new and changed files in the directory of resources.
    removed_items: the paths of the files that were removed from the directory of resources.
    prompts: path -> prompt, for the new and changed prompts.
    removed_prompts: the paths of the prompts that were removed.
    links: path of a symbolic link -> path of its file, for all links; None if no link has changed.
    """

    items: dict[str, Item] = {}
    removed_items: set[str] = set()
    prompts: dict[str, PromptFile] = {}
    removed_prompts: set[str] = set()
    links: dict[str, str] | None = None

    def __bool__(self) -> bool:
        return bool(
            self.items
            or self.removed_items
            or self.prompts
            or self.removed_prompts
            or self.links is not None
        )


class Ambiguous(Exception):
    """Raised if a client uses a short name in a URI that could mean several files.

    candidates: the URIs of these files, sorted.
    """

    def __init__(self, candidates: list[str]) -> None:
        super().__init__(", ".join(candidates))
        self.candidates = candidates


class DocumentRegistry:
    """Finds the files and prompts of one library by name. It is empty until apply() adds files.

    The key of a file is the part of its URI after `SCHEME://`, which follows from its path. Aliases
    are shorter names, such as the file name alone, by which clients may also refer to a file. Any
    thread may use a registry.
    """

    def __init__(self) -> None:
        # Path of a file -> the file.
        self._items: dict[str, Item] = {}
        # Path of a prompt's file -> the prompt.
        self._prompts: dict[str, PromptFile] = {}

        # Key -> path of the file that has it as its URI.
        self._keys: dict[str, str] = {}
        # Alias -> paths of the files that it may mean.
        self._aliases: dict[str, set[str]] = {}
        # Path of a symbolic link -> path of its file.
        self._links: dict[str, str] = {}

        # Category -> number of its items.
        self._counts: dict[str, int] = {}

        # A cache of items(); None until needed.
        self._sorted_items: list[Item] | None = None
        # A cache of prompts(); None until needed.
        self._prompts_by_name: dict[str, PromptFile] | None = None
        self._lock = threading.Lock()

    # Changing

    def apply(self, change: Change) -> None:
        """Add, replace and remove files and prompts.

        change: what has changed in the library's directories, as FileLoader.refresh() returns it.
        """
        with self._lock:
            for path in (*change.removed_items, *change.items):
                self._remove(path)
            for path, item in change.items.items():
                self._add(path, item)
            if change.links is not None:
                self._links = change.links
            if change.items or change.removed_items:
                self._sorted_items = None

            for path in change.removed_prompts:
                self._prompts.pop(path, None)
            self._prompts.update(change.prompts)
            if change.prompts or change.removed_prompts:
                self._prompts_by_name = None

    def _add(self, path: str, item: Item) -> None:
        """Add a file. The caller holds the lock."""
        self._items[path] = item
        if item.category:
            self._counts[item.category] = self._counts.get(item.category, 0) + 1

        # `dev/notes` and `dev/notes.md` have the same key. The URI belongs to the document,
        # `dev/notes.md`.
        key = key_of(path)
        other = self._keys.get(key)
        if other is None or (
            isinstance(item, Document) and isinstance(self._items[other], PlainFile)
        ):
            self._keys[key] = path
        for alias in aliases_of(item):
            self._aliases.setdefault(alias, set()).add(path)

    def _remove(self, path: str) -> None:
        """Remove a file, if there is one at this path. The caller holds the lock."""
        item = self._items.pop(path, None)
        if item is None:
            return
        if item.category:
            self._counts[item.category] -= 1
            if not self._counts[item.category]:
                del self._counts[item.category]

        # If another file has the same key, its URI now leads to that file.
        key = key_of(path)
        if self._keys.get(key) == path:
            del self._keys[key]
            # Only two paths can have this key: the key itself, and the key with `.md`.
            other = key if path != key else f"{key}.md"
            if other in self._items and key_of(other) == key:
                self._keys[key] = other

        for alias in aliases_of(item):
            paths = self._aliases[alias]
            paths.discard(path)
            if not paths:
                del self._aliases[alias]

    # Looking up

    def find(self, key: str) -> Item | None:
        """Return the file that a client's URI means; None if there is none.

        key: the part of the URI after `SCHEME://`, percent-decoded: the key or an alias of a file.
        Raises Ambiguous for an alias of several files.
        """
        with self._lock:
            path = self._keys.get(key)
            if path is not None:
                return self._items[path]
            # `agent/go` means `agents/go`, if there is a category `agents` and no `agent`.
            name, slash, rest = key.partition("/")
            if slash and (category := self._find_category(name)) is not None and category != name:
                return self._find_by_any_name(f"{category}/{rest}")
            return self._find_by_any_name(key)

    def _find_by_any_name(self, name: str) -> Item | None:
        """Return the file with this key, path, link or alias; None if there is none.

        Raises Ambiguous if it is an alias of several files. The caller holds the lock.
        """
        candidates = (
            # The name is a key.
            self._keys.get(name),
            # The name is the path of a file.
            name,
            # The name is the path of a symbolic link, with or without the `.md` of the link.
            self._links.get(name),
            self._links.get(f"{name}.md"),
        )
        for path in candidates:
            if path is not None and path in self._items:
                return self._items[path]

        paths = self._aliases.get(name, ())
        if len(paths) > 1:
            raise Ambiguous(sorted(self._items[path].uri for path in paths))
        return next((self._items[path] for path in paths), None)

    def category(self, name: str) -> str | None:
        """Return the category with this name, whether in singular or in plural.

        For `skill` it returns `skills`, if that is a category. Returns None if there is none.
        """
        with self._lock:
            return self._find_category(name)

    def _find_category(self, name: str) -> str | None:
        """Return the category with this name in singular or plural. The caller holds the lock.

        Returns None if there is none.
        """
        if name in self._counts:
            return name
        wanted = singular(name)
        return next((known for known in sorted(self._counts) if singular(known) == wanted), None)

    def find_path(self, path: str) -> Item | None:
        """Return the file with this path in the directory of resources; None if there is none."""
        # A single look-up in a dict needs no lock.
        return self._items.get(path)

    def has_path(self, path: str) -> bool:
        """Return whether this path is a file, a link to one, or a directory that contains files.

        path: relative to the directory of resources.
        """
        with self._lock:
            return (
                path in self._items
                or path in self._links
                or any(known.startswith(f"{path}/") for known in self._items)
            )

    def ambiguities(self) -> dict[str, list[Item]]:
        """Return alias -> files, for each alias that several files have. For `concertino lint`.

        An alias is a short name by which clients may refer to a file. Two kinds are left out:

        - an alias that is also the key of a file, because it means that file;
        - an alias with more than one `/`, because its files also share a shorter alias, which is in
          the result.
        """
        with self._lock:
            return {
                alias: [self._items[path] for path in sorted(paths)]
                for alias, paths in sorted(self._aliases.items())
                if len(paths) > 1 and alias not in self._keys and alias.count("/") < 2
            }

    def find_shadowed(self) -> list[Item]:
        """Return the files that clients cannot read by their URI. For `concertino lint`.

        The URI of such a file means something else: another file, the registry (the list of all
        files), or a search.
        """
        with self._lock:
            keys = ((path, key_of(path)) for path in sorted(self._items))
            return [
                self._items[path]
                for path, key in keys
                if is_reserved(key) or self._keys[key] != path
            ]

    # Lists

    def categories(self) -> list[str]:
        """Return all categories, which are the directories at the top, sorted."""
        with self._lock:
            return sorted(self._counts)

    def items(self) -> list[Item]:
        """Return all files that clients can read by their URI, in the order of the URIs.

        The files of find_shadowed() are left out. The caller must not change the list.
        """
        with self._lock:
            if self._sorted_items is None:
                self._sorted_items = sorted(
                    (self._items[path] for key, path in self._keys.items() if not is_reserved(key)),
                    key=lambda item: item.uri,
                )
            return self._sorted_items

    def documents(self) -> list[Document]:
        """Return all documents that clients can read by their URI, in the order of the URIs."""
        return [item for item in self.items() if isinstance(item, Document)]

    def prompts(self) -> Mapping[str, PromptFile]:
        """Return all prompts of the library: name -> prompt, sorted by name.

        Of several prompts with the same name, only the one whose path comes first is returned.
        """
        with self._lock:
            if self._prompts_by_name is None:
                by_name: dict[str, PromptFile] = {}
                for path in sorted(self._prompts):
                    by_name.setdefault(self._prompts[path].name, self._prompts[path])
                self._prompts_by_name = dict(sorted(by_name.items()))
            return self._prompts_by_name


def is_reserved(key: str) -> bool:
    """Return whether a URI means the list of all files (registry) or a search, and not a file.

    key: the part of the URI after `SCHEME://`.
    """
    return key in (REGISTRY, MATCH) or (key.count("/") == 1 and key.endswith(f"/{MATCH}"))


def aliases_of(item: Item) -> Iterable[str]:
    """Return the aliases of a file: the names by which clients may refer to it in a URI.

    A document has three names: its file name, the file name without suffix, and its id. Any other
    file has only its file name. Each name gives three aliases: the name alone, with the directory
    before it, and with the category before it. For `agents/dev/go.md`, the name `go.md` gives
    `go.md`, `agents/dev/go.md` and `agents/go.md`. The key, here `agents/dev/go`, is no alias.
    """
    path = item.path
    folder, _, name = path.rpartition("/")
    stem = name.rpartition(".")[0] or name
    names = {name, stem, item.id} if isinstance(item, Document) else {name}
    found = {
        f"{place}/{alias}" if place else alias
        for place in {"", folder, item.category}
        for alias in names
    }
    return found - {key_of(path)}
