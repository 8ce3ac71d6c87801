"""Listening sockets, made here or inherited from systemd. runtime/acceptor.py accepts connections.

The file of a Unix socket has mode 0600 from the moment it exists, and a client must be a process of
the same user or of root. TCP sockets listen on loopback addresses unless remote access is allowed
explicitly, since there is no authentication. Sources: unix(7), tcp(7), sd_listen_fds(3).
"""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import stat
import sys
import time
from collections.abc import Generator, Mapping, MutableMapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from concertino.transports.sockets import configure_socket, format_address, is_trusted, unix_name

__all__ = [
    "Listener",
    "errno_message",
    "inherited_listeners",
    "listen_tcp",
    "listen_unix",
    "split_address",
]

# Connections that wait to be accepted; the system may allow fewer.
BACKLOG = 1024
# SD_LISTEN_FDS_START of sd_listen_fds(3).
FIRST_INHERITED = 3
# How long to wait for another process that creates a socket in the same folder.
LOCK_TIMEOUT_S = 2.0
SYSTEMD_VARIABLES = ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES", "LISTEN_PIDFDID")


class Listener:
    """A listening socket. Made by listen_unix(), listen_tcp() and inherited_listeners().

    address: `unix:/path` or `tcp:127.0.0.1:8080`, with the actual port. is_unix: whether it is a
    Unix socket. is_remote: whether other machines may reach it. is_inherited: whether another
    process has made it, which may outlive this one. Clients wait in the system's backlog until
    accept() is called.
    """

    def __init__(
        self,
        sock: socket.socket,
        file: Path | None = None,
        *,
        is_inherited: bool = False,
    ) -> None:
        """Wrap a socket that listens already.

        file: absolute path of the socket's file, which remove() deletes if it is still the same
        file.
        """
        self.is_inherited = is_inherited
        sock.setblocking(False)
        self.socket = sock
        self.is_unix = sock.family == socket.AF_UNIX
        self.is_remote = not self.is_unix and _is_remote(sock.getsockname())
        scheme = "unix" if self.is_unix else "tcp"
        self.address = f"{scheme}:{file or format_address(sock.getsockname())}"
        self._file = file
        self._file_identity = _identity(file) if file is not None else None
        self._process = os.getpid()

    def accept(self) -> socket.socket:
        """Return the next connection.

        Raises BlockingIOError if none waits, and OSError like accept(2).
        """
        return self.socket.accept()[0]

    def examine(self, sock: socket.socket) -> Mapping[str, object]:
        """Return the facts of an accepted connection, such as the pid and uid of the client.

        Raises PermissionError if the client is another user's process, OSError if it is gone.
        """
        facts = configure_socket(sock)
        if not self.is_unix:
            return facts

        uid = facts["uid"]
        assert isinstance(uid, int)
        own_uid = os.geteuid()
        if not is_trusted(uid, own_uid):
            pid = facts.get("pid", "unknown")
            raise PermissionError(
                errno.EPERM, f"pid {pid} runs as uid {uid}, and this server as uid {own_uid}"
            )
        return {**facts, "address": self.address.removeprefix("unix:")}

    def remove(self) -> None:
        """Remove the file of the socket if it still exists and is ours.

        Raises nothing, and does nothing in a forked child.
        """
        file, self._file = self._file, None
        if file is None or self._file_identity is None or os.getpid() != self._process:
            return
        if _identity(file) == self._file_identity:
            # The folder may have become read-only.
            with suppress(OSError):
                file.unlink()

    def close(self) -> None:
        """Stop listening.

        The file is removed first, so that no other process finds it and takes it for a stale one.
        """
        self.remove()
        self.socket.close()


# Unix


def listen_unix(path: str | os.PathLike[str]) -> Listener:
    """Listen at a path in an existing folder. A stale socket there is replaced.

    Only processes of this user and of root may connect. Raises ValueError if the path cannot be
    that of a socket. Raises OSError if another process listens there, if there is a file that is
    not a socket (it is left alone), or if the socket cannot be created.
    """
    name = unix_name(path)
    # Tools may change the working directory later.
    absolute = Path(name).absolute()
    with _folder_lock(absolute.parent, name):
        _remove_stale(name)
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        is_bound = False
        try:
            _bind_private(sock, name)
            is_bound = True
            if absolute.lstat().st_mode & 0o077:
                raise OSError(
                    errno.EPERM, "the file system of its folder does not keep permissions"
                )
            sock.listen(BACKLOG)
            return Listener(sock, absolute)
        except OSError as exc:
            if is_bound:
                with suppress(OSError):
                    absolute.unlink()
            sock.close()
            raise _with_name(exc, name) from None


def _bind_private(sock: socket.socket, name: str) -> None:
    """Bind a socket to a file that has mode 0600 from the moment it exists."""
    if sys.platform == "linux":
        # On Linux the file gets the mode of the socket. Unlike umask(), fchmod() affects no file
        # of another thread.
        os.fchmod(sock.fileno(), 0o600)
        sock.bind(name)
        return

    before = os.umask(0o177)
    try:
        sock.bind(name)
    finally:
        os.umask(before)


def _remove_stale(name: str) -> None:
    """Remove a socket that nobody listens on.

    Raises OSError if there is anything else at this path.
    """
    try:
        mode = os.lstat(name).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise OSError(
            errno.EEXIST, f"unix:{name}: a file that is not a socket exists there; it is left alone"
        )

    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(name)
        except (ConnectionRefusedError, FileNotFoundError):
            pass
        except BlockingIOError:
            # The backlog is full, so somebody listens.
            raise _in_use(name) from None
        except OSError as exc:
            raise _with_name(exc, name) from None
        else:
            raise _in_use(name)

    try:
        Path(name).unlink()
    except FileNotFoundError:
        pass
    except OSError as exc:
        raise _with_name(exc, name) from None


@contextmanager
def _folder_lock(folder: Path, name: str) -> Generator[None]:
    """Lock a folder against other concertino processes while a stale socket is replaced.

    The lock is taken on the folder itself, so that it leaves no file behind.
    """
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except PermissionError:
        # The folder may be writable and not readable; then there is no lock.
        yield
        return
    except OSError as exc:
        text = f"unix:{name}: the folder {folder}: {os.strerror(exc.errno or 0)}"
        raise OSError(exc.errno, text) from None

    deadline = time.monotonic() + LOCK_TIMEOUT_S
    try:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise OSError(
                        errno.EBUSY, f"unix:{name}: another process holds a lock on {folder}"
                    ) from None
                time.sleep(0.01)
            except OSError:
                # The file system has no locks.
                break
        yield
    finally:
        os.close(descriptor)


def _identity(path: Path) -> tuple[int, int, int] | None:
    """Return device, inode and modification time of a file; None if there is none.

    The time is included because inode numbers of removed files are reused.
    """
    try:
        status = path.lstat()
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_mtime_ns


def _in_use(name: str) -> OSError:
    return OSError(errno.EADDRINUSE, f"unix:{name}: another process listens there")


def _with_name(exc: OSError, name: str) -> OSError:
    """Return the same error with the name of the socket in its text."""
    return OSError(exc.errno, f"unix:{name}: {exc.strerror or exc}")


# TCP


def listen_tcp(host: str, port: int, *, allow_remote: bool = False) -> Listener:
    """Listen at a port. With port 0 the system picks a free one; see Listener.address.

    host: a name, or an IPv4 or IPv6 address without brackets. The first usable address of a name is
    taken; resolving a name may take a while and blocks.
    allow_remote: permit addresses that other machines may reach.
    Raises ValueError for such an address without allow_remote, for an invalid port and for a name
    that cannot be resolved. Raises OSError if the port is taken.
    """
    name = f"tcp:{format_address((host, port))}"
    if not host or not 0 <= port <= 65535:
        raise ValueError(f"{name}: expected a host and a port from 0 to 65535")
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as exc:
        raise ValueError(f"{name}: {host}: {errno_message(exc)}") from None
    if not allow_remote:
        for *_, address in addresses:
            _refuse_remote(name, address)

    failure: OSError | None = None
    for family, _, _, _, address in addresses:
        try:
            return Listener(socket.create_server(address, family=family, backlog=BACKLOG))
        except OSError as exc:
            # The most telling error is the one of an address that this machine has.
            if failure is None or exc.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                failure = exc
    # getaddrinfo() returns at least one address, or raises.
    assert failure is not None
    raise OSError(failure.errno, f"{name}: {os.strerror(failure.errno or 0)}") from None


def split_address(text: str) -> tuple[str, int]:
    """Split `HOST:PORT` or `[IPv6]:PORT` into the host and the port. Raises ValueError."""
    host, colon, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host and not text.startswith("["):
        raise ValueError(f"tcp:{text}: expected an IPv6 address in brackets, as in [::1]:8080")
    is_number = port.isascii() and port.isdecimal()
    if not colon or not host or "[" in host or not is_number or int(port) > 65535:
        raise ValueError(
            f"tcp:{text}: expected HOST:PORT, as in 127.0.0.1:8080 or [::1]:8080; "
            "port 0 takes a free one"
        )
    return host, int(port)


def _refuse_remote(name: str, address: Any) -> None:
    """Raise ValueError if other machines may reach this address."""
    host = str(address[0])
    if _is_remote(address):
        resolved = "" if f":{host}" in name or f"[{host}]" in name else f" leads to {host}, which"
        raise ValueError(
            f"{name}{resolved} may be reached from other machines, and there is no authentication: "
            "whoever connects can call every tool. --allow-remote (allow_remote=True) permits it"
        )


def _is_remote(address: Any) -> bool:
    """Return True if other machines may reach this address of the socket module."""
    # Imported here, because only TCP needs it.
    from ipaddress import IPv6Address, ip_address

    ip = ip_address(str(address[0]).partition("%")[0])
    if isinstance(ip, IPv6Address) and ip.ipv4_mapped is not None:
        return not ip.ipv4_mapped.is_loopback
    return not ip.is_loopback


# systemd


def inherited_listeners(
    environment: MutableMapping[str, str], *, allow_remote: bool = False
) -> list[Listener]:
    """Return the listening sockets that systemd passed to this process; often there are none.

    The variables are removed from environment and child processes do not inherit the sockets. Their
    files are not removed at the end. Raises ValueError for a descriptor that is not a listening
    stream socket, and for an address that other machines may reach without allow_remote.
    Source: sd_listen_fds(3).
    """
    variables = {name: environment.pop(name, "") for name in SYSTEMD_VARIABLES}
    text = variables["LISTEN_FDS"]
    if variables["LISTEN_PID"] != str(os.getpid()) or not text:
        return []
    if not (text.isascii() and text.isdecimal()) or len(text) > 6:
        raise ValueError(f"LISTEN_FDS: expected a number of descriptors, got {text!r}")

    listeners: list[Listener] = []
    for descriptor in range(FIRST_INHERITED, FIRST_INHERITED + int(text)):
        listener = Listener(_inherited_socket(descriptor), is_inherited=True)
        if not listener.is_unix and not allow_remote:
            _refuse_remote(listener.address, listener.socket.getsockname())
        listeners.append(listener)
    return listeners


def _inherited_socket(descriptor: int) -> socket.socket:
    """Return an inherited descriptor as a socket.

    Raises ValueError if it is not a listening one.
    """
    name = f"LISTEN_FDS: descriptor {descriptor}"
    try:
        os.set_inheritable(descriptor, False)
        sock = socket.socket(fileno=descriptor)
    except OSError as exc:
        raise ValueError(f"{name}: expected a listening socket: {exc.strerror}") from None

    families = (socket.AF_UNIX, socket.AF_INET, socket.AF_INET6)
    if sock.family not in families or sock.type != socket.SOCK_STREAM:
        kind = f"{sock.family.name} {sock.type.name}"
        raise ValueError(f"{name}: expected a stream socket, Unix or TCP, got {kind}")
    if not sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        raise ValueError(
            f"{name}: expected a socket that listens; with Accept=yes the service needs "
            "StandardInput=socket"
        )
    return sock


def errno_message(exc: Exception) -> str:
    """Return the text of an error for users.

    That of an OSError goes without the error number, unless it concerns a file: then only str()
    names the file.
    """
    if isinstance(exc, OSError) and exc.strerror and exc.filename is None:
        return str(exc.strerror)
    return str(exc)
