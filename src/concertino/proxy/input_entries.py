"""read_inputs(): reads the inputs that a server file declares, as VS Code has them.

    {"inputs": [{"type": "promptString", "id": "key", "password": true}], "servers": {...}}

An input is a value that the user gives when the servers are started. `${input:ID}` refers to it.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from concertino.proxy.file_values import FileValue
from concertino.proxy.value_reader import ValueReader

__all__ = ["InputEntry", "read_inputs"]


class InputEntry(Struct, frozen=True):
    """An input that a file declares: a value that the user gives when the servers are started.

    id: the name of the input, which `${input:ID}` refers to.
    description: what the value is, for the user; "" if the file does not say it.
    default: the value if the user gives none; None if the user must give one.
    choices: the allowed values; () if every value is allowed.
    is_secret: whether the value must not be shown.
    line, column: the position of the id in the file, counted from 1.
    """

    id: str
    description: str = ""
    default: str | None = None
    choices: tuple[str, ...] = ()
    is_secret: bool = False
    line: int = 1
    column: int = 1


def read_inputs(reader: ValueReader, value: FileValue) -> dict[str, InputEntry]:
    """Return the inputs that a file declares: id -> input.

    reader: checks the types of values and makes the errors, which name the file.
    value: the list under the key `inputs`.
    Raises InvalidServerFile for a wrong value, and for two inputs with the same id.
    """
    inputs: dict[str, InputEntry] = {}
    for index, item in enumerate(reader.items(value, "inputs")):
        entry = _read_input(reader, item, f"inputs[{index}]")
        if entry.id in inputs:
            raise reader.error(item, f"inputs[{index}]", f"{entry.id!r} is there already")
        inputs[entry.id] = entry
    return inputs


def _read_input(reader: ValueReader, value: FileValue, label: str) -> InputEntry:
    """Return one input. label: the path of the value within the file, for errors."""
    members = reader.members(value, label)
    if "id" not in members:
        raise reader.error(value, label, "expected an id")

    def text(name: str) -> str:
        member = members.get(name)
        return "" if member is None else reader.any_text(member.value, f"{label}.{name}")

    is_secret = False
    if (password := members.get("password")) is not None:
        is_secret = reader.flag(password.value, f"{label}.password")
    choices: tuple[str, ...] = ()
    if (options := members.get("options")) is not None:
        choices = tuple(
            _read_option(reader, item, f"{label}.options[{index}]")
            for index, item in enumerate(reader.items(options.value, f"{label}.options"))
        )
    return InputEntry(
        id=reader.text(members["id"].value, f"{label}.id"),
        description=text("description"),
        default=text("default") if "default" in members else None,
        choices=choices,
        is_secret=is_secret,
        line=members["id"].line,
        column=members["id"].column,
    )


def _read_option(reader: ValueReader, value: FileValue, label: str) -> str:
    """Return one choice of an input: a string, or `value` of an object with label and value."""
    if isinstance(value.content, Mapping) and "value" in value.content:
        value = value.content["value"].value
    return reader.any_text(value, label)
