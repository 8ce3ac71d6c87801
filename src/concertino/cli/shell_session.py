"""Shell: the interactive session. Runs typed commands, and shows notifications of the server.

A session has one server at a time, or none. This module has the commands that exist only in a
session, such as `open` and `subscribe`. ServerSession (server_session.py) has those that exist on
the command line, too, such as `call`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shlex
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, get_args

from concertino.cli import CommandFailure, UsageError
from concertino.cli.call_arguments import Parameters, convert_texts, parse_arguments
from concertino.cli.call_failures import FAILED, explain_failure
from concertino.cli.failures import report
from concertino.cli.server_options import client_options, parse_server, search_path
from concertino.cli.server_session import ServerCommand, ServerSession
from concertino.cli.shell_catalogue import COMMANDS, Catalogue, Suggestion
from concertino.cli.shell_input import LineInput
from concertino.cli.shell_words import split_line
from concertino.cli.status_line import StatusLine
from concertino.cli.terminal_text import escape_lines
from concertino.client.client import Client
from concertino.client.notifications import LogMessage
from concertino.errors import ConcertinoError
from concertino.types.client_requests import Elicitation
from concertino.types.results import Implementation, Level

__all__ = ["Shell"]

# How many characters of the server's name the command prompt shows.
MAX_NAME = 30
# The commands that ServerSession runs: those with the name of a tool, resource or prompt, and those
# that list them.
NAMED_COMMANDS = ("call", "read", "prompt")
LIST_COMMANDS = ("tools", "resources", "prompts")


class Shell:
    """The interactive session: reads lines and runs them as commands, with one server at a time.

    args: the parsed options of `concertino shell`.
    source: reads the lines.
    status: the line on the terminal that shows progress.
    """

    def __init__(self, args: argparse.Namespace, source: LineInput, status: StatusLine) -> None:
        self._args = args
        self._input = source
        self._status = status
        # The names of the server's tools, prompts and resources, for completion.
        self._catalogue = Catalogue()
        # The session with the current server; None without a server.
        self._session: ServerSession | None = None
        # The words that started the server, for `restart`.
        self._server: Sequence[str] = ()

    async def run(self, server: Sequence[str]) -> int:
        """Read lines and run them as commands until the end of input. Returns the exit code.

        If the input is not a terminal and a command has failed, the exit code is that of the first
        such command. Otherwise it is 0.

        server: the command or the address of the first server, as words; empty to start without a
            server. If this server cannot be opened and the input is not a terminal, the session
            ends.
        """
        code = 0
        try:
            if server:
                code = await self._run_interruptibly(["open", *server])
                if code and not self._input.is_terminal:
                    return code
            elif self._input.is_terminal:
                _print("No server yet: type open and its command, such as open server.py")
                _print("help shows the commands of this session, Ctrl-D ends it;")
                _print("`concertino --help` shows what else concertino does.")
            while (line := await self._read_line()) is not None:
                line_code = await self._run_interruptibly(line)
                # Keep the first exit code that is not 0.
                code = code or line_code
        finally:
            await self._close()
        return 0 if self._input.is_terminal else code

    async def _read_line(self) -> list[str] | None:
        """Return the words of the next line; None at the end of input.

        While a quote is open, the next line continues the line.
        """
        text, prompt = "", f"{self._name}> "
        while True:
            try:
                text += await self._input.read_line(prompt, self._suggest)
            except EOFError:
                if text:
                    first_line = text.partition("\n")[0]
                    failure = UsageError(f"a quote is not closed: {first_line}")
                    report(failure, "", as_json=self._args.json)
                return None
            except KeyboardInterrupt:
                if not self._input.is_terminal:
                    raise
                # Ctrl-C discards the line that the user is typing.
                text, prompt = "", f"{self._name}> "
                continue
            line = split_line(text)
            if line.is_complete:
                # The last word is empty after a space at the end of the line.
                words = line.words if line.words[-1] else line.words[:-1]
                # `quit` does the same as `exit`, and is not listed in the help.
                if words[:1] in (["exit"], ["quit"]):
                    return None
                return words
            text += "\n"
            prompt = "... "

    @property
    def _name(self) -> str:
        session = self._session
        if session is None or not session.is_open:
            return "concertino"
        return escape_lines(session.client.server_info.name)[:MAX_NAME]

    async def _suggest(self, text: str) -> tuple[list[Suggestion], int]:
        client = self._session.client if self._session and self._session.is_open else None
        return await self._catalogue.suggest(text, client)

    # One line

    async def _run_interruptibly(self, words: Sequence[str]) -> int:
        """Run a line and return its exit code. Ctrl-C ends the command, not the session."""
        task = asyncio.create_task(self._run_reporting(words))
        loop = asyncio.get_running_loop()
        if self._input.is_terminal:
            loop.add_signal_handler(signal.SIGINT, task.cancel)
        try:
            return await task
        except asyncio.CancelledError:
            current = asyncio.current_task()
            # The session itself was cancelled, for example by SIGTERM.
            if current is not None and current.cancelling():
                task.cancel()
                raise
            print("stopped", file=sys.stderr)  # noqa: T201
            return FAILED
        finally:
            if self._input.is_terminal:
                loop.remove_signal_handler(signal.SIGINT)

    async def _run_reporting(self, words: Sequence[str]) -> int:
        """Run a line, and report its failure on stderr."""
        try:
            return await self._run(words)
        except CommandFailure as exc:
            failure = exc
        except ConcertinoError as exc:
            session = self._session
            is_open = session is not None and session.is_open
            args = self._args
            failure = explain_failure(
                exc, self._server, search_path(args), args.connect_timeout_s, is_open=is_open
            )
            if is_open and session is not None and session.client.state == "failed":
                failure.hint = failure.hint or "restart starts the server again"
        self._status.clear()
        report(failure, "", as_json=self._args.json)
        return failure.exit_code

    async def _run(self, words: Sequence[str]) -> int:
        """Run the words of a line as a command, and return the exit code.

        Raises CommandFailure and ConcertinoError.
        """
        if not words:
            return 0
        command, *rest = words
        # The name of a tool alone calls the tool.
        if command not in COMMANDS and command in self._catalogue.tools:
            command, rest = "call", [command, *rest]
        match command:
            case "open":
                await self._open(rest)
            case "restart":
                await self._open(self._server)
            case "help":
                self._help(rest)
            case "json":
                self._switch_json(rest)
            case "info":
                self._show_info()
            case "subscribe" | "unsubscribe" | "level":
                await self._configure(command, rest)
            case name if name in NAMED_COMMANDS + LIST_COMMANDS:
                return await self._send(command, rest)
            case _:
                raise self._explain_unknown(command)
        return 0

    async def _send(self, command: str, words: Sequence[str]) -> int:
        """Run one of NAMED_COMMANDS or LIST_COMMANDS in the session, and return the exit code."""
        session = self._require_session()
        if command in LIST_COMMANDS:
            _expect_no_words(command, words)
            return await session.run(ServerCommand(command))
        name, *arguments = words or [""]
        if not name:
            raise UsageError(f"{command} {COMMANDS[command][0]}: a name is missing")
        given = parse_arguments(arguments)
        return await session.run(ServerCommand(command, name, arguments, given))

    async def _configure(self, command: str, words: Sequence[str]) -> None:
        """Run `subscribe`, `unsubscribe` or `level`, which print no result."""
        client = self._require_session().client
        takes = COMMANDS[command][0]
        if len(words) != 1:
            raise UsageError(f"write: {command} {takes}")
        if command == "subscribe":
            await client.subscribe(words[0])
        elif command == "unsubscribe":
            await client.unsubscribe(words[0])
        elif words[0] in get_args(Level):
            level: Any = words[0]
            await client.set_log_level(level)
        else:
            raise UsageError(f"level {words[0]}: expected one of {', '.join(get_args(Level))}")

    def _switch_json(self, words: Sequence[str]) -> None:
        if list(words) not in (["on"], ["off"]):
            raise UsageError("write: json on, or json off")
        self._args.json = words[0] == "on"
        if self._session is not None:
            self._session.as_json = self._args.json

    def _show_info(self) -> None:
        client = self._require_session().client
        info = client.server_info
        _print(f"{info.title or info.name} {info.version}, MCP {client.protocol_version}")
        _print(f"offers: {', '.join(client.capabilities) or 'nothing'}")
        if client.instructions:
            _print(client.instructions)

    def _help(self, words: Sequence[str]) -> None:
        tool = self._catalogue.tools.get(words[0]) if words else None
        if tool is not None:
            _print(f"{tool.name} takes {Parameters.of_schema(tool.input_schema)}")
            _print(tool.description or "")
            return
        if words and words[0] not in COMMANDS:
            raise self._explain_unknown(words[0])
        for name, (takes, about) in COMMANDS.items():
            if not words or words[0] == name:
                usage = f"{name} {takes}"
                _print(f"{usage:30} {about}")

    def _explain_unknown(self, word: str) -> UsageError:
        """Return the error for a word that is neither a command nor a tool."""
        from concertino.cli.suggestions import did_you_mean

        known = [*COMMANDS, *self._catalogue.tools]
        hint = did_you_mean(word, known) or "help shows the commands"
        return UsageError(f"there is no command or tool {word!r}", hint)

    # The server

    def _require_session(self) -> ServerSession:
        if self._session is None:
            raise UsageError("no server is open", "type open and its command: open server.py")
        return self._session

    async def _open(self, words: Sequence[str]) -> None:
        """Close the current session, and connect to another server. Raises ConcertinoError."""
        if not words:
            raise UsageError("write: open COMMAND..., such as open server.py")
        words = _as_command(words)
        target = parse_server(self._args, words)
        await self._close()
        self._server = words
        client = Client(
            target,
            **client_options(self._args, self._status),
            # Called when the server asks the user, logs, changes a resource, or changes a list.
            elicit=self._ask,
            logged=self._show_log,
            updated=lambda uri: self._note(f"changed: {uri}"),
            changed=self._refetch,
        )
        # An interactive session has no words after `--` and no prefix of notes.
        self._session = ServerSession(
            client,
            server=(),
            status=self._status,
            prefix="",
            as_json=self._args.json,
            shows_log=self._args.stderr,
        )
        try:
            await self._session.open()
        except BaseException:
            await self._close()
            raise
        await self._catalogue.fetch(client)
        if self._input.is_terminal:
            info = client.server_info
            _print(
                f"{info.name} {info.version}, MCP {client.protocol_version}: "
                f"{self._catalogue.describe()}."
            )
            _print("Tab completes, help shows the commands, Ctrl-D ends the session.")

    async def _close(self) -> None:
        session, self._session = self._session, None
        self._catalogue = Catalogue()
        if session is not None:
            await session.close()

    # What the server sends

    def _note(self, text: str) -> None:
        if self._session is not None:
            self._session.print_note(text)

    def _show_log(self, message: LogMessage) -> None:
        data = message.data if isinstance(message.data, str) else json.dumps(message.data)
        logger = f" {message.logger}" if message.logger else ""
        self._note(f"[{message.level}]{logger}: {data}")

    async def _refetch(self, kind: str) -> None:
        self._note(f"the list of {kind} has changed")
        if self._session is not None:
            await self._catalogue.fetch(self._session.client)

    async def _ask(self, request: Elicitation, server: Implementation) -> Any:
        """Ask the user for the fields of an elicitation. This is the elicitation handler of Client.

        Returns the values by field name, or "decline" or "cancel". Without asking, declines to open
        a URL, and declines everything if the input is not a terminal.
        """
        self._status.clear()
        if request.mode == "url" or not self._input.is_terminal:
            self._note(f"the server asks: {request.message}; this is refused here")
            return "decline"
        _print(f"{server.name} asks: {request.message}  (Ctrl-D declines, Ctrl-C cancels)")
        schema = request.requested_schema or {}
        fields = Parameters.of_schema(schema)
        values: dict[str, Any] = {}
        try:
            for name, kind in fields.types.items():
                words = kind if name in fields.required else f"{kind}, optional"
                prompt = f"  {name} ({words}): "
                # Ask again after an invalid value. An empty line leaves the field out, even a
                # required one, which the server may refuse.
                while text := await self._input.read_line(escape_lines(prompt), None):
                    try:
                        values |= convert_texts("the form", {name: text}, schema)
                        break
                    except UsageError as exc:
                        _print(f"  {exc}")
        except EOFError:
            return "decline"
        except KeyboardInterrupt:
            return "cancel"
        return values


def _as_command(words: Sequence[str]) -> Sequence[str]:
    """Return the command that serves a file, if the words are one Python file.

    Returns any other words unchanged.
    """
    if len(words) == 1 and words[0].endswith(".py") and os.path.isfile(words[0]):
        return [sys.executable, "-m", "concertino", "serve", words[0]]
    return words


def _expect_no_words(command: str, words: Sequence[str]) -> None:
    if words:
        raise UsageError(f"{command} takes no words, got {shlex.join(words)}")


def _print(text: str) -> None:
    with suppress(BrokenPipeError):
        print(escape_lines(text))  # noqa: T201
