from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from concertino.user_files import read_private_file, user_folder, write_private_file


def test_the_variable_sets_the_folder() -> None:
    assert user_folder("XDG_CACHE_HOME", ".cache", {"XDG_CACHE_HOME": "/srv/c"}) == Path("/srv/c")


@pytest.mark.parametrize("environment", [{}, {"XDG_CACHE_HOME": ""}, {"XDG_CACHE_HOME": "some"}])
def test_without_an_absolute_value_it_is_in_the_home_folder(environment: dict[str, str]) -> None:
    assert user_folder("XDG_CACHE_HOME", ".cache", environment) == Path.home() / ".cache"


def test_a_file_is_private_and_replaces_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_text("old")
    path.chmod(0o644)
    write_private_file(path, b"new")
    assert path.read_bytes() == b"new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert os.listdir(tmp_path) == ["key"]


def test_nothing_is_left_where_it_cannot_be_written(tmp_path: Path) -> None:
    # A folder cannot be replaced by a file.
    path = tmp_path / "key"
    path.mkdir()
    with pytest.raises(OSError, match="key"):
        write_private_file(path, b"new")
    assert os.listdir(tmp_path) == ["key"]


def test_a_private_file_is_read_only_if_nobody_else_can_have_changed_it(tmp_path: Path) -> None:
    path = tmp_path / "file"
    assert read_private_file(path, 4, 0o077, "a private file") is None
    path.write_bytes(b"1234")
    path.chmod(0o600)
    assert read_private_file(path, 4, 0o077, "a private file") == b"1234"
    with pytest.raises(OSError, match="expected at most 3 bytes"):
        read_private_file(path, 3, 0o077, "a private file")
    path.chmod(0o644)
    assert read_private_file(path, 4, 0o022, "a file of yours") == b"1234"
    with pytest.raises(PermissionError, match="expected a private file"):
        read_private_file(path, 4, 0o077, "a private file")
    link = tmp_path / "link"
    link.symlink_to(path)
    with pytest.raises(OSError, match="Too many levels of symbolic links"):
        read_private_file(link, 4, 0, "a private file")
