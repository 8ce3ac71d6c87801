"""file_access.py: a file that another user can change is refused."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from concertino.proxy import file_access
from concertino.proxy.server_file import read_server_file
from concertino.proxy.value_reader import InvalidServerFile


@pytest.fixture
def file(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir(mode=0o700)
    path = folder / "mcp.json"
    path.write_text('{"mcpServers": {"a": {"command": "b"}}}')
    path.chmod(0o644)
    return path


def refusal(path: Path) -> str:
    with pytest.raises(InvalidServerFile) as caught:
        read_server_file(path)
    return str(caught.value)


def test_a_file_that_only_its_owner_can_write_is_read(file: Path) -> None:
    assert read_server_file(file).servers[0].name == "a"


def test_a_file_that_every_user_can_write_is_refused(file: Path) -> None:
    file.chmod(0o646)
    assert refusal(file) == (
        f"{file}: expected a file that only you can change, got one that every user can write, "
        "who could run programs as you"
    )


@pytest.mark.parametrize("mode", [0o777, 0o703])
def test_a_folder_that_every_user_can_write_is_refused(file: Path, mode: int) -> None:
    file.parent.chmod(mode)
    assert refusal(file) == (
        f"{file}: expected a file that only you can change, but {file.parent} is a folder that "
        "every user can write, who could put another file in its place"
    )


def test_a_folder_further_up_counts_too(file: Path, tmp_path: Path) -> None:
    tmp_path.chmod(0o707)
    assert f"{tmp_path} is a folder that every user can write" in refusal(file)


def test_a_folder_like_tmp_is_no_danger(file: Path) -> None:
    file.parent.chmod(0o1777)
    assert read_server_file(file).servers


def test_the_folder_behind_a_link_counts(file: Path, tmp_path: Path) -> None:
    link = tmp_path / "link.json"
    link.symlink_to(file)
    file.parent.chmod(0o707)
    assert "is a folder that every user can write" in refusal(link)


def test_the_folder_of_a_link_counts_too(file: Path, tmp_path: Path) -> None:
    open_folder = tmp_path / "open"
    open_folder.mkdir()
    (open_folder / "inner.json").symlink_to(file)
    # Relative, and to another link.
    link = tmp_path / "link.json"
    link.symlink_to("open/inner.json")
    assert read_server_file(link).servers
    open_folder.chmod(0o777)
    for path in (link, open_folder / "inner.json"):
        assert f"{open_folder} is a folder that every user can write" in refusal(path)


def test_the_folder_of_a_link_to_a_folder_counts(file: Path, tmp_path: Path) -> None:
    # link -> open/hop -> project: whoever can write in `open` decides where `link` leads.
    open_folder = tmp_path / "open"
    open_folder.mkdir()
    (open_folder / "hop").symlink_to(file.parent)
    (tmp_path / "link").symlink_to("open/hop")
    path = tmp_path / "link" / "mcp.json"
    assert read_server_file(path).servers
    # The system follows the link before it goes up.
    up = tmp_path / "link" / ".." / "project" / "mcp.json"
    assert read_server_file(up).servers
    open_folder.chmod(0o777)
    for name in (path, up, tmp_path / "open" / ".." / "link" / "mcp.json"):
        assert f"{open_folder} is a folder that every user can write" in refusal(name)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives a link to another user")
def test_a_link_of_another_user_is_refused(file: Path, tmp_path: Path) -> None:
    link = tmp_path / "link.json"
    link.symlink_to(file)
    os.chown(link, 65534, 65534, follow_symlinks=False)
    assert f"{link} is a link of user 65534" in refusal(link)


def status(
    *,
    mode: int = 0o600,
    uid: int | None = None,
    gid: int = 0,
) -> os.stat_result:
    uid = os.geteuid() if uid is None else uid
    return os.stat_result((stat.S_IFREG | mode, 1, 1, 1, uid, gid, 0, 0, 0, 0))


def test_a_file_of_another_user_is_refused(file: Path) -> None:
    with pytest.raises(InvalidServerFile, match="got one of user 12345, who could"):
        file_access.check_writers(file, status(uid=12345))


def test_a_file_of_the_administrator_is_read(file: Path) -> None:
    file_access.check_writers(file, status(uid=0))


def test_a_file_that_a_group_can_write_is_refused(file: Path) -> None:
    with pytest.raises(InvalidServerFile, match="got one that group 54321 can write"):
        file_access.check_writers(file, status(mode=0o660, gid=54321))


@pytest.mark.parametrize(
    ("group", "members", "is_private"),
    [("me", [], True), ("me", ["me"], True), ("me", ["you"], False), ("staff", [], False)],
)
def test_the_private_group_of_the_user_is_no_danger(
    file: Path,
    monkeypatch: pytest.MonkeyPatch,
    group: str,
    members: list[str],
    is_private: bool,
) -> None:
    # The account database of the machine that runs the tests has other users.
    class User:
        pw_name = "me"

    class Group:
        gr_name = group
        gr_mem = members

    monkeypatch.setattr(file_access.pwd, "getpwuid", lambda uid: User)
    monkeypatch.setattr(file_access.grp, "getgrgid", lambda gid: Group)
    if is_private:
        file_access.check_writers(file, status(mode=0o664, gid=1000))
    else:
        with pytest.raises(InvalidServerFile):
            file_access.check_writers(file, status(mode=0o664, gid=1000))
