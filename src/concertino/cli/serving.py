"""Functions for the commands that serve until a signal or the end of input.

They check the command line. They also handle signals and the end of the client while the command
still imports the user's code; when it serves, runtime/process.py handles both.
"""

from __future__ import annotations

import select
import threading
from argparse import Namespace
from collections.abc import Generator, Sequence
from contextlib import contextmanager

from concertino.logs import handler as logging_setup
from concertino.logs.writer import BoundedWriter
from concertino.runtime.shutdown import exit_process, handle_signals
from concertino.transports.stdio import StdioDescriptors

# How often ending_with_client() checks whether the client is still there, in seconds.
LOOK_S = 1.0


def reject_extra_args(args: Namespace, server: Sequence[str]) -> None:
    """Raise UsageError if there are words after `--`, which would be the command of a server.

    args: the parsed arguments, whose `parser` raises the error.
    server: the words after `--`.
    """
    if server:
        args.parser.error(f"this command takes no words after --, got {server[0]!r}")


def exit_on_signals(writer: BoundedWriter) -> None:
    """Let SIGTERM and SIGINT end the process at once with exit code 0.

    Call this while the process is starting. When it serves, run() of runtime/process.py replaces
    this handling, because requests may be in progress then.

    writer: the writer of stderr, which writes what is left of the log before the end.
    """
    handle_signals(lambda number: exit_process(0, writer))


@contextmanager
def ending_with_client(stdio: StdioDescriptors) -> Generator[None, None, None]:
    """End the process with exit code 1 if its client disappears while the `with` block runs.

    The client has disappeared when nobody can read this process's output any more. The end of the
    input does not count: a shell may have written all requests already, and still read the
    responses.

    stdio: the descriptors through which the client is connected.
    """
    # The block imports the server, which may take forever. A client that was killed cannot end this
    # process by a signal.
    is_done = threading.Event()

    def watch() -> None:
        poll = select.poll()
        # With no event mask, poll reports only that the other side has closed its end.
        poll.register(stdio.writing, 0)
        while not is_done.wait(LOOK_S):
            if poll.poll(0):
                logging_setup.logger("concertino").error(
                    "Failed to start server: the client has gone before the import has ended"
                )
                exit_process(1, stdio.writer)

    threading.Thread(target=watch, name="client", daemon=True).start()
    try:
        yield
    finally:
        is_done.set()
