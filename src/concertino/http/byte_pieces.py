"""add_piece(): collects the bytes of a body as they arrive, in a list that is joined at the end.

Servers collect requests with it, and clients responses and events.
"""

from __future__ import annotations

__all__ = ["add_piece"]

# Pieces below this size, in bytes, are joined with the next one at once.
SMALL_BYTES = 4096


def add_piece(pieces: list[bytes], data: bytes) -> None:
    """Append bytes to a list, or to its last piece if that has less than 4 KiB.

    pieces: the list, which the caller joins when all bytes have arrived.
    """
    # Each bytes object takes about 45 bytes of memory more than its content. If each piece were
    # appended alone, a body in chunks of two bytes would take twenty times its size, and the limits
    # count only the size.
    if pieces and len(pieces[-1]) < SMALL_BYTES:
        pieces[-1] += data
    else:
        pieces.append(data)
