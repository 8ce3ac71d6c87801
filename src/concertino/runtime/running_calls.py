"""Says which calls tasks and threads are running, and where these stand, for warnings.

Everything here may be called from any thread, and costs nothing before it is called.
"""

from __future__ import annotations

import asyncio
import os
import sys
from types import FrameType
from typing import Any

from msgspec import Struct

from concertino.excerpts import shorten
from concertino.protocol.request_profile import SessionRequest
from concertino.runtime.tasks import subject_of

__all__ = ["Place", "call_of", "place_of_thread"]

# Characters of a name that a warning shows.
SHOWN = 128

KINDS = {"tools/call": "tool", "resources/read": "resource", "prompts/get": "prompt"}

# Code of these is not the author's: ours, the standard library and installed packages.
_OURS = __file__.rpartition("/runtime/")[0] + "/"
# Not asked of sysconfig, which takes 2 ms: the first call of a server waits for this module.
_STANDARD_LIBRARY = os.__file__.rpartition("/")[0] + "/"
_PACKAGES = ("/site-packages/", "/dist-packages/")


class Place(Struct, frozen=True):
    """Where the author's code stands.

    function: the outermost function of it. file, line: its innermost line.
    """

    function: str
    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


def call_of(task: asyncio.Task[Any]) -> str | None:
    """Return the call that a task of the runtime handles, such as `tool 'add'`.

    None for other tasks.
    """
    request = subject_of(task)
    if not isinstance(request, SessionRequest):
        return None
    call = request.call
    kind, name = KINDS.get(call.method), call.name
    return call.method if kind is None or name is None else f"{kind} {shorten(name, SHOWN)!r}"


def place_of_thread(thread: int) -> Place | None:
    """Return where the author's code in a thread stands, given the thread's identifier.

    Without any code of the author it is the innermost line of all but ours and asyncio's. None if
    there is no such line, or no such thread.
    """
    frames: list[FrameType] = []
    frame = sys._current_frames().get(thread)  # pyright: ignore[reportPrivateUsage]
    while frame is not None:
        frames.append(frame)
        frame = frame.f_back

    # Innermost first. What runs the server, such as the line with run(), lies outside of our code.
    ours = [index for index, item in enumerate(frames) if item.f_code.co_filename.startswith(_OURS)]
    called = frames[: ours[0]] if ours else frames
    own = [item for item in called if not _is_library(item.f_code.co_filename)] or called
    if not own:
        return None
    innermost, outermost = own[0], own[-1]
    file = innermost.f_code.co_filename.rpartition("/")[2]
    return Place(outermost.f_code.co_qualname, file, innermost.f_lineno)


def _is_library(file: str) -> bool:
    """Return whether a file is ours, of the standard library or of an installed package."""
    return file.startswith((_OURS, "<frozen ", _STANDARD_LIBRARY)) or any(
        folder in file for folder in _PACKAGES
    )
