"""The wheel as users install it: its documentation, and projects of `concertino new`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest
from interop.tools import python_with

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]


def run(folder: Path, *command: str | Path, path: str = "/usr/bin:/bin") -> str:
    """Run a command that succeeds, and return what it prints."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(
        command,
        cwd=folder,
        env={**kept, "PATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the programs of an environment that has a wheel of this package and nothing else."""
    # A wheel may be at a path with a space.
    folder = tmp_path_factory.mktemp("the wheel")
    build = ("-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation")
    run(ROOT, sys.executable, *build, "--wheel-dir", folder, ROOT)
    (wheel,) = folder.glob("*.whl")
    venv.create(folder / "env", with_pip=True)
    run(folder, folder / "env/bin/pip", "install", "--quiet", wheel)
    return folder / "env" / "bin"


@pytest.mark.parametrize("options", [[], ["--claude-plugin"]], ids=["project", "plugin"])
def test_a_project_is_installed_and_tested_by_pip(
    tmp_path: Path, programs: Path, options: list[str]
) -> None:
    steps = run(tmp_path, programs / "concertino", "new", "clock", *options)
    assert ".venv/bin/pip install -e . pytest" in steps
    project = tmp_path / "clock"
    venv.create(project / ".venv", with_pip=True)
    run(project, ".venv/bin/pip", "install", "--quiet", "-e", ".", "pytest")
    assert " passed" in run(project, ".venv/bin/pytest")


@pytest.mark.parametrize("options", [[], ["--claude-plugin"]], ids=["project", "plugin"])
def test_a_project_is_installed_and_tested_by_uv(
    tmp_path: Path, programs: Path, options: list[str]
) -> None:
    uv = python_with("uv", "uv").parent
    path = f"{uv}:/usr/bin:/bin"
    steps = run(tmp_path, programs / "concertino", "new", "clock", *options, path=path)
    assert "uv run pytest" in steps
    project = tmp_path / "clock"
    python = ("--python", sys.executable)
    assert " passed" in run(project, "uv", "run", *python, "pytest", path=path)

    entry = json.loads((project / ".mcp.json").read_text())["mcpServers"]["clock"]
    words = [entry["command"], *entry["args"]]
    command = [word.replace("${CLAUDE_PLUGIN_ROOT}", str(project)) for word in words]
    folder = tmp_path if options else project
    call = ("call", "word_count", "text=to be", "--")
    assert run(folder, programs / "concertino", *call, *command, path=path) == "2\n"


def test_the_documentation_is_in_the_wheel(tmp_path: Path, programs: Path) -> None:
    page = (ROOT / "docs" / "tutorial" / "first-server.md").read_text()
    assert run(tmp_path, programs / "concertino", "docs", "first-server") == page
