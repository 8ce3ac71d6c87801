"""read_tool_text(): extracts the searchable texts of a tool from its definition.

ToolSearch calls it for each tool of a list, and builds a ToolIndex of the results. Definitions come
from any server, so fields of wrong types are ignored.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, cast

from concertino.transforms.tool_index import ToolText

__all__ = ["TAGS", "read_tool_text", "summary_of"]

# The key in a tool's `_meta` that contains its tags.
TAGS = "concertino/tags"
SENTENCE_END = re.compile(r"(?<=[.!?])\s|\n")
# The longest summary, in characters.
MAX_SUMMARY = 200
# How many levels of nested arguments are searched.
MAX_DEPTH = 3
# How many characters of a text, and how many arguments, are searched at most. The rest rarely says
# what the tool is for, and a server could fill the memory with it.
MAX_TEXT = 10_000
MAX_ARGUMENTS = 200


def read_tool_text(tool: Mapping[str, Any]) -> ToolText:
    """Return the searchable texts of a tool.

    tool: the definition of the tool as decoded JSON, in which any field may be missing or have a
        wrong type.
    """
    description = _text(tool.get("description")).lstrip()
    summary = summary_of(description)
    names: list[str] = []
    texts: list[str] = []
    arguments = islice(_walk_arguments(tool.get("inputSchema"), MAX_DEPTH), MAX_ARGUMENTS)
    for name, schema in arguments:
        names.append(name)
        texts.append(_text(schema.get("description")))
        texts += [value for value in _items(schema.get("enum")) if isinstance(value, str)]
    meta = _mapping(tool.get("_meta"))
    tags = [tag for tag in _items(meta.get(TAGS)) if isinstance(tag, str)]
    annotations = _mapping(tool.get("annotations"))
    return ToolText(
        name=_text(tool.get("name")),
        title=_text(tool.get("title")) or _text(annotations.get("title")),
        summary=summary,
        description=description[len(summary) :],
        arguments=" ".join(names)[:MAX_TEXT],
        argument_texts=" ".join(texts)[:MAX_TEXT],
        tags=" ".join(tags)[:MAX_TEXT],
    )


def summary_of(description: str) -> str:
    """Return the first sentence of a description, at most 200 characters of it."""
    text = description.lstrip()
    first = SENTENCE_END.split(text, 1)[0]
    return first[:MAX_SUMMARY]


def _walk_arguments(schema: Any, depth: int) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the names and schemas of arguments, and of the arguments nested in them."""
    if depth == 0 or not isinstance(schema, Mapping):
        return
    for name, own in _mapping(cast("Mapping[str, Any]", schema).get("properties")).items():
        if isinstance(own, Mapping):
            yield name, cast("Mapping[str, Any]", own)
            yield from _walk_arguments(own, depth - 1)
            yield from _walk_arguments(cast("Mapping[str, Any]", own).get("items"), depth - 1)
        else:
            yield name, {}


def _text(value: Any) -> str:
    """Return a value, at most MAX_TEXT characters of it; "" if it is not a text."""
    return value[:MAX_TEXT] if isinstance(value, str) else ""


def _items(value: Any) -> list[Any]:
    return cast("list[Any]", value) if isinstance(value, list) else []


def _mapping(value: Any) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}
