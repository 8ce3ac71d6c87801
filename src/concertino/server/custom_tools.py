"""Tools with hand-written schemas: @server.tool(input_schema={...}, output_schema={...}).

Usually the schemas of a tool are made from its type annotations, and msgspec checks the arguments.
For the tools of this module, the author has written the schemas, and a JSON Schema validator
(schema/validation.py) checks the arguments and results. schema/custom_schema.py decides which
schemas are accepted. tools.py imports this module for the first such tool.
Spec: 2026-07-28 server/tools "Tool".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec import Raw
from msgspec.json import decode

from concertino.backend.interface import Context
from concertino.decode_errors import DECODE_ERRORS
from concertino.errors import RegistrationError
from concertino.schema.argument_wording import make_error_converter
from concertino.schema.arguments import InvalidArguments
from concertino.schema.signature import read_signature
from concertino.schema.validation import violation_finder
from concertino.schema.value_results import InvalidResult
from concertino.schema.violations import SchemaViolation
from concertino.server.functions import Bound

# JSON Schemas and JSON values are trees of any depth, so their types contain Any in this file.


def custom_binder(
    handler: Callable[..., Any], schema: dict[str, Any]
) -> Callable[[Raw | bytes, object], Bound]:
    """Return a function bind(raw, context) for a tool with a hand-written input schema.

    `raw` is the JSON of a call's arguments. bind() validates it, and returns the positional and
    keyword arguments for the handler. It raises InvalidArguments for invalid arguments.
    handler: a function of one parameter, which gets all arguments of a call as one dict. A second
        parameter of the type Context gets the context of the call.
    schema: the input schema.
    Raises RegistrationError for a schema that cannot be enforced, and for a handler with other
    parameters.
    """
    if schema.get("type") != "object":
        raise RegistrationError(
            f"input_schema: expected type 'object' at its root, got {schema.get('type')!r}"
        )
    find_violations = violation_finder(
        schema, "input_schema", describe=make_error_converter(schema)
    )
    parameters = read_signature(handler, (Context,)).parameters
    # Whether each parameter is for the Context.
    injected_flags = [parameter.injected for parameter in parameters]
    if injected_flags not in ([False], [False, True]):
        raise RegistrationError(
            "with input_schema the handler takes one dict, and after it a Context if it needs one"
        )
    takes_context = len(parameters) == 2

    def bind(raw: Raw | bytes, injected: object) -> Bound:
        arguments = _parse_arguments(raw)
        # The size of the JSON limits how long the validator may take.
        if violations := find_violations(arguments, len(bytes(raw))):
            raise InvalidArguments(violations)
        positional = (arguments, injected) if takes_context else (arguments,)
        return positional, {}

    return bind


def result_validator(schema: dict[str, Any]) -> Callable[[Raw | bytes], None]:
    """Return a function that validates structured content against an output schema.

    The function takes the content as JSON, and raises InvalidResult if it is invalid.
    schema: the output schema.
    Raises RegistrationError for a schema that cannot be enforced.
    """
    find_violations = violation_finder(schema, "output_schema")

    def validate(raw: Raw | bytes) -> None:
        if violations := find_violations(decode(raw), len(bytes(raw))):
            reasons = "; ".join(map(str, violations))
            raise InvalidResult(f"the result does not fit its output_schema: {reasons}")

    return validate


def _parse_arguments(raw: Raw | bytes) -> dict[str, Any]:
    """Return the arguments of a call as a dict; {} for empty bytes.

    Raises InvalidArguments unless `raw` is a JSON object.
    """
    try:
        return decode(raw or b"{}", type=dict[str, Any])
    except DECODE_ERRORS as exc:
        message = str(exc).replace("`", "").replace("Expected", "expected")
        raise InvalidArguments([SchemaViolation("", message)]) from None
