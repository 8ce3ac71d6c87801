"""HubListeners: the addresses at which a hub accepts connections.

A hub starts plugins and forwards requests to them. For these plugins, the hub listens at a Unix
socket in a temporary directory, and over QUIC if a plugin cannot use this socket. For bridges and
other programs, the hub listens at a public address, which is a Unix socket or uses QUIC.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import tempfile
import time
from pathlib import Path

from msgspec.structs import replace

from concertino.orchestra.authority import ensure_certificate
from concertino.orchestra.certificates import Certificates
from concertino.orchestra.link import listen_for_links
from concertino.orchestra.plugin_run import HubEnvironment
from concertino.orchestra.plugins_file import HUB
from concertino.orchestra.rpc_interface import RelayHandler, RequestHandler, RpcListener

__all__ = ["HubListeners"]

# The beginning of the name of the temporary directory for sockets.
FOLDER_PREFIX = "orchestra-"
# The name of the hub's socket for its plugins, in this directory.
HUB_SOCKET = "hub.sock"
# The age in seconds at which a directory may be removed as abandoned. The hub of a younger
# directory may still be starting.
ABANDONED_S = 60.0


class HubListeners:
    """The listeners of a hub: one Unix socket for its plugins, and a public address.

    The Hub calls open() before it starts its plugins, and close() when they have ended.

    certificates: the directory of certificates, which QUIC needs.
    address: the public address; None to listen for the hub's own plugins only.

    Attributes:
    addresses: the addresses where the hub listens, without the socket for its plugins.
    folder: the temporary directory for sockets; None while the hub does not listen.
    environment: the settings for the plugins, such as the addresses to which they connect; None
        before open().
    """

    def __init__(self, certificates: Certificates, address: str | None) -> None:
        self.addresses: list[str] = []
        self.folder: Path | None = None
        self.environment: HubEnvironment | None = None
        self._certificates = certificates
        self._address = address
        self._listeners: list[RpcListener] = []

    async def open(
        self,
        answer: RequestHandler,
        relay: RelayHandler,
        needs_network: bool,
    ) -> HubEnvironment:
        """Start to listen. Returns the settings for the plugins.

        answer: handles each request that `relay` does not forward.
        relay: called first with each request, to forward it without decoding it.
        needs_network: whether a plugin of the hub uses QUIC.
        Raises OSError if an address cannot be used, ValueError if it is malformed, and
        CertificateError if the hub's certificate cannot be used. Call close() after these errors,
        too.
        """
        _remove_abandoned_folders()
        self.folder = Path(tempfile.mkdtemp(prefix=FOLDER_PREFIX))
        own = await listen_for_links(f"unix:{self.folder / HUB_SOCKET}", answer, relay=relay)
        self._listeners.append(own)

        network_address = ""
        if self._address is not None:
            network_address = await self._listen(self._address, answer, relay)

        # If all plugins started at once, they would slow each other down, and some would exceed
        # the time limit for the start.
        starts = asyncio.Semaphore(max(4, 2 * (os.cpu_count() or 1)))
        self.environment = HubEnvironment(
            folder=self.folder,
            socket_address=own.address,
            network_address=network_address,
            certificates=self._certificates,
            starts=starts,
        )
        return await self.environment_for(answer, relay, needs_network)

    async def environment_for(
        self, answer: RequestHandler, relay: RelayHandler, needs_network: bool
    ) -> HubEnvironment:
        """Listen over QUIC if a plugin needs it, and return the settings for the plugins.

        open() calls this method. The Hub calls it again when the plugins file has changed.
        The parameters and errors are those of open().
        """
        environment = self.environment
        assert environment is not None, "the hub has not been launched"
        address = environment.network_address
        # If the hub has no public address, or a Unix socket as its public address, it does not
        # listen over QUIC yet.
        if needs_network and (not address or address.startswith("unix:")):
            address = await self._listen("localhost:0", answer, relay)
            environment = self.environment = replace(environment, network_address=address)
        # The first listener is the socket for the hub's own plugins.
        self.addresses = [listener.address for listener in self._listeners[1:]]
        return environment

    async def _listen(
        self,
        address: str,
        answer: RequestHandler,
        relay: RelayHandler,
    ) -> str:
        """Start to listen at an address. Returns the address, with the actual port."""
        if address.startswith("unix:"):
            listener = await listen_for_links(address, answer, relay=relay)
        else:
            ensure_certificate(self._certificates, HUB)
            listener = await listen_for_links(
                address, answer, certificates=self._certificates, name=HUB, relay=relay
            )
        self._listeners.append(listener)
        return listener.address

    async def close(self) -> None:
        """Stop listening, disconnect all peers, and remove the directory for sockets."""
        await asyncio.gather(*(listener.close() for listener in self._listeners))
        self._listeners = []
        self.remove_folder()

    def remove_folder(self) -> None:
        """Remove the directory for sockets. Does nothing while there is none."""
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)
            self.folder = None


def _remove_abandoned_folders() -> None:
    """Remove the directories of this user's hubs that were killed."""
    # mkdtemp() adds eight characters to the prefix.
    for folder in Path(tempfile.gettempdir()).glob(f"{FOLDER_PREFIX}????????"):
        try:
            status = folder.lstat()
            if status.st_uid != os.geteuid() or time.time() - status.st_mtime < ABANDONED_S:
                continue
            with socket.socket(socket.AF_UNIX) as sock:
                sock.setblocking(False)
                sock.connect(str(folder / HUB_SOCKET))
        except ConnectionRefusedError:
            # No process listens at the socket any more, so its hub was killed.
            shutil.rmtree(folder, ignore_errors=True)
        except OSError:
            # The hub is alive but busy, or the directory is not of a hub.
            continue
