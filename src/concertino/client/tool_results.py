"""ToolResults: decodes, validates and unwraps the results of tools, for Client.call_tool().

To unwrap a result is to replace structured content `{"result": value}` by the value, because many
servers wrap values that are no objects in this way (client/wrapped_results.py).

Client.call_tool() itself decodes most results, together with their responses, and calls ToolResults
for the others. Validating and unwrapping need the output schemas of the tools. ToolResults fetches
the list of tools when the known schemas may be outdated.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from msgspec import Raw

from concertino.client.output_validation import OutputValidator, Validate, decode_result
from concertino.client.pending_request import quote_frame
from concertino.errors import ConcertinoError, ProtocolError
from concertino.types.results import CallToolResult, Tool

if TYPE_CHECKING:
    from concertino.client.conversation import Conversation
    from concertino.client.wrapped_results import WrappedResults

__all__ = ["ToolResults"]


class ToolResults:
    """Decodes, validates and unwraps the results of one server's tools.

    To unwrap is to replace structured content `{"result": value}` by the value.
    validator: the output schemas of the tools.
    fetch: an async function that returns all tools of the server. Its argument is the time limit
        for each page of the list in seconds; None for Timeouts.request_s.
    log: the logger for failures to fetch the list of tools.
    """

    def __init__(
        self,
        validator: OutputValidator,
        fetch: Callable[[float | None], Awaitable[list[Tool]]],
        log: logging.Logger,
    ) -> None:
        self.validator = validator
        self._fetch = fetch
        self._log = log
        # None before the first result that looks wrapped.
        self._wrapped: WrappedResults | None = None

    async def list_tools(self) -> list[Tool]:
        """Fetch all tools, remember their output schemas, and return the tools."""
        tools = await self._fetch(None)
        self.validator.learn(tools)
        return tools

    async def decode(self, name: str, raw: Raw, validate: Validate | None) -> CallToolResult:
        """Decode and validate the result of a tool.

        If the result is invalid, the server may have changed the tool's output schema. Then the
        list of tools is fetched again, and the result is validated by the current schema.
        name: the name of the tool.
        raw: the result, undecoded.
        validate: the function that `self.validator.get(name)` returned before the call; None to
            validate nothing.
        Raises ProtocolError if the result is malformed or does not fit the current output schema.
        """
        result = decode_result(f"tools/call {name}", raw, CallToolResult)
        if validate is not None and validate(result, len(bytes(raw))):
            await self._revalidate(name, result, raw)
        return result

    async def _revalidate(self, name: str, result: CallToolResult, raw: Raw) -> None:
        """Fetch the list of tools, and validate an invalid result again by the current schema.

        The server may have changed the tool's schema since the list was fetched before. Raises
        ProtocolError if the result is invalid by the current schema too.
        """
        try:
            await self.list_tools()
        except ConcertinoError as exc:
            # Without a new list, the result is judged by the old schema.
            self._log.info("the list of tools could not be fetched again: %s", exc)
        validate = self.validator.get(name)
        if validate is not None and (violation := validate(result, len(bytes(raw)))):
            raise ProtocolError(f"tools/call {name}: {violation}: {quote_frame(raw)}")

    async def unwrap(
        self,
        name: str,
        result: CallToolResult,
        conversation: Conversation,
        timeout_s: float,
    ) -> CallToolResult:
        """Return a result, with structured content `{"result": value}` replaced by the value.

        Returns the result unchanged if the tool itself returns such objects.
        name: the name of the tool.
        result: the result, whose structured content is an object with the key `result`.
        conversation: the connection over which the server has sent the result.
        timeout_s: how many seconds to wait for each page of the list of tools, if the list is
            fetched.
        """
        if self._wrapped is None:
            # Imported here, because results of modern servers are never wrapped.
            from concertino.client.wrapped_results import WrappedResults

            self._wrapped = WrappedResults(self._fetch, self._log)
        return await self._wrapped.unwrap(name, result, conversation, timeout_s)
