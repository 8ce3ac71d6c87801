"""OtherMethods: finds the part that handles a method which MCP itself does not define.

Such methods belong to extensions. A request of an extension is sent to one part only, because no
other part would understand its params.
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

# The members of ServerFeatures that contain capabilities which concertino does not interpret.
OPEN_CAPABILITIES = ("experimental", "extensions", "other_capabilities")


def has_tasks(features: ServerFeatures) -> bool:
    """Return whether calls of a part may become tasks, of 2025-11-25 or of the extension."""
    return TASKS in features.extensions or "tasks" in features.other_capabilities


class OtherMethods:
    """Joins the parts' capabilities that concertino does not interpret, and routes by them."""

    def __init__(self) -> None:
        # Each clash that has been logged: the name of the capability, and the later of the two
        # parts.
        self._clashes: set[tuple[str, str]] = set()

    def add_capabilities(
        self,
        features: ServerFeatures,
        parts: Mapping[str, ServerFeatures],
    ) -> ServerFeatures:
        """Return the features with the capabilities of all parts. The first part's settings win."""
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
        """Return the part to which the requests of a method of an extension are sent.

        This is the first part with a capability whose name the method begins with. If there is
        none, it is the only part with any capability that concertino does not interpret, or else
        the only part that accepts requests of other methods. Raises RpcError if that leaves no
        part, or several.
        parts: the features of the parts that have started, in the order of the composition.
        """
        accepting = {name: part for name, part in parts.items() if part.other_methods}
        for name, part in accepting.items():
            if any(_covers(capability, method) for capability in _open_names(part)):
                return name
        declaring = [name for name, part in accepting.items() if any(_open_names(part))]
        for candidates in (declaring, list(accepting)):
            if len(candidates) == 1:
                return candidates[0]
        text = f"method not found: {method[:80]}"
        if accepting:
            text += f": none of {', '.join(accepting)} declares a capability of this name"
        raise RpcError(METHOD_NOT_FOUND, text)


def _open_names(features: ServerFeatures) -> Iterable[str]:
    """Return the names of all capabilities that concertino does not interpret."""
    return (name for member in OPEN_CAPABILITIES for name in getattr(features, member))


def _covers(capability: str, method: str) -> bool:
    """Return whether a method belongs to a capability.

    The method `acme/run` belongs to the capability `acme`, and `com.acme/x/run` and `x/run` belong
    to `com.acme/x`.
    """
    short = capability.rpartition("/")[2]
    return method.startswith((f"{capability}/", f"{short}/"))


def _join(first: Any, second: Any) -> Any:
    """Return the settings of both. Where they contradict each other, the first ones win."""
    if not isinstance(first, dict) or not isinstance(second, dict):
        return cast("Any", first)
    joined = dict(cast("dict[str, Any]", first))
    for name, value in cast("dict[str, Any]", second).items():
        joined[name] = _join(joined[name], value) if name in joined else value
    return joined
