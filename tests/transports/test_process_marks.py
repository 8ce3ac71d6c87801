"""Marks in the environment of real programs: who has started them, and whether that still runs."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager

import pytest

from concertino.transports.process_marks import STARTED_BY, Mark, marks_of, new_mark, pid_namespace

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="/proc of Linux")
NAMESPACE = os.stat("/proc/self/ns/pid").st_ino


@contextmanager
def a_cat(environment: dict[str, str]) -> Generator[int]:
    process = subprocess.Popen(
        ["cat"], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(b"\n")
        process.stdin.flush()
        process.stdout.read(1)
        yield process.pid
    finally:
        process.kill()
        process.communicate()


def test_a_mark_names_this_process_while_it_runs() -> None:
    mark = new_mark()
    assert (mark.pid, mark.namespace) == (os.getpid(), NAMESPACE)
    assert not mark.is_orphaned()
    assert new_mark().id != mark.id


def test_the_marks_of_a_program_are_read_back_with_the_outermost_first() -> None:
    outer, inner = new_mark(), new_mark()
    with a_cat({STARTED_BY: f"{outer},{inner}", "PATH": os.environ["PATH"]}) as pid:
        assert marks_of(pid) == [outer, inner]


@pytest.mark.parametrize("value", ["", "outer", "x" * 24, f"{'a' * 24}-1-2", f"{'a' * 24}-1-2-x"])
def test_what_is_no_mark_is_left_out(value: str) -> None:
    with a_cat({STARTED_BY: value, "PATH": os.environ["PATH"]}) as pid:
        assert marks_of(pid) == []


def test_a_program_without_marks_and_one_that_has_ended_have_none() -> None:
    with a_cat({"PATH": os.environ["PATH"], "X": f"{STARTED_BY}={new_mark()}"}) as pid:
        assert marks_of(pid) == []
    assert marks_of(2**22) == []


@pytest.mark.parametrize(
    ("pid", "start", "is_orphaned"),
    [("own", 0, False), ("own", -1, True), ("none", 0, True)],
    ids=["it runs", "its id belongs to another process", "it has ended"],
)
def test_a_mark_is_orphaned_when_the_process_it_names_has_ended(
    pid: str, start: int, is_orphaned: bool
) -> None:
    mark = new_mark()
    mark = mark._replace(
        pid=mark.pid if pid == "own" else 2**22, started_at=mark.started_at + start
    )
    assert mark.is_orphaned() is is_orphaned


@pytest.mark.parametrize("namespace", [0, NAMESPACE + 1], ids=["unknown", "another"])
def test_of_a_process_in_another_namespace_nothing_is_known(namespace: int) -> None:
    assert not Mark("a" * 24, 2**22, 1, namespace).is_orphaned()


def test_the_namespace_of_a_process_is_that_of_proc() -> None:
    assert pid_namespace() == pid_namespace(os.getpid()) == NAMESPACE
    assert pid_namespace(2**22) == 0
