"""What is said to people: log formats and levels, and a stderr that never makes anybody wait.

    writer      BoundedWriter: lines to a descriptor, held and then dropped when nobody reads
    diverted    DivertedText: sys.stdout and sys.stderr while the protocol owns stdout; adopt_handlers
    formats     line, json, trace: one Entry as text; message_line(), escaped()
    correlation which call a line belongs to
    handler     configure(), logger(), and the logging handler with its limit

Secrets are taken out here, by concertino.redact; nothing here knows the protocol.
"""

from concertino.logs.diverted import DivertedText, adopt_handlers
from concertino.logs.formats import FORMATS, escaped, message_line
from concertino.logs.handler import LEVELS, StderrHandler, configure, logger
from concertino.logs.writer import HELD_LIMIT, BoundedWriter

__all__ = [
    "FORMATS",
    "HELD_LIMIT",
    "LEVELS",
    "BoundedWriter",
    "DivertedText",
    "StderrHandler",
    "adopt_handlers",
    "configure",
    "escaped",
    "logger",
    "message_line",
]
