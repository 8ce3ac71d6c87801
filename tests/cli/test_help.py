"""The help: every command has its place, its examples are valid, and all fits a terminal."""

from __future__ import annotations

import shlex

import pytest

from concertino.cli import COMMANDS, parsers
from concertino.cli.help_text import EXAMPLES, GROUPS, describe_commands

WITHOUT_EXAMPLES = {"demo", "ps", "reap", "orchestrate", "bridge", "plugin", "certs", "token"}


def test_each_command_is_below_one_heading() -> None:
    assert sorted(name for names in GROUPS.values() for name in names) == sorted(COMMANDS)


def test_the_overview_fits_a_terminal_of_80_columns_and_60_lines() -> None:
    lines = describe_commands().splitlines()
    assert max(map(len, lines)) <= 80
    assert len(lines) <= 60


def test_commands_that_need_words_have_examples() -> None:
    assert set(COMMANDS) - set(EXAMPLES) == WITHOUT_EXAMPLES


@pytest.mark.parametrize("line", [line for lines in EXAMPLES.values() for line in lines])
def test_an_example_is_a_valid_command_line(line: str) -> None:
    assert len(line) + 2 <= 80
    line = line.removeprefix('eval "$(').partition(" >")[0].partition(')"  ')[0]
    program, command, *words = shlex.split(line)
    assert program == "concertino"
    own = words[: words.index("--")] if "--" in words else words
    parser, _ = parsers.add_command(parsers.make_parser()[1], command)
    parsers.parse(parser, command, own)


@pytest.mark.parametrize("command", COMMANDS)
def test_the_help_of_a_command_fits_a_terminal_of_80_columns(
    command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Two columns stay free.
    monkeypatch.setattr(parsers, "_help_width", lambda: 78)
    parser, _ = parsers.add_command(parsers.make_parser()[1], command)
    text = parser.format_help()
    assert text.startswith("usage: concertino")
    assert max(map(len, text.splitlines())) <= 80


@pytest.mark.parametrize("command", COMMANDS)
def test_the_help_of_a_command_ends_with_its_examples(command: str) -> None:
    parser, _ = parsers.add_command(parsers.make_parser()[1], command)
    text = parser.format_help()
    # The usage stays a line or two, however many options there are.
    assert len(text.partition("\n\n")[0].splitlines()) <= 2
    lines = "".join(f"  {line}\n" for line in EXAMPLES.get(command, ()))
    assert text.endswith(f"\nexamples:\n{lines}") if lines else "examples:" not in text
