"""Reads and writes the messages of the NATS client protocol, without any I/O.

The clients in connection.py and blocking.py use it. A client publishes messages to *subjects*, and
subscribes to subjects. The server passes each message on to the clients that have subscribed.

    parser = NatsParser()
    for event in parser.feed(received):
        match event:
            case NatsMessage(): ...
            case ServerInfo(): ...

Source: docs.nats.io, "Client Protocol".
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct
from msgspec.json import Decoder

from concertino.decode_errors import DECODE_ERRORS
from concertino.errors import ProtocolError

__all__ = [
    "HEADER_LINE",
    "NO_RESPONDERS",
    "NatsEvent",
    "NatsMessage",
    "NatsParser",
    "Ping",
    "Pong",
    "ServerError",
    "ServerInfo",
    "encode_connect",
    "encode_publish",
    "encode_subscribe",
    "encode_unsubscribe",
    "read_headers",
    "status_of",
]

# The beginnings of the control lines of messages, without and with headers.
MESSAGES = (b"MSG ", b"HMSG ")
# The beginning of a header block. A status code may follow on the same line.
HEADER_LINE = b"NATS/1.0"
# The status (status_of()) of the response if nobody has subscribed to the subject of the request.
NO_RESPONDERS = 503
# The longest control line that is accepted. INFO is the longest, because it has the addresses of
# all servers of the cluster. Servers limit other lines to 4,096 bytes by default.
MAX_LINE_BYTES = 64 * 1024
# The largest payload that a server can be configured to accept.
MAX_PAYLOAD_BYTES = 64 * 2**20


class NatsMessage(Struct, gc=False):
    """A message that the server delivers because this client has subscribed to the subject.

    subject: the subject to which the message was published.
    sid: the number of the subscription.
    reply: the subject for responses; empty if the sender expects none.
    headers: the encoded headers, which begin with the line `NATS/1.0`; empty if the message has
        none.
    """

    subject: str
    sid: int
    reply: str
    headers: bytes
    payload: bytes


class ServerInfo(Struct, rename={"lame_duck": "ldm"}):
    """A server's INFO message. It comes when a client connects, and when something changes.

    max_payload: the largest payload of a message that the server accepts, in bytes.
    headers: whether the server supports headers.
    lame_duck: whether the server is about to shut down, and clients should move to another one.
    nonce: the text that a client with a key must sign; "" if the server accepts no keys.
    """

    server_name: str = ""
    version: str = ""
    max_payload: int = 2**20
    headers: bool = False
    tls_required: bool = False
    tls_available: bool = False
    lame_duck: bool = False
    nonce: str = ""


class ServerError(Struct):
    """An error that the server reports.

    text: the text of the error, without quotes.
    """

    text: str

    @property
    def is_refusal(self) -> bool:
        """Whether the server has refused one publish or subscribe, for lack of permission.

        After such an error, the connection stays open. After any other error, the server closes
        the connection.
        """
        return self.text.lower().startswith("permissions violation")


class Ping(Struct):
    """The server's ping, which asks whether the client is alive. The client must send PONG."""


class Pong(Struct):
    """The server's answer to a ping of the client."""


NatsEvent = NatsMessage | ServerInfo | ServerError | Ping | Pong

_decode_info = Decoder(ServerInfo).decode


class NatsParser:
    """Parses the bytes from a server into events. It holds at most one incomplete message."""

    def __init__(self) -> None:
        # The received bytes of an incomplete line or payload.
        self._pieces: list[bytes] = []
        # How many bytes must follow at least before the line or payload can be complete.
        self._missing = 0
        # The message whose payload has not arrived completely: (subject, sid, reply, size of the
        # headers, size of headers and payload together). None if there is none.
        self._awaited: tuple[str, int, str, int, int] | None = None

    def feed(self, data: bytes) -> list[NatsEvent]:
        """Add received bytes, and return the events that they complete, in order.

        Raises ProtocolError if the bytes are not the NATS protocol, or if a line (64 KiB) or a
        payload (64 MiB) is too long. Do not call feed() again after that.
        """
        if self._pieces:
            self._pieces.append(data)
            self._missing -= len(data)
            if self._missing > 0:
                return []
            data = b"".join(self._pieces)
            self._pieces.clear()

        events: list[NatsEvent] = []
        at = 0
        size = len(data)
        awaited = self._awaited
        while at < size:
            if awaited is None:
                end = data.find(b"\r\n", at)
                if end < 0:
                    if size - at > MAX_LINE_BYTES:
                        raise ProtocolError(f"a line of more than {MAX_LINE_BYTES} bytes")
                    self._missing = 1
                    break
                line = data[at:end]
                # A line ends with \r\n.
                at = end + 2
                if not line.startswith(MESSAGES):
                    event = _read_line(line)
                    if event is not None:
                        events.append(event)
                    continue
                awaited = _parse_message_line(line)

            subject, sid, reply, header_size, total = awaited
            end = at + total
            # The payload ends with \r\n, too.
            if size < end + 2:
                self._missing = end + 2 - size
                break
            if not data.startswith(b"\r\n", end):
                raise ProtocolError("a payload is longer than its announced size")
            middle = at + header_size
            events.append(NatsMessage(subject, sid, reply, data[at:middle], data[middle:end]))
            awaited = None
            at = end + 2
        self._awaited = awaited
        if at < size:
            self._pieces.append(data[at:])
        return events


def _read_line(line: bytes) -> NatsEvent | None:
    """Parse one control line that does not begin a message. Returns None for +OK."""
    name, _, rest = line.partition(b" ")
    match name.upper():
        case b"PING":
            return Ping()
        case b"PONG":
            return Pong()
        case b"INFO":
            try:
                return _decode_info(rest)
            except DECODE_ERRORS as exc:
                raise ProtocolError(f"the server's INFO is not valid: {exc}") from None
        case b"-ERR":
            return ServerError(rest.decode("utf-8", "replace").strip().strip("'"))
        case b"+OK":
            return None
        case _:
            raise ProtocolError(f"expected a NATS message, got {line[:40]!r}")


def _parse_message_line(line: bytes) -> tuple[str, int, str, int, int]:
    """Parse the line that begins a message. Raises ProtocolError if the line is not valid.

    Returns (subject, sid, reply, size of the headers, size of headers and payload together).
    """
    # Split at spaces only: a subject may contain any byte except spaces and line breaks.
    fields = line.split(b" ")
    # The fields are MSG, subject, sid, reply, size. The reply may be missing. In a message with
    # headers (HMSG), the size of the headers comes before the last field.
    count = len(fields)
    header_size = 0
    try:
        if line.startswith(b"H"):
            count -= 1
            header_size = int(fields[-2])
        total = int(fields[-1])
        if not 4 <= count <= 5 or not 0 <= header_size <= total <= MAX_PAYLOAD_BYTES:
            raise ValueError
        reply = fields[3].decode("utf-8", "replace") if count == 5 else ""
        return fields[1].decode("utf-8", "replace"), int(fields[2]), reply, header_size, total
    except ValueError:
        raise ProtocolError(f"expected a NATS message, got {line[:80]!r}") from None


def encode_publish(subject: str, payload: bytes, reply: str = "", headers: bytes = b"") -> bytes:
    """Return the bytes that publish a message.

    reply: the subject for responses; empty if no response is expected.
    headers: the encoded headers, from the line `NATS/1.0` to the empty line at the end; empty for
        no headers.
    """
    # Without a reply, two spaces follow each other, which servers accept.
    if headers:
        size = len(headers)
        line = f"HPUB {subject} {reply} {size} {size + len(payload)}\r\n"
    else:
        line = f"PUB {subject} {reply} {len(payload)}\r\n"
    return b"".join((line.encode(), headers, payload, b"\r\n"))


def encode_subscribe(subject: str, sid: int, queue: str = "") -> bytes:
    """Return the bytes that begin a subscription.

    sid: the number of the subscription, which the client chooses.
    queue: the name of the queue group, whose clients share the messages; empty for none.
    """
    return f"SUB {subject} {queue} {sid}\r\n".encode()


def encode_unsubscribe(sid: int) -> bytes:
    """Return the bytes that end the subscription with this number."""
    return f"UNSUB {sid}\r\n".encode()


def read_headers(block: bytes) -> dict[str, str]:
    """Return the fields of a header block. If a field is repeated, its last value counts.

    block: the encoded headers, which begin with the line `NATS/1.0`; may be empty.
    """
    fields: dict[str, str] = {}
    for line in block.split(b"\r\n")[1:]:
        name, colon, value = line.partition(b":")
        if colon:
            fields[name.decode("utf-8", "replace")] = value.strip().decode("utf-8", "replace")
    return fields


def status_of(message: NatsMessage) -> int:
    """Return the status code in the headers of a response, such as NO_RESPONDERS.

    Returns 0 if the headers have no status code.
    """
    # The first line of the headers is HEADER_LINE, a space, and a code of three digits.
    code = message.headers[len(HEADER_LINE) + 1 : len(HEADER_LINE) + 4]
    return int(code) if code.isdigit() else 0


def encode_connect(members: dict[str, Any]) -> bytes:
    """Return the bytes of the client's CONNECT message.

    members: the content of the message, a JSON object.
    """
    return b"CONNECT %b\r\n" % msgspec.json.encode(members)
