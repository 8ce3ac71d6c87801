"""Prompts of a library: what is known of one file, and its text with the caller's values in it.

Placeholders are `$ARGUMENTS`, `${name}` and `{{name}}`. They are replaced in one pass over the file's text: what a value holds is
never looked at again, whatever it looks like. A placeholder of a name that is no argument stays as it is written, since `${home}`
in an example is not ours.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from msgspec import Struct

from concertino.errors import INVALID_PARAMS, RpcError
from concertino.types.results import (
    GetPromptResult,
    Prompt,
    PromptArgument,
    PromptMessage,
    TextContent,
)

__all__ = ["ALL", "Argument", "PromptFile", "filled", "placeholders", "shown"]

PLACEHOLDER = re.compile(
    r"\$ARGUMENTS\b|\$\{\s*([A-Za-z_][\w.-]*)\s*\}|\{\{\s*([A-Za-z_][\w.-]*)\s*\}\}", re.ASCII
)
ALL = "ARGUMENTS"  # the argument that a prompt with $ARGUMENTS has if it declares none
MAX_FILLED = 4 * 2**20  # characters; a few placeholders and a long value would make any number
SHOWN = 64


class Argument(Struct, frozen=True):
    """One argument as the front matter declares it. values: to choose from, for completion; others are allowed."""

    name: str
    description: str | None = None
    required: bool = False
    default: str | None = None
    values: tuple[str, ...] = ()


class PromptFile(Struct, frozen=True):
    """One prompt. body: its text without the front matter. path: below the prompts' folder. digest: of its bytes."""

    name: str
    title: str | None
    description: str | None
    arguments: tuple[Argument, ...]
    body: str
    path: str
    digest: str

    @property
    def taken(self) -> tuple[Argument, ...]:
        """The arguments that it takes: those declared, or the one for `$ARGUMENTS`."""
        if self.arguments or not any(name is None for name in placeholders(self.body)):
            return self.arguments
        return (Argument(ALL, "What stands for $ARGUMENTS"),)


def placeholders(body: str) -> list[str | None]:
    """The names in a text's placeholders, in order; None for `$ARGUMENTS`."""
    return [found[1] or found[2] for found in PLACEHOLDER.finditer(body)]


def shown(prompt: PromptFile) -> Prompt:
    """A prompt as `prompts/list` shows it."""
    arguments = [
        PromptArgument(
            each.name, description=each.description, required=each.required and each.default is None
        )
        for each in prompt.taken
    ]
    return Prompt(
        prompt.name, title=prompt.title, description=prompt.description, arguments=arguments or None
    )


def filled(prompt: PromptFile, given: Mapping[str, str]) -> GetPromptResult:
    """A prompt with values for its arguments. Raises RpcError -32602 for one that is missing, or that there is not."""
    taken = prompt.taken
    names = [each.name for each in taken]
    missing = [
        each.name
        for each in taken
        if each.required and each.default is None and each.name not in given
    ]
    if missing:
        fields = ", ".join(missing)
        raise _invalid(
            f"Missing required field: {fields}"
            if len(missing) == 1
            else f"Missing required fields: {fields}"
        )
    if unknown := next((name for name in given if name not in names), None):
        expected = ", ".join(names) or "none"
        raise _invalid(
            f"arguments: there is no {unknown[:SHOWN]!r} of prompt {prompt.name!r}; it takes {expected}"
        )
    values = {each.name: given.get(each.name, each.default or "") for each in taken}
    everything = " ".join(filter(None, values.values()))
    size = len(prompt.body)

    def value(found: re.Match[str]) -> str:
        nonlocal size
        name = found[1] or found[2]
        text = everything if name is None else values.get(name)
        if text is None:
            return found[0]
        size += len(text)
        if size > MAX_FILLED:
            raise _invalid(
                f"arguments: expected values that make a prompt of at most {MAX_FILLED} characters, got more"
            )
        return text

    text = PLACEHOLDER.sub(value, prompt.body) if values else prompt.body
    return GetPromptResult([PromptMessage("user", TextContent(text.strip()))], prompt.description)


def _invalid(details: str) -> RpcError:
    return RpcError(INVALID_PARAMS, "Invalid params", {"details": details})
