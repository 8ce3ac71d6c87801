"""Makes the values that argparse would return for a command without options and arguments.

`concertino proxy -- COMMAND...` is such a command, because cli/__init__.py splits off what follows
`--` before. An MCP host waits for the start of the command. Without argparse, the start takes 3 ms
of CPU time and 1 MB of memory less.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NoReturn

from concertino.loading import load

__all__ = ["make_default_arguments"]

# Action of an option -> what argparse stores if the option is not given and has no `default`. For
# all other actions this is None.
DEFAULTS = {"store_true": False, "store_false": True}


def make_default_arguments(name: str, add_arguments: Callable[[Any], None]) -> SimpleNamespace:
    """Return what argparse returns for a command that is given without options and arguments.

    As after parse() of parsers.py, the result has `parser`, whose error() raises UsageError, and
    `command`, the name.

    name: the name of the command. All its arguments must be optional.
    add_arguments: the function of the command's module that adds the options to a parser.
    """
    parser = _DefaultsParser(name)
    add_arguments(parser)
    return SimpleNamespace(**parser.values, parser=parser, command=name)


class _DefaultsParser:
    """Stands in for a parser of argparse, and stores only the defaults of the options.

    name: the name of the command.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self.values: dict[str, Any] = {}

    def add_argument(self, *names: str, **options: Any) -> None:
        """Store the default of an option, or of an argument that may be missing (nargs="*")."""
        name = next((name for name in names if name.startswith("--")), names[0])
        key = options.get("dest") or name.lstrip("-").replace("-", "_")
        default: object = DEFAULTS.get(options.get("action", ""))
        if options.get("nargs") == "*":
            default = []
        self.values[key] = options.get("default", default)

    def add_argument_group(self, *_: str) -> _DefaultsParser:
        """Return this object: all options have their values in the same place."""
        return self

    def error(self, message: str) -> NoReturn:
        """Raise UsageError with the advice that the parser of the command gives."""
        # Only now make the real parser, because its usage text is needed.
        parsers = load("concertino.cli.parsers")
        _, commands = parsers.make_parser()
        parser, _ = parsers.add_command(commands, self._name)
        fail: Callable[[str], NoReturn] = parser.error
        fail(message)
