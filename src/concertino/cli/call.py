"""`concertino tools|call|resources|read|prompts|prompt ... -- COMMAND...`: use a server.

The output of a server is untrusted. Control characters are escaped on a terminal, and always in our
own lines, such as error messages. Into a pipe or a file, texts and bytes go as they came.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import sys
from collections.abc import Sequence
from io import TextIOWrapper
from typing import Any, NoReturn, cast

from msgspec import UNSET, DecodeError, Raw
from msgspec.json import decode, encode, format

from concertino.cli import UsageError
from concertino.cli.options import add_repeatable
from concertino.client.client import Client, Timeouts
from concertino.client.pending_request import Progress
from concertino.client.targets import ServerParameters, Target, parse_target
from concertino.errors import (
    ConcertinoError,
    Disconnected,
    NotSupported,
    ProtocolError,
    RpcError,
    SpawnError,
    TimedOut,
)
from concertino.logs.formats import escape_controls
from concertino.types.results import (
    AudioContent,
    CallToolResult,
    ContentBlock,
    EmbeddedResource,
    GetPromptResult,
    ImageContent,
    Prompt,
    ReadResourceResult,
    Resource,
    ResourceContents,
    ResourceLink,
    ResourceTemplate,
    TextContent,
    Tool,
)

FAILED, UNREACHABLE, LATE, GARBLED = 1, 3, 4, 5
# Error -> exit code; the first match counts.
EXITS: tuple[tuple[type[ConcertinoError], int], ...] = (
    (SpawnError, UNREACHABLE),
    (Disconnected, UNREACHABLE),
    (TimedOut, LATE),
    (ProtocolError, GARBLED),
    (RpcError, FAILED),
    (NotSupported, FAILED),
)
INTERRUPTED = 130
# Arguments of the commands that take any, as their usage shows them.
USAGES = {"call": " NAME [ARGUMENT...]", "read": " URI", "prompt": " NAME [ARGUMENT...]"}
BAR_WIDTH = 30

DESCRIPTION = "Start a server, or connect to one, for this one command."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of one of the commands to its parser."""
    command = parser.prog.rpartition(" ")[2]
    target = "-- COMMAND... | unix:PATH | tcp:HOST:PORT"
    parser.usage = f"concertino {command} [OPTIONS]{USAGES.get(command, '')} {target}"
    parser.epilog = (
        "Exit codes: 0 success, 1 the server refused the request or the tool failed, 2 usage, "
        "3 the server could not be reached or ended, 4 no response in time, 5 the server broke "
        "the protocol."
    )
    parser.set_defaults(name="", arguments=[])
    if command in ("call", "prompt"):
        kind = "tool" if command == "call" else "prompt"
        parser.add_argument("name", metavar="NAME", help=f"name of the {kind}")
        parser.add_argument(
            "arguments",
            nargs="*",
            metavar="ARGUMENT",
            help="KEY=TEXT, KEY:=JSON, KEY=@FILE or KEY:=@FILE; or all arguments as one JSON "
            "object: @FILE, or - for stdin",
        )
    elif command == "read":
        parser.add_argument("name", metavar="URI", help="URI of the resource")

    parser.add_argument("--json", action="store_true", help="print the result as one line of JSON")
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
        "--stderr", action="store_true", help="show what the server writes to stderr"
    )
    parser.add_argument("--trace", action="store_true", help="show every message on stderr")


def run(args: argparse.Namespace, server: Sequence[str]) -> NoReturn:
    """Run one of the commands and end the process.

    server: the words after `--`. Exit codes: see add_arguments(); 130 after Ctrl-C.
    """
    # sys.stdout is None if descriptor 1 is closed.
    out = cast("TextIOWrapper | None", sys.stdout)
    # Its encoding may be smaller than UTF-8.
    if out is not None:
        out.reconfigure(errors="backslashreplace")
    try:
        target = _parse_server(args, server)
        arguments = _parse_arguments(args.arguments)
        code = asyncio.run(_run_command(args, target, arguments))
        if out is not None:
            out.flush()
        sys.exit(code)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except BrokenPipeError:
        # The reader went away, as `| head` does.
        _discard_stdout()
        sys.exit(FAILED)
    except ConcertinoError as exc:
        _print_error(f"concertino {args.command}: {_escape_lines(str(exc))}")
        sys.exit(next((code for kind, code in EXITS if isinstance(exc, kind)), FAILED))
    except OSError as exc:
        # The result could not be written, for instance because the disk is full.
        _print_error(f"concertino {args.command}: {exc.strerror or exc}")
        _discard_stdout()
        sys.exit(FAILED)


def _discard_stdout() -> None:
    """Redirect stdout to /dev/null, so that Python's own flush at exit does not fail again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


async def _run_command(args: argparse.Namespace, target: Target, arguments: dict[str, Any]) -> int:
    """Open a session, run the command in it, and return the exit code."""
    client = Client(
        target,
        era=args.era,
        timeouts=Timeouts(
            connect_s=args.connect_timeout_s,
            request_s=args.timeout_s,
            # Progress extends a request, but not forever.
            total_s=max(600.0, args.timeout_s),
        ),
        stderr=(lambda line: _print_error(escape_controls(line))) if args.stderr else None,
        trace=_print_trace if args.trace else None,
    )
    async with client:
        match args.command:
            case "call":
                return await _call_tool(client, args, arguments)
            case "prompt":
                await _get_prompt(client, args, arguments)
            case "read":
                await _read_resource(client, args)
            case _:
                await _list(client, args.command, args.json)
    return 0


async def _call_tool(client: Client, args: argparse.Namespace, arguments: dict[str, Any]) -> int:
    bar = _ProgressBar(sys.stderr.isatty() and not args.json)
    params = {"name": args.name, "arguments": arguments}
    raw = await _request(client, "tools/call", params, bar.draw)
    bar.clear()
    result = _decode_result(raw, CallToolResult)
    _print_json(raw) if args.json else _print_tool_result(result)
    return FAILED if result.is_error else 0


async def _get_prompt(client: Client, args: argparse.Namespace, arguments: dict[str, Any]) -> None:
    params = {"name": args.name, "arguments": _stringify(arguments)}
    raw = await _request(client, "prompts/get", params)
    prompt = _decode_result(raw, GetPromptResult)
    _print_json(raw) if args.json else _print_prompt(prompt)


async def _read_resource(client: Client, args: argparse.Namespace) -> None:
    raw = await _request(client, "resources/read", {"uri": args.name})
    result = _decode_result(raw, ReadResourceResult)
    if args.json:
        _print_json(raw)
        return
    for contents in result.contents:
        _print_contents(contents)


async def _request(
    client: Client,
    method: str,
    params: dict[str, Any],
    progress: Progress | None = None,
) -> Raw:
    """Return the result of a request as JSON. Raises ConcertinoError and UsageError."""
    try:
        return await client.request(method, params, into=Raw, progress=progress)
    except UnicodeEncodeError:
        raise UsageError("expected UTF-8, but an argument is not valid UTF-8") from None
    except ValueError as exc:
        # The message is larger than the limit.
        raise UsageError(str(exc)) from None


async def _list(client: Client, command: str, as_json: bool) -> None:
    """Print all tools, all prompts, or all resources and resource templates."""
    items: Sequence[object]
    if command == "tools":
        tools = items = await client.list_tools()
        lines = [line for tool in tools for line in _format_tool(tool)]
    elif command == "prompts":
        prompts = items = await client.list_prompts()
        lines = [line for prompt in prompts for line in _format_prompt(prompt)]
    else:
        resources = [*await client.list_resources(), *await client.list_resource_templates()]
        items = resources
        lines = [line for resource in resources for line in _format_resource(resource)]
    if as_json:
        _print_json(Raw(encode(items)))
    else:
        print("\n".join(lines) if lines else f"no {command}")  # noqa: T201


# Parsing the command line


def _parse_server(args: argparse.Namespace, server: Sequence[str]) -> Target:
    """Return the server to start or to connect to. Raises UsageError."""
    if not server:
        example = f"concertino {args.command} ... -- python server.py"
        raise UsageError(f"expected a command behind --: {example}")
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
    return ServerParameters(server[0], server[1:], env=env, cwd=args.cwd)


def _parse_arguments(words: Sequence[str]) -> dict[str, Any]:
    """Return the arguments in KEY=TEXT, KEY:=JSON, @FILE and - as one dict. Raises UsageError.

    A later word overrides an earlier one.
    """
    arguments: dict[str, Any] = {}
    for word in words:
        if word == "-" or word.startswith("@"):
            members = _parse_json(_read_stdin() if word == "-" else _read_file(word[1:]), word)
            if not isinstance(members, dict):
                raise UsageError(f"{word}: expected a JSON object")
            arguments |= members
            continue
        key, equals, value = word.partition("=")
        if not equals or not key.rstrip(":"):
            raise UsageError(f"{word}: expected KEY=TEXT, KEY:=JSON, @FILE or -")
        as_json = key.endswith(":")
        text = _read_file(value[1:]) if value.startswith("@") else value
        arguments[key.removesuffix(":")] = _parse_json(text, word) if as_json else text
    return arguments


def _read_stdin() -> bytes:
    # sys.stdin is None if descriptor 0 is closed.
    if cast("object", sys.stdin) is None:
        raise UsageError("-: stdin is closed")
    return sys.stdin.buffer.read()


def _read_file(name: str) -> str:
    try:
        with open(name, encoding="utf-8") as file:
            return file.read()
    except OSError as exc:
        raise UsageError(f"@{name}: {exc.strerror or exc}") from None
    except UnicodeDecodeError as exc:
        raise UsageError(f"@{name}: {exc}") from None


def _parse_json(text: str | bytes, word: str) -> Any:
    try:
        return decode(text)
    except (DecodeError, UnicodeError, RecursionError) as exc:
        raise UsageError(f"{word[:100]}: {exc}") from None


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


# Printing


def _print_error(text: str) -> None:
    """Print a line on stderr at once."""
    print(text, file=sys.stderr, flush=True)  # noqa: T201


def _print_trace(direction: str, text: str) -> None:
    _print_error(f"{direction} {escape_controls(text)}")


def _escape_lines(text: str) -> str:
    """Escape all control characters but newlines."""
    return "\n".join(map(escape_controls, text.split("\n")))


def _print_text(text: str) -> None:
    print(_escape_lines(text) if sys.stdout.isatty() else text)  # noqa: T201


def _print_json(raw: Raw) -> None:
    """Print JSON in one line that any terminal and any encoding can take."""
    out = cast("TextIOWrapper | None", sys.stdout)
    is_unicode = out is not None and out.encoding.lower() in ("utf-8", "utf8")
    # Such characters occur in strings only, where JSON has escapes for them: one for each unit of
    # UTF-16.
    print(  # noqa: T201
        "".join(
            char
            if char.isprintable() and (is_unicode or char.isascii())
            else _UTF16_UNIT.sub(r"\\u\g<0>", char.encode("utf-16-be").hex())
            for char in format(bytes(raw), indent=-1).decode()
        )
    )


# Four hexadecimal digits.
_UTF16_UNIT = re.compile("....")


def _print_tool_result(result: CallToolResult) -> None:
    for block in result.content:
        _print_block(block)
    # Otherwise the content says the same in words.
    if not result.content and result.structured_content is not UNSET:
        _print_text(format(encode(result.structured_content)).decode())


def _print_prompt(prompt: GetPromptResult) -> None:
    for message in prompt.messages:
        print(f"[{message.role}]")  # noqa: T201
        _print_block(message.content)


def _print_block(block: ContentBlock) -> None:
    match block:
        case TextContent():
            _print_text(block.text)
        case ImageContent() | AudioContent():
            kind = "image" if isinstance(block, ImageContent) else "audio"
            _print_text(f"[{kind} {block.mime_type}, {len(block.data)} bytes]")
        case ResourceLink():
            _print_text(f"[{block.title or block.name}] {block.uri}")
        case EmbeddedResource():
            _print_contents(block.resource, is_embedded=True)


def _print_contents(contents: ResourceContents, *, is_embedded: bool = False) -> None:
    """Print a resource. Bytes are written as they are, but not to a terminal or inside a text."""
    if contents.blob is UNSET:
        _print_text("" if contents.text is UNSET else contents.text)
    elif is_embedded or sys.stdout.isatty():
        kind = contents.mime_type or "bytes"
        _print_text(f"[{contents.uri}: {kind}, {len(contents.blob)} bytes]")
    else:
        # The binary layer does not see what print() has buffered.
        sys.stdout.flush()
        sys.stdout.buffer.write(contents.blob)


def _format_tool(tool: Tool) -> list[str]:
    """Return the lines for a tool: its name and arguments, its description, each argument."""
    properties: dict[str, Any] = tool.input_schema.get("properties") or {}
    required: list[str] = tool.input_schema.get("required") or []
    words = [name if name in required else f"[{name}]" for name in properties]
    title = tool.title or (tool.annotations.title if tool.annotations else None)
    lines = [escape_controls(" ".join([tool.name, *words]))]
    lines += _format_description(title, tool.description)
    for name, schema in properties.items():
        # A schema may also be `true` or `false`.
        if isinstance(schema, dict):
            lines.append("    " + _format_argument(name, cast("dict[str, Any]", schema)))
    return lines


def _format_argument(name: str, schema: dict[str, Any]) -> str:
    enum = "one of " + encode(schema["enum"]).decode() if "enum" in schema else ""
    kind = schema.get("type") or enum
    kind = kind if isinstance(kind, str) else encode(kind).decode()
    text = f"{name}: {kind} {schema.get('description', '')}"
    return escape_controls(" ".join(text.split()))


def _format_prompt(prompt: Prompt) -> list[str]:
    """Return the lines for a prompt: its name and arguments, its description, each argument."""
    arguments = prompt.arguments or []
    words = [item.name if item.required else f"[{item.name}]" for item in arguments]
    lines = [escape_controls(" ".join([prompt.name, *words]))]
    lines += _format_description(prompt.title, prompt.description)
    for item in arguments:
        if item.description:
            lines.append(f"    {escape_controls(item.name)}: {escape_controls(item.description)}")
    return lines


def _format_resource(resource: Resource | ResourceTemplate) -> list[str]:
    """Return the lines for a resource or a resource template."""
    uri = resource.uri if isinstance(resource, Resource) else resource.uri_template
    kind = f"  {resource.mime_type}" if resource.mime_type else ""
    title = resource.title or resource.name
    return [escape_controls(uri + kind), *_format_description(title, resource.description)]


def _format_description(title: str | None, description: str | None) -> list[str]:
    lines = [title] if title else []
    lines += (description or "").strip().split("\n") if description else []
    return [f"  {escape_controls(line.strip())}".rstrip() for line in lines]


class _ProgressBar:
    """A progress bar on stderr that is drawn in place."""

    def __init__(self, enabled: bool) -> None:
        self._enabled = enabled
        self._is_visible = False

    def draw(
        self,
        progress: float,
        total: float | None,
        message: str | None,
    ) -> None:
        """Draw the bar. Without a total, draw the number only."""
        if not self._enabled:
            return
        text = escape_controls(message)[:60] if message else ""
        if total and total > 0:
            share = max(0.0, min(1.0, progress / total))
            filled = round(share * BAR_WIDTH)
            line = f"[{'#' * filled}{'.' * (BAR_WIDTH - filled)}] {share:4.0%} {text}"
        else:
            line = f"{progress:g} {text}"
        # Return to the first column, and clear the rest of the line.
        sys.stderr.write(f"\r\x1b[K{line}")
        sys.stderr.flush()
        self._is_visible = True

    def clear(self) -> None:
        """Remove the bar."""
        if self._is_visible:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
