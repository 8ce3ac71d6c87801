"""cli/completion.py: scripts made of the parsers, in a real bash. zsh and fish: tests/interop."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from shell_completion import CASES, complete_on_terminal, make_folder, script_of

from concertino.cli import COMMANDS, main
from concertino.cli.command_words import CommandWords, find_commands

BASH = shutil.which("bash")
needs_bash = pytest.mark.skipif(BASH is None, reason="there is no bash")


def find_command(*words: str) -> CommandWords:
    (found,) = (command for command in find_commands() if command.words == words)
    return found


def test_every_command_is_known() -> None:
    assert list(find_command().commands) == list(COMMANDS)
    assert list(find_command("certs").commands) == ["init", "issue", "show", "renew"]


def test_every_option_of_the_help_is_known(capsys: pytest.CaptureFixture[str]) -> None:
    for command in find_commands():
        if command.words:
            with pytest.raises(SystemExit):
                main([*command.words, "--help"])
            help = capsys.readouterr().out
            assert {name for option in command.options for name in option.names} == {
                name.strip(",") for name in help.split() if name.strip(",") in help_options(help)
            }


def help_options(help: str) -> set[str]:
    """Return the options that a help lists: each begins a line that is indented by two spaces."""
    names: set[str] = set()
    for line in help.splitlines():
        if line.startswith("  -"):
            listed = line.strip().partition("  ")[0]
            names |= {word.strip(",") for word in listed.split() if word.startswith("-")}
    return names


def test_help_texts_are_one_line_each() -> None:
    texts = [option.help for command in find_commands() for option in command.options]
    assert all(text and "\n" not in text and "%%" not in text for text in texts)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make_folder(tmp_path_factory.mktemp("bash"))
    (folder / "script").write_text(script_of("bash"))
    return folder


@needs_bash
@pytest.mark.parametrize(("typed", "words"), CASES.values(), ids=CASES)
def test_bash_completes(typed: str, words: list[str], folder: Path) -> None:
    assert BASH
    printing = "concertino() { printf BEGIN; printf '<%s>' \"$@\"; echo END; }"
    command = [BASH, "--norc", "--noprofile", "-i"]
    assert complete_on_terminal(command, f"{printing}; . ./script", typed, folder) == words


def candidates(folder: Path, *words: str) -> list[str]:
    """Return what bash offers for the last word."""
    assert BASH
    quoted = " ".join(map(shlex.quote, ("concertino", *words)))
    code = (
        f". ./script; COMP_WORDS=({quoted}); COMP_CWORD={len(words)}; _concertino; "
        "printf '%s\\n' \"${COMPREPLY[@]}\""
    )
    done = subprocess.run(
        [BASH, "-c", code], cwd=folder, capture_output=True, text=True, check=True
    )
    return done.stdout.splitlines()


@needs_bash
def test_bash_offers_all_commands(folder: Path) -> None:
    assert candidates(folder, "") == list(COMMANDS)


@needs_bash
def test_bash_offers_all_options_of_each_command(folder: Path) -> None:
    for command in find_commands():
        expected = [name for option in command.options for name in option.names]
        assert candidates(folder, *command.words, "-") == expected


@needs_bash
def test_bash_offers_choices_behind_an_equals_sign(folder: Path) -> None:
    # readline splits words there.
    assert candidates(folder, "serve", "--log-format", "=") == ["line", "json", "trace"]
    assert candidates(folder, "serve", "--log-format", "=", "t") == ["trace"]


@needs_bash
def test_bash_offers_nothing_for_a_free_value(folder: Path) -> None:
    assert candidates(folder, "serve", "--scheme", "") == [""]


def test_a_shell_that_is_not_known_is_refused() -> None:
    words = [sys.executable, "-m", "concertino", "completion", "csh"]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 2
    assert "bash" in done.stderr
    assert "fish" in done.stderr
