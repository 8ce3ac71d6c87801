"""Takes the value out of structured content that is sent as `{"result": value}`.

Before 2026-07-28 structured content is an object, so servers wrap other values. An object with the
single member `result` may also be what the tool means. The tool's output schema tells which, if it
has the mark that FastMCP and we set. Without an output schema the text of the result does, because
a server sends the structured content as text, too.
Spec: 2025-06-18 server/tools "Structured Content"; decision 0016.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any, Literal, cast

from msgspec import DecodeError
from msgspec.json import decode
from msgspec.structs import replace

from concertino.client.conversation import Conversation
from concertino.errors import ConcertinoError
from concertino.protocol.wire_results import WRAPS_RESULT
from concertino.types.results import CallToolResult, Tool

__all__ = ["WrappedResults"]

# Whether a tool wraps each value, those that are not objects, those that its text shows, or none.
_Wrapping = Literal["each", "others", "by_text", "none"]


class WrappedResults:
    """Unwraps the results of one server's tools.

    The list of tools is fetched when the first result looks wrapped, and again after a restart and
    after a change of the list. fetch: returns the list, within a number
    of seconds.
    """

    def __init__(
        self, fetch: Callable[[float], Awaitable[list[Tool]]], log: logging.Logger
    ) -> None:
        self._fetch = fetch
        self._log = log
        self._wrappings: dict[str, _Wrapping] = {}
        # The conversation that the list is of, and how often the list had changed by then.
        self._known: tuple[Conversation, int] | None = None

    async def unwrap(
        self,
        name: str,
        result: CallToolResult,
        conversation: Conversation,
        timeout_s: float,
    ) -> CallToolResult:
        """Return a result with the value that the tool means.

        result: its structured content is an object that has a member `result`.
        timeout_s: for each page of the list of tools. Without the list, the texts decide.
        """
        content = cast("dict[str, Any]", result.structured_content)
        if len(content) > 1:
            return result
        state = conversation, conversation.notifications.tool_changes
        if self._known != state:
            self._known, self._wrappings = state, {}
            try:
                tools = await self._fetch(timeout_s)
            except ConcertinoError as exc:
                self._log.info("results are read without the output schemas: %s", exc)
            else:
                self._wrappings = {tool.name: _wrapping_of(tool.output_schema) for tool in tools}

        wrapping = self._wrappings.get(name, "by_text")
        if _is_wrapped(content, result.text, wrapping):
            return replace(result, structured_content=content["result"])
        return result


def _wrapping_of(schema: dict[str, Any] | None) -> _Wrapping:
    if schema is None:
        return "by_text"
    if schema.get(WRAPS_RESULT) is True:
        return "each"
    branches: Any = schema.get("anyOf")
    first: Any = cast("list[Any]", branches)[0] if isinstance(branches, list) and branches else None
    is_marked = isinstance(first, dict) and cast("dict[str, Any]", first).get(WRAPS_RESULT) is True
    return "others" if is_marked else "none"


def _is_wrapped(content: dict[str, Any], text: str, wrapping: _Wrapping) -> bool:
    if wrapping in ("each", "none"):
        return wrapping == "each"
    value = content["result"]
    try:
        shown = decode(text)
    except DecodeError:
        return wrapping == "others" and not isinstance(value, dict)
    if wrapping == "others":
        return not isinstance(value, dict) and shown != content
    return shown == value
