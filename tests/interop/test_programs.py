"""programs.py: what happens when a counterpart cannot be built."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from interop import programs, tools


@pytest.fixture(autouse=True)
def _empty_tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tools, "TOOLS", tmp_path)
    monkeypatch.setattr(programs, "TOOLS", tmp_path)


def source(*command: str) -> programs.Source:
    def find_commands() -> Sequence[Sequence[str]]:
        return [command]

    return programs.Source("go_sdk", find_commands)


@pytest.mark.parametrize(
    ("is_ci", "outcome"), [("true", pytest.fail.Exception), ("", pytest.skip.Exception)]
)
def test_a_failed_build_fails_or_skips_its_tests_with_the_reason(
    is_ci: str, outcome: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CI", is_ci)
    monkeypatch.setattr(programs, "GO", source("sh", "-c", "echo no network; exit 3"))

    assert not programs._report(programs.GO)

    with pytest.raises(outcome, match=r"go_sdk are not built: sh .* ended with 3: no network"):
        programs.go_server()


def test_a_program_is_built_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(programs, "GO", source("sh", "-c", "echo x >>{folder}/server"))

    assert programs._report(programs.GO)
    assert programs._report(programs.GO)

    assert programs.go_server().read_text() == "x\n"


def test_a_tool_that_is_missing_is_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.setenv("PATH", "")

    assert "cargo is not on PATH" in programs._build(programs.RUST)
