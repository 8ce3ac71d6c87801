"""How readers are told to install concertino: no name in the package index before a release."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from concertino.installation import RELEASED

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts" / "installation-lines"


def run(*arguments: str, root: Path = ROOT) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(SCRIPT), *arguments, "--root", str(root)],
        capture_output=True,
        text=True,
        timeout=60,
    )


def tree(tmp_path: Path, text: str) -> Path:
    """A repository with one page."""
    source = tmp_path / "src" / "concertino"
    source.mkdir(parents=True)
    (source / "installation.py").write_text("RELEASED = False\n")
    (tmp_path / "README.md").write_text(text)
    return tmp_path


def copy(tmp_path: Path) -> Path:
    """Everything that readers see, as it is here."""
    for name in ("docs", "examples", "src"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, tmp_path / name, ignore=ignored)
    for page in ROOT.glob("*.md"):
        shutil.copy(page, tmp_path)
    return tmp_path


def contents(root: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_every_line_agrees_with_the_constant() -> None:
    done = run("--check")
    assert (done.returncode, done.stderr) == (0, "")


def test_a_release_switches_every_line_and_can_be_taken_back(tmp_path: Path) -> None:
    root = copy(tmp_path)
    before = contents(root)
    there, back = ("--released", "--unreleased")[:: -1 if RELEASED else 1]

    assert run(there, root=root).returncode == 0
    assert run("--check", root=root).returncode == 0
    assert run("--check", back, root=root).returncode == 1
    released = "".join(path.read_text() for path in sorted(root.rglob("*.md")))
    assert run(back, root=root).returncode == 0
    unreleased = "".join(path.read_text() for path in sorted(root.rglob("*.md")))
    assert contents(root) == before

    if RELEASED:
        released, unreleased = unreleased, released
    assert "pip install 'concertino[library]'" in released
    assert "pip install '.[" not in released
    assert "pip install '.[library]'" in unreleased
    assert "pip install 'concertino" not in unreleased


NAMED = """\
pip install concertino
python -m pip install --upgrade concertino
pip install httpx concertino
pip install 'concertino[library]==0.1.0'
uv pip install concertino
uv add concertino
uv tool install concertino
uv tool run concertino serve calculator.py
pipx install concertino
pipx run concertino demo
poetry add concertino
uvx concertino demo
uvx concertino@latest demo
uvx --from concertino concertino demo
uvx --with httpx concertino serve calculator.py
uvx --with 'concertino[library]' --from ./concertino.whl concertino
uv run --with concertino server.py
{"command": "uvx", "args": ["concertino", "serve"]}
{"command": "uvx", "args": ["--from", "concertino[library]", "concertino"]}
dependencies = ["concertino>=0.1,<0.2"]
dependencies = ["httpx", "concertino"]
"""
FROM_FILES = """\
pip install .
pip install '.[library]'
pip install ./dist/concertino-0.1.0-py3-none-any.whl
pip install /path/to/concertino
pip install . && concertino demo
uvx --from . concertino demo
uvx --from ./concertino-0.1.0-py3-none-any.whl concertino demo
uvx --with httpx --from . concertino serve calculator.py
uv run concertino serve calculator.py
dependencies = ["concertino @ file:///absolute/path/to/concertino.whl"]
{"command": "/absolute/path/to/.venv/bin/concertino", "args": ["serve"]}
"""


def test_before_a_release_each_line_with_the_name_in_the_index_is_refused(tmp_path: Path) -> None:
    for number, line in enumerate(NAMED.splitlines(), 1):
        (tmp_path / f"{number:02}.md").write_text(f"```sh\n{line}\n```\n")
    done = run("--check", root=tree(tmp_path, ""))
    assert done.returncode == 1
    places = [line.partition(": ")[0] for line in done.stderr.splitlines()]
    assert sorted(set(places)) == [f"{number:02}.md:2" for number in range(1, 22)]


def test_a_configuration_over_several_lines_is_refused_too(tmp_path: Path) -> None:
    page = '{"command": "uvx",\n  "args": [\n    "concertino", "serve"]}\n'
    done = run("--check", root=tree(tmp_path, page))
    assert done.stderr == (
        'README.md:1: `"uvx", "args": [ "concertino"` names what the package index does not have\n'
    )


def test_before_a_release_a_checkout_or_a_wheel_may_be_installed(tmp_path: Path) -> None:
    done = run("--check", root=tree(tmp_path, FROM_FILES))
    assert (done.returncode, done.stderr) == (0, "")


def test_after_a_release_a_line_that_needs_a_checkout_is_refused(tmp_path: Path) -> None:
    done = run("--check", "--released", root=tree(tmp_path, "One\n\npip install '.[library]'\n"))
    assert done.returncode == 1
    expected = "README.md:3: `pip install '.[` is not how to install after a release\n"
    assert done.stderr == expected


def test_after_a_release_other_commands_that_need_a_checkout_are_refused(tmp_path: Path) -> None:
    lines = ["uvx --with rich --from . concertino", "uv pip install .", "uvx --from '.[all]' x"]
    done = run("--check", "--released", root=tree(tmp_path, "\n".join([*lines, ""])))
    assert done.returncode == 1
    assert [line.split(":")[1] for line in done.stderr.splitlines()] == ["1", "2", "3"]


def test_a_line_with_two_commands_is_switched_in_both(tmp_path: Path) -> None:
    root = tree(
        tmp_path, "`uvx --from . concertino demo` or `pip install .`, then `concertino demo`.\n"
    )
    assert run("--released", root=root).returncode == 0
    assert (root / "README.md").read_text() == (
        "`uvx concertino demo` or `pip install concertino`, then `concertino demo`.\n"
    )
    assert (root / "src/concertino/installation.py").read_text() == "RELEASED = True\n"


def test_a_constant_that_was_moved_is_reported(tmp_path: Path) -> None:
    root = tree(tmp_path, "")
    (root / "src/concertino/installation.py").write_text("RELEASED: bool = False\n")
    done = run("--check", root=root)
    assert done.returncode == 1
    assert "no line `RELEASED = True` or `RELEASED = False`" in done.stderr
