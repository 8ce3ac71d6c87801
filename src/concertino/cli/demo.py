"""`concertino demo`: shows in a terminal how a function becomes a tool, and how calls work.

The demo starts a real server, calls its tool, kills it and calls the tool again. Every result is
compared with the text that the demo shows; a difference ends the demo with exit code 1.
"""

from __future__ import annotations

import argparse
import ast
import asyncio
import logging
import os
import re
import shutil
import signal
import sys
import textwrap
from collections.abc import Sequence
from io import TextIOWrapper
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any, cast

from msgspec.json import decode, encode, format

from concertino.cli import FAILED, INTERRUPTED, UsageError, discard_stdout
from concertino.cli.client_configuration import fill, format_command
from concertino.cli.colours import wants_colour
from concertino.cli.ending_signals import run_until_signal
from concertino.client.client import Client, Timeouts
from concertino.client.server_parameters import ServerParameters
from concertino.client.supervision import Restart
from concertino.errors import ConcertinoError
from concertino.installation import start_command
from concertino.types.results import TextContent, Tool

DESCRIPTION = "Start a small server, call it, break it, and print how to give it to a client."

# The widest line, in columns.
WIDTH = 80
INDENT = "    "
# The numbers of ANSI styles and colours.
BOLD, DIM, RED, GREEN = "1", "2", "31", "32"
# The server that the demo shows and starts, and its target for `concertino serve`.
SOURCE = Path(__file__).with_name("demo_server.py")
TARGET = "concertino.cli.demo_server:server"
NAME = "calculator"
# The time limit for each wait. A loaded machine may take seconds to start Python.
PATIENCE_S = 30.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `concertino demo` to its parser."""
    parser.add_argument("--wire", action="store_true", help="also show every message")
    parser.epilog = "Exit codes: 0 all went as the text says, 1 something differed, 2 usage."


def run(args: argparse.Namespace, server: Sequence[str]) -> int:
    """Run the demo and return the exit code.

    args: the parsed arguments.
    server: the words after `--`. This command accepts none.
    Exit codes: 0 if all results were as the text says, 1 if anything differed, 130 after Ctrl-C,
    128 + n after SIGTERM or SIGHUP, whose number is n. Raises UsageError for words after `--`.
    """
    if server:
        raise UsageError(f"this command takes no words after --, got {server[0]!r}")
    # The demo itself shows what the client would log: that the server has ended.
    logging.getLogger("concertino").addHandler(logging.NullHandler())
    try:
        cast("TextIOWrapper", sys.stdout).reconfigure(errors="backslashreplace")
        screen = Screen(colour=wants_colour(os.environ))
        return run_until_signal(_play(screen, wire=args.wire))
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of stdout has gone, as with `| head`.
        discard_stdout()
        return FAILED
    except (Difference, ConcertinoError, OSError) as exc:
        print(f"concertino demo: {exc}", file=sys.stderr)  # noqa: T201
        # The error may be one of stdout.
        if isinstance(exc, OSError):
            discard_stdout()
        return FAILED


async def _play(screen: Screen, *, wire: bool) -> int:
    """Play the demo in a temporary folder, which is removed even if a signal ends the demo."""
    with TemporaryDirectory(prefix="concertino-demo-") as folder:
        await Demo(Path(folder), screen, wire=wire).play()
    return 0


class Difference(Exception):
    """Raised if a result differs from the text that the demo is about to show."""


class Screen:
    """Writes the lines of the demo to stdout, at most 80 columns wide.

    colour: whether to use ANSI colours.
    """

    def __init__(self, *, colour: bool) -> None:
        self._colour = colour
        self._is_empty = True

    def print_heading(self, text: str) -> None:
        """Print the heading of a step, after an empty line unless it is the first line."""
        if not self._is_empty:
            self._print("")
        self._print(self._paint(text, BOLD))

    def print_lines(self, text: str, colour: str = "") -> None:
        """Print text with indentation. Long lines are wrapped.

        colour: the number of an ANSI colour or style, such as GREEN; "" for none.
        """
        for line in text.splitlines():
            wrapped = textwrap.wrap(
                line,
                WIDTH,
                initial_indent=INDENT,
                subsequent_indent=f"{INDENT}  ",
                break_on_hyphens=False,
            )
            for piece in wrapped or [""]:
                self._print(self._paint(piece, colour))

    def print_verbatim(self, text: str) -> None:
        """Print text without wrapping, so that users can copy it."""
        self._print(text)

    def _paint(self, text: str, colour: str) -> str:
        return f"\x1b[{colour}m{text}\x1b[0m" if self._colour and colour else text

    def _print(self, text: str) -> None:
        self._is_empty = False
        print(text, flush=True)  # noqa: T201


class ServerLog:
    """The lines that the server has written to stderr."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._has_grown = asyncio.Event()

    def add(self, line: str) -> None:
        """Add one line."""
        self._lines.append(line)
        self._has_grown.set()

    async def wait_for(self, pattern: str) -> re.Match[str]:
        """Wait until a line of the server's log matches. Return the match of the first such line.

        Lines from before this call count, too.
        pattern: a regular expression, which may match any part of a line.
        Raises Difference after PATIENCE_S seconds.
        """
        try:
            async with asyncio.timeout(PATIENCE_S):
                while True:
                    for line in self._lines:
                        if match := re.search(pattern, line):
                            return match
                    self._has_grown.clear()
                    await self._has_grown.wait()
        except TimeoutError:
            written = "\n".join(self._lines) or "nothing"
            raise Difference(
                f"the server's log has no line with {pattern!r}; it has:\n{written}"
            ) from None


class Demo:
    """The steps of the demo. Call play().

    The constructor writes the server's file, and starts nothing.

    folder: an empty folder for the server's file.
    screen: writes the lines of the demo.
    wire: whether to show every message between the client and the server.
    """

    def __init__(self, folder: Path, screen: Screen, *, wire: bool) -> None:
        self._screen = screen
        self._file = folder / f"{NAME}.py"
        self._file.write_text(SOURCE.read_text(encoding="utf-8"), encoding="utf-8")
        self._log = ServerLog()
        # Pass PYTHONPATH on, because this package may be found through it.
        env = {name: os.environ[name] for name in ("PYTHONPATH",) if name in os.environ}
        self._client = Client(
            ServerParameters(
                sys.executable,
                ["-m", "concertino", "serve", self._file.name],
                env=env,
                cwd=folder,
            ),
            # Start the server again almost at once, so that the user need not wait.
            restart=Restart(first_s=0.01),
            timeouts=Timeouts(connect_s=PATIENCE_S, request_s=PATIENCE_S),
            stderr=self._log.add,
            trace=self._show_message if wire else None,
        )

    async def play(self) -> None:
        """Show all steps. Raises Difference, ConcertinoError, OSError."""
        self._show_function()
        self._screen.print_heading(f"A client starts it: concertino serve {self._file.name}")
        begin = perf_counter()
        async with self._client:
            self._screen.print_lines(f"ready after {perf_counter() - begin:.2f} s")
            await self._list()
            await self._call()
            await self._call_badly()
            await self._show_print()
            await self._kill()
        self._show_configuration()

    def _show_function(self) -> None:
        self._screen.print_heading(f"Your function, in {self._file.name}")
        source = self._file.read_text(encoding="utf-8")
        for item in ast.parse(source).body:
            # The tool is the only async function of the file.
            if isinstance(item, ast.AsyncFunctionDef):
                first = min(node.lineno for node in (item, *item.decorator_list))
                self._screen.print_lines(
                    "\n".join(source.splitlines()[first - 1 : item.end_lineno])
                )

    async def _list(self) -> None:
        self._screen.print_heading(
            "It has become a tool: name, description and types are the function's"
        )
        tools = await self._client.list_tools()
        expect("the server's tools", [tool.name for tool in tools], ["add"])
        types = {name: item.get("type") for name, item in parameters(tools[0]).items()}
        expect("the types of add's arguments", types, {"a": "integer", "b": "integer"})
        self._screen.print_lines(describe_tool(tools[0]))

    async def _call(self) -> None:
        self._screen.print_heading("A call")
        self._screen.print_lines(await self._add(40, 2), GREEN)

    async def _call_badly(self) -> None:
        self._screen.print_heading("A bad call: the model reads what to correct")
        result = await self._client.call_tool("add", {"a": "forty"})
        text = "".join(item.text for item in result.content if isinstance(item, TextContent))
        expect('whether add("forty") is refused', result.is_error, True)
        problem = str(decode(text)["error"])
        named = [name for name in ("a", "b") if re.search(rf"\b{name}\b", problem)]
        expect(f"the arguments named in {problem!r}", named, ["a", "b"])
        self._screen.print_lines('add(a="forty")')
        self._screen.print_lines(problem, RED)

    async def _show_print(self) -> None:
        self._screen.print_heading("The print above broke nothing: it is in the server's log")
        reported = await self._log.wait_for(rf"a print at {self._file.name}:\d+ .*")
        printed = await self._log.wait_for(r"^adding 40 2$")
        self._screen.print_lines(f"{reported[0]}\n{printed[0]}")

    async def _kill(self) -> None:
        pid = self._client.pid
        assert pid is not None, "the client has started a process"
        self._screen.print_heading(f"kill -9 {pid}: the client starts the server again")
        begin = perf_counter()
        os.kill(pid, signal.SIGKILL)
        answer = await self._add(20, 3)
        seconds = perf_counter() - begin
        expect("the number of restarts", self._client.restarts, 1)
        self._screen.print_lines(
            f"{answer}, from process {self._client.pid}, {seconds:.2f} s after the kill", GREEN
        )

    async def _add(self, a: int, b: int) -> str:
        """Call the tool, and return the call and its result as a text."""
        result = await self._client.call_tool("add", {"a": a, "b": b}, into=int)
        expect(f"the result of add({a}, {b})", result, a + b)
        return f"add(a={a}, b={b})  ->  {result}"

    def _show_configuration(self) -> None:
        start = start_command()
        command, *args = [*start, "serve", TARGET]
        self._screen.print_heading(
            "Paste this into the configuration of a client, such as .mcp.json"
        )
        self._screen.print_verbatim(format_configuration(command, args))
        self._screen.print_heading("or, for Claude Code:")
        self._screen.print_verbatim(
            format_command(["claude", "mcp", "add", NAME, "--", command, *args])
        )
        self._screen.print_heading("Then write your own server:")
        # The name is enough if the shell finds the same program by it.
        program = Path(start[0]).name
        first = program if shutil.which(program) == start[0] else start[0]
        self._screen.print_verbatim(format_command([first, *start[1:], "new", "my_server"]))

    def _show_message(self, direction: str, message: str) -> None:
        # Format with spaces, so that long lines can be wrapped between two fields.
        self._screen.print_lines(f"{direction} {format(message, indent=0)}", DIM)


def expect(subject: str, got: object, expected: object) -> None:
    """Raise Difference if two values differ.

    subject: a name for the value, for the message.
    """
    if got != expected:
        raise Difference(f"{subject}: expected {expected!r}, got {got!r}")


def parameters(tool: Tool) -> dict[str, dict[str, Any]]:
    """Return the schemas of a tool's parameters, by name."""
    return tool.input_schema.get("properties", {})


def describe_tool(tool: Tool) -> str:
    """Return a tool as one line, such as `add(a: integer) -> integer   Add.`"""
    arguments = ", ".join(f"{name}: {item['type']}" for name, item in parameters(tool).items())
    returned = (tool.output_schema or {}).get("type")
    return f"{tool.name}({arguments}) -> {returned}   {tool.description}"


def format_configuration(command: str, args: Sequence[str]) -> str:
    """Return the JSON with which a client is configured, in lines that fit the screen if possible.

    command, args: the program of the server, and its arguments.
    """
    # Not by json.dumps(), which writes either one line or one line for each argument.
    quoted = [encode(word).decode() for word in args]
    words = f"[{', '.join(quoted)}]"
    if len(words) + len('    "args": }}}') > WIDTH:
        pieces = [*(f"{word}," for word in quoted[:-1]), f"{quoted[-1]}]"]
        words = "[\n        " + "\n        ".join(fill(pieces, WIDTH - len("        }}}")))
    return (
        f'{{"mcpServers": {{"{NAME}": {{\n'
        f'    "command": {encode(command).decode()},\n'
        f'    "args": {words}}}}}}}'
    )
