"""project_files(): the texts of the files that `concertino new` writes.

They make a small project: an MCP server with one tool, its tests and its configuration, and on
demand a plugin for Claude Code. The texts below are templates with names such as @NAME@, which
project_files() replaces by the user's choices.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct
from msgspec.json import encode, format

__all__ = ["Project", "project_files"]

# The version of the new project.
VERSION = "0.1.0"
# Claude Code replaces this by the folder in which the plugin is installed.
ROOT = "${CLAUDE_PLUGIN_ROOT}"


class Project(Struct, frozen=True):
    """The choices on which the files of a project depend.

    name: the name of the folder, the module and the server.
    requirement: the dependency on concertino, as in PEP 508.
    has_uv: whether to run the project by uv; otherwise by the Python in its folder `.venv`.
    is_plugin: whether the project is a plugin for Claude Code.
    """

    name: str
    requirement: str
    has_uv: bool
    is_plugin: bool

    @property
    def plugin_name(self) -> str:
        """The name of the plugin: in lower case and with hyphens, as Claude Code requires."""
        return self.name.lower().replace("_", "-")


def project_files(project: Project) -> dict[str, str]:
    """Return path -> text for each file of a project; paths are relative to its folder."""
    name = project.name
    files = {
        "pyproject.toml": _PYPROJECT,
        f"{name}.py": _SERVER + (_PROMPT if project.is_plugin else "") + _MAIN,
        f"test_{name}.py": _TEST,
        ".mcp.json": _format_json({"mcpServers": {name: _make_command(project)}}),
        "README.md": _PLUGIN_README if project.is_plugin else _README,
        ".gitignore": _GITIGNORE,
    }
    if project.is_plugin:
        files[".claude-plugin/plugin.json"] = _format_json(
            {
                "name": project.plugin_name,
                "version": VERSION,
                "description": "Counts words, and rewrites texts with fewer of them.",
            }
        )
        files["make_commands.py"] = _MAKE_COMMANDS
        files["commands/shorten.md"] = _COMMAND
        files["test_plugin.py"] = _PLUGIN_TEST
    # A requirement of the form `concertino @ file:...` names a copy on this computer.
    has_release = "@" not in project.requirement
    values = {
        "NAME": name,
        "PLUGIN": project.plugin_name,
        "VERSION": VERSION,
        "RUN": "uv run" if project.has_uv else ".venv/bin/python",
        "PYTEST": "uv run pytest" if project.has_uv else ".venv/bin/pytest",
        "SETUP": "" if project.has_uv else _VENV,
        "REQUIREMENT": project.requirement,
        "REQUIREMENT_NOTE": "" if has_release else _REQUIREMENT_NOTE,
        "HATCH_NOTE": "" if has_release else _DIRECT_REFERENCES,
        "README_NOTE": "" if has_release else _README_NOTE,
        "CONCERTINO": "uv run concertino" if project.has_uv else ".venv/bin/concertino",
    }
    return {path: _fill(text, values) for path, text in files.items()}


def _make_command(project: Project) -> dict[str, object]:
    """Return the command of the server, in the form of `.mcp.json`."""
    file = f"{project.name}.py"
    if not project.is_plugin:
        # Hosts start the servers of a project in its folder.
        if project.has_uv:
            return {"command": "uv", "args": ["run", file]}
        return {"command": ".venv/bin/python", "args": [file]}
    # Hosts start the servers of a plugin in the folder of the user's project, so the paths must
    # contain the folder of the plugin.
    if project.has_uv:
        return {"command": "uv", "args": ["run", "--project", ROOT, "--no-dev", f"{ROOT}/{file}"]}
    return {"command": f"{ROOT}/.venv/bin/python", "args": [f"{ROOT}/{file}"]}


def _format_json(value: object) -> str:
    return format(encode(value), indent=2).decode() + "\n"


def _fill(text: str, values: Mapping[str, str]) -> str:
    """Replace each @NAME@ in a text by its value."""
    for name, value in values.items():
        text = text.replace(f"@{name}@", value)
    return text


_PYPROJECT = """\
[project]
name = "@NAME@"
version = "@VERSION@"
description = "An MCP server that counts words."
readme = "README.md"
requires-python = ">=3.11"
@REQUIREMENT_NOTE@dependencies = ["@REQUIREMENT@"]

[dependency-groups]
dev = ["pytest>=8"]

[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[tool.hatch.build.targets.wheel]
only-include = ["@NAME@.py"]
@HATCH_NOTE@
[tool.pytest.ini_options]
pythonpath = ["."]
"""

_REQUIREMENT_NOTE = """\
# concertino has no release yet, so this is the copy that made the project.
"""

_DIRECT_REFERENCES = """
[tool.hatch.metadata]
# For the dependency on a file.
allow-direct-references = true
"""

_SERVER = '''\
"""An MCP server. Each function below `@server.tool` is offered to the model."""

from concertino import Server, ToolError

server = Server(
    "@NAME@",
    version="@VERSION@",
    instructions="Counts words. Do not count words yourself: models miscount.",
)


@server.tool(read_only=True)
def word_count(text: str, min_letters: int = 1) -> int:
    """Count the words of a text.

    Args:
        text: any text; words are separated by white space.
        min_letters: shorter words are not counted.
    """
    if min_letters < 1:
        raise ToolError(f"min_letters: expected at least 1, got {min_letters}")
    return sum(len(word) >= min_letters for word in text.split())
'''

_PROMPT = '''

@server.prompt
def shorten(file: str) -> str:
    """Rewrite a text with two thirds of its words.

    Args:
        file: path of the text.
    """
    return (
        f"Read {file} and count its words with the tool word_count. Rewrite the text with two "
        "thirds of the words, without losing a fact. Count again, and correct it if need be."
    )
'''

_MAIN = """

if __name__ == "__main__":
    server.run()
"""

_TEST = '''\
"""Tests of the tools, in memory. Run them with: @PYTEST@"""

import asyncio
from typing import Any

import pytest
from concertino import Client, ToolError

from @NAME@ import server


def call(tool: str, **arguments: Any) -> Any:
    """Call a tool as a host does, and return its result."""

    async def run() -> Any:
        async with Client(server) as client:
            return await client.call_tool(tool, arguments, into=Any)

    return asyncio.run(run())


def test_words_are_counted() -> None:
    assert call("word_count", text="to be or not to be") == 6


def test_short_words_can_be_left_out() -> None:
    assert call("word_count", text="to be or not to be", min_letters=3) == 1


def test_the_model_is_told_what_is_wrong() -> None:
    with pytest.raises(ToolError, match="min_letters: expected at least 1, got 0"):
        call("word_count", text="to be", min_letters=0)


def test_arguments_of_another_type_are_refused() -> None:
    with pytest.raises(ToolError, match="text: expected str, got int"):
        call("word_count", text=7)
'''

_VENV = """\
python3 -m venv .venv
.venv/bin/pip install -e . pytest
"""

_README_NOTE = """
concertino has no release yet: `pyproject.toml` names the copy on this computer. Elsewhere, change
its line `dependencies`.
"""

_README = """\
# @NAME@

An MCP server, made with concertino. `@NAME@.py` has its tools: write yours there.

```sh
@SETUP@@PYTEST@
```

Claude Code reads `.mcp.json` when it is started in this folder. Other hosts want the same entry in
their own configuration, with absolute paths.

To call a tool by hand:

```sh
@CONCERTINO@ call word_count text="to be" -- @RUN@ @NAME@.py
```
@README_NOTE@"""

_PLUGIN_README = """\
# @PLUGIN@

A plugin for Claude Code: an MCP server, made with concertino, and slash commands.

| file | what |
|---|---|
| `@NAME@.py` | the tools and prompts of the server |
| `.mcp.json` | how Claude Code starts it; `${CLAUDE_PLUGIN_ROOT}` is the folder of the plugin |
| `commands/` | the prompts as slash commands; `@RUN@ make_commands.py` writes them |
| `.claude-plugin/plugin.json` | name and version of the plugin |

```sh
@SETUP@@PYTEST@
claude --plugin-dir .
```

Then `/@PLUGIN@:shorten FILE` is a command. To give the plugin to others, list its repository in a
marketplace of plugins.
@README_NOTE@"""

_GITIGNORE = """\
.venv/
__pycache__/
.pytest_cache/
*.egg-info/
dist/
"""

_MAKE_COMMANDS = '''\
"""Write the prompts of the server as slash commands: @RUN@ make_commands.py"""

import asyncio
import json
from pathlib import Path

from concertino import Client

from @NAME@ import server

COMMANDS = Path(__file__).parent / "commands"


async def make_commands() -> dict[str, str]:
    """Return the text of each command, by the name of its file.

    Claude Code puts the words after a command in the place of $0, $1 and so on.
    """
    commands = {}
    async with Client(server) as client:
        for prompt in await client.list_prompts():
            names = [argument.name for argument in prompt.arguments or []]
            words = {name: f"${number}" for number, name in enumerate(names)}
            result = await client.get_prompt(prompt.name, words)
            hint = " ".join(f"[{name}]" for name in names)
            description = prompt.description or prompt.name
            lines = ["---", f"description: {json.dumps(description)}"]
            lines += [f"argument-hint: {json.dumps(hint)}"] if names else []
            lines += ["---", ""]
            lines += [message.content.text for message in result.messages]
            commands[f"{prompt.name}.md"] = "\\n".join(lines) + "\\n"
    return commands


if __name__ == "__main__":
    COMMANDS.mkdir(exist_ok=True)
    for file, text in asyncio.run(make_commands()).items():
        (COMMANDS / file).write_text(text, encoding="utf-8")
        print(f"wrote commands/{file}")
'''

_COMMAND = """\
---
description: "Rewrite a text with two thirds of its words."
argument-hint: "[file]"
---

Read $0 and count its words with the tool word_count. Rewrite the text with two thirds of the \
words, without losing a fact. Count again, and correct it if need be.
"""

_PLUGIN_TEST = '''\
"""Tests of the plugin: its files fit together, and a host can start the server."""

import asyncio
import json
from pathlib import Path

from concertino import Client, ServerParameters
from make_commands import COMMANDS, make_commands

from @NAME@ import server

ROOT = Path(__file__).parent


def read_json(path: str) -> dict:
    return json.loads((ROOT / path).read_text(encoding="utf-8"))


def test_a_host_starts_the_server_from_another_folder(tmp_path: Path) -> None:
    entry = read_json(".mcp.json")["mcpServers"]["@NAME@"]
    command, *args = (
        word.replace("${CLAUDE_PLUGIN_ROOT}", str(ROOT))
        for word in [entry["command"], *entry["args"]]
    )

    async def count() -> int:
        async with Client(ServerParameters(command, args, cwd=tmp_path)) as client:
            return await client.call_tool("word_count", {"text": "to be"}, into=int)

    assert asyncio.run(count()) == 2


def test_each_prompt_has_a_command_that_says_the_same() -> None:
    files = COMMANDS.glob("*.md")
    written = {file.name: file.read_text(encoding="utf-8") for file in files}
    assert written == asyncio.run(make_commands()), "run make_commands.py"


def test_plugin_and_server_have_one_version() -> None:
    version = read_json(".claude-plugin/plugin.json")["version"]

    async def server_version() -> str:
        async with Client(server) as client:
            return client.server_info.version

    assert version == asyncio.run(server_version())
'''
