"""Lazy imports: modules, public names and descriptions are loaded when they are first used."""

from __future__ import annotations

import gc
import sys
from importlib import import_module

# What type checkers take for True. Importing the module typing would cost 5 ms at the start.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import FunctionType, ModuleType
    from typing import Any

__all__ = ["LazyDescription", "lazy_names", "load"]

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
) -> tuple[list[str], Callable[[str], object], Callable[[], list[str]]]:
    """Return `__all__`, `__getattr__` and `__dir__` for a package whose names load on first use.

    package: name of the package. homes: module -> the public names that it defines. `__getattr__`
    raises AttributeError for any other name, and ImportError if the module cannot be imported.

    Type checkers do not see this `__all__`. For them the package imports each name under
    TYPE_CHECKING in the form `from module import name as name`, which marks it as public.
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

    return list(module_of), get, names


class LazyDescription:
    """A method whose signature and docstring are completed when somebody first reads them.

    function: the method. describe: completes its description; imports what it needs for that.
    The class gets the function itself as soon as help(), inspect or anybody else asks the class
    for the method; calls through an object do not.
    """

    def __init__(self, function: FunctionType, describe: Callable[[FunctionType], object]) -> None:
        self.__module__ = function.__module__
        self._function = function
        self._describe: Callable[[FunctionType], object] | None = describe
        self._owner: type | None = None

    def __set_name__(self, owner: type, name: str) -> None:
        self._owner = owner

    def __get__(self, instance: object, owner: type) -> object:
        if instance is None:
            return self._described()
        # Not above: importing this package imports as little as possible.
        from types import MethodType

        return MethodType(self, instance)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._function(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the function, for `help(server.tool)`."""
        return getattr(self._described(), name)

    @property
    def __doc__(self) -> str | None:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self._described().__doc__

    def _described(self) -> FunctionType:
        describe, self._describe = self._describe, None
        if describe is not None:
            describe(self._function)
            assert self._owner is not None
            setattr(self._owner, self._function.__name__, self._function)
        return self._function
