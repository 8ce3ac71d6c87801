"""Formats the configuration with which each MCP client starts a server.

CLIENTS has a ClientFormat for each client: it turns a ClientEntry, which describes the server, into
the text of a configuration file or into a shell command. `concertino config` and `new` use them.
"""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct

__all__ = ["CLIENTS", "ClientEntry", "fill", "format_command"]

# The largest width of a shell command's lines, in columns.
WIDTH = 80
# A key of TOML that needs no quotes.
BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


class ClientEntry(Struct, frozen=True):
    """Describes how an MCP client starts a server over stdio.

    name: the name under which the client shows the server.
    command: the program and its arguments. Paths are absolute.
    env: environment variables for the server, in addition to those that the client passes on.
    """

    name: str
    command: Sequence[str]
    env: Mapping[str, str]

    def as_json(self) -> dict[str, object]:
        """Return the JSON object that most clients have for a server in their configuration."""
        program, *args = self.command
        entry: dict[str, object] = {"command": program, "args": args}
        return {**entry, "env": dict(self.env)} if self.env else entry


class ClientFormat(Struct, frozen=True):
    """The format and the path of a client's configuration.

    title: the client's name.
    place: the path of the configuration file; "" if the client is configured by a shell command.
    format: returns the text of the configuration file, or the shell command, for one server.
    """

    title: str
    place: str
    format: Callable[[ClientEntry], str]


def _format_servers(entry: ClientEntry) -> str:
    return _indent({"mcpServers": {entry.name: entry.as_json()}})


def _format_vscode(entry: ClientEntry) -> str:
    return _indent({"servers": {entry.name: {"type": "stdio", **entry.as_json()}}})


def _format_claude_code(entry: ClientEntry) -> str:
    variables = [word for item in entry.env.items() for word in ("--env", "=".join(item))]
    # The name stands before --env, which takes all words that follow it.
    return format_command(["claude", "mcp", "add", entry.name, *variables, "--", *entry.command])


def _format_codex(entry: ClientEntry) -> str:
    program, *args = map(_quote_toml, entry.command)
    name = entry.name if BARE_KEY.fullmatch(entry.name) else _quote_toml(entry.name)
    lines = [f"[mcp_servers.{name}]", f"command = {program}", f"args = [{', '.join(args)}]"]
    if entry.env:
        pairs = (f"{_quote_toml(key)} = {_quote_toml(value)}" for key, value in entry.env.items())
        lines.append(f"env = {{ {', '.join(pairs)} }}")
    return "\n".join(lines)


def _quote_toml(text: str) -> str:
    # TOML's basic strings have the escapes of JSON, but DEL must be escaped, too.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _indent(value: object) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False)


_DESKTOP = (
    "~/Library/Application Support/Claude" if sys.platform == "darwin" else "~/.config/Claude"
)
# The value of --client -> the client.
CLIENTS: Mapping[str, ClientFormat] = {
    "claude-code": ClientFormat("Claude Code", "", _format_claude_code),
    "claude-desktop": ClientFormat(
        "Claude Desktop", f"{_DESKTOP}/claude_desktop_config.json", _format_servers
    ),
    "cursor": ClientFormat("Cursor", "~/.cursor/mcp.json", _format_servers),
    "vscode": ClientFormat("VS Code", ".vscode/mcp.json", _format_vscode),
    "codex": ClientFormat("Codex", "~/.codex/config.toml", _format_codex),
}


def format_command(words: Sequence[str]) -> str:
    """Return a command as text for a shell, with backslashes if it is longer than 80 columns."""
    # Leave space for the indentation, and for the backslash at the end of a line.
    lines = fill([shlex.quote(word) for word in words], WIDTH - len("     \\"))
    return " \\\n    ".join(lines)


def fill(pieces: Sequence[str], width: int) -> list[str]:
    """Join pieces by spaces into lines of at most `width` characters.

    A longer piece is not split. It becomes a line of its own.
    """
    lines = [pieces[0]]
    for piece in pieces[1:]:
        if len(lines[-1]) + 1 + len(piece) > width:
            lines.append(piece)
        else:
            lines[-1] += f" {piece}"
    return lines
