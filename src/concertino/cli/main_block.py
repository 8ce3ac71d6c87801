"""run_main_block(): executes a file's `if __name__ == "__main__":` block without serving.

`concertino serve FILE` imports the file, and an import skips that block. But the backend to serve
may be created only there: `run(Guard(server, rate_limit="10/60"))`. So the command executes the
block, too. During that time run() only records the backend for the command, and does not serve it
(runtime/entry.py).
"""

from __future__ import annotations

import ast
import sys
from types import ModuleType

from concertino.backend.interface import describe_non_backend
from concertino.runtime.entry import run


def run_main_block(module: ModuleType, path: str) -> None:
    """Execute a file's `if __name__ == "__main__":` block, from its beginning to its call of run().

    First set the context variable runtime.entry.run_calls to a list: run() then appends its
    arguments to this list instead of serving. Does nothing if run() is not called at the top level
    of the block. While the block runs, sys.argv contains only the path.

    module: the imported file. The block is executed with its variables.
    path: the path of the file.
    Raises the exceptions of the block.
    """
    with open(path, "rb") as file:
        tree = ast.parse(file.read(), path)
    arguments, sys.argv = sys.argv, [path]
    try:
        for statement in tree.body:
            if isinstance(statement, ast.If) and _is_main_test(statement.test):
                _execute(statement.body, module, path)
    finally:
        sys.argv = arguments


def _is_main_test(test: ast.expr) -> bool:
    """Return whether an expression is `__name__ == "__main__"`."""
    return ast.unparse(test) in ("__name__ == '__main__'", "'__main__' == __name__")


def _execute(statements: list[ast.stmt], module: ModuleType, path: str) -> None:
    """Execute the statements of a main block before its first call of a function named run.

    Then execute that call, unless the function is of another package, such as asyncio.run().
    """
    calls = [number for number, statement in enumerate(statements) if _is_run_call(statement)]
    if not calls:
        return
    # Skip the statements after run(): run() does not return, so a script never reaches them.
    before, call = statements[: calls[0]], statements[calls[0]]
    namespace = vars(module)
    exec(compile(ast.Module(before, []), path, "exec"), namespace)
    assert isinstance(call, ast.Expr)
    assert isinstance(call.value, ast.Call)
    if _serves(call.value.func, namespace, path):
        exec(compile(ast.Module([call], []), path, "exec"), namespace)


def _is_run_call(statement: ast.stmt) -> bool:
    """Return whether a statement is a call such as `server.run()` or `run(server)`."""
    if not isinstance(statement, ast.Expr) or not isinstance(statement.value, ast.Call):
        return False
    function = statement.value.func
    name = function.attr if isinstance(function, ast.Attribute) else ast.unparse(function)
    return name == "run"


def _serves(function: ast.expr, namespace: dict[str, object], path: str) -> bool:
    """Return whether a function named run is concertino.run(), or the run() method of a backend.

    function: the expression that is called: `run`, or `owner.run` with any owner.
    namespace: the variables of the file, in which the expression is evaluated.
    """
    owner = function.value if isinstance(function, ast.Attribute) else function
    value = eval(compile(ast.Expression(owner), path, "eval"), namespace)
    if isinstance(function, ast.Name):
        return value is run
    # A backend, or the module concertino itself.
    return describe_non_backend(value) is None or getattr(value, "run", None) is run
