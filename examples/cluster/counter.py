"""A plugin for a cluster: it counts words, and says on which machine."""

from __future__ import annotations

import socket

from concertino import Plugin

plugin = Plugin("tools.counter", version="1.0.0")


@plugin.tool
def count(text: str) -> str:
    """Count words."""
    return f"{len(text.split())} words, says {socket.gethostname()}"


if __name__ == "__main__":
    plugin.run()
