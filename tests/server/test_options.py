"""Tests of options.py: help() and signatures show every option, with its type and meaning."""

from __future__ import annotations

import inspect
import pydoc
from collections.abc import Callable
from typing import Any

import pytest

from concertino.server import Operations, Server
from concertino.server.options import PromptOptions, ResourceOptions, ToolOptions

OPTIONS: list[tuple[Callable[..., Any], type]] = [
    (Server.tool, ToolOptions),
    (Server.add_tool, ToolOptions),
    (Operations.tool, ToolOptions),
    (Server.resource, ResourceOptions),
    (Server.add_resource, ResourceOptions),
    (Server.prompt, PromptOptions),
    (Server.add_prompt, PromptOptions),
]


@pytest.mark.parametrize(("function", "declaration"), OPTIONS)
def test_every_option_is_a_parameter_and_explained(
    function: Callable[..., Any], declaration: type
) -> None:
    parameters = inspect.signature(function).parameters
    explained = function.__doc__ or ""
    for name in declaration.__annotations__:
        assert parameters[name].kind is inspect.Parameter.KEYWORD_ONLY
        assert name in explained


def test_help_shows_an_option_with_its_type_and_default() -> None:
    text = pydoc.render_doc(Server.tool)
    assert "read_only: 'bool | None' = None" in text.replace('"', "'")
    assert "inline: 'bool' = False" in text.replace('"', "'")
    assert "timeout_s: seconds after which a call is cancelled." in text


def test_an_unknown_option_is_refused_by_its_name() -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'colour'"):
        Server("x").add_tool(lambda: "", name="f", colour="red")  # pyright: ignore[reportCallIssue]
