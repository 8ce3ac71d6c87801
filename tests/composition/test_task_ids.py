"""task_ids.py: where the ids of tasks stand in what a part sends."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import Raw
from msgspec.json import decode, encode

from concertino.composition.task_ids import map_task_ids

RELATED = "io.modelcontextprotocol/related-task"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"taskId": "1", "a": 2}, {"taskId": "p+1", "a": 2}),
        ({"task": {"taskId": "1"}}, {"task": {"taskId": "p+1"}}),
        ({"resultType": "task", "taskId": "1"}, {"resultType": "task", "taskId": "p+1"}),
        (
            {"tasks": [{"taskId": "1"}, {"taskId": "2"}]},
            {"tasks": [{"taskId": "p+1"}, {"taskId": "p+2"}]},
        ),
        ({"_meta": {RELATED: {"taskId": "1"}}}, {"_meta": {RELATED: {"taskId": "p+1"}}}),
    ],
)
def test_ids_of_tasks_are_mapped(given: Any, expected: Any) -> None:
    assert decode(map_task_ids(Raw(encode(given)), lambda id: f"p+{id}")) == expected


@pytest.mark.parametrize(
    "text",
    [
        b'{"content":[]}',
        b'{"structuredContent":{"taskId":"1"},"content":[{"text":"\\"taskId\\""}]}',
        b'{"taskId":1}',
        b'["taskId"]',
        b'{"task":"taskId","tasks":"taskId","_meta":{"taskId":"1"}}',
    ],
)
def test_a_result_without_a_task_is_the_same_object(text: bytes) -> None:
    raw = Raw(text)
    assert map_task_ids(raw, lambda id: f"p+{id}") is raw


def test_an_id_of_nobody_stays() -> None:
    raw = Raw(b'{"taskId":"1"}')
    assert map_task_ids(raw, lambda id: None) is raw
