"""PromptFile: one parsed prompt of a library. fill_prompt() fills in the values of its arguments.

The text of a prompt has placeholders: `${name}` and `{{name}}` stand for the value of an argument,
`$ARGUMENTS` for the values of all arguments. They are replaced in one pass, so a placeholder inside
a value stays unchanged. A placeholder that names no argument of the prompt stays unchanged, too,
such as `${home}` in an example of shell code.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from msgspec import Struct

from concertino.errors import invalid_params
from concertino.types.resources_and_prompts import (
    GetPromptResult,
    Prompt,
    PromptArgument,
    PromptMessage,
)
from concertino.types.results import TextContent

PLACEHOLDER = re.compile(
    r"\$ARGUMENTS\b|\$\{\s*([A-Za-z_][\w.-]*)\s*\}|\{\{\s*([A-Za-z_][\w.-]*)\s*\}\}", re.ASCII
)

# The name of the argument of a prompt that contains $ARGUMENTS and declares no arguments.
ARGUMENTS = "ARGUMENTS"

# The longest filled-in text, in characters. Many placeholders and a long value could otherwise
# produce a text of any size.
MAX_FILLED = 4 * 2**20

# An error quotes at most this many characters of an unknown argument's name.
QUOTED = 64


class Argument(Struct, frozen=True):
    """One argument of a prompt, as the prompt's front matter declares it.

    name: the name of the argument.
    description: the description for people; None if there is none.
    required: whether the client must send a value. This has no effect if there is a default.
    default: the value if the client sends none; None for no default.
    values: suggestions for completion; other values are allowed.
    """

    name: str
    description: str | None = None
    required: bool = False
    default: str | None = None
    values: tuple[str, ...] = ()


class PromptFile(Struct, frozen=True):
    """One prompt of a library: a Markdown file with placeholders, such as `${name}`.

    name: the value in the front matter, or else the file's name without its suffix.
    title: the title for people; None if the front matter has none.
    description: the description for people, from the front matter or else the first paragraph; None
        if neither exists.
    arguments: the arguments that the front matter declares.
    body: the text without front matter, with placeholders.
    path: the path relative to the directory of prompts.
    digest: a hash of the file's bytes.
    """

    name: str
    title: str | None
    description: str | None
    arguments: tuple[Argument, ...]
    body: str
    path: str
    digest: str

    @property
    def accepted_arguments(self) -> tuple[Argument, ...]:
        """Return the arguments that a client may send.

        These are the declared arguments. If none are declared and the text contains `$ARGUMENTS`,
        there is one optional argument called ARGUMENTS.
        """
        # find_placeholders() returns None for $ARGUMENTS.
        if not self.arguments and None in find_placeholders(self.body):
            return (Argument(ARGUMENTS, "What stands for $ARGUMENTS"),)
        return self.arguments


def find_placeholders(body: str) -> list[str | None]:
    """Return the names of the placeholders `${name}` and `{{name}}` in a text, as they occur.

    A name that occurs twice is returned twice. The result has None for each `$ARGUMENTS`.
    """
    return [match[1] or match[2] for match in PLACEHOLDER.finditer(body)]


def to_list_entry(prompt: PromptFile) -> Prompt:
    """Return a prompt's entry of `prompts/list`."""
    arguments = [
        PromptArgument(
            argument.name,
            description=argument.description,
            required=argument.required and argument.default is None,
        )
        for argument in prompt.accepted_arguments
    ]
    return Prompt(
        prompt.name, title=prompt.title, description=prompt.description, arguments=arguments or None
    )


def fill_prompt(prompt: PromptFile, values: Mapping[str, str]) -> GetPromptResult:
    """Return the result of `prompts/get`: the prompt's text with the values of its arguments.

    The placeholders `${name}` and `{{name}}` are replaced by the value of the argument, and
    `$ARGUMENTS` by all values that are not empty, in the order of the arguments, with spaces
    between them. Placeholders of unknown arguments stay unchanged.

    values: name of an argument -> value. Arguments without a value get their default, or else "".
    Raises RpcError -32602 for missing or unknown arguments, and if the text would have more than
    MAX_FILLED characters.
    """
    arguments = prompt.accepted_arguments
    _check_arguments(prompt, arguments, values)

    replacements = {
        argument.name: values.get(argument.name, argument.default or "") for argument in arguments
    }
    all_values = " ".join(filter(None, replacements.values()))
    size = len(prompt.body)

    def replace(match: re.Match[str]) -> str:
        nonlocal size
        name = match[1] or match[2]
        text = all_values if name is None else replacements.get(name)
        if text is None:
            return match[0]
        size += len(text)
        if size > MAX_FILLED:
            raise invalid_params(
                "arguments: expected values that make a prompt of at most"
                f" {MAX_FILLED} characters, got more"
            )
        return text

    text = PLACEHOLDER.sub(replace, prompt.body)
    return GetPromptResult([PromptMessage("user", TextContent(text.strip()))], prompt.description)


def _check_arguments(
    prompt: PromptFile, arguments: tuple[Argument, ...], values: Mapping[str, str]
) -> None:
    """Raise RpcError if a required argument has no value, or if a value has no argument."""
    missing = [
        argument.name
        for argument in arguments
        if argument.required and argument.default is None and argument.name not in values
    ]
    if missing:
        plural = "s" if len(missing) > 1 else ""
        raise invalid_params(f"Missing required field{plural}: {', '.join(missing)}")

    names = [argument.name for argument in arguments]
    if unknown := next((name for name in values if name not in names), None):
        expected = ", ".join(names) or "none"
        raise invalid_params(
            f"arguments: there is no {unknown[:QUOTED]!r} of prompt {prompt.name!r};"
            f" it takes {expected}"
        )
