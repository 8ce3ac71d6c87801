"""keep_spare_descriptor(): lets a server import modules although it has no free file descriptor.

Many modules are imported when they are first needed, for example to answer malformed input, and
reading a module's file needs a descriptor. If the code of a server uses up all descriptors of the
process, such an import would fail, and with it a connection, or the report of a failed start. So
the server keeps one descriptor in reserve, and closes it for the time of such an import.
"""

from __future__ import annotations

import os
import sys
import time
from contextlib import suppress
from errno import EMFILE
from functools import partial
from threading import RLock
from typing import TYPE_CHECKING, Any, TypeVar, cast

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

__all__ = ["keep_spare_descriptor"]

T = TypeVar("T")
# Other code may take the free descriptor for a moment: the C library opens a file when it creates
# one of its heaps for a new thread. Then reading is tried again after a pause of AGAIN_S seconds,
# up to TRIES times.
AGAIN_S = 0.001
TRIES = 10


def keep_spare_descriptor() -> None:
    """Keep one file descriptor in reserve until the process ends.

    If the process has no other descriptor left, an import uses this one to read its module.
    Called by programs that only run a server; a second call has no effect.
    """
    if not any(type(finder) is _SpareDescriptor for finder in sys.meta_path):
        sys.meta_path.insert(0, _SpareDescriptor())


class _SpareDescriptor:
    """The descriptor in reserve, and a finder of modules, which Python asks before all others.

    If another descriptor is free, find_spec() returns None, so Python asks the other finders.
    Otherwise find_spec() closes the descriptor in reserve, and asks the other finders itself. A
    `with` statement closes the descriptor for the time of its block, in one thread at a time.
    """

    def __init__(self) -> None:
        # Held while a file is looked for or read, not while a module is executed.
        self._lock = RLock()
        # How many `with` blocks of one thread are nested: a finder may import modules.
        self._depth = 0
        self._descriptor = _open_spare()

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        # To find out whether a descriptor is free, copy the spare one, which takes a microsecond.
        # The copy also fails while the spare is closed, because an import uses it or because no
        # descriptor was free to open it again. In all these cases, ask the other finders here.
        try:
            os.close(os.dup(self._descriptor))
        except OSError:
            pass
        else:
            return None
        with self:
            for finder in sys.meta_path:
                spec = None
                if finder is not self:
                    spec = _try_often(partial(finder.find_spec, name, path, target))
                if spec is not None:
                    if spec.loader is not None:
                        spec.loader = cast("Any", _SpareLoader(spec.loader, self))
                    return spec
        return None

    def __enter__(self) -> None:
        self._lock.acquire()
        self._depth += 1
        # Code that makes the process a daemon closes all descriptors, so the number may belong to
        # another file now. samestat() says whether it is still /dev/null. It is -1 if no descriptor
        # was free.
        with suppress(OSError):
            if os.path.samestat(os.fstat(self._descriptor), os.stat(os.devnull)):
                os.close(self._descriptor)
        self._descriptor = -1

    def __exit__(self, *_: object) -> None:
        self._depth -= 1
        if not self._depth:
            self._descriptor = _open_spare()
        self._lock.release()


class _SpareLoader:
    """Loads one module with another loader, which reads files while the descriptor is free."""

    def __init__(self, loader: Any, spare: _SpareDescriptor) -> None:
        self._loader = loader
        self._spare = spare

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        # For a module that is compiled to machine code, this opens the file.
        with self._spare:
            return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        # Modules such as inspect expect the loader that knows the module's file.
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        try:
            with self._spare:
                code = _try_often(partial(self._loader.get_code, module.__name__))
        except AttributeError:
            # The loader is of another package and can only execute modules.
            code = None
        if code is None:
            self._loader.exec_module(module)
        else:
            exec(code, module.__dict__)


def _try_often(read: Callable[[], T]) -> T:
    """Call a function that opens files, again while no descriptor is free. Return its result."""
    for _ in range(TRIES):
        try:
            return read()
        except OSError as exc:
            if exc.errno != EMFILE:
                raise
            time.sleep(AGAIN_S)
    return read()


def _open_spare() -> int:
    """Return a new descriptor, or -1 if none is free."""
    try:
        return os.open(os.devnull, os.O_RDONLY)
    except OSError:
        return -1
