"""Tests of options.py: help() and signatures show every option, with its type and meaning."""

from __future__ import annotations

import inspect
import pydoc
import re
import subprocess
import sys
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
    assert "read_only: bool | None = None" in text
    assert "inline: bool = False" in text
    assert "timeout_s: seconds after which a call is cancelled." in text


def test_the_example_of_a_rate_in_help_is_accepted() -> None:
    example = re.search(r'rate_limit: how many calls [^"]*"([^"]+)"', pydoc.render_doc(Server.tool))
    assert example is not None
    Server("x").add_tool(lambda: "", name="f", rate_limit=example[1])


def test_help_on_a_server_shows_the_same_options_as_help_on_the_class() -> None:
    parameters = inspect.signature(Server("x").add_resource).parameters
    assert "mime_type" in parameters
    assert "mime_type: type of the content" in pydoc.render_doc(Server("x").resource)


def test_help_does_not_change_a_method_that_is_already_bound() -> None:
    server = Server("x")
    tool = server.tool
    help_text = pydoc.render_doc(tool)
    assert "method tool" in help_text
    assert help_text.count("Options:") == pydoc.render_doc(Server.tool).count("Options:") == 1
    assert tool(name="f")(lambda: "") is not None


def test_a_server_without_options_does_not_load_their_declarations() -> None:
    """They would take half a millisecond of every start."""
    source = (
        "import sys\n"
        "from concertino import Server\n"
        "server = Server('x')\n"
        "@server.tool\n"
        "async def f(a: int) -> str: return ''\n"
        "names = ('server.options', 'server.lifespan', 'runtime.threads')\n"
        "print([name for name in names if f'concertino.{name}' in sys.modules])\n"
        "@server.tool(title='G')\n"
        "async def g() -> str: return ''\n"
        "print(server._registered_tools.entries['g'].tool.title)\n"
    )
    run = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True)
    assert run.stdout.split("\n")[:2] == ["[]", "G"]


def test_an_unknown_option_is_refused_by_its_name() -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'colour'"):
        Server("x").add_tool(lambda: "", name="f", colour="red")  # pyright: ignore[reportCallIssue]
