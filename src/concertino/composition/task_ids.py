"""map_task_ids(): translates between a part's own task ids and the ids that clients see.

A composition serves several backends, its parts, as one. Two parts may use the same task id, so
clients see the ids with a prefix, such as `math+1`.
Spec: 2025-11-25 basic/utilities/tasks; the extension io.modelcontextprotocol/tasks of 2026-07-28.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from msgspec import Raw

from concertino.composition.mapped_fields import map_fields

__all__ = ["RELATED_TASK", "TASKS", "TASK_METHODS", "map_task_ids"]

# The extension of 2026-07-28 for tasks.
TASKS = "io.modelcontextprotocol/tasks"
# The methods about one task, whose params contain the task's id.
TASK_METHODS = frozenset(("tasks/get", "tasks/result", "tasks/cancel", "tasks/update"))
# The key in the `_meta` of all messages that belong to a task (2025-11-25).
RELATED_TASK = "io.modelcontextprotocol/related-task"


def map_task_ids(
    result: Raw,
    map_id: Callable[[str], str | None],
) -> Raw:
    """Return a result, or params, with other task ids. Returns the same object if nothing changes.

    Task ids are in these objects:

    - a task: the result itself, its field `task`, or an item of its list `tasks`;
    - the `_meta` of messages that belong to a task.

    result: the result or the params, as a JSON object.
    map_id: called with each id; returns the new id, or None to keep the id.
    """
    return map_fields(result, "taskId", _holders, map_id)


def _holders(members: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the objects in a result that contain the id of a task."""
    meta, tasks = members.get("_meta"), members.get("tasks")
    candidates: list[Any] = [
        members,
        members.get("task"),
        cast("dict[str, Any]", meta).get(RELATED_TASK) if isinstance(meta, dict) else None,
        *(cast("list[Any]", tasks) if isinstance(tasks, list) else ()),
    ]
    return [cast("dict[str, Any]", item) for item in candidates if isinstance(item, dict)]
