"""Members of a request's params, decoded one by one, and what is wrong with them in words.

Most params stay raw until the backend decodes them. The protocol's own members are taken out here.
"""

from __future__ import annotations

from typing import Any

from msgspec import DecodeError, Raw
from msgspec.json import Decoder

from concertino.errors import INVALID_PARAMS, RpcError
from concertino.jsonrpc.messages import describe_decode_error

__all__ = ["QUOTED_CHARS", "describe_with_path", "pop_member"]

# Characters of the client's input that an error quotes.
QUOTED_CHARS = 128


def pop_member(members: dict[str, Raw], name: str, type: Any) -> Any:
    """Remove one member and return it decoded as `type`; None if it is missing.

    Raises RpcError if it does not fit the type.
    """
    raw = members.pop(name, None)
    if raw is None:
        return None
    try:
        return Decoder(type).decode(raw)
    except DecodeError as exc:
        raise RpcError(
            INVALID_PARAMS, f"Invalid params: {name}: {describe_with_path(exc)}"
        ) from None


def describe_with_path(exc: DecodeError) -> str:
    """Return msgspec's text with the path in front: `_meta.x: expected str, got int`."""
    text, _, path = describe_decode_error(exc).partition(" - at $.")
    text = text[0].lower() + text[1 : 3 * QUOTED_CHARS]
    return f"{path}: {text}" if path else text
