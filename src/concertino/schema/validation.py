"""Validates values against hand-written JSON Schemas, with jsonschema_rs (the extra `validate`).

    find_violations = violation_finder(schema, "input_schema")
    find_violations({"age": "x"}, 11)       # [SchemaViolation("age", '"x" is not of type ...')]

The second argument, 11, is the size of the value as JSON in bytes.

Whether a value is valid is found in limited time: for each subschema, the time grows linearly with
the size of the value, also for patterns. To list the violations may take far longer, because an
error contains the errors of all alternatives. Therefore violations are listed one by one only if
schema and value are small enough. For a larger schema or value, only the names of the invalid
top-level members are reported. References to other documents are never fetched.

Spec: 2026-07-28 basic/index "JSON Schema Usage". custom_schema.py says which schemas are accepted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from itertools import chain, islice
from typing import Any, cast

from concertino.errors import RegistrationError
from concertino.excerpts import shorten
from concertino.schema.custom_schema import DIALECT, SchemaSize, check_references
from concertino.schema.violations import SchemaViolation

# `Any` in this file: JSON Schemas and JSON values are open trees.

# The type of a function that gets a value and its size in bytes as JSON, and returns the violations
# of the value. The list is empty if the value is valid.
FindViolations = Callable[[Any, int], list[SchemaViolation]]
# The type of a function that converts one error of jsonschema_rs to violations.
Describe = Callable[[Any], list[SchemaViolation]]

# Dialect -> class of jsonschema_rs. Servers accept schemas of 2020-12 only. Clients also check
# results against schemas of other servers, which may have another dialect.
VALIDATORS: Mapping[str, str] = {
    DIALECT: "Draft202012Validator",
    "https://json-schema.org/draft/2019-09/schema": "Draft201909Validator",
    "http://json-schema.org/draft-07/schema": "Draft7Validator",
    "http://json-schema.org/draft-06/schema": "Draft6Validator",
    "http://json-schema.org/draft-04/schema": "Draft4Validator",
}
# At most this many violations are reported for one value.
MAX_VIOLATIONS = 20
# The greatest length of a violation's path, and of its message, which quotes the value.
MAX_MESSAGE_CHARS = 300

# Violations are listed one by one if two products are small enough: the number of JSON values in
# the value times the number of subschemas (MAX_VALUES), and the size of the value in bytes times
# the number of subschemas (MAX_BYTES). The reason is that jsonschema_rs creates all errors before
# it returns the first one; each takes 10 to 40 us and contains the value.
MAX_VALUES = 50_000
MAX_BYTES = 20_000_000


def violation_finder(
    schema: dict[str, Any],
    schema_name: str,
    dialect: str = DIALECT,
    describe: Describe | None = None,
) -> FindViolations:
    """Return a function find(value, size_bytes) that returns the violations of a JSON value.

    The list that find() returns is empty if the value is valid, and has at most MAX_VIOLATIONS
    items. `size_bytes` is the size of the value as JSON. If value and schema are so large that
    listing the violations could take longer than about a second, only the names of the invalid
    top-level members are reported.

    schema: plain JSON that has passed custom_schema.check_size().
    schema_name: the name of the schema, for messages.
    dialect: the URI of the dialect, a key of VALIDATORS, for a schema without $schema. A $schema
        must name 2020-12; other dialects in it are not supported.
    describe: converts an error of jsonschema_rs to violations; None to use the text of the error.
    Raises RegistrationError for a schema that is invalid or not supported.
    """
    try:
        size = check_references(schema)
    except RegistrationError as exc:
        raise RegistrationError(f"{schema_name}: {exc}") from None
    validator = _compile(schema, schema_name, dialect)
    find_coarsely = _make_coarse_finder(schema, dialect)

    def find(value: Any, size_bytes: int) -> list[SchemaViolation]:
        try:
            if validator.is_valid(value):
                return []
            if _is_too_large_to_list(value, size_bytes, size):
                return find_coarsely(value)
            errors = islice(cast("Iterator[Any]", validator.iter_errors(value)), MAX_VIOLATIONS)
            violations = chain.from_iterable(map(describe or _quote, errors))
            return [
                SchemaViolation(_cut(violation.path), _cut(violation.message))
                for violation in islice(violations, MAX_VIOLATIONS)
            ]
        except ValueError:
            # jsonschema_rs raises ValueError if it copies a value of more than 255 levels, in order
            # to quote or compare it.
            return [_WHOLE]

    return find


def _quote(error: Any) -> list[SchemaViolation]:
    """Return the violation with the text of an error of jsonschema_rs, unchanged."""
    return [SchemaViolation(".".join(map(str, error.instance_path)), error.message)]


def _compile(schema: dict[str, Any], schema_name: str, dialect: str) -> Any:
    """Return the jsonschema_rs validator for a schema. Raises RegistrationError."""
    try:
        import jsonschema_rs
    except ImportError:
        from concertino.installation import missing_extra

        text = missing_extra(f"a hand-written {schema_name}", "validate")
        raise RegistrationError(text) from None

    try:
        # The name of the class comes from the table above.
        return getattr(jsonschema_rs, VALIDATORS[dialect])(schema, **_make_options())
    except jsonschema_rs.ValidationError as exc:
        place = "/".join(("#", *map(str, exc.instance_path)))
        hint = ""
        if exc.message.endswith('is not a "regex"'):
            hint = "; patterns are matched in linear time, without look-around and back-references"
        raise RegistrationError(f"{schema_name}: {place}: {_cut(exc.message)}{hint}") from None
    except ValueError as exc:
        raise RegistrationError(f"{schema_name}: {exc}") from None


def _make_options() -> dict[str, Any]:
    """Return the options for every validator of jsonschema_rs."""
    from jsonschema_rs import RegexOptions

    # RegexOptions selects the engine without backtracking. check_references() has already rejected
    # references to other documents; the retriever rejects them once more.
    return {"pattern_options": RegexOptions(), "retriever": _refuse}


def _make_coarse_finder(
    schema: dict[str, Any], dialect: str
) -> Callable[[Any], list[SchemaViolation]]:
    """Return a function that reports which top-level members of a value are invalid.

    Each member is validated once, without listing its violations.
    """
    properties: dict[str, Any] = schema.get("properties", {})

    # Compiled only when it is needed, after a caller's mistake.
    @cache
    def validators() -> Any:
        from jsonschema_rs import validator_map_for

        return validator_map_for({**schema, "$schema": dialect}, **_make_options())

    def find(value: Any) -> list[SchemaViolation]:
        members = cast("dict[str, Any]", value) if isinstance(value, dict) else {}
        violations = [
            SchemaViolation(name, "required, but missing")
            for name in schema.get("required", ())
            if name not in members
        ]
        for name in properties:
            if name not in members:
                continue
            # The name as a step of a JSON pointer (RFC 6901).
            step = name.replace("~", "~0").replace("/", "~1")
            if not validators()[f"#/properties/{step}"].is_valid(members[name]):
                violations.append(SchemaViolation(_cut(name), "does not fit its schema"))
        if schema.get("additionalProperties") is False and "patternProperties" not in schema:
            unknown = (name for name in members if name not in properties)
            violations += [
                SchemaViolation(_cut(name), "unknown name")
                for name in islice(unknown, MAX_VIOLATIONS)
            ]
        return violations[:MAX_VIOLATIONS] or [_WHOLE]

    return find


# For a value whose violations cannot be named.
_WHOLE = SchemaViolation("", "does not fit the schema")


def _is_too_large_to_list(value: Any, size_bytes: int, size: SchemaSize) -> bool:
    """Return whether listing all violations of a value could take too long."""
    # For a recursive schema, the number of subschemas that apply to a value is not known.
    return (
        size.recursive
        or size_bytes > MAX_BYTES // size.expanded
        or _has_more_values(value, MAX_VALUES // size.expanded)
    )


def _has_more_values(value: Any, limit: int) -> bool:
    """Return whether a JSON value consists of more than `limit` values."""
    values = [value]
    # The list grows while it is iterated over.
    for number, item in enumerate(values):
        if number > limit:
            return True
        if isinstance(item, dict):
            values.extend(cast("dict[str, Any]", item).values())
        elif isinstance(item, list):
            values.extend(cast("list[Any]", item))
    return False


def _cut(text: str) -> str:
    return shorten(text, MAX_MESSAGE_CHARS)


def _refuse(uri: str) -> Any:
    """Raise ValueError. jsonschema_rs calls it to fetch another document."""
    raise ValueError(f"{uri} is not in the schema, and never fetched")
