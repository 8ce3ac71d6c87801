"""Listening sockets: where clients connect to. Made here, or given by systemd; accepting is in runtime/acceptor.py.

A Unix socket's file has mode 0600 from its first instant, and its other side must be a process of the same user or of root. TCP is
for this machine unless it is said otherwise, since there is no authentication.
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

BACKLOG = 1024  # connections that wait to be accepted; the system may allow fewer
FIRST_INHERITED = 3  # SD_LISTEN_FDS_START, sd_listen_fds(3)
ALONE_S = 2.0  # for another process that makes a socket in the same folder at this moment
GIVEN = ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES", "LISTEN_PIDFDID")


class Listener:
    """A socket that clients connect to. address: `unix:/path` or `tcp:127.0.0.1:8080`, with the port that it has.
    is_remote: whether other machines may reach it.

    Made by listen_unix(), listen_tcp() and inherited(). Connections wait in the system until somebody accepts them. Next: accept().
    """

    def __init__(self, sock: socket.socket, made: Path | None = None) -> None:
        """made: the absolute path of the file that is removed at the end, if it is still this socket's."""
        sock.setblocking(False)
        self.socket = sock
        self.is_unix = sock.family == socket.AF_UNIX
        self.is_remote = not self.is_unix and _is_remote(sock.getsockname())
        self.address = (
            f"{'unix' if self.is_unix else 'tcp'}:{made or format_address(sock.getsockname())}"
        )
        self._made = made
        self._process = os.getpid()
        self._file = _identity(made) if made is not None else None

    def accept(self) -> socket.socket:
        """The next connection. Raises BlockingIOError when there is none, OSError as accept(2) does."""
        return self.socket.accept()[0]

    def examine(self, sock: socket.socket) -> Mapping[str, object]:
        """Who is at the other end: the facts of a connection. Raises PermissionError for a stranger, OSError when it is gone."""
        facts = configure_socket(sock)
        if not self.is_unix:
            return facts
        uid = facts["uid"]
        assert isinstance(uid, int)
        if not is_trusted(uid, os.geteuid()):
            raise PermissionError(
                errno.EPERM,
                f"pid {facts.get('pid', 'unknown')} runs as uid {uid}, and this server as uid {os.geteuid()}",
            )
        return {**facts, "address": self.address.removeprefix("unix:")}

    def remove(self) -> None:
        """Remove the socket's file, if it is ours and there still; raises nothing. In a forked child it does nothing."""
        made, self._made = self._made, None
        if made is None or self._file is None or os.getpid() != self._process:
            return
        if _identity(made) == self._file:
            with suppress(OSError):  # its folder may have become read-only
                made.unlink()

    def close(self) -> None:
        """Listen no longer. The file goes first, so that nobody finds it and thinks it is stale."""
        self.remove()
        self.socket.close()


# Unix


def listen_unix(path: str | os.PathLike[str]) -> Listener:
    """Listen at a path, in a folder that exists. A socket there that nobody listens at is replaced.

    Only processes of this user and of root are served. Raises ValueError for what cannot be a socket's path; OSError when somebody
    listens there, when there is a file that is no socket (it is left alone), and when the socket cannot be made.
    """
    name = unix_name(path)
    absolute = Path(name).absolute()  # tools may change the folder of the process
    with _alone_in(absolute.parent, name):
        _clear(name)
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        bound = False
        try:
            _bind_private(sock, name)
            bound = True
            if absolute.lstat().st_mode & 0o077:
                raise OSError(errno.EPERM, "its folder does not keep permissions")
            sock.listen(BACKLOG)
            return Listener(sock, absolute)
        except OSError as why:
            if bound:
                with suppress(OSError):
                    absolute.unlink()
            sock.close()
            raise _named(why, name) from None


def _bind_private(sock: socket.socket, name: str) -> None:
    """Bind with mode 0600 from the first instant."""
    if sys.platform == "linux":
        os.fchmod(
            sock.fileno(), 0o600
        )  # what is bound gets the mode of the socket; no other thread's files do
        sock.bind(name)
        return
    before = os.umask(0o177)
    try:
        sock.bind(name)
    finally:
        os.umask(before)


def _clear(name: str) -> None:
    """Remove a socket that nobody listens at. Raises OSError for anything else of this name."""
    try:
        mode = os.lstat(name).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise OSError(
            errno.EEXIST,
            f"unix:{name}: there is something of this name that is no socket; it is left alone",
        )
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(name)
        except (ConnectionRefusedError, FileNotFoundError):
            pass
        except BlockingIOError:  # so many wait to be accepted that there is no room
            raise _in_use(name) from None
        except OSError as why:
            raise _named(why, name) from None
        else:
            raise _in_use(name)
    try:
        Path(name).unlink()
    except FileNotFoundError:
        pass
    except OSError as why:
        raise _named(why, name) from None


@contextmanager
def _alone_in(folder: Path, name: str) -> Generator[None]:
    """Between looking whether a socket is stale and binding in its place nobody else of us may do the same.

    The lock is on the folder, so that it leaves no file behind.
    """
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except PermissionError:  # it may be written to and not be read
        yield
        return
    except OSError as why:
        raise OSError(
            why.errno, f"unix:{name}: the folder {folder}: {os.strerror(why.errno or 0)}"
        ) from None
    deadline = time.monotonic() + ALONE_S
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
            except OSError:  # a file system without locks
                break
        yield
    finally:
        os.close(descriptor)


def _identity(path: Path) -> tuple[int, int, int] | None:
    """Which file this is: numbers of removed files are given again, hence the time too."""
    try:
        found = path.lstat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_mtime_ns


def _in_use(name: str) -> OSError:
    return OSError(errno.EADDRINUSE, f"unix:{name}: another process listens there")


def _named(why: OSError, name: str) -> OSError:
    return OSError(why.errno, f"unix:{name}: {why.strerror or why}")


# TCP


def listen_tcp(host: str, port: int, *, allow_remote: bool = False) -> Listener:
    """Listen at a port. 0 takes a free one; the listener's address says which.

    host: a name, or an IPv4 or IPv6 address without brackets; of several addresses the first that can be had. Resolving a name
    may take a while. allow_remote: let other machines in. Raises ValueError for an address that other machines may reach without
    it, for a port that is none, and for a name that leads nowhere; OSError when the port is taken.
    """
    shown_as = f"tcp:{format_address((host, port))}"
    if not host or not 0 <= port <= 65535:
        raise ValueError(f"{shown_as}: expected a host and a port from 0 to 65535")
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as why:
        raise ValueError(f"{shown_as}: {host}: {getattr(why, 'strerror', None) or why}") from None
    if not allow_remote:
        for *_, address in found:
            _refuse_remote(shown_as, address)
    failure: OSError | None = None
    for family, kind, protocol, _, address in found:
        try:
            return Listener(_bound(family, kind, protocol, address))
        except OSError as why:
            if failure is None or why.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                failure = why
    assert failure is not None  # getaddrinfo gives one address or raises
    raise OSError(failure.errno, f"{shown_as}: {failure.strerror}") from None


def split_address(text: str) -> tuple[str, int]:
    """`HOST:PORT` or `[IPv6]:PORT` in two. Raises ValueError."""
    host, colon, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host and not text.startswith("["):
        raise ValueError(f"tcp:{text}: expected an IPv6 address in brackets, as in [::1]:8080")
    if (
        not colon
        or not host
        or "[" in host
        or not (port.isascii() and port.isdecimal())
        or int(port) > 65535
    ):
        raise ValueError(
            f"tcp:{text}: expected HOST:PORT, as in 127.0.0.1:8080 or [::1]:8080; port 0 takes a free one"
        )
    return host, int(port)


def _bound(family: int, kind: int, protocol: int, address: Any) -> socket.socket:
    sock = socket.socket(family, kind, protocol)
    try:
        sock.setsockopt(
            socket.SOL_SOCKET, socket.SO_REUSEADDR, 1
        )  # what closed a minute ago does not hold the port
        if family == socket.AF_INET6:
            sock.setsockopt(
                socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1
            )  # one address is one address
        sock.bind(address)
        sock.listen(BACKLOG)
    except BaseException:
        sock.close()
        raise
    return sock


def _refuse_remote(name: str, address: Any) -> None:
    host = str(address[0])
    if _is_remote(address):
        leads = "" if f":{host}" in name or f"[{host}]" in name else f" leads to {host}, which"
        raise ValueError(
            f"{name}{leads} may be reached from other machines, and there is no authentication: "
            "whoever connects can call every tool. --allow-remote (allow_remote=True) permits it"
        )


def _is_remote(address: Any) -> bool:
    """Whether other machines may reach this address, as the system gives it."""
    from ipaddress import ip_address  # here, because it is needed for TCP alone

    ip = ip_address(str(address[0]).partition("%")[0])
    return not (getattr(ip, "ipv4_mapped", None) or ip).is_loopback


# systemd


def inherited_listeners(
    environment: MutableMapping[str, str], *, allow_remote: bool = False
) -> list[Listener]:
    """The sockets that systemd, or whoever started this process, listens at for it; none if there are none for this process.

    The variables are removed from environment, and no child gets the sockets. Their files are not removed at the end. Raises
    ValueError for a descriptor that is not a listening stream socket, and for an address that other machines may reach without
    allow_remote.
    Source: sd_listen_fds(3).
    """
    given = {name: environment.pop(name, "") for name in GIVEN}
    if given["LISTEN_PID"] != str(os.getpid()) or not given["LISTEN_FDS"]:
        return []
    text = given["LISTEN_FDS"]
    if not (text.isascii() and text.isdecimal()) or len(text) > 6:
        raise ValueError(f"LISTEN_FDS: expected a number of descriptors, got {text!r}")
    listeners: list[Listener] = []
    for descriptor in range(FIRST_INHERITED, FIRST_INHERITED + int(text)):
        listener = Listener(_listening(descriptor))
        if not listener.is_unix and not allow_remote:
            _refuse_remote(listener.address, listener.socket.getsockname())
        listeners.append(listener)
    return listeners


def _listening(descriptor: int) -> socket.socket:
    what = f"LISTEN_FDS: descriptor {descriptor}"
    try:
        os.set_inheritable(descriptor, False)
        sock = socket.socket(fileno=descriptor)
    except OSError as why:
        raise ValueError(f"{what}: expected a listening socket: {why.strerror}") from None
    if (
        sock.family not in (socket.AF_UNIX, socket.AF_INET, socket.AF_INET6)
        or sock.type != socket.SOCK_STREAM
    ):
        raise ValueError(
            f"{what}: expected a stream socket, Unix or TCP, got {sock.family.name} {sock.type.name}"
        )
    if not sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        raise ValueError(
            f"{what}: expected a socket that listens; with Accept=yes the service needs StandardInput=socket"
        )
    return sock


def errno_message(why: Exception) -> str:
    """An error for people: one of the system says no number, unless it is about a file, which it would not name either."""
    return (
        str(why.strerror)
        if isinstance(why, OSError) and why.strerror and why.filename is None
        else str(why)
    )
