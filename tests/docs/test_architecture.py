"""docs/architecture.md names every module, and the layers are those that import-linter checks."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")


def test_the_table_of_modules_is_complete() -> None:
    check = [sys.executable, str(ROOT / "scripts" / "module-table"), "--check"]
    result = subprocess.run(check, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (0, "")


def test_every_file_that_the_page_names_exists() -> None:
    text = PAGE.partition("<!-- modules -->")[0]
    named = set(re.findall(r"`([a-z]+/[a-z_]+\.py)`", text))
    assert named
    assert [name for name in sorted(named) if not (ROOT / "src/concertino" / name).exists()] == []


def test_the_layers_are_those_that_are_checked() -> None:
    with (ROOT / "pyproject.toml").open("rb") as file:
        contracts = tomllib.load(file)["tool"]["importlinter"]["contracts"]
    checked = [set(re.findall(r"\w+", layer)) for layer in contracts[0]["layers"]]
    rows = re.findall(r"^\| ((?:`\w+`(?:, )?)+) \|", PAGE, re.MULTILINE)
    assert [set(re.findall(r"\w+", row)) for row in rows if "." not in row][
        : len(checked)
    ] == checked
