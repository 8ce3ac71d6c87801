"""Servers that run although the host or the proxy that started them has ended.

A server is abandoned if it carries the mark of a process that has ended (process_marks.py), or if
it runs the command of a server in some host's file and the system has adopted it. Services,
programs at a terminal, other users and other pid namespaces are never looked at.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from concertino.proxy.host_commands import HostCommand
from concertino.transports.orphans import END_STEPS, end_processes
from concertino.transports.process_marks import marks_of, pid_namespace
from concertino.transports.process_table import (
    ProcessState,
    age_s,
    live_processes,
    program_name,
    read_arguments,
    read_environment,
    read_memory,
)

__all__ = ["AbandonedServer", "end_servers", "find_abandoned"]

# Programs that adopt the children of ended processes.
INITS = frozenset(("systemd", "init", "tini", "dumb-init", "docker-init", "catatonit"))
# systemd sets this to the id of the process that it starts for a service.
SERVICE = b"SYSTEMD_EXEC_PID="
States = Mapping[int, ProcessState]


class AbandonedServer(Struct, frozen=True):
    """A process, and everything that it has started.

    started_at: see ProcessState. command: its words. age_s: how long it has run.
    memory_bytes: resident, of all its processes. processes: how many.
    reason: what has ended, or which file has the command.
    """

    pid: int
    started_at: int
    command: tuple[str, ...]
    age_s: float
    memory_bytes: int
    processes: int
    reason: str


def find_abandoned(commands: Sequence[HostCommand]) -> list[AbandonedServer]:
    """Return the abandoned servers of this user, the oldest first. commands: of hosts' files."""
    states = dict(live_processes())
    own = _with_ancestors(os.getpid(), states)
    namespace = pid_namespace()
    found: dict[int, str] = {}
    for pid, state in states.items():
        if pid in own or state.terminal or not _is_ours(pid, namespace):
            continue
        if reason := _reason(pid, state, commands):
            found[pid] = reason
    # What an abandoned process has started belongs to it, and is not shown itself.
    roots = [pid for pid in found if states[pid].parent not in found]
    servers = [_describe(pid, states, found[pid]) for pid in roots]
    return sorted(servers, key=lambda server: -server.age_s)


def end_servers(servers: Iterable[AbandonedServer]) -> bool:
    """End servers with all that they have started: SIGTERM, SIGKILL. Returns whether all ended.

    Takes 1.5 s at most. A process that has got the id of one of them meanwhile is left alone.
    """
    members = {(server.pid, server.started_at) for server in servers}

    def find() -> set[tuple[int, int]]:
        # The tree is remembered: who loses its parent now cannot be found by it later.
        states = dict(live_processes())
        live = {(pid, state.started_at) for pid, state in states.items()}
        for pid, _ in members & live:
            members.update((other, states[other].started_at) for other in _tree(pid, states))
        return members & live

    return end_processes(find, END_STEPS)


def _is_ours(pid: int, namespace: int) -> bool:
    """Return whether a process is this user's, in our pid namespace, and no service."""
    try:
        if os.stat(f"/proc/{pid}").st_uid != os.geteuid():
            return False
    except OSError:
        return False
    environment = read_environment(pid)
    if environment is None or pid_namespace(pid) != namespace:
        return False
    return SERVICE + str(pid).encode() not in environment.split(b"\0")


def _reason(pid: int, state: ProcessState, commands: Sequence[HostCommand]) -> str:
    """Return why a process is abandoned; "" if it is not."""
    for mark in marks_of(pid):
        if mark.is_orphaned():
            return f"process {mark.pid}, which started it, has ended"
    if not commands or program_name(state.parent) not in INITS:
        return ""
    arguments = read_arguments(pid)
    for command in commands:
        if command.matches(arguments):
            return f"the host has ended that started {command.server} of {command.file}"
    return ""


def _describe(pid: int, states: States, reason: str) -> AbandonedServer:
    tree = _tree(pid, states)
    return AbandonedServer(
        pid,
        states[pid].started_at,
        tuple(read_arguments(pid)),
        age_s(states[pid]),
        sum(map(read_memory, tree)),
        len(tree),
        reason,
    )


def _with_ancestors(pid: int, states: States) -> set[int]:
    found: set[int] = set()
    while pid in states and pid not in found:
        found.add(pid)
        pid = states[pid].parent
    return found


def _tree(root: int, states: States) -> set[int]:
    """Return the ids of a process and of all its descendants."""
    children: dict[int, list[int]] = {}
    for pid, state in states.items():
        children.setdefault(state.parent, []).append(pid)
    tree: set[int] = set()
    waiting = [root]
    while waiting:
        pid = waiting.pop()
        if pid not in tree:
            tree.add(pid)
            waiting += children.get(pid, ())
    return tree
