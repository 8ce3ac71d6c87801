"""`concertino hub ps|restart|stop|logs`: shows and manages the plugins of running hubs.

A hub is the process of `concertino orchestrate`, which starts plugins and forwards requests to
them.
"""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from typing import TYPE_CHECKING

from concertino.cli import USAGE, CommandFailure
from concertino.cli.ps import format_age, format_memory
from concertino.cli.serving import reject_extra_args
from concertino.logs.formats import escape_controls

if TYPE_CHECKING:
    from pathlib import Path

    from concertino.orchestra.hub_control import ControlAnswer, PluginStatus
    from concertino.orchestra.process_load import ProcessLoad

DESCRIPTION = (
    "See and manage the plugins of this user's hubs, which `concertino orchestrate` and "
    "`concertino serve plugins.yaml` start. Exit codes: 0 success, 1 the command failed, 2 usage, "
    "or not exactly one hub can be meant. `ps` leaves out a hub that does not answer, and says so."
)
HEADINGS = (
    "HUB", "PLUGIN", "PID", "AGE", "CPU", "MEM", "CALLS", "NOW", "RESTARTS", "TOOLS", "STATE"
)  # fmt: skip
# Columns of numbers are aligned to the right.
NUMBERS = frozenset(HEADINGS) - {"HUB", "PLUGIN", "STATE"}
# Subcommand -> its line in the help.
KINDS = {
    "ps": "show all plugins: load, calls since the start and now, restarts, state, last error",
    "restart": "end a plugin and start it again; its calls get 2 s to finish",
    "stop": "end a plugin until `restart`; its calls get 2 s to finish",
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
    """Run a subcommand and return the exit code.

    args: the parsed arguments.
    server: the words after `--`. This command accepts none.
    Raises CommandFailure: with exit code 1 if the subcommand has failed, with 2 if no hub runs, if
    the hub in --hub does not run, or if several run and --hub is not given. Otherwise returns 0.
    """
    reject_extra_args(args, server)
    try:
        from concertino.orchestra.hub_control import ControlRequest, ask_hub, find_hubs
    except ImportError as exc:
        raise CommandFailure(str(exc)) from None

    hubs = find_hubs(os.environ)
    if args.kind == "ps":
        return _show_plugins(hubs, args.json)
    path = _choose(hubs, args.hub)
    try:
        if args.kind != "logs":
            # A restart or a stop may take a minute. So first find out by a quick request whether
            # the hub answers; ask_hub() waits only 5 s for the answer to "ps".
            ask_hub(path, ControlRequest("ps", args.plugin))
        answer = ask_hub(path, ControlRequest(args.kind, args.plugin))
    except OSError as exc:
        raise CommandFailure(f"the hub does not answer: {exc}") from None
    if answer.error:
        raise CommandFailure(answer.error)
    for line in answer.lines:
        print(escape_controls(line))  # noqa: T201
    for plugin in answer.plugins:
        # "backing-off": the plugin has ended again, and the hub waits before the next restart.
        if args.kind == "restart" and plugin.state == "backing-off":
            raise CommandFailure(
                f"{plugin.id} does not run: {plugin.reason}; see: concertino hub logs {plugin.id}"
            )
        print(f"{plugin.id}: {plugin.state}")  # noqa: T201
    return 0


def _show_plugins(hubs: dict[int, Path], as_json: bool) -> int:
    """Print the plugins of all hubs that answer, and return the exit code 0.

    A hub that does not answer is named on stderr.

    hubs: process id of a running hub -> the path of its socket.
    """
    from concertino.orchestra.hub_control import ControlRequest, ask_hub

    answers: list[ControlAnswer] = []
    for pid, path in hubs.items():
        try:
            answers.append(ask_hub(path, ControlRequest("ps")))
        except OSError as exc:
            # Not a failure: all other hubs are shown.
            text = escape_controls(f"hub {pid} does not answer: {exc}")
            sys.stderr.write(f"concertino hub: {text}\n")
    if answers or not hubs:
        _print_plugins(answers, as_json)
    return 0


def _choose(hubs: dict[int, Path], pid: int | None) -> Path:
    """Return the path of a hub's socket. Raises CommandFailure unless exactly one can be meant.

    hubs: process id of a running hub -> the path of its socket.
    pid: the hub that the user has named; None for the only one that runs.
    """
    if not hubs:
        raise CommandFailure("no hub of this user runs", exit_code=USAGE)
    if pid is not None:
        if pid not in hubs:
            text = f"no hub has the process id {pid}; see: concertino hub ps"
            raise CommandFailure(text, exit_code=USAGE)
        return hubs[pid]
    if len(hubs) > 1:
        text = f"{len(hubs)} hubs run: name one with --hub {' or '.join(map(str, hubs))}"
        raise CommandFailure(text, exit_code=USAGE)
    return next(iter(hubs.values()))


def _print_plugins(answers: Sequence[ControlAnswer], as_json: bool) -> None:
    """Print the plugins of several hubs, as lines of JSON or as a table.

    answers: the answers of the hubs to "ps".
    """
    from concertino.orchestra.process_load import read_loads

    plugins = [(answer.pid, plugin) for answer in answers for plugin in answer.plugins]
    loads = read_loads({plugin.pid for _, plugin in plugins if plugin.pid})
    if as_json:
        from msgspec.json import encode
        from msgspec.structs import asdict

        for hub, plugin in plugins:
            load = loads.get(plugin.pid)
            fields = {
                "hub": hub,
                **asdict(plugin),
                "age_s": _age_s(plugin),
                "memory_bytes": None if load is None else load.memory_bytes,
                "cpu_percent": None if load is None else round(load.cpu_percent, 1),
            }
            print(encode(fields).decode())  # noqa: T201
        return
    if not plugins:
        print("no hub of this user runs now" if not answers else "no plugin runs")  # noqa: T201
        return
    rows = [_format_row(hub, plugin, loads.get(plugin.pid)) for hub, plugin in plugins]
    widths = [max(map(len, column)) for column in zip(HEADINGS, *rows, strict=True)]
    # The lines below each row. There are none below the headings.
    notes = [[], *(_list_notes(plugin) for _, plugin in plugins)]
    for row, lines in zip((HEADINGS, *rows), notes, strict=True):
        cells = [
            cell.rjust(size) if heading in NUMBERS else cell.ljust(size)
            for heading, cell, size in zip(HEADINGS, row, widths, strict=True)
        ]
        print("  ".join(cells).rstrip())  # noqa: T201
        for line in lines:
            print(f"    {escape_controls(line)}")  # noqa: T201


def _list_notes(plugin: PluginStatus) -> list[str]:
    """Return the lines below the row of a plugin: its present and its last problem."""
    lines = [plugin.reason] if plugin.reason else []
    if plugin.health:
        lines.append(f"it says that it is {plugin.health}")
    if plugin.failed_change:
        lines.append(f"its changed program does not start: {plugin.failed_change}")
    if plugin.last_error and plugin.last_error != plugin.reason:
        lines.append(f"last error, {format_age(plugin.last_error_s)} ago: {plugin.last_error}")
    return lines


def _age_s(plugin: PluginStatus) -> float | None:
    from concertino.transports.process_table import age_s, read_process_state

    state = read_process_state(plugin.pid) if plugin.pid else None
    return None if state is None else age_s(state)


def _format_row(hub: int, plugin: PluginStatus, load: ProcessLoad | None) -> tuple[str, ...]:
    age = _age_s(plugin)
    return (
        str(hub),
        plugin.id,
        str(plugin.pid or "-"),
        "-" if age is None else format_age(age),
        "-" if load is None else f"{load.cpu_percent:.0f}%",
        "-" if load is None else format_memory(load.memory_bytes),
        str(plugin.calls_total),
        str(plugin.calls),
        str(plugin.restarts),
        str(plugin.tools),
        plugin.state,
    )
