"""Tells the service manager systemd that this service has started. Source: sd_notify(3)."""

from __future__ import annotations

import logging
import os
import socket

__all__ = ["notify_ready"]

log = logging.getLogger("concertino")


def notify_ready() -> None:
    """Send READY=1 to the service manager, if the environment variable NOTIFY_SOCKET is set.

    Raises nothing: an error is logged.
    """
    # Remove the variable, so that child processes send nothing to the service manager.
    name = os.environ.pop("NOTIFY_SOCKET", "")
    if not name.startswith(("/", "@")):
        return
    # The variable has an @ in place of the zero byte with which an abstract address begins.
    address = "\0" + name[1:] if name.startswith("@") else name
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
            sock.setblocking(False)
            sock.connect(address)
            sock.send(b"READY=1")
    except OSError as exc:
        log.warning("NOTIFY_SOCKET: %s: %s", name, exc.strerror)
