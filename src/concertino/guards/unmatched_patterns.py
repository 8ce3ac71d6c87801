"""Logs warnings about `allow` patterns that match no operation.

A typo in such a pattern would hide operations that clients need. Guard calls warn_of_unmatched()
when it has started.
"""

from __future__ import annotations

import logging

from concertino.backend.interface import Backend
from concertino.backend.listing import list_names
from concertino.decode_errors import DECODE_ERRORS
from concertino.errors import ConcertinoError
from concertino.excerpts import shorten
from concertino.guards.operation_names import Visibility

__all__ = ["warn_of_unmatched"]

log = logging.getLogger("concertino.guards")

# A warning lists at most this many characters of names.
MAX_NAMES = 500


async def warn_of_unmatched(backend: Backend, visibility: Visibility) -> None:
    """Log a warning for each `allow` pattern that matches no tool, prompt or resource of a backend.

    The patterns for tools are not checked if the backend has no tools or cannot list them now. The
    same holds for prompts and resources.
    visibility: the patterns `allow` and `deny`, which decide what clients may see.
    """
    features = backend.features()
    offered = {
        "tool": features.tools,
        "prompt": features.prompts,
        # If there are templates, patterns may match resources that are not listed.
        "resource": features.resources and not await _list("resources/templates/list", backend),
    }
    for kind, is_offered in offered.items():
        names = await _list(f"{kind}s/list", backend) if is_offered else []
        if not names:
            continue
        visible = [name for name in names if visibility.allows(kind, name)]
        effect = "" if visible else f", so clients see no {kind}s"
        for pattern in visibility.unmatched(kind, names):
            log.warning(
                "allow %r: no %s has such a name%s; there are: %s",
                pattern,
                kind,
                effect,
                shorten(", ".join(names), MAX_NAMES),
            )


async def _list(method: str, backend: Backend) -> list[str]:
    """Return the names that a backend lists; [] if listing fails."""
    try:
        # "allow" is the label in errors, which are ignored.
        return await list_names("allow", backend, method)
    except (ConcertinoError, *DECODE_ERRORS):
        return []
