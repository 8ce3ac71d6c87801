"""Python types -> what msgspec decodes, and JSON Schema 2020-12. One walk gives both, so that they agree.

msgspec knows most types. Added here: constraints from annotated_types and pydantic.Field, unions that msgspec refuses
(members are tried in order), enums of other values, paths, and pydantic types, which are left to pydantic wherever
they appear. What msgspec cannot decode itself becomes a stand-in class with a `convert` of stand_ins.py, reached through
decode_hook; so do patterns that Python's `re`, which msgspec uses, may take long to match (patterns.py, decision 0007).
Neither pydantic nor anything else is imported here. How arguments and results use it: arguments.py, results.py.
Spec: 2026-07-28 server/tools "Input Schema", "Output Schema"; basic/index "JSON Schema Usage".
"""

from __future__ import annotations

import datetime
import decimal
import enum
import math
import sys
import types
import uuid
from collections import abc
from collections.abc import Callable
from typing import Annotated, Any, Literal, NewType, TypeVar, Union, cast, get_args, get_origin

from msgspec import Meta, Raw, Struct, json

from concertino.errors import RegistrationError

__all__ = [
    "SchemaBuilder",
    "SchemaViolation",
    "TypeSchema",
    "UnsupportedType",
    "decode_hook",
    "json_value",
    "nan_path",
    "violations_of",
]

# `Any` in this file: annotations are arbitrary objects, JSON Schemas and JSON values are open dicts and trees.
Schema = dict[str, Any]
NONE = type(None)


class TypeSchema(Struct, frozen=True):
    """A type as it is decoded. adapter: the pydantic TypeAdapter that rules it, None when msgspec does."""

    type: Any
    schema: Schema
    adapter: Any = None


class SchemaViolation(Struct, frozen=True):
    """One thing wrong with a value. path: `items[2].name`, "" for the whole; message: what was expected, what came."""

    path: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message}" if self.path else self.message


class UnsupportedType(ValueError):
    """Raised by a stand-in's convert; msgspec keeps it as the cause of its ValidationError."""

    def __init__(self, problems: list[SchemaViolation]) -> None:
        super().__init__("; ".join(map(str, problems)))
        self.problems = problems


class SchemaBuilder:
    """Walks the annotations of one handler; `definitions` collects what goes to the root's `$defs`.

    coerce: decode as msgspec's strict=False does ("1" for an int).
    promise: the schemas are for results: formats that our output may not meet to the letter are left out.
    """

    def __init__(self, *, coerce: bool = False, promise: bool = False) -> None:
        self.definitions: dict[str, Schema] = {}
        self._strict = not coerce
        self._promise = promise

    def form(self, annotation: Any) -> TypeSchema:
        """The form of one annotation. Raises RegistrationError saying what is not supported and what to write."""
        try:
            form = self._walk(annotation, _Limits())
            if annotation not in _SCALARS:
                json.Decoder(form.type)  # refuses what msgspec cannot decode
        except _Foreign:
            form = self._foreign(annotation)
        except RecursionError:
            raise RegistrationError(
                f"{_name(annotation)} contains itself; write Any in its place"
            ) from None
        except NameError as error:
            raise RegistrationError(
                f"{_name(annotation)}: {error}; define the name at module level"
            ) from None
        except (TypeError, ValueError) as error:
            hint = next((hint for text, hint in _HINTS.items() if text in str(error)), "")
            raise RegistrationError(
                f"{_name(annotation)} is not supported: {error}{hint}"
            ) from None
        return (
            TypeSchema(form.type, _without_formats(form.schema), form.adapter)
            if self._promise
            else form
        )

    def _walk(self, t: Any, limits: _Limits) -> TypeSchema:
        if (schema := _SCALARS.get(t)) is not None:
            return limits.on(Any if t is object else t, schema)
        origin, arguments = get_origin(t), get_args(t)
        if origin is Annotated:
            return self._annotated(arguments[0], arguments[1:], limits)
        if origin is Union or origin is types.UnionType:
            return self._union([self._walk(member, limits) for member in arguments])
        if origin is Literal:
            return _literal(arguments)
        if (kind := _CONTAINERS.get(origin or t)) is not None:
            return limits.on(*self._container(kind, arguments))
        if hasattr(origin, "__value__"):  # `type Pair[T] = tuple[T, T]`
            return self._walk(origin.__value__[arguments], limits)
        if hasattr(t, "__value__"):  # `type Name = str`
            return self._walk(t.__value__, limits)
        if isinstance(t, NewType):
            return self._walk(t.__supertype__, limits)
        if isinstance(t, TypeVar):
            return self._walk(t.__bound__ or Union[t.__constraints__ or (Any,)], limits)  # noqa: UP007 # of any number
        if isinstance(t, enum.EnumType):
            return _enumeration(t)
        if _is_foreign(t):
            raise _Foreign
        if _is_path(t):
            return TypeSchema(t, {"type": "string", "format": "path"})
        return self._class(t)

    def _annotated(self, t: Any, metadata: tuple[Any, ...], limits: _Limits) -> TypeSchema:
        limits, extra = limits.copy(), dict[str, Any]()
        for part in [part for item in metadata for part in _parts(item)]:
            limits.take(part)
            extra |= _described(part)
        form = self._walk(t, limits)
        if unused := limits.unused():
            raise RegistrationError(f"{', '.join(unused)} does not fit {_name(t)}")
        return TypeSchema(form.type, {**form.schema, **extra})

    def _union(self, members: list[TypeSchema]) -> TypeSchema:
        union: Any = Union[tuple(member.type for member in members)]  # noqa: UP007 # of any number
        schema: Schema = {"anyOf": [member.schema for member in members]}
        others = [member.type for member in members if member.type is not NONE]
        if len(others) > 1:
            try:
                json.Decoder(union)
            except TypeError:
                from concertino.schema.custom_decoders import choice

                union = _stand_in(choice(others, self._strict))
                if len(others) < len(members):
                    union = union | None
        return TypeSchema(union, schema)

    def _container(self, kind: Any, arguments: tuple[Any, ...]) -> tuple[Any, Schema]:
        generic = kind  # by another name: pyright would narrow it
        if not arguments:
            return kind, _BARE[kind].copy()
        # The limits of an Annotated around a container are the container's own; those inside are their types'.
        if kind is dict:
            key, value = (self._walk(argument, _Limits()) for argument in arguments)
            return dict[key.type, value.type], _mapping(key, value)
        if kind is tuple and arguments[-1] is not ...:
            forms = [self._walk(argument, _Limits()) for argument in arguments]
            items = {"prefixItems": [form.schema for form in forms], "items": False}
            sizes = {"minItems": len(forms), "maxItems": len(forms)}
            return generic[tuple(form.type for form in forms)], {**_BARE[kind], **items, **sizes}
        item = self._walk(arguments[0], _Limits())
        schema = _BARE[kind] | ({"items": item.schema} if item.schema else {})
        return generic[(item.type, ...) if kind is tuple else item.type], schema

    def _class(self, t: Any) -> TypeSchema:
        """A dataclass, TypedDict, NamedTuple, Struct or attrs class: msgspec's own, or nobody's."""

        def components(template: str) -> tuple[Schema, dict[str, Schema]]:
            (schema,), found = json.schema_components(
                [t], schema_hook=_schema_hook, ref_template=template
            )
            return schema, found

        known = set(self.definitions)
        schema = self._adopt(components, "#/$defs/{name}")
        found = {name: self.definitions[name] for name in self.definitions if name not in known}
        if b'"pattern":' in json.encode([schema, found]):
            from concertino.schema.regex_safety import check_fields

            check_fields({"properties": found})
        return TypeSchema(t, schema)

    def _foreign(self, t: Any) -> TypeSchema:
        from concertino.schema.custom_decoders import validation

        try:
            adapter = sys.modules["pydantic"].TypeAdapter(t)

            def components(template: str) -> tuple[Schema, dict[str, Schema]]:
                mode = "serialization" if self._promise else "validation"
                schema = adapter.json_schema(mode=mode, ref_template=template)
                return schema, schema.pop("$defs", {})

            return TypeSchema(
                _stand_in(validation(adapter)), self._adopt(components, "#/$defs/{model}"), adapter
            )
        except (
            Exception
        ) as error:  # pydantic raises its own classes and whatever the user's hooks raise
            raise RegistrationError(f"{_name(t)} is not supported by pydantic: {error}") from error

    def _adopt(
        self, components: Callable[[str], tuple[Schema, dict[str, Schema]]], template: str
    ) -> Schema:
        """Take over what a generator gives. Names already taken by other definitions get a prefix, in the refs too."""
        schema, found = components(template)
        if any(
            self.definitions.get(name, definition) != definition
            for name, definition in found.items()
        ):
            prefix = f"{len(self.definitions)}."
            schema, found = components(template.replace("/{", f"/{prefix}{{"))
            found = {prefix + name: definition for name, definition in found.items()}
        self.definitions |= (
            {n: _without_formats(d) for n, d in found.items()} if self._promise else found
        )
        return schema


class _Foreign(Exception):
    """A pydantic type was met: the whole annotation goes to pydantic."""


# Types with a fixed schema. Formats are hints: msgspec takes a date-time without a zone too.
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
_BARE: dict[Any, Schema] = {
    list: {"type": "array"},
    tuple: {"type": "array"},
    set: {"type": "array", "uniqueItems": True},
    frozenset: {"type": "array", "uniqueItems": True},
    dict: {"type": "object"},
}
_INTEGER_KEY: Schema = {"pattern": "^-?(0|[1-9][0-9]*)$"}
_HINTS = {  # part of an error of msgspec's -> what to write instead
    "unions may not": "; such a union can be the type of a parameter or result, there also inside list, dict, tuple "
    "and Optional, but not of a field of a class",
    "Encoding objects": "; it is the default of a field: write default_factory=lambda: ... there",
}


def _mapping(key: TypeSchema, value: TypeSchema) -> Schema:
    kind = key.schema.get("type")
    if kind not in ("string", "integer") and key.schema:
        raise RegistrationError(f"{_name(key.type)} cannot be a key in JSON; write str")
    names = (
        _INTEGER_KEY
        if kind == "integer"
        else {word: key.schema[word] for word in key.schema if word != "type"}
    )
    schema = _BARE[dict].copy()
    if names:
        schema["propertyNames"] = names
    if value.schema:
        schema["additionalProperties"] = value.schema
    return schema


# Constraint -> keyword, by the JSON type it applies to. The names are those of annotated_types and msgspec.Meta.
_NUMERIC = {
    "gt": "exclusiveMinimum",
    "ge": "minimum",
    "lt": "exclusiveMaximum",
    "le": "maximum",
    "multiple_of": "multipleOf",
}
_KEYWORDS = {
    "integer": _NUMERIC,
    "number": _NUMERIC,
    "string": {"min_length": "minLength", "max_length": "maxLength", "pattern": "pattern"},
    "array": {"min_length": "minItems", "max_length": "maxItems"},
    "object": {"min_length": "minProperties", "max_length": "maxProperties"},
}
_NAMES = (*_NUMERIC, "min_length", "max_length", "pattern")


class _Limits:
    """The constraints of one Annotated on their way down to the types they fit: through unions, not into containers."""

    def __init__(self) -> None:
        self._values: dict[str, Any] = {}  # what reaches a type
        self._own: set[str] = set()  # those that this Annotated brought
        self._used: set[str] = set()  # shared along the way
        self._pydantic = False  # whether the pattern is pydantic's, which has a linear engine

    def copy(self) -> _Limits:
        limits = _Limits()
        limits._values, limits._used, limits._pydantic = (
            self._values.copy(),
            self._used,
            self._pydantic,
        )
        return limits

    def take(self, item: object) -> None:
        found = {name: getattr(item, name, None) for name in _NAMES}
        if isinstance(item, Meta):
            found["tz"] = item.tz
        if found["pattern"] is not None:
            self._pydantic = type(item).__module__.startswith("pydantic")
        for name, value in found.items():
            if value is not None and not callable(value):
                self._values[name] = getattr(
                    value, "pattern", value
                )  # pydantic allows a compiled pattern
                self._own.add(name)

    def on(self, t: Any, schema: Schema) -> TypeSchema:
        """A type with those constraints that fit it."""
        schema = schema.copy()
        if not self._values:
            return TypeSchema(t, schema)
        keywords = dict[str, str]()
        if t in (datetime.datetime, datetime.time):
            keywords = {"tz": ""}
        elif t is str or schema.get("type") != "string":
            keywords = _KEYWORDS.get(schema.get("type", ""), keywords)
        fitting = {name: value for name, value in self._values.items() if name in keywords}
        if not fitting:
            return TypeSchema(t, schema)
        self._used.update(fitting)
        schema |= {keywords[name]: value for name, value in fitting.items() if keywords[name]}
        if "pattern" in fitting:
            from concertino.schema.regex_safety import (
                find_backtracking,  # few handlers have patterns
            )

            if why := find_backtracking(fitting["pattern"]):
                if self._pydantic:
                    raise _Foreign
                from concertino.schema.custom_decoders import matching

                return TypeSchema(_stand_in(matching(fitting.pop("pattern"), fitting, why)), schema)
        return TypeSchema(Annotated[t, Meta(**fitting)], schema)

    def unused(self) -> list[str]:
        return sorted(self._own - self._used)


def _parts(item: Any) -> list[Any]:
    """One piece of Annotated metadata, with what it groups. Raises _Foreign for what only pydantic understands."""
    module = type(item).__module__
    if module == "pydantic.fields":  # FieldInfo
        return [item, *item.metadata]
    if module.partition(".")[0] == "pydantic" and "pydantic" in sys.modules:
        raise _Foreign
    if module.partition(".")[0] == "annotated_types" and isinstance(item, abc.Iterable):
        return [*cast("abc.Iterable[Any]", item)]  # Interval, Len
    return [item]


def _described(item: Any) -> Schema:
    """What a plain string, typing_extensions.Doc, msgspec.Meta or pydantic.Field says about meaning."""
    if isinstance(item, str):
        return {"description": item}
    described: Schema = {}
    if isinstance(text := getattr(item, "documentation", None), str):
        described["description"] = text
    if isinstance(item, Meta) or type(item).__module__ == "pydantic.fields":
        for word in ("title", "description", "examples"):
            if (value := getattr(item, word, None)) is not None:
                described[word] = value
        described |= getattr(item, "extra_json_schema", None) or {}
    return described


def _literal(values: tuple[Any, ...]) -> TypeSchema:
    if any(isinstance(value, enum.Enum) for value in values):
        return _one_of(list(values))
    return TypeSchema(Literal[values], _listed(list(values)))


def _enumeration(t: enum.EnumType) -> TypeSchema:
    members: list[Any] = list(t)
    values = [member.value for member in members]
    if all(type(value) is str for value in values) or all(type(value) is int for value in values):
        return TypeSchema(t, _listed(values))
    return _one_of(members)


def _listed(values: list[Any]) -> Schema:
    kind = cast("Any", type(values[0])) if values else None
    return {
        **(_SCALARS.get(kind, {}) if all(type(value) is kind for value in values) else {}),
        "enum": values,
    }


def _one_of(members: list[Any]) -> TypeSchema:
    """Enum members (and literals) of any JSON value, told apart by type and value: 1 is neither True nor 1.0."""
    from concertino.schema.custom_decoders import member_of

    known = [(json_value(member), member) for member in members]
    return TypeSchema(_stand_in(member_of(known)), _listed([written for written, _ in known]))


class _Open(type):
    """msgspec checks that a hook gives an instance; a stand-in takes anything its convert gives."""

    def __instancecheck__(cls, instance: object) -> bool:
        return True


def _stand_in(convert: Callable[[Any], Any]) -> Any:
    return _Open("StandIn", (), {"convert": staticmethod(convert)})


def decode_hook(t: Any, value: Any) -> Any:
    """The dec_hook that every decoder of a Form's type needs."""
    if isinstance(t, _Open):
        return cast("Any", t).convert(value)
    if not isinstance(value, str):
        raise UnsupportedType(
            [SchemaViolation("", f"expected a path as str, got {type(value).__name__}")]
        )
    return t(value)


def _schema_hook(t: Any) -> Schema:
    if _is_foreign(t):
        raise _Foreign
    if _is_path(t):
        return {"type": "string", "format": "path"}
    raise RegistrationError(
        f"{_name(t)} is not supported; write a dataclass, TypedDict, NamedTuple, msgspec.Struct, attrs class or "
        f"pydantic model, or take a str or dict and convert it yourself"
    )


def _is_foreign(t: Any) -> bool:
    return "pydantic" in sys.modules and (
        hasattr(t, "__get_pydantic_core_schema__") or hasattr(t, "__pydantic_core_schema__")
    )


def _is_path(t: Any) -> bool:
    return isinstance(t, type) and any(
        base.__name__ == "PurePath" and base.__module__.startswith("pathlib") for base in t.__mro__
    )


def _name(t: Any) -> str:
    return t.__name__ if isinstance(t, type) and not get_args(t) else str(t)


_UNPROMISED = ("date-time", "time", "duration", "decimal", "path", "partial-time")


def _without_formats(schema: Any) -> Any:
    """A schema without the formats that clients check more narrowly than msgspec writes: no zone, P1DT0.5S."""
    if isinstance(schema, list):
        return [_without_formats(item) for item in cast("list[Any]", schema)]
    if not isinstance(schema, dict):
        return schema
    tree = {
        word: value
        for word, value in cast("Schema", schema).items()
        if word != "format" or value not in _UNPROMISED
    }
    for word in tree.keys() - {"default", "enum", "const", "examples"}:
        names = tree[word]
        tree[word] = (
            {n: _without_formats(names[n]) for n in names}
            if word == "properties"
            else _without_formats(names)
        )
    return tree


def violations_of(error: Exception, path: str) -> list[SchemaViolation]:
    """What a failed decode says, under the path of the value that was decoded.

    One problem, the first; from pydantic, all of them. Texts of msgspec are put plainly, others are kept.
    """
    text, place = str(error), ""
    head, found, tail = text.rpartition(" - at `")
    key, inside, rest = (
        tail[:-1].partition("` in `") if found else ("", "", "")
    )  # `$.a[0]`, and `key` in `$.a`
    if found:
        text, place = head, (rest if inside else key)[1:]
    cause = error.__cause__
    if isinstance(cause, UnsupportedType):
        return [
            SchemaViolation(_joined(path, place + problem.path), problem.message)
            for problem in cause.problems
        ]
    if cause is None:
        text = text[:1].lower() + text[1:].replace("`", "")
    if inside:
        text = f"{key}: {text}"
    return [
        SchemaViolation(
            _joined(path, place), text if len(text) <= _MAX_MESSAGE else text[:_MAX_MESSAGE] + "..."
        )
    ]


_MAX_MESSAGE = 300  # characters; msgspec quotes a refused enum value whole


def _joined(path: str, place: str) -> str:
    return path + place if path else place.removeprefix(".")


def json_value(value: Any) -> Any:
    """A Python value as the JSON tree it is written as. Raises ValueError or TypeError when it has none (NaN too)."""
    if (place := nan_path(value)) is not None:
        raise ValueError(f"NaN or infinity{place}")
    return json.decode(json.encode(value))


def nan_path(value: Any, path: str = "") -> str | None:
    """Where a tree of dicts, lists, tuples and sets holds a NaN or an infinity; None when it holds none."""
    if isinstance(value, float):
        return None if math.isfinite(value) else path
    items: abc.Iterable[tuple[str, Any]] = ()
    if isinstance(value, dict):
        tree = cast("dict[Any, Any]", value)
        items = ((f"{path}.{key}" if path else str(key), item) for key, item in tree.items())
    elif isinstance(value, (list, tuple, set, frozenset)):
        items = (
            (f"{path}[{index}]", item)
            for index, item in enumerate(cast("abc.Iterable[Any]", value))
        )
    for place, item in items:
        if (found := nan_path(item, place)) is not None:
            return found
    return None
