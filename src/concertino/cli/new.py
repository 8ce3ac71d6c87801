"""`concertino new NAME`: write a small project with a server, its tests and its configuration.

project_files.py has the texts of the files. This module checks the name, writes the files, and says
what to do next.
"""

from __future__ import annotations

import keyword
import os
import re
import shutil
import sys
import sysconfig
import unicodedata
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping, Sequence
from importlib.machinery import PathFinder

from concertino import __version__
from concertino.cli import UsageError
from concertino.cli.project_files import Project, project_files
from concertino.cli.serving import reject_extra_args
from concertino.installation import dependency

DESCRIPTION = (
    "Write a small project into the folder NAME: a server, tests that pass, and .mcp.json for its "
    "hosts. Existing files are never overwritten. Exit codes: 0 success, 1 it could not be "
    "written, 2 usage."
)

FAILED = 1
# Names that a project cannot have: modules that it imports, or that pytest treats specially.
TAKEN = {"concertino", "msgspec", "pytest", "conftest", "make_commands", "test_plugin"}
# Packages that such a project often installs, or that depend on concertino.
PACKAGES = {
    "fastmcp",
    "hatchling",
    "iniconfig",
    "mcp",
    "packaging",
    "pip",
    "pluggy",
    "pygments",
    "uv",
}
# Latin letters that Unicode does not decompose into a letter and an accent.
LATIN = str.maketrans({"æ": "ae", "œ": "oe", "ø": "o", "đ": "d", "ð": "d", "ł": "l", "þ": "th"})
# The names that Python modules and pyproject.toml allow.
NAME = re.compile(r"[A-Za-z]([A-Za-z0-9_]*[A-Za-z0-9])?")


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of `concertino new` to its parser."""
    parser.add_argument(
        "name", metavar="NAME", help="name of the server, its module and its folder"
    )
    parser.add_argument(
        "--claude-plugin",
        action="store_true",
        help="make it a plugin for Claude Code, with the server's prompts as slash commands",
    )


def run(args: Namespace, server: Sequence[str]) -> int:
    """Write the project, print what to do next, and return the exit code.

    args: the parsed arguments.
    server: the words after `--`. This command accepts none.
    Exit codes: 0 success, 1 if a file cannot be written. Raises UsageError for a name that a
    project cannot have, and if a file exists already.
    """
    reject_extra_args(args, server)
    name: str = args.name
    folder, base = os.path.split(name.rstrip("/"))
    if folder:
        hint = f"cd {folder}, then concertino new {base}"
        raise UsageError("expected a name, not a path", hint)
    if problem := find_problem(name):
        raise UsageError(problem, f"concertino new {suggest_project_name(name)}")
    requirement = dependency(__version__)
    if requirement is None:
        raise UsageError(
            "it is not known where this concertino was installed from, so the project cannot "
            "depend on it: install a checkout or a wheel with pip or uv"
        )
    has_uv = shutil.which("uv") is not None
    project = Project(
        name=name, requirement=requirement, has_uv=has_uv, is_plugin=args.claude_plugin
    )
    files = project_files(project)
    try:
        _write(name, files)
    except OSError as exc:
        sys.stderr.write(f"concertino new: {exc.filename}: {exc.strerror}\n")
        return FAILED
    sys.stdout.write("\n".join(_next_steps(project, len(files))) + "\n")
    return 0


def find_problem(name: str) -> str:
    """Return the reason why a project cannot have this name; "" if it can."""
    if NAME.fullmatch(name) is None:
        return (
            f"{name!r} cannot be the name of a module: write the letters A to Z, digits and _, "
            "with a letter first and no _ last"
        )
    if keyword.iskeyword(name):
        return f"{name!r} is a keyword of Python"
    # Some file systems do not distinguish Queue.py from queue.py.
    if name.lower() in sys.stdlib_module_names:
        return f"{name}.py would hide the module {name.lower()!r} of Python's standard library"
    if name.lower() in TAKEN:
        return f"{name}.py would hide the module {name.lower()!r}, which the project needs"
    if name.lower() in PACKAGES or _is_installed(name):
        package = name.lower()
        return f"{name}.py would hide the package {package!r}, and take its place when installed"
    return ""


def suggest_project_name(name: str) -> str:
    """Return a name that find_problem() accepts, similar to one that it does not accept."""
    # Decompose "ü" into "u" and an accent, and remove the accent.
    latin = unicodedata.normalize("NFKD", name.casefold().translate(LATIN))
    plain = "".join(letter for letter in latin if not unicodedata.combining(letter))
    base = "_".join(re.findall(r"[a-z0-9]+", plain))
    if not base:
        return "my_server"
    if base[0].isdigit():
        base = f"server_{base}"
    return f"{base}_server" if find_problem(base) else base


def _is_installed(name: str) -> bool:
    """Return whether a package of that name is installed for this Python."""
    folders = [sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]
    return any(PathFinder.find_spec(spelling, folders) for spelling in (name, name.lower()))


def _write(folder: str, files: Mapping[str, str]) -> None:
    """Write files into a folder.

    files: path relative to the folder -> text.
    Raises UsageError if one of the files exists, and OSError if a file cannot be written.
    """
    if os.path.lexists(folder) and not os.path.isdir(folder):
        raise UsageError(f"{folder} is in the way", "move it, or choose another name")
    if existing := [path for path in files if os.path.lexists(os.path.join(folder, path))]:
        raise UsageError(
            f"nothing was written: {folder}/ has files in the way",
            f"{', '.join(existing)}\nmove them, or choose another name",
        )
    paths = {os.path.join(folder, path): text for path, text in files.items()}
    for path, text in paths.items():
        os.makedirs(os.path.dirname(path), exist_ok=True)
        # Mode "x" fails if somebody else has created the file since the check.
        with open(path, "x", encoding="utf-8") as file:
            file.write(text)


def _next_steps(project: Project, count: int) -> list[str]:
    """Return the lines that describe the new project and the next steps."""
    name = project.name
    lines = [f"Made {name}/ with {count} files. Your tools go into {name}/{name}.py. Next:", ""]
    lines.append(f"  cd {name}")
    if project.has_uv:
        lines.append("  uv run pytest                  # installs it and tests it")
    else:
        lines.append("  python3 -m venv .venv && .venv/bin/pip install -e . pytest")
        lines.append("  .venv/bin/pytest               # tests it")
    if project.is_plugin:
        lines.append("  claude --plugin-dir .          # Claude Code with the plugin")
    else:
        lines.append("  claude                         # Claude Code finds .mcp.json and asks")
    return lines
