from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from concertino.user_files import user_folder, write_private_file


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
