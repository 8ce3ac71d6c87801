"""ComposedFeatures: joins the features of the parts of a composition.

The features of a part are what it offers, such as tools and subscriptions; a server declares them
to its clients as capabilities. A feature that one part has is a feature of the composition.
Capabilities of extensions, which concertino does not interpret, are joined by their names.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, cast

from msgspec.structs import replace

from concertino.composition.other_methods import OPEN_CAPABILITIES
from concertino.composition.task_ids import TASKS
from concertino.protocol.call import ServerFeatures
from concertino.types.results import Implementation

__all__ = ["ComposedFeatures"]

log = logging.getLogger("concertino.composition")


class ComposedFeatures:
    """Joins the features of the parts of a composition, which serves several backends as one.

    info: the name and version of the server that clients see.
    """

    def __init__(self, info: Implementation) -> None:
        self._info = info
        # The logged clashes: a capability, and the later one of the two parts that declare it.
        self._clashes: set[tuple[str, str]] = set()

    def join(self, features: Mapping[str, ServerFeatures]) -> ServerFeatures:
        """Return the features of the composition.

        - `tools`, `prompts` and so on are True if one part has them.
        - The instructions of the parts are joined, each with the name of its part before it.
        - The hints for caches are the strictest of all parts.
        - Capabilities that concertino does not interpret are joined by name. If two parts declare a
          capability, the settings of the first part are used, and a warning is logged.

        features: name of the part -> its features, in the order of the composition.
        """
        instructions = [
            f"{name}: {part.instructions}" for name, part in features.items() if part.instructions
        ]
        parts = features.values()
        public = all(part.cache_scope == "public" for part in parts)
        composed = ServerFeatures(
            self._info,
            instructions="\n\n".join(instructions) or None,
            tools=any(part.tools for part in parts),
            prompts=any(part.prompts for part in parts),
            resources=any(part.resources for part in parts),
            completions=any(part.completions for part in parts),
            logging=any(part.logging for part in parts),
            subscriptions=any(part.subscriptions for part in parts),
            ttl_ms=min((part.ttl_ms for part in parts), default=0),
            cache_scope="public" if public else "private",
        )
        return self._add_capabilities(composed, features)

    def _add_capabilities(
        self,
        features: ServerFeatures,
        parts: Mapping[str, ServerFeatures],
    ) -> ServerFeatures:
        """Return features with the capabilities of extensions that the parts declare.

        If two parts declare the same capability, the settings of the first part are used, and a
        warning is logged.
        features: the joined features, without these capabilities.
        parts: name -> features of the part.
        """
        joined: dict[str, dict[str, Any]] = {member: {} for member in OPEN_CAPABILITIES}
        owners: dict[tuple[str, str], str] = {}
        for part, declared in parts.items():
            for member, capabilities in joined.items():
                for name, settings in getattr(declared, member).items():
                    owner = owners.setdefault((member, name), part)
                    if name in (TASKS, "tasks"):
                        # Several parts may have tasks, because each task id that clients see names
                        # its part.
                        settings = _join(capabilities.get(name, {}), settings)
                    elif owner != part:
                        self._report_clash(name, owner, part)
                        continue
                    capabilities[name] = settings
        return replace(
            features, **joined, other_methods=any(part.other_methods for part in parts.values())
        )

    def _report_clash(
        self,
        name: str,
        first: str,
        second: str,
    ) -> None:
        """Log that two parts declare the same capability, unless it was logged before."""
        if (name, second) not in self._clashes:
            self._clashes.add((name, second))
            log.warning(
                "both %s and %s have the capability %s: its requests go to %s",
                first,
                second,
                name,
                first,
            )


def _join(first: Any, second: Any) -> Any:
    """Merge two JSON values: objects recursively; otherwise the first value is used."""
    if not isinstance(first, dict) or not isinstance(second, dict):
        return cast("Any", first)
    joined = dict(cast("dict[str, Any]", first))
    for name, value in cast("dict[str, Any]", second).items():
        joined[name] = _join(joined[name], value) if name in joined else value
    return joined
