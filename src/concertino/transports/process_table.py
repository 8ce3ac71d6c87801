"""Reads the machine's processes from /proc, and sends signals that reach no wrong process.

A process is identified by its id and its start time, because the system reuses ids. On systems
without /proc, such as macOS, no processes are found.
"""

from __future__ import annotations

import os
import signal
import stat
import time
from collections.abc import Iterator
from typing import NamedTuple

__all__ = [
    "PROC",
    "ProcessState",
    "age_s",
    "is_process",
    "live_processes",
    "program_name",
    "read_arguments",
    "read_children",
    "read_cpu_s",
    "read_environment",
    "read_memory",
    "read_process_state",
    "read_written_pipes",
    "send_signal",
]

PROC = "/proc"
# The size of one read: larger than most files in /proc.
READ_BYTES = 2**16
# The flag of kernel threads, see include/linux/sched.h.
PF_KTHREAD = 0x00200000
# The states of processes that have ended, and were not reaped yet or are just being removed.
ENDED_STATES = (b"Z", b"X")


class ProcessState(NamedTuple):
    """The state of a process.

    is_live: whether it is neither a zombie nor a kernel thread.
    parent, group, session: the ids of its parent, process group and session.
    terminal: the device number of its controlling terminal; 0 without one.
    started_at: its start time, in clock ticks since the boot.
    """

    is_live: bool
    parent: int
    group: int
    session: int
    terminal: int
    started_at: int


def read_process_state(pid: int) -> ProcessState | None:
    """Return the state of a process; None if there is no such process. Source: proc(5)."""
    try:
        fields = _read_stat(pid, 20)
        state, flags = fields[0], int(fields[6])
        is_live = state not in ENDED_STATES and not flags & PF_KTHREAD
        parent, group, session, terminal = map(int, fields[1:5])
        return ProcessState(is_live, parent, group, session, terminal, int(fields[19]))
    except (OSError, IndexError, ValueError):
        return None


def _read_stat(pid: int, count: int) -> list[bytes]:
    """Return the fields of /proc/PID/stat from the third one, the state.

    The manual page proc(5) counts fields from 1, so its field N is the item N - 3.
    count: how many fields the caller needs. The rest of the line is one last item.
    """
    # Split after the last parenthesis: the second field, the name of the program in parentheses,
    # may itself contain spaces and parentheses.
    return _read(f"{pid}/stat").rpartition(b")")[2].split(None, count)


def live_processes() -> Iterator[tuple[int, ProcessState]]:
    """Yield the id and the state of every live process: no zombies and no kernel threads."""
    try:
        names = _list_names(PROC)
    except OSError:
        return
    for name in names:
        if name.isdecimal():
            state = read_process_state(int(name))
            if state is not None and state.is_live:
                yield int(name), state


def is_process(pid: int) -> bool:
    """Return whether a process has this id, even if /proc does not show the process."""
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        # The process belongs to another user.
        pass
    return True


def age_s(state: ProcessState) -> float:
    """Return how long ago a process was started, in seconds."""
    now = time.clock_gettime(time.CLOCK_BOOTTIME)
    return now - state.started_at / os.sysconf("SC_CLK_TCK")


def read_children(pid: int) -> list[int]:
    """Return the ids of a process's children.

    Returns [] if there is no such process, or if the kernel does not list children.
    """
    try:
        threads = _list_names(f"{PROC}/{pid}/task")
    except OSError:
        return []
    children: list[int] = []
    for thread in threads:
        try:
            children += map(int, _read(f"{pid}/task/{thread}/children").split())
        except OSError:
            # The thread has ended meanwhile.
            pass
    return children


def read_environment(pid: int) -> bytes | None:
    """Return the environment with which a process was started; each variable ends with a NUL byte.

    Returns b"" for a process that is just being started, and None for a process that has ended or
    belongs to another user.
    """
    try:
        return _read(f"{pid}/environ")
    except OSError:
        return None


def read_written_pipes(pid: int) -> set[int]:
    """Return the inode numbers of the pipes that a process has open for writing.

    Returns an empty set for a process that has ended or belongs to another user.
    """
    pipes: set[int] = set()
    folder = f"{PROC}/{pid}/fd"
    try:
        names = _list_names(folder)
    except OSError:
        return pipes
    for name in names:
        try:
            target = os.readlink(f"{folder}/{name}")  # noqa: PTH115
            # The mode of the link says how the descriptor was opened, see proc(5).
            if target.startswith("pipe:[") and os.lstat(f"{folder}/{name}").st_mode & stat.S_IWUSR:
                pipes.add(int(target.removeprefix("pipe:[").removesuffix("]")))
        except OSError:
            # The descriptor was closed meanwhile.
            pass
    return pipes


def read_arguments(pid: int) -> list[str]:
    """Return the command line of a process, which the process can change; [] if it has ended."""
    try:
        text = _read(f"{pid}/cmdline")
    except OSError:
        return []
    return [word.decode("utf-8", "replace") for word in text.removesuffix(b"\0").split(b"\0")]


def read_memory(pid: int) -> int:
    """Return the resident memory of a process in bytes; 0 if it has ended."""
    try:
        return int(_read(f"{pid}/statm").split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError, ValueError):
        return 0


def read_cpu_s(pid: int) -> float:
    """Return the processor time that a process has used, in seconds; 0 if it has ended."""
    try:
        fields = _read_stat(pid, 14)
        user_ticks, system_ticks = int(fields[11]), int(fields[12])
        return (user_ticks + system_ticks) / os.sysconf("SC_CLK_TCK")
    except (OSError, IndexError, ValueError):
        return 0.0


def program_name(pid: int) -> str:
    """Return the first 15 bytes of the name of a process's program; "?" if it has ended."""
    try:
        return _read(f"{pid}/comm").decode("utf-8", "replace").strip()
    except OSError:
        return "?"


def send_signal(pid: int, started_at: int, number: signal.Signals) -> bool:
    """Send a signal to a process, unless it has ended and another process has its id now.

    started_at: the start time of the process, in clock ticks since the boot.
    Returns whether the signal was sent. Raises PermissionError for a process of another user.
    """
    try:
        descriptor = os.pidfd_open(pid)
    except PermissionError:
        # A PermissionError is an OSError, too, but does not mean that the process has ended.
        raise
    except OSError:
        return False
    try:
        # The descriptor refers to the process that has the id now, even if the id is reused later.
        state = read_process_state(pid)
        if state is None or state.started_at != started_at:
            return False
        signal.pidfd_send_signal(descriptor, number)
        return True
    except ProcessLookupError:
        return False
    finally:
        os.close(descriptor)


def _list_names(folder: str) -> list[str]:
    with os.scandir(folder) as entries:
        return [entry.name for entry in entries]


def _read(name: str) -> bytes:
    """Return the content of a file below /proc. Raises OSError.

    This takes a third of the time of Path.read_bytes(). The time matters because closing a child
    reads a file of every process of the machine.
    """
    descriptor = os.open(f"{PROC}/{name}", os.O_RDONLY | os.O_CLOEXEC)
    try:
        parts: list[bytes] = []
        while part := os.read(descriptor, READ_BYTES):
            parts.append(part)
        return b"".join(parts)
    finally:
        os.close(descriptor)
