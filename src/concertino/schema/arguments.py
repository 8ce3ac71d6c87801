"""The arguments of one handler: its input schema, and a call's JSON -> Python arguments.

One generated Struct decodes all arguments at once; only when that fails is each argument looked at alone, so that every
problem is reported. An integral number (`1.0`) counts as an integer, as JSON Schema says.
Spec: 2026-07-28 server/tools "Tool", "Error Handling"; JSON Schema 2020-12 validation 6.1.1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Annotated, Any, cast

import msgspec
from msgspec import Raw, json
from msgspec.structs import astuple

from concertino.errors import ConcertinoError, RegistrationError
from concertino.schema.signature import MISSING, Parameter, read
from concertino.schema.type_schema import (
    SchemaBuilder,
    SchemaViolation,
    decode_hook,
    json_value,
    nan_path,
    violations_of,
)

__all__ = ["ArgumentDecoder", "InvalidArguments", "SchemaViolation", "argument_decoder"]

Bound = tuple[tuple[Any, ...], dict[str, Any]]  # Any: arguments of whatever types the handler has
_MAX_UNKNOWN = 20  # unknown arguments reported by name; a caller could send any number
_MAX_NAME = 80  # characters of such a name


class InvalidArguments(ConcertinoError):
    """A call's arguments do not fit. problems: in the order of the parameters, then the unknown arguments."""

    def __init__(self, problems: list[SchemaViolation]) -> None:
        super().__init__("; ".join(map(str, problems)))
        self.problems = problems


class ArgumentDecoder:
    """What arguments_of gives.

    schema: JSON Schema 2020-12 of the arguments object. injected: names of the parameters that bind fills.
    bind(raw, injected): raw is the JSON text of the arguments, empty for none; injected is passed for each injected
    parameter. Returns (args, kwargs) for the handler. Raises BadArguments, and what a user's own class raises apart
    from ValueError and TypeError.
    """

    __slots__ = ("bind", "injected", "schema")

    def __init__(
        self,
        schema: dict[str, Any],
        injected: tuple[str, ...],
        bind: Callable[[Raw | bytes, object], Bound],
    ) -> None:
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
    """Read a handler's parameters.

    coerce: take "1" for an int and the like. inject: classes of parameters that bind fills, not the caller.
    descriptions: parameter -> text, for those whose annotation has none.
    Raises RegistrationError naming function, parameter, type and what to write instead.
    """
    signature = read(handler, inject)
    forms = SchemaBuilder(coerce=coerce)
    fields: dict[str, _Field] = {}
    for parameter in signature.parameters:
        if parameter.injected:
            continue
        try:
            fields[parameter.name] = _field(parameter, forms, descriptions.get(parameter.name))
        except RegistrationError as error:
            raise RegistrationError(
                f"{signature.name}(): parameter {parameter.name!r}: {error}"
            ) from None
    schema: dict[str, Any] = {"type": "object"}
    if fields:
        schema["properties"] = {name: field.schema for name, field in fields.items()}
        if required := [name for name, field in fields.items() if not field.optional]:
            schema["required"] = required
    schema["additionalProperties"] = False
    if forms.definitions:
        schema["$defs"] = forms.definitions
    injected = tuple(parameter.name for parameter in signature.parameters if parameter.injected)
    return ArgumentDecoder(
        schema, injected, _binder(signature.parameters, fields, strict=not coerce)
    )


class _Field(msgspec.Struct, frozen=True):
    """One argument. optional: how msgspec.field gets the function's own default object; empty when it is required."""

    type: Any
    schema: dict[str, Any]
    optional: dict[str, Any]


def _field(parameter: Parameter, forms: SchemaBuilder, description: str | None) -> _Field:
    annotation, default = parameter.annotation, parameter.default
    optional: dict[str, Any] = {}
    if type(default).__module__ == "pydantic.fields":  # `x: int = Field(5, ge=0)`
        annotation = Annotated[annotation, default]
        if default.default_factory is not None:
            optional, default = {"default_factory": default.default_factory}, MISSING
        else:
            default = MISSING if default.is_required() else default.default
    form = forms.form(annotation)
    kind, schema = form.type, form.schema
    if default is not MISSING:
        # msgspec copies or refuses other defaults.
        optional = (
            {"default": default}
            if type(default) in _PLAIN
            else {"default_factory": lambda: default}
        )
        if default is None and not _takes_null(schema):  # `x: str = None`
            outside = {
                word: schema.pop(word) for word in ("description", "title") if word in schema
            }
            kind, schema = kind | None, {"anyOf": [schema, {"type": "null"}], **outside}
        try:
            schema["default"] = json_value(default)
        except (TypeError, ValueError, RecursionError):  # not JSON: the caller need not know
            pass
    if description:
        schema.setdefault("description", description)
    return _Field(kind, schema, optional)


_PLAIN = (type(None), bool, int, float, str)


def _takes_null(schema: dict[str, Any]) -> bool:
    if "anyOf" in schema:
        return any(_takes_null(member) for member in schema["anyOf"])
    return (
        schema.get("type") == "null"
        or None in schema.get("enum", ())
        or not schema.keys() - {"description", "title"}
    )


def _binder(
    parameters: list[Parameter], fields: dict[str, _Field], *, strict: bool
) -> Callable[[Raw | bytes, object], Bound]:
    """bind(), specialised to the shape of the signature."""
    definitions: list[Any] = [  # generated names: an argument may be called __init__
        (f"f{index}", field.type, msgspec.field(name=name, **field.optional))
        for index, (name, field) in enumerate(fields.items())
    ]
    struct = msgspec.defstruct(
        "ArgumentDecoder", definitions, forbid_unknown_fields=True, kw_only=True, gc=False
    )
    decode = json.Decoder(struct, strict=strict, dec_hook=decode_hook).decode
    if not strict:
        decode = _finite(decode)

    def plain(raw: Raw | bytes, injected: object) -> Bound:
        try:
            return astuple(decode(raw or b"{}")), {}
        except _UNREADABLE:
            return astuple(struct(**_each(raw, fields, strict))), {}

    places = [index for index, parameter in enumerate(parameters) if parameter.injected]
    keywords = [parameter.name for parameter in parameters if parameter.keyword_only]
    if not places and not keywords:
        return plain
    if len(places) == 1 and not keywords:
        (only,) = places

        def around(raw: Raw | bytes, injected: object) -> Bound:
            try:
                values = astuple(decode(raw or b"{}"))
            except _UNREADABLE:
                values = astuple(struct(**_each(raw, fields, strict)))
            return (*values[:only], injected, *values[only:]), {}

        return around
    first = len(parameters) - len(keywords)  # keyword-only parameters come last

    def bind(raw: Raw | bytes, injected: object) -> Bound:
        values, _ = plain(raw, injected)
        for place in places:
            values = (*values[:place], injected, *values[place:])
        return values[:first], dict(zip(keywords, values[first:], strict=True))

    return bind


def _finite(decode: Callable[[Raw | bytes], Any]) -> Callable[[Raw | bytes], Any]:
    """A decoder that takes numbers as texts, without "nan" and "inf", which no JSON could say: _each tells of them."""

    def finite(raw: Raw | bytes) -> Any:
        decoded = decode(raw)
        if nan_path(astuple(decoded)) is not None:
            raise msgspec.DecodeError
        return decoded

    return finite


# ValidationError is a DecodeError; more than about 1,000 levels are a RecursionError; broken UTF-8 is the third.
_UNREADABLE = (msgspec.DecodeError, RecursionError, UnicodeError)


def _each(raw: Raw | bytes, fields: dict[str, _Field], strict: bool) -> dict[str, Any]:
    """Decode argument by argument: the Struct's fields, or BadArguments with every problem."""
    try:
        given = json.decode(raw or b"{}", type=dict[str, Raw])
    except _UNREADABLE as error:
        raise InvalidArguments(_unreadable(error, "")) from None
    problems: list[SchemaViolation] = []
    values: dict[str, Any] = {}
    for index, (name, field) in enumerate(fields.items()):
        if name in given:
            try:
                value = values[f"f{index}"] = _decoded(given.pop(name), field.type, strict)
                if not strict and (place := nan_path(value, name)) is not None:
                    problems.append(
                        SchemaViolation(place, "expected a finite number, got NaN or infinity")
                    )
            except _UNREADABLE as error:
                problems += _unreadable(error, name, field.schema.get("enum"))
        elif not field.optional:
            problems.append(SchemaViolation(name, "required, but missing"))
    for name in list(given)[:_MAX_UNKNOWN]:
        problems.append(
            SchemaViolation(
                name[:_MAX_NAME], "unknown argument" + _suggestion(name[:_MAX_NAME], fields)
            )
        )
    if len(given) > _MAX_UNKNOWN:
        problems.append(SchemaViolation("", f"{len(given) - _MAX_UNKNOWN} more unknown arguments"))
    if problems:
        raise InvalidArguments(problems)
    return values


def _decoded(raw: Raw, kind: Any, strict: bool) -> Any:
    decoder = json.Decoder(kind, strict=strict, dec_hook=decode_hook)
    try:
        return decoder.decode(raw)
    except msgspec.ValidationError as error:
        # 1.0 is an integer to JSON Schema, not to msgspec. Only what failed gets here, so that 1.0 stays a float
        # wherever a float is taken. And of a member that stands twice the last counts, msgspec looks at both.
        try:
            return decoder.decode(json.encode(_whole(json.decode(raw))))
        except msgspec.ValidationError:
            raise error  # noqa: B904 # with its own cause; the second speaks of what did not come


def _whole(value: Any) -> Any:
    """A JSON tree with integers for integral numbers, as far as floats are exact (2**53)."""
    if isinstance(value, float):
        return int(value) if value.is_integer() and abs(value) <= 2**53 else value
    if isinstance(value, list):
        return [_whole(item) for item in cast("list[Any]", value)]
    if isinstance(value, dict):
        return {key: _whole(item) for key, item in cast("dict[str, Any]", value).items()}
    return value


def _unreadable(
    error: Exception, path: str, allowed: list[Any] | None = None
) -> list[SchemaViolation]:
    """What to say of a failed decode. allowed: the values of an enum, which msgspec does not tell."""
    if isinstance(error, RecursionError):
        return [SchemaViolation(path, "nested too deeply")]
    if not isinstance(error, msgspec.ValidationError):
        return [
            SchemaViolation(
                path, f"not readable as JSON (a lone surrogate, or broken text): {error}"
            )
        ]
    if allowed and str(error).startswith("Invalid enum value"):
        given = str(error).removeprefix("Invalid enum value ")
        return [
            SchemaViolation(
                path, f"expected one of {json.encode(allowed).decode()}, got {given[:_MAX_NAME]}"
            )
        ]
    return violations_of(error, path)


def _suggestion(name: str, fields: dict[str, _Field]) -> str:
    from difflib import get_close_matches  # 4 ms, and only for a mistake

    if close := get_close_matches(name, fields, 1):
        return f"; did you mean {close[0]}?"
    return f"; there are {', '.join(fields)}" if fields else "; there are none"
