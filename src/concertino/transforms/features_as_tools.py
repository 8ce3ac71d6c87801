"""FeaturesAsTools: offers prompts and resources as tools, for hosts that support only tools.

It adds the tools list_prompts, get_prompt, list_resources and read_resource. Calls of them become
the MCP requests of the same meaning to the Backend inside.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from msgspec import Raw, Struct
from msgspec.json import decode, encode
from msgspec.structs import replace

from concertino.backend.interface import Backend, Call, Context
from concertino.backend.listing import decode_page
from concertino.backend.methods import LIST_METHODS
from concertino.backend.wrappers import BackendWrapper
from concertino.errors import INVALID_PARAMS, RpcError
from concertino.near_names import hint_keywords
from concertino.protocol.call import InputRequired, ServerFeatures
from concertino.protocol.pagination import read_all_pages
from concertino.transforms.tool_pages import decode_tool_page, is_same_page, name_of
from concertino.types.resources_and_prompts import GetPromptResult
from concertino.types.results import (
    CallToolResult,
    ContentBlock,
    EmbeddedResource,
    ReadResourceResult,
    TextContent,
    Tool,
    ToolAnnotations,
    error_result,
)

__all__ = ["FeaturesAsTools"]

READ_ONLY = ToolAnnotations(read_only_hint=True)
NO_ARGUMENTS: Mapping[str, Any] = {"type": "object", "properties": {}}
PROMPT_TOOLS = (
    Tool(
        "list_prompts",
        dict(NO_ARGUMENTS),
        description="List the prompts: prepared texts, with their arguments.",
        annotations=READ_ONLY,
    ),
    Tool(
        "get_prompt",
        {
            "type": "object",
            "properties": {
                "name": {"type": "string"},
                "arguments": {"type": "object", "additionalProperties": {"type": "string"}},
            },
            "required": ["name"],
        },
        description="Return the text of a prompt.",
        annotations=READ_ONLY,
    ),
)
RESOURCE_TOOLS = (
    Tool(
        "list_resources",
        dict(NO_ARGUMENTS),
        description="List the resources, and the templates of URIs for others.",
        annotations=READ_ONLY,
    ),
    Tool(
        "read_resource",
        {
            "type": "object",
            "properties": {"uri": {"type": "string"}},
            "required": ["uri"],
        },
        description="Return the content of a resource.",
        annotations=READ_ONLY,
    ),
)


class FeaturesAsTools(BackendWrapper):
    """A Backend that offers the prompts and resources of another Backend as additional tools.

        run(FeaturesAsTools(server, prompts=True, resources=True))

    The additional tools are at the end of the list of tools. They hide tools of the other Backend
    with the same names.
    inner: the other Backend.
    prompts: whether to add list_prompts and get_prompt.
    resources: whether to add list_resources and read_resource.
    """

    @hint_keywords
    def __init__(
        self,
        inner: Backend,
        *,
        prompts: bool = False,
        resources: bool = False,
    ) -> None:
        super().__init__(inner)
        self._tools = [*(PROMPT_TOOLS if prompts else ()), *(RESOURCE_TOOLS if resources else ())]
        handlers: Mapping[str, _Handler] = {
            "list_prompts": self._list_prompts,
            "get_prompt": self._get_prompt,
            "list_resources": self._list_resources,
            "read_resource": self._read_resource,
        }
        self._handlers = {tool.name: handlers[tool.name] for tool in self._tools}
        # The features of the inner backend, and the features with tools that were made from them.
        self._features: tuple[ServerFeatures, ServerFeatures] | None = None
        # The last page of the inner list, and the page that clients get for it.
        self._page: tuple[Struct | Raw, Raw] | None = None

    def features(self) -> ServerFeatures:
        """Return the features of the inner backend, with `tools` set to True."""
        features = self.inner.features()
        if features.tools or not self._tools:
            return features
        # Return the same object each time, because sessions use it as a key of their caches.
        if self._features is None or self._features[0] is not features:
            self._features = features, replace(features, tools=True)
        return self._features[1]

    async def handle(self, call: Call, context: Context) -> Struct | Raw:
        if call.method == "tools/list" and self._tools:
            return await self._list_tools(call, context)
        if call.method == "tools/call" and (handler := self._handlers.get(call.name or "")):
            return await handler(call, context)
        return await self.inner.handle(call, context)

    async def _list_tools(self, call: Call, context: Context) -> Struct | Raw:
        """Return a page of the inner list. The last page ends with the additional tools."""
        if not self.inner.features().tools:
            result: Struct | Raw = Raw(b'{"tools":[]}')
        else:
            result = await self.inner.handle(call, context)
        if self._page is not None and is_same_page(self._page[0], result):
            return self._page[1]
        page = decode_tool_page(result)
        tools = [tool for tool in page.tools if name_of(tool) not in self._handlers]
        # All other pages are usually sent unchanged, so only the last page is cached.
        if page.next_cursor is not None:
            return result if len(tools) == len(page.tools) else page.to_json(tools)
        tools += [decode(encode(tool), type=dict[str, Raw]) for tool in self._tools]
        shown = page.to_json(tools)
        self._page = result, shown
        return shown

    # The tools

    async def _list_prompts(self, call: Call, context: Context) -> Struct | Raw:
        prompts = await self._list("prompts/list", call, context)
        return CallToolResult([TextContent(encode({"prompts": prompts}).decode())])

    async def _get_prompt(self, call: Call, context: Context) -> Struct | Raw:
        return await self._forward("prompts/get", ("name", "arguments"), call, context)

    async def _list_resources(self, call: Call, context: Context) -> Struct | Raw:
        found = {
            "resources": await self._list("resources/list", call, context),
            "resourceTemplates": await self._list("resources/templates/list", call, context),
        }
        return CallToolResult([TextContent(encode(found).decode())])

    async def _read_resource(self, call: Call, context: Context) -> Struct | Raw:
        return await self._forward("resources/read", ("uri",), call, context)

    # Any: the items of the lists have no common class.
    async def _list(
        self,
        method: str,
        call: Call,
        context: Context,
    ) -> list[Any]:
        """Return all items of a list; [] if the inner backend does not have this feature."""
        listing = LIST_METHODS[method]
        features = self.inner.features()
        has_list = features.prompts if listing.kind == "prompt" else features.resources
        if not has_list:
            return []

        async def fetch(cursor: str | None) -> Any:
            params = {} if cursor is None else {"cursor": Raw(encode(cursor))}
            return decode_page(
                await self.inner.handle(Call(method, params, call.meta), context), listing
            )

        return await read_all_pages(method, fetch, lambda page: getattr(page, listing.member))

    async def _forward(
        self,
        method: str,
        members: tuple[str, ...],
        call: Call,
        context: Context,
    ) -> Struct | Raw:
        """Handle a call of an additional tool: send another request, and return its result.

        method: the method of the request, such as `prompts/get`.
        members: the arguments of the tool that become the params. The first one is required.
        """
        arguments = call.arguments
        if not isinstance(arguments.get(members[0]), str):
            return error_result(f"Missing required field: {members[0]}")
        params = {
            member: Raw(encode(arguments[member])) for member in members if member in arguments
        }
        own = Call(method, params, call.meta, call.answers, call.state)
        try:
            result = await self.inner.handle(own, context)
        except RpcError as error:
            # Return the error as a result, so that the model, which chose the name, sees it.
            if error.code == INVALID_PARAMS:
                details = "" if error.data is None else f": {encode(error.data).decode()}"
                return error_result(f"{error.message}{details}")
            raise
        if isinstance(result, InputRequired):
            return result
        return CallToolResult(_to_content(method, result))


_Handler = Callable[[Call, Context], Awaitable[Struct | Raw]]


def _to_content(method: str, result: Struct | Raw) -> list[ContentBlock]:
    """Return the contents of a prompt or resource as content of a tool's result."""
    data = result if isinstance(result, Raw) else encode(result)
    if method == "prompts/get":
        return [message.content for message in decode(data, type=GetPromptResult).messages]
    contents = decode(data, type=ReadResourceResult).contents
    blocks: list[ContentBlock] = [
        TextContent(item.text) if isinstance(item.text, str) else EmbeddedResource(item)
        for item in contents
    ]
    return blocks
