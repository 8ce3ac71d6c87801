"""SseFallback: the state of the transport of 2024-11-05, for a server that has no newer transport.

Such a server refuses the POST of `initialize`. Then the client sends a GET to the same URL. If the
response is a stream of events that begins with `endpoint`, the client sends all messages to the URL
in that event, and receives the server's messages on the stream. The session ends with the stream.
StreamableHttpConnection (connection.py) does all this, and stores its state in an SseFallback.
Spec: 2025-11-25 basic/transports "Backwards Compatibility"; 2024-11-05 basic/transports.
"""

from __future__ import annotations

from concertino.errors import HEADER_MISMATCH, MISSING_CAPABILITY, UNSUPPORTED_VERSION
from concertino.http_client.exchange import HttpFailure, PostedMessage
from concertino.http_client.refusals import read_body_error

__all__ = ["SseFallback", "is_old_refusal"]

# The statuses with which a server of 2024-11-05 refuses a POST to the URL of its stream.
OLD_STATUSES = frozenset((400, 404, 405))
# The codes of JSON-RPC errors that only servers of 2026-07-28 send.
MODERN_ERRORS = frozenset((HEADER_MISMATCH, MISSING_CAPABILITY, UNSUPPORTED_VERSION))


def is_old_refusal(status: int, body: bytes) -> bool:
    """Return whether a server of MCP 2024-11-05 may have sent this refusal of `initialize`.

    Such a server does not accept a POST to the URL of its stream.
    status: the HTTP status of the refusal.
    body: the body of the refusal.
    """
    return status in OLD_STATUSES and read_body_error(body).code not in MODERN_ERRORS


class SseFallback:
    """The state of a session with a server that has only the transport of MCP 2024-11-05.

    opening: the `initialize` request that the server has refused. It is sent again, to `path`.
    failure: the refusal of `opening`.
    error: the JSON-RPC error response in this refusal; None if there was none.

    Attributes:
    path: the path to which messages are sent; "" until the event `endpoint` has named it.
    """

    def __init__(self, opening: PostedMessage, failure: HttpFailure, error: bytes | None) -> None:
        self.opening = opening
        self.failure = failure
        self.error = error
        self.path = ""
