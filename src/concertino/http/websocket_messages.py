"""WebSocketMessages: the messages of one WebSocket, with the protocol of the package `websockets`.

Both ends use it: http/websocket.py and http_client/websocket.py. Each message is one text frame, or
several fragments of one. Compression is never offered, so a small frame cannot become a large
message.
Source: RFC 6455.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from concertino.installation import missing_extra
from concertino.jsonrpc.messages import NEWLINE, one_line

try:
    from websockets.frames import Frame, Opcode
    from websockets.http11 import Response
    from websockets.protocol import State
except ModuleNotFoundError:
    raise ImportError(missing_extra("WebSocket", "http")) from None

if TYPE_CHECKING:
    from websockets.protocol import Protocol

__all__ = ["GOING_AWAY", "POLICY_VIOLATION", "SUBPROTOCOL", "TRY_AGAIN", "WebSocketMessages",
           "quiet_logger"]  # fmt: skip

# Clients of the official TypeScript SDK ask for this subprotocol.
SUBPROTOCOL = "mcp"
# Close codes: RFC 6455, section 7.4.1, and the registry of IANA.
GOING_AWAY = 1001
UNSUPPORTED_DATA = 1003
INVALID_TEXT = 1007
POLICY_VIOLATION = 1008
TRY_AGAIN = 1013


def quiet_logger() -> logging.Logger:
    """Return a logger for the package `websockets` without its DEBUG records of whole messages."""
    logger = logging.getLogger("concertino.websocket")
    logger.setLevel(logging.WARNING)
    return logger


class WebSocketMessages:
    """Reads and writes the messages of one WebSocket, as bytes. It does no I/O.

    protocol: the Protocol object of the package `websockets` for this end: a server's after its
        handshake, or a client's.

    Attributes:
    response: the server's response to the handshake; None before the response has arrived, and
        always None at a server.
    is_ending: whether the transport must be closed after the output of take_output() is sent.
    """

    def __init__(self, protocol: Protocol) -> None:
        self._protocol = protocol
        # The fragments of the message that is arriving.
        self._fragments = bytearray()
        self.is_ending = False
        self.response: Response | None = None

    def feed(self, data: bytes) -> list[bytes]:
        """Read input, and return the messages that it completes.

        The input may cause output, such as a pong: call take_output() afterwards. Malformed input,
        or a message over the size limit of the Protocol object, ends the WebSocket with a close
        frame.
        """
        protocol = self._protocol
        if self.is_ending or protocol.state is State.CLOSED:
            return []
        protocol.receive_data(data)
        messages: list[bytes] = []
        for event in protocol.events_received():
            if isinstance(event, Frame):
                self._read(event, messages)
            elif isinstance(event, Response):
                self.response = event
        return messages

    def _read(self, frame: Frame, messages: list[bytes]) -> None:
        """Handle a frame. Adds its message to `messages` if the frame completes one."""
        if frame.opcode is Opcode.BINARY:
            self.fail(UNSUPPORTED_DATA, "expected text frames")
        elif frame.opcode is Opcode.TEXT and frame.fin:
            self._add(bytes(frame.data), messages)
        elif frame.opcode in (Opcode.TEXT, Opcode.CONT):
            self._fragments += frame.data
            if frame.fin:
                message = bytes(self._fragments)
                self._fragments.clear()
                self._add(message, messages)

    def _add(self, message: bytes, messages: list[bytes]) -> None:
        """Add a message to the list as one line. Fail the connection if it is not UTF-8."""
        if not message.isascii():
            try:
                str(message, "utf-8")
            except UnicodeDecodeError:
                self.fail(INVALID_TEXT, "a text frame is not UTF-8")
                return
        # A blank message is ignored, like a blank line over stdio.
        if message.strip():
            # Over stdio, a newline would end the message. The test saves a call for most messages.
            messages.append(one_line(message) if NEWLINE in message else message)

    def feed_eof(self) -> None:
        """Handle the end of the input. Call take_output() afterwards, which sets is_ending."""
        if self._protocol.state is not State.CLOSED:
            self._protocol.receive_eof()

    @property
    def is_open(self) -> bool:
        """Return whether messages can be sent."""
        return self._protocol.state is State.OPEN

    @property
    def held_bytes(self) -> int:
        """Return how many bytes of an incomplete message are held."""
        # The package has no public attribute for the bytes of an incomplete frame.
        return len(self._fragments) + len(self._protocol.reader.buffer)

    @property
    def close_text(self) -> str:
        """Return why the WebSocket was closed, for errors: the code, and the reason if one came."""
        protocol = self._protocol
        # The side whose close frame came first has closed the WebSocket. close_rcvd_then_sent is
        # False if that is this side, and None if only one side has sent a close frame.
        if protocol.close_rcvd is not None and protocol.close_rcvd_then_sent is not False:
            close, side = protocol.close_rcvd, "the other side"
        elif protocol.close_sent is not None:
            close, side = protocol.close_sent, "this side"
        else:
            return "the connection was lost"
        reason = f": {close.reason}" if close.reason else ""
        return f"{side} has closed the WebSocket ({close.code}{reason})"

    def send(self, message: bytes) -> None:
        """Add a message to the output. Drop the message if the WebSocket is closed."""
        if self.is_open:
            self._protocol.send_text(message)

    def ping(self) -> None:
        """Add a ping to the output."""
        if self.is_open:
            self._protocol.send_ping(b"")

    def close(self, code: int, reason: str = "") -> None:
        """Add a close frame to the output. The other side should send one, too.

        code, reason: the content of the close frame, such as GOING_AWAY and a text for people.
        """
        if self.is_open:
            self._protocol.send_close(code, reason)

    def fail(self, code: int, reason: str) -> None:
        """End the WebSocket because the other side has made an error. Later input is ignored.

        code, reason: the content of the close frame, such as POLICY_VIOLATION and a text for
            people.
        """
        if self.is_open:
            self._protocol.fail(code, reason)

    def take_output(self) -> bytes:
        """Remove and return the bytes to send.

        Sets is_ending if the transport must be closed after them.
        """
        pieces = self._protocol.data_to_send()
        # An empty piece means that the transport must be closed.
        if b"" in pieces:
            self.is_ending = True
        return b"".join(pieces)
