"""claude_code_file.py: the servers of ~/.claude.json for the project of a folder."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from concertino.proxy.claude_code_file import read_server_lists, split_project
from concertino.proxy.server_file import ServerFile, read_server_file
from concertino.proxy.value_reader import InvalidServerFile

# As Claude Code writes it, with what it keeps beside the servers.
TEXT = """{
  "numStartups": 12,
  "tipsHistory": {"{}": 1, "new-user": 3},
  "mcpServers": {
    "notes": {
      "type": "stdio",
      "command": "notes",
      "args": [],
      "env": {}
    },
    "mail": {"command": "mail"}
  },
  "projects": {
    "FOLDER/app": {
      "allowedTools": [],
      "history": [{"display": "\\"mcpServers\\": {}"}],
      "mcpContextUris": [],
      "mcpServers": {
        "notes": {"command": "app-notes", "bad key": 1},
        "db": {"command": "db"}
      },
      "enabledMcpjsonServers": [],
      "disabledMcpServers": ["mail", "gone"],
      "hasTrustDialogAccepted": true
    },
    "FOLDER/app/deep": {"mcpServers": {}},
    "FOLDER/other": {"allowedTools": []}
  }
}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("app/src", "app/deep", "other", "elsewhere"):
        (tmp_path / name).mkdir(parents=True)
    write(tmp_path, TEXT.replace("FOLDER", str(tmp_path)))
    monkeypatch.chdir(tmp_path / "elsewhere")
    return tmp_path


def write(folder: Path, text: str) -> Path:
    path = folder / ".claude.json"
    path.write_text(text)
    path.chmod(0o600)
    return path


def read(folder: Path, project: str | None = None) -> ServerFile:
    path = f"{folder}/.claude.json"
    return read_server_file(path if project is None else f"{path}#{project}")


def commands(file: ServerFile) -> dict[str, str]:
    return {
        entry.name: entry.command.text
        for entry in file.servers
        if entry.is_enabled and entry.command is not None
    }


def test_a_project_has_its_own_servers_and_those_of_the_user(folder: Path) -> None:
    file = read(folder, f"{folder}/app")
    # `mail` is switched off in this project, and the project's own `notes` goes before the user's.
    assert commands(file) == {"notes": "app-notes", "db": "db"}
    assert (file.project, file.workspace) == (f"{folder}/app", folder / "app")
    assert file.approval_path == Path(f"{folder.resolve()}/.claude.json#{folder}/app")


@pytest.mark.parametrize(
    ("current", "project"),
    [("app", "app"), ("app/src", "app"), ("app/deep", "app/deep"), ("other", "other")],
)
def test_without_a_project_it_is_the_nearest_above_the_current_folder(
    folder: Path, monkeypatch: pytest.MonkeyPatch, current: str, project: str
) -> None:
    monkeypatch.chdir(folder / current)
    assert read(folder).project == f"{folder}/{project}"


def test_a_link_to_a_project_is_the_project(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "link").symlink_to(folder / "app")
    monkeypatch.chdir(folder / "link")
    assert read(folder).project == f"{folder}/app"
    assert read(folder, f"{folder}/link").project == f"{folder}/app"
    assert read(folder, ".").project == f"{folder}/app"


def test_outside_of_all_projects_there_are_the_users_servers_and_a_warning(folder: Path) -> None:
    file = read(folder)
    assert commands(file) == {"notes": "notes", "mail": "mail"}
    assert file.warnings == (
        f"{folder}/.claude.json: {folder}/elsewhere is in none of the projects, so only the user's "
        f"own servers are served; projects with servers: {folder}/app",
    )
    assert file.approval_path == folder.resolve() / ".claude.json"


def test_an_unknown_project_is_an_error_that_names_those_with_servers(folder: Path) -> None:
    with pytest.raises(InvalidServerFile) as caught:
        read(folder, f"{folder}/elsewhere")
    assert str(caught.value) == (
        f"{folder}/.claude.json: {folder}/elsewhere: no such project; projects with servers: "
        f"{folder}/app"
    )


def test_mistakes_and_warnings_name_their_places_in_the_file(folder: Path) -> None:
    assert read(folder, f"{folder}/app").warnings == (
        f"{folder}/.claude.json:19:43: mcpServers.notes.bad key: not known, and ignored",
    )
    text = TEXT.replace("FOLDER", str(folder))
    write(folder, text.replace('"command": "db"', '"command": 5'))
    with pytest.raises(InvalidServerFile, match=r"\.claude\.json:20:27: mcpServers\.db\.command"):
        read(folder, f"{folder}/app")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('{"projects": {}', r"\.claude\.json:1:16: expected JSON"),
        ("[]", r"expected the file of Claude Code"),
        ('{"mcpServers": [], "projects": {"/a": {}}}', r":1:16: mcpServers: expected an object"),
        ('{"projects": {"/a": {"mcpServers": {"a": {}, "a": {}}}}}', r":1:46: expected JSON"),
        ('{"projects": {"/a": 5}}', r"/a: no such project; no project has servers"),
        ('{"projects": 5}', r"expected the file of Claude Code"),
        ("\ufffe", r"\.claude\.json:1:1: expected JSON"),
    ],
)
def test_a_broken_file_is_an_error(folder: Path, text: str, problem: str) -> None:
    write(folder, text)
    with pytest.raises(InvalidServerFile, match=problem):
        read(folder, "/a")


@pytest.mark.parametrize(
    "data",
    [
        b'{\n"projects": {"/a\xff": {}}}',
        b'{"projects": {"/a": {\n"mcpServers": {"x": {"command": "\xff"}}}}}',
        b'{"projects": {"/a": {}},\n"mcpServers": {"\xff": {"command": "x"}}}',
    ],
    ids=["project", "command", "server"],
)
def test_bytes_that_are_not_utf_8_are_named_with_their_line(folder: Path, data: bytes) -> None:
    write(folder, "").write_bytes(data)
    with pytest.raises(InvalidServerFile, match=r"\.claude\.json:2: expected UTF-8"):
        read(folder, "/a")


def test_another_project_that_is_not_utf_8_hides_none(folder: Path) -> None:
    data = b'{"projects": {"/b": {"disabledMcpServers": ["\xff"]}, "/a": {"mcpServers": {}}}}'
    write(folder, "").write_bytes(data)
    assert commands(read(folder, "/a")) == {}


def test_a_file_that_others_can_write_is_refused(folder: Path) -> None:
    (folder / ".claude.json").chmod(0o666)
    with pytest.raises(InvalidServerFile, match="others"):
        read(folder)


def test_a_file_of_megabytes_is_read(folder: Path) -> None:
    history = '"' + "x" * 3_000_000 + '"'
    write(folder, f'{{"history": {history}, "mcpServers": {{"a": {{"command": "b"}}}}}}')
    assert commands(read(folder)) == {"a": "b"}


def test_a_file_without_servers_has_none(folder: Path) -> None:
    write(folder, "{}")
    file = read(folder)
    assert file.servers == ()
    assert "no project has servers of its own" in file.warnings[0]


def test_equal_texts_before_a_list_do_not_move_its_place() -> None:
    data = b'{"a": {},\n "mcpServers": {}, "projects": {"{}": {"b": {},\n"mcpServers": {}}}}'
    user, project = read_server_lists(data)
    assert (user.line, user.column) == (2, 16)
    assert (project.folder, project.line, project.column) == ("{}", 3, 15)


@pytest.mark.parametrize(
    ("target", "parts"),
    [
        ("/home/me/.claude.json", ("/home/me/.claude.json", None)),
        ("/home/me/.claude.json#/work", ("/home/me/.claude.json", "/work")),
        (f"mcp.json#{os.sep}a", ("mcp.json#/a", None)),
    ],
)
def test_only_the_name_of_this_file_takes_a_project(
    target: str, parts: tuple[str, str | None]
) -> None:
    assert split_project(target) == parts


def test_a_project_of_another_shape_hides_no_other_one(folder: Path) -> None:
    own = '{"mcpServers": {"a": {"command": "b"}}}'
    write(folder, f'{{"projects": {{"/x": 1, "/y": {{"disabledMcpServers": 5}}, "/z": {own}}}}}')
    assert commands(read(folder, "/z")) == {"a": "b"}


def test_a_projects_server_is_used_before_the_users_wherever_it_stands_in_the_file(
    folder: Path,
) -> None:
    own, users = (f'{{"a": {{"command": "{name}"}}}}' for name in ("own", "users"))
    projects = f'"projects": {{"/x": {{"mcpServers": {own}}}}}'
    write(folder, f'{{{projects}, "mcpServers": {users}}}')
    assert commands(read(folder, "/x")) == {"a": "own"}
