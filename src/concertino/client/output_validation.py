"""Decodes the results that a client receives, and validates them against output schemas.

OutputValidator knows the output schemas of a server's tools after Client.list_tools() was called.
It compiles a schema when the tool is first called, and raises an error for a schema that it cannot
enforce. It never fetches a URL in a schema.

decode_result(), decode_result_as() and convert_output() decode results to the types that callers
have chosen.
Spec: 2025-06-18 and later server/tools "Output Schema"; 2026-07-28 basic/index "JSON Schema Usage".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from importlib.util import find_spec
from typing import Any, TypeVar, cast

from msgspec import UNSET, Raw, ValidationError, convert
from msgspec.json import decode, encode

from concertino.client.pending_request import quote_frame
from concertino.decode_errors import DECODE_ERRORS
from concertino.errors import ProtocolError, RegistrationError, ToolError
from concertino.types.results import CallToolResult, Tool

# JSON Schemas and JSON values may have any shape, so their type is Any in this file.
T = TypeVar("T")
# The type of a function that takes a result and its size in bytes, and returns an error text; "" if
# the result is valid.
Validate = Callable[[CallToolResult, int], str]
# An error names at most this many violations of a schema.
MAX_VIOLATIONS_SHOWN = 3


class OutputValidator:
    """The output schemas of a server's tools, and the functions that validate results by them.

    wanted: whether to validate results; None to validate them if the extra `validate` of this
        package is installed.
    Raises ImportError if `wanted` is True and the extra is not installed.

    Attribute:
    schemas: name of a tool -> its output schema; empty before learn(), and always if results are
        not validated.
    """

    def __init__(self, wanted: bool | None) -> None:
        is_installed = wanted is not False and find_spec("jsonschema_rs") is not None
        if wanted and not is_installed:
            from concertino.installation import missing_extra

            raise ImportError(missing_extra("validate=True", "validate"))
        self.schemas: dict[str, dict[str, Any]] = {}
        self._is_enabled = is_installed
        self._validators: dict[str, Validate] = {}

    def learn(self, tools: Iterable[Tool]) -> None:
        """Replace all schemas by those of the tools in a new list."""
        if self._is_enabled:
            self.schemas = {
                tool.name: tool.output_schema
                for tool in tools
                if isinstance(tool.output_schema, dict)
            }
            self._validators = {}

    def get(self, name: str) -> Validate | None:
        """Return the function that validates the results of the tool with this name.

        Returns None if the tool has no output schema. Raises ProtocolError if the schema cannot be
        enforced, for example because it has an unknown `$schema`.
        """
        schema = self.schemas.get(name)
        if schema is None:
            return None
        if name not in self._validators:
            try:
                self._validators[name] = _compile(schema)
            except RegistrationError as exc:
                raise ProtocolError(
                    f"tools/call {name}: not called, because its output schema cannot be enforced: "
                    f"{exc} (Client(validate=False) validates nothing)"
                ) from None
        return self._validators[name]


def _compile(schema: dict[str, Any]) -> Validate:
    """Return a function that validates results against an output schema.

    Raises RegistrationError if the schema cannot be enforced.
    """
    from concertino.schema.custom_schema import DIALECT, check_size
    from concertino.schema.validation import VALIDATORS, violation_finder

    check_size(schema)
    # `http://json-schema.org/draft-07/schema#` and the same URL without `#` name one dialect.
    dialect = str(schema.get("$schema", DIALECT)).removesuffix("#")
    if dialect != DIALECT and dialect in VALIDATORS:
        # violation_finder() takes the dialect of a schema without `$schema` as an argument.
        schema = {name: value for name, value in schema.items() if name != "$schema"}
    else:
        # violation_finder() refuses a dialect that it does not know, with its name.
        dialect = DIALECT
    find_violations = violation_finder(schema, "outputSchema", dialect)

    def validate(result: CallToolResult, size: int) -> str:
        if result.is_error:
            return ""
        if result.structured_content is UNSET:
            return "the tool has an output schema, but its result has no structured content"
        violations = find_violations(result.structured_content, size)
        if not violations:
            return ""
        text = "; ".join(map(str, violations[:MAX_VIOLATIONS_SHOWN]))
        hidden = len(violations) - MAX_VIOLATIONS_SHOWN
        more = f" and {hidden} more" if hidden > 0 else ""
        return f"the structured content does not fit the tool's output schema: {text}{more}"

    return validate


def decode_result(label: str, raw: Raw, into: type[T]) -> T:
    """Decode the result of a request as one of the classes in concertino.types.

    label: the method and subject of the request, for errors.
    raw: the result, undecoded.
    into: the class.
    Raises ProtocolError if the result is malformed. Its text quotes the result.
    """
    try:
        return decode(raw, type=into)
    except DECODE_ERRORS as exc:
        raise ProtocolError(
            f"{label}: the answer does not follow the protocol: {exc}: {quote_frame(raw)}"
        ) from None


def decode_result_as(label: str, raw: Raw, into: Any) -> Any:
    """Decode the result of a request to any type that the user has chosen.

    label: the method and subject of the request, for errors.
    raw: the result, undecoded.
    into: the type.
    Raises ProtocolError if the result does not fit this type, and TypeError if the type cannot be
    decoded from JSON.
    """
    try:
        return _decode_json(raw, into)
    except DECODE_ERRORS as exc:
        raise ProtocolError(
            f"{label}: the result is no {_type_name(into)}: {exc}: {quote_frame(raw)}"
        ) from None


def convert_output(name: str, result: CallToolResult, into: type[T]) -> T:
    """Convert the result of a tool to a type.

    - Structured content is converted. If this fails, and the content is {"result": value}, the
      value is converted instead.
    - Without structured content, the text of the result is decoded as JSON. For the type `str`, the
      text is returned as it is.

    name: the name of the tool, for errors.
    into: the type.
    Raises ToolError if the tool has failed, ProtocolError if the output does not fit the type, and
    TypeError if the type cannot be decoded from JSON.
    """
    text = result.text
    if result.is_error:
        raise ToolError(text or f"{name} failed without a message")

    output: Any = result.structured_content
    try:
        if output is UNSET:
            return cast("T", text) if into is str else _decode_json(text.encode(), into)
        try:
            return _convert(output, into)
        except ValidationError:
            # A server may wrap a value as {"result": value} without saying so in its schema
            # (client/wrapped_results.py). So try to convert the value itself.
            if isinstance(output, dict) and list(cast("dict[str, Any]", output)) == ["result"]:
                return _convert(output["result"], into)
            raise
    except DECODE_ERRORS as exc:
        quoted = quote_frame(text.encode() if output is UNSET else encode(output))
        raise ProtocolError(
            f"tools/call {name}: the result is no {_type_name(into)}: {exc}: {quoted}"
        ) from None


def _convert(output: Any, into: Any) -> Any:
    """Convert a JSON value to a type. Raises ValidationError if the value does not fit the type."""
    try:
        return convert(output, into)
    except (ValidationError, TypeError):
        # Imported here, because the import takes time, and msgspec alone can decode most types.
        from concertino.client.output_types import decode_as
    # After the `except` block, so that errors of decode_as() do not get the first error as context.
    return decode_as(encode(output), into)


def _decode_json(raw: Raw | bytes, into: Any) -> Any:
    """Decode JSON to a type. Raises DecodeError if it is malformed or does not fit the type."""
    try:
        return decode(raw, type=into)
    except (ValidationError, TypeError):
        from concertino.client.output_types import decode_as
    return decode_as(raw, into)


def _type_name(annotation: Any) -> Any:
    """Return the name of a class; any other annotation, such as `list[int]`, unchanged."""
    return annotation.__name__ if isinstance(annotation, type) else annotation
