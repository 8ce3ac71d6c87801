"""Finds the call that a task handles and the line that a thread executes, for warnings.

Every function may be called from any thread. Nothing is recorded in advance, so calls are not
slowed down.
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

# Most characters of a name that a warning shows.
SHOWN = 128

KINDS = {"tools/call": "tool", "resources/read": "resource", "prompts/get": "prompt"}

# Folders whose code is not the author's: concertino, the standard library, installed packages.
_OURS = __file__.rpartition("/runtime/")[0] + "/"
# Not from sysconfig, which takes 2 ms: the first call of a server waits for this module to load.
_STANDARD_LIBRARY = os.__file__.rpartition("/")[0] + "/"
_PACKAGES = ("/site-packages/", "/dist-packages/")


class Place(Struct, frozen=True):
    """The line of the server author's code that a thread executes.

    function: qualified name of the author's function that concertino called.
    file, line: of the author's innermost frame, which may be in a function called by that one.
    """

    function: str
    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


def call_of(task: asyncio.Task[Any]) -> str | None:
    """Return the call that a task handles, in the form of a warning, such as `tool 'add'`.

    None if the task handles no call.
    """
    request = subject_of(task)
    if not isinstance(request, SessionRequest):
        return None
    call = request.call
    kind, name = KINDS.get(call.method), call.name
    return call.method if kind is None or name is None else f"{kind} {shorten(name, SHOWN)!r}"


def place_of_thread(thread: int) -> Place | None:
    """Return the line of the server author's code that a thread executes.

    thread: the thread's identifier. Only the code that concertino has called counts, or all code if
    concertino is not on the stack. If none of that is the author's, the line and function are those
    of library code. None if concertino has called no code, or if there is no such thread.
    """
    frames: list[FrameType] = []
    frame = sys._current_frames().get(thread)  # pyright: ignore[reportPrivateUsage]
    while frame is not None:
        frames.append(frame)
        frame = frame.f_back

    # Innermost first. Frames that called concertino, such as the author's line with run(), are not
    # part of a handler.
    ours = [index for index, item in enumerate(frames) if item.f_code.co_filename.startswith(_OURS)]
    called = frames[: ours[0]] if ours else frames
    own = [item for item in called if not _is_library(item.f_code.co_filename)] or called
    if not own:
        return None
    innermost, outermost = own[0], own[-1]
    file = innermost.f_code.co_filename.rpartition("/")[2]
    return Place(outermost.f_code.co_qualname, file, innermost.f_lineno)


def _is_library(file: str) -> bool:
    """Return whether a file belongs to concertino, the standard library or an installed package."""
    return file.startswith((_OURS, "<frozen ", _STANDARD_LIBRARY)) or any(
        folder in file for folder in _PACKAGES
    )
