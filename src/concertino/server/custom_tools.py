"""Tools whose schemas their author wrote by hand: arguments and results are checked against them.

Spec: 2026-07-28 server/tools "Tool". What a schema may be: schema/custom_schema.py; how it is enforced: schema_problems.py there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec import DecodeError, Raw
from msgspec.json import decode

from concertino.backend.interface import Context
from concertino.errors import RegistrationError
from concertino.schema.arguments import InvalidArguments
from concertino.schema.return_values import InvalidResult
from concertino.schema.signature import read_signature
from concertino.schema.validation import violation_finder
from concertino.schema.violations import SchemaViolation

__all__ = ["arguments_by", "results_by"]

# `Any` in this file: JSON Schemas and JSON values are open trees.
Bound = tuple[tuple[Any, ...], dict[str, Any]]


def arguments_by(
    handler: Callable[..., Any], schema: dict[str, Any]
) -> Callable[[Raw | bytes, object], Bound]:
    """bind() for a hand-written input schema: the handler gets the arguments as one dict, and the Context if it asks for it.

    Raises RegistrationError for a schema that cannot be enforced as it is and for another signature.
    """
    if schema.get("type") != "object":
        raise RegistrationError(
            f"input_schema: expected type 'object' at its root, got {schema.get('type')!r}"
        )
    find = violation_finder(schema, "input_schema")
    parameters = read_signature(handler, (Context,)).parameters
    takes_context = any(parameter.injected for parameter in parameters)
    if len(parameters) != 1 + takes_context or parameters[0].injected:
        raise RegistrationError(
            "with input_schema the handler takes one dict, and a Context after it if it wants"
        )

    def bind(raw: Raw | bytes, injected: object) -> Bound:
        arguments = _arguments(raw)
        if problems := find(arguments, len(bytes(raw))):
            raise InvalidArguments(problems)
        return (arguments, injected) if takes_context else (arguments,), {}

    return bind


def results_by(schema: dict[str, Any]) -> Callable[[Raw | bytes], None]:
    """What raises BadResult for structured content, as JSON, that a hand-written output schema does not allow.

    Raises RegistrationError for a schema that cannot be enforced as it is.
    """
    find = violation_finder(schema, "output_schema")

    def conform(raw: Raw | bytes) -> None:
        if problems := find(decode(raw), len(bytes(raw))):
            raise InvalidResult(
                f"the result does not fit its output_schema: {'; '.join(map(str, problems))}"
            )

    return conform


def _arguments(raw: Raw | bytes) -> dict[str, Any]:
    try:
        return decode(raw or b"{}", type=dict[str, Any])
    except DecodeError as why:
        raise InvalidArguments(
            [SchemaViolation("", str(why).replace("`", "").replace("Expected", "expected"))]
        ) from None
