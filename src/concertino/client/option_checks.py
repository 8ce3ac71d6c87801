"""Checks the types of a Client's options, whose errors would otherwise come late and far away."""

from __future__ import annotations

import os

__all__ = ["check_functions", "check_sink", "check_type"]


def check_type(option: str, value: object, kind: type) -> None:
    """Raise TypeError unless an option has the given class or is None."""
    if value is not None and type(value) is not kind:
        raise TypeError(f"{option}: expected {kind.__name__}(...), got {value!r}")


def check_functions(**functions: object) -> None:
    """Raise TypeError unless all options are functions or None."""
    for option, function in functions.items():
        if function is not None and not callable(function):
            raise TypeError(f"{option}: expected a function, got {function!r}")


def check_sink(stderr: object) -> None:
    """Raise TypeError unless the option `stderr` is a function, a path or None."""
    if not (stderr is None or callable(stderr) or isinstance(stderr, (str, os.PathLike))):
        kind = type(stderr).__name__
        raise TypeError(
            f"stderr: expected a function that takes a line, or the path of a file, got {kind}"
        )
