"""Finds the backend that a target of the command line names.

A target is `file.py`, `file.py:attribute`, `package.module:attribute`, a folder of Markdown, or a
plugins file; several targets are composed into one server.
"""

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
PLUGINS_SUFFIXES = (".yaml", ".yml")
NAME_AND_TARGET = re.compile(r"([A-Za-z0-9_.-]+)=(.+)", re.DOTALL)


class FoundBackend(Struct, frozen=True):
    """A backend, with the arguments of its own call of run() if its file has one."""

    backend: Backend
    limits: Limits | None = None
    loop_factory: LoopFactory | None = None


def find_all(targets: Sequence[str], folders: Folders = NO_FOLDERS) -> FoundBackend:
    """Return the backend of one target, or of several composed under their names.

    `NAME=TARGET` gives a target its name and composes it, even if it is the only one; by default
    the name is that of the file, module or folder. The arguments of a file's run() are used for a
    single target only. folders: options for the one folder among the targets; without such a folder
    they make a Library named `library`. Several folders get their names as URI schemes.
    Raises TargetError, and whatever importing a target raises.
    """
    named = [_split_name(target) for target in targets]
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

    parts: dict[str, Backend] = {}
    if folders and not libraries:
        parts["library"] = library(None, folders)
    for name, target in named:
        name = name or _default_name(target)
        if name in parts:
            raise TargetError(
                f"{target}: there are two with the name {name!r}; give one another: NAME={target}"
            )
        own_folders = Folders(scheme=name) if len(libraries) > 1 else folders
        parts[name] = find(target, own_folders).backend
    try:
        return FoundBackend(compose(**parts))
    except RegistrationError as exc:
        raise TargetError(f"{', '.join(targets)}: {exc}") from None


def _split_name(target: str) -> tuple[str, str]:
    """Return the name of `NAME=TARGET`, empty without one, and the target."""
    # The path of an existing file may contain `=`.
    match = None if os.path.exists(target) else NAME_AND_TARGET.fullmatch(target)
    return ("", target) if match is None else (match[1], match[2])


def _default_name(target: str) -> str:
    if os.path.isdir(target):
        return os.path.basename(os.path.abspath(target))
    if target.endswith(PLUGINS_SUFFIXES):
        return os.path.splitext(os.path.basename(target))[0]
    module = target if target.endswith(".py") else target.rpartition(":")[0]
    return os.path.basename(module).removesuffix(".py").rpartition(".")[2]


def find(target: str, folders: Folders = NO_FOLDERS) -> FoundBackend:
    """Return the backend that a target names.

    A file without an attribute must have one server, or call run() on one. Raises TargetError, and
    whatever importing the target raises.
    """
    if os.path.isdir(target):
        return FoundBackend(library(target, folders))
    if target.endswith(PLUGINS_SUFFIXES):
        return FoundBackend(_make_hub(target))

    location, attribute = target, ""
    if ":" in target and not (target.endswith(".py") and os.path.isfile(target)):
        location, _, attribute = target.rpartition(":")
    is_file = location.endswith(".py")
    if not is_file and (not attribute or not location or location.startswith(".")):
        raise TargetError(
            f"{target}: expected file.py, file.py:attribute, package.module:attribute or a folder"
        )

    # While `entry.marked` is a list, calls of run() add themselves to it and return.
    run_calls: list[RunCall] = []
    entry.marked = run_calls
    try:
        module = _import_file(location) if is_file else _import_module(location)
    finally:
        entry.marked = None

    backend = (
        _get_attribute(module, location, attribute)
        if attribute
        else _only_backend(module, location, run_calls)
    )
    for call in run_calls:
        if call.backend is backend:
            return FoundBackend(backend, call.limits, call.loop_factory)
    return FoundBackend(backend)


def _make_hub(path: str) -> Backend:
    """Return a hub for a plugins file. Raises TargetError; ImportError for a missing extra."""
    from concertino.orchestra.embedded_hub import EmbeddedHub
    from concertino.orchestra.plugins_file import InvalidPluginsFile, read_plugins

    try:
        return EmbeddedHub(read_plugins(path))
    except InvalidPluginsFile as exc:
        raise TargetError(str(exc)) from None


def _get_attribute(module: ModuleType, location: str, attribute: str) -> Backend:
    value: object = module
    for name in attribute.split("."):
        try:
            value = getattr(value, name)
        except AttributeError:
            raise TargetError(
                f"{location}:{attribute}: {location} has no attribute {attribute!r}"
            ) from None
    if (description := describe_non_backend(value)) is not None:
        raise TargetError(
            f"{location}:{attribute}: expected a Server or another Backend, got {description}"
        )
    # It was checked as far as a Protocol can be.
    return value  # pyright: ignore[reportReturnType]


def _only_backend(module: ModuleType, location: str, run_calls: list[RunCall]) -> Backend:
    """Return the backend that the file calls run() on, else its only Server or Library."""
    # If the file has a Library, it has imported this module.
    library_module = sys.modules.get("concertino.library.library")
    kinds: tuple[type[Backend], ...] = (Server,)
    if library_module is not None:
        kinds = (Server, library_module.Library)

    # By id, since several names may mean the same object.
    found = {
        id(value): (name, value) for name, value in vars(module).items() if isinstance(value, kinds)
    }
    served = {id(call.backend): call.backend for call in run_calls}
    candidates: list[Backend] = list(served.values()) or [value for _, value in found.values()]
    if len(candidates) == 1:
        return candidates[0]
    if not candidates:
        raise TargetError(f"{location}: no concertino.Server found at its top level")
    names = ", ".join(name for name, _ in found.values())
    raise TargetError(
        f"{location}: several servers ({names}); name one: {location}:ATTRIBUTE,"
        " or call run() on one"
    )


def _import_file(path: str) -> ModuleType:
    """Import a file as if it were run as a script, but not as __main__."""
    if not os.path.isfile(path):
        raise TargetError(f"{path}: no such file")
    path = os.path.abspath(path)
    sys.path.insert(0, os.path.dirname(path))
    name = os.path.splitext(os.path.basename(path))[0]
    # Do not replace a module that happens to have the name of the file.
    if name in sys.modules:
        name = f"_target_{name}"
    spec = spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise TargetError(f"{path}: not a Python file")
    module = module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _import_module(name: str) -> ModuleType:
    sys.path.insert(0, os.getcwd())
    try:
        return import_module(name)
    except ModuleNotFoundError as exc:
        # It may also be a module that the target imports.
        if exc.name is not None and (name == exc.name or name.startswith(exc.name + ".")):
            raise TargetError(f"{name}: no such module") from None
        raise


def location_of(exc: BaseException) -> str:
    """Return ` (file:line)` of the innermost frame in the target's folder; else of the innermost.

    A line of a library would tell its user nothing. Empty for a SyntaxError, whose text has the
    location.
    """
    # find() has put the folder there.
    folder = os.path.join(sys.path[0], "")
    location, found = "", False
    traceback = None if isinstance(exc, SyntaxError) else exc.__traceback__
    while traceback is not None:
        file = traceback.tb_frame.f_code.co_filename
        is_own = file.startswith(folder) and "site-packages" not in file
        if is_own or not found:
            location = f" ({os.path.basename(file)}:{traceback.tb_lineno})"
        found = found or is_own
        traceback = traceback.tb_next
    return location
