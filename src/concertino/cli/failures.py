"""Reports failed commands on stderr: in words, or with --json as one line of JSON.

main() calls it when a command has raised CommandFailure.
"""

from __future__ import annotations

import sys
from typing import Any, cast

from msgspec.json import encode

from concertino.cli import CommandFailure
from concertino.cli.terminal_text import escape_json, escape_lines

__all__ = ["report"]

# How many lines are shown of the data in an error response.
MAX_DATA_LINES = 20


def report(failure: CommandFailure, command: str, *, as_json: bool) -> None:
    """Write a failure to stderr.

    One line of JSON contains the whole error response of the server (`failure.rpc`), if there is
    one. A report in words contains the data of the response if `failure.shows_data` is True.
    command: the name of the command that has failed; "" if the command line names none.
    as_json: whether to write one line of JSON instead of words.
    """
    if as_json:
        error: dict[str, Any] = {
            "code": failure.code,
            "message": str(failure),
            "hint": failure.hint or None,
        }
        if failure.rpc is not None:
            error["rpc"] = failure.rpc
        # Only ASCII, so that a program can read it whatever encoding stderr has.
        text = escape_json(encode({"error": error}), is_unicode=False)
    else:
        program = f"concertino {command}" if command else "concertino"
        lines = [f"{program}: {failure}"]
        if failure.rpc is not None and failure.shows_data:
            lines += _format_data(failure.rpc.get("data"))
        lines += failure.hint.splitlines()
        text = escape_lines("\n  ".join(lines))
    print(text, file=sys.stderr, flush=True)  # noqa: T201


def _format_data(data: Any) -> list[str]:
    """Return the data of an error response as lines, one for each key or item."""
    if data is None:
        return []
    if isinstance(data, dict):
        pairs = cast("dict[str, Any]", data).items()
        lines = [f"{name}: {_format_value(value)}" for name, value in pairs]
    elif isinstance(data, list):
        lines = [_format_value(item) for item in cast("list[Any]", data)]
    else:
        lines = _format_value(data).splitlines()
    if len(lines) > MAX_DATA_LINES:
        lines[MAX_DATA_LINES:] = [f"... ({len(lines) - MAX_DATA_LINES} more)"]
    return lines


def _format_value(value: Any) -> str:
    """Return a value as text.

    A string stays as it is, and a list of strings and numbers is joined with commas. Every other
    value becomes JSON.
    """
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        items = cast("list[Any]", value)
        if all(isinstance(item, (str, int, float)) for item in items):
            return ", ".join(map(str, items))
    return encode(value).decode()
