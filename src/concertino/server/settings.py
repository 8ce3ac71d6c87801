"""What an author says about a server and what it offers, checked once, when it is said: later it would fail at a client."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, TypeVar, cast

from msgspec import Struct, to_builtins
from msgspec.json import Encoder, decode
from msgspec.structs import fields

from concertino.errors import RegistrationError
from concertino.schema.type_schema import nan_path
from concertino.schema.violations import SchemaViolation, violations_of
from concertino.types.results import Annotations, CacheScope, Icon

__all__ = [
    "CacheHints",
    "PromptSettings",
    "ResourceSettings",
    "ServerSettings",
    "ToolSettings",
    "cache_hints",
    "check_setting",
    "check_settings",
    "positive",
]

S = TypeVar("S", bound=Struct)


class ServerSettings(Struct, frozen=True, omit_defaults=True):
    """The arguments of Server(...) that clients are shown."""

    instructions: str | None
    experimental: Mapping[str, dict[str, Any]] | None
    extensions: Mapping[str, dict[str, Any]] | None


class CacheHints(Struct, frozen=True):
    """How long a result may be kept, and by whom: 2026-07-28 server/utilities/caching."""

    ttl_ms: int = 0
    scope: CacheScope = "private"


def cache_hints(ttl_s: float, scope: CacheScope) -> CacheHints:
    """Raises ValueError for what is no time, and for another scope."""
    is_number = isinstance(ttl_s, (int, float))  # pyright: ignore[reportUnnecessaryIsInstance]
    if not is_number or isinstance(ttl_s, bool) or not 0 <= ttl_s <= MAX_TTL_S:
        raise ValueError(f"ttl_s: expected 0 to {MAX_TTL_S} seconds, got {ttl_s!r}")
    if scope not in ("public", "private"):
        raise ValueError(f"cache_scope: expected 'public' or 'private', got {scope!r}")
    return CacheHints(int(ttl_s * 1000), scope)


MAX_TTL_S = 31_536_000  # a year, as HTTP caches have it (RFC 2616 14.21)


class PromptSettings(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """PromptOptions, to be checked."""

    name: str | None = None
    title: str | None = None
    description: str | None = None
    icons: list[Icon] | None = None
    meta: dict[str, Any] | None = None
    inline: bool = False


class ResourceSettings(Struct, frozen=True, omit_defaults=True):
    """ResourceOptions, to be checked."""

    name: str | None = None
    title: str | None = None
    description: str | None = None
    mime_type: str | None = None
    size: int | None = None
    annotations: Annotations | None = None
    icons: list[Icon] | None = None
    meta: dict[str, Any] | None = None
    ttl_s: float | None = None
    cache_scope: CacheScope | None = None
    inline: bool = False

    def hints(self, others: CacheHints) -> CacheHints:
        """others: the server's, for what is not said here. Raises RegistrationError."""
        scope = self.cache_scope or others.scope
        try:
            return (
                CacheHints(others.ttl_ms, scope)
                if self.ttl_s is None
                else cache_hints(self.ttl_s, scope)
            )
        except ValueError as why:
            raise RegistrationError(f"resource: {why}") from None


class ToolSettings(Struct, frozen=True, omit_defaults=True):
    """The arguments of Server.add_tool(handler, ...)."""

    name: str | None
    title: str | None
    description: str | None
    read_only: bool | None
    destructive: bool | None
    idempotent: bool | None
    open_world: bool | None
    icons: list[Icon] | None
    meta: dict[str, Any] | None
    inline: bool
    input_schema: Mapping[str, Any] | None
    output_schema: Mapping[str, Any] | None = None
    envelope: bool = False


def check_settings(value: S, what: str) -> S:
    """As checked(), and within the bounds of the schema. what: it is about, e.g. `prompt 'greet'`. Raises RegistrationError."""
    from concertino.types.result_checks import check  # a server with tools alone never needs it

    try:
        value = check_setting(value)
        check(value)
        return value
    except (ValueError, TypeError) as why:
        raise RegistrationError(f"{what}: {why}") from None


# 2026-07-28 basic/index "General fields: _meta", and basic/versioning: an extension is named by a key that has its prefix.
_LABEL = r"[A-Za-z](?:[A-Za-z0-9-]*[A-Za-z0-9])?"
_PREFIX = re.compile(rf"{_LABEL}(?:\.{_LABEL})*")
_NAME = re.compile(r"(?:[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)?")  # it may be empty


def check_setting(value: S) -> S:
    """A Struct as those who read it from the wire will have it, a copy: 3 us.

    Raises ValueError naming each field, what was expected and what came: another type, what is no JSON, NaN, a lone surrogate, a
    key of `meta` or `extensions` that does not follow the grammar.
    """
    try:
        read = _as_read(value, type(value))
    except _UNFIT:
        problems = (
            _problems(getattr(value, each.name), each.type, each.name) for each in fields(value)
        )
        raise ValueError(
            "; ".join(str(problem) for found in problems for problem in found)
        ) from None
    for key in getattr(read, "meta", None) or ():
        prefix, slash, name = key.rpartition("/")
        if not _NAME.fullmatch(name) or (slash and not _PREFIX.fullmatch(prefix)):
            raise ValueError(f"meta: expected keys like 'name' or 'com.example/name', got {key!r}")
    for key in getattr(read, "extensions", None) or ():
        prefix, _, name = key.rpartition("/")
        if not _NAME.fullmatch(name) or not _PREFIX.fullmatch(prefix):
            raise ValueError(f"extensions: expected names like 'com.example/name', got {key!r}")
    return read


def _problems(value: Any, kind: Any, name: str) -> list[SchemaViolation]:
    try:
        _as_read(value, kind)
    except _UNFIT as why:
        return violations_of(why, name)
    return []


_UNFIT = (TypeError, ValueError, OverflowError, RecursionError)


def _as_read(value: Any, kind: Any) -> Any:  # Any: whatever an author gave
    raw = _encode(value)
    # msgspec writes NaN as null.
    if b"null" in raw and (place := nan_path(to_builtins(value, enc_hook=_plain))) is not None:
        raise ValueError(
            f"holds NaN or infinity{' at ' * bool(place)}{place}, which JSON cannot hold"
        )
    return decode(raw, type=kind)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(cast("Mapping[Any, Any]", value))
    raise TypeError(f"expected JSON, got {type(value).__name__}")


_encode = Encoder(enc_hook=_plain).encode


def positive(owner: str, sizes: Mapping[str, Any]) -> None:
    """Raise ValueError for what is no positive number: of seconds if its name ends in `_s`, else a whole one."""
    for name, value in sizes.items():
        seconds = name.endswith("_s")
        kinds = (int, float) if seconds else (int,)
        if isinstance(value, bool) or not isinstance(value, kinds) or not 0 < value < float("inf"):
            what = (
                "positive number" if seconds or isinstance(value, int) else "positive whole number"
            )
            raise ValueError(f"{owner}: {name}: expected a {what}, got {value!r}")
