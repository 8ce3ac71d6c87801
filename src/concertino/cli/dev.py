"""`concertino dev TARGET`: serve a file that changes, without a restart of the client.

This process is a proxy, to which the client stays connected. The server runs in another process.
After the file was saved, the proxy replaces the process of the server by a new one
(proxy/reloading.py). The new process was started in advance and has imported concertino already, so
that it only has to import the file (warm_server.py).
"""

from __future__ import annotations

import os
import shutil
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from concertino.cli import CommandFailure, UsageError
from concertino.cli.options import add_log_format, add_repeatable, add_trace
from concertino.cli.serving import reject_extra_args
from concertino.cli.target_hints import suggest_target
from concertino.cli.watched_files import find_watched
from concertino.installation import start_command
from concertino.jsonrpc.limits import Limits
from concertino.logs import handler as logging_setup
from concertino.proxy.proxy import SHUTDOWN, Proxy
from concertino.proxy.reloading import ReloadingProxy
from concertino.proxy.warm_program import WarmProgram
from concertino.runtime.process import StdioFrontend
from concertino.runtime.process import run as run_process
from concertino.transports.stdio import take_over

DESCRIPTION = (
    "Serve a Python file over stdin and stdout while it is written: the client's connection stays, "
    "and the next call after a file was saved runs the new code. Exit codes: 0 after the end of "
    "input, 1 failure, 2 usage."
)
# The package that npx runs for --inspector.
INSPECTOR = "@modelcontextprotocol/inspector"
# The suffixes of the files that are watched in the folder of the target.
SUFFIXES = (".py",)


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of `concertino dev` to its parser."""
    parser.add_argument(
        "target", metavar="TARGET", help="file.py, file.py:attribute or package.module:attribute"
    )
    add_repeatable(
        parser,
        "--watch",
        "PATH",
        "file or folder whose changes count, besides the Python files in the folder of the target; "
        "repeatable",
    )
    parser.add_argument(
        "--inspector", action="store_true", help="open the MCP Inspector, which needs npx"
    )
    add_log_format(parser)
    add_trace(parser)


def run(args: Namespace, server: Sequence[str]) -> NoReturn:
    """Serve the target until the client disconnects, and end the process.

    After a change of the target's files, a new process of the server replaces the old one.

    args: the parsed arguments.
    server: the words after `--`. This command accepts none.
    Raises UsageError for a target that does not exist.
    """
    reject_extra_args(args, server)
    # A target is file.py, file.py:attribute or package.module:attribute. The name of a file may
    # contain a colon. Without a colon, `source` is empty for anything but a file.
    source = args.target if args.target.endswith(".py") else args.target.rpartition(":")[0]
    file = Path(source)
    if not source:
        expected = "expected file.py, file.py:attribute or package.module:attribute"
        if Path(args.target).is_dir():
            hint = (
                "for a folder of Markdown, `concertino serve` notices changes: "
                f"concertino serve {args.target}"
            )
            raise UsageError(f"{args.target}: {expected}", hint)
        raise UsageError(f"{args.target}: {expected}{suggest_target(args.target)}")
    if file.suffix == ".py" and not file.is_file():
        raise UsageError(f"{file}: no such file{suggest_target(str(file))}")
    folder = file.absolute().parent if file.suffix == ".py" else Path.cwd()
    files = find_watched([folder], args.watch, SUFFIXES)
    if args.inspector:
        _open_inspector(args)
    try:
        limits = Limits.from_environment(os.environ)
    except ValueError as exc:
        raise UsageError(str(exc)) from None

    # From here on, only MCP messages are written to stdout.
    stdio = take_over()
    logging_setup.configure(format=args.log_format, component="concertino", writer=stdio.writer)
    # -P: the folder must not come before the standard library in sys.path.
    command = [sys.executable, "-P", "-m", "concertino.cli.warm_server", args.target]
    # The name of the server: `b` for both b.py and a.b:attribute.
    name = file.stem if file.suffix == ".py" else source.rpartition(".")[2]
    program = WarmProgram(name, command, environment=dict(os.environ), ladder=SHUTDOWN)
    # The server is made with concertino, so it speaks 2026-07-28 and needs no negotiation.
    proxy = Proxy(program, era="modern", limits=limits)
    run_process(
        ReloadingProxy(proxy, files, program.close),
        StdioFrontend(stdio),
        limits=limits,
        log_format=args.log_format,
        trace=args.trace,
    )


def _open_inspector(args: Namespace) -> NoReturn:
    """Replace this process by the Inspector, which starts this command again as its server."""
    npx = shutil.which("npx")
    if npx is None:
        raise CommandFailure(
            "--inspector: npx is missing, which starts the MCP Inspector",
            "install Node.js (nodejs.org), or use `concertino shell -- concertino dev "
            f"{args.target}`",
        )
    watched = [word for path in args.watch for word in ("--watch", path)]
    log_format = ["--log-format", args.log_format] if args.log_format else []
    trace = ["--trace"] if args.trace else []
    command = [*start_command(), "dev", args.target, *watched, *log_format, *trace]
    os.execv(npx, [npx, "-y", INSPECTOR, *command])
