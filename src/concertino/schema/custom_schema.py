"""What is asked of a JSON Schema that somebody wrote by hand, before anything else reads it.

Bounds on its size and on the work it can cause, one dialect, and references that stay inside it. Nothing is fetched, here or
later: a reference to anywhere else is an error. Values are checked by schema_problems.py.
Spec: 2026-07-28 basic/index "JSON Schema Usage"; JSON Schema 2020-12 core 8 (identifiers, references), 10 and 11 (applicators).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, cast

from msgspec import Struct

from concertino.errors import RegistrationError

__all__ = ["DIALECT", "Extent", "bounded", "extent_of"]

# `Any` in this file: a JSON Schema is an open tree.
DIALECT = "https://json-schema.org/draft/2020-12/schema"
MAX_LEVELS = 100  # of lists and objects in each other; the deepest schemas in use have about 30
MAX_VALUES = 100_000  # in the whole text of a schema, enum members and the like included
MAX_CHARACTERS = 2**20  # of all its strings and keys
MAX_SUBSCHEMAS = 10_000
MAX_EXPANDED = 100_000  # subschemas, when each reference is replaced by what it refers to


class Extent(Struct, frozen=True):
    """How much work a schema can cause. expanded: its subschemas when references are replaced, a loop of them taken once.

    recursive: whether it describes values of any depth.
    """

    expanded: int
    recursive: bool


def bounded(schema: object) -> None:
    """Refuse what is too large to be looked at, before anything that recurses or copies does.

    schema: any Python object. One that contains itself is found by its depth, one shared many times over by its number of values.
    Raises RegistrationError.
    """
    level: list[Any] = [schema]  # values at one depth
    values = characters = levels = 0
    while level:
        values += len(level)
        inside: list[Any] = []
        for value in level:
            if isinstance(value, str):
                characters += len(value)
            elif isinstance(value, Mapping):
                tree = cast("Mapping[Any, Any]", value)
                characters += sum(len(key) for key in tree if isinstance(key, str))
                inside.extend(tree.values())
            elif isinstance(value, (list, tuple)):
                inside.extend(cast("list[Any]", value))
            if values + len(inside) > MAX_VALUES:
                raise RegistrationError(f"too large: expected at most {MAX_VALUES:,} values in it")
        if characters > MAX_CHARACTERS:
            raise RegistrationError(
                f"too large: expected at most {MAX_CHARACTERS:,} characters in it"
            )
        level, levels = inside, levels + 1
        if levels > MAX_LEVELS + 1:
            raise RegistrationError(
                f"nested too deeply, or contains itself: expected at most {MAX_LEVELS} levels"
            )


def extent_of(schema: dict[str, Any]) -> Extent:
    """Check the dialect and the references of a schema, and measure it.

    schema: plain JSON that has passed bounded(). Keywords of the wrong shape are left to the meta-schema.
    Raises RegistrationError naming the place, as a JSON pointer, what was expected and what came.
    """
    places = _Places(schema)
    edges = [[target for target, _ in node.edges] for node in places.nodes]
    inplace = [[target for target, here in node.edges if here] for node in places.nodes]
    for group in _groups(inplace):
        if len(group) > 1 or group[0] in inplace[group[0]]:
            where = ", ".join(places.nodes[number].where for number in sorted(group)[:5])
            raise RegistrationError(
                f"{where}: refers to itself for the same value, so that checking would never end; a recursive schema has to "
                f"step into the value, through properties, items and the like"
            )
    expanded, group_of, recursive = dict[int, int](), dict[int, int](), False
    for number, group in enumerate(_groups(edges)):  # those referred to come first
        group_of.update(dict.fromkeys(group, number))
        outside = [
            group_of[target]
            for node in group
            for target in edges[node]
            if group_of[target] != number
        ]
        recursive = recursive or len(group) > 1 or group[0] in edges[group[0]]
        expanded[number] = min(
            len(group) + sum(expanded[other] for other in outside), MAX_EXPANDED + 1
        )
    size = expanded[group_of[0]]
    if size > MAX_EXPANDED:
        raise RegistrationError(
            f"its references lead to more than {MAX_EXPANDED:,} subschemas when each is followed"
        )
    return Extent(size, recursive)


class _Node:
    """One subschema. where: JSON pointer as a fragment. base: URI that its references are relative to.

    edges: (number of a node, whether it applies to the same value and not to a part of it).
    """

    __slots__ = ("base", "edges", "number", "schema", "where")

    def __init__(self, number: int, schema: dict[str, Any], where: str, base: str) -> None:
        self.number = number
        self.schema = schema
        self.where = where
        self.base = base
        self.edges: list[tuple[int, bool]] = []


_SAME_VALUE = ("not", "if", "then", "else", "allOf", "anyOf", "oneOf", "dependentSchemas")
_PART = (
    *(
        "properties",
        "patternProperties",
        "additionalProperties",
        "propertyNames",
        "unevaluatedProperties",
    ),
    *("prefixItems", "items", "contains", "unevaluatedItems", "contentSchema"),
)
_ELSEWHERE = ("$defs", "definitions")  # applied only where something refers to them
_OF_NAMES = ("dependentSchemas", "properties", "patternProperties", *_ELSEWHERE)
_OF_SEVERAL = ("allOf", "anyOf", "oneOf", "prefixItems")
_REFERENCES = ("$ref", "$dynamicRef")


class _Places:
    """The subschemas of a schema, and what leads from each to others."""

    def __init__(self, root: dict[str, Any]) -> None:
        self.nodes: list[_Node] = []
        self._number: dict[
            int, int
        ] = {}  # id() of a subschema -> its node; all of them live as long as the root
        self._resources: dict[str, dict[str, Any]] = {"": root}  # base URI -> root of what has it
        self._anchors: dict[tuple[str, str], dict[str, Any]] = {}
        self._dynamic: dict[str, list[dict[str, Any]]] = {}
        self._subschemas = 0
        self._waiting: list[_Node] = []
        self._add(root, "#", "")
        done = 0
        while self._waiting:
            while self._waiting:
                self._walk(self._waiting.pop())
            # Anchors are known now. A reference may lead to a subschema under a keyword nobody knows: that is walked then.
            fresh, done = self.nodes[done:], len(self.nodes)
            for node in fresh:
                self._follow(node)

    def _add(self, schema: dict[str, Any], where: str, base: str) -> int:
        if (number := self._number.get(id(schema))) is None:
            number = self._number[id(schema)] = len(self.nodes)
            node = _Node(number, schema, where, base)
            self.nodes.append(node)
            self._waiting.append(node)
        return number

    def _walk(self, node: _Node) -> None:
        schema = node.schema
        _dialect(schema, node.where)
        if isinstance(name := schema.get("$id"), str):
            node.base = _joined(node.base, name, f"{node.where}/$id")[0]
            self._resources.setdefault(node.base, schema)
        for word in ("$anchor", "$dynamicAnchor"):
            if isinstance(name := schema.get(word), str):
                self._anchors[node.base, name] = schema
                if word == "$dynamicAnchor":
                    self._dynamic.setdefault(name, []).append(schema)
        for word in schema.keys() & {*_SAME_VALUE, *_PART, *_ELSEWHERE}:
            for step, part in _parts(word, schema[word]):
                self._subschemas += 1
                if self._subschemas > MAX_SUBSCHEMAS:
                    raise RegistrationError(
                        f"too large: expected at most {MAX_SUBSCHEMAS:,} subschemas"
                    )
                if isinstance(part, dict):
                    number = self._add(
                        cast("dict[str, Any]", part), f"{node.where}/{word}{step}", node.base
                    )
                    if word not in _ELSEWHERE:
                        node.edges.append((number, word in _SAME_VALUE))

    def _follow(self, node: _Node) -> None:
        for word in _REFERENCES:
            reference = node.schema.get(word)
            if not isinstance(reference, str):
                continue
            where = f"{node.where}/{word}"
            uri, fragment = _joined(node.base, reference, where)
            root = self._resources.get(uri)
            if root is None:
                raise RegistrationError(
                    f"{where}: expected a reference inside the schema, got {_short(reference)}; others are never fetched: copy "
                    f"what it refers to into $defs"
                )
            found = (
                _at(root, fragment)
                if fragment[:1] in ("", "/")
                else self._anchors.get((uri, fragment))
            )
            if not isinstance(found, (dict, bool)):
                raise RegistrationError(f"{where}: there is no {_short(reference)} in the schema")
            targets: list[Any] = [found]
            if word == "$dynamicRef":  # which of these it is depends on the way to it
                targets += self._dynamic.get(fragment, [])
            for target in targets:
                if isinstance(target, dict):
                    node.edges.append(
                        (self._add(cast("dict[str, Any]", target), f"#{fragment}", uri), True)
                    )


def _parts(word: str, value: Any) -> Iterator[tuple[str, Any]]:
    """The subschemas of one keyword, each with the step that leads to it."""
    if word in _OF_NAMES:
        if isinstance(value, dict):
            for name, part in cast("dict[str, Any]", value).items():
                yield "/" + name.replace("~", "~0").replace("/", "~1"), part
    elif word in _OF_SEVERAL:
        if isinstance(value, list):
            for index, part in enumerate(cast("list[Any]", value)):
                yield f"/{index}", part
    else:
        yield "", value


_DRAFTS = {  # name of an older dialect in its URI -> what is written differently now
    "draft-03": "",
    "draft-04": "write $id for id, $defs for definitions, and numbers for exclusiveMinimum and exclusiveMaximum",
    "draft-06": "write $defs for definitions and prefixItems for a list of items",
    "draft-07": "write $defs for definitions, prefixItems for a list of items, dependentRequired for dependencies",
    "draft/2019-09": "write prefixItems for a list of items, $dynamicRef for $recursiveRef",
}


def _dialect(schema: dict[str, Any], where: str) -> None:
    said = schema.get("$schema", DIALECT)
    if isinstance(said, str) and said.removesuffix("#") == DIALECT:
        return
    draft = next(
        (each for each in _DRAFTS if isinstance(said, str) and f"json-schema.org/{each}/" in said),
        "",
    )
    got = f"{draft.replace('/', ' ')} ({said})" if draft else _short(said)
    hint = f"; {_DRAFTS[draft]}" if draft and _DRAFTS[draft] else ""
    raise RegistrationError(
        f"{where}/$schema: only JSON Schema 2020-12 is supported, got {got}: leave $schema out, or write {DIALECT!r}{hint}"
    )


def _joined(base: str, reference: str, where: str) -> tuple[str, str]:
    """A reference as an absolute URI and its fragment, percent-decoded."""
    from urllib.parse import unquote, urldefrag, urljoin

    uri, _, fragment = reference.partition("#")
    if not uri:  # also below a urn:, which urljoin does not know
        return base, unquote(fragment)
    try:
        return urldefrag(urljoin(base, uri)).url, unquote(fragment)
    except ValueError:
        raise RegistrationError(f"{where}: expected a URI, got {_short(reference)}") from None


def _at(root: Any, pointer: str) -> Any:
    """What is at a JSON pointer, None where nothing is. RFC 6901."""
    for step in pointer.split("/")[1:]:
        name = step.replace("~1", "/").replace("~0", "~")
        if isinstance(root, dict):
            root = cast("dict[str, Any]", root).get(name)
        elif isinstance(root, list) and name.isdecimal() and len(name) < 7:
            items = cast("list[Any]", root)
            root = items[int(name)] if int(name) < len(items) else None
        else:
            return None
    return root


def _groups(edges: list[list[int]]) -> Iterator[list[int]]:
    """The strongly connected components of a graph, those that others lead to first. Tarjan 1972, without recursion."""
    found: dict[int, int] = {}  # node -> order in which it was met
    lowest: dict[int, int] = {}
    path: list[int] = []
    on_path: set[int] = set()
    for start in range(len(edges)):
        if start in found:
            continue
        work: list[tuple[int, Iterator[int]]] = [(start, iter(edges[start]))]
        found[start] = lowest[start] = len(found)
        path.append(start)
        on_path.add(start)
        while work:
            node, rest = work[-1]
            for target in rest:
                if target not in found:
                    found[target] = lowest[target] = len(found)
                    path.append(target)
                    on_path.add(target)
                    work.append((target, iter(edges[target])))
                    break
                if target in on_path:
                    lowest[node] = min(lowest[node], found[target])
            else:
                work.pop()
                if work:
                    above = work[-1][0]
                    lowest[above] = min(lowest[above], lowest[node])
                if lowest[node] == found[node]:
                    group = path[path.index(node) :] if path[-1] != node else [node]
                    del path[-len(group) :]
                    on_path.difference_update(group)
                    yield group


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 200 else text[:200] + "..."
