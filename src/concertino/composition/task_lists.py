"""list_tasks(): joins the tasks of a composition's parts into one list.

A composition serves several backends, its parts, as one. Spec: 2025-11-25 `tasks/list`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from msgspec import Raw, Struct
from msgspec.json import decode, encode

from concertino.backend.interface import Call
from concertino.composition.composed_lists import parse_cursor
from concertino.decode_errors import DECODE_ERRORS
from concertino.errors import RpcError
from concertino.protocol.call import ServerFeatures

__all__ = ["can_list_tasks", "list_tasks"]


class _TaskPage(Struct, rename="camel"):
    """A page of `tasks/list`, with its tasks undecoded."""

    tasks: list[Raw] = []
    next_cursor: str | None = None


def can_list_tasks(features: ServerFeatures) -> bool:
    """Return whether a server with these features has the method `tasks/list`."""
    tasks = features.other_capabilities.get("tasks")
    return isinstance(tasks, dict) and "list" in tasks


async def list_tasks(
    parts: Sequence[str],
    call: Call,
    fetch: Callable[[str, Call], Awaitable[Struct | Raw]],
    report_failure: Callable[[str, str, BaseException], object],
) -> Raw:
    """Return one page of the joined list of tasks of a composition's parts.

    A composition serves several backends, its parts, as one. The page has the tasks of the parts
    one after the other. If a part's list has more pages, the joined page ends with this part. A
    part whose answer is an error, or is not a page of tasks, is left out.
    parts: the names of the parts that list tasks, in the order of the composition.
    call: the client's request.
    fetch: called with the name of a part and the request for it; sends the request, and returns the
        result with the task ids that clients see.
    report_failure: called with the name of a part that is left out, `tasks/list` and the error.
    Raises RpcError for a cursor that no list has returned.
    """
    at, params = parse_cursor(call.params, parts)
    tasks: list[Raw] = []
    for name in parts[at:]:
        try:
            result = await fetch(name, Call(call.method, params, call.meta))
            page = decode(result if isinstance(result, Raw) else encode(result), type=_TaskPage)
        except (RpcError, *DECODE_ERRORS) as exc:
            report_failure(name, call.method, exc)
            continue
        tasks += page.tasks
        if page.next_cursor is not None:
            return _encode_page(tasks, f"{name}:{page.next_cursor}")
        # The client's cursor is for the first part only.
        params = {member: value for member, value in params.items() if member != "cursor"}
    return _encode_page(tasks, next_cursor=None)


def _encode_page(tasks: list[Raw], next_cursor: str | None) -> Raw:
    page: dict[str, Any] = {"tasks": tasks}
    if next_cursor is not None:
        page["nextCursor"] = next_cursor
    return Raw(encode(page))
