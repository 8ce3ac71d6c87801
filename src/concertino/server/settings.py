"""Checks the arguments of Server(...) and the options of its decorators.

The checks run when a server is created or a function is registered, so that the author sees a
mistake before a client reads a list. Most checks are a round trip: the value is encoded as JSON,
and decoded as the declared type. The first function, default_version(), finds the version of a
server that was created without one.
"""

# No `from __future__ import annotations` here: msgspec compiles annotations that are strings when
# it decodes their Struct, in 10 us each.

import os
import re
import sys
from collections.abc import Mapping
from typing import Any, TypeVar, cast, get_type_hints

from msgspec import Struct
from msgspec.json import Encoder, decode
from msgspec.structs import asdict, fields

from concertino.errors import RegistrationError
from concertino.near_names import unknown_keyword
from concertino.schema.json_values import find_nan
from concertino.schema.violations import SchemaViolation, violations_of
from concertino.server.registry import OPEN_ACCESS, Access
from concertino.types.results import CacheScope

S = TypeVar("S", bound=Struct)
T = TypeVar("T")

# One year in seconds. RFC 2616 section 14.21 has the same limit for HTTP caches.
MAX_TTL_S = 31_536_000
# The version of a server whose project has none.
NO_VERSION = "0.0.0"
# The exceptions of _round_trip() for a value that has no JSON form, or another type than declared.
_ROUND_TRIP_ERRORS = (TypeError, ValueError, OverflowError, RecursionError)


def default_version() -> str:
    """Return the version of the project whose code has called concertino.

    The innermost stack frame outside of concertino names the calling file, and the project is the
    one to which this file belongs. Returns NO_VERSION ("0.0.0") if the version is not known.
    """
    frame = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    while frame is not None and frame.f_globals.get("__name__", "").startswith("concertino."):
        frame = frame.f_back
    file = None if frame is None else frame.f_globals.get("__file__")
    if not isinstance(file, str):
        return NO_VERSION
    # Most servers are single files without a project. A quick test finds these, so that they start
    # without the module project_version. Paths are strings, because importing pathlib takes time.
    folder = file.rpartition("/")[0] or "."
    may_have_project = folder.endswith(("site-packages", "dist-packages", "/src")) or any(
        os.access(f"{folder}/{name}", os.F_OK) for name in ("__init__.py", "pyproject.toml")
    )
    if not may_have_project:
        return NO_VERSION
    from concertino.server.project_version import project_version

    return project_version(file) or NO_VERSION


class ServerSettings(Struct, frozen=True, omit_defaults=True):
    """Arguments of Server(...) that clients get unchanged, for check_setting()."""

    instructions: str | None
    experimental: Mapping[str, dict[str, Any]] | None
    extensions: Mapping[str, dict[str, Any]] | None


class CacheHints(Struct, frozen=True):
    """How long clients may cache a result, and who may share it.

    ttl_ms: how long a client may cache the result, in milliseconds.
    scope: `private` for the user of the request only, `public` for all users.
    Spec: 2026-07-28 server/utilities/caching.
    """

    ttl_ms: int = 0
    scope: CacheScope = "private"


def cache_hints(ttl_s: float, scope: CacheScope) -> CacheHints:
    """Return the CacheHints for a number of seconds.

    ttl_s: how many seconds clients may cache a result, from 0 (not at all) to MAX_TTL_S, a year.
    scope: `private` for the user of the request only, `public` for all users.
    Raises ValueError for an invalid argument.
    """
    is_number = isinstance(ttl_s, (int, float))  # pyright: ignore[reportUnnecessaryIsInstance]
    if not is_number or isinstance(ttl_s, bool) or not 0 <= ttl_s <= MAX_TTL_S:
        raise ValueError(f"ttl_s: expected 0 to {MAX_TTL_S} seconds, got {ttl_s!r}")
    if scope not in ("public", "private"):
        raise ValueError(f"cache_scope: expected 'public' or 'private', got {scope!r}")
    return CacheHints(int(ttl_s * 1000), scope)


def check_options(options: T, declaration: type, owner: str) -> T:
    """Check the options of a decorator, and return a copy that was converted to JSON and back.

    options: name -> value. An empty dict is returned without a copy.
    declaration: the TypedDict in server/options.py that declares the options.
    owner: the name of the tool, prompt or resource for error messages, such as `prompt 'greet'`.
    Raises TypeError for an unknown option, RegistrationError for an invalid value.
    """
    values = cast("dict[str, Any]", options)
    # Most tools have no options, and making the decoder of a TypedDict takes 0.3 ms.
    if not values:
        return options
    if unknown := values.keys() - declaration.__annotations__.keys():
        raise unknown_keyword(owner, min(unknown), _all_options(declaration))
    try:
        checked = _round_trip(values, declaration)
        _check_keys(checked.get("meta"))
    except _ROUND_TRIP_ERRORS as exc:
        hints = get_type_hints(declaration)
        types = {name: hints[name] for name in values}
        text = _describe_violations(values, types) or str(exc)
        raise RegistrationError(f"{owner}: {text}") from None
    return checked


def take_access(options: Mapping[str, Any], owner: str) -> Access:
    """Remove the options `tags`, `visible` and `scopes` from a dict, and return them as an Access.

    options: the options of a tool, prompt or resource: name -> value. This dict is changed.
    owner: the name of the tool, prompt or resource for error messages.
    Raises RegistrationError for an invalid value.
    """
    # Few tools, prompts and resources have these options. Without them, server/access.py need not
    # be imported.
    if options.keys().isdisjoint(("tags", "visible", "scopes")):
        return OPEN_ACCESS
    from concertino.server.access import read_access

    values = cast("dict[str, Any]", options)
    return read_access(
        values.pop("tags", None), values.pop("visible", None), values.pop("scopes", None), owner
    )


def take_guards(options: dict[str, Any]) -> dict[str, Any]:
    """Remove the options that limit the calls of a tool, such as rate_limit, and return them.

    options: all options of the tool: name -> value. The options to remove are declared by the
        TypedDict ToolGuards in server/options.py.
    """
    if not options:
        return {}
    # Imported here, because the import takes time and most tools have no options.
    from concertino.server.options import ToolGuards

    names = ToolGuards.__annotations__.keys() & options.keys()
    return {name: options.pop(name) for name in names}


# The key in `_meta` under which clients see the tags.
TAGS_MEMBER = "concertino/tags"


def add_tags(meta: dict[str, Any] | None, access: Access) -> dict[str, Any] | None:
    """Return `_meta` of a tool, prompt or resource with its tags added.

    meta: the option `meta`; None if the author has not passed it. Returned unchanged if there are
        no tags.
    access: the options `tags`, `visible` and `scopes`. Only the tags are used.
    """
    if not access.tags:
        return meta
    return {TAGS_MEMBER: sorted(access.tags), **(meta or {})}


def _all_options(declaration: type) -> list[str]:
    """Return the names of all options of tools, of prompts or of resources.

    declaration: ToolSettings for tools, PromptSettings for prompts, ResourceSettings for resources
        (server/options.py).
    """
    from concertino.server.options import DECLARATIONS

    # For tools, prompts and resources each: one TypedDict with all options, and those that it
    # consists of, of which `declaration` is the first.
    return [
        name
        for all_options, parts in DECLARATIONS.values()
        if parts[0] is declaration
        for name in all_options.__annotations__
    ]


def check_setting(value: S) -> S:
    """Check a Struct, and return a copy that was converted to JSON and back.

    Raises ValueError for a field whose value has another type or no JSON form (NaN, or a text with
    a lone surrogate), and for invalid keys of `meta` or `extensions`. The text of the error names
    each invalid field, with the expected and the actual value.
    """
    try:
        checked = _round_trip(value, type(value))
    except _ROUND_TRIP_ERRORS:
        values = {field.name: getattr(value, field.name) for field in fields(value)}
        types = {field.name: field.type for field in fields(value)}
        raise ValueError(_describe_violations(values, types)) from None
    names = checked.__struct_fields__
    if "meta" in names or "extensions" in names:
        members = asdict(checked)
        _check_keys(members.get("meta"))
        _check_extensions(members.get("extensions"))
    return checked


def check_against_schema(value: S, owner: str) -> S:
    """Check a Struct of concertino.types as check_setting() does, and against MCP's schema.

    owner: the name of the tool, prompt or resource for error messages, such as `prompt 'greet'`.
    Returns a copy that was converted to JSON and back. Raises RegistrationError for a value of the
    wrong type, and for a number outside of the bounds in MCP's schema.
    """
    # Imported here, because a server that has only tools does not need it.
    from concertino.types.result_checks import check

    try:
        value = check_setting(value)
        check(value)
        return value
    except (ValueError, TypeError) as exc:
        raise RegistrationError(f"{owner}: {exc}") from None


def _describe_violations(values: Mapping[str, Any], types: Mapping[str, Any]) -> str:
    """Return an error text that names each invalid value; "" if all are valid.

    values: name -> value.
    types: name -> the type that the value should have.
    """
    violations: list[SchemaViolation] = []
    for name, value in values.items():
        try:
            _round_trip(value, types[name])
        except _ROUND_TRIP_ERRORS as exc:
            violations += violations_of(exc, name)
    return "; ".join(map(str, violations))


# The grammar of keys in `_meta`, from 2026-07-28 basic/index "General fields: _meta". The part
# after the slash may be empty. The patterns are compiled on first use, because few servers have
# such keys.
_LABEL = r"[A-Za-z](?:[A-Za-z0-9-]*[A-Za-z0-9])?"
_PREFIX = rf"{_LABEL}(?:\.{_LABEL})*"
_NAME = r"(?:[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)?"


def _check_keys(meta: Mapping[str, Any] | None) -> None:
    """Raise ValueError for a key that `_meta` may not have."""
    for key in meta or ():
        prefix, slash, name = key.rpartition("/")
        if not re.fullmatch(_NAME, name) or (slash and not re.fullmatch(_PREFIX, prefix)):
            raise ValueError(f"meta: expected keys like 'name' or 'com.example/name', got {key!r}")


def _check_extensions(extensions: Mapping[str, Any] | None) -> None:
    """Raise ValueError for a name that an extension may not have."""
    # Unlike a key of `_meta`, the name of an extension needs a prefix (basic/versioning).
    for key in extensions or ():
        prefix, _, name = key.rpartition("/")
        if not re.fullmatch(_NAME, name) or not re.fullmatch(_PREFIX, prefix):
            raise ValueError(f"extensions: expected names like 'com.example/name', got {key!r}")


def _round_trip(value: Any, kind: Any) -> Any:
    """Encode a value as JSON, decode it as the type `kind`, and return the decoded value.

    Raises one of _ROUND_TRIP_ERRORS if the value has no JSON form or another type.
    """
    raw = _encode(value)
    # msgspec encodes NaN and infinity as null without an error, so look for them.
    if b"null" in raw:
        path = find_nan(value, enc_hook=_to_dict)
        if path is not None:
            # The path is "" if the value itself is NaN or infinity.
            place = f" at {path}" if path else ""
            raise ValueError(f"holds NaN or infinity{place}, which JSON cannot hold")
    return decode(raw, type=kind)


def _to_dict(value: Any) -> Any:
    """Return a Mapping as a dict. msgspec calls this function with each value it cannot encode.

    Raises TypeError for a value that is not a Mapping.
    """
    if isinstance(value, Mapping):
        return dict(cast("Mapping[Any, Any]", value))
    raise TypeError(f"expected JSON, got {type(value).__name__}")


_encode = Encoder(enc_hook=_to_dict).encode


def check_positive(owner: str, settings: Mapping[str, Any]) -> None:
    """Raise ValueError if a setting is not a positive, finite number.

    A setting whose name ends with `_s` is a time in seconds and may be a float. All other settings
    must be an int.
    owner: the name of the class or function with these settings, for the error text.
    settings: name -> value.
    """
    for name, value in settings.items():
        is_time = name.endswith("_s")
        kinds = (int, float) if is_time else (int,)
        # bool is a subclass of int, but True is not a number that an author means.
        if isinstance(value, bool) or not isinstance(value, kinds) or not 0 < value < float("inf"):
            expected = "positive number"
            # Say "whole" only if the author has passed no int, such as 1.5.
            if not is_time and not isinstance(value, int):
                expected = "positive whole number"
            raise ValueError(f"{owner}: {name}: expected a {expected}, got {value!r}")
