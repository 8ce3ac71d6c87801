"""Expander: replaces the references `${...}` in a server file.

    ${VAR}  ${env:VAR}         an environment variable; an error if it is not set
    ${VAR:-TEXT}               the same, but TEXT if the variable is not set or empty
    ${input:ID}                the value of an input that the file declares, given by the user
    ${secret:...}              a secret, only in env and headers; also secret:... as a whole value
    ${workspaceFolder}         the directory of the project; and VS Code's other names like this

As in every host, `$VAR` without braces is not replaced.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from itertools import groupby
from pathlib import Path

from concertino.logs.redact import learn_secrets
from concertino.proxy.input_entries import InputEntry
from concertino.proxy.secret_sources import SECRET, SecretReference, parse_secret
from concertino.proxy.server_file import ServerFile
from concertino.proxy.value_reader import InvalidServerFile, Template, ValueReader

__all__ = [
    "NOT_SHOWN",
    "Expander",
    "Parts",
    "find_defaults",
    "find_inputs",
    "input_variable",
    "show_references",
]

# A value in pieces: strings, and references to secrets, which are read when the server is started.
Parts = tuple[str | SecretReference, ...]
INPUT = re.compile(r"\$\{input:([^}]*)\}")
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
BRACE = re.compile(r"\$\{|\}")
# The deepest nesting of defaults within defaults. People need at most two levels; without a limit,
# a file could exhaust Python's stack.
MAX_DEPTH = 8
# Stands for a text that may be a secret.
NOT_SHOWN = "(not shown)"


class Expander:
    """Replaces references such as `${VAR}` in the strings of one server file.

    file: the server file, which declares the inputs for `${input:ID}`, and whose workspace replaces
        `${workspaceFolder}`.
    environment: the environment variables for `${VAR}`.
    inputs: id of an input -> the value that the user gave. A value `secret:...` refers to a secret.
    """

    def __init__(
        self,
        file: ServerFile,
        environment: Mapping[str, str],
        inputs: Mapping[str, str],
    ) -> None:
        self._reader = ValueReader(str(file.path))
        self._declared = file.inputs
        self._environment = environment
        self._inputs = inputs
        workspace = str(file.workspace)
        self._predefined = {
            "workspaceFolder": workspace,
            "workspaceFolderBasename": file.workspace.name,
            "userHome": str(Path.home()),
            "cwd": workspace,
            "pathSeparator": os.sep,
            "/": os.sep,
        }

    def expand_text(self, template: Template, label: str) -> str:
        """Return a text that must not contain secrets, such as an argument, with `${...}` replaced.

        template: the text, with its line and column in the file.
        label: the path of the text within the file, such as `github.args[0]`, for errors.
        Raises InvalidServerFile for a reference to a secret, and for one that cannot be replaced.
        """
        parts = self.expand_parts(template, label)
        secrets = [str(part) for part in parts if isinstance(part, SecretReference)]
        secrets += [
            f"the input {id}, which is a password"
            for id in find_inputs(template.text)
            if (declared := self._declared.get(id)) is not None and declared.is_secret
        ]
        if secrets:
            raise self._error(
                template,
                label,
                f"{secrets[0]}: expected secrets in env and headers only: every user of this "
                "machine sees the arguments of programs",
            )
        return "".join(str(part) for part in parts)

    def expand_parts(self, template: Template, label: str) -> Parts:
        """Return a text in pieces, with `${...}` replaced except for references to secrets.

        The pieces are strings, and the references to secrets, which are read when the server is
        started.
        template: the text, with its line and column in the file.
        label: the path of the text within the file, for errors.
        Raises InvalidServerFile for a reference that cannot be replaced.
        """
        text = template.text
        if text.startswith(SECRET):
            return (self._parse_secret(text.removeprefix(SECRET), template, label),)
        return tuple(self._expand(text, template, label, depth=0))

    def _error(
        self,
        template: Template,
        label: str,
        problem: str,
    ) -> InvalidServerFile:
        return self._reader.error(template, label, problem)

    def _expand(
        self,
        text: str,
        template: Template,
        label: str,
        depth: int,
    ) -> Iterator[str | SecretReference]:
        """Yield the pieces of a text: strings, and references to secrets.

        template, label: the whole text of the file that contains `text`, and its path, for errors.
        depth: how many defaults contain `text`: in `${A:-${B:-x}}`, the depth of `x` is 2.
        """
        if depth > MAX_DEPTH:
            raise self._error(template, label, f"expected at most {MAX_DEPTH} nested defaults")
        at = 0
        while (start := text.find("${", at)) >= 0:
            if start > at:
                yield text[at:start]
            end = _find_end(text, start + 2)
            if end < 0:
                raise self._error(template, label, f"expected '}}' after {text[start:][:40]!r}")
            yield from self._expand_reference(text[start + 2 : end], template, label, depth)
            at = end + 1
        if at < len(text):
            yield text[at:]

    def _expand_reference(
        self,
        content: str,
        template: Template,
        label: str,
        depth: int,
    ) -> Iterator[str | SecretReference]:
        """Yield the pieces that replace `${CONTENT}`."""
        if content in self._predefined:
            yield self._predefined[content]
        elif content.startswith("input:"):
            yield self._read_input(content.removeprefix("input:"), template, label)
        elif content.startswith(SECRET):
            yield self._parse_secret(content.removeprefix(SECRET), template, label)
        else:
            yield from self._expand_variable(content, template, label, depth)

    def _expand_variable(
        self,
        content: str,
        template: Template,
        label: str,
        depth: int,
    ) -> Iterator[str | SecretReference]:
        """Yield the value of `${VAR}` or `${env:VAR}`, or the pieces of its default."""
        variable, has_default, default = content.removeprefix("env:").partition(":-")
        if VARIABLE.fullmatch(variable) is None:
            raise self._error(
                template,
                label,
                f"${{{content[:40]}}}: expected ${{VARIABLE}}, ${{VARIABLE:-default}}, "
                "${env:...}, ${input:...}, ${secret:...} or ${workspaceFolder}",
            )
        value = self._environment.get(variable)
        # An empty variable counts as not set if there is a default, as in a shell and in Claude
        # Code.
        if value or (value is not None and not has_default):
            yield value
        elif has_default:
            yield from self._expand(default, template, label, depth + 1)
        else:
            raise self._error(
                template,
                label,
                f"the variable {variable} is not set; set it, or write ${{{variable}:-default}}",
            )

    def _read_input(
        self,
        id: str,
        template: Template,
        label: str,
    ) -> str | SecretReference:
        """Return the value of `${input:ID}`: from --input, a variable, or the input's default."""
        # An input that the file does not declare has no default and no description.
        declared = self._declared.get(id, InputEntry(id))
        value = self._inputs.get(id)
        if value is None:
            value = self._environment.get(input_variable(id), declared.default)
        if value is None:
            description = f" ({declared.description})" if declared.description else ""
            value_form = "secret:NAME" if declared.is_secret else "VALUE"
            raise self._error(
                template,
                label,
                f"the input {id}{description} has no value; give it with --input "
                f"{id}={value_form} or in the variable {input_variable(id)}",
            )
        if value.startswith(SECRET):
            return self._parse_secret(value.removeprefix(SECRET), template, label)
        if declared.choices and value not in declared.choices:
            raise self._error(
                template, label, f"the input {id}: expected one of {', '.join(declared.choices)}"
            )
        if declared.is_secret:
            # Hide the value in logs.
            learn_secrets((value,))
        return value

    def _parse_secret(
        self,
        text: str,
        template: Template,
        label: str,
    ) -> SecretReference:
        try:
            return parse_secret(text)
        except ValueError as exc:
            raise self._error(template, label, str(exc)) from None


def input_variable(id: str) -> str:
    """Return the name of the environment variable from which `${input:ID}` gets its value.

    An example is `CONCERTINO_INPUT_API_KEY` for the id `api-key`.
    """
    return "CONCERTINO_INPUT_" + re.sub(r"[^A-Za-z0-9]", "_", id).upper()


def find_inputs(text: str) -> list[str]:
    """Return the ids of the inputs to which a text refers, as in `${input:ID}`."""
    return INPUT.findall(text)


def show_references(text: str) -> str:
    """Return a value in which only the `${...}` references are shown, because it may be a secret.

    `(not shown)` stands for each text between references, and for the defaults in them, which may
    be secrets, too: `Bearer ${TOKEN:-abc}` becomes `(not shown)${TOKEN:-(not shown)}`. Returns ""
    if the value contains no reference.
    """
    shown = _show_references(text, depth=0)
    return "" if shown == NOT_SHOWN else shown


def _show_references(text: str, depth: int) -> str:
    """Return the `${...}` references in a text, with `(not shown)` for each text around them.

    depth: how many defaults of references contain this text; 0 for a whole value.
    """
    if depth > MAX_DEPTH:
        return NOT_SHOWN
    shown: list[str] = []
    at = 0
    while (start := text.find("${", at)) >= 0:
        end = _find_end(text, start + 2)
        if end < 0:
            break
        if start > at:
            shown.append(NOT_SHOWN)
        shown.append(_show_reference(text[start + 2 : end], depth))
        at = end + 1
    if at < len(text):
        shown.append(NOT_SHOWN)
    # If several hidden texts follow each other, show `(not shown)` only once for all of them.
    return "".join(
        NOT_SHOWN if is_hidden else "".join(pieces)
        for is_hidden, pieces in groupby(shown, lambda piece: piece == NOT_SHOWN)
    )


def _show_reference(content: str, depth: int) -> str:
    """Return `${CONTENT}` with its default hidden. A malformed reference is hidden completely."""
    variable, has_default, default = content.removeprefix("env:").partition(":-")
    if content == "/" or content.startswith(("input:", SECRET)):
        return f"${{{content}}}"
    if VARIABLE.fullmatch(variable) is None:
        return NOT_SHOWN
    if not has_default:
        return f"${{{content}}}"
    # `VAR:-` or `env:VAR:-`.
    before_default = content[: len(content) - len(default)]
    return "${" + before_default + _show_references(default, depth + 1) + "}"


def find_defaults(text: str) -> Iterator[tuple[str, str]]:
    """Yield (variable, default) for each `${VAR:-default}` in a text, also inside of defaults."""
    starts: list[int] = []
    for brace in BRACE.finditer(text):
        if brace[0] == "${":
            starts.append(brace.end())
        elif starts:
            start = starts.pop()
            # Deeper references are refused when they are replaced. Copying the text of each would
            # take quadratic time.
            if len(starts) <= MAX_DEPTH:
                name = text[start : brace.start()].removeprefix("env:")
                variable, has_default, default = name.partition(":-")
                if has_default:
                    yield variable, default


def _find_end(text: str, start: int) -> int:
    """Return the index of the brace that closes the `${` before `start`; -1 if there is none."""
    depth = 1
    for match in BRACE.finditer(text, start):
        depth += 1 if match[0] == "${" else -1
        if depth == 0:
            return match.start()
    return -1
