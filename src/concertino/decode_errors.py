"""DECODE_ERRORS: what msgspec raises for JSON that it cannot decode.

Not in errors.py, because programs may import the exceptions without msgspec.
"""

from __future__ import annotations

from msgspec import DecodeError

__all__ = ["DECODE_ERRORS"]

# The JSON is malformed or of another type; it is not UTF-8, or a str that cannot be UTF-8; or it is
# nested too deeply. How deep it may be depends on the depth of the call stack, so that undecoded
# members can be too deep although the frame around them was not.
DECODE_ERRORS = (DecodeError, UnicodeError, RecursionError)
