"""Describes why a server cannot start, in one sentence for its clients and for the log.

start_failure_text(exc)    # "cannot start: KeyError: 'TOKEN' (server.py:3)"
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import cast

from concertino.backend.user_errors import advice
from concertino.errors import ConcertinoError, TargetError
from concertino.excerpts import exception_text, shorten
from concertino.logs.formats import escape_controls
from concertino.logs.redact import refresh

__all__ = ["describe_failure", "describe_raised", "start_failure_text"]

# The longest sentence, in characters.
MAX_CHARS = 1000
# The server's author has not written the code in the directories of concertino and of the standard
# library, nor the code whose path contains one of the names in PACKAGES.
LIBRARIES = tuple(
    f"{folder}{os.sep}"
    for folder in (Path(__file__).absolute().parent.parent, Path(os.__file__).parent)
)
PACKAGES = ("site-packages", "dist-packages")


def start_failure_text(failure: BaseException | str) -> str:
    """Return the sentence `cannot start: ...` on one line, without secrets.

    The sentence is shortened to MAX_CHARS characters.
    failure: the exception that has ended the start, or a text that describes the failure.
    """
    reason = failure if isinstance(failure, str) else describe_failure(failure)
    # refresh() reads secrets from os.environ again, because the failed module may have added some.
    clean = refresh().text(f"cannot start: {reason}")
    lines = (line.strip() for line in clean.splitlines())
    return shorten(escape_controls(" ".join(filter(None, lines))), MAX_CHARS)


def describe_failure(exc: BaseException) -> str:
    """Return a description of the exception that has ended a start.

    The text of a TargetError or ConcertinoError is written for users, so it is returned alone.
    Other exceptions are described by describe_raised(). An exception group is described by its
    first exception.
    """
    first = _first_exception(exc)
    text = _text(first)
    # Subclasses, such as RpcError, are described with their name.
    if text and type(first) in (TargetError, ConcertinoError):
        # If one of its servers fails, compose() raises an error with a cause. Add the cause's line.
        return text if first.__cause__ is None else f"{text}{_location(first.__cause__)}"
    # An exception in a group may never have been raised. It has no line then, so the line of the
    # group is used.
    return describe_raised(first, exc if first.__traceback__ is None else first)


def describe_raised(exc: BaseException, located_at: BaseException | None = None) -> str:
    """Return the type and text of an exception, and the line of the server's code that raised it.

    An example is `KeyError: 'TOKEN' (server.py:3)`. For some exceptions, advice is added.
    exc: the exception whose type and text are returned.
    located_at: the exception whose traceback gives the line, such as the group that contains `exc`;
        None for `exc` itself.
    """
    description = type(exc).__name__
    text = _text(exc)
    if text:
        description += f": {text}"
    description += _location(located_at or exc)
    tip = advice(exc)
    if tip:
        description += f"; {tip}"
    return description


def _first_exception(exc: BaseException) -> BaseException:
    """Return the first exception in a group that is not itself a group.

    Returns `exc` if it is not a group, and an empty group itself.
    """
    while isinstance(exc, BaseExceptionGroup):
        # The type checker does not know the type of the exceptions. A subclass may override
        # `exceptions`, and return none.
        exceptions = cast("tuple[BaseException, ...]", exc.exceptions)
        if not exceptions:
            break
        exc = exceptions[0]
    return cast("BaseException", exc)


def _text(exc: BaseException) -> str:
    """Return the text of an exception, with the place in the source if it is a SyntaxError."""
    # Only Python's parser sets these attributes for certain. The author's code may raise a
    # SyntaxError without them, or with values of other types.
    if isinstance(exc, SyntaxError) and isinstance(exc.filename, str) and exc.lineno:
        return f"{exc.msg} ({Path(exc.filename).name}:{exc.lineno})"
    return exception_text(exc)


def _location(exc: BaseException) -> str:
    """Return where an exception was raised, as " (file.py:3)".

    The line is the innermost line of the server author's code. If there is none, it is the
    innermost line of any code, except for an error of concertino, for which "" is returned. Also
    returns "" for a SyntaxError, whose text already names the line.
    """
    location, has_author = "", False
    # A traceback goes from the outermost line to the innermost.
    traceback = None if isinstance(exc, SyntaxError) else exc.__traceback__
    while traceback is not None:
        path = traceback.tb_frame.f_code.co_filename
        # A name such as `<frozen importlib._bootstrap>` is no file.
        is_library = path.startswith((*LIBRARIES, "<")) or any(name in path for name in PACKAGES)
        is_authors = not is_library
        # Lines of libraries count only until the first line of the author.
        if is_authors or not has_author:
            location = f" ({Path(path).name}:{traceback.tb_lineno})"
        has_author = has_author or is_authors
        traceback = traceback.tb_next
    return "" if isinstance(exc, ConcertinoError) and not has_author else location
