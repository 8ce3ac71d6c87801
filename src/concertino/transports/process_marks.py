"""Marks in the environment of the programs that concertino starts. Their children inherit them.

    CONCERTINO_STARTED_BY=4f0c...e1-4711-812345-4026531836

A mark names the process that has started a program. If that process is killed, its programs can be
found by their marks. The guardian, a process that waits for this (guardian.py), searches for them,
and so does the command `concertino reap`.
"""

from __future__ import annotations

import os
import re
from typing import NamedTuple

from concertino.transports.process_table import (
    is_process,
    read_environment,
    read_process_state,
)

__all__ = [
    "GUARDIAN",
    "STARTED_BY",
    "Mark",
    "is_guardian",
    "marks_of",
    "new_mark",
    "pid_namespace",
]

# The environment variable. A program that concertino has started may itself use concertino to start
# programs, each of which gets one more mark. The value has all marks, separated by commas, with the
# oldest mark first.
STARTED_BY = "CONCERTINO_STARTED_BY"
# The environment variable of a guardian, which is not one of the programs.
GUARDIAN = "CONCERTINO_GUARDIAN"
MARK = r"([0-9a-f]{24})-(\d{1,10})-(\d{1,20})-(\d{1,20})"


class Mark(NamedTuple):
    """Identifies a started program, and the process that has started it.

    concertino adds a mark, as a string, to the environment variable STARTED_BY of each program that
    it starts. If the process is killed, the program and its children can be found by the mark.

    id: 24 random hexadecimal digits, which identify the program.
    pid, started_at: the id of the process that has started the program, and the start time of this
        process in clock ticks since the boot.
    namespace: the pid namespace in which `pid` is valid; 0 if the system has none.
    """

    id: str
    pid: int
    started_at: int
    namespace: int

    def __str__(self) -> str:
        return f"{self.id}{self.owner_suffix}"

    @property
    def owner_suffix(self) -> str:
        """Return the end of the mark, which all marks of the same process have in common."""
        return f"-{self.pid}-{self.started_at}-{self.namespace}"

    def is_orphaned(self) -> bool:
        """Return whether the process that has started the program has ended.

        Returns False if this is not known, because that process is in another pid namespace, or
        belongs to another user in a /proc that hides such processes (`hidepid`).
        """
        if not self.namespace or self.namespace != pid_namespace():
            return False
        state = read_process_state(self.pid)
        if state is None:
            return not is_process(self.pid)
        return not state.is_live or state.started_at != self.started_at


def new_mark() -> Mark:
    """Return a new mark for a program that this process is about to start."""
    pid = os.getpid()
    state = read_process_state(pid)
    started_at = 0 if state is None else state.started_at
    return Mark(os.urandom(12).hex(), pid, started_at, pid_namespace())


def marks_of(pid: int) -> list[Mark]:
    """Return the marks of a process, in the order of the variable STARTED_BY.

    Returns [] for a process without marks, of another user, or in another pid namespace.
    """
    value = _read_variable(pid, STARTED_BY)
    if not value or pid_namespace(pid) != pid_namespace():
        return []
    marks: list[Mark] = []
    for word in value.decode("ascii", "replace").split(","):
        match = re.fullmatch(MARK, word)
        if match is not None:
            marks.append(Mark(match[1], int(match[2]), int(match[3]), int(match[4])))
    return marks


def is_guardian(pid: int) -> bool:
    """Return whether a process is a guardian (guardian.py), which ends by itself."""
    return _read_variable(pid, GUARDIAN) is not None


def _read_variable(pid: int, name: str) -> bytes | None:
    """Return an environment variable of a process; None if it is not known."""
    prefix = f"{name}=".encode()
    for item in (read_environment(pid) or b"").split(b"\0"):
        if item.startswith(prefix):
            return item.removeprefix(prefix)
    return None


def pid_namespace(pid: int | None = None) -> int:
    """Return the number of a process's pid namespace; 0 if it has none or it cannot be read.

    pid: the id of the process; None for this process.
    """
    try:
        return os.stat(f"/proc/{'self' if pid is None else pid}/ns/pid").st_ino
    except OSError:
        return 0
