"""Lazy imports: modules, public names and method descriptions are loaded at their first use.

They make a server start faster. lazy_names() is for the public names of packages such as
concertino.guards, load() for modules, and LazyDescription for the signatures of methods.
"""

from __future__ import annotations

import gc
import sys
from importlib import import_module

# Type checkers treat this as True. Importing the module typing would take 5 ms at the start.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import FunctionType, ModuleType
    from typing import Any

__all__ = ["LazyDescription", "lazy_names", "load"]

# If more objects than this are frozen (ignored by the garbage collector), the application has
# called gc.freeze(), which freezes more than 1000. CPython 3.12 itself freezes 375 objects.
FROZEN = 1000


def load(name: str) -> ModuleType:
    """Import a module by its absolute name and return it, with garbage collection paused."""
    if name in sys.modules:
        # get_freeze_count() below visits each frozen object: 40 ms for 300,000 of them.
        return import_module(name)

    # Imported modules stay in memory, so there is nothing to collect during an import. Without the
    # pause, the collector runs about forty times between the start of a server and its first
    # response, which takes 5 % of that time.
    collecting = gc.isenabled()
    gc.disable()
    try:
        return import_module(name)
    finally:
        # If the application has frozen its objects, do nothing: unfreeze() would unfreeze them,
        # too.
        if gc.get_freeze_count() < FROZEN:
            gc.freeze()
            # unfreeze() moves all objects into the oldest generation, which the collector examines
            # rarely.
            gc.unfreeze()
        if collecting:
            gc.enable()


def lazy_names(
    package: str,
    names_of_modules: Mapping[str, Sequence[str]],
    advice_for_names: Mapping[str, str] | None = None,
) -> tuple[list[str], Callable[[str], object], Callable[[], list[str]]]:
    """Return `__all__`, `__getattr__` and `__dir__` for a package whose names load on first use.

    The package assigns the three returned values to these names. `__getattr__` raises
    AttributeError for unknown names, and ImportError if the module of a name cannot be imported.

    package: the name of the package.
    names_of_modules: module -> the public names that it defines.
    advice_for_names: a name that the package lacks but other SDKs have -> a text that says what to
        use instead; None for no such names. For such a name `__getattr__` raises ImportError with
        this text, because `from package import name` would replace the text of an AttributeError.

    Type checkers do not understand this `__all__`. For them the package imports each name under
    TYPE_CHECKING in the form `from module import name as name`, which marks it as public.
    """
    module_of = {name: module for module, names in names_of_modules.items() for name in names}

    def get_name(name: str) -> object:
        module = module_of.get(name)
        if module is None:
            if advice_for_names and name in advice_for_names:
                text = f"cannot import name {name!r} from {package!r}; {advice_for_names[name]}"
                raise ImportError(text, name=package)
            # With `obj`, Python suggests a similar name from dir(obj) in the traceback.
            text = f"module {package!r} has no attribute {name!r}"
            raise AttributeError(text, name=name, obj=sys.modules[package])
        value = getattr(load(module), name)

        # Store the value in the package, so that __getattr__ is called once for each name.
        setattr(sys.modules[package], name, value)
        return value

    def list_names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *module_of})

    return list(module_of), get_name, list_names


class LazyDescription:
    """A method whose signature and docstring are completed when they are first read.

    Assign an object of this class to the name of the method in the class body. When help(), inspect
    or other code reads the method from the class, this object calls `describe` and then puts the
    function in its own place in the class. Calling the method does not complete the description.

    function: the method.
    describe: completes the signature and docstring of the function that it is called with.
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
            return self._complete()
        # Imported here because this module imports as little as possible.
        from types import MethodType

        # Bind `self`, not the function, so that help() of the bound method reads the attributes of
        # this object. Reading them completes the description.
        return MethodType(self, instance)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._function(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the function. help() reads `__name__` and others here."""
        return getattr(self._complete(), name)

    @property
    def __doc__(self) -> str | None:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self._complete().__doc__

    def _complete(self) -> FunctionType:
        """Return the function with its complete description, and put it in place of this object."""
        describe, self._describe = self._describe, None
        if describe is not None:
            describe(self._function)
            assert self._owner is not None
            setattr(self._owner, self._function.__name__, self._function)
        return self._function
