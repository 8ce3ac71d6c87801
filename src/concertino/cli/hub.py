"""`concertino hub ps|restart|stop|logs`: the plugins of the hubs that run, and what they do."""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from typing import TYPE_CHECKING

from concertino.cli.ps import format_age, format_memory
from concertino.cli.serving import reject_extra_args
from concertino.logs.formats import escape_controls

if TYPE_CHECKING:
    from pathlib import Path

    from concertino.orchestra.hub_control import ControlAnswer, PluginStatus

FAILED, USAGE = 1, 2

DESCRIPTION = (
    "See and manage the plugins of the hubs of this user: those of `concertino orchestrate` and "
    "`concertino serve plugins.yaml`. Exit codes: 0, 1 if the hub could not do it, 2 if it is not "
    "clear which hub is meant."
)
HEADINGS = ("HUB", "PLUGIN", "PID", "AGE", "MEM", "CALLS", "RESTARTS", "TOOLS", "STATE")
NUMBERS = frozenset(("PID", "AGE", "MEM", "CALLS", "RESTARTS", "TOOLS"))
KINDS = {
    "ps": "show all plugins: memory, calls in progress, restarts, state",
    "restart": "end a plugin after its calls, and start it again",
    "stop": "end a plugin after its calls; it stays ended until `restart`",
    "logs": "print the latest lines of a plugin",
}


def add_arguments(parser: ArgumentParser) -> None:
    """Add the subcommands to the parser of `concertino hub`."""
    kinds = parser.add_subparsers(dest="kind", metavar="COMMAND", required=True)
    for name, help in KINDS.items():
        kind = kinds.add_parser(name, help=help, formatter_class=parser.formatter_class)
        if name == "ps":
            kind.add_argument("--json", action="store_true", help="one JSON object per plugin")
        else:
            kind.add_argument("plugin", metavar="PLUGIN", help="the id of the plugin")
            kind.add_argument(
                "--hub", metavar="PID", type=int, help="the hub, if several run: see `hub ps`"
            )


def run(args: Namespace, server: Sequence[str]) -> int:
    """Run a subcommand and return the exit code."""
    reject_extra_args(args, server)
    try:
        from concertino.orchestra.hub_control import ControlRequest, ask_hub, find_hubs
    except ImportError as exc:
        return _fail(str(exc), FAILED)

    hubs = find_hubs(os.environ)
    if args.kind == "ps":
        answers: list[ControlAnswer] = []
        for pid, path in hubs.items():
            try:
                answers.append(ask_hub(path, ControlRequest("ps")))
            except OSError as exc:
                _fail(f"hub {pid} does not answer: {exc}", FAILED)
        _print_plugins(answers, args.json)
        return 0
    path = _choose(hubs, args.hub)
    if isinstance(path, str):
        return _fail(path, USAGE)
    try:
        answer = ask_hub(path, ControlRequest(args.kind, args.plugin))
    except OSError as exc:
        return _fail(f"the hub does not answer: {exc}", FAILED)
    if answer.error:
        return _fail(answer.error, FAILED)
    for line in answer.lines:
        print(escape_controls(line))  # noqa: T201
    for plugin in answer.plugins:
        print(f"{plugin.id}: {plugin.state}")  # noqa: T201
    return 0


def _choose(hubs: dict[int, Path], pid: int | None) -> Path | str:
    """Return the socket of the hub that is meant, or a text that says why that is not clear."""
    if not hubs:
        return "no hub of this user runs"
    if pid is not None:
        return hubs.get(pid, f"no hub has the process id {pid}; see: concertino hub ps")
    if len(hubs) > 1:
        return f"{len(hubs)} hubs run: name one with --hub {' or '.join(map(str, hubs))}"
    return next(iter(hubs.values()))


def _fail(text: str, code: int) -> int:
    sys.stderr.write(f"concertino hub: {escape_controls(text)}\n")
    return code


def _print_plugins(answers: Sequence[ControlAnswer], as_json: bool) -> None:
    if as_json:
        from msgspec.json import encode
        from msgspec.structs import asdict

        for answer in answers:
            for plugin in answer.plugins:
                print(encode({"hub": answer.pid, **asdict(plugin)}).decode())  # noqa: T201
        return
    rows = [_row(answer.pid, plugin) for answer in answers for plugin in answer.plugins]
    if not rows:
        print("no hub of this user runs now" if not answers else "no plugin runs")  # noqa: T201
        return
    widths = [max(map(len, column)) for column in zip(HEADINGS, *rows, strict=True)]
    reasons = ["", *(plugin.reason for answer in answers for plugin in answer.plugins)]
    for row, reason in zip((HEADINGS, *rows), reasons, strict=True):
        cells = [
            cell.rjust(size) if heading in NUMBERS else cell.ljust(size)
            for heading, cell, size in zip(HEADINGS, row, widths, strict=True)
        ]
        print("  ".join(cells).rstrip())  # noqa: T201
        if reason:
            print(f"    {escape_controls(reason)}")  # noqa: T201


def _row(hub: int, plugin: PluginStatus) -> tuple[str, ...]:
    from concertino.transports.process_table import (
        age_s,
        live_processes,
        read_memory,
        read_process_state,
    )

    age: float | None = None
    memory = 0
    if plugin.pid:
        state = read_process_state(plugin.pid)
        age = None if state is None else age_s(state)
        group = [pid for pid, state in live_processes() if state.group == plugin.pid]
        memory = sum(map(read_memory, group))
    return (
        str(hub),
        plugin.id,
        str(plugin.pid or "-"),
        "-" if age is None else format_age(age),
        format_memory(memory) if memory else "-",
        str(plugin.calls),
        str(plugin.restarts),
        str(plugin.tools),
        plugin.state,
    )
