"""`concertino completion` in real shells other than bash: zsh and fish."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from interop.tools import system_program
from shell_completion import CASES, complete_on_terminal, make_folder, script_of

pytestmark = pytest.mark.slow
PRINTING = "concertino() { printf BEGIN; printf '<%s>' \"$@\"; echo END }"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make_folder(tmp_path_factory.mktemp("shells"))
    for shell in ("zsh", "fish"):
        (folder / f"script.{shell}").write_text(script_of(shell))
    (folder / "functions").mkdir()
    (folder / "functions" / "_concertino").write_text(script_of("zsh"))
    return folder


@pytest.mark.parametrize(
    "setup",
    [
        "autoload -U compinit; compinit -u; . ./script.zsh",
        "fpath=($PWD/functions $fpath); autoload -U compinit; compinit -u",
    ],
    ids=["evaluated", "in fpath"],
)
@pytest.mark.parametrize(("typed", "words"), CASES.values(), ids=CASES)
def test_zsh_completes(setup: str, typed: str, words: list[str], folder: Path) -> None:
    command = [system_program("zsh"), "-f", "-i"]
    # A slash is typed for folders, and removed by Return.
    expected = [word.rstrip("/") for word in words]
    assert complete_on_terminal(command, f"{PRINTING}; {setup}", typed, folder) == expected


def fish_candidates(folder: Path, typed: str) -> dict[str, str]:
    """Return what fish offers for the last word, and the description of each."""
    code = f"source script.fish; complete -C 'concertino {typed}'"
    path = f"{folder / 'bin'}:/usr/local/bin:/usr/bin:/bin"
    done = subprocess.run(
        [system_program("fish"), "--no-config", "-c", code],
        cwd=folder,
        env={"HOME": str(folder), "PATH": path, "LC_ALL": "C.UTF-8"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""
    rows = (line.partition("\t") for line in done.stdout.splitlines())
    return {word: description for word, _, description in rows}


@pytest.mark.parametrize(("typed", "words"), CASES.values(), ids=CASES)
def test_fish_completes(typed: str, words: list[str], folder: Path) -> None:
    offered = list(fish_candidates(folder, typed))
    unchanged = typed.split() == words
    assert offered == ([] if unchanged else [words[-1]])


def test_fish_describes_what_it_offers(folder: Path) -> None:
    assert fish_candidates(folder, "sear") == {"search": "search a folder of Markdown documents"}
    eras = fish_candidates(folder, "check --era ")
    assert eras["modern"] == "the era that cases speak unless they need another"
