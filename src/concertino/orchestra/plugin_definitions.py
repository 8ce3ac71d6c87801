"""Makes the definitions of plugins, which a user approves before a hub runs a changed plugin.

A hub runs the plugins that its plugins file lists. A definition contains the parts of an entry in
this file on which it depends what code runs: program, arguments, environment variables and
configuration (proxy/definitions.py). When the file has changed, a running hub compares the new
definitions with the definitions that the user has approved (plugins_reload.py). The command
`concertino approve` shows the definitions to the user and stores the approval.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping

from concertino.logs.redact import learn_named_secrets
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
    """Return the definitions of the enabled plugins of a file: plugin id -> definition.

    A definition is the part of a plugin's entry that a user approves (see this module).

    key: the user's secret key. A definition contains a digest in place of each secret. The digests
        depend on this key, so that nobody else can guess a secret and compare the digests.
    """
    return {entry.id: define_plugin(entry, key) for entry in file.enabled}


def define_plugin(entry: PluginEntry, key: bytes) -> Definition:
    """Return the definition of one plugin: the part of its entry that a user approves.

    entry: the plugin's entry in the plugins file. If the plugin is an MCP server, the definition is
        the same as for this server in a file like mcp.json (proxy/server_file.py).
    key: as in define_plugins().
    """
    if entry.is_mcp:
        file = parse_server_file(entry.config[SERVER].encode(), entry.config[FILE])
        return define_server(file.servers[0], file, {}, key)
    # make_definition() redacts secrets. So the redactor must learn the secrets in the configuration
    # first.
    learn_named_secrets(entry.config)
    # A MemberText has the text that is compared, and the text that users may see.
    config = {f"config.{name}": MemberText(value, value) for name, value in entry.config.items()}
    return make_definition(_program_texts(entry) | config, key)


def visible_plugin_texts(entry: PluginEntry) -> Mapping[str, str]:
    """Return the parts of a plugin's definition that logs and users may see.

    The result maps the name of each part, such as "binary" or "env.PATH", to its text. It does not
    have the configuration, in which some values are secrets.
    """
    if entry.is_mcp:
        file = parse_server_file(entry.config[SERVER].encode(), entry.config[FILE])
        return visible_texts(file.servers[0], file, {})
    return {member: text.visible for member, text in _program_texts(entry).items() if text.visible}


def _program_texts(entry: PluginEntry) -> dict[str, MemberText]:
    """Return the program, arguments and variables of a plugin: name of the part -> its text."""
    texts = {"binary": MemberText(entry.binary, entry.binary)}
    if entry.args:
        args = shlex.join(entry.args)
        texts["args"] = MemberText(args, args)
    for name, value in entry.env.items():
        # None means that the variable is passed on from the user's environment.
        text = f"${{{name}}}" if value is None else value
        is_shown = name.upper() in CODE_VARIABLES
        texts[f"env.{name}"] = MemberText(text, text) if is_shown else value_text(text)
    return texts
