"""Shows every protocol message on stderr, as a trace (CONCERTINO_TRACE) or in the debug log.

run() in runtime/process.py imports this module only if messages must be shown.
"""

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

# A debug log line shows at most this many characters of a message.
SHOWN_CHARS = 2048


def make_message_log(
    log: logging.Logger,
    writer: BoundedWriter,
    format: str,
    is_traced: bool,
    is_debug: bool,
) -> Wrap:
    """Return a function that wraps a connection so that its messages are shown.

    log: the logger of the server, which has a rate limit.
    writer: writes lines to stderr, without a rate limit.
    format: the log format; "json", or a format for people.
    is_traced: whether to write each message in full to `writer`.
    is_debug: whether to log each message to `log`, shortened to SHOWN_CHARS characters.
    """

    def wrap(connection: Connection, name: str) -> Connection:
        prefix = f"{name} " if name else ""

        # `direction` is "<-" for a message that was received, and "->" for one that was sent.
        def show(direction: str, text: str) -> None:
            token = current_context.set(log_context_of(text)) if format == "json" else None
            if is_traced:
                writer.write(message_line(format, prefix, direction, text).encode())
            if is_debug:
                # Programs search the log for these two texts, so they stand for all messages.
                event = "Received request" if direction == "<-" else "Sending response"
                log.debug("%s%s: %s", prefix, event, escape_controls(shorten(text, SHOWN_CHARS)))
            if token is not None:
                current_context.reset(token)

        return trace_connection(connection, show)

    return wrap
