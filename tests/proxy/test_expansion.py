"""expansion.py: what `${...}` stands for, and errors with the place of the text."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from concertino.logs.redact import redactor
from concertino.proxy.expansion import Expander
from concertino.proxy.input_entries import InputEntry
from concertino.proxy.secret_sources import SecretReference
from concertino.proxy.server_file import ServerFile
from concertino.proxy.value_reader import InvalidServerFile, Template

ENVIRONMENT = {
    "HOME": "/home/me",
    "TOKEN": "t0ken",
    "EMPTY": "",
    "CONCERTINO_INPUT_MY_KEY": "env",
    "CONCERTINO_INPUT_MY_NAME": "name",
}
FILE = ServerFile(
    Path("/project/mcp.json"),
    Path("/project"),
    inputs={
        "region": InputEntry("region", "Region", "eu", ("eu", "us")),
        "my-name": InputEntry("my-name", "The name"),
        "my-key": InputEntry("my-key", "The key", is_secret=True),
        "other": InputEntry("other", "Another key", is_secret=True),
        "pass": InputEntry("pass", default="secret:file:x"),
    },
)


def expander(inputs: Mapping[str, str] | None = None) -> Expander:
    return Expander(FILE, ENVIRONMENT, inputs or {})


@pytest.mark.parametrize(
    ("text", "expanded"),
    [
        ("plain", "plain"),
        ("", ""),
        ("${HOME}/x/${TOKEN}", "/home/me/x/t0ken"),
        ("${env:HOME}", "/home/me"),
        ("${EMPTY}", ""),
        ("${EMPTY:-x}", "x"),
        ("${NONE:-}", ""),
        ("${NONE:-a b:-c}", "a b:-c"),
        ("${env:NONE:-x}", "x"),
        ("${NONE:-${TOKEN}}!", "t0ken!"),
        ("${NONE:-${NEITHER:-deep}}", "deep"),
        ("$HOME $$ $(x) {y}", "$HOME $$ $(x) {y}"),
        ("a } b", "a } b"),
        ("${workspaceFolder}/a", "/project/a"),
        ("${workspaceFolderBasename}", "project"),
        ("a${/}b${pathSeparator}c", f"a{os.sep}b{os.sep}c"),
        ("${input:region}", "eu"),
        ("${input:my-name}", "name"),
    ],
)
def test_a_text_is_replaced(text: str, expanded: str) -> None:
    assert expander().expand_text(Template(text), "a.command") == expanded


def test_a_value_from_the_environment_is_not_replaced_again() -> None:
    values = Expander(FILE, {"A": "${B} secret:x"}, {})
    assert values.expand_parts(Template("${A}"), "a.env.A") == ("${B} secret:x",)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            "x${NONE}",
            "the variable NONE is not set; set it, or write ${NONE:-default}",
        ),
        (
            "${NONE:-${NEITHER}}",
            "the variable NEITHER is not set; set it, or write ${NEITHER:-defaul",
        ),
        ("x${HOME", "expected '}' after '${HOME'"),
        ("${A:-${B}", "expected '}' after '${A:-${B}'"),
        ("${}", "${}: expected ${VARIABLE}, ${VARIABLE:-default}, "),
        ("${config:x}", "${config:x}: expected ${VARIABLE}, "),
        ("${command:x}", "${command:x}: expected ${VARIABLE}, "),
        (
            "${input:other}",
            "the input other (Another key) has no value; give it with --input other=secret:NAME or "
            "in the variable CONCERTINO_INPUT_OTHER",
        ),
        (
            "${input:undeclared.x}",
            "the input undeclared.x has no value; give it with --input undeclared.x=VALUE or in "
            "the variable CONCERTINO_INPUT_UNDECLARED_X",
        ),
        ("secret:github", "secret:github: expected secrets in env and headers only"),
        ("--key=${secret:github}", "secret:github: expected secrets in env and headers only"),
        ("${input:pass}", "secret:file:x: expected secrets in env and headers only"),
        ("${secret:}", "expected secret:NAME with letters"),
    ],
)
def test_what_cannot_be_replaced_is_an_error_with_its_place(text: str, problem: str) -> None:
    with pytest.raises(InvalidServerFile) as caught:
        expander().expand_text(Template(text, 7, 3), "a.args[0]")
    assert str(caught.value).startswith(f"/project/mcp.json:7:3: a.args[0]: {problem}")


def test_a_secret_is_a_part_of_its_own() -> None:
    github, file = SecretReference("name", "github"), SecretReference("file", "x")
    of = expander({"other": "secret:github"}).expand_parts
    assert of(Template("secret:github"), "env") == (github,)
    assert of(Template("Bearer ${secret:github}!"), "env") == ("Bearer ", github, "!")
    assert of(Template("${input:other}"), "env") == (github,)
    assert of(Template("${input:pass}"), "env") == (file,)
    assert of(Template("${NONE:-${secret:github}}"), "env") == (github,)
    # Only at the beginning: a text that mentions the word is a text.
    assert of(Template("a secret:github"), "env") == ("a secret:github",)


def test_a_given_input_goes_before_the_environment_and_the_default() -> None:
    given = expander({"my-name": "name-of-this-test", "region": "us"})
    assert (
        given.expand_text(Template("${input:my-name} ${input:region}"), "a")
        == "name-of-this-test us"
    )


def test_an_input_has_one_of_its_choices() -> None:
    with pytest.raises(InvalidServerFile, match=r"the input region: expected one of eu, us$"):
        expander({"region": "mars"}).expand_text(Template("${input:region}"), "a")


def test_the_value_of_a_secret_input_is_hidden_in_logs() -> None:
    expander({"my-key": "correct horse"}).expand_parts(Template("${input:my-key}"), "a")
    assert "correct horse" not in redactor().text("battery correct horse staple")


def test_a_password_does_not_get_into_arguments_wherever_its_value_comes_from() -> None:
    template = Template("--key=${input:my-key}", 3, 4)
    with pytest.raises(
        InvalidServerFile,
        match=r":3:4: a\.args\[0\]: the input my-key, which is a password: expected secrets",
    ):
        expander().expand_text(template, "a.args[0]")
    assert expander().expand_parts(template, "a.env.KEY") == ("--key=", "env")
