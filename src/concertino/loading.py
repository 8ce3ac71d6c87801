"""load(name): import a module of concertino's, without the garbage collector looking on."""

from __future__ import annotations

import gc
from importlib import import_module

TYPE_CHECKING = False  # without the module typing
if TYPE_CHECKING:
    from types import ModuleType

__all__ = ["load"]

FROZEN = (
    1000  # objects; an application that freezes what it has has more, and CPython 3.12 itself 375
)


def load(name: str) -> ModuleType:
    """What import_module() gives and raises.

    Modules stay, so there is nothing to collect while they are made; yet the collector would look at what asyncio, msgspec and
    concertino make some forty times between the start of a server and its first answer, which takes 5 % of that time. Afterwards
    all that there is counts as old, and is looked at when the old is.
    """
    collecting = gc.isenabled()
    gc.disable()
    try:
        return import_module(name)
    finally:
        if gc.get_freeze_count() < FROZEN:  # else the application froze what is to stay so
            gc.freeze()
            gc.unfreeze()  # into the oldest generation
        if collecting:
            gc.enable()
