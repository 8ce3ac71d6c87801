"""Which files count, and what is a change of them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from concertino.proxy import source_files
from concertino.proxy.source_files import SourceFiles, forget_bytecode


def write(path: Path, text: str = "") -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return str(path)


def test_a_file_that_was_saved_added_or_removed_has_changed(tmp_path: Path) -> None:
    one, other = tmp_path / "one.py", tmp_path / "sub" / "other.py"
    write(one, "a")
    files = SourceFiles([tmp_path], [], (".py",))
    assert not files.have_changed()

    write(one, "ab")
    assert files.have_changed()
    assert files.accept() == [str(one)]
    assert not files.have_changed()
    write(other)
    assert files.accept() == [str(other)]
    one.unlink()
    assert files.accept() == [str(one)]
    assert files.accept() == []


def test_a_save_that_keeps_the_size_is_a_change(tmp_path: Path) -> None:
    path = tmp_path / "one.py"
    write(path, "a")
    os.utime(path, ns=(0, 10**9))
    files = SourceFiles([tmp_path], [], (".py",))
    write(path, "b")
    os.utime(path, ns=(0, 10**9 + 1))
    assert files.have_changed()


def test_an_editor_that_puts_another_file_in_its_place_makes_a_change(tmp_path: Path) -> None:
    path = tmp_path / "one.py"
    write(path, "a")
    os.utime(path, ns=(0, 10**9))
    files = SourceFiles([tmp_path], [], (".py",))
    write(tmp_path / "new", "a")
    os.utime(tmp_path / "new", ns=(0, 10**9))
    (tmp_path / "new").replace(path)
    assert files.have_changed()


@pytest.mark.parametrize(
    "name",
    ["notes.md", ".hidden.py", "__pycache__/a.py", ".git/a.py", "node_modules/a.py", "env/a.py"],
)
def test_other_files_do_not_count_in_a_folder_of_sources(tmp_path: Path, name: str) -> None:
    write(tmp_path / "env" / "pyvenv.cfg")
    files = SourceFiles([tmp_path], [], (".py",))
    write(tmp_path / name)
    assert not files.have_changed()


def test_all_files_count_at_a_path_that_was_named(tmp_path: Path) -> None:
    named = tmp_path / "settings.toml"
    files = SourceFiles([], [named, tmp_path / "data"], ())
    write(named)
    assert files.accept() == [str(named)]
    path = write(tmp_path / "data" / "notes.md")
    assert files.accept() == [path]


def test_more_files_than_can_be_watched_are_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source_files, "MAX_FILES", 2)
    for name in "abc":
        write(tmp_path / f"{name}.py")
    assert not SourceFiles([tmp_path], [], (".py",)).is_complete
    (tmp_path / "c.py").unlink()
    assert SourceFiles([tmp_path], [], (".py",)).is_complete


def test_compiled_files_of_a_source_are_removed_and_no_others(tmp_path: Path) -> None:
    folder = tmp_path / "__pycache__"
    gone = [folder / "one.cpython-311.pyc", folder / "one.cpython-313.opt-1.pyc"]
    stays = folder / "one_more.cpython-311.pyc"
    for path in (*gone, stays):
        write(path)
    forget_bytecode([str(tmp_path / "one.py"), str(tmp_path / "no.txt"), "/nonexistent/x.py"])
    assert [path.exists() for path in (*gone, stays)] == [False, False, True]
