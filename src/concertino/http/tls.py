"""TlsCertificate and TlsAcceptor: TLS for an HTTP server.

TlsCertificate loads the certificate again when its file has changed. TlsAcceptor accepts clients
and limits the number of running handshakes, each of which takes 280 kB. The servers of asyncio
start any number of handshakes, and call connection_made() of a protocol only after the handshake,
which is too late to limit the number.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import ssl
from collections import OrderedDict
from collections.abc import Callable

from msgspec import Struct

from concertino.runtime.tasks import hide_from_all_tasks
from concertino.transports.listeners import Listener

__all__ = ["Tls", "TlsAcceptor", "TlsCertificate"]

log = logging.getLogger("concertino.http")

# How often to check whether the files have changed, in seconds.
CHECK_S = 5.0
# How long a handshake may take, in seconds.
HANDSHAKE_S = 10.0
# How long a client may take to confirm the end of a connection, in seconds.
SHUTDOWN_S = 5.0
# How many handshakes may run at the same time.
MAX_HANDSHAKES = 128
# When MAX_HANDSHAKES are running and a new client arrives, the oldest handshake is cancelled if it
# has taken longer than this, in seconds.
SLOW_HANDSHAKE_S = 1.0
# How long no client is accepted after accept() has failed, for example because the process has too
# many open files, in seconds.
PAUSE_S = 0.1

# For each file: its inode, its size and the time of its last change; zeros if it cannot be read.
FileState = tuple[tuple[int, int, int], ...]


class Tls(Struct, frozen=True):
    """The files of a certificate, in PEM.

    cert: the path of the certificate. The certificates of intermediate authorities follow it in the
        same file.
    key: the path of the private key, without a password; None if the key is in the same file.
    """

    cert: str
    key: str | None = None


class TlsCertificate:
    """The certificate for new connections, which is loaded again when its files have changed.

    files: the paths of the certificate and of its private key.
    Raises ValueError if the files cannot be used.

    Attributes:
    context: the TLS context for new connections.
    """

    def __init__(self, files: Tls) -> None:
        self._files = files
        self._state = self._read_state()
        self.context = self._make_context()

    def reload(self) -> None:
        """Load the certificate again if its files have changed.

        If the new files cannot be used, the old certificate stays in use, and an error is logged.
        """
        state = self._read_state()
        if state == self._state:
            return
        self._state = state
        try:
            # Load into the context that is in use, because open listeners refer to it. First load
            # into another context as a test: if loading fails halfway, with a certificate that does
            # not match its key, `context` could not be used any more.
            self._make_context()
            self.context.load_cert_chain(self._files.cert, self._files.key)
        except (ValueError, OSError) as exc:
            log.error("the certificate before is used further: %s", exc)
        else:
            log.info("the certificate %s was loaded again", self._files.cert)

    def _make_context(self) -> ssl.SSLContext:
        """Return a new context with the certificate. Raises ValueError if it cannot be used."""
        context = self._new_context()
        names = " and ".join(filter(None, (self._files.cert, self._files.key)))
        try:
            # Without _no_password, OpenSSL would ask for the password of a key on the terminal.
            context.load_cert_chain(self._files.cert, self._files.key, password=_no_password)
        except OSError as exc:
            raise ValueError(
                f"TLS: {names}: expected a certificate and its key in PEM: {exc.strerror or exc}"
            ) from None
        return context

    def _new_context(self) -> ssl.SSLContext:
        """Return a new context without the certificate. Raises ValueError."""
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        # Without this, a client might begin with HTTP/2.
        context.set_alpn_protocols(["http/1.1"])
        return context

    def _read_state(self) -> FileState:
        """Return a value that changes when one of the files changes."""
        states: list[tuple[int, int, int]] = []
        for name in filter(None, (self._files.cert, self._files.key)):
            try:
                status = os.stat(name)
            except OSError:
                states.append((0, 0, 0))
            else:
                states.append((status.st_ino, status.st_size, status.st_mtime_ns))
        return tuple(states)


def _no_password() -> str:
    """Refuse a key with a password. OpenSSL calls this function to ask for the password."""
    raise ValueError("TLS: the key has a password; store it without one, in a file of mode 0600")


class TlsAcceptor:
    """Accepts the clients of a listener, and makes their connections after the TLS handshake.

    listener: the listening socket. close() closes it.
    certificate: the server's certificate.
    make: the protocol factory: returns the protocol of a new connection.
    """

    def __init__(
        self, listener: Listener, certificate: TlsCertificate, make: Callable[[], asyncio.Protocol]
    ) -> None:
        self._listener = listener
        self._certificate = certificate
        self._make = make
        self._loop = asyncio.get_running_loop()
        # The running handshakes -> when they began. The oldest one is the first.
        self._handshakes: OrderedDict[asyncio.Task[None], float] = OrderedDict()
        self._is_accepting = False
        self._timer = self._loop.call_later(CHECK_S, self._check_files)
        self._resume()

    def close(self) -> None:
        """Stop accepting clients, and cancel the running handshakes."""
        self._timer.cancel()
        self._pause()
        self._listener.socket.close()
        for task in list(self._handshakes):
            task.cancel()

    def _check_files(self) -> None:
        self._certificate.reload()
        self._timer = self._loop.call_later(CHECK_S, self._check_files)

    def _resume(self) -> None:
        """Start to accept clients, or continue after _pause()."""
        if not self._is_accepting and self._listener.socket.fileno() >= 0:
            self._is_accepting = True
            self._loop.add_reader(self._listener.socket, self._accept)

    def _pause(self) -> None:
        """Stop accepting clients. New clients wait in the system's queue until _resume()."""
        if self._is_accepting:
            self._is_accepting = False
            self._loop.remove_reader(self._listener.socket)

    def _accept(self) -> None:
        """Accept one client, unless too many handshakes are running. The event loop calls it."""
        if len(self._handshakes) >= MAX_HANDSHAKES and not self._cancel_oldest():
            self._pause()
            self._loop.call_later(PAUSE_S, self._resume)
            return
        try:
            sock = self._listener.accept()
        except (BlockingIOError, ConnectionError):
            return
        except OSError as exc:
            log.warning("%s: no client is accepted: %s", self._listener.address, exc.strerror)
            self._pause()
            self._loop.call_later(PAUSE_S, self._resume)
            return
        sock.setblocking(False)
        # A handler that cancels all tasks must not cancel this task.
        task = hide_from_all_tasks(self._loop.create_task(self._shake_hands(sock)))
        self._handshakes[task] = self._loop.time()
        task.add_done_callback(self._on_handshake_end)

    def _cancel_oldest(self) -> bool:
        """Cancel the oldest handshake if it is slow. Returns whether it was cancelled."""
        task, since = next(iter(self._handshakes.items()))
        if self._loop.time() - since < SLOW_HANDSHAKE_S:
            return False
        del self._handshakes[task]
        task.cancel()
        return True

    def _on_handshake_end(self, task: asyncio.Task[None]) -> None:
        self._handshakes.pop(task, None)

    async def _shake_hands(self, sock: socket.socket) -> None:
        """Do the TLS handshake with a client, and make its connection.

        If the handshake fails, closes the socket.
        """
        try:
            await self._loop.connect_accepted_socket(
                self._make,
                sock,
                ssl=self._certificate.context,
                ssl_handshake_timeout=HANDSHAKE_S,
                ssl_shutdown_timeout=SHUTDOWN_S,
            )
        except (OSError, ValueError) as exc:
            # The client is a port scanner, does not trust the certificate, or has disconnected.
            log.debug("%s: a handshake has failed: %s", self._listener.address, exc)
            sock.close()
        except asyncio.CancelledError:
            sock.close()
