"""cli/new.py, cli/project_files.py: projects are written, and pass their own tests in a real
process.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import tomllib
import venv
from pathlib import Path
from typing import Any

import pytest
from warm_commands import run_command

import concertino
from concertino.cli import main
from concertino.cli.new import find_problem, suggest_project_name
from concertino.cli.project_files import Project, project_files

FILES = {".gitignore", ".mcp.json", "README.md", "clock.py", "pyproject.toml", "test_clock.py"}
PLUGIN_FILES = {
    ".claude-plugin/plugin.json",
    "commands/shorten.md",
    "make_commands.py",
    "test_plugin.py",
}


def new(folder: Path, *arguments: str, path: str = "") -> subprocess.CompletedProcess[str]:
    """Run `concertino new` in a folder, where PATH has no uv unless it is given."""
    source = str(Path(concertino.__file__).parents[1])
    env = {**os.environ, "PATH": path, "PYTHONPATH": source}
    return run_command("new", *arguments, cwd=folder, env=env)


def files_in(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def make_venv(project: Path) -> Path:
    """Make the project's `.venv` with the packages of this process, and return its Python."""
    venv.create(project / ".venv", with_pip=False)
    packages = sysconfig.get_path("purelib")
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    source = Path(concertino.__file__).parents[1]
    path = project / ".venv" / "lib" / version / "site-packages" / "packages.pth"
    # addsitedir() also reads the .pth files of an editable installation.
    path.write_text(f"{source}\nimport site; site.addsitedir({packages!r})\n")
    return project / ".venv" / "bin" / "python"


def command_of(project: Path) -> list[str]:
    """Return the command of `.mcp.json` as Claude Code reads it."""
    servers = json.loads((project / ".mcp.json").read_text())["mcpServers"]
    (entry,) = servers.values()
    words = [entry["command"], *entry["args"]]
    return [word.replace("${CLAUDE_PLUGIN_ROOT}", str(project)) for word in words]


def run_in(folder: Path, *command: str | Path) -> subprocess.CompletedProcess[str]:
    inherited = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    return subprocess.run(
        command, cwd=folder, env=inherited, capture_output=True, text=True, timeout=120
    )


@pytest.mark.slow
@pytest.mark.parametrize("options", [[], ["--claude-plugin"]], ids=["project", "plugin"])
def test_a_project_passes_its_own_tests_and_its_server_starts(
    tmp_path: Path, options: list[str]
) -> None:
    done = new(tmp_path, "clock", *options)
    assert done.returncode == 0, done.stderr
    project = tmp_path / "clock"
    assert files_in(project) == FILES | (PLUGIN_FILES if options else set())
    python = make_venv(project)

    tested = run_in(project, python, "-m", "pytest", "-p", "no:cacheprovider")
    assert tested.returncode == 0, tested.stdout
    assert ("7 passed" if options else "4 passed") in tested.stdout

    # A host starts the server of a plugin in the folder of the user's project.
    folder = tmp_path if options else project
    command = command_of(project)
    call = ("call", "word_count", "text=to be or not", "--")
    called = run_in(folder, python, "-m", "concertino", *call, *command)
    assert (called.stdout, called.returncode) == ("4\n", 0)

    cases = ("handshake-pipelined", "discover-first", "tool-unknown", "eof-idle")
    check = [word for case in cases for word in ("--only", case)]
    checked = run_in(folder, python, "-m", "concertino", "check", *check, "--", *command)
    assert checked.returncode == 0, checked.stdout
    assert "4 ok" in checked.stdout


@pytest.mark.slow
def test_a_changed_prompt_changes_its_command(tmp_path: Path) -> None:
    assert new(tmp_path, "clock", "--claude-plugin").returncode == 0
    project = tmp_path / "clock"
    python = make_venv(project)
    server = project / "clock.py"
    server.write_text(server.read_text().replace('f"Read {file} and', 'f"Open {file} and'))

    test = (python, "-m", "pytest", "-p", "no:cacheprovider", "-k", "command")
    failed = run_in(project, *test)
    assert failed.returncode == 1
    assert "run make_commands.py" in failed.stdout

    made = run_in(project, python, "make_commands.py")
    assert made.stdout == "wrote commands/shorten.md\n"
    assert "\nOpen $0 and count" in (project / "commands" / "shorten.md").read_text()
    assert run_in(project, *test).returncode == 0


@pytest.mark.parametrize("with_uv", [False, True])
@pytest.mark.parametrize("options", [[], ["--claude-plugin"]], ids=["project", "plugin"])
def test_the_next_steps_fit_a_terminal(tmp_path: Path, with_uv: bool, options: list[str]) -> None:
    (tmp_path / "bin").mkdir()
    if with_uv:
        (tmp_path / "bin" / "uv").touch(mode=0o755)
    lines = new(tmp_path, "clock", *options, path=str(tmp_path / "bin")).stdout.splitlines()
    assert len(lines) <= 8
    assert max(map(len, lines)) <= 80
    assert any("uv run pytest" in line for line in lines) == with_uv
    command = json.loads((tmp_path / "clock" / ".mcp.json").read_text())["mcpServers"]["clock"]
    assert (command["command"] == "uv") == with_uv


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    project = tmp_path / "clock"
    (project / ".claude-plugin").mkdir(parents=True)
    (project / "README.md").write_text("mine")
    # A link that leads nowhere is in the way, too.
    (project / ".mcp.json").symlink_to("nowhere")
    done = new(tmp_path, "clock")
    assert done.returncode == 2
    assert done.stderr == (
        "concertino new: nothing was written: clock/ has files in the way\n"
        "  .mcp.json, README.md\n"
        "  move them, or choose another name\n"
    )
    assert files_in(project) == {"README.md"}
    assert (project / "README.md").read_text() == "mine"


def test_a_folder_without_these_files_is_filled(tmp_path: Path) -> None:
    (tmp_path / "clock" / ".git").mkdir(parents=True)
    assert new(tmp_path, "clock").returncode == 0
    assert files_in(tmp_path / "clock") == FILES


def test_a_file_with_the_name_is_in_the_way(tmp_path: Path) -> None:
    (tmp_path / "clock").write_text("mine")
    done = new(tmp_path, "clock")
    assert (done.returncode, (tmp_path / "clock").read_text()) == (2, "mine")
    assert "clock is in the way\n" in done.stderr


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    done = new(tmp_path, "clock")
    assert (done.returncode, done.stderr) == (1, "concertino new: clock: Permission denied\n")


def test_a_folder_in_the_place_of_a_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "clock").mkdir()
    (tmp_path / "clock" / "commands").write_text("a file")
    done = new(tmp_path, "clock", "--claude-plugin")
    assert done.returncode == 1
    assert done.stderr == "concertino new: clock/commands: File exists\n"


@pytest.mark.parametrize(
    ("name", "problem", "suggestion"),
    [
        ("my-server", "letters A to Z, digits and _", "my_server"),
        ("My Server", "letters A to Z, digits and _", "my_server"),
        ("2048", "letters A to Z, digits and _", "server_2048"),
        ("", "letters A to Z, digits and _", "my_server"),
        ("..", "letters A to Z, digits and _", "my_server"),
        ("für_uns", "letters A to Z, digits and _", "fur_uns"),
        ("_private", "letters A to Z, digits and _", "private"),
        ("clock_", "letters A to Z, digits and _", "clock"),
        ("class", "'class' is a keyword of Python", "class_server"),
        ("None", "'None' is a keyword of Python", "none"),
        ("json", "would hide the module 'json'", "json_server"),
        ("Queue", "would hide the module 'queue'", "queue_server"),
        ("9x", "with a letter first", "server_9x"),
        ("x_", "no _ last", "x"),
        ("-json-", "letters A to Z, digits and _", "json_server"),
        ("concertino", "would hide the module 'concertino'", "concertino_server"),
        ("pytest", "would hide the module 'pytest'", "pytest_server"),
        ("mcp", "would hide the package 'mcp'", "mcp_server"),
        ("FastMCP", "would hide the package 'fastmcp'", "fastmcp_server"),
        # The tests need it, the package does not.
        ("hypothesis", "would hide the package 'hypothesis'", "hypothesis_server"),
        ("ünï", "letters A to Z, digits and _", "uni"),
        ("Straße 7", "letters A to Z, digits and _", "strasse_7"),
        ("smørrebrød-Łódź", "letters A to Z, digits and _", "smorrebrod_lodz"),
        ("天気", "letters A to Z, digits and _", "my_server"),
    ],
)
def test_a_name_that_does_not_work_gets_a_suggestion_that_does(
    name: str, problem: str, suggestion: str
) -> None:
    assert problem in find_problem(name)
    assert suggest_project_name(name) == suggestion
    assert find_problem(suggestion) == ""


def test_a_bad_name_is_a_usage_error(tmp_path: Path) -> None:
    done = new(tmp_path, "json")
    assert (done.returncode, list(tmp_path.iterdir())) == (2, [])
    assert done.stderr == (
        "concertino new: json.py would hide the module 'json' of Python's standard library\n"
        "  concertino new json_server\n"
    )


def test_a_path_is_no_name(tmp_path: Path) -> None:
    done = new(tmp_path, "servers/clock")
    assert done.returncode == 2
    assert "cd servers, then concertino new clock" in done.stderr


def parse(project: Project) -> dict[str, Any]:
    return tomllib.loads(project_files(project)["pyproject.toml"])


def test_a_copy_without_a_release_is_named_as_a_file() -> None:
    wheel = "concertino @ file:///wheels/concertino-0.1.0-py3-none-any.whl"
    project = parse(Project("clock", wheel, True, False))
    assert project["project"]["dependencies"] == [wheel]
    assert project["tool"]["hatch"]["metadata"]["allow-direct-references"] is True


def test_a_release_is_named_by_its_version() -> None:
    files = project_files(Project("clock", "concertino>=1.2", True, False))
    project = tomllib.loads(files["pyproject.toml"])
    assert project["project"]["dependencies"] == ["concertino>=1.2"]
    assert "metadata" not in project["tool"]["hatch"]
    assert "no release" not in files["README.md"]


def test_a_plugin_has_a_name_as_hosts_want_it() -> None:
    files = project_files(Project("My_Clock", "concertino>=1", True, True))
    assert json.loads(files[".claude-plugin/plugin.json"])["name"] == "my-clock"


def test_help_names_the_option(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["new", "--help"])
    assert "--claude-plugin" in capsys.readouterr().out
