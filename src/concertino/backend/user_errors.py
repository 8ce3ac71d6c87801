"""Makes exceptions of a server author's code easier to read, in the log and in error messages.

The frames of concertino are removed from tracebacks, and some exceptions get advice: for example,
how to install a missing module.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import TracebackType

from concertino.installation import package_install_command, runs_in_uv_cache

__all__ = [
    "ADVICE",
    "AWAIT_ADVICE",
    "NESTED_LOOP_ADVICE",
    "advice",
    "exc_info_for_users",
    "redacted_traceback",
    "without_our_frames",
]

PACKAGE = str(Path(__file__).absolute().parent.parent) + os.sep
NESTED_LOOP_ADVICE = (
    "this code runs on an event loop already: write `await ...` in it, or put it into a `def`, "
    "which runs in a thread"
)
AWAIT_ADVICE = (
    "an `async def` gives its result to `await` only: write `(await ...)` around the call"
)
# The advice whose text is always the same. The command line looks for it in the traceback of a
# call.
ADVICE = (NESTED_LOOP_ADVICE, AWAIT_ADVICE)
# How the text of the error begins for an attribute of a coroutine.
COROUTINE = "'coroutine' object has no attribute"
# How the texts of asyncio's errors begin when code starts a loop inside of a running loop.
NESTED_LOOP = ("asyncio.run() cannot be called", "This event loop is already running")


def without_our_frames(traceback: TracebackType | None) -> TracebackType | None:
    """Return a traceback without concertino's frames; unchanged if all frames are concertino's."""
    entries: list[TracebackType] = []
    entry = traceback
    while entry is not None:
        if not entry.tb_frame.f_code.co_filename.startswith(PACKAGE):
            entries.append(entry)
        entry = entry.tb_next
    if not entries:
        return traceback

    rest: TracebackType | None = None
    for entry in reversed(entries):
        rest = TracebackType(rest, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    return rest


def exc_info_for_users(
    exc: BaseException,
) -> tuple[type[BaseException], BaseException, TracebackType | None]:
    """Return the tuple for `exc_info=` of logging, for an exception of a server author's function.

    The traceback in the tuple has no frames of concertino. If there is advice for the exception,
    this function adds the advice to the exception as a note, which logging prints below the
    traceback.
    """
    if text := advice(exc):
        exc.add_note(text)
    return type(exc), exc, without_our_frames(exc.__traceback__)


def redacted_traceback(exc: BaseException) -> str | None:
    """Return the traceback of an exception and its causes, if secrets had to be removed from it.

    Usually the traceback contains no secret. Then this function returns None, and the caller lets
    sys.excepthook write the traceback, which newer versions of Python do in colours.
    """
    # Imported here, because a program that works writes no traceback.
    from traceback import format_exception

    from concertino.logs.redact import refresh

    text = "".join(format_exception(exc))
    # refresh() reads secrets from os.environ again, because the script may have read a .env file
    # before it failed. text() returns its argument itself if that contains no secret.
    redacted = refresh().text(text)
    return None if redacted is text else redacted


def advice(exc: BaseException) -> str:
    """Return advice on an exception of the code of a server's author; "" if there is none."""
    # Subclasses of these classes are excluded, because their __str__ may fail.
    text = str(exc) if type(exc) in (RuntimeError, ImportError, AttributeError) else ""
    if text.startswith(NESTED_LOOP):
        return NESTED_LOOP_ADVICE
    if text.startswith(COROUTINE):
        return AWAIT_ADVICE
    if text.startswith("attempted relative import"):
        return _advise_module(exc.__traceback__)
    if isinstance(exc, ModuleNotFoundError):
        return _advise_installation(exc)
    return ""


def _advise_installation(exc: ModuleNotFoundError) -> str:
    """Return how to install a missing package for the running interpreter.

    The text says PACKAGE in place of the package's name. The name is not guessed, because a package
    with the name of the module may be another one, even a malicious one. Returns "" if the
    top-level package of the module is imported already, because then it is installed.
    """
    if not exc.name or exc.name.partition(".")[0] in sys.modules:
        return ""
    step = package_install_command("PACKAGE")
    if runs_in_uv_cache():
        return f"{sys.executable} runs this server: {step}, where PACKAGE is the one that has it"
    return f"install the package that has it: {step}"


def _advise_module(traceback: TracebackType | None) -> str:
    """Return advice on a relative import that has failed: serve the file as part of its package."""
    if traceback is None:
        return ""
    # Imported here, because it imports ast, and servers that start have no use for it.
    from concertino.backend.server_source import server_name

    while traceback.tb_next is not None:
        traceback = traceback.tb_next
    file = Path(traceback.tb_frame.f_code.co_filename).absolute()
    # The names of the packages around the file, from the outermost, and of the file.
    names, folder = [file.stem], file.parent
    while (folder / "__init__.py").is_file():
        names.insert(0, folder.name)
        folder = folder.parent
    if len(names) == 1:
        return "a file without a package around it has no siblings: write `import ...`"
    change_folder = "" if folder == Path.cwd() else f"cd {folder}; "
    target = f"{'.'.join(names)}:{server_name(file) or 'server'}"
    return f"serve it as a part of its package: {change_folder}concertino serve {target}"
