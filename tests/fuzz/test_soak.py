"""scripts/soak: what it lists and what it refuses.

That it runs what it lists, each soak shows when it is run.
"""

from __future__ import annotations

import ast
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]


def soak(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([ROOT / "scripts" / "soak", *arguments], capture_output=True, text=True)


def test_alone_it_lists_every_soak_in_a_sentence():
    done = soak()
    assert done.returncode == 0
    listed = dict(
        line.split(maxsplit=1) for line in done.stdout.splitlines() if line.startswith("  ")
    )
    files = {
        path.stem: ast.get_docstring(ast.parse(path.read_bytes())) or ""
        for path in (ROOT / "soak").glob("*.py")
    }
    assert listed == {name: text.partition("\n")[0] for name, text in files.items()}
    assert "fuzz" in listed
    assert all(sentence.endswith(".") for sentence in listed.values())


def test_a_name_that_does_not_exist_is_answered_with_those_that_do():
    done = soak("nonesuch")
    assert done.returncode == 2
    assert "there is no soak/nonesuch.py" in done.stderr
    assert "  fuzz " in done.stderr


def test_what_is_no_name_and_no_interpreter_is_refused():
    assert soak("../scripts/test").returncode == 2
    assert soak("--fast").returncode == 2
    absent = soak("--python", "/nonexistent/python", "fuzz")
    assert absent.returncode == 2
    assert "/nonexistent/python does not run" in absent.stderr
