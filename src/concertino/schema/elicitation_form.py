"""A class as a form for a person, and what was filled in as an object of the class.

A form is flat: texts, numbers, yes or no, and choices, one or several. The class says which; what a form cannot ask is refused when
the form is made, with what to write. The author's own schema, a dict, is taken as it is if it is flat.
Spec: 2026-07-28 client/elicitation, `PrimitiveSchemaDefinition`; titles: SEP-1330, defaults: SEP-1034.
"""

from __future__ import annotations

import enum
import re
import types
from collections.abc import Callable, Mapping
from typing import Any, Union, cast, get_args, get_origin, get_type_hints

from msgspec import Meta, MsgspecError, json

from concertino.errors import RegistrationError
from concertino.schema.type_schema import SchemaBuilder, decode_hook, violations_of

__all__ = ["choices", "form_of"]

# `Any` in this file: annotations are arbitrary objects, JSON Schemas and JSON values are open dicts and trees.
Schema = dict[str, Any]
Read = Callable[[Mapping[str, Any]], Any]

SAID = ("title", "description", "default")
# What each type of field may say (schema.json, `StringSchema` and its siblings); the class still checks what is left out.
KEYWORDS: Mapping[str, tuple[str, ...]] = {
    "string": ("minLength", "maxLength", "format", "enumNames"),
    "integer": ("minimum", "maximum"),
    "number": ("minimum", "maximum"),
    "boolean": (),
    "array": ("minItems", "maxItems"),
}
FORMATS = ("email", "uri", "date", "date-time")
SECRETS = re.compile(
    r"pass(word|phrase|wd)|secret|credential|(api|access|private|auth)_?(key|token)|cvv",
    re.IGNORECASE,
)
MADE: dict[Any, tuple[Schema, Read]] = {}  # forms that were made, by class
MAX_KEPT = 1024


def choices(titles: Mapping[str, str]) -> Meta:
    """What people see of each choice: `Annotated[Literal["s", "m"], choices({"s": "Small", "m": "Medium"})]`."""
    return Meta(
        extra_json_schema={
            "oneOf": [{"const": value, "title": title} for value, title in titles.items()]
        }
    )


def form_of(form: Any) -> tuple[Schema, Read]:
    """The schema of a form, and what makes its values an object of the class; that raises ValueError naming what does not fit.

    form: a dataclass, TypedDict, Struct, attrs or pydantic class; or a schema, which gives a dict. Raises RegistrationError.
    """
    if isinstance(form, Mapping):
        return _by_hand(cast("Mapping[str, Any]", form)), dict
    made = MADE.get(form)
    if made is None:
        if len(MADE) >= MAX_KEPT:  # classes made in a loop
            MADE.clear()
        made = MADE[form] = _made(form)
    return made


def _made(form: Any) -> tuple[Schema, Read]:
    name = getattr(form, "__name__", repr(form))
    forms = SchemaBuilder()
    made = forms.form(form)
    schema = _followed(made.schema, forms.definitions)
    if schema.get("type") != "object" or "properties" not in schema:
        raise RegistrationError(f"a form: expected a class with fields, got {name}")
    labels = _labels(form)
    properties = {
        field: _field(each, forms.definitions, f"{name}.{field}", labels.get(field, {}))
        for field, each in schema["properties"].items()
    }
    required = [
        field
        for field in schema.get("required", ())
        if not _takes_null(schema["properties"][field])
    ]
    decoder = json.Decoder(made.type, dec_hook=decode_hook)

    def read(values: Mapping[str, Any]) -> Any:
        missing = {
            field: None
            for field in schema.get("required", ())
            if field not in values and field not in required
        }
        try:
            return decoder.decode(json.encode({**missing, **values}))
        except MsgspecError as why:
            raise ValueError("; ".join(map(str, violations_of(why, "")))) from None

    whole: Schema = {"type": "object", "properties": properties}
    return whole | ({"required": required} if required else {}), read


def _by_hand(schema: Mapping[str, Any]) -> Schema:
    properties = schema.get("properties")
    if schema.get("type") != "object" or not isinstance(properties, Mapping):
        raise RegistrationError(
            'a form: expected a schema of {"type": "object", "properties": {...}}'
        )
    for field, each in cast("Mapping[str, Any]", properties).items():
        _check_name(field, field)
        said = cast("Schema", each) if isinstance(each, dict) else {}
        items: Schema = said.get("items", {})
        if said.get("type") not in KEYWORDS or (
            said["type"] == "array" and not {"enum", "anyOf"} & items.keys()
        ):
            raise _unfit(field)
    return dict(schema)


def _field(schema: Schema, definitions: Schema, where: str, labels: Mapping[str, str]) -> Schema:
    """One field of a form."""
    _check_name(where.rpartition(".")[2], where)
    outer = {key: schema[key] for key in SAID if key in schema and schema[key] is not None}
    schema = _followed(schema, definitions)
    if "anyOf" in schema:  # `str | None`: it may be left out
        members = [each for each in schema["anyOf"] if each.get("type") != "null"]
        if len(members) != 1:
            raise _unfit(where)
        schema = _followed(
            {**{key: schema[key] for key in SAID if key in schema}, **members[0]}, definitions
        )
    if schema.get("type") == "array" and (items := _followed(schema.get("items", {}), definitions)):
        found = _options(items, labels)
        if found is None:
            raise _unfit(where)
        chosen: Schema = (
            {"anyOf": found} if isinstance(found[0], dict) else {"type": "string", "enum": found}
        )
        return {"type": "array", "items": chosen, **_kept(schema, "array"), **outer}
    found = _options(schema, labels)
    if found is not None:
        chosen = {"oneOf": found} if isinstance(found[0], dict) else {"enum": found}
        return {"type": "string", **chosen, **_kept(schema, "string"), **outer}
    kind: str = schema.get("type", "")
    if kind not in KEYWORDS or kind == "array" or "enum" in schema or "const" in schema:
        raise _unfit(where)
    field = {"type": kind, **_kept(schema, kind), **outer}
    if field.get("format") not in FORMATS:
        field.pop("format", None)
    return field


def _kept(schema: Schema, kind: str) -> Schema:
    return {
        key: schema[key]
        for key in (*SAID, *KEYWORDS[kind])
        if key in schema and schema[key] is not None
    }


def _options(schema: Schema, labels: Mapping[str, str]) -> list[Any] | None:
    """The choices of a field: texts, or titled as `{"const": ..., "title": ...}`; None if it has none, or others than texts."""
    if "oneOf" in schema:
        return schema["oneOf"]
    values: list[Any] = schema.get("enum") or ([schema["const"]] if "const" in schema else [])
    if not values or not all(isinstance(each, str) for each in values):
        return None
    if labels:
        return [
            {"const": each, "title": title} for each, title in labels.items()
        ]  # in the author's order
    return values


def _labels(form: Any) -> dict[str, dict[str, str]]:
    """Field -> value -> title, of enums whose members have a `label`."""
    found: dict[str, dict[str, str]] = {}
    for field, hint in get_type_hints(form).items():
        for each in _leaves(hint):
            members: list[Any] = (
                list(each) if isinstance(each, enum.EnumType) else []
            )  # what an author adds to one is not known
            if members and all(
                isinstance(getattr(member, "label", None), str) for member in members
            ):
                found[field] = {member.value: member.label for member in members}
    return found


def _leaves(hint: Any) -> list[Any]:
    """The classes inside a list, a union."""
    if get_origin(hint) in (Union, types.UnionType, list, set, frozenset, tuple):
        return [leaf for each in get_args(hint) for leaf in _leaves(each)]
    return [hint]


def _followed(schema: Schema, definitions: Schema) -> Schema:
    """What it refers to, with what is said beside the reference."""
    while isinstance(name := schema.get("$ref"), str):
        beside = {key: value for key, value in schema.items() if key != "$ref"}
        defined = definitions[name.removeprefix("#/$defs/")]
        schema = {
            **{key: value for key, value in defined.items() if key != "title"},
            **beside,
        }  # that is the class's name
    return schema


def _takes_null(schema: Schema) -> bool:
    return any(each.get("type") == "null" for each in schema.get("anyOf", ()))


def _check_name(field: str, where: str) -> None:
    """client/elicitation: secrets must not be asked for in a form."""
    if SECRETS.search(field):
        raise RegistrationError(
            f"{where}: a form must not ask for a secret; let the person open a page: Context.elicit_url"
        )


def _unfit(where: str) -> RegistrationError:
    return RegistrationError(
        f"{where}: a form has texts, numbers, yes or no, and choices of texts (Literal, Enum; list of these for several)"
    )
