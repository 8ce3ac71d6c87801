"""Reads the keys of a server that change its tools: `rename` and `tools` under `x-concertino`.

server_options.py calls it for each server of a server file, such as mcp.json. A Transform
(transforms/transform.py) then makes the changes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from concertino.proxy.file_values import FileValue
from concertino.proxy.value_reader import ValueReader
from concertino.transforms.tool_changes import ArgumentChange, ToolChange

__all__ = ["ARGUMENT_KEYS", "TOOL_KEYS", "merge_renames", "read_tool_changes"]

TOOL_KEYS = ("name", "title", "description", "tags", "arguments")
ARGUMENT_KEYS = ("name", "description", "default", "value", "env")


def read_tool_changes(
    reader: ValueReader,
    value: FileValue,
    label: str,
) -> dict[str, ToolChange]:
    """Read the object under the key `tools`: the server's name of a tool -> its changes.

    reader: checks the types of values and makes the errors, which name the file.
    value: the object.
    label: the path of the object within the file, for errors.
    Raises InvalidServerFile for an unknown key or a wrong value.
    """
    return {
        name: _read_tool(reader, member.value, f"{label}.{name}")
        for name, member in reader.members(value, label).items()
    }


def merge_renames(
    tools: Mapping[str, ToolChange], renames: Mapping[str, str]
) -> dict[str, ToolChange]:
    """Return the changes of tools, with the new names in `renames` added.

    tools: the server's name of a tool -> the changes of the tool.
    renames: the server's name of a tool -> the name that clients see.
    Raises ValueError if both have a name for a tool, or if two tools would get the same name.
    """
    merged = dict(tools)
    for name, new in renames.items():
        change = merged.get(name, ToolChange())
        if change.name is not None:
            raise ValueError(f"rename and tools both have a name for {name!r}")
        merged[name] = replace(change, name=new)
    shown: dict[str, str] = {}
    for name, change in merged.items():
        if (other := shown.setdefault(change.name or name, name)) != name:
            raise ValueError(f"both {other!r} and {name!r} would be called {change.name or name!r}")
    return merged


def _read_tool(
    reader: ValueReader,
    value: FileValue,
    label: str,
) -> ToolChange:
    """Return the changes of one tool, from the object under its name."""
    fields: dict[str, Any] = {}
    for key, member in reader.known_members(value, label, TOOL_KEYS).items():
        member_label = f"{label}.{key}"
        if key == "arguments":
            fields[key] = {
                name: _read_argument(reader, item.value, f"{member_label}.{name}")
                for name, item in reader.members(member.value, member_label).items()
            }
        elif key == "tags":
            fields[key] = reader.texts(member.value, member_label)
        else:
            fields[key] = reader.text(member.value, member_label)
    try:
        return ToolChange(**fields)
    except ValueError as exc:
        raise reader.error(value, label, str(exc)) from None


def _read_argument(
    reader: ValueReader,
    value: FileValue,
    label: str,
) -> ArgumentChange:
    """Return the changes of one argument of a tool, from the object under the argument's name."""
    fields: dict[str, Any] = {}
    for key, member in reader.known_members(value, label, ARGUMENT_KEYS).items():
        if key in ("default", "value"):
            fields[key] = _strip_places(member.value)
        else:
            fields[key] = reader.text(member.value, f"{label}.{key}")
    try:
        return ArgumentChange(**fields)
    except ValueError as exc:
        raise reader.error(value, label, str(exc)) from None


# The return type is Any, because the result is any JSON value.
def _strip_places(value: FileValue) -> Any:
    """Return a value of the file as plain JSON, without the line and column of each value."""
    content = value.content
    if isinstance(content, Mapping):
        return {name: _strip_places(member.value) for name, member in content.items()}
    if isinstance(content, tuple):
        return [_strip_places(item) for item in content]
    return content
