"""Finds and ends servers that still run although the host or proxy that started them has ended.

A host is an MCP client application. `concertino reap` regards a process as an abandoned server in
two cases. Either concertino has started it, and the process of concertino that did so has ended: a
mark in the environment names that process (process_marks.py). Or it runs the command of a server in
the configuration file of a host, and its parent is the init process. Services, programs at a
terminal, processes of other users and of other pid namespaces are never ended.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from concertino.proxy.host_commands import HostCommand
from concertino.transports.orphans import END_STEPS, ProcessKey, end_processes
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

# Programs that become the parents of processes whose own parents have ended.
INITS = frozenset(("systemd", "init", "tini", "dumb-init", "docker-init", "catatonit"))
# systemd sets this to the id of the process that it starts for a service.
SERVICE = b"SYSTEMD_EXEC_PID="
# Process id -> the state of the process.
States = Mapping[int, ProcessState]


class AbandonedServer(Struct, frozen=True):
    """A server process that still runs although the program that started it has ended.

    pid: the id of the server process.
    started_at: its start time, in clock ticks since the boot.
    command: the words of its command line.
    age_s: the time since its start, in seconds.
    memory_bytes: the resident memory of the process and its descendants.
    processes: the number of processes, with the descendants.
    reason: why the process counts as abandoned, as a sentence for the user.
    members: the process id and the start time of the server process and of each descendant.
    """

    pid: int
    started_at: int
    command: tuple[str, ...]
    age_s: float
    memory_bytes: int
    processes: int
    reason: str
    members: tuple[ProcessKey, ...]


def find_abandoned(commands: Sequence[HostCommand]) -> list[AbandonedServer]:
    """Return this user's servers whose host (MCP client) or proxy has ended, the oldest first.

    A process is a server if it runs one of `commands`, or if concertino has started it. Returns []
    on systems without /proc.
    commands: the commands of servers in the configuration files of hosts, as read_host_commands()
        returns them.
    """
    states = _list_own_processes()
    # This process, the shell that started it, and so on, must not be ended. Some may belong to
    # other users, such as sudo, so search all processes.
    ancestors = _with_ancestors(os.getpid(), dict(live_processes()))
    reasons: dict[int, str] = {}
    for pid, state in states.items():
        if pid in ancestors or state.terminal or not _may_be_ended(pid):
            continue
        if reason := _find_reason(pid, state, commands):
            reasons[pid] = reason
    # A descendant of an abandoned process is part of that process, and is not listed.
    roots = [
        pid
        for pid in reasons
        if not any(other in reasons for other in _with_ancestors(states[pid].parent, states))
    ]
    servers = [_describe(pid, states, reasons[pid]) for pid in roots]
    return sorted(servers, key=lambda server: -server.age_s)


def end_servers(servers: Iterable[AbandonedServer]) -> bool:
    """End servers and their descendants with SIGTERM, then SIGKILL. Returns whether all have ended.

    Blocks for at most 1.5 s. Also ends descendants that were started after find_abandoned() has
    found the servers. If a server has ended meanwhile, and the system has given its pid to a new
    process, that process is left alone.
    """
    members = {member for server in servers for member in server.members}

    def find() -> set[tuple[int, int]]:
        # end_processes() calls this repeatedly. Add all descendants each time: when a process ends,
        # its children get another parent, and could no longer be found as its descendants.
        states = _list_own_processes()
        live = {(pid, state.started_at) for pid, state in states.items()}
        for pid, _ in members & live:
            for other in _with_descendants(pid, states):
                members.add((other, states[other].started_at))
        return members & live

    return end_processes(find, END_STEPS)


def _list_own_processes() -> dict[int, ProcessState]:
    """Return the live processes of this user in this pid namespace.

    A server may have started processes of other users or in other namespaces. concertino leaves
    such processes alone.
    """
    namespace, user = pid_namespace(), os.geteuid()
    return {
        pid: state
        for pid, state in live_processes()
        if _user_of(pid) == user and pid_namespace(pid) == namespace
    }


def _user_of(pid: int) -> int | None:
    """Return the user id of a process; None if it has ended."""
    try:
        return os.stat(f"/proc/{pid}").st_uid
    except OSError:
        return None


def _may_be_ended(pid: int) -> bool:
    """Return whether a process is certainly not a service of systemd, so that it may be ended."""
    environment = read_environment(pid)
    # systemd writes the pid of the service into its environment. The children of the service
    # inherit the variable, but have other pids. A process that is just being started has no
    # environment yet, and may become a service.
    return bool(environment) and SERVICE + str(pid).encode() not in environment.split(b"\0")


def _find_reason(pid: int, state: ProcessState, commands: Sequence[HostCommand]) -> str:
    """Return the reason why a process counts as abandoned; "" if it does not."""
    for mark in marks_of(pid):
        if mark.is_orphaned():
            return f"process {mark.pid}, which started it, has ended"
    # Without such a mark, only the parent shows that the host has ended: a process whose parent
    # ends gets the init process as its parent.
    if not commands or program_name(state.parent) not in INITS:
        return ""
    arguments = read_arguments(pid)
    for command in commands:
        if command.matches(arguments):
            return f"the host has ended that started {command.server} of {command.file}"
    return ""


def _describe(pid: int, states: States, reason: str) -> AbandonedServer:
    """Return the facts about an abandoned process and its descendants."""
    tree = _with_descendants(pid, states)
    return AbandonedServer(
        pid=pid,
        started_at=states[pid].started_at,
        command=tuple(read_arguments(pid)),
        age_s=age_s(states[pid]),
        memory_bytes=sum(map(read_memory, tree)),
        processes=len(tree),
        reason=reason,
        members=tuple((other, states[other].started_at) for other in sorted(tree)),
    )


def _with_ancestors(pid: int, states: States) -> set[int]:
    """Return the ids of a process and of all its ancestors."""
    pids: set[int] = set()
    while pid in states and pid not in pids:
        pids.add(pid)
        pid = states[pid].parent
    return pids


def _with_descendants(root: int, states: States) -> set[int]:
    """Return the ids of a process and its descendants.

    A descendant with a terminal is left out, and so are its descendants: a person uses them.
    """
    children: dict[int, list[int]] = {}
    for pid, state in states.items():
        if not state.terminal:
            children.setdefault(state.parent, []).append(pid)
    tree: set[int] = set()
    unvisited = [root]
    while unvisited:
        pid = unvisited.pop()
        if pid not in tree:
            tree.add(pid)
            unvisited += children.get(pid, ())
    return tree
