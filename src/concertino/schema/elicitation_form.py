"""Forms for elicitation: converts a class, such as a dataclass, to a form that a person fills in.

    schema, read = form_of(Booking)             # dataclass Booking with nights: int
    booking = read({"nights": 2})               # Booking(nights=2), from the client's response

MCP allows flat forms only: strings, numbers, booleans, and choices of one or several strings. A
class with any other field raises RegistrationError. A hand-written schema (a dict) can be used
instead.

Spec: 2026-07-28 client/elicitation, `PrimitiveSchemaDefinition`; titles: SEP-1330, defaults:
SEP-1034.
"""

from __future__ import annotations

import enum
import re
import types
from collections.abc import Callable, Mapping
from typing import Any, Union, cast, get_args, get_origin, get_type_hints

from msgspec import Meta, MsgspecError, json

from concertino.errors import RegistrationError
from concertino.schema.type_schema import SchemaBuilder
from concertino.schema.violations import decode_hook, violations_of

__all__ = ["choices", "form_of"]

# This file needs `Any`: an annotation can be any object, and JSON Schemas and the values of a form
# can be JSON of any shape.
Schema = dict[str, Any]
Read = Callable[[Mapping[str, Any]], Any]

# The keywords that describe a field to the person who fills in the form.
LABELS = ("title", "description", "default")

# The keywords that MCP allows for each type of field (schema.json, `StringSchema` and others). The
# form omits other keywords; read() still enforces them.
KEYWORDS: Mapping[str, tuple[str, ...]] = {
    "string": ("minLength", "maxLength", "format", "enumNames"),
    "integer": ("minimum", "maximum"),
    "number": ("minimum", "maximum"),
    "boolean": (),
    "array": ("minItems", "maxItems"),
}
FORMATS = ("email", "uri", "date", "date-time")
# Matches names of fields that ask for a secret.
SECRETS = re.compile(
    r"pass(word|phrase|wd)|secret|credential|(api|access|private|auth)_?(key|token)|cvv",
    re.IGNORECASE,
)

# Class -> the result of form_of(). Limited, because a handler may create a class for each call.
_CACHE: dict[Any, tuple[Schema, Read]] = {}
MAX_CACHE = 1024


def choices(titles: Mapping[str, str]) -> Meta:
    """Return metadata for Annotated that gives titles to the choices of a field in a form.

    A form is a class that is passed to Context.elicit(). Write the type of its field as
    `Annotated[Literal["s", "m"], choices({"s": "Small", "m": "Medium"})]`.
    titles: value -> the text that people see.
    """
    return Meta(
        extra_json_schema={
            "oneOf": [{"const": value, "title": title} for value, title in titles.items()]
        }
    )


def form_of(form: Any) -> tuple[Schema, Read]:
    """Return the JSON Schema of a form, and a function that reads filled-in values.

    form: a dataclass, TypedDict, Struct, attrs or pydantic class; or a JSON Schema as a dict.
    Returns a pair:
    - the schema for the client (`requestedSchema`).
    - read(values): converts the values that a person has filled in to an instance of the class.
      Raises ValueError for invalid values; the text names the field. If the form is a schema, it
      returns the values as a dict and checks nothing.

    Raises RegistrationError for a class or schema that cannot be a form.
    """
    if isinstance(form, Mapping):
        # dict() copies the values: a hand-written schema checks nothing.
        return _check_custom_form(cast("Mapping[str, Any]", form)), dict

    cached = _CACHE.get(form)
    if cached is None:
        if len(_CACHE) >= MAX_CACHE:
            _CACHE.clear()
        cached = _CACHE[form] = _build(form)
    return cached


def _build(form: Any) -> tuple[Schema, Read]:
    """Return the schema of a form that is a class, and a function that reads filled-in values."""
    name = getattr(form, "__name__", repr(form))
    builder = SchemaBuilder()
    built = builder.build(form)
    schema = _resolve(built.schema, builder.definitions)
    if schema.get("type") != "object" or "properties" not in schema:
        raise RegistrationError(f"a form: expected a class with fields, got {name}")

    titles = _choice_titles(form)
    properties = {
        field: _make_field(value, builder.definitions, f"{name}.{field}", titles.get(field, {}))
        for field, value in schema["properties"].items()
    }
    # A field that accepts None may be left empty; read() then sets it to None.
    all_required = schema.get("required", ())
    required = [field for field in all_required if not _accepts_null(schema["properties"][field])]
    nullable = [field for field in all_required if field not in required]
    decoder = json.Decoder(built.type, dec_hook=decode_hook)

    def read(values: Mapping[str, Any]) -> Any:
        missing = {field: None for field in nullable if field not in values}
        try:
            return decoder.decode(json.encode({**missing, **values}))
        except MsgspecError as exc:
            raise ValueError("; ".join(map(str, violations_of(exc, "")))) from None

    flat: Schema = {"type": "object", "properties": properties}
    if required:
        flat["required"] = required
    return flat, read


def _check_custom_form(schema: Mapping[str, Any]) -> Schema:
    """Return a hand-written form as a dict. Raises RegistrationError if it is not flat."""
    properties = schema.get("properties")
    if schema.get("type") != "object" or not isinstance(properties, Mapping):
        raise RegistrationError(
            'a form: expected a schema of {"type": "object", "properties": {...}}'
        )
    for field, value in cast("Mapping[str, Any]", properties).items():
        _check_name(field, field)
        field_schema = cast("Schema", value) if isinstance(value, dict) else {}
        kind = field_schema.get("type")
        items: Schema = field_schema.get("items", {})
        has_choices = "enum" in items or "anyOf" in items
        if kind not in KEYWORDS or (kind == "array" and not has_choices):
            raise _unsuitable_field(field)
    return dict(schema)


def _make_field(
    schema: Schema,
    definitions: Schema,
    where: str,
    titles: Mapping[str, str],
) -> Schema:
    """Return the schema of one field of a form, in the subset that MCP allows.

    schema: the field's schema, from its type.
    where: the class and the field, such as `Booking.nights`, for messages.
    titles: the titles of an enum's members, by value.
    """
    _check_name(where.rpartition(".")[2], where)
    # Of several titles, descriptions and defaults, the field's own come first, then those of a
    # union, then those of the type.
    outer = _pick(schema, LABELS)
    schema = _resolve(schema, definitions)

    # For `str | None`, take the schema of `str`.
    if "anyOf" in schema:
        members = [member for member in schema["anyOf"] if member.get("type") != "null"]
        if len(members) != 1:
            raise _unsuitable_field(where)
        inner = {key: schema[key] for key in LABELS if key in schema}
        schema = _resolve({**inner, **members[0]}, definitions)

    kind: str = schema.get("type", "")
    if kind == "array":
        options = _find_choices(_resolve(schema.get("items", {}), definitions), titles)
        if options is None:
            raise _unsuitable_field(where)
        has_titles = isinstance(options[0], dict)
        items: Schema = {"anyOf": options} if has_titles else {"type": "string", "enum": options}
        return {"type": "array", "items": items, **_pick_keywords(schema, "array"), **outer}

    options = _find_choices(schema, titles)
    if options is not None:
        choice = {"oneOf": options} if isinstance(options[0], dict) else {"enum": options}
        return {"type": "string", **choice, **_pick_keywords(schema, "string"), **outer}

    if kind not in KEYWORDS or "enum" in schema or "const" in schema:
        raise _unsuitable_field(where)
    field = {"type": kind, **_pick_keywords(schema, kind), **outer}
    if field.get("format") not in FORMATS:
        field.pop("format", None)
    return field


def _pick_keywords(schema: Schema, kind: str) -> Schema:
    return _pick(schema, (*LABELS, *KEYWORDS[kind]))


def _pick(schema: Schema, keywords: tuple[str, ...]) -> Schema:
    return {keyword: schema[keyword] for keyword in keywords if schema.get(keyword) is not None}


def _find_choices(schema: Schema, titles: Mapping[str, str]) -> list[Any] | None:
    """Return the choices of a field: strings, or {"const": ..., "title": ...} if they have titles.

    Returns None if the field has no choices, or if a choice is not a string.
    """
    if "oneOf" in schema:
        return schema["oneOf"]
    values: list[Any] = schema.get("enum", [])
    if not values and "const" in schema:
        values = [schema["const"]]
    if not values or not all(isinstance(value, str) for value in values):
        return None
    if titles:
        # Take the values from the titles: they are in the author's order, and `enum` is sorted.
        # Both have all members of the enum class.
        return [{"const": value, "title": title} for value, title in titles.items()]
    return values


def _choice_titles(form: Any) -> dict[str, dict[str, str]]:
    """Return the titles of choices, for fields that are enums whose members have a `label`.

    The result is a mapping: name of the field -> value of the member -> title.
    """
    titles: dict[str, dict[str, str]] = {}
    for field, hint in get_type_hints(form).items():
        for cls in _leaf_types(hint):
            members: list[Any] = list(cls) if isinstance(cls, enum.EnumType) else []
            if members and all(isinstance(_label(member), str) for member in members):
                titles[field] = {member.value: member.label for member in members}
    return titles


def _label(member: Any) -> Any:
    return getattr(member, "label", None)


def _leaf_types(hint: Any) -> list[Any]:
    """Return the types inside a union or a container; for any other hint, only the hint itself."""
    if get_origin(hint) in (Union, types.UnionType, list, set, frozenset, tuple):
        return [leaf for argument in get_args(hint) for leaf in _leaf_types(argument)]
    return [hint]


def _resolve(schema: Schema, definitions: Schema) -> Schema:
    """Return the schema with its `$ref` replaced. Keywords next to `$ref` override the target's."""
    while isinstance(name := schema.get("$ref"), str):
        beside = {key: value for key, value in schema.items() if key != "$ref"}
        definition = definitions[name.removeprefix("#/$defs/")]
        # The title of a definition is the name of a class, which means nothing to a user.
        without_title = {key: value for key, value in definition.items() if key != "title"}
        schema = {**without_title, **beside}
    return schema


def _accepts_null(schema: Schema) -> bool:
    """Return whether a field's schema is that of an optional type, such as `str | None`."""
    return any(member.get("type") == "null" for member in schema.get("anyOf", ()))


def _check_name(field: str, where: str) -> None:
    """Raise RegistrationError if a field asks for a secret, which client/elicitation forbids."""
    if SECRETS.search(field):
        raise RegistrationError(
            f"{where}: a form must not ask for a secret; let the person open a page: "
            f"Context.elicit_url"
        )


def _unsuitable_field(where: str) -> RegistrationError:
    return RegistrationError(
        f"{where}: a form has texts, numbers, yes or no, and choices of texts (Literal, Enum; list "
        f"of these for several)"
    )
