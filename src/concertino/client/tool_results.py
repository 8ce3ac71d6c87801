"""ToolResults: what a client does to the results of tools before its user gets them.

Client.call_tool() uses it for results that are not plain: it decodes and validates them, and
unwraps structured content. Both may need the list of tools, which is then fetched again.
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

    validator: the output schemas of the tools.
    fetch: returns all tools of the server; its argument is the time limit for each page in seconds,
        or None for the usual limit.
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
        """Fetch all tools, and remember their output schemas."""
        tools = await self._fetch(None)
        self.validator.learn(tools)
        return tools

    async def decode(self, name: str, raw: Raw, validate: Validate | None) -> CallToolResult:
        """Decode and validate the result of a tool.

        validate: the function of the validator for this tool; None to validate nothing.
        Raises ProtocolError if the result is malformed or does not fit the tool's output schema.
        """
        result = decode_result(f"tools/call {name}", raw, CallToolResult)
        if validate is not None and validate(result, len(bytes(raw))):
            await self._revalidate(name, result, raw)
        return result

    async def _revalidate(self, name: str, result: CallToolResult, raw: Raw) -> None:
        """Fetch the tools again, because a result is invalid, and validate the result again.

        The known schema may have been outdated. Raises ProtocolError if the result is invalid by
        the current schema too.
        """
        try:
            await self.list_tools()
        except ConcertinoError as exc:
            # Use the known schema.
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
        """Return a result with its structured content unwrapped; see wrapped_results.py."""
        if self._wrapped is None:
            # Imported here, because results of modern servers are never wrapped.
            from concertino.client.wrapped_results import WrappedResults

            self._wrapped = WrappedResults(self._fetch, self._log)
        return await self._wrapped.unwrap(name, result, conversation, timeout_s)
