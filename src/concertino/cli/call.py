"""`concertino tools|call|resources|read|prompts|prompt ... -- COMMAND...`: use a server."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import shlex
import sys
from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import contextmanager
from io import TextIOWrapper
from typing import Any, NoReturn, TypeVar, cast

from msgspec import DecodeError, Raw
from msgspec.json import decode, encode

from concertino.cli import CommandFailure, UsageError
from concertino.cli.call_arguments import (
    GivenArguments,
    Parameters,
    check_names,
    convert_texts,
    parse_arguments,
)
from concertino.cli.call_failures import FAILED, explain_failure, explain_refusal
from concertino.cli.call_output import (
    format_prompt,
    format_resource,
    format_tool,
    print_contents,
    print_json,
    print_prompt,
    print_tool_result,
)
from concertino.cli.options import add_repeatable
from concertino.cli.status_line import StatusLine, show_waiting
from concertino.client.client import Client, Timeouts
from concertino.client.pending_request import Progress
from concertino.client.skipped_lines import SKIPPED
from concertino.client.targets import ServerParameters, Target, parse_target
from concertino.errors import ConcertinoError, NotSupported, ProtocolError, RpcError
from concertino.logs.formats import escape_controls
from concertino.types.results import CallToolResult, GetPromptResult, ReadResourceResult

INTERRUPTED = 130
# Arguments of the commands that take any, as their usage shows them.
USAGES = {"call": " NAME [ARGUMENT...]", "read": " URI", "prompt": " NAME [ARGUMENT...]"}

DESCRIPTION = "Start a server, or connect to one, for this one command."
T = TypeVar("T")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of one of the commands to its parser."""
    command = parser.prog.rpartition(" ")[2]
    target = "-- COMMAND... | unix:PATH | tcp:HOST:PORT"
    # With "usage: " before it, it fits 80 columns.
    indent = " " * len("usage: concertino ")
    arguments = USAGES.get(command, "")
    separator = f"\n{indent}" if arguments else " "
    parser.usage = f"concertino {command} [OPTIONS]{arguments}{separator}{target}"
    parser.epilog = (
        "Exit codes: 0 success, 1 the server refused the request or the tool failed, 2 usage, "
        "3 the server could not be reached or ended, 4 no response in time, 5 the server broke "
        "the protocol, 130 Ctrl-C."
    )
    if command in ("call", "prompt"):
        kind = "tool" if command == "call" else "prompt"
        parser.add_argument("name", nargs="?", metavar="NAME", help=f"name of the {kind}")
        parser.add_argument(
            "arguments",
            nargs="*",
            default=[],
            metavar="ARGUMENT",
            help="KEY=VALUE, where VALUE is what the argument's type says: a text, a number, ...; "
            "KEY:=JSON, KEY=@FILE or KEY:=@FILE; or all arguments as one JSON object: '{...}', "
            "@FILE, or - for stdin",
        )
    elif command == "read":
        parser.add_argument("name", nargs="?", metavar="URI", help="URI of the resource")

    parser.add_argument(
        "--json",
        action="store_true",
        help="print the result as one line of JSON, and a failure on stderr as another",
    )
    parser.add_argument(
        "--era",
        choices=("auto", "modern", "legacy"),
        default="auto",
        help="how to open the session: legacy with a handshake, modern without (default auto)",
    )
    parser.add_argument(
        "--timeout-s",
        type=_parse_seconds,
        default=60.0,
        metavar="S",
        help="longest wait for a response (default 60)",
    )
    parser.add_argument(
        "--connect-timeout-s",
        type=_parse_seconds,
        default=60.0,
        metavar="S",
        help="longest wait until the session is open (default 60)",
    )
    add_repeatable(parser, "--env", "NAME=VALUE", "environment variable for the server; repeatable")
    parser.add_argument("--cwd", metavar="DIR", help="folder in which the server is started")
    parser.add_argument(
        "-v", "--stderr", action="store_true", help="show what the server writes to stderr"
    )
    parser.add_argument("--trace", action="store_true", help="show every message on stderr")


def run(args: argparse.Namespace, server: Sequence[str]) -> NoReturn:
    """Run one of the commands and end the process.

    server: the words after `--`. Exit codes: see add_arguments(). Raises CommandFailure.
    """
    # sys.stdout is None if descriptor 1 is closed.
    out = cast("TextIOWrapper | None", sys.stdout)
    # Its encoding may be smaller than UTF-8.
    if out is not None:
        out.reconfigure(errors="backslashreplace")
    command = _Command(args, server, StatusLine(sys.stderr.isatty() and not args.json))
    try:
        target = _parse_server(args, server)
        _check_name(args, server)
        given = parse_arguments(args.arguments if "arguments" in args else ())
        code = asyncio.run(command.run(target, given))
        if out is not None:
            out.flush()
        sys.exit(code)
    except KeyboardInterrupt:
        if args.json:
            raise CommandFailure("interrupted", "", "interrupted", INTERRUPTED) from None
        sys.exit(INTERRUPTED)
    except BrokenPipeError:
        # The reader went away, as `| head` does.
        _discard_stdout()
        sys.exit(FAILED)
    except ConcertinoError as exc:
        path = next((text[5:] for text in args.env if text.startswith("PATH=")), None)
        path = os.environ.get("PATH", os.defpath) if path is None else path
        raise explain_failure(
            exc, server, path, args.connect_timeout_s, is_open=command.is_open
        ) from exc
    except OSError as exc:
        # The result could not be written, for instance because the disk is full.
        _discard_stdout()
        raise CommandFailure(exc.strerror or str(exc)) from None


def _discard_stdout() -> None:
    """Redirect stdout to /dev/null, so that Python's own flush at exit does not fail again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class _Command:
    """One command: opens a session, sends its requests and prints the result.

    server: the words after `--`. is_open: whether the session has been opened.
    """

    def __init__(
        self,
        args: argparse.Namespace,
        server: Sequence[str],
        status: StatusLine,
    ) -> None:
        self.is_open = False
        self._args = args
        self._server = server
        self._status = status
        self._last_note = ""
        self._waiting_task: asyncio.Task[None] | None = None

    async def run(self, target: Target, given: GivenArguments) -> int:
        """Run the command and return the exit code. Raises ConcertinoError and CommandFailure."""
        args = self._args
        client = Client(
            target,
            era=args.era,
            timeouts=Timeouts(
                connect_s=args.connect_timeout_s,
                request_s=args.timeout_s,
                # Progress extends a request, but not forever.
                total_s=max(600.0, args.timeout_s),
            ),
            stderr=self._print_untrusted if args.stderr else None,
            trace=self._print_trace if args.trace else None,
        )
        logging.getLogger("concertino").addHandler(_Warnings(self._print))
        try:
            with self._waiting(client, "the server's first answer", args.connect_timeout_s):
                await client.open()
            self.is_open = True
            with self._waiting(client, "the answer", args.timeout_s):
                code = await self._send(client, given)
            self._report_skipped(client)
            return code
        finally:
            await client.aclose()

    async def _send(self, client: Client, given: GivenArguments) -> int:
        match self._args.command:
            case "call":
                return await self._call_tool(client, given)
            case "prompt":
                await self._get_prompt(client, given)
            case "read":
                await self._read_resource(client)
            case command:
                await self._list(client, command)
        return 0

    async def _call_tool(self, client: Client, given: GivenArguments) -> int:
        args = self._args
        arguments: dict[str, Any] = {**given.texts, **given.values}
        if given.texts or not given.has_json:
            # A server may also call a tool that it does not list.
            tools = await _list_if_possible(client.list_tools)
            if tool := next((tool for tool in tools if tool.name == args.name), None):
                schema = tool.input_schema
                self._check_names(given, Parameters.of_schema(schema))
                arguments |= convert_texts(args.name, given.texts, schema)

        def on_progress(done: float, total: float | None, message: str | None) -> None:
            self._stop_waiting()
            self._status.draw_progress(done, total, message)

        params = {"name": args.name, "arguments": arguments}
        raw = await self._request(client, "tool", "tools/call", params, on_progress)
        result = _decode_result(raw, CallToolResult)
        print_json(raw) if args.json else print_tool_result(result)
        return FAILED if result.is_error else 0

    async def _get_prompt(self, client: Client, given: GivenArguments) -> None:
        args = self._args
        if given.texts or not given.has_json:
            prompts = await _list_if_possible(client.list_prompts)
            if prompt := next((prompt for prompt in prompts if prompt.name == args.name), None):
                takes = prompt.arguments or []
                required = [item.name for item in takes if item.required]
                self._check_names(
                    given, Parameters({item.name: "text" for item in takes}, required, True)
                )
        params = {"name": args.name, "arguments": _stringify({**given.texts, **given.values})}
        raw = await self._request(client, "prompt", "prompts/get", params)
        result = _decode_result(raw, GetPromptResult)
        print_json(raw) if args.json else print_prompt(result)

    async def _read_resource(self, client: Client) -> None:
        args = self._args
        raw = await self._request(client, "resource", "resources/read", {"uri": args.name})
        result = _decode_result(raw, ReadResourceResult)
        if args.json:
            print_json(raw)
            return
        for contents in result.contents:
            print_contents(contents)

    async def _request(
        self,
        client: Client,
        kind: str,
        method: str,
        params: dict[str, Any],
        progress: Progress | None = None,
    ) -> Raw:
        """Return the result of a request as JSON. Raises ConcertinoError and CommandFailure.

        kind: tool, prompt or resource.
        """
        try:
            raw = await client.request(method, params, into=Raw, progress=progress)
        except RpcError as exc:
            raise await explain_refusal(client, kind, self._args.name, exc, self._server) from exc
        except UnicodeEncodeError:
            raise UsageError("expected UTF-8, but an argument is not valid UTF-8") from None
        except ValueError as exc:
            # The message is larger than the limit.
            raise UsageError(str(exc)) from None
        self._stop_waiting()
        return raw

    async def _list(self, client: Client, command: str) -> None:
        """Print all tools, all prompts, or all resources and resource templates."""
        items: Sequence[object]
        if command == "tools":
            tools = items = await client.list_tools()
            lines = [line for tool in tools for line in format_tool(tool)]
        elif command == "prompts":
            prompts = items = await client.list_prompts()
            lines = [line for prompt in prompts for line in format_prompt(prompt)]
        else:
            resources = [*await client.list_resources(), *await client.list_resource_templates()]
            items = resources
            lines = [line for resource in resources for line in format_resource(resource)]
        self._stop_waiting()
        if self._args.json:
            print_json(Raw(encode(items)))
        else:
            print("\n".join(lines) if lines else f"no {command}")  # noqa: T201

    def _check_names(self, given: GivenArguments, takes: Parameters) -> None:
        """Check which arguments were given. Raises UsageError, and warns of those nobody knows."""
        args = self._args
        words = [args.command, args.name, *args.arguments]
        unknown = check_names(args.name, given, takes, words, self._server)
        if unknown and takes.descriptions:
            names = ", ".join(map(repr, unknown))
            self._print(f"{args.name} does not describe an argument {names}; it takes {takes}")

    # What is shown meanwhile

    @contextmanager
    def _waiting(
        self,
        client: Client,
        awaited: str,
        limit_s: float,
    ) -> Generator[None]:
        """Show on a terminal what is awaited, until _stop_waiting()."""
        self._waiting_task = asyncio.create_task(
            show_waiting(
                self._status,
                awaited,
                limit_s,
                lambda: _describe_skipped(client),
                self._print_once,
            )
        )
        try:
            yield
        finally:
            self._stop_waiting()

    def _stop_waiting(self) -> None:
        """Remove the line that says what is awaited, or the progress bar, before a result."""
        if self._waiting_task is not None:
            self._waiting_task.cancel()
        self._status.clear()

    def _report_skipped(self, client: Client) -> None:
        if text := _describe_skipped(client):
            self._print_once(text)

    def _print_once(self, text: str) -> None:
        """Print a note, but not the one that was printed last."""
        if text != self._last_note:
            self._last_note = text
            self._print(text)

    def _print(self, text: str) -> None:
        """Print a note about the command on stderr, where only a failure may stand with --json."""
        if not self._args.json:
            self._print_untrusted(f"concertino {self._args.command}: {text}")

    def _print_untrusted(self, line: str) -> None:
        self._status.print_above(escape_controls(line))

    def _print_trace(self, direction: str, text: str) -> None:
        self._print_untrusted(f"{direction} {text}")


class _Warnings(logging.Handler):
    """Prints the warnings of the client, but those about lines that it skipped."""

    def __init__(self, print_line: Callable[[str], object]) -> None:
        super().__init__(logging.WARNING)
        self._print_line = print_line

    def emit(self, record: logging.LogRecord) -> None:
        # These are reported together.
        if record.msg != SKIPPED:
            self._print_line(record.getMessage())


def _describe_skipped(client: Client) -> str:
    """Return a line about what the server wrote to stdout that is no message; "" for nothing."""
    if not client.stray:
        return ""
    line = client.strays[-1]
    if client.stray == 1:
        return f"the server printed a line that is no answer: {line}"
    return f"the server printed {client.stray} lines that are no answers; the last one: {line}"


async def _list_if_possible(list_items: Callable[[], Awaitable[list[T]]]) -> list[T]:
    """Return a list of the server; empty if it refuses to list."""
    try:
        return await list_items()
    except (NotSupported, RpcError, ProtocolError):
        return []


def _check_name(args: argparse.Namespace, server: Sequence[str]) -> None:
    """Raise UsageError if a command that needs a name or a URI got none."""
    expected = {
        "call": ("the name of a tool", "tools"),
        "prompt": ("the name of a prompt", "prompts"),
        "read": ("the URI of a resource", "resources"),
    }
    if args.command in expected and not args.name:
        noun, listing = expected[args.command]
        hint = f"`concertino {listing} -- {shlex.join(server)}` lists what there is"
        raise UsageError(f"expected {noun}", hint)


def _parse_server(args: argparse.Namespace, server: Sequence[str]) -> Target:
    """Return the server to start or to connect to. Raises UsageError."""
    if not server:
        example = f"concertino {args.command} ... -- python server.py"
        raise UsageError("expected a command behind --", f"for example: {example}")
    env: dict[str, str] = {}
    for variable in args.env:
        name, equals, value = variable.partition("=")
        if not name or not equals:
            raise UsageError(f"--env {variable}: expected NAME=VALUE")
        env[name] = value

    if len(server) == 1 and server[0].startswith(("unix:", "tcp:")):
        if env or args.cwd:
            raise UsageError("--env and --cwd are for servers that are started")
        try:
            parse_target(server[0])
        except ValueError as exc:
            raise UsageError(str(exc)) from None
        return server[0]
    # A person expects the variables of the shell, for proxies and certificates for example.
    return ServerParameters(server[0], server[1:], env=env, cwd=args.cwd, inherit=tuple(os.environ))


def _stringify(arguments: dict[str, Any]) -> dict[str, str]:
    """Return the arguments with all values as strings, as prompts take them."""
    return {
        name: value if isinstance(value, str) else encode(value).decode()
        for name, value in arguments.items()
    }


def _parse_seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    # Written so that NaN fails, too.
    if not seconds > 0:
        raise argparse.ArgumentTypeError(f"expected a positive number of seconds, got {text}")
    return seconds


def _decode_result(raw: Raw, kind: Any) -> Any:
    """Decode a result. Raises ProtocolError."""
    try:
        return decode(raw, type=kind)
    except (DecodeError, RecursionError) as exc:
        start = f"{bytes(raw)[:200]!r}"
        raise ProtocolError(f"the result does not follow the protocol: {exc}: {start}") from None
