"""OtherMethods: the capabilities and methods of extensions, which MCP itself does not define.

A request of an extension goes to one part only: the params are nobody else's business.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any, cast

from msgspec.structs import replace

from concertino.composition.task_ids import TASKS
from concertino.errors import METHOD_NOT_FOUND, RpcError
from concertino.protocol.call import ServerFeatures

__all__ = ["OtherMethods", "has_tasks"]

log = logging.getLogger("concertino.composition")

# The members of ServerFeatures with capabilities that concertino does not interpret.
OPEN_CAPABILITIES = ("experimental", "extensions", "other_capabilities")


def has_tasks(features: ServerFeatures) -> bool:
    """Return whether calls of a part may become tasks, in either era."""
    return TASKS in features.extensions or "tasks" in features.other_capabilities


class OtherMethods:
    """Joins the capabilities of parts that concertino does not interpret, and finds their parts."""

    def __init__(self) -> None:
        # What two parts declare differently, and was logged.
        self._clashes: set[tuple[str, str]] = set()

    def add_capabilities(
        self,
        features: ServerFeatures,
        parts: Mapping[str, ServerFeatures],
    ) -> ServerFeatures:
        """Return features with such capabilities of all parts. Of two settings, the first wins."""
        joined: dict[str, dict[str, Any]] = {member: {} for member in OPEN_CAPABILITIES}
        owners: dict[tuple[str, str], str] = {}
        for part, declared in parts.items():
            for member, capabilities in joined.items():
                for name, settings in getattr(declared, member).items():
                    owner = owners.setdefault((member, name), part)
                    if name in (TASKS, "tasks"):
                        # Task ids say whose they are, so several parts may have tasks.
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
        if (name, second) not in self._clashes:
            self._clashes.add((name, second))
            log.warning(
                "both %s and %s have the capability %s: its requests go to %s",
                first,
                second,
                name,
                first,
            )

    def find(self, method: str, parts: Mapping[str, ServerFeatures]) -> str:
        """Return the part that gets the requests of a method that the specification lacks.

        That is the first one that declares a capability with the name of the method's beginning;
        otherwise the only one that declares any, or else the only one that takes such requests.
        Raises RpcError if it is not clear which part is meant.
        parts: those that serve, in order.
        """
        takers = {name: part for name, part in parts.items() if part.other_methods}
        for name, part in takers.items():
            if any(_covers(capability, method) for capability in _open_names(part)):
                return name
        declaring = [name for name, part in takers.items() if any(_open_names(part))]
        for candidates in (declaring, list(takers)):
            if len(candidates) == 1:
                return candidates[0]
        text = f"method not found: {method[:80]}"
        if takers:
            text += f": none of {', '.join(takers)} declares a capability of this name"
        raise RpcError(METHOD_NOT_FOUND, text)


def _open_names(features: ServerFeatures) -> Iterable[str]:
    """Return the names of all capabilities that concertino does not interpret."""
    return (name for member in OPEN_CAPABILITIES for name in getattr(features, member))


def _covers(capability: str, method: str) -> bool:
    """Return whether a method is that of a capability.

    That is `acme/run` of a capability `acme`, and `com.acme/x/run` or `x/run` of `com.acme/x`.
    """
    short = capability.rpartition("/")[2]
    return method.startswith((f"{capability}/", f"{short}/"))


def _join(first: Any, second: Any) -> Any:
    """Return the settings of both; those of the first win where they cannot be joined."""
    if not isinstance(first, dict) or not isinstance(second, dict):
        return cast("Any", first)
    joined = dict(cast("dict[str, Any]", first))
    for name, value in cast("dict[str, Any]", second).items():
        joined[name] = _join(joined[name], value) if name in joined else value
    return joined
