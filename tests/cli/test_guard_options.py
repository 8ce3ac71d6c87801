"""cli/guards.py: the options that put guards around what a command serves."""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Callable

import pytest

from concertino import Server
from concertino.cli import bridge, serve
from concertino.cli.guards import make_guard


@pytest.mark.parametrize("add_arguments", [bridge.add_arguments, serve.add_arguments])
def test_telemetry_is_put_around_what_every_command_serves(
    add_arguments: Callable[[ArgumentParser], None],
) -> None:
    pytest.importorskip("opentelemetry")
    parser = ArgumentParser()
    add_arguments(parser)
    guard = make_guard(parser.parse_args(["--otel"]))
    assert guard is not None
    assert type(guard(Server("inner"))).__name__ == "Telemetry"


def test_without_an_option_there_is_no_guard() -> None:
    parser = ArgumentParser()
    serve.add_arguments(parser)
    assert make_guard(parser.parse_args([])) is None
