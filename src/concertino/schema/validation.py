"""How a value does not fit a JSON Schema that somebody else wrote, found out by jsonschema_rs (the extra `validate`).

Whether a value fits is asked first: that is linear in the value for each subschema, whatever the schema, with patterns matched by
a linear engine. Saying why it does not fit is not: an error holds those of all alternatives. So problems are named one by one
only where their number has a bound, and otherwise member by member. Nothing is ever fetched.
Spec: 2026-07-28 basic/index "JSON Schema Usage". What a schema may be: schema_checks.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from itertools import islice
from typing import Any, cast

from concertino.errors import RegistrationError
from concertino.schema.arguments import SchemaViolation
from concertino.schema.custom_schema import DIALECT, extent_of

__all__ = ["VALIDATORS", "Problems", "problems_by"]

# `Any` in this file: JSON Schemas and JSON values are open trees.
Problems = Callable[[Any, int], list[SchemaViolation]]
# Dialects, and what checks by them. Servers of ours take the first alone; servers of others publish schemas in the others too.
VALIDATORS: Mapping[str, str] = {
    DIALECT: "Draft202012Validator",
    "https://json-schema.org/draft/2019-09/schema": "Draft201909Validator",
    "http://json-schema.org/draft-07/schema": "Draft7Validator",
    "http://json-schema.org/draft-06/schema": "Draft6Validator",
    "http://json-schema.org/draft-04/schema": "Draft4Validator",
}
MAX_PROBLEMS = 20  # that are reported of one value
MAX_PROBLEM_CHARACTERS = 300  # of each; they quote what came
# Problems are looked for one by one up to this many values times subschemas, and bytes times subschemas. jsonschema_rs makes all
# of them before it gives the first, at 10 to 40 us each, and each holds what came as text.
MAX_VALUES = 50_000
MAX_BYTES = 20_000_000


def problems_by(schema: dict[str, Any], what: str, dialect: str = DIALECT) -> Problems:
    """What finds out how a value, of so many bytes as JSON, does not fit: nothing if it does.

    schema: plain JSON that has passed schema_checks.bounded(). what: its name for errors. dialect: one of VALIDATORS; if it is not
    ours, the schema says nothing of it. Raises RegistrationError for a schema that cannot be enforced as it is.
    """
    try:
        extent = extent_of(schema)
    except RegistrationError as why:
        raise RegistrationError(f"{what}: {why}") from None
    try:
        import jsonschema_rs
        from jsonschema_rs import RegexOptions, ValidationError, validator_map_for
    except ImportError:
        raise RegistrationError(
            f"a hand-written {what} is enforced by an extra: pip install 'concertino[validate]'"
        ) from None
    # RegexOptions chooses the engine without backtracking. extent_of has found no reference that would be retrieved.
    options: dict[str, Any] = {"pattern_options": RegexOptions(), "retriever": _refuse}
    try:
        validator = getattr(jsonschema_rs, VALIDATORS[dialect])(schema, **options)
    except ValidationError as why:
        place = "/".join(("#", *map(str, why.instance_path)))
        linear = why.message.endswith('is not a "regex"')
        hint = (
            "; a pattern is matched in linear time, without look-around and back-references"
            if linear
            else ""
        )
        raise RegistrationError(f"{what}: {place}: {_cut(why.message)}{hint}") from None
    except ValueError as why:
        raise RegistrationError(f"{what}: {why}") from None

    @cache
    def of_properties() -> (
        Any
    ):  # compiled when it is needed, which is when a caller makes a mistake
        return validator_map_for({**schema, "$schema": dialect}, **options)

    def coarse(value: Any) -> list[SchemaViolation]:
        """Problems by top-level member, each of which is asked for once."""
        members = cast("dict[str, Any]", value) if isinstance(value, dict) else {}
        known: dict[str, Any] = schema.get("properties", {})
        found = [
            SchemaViolation(name, "required, but missing")
            for name in schema.get("required", ())
            if name not in members
        ]
        for name in [name for name in known if name in members]:
            step = name.replace("~", "~0").replace("/", "~1")
            if not of_properties()[f"#/properties/{step}"].is_valid(members[name]):
                found.append(SchemaViolation(_cut(name), "does not fit its schema"))
        if schema.get("additionalProperties") is False and "patternProperties" not in schema:
            unknown = (name for name in members if name not in known)
            found += [
                SchemaViolation(_cut(name), "unknown name")
                for name in islice(unknown, MAX_PROBLEMS)
            ]
        return found[:MAX_PROBLEMS] or [_WHOLE]

    def find(value: Any, size: int) -> list[SchemaViolation]:
        try:
            if validator.is_valid(value):
                return []
            if (
                extent.recursive
                or size > MAX_BYTES // extent.expanded
                or _has_more(value, MAX_VALUES // extent.expanded)
            ):
                return coarse(value)
            return [
                SchemaViolation(_cut(".".join(map(str, error.instance_path))), _cut(error.message))
                for error in islice(validator.iter_errors(value), MAX_PROBLEMS)
            ]
        except ValueError:  # its limit of 255 levels, met where it takes a value over as a whole: to quote or to compare it
            return [_WHOLE]

    return find


_WHOLE = SchemaViolation("", "does not fit the schema")


def _has_more(value: Any, than: int) -> bool:
    """Whether a JSON value is made of more values than that."""
    waiting = [value]
    for number, each in enumerate(waiting):  # which grows meanwhile
        if number > than:
            return True
        if isinstance(each, (dict, list)):
            waiting.extend(
                cast("dict[str, Any]", each).values()
                if isinstance(each, dict)
                else cast("list[Any]", each)
            )
    return False


def _cut(text: str) -> str:
    return text if len(text) <= MAX_PROBLEM_CHARACTERS else text[:MAX_PROBLEM_CHARACTERS] + "..."


def _refuse(uri: str) -> Any:
    raise ValueError(f"{uri} is not in the schema, and never fetched")
