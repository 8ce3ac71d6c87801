"""cli/tools_options.py: --tools and --tools-budget."""

from __future__ import annotations

from argparse import ArgumentParser
from pathlib import Path

import pytest

from concertino import Server
from concertino.cli import serve
from concertino.cli.guards import make_guard
from concertino.cli.tools_options import wrap_backend
from concertino.guards import Guard
from concertino.proxy.server_file import parse_server_file
from concertino.proxy.value_reader import InvalidServerFile
from concertino.transforms.tool_search import ToolListOptions, ToolSearch


def wrapped(*words: str, from_file: ToolListOptions | None = None) -> object:
    parser = ArgumentParser()
    serve.add_arguments(parser)
    args = parser.parse_args(words)
    return wrap_backend(Server("inner"), make_guard(args), args, from_file)


def test_without_an_option_all_tools_are_shown() -> None:
    assert type(wrapped()) is Server
    assert type(wrapped("--tools", "all")) is Server


def test_the_search_is_around_the_guards() -> None:
    backend = wrapped("--tools", "search", "--deny", "x")
    assert isinstance(backend, ToolSearch)
    assert isinstance(backend.inner, Guard)


def test_a_file_decides_unless_there_is_an_option() -> None:
    assert isinstance(wrapped(from_file=ToolListOptions("auto", 5)), ToolSearch)
    assert type(wrapped("--tools", "all", from_file=ToolListOptions("auto"))) is Server


@pytest.mark.parametrize("budget", ["0", "-1", "x"])
def test_a_budget_is_a_positive_number(budget: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        wrapped("--tools", "auto", "--tools-budget", budget)
    assert "--tools-budget" in capsys.readouterr().err


def read(options: str) -> ToolListOptions:
    text = f'{{"mcpServers": {{}}, "x-concertino": {options}}}'
    return parse_server_file(text.encode(), Path("mcp.json")).tools


def test_a_file_of_servers_says_what_clients_see_of_long_lists() -> None:
    assert read('{"tools": "auto", "tools_budget": 5}') == ToolListOptions("auto", 5)
    assert read("{}") == ToolListOptions("all")


@pytest.mark.parametrize(
    "options", ['{"tools": "some"}', '{"tool": "auto"}', '{"tools_budget": 0}']
)
def test_a_mistake_in_the_file_is_an_error(options: str) -> None:
    with pytest.raises(InvalidServerFile, match="x-concertino"):
        read(options)
