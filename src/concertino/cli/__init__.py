"""The command line: `concertino COMMAND ...`.

main() parses the command line with argparse and runs the module of the command, which COMMANDS
names. Only that module is imported, so that a server starts fast. A command reports a failure by
raising CommandFailure. main() writes the failure to stderr, sends it to the MCP client that has
started the command, if there is one, and ends the process.

The other modules serve several commands: parsers.py, help_text.py and options.py make the parsers;
targets.py finds what `serve` serves, in Python files, folders (folders.py) and server files
(server_files.py); server_session.py uses a server for `call` and for the interactive session, whose
modules begin with shell_; suggestions.py and the modules with `hints` or `failures` in their names
say what to do after a mistake.
"""

from __future__ import annotations

import os
import sys

from concertino.loading import load

# The name that type checkers take for True. Importing the module typing would cost 5 ms at the
# start.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any, NoReturn

# Exit codes. UNREACHABLE means that a server cannot be started or reached. INTERRUPTED is
# 128 + SIGINT, as in shells.
FAILED, USAGE, UNREACHABLE, INTERRUPTED = 1, 2, 3, 130

# Command -> its module and its line in the help. Each module has DESCRIPTION,
# add_arguments(parser), and run(args, server), which ends the process or returns an exit code.
# args: the parsed arguments, with args.command, the name, and args.parser, whose error() raises
# UsageError with a hint. server: the words after `--`, which are the command of a server.
COMMANDS = {
    "demo": ("demo", "see a server started, called, broken and restarted"),
    "new": ("new", "write a small project: a server, its tests, its configuration"),
    "serve": ("serve", "serve a server over stdin and stdout, HTTP or sockets"),
    "dev": ("dev", "serve a Python file while it is written"),
    "config": ("config", "print what clients need in their configuration for a server"),
    "proxy": ("proxy", "stand in front of a server: restart, guard, translate it"),
    "approve": ("approve", "let the servers of a file such as mcp.json run"),
    "ps": ("ps", "show the servers behind all proxies: memory, calls, restarts"),
    "reap": ("reap", "end servers whose host has ended"),
    "connect": ("connect", "join stdin and stdout to a server that listens at a socket"),
    "login": ("login", "log in at a server that is reached by a URL"),
    "logout": ("logout", "end a login"),
    "whoami": ("whoami", "show at which servers you are logged in"),
    "check": ("check", "run fault tests against any stdio server"),
    "tools": ("call", "list the tools of a server"),
    "call": ("call", "call a tool"),
    "resources": ("call", "list the resources and resource templates of a server"),
    "read": ("call", "read a resource"),
    "prompts": ("call", "list the prompts of a server"),
    "prompt": ("call", "get a prompt, with its arguments filled in"),
    "shell": ("shell", "use a server interactively"),
    "search": ("search", "search a folder of Markdown documents"),
    "lint": ("lint", "find mistakes in a folder of Markdown documents"),
    "orchestrate": ("orchestrate", "start the plugins of a plugins.yaml and run their hub"),
    "hub": ("hub", "see, restart and stop the plugins of running hubs"),
    "bridge": ("bridge", "serve the plugins of a hub over stdin and stdout"),
    "plugin": ("plugin", "run a storage plugin: Markdown files or a database"),
    "token": ("token", "make, list and remove the tokens that serve --http lets in"),
    "cluster": ("cluster", "connect hubs and plugins of several machines by NATS"),
    "certs": ("certs", "create, show and renew the certificates of a hub"),
    "docs": ("docs", "show a page of the documentation"),
    "completion": ("completion", "print a script that completes commands in a shell"),
}

# Commands that an MCP client starts: stdout carries MCP.
STDIO_COMMANDS = frozenset(("serve", "bridge", "proxy", "connect", "dev"))
# Commands that may start although descriptor 1 is closed: they work without stdout, or report
# themselves that it is closed.
SERVING_COMMANDS = STDIO_COMMANDS | {"orchestrate", "plugin"}
GENERAL_OPTIONS = frozenset(("-h", "--help", "--version"))


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and end the process.

    A failure is reported on stderr: in words, or with --json as one line of JSON. An error of
    writing to stdout is a failure, too. But if stdout is a pipe whose reader has gone, the exit
    code is that of the command.

    arguments: the words of the command line; None for the arguments of this process.
    Exit codes: 0 success, 1 failure, 2 invalid usage. Some commands have more.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    # Split at `--` first, because argparse would take the options of the server's command for
    # options of `concertino`.
    server: list[str] = []
    if "--" in words:
        index = words.index("--")
        words, server = words[:index], words[index + 1 :]
    name = _pop_command(words)
    as_json = "--json" in words
    try:
        try:
            code = _run(name, words, server)
        finally:
            # Flush here, because the interpreter would end with exit code 120 if its own flush at
            # the end failed.
            _flush_stdout()
        sys.exit(code)
    except CommandFailure as exc:
        failure = exc
    except KeyboardInterrupt:
        failure = CommandFailure("interrupted", code="interrupted", exit_code=INTERRUPTED)
    except OSError as exc:
        # Only errors of stdout are expected here. Commands turn errors about files, which have a
        # file name, into a CommandFailure, and handle a BrokenPipeError themselves.
        if isinstance(exc, BrokenPipeError) or exc.filename is not None:
            raise
        failure = CommandFailure(f"stdout: {exc.strerror}")
        discard_stdout()
    command = name if name in COMMANDS else ""
    load("concertino.cli.failures").report(failure, command, as_json=as_json)
    exit_code = failure.exit_code
    if failure.is_for_client and name in STDIO_COMMANDS:
        is_answered = _answer_client(failure, words)
        # Exit code 2 asks the user to correct the command line. A client that was told shows the
        # reason itself, so use 1 then, as run() of runtime/process.py does.
        if is_answered and failure.code == "usage":
            exit_code = FAILED
    sys.exit(exit_code)


def _flush_stdout() -> None:
    """Write the buffered output. Raises OSError, but not if the reader of a pipe has gone."""
    # Any: it is None if descriptor 1 is closed.
    stdout: Any = sys.stdout
    try:
        if stdout is not None and not stdout.closed:
            stdout.flush()
    except BrokenPipeError:
        discard_stdout()


def discard_stdout() -> None:
    """Redirect stdout to /dev/null. Call this after writing to stdout has failed."""
    # Otherwise Python would write the buffered output again at its end, and report an error.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _pop_command(words: list[str]) -> str:
    """Remove the name of the command from the words, and return it; "" if there is none."""
    if not words or words[0] in GENERAL_OPTIONS:
        return ""
    # Options may come before the command.
    if words[0].startswith("-"):
        name = next((word for word in words if word in COMMANDS), "")
        if name:
            words.remove(name)
        return name
    return words.pop(0)


def _run(name: str, words: Sequence[str], server: Sequence[str]) -> int:
    """Run one command and return the exit code. Raises CommandFailure and SystemExit."""
    if name and name not in COMMANDS:
        raise load("concertino.cli.suggestions").unknown_command(name, COMMANDS, server)
    if name == "connect" and not server:
        # An MCP host waits for this command, which does little else than start. Without argparse it
        # takes half the time. parse_quickly() returns None for words that it does not know, which
        # argparse then parses.
        connect = load("concertino.cli.connect")
        if (request := connect.parse_quickly(words)) is not None:
            return connect.connect(*request)
    if name == "proxy" and server and not words:
        # A host waits for this command, too.
        proxy = load("concertino.cli.proxy")
        make_default_arguments = load("concertino.cli.default_arguments").make_default_arguments
        return proxy.run(make_default_arguments(name, proxy.add_arguments), server)

    parsers = load("concertino.cli.parsers")
    parser, commands = parsers.make_parser()
    if not name and not words and _can_converse():
        name = "shell"
    if name:
        # Add only this command, so that no other module is imported.
        subparser, module = parsers.add_command(commands, name)
        args = parsers.parse(subparser, name, words)
        # sys.stdout is None if descriptor 1 is closed.
        is_closed = sys.stdout is None  # pyright: ignore[reportUnnecessaryComparison]
        if is_closed and name not in SERVING_COMMANDS:
            raise CommandFailure("stdout is closed, so there is nowhere to show anything")
        return module.run(args, server)

    for command, (_, text) in COMMANDS.items():
        commands.add_parser(command, help=text)
    if parser.parse_args(words).version:
        from concertino.cli.version import describe_versions

        print(describe_versions())  # noqa: T201
        return 0
    parser.print_help(sys.stderr)
    return USAGE


def _can_converse() -> bool:
    """Return whether the interactive session can start.

    It needs a terminal at stdin and stdout, and the package prompt_toolkit.
    """
    # Any: both are None if their descriptors are closed.
    streams: Any = (sys.stdin, sys.stdout)
    if not all(stream is not None and stream.isatty() for stream in streams):
        return False
    from importlib.util import find_spec

    return find_spec("prompt_toolkit") is not None


class CommandFailure(Exception):
    """Raised by a command that has failed. main() reports it and ends the process.

    text: what has failed.
    hint: what to do, in one or more lines; "" for no hint.
    code: one word for programs, which --json shows.
    exit_code: the exit code of the process.
    rpc: the error response of the server, as a dict; None if there is none.
    shows_data: whether the report in words shows the data of `rpc`.
    is_for_client: whether an MCP client that has started the command also gets the failure, in
        response to its requests. True for failures before the command serves.
    """

    def __init__(
        self,
        text: str,
        hint: str = "",
        code: str = "failed",
        exit_code: int = FAILED,
        rpc: Any = None,
        *,
        shows_data: bool = True,
        is_for_client: bool = False,
    ) -> None:
        super().__init__(text)
        self.hint = hint
        self.code = code
        self.exit_code = exit_code
        self.rpc = rpc
        self.shows_data = shows_data
        self.is_for_client = is_for_client


class UsageError(CommandFailure):
    """Raised for a command line that is not valid; exit code 2.

    text: what is not valid.
    hint: what to do, in one or more lines; "" for no hint.
    """

    def __init__(self, text: str, hint: str = "") -> None:
        super().__init__(text, hint, "usage", USAGE, is_for_client=True)


def _answer_client(error: CommandFailure, words: Sequence[str]) -> bool:
    """Answer the requests of the MCP client that has started this command with the failure.

    words: the words after the name of the command.
    Returns whether a client was answered.
    """
    # With these options, clients connect to a socket, and there is none at stdin.
    if any(word.startswith(("--unix", "--tcp", "--http")) for word in words):
        return False
    stdin, stdout = 0, 1
    return load("concertino.runtime.refusal").refuse_requests(stdin, stdout, str(error))
