"""read_servers(): asks all running proxies of this user for the state of their servers.

`concertino ps` calls it. A proxy is a process that has started servers and passes calls to them. It
answers at a Unix socket (server_status.py).
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from msgspec import Struct
from msgspec.json import decode

from concertino.decode_errors import DECODE_ERRORS
from concertino.proxy.process_sockets import (
    has_ended,
    is_old,
    remove_stale_sockets,
    status_folders,
)
from concertino.proxy.server_status import ProxyStatus, ServerStatus
from concertino.transports.process_table import (
    age_s,
    live_processes,
    program_name,
    read_memory,
    read_process_state,
)
from concertino.transports.sockets import credentials, is_trusted

__all__ = ["RunningServer", "read_servers"]

# The limit for the answer of one proxy, in seconds, because a proxy may hang.
ANSWER_S = 1.0
# The largest size of an answer in bytes.
MAX_ANSWER = 2**20


class RunningServer(Struct, frozen=True):
    """One server behind a proxy, as `concertino ps` shows it.

    proxy: the id of the proxy's process.
    host: the name that the proxy's client has sent for its application; before the first client,
        the name of the program that has started the proxy.
    server: the name of the server.
    state: such as `running`, `idle` or `crash loop`; ServerStatus explains all states.
    pid: the id of the server's process; None if the server has none.
    age_s: how long the process has run, in seconds; None if there is no process, or no /proc.
    memory_bytes: the resident memory of the process group; None in the same cases as `age_s`.
    calls: the number of requests that all processes of the server have got.
    restarts: how many times the server was restarted.
    last_error: why the last process of the server has ended, or why the server does not run; "" if
        the server never failed.
    stray: the number of lines that the process has printed to stdout and that are no messages.
    last_stray: the last of these lines, shortened and without secrets; "" if there are none.
    """

    proxy: int
    host: str
    server: str
    state: str
    pid: int | None
    age_s: float | None
    memory_bytes: int | None
    calls: int
    restarts: int
    last_error: str
    stray: int
    last_stray: str


def read_servers(environment: Mapping[str, str]) -> list[RunningServer]:
    """Return the servers behind all proxies of this user, sorted by proxy.

    Blocks until all proxies have answered, at most a second for each. A proxy that does not answer
    is returned as one server with the name `?` and the state `no answer`. Proxies in containers are
    found only if they have the same directory of sockets, such as /run/user/UID/concertino/proxies.
    environment: the environment variables, such as XDG_STATE_HOME, which may select the directory.
    """
    statuses = {status.pid: status for status in _read_statuses(environment)}
    memory = _read_memory_by_group() if statuses else {}
    return [
        _describe(status, server, memory)
        for _, status in sorted(statuses.items())
        for server in status.servers
    ]


def _describe(
    status: ProxyStatus, server: ServerStatus, memory: Mapping[int, int]
) -> RunningServer:
    """Return one server as `concertino ps` shows it.

    status: the answer of the proxy.
    server: the state of the server in this answer.
    memory: process group -> its resident memory in bytes.
    """
    host = server.host
    if not host and (state := read_process_state(status.pid)) is not None:
        host = program_name(state.parent)
    return RunningServer(
        proxy=status.pid,
        host=host,
        server=server.server,
        state=server.state,
        pid=server.pid or None,
        age_s=_read_age_s(server.pid) if server.pid else None,
        memory_bytes=memory.get(server.pid) if server.pid else None,
        calls=server.calls,
        restarts=server.restarts,
        last_error=server.last_error,
        stray=server.stray,
        last_stray=server.last_stray,
    )


def _read_statuses(environment: Mapping[str, str]) -> Iterator[ProxyStatus]:
    """Yield the answer of each proxy. Removes the sockets of proxies that have ended."""
    for folder in status_folders(environment):
        try:
            remove_stale_sockets(folder)
            paths = sorted(Path(folder).iterdir())
        except OSError:
            continue
        for path in paths:
            pid = path.name.partition("-")[0]
            if not pid.isdecimal():
                continue
            try:
                status = _ask(path)
            except (OSError, *DECODE_ERRORS) as exc:
                is_refused = isinstance(exc, ConnectionRefusedError)
                if has_ended(path.name) or (is_refused and is_old(path)):
                    # The process has ended meanwhile, or has been killed.
                    path.unlink(missing_ok=True)
                    continue
                # The process removes its socket when it ends. A socket refuses connections for a
                # moment when it is made.
                if is_refused or not path.exists():
                    continue
                status = _make_failed_status(pid, _explain(exc))
            if status is not None:
                yield status


def _explain(exc: Exception) -> str:
    if isinstance(exc, OSError):
        return f"the proxy does not answer within {ANSWER_S:g} s"
    return "the proxy's answer cannot be read: is it of another version?"


def _make_failed_status(pid: str, reason: str) -> ProxyStatus:
    """Return what is shown for a proxy that has not answered, or not in the expected form."""
    return ProxyStatus(int(pid), (ServerStatus("?", "no answer", last_error=reason),))


def _ask(path: Path) -> ProxyStatus | None:
    """Return the answer of a proxy; None if it comes from another user. Raises OSError."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(ANSWER_S)
        connection.connect(str(path))
        _, uid = credentials(connection)
        if not is_trusted(uid, os.geteuid()):
            return None
        data = b""
        until = time.monotonic() + ANSWER_S
        while len(data) < MAX_ANSWER and (part := connection.recv(2**16)):
            data += part
            # A timeout of 0 would mean that recv() does not wait.
            connection.settimeout(max(0.001, until - time.monotonic()))
    return decode(data, type=ProxyStatus)


def _read_memory_by_group() -> dict[int, int]:
    """Return process group -> its resident memory in bytes.

    A server is started in a process group of its own, to which its child processes belong, too.
    """
    memory: dict[int, int] = {}
    for pid, state in live_processes():
        memory[state.group] = memory.get(state.group, 0) + read_memory(pid)
    return memory


def _read_age_s(pid: int) -> float | None:
    state = read_process_state(pid)
    return None if state is None else age_s(state)
