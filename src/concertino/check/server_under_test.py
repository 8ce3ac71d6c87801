"""The server under check: which eras it speaks and which of the tools that cases look for it has. Found out once.

A tool is found by its name and by the names of its arguments. What it must do is told in docs/reference/check.md. A few tools of
the official example server are known by their names too, so that it can be checked as it is.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from concertino.check.messages import Message, list_of, object_of

__all__ = [
    "SECRET",
    "TOOLS",
    "ServerUnderTest",
    "Settings",
    "Shape",
    "ToolShape",
    "environment",
    "find_tools",
]

MIB = 2**20
SECRET = (
    "sk-check-c0ncert1no0123456789abcdefABCDEF"  # a made-up key; children find it in CHECK_API_KEY
)


def environment() -> dict[str, str]:
    """What a child finds: our own, and a secret that it is not to show (case secret-in-exception)."""
    return {**os.environ, "CHECK_API_KEY": SECRET}


class Settings(Struct, frozen=True):
    """How to check. Times in seconds, sizes in bytes.

    timeout_s: the longest wait for an answer. start_s: for the first answer of a process (npx may fetch the server first).
    served_s: within which the next request must be served. grace_s: how long an answer that may stay away is waited for.
    era: "legacy" or "modern" to insist on one, None for legacy where there is both.
    """

    timeout_s: float = 10.0
    start_s: float = 60.0
    served_s: float = 1.0
    grace_s: float = 0.3
    message_limit_bytes: int = 10 * MIB
    era: str | None = None


class Shape(Struct, frozen=True):
    """A name and arguments by which a tool is known. arguments: ours -> the tool's. extra: what the tool wants besides."""

    name: str
    arguments: Mapping[str, str]
    extra: Mapping[str, Any] = {}


TOOLS: dict[str, tuple[Shape, ...]] = {
    "echo": (Shape("echo", {"text": "text"}), Shape("echo", {"text": "message"})),
    "sleep": (
        Shape("sleep", {"seconds": "seconds"}),
        Shape("trigger-long-running-operation", {"seconds": "duration"}, {"steps": 1}),
        Shape("longRunningOperation", {"seconds": "duration"}, {"steps": 1}),
    ),
    "block": (Shape("block", {"seconds": "seconds"}),),
    "fail": (Shape("fail", {"how": "how"}),),
    "give": (Shape("give", {"what": "what"}),),
    "big": (Shape("big", {"characters": "characters"}),),
    "say": (Shape("say", {"how": "how", "text": "text"}),),
    "fork": (Shape("fork", {"how": "how"}),),
    "disturb": (Shape("disturb", {}),),
    "count": (Shape("count", {"to": "to"}),),
    "tell_late": (Shape("tell_late", {}),),
    "noise": (Shape("noise", {"bytes": "bytes"}),),
    "leak": (Shape("leak", {"secret": "secret"}),),
}


class ToolShape(Struct, frozen=True):
    """A tool that was found. choices: the values its `how` or `what` may have, from the schema's enum."""

    shape: Shape
    choices: tuple[str, ...] = ()

    def params(self, **arguments: object) -> Message:
        """The params of tools/call."""
        given = {self.shape.arguments[name]: value for name, value in arguments.items()}
        return {"name": self.shape.name, "arguments": {**self.shape.extra, **given}}


class ServerUnderTest(Struct):
    """What is known about the server. revision: negotiated in the handshake. around: what its echo adds before and
    behind the text."""

    command: Sequence[str]
    settings: Settings
    name: str = ""
    version: str = ""
    revision: str = ""
    legacy: bool = False
    modern: bool = False
    tools: dict[str, ToolShape] = {}
    tool_names: tuple[str, ...] = ()
    around: tuple[str, str] = ("", "")
    opening_s: float = 0.0  # how long the first opening took
    obeys_eof: bool = True  # it ended in time after the end of its input
    concurrent: bool | None = None  # whether sleeps run side by side; None: not known yet

    @property
    def era(self) -> str:
        """In which cases speak that do not ask for one."""
        return self.settings.era or ("legacy" if self.legacy else "modern")

    def lacks(self, needs: Sequence[str]) -> str:
        """Why a case cannot be tried with this server; empty if it can."""
        for each in needs:
            if each == "legacy" and not self.legacy:
                return "the server has no initialize handshake"
            if each == "modern" and not self.modern:
                return "the server does not speak 2026-07-28"
            if each in TOOLS and each not in self.tools:
                first = TOOLS[each][0]
                return f"the server has no tool {first.name}({', '.join(first.arguments.values())})"
        return ""


def find_tools(listed: Sequence[Message]) -> dict[str, ToolShape]:
    """Those of TOOLS among the tools a server listed."""
    found: dict[str, ToolShape] = {}
    for known, shapes in TOOLS.items():
        for shape in shapes:
            for tool in listed:
                if (
                    known not in found
                    and tool.get("name") == shape.name
                    and (made := _fits(tool, shape))
                ):
                    found[known] = made
    return found


def _fits(tool: Message, shape: Shape) -> ToolShape | None:
    """A listed tool takes what we would give, and nothing else is required."""
    schema = object_of(tool.get("inputSchema")) or {}
    properties = object_of(schema.get("properties", {}))
    required = list_of(schema.get("required", []))
    if properties is None or required is None:
        return None
    given = {*shape.arguments.values(), *shape.extra}
    if not given <= set(properties) or not set(map(str, required)) <= given:
        return None
    choices: tuple[str, ...] = ()
    for name in shape.arguments.values():
        if listed := list_of((object_of(properties[name]) or {}).get("enum")):
            choices = tuple(each for each in listed if isinstance(each, str))
    if shape.name in ("fail", "give", "say", "fork") and not choices:
        return None  # without the list of what it can do there is nothing to ask for
    return ToolShape(shape, choices)
