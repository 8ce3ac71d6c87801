"""run(backend), the public concertino.run(): serves a backend over stdin and stdout.

A file that calls run() becomes a server when it is executed with `python file.py`. The command
`concertino serve file.py` imports the file instead. In that case run() only records its arguments
in `run_calls`, and the command serves the recorded backend, for example over sockets.

Importing this module also extends sys.excepthook (_extend_excepthook): when a script fails before
run(), its MCP client gets the reason as an error response.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from contextlib import suppress
from contextvars import ContextVar
from types import FrameType, TracebackType

from msgspec import Struct

from concertino.backend.interface import Backend, describe_non_backend
from concertino.jsonrpc.limits import Limits
from concertino.loading import load
from concertino.near_names import hint_keywords_or
from concertino.runtime.spare_descriptor import keep_spare_descriptor

__all__ = [
    "RUN_ADVICE",
    "LoopFactory",
    "RunCall",
    "begin_program",
    "is_program",
    "run",
    "run_calls",
]

# Advice for calls of run() with a transport, a host or a port, as other SDKs have them.
RUN_ADVICE = (
    "run() serves stdin and stdout, and run(http='127.0.0.1:8000') serves HTTP; "
    "for sockets: concertino serve FILE --tcp HOST:PORT"
)

# A function that makes the event loop of a server.
LoopFactory = Callable[[], asyncio.AbstractEventLoop]


class RunCall(Struct, frozen=True):
    """The arguments of one call of run(), recorded while `concertino serve` imports a file."""

    backend: Backend
    limits: Limits | None
    loop_factory: LoopFactory | None


# While the command line imports a file, this is a list to which run() appends its arguments.
run_calls: ContextVar[list[RunCall] | None] = ContextVar("run_calls", default=None)


# Whether begin_program() was called.
_is_program = False


def begin_program() -> None:
    """Record that this process does nothing but run a server or a plugin of concertino.

    Such a process does two things that another program would not expect. It keeps one file
    descriptor in reserve for imports (spare_descriptor.py), from this call on. And it opens
    sockets, through which `concertino ps` and `concertino hub` show the server; the code that opens
    them checks is_program().
    """
    global _is_program
    _is_program = True
    keep_spare_descriptor()


def is_program() -> bool:
    """Return whether begin_program() was called; False in a program that embeds concertino."""
    return _is_program


@hint_keywords_or(RUN_ADVICE)
def run(
    backend: Backend,
    *,
    http: str | None = None,
    http_options: Struct | None = None,
    limits: Limits | None = None,
    loop_factory: LoopFactory | None = None,
) -> None:
    """Serve a backend over stdin and stdout until the client disconnects, then end the process.

    This function does not return, so no code after the call runs. There is one exception: while
    `concertino serve` imports the file, the function records its arguments and returns. The command
    decides then where to serve, and ignores `http` and `http_options`. To serve other connections,
    use `serve` or `Host`.

    backend: a Server, a guard around a Server, or the result of compose().
    http: serve over HTTP at this address until SIGTERM, and not over stdin and stdout: HOST:PORT or
        unix:PATH. Clients use the URL http://HOST:PORT/mcp. Needs the extra `http`.
    http_options: an HttpOptions of concertino.http. An address that other machines can reach needs
        some of them: authorization, TLS and the public URL.
    limits: the limits for each connection. None for the defaults of Limits and the environment
        variables that replace them, such as CONCERTINO_MAX_IN_FLIGHT.
    loop_factory: makes the event loop, for example uvloop.new_event_loop; None for asyncio's own.

    Raises TypeError if `backend` is not a Backend. Raises RuntimeError if another module is
    importing the calling file, because that import would never end.
    """
    if (got := describe_non_backend(backend)) is not None:
        raise TypeError(f"run: expected a Server or another Backend, got {got}")
    if (calls := run_calls.get()) is not None:
        calls.append(RunCall(backend, limits, loop_factory))
        return

    if (problem := _describe_import()) is not None:
        raise RuntimeError(problem)

    # Loaded by name, because an import statement would make an import cycle. run_http() does not
    # return, and neither does run() below.
    if http is not None:
        load("concertino.http.frontend").run_http(
            backend, http, options=http_options, limits=limits, loop_factory=loop_factory
        )
    if http_options is not None:
        raise TypeError("run: http_options: add http='HOST:PORT'")
    load("concertino.runtime.process").run(backend, limits=limits, loop_factory=loop_factory)


def _describe_import() -> str | None:
    """Return an error text if another module is importing the file that calls run().

    Returns None if the file is the main program, or if the call comes after the import.
    """
    # Begin with the caller of run(). This may be its decorator, which the loop skips.
    frame = sys._getframe(2)  # pyright: ignore[reportPrivateUsage]
    while frame is not None and frame.f_globals.get("__name__", "").startswith("concertino."):
        frame = frame.f_back
    caller = frame

    # If the import system has called the top level of a module, another module is importing it.
    while frame is not None and not _is_module_level(frame):
        frame = frame.f_back
    importer = None if frame is None else frame.f_back
    if caller is None or importer is None or not _is_import_system(importer):
        return None
    while importer is not None and _is_import_system(importer):
        importer = importer.f_back

    other = "another module" if importer is None else _file_name(importer)
    return (
        f"{_file_name(caller)}:{caller.f_lineno}: server.run() called while {other} imports it; "
        "put it under `if __name__ == '__main__':`"
    )


def _file_name(frame: FrameType) -> str:
    return frame.f_code.co_filename.rpartition("/")[2]


def _is_module_level(frame: FrameType) -> bool:
    """Return whether a frame executes the top level of a module that is not the main program."""
    return frame.f_code.co_name == "<module>" and frame.f_globals.get("__name__") != "__main__"


def _is_import_system(frame: FrameType) -> bool:
    return frame.f_code.co_filename.startswith("<frozen importlib")


def _extend_excepthook() -> None:
    """Make sys.excepthook report an exception that ends the script to the script's MCP client.

    The traceback is written to stderr, without the frames of this package and without secrets. If
    another hook was installed before, that hook is called instead of writing the traceback. Then
    the client gets the exception as the response to its request. If a client has sent a request,
    the process ends with exit code 1, without waiting for threads.
    """
    write_exception = sys.excepthook

    def report(kind: type[BaseException], exc: BaseException, trace: TracebackType | None) -> None:
        """Write an exception to stderr, and answer the client's requests with it."""
        user_errors = load("concertino.backend.user_errors")
        kind, exc, trace = user_errors.exc_info_for_users(exc)
        # Set the traceback on the exception too, because Python's own hook writes the traceback of
        # the exception.
        exc = exc.with_traceback(trace)
        text = user_errors.redacted_traceback(exc)
        # Whether an MCP host, the application that starts servers, has sent a request.
        has_host = False
        # The client's requests are answered even if nobody can read stderr, or if a hook fails.
        try:
            if text and sys.stderr and write_exception is sys.__excepthook__:
                with suppress(OSError, ValueError):
                    sys.stderr.write(text)
            else:
                write_exception(kind, exc, trace)
        finally:
            # After Ctrl-C, do not wait for a first request: the user wants the script to end.
            has_host = load("concertino.runtime.refusal").refuse_script_client(
                exc, waits=not isinstance(exc, KeyboardInterrupt)
            )
        # Do not end normally: Python would wait for the threads that the script has started, and
        # the host would wait for Python.
        if has_host:
            load("concertino.runtime.shutdown").exit_process(
                1, load("concertino.logs.writer").BoundedWriter(2)
            )

    sys.excepthook = report


# A script that imports this module is about to make a server. If an exception ends the script
# before the server runs, its client would otherwise only see a closed connection.
_extend_excepthook()
