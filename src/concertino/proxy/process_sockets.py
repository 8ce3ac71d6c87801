"""Unix sockets at which the processes of this user are found, such as proxies by `concertino ps`.

A socket is in a directory that other users cannot enter. Its name is `PID-START-NAMESPACE`: the id,
the start time and the pid namespace of the process that has made it, so that sockets of killed
processes are recognized.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

from concertino.transports.process_marks import pid_namespace
from concertino.transports.process_table import is_process, read_process_state

if TYPE_CHECKING:
    from concertino.transports.listeners import Listener
    from concertino.user_files import AnyPath

__all__ = [
    "has_ended",
    "is_old",
    "listen_in_first",
    "make_private",
    "remove_stale_sockets",
    "status_folders",
]

# After this time, in seconds, a process certainly listens at the socket that it has made.
OPENING_S = 60.0
# The name of the directory of the sockets.
FOLDER = "proxies"


def status_folders(environment: Mapping[str, str]) -> list[str]:
    """Return the directories in which a process may have its socket for `concertino ps`.

    A process uses the first directory in which it can write. The order is:

    1. `$XDG_RUNTIME_DIR/concertino/proxies`
    2. /run/user/UID/concertino/proxies
    3. `$XDG_STATE_HOME/concertino/proxies`
    4. ~/.local/state/concertino/proxies

    The first two are left out unless `$XDG_RUNTIME_DIR` or /run/user/UID belongs to this user and
    nobody else can enter it.
    environment: the environment variables.
    """
    # Two of the directories depend on no XDG variable, because a host, such as an editor, may start
    # this process without the variables that a terminal has.
    # Imported here, because its imports would delay the first answer of a server.
    from concertino.proxy.state_files import state_folder_path

    runtime = [environment.get("XDG_RUNTIME_DIR", ""), f"/run/user/{os.geteuid()}"]
    own = [path for path in runtime if path.startswith("/") and _is_own(path)]
    folders = [os.path.join(path, "concertino", FOLDER) for path in own]
    with suppress(RuntimeError):
        states = (state_folder_path(environment), state_folder_path({}))
        folders += [os.path.join(state, FOLDER) for state in states]
    return list(dict.fromkeys(folders))


def listen_in_first(
    folders: Iterable[AnyPath], log: logging.Logger, message: str
) -> Listener | None:
    """Open a Unix socket of this process in the first directory that allows it, and return it.

    Makes the directory if needed, and removes sockets of processes that have ended. Returns None if
    all directories fail.
    folders: the directories to try, in this order.
    log, message: logged at DEBUG for each directory that fails. `message` is a %-format with two
        arguments, the directory and the error.
    """
    # Imported here, because its imports would delay the first answer of a server.
    from concertino.transports.listeners import listen_unix

    state = read_process_state(os.getpid())
    started_at = 0 if state is None else state.started_at
    name = f"{os.getpid()}-{started_at}-{pid_namespace()}"
    for folder in folders:
        try:
            make_private(folder)
            remove_stale_sockets(folder)
            return listen_unix(os.path.join(folder, name))
        except (OSError, ValueError) as exc:
            log.debug(message, folder, exc)
    return None


def remove_stale_sockets(folder: AnyPath) -> None:
    """Remove from a directory the sockets of processes that have ended.

    Raises OSError if the directory cannot be read.
    """
    for name in os.listdir(folder):
        if has_ended(name):
            with suppress(FileNotFoundError):
                os.unlink(os.path.join(folder, name))


def has_ended(name: str) -> bool:
    """Return whether the process that has made a socket has ended.

    Returns False if that is not known, because the process is in another pid namespace, such as
    that of a container, or because the name is not that of a socket.
    name: the name of the socket, which listen_in_first() has made.
    """
    parts = name.split("-")
    if len(parts) != 3 or not all(map(str.isdecimal, parts)):
        return False
    pid, started_at, namespace = map(int, parts)
    if namespace != pid_namespace():
        return False
    if not namespace:
        # There is no /proc.
        return not is_process(pid)
    state = read_process_state(pid)
    return state is None or not state.is_live or state.started_at != started_at


def is_old(path: AnyPath) -> bool:
    """Return whether a socket was made more than a minute ago.

    By then its process listens: if the socket refuses connections, the process was killed. Returns
    True for a socket that was removed meanwhile.
    """
    try:
        return time.time() - os.stat(path).st_mtime > OPENING_S
    except OSError:
        return True


def _is_own(path: AnyPath) -> bool:
    """Return whether a path belongs to this user, and other users have no access to it."""
    try:
        status = os.stat(path)
    except OSError:
        return False
    return status.st_uid == os.geteuid() and not status.st_mode & 0o077


def make_private(folder: AnyPath) -> None:
    """Make a directory that only this user can enter. Does nothing if it exists and is private.

    Raises PermissionError if it exists, but belongs to another user or other users can enter it.
    """
    os.makedirs(folder, 0o700, exist_ok=True)
    if not _is_own(folder):
        raise PermissionError(f"{os.fspath(folder)}: expected a folder that only you can enter")
