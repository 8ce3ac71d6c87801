"""Targets of the command line: `file.py`, `file.py:attribute`, `package.module:attribute`, a folder, a hub, several of them."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from types import ModuleType

from msgspec import Struct

from concertino.backend.interface import Backend, describe_non_backend
from concertino.cli.folders import Folders, library
from concertino.errors import RegistrationError, TargetError
from concertino.jsonrpc.limits import Limits
from concertino.runtime import entry
from concertino.runtime.entry import LoopFactory, RunCall
from concertino.server.server import Server

__all__ = ["FoundBackend", "find", "find_all", "location_of"]

NO_FOLDERS = Folders()
PLUGINS = (".yaml", ".yml")
NAMED = re.compile(r"([A-Za-z0-9_.-]+)=(.+)", re.DOTALL)


class FoundBackend(Struct, frozen=True):
    """A server, and what the file's own call of its run() gave."""

    backend: Backend
    limits: Limits | None = None
    loop_factory: LoopFactory | None = None


def find_all(targets: Sequence[str], folders: Folders = NO_FOLDERS) -> FoundBackend:
    """What one target names; or several targets, or one with a name, composed under their names.

    `NAME=TARGET`; without a name it is the file's, the module's or the folder's. What a file's own run() gave counts for a single
    target. folders: for the one folder among the targets; for a library of its own, called `library`, if there is none. The URIs
    of several folders differ by their schemes, which are their names.
    Raises TargetError, and whatever importing raises, with a note that names the target.
    """
    named = [_named(target) for target in targets]
    libraries = [target for _, target in named if os.path.isdir(target)]
    if len(libraries) > 1 and (folders or folders.scheme):
        raise TargetError(
            f"--resources, --prompts and --scheme are for one folder, got {', '.join(libraries)}"
        )
    if not named:
        return FoundBackend(library(None, folders))
    if len(named) == 1 and not named[0][0] and (libraries or not folders):
        return find(targets[0], folders)
    from concertino.composition import compose

    parts: dict[str, Backend] = (
        {} if libraries or not folders else {"library": library(None, folders)}
    )
    for name, target in named:
        name = name or _own_name(target)
        if name in parts:
            raise TargetError(
                f"{target}: there are two with the name {name!r}; give one another: NAME={target}"
            )
        parts[name] = find(target, Folders(scheme=name) if len(libraries) > 1 else folders).backend
    try:
        return FoundBackend(compose(**parts))
    except RegistrationError as why:
        raise TargetError(f"{', '.join(targets)}: {why}") from None


def _named(target: str) -> tuple[str, str]:
    """The name that a target is given, if any, and the rest."""
    found = None if os.path.exists(target) else NAMED.fullmatch(target)
    return ("", target) if found is None else (found[1], found[2])


def _own_name(target: str) -> str:
    if os.path.isdir(target):
        return os.path.basename(os.path.abspath(target))
    if target.endswith(PLUGINS):
        return os.path.splitext(os.path.basename(target))[0]
    place = target if target.endswith(".py") else target.rpartition(":")[0]
    return os.path.basename(place).removesuffix(".py").rpartition(".")[2]


def find(target: str, folders: Folders = NO_FOLDERS) -> FoundBackend:
    """The server that a target names: `file.py`, `file.py:attribute`, `package.module:attribute`, a folder, a plugins file.

    A file without an attribute must hold one server, or mark one by calling its run(). Raises TargetError, and whatever
    importing it raises.
    """
    if os.path.isdir(target):
        return FoundBackend(library(target, folders))
    if target.endswith(PLUGINS):
        return FoundBackend(_hub(target))
    place, attribute = target, ""
    if ":" in target and not (target.endswith(".py") and os.path.isfile(target)):
        place, _, attribute = target.rpartition(":")
    is_file = place.endswith(".py")
    if not is_file and (not attribute or not place or place.startswith(".")):
        raise TargetError(
            f"{target}: expected file.py, file.py:attribute, package.module:attribute or a folder"
        )
    marked: list[RunCall] = []
    entry.marked = marked
    try:
        module = _file(place) if is_file else _module(place)
    finally:
        entry.marked = None
    backend = _attribute(module, place, attribute) if attribute else _only(module, place, marked)
    for mark in marked:
        if mark.backend is backend:
            return FoundBackend(backend, mark.limits, mark.loop_factory)
    return FoundBackend(backend)


def _hub(path: str) -> Backend:
    """A hub of a plugins file. Raises TargetError, ImportError for a missing extra."""
    from concertino.orchestra.embedded_hub import EmbeddedHub
    from concertino.orchestra.plugins_file import InvalidPluginsFile, read_plugins

    try:
        return EmbeddedHub(read_plugins(path))
    except InvalidPluginsFile as why:
        raise TargetError(str(why)) from None


def _attribute(module: ModuleType, place: str, attribute: str) -> Backend:
    found: object = module
    for name in attribute.split("."):
        try:
            found = getattr(found, name)
        except AttributeError:
            raise TargetError(
                f"{place}:{attribute}: {place} has no attribute {attribute!r}"
            ) from None
    if (got := describe_non_backend(found)) is not None:
        raise TargetError(f"{place}:{attribute}: expected a Server or another Backend, got {got}")
    return found  # pyright: ignore[reportReturnType]  # checked, as far as a Protocol can be


def _only(module: ModuleType, place: str, marked: list[RunCall]) -> Backend:
    """The one server of a file: what its run() marked, or the only Server or Library there is."""
    library = sys.modules.get("concertino.library.library")  # loaded by the file, if it has one
    kinds: tuple[type[Backend], ...] = (Server,) if library is None else (Server, library.Library)
    held = {
        id(value): (name, value) for name, value in vars(module).items() if isinstance(value, kinds)
    }
    candidates: list[Backend] = list(
        {id(each.backend): each.backend for each in marked}.values()
    ) or [value for _, value in held.values()]
    if len(candidates) == 1:
        return candidates[0]
    if not candidates:
        raise TargetError(f"{place}: no concertino.Server found at its top level")
    names = ", ".join(name for name, _ in held.values())
    raise TargetError(
        f"{place}: several servers ({names}); name one: {place}:ATTRIBUTE, or call run() on one"
    )


def _file(path: str) -> ModuleType:
    """Import a file as if it were run as a script, but not as __main__."""
    if not os.path.isfile(path):
        raise TargetError(f"{path}: no such file")
    path = os.path.abspath(path)
    sys.path.insert(0, os.path.dirname(path))
    name = os.path.splitext(os.path.basename(path))[0]
    name = (
        name if name not in sys.modules else f"_target_{name}"
    )  # a calculator.py must not be mistaken for a module of that name
    spec = spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise TargetError(f"{path}: not a Python file")
    module = module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _module(name: str) -> ModuleType:
    sys.path.insert(0, os.getcwd())
    try:
        return import_module(name)
    except ModuleNotFoundError as why:
        if why.name is not None and (name == why.name or name.startswith(why.name + ".")):
            raise TargetError(f"{name}: no such module") from None
        raise


def location_of(why: BaseException) -> str:
    """Where an exception came from, if it was not the syntax of the file itself, which says so.

    The last line of the target and of what lies beside it: a line of a library tells its user nothing.
    """
    beside = os.path.join(sys.path[0], "")  # find() put it there
    place, found = "", False
    each = None if isinstance(why, SyntaxError) else why.__traceback__
    while each is not None:
        file = each.tb_frame.f_code.co_filename
        is_beside = file.startswith(beside) and "site-packages" not in file
        if is_beside or not found:
            place = f" ({os.path.basename(file)}:{each.tb_lineno})"
        found = found or is_beside
        each = each.tb_next
    return place
