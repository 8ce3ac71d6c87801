"""The metadata of Annotated: constraints such as `ge=0`, and descriptions.

    Annotated[int, Meta(ge=0), "years"]  ->  {"type": "integer", "minimum": 0, "description": ...}

Supported are msgspec.Meta, pydantic.Field, annotated_types, typing_extensions.Doc and plain
strings. Of these packages only msgspec is imported. Objects of the other packages are recognized by
their module or attributes.
type_schema.py applies the constraints while it walks over an annotation.

Spec: JSON Schema 2020-12 Validation, section 6.
"""

from __future__ import annotations

import datetime
import sys
from collections import abc
from collections.abc import Mapping
from typing import Annotated, Any, cast

from msgspec import Meta

from concertino.schema.violations import custom_type

# `Any` in this file: metadata are arbitrary objects, JSON Schemas are open trees.
Schema = dict[str, Any]


class NeedsPydantic(Exception):
    """Raised if an annotation contains a pydantic type, so that pydantic must decode all of it."""


# Constraint -> keyword of JSON Schema, for each JSON type. annotated_types and msgspec.Meta have
# the same names for these constraints.
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


class Constraints:
    """The constraints that apply to a type, from all Annotated around that type.

    `Annotated[Annotated[int, Meta(ge=0)] | None, Meta(le=9)]` has two objects of this class. The
    one for the outer Annotated collects `le`. Its copy for the inner Annotated also collects `ge`,
    and applies both to the int.

    In a union, each constraint applies to the members for whose type it is defined: in
    `Annotated[int | str, Meta(ge=0)]`, the constraint applies to the int. Constraints of a
    container do not apply to its items.
    """

    def __init__(self) -> None:
        # Constraint -> value: those of the object that was copied, and the collected ones.
        self._values: dict[str, Any] = {}
        # The names of the constraints that collect() has added.
        self._own: set[str] = set()
        # The names of the constraints that were applied to a type. An object and its copies share
        # this set, because a copy applies the constraints of the outer Annotated.
        self._used: set[str] = set()
        # Whether the pattern comes from pydantic, whose own engine takes linear time.
        self._is_pydantic = False

    def copy(self) -> Constraints:
        """Return a copy, to which the constraints of an inner Annotated can be added."""
        constraints = Constraints()
        constraints._values = self._values.copy()
        constraints._used = self._used
        constraints._is_pydantic = self._is_pydantic
        return constraints

    def collect(self, item: object) -> None:
        """Add the constraints of one metadata object, such as Meta or Field."""
        values = {name: getattr(item, name, None) for name in _NAMES}
        if isinstance(item, Meta):
            values["tz"] = item.tz
        if values["pattern"] is not None:
            self._is_pydantic = type(item).__module__.startswith("pydantic")

        for name, value in values.items():
            # An object that is no constraint may have a method with one of these names.
            if value is not None and not callable(value):
                # pydantic also accepts a compiled pattern, whose text is its attribute `pattern`.
                self._values[name] = getattr(value, "pattern", value)
                self._own.add(name)

    def apply(self, type: Any, schema: Schema) -> tuple[Any, Schema]:
        """Return `type` and a copy of its schema with those constraints that fit the type.

        If Python's `re` may be slow with a pattern, the type becomes a custom type that matches
        with a linear engine. Raises NeedsPydantic if such a pattern comes from pydantic.
        """
        schema = schema.copy()
        if not self._values:
            return type, schema

        # Constraint that fits the type -> keyword of JSON Schema; None if there is no keyword.
        keywords: Mapping[str, str | None] = {}
        if type in (datetime.datetime, datetime.time):
            keywords = {"tz": None}
        # Of the types that are strings in JSON, such as dates, only str has lengths and patterns.
        elif type is str or schema.get("type") != "string":
            keywords = _KEYWORDS.get(schema.get("type", ""), {})
        fitting = {name: value for name, value in self._values.items() if name in keywords}
        if not fitting:
            return type, schema

        self._used.update(fitting)
        schema |= {
            keyword: value
            for name, value in fitting.items()
            if (keyword := keywords[name]) is not None
        }
        if "pattern" in fitting:
            # Imported here because few handlers have patterns.
            from concertino.schema.regex_safety import find_backtracking

            if reason := find_backtracking(fitting["pattern"]):
                if self._is_pydantic:
                    raise NeedsPydantic
                from concertino.schema.custom_decoders import make_pattern_converter

                convert = make_pattern_converter(fitting.pop("pattern"), fitting, reason)
                return custom_type(convert), schema
        return Annotated[type, Meta(**fitting)], schema

    def find_unfit(self) -> list[str]:
        """Return the names of the collected constraints that were not applied to any type.

        Constraints of the object that was copied are not included.
        """
        return sorted(self._own - self._used)


def split_metadata(item: Any) -> list[Any]:
    """Return the metadata objects that a metadata object of Annotated consists of.

    For example, annotated_types.Interval consists of other constraints. For most objects, the
    result is a list with the object itself.
    Raises NeedsPydantic for an object that only pydantic understands.
    """
    module = type(item).__module__
    # pydantic's FieldInfo stores constraints in its attribute `metadata`.
    if module == "pydantic.fields":
        return [item, *item.metadata]
    if module.partition(".")[0] == "pydantic" and "pydantic" in sys.modules:
        raise NeedsPydantic
    # annotated_types.Interval and Len consist of other constraints.
    if module.partition(".")[0] == "annotated_types" and isinstance(item, abc.Iterable):
        return [*cast("abc.Iterable[Any]", item)]
    return [item]


def describe(item: Any) -> Schema:
    """Return the schema keywords that describe a type, such as title and description.

    item: one metadata object of Annotated. The result is empty unless the object is a plain string,
        typing_extensions.Doc, msgspec.Meta or pydantic.Field.
    """
    if isinstance(item, str):
        return {"description": item}

    keywords: Schema = {}
    # typing_extensions need not be installed, so its Doc is recognized by its attribute.
    if isinstance(text := getattr(item, "documentation", None), str):
        keywords["description"] = text
    if isinstance(item, Meta) or type(item).__module__ == "pydantic.fields":
        for keyword in ("title", "description", "examples"):
            if (value := getattr(item, keyword, None)) is not None:
                keywords[keyword] = value
        if isinstance(item, Meta):
            keywords |= item.extra_json_schema or {}
    return keywords
