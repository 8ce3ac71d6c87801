"""is_plugin(), registration_problem(): recognize the plugins of a hub among its peers.

A hub starts plugins and forwards requests to them. A peer is a program that is connected to the
hub: a plugin, a bridge, which connects MCP clients, or any other program. Over QUIC, the hub
recognizes a peer by the name in its certificate, and on a Unix socket by its process.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from concertino.orchestra.plugin_process import PluginProcess
from concertino.orchestra.rpc_interface import RemotePeer

__all__ = ["is_plugin", "registration_problem"]


def is_plugin(peer: RemotePeer, plugin: PluginProcess) -> bool:
    """Return whether a peer is this plugin of the hub."""
    # A peer without a name is on a Unix socket.
    if peer.name is None:
        return _is_process_of(peer, plugin)
    return peer.may_register_as(plugin.id)


def registration_problem(id: str, peer: RemotePeer, plugins: Mapping[str, PluginProcess]) -> str:
    """Return the reason why a peer may not register as a plugin; empty if it may.

    - Over QUIC, the name in the peer's certificate must allow the id.
    - On a Unix socket, if the id is the id of a plugin of the hub, the peer must be a process that
      the hub has started for this plugin.
    - On a Unix socket, any other id is allowed, unless the peer is a process that the hub has
      started for a plugin.

    id: the id under which the peer wants to register.
    plugins: the hub's plugins, by id.
    """
    plugin = plugins.get(id)
    if plugin is None:
        # Without the peer's process id, _is_process_of() would be True for any plugin.
        if peer.pid is not None:
            for other in plugins.values():
                if _is_process_of(peer, other):
                    return f"the hub started this process as {other.id}, not as {id}"
        return "" if peer.may_register_as(id) else f"this peer may not call itself {id!r}"

    if peer.name is not None:
        if peer.may_register_as(id):
            return ""
        return f"the certificate is of {peer.name}, not of {id}"
    if _is_process_of(peer, plugin):
        return ""
    return f"this process is not one that the hub started as {id}"


def _is_process_of(peer: RemotePeer, plugin: PluginProcess) -> bool:
    """Return whether a peer on a Unix socket belongs to the process group of a plugin.

    On systems that do not report the peer's process id, returns True for every local peer.
    """
    if peer.pid is None:
        # True for every local peer: only a certificate limits the ids.
        return peer.may_register_as(plugin.id)
    try:
        return os.getpgid(peer.pid) in plugin.groups
    except ProcessLookupError:
        return False
