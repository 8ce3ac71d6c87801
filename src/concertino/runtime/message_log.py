"""Shows every protocol message on stderr: as a trace, and in the debug log."""

from __future__ import annotations

import logging

from concertino.excerpts import shorten
from concertino.logs.formats import current_context, escape_controls, message_line
from concertino.logs.writer import BoundedWriter
from concertino.runtime.host import Wrap
from concertino.runtime.log_context import log_context_of
from concertino.transports.connection import Connection
from concertino.transports.trace import trace_connection

__all__ = ["make_message_log"]

# How many characters of a protocol message a log line repeats.
SHOWN = 2048


def make_message_log(
    log: logging.Logger,
    writer: BoundedWriter,
    format: str,
    is_traced: bool,
    is_debug: bool,
) -> Wrap:
    """Return a function that wraps a connection so that its messages are shown.

    is_traced: write them whole, and past the rate limit of the log.
    is_debug: make log lines of them, cut to SHOWN characters.
    """

    def wrap(connection: Connection, name: str) -> Connection:
        prefix = f"{name} " if name else ""

        def show(direction: str, text: str) -> None:
            token = current_context.set(log_context_of(text)) if format == "json" else None
            if is_traced:
                writer.write(message_line(format, prefix, direction, text).encode())
            if is_debug:
                event = "Received request" if direction == "<-" else "Sending response"
                log.debug("%s%s: %s", prefix, event, escape_controls(shorten(text, SHOWN)))
            if token is not None:
                current_context.reset(token)

        return trace_connection(connection, show)

    return wrap
