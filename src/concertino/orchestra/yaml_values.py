"""YamlValue and YamlMembers: check the values of a plugins file, and report errors with their line.

A plugins file lists the plugins that a hub starts. plugins_file.py, plugin_entries.py and
mcp_entry.py read it with these classes. A method such as text() returns the value as a Python
object of one type. For a value of another type, it raises InvalidPluginsFile.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import TypeVar

from msgspec import Struct

from concertino.errors import ConcertinoError
from concertino.transports.listeners import split_address
from concertino.yaml_core import YamlNode, is_null

__all__ = ["InvalidPluginsFile", "YamlMembers", "YamlValue"]

# Like Orchestra's Go implementation, accept the words of YAML 1.1 where a boolean is expected.
_BOOLS = {
    **dict.fromkeys(("true", "yes", "on", "y"), True),
    **dict.fromkeys(("false", "no", "off", "n"), False),
}

T = TypeVar("T")


class InvalidPluginsFile(ConcertinoError):
    """A plugins file cannot be used.

    The text names the file, the line, the key, what was expected, and what is there.
    """


class YamlValue(Struct, frozen=True):
    """A value in a plugins file. Its methods raise InvalidPluginsFile if the value is invalid.

    node: the parsed value.
    label: the path of the value in the file, such as "plugins[0].id"; "" for the whole file.
    file: the path of the file.
    """

    node: YamlNode
    label: str
    file: Path

    @property
    def line(self) -> int:
        """The number of the line on which the value begins, from 1."""
        return self.node.line

    @property
    def folder(self) -> Path:
        """The directory of the file, against which paths in it are resolved."""
        return self.file.absolute().parent

    @property
    def is_bool(self) -> bool:
        """Whether the value is a boolean without quotes."""
        node = self.node
        return node.kind == "scalar" and node.plain and node.value.lower() in _BOOLS

    def error(self, problem: str) -> InvalidPluginsFile:
        """Return the error for this value.

        problem: what is wrong, such as "expected a text, got nothing".
        """
        return InvalidPluginsFile(f"{self.file}:{self.line}: {self.label or 'the file'}: {problem}")

    def _expected(self, kind: str) -> InvalidPluginsFile:
        """Return the error for a value that is not of the expected kind."""
        node = self.node
        found = f"a {node.kind}"
        if node.kind == "scalar":
            found = repr(node.value[:80]) if node.value else "nothing"
        return self.error(f"expected {kind}, got {found}")

    def _at(self, node: YamlNode, label: str) -> YamlValue:
        """Return the YamlValue for another node of the same file."""
        return YamlValue(node, label, self.file)

    def members(self, known: Sequence[str]) -> YamlMembers:
        """Return the keys and values of this mapping as YamlMembers.

        known: the names that keys may have.
        Raises InvalidPluginsFile for any other key, and if this value is not a mapping.
        """
        values: dict[str, YamlValue] = {}
        for key, value in self.pairs():
            name = key.text()
            if name not in known:
                close = get_close_matches(name, known, 1)
                hint = f"; did you mean {close[0]!r}?" if close else ""
                raise self._at(key.node, self.label).error(
                    f"expected one of {', '.join(known)}, got {name!r}{hint}"
                )
            values[name] = value
        return YamlMembers(self, values)

    def pairs(self) -> Iterator[tuple[YamlValue, YamlValue]]:
        """Yield the (key, value) pairs of a mapping. A repeated key is an error."""
        if self.node.kind != "mapping":
            raise self._expected("a mapping")
        names: set[str] = set()
        for key_node, node in self.node.value:
            key = self._at(key_node, f"{self.label or 'the file'}: a name")
            name = key.text()
            if name in names:
                label = f"{self.label or 'the file'}.{name}"
                raise self._at(key_node, label).error("expected once, got twice")
            names.add(name)
            yield key, self._at(node, f"{self.label}.{name}" if self.label else name)

    def items(self) -> list[YamlValue]:
        """Return the items of a list; [] if the value is null."""
        if is_null(self.node):
            return []
        if self.node.kind != "sequence":
            raise self._expected("a list")
        return [
            self._at(item, f"{self.label}[{number}]") for number, item in enumerate(self.node.value)
        ]

    def text(self) -> str:
        """Return any scalar as a string: `port: 8080` gives "8080", as in Orchestra's Go hub.

        A missing value (null) and an empty string are errors.
        """
        node = self.node
        if node.kind != "scalar" or is_null(node) or not node.value or "\0" in node.value:
            raise self._expected("a text")
        return str(node.value)

    def texts(self) -> tuple[str, ...]:
        """Return the items of a list as strings. An empty string is an error."""
        return tuple(item.text() for item in self.items())

    def bool(self) -> bool:
        """Return a boolean. As in YAML 1.1, `yes`, `on`, `no` and `off` are booleans, too."""
        if not self.is_bool:
            raise self._expected("true or false")
        return _BOOLS[self.node.value.lower()]

    def text_mapping(self) -> dict[str, str]:
        """Return a mapping of strings to strings. The values may be empty strings."""
        return {key.text(): value._text_or_empty() for key, value in self.pairs()}

    def _text_or_empty(self) -> str:
        """Return the text, as text() does; "" for a value such as `KEY:` or `KEY: ""`."""
        is_empty = self.node.kind == "scalar" and not self.node.value
        return "" if is_empty else self.text()

    def environment(self) -> dict[str, str | None]:
        """Return a mapping of environment variables: name -> value.

        A variable without a value in the file is passed on from the hub's environment: its value in
        the result is None. It is an error if the hub's environment does not have this variable.
        """
        variables: dict[str, str | None] = {}
        for key, value in self.pairs():
            name = key.text()
            if "=" in name:
                raise self._at(key.node, self.label).error(
                    f"expected the name of a variable, got {name!r}"
                )
            if not is_null(value.node):
                variables[name] = value._text_or_empty()
            elif name in os.environ:
                variables[name] = None
            else:
                raise self._at(key.node, value.label).error(
                    "expected a value, here or in the hub's environment, got none"
                )
        return variables

    def path(self) -> str:
        """Return a path as an absolute path, resolved against the directory of the file."""
        return str(self.folder / Path(self.text()).expanduser())

    def address(self) -> str:
        """Return the address of a hub, HOST:PORT or unix:PATH.

        PATH becomes absolute, resolved against the directory of the file.
        """
        text = self.text()
        if text.startswith("unix:"):
            return f"unix:{self.folder / Path(text.removeprefix('unix:')).expanduser()}"
        try:
            split_address(text)
        except ValueError:
            raise self.error(f"expected HOST:PORT or unix:PATH, got {text!r}") from None
        return text


class YamlMembers:
    """The keys and values of a mapping in a plugins file. YamlValue.members() returns it.

    Attributes:
    owner: the mapping.
    by_name: key -> value, in the order of the file.
    """

    def __init__(self, owner: YamlValue, by_name: dict[str, YamlValue]) -> None:
        self.owner = owner
        self.by_name = by_name

    def __contains__(self, name: str) -> bool:
        return name in self.by_name

    def require(self, name: str, kind: str = "a text") -> YamlValue:
        """Return the value of a key. Raises InvalidPluginsFile if the key is missing.

        name: the key.
        kind: what is expected, for the error.
        """
        if name not in self.by_name:
            label = f"{self.owner.label}.{name}" if self.owner.label else name
            missing = YamlValue(self.owner.node, label, self.owner.file)
            raise missing.error(f"expected {kind}, got nothing")
        return self.by_name[name]

    def read(self, name: str, method: Callable[[YamlValue], T]) -> T | None:
        """Return the value of a key as a Python object; None if the key is missing or null.

        name: the key.
        method: the method of YamlValue that checks and returns the value, such as YamlValue.text.
        """
        value = self.by_name.get(name)
        if value is None or is_null(value.node):
            return None
        return method(value)
