"""The wheel as users install it: its documentation, projects of `concertino new`, and `uvx`."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest
from interop.tools import python_with

from concertino.installation import RELEASED

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
def programs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Give the programs of an environment that has a wheel of this package and nothing else."""
    # A wheel may be at a path with a space.
    folder = tmp_path_factory.mktemp("the wheel")
    build = ("-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation")
    run(ROOT, sys.executable, *build, "--wheel-dir", folder, ROOT)
    (wheel,) = folder.glob("*.whl")
    venv.create(folder / "env", with_pip=True)
    run(folder, folder / "env/bin/pip", "install", "--quiet", wheel)
    # After a release projects depend on the package by name; this version may not be there yet.
    with pytest.MonkeyPatch.context() as patch:
        for name in ("PIP_FIND_LINKS", "UV_FIND_LINKS"):
            patch.setenv(name, folder.as_uri())
        yield folder / "env" / "bin"


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
    comparison = (ROOT / "docs" / "comparison.md").read_text()
    assert run(tmp_path, programs / "concertino", "docs", "comparison") == comparison


def test_uvx_runs_the_demo_and_what_the_demo_says_to_paste(
    tmp_path: Path, programs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UV_PYTHON", sys.executable)
    path = f"{python_with('uv', 'uv').parent}:/usr/bin:/bin"
    (wheel,) = programs.parents[1].glob("*.whl")
    shown = run(tmp_path, "uvx", "--from", wheel, "concertino", "demo", path=path)
    [text] = re.findall(r"^\{.*?\}\}\}$", shown, re.MULTILINE | re.DOTALL)
    entry = json.loads(text)["mcpServers"]["calculator"]
    assert Path(entry["command"]).name == "uvx"
    # After a release it is uvx that finds the package; this wheel may not be there yet.
    source = ["--from", str(wheel)]
    args = entry["args"] if not RELEASED else [*source, *entry["args"]]
    assert args[:4] == [*source, "concertino", "serve"]
    call = ("call", "add", "a:=40", "b:=2", "--", entry["command"], *args)
    assert run(tmp_path, programs / "concertino", *call, path=path) == "42\n"


def test_under_uvx_a_missing_module_is_added_by_with(
    tmp_path: Path, programs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UV_PYTHON", sys.executable)
    path = f"{python_with('uv', 'uv').parent}:/usr/bin:/bin"
    (wheel,) = programs.parents[1].glob("*.whl")
    (tmp_path / "server.py").write_text(
        "import iniconfig\nfrom concertino import Server\n"
        "server = Server('s')\n\n\n"
        "@server.tool\ndef name() -> str:\n    return iniconfig.__name__\n"
    )
    server = ("uvx", "--from", str(wheel), "concertino", "serve", "server.py")
    call = (str(programs / "concertino"), "call", "name", "--")
    done = subprocess.run(
        [*call, *server],
        cwd=tmp_path,
        env=os.environ | {"PATH": path},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode != 0
    assert re.search(
        r"No module named 'iniconfig' \(server.py:1\); /.*/bin/python3? runs this server: "
        r"add --with PACKAGE to the uvx or uv run command",
        done.stderr.replace("\n", " "),
    )
    server = ("uvx", "--with", "iniconfig", *server[1:])
    assert run(tmp_path, *call, *server, path=path) == "iniconfig\n"
