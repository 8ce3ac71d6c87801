"""Arguments of a handler: their input schema, and the decoder from JSON to Python arguments.

    decoder = argument_decoder(add)                    # def add(a: int, b: int = 0) -> int
    decoder.schema                                     # {"type": "object", "properties": ...}
    args, kwargs = decoder.bind(b'{"a": 1}', None)     # (1, 0), {}

A generated msgspec Struct decodes all arguments at once. msgspec stops at the first error. After an
error, each argument is decoded on its own, so that all violations of the schema can be reported.
This second decoding also accepts a number such as `1.0` as an integer, as JSON Schema does.

Spec: 2026-07-28 server/tools "Tool", "Error Handling"; JSON Schema 2020-12 validation 6.1.1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Annotated, Any, cast

import msgspec
from msgspec import Raw, json
from msgspec.structs import astuple

from concertino.decode_errors import DECODE_ERRORS
from concertino.errors import ConcertinoError, RegistrationError
from concertino.schema.json_values import json_value, nan_path
from concertino.schema.signature import MISSING, Parameter, Signature, read_signature
from concertino.schema.type_schema import SchemaBuilder
from concertino.schema.violations import SchemaViolation, decode_hook, violations_of

# The positional and the keyword arguments for a handler.
Bound = tuple[tuple[Any, ...], dict[str, Any]]

# A message names at most this many unknown arguments, because a client may send any number of them.
_MAX_UNKNOWN = 20
# A message has at most this many characters of a name or an enum value that the client has sent.
_MAX_NAME_CHARS = 80

# The types of defaults that msgspec takes unchanged.
_PLAIN = (type(None), bool, int, float, str)

# The messages for an argument that is missing, or that the handler does not have.
MISSING_ARGUMENT = "required, but missing"
UNKNOWN_ARGUMENT = "unknown argument"
# The beginning of msgspec's message about a missing or unknown member -> our message. If msgspec
# changes its messages, clients get them unchanged.
_MEMBER_MESSAGES = {
    "object missing required field ": MISSING_ARGUMENT,
    "object contains unknown field ": UNKNOWN_ARGUMENT,
}


class InvalidArguments(ConcertinoError):
    """Raised when the arguments of a call are invalid.

    violations: the reasons, in the order of the parameters; unknown arguments come last.
    """

    def __init__(self, violations: list[SchemaViolation]) -> None:
        super().__init__("; ".join(map(str, violations)))
        self.violations = violations


class ArgumentDecoder:
    """Decodes the arguments of calls to one handler. argument_decoder() creates it.

        args, kwargs = decoder.bind(b'{"a": 1}', context)
        handler(*args, **kwargs)

    signature: the signature of the handler.
    schema: the JSON Schema (2020-12) of the arguments object.
    injected: the names of the parameters that the server fills, such as the Context.
    bind: a function bind(raw, context) that returns (args, kwargs) for the handler.
        - raw: the JSON text of the arguments object; b"" for no arguments.
        - context: one object, such as the Context, which every injected parameter gets.
        - bind() raises InvalidArguments if the arguments are invalid, or if the constructor of a
          user's class raises ValueError or TypeError. Other exceptions of constructors are not
          caught.
    """

    __slots__ = ("bind", "injected", "schema", "signature")

    def __init__(
        self,
        signature: Signature,
        schema: dict[str, Any],
        injected: tuple[str, ...],
        bind: Callable[[Raw | bytes, object], Bound],
    ) -> None:
        self.signature = signature
        self.schema = schema
        self.injected = injected
        self.bind = bind


def argument_decoder(
    handler: Callable[..., object],
    *,
    coerce: bool = False,
    inject: tuple[type, ...] = (),
    descriptions: Mapping[str, str] = MappingProxyType({}),
) -> ArgumentDecoder:
    """Return the ArgumentDecoder of a handler.

    coerce: whether to convert strings, such as "1" for an int; by default they are invalid.
    inject: classes, such as Context. The server fills parameters with such an annotation.
    descriptions: parameter -> its description in the docstring. This description is used if the
        annotation of the parameter has none.
    Raises RegistrationError for a parameter whose type cannot be decoded from JSON, and for *args
    and **kwargs. The error names the function and the parameter, and says what to write instead.
    """
    signature = read_signature(handler, inject)
    builder = SchemaBuilder(coerce=coerce)
    fields: dict[str, _Field] = {}
    for parameter in signature.parameters:
        if parameter.injected:
            continue
        try:
            fields[parameter.name] = _make_field(
                parameter, builder, descriptions.get(parameter.name)
            )
        except RegistrationError as exc:
            raise RegistrationError(
                f"{signature.name}(): parameter {parameter.name!r}: {exc}"
            ) from None

    schema: dict[str, Any] = {"type": "object"}
    if fields:
        schema["properties"] = {name: field.schema for name, field in fields.items()}
        if required := [name for name, field in fields.items() if field.is_required]:
            schema["required"] = required
    schema["additionalProperties"] = False
    if builder.definitions:
        schema["$defs"] = builder.definitions
    injected = tuple(parameter.name for parameter in signature.parameters if parameter.injected)
    return ArgumentDecoder(
        signature, schema, injected, _make_bind(signature.parameters, fields, strict=not coerce)
    )


class _Field(msgspec.Struct, frozen=True):
    """One argument as a field of the generated Struct.

    type: the type that msgspec decodes.
    schema: the argument's JSON Schema.
    default: `default` or `default_factory` for msgspec.field(), by this name; empty if the argument
        is required.
    """

    type: Any
    schema: dict[str, Any]
    default: dict[str, Any]

    @property
    def is_required(self) -> bool:
        """Return whether calls must have the argument."""
        return not self.default


def _make_field(parameter: Parameter, builder: SchemaBuilder, description: str | None) -> _Field:
    """Return the field of the generated Struct for a parameter.

    description: the description in the docstring; None if there is none.
    """
    annotation, default = parameter.annotation, parameter.default
    field_default: dict[str, Any] = {}

    # pydantic allows `x: int = Field(5, ge=0)`, where the default holds the constraints.
    if type(default).__module__ == "pydantic.fields":
        field_info = default
        annotation = Annotated[annotation, field_info]
        default = MISSING
        if field_info.default_factory is not None:
            field_default = {"default_factory": field_info.default_factory}
        elif not field_info.is_required():
            default = field_info.default

    built = builder.build(annotation)
    field_type, schema = built.type, built.schema
    if default is not MISSING:
        # msgspec takes a default of a plain type unchanged. It copies or rejects other defaults, so
        # these come from a factory.
        is_plain = type(default) in _PLAIN
        field_default = {"default": default} if is_plain else {"default_factory": lambda: default}

        # `x: str = None` accepts null, too.
        if default is None and not _accepts_null(schema):
            outer = {
                keyword: schema.pop(keyword)
                for keyword in ("description", "title")
                if keyword in schema
            }
            field_type = field_type | None
            schema = {"anyOf": [schema, {"type": "null"}], **outer}
        try:
            schema["default"] = json_value(default)
        except (TypeError, ValueError, RecursionError):
            # If JSON cannot express the default, the schema does not contain it.
            pass
        else:
            # A plain default of exactly the annotated type fits. Other defaults are not checked.
            if is_plain and type(default) is not field_type:
                _check_default(default, field_type, schema.get("enum"))

    if description:
        schema.setdefault("description", description)
    return _Field(field_type, schema, field_default)


def _check_default(default: object, field_type: Any, allowed: list[Any] | None) -> None:
    """Raise RegistrationError for a default that would be refused as the argument of a call.

    Clients see the default in the schema and may send it.
    allowed: the values of an enum; otherwise None.
    """
    try:
        decode_value(json.encode(default), field_type, strict=True)
    except DECODE_ERRORS as exc:
        problem = _violations(exc, "", allowed)[0].message
        raise RegistrationError(f"its default {default!r} does not fit: {problem}") from None


def _accepts_null(schema: dict[str, Any]) -> bool:
    """Return whether a schema allows null."""
    if "anyOf" in schema:
        return any(_accepts_null(member) for member in schema["anyOf"])
    # A schema that has no keywords besides a description and a title allows every value.
    return (
        schema.get("type") == "null"
        or None in schema.get("enum", ())
        or not schema.keys() - {"description", "title"}
    )


def _make_bind(
    parameters: list[Parameter], fields: dict[str, _Field], *, strict: bool
) -> Callable[[Raw | bytes, object], Bound]:
    """Return the function for ArgumentDecoder.bind.

    There is one function for each kind of signature, so that calls of simple handlers are fast.
    fields: the arguments, by name, in the order of the parameters that the server does not fill.
    strict: False to convert strings; see `coerce` of argument_decoder().
    """
    struct = _make_argument_struct(fields)
    decode = json.Decoder(struct, strict=strict, dec_hook=decode_hook).decode
    if not strict:
        decode = _refuse_nan(decode)

    def bind_values(raw: Raw | bytes, context: object) -> Bound:
        try:
            return astuple(decode(raw or b"{}")), {}
        except DECODE_ERRORS:
            return astuple(struct(**_decode_each(raw, fields, strict))), {}

    # The values of injected parameters, such as the Context, are inserted at these positions.
    positions = [index for index, parameter in enumerate(parameters) if parameter.injected]
    keywords = [parameter.name for parameter in parameters if parameter.keyword_only]
    if not positions and not keywords:
        return bind_values

    # Fast path, which saves a function call: a handler that takes a Context.
    if len(positions) == 1 and not keywords:
        (position,) = positions

        def bind_with_one(raw: Raw | bytes, context: object) -> Bound:
            try:
                values = astuple(decode(raw or b"{}"))
            except DECODE_ERRORS:
                values = astuple(struct(**_decode_each(raw, fields, strict)))
            return (*values[:position], context, *values[position:]), {}

        return bind_with_one

    # Keyword-only parameters come last in a signature, so their values are the last ones.
    first_keyword = len(parameters) - len(keywords)

    def bind(raw: Raw | bytes, context: object) -> Bound:
        values, _ = bind_values(raw, context)
        for position in positions:
            values = (*values[:position], context, *values[position:])
        return values[:first_keyword], dict(zip(keywords, values[first_keyword:], strict=True))

    return bind


def _make_argument_struct(fields: dict[str, _Field]) -> type[msgspec.Struct]:
    """Return the generated Struct, which has one field for each argument."""
    # Fields have generated names, because an argument may be called __init__.
    definitions: list[Any] = [
        (f"f{index}", field.type, msgspec.field(name=name, **field.default))
        for index, (name, field) in enumerate(fields.items())
    ]
    # Instances are discarded at once, so the garbage collector need not track them.
    return msgspec.defstruct(
        "Arguments", definitions, forbid_unknown_fields=True, kw_only=True, gc=False
    )


def _refuse_nan(decode: Callable[[Raw | bytes], Any]) -> Callable[[Raw | bytes], Any]:
    """Return a decoder like `decode` that raises DecodeError for NaN and infinity.

    With strict=False msgspec converts the strings "nan" and "inf" to these numbers, which JSON does
    not have. After the DecodeError, _decode_each() finds the arguments that contain them.
    """

    def decode_finite(raw: Raw | bytes) -> Any:
        decoded = decode(raw)
        if nan_path(astuple(decoded)) is not None:
            raise msgspec.DecodeError
        return decoded

    return decode_finite


def _decode_each(raw: Raw | bytes, fields: dict[str, _Field], strict: bool) -> dict[str, Any]:
    """Decode each argument on its own, and return the fields of the generated Struct by name.

    Called when the fast decoder has failed. The arguments may be valid nevertheless, such as 1.0
    for an int.
    Raises InvalidArguments with all violations.
    """
    try:
        arguments = json.decode(raw or b"{}", type=dict[str, Raw])
    except DECODE_ERRORS as exc:
        raise InvalidArguments(_violations(exc, "")) from None

    violations: list[SchemaViolation] = []
    values: dict[str, Any] = {}
    for index, (name, field) in enumerate(fields.items()):
        if name in arguments:
            try:
                value = decode_value(arguments.pop(name), field.type, strict)
                values[f"f{index}"] = value
                if not strict and (path := nan_path(value, name)) is not None:
                    message = "expected a finite number, got NaN or infinity"
                    violations.append(SchemaViolation(path, message))
            except DECODE_ERRORS as exc:
                violations += _violations(exc, name, field.schema.get("enum"))
        elif field.is_required:
            violations.append(SchemaViolation(name, MISSING_ARGUMENT))

    violations += describe_unknown(list(arguments), list(fields))
    if violations:
        raise InvalidArguments(violations)
    return values


def describe_unknown(names: Sequence[str], fields: Sequence[str]) -> list[SchemaViolation]:
    """Return the violations for unknown arguments.

    names: the unknown arguments.
    fields: the arguments that the handler has, for suggestions.
    """
    violations: list[SchemaViolation] = []
    for name in names[:_MAX_UNKNOWN]:
        name = name[:_MAX_NAME_CHARS]
        violations.append(SchemaViolation(name, UNKNOWN_ARGUMENT + _suggestion(name, fields)))
    if len(names) > _MAX_UNKNOWN:
        more = f"{len(names) - _MAX_UNKNOWN} more unknown arguments"
        violations.append(SchemaViolation("", more))
    return violations


def decode_value(raw: Raw | bytes, field_type: Any, strict: bool) -> Any:
    """Decode one JSON value. A number such as 1.0 is accepted as an int.

    raw: the value as JSON text.
    field_type: the type to decode: TypeSchema.type (type_schema.py).
    strict: False to convert strings, such as "1" to an int, as for msgspec.convert().
    Raises msgspec.ValidationError if the value is invalid for the type, and DecodeError if it is
    not JSON.
    """
    decoder = json.Decoder(field_type, strict=strict, dec_hook=decode_hook)
    try:
        return decoder.decode(raw)
    except msgspec.ValidationError as exc:
        # Try again with 1 in place of 1.0, which is an integer in JSON Schema but not in msgspec.
        # This is done only after a failure, so that 1.0 stays a float where a float is expected. As
        # a side effect, only the last value of a repeated key is checked.
        try:
            return decoder.decode(json.encode(_integral_to_int(json.decode(raw))))
        except msgspec.ValidationError:
            # Raise the first error, which describes the values as the client has sent them.
            raise exc  # noqa: B904


def _integral_to_int(value: Any) -> Any:
    """Return a JSON value in which integral floats are replaced by ints.

    Floats beyond 2**53 stay, because they are not exact.
    """
    if isinstance(value, float):
        return int(value) if value.is_integer() and abs(value) <= 2**53 else value
    if isinstance(value, list):
        return [_integral_to_int(item) for item in cast("list[Any]", value)]
    if isinstance(value, dict):
        tree = cast("dict[str, Any]", value)
        return {key: _integral_to_int(item) for key, item in tree.items()}
    return value


def _violations(
    error: Exception, path: str, allowed: list[Any] | None = None
) -> list[SchemaViolation]:
    """Return the violations that an exception of the decoder reports.

    path: the place of the decoded value.
    allowed: the values of an enum, which msgspec's message does not name; otherwise None.
    """
    if isinstance(error, RecursionError):
        return [SchemaViolation(path, "nested too deeply")]
    if not isinstance(error, msgspec.ValidationError):
        message = f"not readable as JSON (a lone surrogate, or broken text): {error}"
        return [SchemaViolation(path, message)]
    if allowed and str(error).startswith("Invalid enum value"):
        got = str(error).removeprefix("Invalid enum value ")[:_MAX_NAME_CHARS]
        message = f"expected one of {json.encode(allowed).decode()}, got {got}"
        return [SchemaViolation(path, message)]
    return [_name_the_member(violation) for violation in violations_of(error, path)]


def _name_the_member(violation: SchemaViolation) -> SchemaViolation:
    """Return a violation with the name of a missing or unknown member in the path.

    msgspec writes the name into the message only.
    """
    for start, message in _MEMBER_MESSAGES.items():
        if violation.message.startswith(start):
            name = violation.message.removeprefix(start)
            return SchemaViolation(f"{violation.path}.{name}", message)
    return violation


def _suggestion(name: str, fields: Sequence[str]) -> str:
    # Imported here because it takes 4 ms, and only a caller's mistake needs it.
    from difflib import get_close_matches

    if close := get_close_matches(name, fields, 1):
        return f"; did you mean {close[0]}?"
    return f"; expected {', '.join(fields)}" if fields else "; it takes no arguments"
