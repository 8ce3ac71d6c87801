"""Finds out which call a task handles, and which line a thread executes, for log warnings.

    call_of(task)                # "tool 'add'"
    str(place_of_thread(ident))  # "calculator.py:12"

Both functions read the task's frames and the thread's stack at the moment of the warning, so calls
need not record anything and are not slowed down. Both may be called from any thread.
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

__all__ = ["Place", "call_of", "place_of_thread", "waits_for_thread"]

# A warning shows at most this many characters of a tool's name.
SHOWN_CHARS = 128

# Method -> the noun for what it calls, as in `tool 'add'`. The table KINDS of backend/methods.py is
# the same, but its module imports types that would delay the first call.
NOUNS = {"tools/call": "tool", "resources/read": "resource", "prompts/get": "prompt"}

# The directories of concertino and of the standard library. Code there, and in installed packages,
# was not written by the author of the server.
_OURS = __file__.rpartition("/runtime/")[0] + "/"
# sysconfig knows this directory too, but importing it would delay a server's first call by 2 ms.
_STANDARD_LIBRARY = os.__file__.rpartition("/")[0] + "/"
_PACKAGES = ("/site-packages/", "/dist-packages/")


class Place(Struct, frozen=True):
    """The line of the server author's code that a thread executes.

    function: the qualified name of the handler, the author's function that concertino has called.
    file, line: the current line, in the handler or in a function that the handler has called.
        `file` is a file name without a directory.
    """

    function: str
    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


def call_of(task: asyncio.Task[Any]) -> str | None:
    """Return a description of the call that a task handles, such as `tool 'add'` or `tools/list`.

    Returns None if the task handles no call of a client.
    """
    request = subject_of(task)
    if not isinstance(request, SessionRequest):
        return None
    call = request.call
    noun, name = NOUNS.get(call.method), call.name
    if noun is None or name is None:
        return call.method
    return f"{noun} {shorten(name, SHOWN_CHARS)!r}"


def place_of_thread(thread: int) -> Place | None:
    """Return the innermost line of the server author's code that a thread executes.

    If a thread executes no code of the author, but code of a library that concertino has called,
    returns the innermost line of the library.
    thread: the thread's identifier, from threading.get_ident().
    Returns None if there is no such thread, or if it executes concertino's own code.
    """
    frames: list[FrameType] = []
    frame = sys._current_frames().get(thread)  # pyright: ignore[reportPrivateUsage]
    while frame is not None:
        frames.append(frame)
        frame = frame.f_back

    # The innermost frame comes first. The frames before the first frame of concertino are the
    # frames that concertino has called. Ignore those that have called concertino, such as the line
    # with server.run().
    ours = [index for index, item in enumerate(frames) if item.f_code.co_filename.startswith(_OURS)]
    called = frames[: ours[0]] if ours else frames
    # Without a frame of the author, such as for a handler from a library, take all of them.
    own = [item for item in called if not _is_library(item.f_code.co_filename)] or called
    if not own:
        return None
    innermost, outermost = own[0], own[-1]
    file = innermost.f_code.co_filename.rpartition("/")[2]
    return Place(outermost.f_code.co_qualname, file, innermost.f_lineno)


def waits_for_thread(thread: int) -> bool:
    """Return whether a thread waits in a method of the module threading, such as Event.wait().

    Queues and futures use these methods, too.
    thread: the thread's identifier, from threading.get_ident().
    Returns False if there is no such thread.
    """
    frame = sys._current_frames().get(thread)  # pyright: ignore[reportPrivateUsage]
    return frame is not None and frame.f_globals.get("__name__") == "threading"


def _is_library(file: str) -> bool:
    """Return whether a file belongs to concertino, the standard library or an installed package."""
    return file.startswith((_OURS, "<frozen ", _STANDARD_LIBRARY)) or any(
        folder in file for folder in _PACKAGES
    )
