"""MalformedBodies: logs the bodies of POSTs that are not JSON-RPC messages.

The first body is shown in the log, and later ones are only counted, as the transport stdio does. A
malformed body belongs to no session, so one object counts the bodies from all clients of a server.
"""

from __future__ import annotations

import time

from concertino.jsonrpc.incoming_requests import TokenBucket
from concertino.jsonrpc.invalid_input import InvalidInput
from concertino.jsonrpc.limits import Limits
from concertino.runtime.malformed_input import MalformedInputLog

__all__ = ["MalformedBodies"]


class MalformedBodies:
    """Counts and logs the malformed bodies that one server has received."""

    def __init__(self, limits: Limits) -> None:
        # InvalidInput needs a bucket, which limits error responses on other transports. Here the
        # bucket is never used, because over HTTP each POST gets its response.
        bucket = TokenBucket(limits.garbage_answers_per_s, time.monotonic)
        self._input = InvalidInput(bucket)
        self._log = MalformedInputLog(self._input, limits.max_message_bytes)

    def add(self, problem: str, body: bytes) -> None:
        """Count a body. Log it if it is the first one; later, log the count from time to time.

        problem: what is wrong with the body.
        """
        self._input.add(problem, body)
        self._log.report()

    def report_end(self) -> None:
        """Log the total number of malformed bodies, if there was more than one."""
        self._log.report_end()
