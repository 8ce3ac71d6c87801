"""Why a server cannot start, as the one sentence that its clients get."""

from __future__ import annotations

import os
from pathlib import Path
from typing import cast

from concertino.backend.user_errors import advice
from concertino.errors import ConcertinoError, TargetError
from concertino.excerpts import shorten
from concertino.logs.formats import escape_controls
from concertino.logs.redact import refresh

__all__ = ["describe_failure", "describe_raised", "start_failure_text"]

MAX_CHARS = 1000
# Code in these folders is not the user's: a line of it would explain nothing.
LIBRARIES = tuple(
    f"{folder}{os.sep}"
    for folder in (Path(__file__).absolute().parent.parent, Path(os.__file__).parent)
)
PACKAGES = ("site-packages", "dist-packages")


def start_failure_text(failure: BaseException | str) -> str:
    """Return the sentence `cannot start: ...`: one line, shortened, without secrets.

    failure: the exception, or a description of the failure.
    """
    reason = failure if isinstance(failure, str) else describe_failure(failure)
    # The module that failed may have put secrets into os.environ.
    clean = refresh().text(f"cannot start: {reason}")
    lines = (line.strip() for line in clean.splitlines())
    return shorten(escape_controls(" ".join(filter(None, lines))), MAX_CHARS)


def describe_failure(exc: BaseException) -> str:
    """Return the text of describe_raised(), for a group that of its first exception.

    Errors whose text is written for the user, as that of
    a TargetError is, are described by it alone.
    """
    while isinstance(exc, BaseExceptionGroup):
        # BaseExceptionGroup is generic.
        exc = cast("BaseException", exc.exceptions[0])
    text = _text(exc)
    if text and type(exc) in (TargetError, ConcertinoError):
        # The error of a part, whose place is in the cause.
        return text if exc.__cause__ is None else f"{text}{_location(exc.__cause__)}"
    return describe_raised(exc)


def describe_raised(exc: BaseException) -> str:
    """Return the type of an exception, its text, and the user's line that raised it.

    And what to do about it, as far as that is known: see advice().
    """
    text, step = _text(exc), advice(exc)
    return f"{type(exc).__name__}{text and f': {text}'}{_location(exc)}{step and f'; {step}'}"


def _text(exc: BaseException) -> str:
    try:
        return str(exc)
    except Exception:
        # Its class is the user's.
        return ""


def _location(exc: BaseException) -> str:
    """Return where an exception was raised, as " (file.py:3)"; empty for a SyntaxError.

    This is the last line that belongs to no library, since a line in a library would tell the user
    nothing; without such a line it is the last one. A SyntaxError names its place itself.
    """
    location, is_users = "", False
    traceback = None if isinstance(exc, SyntaxError) else exc.__traceback__
    while traceback is not None:
        path = traceback.tb_frame.f_code.co_filename
        is_library = path.startswith((*LIBRARIES, "<")) or any(name in path for name in PACKAGES)
        if not is_library or not is_users:
            location = f" ({Path(path).name}:{traceback.tb_lineno})"
        is_users = is_users or not is_library
        traceback = traceback.tb_next
    return location
