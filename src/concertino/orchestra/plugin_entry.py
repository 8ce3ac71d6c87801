"""PluginEntry: what a plugins file says about one plugin.

A hub starts the plugins, programs with tools, that its plugins file lists. plugin_entries.py reads
the entries of the file. The hub starts each plugin as its entry says, and compares the entries when
the file has changed.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct
from msgspec.structs import replace

from concertino.orchestra.mcp_entry import SERVER, change_certs_dir
from concertino.orchestra.watched_paths import WatchedPaths

__all__ = ["MCP_ARGS", "PluginEntry"]

# The arguments of `concertino` that run the plugin of an MCP server.
MCP_ARGS = ("plugin", "mcp")


class PluginEntry(Struct, frozen=True):
    """The entry of one plugin in a plugins file.

    id: the plugin's name at the hub, such as `tools.greeter`.
    binary: the program: an absolute path, or a name to look up in PATH.
    args: the arguments of the program.
    env: environment variable -> value, in addition to the few variables that every plugin inherits.
        A variable with the value None is passed on from the hub's environment.
    config: the configuration that the hub sends to the plugin at boot.
    enabled: whether the hub starts the plugin.
    provides_storage: the storage types that the plugin provides.
    provides_ai: the names of the AI providers to which the plugin gives access.
    depends_on: ids of plugins to start before this one.
    socket: whether the plugin uses a Unix socket instead of QUIC.
    line: the line of the entry in the file.
    watch: the files whose changes replace the plugin's process; None to watch none.
    offer: whether a hub that is in a NATS cluster lets the other hubs there use the plugin.
    is_bridge: whether the plugin is a bridge to another hub (`hub`). A bridge is an MCP server, so
        is_mcp is True as well.
    """

    id: str
    binary: str
    args: tuple[str, ...] = ()
    env: Mapping[str, str | None] = {}
    config: Mapping[str, str] = {}
    enabled: bool = False
    provides_storage: tuple[str, ...] = ()
    provides_ai: tuple[str, ...] = ()
    depends_on: tuple[str, ...] = ()
    socket: bool = False
    line: int = 0
    watch: WatchedPaths | None = None
    offer: bool = True
    is_bridge: bool = False

    @property
    def is_mcp(self) -> bool:
        """Whether the plugin is an MCP server (`protocol: mcp`).

        The hub starts the program `concertino plugin mcp` for it, which runs the server and speaks
        the plugin protocol. The entry describes this program; only `config` describes the server.
        """
        return self.args[:2] == MCP_ARGS and SERVER in self.config

    def with_certs_dir(self, certs_dir: str | None) -> PluginEntry:
        """Return the entry of a bridge with another directory of certificates.

        certs_dir: the path of the directory.
        Returns this entry unchanged if certs_dir is None, or if the plugin is no bridge.
        """
        if certs_dir is None or not self.is_bridge:
            return self
        server = change_certs_dir(self.config[SERVER], certs_dir)
        return replace(self, config={**self.config, SERVER: server})
