"""server_launch.py: the program, address, variables and headers of a server, complete."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import pytest
from loops import on_a_loop

from concertino.client.server_parameters import HttpParameters, ServerParameters
from concertino.errors import ConcertinoError
from concertino.logs.redact import redactor
from concertino.proxy.expansion import Expander
from concertino.proxy.server_file import parse_server_file
from concertino.proxy.server_launch import LaunchTarget, expand_entry, read_launch_secrets
from concertino.proxy.value_reader import InvalidServerFile
from concertino.transports.process import INHERITED


async def launch(
    folder: Path, members: str, env_file: Mapping[str, str] | None = None
) -> LaunchTarget:
    text = f'{{"mcpServers": {{"a": {{{members}}}}}}}'
    file = parse_server_file(text.encode(), folder / "mcp.json")
    expander = Expander(file, {"WHO": "me"}, {})
    return await read_launch_secrets(expand_entry(file.servers[0], file, expander, env_file or {}))


async def program(folder: Path, members: str) -> ServerParameters:
    target = await launch(folder, members)
    assert isinstance(target, ServerParameters)
    return target


@on_a_loop
async def test_a_program_runs_in_the_folder_of_the_project_with_few_variables(
    tmp_path: Path,
) -> None:
    target = await program(
        tmp_path,
        '"command": "npx", "args": ["${WHO}", 1], "env": {"A": "${WHO}!"},'
        '"x-concertino": {"inherit": ["HTTPS_PROXY"]}',
    )
    assert (target.command, list(target.args)) == ("npx", ["me", "1"])
    assert target.env == {"A": "me!"}
    assert Path(os.fspath(target.cwd or "")) == tmp_path
    assert list(target.inherit) == [*INHERITED, "HTTPS_PROXY"]


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("npx", "npx"),
        ("./serve", "{folder}/serve"),
        ("bin/serve", "{folder}/bin/serve"),
        ("/bin/sh", "/bin/sh"),
        ("~/serve", "{home}/serve"),
    ],
)
@on_a_loop
async def test_the_path_of_a_program_begins_in_the_folder_of_the_project(
    tmp_path: Path, command: str, expected: str
) -> None:
    target = await program(tmp_path, f'"command": "{command}"')
    assert target.command == expected.format(folder=tmp_path, home=Path.home())


@on_a_loop
async def test_the_working_directory_is_relative_to_the_project(tmp_path: Path) -> None:
    target = await program(tmp_path, '"command": "x", "cwd": "sub/${WHO}"')
    assert target.cwd == str(tmp_path / "sub" / "me")


@on_a_loop
async def test_variables_of_the_file_of_variables_are_beneath_the_entrys_own(
    tmp_path: Path,
) -> None:
    variables = {"A": "file", "B": "file ${WHO}"}
    found = await launch(tmp_path, '"command": "x", "env": {"A": "entry"}', variables)
    assert isinstance(found, ServerParameters)
    assert found.env == {"A": "entry", "B": "file ${WHO}"}


@on_a_loop
async def test_secrets_are_read_and_hidden_in_logs(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("opensesame\n")
    (tmp_path / "token").chmod(0o600)
    found = await launch(
        tmp_path,
        '"url": "https://h/mcp", "headers": {"Authorization": "Bearer ${secret:file:token}"}',
    )
    assert isinstance(found, HttpParameters)
    assert found.url == "https://h/mcp"
    assert found.headers == {"Authorization": "Bearer opensesame"}
    assert "opensesame" not in repr(found)
    assert "opensesame" not in redactor().text("it said opensesame")


@on_a_loop
async def test_a_secret_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConcertinoError, match="secret:file:none: "):
        await launch(tmp_path, '"command": "x", "env": {"A": "secret:file:none"}')


@on_a_loop
async def test_a_program_without_a_name_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InvalidServerFile, match=r"a\.command: expected a program"):
        await launch(tmp_path, '"command": "${NONE:-}"')
