"""What came back from a server, as what was asked for: decoded, and held against what a tool promises of its results.

A tool's promise, its output schema, is known once its list was fetched. It is compiled when the tool is first called, and refused
before the call if it cannot be enforced; nothing in it is ever fetched.
Spec: 2025-06-18 and later server/tools "Output Schema"; 2026-07-28 basic/index "JSON Schema Usage".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from importlib.util import find_spec
from typing import Any, TypeVar, cast

from msgspec import UNSET, DecodeError, Raw, Struct, ValidationError, convert
from msgspec.json import decode, encode

from concertino.client.pending_request import shortened
from concertino.errors import ProtocolError, RegistrationError, ToolError
from concertino.types.results import CallToolResult, TextContent, Tool

__all__ = ["OutputValidator", "decoded", "structured", "unexpected"]

# `Any` in this file: JSON Schemas and JSON values are open trees.
T = TypeVar("T")
S = TypeVar("S", bound=Struct)
Breach = Callable[[CallToolResult, int], str]
SHOWN_PROBLEMS = 3


class OutputValidator:
    """What the tools of one server promise. wanted: whether it is held against their results; None: if the extra is there.

    Raises ImportError when it is wanted and the extra is not there.
    """

    def __init__(self, wanted: bool | None) -> None:
        there = wanted is not False and find_spec("jsonschema_rs") is not None
        if wanted and not there:
            raise ImportError("validate=True needs an extra: pip install 'concertino[validate]'")
        self.known: dict[str, dict[str, Any]] = {}
        self._there = there
        self._breaches: dict[str, Breach] = {}

    def learn(self, tools: Iterable[Tool]) -> None:
        """Their list was fetched."""
        if self._there:
            self.known = {
                each.name: each.output_schema
                for each in tools
                if isinstance(each.output_schema, dict)
            }
            self._breaches = {}

    def breach(self, name: str) -> Breach | None:
        """What says how a result of a tool breaks its promise: "" if it does not. None: the tool promises nothing.

        Raises ProtocolError for a promise that cannot be enforced.
        """
        schema = self.known.get(name)
        if schema is None:
            return None
        if name not in self._breaches:
            try:
                self._breaches[name] = _breach_of(schema)
            except RegistrationError as why:
                text = f"tools/call {name}: not called, for its results could not be checked: {why}"
                raise ProtocolError(f"{text} (Client(validate=False) checks none)") from None
        return self._breaches[name]


def _breach_of(schema: dict[str, Any]) -> Breach:
    from concertino.schema.custom_schema import DIALECT, check_size
    from concertino.schema.validation import VALIDATORS, violation_finder

    check_size(schema)
    dialect = str(schema.get("$schema", DIALECT)).removesuffix("#")
    if dialect != DIALECT and dialect in VALIDATORS:
        schema = {name: value for name, value in schema.items() if name != "$schema"}
    else:
        dialect = DIALECT  # one that nobody knows is refused by its name
    find = violation_finder(schema, "outputSchema", dialect)

    def breach(result: CallToolResult, size: int) -> str:
        if result.is_error:
            return ""
        if result.structured_content is UNSET:
            return "the tool has an output schema, and its result no structured content"
        problems = find(result.structured_content, size)
        more = (
            f" and {len(problems) - SHOWN_PROBLEMS} more" if len(problems) > SHOWN_PROBLEMS else ""
        )
        shown = "; ".join(map(str, problems[:SHOWN_PROBLEMS]))
        return (
            f"the structured content does not fit the tool's output schema: {shown}{more}"
            if problems
            else ""
        )

    return breach


def decoded(what: str, raw: Raw, read: Callable[[Raw], S]) -> S:
    """A result, read. Raises ProtocolError that quotes it."""
    try:
        return read(raw)
    except (DecodeError, RecursionError) as why:
        raise unexpected(what, raw, why) from None


def unexpected(what: str, raw: Raw, why: object) -> ProtocolError:
    """The error for a result that is none."""
    return ProtocolError(
        f"{what}: the answer is not what the protocol says: {why}: {shortened(raw)}"
    )


def structured(name: str, result: CallToolResult, into: type[T]) -> T:
    """What a tool gave, as a type. Raises ToolError if it failed, ProtocolError if it is of another type."""
    text = "\n".join(block.text for block in result.content if isinstance(block, TextContent))
    if result.is_error:
        raise ToolError(text or f"{name} failed, and does not say why")
    found: Any = result.structured_content
    try:
        if found is UNSET:
            return cast("T", text) if into is str else decode(text, type=into)
        try:
            return convert(found, into)
        except ValidationError:
            # Before 2026-07-28 structured content is an object: other values come wrapped into one.
            if isinstance(found, dict) and list(cast("dict[str, Any]", found)) == ["result"]:
                return convert(found["result"], into)
            raise
    except DecodeError as why:
        shown = shortened(text.encode() if found is UNSET else encode(found))
        raise ProtocolError(
            f"tools/call {name}: the result is no {getattr(into, '__name__', into)}: {why}: {shown}"
        ) from None
