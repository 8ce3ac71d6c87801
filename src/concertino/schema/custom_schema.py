"""Checks hand-written JSON Schemas before other code reads them.

check_size() limits the size of a schema. check_references() rejects dialects other than 2020-12,
references to other documents, which are never fetched, and references that would make validation
endless or very slow. validation.py validates values against a schema that has passed both checks.

Spec: 2026-07-28 basic/index "JSON Schema Usage"; JSON Schema 2020-12 core 8 (identifiers,
references), 10 and 11 (applicators).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, cast

from msgspec import Struct

from concertino.errors import RegistrationError
from concertino.excerpts import shorten_repr

# `Any` in this file: a JSON Schema is an open tree.
DIALECT = "https://json-schema.org/draft/2020-12/schema"

# The largest depth of lists and objects. The deepest schemas in use have about 30 levels.
MAX_LEVELS = 100
# The largest number of JSON values in the whole schema, such as the members of an enum.
MAX_VALUES = 100_000
# The largest total length of all strings and keys.
MAX_CHARACTERS = 2**20
# The largest number of subschemas, without following references.
MAX_SUBSCHEMAS = 10_000
# The largest number of subschemas if every reference were replaced by a copy of its target. It
# limits the time that validation can take: a chain of definitions that each refer twice to the next
# one doubles the number with each definition.
MAX_EXPANDED = 100_000
# Error messages quote at most this many characters of a value.
MAX_QUOTE_CHARS = 200


class SchemaSize(Struct, frozen=True):
    """How much work validation against a schema can take.

    expanded: the number of subschemas after each reference was replaced by a copy of its target. In
        a cycle of references, each subschema counts once.
    recursive: whether a subschema refers to itself, so that values may have any depth.
    """

    expanded: int
    recursive: bool


def check_size(schema: object) -> None:
    """Raise RegistrationError if a schema is too large.

    This must be called first, because other code recurses into the schema or copies it.
    schema: any Python object. An object that contains itself exceeds MAX_LEVELS. An object that
        contains another one many times exceeds MAX_VALUES.
    """
    # Breadth first: all values of one level, then the values of the next level.
    level: list[Any] = [schema]
    values = characters = depth = 0
    while level:
        values += len(level)
        below: list[Any] = []
        for value in level:
            if isinstance(value, str):
                characters += len(value)
            elif isinstance(value, Mapping):
                tree = cast("Mapping[Any, Any]", value)
                characters += sum(len(key) for key in tree if isinstance(key, str))
                below.extend(tree.values())
            elif isinstance(value, (list, tuple)):
                below.extend(cast("list[Any]", value))
            if values + len(below) > MAX_VALUES:
                raise RegistrationError(f"too large: expected at most {MAX_VALUES:,} values in it")
        if characters > MAX_CHARACTERS:
            raise RegistrationError(
                f"too large: expected at most {MAX_CHARACTERS:,} characters in it"
            )
        level, depth = below, depth + 1
        if depth > MAX_LEVELS + 1:
            raise RegistrationError(
                f"nested too deeply, or contains itself: expected at most {MAX_LEVELS} levels"
            )


def check_references(schema: dict[str, Any]) -> SchemaSize:
    """Check the dialect and the references of a schema, and return its size.

    schema: plain JSON that has passed check_size(). Keywords of the wrong type are ignored.
    Raises RegistrationError for a dialect other than 2020-12, for a reference that leads nowhere or
    out of the schema, for references in an endless cycle, and for too many subschemas. The error
    text names the place as a JSON pointer.
    """
    nodes = _SubschemaGraph(schema).nodes
    _refuse_endless(nodes)
    size = _measure(nodes)
    if size.expanded > MAX_EXPANDED:
        raise RegistrationError(
            f"its references lead to more than {MAX_EXPANDED:,} subschemas when each is followed"
        )
    return size


def _refuse_endless(nodes: list[_Subschema]) -> None:
    """Raise RegistrationError if subschemas refer to each other in a cycle for the same value.

    Validation of a value would never end.
    """
    targets = [[edge.target for edge in node.edges if edge.same_value] for node in nodes]
    for group in _strong_components(targets):
        if _is_cycle(group, targets):
            # A few places are enough to find the mistake.
            where = ", ".join(nodes[number].where for number in sorted(group)[:5])
            raise RegistrationError(
                f"{where}: refers to itself for the same value, so that checking would never end; "
                f"a recursive schema has to step into the value, through properties, items and "
                f"the like"
            )


def _measure(nodes: list[_Subschema]) -> SchemaSize:
    """Return the size of a schema; the first node is its root."""
    targets = [[edge.target for edge in node.edges] for node in nodes]
    # Number of a component -> its number of subschemas if each reference is replaced by its target.
    expanded: dict[int, int] = {}
    # Number of a node -> number of its component.
    group_of: dict[int, int] = {}
    recursive = False
    # A component is a group of subschemas that refer to each other. It comes after the components
    # that it refers to, so their sizes are known already.
    for number, group in enumerate(_strong_components(targets)):
        group_of.update(dict.fromkeys(group, number))
        others = [
            group_of[target]
            for node in group
            for target in targets[node]
            if group_of[target] != number
        ]
        recursive = recursive or _is_cycle(group, targets)
        total = len(group) + sum(expanded[other] for other in others)
        # The caller refuses any larger number, which could have thousands of digits.
        expanded[number] = min(total, MAX_EXPANDED + 1)

    return SchemaSize(expanded[group_of[0]], recursive)


def _is_cycle(group: list[int], targets: list[list[int]]) -> bool:
    """Return whether the nodes of a component refer to each other, or its only node to itself.

    targets: number of a node -> numbers of the nodes to which it refers.
    """
    return len(group) > 1 or group[0] in targets[group[0]]


class _Edge(NamedTuple):
    """An edge of _SubschemaGraph, from a subschema to another one.

    target: the number of the other node.
    same_value: whether the other subschema applies to the same value, and not to a part of the
        value, such as a property.
    """

    target: int
    same_value: bool


class _Subschema:
    """One subschema, a node of _SubschemaGraph.

    number: the index in _SubschemaGraph.nodes.
    schema: the subschema as JSON.
    where: a JSON pointer to the subschema, as a URI fragment.
    base: the URI to which the references in the subschema are relative.
    edges: to the subschemas that this one contains or refers to.
    """

    __slots__ = ("base", "edges", "number", "schema", "where")

    def __init__(
        self,
        number: int,
        schema: dict[str, Any],
        where: str,
        base: str,
    ) -> None:
        self.number = number
        self.schema = schema
        self.where = where
        self.base = base
        self.edges: list[_Edge] = []


# Keywords whose subschemas apply to the same value as the schema that contains them. Only a cycle
# of such subschemas makes validation endless, because a value has finitely many parts.
_SAME_VALUE = ("not", "if", "then", "else", "allOf", "anyOf", "oneOf", "dependentSchemas")
# Keywords whose subschemas apply to a part of that value, such as a property.
_PART = (
    "properties",
    "patternProperties",
    "additionalProperties",
    "propertyNames",
    "unevaluatedProperties",
    "prefixItems",
    "items",
    "contains",
    "unevaluatedItems",
    "contentSchema",
)
# Subschemas of these keywords apply to a value only if a reference leads to them.
_DEFINITIONS = ("$defs", "definitions")
# Keywords whose value is an object of subschemas (name -> subschema), or a list of subschemas. The
# value of all other keywords is one subschema.
_WITH_NAMES = ("dependentSchemas", "properties", "patternProperties", *_DEFINITIONS)
_WITH_LIST = ("allOf", "anyOf", "oneOf", "prefixItems")
_REFERENCES = ("$ref", "$dynamicRef")


class _SubschemaGraph:
    """The subschemas of a schema, as the nodes of a graph.

    The edges of a subschema lead to the subschemas that it contains or refers to.
    """

    def __init__(self, root: dict[str, Any]) -> None:
        self.nodes: list[_Subschema] = []
        # id() of a subschema -> number of its node. The ids stay valid while the root exists.
        self._number: dict[int, int] = {}
        # Base URI -> root of the schema resource with that URI.
        self._resources: dict[str, dict[str, Any]] = {"": root}
        # (base URI, $anchor or $dynamicAnchor) -> subschema.
        self._anchors: dict[tuple[str, str], dict[str, Any]] = {}
        # $dynamicAnchor -> subschemas with that anchor, under any base URI.
        self._dynamic: dict[str, list[dict[str, Any]]] = {}
        # How often a subschema was found. This may be more than the number of nodes: true, false
        # and an object that occurs several times count each time.
        self._subschemas = 0
        self._to_visit: list[_Subschema] = []
        self._add(root, "#", "")

        # Visit all subschemas before following references, because a reference may lead to an
        # anchor in any of them. A reference may also lead to a new subschema below an unknown
        # keyword, so repeat until there are no new ones.
        followed = 0
        while self._to_visit:
            while self._to_visit:
                self._visit(self._to_visit.pop())
            new_nodes = self.nodes[followed:]
            followed = len(self.nodes)
            for node in new_nodes:
                self._follow(node)

    def _add(
        self,
        schema: dict[str, Any],
        where: str,
        base: str,
    ) -> int:
        """Return the number of a subschema's node, and create the node if there is none."""
        if (number := self._number.get(id(schema))) is None:
            number = self._number[id(schema)] = len(self.nodes)
            node = _Subschema(number, schema, where, base)
            self.nodes.append(node)
            self._to_visit.append(node)
        return number

    def _visit(self, node: _Subschema) -> None:
        """Record a subschema's identifiers and the subschemas that it contains."""
        schema = node.schema
        _check_dialect(schema, node.where)
        if isinstance(id := schema.get("$id"), str):
            node.base = _resolve(node.base, id, f"{node.where}/$id")[0]
            self._resources.setdefault(node.base, schema)
        for keyword in ("$anchor", "$dynamicAnchor"):
            if isinstance(anchor := schema.get(keyword), str):
                self._anchors[node.base, anchor] = schema
                if keyword == "$dynamicAnchor":
                    self._dynamic.setdefault(anchor, []).append(schema)

        for keyword in schema.keys() & {*_SAME_VALUE, *_PART, *_DEFINITIONS}:
            for step, part in _find_parts(keyword, schema[keyword]):
                self._subschemas += 1
                if self._subschemas > MAX_SUBSCHEMAS:
                    raise RegistrationError(
                        f"too large: expected at most {MAX_SUBSCHEMAS:,} subschemas"
                    )
                # A subschema may also be true or false, which contain no other subschemas.
                if isinstance(part, dict):
                    number = self._add(
                        cast("dict[str, Any]", part), f"{node.where}/{keyword}{step}", node.base
                    )
                    if keyword not in _DEFINITIONS:
                        node.edges.append(_Edge(number, keyword in _SAME_VALUE))

    def _follow(self, node: _Subschema) -> None:
        """Add the edges of a subschema's references."""
        for keyword in _REFERENCES:
            reference = node.schema.get(keyword)
            if not isinstance(reference, str):
                continue
            where = f"{node.where}/{keyword}"
            uri, fragment = _resolve(node.base, reference, where)
            root = self._resources.get(uri)
            if root is None:
                raise RegistrationError(
                    f"{where}: expected a reference inside the schema, got {_quote(reference)}; "
                    f"others are never fetched: copy what it refers to into $defs"
                )

            if not fragment or fragment.startswith("/"):
                target = _at_pointer(root, fragment)
            else:
                target = self._anchors.get((uri, fragment))
            if not isinstance(target, (dict, bool)):
                raise RegistrationError(f"{where}: there is no {_quote(reference)} in the schema")
            targets: list[Any] = [target]

            # Only validation decides which dynamic anchor applies, so add edges to all of them.
            if keyword == "$dynamicRef":
                targets += self._dynamic.get(fragment, [])
            for target in targets:
                if isinstance(target, dict):
                    number = self._add(cast("dict[str, Any]", target), f"#{fragment}", uri)
                    node.edges.append(_Edge(number, True))


def _find_parts(keyword: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the subschemas in the value of a keyword, each with its step in a JSON pointer."""
    if keyword in _WITH_NAMES:
        if isinstance(value, dict):
            for name, part in cast("dict[str, Any]", value).items():
                # The name as a step of a JSON pointer (RFC 6901).
                yield "/" + name.replace("~", "~0").replace("/", "~1"), part
    elif keyword in _WITH_LIST:
        if isinstance(value, list):
            for index, part in enumerate(cast("list[Any]", value)):
                yield f"/{index}", part
    else:
        yield "", value


# Part of the URI of an older dialect -> how to change a schema to 2020-12.
_DRAFTS = {
    "draft-03": "",
    "draft-04": "write $id for id, $defs for definitions, and numbers for exclusiveMinimum and "
    "exclusiveMaximum",
    "draft-06": "write $defs for definitions and prefixItems for a list of items",
    "draft-07": "write $defs for definitions, prefixItems for a list of items, dependentRequired "
    "for dependencies",
    "draft/2019-09": "write prefixItems for a list of items, $dynamicRef for $recursiveRef",
}


def _check_dialect(schema: dict[str, Any], where: str) -> None:
    """Raise RegistrationError if a schema names a dialect other than 2020-12.

    where: a JSON pointer to the schema, for the error.
    """
    dialect = schema.get("$schema", DIALECT)
    if isinstance(dialect, str) and dialect.removesuffix("#") == DIALECT:
        return

    draft = ""
    if isinstance(dialect, str):
        drafts = (name for name in _DRAFTS if f"json-schema.org/{name}/" in dialect)
        draft = next(drafts, "")
    got = f"{draft.replace('/', ' ')} ({dialect})" if draft else _quote(dialect)
    hint = f"; {_DRAFTS[draft]}" if draft and _DRAFTS[draft] else ""
    raise RegistrationError(
        f"{where}/$schema: only JSON Schema 2020-12 is supported, got {got}: leave $schema out, or "
        f"write {DIALECT!r}{hint}"
    )


def _resolve(base: str, reference: str, where: str) -> tuple[str, str]:
    """Return the absolute URI of a reference, and its fragment, percent-decoded.

    base: the URI to which the reference is relative.
    where: the reference's place, for messages.
    """
    from urllib.parse import unquote, urldefrag, urljoin

    uri, _, fragment = reference.partition("#")
    # urljoin() cannot join a bare fragment to a base with the scheme urn:.
    if not uri:
        return base, unquote(fragment)
    try:
        return urldefrag(urljoin(base, uri)).url, unquote(fragment)
    except ValueError:
        raise RegistrationError(f"{where}: expected a URI, got {_quote(reference)}") from None


def _at_pointer(root: Any, pointer: str) -> Any:
    """Return the value at a JSON pointer (RFC 6901); None if there is none."""
    for step in pointer.split("/")[1:]:
        name = step.replace("~1", "/").replace("~0", "~")
        if isinstance(root, dict):
            root = cast("dict[str, Any]", root).get(name)
        # No list has an index of more than 6 digits, see MAX_VALUES. int() of a very long text is
        # slow, or raises ValueError.
        elif isinstance(root, list) and name.isdecimal() and len(name) < 7:
            items = cast("list[Any]", root)
            root = items[int(name)] if int(name) < len(items) else None
        else:
            return None
    return root


def _strong_components(edges: list[list[int]]) -> Iterator[list[int]]:
    """Yield the strongly connected components of a graph: groups of nodes that reach each other.

    edges: for each node, the nodes that it has edges to.
    A component comes after all components that it has edges to. Tarjan's algorithm (1972), without
    recursion.
    """
    # Node -> number of its first visit.
    order: dict[int, int] = {}
    # Node -> lowest number of a node on the path that it is known to reach.
    lowest: dict[int, int] = {}
    # Visited nodes whose component is not complete, in the order of their visits.
    path: list[int] = []
    on_path: set[int] = set()
    for start in range(len(edges)):
        if start in order:
            continue
        work: list[tuple[int, Iterator[int]]] = [(start, iter(edges[start]))]
        order[start] = lowest[start] = len(order)
        path.append(start)
        on_path.add(start)
        while work:
            node, rest = work[-1]
            for target in rest:
                if target not in order:
                    order[target] = lowest[target] = len(order)
                    path.append(target)
                    on_path.add(target)
                    work.append((target, iter(edges[target])))
                    break
                if target in on_path:
                    lowest[node] = min(lowest[node], order[target])
            else:
                work.pop()
                if work:
                    parent = work[-1][0]
                    lowest[parent] = min(lowest[parent], lowest[node])
                if lowest[node] == order[node]:
                    # The component is the end of the path from `node` on, which usually is `node`
                    # alone. Searching the path for each node would be slow.
                    group = [node] if path[-1] == node else path[path.index(node) :]
                    del path[-len(group) :]
                    on_path.difference_update(group)
                    yield group


def _quote(value: object) -> str:
    return shorten_repr(value, MAX_QUOTE_CHARS)
