"""Hints for the user if `concertino serve` finds no server in a target.

A target is file.py, file.py:attribute or package.module:attribute.
"""

from __future__ import annotations

import os
from difflib import get_close_matches
from pathlib import Path

from concertino.backend.server_source import server_in_function, server_name

__all__ = ["describe_hidden_server", "suggest_target"]


def suggest_target(target: str) -> str:
    """Return the end of the error message for a target that does not exist.

    The first of these cases that applies decides:
    - There is a target with a similar name: "; did you mean server.py?"
    - The folder of the target does not exist: "; there is no folder src"
    - The target is the name of a .py file without a folder. The text names the current folder, in
      which the file was looked for: " in /home/me"
    - Otherwise: ""
    """
    module = Path(target.replace(".", os.sep) + ".py")
    if not target.endswith(".py") and target and ":" not in target:
        # `server` for server.py.
        if Path(f"{target}.py").is_file():
            return f"; did you mean {target}.py?"
        # `package.module` without an attribute. A name that begins with a dot, such as ./server, is
        # a path.
        if module.is_file() and target.isprintable() and not target.startswith("."):
            return f"; did you mean {target}:{server_name(module) or 'server'}?"

    # Look for a file with a similar name.
    folder, name = os.path.split(target)
    try:
        files = [file for file in os.listdir(folder or ".") if file.endswith(".py")]
    except OSError:
        return f"; there is no folder {folder}"
    if close := get_close_matches(name, files, 1):
        return f"; did you mean {os.path.join(folder, close[0])}?"
    return "" if folder or not name.endswith(".py") else f" in {os.getcwd()}"


def describe_hidden_server(path: str) -> str:
    """Return the end of the error message for a file in which no server was found.

    If a function in the file makes a server, the text names the function. Otherwise the text has an
    example.
    path: the path of the file.
    """
    function, line = server_in_function(Path(path))
    if function:
        return f"; {function}() makes one in line {line}: move it and its tools out of the function"
    return '; make one there, as in `server = Server("name")`'
