"""docs/reference/systems.md: what is pasted is what clients read."""

from __future__ import annotations

import json
import tomllib
from pathlib import PurePosixPath

from docs.pages import DOCS, ROOT, blocks

PAGE = (DOCS / "reference" / "systems.md").read_text()


def test_each_configuration_starts_a_server_with_absolute_paths() -> None:
    entries = [json.loads(block)["mcpServers"]["calculator"] for block in blocks(PAGE, "json")]
    assert len(entries) == 3
    for entry in entries:
        words = [entry["command"], *entry["args"]]
        start = words.index("serve") - 1
        program, _, server = words[start : start + 3]
        assert PurePosixPath(program).is_absolute()
        assert PurePosixPath(server).is_absolute()
        assert program.endswith("/concertino")


def test_wsl_runs_the_program_without_a_shell() -> None:
    *_, last = blocks(PAGE, "json")
    entry = json.loads(last)["mcpServers"]["calculator"]
    assert (entry["command"], entry["args"][:2]) == ("wsl.exe", ["--exec", "env"])


def test_the_readme_names_the_systems_in_one_line() -> None:
    [line] = [
        line
        for line in (ROOT / "README.md").read_text().splitlines()
        if line.startswith("Supported and tested:")
    ]
    assert all(name in line for name in ("Linux", "macOS", "Windows by WSL"))


def test_the_pythons_that_are_named_are_those_of_the_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    versions = [
        item.rpartition(" ")[2]
        for item in project["classifiers"]
        if item.startswith("Programming Language :: Python :: 3.")
    ]
    assert f"each Python from {versions[0]} to {versions[-1]}" in PAGE
    assert project["requires-python"] == f">={versions[0]}"
