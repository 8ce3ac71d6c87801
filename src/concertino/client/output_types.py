"""Decodes JSON to types that msgspec alone cannot decode, for `call_tool(..., into=TYPE)`.

These are pydantic models, paths, enums of any values, some unions, and all types that contain one
of them. The parameters of a tool may have the same types. client/output_validation.py imports this
module only if msgspec refuses a type.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from msgspec import Raw, ValidationError

from concertino.errors import RegistrationError
from concertino.schema.arguments import decode_value
from concertino.schema.type_schema import SchemaBuilder
from concertino.schema.violations import InvalidValue, violations_of

__all__ = ["decode_as"]


def decode_as(raw: Raw | bytes, into: Any) -> Any:
    """Decode JSON to the type `into`, which may be any type that a parameter of a tool may have.

    Raises msgspec.DecodeError if the JSON is not valid for the type, and TypeError if the type
    cannot be decoded from JSON.
    """
    try:
        decodable = _decodable_type(into)
    except RegistrationError as exc:
        raise TypeError(f"into: {exc}") from None
    try:
        return decode_value(raw, decodable, strict=True)
    except ValidationError as exc:
        # Errors of msgspec contain the path of the wrong value. Errors of custom decoders do not,
        # so put the path in front.
        if not isinstance(exc.__cause__, InvalidValue):
            raise
        text = "; ".join(map(str, violations_of(exc, "")))
    # After the `except` block, so that the first error is not shown as the context of this one.
    raise ValidationError(text)


def _decodable_type(into: Any) -> Any:
    """Return the type that msgspec decodes in place of `into`.

    Raises RegistrationError if `into` cannot be decoded from JSON.
    """
    try:
        return _cached_decodable_type(into)
    except TypeError:
        # The type is not hashable, because the metadata of an Annotated is not. Do not cache it.
        return SchemaBuilder().build(into).type


@lru_cache(64)
def _cached_decodable_type(into: Any) -> Any:
    return SchemaBuilder().build(into).type
