"""answers_request(), check_session_id(): read what a connection needs from responses.

StreamableHttpConnection calls them for each message before it delivers it. Everything else in a
response is read by the client (client/channel.py).
"""

from __future__ import annotations

from msgspec import UNSET

from concertino.jsonrpc.messages import Id, InvalidMessage, Message, decode

__all__ = ["answers_request", "check_session_id"]

# A longer response is recognized without decoding it.
LONG_BYTES = 16 * 1024


def answers_request(frame: bytes, id: Id | None) -> bool:
    """Return whether the client will take a message for the response to the request with this id.

    A malformed response counts, if its id can be read: the request fails with it.
    """
    # Decoding takes 0.2 ms for 1 MB, and the client decodes the response anyway. So recognize the
    # usual long response by its two ends. A second id, which would count instead of the first one,
    # would stand after the result, at the end.
    if (
        len(frame) > LONG_BYTES
        and type(id) is int
        and frame.startswith(b'{"jsonrpc":"2.0","id":%d,"result":' % id)
        and frame.endswith(b"}}")
    ):
        return True
    message = decode(frame)
    if type(message) is InvalidMessage:
        return id in message.answers
    return type(message) is Message and message.method is UNSET and message.id == id


def check_session_id(id: str) -> str:
    """Return a session id; "" if it has characters that the specification forbids."""
    return id if all("!" <= char <= "~" for char in id) else ""
