"""define_plugins(): what the plugins of a file would run, in a form that a user can approve."""

from __future__ import annotations

import shlex

from concertino.logs.redact import learn
from concertino.orchestra.mcp_entry import FILE, SERVER
from concertino.orchestra.plugins_file import PluginEntry, PluginsFile
from concertino.proxy.definitions import Definition, define_server, make_definition
from concertino.proxy.secret_sources import SECRET
from concertino.proxy.server_file import parse_server_file

__all__ = ["define_plugin", "define_plugins"]


def define_plugins(file: PluginsFile, key: bytes) -> dict[str, Definition]:
    """Return the definitions of the enabled plugins of a file, by id. key: the user's key."""
    return {entry.id: define_plugin(entry, key) for entry in file.enabled}


def define_plugin(entry: PluginEntry, key: bytes) -> Definition:
    """Return the definition of a plugin: everything that decides which program runs, and how.

    That is its program, arguments, variables and configuration, which can hold addresses and
    paths. An MCP server has the definition that it would have in a server file.
    """
    if entry.is_mcp:
        file = parse_server_file(entry.config[SERVER].encode(), entry.config[FILE])
        return define_server(file.servers[0], file, {}, key)
    texts = {"binary": entry.binary}
    if entry.args:
        texts["args"] = shlex.join(entry.args)
    hidden: dict[str, str] = {}
    for name, value in entry.env.items():
        text = f"${{{name}}}" if value is None else value
        # A reference is not a secret; any other text may be one.
        is_shown = text.startswith((SECRET, "${"))
        (texts if is_shown else hidden)[f"env.{name}"] = text
    # Values whose names are those of secrets are not shown.
    learn(entry.config)
    texts |= {f"config.{name}": value for name, value in entry.config.items()}
    return make_definition(texts, hidden, key)
