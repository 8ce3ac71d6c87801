"""TLS for an HTTP server: the certificate, which is loaded again when its file has changed.

TlsAcceptor accepts the clients of a listener itself: asyncio's servers start any number of
handshakes, and each takes 280 kB before anything of ours is called.
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

# How often the files are looked at, in seconds.
CHECK_S = 5.0
HANDSHAKE_S = 10.0
# How long a client may take for its part of the end, in seconds.
SHUTDOWN_S = 5.0
MAX_HANDSHAKES = 128
# If all places are taken, a handshake that has taken longer than this is given up, in seconds.
SLOW_HANDSHAKE_S = 1.0
# How long no client is accepted after accept() has failed, for example for want of descriptors.
PAUSE_S = 0.1

FileState = tuple[tuple[int, int, int], ...]


class Tls(Struct, frozen=True):
    """The files of a certificate, in PEM.

    cert: the certificate, followed by those of the authorities in between.
    key: its private key, without a password; None if it is in the same file.
    """

    cert: str
    key: str | None = None


class TlsCertificate:
    """The certificate that new connections get.

    Raises ValueError if the files cannot be used.
    Attribute:
    context: the settings for new connections.
    """

    def __init__(self, files: Tls) -> None:
        self._files = files
        self._state = self._read_state()
        self.context = self._make_context()

    def reload(self) -> None:
        """Use the files' present content for new connections, if it has changed.

        If it cannot be used, the certificate before stays, and the log says so.
        """
        state = self._read_state()
        if state == self._state:
            return
        self._state = state
        try:
            # Into a context of its own first: a certificate without its key would stop all clients.
            self._make_context()
            self.context.load_cert_chain(self._files.cert, self._files.key)
        except (ValueError, OSError) as exc:
            log.error("the certificate before is used further: %s", exc)
        else:
            log.info("the certificate %s was loaded again", self._files.cert)

    def _make_context(self) -> ssl.SSLContext:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])
        names = " and ".join(filter(None, (self._files.cert, self._files.key)))
        try:
            # An encrypted key would make OpenSSL ask on the terminal.
            context.load_cert_chain(self._files.cert, self._files.key, password=_no_password)
        except OSError as exc:
            raise ValueError(
                f"TLS: {names}: expected a certificate and its key in PEM: {exc.strerror or exc}"
            ) from None
        return context

    def _read_state(self) -> FileState:
        """Return what changes when one of the files does."""
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
    raise ValueError("TLS: the key has a password; store it without one, in a file of mode 0600")


class TlsAcceptor:
    """Accepts the clients of a listener, and passes those on whose handshake is complete.

    make: makes the protocol of a connection.
    """

    def __init__(
        self, listener: Listener, certificate: TlsCertificate, make: Callable[[], asyncio.Protocol]
    ) -> None:
        self._listener = listener
        self._certificate = certificate
        self._make = make
        self._loop = asyncio.get_running_loop()
        # The handshakes under way, and when they began. The oldest one comes first.
        self._handshakes: OrderedDict[asyncio.Task[None], float] = OrderedDict()
        self._is_accepting = False
        self._timer = self._loop.call_later(CHECK_S, self._check_files)
        self._resume()

    def close(self) -> None:
        """Accept nobody any more, and end the handshakes."""
        self._timer.cancel()
        self._pause()
        self._listener.socket.close()
        for task in list(self._handshakes):
            task.cancel()

    def _check_files(self) -> None:
        self._certificate.reload()
        self._timer = self._loop.call_later(CHECK_S, self._check_files)

    def _resume(self) -> None:
        if not self._is_accepting and self._listener.socket.fileno() >= 0:
            self._is_accepting = True
            self._loop.add_reader(self._listener.socket, self._accept)

    def _pause(self) -> None:
        if self._is_accepting:
            self._is_accepting = False
            self._loop.remove_reader(self._listener.socket)

    def _accept(self) -> None:
        """Accept a client that waits, if there is room for its handshake."""
        if len(self._handshakes) >= MAX_HANDSHAKES and not self._give_up_slowest():
            # Clients wait in the system's queue until a handshake has ended.
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
        task = hide_from_all_tasks(self._loop.create_task(self._shake_hands(sock)))
        self._handshakes[task] = self._loop.time()
        task.add_done_callback(self._on_handshake_end)

    def _give_up_slowest(self) -> bool:
        """End the oldest handshake if it is slow. Returns False if none is."""
        task, since = next(iter(self._handshakes.items()))
        if self._loop.time() - since < SLOW_HANDSHAKE_S:
            return False
        del self._handshakes[task]
        task.cancel()
        return True

    def _on_handshake_end(self, task: asyncio.Task[None]) -> None:
        self._handshakes.pop(task, None)

    async def _shake_hands(self, sock: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(
                self._make,
                sock,
                ssl=self._certificate.context,
                ssl_handshake_timeout=HANDSHAKE_S,
                ssl_shutdown_timeout=SHUTDOWN_S,
            )
        except (OSError, ValueError) as exc:
            # A scanner, a client without trust in the certificate, or one that has gone.
            log.debug("%s: a handshake has failed: %s", self._listener.address, exc)
            sock.close()
        except asyncio.CancelledError:
            sock.close()
