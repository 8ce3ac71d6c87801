"""Converts what a server sent to the type that its caller wants: any type that a tool may take.

msgspec decodes most types alone, and this module is imported only for the others: pydantic models,
paths, enums of any values, unions that msgspec refuses, and everything that contains them.
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
    """Decode JSON to a type, as arguments of a tool are decoded.

    Raises msgspec.DecodeError if it does not fit, and TypeError for a type without a JSON form.
    """
    try:
        decodable = _decodable_type(into)
    except RegistrationError as exc:
        raise TypeError(f"into: {exc}") from None
    try:
        return decode_value(raw, decodable, strict=True)
    except ValidationError as exc:
        # Errors of msgspec have their path at the end already; those of others get it in front.
        if not isinstance(exc.__cause__, InvalidValue):
            raise
        text = "; ".join(map(str, violations_of(exc, "")))
    raise ValidationError(text)


def _decodable_type(into: Any) -> Any:
    """Return what msgspec decodes instead of a type. Raises RegistrationError."""
    try:
        return _cached_decodable_type(into)
    except TypeError:
        # Metadata of an Annotated need not be hashable.
        return SchemaBuilder().build(into).type


@lru_cache(64)
def _cached_decodable_type(into: Any) -> Any:
    return SchemaBuilder().build(into).type
