"""What an author says about a server and its tools, checked once, when it is said: later it would fail at a client."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar, cast

from msgspec import Struct, to_builtins
from msgspec.json import Encoder, decode
from msgspec.structs import fields

from concertino.protocol.schema import Problem, nan_path, problems_of
from concertino.protocol.types import Icon

__all__ = ["ServerSettings", "ToolSettings", "checked"]

S = TypeVar("S", bound=Struct)


class ServerSettings(Struct, frozen=True, omit_defaults=True):
    """The arguments of Server(...) that clients are shown."""

    name: str
    version: str
    title: str | None
    instructions: str | None
    icons: list[Icon] | None
    experimental: Mapping[str, dict[str, Any]] | None
    extensions: Mapping[str, dict[str, Any]] | None


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


def checked(value: S) -> S:
    """A Struct as those who read it from the wire will have it, a copy: 3 us.

    Raises ValueError naming each field, what was expected and what came: another type, what is no JSON, NaN, a lone surrogate.
    """
    try:
        return _as_read(value, type(value))
    except _UNFIT:
        problems = (_problems(getattr(value, each.name), each.type, each.name) for each in fields(value))
        raise ValueError("; ".join(str(problem) for found in problems for problem in found)) from None


def _problems(value: Any, kind: Any, name: str) -> list[Problem]:
    try:
        _as_read(value, kind)
    except _UNFIT as why:
        return problems_of(why, name)
    return []


_UNFIT = (TypeError, ValueError, OverflowError, RecursionError)


def _as_read(value: Any, kind: Any) -> Any:  # Any: whatever an author gave
    raw = _encode(value)
    # msgspec writes NaN as null.
    if b"null" in raw and (place := nan_path(to_builtins(value, enc_hook=_plain))) is not None:
        raise ValueError(f"holds NaN or infinity{' at ' * bool(place)}{place}, which JSON cannot hold")
    return decode(raw, type=kind)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(cast("Mapping[Any, Any]", value))
    raise TypeError(f"expected JSON, got {type(value).__name__}")


_encode = Encoder(enc_hook=_plain).encode
