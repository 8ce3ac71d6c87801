"""plugins.yaml: which plugins a hub starts, and where it listens. Upstream's format, read strictly.

    listen_addr: localhost:50100
    plugins:
      - id: tools.greeter
        binary: ./greeter.py
        enabled: true
        socket: true

Whatever is not as expected is refused with file, line and member; upstream overlooks it. `socket` is ours. `tcp_addr` is upstream's
listener without encryption, which we do not have: it is accepted and ignored.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

from msgspec import Struct

from concertino.errors import ConcertinoError
from concertino.transports.listeners import split_address

__all__ = ["LISTEN", "InvalidPluginsFile", "PluginEntry", "PluginsFile", "read_plugins"]

LISTEN = "localhost:50100"  # upstream's default
MAX_BYTES = 2**20  # of the file
MAX_PLUGINS = 1000
HUB = "orchestrator"  # the name of its certificate; those of plugins, and of both as clients, are made from ids

T = TypeVar("T")


class InvalidPluginsFile(ConcertinoError):
    """A plugins file that cannot be used. The text names file, line and member, what was expected and what is there."""


class PluginEntry(Struct, frozen=True):
    """A plugin as its entry says. binary: absolute, or a name that is looked for in PATH.

    env: over the few variables that every plugin gets; None takes the hub's own value. config: for its boot. line: of the entry.
    """

    id: str
    binary: str
    args: tuple[str, ...] = ()
    env: Mapping[str, str | None] = {}
    config: Mapping[str, str] = {}
    enabled: bool = False
    provides_storage: tuple[str, ...] = ()
    provides_ai: tuple[str, ...] = ()
    depends_on: tuple[str, ...] = ()
    socket: bool = False
    line: int = 0


class PluginsFile(Struct, frozen=True):
    """All of a plugins file. listen_addr, certs_dir: None if it does not say. plugins: every entry, in the file's order.

    warnings: what its operator should know.
    """

    path: Path
    listen_addr: str | None = None
    certs_dir: str | None = None
    plugins: tuple[PluginEntry, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def enabled(self) -> tuple[PluginEntry, ...]:
        """The plugins that are started."""
        return tuple(entry for entry in self.plugins if entry.enabled)


def read_plugins(path: str | os.PathLike[str]) -> PluginsFile:
    """Read a plugins file. Raises BadPluginsFile; ImportError when the extra is missing."""
    try:
        import yaml
    except ImportError:
        raise ImportError(
            "the Orchestra plugin protocol is in an extra: pip install 'concertino[orchestra]'"
        ) from None
    place = Path(path)
    try:
        with place.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as why:
        raise InvalidPluginsFile(f"{path}: {why.strerror}") from None
    if len(data) > MAX_BYTES:
        raise InvalidPluginsFile(f"{path}: expected at most {MAX_BYTES} bytes")
    try:
        node: Any = yaml.compose(data, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as why:
        mark = getattr(why, "problem_mark", None)
        where = f"{path}:{mark.line + 1}" if mark is not None else str(path)
        problem = (
            getattr(why, "problem", None)
            or "; ".join(str(why).splitlines())
            or "it is nested too deeply"
        )
        raise InvalidPluginsFile(f"{where}: expected YAML: {problem}") from None
    if node is None:
        raise InvalidPluginsFile(f"{path}: expected a mapping with 'plugins', got nothing")
    return _Reader(place).file(node)


class _Reader:
    """From YAML nodes, which know their lines, to Structs. Any: PyYAML has no types."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._folder = path.absolute().parent

    def bad(self, node: Any, what: str) -> InvalidPluginsFile:
        return InvalidPluginsFile(f"{self._path}:{node.start_mark.line + 1}: {what}")

    def file(self, node: Any) -> PluginsFile:
        members = self._members(
            node, "the file", ("listen_addr", "tcp_addr", "certs_dir", "plugins")
        )
        warnings: list[str] = []
        if "tcp_addr" in members:
            line = members["tcp_addr"].start_mark.line + 1
            warnings.append(
                f"{self._path}:{line}: tcp_addr is ignored: plugins and bridges use QUIC with certificates, or a Unix socket"
            )
        given = members.get("plugins")
        if given is None:
            raise self.bad(node, "plugins: expected a list, got nothing")
        nodes = self._sequence(given, "plugins")
        if len(nodes) > MAX_PLUGINS:
            raise self.bad(given, f"plugins: expected at most {MAX_PLUGINS}, got {len(nodes)}")
        entries = tuple(self._entry(each, number) for number, each in enumerate(nodes))
        self._check_ids(entries, nodes)
        self._check_dependencies(entries, nodes)
        return PluginsFile(
            self._path,
            self._optional(members, "listen_addr", self._address),
            self._optional(members, "certs_dir", self._place),
            entries,
            tuple(warnings),
        )

    def _entry(self, node: Any, number: int) -> PluginEntry:
        what = f"plugins[{number}]"
        names = tuple(name for name in PluginEntry.__struct_fields__ if name != "line")
        members = self._members(node, what, names)
        for name in ("id", "binary"):
            if name not in members:
                raise self.bad(node, f"{what}.{name}: expected a text, got nothing")
        id = self._text(members["id"], f"{what}.id")
        self._check_name(members["id"], f"{what}.id", id)
        what = f"{what} ({id})"
        args = self._optional(members, "args", self._texts, what) or ()
        return PluginEntry(
            id,
            self._binary(self._text(members["binary"], f"{what}.binary")),
            tuple(
                f"--workspace={self._folder}" if each == "--workspace=." else each for each in args
            ),
            self._optional(members, "env", self._environment, what) or {},
            self._optional(members, "config", self._mapping, what) or {},
            self._optional(members, "enabled", self._bool, what) or False,
            self._optional(members, "provides_storage", self._texts, what) or (),
            self._optional(members, "provides_ai", self._texts, what) or (),
            self._optional(members, "depends_on", self._texts, what) or (),
            self._optional(members, "socket", self._bool, what) or False,
            node.start_mark.line + 1,
        )

    def _binary(self, said: str) -> str:
        """Relative to the file's folder; a bare name that is not there is for PATH."""
        path = Path(said).expanduser()
        beside = self._folder / path
        return said if os.sep not in said and not beside.exists() else str(beside)

    def _check_name(self, node: Any, what: str, id: str) -> None:
        from concertino.orchestra.certificates import CertificateError, check_name

        try:
            check_name(id)
        except CertificateError:
            expected = "up to 64 letters, digits, '.', '_' and '-', a letter or digit first"
            raise self.bad(node, f"{what}: expected {expected}, got {id!r}") from None
        if id == HUB or id.startswith(f"{HUB}-to-") or id.endswith("-client"):
            expected = f"a name that no certificate of the hub or of another plugin has ({HUB}, {HUB}-to-..., ...-client)"
            raise self.bad(node, f"{what}: expected {expected}, got {id!r}")

    def _check_ids(self, entries: Sequence[PluginEntry], nodes: Sequence[Any]) -> None:
        lines: dict[str, int] = {}
        for entry, node in zip(entries, nodes, strict=True):
            if entry.id in lines:
                text = f"plugins: expected different ids, got {entry.id!r} again; it is in line {lines[entry.id]} already"
                raise self.bad(node, text)
            lines[entry.id] = entry.line

    def _check_dependencies(self, entries: Sequence[PluginEntry], nodes: Sequence[Any]) -> None:
        by_id = {entry.id: entry for entry in entries}
        for entry, node in zip(entries, nodes, strict=True):
            for id in entry.depends_on if entry.enabled else ():
                if id not in by_id:
                    raise self.bad(
                        node,
                        f"{entry.id}.depends_on: expected the id of a plugin of this file, got {id!r}",
                    )
                if not by_id[id].enabled:
                    raise self.bad(
                        node,
                        f"{entry.id}.depends_on: expected a plugin with enabled: true, got {id!r}",
                    )
        done: set[str] = set()
        for entry, node in zip(entries, nodes, strict=True):
            if entry.enabled and (circle := _circle(entry.id, by_id, done)):
                raise self.bad(node, f"depends_on: expected no circle, got {' -> '.join(circle)}")

    # One value each. what: the member, for the message

    def _optional(
        self, members: Mapping[str, Any], name: str, read: Callable[[Any, str], T], within: str = ""
    ) -> T | None:
        node = members.get(name)
        if node is None or _is_null(node):
            return None
        return read(node, f"{within}.{name}" if within else name)

    def _members(self, node: Any, what: str, known: Sequence[str]) -> dict[str, Any]:
        found = self._pairs(node, what)
        for name, (key, _) in found.items():
            if name not in known:
                raise self.bad(key, f"{what}: expected one of {', '.join(known)}, got {name!r}")
        return {name: value for name, (_, value) in found.items()}

    def _pairs(self, node: Any, what: str) -> dict[str, tuple[Any, Any]]:
        if node.id != "mapping":
            raise self.bad(node, f"{what}: expected a mapping, got {_named(node)}")
        found: dict[str, tuple[Any, Any]] = {}
        for key, value in node.value:
            name = self._text(key, f"{what}: a name")
            if name in found:
                raise self.bad(key, f"{what}.{name}: expected once, got twice")
            found[name] = key, value
        return found

    def _sequence(self, node: Any, what: str) -> list[Any]:
        if _is_null(node):
            return []
        if node.id != "sequence":
            raise self.bad(node, f"{what}: expected a list, got {_named(node)}")
        return cast(list[Any], node.value)

    def _text(self, node: Any, what: str) -> str:
        """Any scalar, as upstream takes it: `port: 8080` means the text 8080."""
        if node.id != "scalar" or _is_null(node) or not node.value or "\0" in node.value:
            raise self.bad(node, f"{what}: expected a text, got {_named(node)}")
        return cast(str, node.value)

    def _place(self, node: Any, what: str) -> str:
        """A path, relative to the file's folder."""
        return str(self._folder / Path(self._text(node, what)).expanduser())

    def _address(self, node: Any, what: str) -> str:
        said = self._text(node, what)
        if not said.startswith("unix:"):
            try:
                split_address(said)
            except ValueError:
                raise self.bad(
                    node, f"{what}: expected HOST:PORT or unix:PATH, got {said!r}"
                ) from None
            return said
        return f"unix:{self._folder / Path(said.removeprefix('unix:')).expanduser()}"

    def _texts(self, node: Any, what: str) -> tuple[str, ...]:
        return tuple(
            self._text(each, f"{what}[{number}]")
            for number, each in enumerate(self._sequence(node, what))
        )

    def _bool(self, node: Any, what: str) -> bool:
        if node.id != "scalar" or node.tag != "tag:yaml.org,2002:bool":
            raise self.bad(node, f"{what}: expected true or false, got {_named(node)}")
        return node.value.lower() in ("true", "yes", "on")

    def _mapping(self, node: Any, what: str) -> dict[str, str]:
        return {
            name: "" if _is_empty(value) else self._text(value, f"{what}.{name}")
            for name, (_, value) in self._pairs(node, what).items()
        }

    def _environment(self, node: Any, what: str) -> dict[str, str | None]:
        found: dict[str, str | None] = {}
        for name, (key, value) in self._pairs(node, what).items():
            if "=" in name:
                raise self.bad(key, f"{what}: expected the name of a variable, got {name!r}")
            if not _is_null(value):
                found[name] = "" if _is_empty(value) else self._text(value, f"{what}.{name}")
            elif name in os.environ:
                found[name] = None
            else:
                raise self.bad(
                    key,
                    f"{what}.{name}: expected a value, here or in the hub's environment, got none",
                )
        return found


def _is_null(node: Any) -> bool:
    return node.id == "scalar" and node.tag == "tag:yaml.org,2002:null"


def _is_empty(node: Any) -> bool:
    return node.id == "scalar" and not node.value


def _named(node: Any) -> str:
    if node.id != "scalar":
        return f"a {node.id}"
    return repr(node.value[:80]) if node.value else "nothing"


def _circle(start: str, by_id: Mapping[str, PluginEntry], done: set[str]) -> list[str]:
    """A way from a plugin over its dependencies back to where it has been; empty if there is none. done: known to be free."""
    way: list[str] = [start]
    left = [list(by_id[start].depends_on)]
    while left:
        if not left[-1]:
            left.pop()
            done.add(way.pop())
            continue
        id = left[-1].pop()
        if id in way:
            return [*way[way.index(id) :], id]
        if id not in done:
            way.append(id)
            left.append(list(by_id[id].depends_on))
    return []
