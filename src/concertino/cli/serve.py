"""`concertino serve TARGET`: find a server in a file or module, and serve it."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from types import ModuleType
from typing import NoReturn

from msgspec import Struct

from concertino import logs
from concertino.backend import Backend
from concertino.driver.process import LoopFactory, leave, run
from concertino.errors import TargetError
from concertino.logs import BoundedWriter
from concertino.protocol.limits import Limits
from concertino.redact import refresh
from concertino.server import server as servers
from concertino.server.server import Marked, Server
from concertino.transports.stdio import take_over

__all__ = ["Found", "find", "found_or_leave", "serve"]

FAILED = 1
USAGE = 2


def serve(target: str, *, log_format: str | None, trace: bool | None, traceback: bool) -> NoReturn:
    """Serve what target names over stdin and stdout. Ends the process: 2 when there is no such server, 1 when importing or starting
    it failed.
    """
    taken = take_over()  # before the target is imported: what it prints must not reach the wire
    logs.configure(format=log_format, component="concertino", writer=taken.writer)
    if "LISTEN_FDS" in os.environ:  # else cli/listen.py would serve
        logs.logger("concertino").warning(
            "LISTEN_FDS: its sockets are for process %s, and this is %d; stdin and stdout are served",
            os.environ.get("LISTEN_PID") or "(none)",
            os.getpid(),
        )
    found = found_or_leave(target, taken.writer, traceback=traceback)
    run(
        found.backend,
        taken=taken,
        limits=found.limits,
        log_format=log_format,
        trace=trace,
        loop_factory=found.loop_factory,
    )


def found_or_leave(target: str, writer: BoundedWriter, *, traceback: bool) -> Found:
    """What find() gives; if it raises, say why and end the process. traceback: show it. writer: where log lines go."""
    log = logs.logger("concertino")
    try:
        return find(target)
    except TargetError as why:
        log.error("%s", why)
        leave(USAGE, writer)
    except BaseException as why:  # SystemExit too: whatever the target's code raises
        refresh()  # what was imported may have put secrets into os.environ
        shown = f"{type(why).__name__}: {why}{_place(why)}"
        log.error("Failed to start server: importing %s: %s", target, shown, exc_info=why if traceback else None)
        if not traceback:
            log.info("--traceback shows where")
        leave(FAILED, writer)


class Found(Struct, frozen=True):
    """A server, and what the file's own call of its run() gave."""

    backend: Backend
    limits: Limits | None = None
    loop_factory: LoopFactory | None = None


def find(target: str) -> Found:
    """The server that a target names: `file.py`, `file.py:attribute` or `package.module:attribute`.

    A file without an attribute must hold one server, or mark one by calling its run(). Raises TargetError, and whatever
    importing it raises.
    """
    place, attribute = target, ""
    if ":" in target and not (target.endswith(".py") and os.path.isfile(target)):
        place, _, attribute = target.rpartition(":")
    is_file = place.endswith(".py")
    if not is_file and (not attribute or not place or place.startswith(".")):
        raise TargetError(f"{target}: expected file.py, file.py:attribute or package.module:attribute")
    marked: list[Marked] = []
    servers.marked = marked
    try:
        module = _file(place) if is_file else _module(place)
    finally:
        servers.marked = None
    backend = _attribute(module, place, attribute) if attribute else _only(module, place, marked)
    for mark in marked:
        if mark.server is backend:
            return Found(backend, mark.limits, mark.loop_factory)
    return Found(backend)


def _attribute(module: ModuleType, place: str, attribute: str) -> Backend:
    found: object = module
    for name in attribute.split("."):
        try:
            found = getattr(found, name)
        except AttributeError:
            raise TargetError(f"{place}:{attribute}: {place} has no attribute {attribute!r}") from None
    if isinstance(found, type):
        raise TargetError(
            f"{place}:{attribute}: expected a Server or another Backend, got the class {found.__name__}; name an object"
        )
    if not all(callable(getattr(found, method, None)) for method in ("start", "offer", "handle", "close")):
        raise TargetError(f"{place}:{attribute}: expected a Server or another Backend, got {type(found).__name__}")
    return found  # pyright: ignore[reportReturnType]  # checked, as far as a Protocol can be


def _only(module: ModuleType, place: str, marked: list[Marked]) -> Server:
    """The one server of a file: marked by run(), or the only one there is."""
    held = {id(value): (name, value) for name, value in vars(module).items() if isinstance(value, Server)}
    candidates = list({id(each.server): each.server for each in marked}.values()) or [
        value for _, value in held.values()
    ]
    if len(candidates) == 1:
        return candidates[0]
    if not candidates:
        raise TargetError(f"{place}: no concertino.Server found at its top level")
    names = ", ".join(name for name, _ in held.values())
    raise TargetError(f"{place}: several servers ({names}); name one: {place}:ATTRIBUTE, or call run() on one")


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


def _place(why: BaseException) -> str:
    """Where an exception came from, if it was not the syntax of the file itself, which says so."""
    last = why.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    if last is None or isinstance(why, SyntaxError):
        return ""
    return f" ({os.path.basename(last.tb_frame.f_code.co_filename)}:{last.tb_lineno})"
