from __future__ import annotations

import sysconfig
from pathlib import Path

import pytest

from concertino.cli.hanging_start import describe_place

STDLIB = sysconfig.get_path("stdlib")
# As Python 3.11 to 3.14 write it.
STACK = """loading
Fatal Python error: Aborted

Thread 0x00007f0ac2ffd6c0 (most recent call first):
  File "{folder}/other.py", line 1 in wait

Current thread 0x00007f101b9c7b80 (most recent call first):
  File "{stdlib}/ssl.py", line 1311 in do_handshake
  File "{folder}/.venv/lib/python3/site-packages/requests/api.py", line 59 in request
  File "{folder}/weather/load.py", line 3 in stations
  File "{folder}/weather.py", line 4 in <module>

Extension modules: msgspec._core (total: 1)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_innermost_frame_of_the_project_counts(folder: Path) -> None:
    stack = STACK.format(folder=folder, stdlib=STDLIB)
    assert describe_place(stack) == "it stands at weather/load.py:3, in stations()"


def test_a_line_of_a_module_has_no_function(folder: Path) -> None:
    lines = STACK.format(folder=folder, stdlib=STDLIB).splitlines(keepends=True)
    stack = "".join(line for line in lines if "stations" not in line)
    assert describe_place(stack) == "it stands at weather.py:4"


def test_without_a_frame_of_the_project_the_innermost_one_counts(folder: Path) -> None:
    stack = STACK.format(folder="/elsewhere", stdlib=STDLIB)
    assert describe_place(stack) == f"it stands at {STDLIB}/ssl.py:1311, in do_handshake()"


def test_the_last_of_several_processes_counts(folder: Path) -> None:
    first = STACK.format(folder="/elsewhere", stdlib=STDLIB)
    second = STACK.format(folder=folder, stdlib=STDLIB)
    assert describe_place(first + second) == "it stands at weather/load.py:3, in stations()"


@pytest.mark.parametrize(
    "stderr",
    [
        "",
        "Current thread 0x1 (most recent call first):\n",
        "Fatal Python error: Aborted\n",
        "Fatal Python error: Aborted\n\nCurrent thread 0x1 (most recent call first):\n  <no frame>",
    ],
)
def test_no_stack_gives_no_place(stderr: str) -> None:
    assert describe_place(stderr) == ""
