"""Front: what MCP clients see of a hub. A Backend that asks the hub for every call, wherever the hub is.

A bridge asks over a link (bridge.py); a hub that serves MCP itself asks itself. What is said to whom is translation.py's. Lists are
asked for each time, which is cheap for a hub, and made anew only when they are other ones; whoever was given a list is told when it
is not that one any more.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import uuid
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Literal

from msgspec import Raw, Struct
from msgspec.json import Encoder

from concertino.backend.interface import Call, Context, Notifier
from concertino.errors import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    ConcertinoError,
    RpcError,
)
from concertino.orchestra.link import TIMEOUT_S, PluginRequest, PluginResponse
from concertino.orchestra.pending_response import PendingResponse
from concertino.orchestra.plugin_pb2 import ListPromptsRequest, ListToolsRequest
from concertino.orchestra.translation import (
    KINDS,
    TEMPLATES,
    answered,
    call_answer,
    call_request,
    call_result,
    calling,
    entries_of,
    list_request,
    prompt_request,
    prompt_result,
    prompts_of,
    read_request,
    read_result,
    resources_of,
    tools_of,
)
from concertino.protocol.call import ServerFeatures
from concertino.types.results import (
    Implementation,
    ListPromptsResult,
    ListResourcesResult,
    ListResourceTemplatesResult,
    ListToolsResult,
)

__all__ = ["CALL_S", "Ask", "HubBackend"]

log = logging.getLogger("concertino.orchestra")

Ask = Callable[[PluginRequest, float], Awaitable[PluginResponse]]
"""Asks the hub: as Link.request, with the seconds that it may take. It raises ConcertinoError."""

What = Literal["tools", "prompts"]
CALL_S = 600.0  # for a tool; a hub waits no longer for a plugin either
NO_LIST = b"none was to be had"
_compared = Encoder(
    order="sorted"
).encode  # upstream's hub gives the members of a schema in another order each time


class HubBackend:
    """See above. ask: asks the hub. pass_on: a shorter way for calls of tools, as DirectLink.pass_on; None: not now."""

    def __init__(
        self,
        ask: Ask,
        pass_on: Callable[[bytes, float], PendingResponse | None] = lambda _, __: None,
    ) -> None:
        info = Implementation("orchestra", vars(sys.modules["concertino"])["__version__"])
        self._offer = ServerFeatures(info, tools=True, prompts=True, resources=True, logging=True)
        self._request = ask
        self._pass_on = pass_on
        self._caller = calling(str(uuid.uuid4()))
        self._outlet: Notifier | None = None
        self._lists: dict[What, _List] = {
            "tools": _List("list_tools", lambda asked: ListToolsResult(tools_of(asked))),
            "prompts": _List("list_prompts", lambda asked: ListPromptsResult(prompts_of(asked))),
        }
        self._templates = ListResourceTemplatesResult(TEMPLATES)
        self._ways: dict[str, Callable[[Call], Awaitable[Struct]]] = {
            "tools/list": lambda call: self._list(call, "tools"),
            "prompts/list": lambda call: self._list(call, "prompts"),
            "prompts/get": self._get_prompt,
            "resources/list": self._list_resources,
            "resources/templates/list": self._list_templates,
            "resources/read": self._read,
        }

    async def start(self, outlet: Notifier) -> None:
        self._outlet = outlet

    def features(self) -> ServerFeatures:
        return self._offer

    async def handle(self, call: Call, context: Context) -> Struct | Raw:
        if call.method == "tools/call":  # nearly always
            request = call_request(call.params, call.meta, self._caller)
            try:
                passed_on = self._pass_on(request, CALL_S)
                if passed_on is not None:
                    return call_answer(await passed_on)
                response = await self._request(PluginRequest.FromString(request), CALL_S)
            except ConcertinoError as why:
                raise _unanswered(why) from None
            return call_result(answered(response, "tool_call"))
        way = self._ways.get(call.method)
        if way is None:
            raise RpcError(METHOD_NOT_FOUND, f"method not found: {call.method}")
        return await way(call)

    async def watch(self, uris: frozenset[str]) -> None:
        pass

    async def close(self) -> None:
        pass

    async def refresh(self) -> None:
        """Look whether the lists have changed, and tell the client if it was last given another one. Raises RpcError."""
        for what, kept in self._lists.items():
            if kept.given is not None:
                await self._asked_for(kept)
                if kept.seen != kept.given:
                    kept.given = kept.seen
                    self.report_change(what)

    def report_change(self, what: What) -> None:
        """Tell every client that a list is another one now."""
        if self._outlet is not None:
            self._outlet.report_change(what)

    # Ways

    async def _list(self, call: Call, what: What) -> Struct:
        _no_page(call)
        kept = self._lists[what]
        try:
            result = await self._asked_for(kept)
        except RpcError:
            kept.given = NO_LIST
            raise
        kept.given = kept.seen
        return result

    async def _get_prompt(self, call: Call) -> Struct:
        return prompt_result(answered(await self._ask(prompt_request(call.params)), "prompt_get"))

    async def _list_resources(self, call: Call) -> Struct:
        _no_page(call)
        listed = await _all([self._ask(list_request(kind)) for kind in KINDS])
        found = [
            resource
            for kind, response in zip(KINDS, listed, strict=True)
            for resource in resources_of(entries_of(response), kind)
        ]
        return ListResourcesResult(found)

    async def _list_templates(self, call: Call) -> Struct:
        _no_page(call)
        return self._templates

    async def _read(self, call: Call) -> Struct:
        uri, request = read_request(call.params)
        return read_result(uri, answered(await self._ask(request), "storage_read"))

    # Parts

    async def _ask(self, request: PluginRequest) -> PluginResponse:
        try:
            return await self._request(request, TIMEOUT_S)
        except ConcertinoError as why:
            raise _unanswered(why) from None

    async def _asked_for(self, kept: _List) -> Struct:
        asked = answered(
            await self._ask(PluginRequest(**{kept.kind: _QUESTIONS[kept.kind]()})), kept.kind
        )
        return kept.taken(asked)


_QUESTIONS: dict[str, Callable[[], Any]] = {
    "list_tools": ListToolsRequest,
    "list_prompts": ListPromptsRequest,
}


class _List:
    """One list as it was last. make: the result of it. seen: its content; given: that of what the client got last, if it did."""

    def __init__(self, kind: str, make: Callable[[Any], Struct]) -> None:
        self.kind = kind
        self.seen = b""
        self.given: bytes | None = None
        self._make = make
        self._bytes: bytes | None = None
        self._result: Struct

    def taken(self, asked: Any) -> Struct:
        """The result for a response; the one that was made before if it says the same: one object is encoded once."""
        arrived = asked.SerializeToString()
        if arrived != self._bytes:
            result = self._make(asked)
            content = _compared(result)
            if self._bytes is None or content != self.seen:
                self._result, self.seen = result, content
            self._bytes = arrived
        return self._result


def _unanswered(why: ConcertinoError) -> RpcError:
    """What the client is told: unreachable, late, too large, or no response: the text says which, and of what size."""
    return why if isinstance(why, RpcError) else RpcError(INTERNAL_ERROR, f"orchestrator: {why}")


def _no_page(call: Call) -> None:
    """Lists are on one page, so nobody has a cursor but for the empty one, which is the beginning."""
    if "cursor" in call.params and bytes(call.params["cursor"]) != b'""':
        raise RpcError(INVALID_PARAMS, "cursor: not one of this server's")


async def _all(asked: Sequence[Awaitable[PluginResponse]]) -> list[PluginResponse]:
    """All at once; the first failure ends the others."""
    tasks: list[asyncio.Task[PluginResponse]] = []
    try:
        async with asyncio.TaskGroup() as group:
            tasks.extend(group.create_task(_awaited(each)) for each in asked)
    except (
        ExceptionGroup
    ) as failed:  # not `except*`: Python 3.11.2 puts what is raised there into a group again
        raise failed.exceptions[0] from None
    return [task.result() for task in tasks]


async def _awaited(asked: Awaitable[PluginResponse]) -> PluginResponse:
    return await asked
