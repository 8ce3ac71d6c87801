"""ChunkedBody: decodes a body with `Transfer-Encoding: chunked`.

A RequestReader makes one for each request with such a body, and a Relay for each stream of events
that comes from another process.
Source: RFC 9112, section 7.1.
"""

from __future__ import annotations

import re

from concertino.http.byte_pieces import add_piece
from concertino.http.request_head import bad_request

__all__ = ["ChunkedBody"]

# The longest line `size;extensions`: 256 bytes of extensions, and the size.
MAX_LINE = 256 + 16
# The longest block of trailer fields, which are ignored.
MAX_TRAILER_BYTES = 4096
# Both patterns are stricter than the RFC, which allows spaces around the size. Other parsers may
# read such spaces differently.
SIZE = re.compile(rb"([0-9A-Fa-f]{1,15})(?:;[\t\x20-\x7e\x80-\xff]*)?\r\n")
TRAILER = re.compile(rb"(?:([!#$%&'*+.^_`|~0-9A-Za-z-]+):[\t\x20-\x7e\x80-\xff]*)?\r\n")
# Trailer fields must not change where the message ends.
NO_TRAILERS = frozenset((b"transfer-encoding", b"content-length"))


class ChunkedBody:
    """Decodes the chunks of one body as they arrive.

    Attributes:
    parts: the decoded bytes, in pieces to be joined.
    size: the number of decoded bytes.
    is_complete: whether the last chunk and the trailer fields have arrived.
    """

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self.size = 0
        self.is_complete = False
        # How many bytes of the current chunk have not arrived.
        self._missing = 0
        # Whether the next line must be the empty one that ends a chunk.
        self._is_after_chunk = False
        # The beginning of a line that is not complete.
        self._line = b""
        # Whether the last, empty chunk has arrived. Trailer fields and an empty line follow.
        self._is_trailer = False
        self._trailer_bytes = 0

    def feed(self, data: bytes) -> int:
        """Decode the next bytes. Returns how many of them belong to the body.

        Bytes after the body belong to the next request or response; the caller keeps them.

        Raises HttpError 400 if the body is malformed, or a line in it is too long.
        """
        at = 0
        while at < len(data) and not self.is_complete:
            if self._missing:
                part = data[at : at + self._missing]
                add_piece(self.parts, part)
                self.size += len(part)
                self._missing -= len(part)
                at += len(part)
                continue
            newline = data.find(b"\n", at, at + MAX_LINE)
            end = newline + 1 if newline >= 0 else min(len(data), at + MAX_LINE)
            self._line += data[at:end]
            at = end
            if len(self._line) > MAX_LINE:
                raise bad_request(f"a line between chunks has more than {MAX_LINE} bytes")
            if newline >= 0:
                line, self._line = self._line, b""
                self._end_line(line)
        return at

    def _end_line(self, line: bytes) -> None:
        """Read a complete line: the size of a chunk, its end, or a trailer field."""
        if self._is_after_chunk:
            if line != b"\r\n":
                raise bad_request("a chunk is longer than its size says")
            self._is_after_chunk = False
        elif self._is_trailer:
            self._trailer_bytes += len(line)
            trailer = TRAILER.fullmatch(line)
            # The name of the field; b"" for a malformed line, and for the empty line that ends the
            # body.
            name = b"" if trailer is None else trailer[1] or b""
            is_too_long = self._trailer_bytes > MAX_TRAILER_BYTES
            if trailer is None or is_too_long or name.lower() in NO_TRAILERS:
                raise bad_request("the trailer fields are malformed or too long")
            self.is_complete = line == b"\r\n"
        else:
            match = SIZE.fullmatch(line)
            if match is None:
                raise bad_request("the size of a chunk is not a hexadecimal number")
            self._missing = int(match[1], 16)
            self._is_trailer = self._missing == 0
            self._is_after_chunk = not self._is_trailer
