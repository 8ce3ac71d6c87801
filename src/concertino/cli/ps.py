"""`concertino ps`: shows the servers behind all proxies of this user, and their state.

A proxy is a process of `concertino proxy` or of `concertino serve mcp.json`, which starts servers
and passes calls to them.
"""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Sequence
from textwrap import wrap
from typing import TYPE_CHECKING

from concertino.cli.serving import reject_extra_args
from concertino.logs.formats import escape_controls

if TYPE_CHECKING:
    from concertino.proxy.running_proxies import RunningServer

DESCRIPTION = (
    "Show the servers that concertino stands in front of, for all hosts of this user: behind "
    "`concertino proxy`, `dev` and `serve mcp.json`, and behind programs that serve a Proxy. Exit "
    "code: 0."
)
HEADINGS = ("HOST", "SERVER", "PID", "AGE", "MEM", "CALLS", "RESTARTS", "STATE")
# Columns of numbers are aligned to the right.
NUMBERS = frozenset(("PID", "AGE", "MEM", "CALLS", "RESTARTS"))
# Names longer than this are cut, so that a line fits into 80 columns.
MAX_HOST, MAX_SERVER = 14, 16
# Longer stray lines are cut.
MAX_STRAY = 100
# The width of a pipe, and of a terminal that does not report its width.
WIDTH = 80
MINUTE, HOUR, DAY = 60, 3600, 86400


def add_arguments(parser: ArgumentParser) -> None:
    """Add the options of `concertino ps` to its parser."""
    parser.add_argument("--json", action="store_true", help="one JSON object per server and line")


def run(args: Namespace, server: Sequence[str]) -> int:
    """Print the servers behind all proxies of this user. Returns the exit code 0.

    args: the parsed arguments.
    server: the words after `--`. This command accepts none.
    """
    reject_extra_args(args, server)
    from concertino.proxy.running_proxies import read_servers

    servers = read_servers(os.environ)
    if args.json:
        from msgspec.json import encode

        for item in servers:
            print(encode(item).decode())  # noqa: T201
    elif servers:
        print("\n".join(_format_table(servers, terminal_width())))  # noqa: T201
    else:
        print("no proxy runs, so there are no servers to show")  # noqa: T201
        print("  to start one: concertino proxy -- COMMAND")  # noqa: T201
    return 0


def terminal_width() -> int:
    """Return the number of columns of the terminal at stdout; 80 if it is not a terminal."""
    try:
        return os.get_terminal_size(sys.stdout.fileno()).columns or WIDTH
    except (OSError, ValueError):
        return WIDTH


def _format_table(servers: Sequence[RunningServer], width: int) -> list[str]:
    """Return a table with one line for each server, and its faults below it.

    The faults are the server's last error, and the stray lines on its stdout.
    """
    rows = [HEADINGS, *map(_format_row, servers)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines: list[str] = []
    for row, item in zip(rows, (None, *servers), strict=True):
        cells = [
            cell.rjust(size) if heading in NUMBERS else cell.ljust(size)
            for heading, cell, size in zip(HEADINGS, row, widths, strict=True)
        ]
        lines.append("  ".join(cells).rstrip())
        for text in () if item is None else _list_faults(item):
            lines += wrap(text, max(width, 40), initial_indent="    ", subsequent_indent="    ")
    return lines


def _list_faults(item: RunningServer) -> Iterator[str]:
    """Yield what is wrong with a server, one sentence each."""
    if item.last_error:
        yield escape_controls(item.last_error)
    if item.stray:
        noun = "line" if item.stray == 1 else "lines"
        last = _cut(item.last_stray, MAX_STRAY)
        yield f"{item.stray} stray {noun} on stdout, the last one: {last}"


def _format_row(item: RunningServer) -> tuple[str, ...]:
    return (
        _cut(item.host or "-", MAX_HOST),
        _cut(item.server, MAX_SERVER),
        str(item.pid or "-"),
        "-" if item.age_s is None else format_age(item.age_s),
        "-" if item.memory_bytes is None else format_memory(item.memory_bytes),
        str(item.calls),
        str(item.restarts),
        item.state,
    )


def _cut(text: str, most: int) -> str:
    text = escape_controls(text)
    return text if len(text) <= most else f"{text[: most - 1]}~"


def format_age(seconds: float) -> str:
    """Return a time in its largest unit: `12s`, `3m`, `5h`, `2d`."""
    for unit, name in ((DAY, "d"), (HOUR, "h"), (MINUTE, "m")):
        if seconds >= unit:
            return f"{seconds / unit:.0f}{name}"
    return f"{max(0.0, seconds):.0f}s"


def format_memory(size: int) -> str:
    """Return a size in MB or GB: `24M`, `1.5G`."""
    megabytes = size / 1e6
    return f"{megabytes:.0f}M" if megabytes < 1000 else f"{megabytes / 1000:.1f}G"
