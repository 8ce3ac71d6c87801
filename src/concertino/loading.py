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

# Number of frozen objects from which we assume that the application called gc.freeze(). CPython
# 3.12 itself freezes 375; an application has more than 1000.
FROZEN = 1000


def load(name: str) -> ModuleType:
    """Import a module with garbage collection paused. Returns and raises as import_module() does.

    Modules stay loaded, so an import leaves nothing to collect. Without the pause the collector
    runs some forty times between the start of a server and its first response, which takes 5 % of
    that time. Afterwards all objects belong to the oldest generation.
    """
    collecting = gc.isenabled()
    gc.disable()
    try:
        return import_module(name)
    finally:
        # Skip this if the application froze its objects: unfreeze() would release those as well.
        if gc.get_freeze_count() < FROZEN:
            gc.freeze()
            # unfreeze() moves all objects into the oldest generation.
            gc.unfreeze()
        if collecting:
            gc.enable()


def lazy_names(
    package: str, homes: Mapping[str, Sequence[str]]
) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` for a package whose public names load on first use.

    package: name of the package. homes: module -> the public names that it defines. `__getattr__`
    raises AttributeError for any other name, and ImportError if the module cannot be imported.
    """
    module_of = {name: module for module, names in homes.items() for name in names}

    def get(name: str) -> object:
        module = module_of.get(name)
        if module is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(load(module), name)

        # Cache it in the package, so that __getattr__ is called once per name.
        setattr(sys.modules[package], name, value)
        return value

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *module_of})

    return get, names
