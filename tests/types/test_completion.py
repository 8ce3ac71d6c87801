"""types/completion.py, by the examples of the specification (2025-06-18
server/utilities/completion).
"""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from concertino.types.completion import (
    CompleteParams,
    CompletionArgument,
    CompletionContext,
    PromptReference,
    ResourceTemplateReference,
)

PROMPT: dict[str, Any] = {
    "ref": {"type": "ref/prompt", "name": "code_review"},
    "argument": {"name": "framework", "value": "fla"},
    "context": {"arguments": {"language": "python"}},
}
TEMPLATE: dict[str, Any] = {
    "ref": {"type": "ref/resource", "uri": "file:///{path}"},
    "argument": {"name": "path", "value": ""},
}


@pytest.mark.parametrize(
    ("message", "params"),
    [
        (
            PROMPT,
            CompleteParams(
                PromptReference("code_review"),
                CompletionArgument("framework", "fla"),
                CompletionContext({"language": "python"}),
            ),
        ),
        (
            TEMPLATE,
            CompleteParams(
                ResourceTemplateReference("file:///{path}"), CompletionArgument("path", "")
            ),
        ),
    ],
)
def test_params_are_read_and_written(message: dict[str, Any], params: CompleteParams) -> None:
    assert msgspec.json.decode(json.dumps(message), type=CompleteParams) == params
    assert json.loads(msgspec.json.encode(params)) == message


@pytest.mark.parametrize(
    "message",
    [
        PROMPT | {"ref": {"type": "ref/tool", "name": "x"}},
        PROMPT | {"argument": {"name": "framework"}},
        PROMPT | {"context": {"arguments": {"language": 1}}},
        {"argument": PROMPT["argument"]},
    ],
)
def test_other_params_are_refused(message: dict[str, Any]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(json.dumps(message), type=CompleteParams)
