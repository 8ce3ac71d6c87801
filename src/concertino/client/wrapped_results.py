"""WrappedResults: unwraps structured content that a server has sent as `{"result": value}`.

Before 2026-07-28 structured content must be an object, so servers wrap other values, such as a
number or a list. But a tool may also return an object whose only key is `result`, which must not be
unwrapped. WrappedResults tells these cases apart:

- If the tool's output schema has the keyword `x-fastmcp-wrap-result` (WRAPS_RESULT), which FastMCP
  and concertino set, the value is wrapped.
- If the schema is an `anyOf` whose first schema has this keyword, the tool returns objects and
  other values, and only the other values are wrapped.
- If the tool has another output schema, nothing is wrapped.
- If the tool has no output schema, the text of the result shows whether the value is wrapped,
  because servers also send the value as text, which they do not wrap.

Spec: 2025-06-18 server/tools "Structured Content"; decision 0016.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Literal, cast

from msgspec.json import decode
from msgspec.structs import replace

from concertino.client.conversation import Conversation
from concertino.decode_errors import DECODE_ERRORS
from concertino.errors import ConcertinoError
from concertino.protocol.object_schemas import WRAPS_RESULT
from concertino.types.results import CallToolResult, Tool

__all__ = ["WrappedResults"]

# Which results of a tool are wrapped: all; those whose value is not an object; those whose text is
# the JSON of the value alone; none.
_Wrapping = Literal["all", "non_objects", "by_text", "none"]


class WrappedResults:
    """Replaces structured content `{"result": value}` by the value, if the server has wrapped it.

    The output schema of the tool, or the text of the result, shows whether the server has wrapped
    the value. To get the schemas, WrappedResults fetches the list of tools when the first such
    content arrives, and again after the server was restarted or has reported a change of the list.
    fetch: an async function that returns the tools. Its argument is the time limit for each page of
        the list in seconds.
    log: the logger for failures to fetch the list.
    """

    def __init__(
        self, fetch: Callable[[float], Awaitable[list[Tool]]], log: logging.Logger
    ) -> None:
        self._fetch = fetch
        self._log = log
        # Held while the list is fetched, so that results that arrive meanwhile wait for the list.
        self._fetching = asyncio.Lock()
        self._wrappings: dict[str, _Wrapping] = {}
        # The conversation in which the list was fetched, and how many changes of the list the
        # server had reported in it. None before the first fetch.
        self._fetched_in: tuple[Conversation, int] | None = None

    async def unwrap(
        self,
        name: str,
        result: CallToolResult,
        conversation: Conversation,
        timeout_s: float,
    ) -> CallToolResult:
        """Return a result, with structured content `{"result": value}` replaced by the value.

        Returns the result unchanged if the tool itself returns such objects, as its output schema
        shows. Fetches the list of tools if it is not known. If that fails, all tools count as tools
        without an output schema.

        name: the name of the tool.
        result: a result whose structured content is an object with the key `result`.
        conversation: the connection over which the server has sent the result.
        timeout_s: the time limit for each page of the list of tools, in seconds.
        """
        content = cast("dict[str, Any]", result.structured_content)
        if len(content) > 1:
            return result
        async with self._fetching:
            fetched_in = conversation, conversation.notifications.tool_changes
            if self._fetched_in != fetched_in:
                self._wrappings = {}
                try:
                    tools = await self._fetch(timeout_s)
                except ConcertinoError as exc:
                    self._log.info("results are read without the output schemas: %s", exc)
                else:
                    self._wrappings = {
                        tool.name: _wrapping_of(tool.output_schema) for tool in tools
                    }
                self._fetched_in = fetched_in

        wrapping = self._wrappings.get(name, "by_text")
        if _is_wrapped(content, result.text, wrapping):
            return replace(result, structured_content=content["result"])
        return result


def _wrapping_of(schema: dict[str, Any] | None) -> _Wrapping:
    """Return which results of a tool are wrapped, by its output schema."""
    if schema is None:
        return "by_text"
    if schema.get(WRAPS_RESULT) is True:
        return "all"
    # concertino describes a tool that may return objects and other values by `anyOf`: first the
    # schema of a wrapped value, with the keyword, and then the schema of the objects.
    branches: Any = schema.get("anyOf")
    if isinstance(branches, list) and branches:
        first: Any = cast("list[Any]", branches)[0]
        if isinstance(first, dict) and cast("dict[str, Any]", first).get(WRAPS_RESULT) is True:
            return "non_objects"
    return "none"


def _is_wrapped(content: dict[str, Any], text: str, wrapping: _Wrapping) -> bool:
    """Return whether structured content is `{"result": value}` around the real value.

    text: the text of the result, which usually is the structured content or the value as JSON.
    """
    if wrapping == "all":
        return True
    if wrapping == "none":
        return False
    value = content["result"]
    try:
        text_value = decode(text)
    except DECODE_ERRORS:
        return wrapping == "non_objects" and not isinstance(value, dict)
    if wrapping == "non_objects":
        # The tool may return an object with the one key `result`. Its text is equal to the content.
        return not isinstance(value, dict) and text_value != content
    return text_value == value
