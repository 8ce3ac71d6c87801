"""The features of a proxy: what its server has declared, as the proxy's clients see it.

A Proxy declares to its clients what its server has declared: tools, prompts, resources and so on.
Before the server has started, and if nothing is known from an earlier run, it declares everything.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from concertino.client.client import Client
from concertino.protocol.call import ServerFeatures
from concertino.protocol.revisions import REVISION_BY_NAME
from concertino.proxy.manifest_cache import Manifest
from concertino.types.results import Implementation

__all__ = ["features_before_start", "features_of"]

# The capabilities that have fields in ServerFeatures.
KNOWN = frozenset(
    ("tools", "prompts", "resources", "completions", "logging", "experimental", "extensions")
)


def features_of(server: Client | Manifest) -> ServerFeatures:
    """Return the features that a server declares.

    server: a Client with an open connection to the server, or a Manifest, the features and lists
        that were stored in the server's last run.
    """
    if isinstance(server, Manifest):
        info, revision = server.info, server.revision
    else:
        info, revision = server.server_info, server.protocol_version
    declared = server.capabilities
    resources = _settings(declared, "resources")
    # Revision 2024-11-05 has completion, but no capability for it.
    completions = "completions" in declared or not REVISION_BY_NAME[revision].completions
    return ServerFeatures(
        info,
        server.instructions,
        tools="tools" in declared,
        prompts="prompts" in declared,
        resources="resources" in declared,
        completions=completions,
        logging="logging" in declared,
        experimental=_settings(declared, "experimental"),
        extensions=_settings(declared, "extensions"),
        subscriptions=resources.get("subscribe") is True,
        other_capabilities={name: declared[name] for name in declared if name not in KNOWN},
        other_methods=True,
    )


def _settings(declared: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    settings = declared.get(name)
    return cast("Mapping[str, Any]", settings) if isinstance(settings, Mapping) else {}


def features_before_start(name: str) -> ServerFeatures:
    """Return the features of a server that has not started: all, because it may have any of them.

    name: the name of the server.
    """
    return ServerFeatures(
        Implementation(name, version=""),
        tools=True,
        prompts=True,
        resources=True,
        completions=True,
        logging=True,
        subscriptions=True,
        other_methods=True,
    )
