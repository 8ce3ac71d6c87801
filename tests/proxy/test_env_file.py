"""env_file.py: files of variables."""

from __future__ import annotations

from pathlib import Path

import pytest

from concertino.proxy.env_file import read_env_file
from concertino.proxy.value_reader import InvalidServerFile


def test_variables_have_these_values(tmp_path: Path) -> None:
    path = tmp_path / ".env"
    path.write_text(
        "\ufeff# comment\n\nA=1\nexport B = two words # comment\nC='it''s'\n".replace("''", "")
        + 'D="a\\n\\"b\\" # no comment" # comment\nE=\nF=a#b\nG=${A}\n  H=x  \nA=2\n'
    )
    assert read_env_file(path) == {
        "A": "2",
        "B": "two words",
        "C": "its",
        "D": 'a\n"b" # no comment',
        "E": "",
        "F": "a#b",
        "G": "${A}",
        "H": "x",
    }


def test_only_newlines_end_a_line(tmp_path: Path) -> None:
    path = tmp_path / ".env"
    # What str.splitlines() also takes for ends of lines belongs to the value.
    path.write_bytes("A=one\u2028two\x0bthree\x0cfour\x85five\r\nB=2\r\n".encode())
    assert read_env_file(path) == {"A": "one\u2028two\x0bthree\x0cfour\x85five", "B": "2"}


@pytest.mark.parametrize("line", ["A", "=1", "A B=1", "A='x", 'A="x\\"', "A='x' y", "A=\0"])
def test_any_other_line_is_an_error_with_its_number(tmp_path: Path, line: str) -> None:
    path = tmp_path / ".env"
    path.write_text(f"X=1\n{line}\n")
    with pytest.raises(InvalidServerFile) as caught:
        read_env_file(path)
    assert str(caught.value) == f"{path}:2: expected NAME=value"


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidServerFile, match="none: No such file or directory"):
        read_env_file(tmp_path / "none")
    (tmp_path / "large").write_bytes(b"#" * 2**18 + b"\n")
    with pytest.raises(InvalidServerFile, match="expected at most 262144 bytes"):
        read_env_file(tmp_path / "large")
    (tmp_path / "latin").write_bytes(b"A=\xe9")
    with pytest.raises(InvalidServerFile, match="expected UTF-8"):
        read_env_file(tmp_path / "latin")
