"""Describes the programs of plugins for a user to approve; see proxy/definitions.py.

A running hub compares these definitions with the approved ones when its plugins file has changed
(plugins_reload.py). `concertino approve` shows and approves them.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping

from concertino.logs.redact import learn
from concertino.orchestra.mcp_entry import FILE, SERVER
from concertino.orchestra.plugin_entry import PluginEntry
from concertino.orchestra.plugins_file import PluginsFile
from concertino.proxy.definitions import (
    CODE_VARIABLES,
    Definition,
    MemberText,
    define_server,
    make_definition,
    value_text,
    visible_texts,
)
from concertino.proxy.server_file import parse_server_file

__all__ = ["define_plugin", "define_plugins", "visible_plugin_texts"]


def define_plugins(file: PluginsFile, key: bytes) -> dict[str, Definition]:
    """Return the definitions of the enabled plugins of a file, by id.

    key: the user's secret key, with which digests are made, so that secrets cannot be guessed.
    """
    return {entry.id: define_plugin(entry, key) for entry in file.enabled}


def define_plugin(entry: PluginEntry, key: bytes) -> Definition:
    """Return the definition of a plugin, which the user approves.

    The definition has the program, the arguments, the variables and the configuration. For an MCP
    server it is the same as in a server file.
    """
    if entry.is_mcp:
        file = parse_server_file(entry.config[SERVER].encode(), entry.config[FILE])
        return define_server(file.servers[0], file, {}, key)
    # make_definition() replaces the secrets that the redactor knows. Tell it those in the
    # configuration.
    learn(entry.config)
    config = {f"config.{name}": MemberText(value, value) for name, value in entry.config.items()}
    return make_definition(_program_texts(entry) | config, key)


def visible_plugin_texts(entry: PluginEntry) -> Mapping[str, str]:
    """Return the texts of a plugin's definition that may be shown; see visible_texts().

    The configuration is left out, because it is data, and some of its values are secrets.
    """
    if entry.is_mcp:
        file = parse_server_file(entry.config[SERVER].encode(), entry.config[FILE])
        return visible_texts(file.servers[0], file, {})
    return {member: text.shown for member, text in _program_texts(entry).items() if text.shown}


def _program_texts(entry: PluginEntry) -> dict[str, MemberText]:
    """Return the texts of a plugin's program and variables."""
    texts = {"binary": MemberText(entry.binary, entry.binary)}
    if entry.args:
        args = shlex.join(entry.args)
        texts["args"] = MemberText(args, args)
    for name, value in entry.env.items():
        # None: the variable is passed on from the user's environment.
        text = f"${{{name}}}" if value is None else value
        is_shown = name.upper() in CODE_VARIABLES
        texts[f"env.{name}"] = MemberText(text, text) if is_shown else value_text(text)
    return texts
