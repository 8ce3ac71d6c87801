"""Suggestions for mistyped words on the command line: names, options, commands and programs.

The parsers and the commands add them to the errors that they report to the user.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Collection, Iterable, Sequence

from concertino.cli import UsageError
from concertino.near_names import nearest_name

# A command of other MCP tools -> the command of concertino that does the same.
SYNONYMS = {
    "run": "serve",
    "start": "serve",
    "list": "tools",
    "list-tools": "tools",
    "ls": "tools",
    "invoke": "call",
    "exec": "call",
    "get": "read",
    "test": "check",
    "doctor": "check",
    "validate": "check",
    "inspect": "tools",
    "init": "new",
    "create": "new",
    "version": "--version",
}
# Commands of other tools that do the same as our command `config`.
CONFIGURING = frozenset(("install", "add", "configure", "deploy"))
# The commands that use a server, whose command or address stands after `--`.
CLIENT_COMMANDS = frozenset(("tools", "call", "resources", "read", "prompts", "prompt", "check"))
# Options of other tools for the address of a server, and for its transport.
PORTS = frozenset(("--port", "--host", "--address", "--bind", "-p"))
TRANSPORTS = frozenset(("--http", "--https", "--sse", "--url", "--transport", "--streamable-http"))
# Suffix of a file -> the command that runs it.
INTERPRETERS = {".py": "python", ".js": "node", ".mjs": "node", ".ts": "npx tsx", ".sh": "sh"}
# Interpreter -> the suffix of the files that it runs.
SUFFIXES = {"python": ".py", "node": ".js", "bash": ".sh", "sh": ".sh"}
# Matches the words that may precede a server's file in its command, such as `uv run python`.
STARTER = r"(.*/)?(python[\d.]*|node|npx|tsx|sh|bash|uv|uvx|run)"


def find_closest(name: str, known: Iterable[str], similarity: float = 0.6) -> str | None:
    """Return the known name that is most similar to a name; None if none is similar.

    Upper and lower case count as equal. A known name that begins with `name`, or that equals the
    last part of `name` (as in server.tool), counts as similar, too.

    name: what the user has typed.
    known: the names that exist.
    similarity: how similar a known name must be, from 0 to 1: the `cutoff` of
        difflib.get_close_matches().
    """
    by_folded = {item.casefold(): item for item in known}
    folded = name.casefold()
    found = nearest_name(folded, by_folded, similarity)
    if found is None and len(folded) > 2:
        # The user may have typed only the beginning of a long name.
        found = next((item for item in by_folded if item.startswith(folded)), None)
    if found is not None:
        return by_folded[found]
    # The user may have put the server's name first, as in server.tool or mcp__server__tool.
    return by_folded.get(re.split(r"[.:/]|__", folded)[-1])


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return `did you mean X?`, or "" if no known name is similar."""
    found = find_closest(name, known)
    return "" if found is None else f"did you mean {found}?"


# Commands and options


def unknown_command(word: str, commands: Collection[str], server: Sequence[str]) -> UsageError:
    """Return the error for a word that is not a command, with a suggestion.

    word: what the user has typed as the command.
    commands: the names of all commands.
    server: the words after `--`. With them, the suggestion may be to list the server's tools.
    """
    if word.endswith((".py", ".yaml", ".yml")) or os.path.isdir(word):
        hint = f"to serve it: concertino serve {shlex.quote(word)}"
    elif os.path.isfile(f"{word}.py"):
        hint = f"to serve it: concertino serve {shlex.quote(word)}.py"
    elif word == "help":
        hint = "write: concertino --help, or concertino COMMAND --help"
    elif word.casefold() in CONFIGURING:
        hint = "to give a server to a client: concertino config server.py"
    else:
        synonym = SYNONYMS.get(word.casefold())
        hint = f"did you mean {synonym}?" if synonym else did_you_mean(word, commands)
    if not hint and server:
        hint = f"to list its tools: concertino tools -- {shlex.join(server)}"
    return UsageError(
        f"there is no command {word!r}", hint or f"the commands are {', '.join(commands)}"
    )


def suggest_for_unknown(
    command: str, options: Sequence[str], unknown: Sequence[str], words: Sequence[str]
) -> str:
    """Return a suggestion for words that a command does not accept.

    command: the name of the command.
    options: all options of the command, such as "--json".
    unknown: the words that the command does not accept, at least one.
    words: all words that the user has typed after the command.
    """
    word = unknown[0]
    if not word.startswith("-"):
        if command in CLIENT_COMMANDS or command == "proxy":
            return suggest_separator(command, words, unknown)
        return f"`concertino {command} --help` shows all arguments and options"

    option, _, value = word.partition("=")
    if option in PORTS or option in TRANSPORTS:
        return _suggest_address(command, option, value or _find_word_after(word, words))
    if option == "--verbose" and "-v" in options:
        return "did you mean -v?"
    long_names = [name[2:] for name in options if name.startswith("--")]
    if found := find_closest(option.lstrip("-"), long_names):
        return f"did you mean --{found}?"
    if command in ("call", "prompt"):
        argument = f"{option.lstrip('-')}={value or _find_word_after(word, words) or 'VALUE'}"
        return f"arguments have no dashes: {shlex.quote(argument)}"
    return f"`concertino {command} --help` shows all arguments and options"


def suggest_separator(command: str, words: Sequence[str], unknown: Sequence[str] = ()) -> str:
    """Return a hint for a command line that lacks `--`: the same command line with `--` in it.

    If it is not clear where `--` belongs, the hint has an example instead.

    command: the command of concertino.
    words: the words that the user has typed after the command.
    unknown: those of `words` that the command does not accept.
    """
    is_file = [os.path.splitext(word)[1] in INTERPRETERS and "=" not in word for word in words]
    if any(is_file):
        file = start = is_file.index(True)
        # Words such as `uv run python` directly before the file belong to the server's command.
        while start and re.fullmatch(STARTER, words[start - 1]):
            start -= 1
        before, server = list(words[:start]), shlex.join(words[start:])
        if start == file:
            # The file has no interpreter before it, so add one. It was probably not typed as a
            # command, so the words after it are for concertino.
            server = f"{INTERPRETERS[os.path.splitext(words[file])[1]]} {shlex.quote(words[file])}"
            before += words[file + 1 :]
    elif words and words[-1].startswith(("unix:", "tcp:")):
        before, server = list(words[:-1]), shlex.quote(words[-1])
    elif unknown:
        before, server = [word for word in words if word not in unknown], shlex.join(unknown)
    else:
        return f"for example: concertino {command} ... -- python server.py"
    line = shlex.join([command, *before])
    return f"write the command of the server after --: concertino {line} -- {server}"


def _find_word_after(word: str, words: Sequence[str]) -> str:
    """Return the word after another word; "" if there is none, or if it is an option."""
    index = words.index(word) + 1
    if index >= len(words) or words[index].startswith("-"):
        return ""
    return words[index]


def _suggest_address(command: str, option: str, value: str) -> str:
    """Return a suggestion for an option of PORTS or TRANSPORTS, which other tools have.

    command: the command of concertino that was given the option.
    value: the value of the option; "" if it has none.
    """
    port = value if option in ("--port", "-p") and value.isdecimal() else "8000"
    address = f"127.0.0.1:{port}"
    if command == "serve":
        return f"to serve over HTTP: --http {address}; to listen on a socket: --tcp {address}"
    if command not in CLIENT_COMMANDS:
        return f"`concertino {command} --help` shows all arguments and options"
    if command == "check":
        return "a server is checked over stdin and stdout: concertino check -- python server.py"
    if option in PORTS:
        return (
            f"to use a server that listens on a port, write -- http://{address}/mcp, "
            f"-- tcp:{address} or -- unix:PATH at the end"
        )
    url = value if value.startswith(("http://", "https://")) else f"http://{address}/mcp"
    return f"to use a server over HTTP, write its URL at the end: -- {shlex.quote(url)}"


# Commands of servers


def suggest_program(command: Sequence[str], path: str) -> str:
    """Return a suggestion for a server command that cannot be started.

    command: the words after `--`.
    path: the folders to search for programs, as in PATH.
    """
    # The surest guess comes first: what exists under another spelling, then what is only similar.
    program, *arguments = command
    if not program:
        return "the first word after -- is empty: is a variable of the shell not set?"
    if " " in program and not arguments:
        return f"write the command as separate words: -- {program}"
    if hint := _suggest_url(program, is_alone=not arguments):
        return hint
    for name in (program, f"{program}.py", f"{program}.js"):
        interpreter = INTERPRETERS.get(os.path.splitext(name)[1])
        if interpreter is not None and os.path.isfile(name):
            return f"write -- {interpreter} {shlex.join((name, *arguments))}"
    # As in calculator.add, calculator:server and calculator.py:server.
    file = re.split(r"[.:]", program, maxsplit=1)[0] + ".py"
    if program != file and os.path.isfile(file):
        return f"write -- python {shlex.join((file, *arguments))}"
    if program.endswith(".py") and (found := find_closest(program, _list_files(".py"))):
        return f"there is no file {program} here; did you mean -- python {shlex.quote(found)}?"
    if os.sep in program:
        if os.path.isfile(program):
            return f"make it executable: chmod +x {shlex.quote(program)}"
        return "check the path of the command after --"
    if os.path.isfile(program):
        return f"to start the file in this folder, write -- ./{shlex.join(command)}"
    # Among thousands of programs, one is always a little similar.
    if found := find_closest(program, _list_programs(path), similarity=0.75):
        return f"did you mean -- {shlex.join((found, *arguments))}?"
    return f"install {program}, or write its whole path: -- /path/to/{program}"


def suggest_file(program: str) -> str:
    """Return a suggestion for a command that is only an interpreter, such as `python`.

    An interpreter without a file would read a program from stdin. Returns "" for other programs.
    """
    suffix = SUFFIXES.get(os.path.basename(program).rstrip("0123456789."))
    if suffix is None:
        return ""
    files = _list_files(suffix)
    file = shlex.quote(files[0]) if len(files) == 1 else f"server{suffix}"
    return f"write the file of the server after it: -- {shlex.quote(program)} {file}"


def _suggest_url(program: str, *, is_alone: bool) -> str:
    """Return a suggestion for an address of a server that was taken for a program.

    Returns "" for a program, and for an address that is correct.
    is_alone: whether no words follow.
    """
    if re.match(r"https?://", program, re.IGNORECASE):
        return "" if is_alone else "a URL is all that stands after --"
    # As in http:/host, http//host and https:host.
    if found := re.match(r"(https?)(:/?|//+)(?=\w)", program):
        return f"write -- {found[1]}://{program[found.end() :]}"
    if re.match(r"\w+://", program):
        return "a URL of a server begins with http:// or https://"
    if re.fullmatch(r"[\w.-]+:\d+", program):
        return f"for a server over HTTP write -- http://{program}/mcp; at a socket -- tcp:{program}"
    if re.match(r"[\w.-]+:\d+/|localhost/", program):
        return f"for a server over HTTP write -- http://{program}"
    return ""


def _list_files(suffix: str) -> list[str]:
    """Return the files in the current folder with a suffix."""
    return [name for name in os.listdir() if name.endswith(suffix)]


def _list_programs(path: str) -> set[str]:
    """Return the names of all programs in the folders of a PATH."""
    found: set[str] = set()
    for folder in path.split(os.pathsep):
        try:
            found.update(os.listdir(folder or "."))
        except OSError:
            continue
    return found
