"""answers_request(), check_session_id(): read what a StreamableHttpConnection needs from responses.

StreamableHttpConnection (connection.py) calls them before it delivers a message. The client reads
everything else in a response (client/channel.py).
"""

from __future__ import annotations

from msgspec import UNSET

from concertino.jsonrpc.messages import Id, InvalidMessage, Message, decode

__all__ = ["answers_request", "check_session_id"]


def answers_request(frame: bytes, id: Id) -> bool:
    """Return whether a message is the response to the request with this id.

    A malformed response with the id counts, too: it makes the request fail in the client.

    frame: the message, as JSON.
    """
    message = decode(frame)
    if type(message) is InvalidMessage:
        return id in message.answered_ids
    return type(message) is Message and message.method is UNSET and message.id == id


def check_session_id(id: str) -> str:
    """Return a session id from a header; "" if it has characters that the specification forbids."""
    return id if all("!" <= char <= "~" for char in id) else ""
