"""ServerUnderTest: facts about the server that `concertino check` tests.

These are, for example, the revisions that the server supports and the tools that cases can call.
inspect_server() (run.py) finds them out before the first case.

A case causes one fault, and checks how the server reacts. Some cases need a tool, such as `echo` or
`sleep`. The check recognizes a tool by its name and the names of its arguments.
docs/reference/check.md describes what each tool must do. The check also recognizes a few tools of
the official example server, so that this server can be checked without changes.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from concertino.check.messages import Message, as_array, as_object

MIB = 2**20
# An invented key. The server gets it in the variable CHECK_API_KEY, and the case
# secret-in-exception makes a tool leak it.
SECRET = "sk-check-c0ncert1no0123456789abcdefABCDEF"


def make_environment() -> dict[str, str]:
    """Return the environment of this process, plus a secret that the server must not reveal."""
    return {**os.environ, "CHECK_API_KEY": SECRET}


class CheckSettings(Struct, frozen=True):
    """Time limits in seconds, and other settings of the check.

    timeout_s: how long to wait for a response. Cases that send megabytes or many requests wait
        three or six times as long.
    start_s: how long to wait for the first response of a process. This includes the time in which
        npx downloads the server.
    served_s: how soon the server must answer the next request after a fault.
    grace_s: how long to wait for a response that the server need not send.
    exit_s: how soon the server must end after its stdin was closed. Clients wait about as long
        before they kill a server.
    orphan_s: how soon the server must end after its parent process has ended. This leaves time for
        a server that looks for its parent only after 5 s without input.
    message_limit_bytes: the largest message that the server is expected to accept.
    era: "legacy" to check only revisions with a handshake, "modern" to check only 2026-07-28, None
        to check both. With None, a case without an era of its own uses "legacy" if the server
        supports it.
    """

    timeout_s: float = 10.0
    start_s: float = 60.0
    served_s: float = 1.0
    grace_s: float = 0.3
    exit_s: float = 5.0
    orphan_s: float = 10.0
    message_limit_bytes: int = 10 * MIB
    era: str | None = None


class ToolShape(Struct, frozen=True):
    """One form in which a server may offer a tool that cases call. TOOLS has all forms.

    name: the tool's name at the server.
    arguments: the name of an argument in the cases -> the tool's own name of the argument.
    extra: name -> value for the tool's other arguments.
    """

    name: str
    arguments: Mapping[str, str]
    extra: Mapping[str, Any] = {}


# The name of a tool in the cases -> the tools that are recognized, the preferred one first.
TOOLS: dict[str, tuple[ToolShape, ...]] = {
    "echo": (ToolShape("echo", {"text": "text"}), ToolShape("echo", {"text": "message"})),
    "sleep": (
        ToolShape("sleep", {"seconds": "seconds"}),
        # The official example server, in its present and its former spelling.
        ToolShape("trigger-long-running-operation", {"seconds": "duration"}, {"steps": 1}),
        ToolShape("longRunningOperation", {"seconds": "duration"}, {"steps": 1}),
    ),
    "block": (ToolShape("block", {"seconds": "seconds"}),),
    "fail": (ToolShape("fail", {"how": "how"}),),
    "give": (ToolShape("give", {"what": "what"}),),
    "big": (ToolShape("big", {"characters": "characters"}),),
    "say": (ToolShape("say", {"how": "how", "text": "text"}),),
    "fork": (ToolShape("fork", {"how": "how"}),),
    "disturb": (ToolShape("disturb", {}),),
    "count": (ToolShape("count", {"to": "to"}),),
    "tell_late": (ToolShape("tell_late", {}),),
    "noise": (ToolShape("noise", {"bytes": "bytes"}),),
    "leak": (ToolShape("leak", {"secret": "secret"}),),
}
# The names, in the cases, of tools that can misbehave in several ways. The ways are read from the
# enum in the tool's schema.
TOOLS_WITH_CHOICES = ("fail", "give", "say", "fork")


class CheckTool(Struct, frozen=True):
    """A tool of the server that cases can call.

    shape: the form that the server's tool has.
    choices: the allowed values of the tool's argument `how` or `what`; () for a tool without such
        an argument.
    """

    shape: ToolShape
    choices: tuple[str, ...] = ()

    def make_params(self, **arguments: object) -> Message:
        """Return the params of a tools/call, with the names of the server's tool and arguments.

        arguments: the arguments, by the names that cases use.
        """
        renamed = {self.shape.arguments[name]: value for name, value in arguments.items()}
        return {"name": self.shape.name, "arguments": {**self.shape.extra, **renamed}}


class ServerUnderTest(Struct):
    """The facts about the tested server that the cases rely on.

    command: the program and its arguments that start the server.
    settings: the settings of the check.
    name, version: the server's name and version, from its serverInfo.
    revision: the revision that was negotiated by `initialize`; "" if the server does not support
        `initialize`.
    legacy: whether the server supports a revision with a handshake, up to 2025-11-25.
    modern: whether the server supports 2026-07-28.
    offers_tools: whether the server declares the capability `tools`.
    tool_names: the names of all tools of the server.
    tools: the tools among them that cases can call: a key of TOOLS -> the server's tool.
    echo_frame: the texts that the server's echo tool adds before and after the echoed text.
    opening_s: how many seconds it took to start the server and to open a session; the longest time
        of all eras.
    obeys_eof: whether the server exits when its stdin is closed.
    notes: sentences about names and texts of the server that some clients would cut or leave out,
        because they are too long.
    """

    command: Sequence[str]
    settings: CheckSettings
    name: str = ""
    version: str = ""
    revision: str = ""
    legacy: bool = False
    modern: bool = False
    offers_tools: bool = False
    tool_names: tuple[str, ...] = ()
    tools: dict[str, CheckTool] = {}
    echo_frame: tuple[str, str] = ("", "")
    opening_s: float = 0.0
    obeys_eof: bool = True
    notes: tuple[str, ...] = ()

    def add_notes(self, *notes: str) -> None:
        """Add sentences to `notes`, except empty ones."""
        self.notes = (*self.notes, *filter(None, notes))

    @property
    def era(self) -> str:
        """Return the era of cases that name none.

        This is settings.era. If that is None, it is "legacy" if the server supports it, otherwise
        "modern".
        """
        return self.settings.era or ("legacy" if self.legacy else "modern")

    def find_lack(self, needs: Sequence[str]) -> str:
        """Return the reason why a case with these needs cannot be run; "" if it can be.

        needs: keys of TOOLS, for tools, and "legacy" and "modern", for eras. "" is ignored.
        """
        for need in needs:
            if need == "legacy" and not self.legacy:
                return "the server has no initialize handshake"
            if need == "modern" and not self.modern:
                return "the server does not speak 2026-07-28"
            if need in TOOLS and need not in self.tools:
                shape = TOOLS[need][0]
                return f"the server has no tool {shape.name}({', '.join(shape.arguments.values())})"
        return ""


def find_tools(listed: Sequence[Message]) -> dict[str, CheckTool]:
    """Return the tools that the test cases need, as far as the server has them.

    Returns a key of TOOLS, the name that the cases use -> the server's tool.
    listed: the tools in the response to tools/list.
    """
    tools: dict[str, CheckTool] = {}
    for name, shapes in TOOLS.items():
        matches = [_match_tool(tool, shape) for shape in shapes for tool in listed]
        # The first match has the preferred shape.
        for match in matches:
            if match is None or (name in TOOLS_WITH_CHOICES and not match.choices):
                continue
            tools.setdefault(name, match)
    return tools


def _match_tool(tool: Message, shape: ToolShape) -> CheckTool | None:
    """Return a listed tool as a CheckTool if it has the name and the arguments of a shape.

    Returns None if the tool has another name, lacks an argument of the shape, or requires other
    arguments.
    """
    if tool.get("name") != shape.name:
        return None
    schema = as_object(tool.get("inputSchema")) or {}
    properties = as_object(schema.get("properties", {}))
    required = as_array(schema.get("required", []))
    if properties is None or required is None:
        return None

    names = {*shape.arguments.values(), *shape.extra}
    if not names <= set(properties) or not set(map(str, required)) <= names:
        return None

    choices: tuple[str, ...] = ()
    for name in shape.arguments.values():
        if values := as_array((as_object(properties[name]) or {}).get("enum")):
            choices = tuple(value for value in values if isinstance(value, str))
    return CheckTool(shape, choices)
