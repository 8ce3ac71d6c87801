"""Checks the types of the arguments of Client, when the Client is created.

Without these checks, a wrong argument would raise an exception only when the client uses the
argument, with a text that does not name the argument.
"""

from __future__ import annotations

import os

__all__ = ["check_functions", "check_sink", "check_type"]


def check_type(option: str, value: object, kind: type) -> None:
    """Raise TypeError unless a value is None or an instance of exactly the class `kind`.

    Fields that a subclass adds would have no effect.
    option: the name of the argument, for the error.
    """
    if value is not None and type(value) is not kind:
        raise TypeError(f"{option}: expected {kind.__name__}(...), got {value!r}")


def check_functions(**functions: object) -> None:
    """Raise TypeError unless all values are functions or None.

    functions: name of the argument -> value.
    """
    for option, function in functions.items():
        if function is not None and not callable(function):
            raise TypeError(f"{option}: expected a function, got {function!r}")


def check_sink(stderr: object) -> None:
    """Raise TypeError unless the argument `stderr` is a function, a path or None."""
    if not (stderr is None or callable(stderr) or isinstance(stderr, (str, os.PathLike))):
        kind = type(stderr).__name__
        raise TypeError(
            f"stderr: expected a function that takes a line, or the path of a file, got {kind}"
        )
