"""`concertino tools|call|resources|read|prompts|prompt ... -- COMMAND...`: use a server from a shell.

What a server says is not ours: on a terminal, and wherever it stands in a line of our own, what would command a terminal is written
as an escape. Into a pipe or a file, texts and bytes go as they came.
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
    ResourceContents,
    ResourceLink,
    TextContent,
    Tool,
)

__all__ = ["DESCRIPTION", "EXITS", "add_arguments", "run"]

FAILED, USAGE, UNREACHABLE, LATE, GARBLED = 1, 2, 3, 4, 5
EXITS: tuple[tuple[type[ConcertinoError], int], ...] = (
    (SpawnError, UNREACHABLE),
    (Disconnected, UNREACHABLE),
    (TimedOut, LATE),
    (ProtocolError, GARBLED),
    (RpcError, FAILED),
    (NotSupported, FAILED),
)
INTERRUPTED = 130
BAR = 30  # characters


class _Usage(Exception):
    """What was typed makes no sense."""


DESCRIPTION = "Use a server. It is started for this, and ended afterwards."


def add_arguments(each: argparse.ArgumentParser) -> None:
    """What can be said of one of these commands. What follows `--` does not reach it."""
    name = each.prog.rpartition(" ")[2]
    usage = {"call": " NAME [ARGUMENT...]", "read": " URI", "prompt": " NAME [ARGUMENT...]"}.get(
        name, ""
    )
    each.usage = f"concertino {name} [OPTIONS]{usage} -- COMMAND... | unix:PATH | tcp:HOST:PORT"
    each.epilog = (
        "Exit codes: 0 done, 1 the server refused or the tool failed, 2 usage, 3 the server could not be "
        "reached or ended, 4 no answer in time, 5 the server does not keep to the protocol."
    )
    if name in ("call", "prompt"):
        each.add_argument(
            "name", metavar="NAME", help=f"of the {'tool' if name == 'call' else 'prompt'}"
        )
        each.add_argument(
            "arguments",
            nargs="*",
            metavar="ARGUMENT",
            help="KEY=TEXT, KEY:=JSON, KEY=@FILE, KEY:=@FILE; @FILE or - (stdin): all of them, as one JSON object",
        )
    elif name == "read":
        each.add_argument("name", metavar="URI", help="of the resource")
    each.add_argument("--json", action="store_true", help="the result as JSON, in one line")
    each.add_argument(
        "--era", choices=("auto", "modern", "legacy"), default="auto", help="how to open the server"
    )
    each.add_argument(
        "--timeout-s", type=_seconds, default=60.0, metavar="S", help="longest wait for an answer"
    )
    each.add_argument(
        "--connect-timeout-s", type=_seconds, default=60.0, metavar="S", help="... for the first"
    )
    each.add_argument(
        "--env",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a variable for the server; repeatable",
    )
    each.add_argument("--cwd", metavar="DIR", help="where the server is started")
    each.add_argument("--stderr", action="store_true", help="show what the server writes to stderr")
    each.add_argument("--trace", action="store_true", help="show every message on stderr")


def run(given: argparse.Namespace, server: Sequence[str]) -> NoReturn:
    """Do one of the commands, and end the process with one of the codes above, or 130 after Ctrl-C."""
    out = cast("TextIOWrapper | None", sys.stdout)  # None if it is closed
    if out is not None:
        out.reconfigure(errors="backslashreplace")  # it may take less than UTF-8
    try:
        target = _target(given, server)
        arguments = _arguments(getattr(given, "arguments", []))
        code = asyncio.run(_done(given, target, arguments))
        if out is not None:
            out.flush()
        sys.exit(code)
    except _Usage as why:
        _say(f"concertino {given.command}: {why}")
        sys.exit(USAGE)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except BrokenPipeError:  # `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(FAILED)
    except ConcertinoError as error:
        _say(f"concertino {given.command}: {_shown(str(error))}")
        sys.exit(next((code for kind, code in EXITS if isinstance(error, kind)), FAILED))
    except OSError as why:  # no room for the answer
        _say(f"concertino {given.command}: {why.strerror or why}")
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(FAILED)


async def _done(given: argparse.Namespace, target: Target, arguments: dict[str, Any]) -> int:
    bar = _Bar(sys.stderr.isatty() and not given.json)
    client = Client(
        target,
        era=given.era,
        timeouts=Timeouts(
            connect_s=given.connect_timeout_s,
            request_s=given.timeout_s,
            total_s=max(600.0, given.timeout_s),
        ),
        stderr=(lambda line: _say(escape_controls(line))) if given.stderr else None,
        trace=(lambda way, text: _say(f"{way} {escape_controls(text)}")) if given.trace else None,
    )
    async with client:
        if given.command == "call":
            raw = await _asked(
                client, "tools/call", {"name": given.name, "arguments": arguments}, bar.show
            )
            bar.clear()
            result = _read(raw, CallToolResult)
            _print_json(raw) if given.json else _print_result(result)
            return FAILED if result.is_error else 0
        if given.command == "prompt":
            raw = await _asked(
                client, "prompts/get", {"name": given.name, "arguments": _texts(arguments)}
            )
            prompt = _read(raw, GetPromptResult)
            _print_json(raw) if given.json else _print_prompt(prompt)
        elif given.command == "read":
            raw = await _asked(client, "resources/read", {"uri": given.name})
            read = _read(raw, ReadResourceResult)
            if given.json:
                _print_json(raw)
            for contents in () if given.json else read.contents:
                _print_contents(contents)
        else:
            await _list(client, given.command, given.json)
    return 0


async def _asked(
    client: Client, method: str, params: dict[str, Any], progress: Progress | None = None
) -> Raw:
    try:
        return await client.request(method, params, into=Raw, progress=progress)
    except UnicodeEncodeError:
        raise _Usage("expected UTF-8, and what was typed is none") from None
    except ValueError as why:  # longer than a message may be
        raise _Usage(str(why)) from None


async def _list(client: Client, what: str, as_json: bool) -> None:
    lines: list[str]
    if what == "tools":
        found: list[Any] = await client.list_tools()
        lines = [line for tool in found for line in _tool(tool)]
    elif what == "prompts":
        found = await client.list_prompts()
        lines = [line for prompt in found for line in _prompt(prompt)]
    else:
        found = [*await client.list_resources(), *await client.list_resource_templates()]
        lines = []
        for each in found:
            uri = getattr(each, "uri", None) or each.uri_template
            kind = f"  {each.mime_type}" if each.mime_type else ""
            lines += [
                f"{escape_controls(uri)}{escape_controls(kind)}",
                *_described(each.title or each.name, each.description),
            ]
    if as_json:
        _print_json(Raw(encode(found)))
    else:
        print("\n".join(lines) if lines else f"no {what}")  # noqa: T201  # the answer to the user, not a log


# What was typed


def _target(given: argparse.Namespace, server: Sequence[str]) -> Target:
    if not server:
        raise _Usage(
            f"expected a command behind --: concertino {given.command} ... -- python server.py"
        )
    env: dict[str, str] = {}
    for each in given.env:
        name, equals, value = each.partition("=")
        if not name or not equals:
            raise _Usage(f"--env {each}: expected NAME=VALUE")
        env[name] = value
    if len(server) == 1 and server[0].startswith(("unix:", "tcp:")):
        if env or given.cwd:
            raise _Usage("--env and --cwd are for servers that are started")
        try:
            parse_target(server[0])
        except ValueError as why:
            raise _Usage(str(why)) from None
        return server[0]
    return ServerParameters(server[0], server[1:], env=env, cwd=given.cwd)


def _arguments(words: Sequence[str]) -> dict[str, Any]:
    """KEY=TEXT, KEY:=JSON and their likes, as one dict. Later ones count."""
    found: dict[str, Any] = {}
    for word in words:
        if word == "-" or word.startswith("@"):
            whole = _json(_stdin() if word == "-" else _file(word[1:]), word)
            if not isinstance(whole, dict):
                raise _Usage(f"{word}: expected a JSON object")
            found |= whole
            continue
        key, equals, value = word.partition("=")
        if not equals or not key.rstrip(":"):
            raise _Usage(f"{word}: expected KEY=TEXT, KEY:=JSON, @FILE or -")
        as_json = key.endswith(":")
        text = _file(value[1:]) if value.startswith("@") else value
        found[key.removesuffix(":")] = _json(text, word) if as_json else text
    return found


def _stdin() -> bytes:
    if cast("object", sys.stdin) is None:
        raise _Usage("-: stdin is closed")
    return sys.stdin.buffer.read()


def _file(name: str) -> str:
    try:
        with open(name, encoding="utf-8") as file:
            return file.read()
    except (OSError, UnicodeDecodeError) as why:
        raise _Usage(f"@{name}: {getattr(why, 'strerror', None) or why}") from None


def _json(text: str | bytes, word: str) -> Any:
    try:
        return decode(text)
    except (DecodeError, UnicodeError, RecursionError) as why:
        raise _Usage(f"{word[:100]}: {why}") from None


def _texts(arguments: dict[str, Any]) -> dict[str, str]:
    """The arguments of a prompt are texts."""
    return {
        key: each if isinstance(each, str) else encode(each).decode()
        for key, each in arguments.items()
    }


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not seconds > 0:
        raise argparse.ArgumentTypeError(f"expected a positive number of seconds, got {text}")
    return seconds


def _read(raw: Raw, kind: Any) -> Any:
    try:
        return decode(raw, type=kind)
    except (DecodeError, RecursionError) as why:
        raise ProtocolError(
            f"the answer is not what the protocol says: {why}: {bytes(raw)[:200]!r}"
        ) from None


# What is shown


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)  # noqa: T201  # for the user, beside the answer


def _shown(text: str) -> str:
    """Several lines that command no terminal."""
    return "\n".join(map(escape_controls, text.split("\n")))


def _print_text(text: str) -> None:
    print(_shown(text) if sys.stdout.isatty() else text)  # noqa: T201


def _print_json(raw: Raw) -> None:
    """In one line. What commands a terminal, or cannot be written, stands within strings, where JSON has escapes of its own."""
    unicode = getattr(sys.stdout, "encoding", "").lower() in ("utf-8", "utf8")
    print(  # noqa: T201
        "".join(
            each
            if each.isprintable() and (unicode or each.isascii())
            else _UNIT.sub(r"\\u\g<0>", each.encode("utf-16-be").hex())
            for each in format(bytes(raw), indent=-1).decode()
        )
    )


_UNIT = re.compile("....")


def _print_result(result: CallToolResult) -> None:
    for block in result.content:
        _print_block(block)
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
            _print_contents(block.resource, inside=True)


def _print_contents(contents: ResourceContents, inside: bool = False) -> None:
    if contents.blob is UNSET:
        _print_text("" if contents.text is UNSET else contents.text)
    elif inside or sys.stdout.isatty():
        _print_text(
            f"[{contents.uri}: {contents.mime_type or 'bytes'}, {len(contents.blob)} bytes]"
        )
    else:
        sys.stdout.flush()
        sys.stdout.buffer.write(contents.blob)


def _tool(tool: Tool) -> list[str]:
    properties: dict[str, Any] = tool.input_schema.get("properties") or {}
    required: list[str] = tool.input_schema.get("required") or []
    words = [name if name in required else f"[{name}]" for name in properties]
    title = tool.title or (tool.annotations.title if tool.annotations else None)
    lines = [escape_controls(" ".join([tool.name, *words])), *_described(title, tool.description)]
    for name, schema in properties.items():
        if isinstance(schema, dict):
            enum = "one of " + encode(schema["enum"]).decode() if "enum" in schema else ""
            kind = cast("dict[str, object]", schema).get("type") or enum
            text = f"{name}: {kind if isinstance(kind, str) else encode(kind).decode()} {schema.get('description', '')}"  # pyright: ignore[reportUnknownMemberType]
            lines.append("    " + escape_controls(" ".join(text.split())))
    return lines


def _prompt(prompt: Prompt) -> list[str]:
    arguments = prompt.arguments or []
    words = [each.name if each.required else f"[{each.name}]" for each in arguments]
    lines = [
        escape_controls(" ".join([prompt.name, *words])),
        *_described(prompt.title, prompt.description),
    ]
    return lines + [
        f"    {escape_controls(each.name)}: {escape_controls(each.description)}"
        for each in arguments
        if each.description
    ]


def _described(title: str | None, description: str | None) -> list[str]:
    lines = [title] if title else []
    lines += (description or "").strip().split("\n") if description else []
    return [f"  {escape_controls(line.strip())}".rstrip() for line in lines]


class _Bar:
    """A progress bar on stderr, in place."""

    def __init__(self, wanted: bool) -> None:
        self._wanted = wanted
        self._drawn = False

    def show(self, done: float, total: float | None, message: str | None) -> None:
        """Draw it as far as the work is."""
        if not self._wanted:
            return
        text = escape_controls(message)[:60] if message else ""
        if total and total > 0:
            share = max(0.0, min(1.0, done / total))
            filled = round(share * BAR)
            line = f"[{'#' * filled}{'.' * (BAR - filled)}] {share:4.0%} {text}"
        else:
            line = f"{done:g} {text}"
        sys.stderr.write(f"\r\x1b[K{line}")
        sys.stderr.flush()
        self._drawn = True

    def clear(self) -> None:
        """Take it away."""
        if self._drawn:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
