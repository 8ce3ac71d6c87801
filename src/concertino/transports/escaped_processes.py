"""EscapedProcesses: finds and ends processes that have left the process group of a child.

Daemons are such processes, for example. They are found in three ways: by an environment variable
with a mark of the child (process_marks.py), which processes inherit; by their chain of parents, if
all of these still run; and by the child's stdout or stderr, if they have it open. Processes of
other users cannot be ended. On systems without /proc, such as macOS, none are found.

A process that has cleared the variable, whose parent has ended and that has closed stdout and
stderr is not found. Linux could report it to a "subreaper", prctl(2). But that is a setting for the
whole process, which may be a program of the user. It would become the parent of all orphans of its
children, and would have to reap them. A cgroup needs rights that few users have.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import time
from collections.abc import Iterable

from concertino.transports.process_marks import STARTED_BY, is_guardian, new_mark
from concertino.transports.process_table import (
    ProcessState,
    live_processes,
    program_name,
    read_children,
    read_environment,
    read_process_state,
    read_written_pipes,
)

__all__ = ["EscapedProcesses"]

log = logging.getLogger("concertino.process")

# How often, in seconds, to check whether the processes have ended. They are not children of this
# process, so no event reports their end.
CHECK_S = 0.01
# How many seconds to wait for processes that are just being started, whose environment is still
# empty. The wait is limited, because other processes may have an empty environment for ever.
SETTLE_S = 0.1


class EscapedProcesses:
    """Finds and ends processes that one child has started, and that have left its process group.

    Attributes:
    environment_value: the value that the child must get for the environment variable STARTED_BY.
        Processes that the child starts inherit it, and are found by it.
    """

    def __init__(self) -> None:
        mark = new_mark()
        above = os.environ.get(STARTED_BY)
        self.environment_value = f"{above},{mark}" if above else str(mark)
        self._mark_id = mark.id.encode()
        # Pairs (process id, start time). The start time shows whether the id was reused.
        self._descendants: set[tuple[int, int]] = set()
        # The ids of the processes of other users, each of which is reported once.
        self._foreign: set[int] = set()
        # The inode numbers of the child's stdout and stderr.
        self._pipes: set[int] = set()
        # The start time of the child.
        self._started_at = 0

    def note_child(self, pid: int, pipes: Iterable[int]) -> None:
        """Remember the child's stdout and stderr, to find processes that have them open.

        Also remembers when the child started.
        pid: the process id of the child.
        pipes: this process's descriptors of the pipes from the child's stdout and stderr.
        """
        self._pipes = {os.fstat(pipe).st_ino for pipe in pipes}
        state = read_process_state(pid)
        self._started_at = 0 if state is None else state.started_at

    def note_descendants(self, child: int) -> None:
        """Remember all descendants of the child, because some may have cleared STARTED_BY.

        Must be called while the child runs, because a process whose parent ends gets another
        parent.
        child: the process id of the child, which is also the id of its group.
        """
        descendants: set[tuple[int, int]] = set()
        unvisited = read_children(child)
        while unvisited:
            pid = unvisited.pop()
            state = read_process_state(pid)
            if state is None or not state.is_live or (pid, state.started_at) in descendants:
                continue
            # The guardian of a child that is a proxy ends by itself.
            if is_guardian(pid):
                continue
            descendants.add((pid, state.started_at))
            unvisited += read_children(pid)
        self._descendants = descendants

    async def end(
        self,
        child: int,
        number: signal.Signals,
        within_s: float,
    ) -> bool:
        """Send a signal to the processes that have left a child's group, and wait until they end.

        child: the process id of the child.
        number: the number of the signal.
        within_s: how many seconds to wait at most.
        Returns whether all processes that this process may signal have ended. Those of other users
        may still run; they are logged.
        """
        until = time.monotonic() + within_s
        settled_at = time.monotonic() + SETTLE_S
        while True:
            escaped, is_complete = self._find(child)
            live = self._signal(escaped, child, number)
            if not live and (is_complete or time.monotonic() >= settled_at):
                return True
            # Checked in each round, because a process may answer each signal with a new process.
            if time.monotonic() >= until:
                return False
            # When these processes have ended, search again, because they may have started more.
            await asyncio.sleep(CHECK_S)
            while live := list(filter(_is_live, live)):
                if time.monotonic() >= until:
                    return False
                await asyncio.sleep(CHECK_S)

    def kill(self, child: int) -> None:
        """Kill all processes of a child that have left its group, without waiting for their end.

        Blocks briefly.
        """
        settled_at = time.monotonic() + SETTLE_S
        is_complete = False
        while not is_complete and time.monotonic() < settled_at:
            found, is_complete = self._find(child)
            self._signal(found, child, signal.SIGKILL)
            if not is_complete:
                time.sleep(CHECK_S)

    def _find(self, child: int) -> tuple[list[int], bool]:
        """Return the ids of all escaped processes, and whether the search was complete.

        The search is not complete while the environment of a process cannot be read yet.
        """
        found: list[int] = []
        is_complete = True
        for pid, state in live_processes():
            # A process that has started before the child is not one of its descendants. This test
            # comes first, because reading an environment takes time.
            if state.group == child or state.started_at < self._started_at:
                continue
            environment = read_environment(pid)
            is_marked = environment is not None and self._mark_id in environment
            if (
                is_marked
                or (pid, state.started_at) in self._descendants
                or self._has_pipe(pid, state)
            ):
                found.append(pid)
            elif environment == b"":
                # The process is just being started.
                is_complete = False
        return found, is_complete

    def _has_pipe(self, pid: int, state: ProcessState) -> bool:
        """Return whether a process has the child's stdout or stderr open, to write to it."""
        # Forks of this process are not descendants of the child. One that was made while the child
        # was started may have the pipe open.
        if os.getpid() in (pid, state.parent):
            return False
        return bool(self._pipes & read_written_pipes(pid))

    def _signal(
        self,
        pids: list[int],
        child: int,
        number: signal.Signals,
    ) -> list[int]:
        """Send a signal to processes, and return the ids of the processes that have received it."""
        signalled: list[int] = []
        for pid in pids:
            text = "process %d (%s), started by process %d, has left its process group: %s"
            name = program_name(pid)
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                # The process has ended meanwhile.
                continue
            except PermissionError:
                if pid not in self._foreign:
                    self._foreign.add(pid)
                    reason = "it belongs to another user and is not ended"
                    log.warning(text, pid, name, child, reason)
            else:
                log.warning(text, pid, name, child, number.name)
                signalled.append(pid)
        return signalled


def _is_live(pid: int) -> bool:
    """Return whether a process has not ended."""
    state = read_process_state(pid)
    return state is not None and state.is_live
