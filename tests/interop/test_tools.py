"""tools.py: a machine without Node or Go gets them, and what cannot be had is a failure in CI."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from interop import tools


@pytest.mark.slow
@pytest.mark.parametrize("name", ["node", "npm"])
def test_a_machine_without_node_gets_it_from_the_python_index(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/sbin")

    program = tools.node_program(name)

    done = subprocess.run([program, "--version"], capture_output=True, text=True, check=True)
    assert int(done.stdout.lstrip("v").partition(".")[0]) >= 10


@pytest.mark.slow
def test_a_machine_with_an_old_go_gets_a_newer_one_from_the_python_index(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    old = tmp_path / "go"
    old.write_text("#!/bin/sh\necho go1.24.9\n")
    old.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/sbin")

    program = tools.go()

    done = subprocess.run([program, "env", "GOVERSION"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("go1.")
    assert int(done.stdout.split(".")[1]) >= 25


@pytest.mark.parametrize(
    ("ci", "outcome"), [("true", pytest.fail.Exception), ("", pytest.skip.Exception)]
)
def test_what_cannot_be_had_is_a_failure_in_ci_and_a_named_skip_elsewhere(
    ci: str, outcome: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CI", ci)

    with pytest.raises(outcome, match="the Inspector cannot be installed"):
        tools.not_available("the Inspector cannot be installed")
