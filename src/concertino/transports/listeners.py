"""Listener: a listening Unix or TCP socket, created here or inherited from systemd.

    listener = listen_unix("/run/my.sock")
    listener = listen_tcp("127.0.0.1", 8000)

runtime/acceptor.py accepts clients. The file of a Unix socket has mode 0600 from the beginning, and
a client must be a process of the same user or of root. A TCP socket listens on loopback addresses
only, unless remote access is allowed explicitly, because there is no authentication.
Sources: unix(7), tcp(7), sd_listen_fds(3).
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
from typing import Any

from concertino.transports.addresses import is_loopback, unix_name
from concertino.transports.sockets import configure_socket, format_address, is_trusted

__all__ = [
    "BACKLOG",
    "Listener",
    "errno_message",
    "inherited_listeners",
    "listen_tcp",
    "listen_unix",
    "split_address",
]

# How many clients may wait to be accepted. The system may have a lower limit.
BACKLOG = 1024
# The first descriptor that systemd passes: SD_LISTEN_FDS_START in sd_listen_fds(3).
FIRST_INHERITED = 3
# How many seconds to wait for another process that creates a socket in the same directory.
LOCK_TIMEOUT_S = 2.0
# How often, in seconds, to try to get the lock meanwhile.
LOCK_RETRY_S = 0.01
SYSTEMD_VARIABLES = ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES", "LISTEN_PIDFDID")


class Listener:
    """A listening socket. Made by listen_unix(), listen_tcp() and inherited_listeners().

    Clients wait in the system's backlog until accept() is called.

    socket: the socket.
    address: `unix:/path` or `tcp:127.0.0.1:8080`, with the real port.
    is_unix: whether it is a Unix socket.
    is_remote: whether other machines may be able to reach it.
    is_inherited: whether another process, such as systemd, has created it and may still use it.
    """

    def __init__(
        self,
        sock: socket.socket,
        file: str | None = None,
        *,
        is_inherited: bool = False,
    ) -> None:
        """Wrap a socket that listens already.

        file: the absolute path of the socket's file, which remove() deletes; None to delete no
            file.
        """
        self.is_inherited = is_inherited
        sock.setblocking(False)
        self.socket = sock
        self.is_unix = sock.family == socket.AF_UNIX
        self.is_remote = not self.is_unix and not is_loopback(sock.getsockname()[0])
        scheme = "unix" if self.is_unix else "tcp"
        self.address = f"{scheme}:{file or format_address(sock.getsockname())}"
        self._file = file
        self._file_identity = _identify_file(file) if file is not None else None
        self._process = os.getpid()

    def accept(self) -> socket.socket:
        """Accept a waiting client, and return its socket.

        Raises BlockingIOError if no client waits, and OSError for the other errors of accept(2).
        """
        return self.socket.accept()[0]

    def examine(self, sock: socket.socket) -> Mapping[str, object]:
        """Return the facts about an accepted client, such as its pid and uid.

        sock: a socket from accept().
        Raises PermissionError if the client is a process of another user, OSError if it has gone.
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
        """Remove the socket's file, unless another file has taken its place. Raises nothing.

        Does nothing in a forked child.
        """
        file, self._file = self._file, None
        if file is None or self._file_identity is None or os.getpid() != self._process:
            return
        if _identify_file(file) == self._file_identity:
            # Ignore errors, for example if the directory is read-only now.
            with suppress(OSError):
                os.unlink(file)

    def close(self) -> None:
        """Remove the socket's file, then stop listening."""
        # In the other order, another process could create its own socket file after this one has
        # stopped listening, and this process would then remove that file.
        self.remove()
        self.socket.close()


# Unix


def listen_unix(path: str | os.PathLike[str]) -> Listener:
    """Listen at a path in an existing directory. Only this user and root may connect.

    If the path is a socket at which no process listens, it is replaced. Blocks for up to
    LOCK_TIMEOUT_S seconds while another process creates a socket in the same directory.
    Raises ValueError if a socket cannot have this path. Raises OSError if another process listens
    there, if the path is a file that is not a socket, or if the socket cannot be created.
    """
    name = unix_name(path)
    # Use an absolute path for remove(), because a tool may change the working directory.
    absolute = os.path.join(os.getcwd(), name.removeprefix("./"))
    with _directory_lock(os.path.dirname(absolute), name):
        _remove_stale(name)
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        is_bound = False
        try:
            _bind_private(sock, name)
            is_bound = True
            if os.lstat(absolute).st_mode & 0o077:
                raise OSError(
                    errno.EPERM, "the file system of its folder does not keep permissions"
                )
            sock.listen(BACKLOG)
            return Listener(sock, absolute)
        except OSError as exc:
            if is_bound:
                with suppress(OSError):
                    os.unlink(absolute)
            sock.close()
            raise _add_name(exc, name) from None


def _bind_private(sock: socket.socket, name: str) -> None:
    """Bind a socket to a new file with the mode 0600."""
    if sys.platform == "linux":
        # On Linux the file gets the mode of the socket's descriptor. umask() would also affect
        # files that other threads create.
        os.fchmod(sock.fileno(), 0o600)
        sock.bind(name)
        return

    before = os.umask(0o177)
    try:
        sock.bind(name)
    finally:
        os.umask(before)


def _remove_stale(name: str) -> None:
    """Remove the file of a socket at which no process listens. Does nothing if there is no file.

    Raises OSError if a process listens, or if the file is not a socket.
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
            # No process listens, or the file was removed meanwhile.
            pass
        except BlockingIOError:
            # The listener's backlog is full, so there is a listener.
            raise _make_in_use_error(name) from None
        except OSError as exc:
            raise _add_name(exc, name) from None
        else:
            raise _make_in_use_error(name)

    try:
        os.unlink(name)
    except FileNotFoundError:
        pass
    except OSError as exc:
        raise _add_name(exc, name) from None


@contextmanager
def _directory_lock(directory: str, name: str) -> Generator[None]:
    """Lock a directory against other concertino processes, while a socket in it is replaced.

    The directory itself is locked, so no lock file remains.
    name: the socket, for errors.
    """
    try:
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except PermissionError:
        # The directory is not readable, but may be writable. Continue without a lock.
        yield
        return
    except OSError as exc:
        text = f"unix:{name}: the folder {directory}: {os.strerror(exc.errno or 0)}"
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
                        errno.EBUSY, f"unix:{name}: another process holds a lock on {directory}"
                    ) from None
                time.sleep(LOCK_RETRY_S)
            except OSError:
                # The file system does not support locks.
                break
        yield
    finally:
        os.close(descriptor)


def _identify_file(path: str) -> tuple[int, int, int] | None:
    """Return the device, inode and modification time of a file; None if there is no file.

    Device and inode alone do not identify a file, because the inode of a removed file may be
    reused.
    """
    try:
        status = os.lstat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_mtime_ns


def _make_in_use_error(name: str) -> OSError:
    return OSError(errno.EADDRINUSE, f"unix:{name}: another process listens there")


def _add_name(exc: OSError, name: str) -> OSError:
    """Return the error with the name of the socket added to its text."""
    return OSError(exc.errno, f"unix:{name}: {exc.strerror or exc}")


# TCP


def listen_tcp(host: str, port: int, *, allow_remote: bool = False) -> Listener:
    """Listen at a TCP port. Blocks while it resolves a host name.

    host: a name, or an IPv4 or IPv6 address without brackets. If a name has several addresses, the
        first usable one is taken.
    port: 0 to let the system choose a free port, which the listener's `address` contains.
    allow_remote: whether to allow addresses that other machines may be able to reach.
    Raises ValueError for such an address if it is not allowed, for an invalid port, and for a name
    that cannot be resolved. Raises OSError if the port is in use.
    """
    name = f"tcp:{format_address((host, port))}"
    if not host or not 0 <= port <= 65535:
        raise ValueError(f"{name}: expected a host and a port from 0 to 65535")
    try:
        # As bytes, because for a text Python imports its codec for international names, which takes
        # 0.4 MB of memory.
        name_or_address = host.encode() if host.isascii() else host
        addresses = socket.getaddrinfo(
            name_or_address, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
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
            # Prefer the error of an address that this machine has, because it is the most helpful.
            if failure is None or exc.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                failure = exc
    # getaddrinfo() returns at least one address, or raises.
    assert failure is not None
    raise OSError(failure.errno, f"{name}: {os.strerror(failure.errno or 0)}") from None


def split_address(text: str) -> tuple[str, int]:
    """Split `HOST:PORT` or `[IPv6]:PORT` into host and port. Raises ValueError for other text.

    This is for addresses at which to listen, where port 0 takes a free one. parse_address() in
    addresses.py reads addresses to which to connect.
    """
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
    """Raise ValueError if other machines may be able to reach an address.

    name: the address as the user has written it.
    address: an address of the socket module.
    """
    host = str(address[0])
    if not is_loopback(host):
        # Name the resolved address too, unless the user has written this address.
        is_written = f":{host}" in name or f"[{host}]" in name
        resolved = "" if is_written else f" leads to {host}, which"
        raise ValueError(
            f"{name}{resolved} may be reached from other machines, and there is no authentication: "
            "whoever connects can call every tool. --allow-remote (allow_remote=True) permits it"
        )


# systemd


def inherited_listeners(
    environment: MutableMapping[str, str], *, allow_remote: bool = False
) -> list[Listener]:
    """Return the listening sockets that systemd has passed to this process; [] if there are none.

    Child processes do not inherit the sockets. The files of Unix sockets are not removed when the
    listeners are closed.
    environment: usually os.environ. systemd's variables are removed from it.
    allow_remote: whether to allow addresses that other machines may be able to reach.
    Raises ValueError for a descriptor that is not a listening stream socket, and for an address
    that is not allowed. Source: sd_listen_fds(3).
    """
    variables = {name: environment.pop(name, "") for name in SYSTEMD_VARIABLES}
    text = variables["LISTEN_FDS"]
    if variables["LISTEN_PID"] != str(os.getpid()) or not text:
        return []
    is_number = text.isascii() and text.isdecimal()
    # No process can have a million descriptors open, so a longer number is a mistake.
    if not is_number or len(text) > 6:
        raise ValueError(f"LISTEN_FDS: expected a number of descriptors, got {text!r}")

    listeners: list[Listener] = []
    for descriptor in range(FIRST_INHERITED, FIRST_INHERITED + int(text)):
        listener = Listener(_open_inherited(descriptor), is_inherited=True)
        if not listener.is_unix and not allow_remote:
            _refuse_remote(listener.address, listener.socket.getsockname())
        listeners.append(listener)
    return listeners


def _open_inherited(descriptor: int) -> socket.socket:
    """Return an inherited descriptor as a socket.

    Raises ValueError if it is not a listening stream socket.
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
    """Return the text of an exception for users.

    For an OSError, this is the system's text for its number (errno), without the number. If the
    OSError has a file name, the text begins with the name.
    """
    if not isinstance(exc, OSError) or not exc.strerror:
        return str(exc)
    # asyncio's text does not say why a connection has failed.
    if exc.errno and exc.strerror.startswith("Connect call failed"):
        return os.strerror(exc.errno)
    return exc.strerror if exc.filename is None else f"{exc.filename}: {exc.strerror}"
