"""find_part(): finds the part that handles a method which MCP itself does not define.

Such methods belong to extensions. A request of an extension is sent to one part only, because no
other part would understand its params.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from concertino.composition.task_ids import TASKS
from concertino.errors import METHOD_NOT_FOUND, RpcError
from concertino.protocol.call import ServerFeatures

__all__ = ["OPEN_CAPABILITIES", "find_part", "has_tasks"]

# The attributes of ServerFeatures with capabilities that concertino does not interpret. Only the
# capabilities for tasks in them are interpreted, by has_tasks() and task_lists.py.
OPEN_CAPABILITIES = ("experimental", "extensions", "other_capabilities")


def has_tasks(features: ServerFeatures) -> bool:
    """Return whether a server with these features may run calls as tasks."""
    # Revision 2025-11-25 has a capability for tasks, and 2026-07-28 has an extension.
    return TASKS in features.extensions or "tasks" in features.other_capabilities


def find_part(method: str, parts: Mapping[str, ServerFeatures]) -> str:
    """Return the name of the part to which requests with a method of an extension are sent.

    A composition serves several backends, its parts, as one. Candidates are the parts that accept
    unknown methods (`ServerFeatures.other_methods`). The first rule that fits decides:

    1. The first candidate that declares a capability to which the method belongs, such as `acme`
       for the method `acme/run`.
    2. The only candidate that declares any capability which concertino does not interpret.
    3. The only candidate.

    method: the method of the request, such as `acme/run`.
    parts: name -> features of the parts that have started, in the order of the composition.
    Raises RpcError if no rule fits.
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

    The method `acme/run` belongs to the capability `acme`. Both `com.acme/x/run` and `x/run` belong
    to `com.acme/x`.
    """
    short = capability.rpartition("/")[2]
    return method.startswith((f"{capability}/", f"{short}/"))
