"""SchemaBuilder: converts an annotation to a type that msgspec decodes, and to its JSON Schema.

    built = SchemaBuilder().build(list[int])
    built.schema                    # {"type": "array", "items": {"type": "integer"}}
    json.decode(b"[1]", type=built.type)

arguments.py and return_values.py use it for the annotations of handlers. One walk over an
annotation produces both the type and the schema, so that they always agree.

msgspec decodes most types. Three kinds of types become custom types (violations.py), whose
converters are in custom_decoders.py: unions that msgspec does not support, enums with values other
than str or int, and strings with patterns that Python's `re`, which msgspec uses, may match slowly
(regex_safety.py, decision 0007). If an annotation contains a pydantic type, pydantic decodes the
whole annotation. This module never imports pydantic. constraints.py reads the constraints and
descriptions in an annotation.

Spec: 2026-07-28 server/tools "Input Schema", "Output Schema"; basic/index "JSON Schema Usage".
"""

from __future__ import annotations

import datetime
import decimal
import enum
import sys
import types
import uuid
from collections import abc
from collections.abc import Callable
from typing import Annotated, Any, Literal, NewType, TypeVar, Union, cast, get_args, get_origin

from msgspec import Raw, Struct, json

from concertino.errors import RegistrationError
from concertino.schema.constraints import Constraints, NeedsPydantic, describe, split_metadata
from concertino.schema.json_values import json_value
from concertino.schema.violations import custom_type

# `Any` in this file: annotations are arbitrary objects, JSON Schemas and values are open trees.
Schema = dict[str, Any]
NONE = type(None)


# Distinguishes "no alias" from an alias of None.
_NO_ALIAS: Any = object()

# Types with a fixed schema. msgspec is more lenient than the formats in these schemas: for example,
# it accepts a date-time without a time zone.
_SCALARS: dict[Any, Schema] = {
    str: {"type": "string"},
    int: {"type": "integer"},
    float: {"type": "number"},
    bool: {"type": "boolean"},
    None: {"type": "null"},
    NONE: {"type": "null"},
    Any: {},
    object: {},
    Raw: {},
    bytes: {"type": "string", "contentEncoding": "base64"},
    bytearray: {"type": "string", "contentEncoding": "base64"},
    datetime.datetime: {"type": "string", "format": "date-time"},
    datetime.date: {"type": "string", "format": "date"},
    datetime.time: {"type": "string", "format": "time"},
    datetime.timedelta: {"type": "string", "format": "duration"},
    uuid.UUID: {"type": "string", "format": "uuid"},
    decimal.Decimal: {"type": "string", "format": "decimal"},
}
_CONTAINERS: dict[Any, Any] = {
    **{kind: kind for kind in (list, tuple, set, frozenset, dict)},
    **dict.fromkeys((abc.Sequence, abc.MutableSequence, abc.Collection, abc.Iterable), list),
    **dict.fromkeys((abc.Set, abc.MutableSet), set),
    **dict.fromkeys((abc.Mapping, abc.MutableMapping), dict),
}
# The schemas of containers without a type for their items.
_BARE: dict[Any, Schema] = {
    list: {"type": "array"},
    tuple: {"type": "array"},
    set: {"type": "array", "uniqueItems": True},
    frozenset: {"type": "array", "uniqueItems": True},
    dict: {"type": "object"},
}
# For keys of dict[int, ...], which are strings in JSON.
_INTEGER_KEY: Schema = {"pattern": "^-?(0|[1-9][0-9]*)$"}

# Part of an error text of msgspec -> what to write instead.
_HINTS = {
    "unions may not": "; such a union can be the type of a parameter or result, there also inside "
    "list, dict, tuple and Optional, but not of a field of a class",
    "Encoding objects": "; it is the default of a field: write default_factory=lambda: ... there",
}


class TypeSchema(Struct, frozen=True):
    """A type that msgspec can decode, with its JSON Schema.

    type: the type to pass to msgspec.
    schema: the JSON Schema of the values.
    adapter: the pydantic TypeAdapter that decodes and encodes values; None if msgspec does this.
    """

    type: Any
    schema: Schema
    adapter: Any = None


def _constrain(built: TypeSchema, constraints: Constraints) -> TypeSchema:
    """Return a TypeSchema that msgspec decodes, with the constraints that fit its type."""
    type_, schema = constraints.apply(built.type, built.schema)
    return TypeSchema(type_, schema)


class SchemaBuilder:
    """Builds the TypeSchemas of one handler.

        builder = SchemaBuilder()
        built = builder.build(list[int])
        built.schema                    # {"type": "array", "items": {"type": "integer"}}

    The schemas of several annotations share `definitions`, so use one object for one root schema.

    coerce: whether strings are converted, such as "1" to an int. This is strict=False in msgspec.
    for_results: whether the schemas describe results and not arguments. Such schemas omit formats
        that msgspec's output may not match exactly.

    Attribute:
    definitions: the entries for `$defs` in the root schema. build() adds to them.
    """

    def __init__(self, *, coerce: bool = False, for_results: bool = False) -> None:
        self.definitions: dict[str, Schema] = {}
        self._strict = not coerce
        self._for_results = for_results

    def build(self, annotation: Any) -> TypeSchema:
        """Return the TypeSchema of one annotation.

        Raises RegistrationError for a type that is not supported. The text says what to write
        instead.
        """
        try:
            built = self._walk(annotation, Constraints())
            if annotation not in _SCALARS:
                # Make a decoder only because this raises TypeError for types that msgspec cannot
                # decode.
                json.Decoder(built.type)
        except NeedsPydantic:
            built = self._build_with_pydantic(annotation)
        except RecursionError:
            raise RegistrationError(
                f"{_name(annotation)} contains itself; write Any in its place"
            ) from None
        except NameError as exc:
            raise RegistrationError(
                f"{_name(annotation)}: {exc}; define the name at module level"
            ) from None
        except (TypeError, ValueError) as exc:
            hint = next((hint for text, hint in _HINTS.items() if text in str(exc)), "")
            raise RegistrationError(f"{_name(annotation)} is not supported: {exc}{hint}") from None

        if self._for_results:
            return TypeSchema(built.type, _without_formats(built.schema), built.adapter)
        return built

    def _walk(self, annotation: Any, constraints: Constraints) -> TypeSchema:
        """Return the TypeSchema of an annotation, or of a part of an annotation.

        constraints: the constraints from the Annotated around this part.
        """
        if (schema := _SCALARS.get(annotation)) is not None:
            type_ = Any if annotation is object else annotation
            return _constrain(TypeSchema(type_, schema), constraints)

        origin, arguments = get_origin(annotation), get_args(annotation)
        if origin is not None:
            return self._walk_generic(annotation, origin, arguments, constraints)
        if (container := _CONTAINERS.get(annotation)) is not None:
            return _constrain(self._build_container(container, ()), constraints)

        # `type Name = str`, NewType and TypeVar stand for another annotation.
        if (inner := _target_of_alias(annotation)) is not _NO_ALIAS:
            return self._walk(inner, constraints)
        if isinstance(annotation, enum.EnumType):
            return _build_enum(annotation)
        return self._build_class(annotation)

    def _walk_generic(
        self,
        annotation: Any,
        origin: Any,
        arguments: tuple[Any, ...],
        constraints: Constraints,
    ) -> TypeSchema:
        """Return the TypeSchema of an annotation with arguments in square brackets, or of a union.

        origin, arguments: the results of typing.get_origin() and typing.get_args().
        """
        if origin is Annotated:
            return self._build_annotated(arguments[0], arguments[1:], constraints)
        if origin is Union or origin is types.UnionType:
            return self._build_union([self._walk(member, constraints) for member in arguments])
        if origin is Literal:
            return _build_literal(arguments)
        if (container := _CONTAINERS.get(origin)) is not None:
            return _constrain(self._build_container(container, arguments), constraints)

        # `type Pair[T] = tuple[T, T]`, written as Pair[int]
        if hasattr(origin, "__value__"):
            return self._walk(origin.__value__[arguments], constraints)
        return self._build_class(annotation)

    def _build_annotated(
        self,
        annotation: Any,
        metadata: tuple[Any, ...],
        constraints: Constraints,
    ) -> TypeSchema:
        """Return the TypeSchema of an Annotated.

        annotation: its first argument.
        metadata: its other arguments.
        constraints: the constraints of the Annotated around this one.
        """
        constraints = constraints.copy()
        keywords: Schema = {}
        for item in metadata:
            for part in split_metadata(item):
                constraints.collect(part)
                keywords |= describe(part)

        built = self._walk(annotation, constraints)
        if unfit := constraints.find_unfit():
            raise RegistrationError(f"{', '.join(unfit)} does not fit {_name(annotation)}")
        return TypeSchema(built.type, {**built.schema, **keywords})

    def _build_union(self, members: list[TypeSchema]) -> TypeSchema:
        """Return the TypeSchema of a union of these members."""
        union: Any = Union[tuple(member.type for member in members)]  # noqa: UP007 # of any number
        schema: Schema = {"anyOf": [member.schema for member in members]}
        # msgspec supports every union of one type with None, but not every union of several types.
        others = [member.type for member in members if member.type is not NONE]
        if len(others) > 1:
            try:
                json.Decoder(union)
            except TypeError:
                from concertino.schema.custom_decoders import make_union_converter

                union = custom_type(make_union_converter(others, self._strict))
                if len(others) < len(members):
                    union = union | None
        return TypeSchema(union, schema)

    def _build_container(self, container: Any, arguments: tuple[Any, ...]) -> TypeSchema:
        """Return the TypeSchema of a list, tuple, set, frozenset or dict.

        arguments: the types in square brackets; empty if there are none.
        """
        # A second name, because pyright would narrow the type of `container` below.
        generic = container
        if not arguments:
            return TypeSchema(container, _BARE[container].copy())

        # Constraints around a container do not apply to its items, so each item starts without any.
        if container is dict:
            key, value = (self._walk(argument, Constraints()) for argument in arguments)
            return TypeSchema(dict[key.type, value.type], _mapping_schema(key, value))
        if container is tuple and arguments[-1] is not ...:
            members = [self._walk(argument, Constraints()) for argument in arguments]
            items = {"prefixItems": [member.schema for member in members], "items": False}
            sizes = {"minItems": len(members), "maxItems": len(members)}
            schema = {**_BARE[container], **items, **sizes}
            return TypeSchema(generic[tuple(member.type for member in members)], schema)

        item = self._walk(arguments[0], Constraints())
        schema = _BARE[container].copy()
        if item.schema:
            schema["items"] = item.schema
        if container is tuple:
            return TypeSchema(generic[item.type, ...], schema)
        return TypeSchema(generic[item.type], schema)

    def _build_class(self, cls: Any) -> TypeSchema:
        """Return the TypeSchema of a dataclass, TypedDict, NamedTuple, Struct, attrs or path class.

        Raises NeedsPydantic for pydantic models.
        """
        if _is_pydantic(cls):
            raise NeedsPydantic
        if _is_path(cls):
            return TypeSchema(cls, {"type": "string", "format": "path"})

        # A function, because _add_definitions() may need the schema a second time, with other names
        # of definitions. msgspec replaces `{name}` in the template, and pydantic `{model}`.
        def components(template: str) -> tuple[Schema, dict[str, Schema]]:
            (schema,), definitions = json.schema_components(
                [cls], schema_hook=_schema_hook, ref_template=template
            )
            return schema, definitions

        before = set(self.definitions)
        schema = self._add_definitions(components, "#/$defs/{name}")
        added = {name: self.definitions[name] for name in self.definitions if name not in before}

        # Import the check only if it is needed, since few classes have patterns.
        if b'"pattern":' in json.encode([schema, added]):
            from concertino.schema.regex_safety import check_fields

            check_fields({"properties": added})
        return TypeSchema(cls, schema)

    def _build_with_pydantic(self, annotation: Any) -> TypeSchema:
        """Return the TypeSchema of an annotation that pydantic decodes."""
        from concertino.schema.custom_decoders import make_pydantic_converter

        try:
            adapter = sys.modules["pydantic"].TypeAdapter(annotation)

            def components(template: str) -> tuple[Schema, dict[str, Schema]]:
                mode = "serialization" if self._for_results else "validation"
                schema = adapter.json_schema(mode=mode, ref_template=template)
                return schema, schema.pop("$defs", {})

            schema = self._add_definitions(components, "#/$defs/{model}")
            return TypeSchema(custom_type(make_pydantic_converter(adapter)), schema, adapter)
        except Exception as exc:
            # pydantic raises its own exceptions, and exceptions of hooks in the user's types.
            raise RegistrationError(
                f"{_name(annotation)} is not supported by pydantic: {exc}"
            ) from exc

    def _add_definitions(
        self, components: Callable[[str], tuple[Schema, dict[str, Schema]]], template: str
    ) -> Schema:
        """Add a class's definitions to self.definitions, and return the schema that refers to them.

        components: a function that gets a template for references, and returns the schema of the
            class and the definitions in it.
        template: the default template for references. If it gives a definition a name that another
            definition already has, a template with a prefix is used, so that all names are new.
        """
        schema, definitions = components(template)
        has_conflict = any(
            self.definitions.get(name, definition) != definition
            for name, definition in definitions.items()
        )
        if has_conflict:
            # For example, "#/$defs/{name}" becomes "#/$defs/3.{name}".
            prefix = f"{len(self.definitions)}."
            schema, definitions = components(template.replace("/{", f"/{prefix}{{"))
            definitions = {prefix + name: value for name, value in definitions.items()}

        if self._for_results:
            definitions = {name: _without_formats(value) for name, value in definitions.items()}
        self.definitions |= definitions
        return schema


def _target_of_alias(annotation: Any) -> Any:
    """Return the annotation that an alias, a NewType or a TypeVar stands for.

    Returns _NO_ALIAS for any other annotation.
    """
    if hasattr(annotation, "__value__"):
        return annotation.__value__
    if isinstance(annotation, NewType):
        return annotation.__supertype__
    if isinstance(annotation, TypeVar):
        # `|` cannot join the types of a tuple.
        return annotation.__bound__ or Union[annotation.__constraints__ or (Any,)]  # noqa: UP007
    return _NO_ALIAS


def _mapping_schema(key: TypeSchema, value: TypeSchema) -> Schema:
    """Return the schema of a mapping from the schemas of its keys and values.

    Raises RegistrationError for keys that JSON does not have.
    """
    kind = key.schema.get("type")
    if kind not in ("string", "integer") and key.schema:
        raise RegistrationError(f"{_name(key.type)} cannot be a key in JSON; write str")

    keywords = {keyword: key.schema[keyword] for keyword in key.schema if keyword != "type"}
    names = _INTEGER_KEY if kind == "integer" else keywords
    schema = _BARE[dict].copy()
    if names:
        schema["propertyNames"] = names
    if value.schema:
        schema["additionalProperties"] = value.schema
    return schema


def _build_literal(values: tuple[Any, ...]) -> TypeSchema:
    if any(isinstance(value, enum.Enum) for value in values):
        return _build_choice(list(values))
    return TypeSchema(Literal[values], _enum_schema(list(values)))


def _build_enum(cls: enum.EnumType) -> TypeSchema:
    """Return the TypeSchema of an enum class."""
    members: list[Any] = list(cls)
    values = [member.value for member in members]
    if all(type(value) is str for value in values) or all(type(value) is int for value in values):
        return TypeSchema(cls, _enum_schema(values))
    return _build_choice(members)


def _enum_schema(values: list[Any]) -> Schema:
    """Return the schema of an enum. It has a `type` if all values have the same JSON type."""
    kinds: set[Any] = {type(value) for value in values}
    if len(kinds) != 1:
        return {"enum": values}
    return {**_SCALARS.get(kinds.pop(), {}), "enum": values}


def _build_choice(members: list[Any]) -> TypeSchema:
    """Return the TypeSchema of an enum or Literal whose values have any JSON types.

    Values are compared by type and value: 1 equals neither True nor 1.0, unlike in Python.
    """
    from concertino.schema.custom_decoders import make_member_converter

    pairs = [(json_value(member), member) for member in members]
    schema = _enum_schema([value for value, _ in pairs])
    return TypeSchema(custom_type(make_member_converter(pairs)), schema)


def _schema_hook(cls: Any) -> Schema:
    """Return the schema of a class that msgspec does not know.

    This is a schema_hook of msgspec. Raises NeedsPydantic for a pydantic type, and
    RegistrationError for any other class.
    """
    if _is_pydantic(cls):
        raise NeedsPydantic
    if _is_path(cls):
        return {"type": "string", "format": "path"}
    raise RegistrationError(
        f"{_name(cls)} is not supported; write a dataclass, TypedDict, NamedTuple, msgspec.Struct, "
        f"attrs class or pydantic model, or use a str or dict and convert it yourself"
    )


def _is_pydantic(cls: Any) -> bool:
    return "pydantic" in sys.modules and (
        hasattr(cls, "__get_pydantic_core_schema__") or hasattr(cls, "__pydantic_core_schema__")
    )


def _is_path(cls: Any) -> bool:
    """Return whether a class is a path class of pathlib, without importing pathlib."""
    return isinstance(cls, type) and any(
        base.__name__ == "PurePath" and base.__module__.startswith("pathlib")
        for base in cls.__mro__
    )


def _name(annotation: Any) -> str:
    if isinstance(annotation, type) and not get_args(annotation):
        return annotation.__name__
    return str(annotation)


# The formats that msgspec's output may not match. For example, msgspec writes a date-time without a
# time zone, and durations such as P1DT0.5S. "partial-time" is msgspec's format for a time without a
# time zone.
_INEXACT_FORMATS = ("date-time", "time", "duration", "decimal", "path", "partial-time")


def _without_formats(schema: Any) -> Any:
    """Return a schema without _INEXACT_FORMATS, at any depth."""
    if isinstance(schema, list):
        return [_without_formats(item) for item in cast("list[Any]", schema)]
    if not isinstance(schema, dict):
        return schema

    tree = {
        keyword: value
        for keyword, value in cast("Schema", schema).items()
        if keyword != "format" or value not in _INEXACT_FORMATS
    }
    # The excluded keywords contain values, not schemas.
    for keyword in tree.keys() - {"default", "enum", "const", "examples"}:
        part = tree[keyword]
        # Keep all names of properties: one may be called "format".
        if keyword == "properties":
            tree[keyword] = {name: _without_formats(part[name]) for name in part}
        else:
            tree[keyword] = _without_formats(part)
    return tree
