"""ServerSession: runs commands such as `call` against a server, and prints the results.

`concertino call` runs one command in a session; an interactive session (shell_session.py) runs
many.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from msgspec import Raw, Struct, field
from msgspec.json import encode

from concertino.cli import UsageError
from concertino.cli.call_arguments import (
    GivenArguments,
    Parameters,
    check_names,
    convert_texts,
)
from concertino.cli.call_failures import (
    FAILED,
    describe_blocked_loop,
    describe_missing_parts,
    explain_refusal,
)
from concertino.cli.call_output import (
    format_prompt,
    format_resource,
    format_tool,
    print_contents,
    print_json,
    print_prompt,
    print_tool_result,
)
from concertino.cli.hanging_start import describe_place, open_or_dump_stack
from concertino.cli.status_line import StatusLine, show_waiting
from concertino.cli.suggestions import did_you_mean
from concertino.client.client import Client
from concertino.client.output_validation import decode_result
from concertino.client.pending_request import Progress
from concertino.client.skipped_lines import SKIPPED
from concertino.errors import NotSupported, ProtocolError, RpcError
from concertino.logs.formats import escape_controls
from concertino.types.resources_and_prompts import GetPromptResult
from concertino.types.results import CallToolResult, ReadResourceResult

__all__ = ["ServerCommand", "ServerSession"]

T = TypeVar("T")


class ServerCommand(Struct):
    """One command of a user for a server, such as `call add a=1 b=2`.

    command: "tools", "call", "resources", "read", "prompts" or "prompt".
    name: the name of the tool or prompt, or the URI of the resource; "" for the commands that list.
    words: the arguments for the tool or prompt, as the user has typed them; () for other commands.
    given: the arguments in `words`, parsed.
    """

    command: str
    name: str = ""
    words: Sequence[str] = ()
    given: GivenArguments = field(default_factory=GivenArguments)


class ServerSession:
    """Runs the commands of a user against one server.

    Results are printed to stdout, and notes about the server and warnings to stderr.

    client: a Client that is not open yet.
    server: the words after `--`, for messages; empty in an interactive session.
    status: the line on the terminal that shows progress.
    prefix: the text before each note.
    as_json: whether to print results as JSON, and no notes. May be changed between commands.
    shows_log: whether the client prints the server's stderr as it arrives. Notes then do not quote
        it again.

    Attributes:
    is_open: whether the session is open.
    """

    def __init__(
        self,
        client: Client,
        server: Sequence[str],
        status: StatusLine,
        prefix: str,
        *,
        as_json: bool = False,
        shows_log: bool = False,
    ) -> None:
        self.client = client
        self.is_open = False
        self._server = server
        self._status = status
        self._prefix = prefix
        self.as_json = as_json
        self._shows_log = shows_log
        # The notes that were printed, each of which is printed once.
        self._printed: set[str] = set()
        self._warnings = _Warnings(self.print_note)
        # The task that shows on the status line how long a command has waited.
        self._waiting_task: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Start the server or connect to it. Raises ConcertinoError if that fails.

        Call close() at the end, even if open() raises.
        """
        logging.getLogger("concertino").addHandler(self._warnings)
        with self._show_waiting("the server's first answer", self.client.timeouts.connect_s):
            try:
                await open_or_dump_stack(self.client)
            except asyncio.CancelledError:
                self._stop_waiting()
                if place := describe_place(self.client.stderr_tail):
                    self.print_note(f"the server has not answered; {place}")
                raise
        self.is_open = True

    async def close(self) -> None:
        """End the server, or the connection to it."""
        await self.client.aclose()
        logging.getLogger("concertino").removeHandler(self._warnings)

    async def run(self, command: ServerCommand) -> int:
        """Run one command, print its result, and return its exit code.

        The exit code is 1 if a tool has returned an error, else 0.
        Raises CommandFailure if the server refuses the request or arguments are wrong, and other
        exceptions of ConcertinoError if there is no valid response.
        """
        with self._show_waiting("the answer", self.client.timeouts.request_s):
            code = await self._send(command)
        self.print_new_notes()
        return code

    async def _send(self, command: ServerCommand) -> int:
        """Send the requests of a command, print the result, and return the exit code."""
        match command.command:
            case "call":
                return await self._call_tool(command)
            case "prompt":
                await self._get_prompt(command)
            case "read":
                await self._read_resource(command)
            case kind:
                await self._list(kind)
        return 0

    async def _call_tool(self, command: ServerCommand) -> int:
        """Call a tool and print its result. Returns FAILED if the result is an error, else 0."""
        given = command.given
        arguments: dict[str, Any] = {**given.texts, **given.values}
        hint = ""
        # The tool's schema says how to convert texts that the user has typed, and which arguments a
        # call without any lacks. So read the list of tools first, unless all arguments are JSON.
        if given.texts or not given.has_json:
            # If the list is refused, continue without it: a server may have tools that it does not
            # list.
            tools = await _list_if_possible(self.client.list_tools)
            if tool := next((tool for tool in tools if tool.name == command.name), None):
                schema = tool.input_schema
                self._check_names(command, Parameters.of_schema(schema))
                arguments |= convert_texts(command.name, given.texts, schema)
            else:
                hint = did_you_mean(command.name, [tool.name for tool in tools])

        def on_progress(done: float, total: float | None, message: str | None) -> None:
            self._stop_waiting()
            self._status.draw_progress(done, total, message)

        params = {"name": command.name, "arguments": arguments}
        raw = await self._request("tool", command.name, "tools/call", params, on_progress)
        result = decode_result(f"tools/call {command.name}", raw, CallToolResult)
        if self.as_json:
            print_json(raw)
        else:
            print_tool_result(result)
        # Some servers, for example with the official SDK, report an unknown tool in a result.
        if result.is_error and hint:
            self.print_note(f"the server lists no tool {command.name!r}; {hint}")
        return FAILED if result.is_error else 0

    async def _get_prompt(self, command: ServerCommand) -> None:
        """Get a prompt and print it, after checking the names of the arguments."""
        given = command.given
        if given.texts or not given.has_json:
            prompts = await _list_if_possible(self.client.list_prompts)
            if prompt := next((prompt for prompt in prompts if prompt.name == command.name), None):
                items = prompt.arguments or []
                required = [item.name for item in items if item.required]
                types = {item.name: "text" for item in items}
                accepted = Parameters(types, required=required, is_closed=True)
                self._check_names(command, accepted)
        arguments = _stringify({**given.texts, **given.values})
        params = {"name": command.name, "arguments": arguments}
        raw = await self._request("prompt", command.name, "prompts/get", params)
        result = decode_result(f"prompts/get {command.name}", raw, GetPromptResult)
        if self.as_json:
            print_json(raw)
        else:
            print_prompt(result)

    async def _read_resource(self, command: ServerCommand) -> None:
        """Read a resource and print its contents."""
        uri = command.name
        raw = await self._request("resource", uri, "resources/read", {"uri": uri})
        result = decode_result(f"resources/read {command.name}", raw, ReadResourceResult)
        if self.as_json:
            print_json(raw)
            return
        for contents in result.contents:
            print_contents(contents)

    async def _list(self, kind: str) -> None:
        """Print all tools, all prompts, or all resources and resource templates."""
        client = self.client
        items: Sequence[object]
        if kind == "tools":
            items = tools = await client.list_tools()
            lines = [line for tool in tools for line in format_tool(tool)]
        elif kind == "prompts":
            items = prompts = await client.list_prompts()
            lines = [line for prompt in prompts for line in format_prompt(prompt)]
        else:
            items = resources = [
                *await client.list_resources(),
                *await client.list_resource_templates(),
            ]
            lines = [line for resource in resources for line in format_resource(resource)]
        self._stop_waiting()
        if self.as_json:
            print_json(Raw(encode(items)))
        else:
            print("\n".join(lines) if lines else f"no {kind}")  # noqa: T201

    async def _request(
        self,
        kind: str,
        name: str,
        method: str,
        params: dict[str, Any],
        progress: Progress | None = None,
    ) -> Raw:
        """Send a request and return the result as JSON. Raises ConcertinoError and CommandFailure.

        kind: "tool", "prompt" or "resource", for errors.
        name: the name of the tool or prompt, or the URI of the resource, for errors.
        method, params: the method and the params of the request.
        progress: called when the server reports progress; None to request no progress.
        """
        try:
            raw = await self.client.request(method, params, into=Raw, progress=progress)
        except RpcError as exc:
            raise await explain_refusal(self.client, kind, name, exc, self._server) from exc
        except UnicodeEncodeError:
            raise UsageError("expected UTF-8, but an argument is not valid UTF-8") from None
        except ValueError as exc:
            # The request is larger than the limit for messages.
            raise UsageError(str(exc)) from None
        self._stop_waiting()
        return raw

    def _check_names(self, command: ServerCommand, accepted: Parameters) -> None:
        """Check the names of the arguments that the user has typed.

        Raises UsageError if arguments are missing or forbidden. Prints a note about arguments that
        the tool's schema allows but does not describe.
        accepted: the arguments of the tool or prompt.
        """
        words = [command.command, command.name, *command.words]
        unknown = check_names(command.name, command.given, accepted, words, self._server)
        if unknown and accepted.types:
            names = ", ".join(map(repr, unknown))
            self.print_note(
                f"{command.name} does not describe an argument {names}; it takes {accepted}"
            )

    # The status line and notes

    @contextmanager
    def _show_waiting(self, awaited: str, limit_s: float) -> Generator[None]:
        """Show on the status line that the command waits, until _stop_waiting() is called.

        awaited: what the command waits for, in words.
        limit_s: the time limit.
        """
        self._waiting_task = asyncio.create_task(
            show_waiting(
                self._status,
                awaited,
                limit_s,
                self.print_new_notes,
            )
        )
        try:
            yield
        finally:
            self._stop_waiting()

    def _stop_waiting(self) -> None:
        """Remove the status line, before a result is printed."""
        if self._waiting_task is not None:
            self._waiting_task.cancel()
        self._status.clear()

    def _describe_skipped(self) -> str:
        """Return a note about lines on the server's stdout that are not messages; "" for none."""
        # `stray` is the number of such lines, and `strays` has the latest ones.
        count = self.client.stray
        if not count:
            return ""
        line = self.client.strays[-1]
        if count == 1:
            return f"the server printed a line that is no answer: {line}"
        return f"the server printed {count} lines that are no answers; the last one: {line}"

    def print_new_notes(self) -> None:
        """Print the notes about problems of the server, each text only once.

        The problems are lines on the server's stdout that are not MCP messages, a blocked event
        loop, and backends behind the server that could not start.
        """
        log = "" if self._shows_log else self.client.stderr_tail
        missing = [f"not served: {text}" for text in describe_missing_parts(log)]
        for text in (self._describe_skipped(), describe_blocked_loop(log), *missing):
            if text and text not in self._printed:
                self._printed.add(text)
                self.print_note(text)

    def print_note(self, text: str) -> None:
        """Print a note for people to stderr. With --json, print nothing."""
        # Programs that use --json expect nothing but failures on stderr.
        if not self.as_json:
            self._status.print_above(escape_controls(f"{self._prefix}{text}"))


class _Warnings(logging.Handler):
    """A logging handler that prints the warnings of Client, except those about skipped lines."""

    def __init__(self, print_line: Callable[[str], object]) -> None:
        super().__init__(logging.WARNING)
        self._print_line = print_line

    def emit(self, record: logging.LogRecord) -> None:
        # _describe_skipped() reports all skipped lines together.
        if record.msg != SKIPPED:
            self._print_line(record.getMessage())


async def _list_if_possible(list_items: Callable[[], Awaitable[list[T]]]) -> list[T]:
    """Return a list of the server, such as its tools; [] if the server refuses the request."""
    try:
        return await list_items()
    except (NotSupported, RpcError, ProtocolError):
        return []


def _stringify(arguments: dict[str, Any]) -> dict[str, str]:
    """Return the arguments with all values as strings, as prompts take them."""
    return {
        name: value if isinstance(value, str) else encode(value).decode()
        for name, value in arguments.items()
    }
