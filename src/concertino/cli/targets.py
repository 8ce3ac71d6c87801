"""Targets of `concertino serve`: Python files, attributes of modules, folders, plugin files.

file.py                    the only server of a file, or the one on which it calls run()
file.py:attribute          an object in a file
package.module:attribute   an object in a module
DIR                        a folder of Markdown
plugins.yaml               a hub, and the plugins that it starts (a plugins file)
mcp.json, config.toml      the servers that an MCP host would start (a server file)
.claude.json#FOLDER        the servers that Claude Code has for one project
NAME=TARGET                any of these under a name, next to others

A hub is a process that starts plugins (programs with tools) and passes calls to them.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from functools import partial
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from threading import Lock
from types import ModuleType
from typing import TYPE_CHECKING, Any, cast

from msgspec import Struct
from msgspec.structs import replace

from concertino.backend.interface import Backend, describe_non_backend
from concertino.backend.wrappers import BackendWrapper
from concertino.cli.folders import NO_VERSION, LibraryOptions, make_library
from concertino.cli.main_block import run_main_block
from concertino.cli.server_files import (
    FILE_SUFFIXES,
    NO_FILE_OPTIONS,
    PROJECT_MARK,
    ServerFileOptions,
    load_servers,
    opening_limits,
)
from concertino.errors import RegistrationError, TargetError
from concertino.jsonrpc.limits import Limits
from concertino.runtime import entry
from concertino.runtime.entry import LoopFactory, RunCall
from concertino.server.server import Server
from concertino.types.results import Implementation

if TYPE_CHECKING:
    from concertino.composition.composed_backend import ComposedBackend
    from concertino.transforms.tool_search import ToolListOptions

# Held while a name in sys.modules is chosen and used, because targets may be imported in threads.
_naming = Lock()
NO_LIBRARY = LibraryOptions()
PLUGIN_FILES = (".yaml", ".yml")
NAMED_TARGET = re.compile(r"([A-Za-z0-9_.-]+)=(.+)", re.DOTALL)


class LoadedTarget(Struct, frozen=True):
    """The backend of a target of `concertino serve`, and the arguments of run() in its file.

    backend: what is served.
    limits: the argument of run(), or the limits for a server file; None for the default limits.
    loop_factory: the argument of run(); None for the default event loop.
    tools: the options for long lists of tools that a server file sets; None for any other target.
    """

    backend: Backend
    limits: Limits | None = None
    loop_factory: LoopFactory | None = None
    tools: ToolListOptions | None = None


def load_targets(
    targets: Sequence[str],
    options: LibraryOptions = NO_LIBRARY,
    file_options: ServerFileOptions = NO_FILE_OPTIONS,
    *,
    strict: bool = False,
    traceback: bool = False,
) -> LoadedTarget:
    """Load the targets of `concertino serve`, and return the backend to serve.

    Several targets, or one with a name (NAME=TARGET), become parts of a composition: one backend
    that has the tools of all its parts. A part without a name gets the name of its file, module or
    folder. If `options` names folders and no target is a folder, these folders are another part,
    called `library`. A single target is served itself, unless it has a name or is joined with them.

    targets: the words of the command line; empty to serve the folders that `options` names.
    options: the options for folders of Markdown.
    file_options: the options for server files such as mcp.json.
    strict: whether to load all parts of a composition now, one after the other, and fail if one
        fails. Otherwise each part is loaded in a thread when the composition starts, and a failure
        is logged.
    traceback: whether to log the whole traceback if a part fails in its thread.
    Raises TargetError, and the exceptions of importing a target.
    """
    named = [_split_name(target) for target in targets]
    folders = [target for _, target in named if os.path.isdir(target)]
    if len(folders) > 1 and (options.names_folder or options.scheme):
        raise TargetError(
            f"--resources, --prompts and --scheme are for one folder, got {', '.join(folders)}"
        )
    if not named:
        return LoadedTarget(make_library(None, options))
    first_name = named[0][0]
    # A target that is not a folder is served together with the folders in the options.
    is_composed = len(named) > 1 or bool(first_name) or (options.names_folder and not folders)
    if not is_composed:
        takes_name = bool(folders) or is_server_file(targets[0])
        if (options.name or options.version) and not takes_name:
            raise TargetError(
                f"{targets[0]}: --name and --version are for folders and for several targets; here "
                "they are arguments of Server(...)"
            )
        return load_target(targets[0], options, file_options)

    parts = _load_parts(named, folders, options, file_options, strict=strict, traceback=traceback)
    info = Implementation(options.name or "+".join(parts), options.version or NO_VERSION)
    from concertino.composition.compose import compose

    try:
        # _load_parts() has refused "strict", which is the name of a parameter of compose().
        return LoadedTarget(compose(info, strict=strict, **cast("dict[str, Any]", parts)))
    except RegistrationError as exc:
        raise TargetError(f"{', '.join(targets)}: {exc}") from None


def _load_parts(
    named: Sequence[tuple[str, str]],
    folders: Sequence[str],
    options: LibraryOptions,
    file_options: ServerFileOptions,
    *,
    strict: bool,
    traceback: bool,
) -> dict[str, Backend]:
    """Return the parts of a composition (the backends that are served as one), by name.

    named: pairs of a name and a target; the name is "" if the user has given none.
    folders: the targets that are folders.
    options: the options for folders of Markdown.
    file_options: the options for server files such as mcp.json.
    strict: whether to load all parts now, and to raise if one fails. If it is False, each part is
        loaded in a thread when the composition starts.
    traceback: whether to log the whole traceback if a part fails in its thread.
    Raises TargetError for an invalid name of a part.
    """
    from concertino.cli.loading_backend import LoadingBackend, Turn

    # Name and version are for the composition, not for a part.
    options = replace(options, name=None, version=None)
    parts: dict[str, Backend] = {}
    if options.names_folder and not folders:
        parts["library"] = make_library(None, options)
    turn: Turn | None = None
    for name, target in named:
        name = name or _default_name(target)
        if name in parts:
            hint = f"give one another: NAME={target}"
            raise TargetError(f"{target}: there are two with the name {name!r}; {hint}")
        # The URIs of several folders need different schemes.
        part_options = LibraryOptions(scheme=name) if len(folders) > 1 else options
        load = partial(_load_backend, target, part_options, file_options)
        if strict:
            parts[name] = load()
        else:
            # Each part is loaded in its own thread, but waits for the turn of the part before it.
            turn = Turn(turn)
            parts[name] = LoadingBackend(partial(turn.take, load), target, traceback=traceback)
    if "strict" in parts:
        raise TargetError("a target cannot have the name 'strict'; give it another: NAME=TARGET")
    return parts


def _load_backend(target: str, options: LibraryOptions, file_options: ServerFileOptions) -> Backend:
    return load_target(target, options, file_options).backend


def is_server_file(target: str) -> bool:
    """Return whether a target is a file that lists servers, such as a host's `mcp.json`.

    Such a target may name one project in Claude Code's file: `~/.claude.json#FOLDER`.
    """
    return target.endswith(FILE_SUFFIXES) or PROJECT_MARK in target


def _split_name(target: str) -> tuple[str, str]:
    """Return the name and the target in NAME=TARGET. The name is "" if there is none."""
    # The name of a file may contain an equals sign.
    match = None if os.path.exists(target) else NAMED_TARGET.fullmatch(target)
    return ("", target) if match is None else (match[1], match[2])


def _default_name(target: str) -> str:
    """Return the name of a target's file, module or folder."""
    if os.path.isdir(target):
        return os.path.basename(os.path.abspath(target))
    if target.endswith((*PLUGIN_FILES, *FILE_SUFFIXES)):
        return os.path.splitext(os.path.basename(target))[0].removeprefix(".")
    if is_server_file(target):
        # A project in Claude Code's file has the name of its folder.
        return os.path.basename(os.path.abspath(target.partition(PROJECT_MARK)[2]))
    source = target if target.endswith(".py") else target.rpartition(":")[0]
    return os.path.basename(source).removesuffix(".py").rpartition(".")[2]


def load_target(
    target: str,
    options: LibraryOptions = NO_LIBRARY,
    file_options: ServerFileOptions = NO_FILE_OPTIONS,
) -> LoadedTarget:
    """Load the backend of one target of `concertino serve`, such as a Python file.

    A file without an attribute must contain a single server, or call run() on one.

    target: one of the forms at the head of this module, such as file.py, but not NAME=TARGET.
    options: the options for a folder of Markdown.
    file_options: the options for a server file such as mcp.json.
    Raises TargetError, and the exceptions of importing the target.
    """
    if os.path.isdir(target):
        return LoadedTarget(make_library(target, options))
    if target.endswith(PLUGIN_FILES):
        return LoadedTarget(_load_hub(target, file_options.trust))
    if is_server_file(target):
        servers = load_servers(target, file_options)
        # The limits let clients wait, because the servers may start slowly.
        return LoadedTarget(servers, opening_limits(), tools=servers.tools)

    source, attribute = _split_attribute(target)
    is_file = source.endswith(".py")

    # A file may call run() itself, which must not serve now. While the context variable has this
    # list, run() only adds its arguments to the list. Each thread has its own list, because several
    # targets may be imported at the same time.
    calls: list[RunCall] = []
    token = entry.run_calls.set(calls)
    try:
        module = _import_file(source) if is_file else _import_module(source)
        if is_file and not attribute and not calls:
            # run() may stand below `if __name__ == "__main__":`, which the import has skipped.
            run_main_block(module, source)
    finally:
        entry.run_calls.reset(token)

    if attribute:
        backend = _find_attribute(module, source, attribute)
    else:
        backend = _find_only_server(module, source, calls)
    for call in calls:
        if call.backend is backend:
            return LoadedTarget(backend, call.limits, call.loop_factory)
    return LoadedTarget(backend)


def _split_attribute(target: str) -> tuple[str, str]:
    """Return the file or module of a target, and the attribute after the colon.

    The attribute is "" for a file without a colon.
    target: a Python file or an attribute of a module, and not a folder or another file.
    Raises TargetError for a module without an attribute or with a relative name, and for a file
    with a colon and no attribute.
    """
    # The colon separates an attribute, unless there is a file with the whole text as its name:
    # paths may contain colons.
    source, attribute = target, ""
    if ":" in target and not (target.endswith(".py") and os.path.isfile(target)):
        source, _, attribute = target.rpartition(":")
    is_file = source.endswith(".py")
    if is_file and not attribute and source != target:
        raise TargetError(f"{target}: expected the name of a server after the colon, or {source}")
    if not is_file and (not attribute or not source or source.startswith(".")):
        from concertino.cli.target_hints import suggest_target

        raise TargetError(
            f"{target}: expected file.py, file.py:attribute, package.module:attribute or a folder"
            f"{suggest_target(target)}"
        )
    return source, attribute


def _load_hub(path: str, trust: bool) -> Backend:
    """Return a hub for a plugins file. Raises TargetError, and ImportError for a missing extra.

    trust: whether changes of the file are applied without the user's approval.
    """
    from concertino.orchestra.embedded_hub import EmbeddedHub
    from concertino.orchestra.plugins_file import InvalidPluginsFile, read_plugins

    try:
        return EmbeddedHub(read_plugins(path), trust=trust)
    except InvalidPluginsFile as exc:
        raise TargetError(str(exc)) from None


def load_attribute(target: str) -> object:
    """Return the object that `FILE.py:NAME` or `MODULE:NAME` names, after importing its module.

    NAME may be a dotted path, such as `app.server`.
    Raises TargetError if there is no such object, and the exceptions of importing the module.
    """
    source, colon, attribute = target.rpartition(":")
    if not colon or not source or not attribute:
        raise TargetError(f"{target}: expected FILE.py:NAME or MODULE:NAME")
    module = _import_file(source) if source.endswith(".py") else _import_module(source)
    try:
        return _read_path(module, attribute)
    except AttributeError:
        raise TargetError(f"{target}: {source} has no attribute {attribute!r}") from None


def _read_path(value: object, path: str) -> object:
    """Return the object at a dotted path below a value. Raises AttributeError."""
    for name in path.split("."):
        value = getattr(value, name)
    return value


def _find_attribute(module: ModuleType, source: str, attribute: str) -> Backend:
    """Return the object at a dotted path in a module. Raises TargetError unless it is a Backend."""
    try:
        value = _read_path(module, attribute)
    except AttributeError:
        text = f"{source} has no attribute {attribute!r}{_list_servers(module, source)}"
        raise TargetError(f"{source}:{attribute}: {text}") from None
    if (got := describe_non_backend(value)) is not None:
        text = f"expected a Server or another Backend, got {got}{_list_servers(module, source)}"
        raise TargetError(f"{source}:{attribute}: {text}")
    # describe_non_backend() has checked that the value has the methods of a Backend.
    return value  # pyright: ignore[reportReturnType]


def _list_servers(module: ModuleType, source: str) -> str:
    """Return `; the servers in it: ...` for messages, or "" for a module without servers."""
    names = [
        f"{source}:{name}"
        for name, value in vars(module).items()
        if _find_wrapped(value) is not None
    ]
    return f"; the servers in it: {', '.join(names)}" if names else ""


def _find_only_server(module: ModuleType, source: str, calls: list[RunCall]) -> Backend:
    """Return the backend on which a file calls run(), or the only backend at its top level.

    If one backend wraps another, such as a guard or a composition, only the outer one counts.
    Raises TargetError if there is no backend, or more than one.
    """
    # By identity, because one server may have two names in the file.
    servers = {
        id(value): (name, cast("Backend", value))
        for name, value in vars(module).items()
        if _find_wrapped(value) is not None
    }
    for _, backend in list(servers.values()):
        for inner in _find_inner(backend):
            servers.pop(id(inner), None)
    # If the file calls run(), only the backends on which it does so are candidates. One file may
    # call run() on the same backend twice, for example with two names.
    candidates: list[Backend] = []
    for call in calls:
        if not any(call.backend is backend for backend in candidates):
            candidates.append(call.backend)
    if not candidates:
        candidates = [value for _, value in servers.values()]
    if len(candidates) == 1:
        return candidates[0]
    if not candidates:
        from concertino.cli.target_hints import describe_hidden_server

        raise TargetError(
            f"{source}: no concertino.Server found at its top level{describe_hidden_server(source)}"
        )

    names = ", ".join(name for name, _ in servers.values())
    hint = f"name one: {source}:ATTRIBUTE, or call run() on one"
    raise TargetError(f"{source}: several servers ({names}); {hint}")


def _find_inner(backend: Backend) -> list[Backend]:
    """Return the backends that a backend wraps, directly or indirectly."""
    direct = _find_wrapped(backend) or []
    return direct + [inner for wrapped in direct for inner in _find_inner(wrapped)]


def _find_wrapped(value: object) -> list[Backend] | None:
    """Return the backends that a value wraps directly; None if the value is not a backend."""
    if isinstance(value, BackendWrapper):
        return [value.inner]

    # Do not import these modules, which takes time. A file that uses one of them has imported it.
    composition = sys.modules.get("concertino.composition.composed_backend")
    if composition is not None and isinstance(value, composition.ComposedBackend):
        return list(cast("ComposedBackend", value).parts.values())
    library = sys.modules.get("concertino.library.library")
    is_library = library is not None and isinstance(value, library.Library)
    return [] if is_library or isinstance(value, Server) else None


def _import_file(path: str) -> ModuleType:
    """Import a Python file, and return its module.

    As in a script, the file can import the modules next to it. Its `__name__` is not `__main__`.
    Raises TargetError if there is no such file, and the exceptions of importing it.
    """
    if not os.path.isfile(path):
        from concertino.cli.target_hints import suggest_target

        raise TargetError(f"{path}: no such file{suggest_target(path)}")
    path = os.path.abspath(path)
    # Let the file import the modules next to it, as Python does for a script. The folder stays in
    # sys.path, because functions may import modules later.
    sys.path.insert(0, os.path.dirname(path))
    name = os.path.splitext(os.path.basename(path))[0]
    with _naming:
        # A file called json.py must not replace the module json.
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
    """Import a module, which may be in the current directory. Raises TargetError if none exists."""
    # The folder stays in sys.path, as for a file.
    sys.path.insert(0, os.getcwd())
    try:
        return import_module(name)
    except ModuleNotFoundError as exc:
        # If the target itself fails to import another module, report that error.
        if exc.name is not None and (name == exc.name or name.startswith(exc.name + ".")):
            raise TargetError(f"{name}: no such module") from None
        raise
