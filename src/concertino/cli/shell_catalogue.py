"""Catalogue: the words that a user can type in the interactive session, for completion.

These are the commands, and the names of the server's tools, resources and prompts.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import get_args

from msgspec import Struct

from concertino.cli.call_arguments import Parameters, list_values
from concertino.cli.shell_words import split_line
from concertino.client.client import Client
from concertino.errors import ConcertinoError
from concertino.types.completion import PromptReference
from concertino.types.resources_and_prompts import Prompt
from concertino.types.results import Level, Tool

__all__ = ["COMMANDS", "Catalogue", "Suggestion"]

# Command -> its arguments, and its description.
COMMANDS = {
    "tools": ("", "list the tools"),
    "call": ("NAME [KEY=VALUE...]", "call a tool; the word call may be left out"),
    "resources": ("", "list the resources and resource templates"),
    "read": ("URI", "read a resource"),
    "subscribe": ("URI", "show when a resource changes"),
    "unsubscribe": ("URI", "show it no longer"),
    "prompts": ("", "list the prompts"),
    "prompt": ("NAME [KEY=VALUE...]", "get a prompt, with its arguments filled in"),
    "level": ("LEVEL", "show log messages of this level and above"),
    "json": ("on|off", "print results as JSON"),
    "info": ("", "show what the server says about itself"),
    "open": ("COMMAND...", "use another server: a command, a file or an address"),
    "restart": ("", "end the server and start it again"),
    "help": ("[TOOL]", "show the commands, or what a tool does"),
    "exit": ("", "end the session, as Ctrl-D does"),
}
# How many suggestions are shown for one word.
MAX_SUGGESTIONS = 1000


class Suggestion(Struct, frozen=True):
    """A word with which the last word of a line may be completed.

    text: the word, with quotes if necessary.
    about: a one-line description.
    """

    text: str
    about: str = ""


class Catalogue:
    """The words that a user can type: commands, and the names in the current server's lists.

    Attributes:
    tools, prompts: the server's tools and prompts, by name.
    uris: the URI of a resource, or the URI template -> its name.
    """

    def __init__(self) -> None:
        self.tools: dict[str, Tool] = {}
        self.prompts: dict[str, Prompt] = {}
        self.uris: dict[str, str] = {}

    async def fetch(self, client: Client) -> None:
        """Replace the tools, prompts and resources by those of a server.

        A list that the server refuses stays empty. A command that needs it will report the error.
        """
        offered = client.capabilities
        self.tools, self.prompts, self.uris = {}, {}, {}
        if "tools" in offered:
            with suppress(ConcertinoError):
                self.tools = {tool.name: tool for tool in await client.list_tools()}
        if "prompts" in offered:
            with suppress(ConcertinoError):
                self.prompts = {prompt.name: prompt for prompt in await client.list_prompts()}
        if "resources" in offered:
            with suppress(ConcertinoError):
                self.uris = {item.uri: item.name for item in await client.list_resources()}
            with suppress(ConcertinoError):
                self.uris |= {
                    item.uri_template: item.name for item in await client.list_resource_templates()
                }

    def describe(self) -> str:
        """Return the numbers of tools, resources and prompts, in a few words."""
        counts = {
            "tool": len(self.tools),
            "resource": len(self.uris),
            "prompt": len(self.prompts),
        }
        words = [
            f"1 {noun}" if count == 1 else f"{count} {noun}s"
            for noun, count in counts.items()
            if count
        ]
        return ", ".join(words) or "it offers nothing"

    async def suggest(self, text: str, client: Client | None) -> tuple[list[Suggestion], int]:
        """Return the suggestions for the last word of a line, and the index of what they replace.

        A suggestion replaces the text from this index on: the last word, or only VALUE if the last
        word is KEY=VALUE.

        text: the line up to the cursor.
        client: the client of the server, which completes the arguments of prompts; None without a
            server.
        """
        line = split_line(text)
        *before, word = line.words
        start = line.last_start
        if not before:
            commands = [Suggestion(name, about) for name, (_, about) in COMMANDS.items()]
            return _select_matching([*commands, *self._suggest_tools()], word), start

        command, *rest = before
        # The name of a tool alone calls the tool.
        if command in self.tools and command not in COMMANDS:
            command, rest = "call", [command, *rest]
        if not rest:
            return _select_matching(self._suggest_first_word(command), word), start

        name, equals, value = word.partition("=")
        # Where VALUE begins in KEY=VALUE.
        value_start = start + len(name) + 1
        if command == "call" and rest[0] in self.tools:
            tool = self.tools[rest[0]]
            if equals:
                return _select_matching(_suggest_values(tool, name), value), value_start
            return _select_matching(_suggest_arguments(tool, rest[1:]), word), start
        if command == "prompt" and rest[0] in self.prompts:
            prompt = self.prompts[rest[0]]
            if equals and client is not None:
                values = await _complete(client, prompt, name, value, rest[1:])
                return [Suggestion(shlex.quote(item)) for item in values], value_start
            given = {item.partition("=")[0] for item in rest[1:]}
            arguments = [
                Suggestion(f"{item.name}=", item.description or "")
                for item in prompt.arguments or []
                if item.name not in given
            ]
            return _select_matching(arguments, word), start
        return [], start

    def _suggest_tools(self) -> list[Suggestion]:
        return [
            Suggestion(shlex.quote(tool.name), _first_line(tool.description or tool.title or ""))
            for tool in self.tools.values()
        ]

    def _suggest_first_word(self, command: str) -> list[Suggestion]:
        """Return the suggestions for the first word after a command."""
        if command in ("call", "help"):
            return self._suggest_tools()
        if command == "prompt":
            return [
                Suggestion(shlex.quote(prompt.name), _first_line(prompt.description or ""))
                for prompt in self.prompts.values()
            ]
        if command in ("read", "subscribe", "unsubscribe"):
            return [Suggestion(shlex.quote(uri), name) for uri, name in self.uris.items()]
        words = {"level": get_args(Level), "json": ("on", "off")}.get(command, ())
        return [Suggestion(word) for word in words]


def _select_matching(suggestions: Iterable[Suggestion], word: str) -> list[Suggestion]:
    """Return the suggestions that begin with a word, or else the suggestions that contain it."""
    folded = word.casefold()
    everything = list(suggestions)
    # shlex.quote() may have put quotes around the text.
    begin = [item for item in everything if item.text.strip("'").casefold().startswith(folded)]
    matching = begin or [item for item in everything if folded in item.text.casefold()]
    return matching[:MAX_SUGGESTIONS]


def _suggest_arguments(tool: Tool, given: Sequence[str]) -> list[Suggestion]:
    """Return suggestions for the arguments of a tool that the user has not typed yet.

    given: the words that the user has typed after the name of the tool.
    """
    takes = Parameters.of_schema(tool.input_schema)
    # A word is KEY=TEXT or KEY:=JSON.
    names = {word.partition("=")[0].removesuffix(":") for word in given}
    return [
        Suggestion(f"{name}=", kind if name in takes.required else f"{kind}, optional")
        for name, kind in takes.types.items()
        if name not in names
    ]


def _suggest_values(tool: Tool, name: str) -> list[Suggestion]:
    return [Suggestion(shlex.quote(value)) for value in list_values(tool.input_schema, name)]


async def _complete(
    client: Client, prompt: Prompt, name: str, value: str, given: Sequence[str]
) -> list[str]:
    """Return the values that the server suggests for an argument of a prompt (completion/complete).

    name: the name of the argument.
    value: what the user has typed of its value.
    given: the words for the prompt's other arguments.
    Returns [] if the server refuses the request.
    """
    chosen = dict(word.split("=", 1) for word in given if "=" in word)
    try:
        completion = await client.complete(PromptReference(prompt.name), name, value, chosen=chosen)
    except ConcertinoError:
        return []
    return completion.values


def _first_line(text: str) -> str:
    return next(iter(text.strip().splitlines()), "")
