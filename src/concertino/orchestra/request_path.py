"""The path of a request through several hubs, which is needed to detect a cycle of hubs.

A hub can forward requests to another hub through a plugin, the bridge: the plugin runs an MCP
server that is connected to the other hub. If the bridges of several hubs form a cycle, these hubs
would forward a request for ever. So each plugin that runs an MCP server adds its name to the path
of each request that it forwards. The path is in the field `path` of the plugin protocol, and in the
key PATH of `_meta` in MCP. If a plugin's name is on the path already, the request has come back to
the plugin's hub, and the plugin refuses the request.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence

from msgspec import Raw
from msgspec.json import Decoder

from concertino.decode_errors import DECODE_ERRORS
from concertino.errors import INTERNAL_ERROR, INVALID_PARAMS, RpcError

__all__ = ["PATH", "extend_path", "make_step", "read_path"]

# The key of the path in the `_meta` of an MCP request. Its value is a list of strings.
PATH = "orchestra/path"
# The largest number of plugins on a path, and the longest name of a plugin, in characters. With the
# limits, a client cannot make requests large.
MAX_STEPS, MAX_STEP = 16, 128

_parse_path = Decoder(list[str]).decode


def make_step(plugin: str) -> str:
    """Return the name of a plugin's process for paths: the plugin's id and a random number.

    plugin: the plugin's id.
    """
    # The id alone is not enough, because plugins of different hubs may have the same id.
    return f"{plugin}#{secrets.token_hex(4)}"


def read_path(meta: Mapping[str, Raw]) -> list[str]:
    """Return the path in the `_meta` of an MCP request; empty if there is none.

    Raises RpcError if the value is not a list of strings, or is too long.
    """
    value = meta.get(PATH)
    if value is None:
        return []
    try:
        path = _parse_path(value)
    except DECODE_ERRORS:
        path = None
    if path is None or len(path) > MAX_STEPS or any(len(step) > MAX_STEP for step in path):
        raise RpcError(
            INVALID_PARAMS,
            f"params._meta.{PATH}: expected at most {MAX_STEPS} strings of {MAX_STEP} characters",
        )
    return path


def extend_path(path: Sequence[str], step: str) -> list[str]:
    """Return the path of a request with another plugin at its end.

    path: the names of the plugins that have passed the request on from hub to hub.
    step: the name of the plugin that passes the request on now, from make_step().
    Raises RpcError if the plugin is on the path already, or the path is too long.
    """
    whole = [*path, step]
    # The ids of the plugins, without the random numbers.
    names = " -> ".join(name.partition("#")[0] for name in whole)
    if step in path:
        raise RpcError(
            INTERNAL_ERROR,
            f"the request has come back to a hub that it has passed: {names}; "
            "these plugins connect hubs in a circle: remove one of them",
        )
    if len(whole) > MAX_STEPS:
        raise RpcError(
            INTERNAL_ERROR, f"the request has passed more than {MAX_STEPS} hubs: {names}"
        )
    return whole
