"""Finds where a Python file makes a server, for messages to its author.

The file is parsed and never executed.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping
from pathlib import Path

from msgspec import Struct

__all__ = ["UncalledFunction", "server_in_function", "server_name", "uncalled_function"]

Function = ast.FunctionDef | ast.AsyncFunctionDef
# Statements that only define something. A file of these does nothing when it is executed, unless an
# expression in them calls a function.
DEFINITIONS = (
    ast.Import,
    ast.ImportFrom,
    ast.FunctionDef,
    ast.AsyncFunctionDef,
    ast.ClassDef,
    ast.Assign,
    ast.AnnAssign,
)


def server_name(file: Path) -> str:
    """Return the name of the first variable at the top level of a Python file that is a Server.

    Returns "" if there is no such variable, or if the file cannot be read or parsed.
    """
    for statement in _statements(file):
        if isinstance(statement, ast.Assign):
            target, value = statement.targets[0], statement.value
        elif isinstance(statement, ast.AnnAssign) and statement.value is not None:
            target, value = statement.target, statement.value
        else:
            continue
        if isinstance(target, ast.Name) and _makes_server(value):
            return target.id
    return ""


def server_in_function(file: Path) -> tuple[str, int]:
    """Return the first function in a Python file that makes a Server: its name, and a line number.

    The line is that of the call of Server in the function. Returns ("", 0) if no function calls
    Server, or if the file cannot be read or parsed.
    """
    for statement in _statements(file):
        if isinstance(statement, Function):
            for node in ast.walk(statement):
                if isinstance(node, ast.expr) and _makes_server(node):
                    return statement.name, node.lineno
    return "", 0


class UncalledFunction(Struct, frozen=True):
    """A function at the top level of a file that nothing in the file calls.

    is_async: whether the function is an `async def`, which a caller must await.
    """

    name: str
    is_async: bool


def uncalled_function(file: Path, maker: str) -> UncalledFunction | None:
    """Return the function that a Python file would have to call in order to make its server.

    maker: the name of the function that makes the server, as server_in_function() returns it.
    Returns the outermost function that calls `maker`, directly or through others; often it is main.
    Returns `maker` itself if no function calls it. Returns None if the file may call `maker`
    already: its top level mentions a function that calls it, or has statements other than
    definitions.
    """
    statements = _statements(file)
    if not all(map(_is_definition, statements)):
        return None
    functions = {item.name: item for item in statements if isinstance(item, Function)}
    mentions = {name: _names_in(function.body) for name, function in functions.items()}
    # The names outside of function bodies. Decorators run when the file is executed.
    top_level: list[ast.AST] = []
    for item in statements:
        if isinstance(item, Function):
            top_level += item.decorator_list
        else:
            top_level.append(item)
    mentioned = _names_in(top_level)
    if maker in _reachable(mentioned, mentions):
        return None

    callers = [name for name in functions if maker in _reachable({name}, mentions)]
    outermost = [
        name
        for name in callers
        if not any(name in mentions[other] for other in callers if other != name)
    ]
    # Of several functions, the last is usually the entry point. There is none if the functions call
    # each other.
    name = outermost[-1] if outermost else maker
    return UncalledFunction(name, isinstance(functions[name], ast.AsyncFunctionDef))


def _statements(file: Path) -> list[ast.stmt]:
    """Return the top-level statements of a Python file; [] if it cannot be read or parsed."""
    try:
        return ast.parse(file.read_bytes()).body
    except (OSError, SyntaxError, ValueError):
        return []


def _makes_server(expression: ast.expr) -> bool:
    """Return whether an expression calls Server: `Server("x")` or `concertino.Server("x")`."""
    if not isinstance(expression, ast.Call):
        return False
    function = expression.func
    if isinstance(function, ast.Attribute):
        return function.attr == "Server"
    return isinstance(function, ast.Name) and function.id == "Server"


def _is_definition(statement: ast.stmt) -> bool:
    """Return whether a statement only defines something; docstrings count as definitions."""
    is_text = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
    return is_text or isinstance(statement, DEFINITIONS)


def _names_in(nodes: Iterable[ast.AST]) -> set[str]:
    """Return all names that the nodes mention."""
    inner = (node for item in nodes for node in ast.walk(item))
    return {node.id for node in inner if isinstance(node, ast.Name)}


def _reachable(names: set[str], mentions: Mapping[str, set[str]]) -> set[str]:
    """Return these names, and all names that the functions among them mention, recursively.

    mentions: function -> the names in its body.
    """
    found: set[str] = set()
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += mentions.get(name, ())
    return found
