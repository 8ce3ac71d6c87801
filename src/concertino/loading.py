"""Lazy imports: modules and public names are loaded when they are first used."""

from __future__ import annotations

import gc
import sys
from importlib import import_module

# What type checkers take for True. Importing the module typing would cost 5 ms at the start.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import ModuleType

__all__ = ["lazy_names", "load"]

# Objects. CPython 3.12 itself freezes 375; an application that calls gc.freeze() has more than 1000.
FROZEN = 1000


def load(name: str) -> ModuleType:
    """Import a module with garbage collection paused; return it, or raise, as import_module() does.

    Modules stay loaded, so there is nothing to collect while they are made. Yet the collector would
    run some forty times between the start of a server and its first answer, which takes 5 % of that
    time. Afterwards all objects count as old and are examined with the old generation.
    """
    collecting = gc.isenabled()
    gc.disable()
    try:
        return import_module(name)
    finally:
        # An application that froze its objects wants them to stay frozen.
        if gc.get_freeze_count() < FROZEN:
            gc.freeze()
            # Unfreezing moves everything into the oldest generation.
            gc.unfreeze()
        if collecting:
            gc.enable()


def lazy_names(
    package: str, homes: Mapping[str, Sequence[str]]
) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` for a package whose public names load on first use.

    homes: module -> the names that it defines.
    """
    module_of = {name: module for module, names in homes.items() for name in names}

    def get(name: str) -> object:
        module = module_of.get(name)
        if module is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(load(module), name)
        setattr(sys.modules[package], name, value)
        return value

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *module_of})

    return get, names
