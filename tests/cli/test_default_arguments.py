"""cli/default_arguments.py: the arguments and errors are those of argparse for no words."""

from __future__ import annotations

import pytest

from concertino.cli import UsageError, parsers, proxy
from concertino.cli.default_arguments import make_default_arguments


def test_they_are_those_that_argparse_makes_of_no_words() -> None:
    _, commands = parsers.make_parser()
    parser, _ = parsers.add_command(commands, "proxy")
    expected = vars(parsers.parse(parser, "proxy", []))
    values = vars(make_default_arguments("proxy", proxy.add_arguments))
    assert values.keys() == expected.keys()
    assert values | {"parser": parser} == expected


def test_a_usage_error_has_the_advice_of_the_command_s_parser() -> None:
    arguments = make_default_arguments("proxy", proxy.add_arguments)
    with pytest.raises(UsageError, match="no such thing") as raised:
        arguments.parser.error("no such thing")
    assert raised.value.hint == "`concertino proxy --help` shows all arguments and options"
