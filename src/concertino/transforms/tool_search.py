"""ToolSearch: replaces a long list of tools by find_tools(query) and call_tool(name, arguments).

    searchable = ToolSearch(compose(github=..., notion=...))  # hides lists above 10,000 tokens

A list of hundreds of tools takes a large part of a model's context in every conversation. The two
tools never change, so this works even with hosts that read the list only once. A Guard should wrap
the backend inside the ToolSearch, so that it sees, counts and refuses calls of the real tools.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, get_args

from msgspec import Raw, Struct
from msgspec.json import decode, encode

from concertino.backend.call_hooks import (
    CallStarter,
    HooksSlot,
    Work,
    call_starter_of,
    is_overridden,
)
from concertino.backend.interface import Backend, Call, Context
from concertino.backend.wrappers import BackendWrapper
from concertino.decode_errors import DECODE_ERRORS
from concertino.errors import INVALID_PARAMS, METHOD_NOT_FOUND, RpcError, invalid_params
from concertino.near_names import hint_keywords, suggestion
from concertino.token_estimate import estimate
from concertino.transforms.found_tools import describe_found
from concertino.transforms.tool_index import ToolIndex
from concertino.transforms.tool_pages import (
    RawTool,
    ToolPage,
    is_same_page,
    name_of,
    read_tool_pages,
)
from concertino.transforms.tool_text import read_tool_text
from concertino.types.results import (
    CallToolResult,
    ListToolsResult,
    TextContent,
    Tool,
    ToolAnnotations,
    error_result,
)

__all__ = ["BUDGET_TOKENS", "FOUND_TOKENS", "ToolListOptions", "ToolSearch", "ToolsMode"]

ToolsMode = Literal["auto", "all", "search"]
# The default of the longest list that is shown as a whole, in tokens.
BUDGET_TOKENS = 10_000
# The default of the longest result of find_tools, in tokens.
FOUND_TOKENS = 2_000
# The largest number of tools in the result of a search.
MAX_FOUND = 10
# How many different lists are kept, with their indexes. Users may see different lists.
MAX_LISTS = 4

# The two tools that clients see instead of the list.
FIND = Tool(
    "find_tools",
    {
        "type": "object",
        "properties": {
            "query": {
                "type": "string",
                "description": "What to do, and with what: 'create a GitHub issue'",
            }
        },
        "required": ["query"],
    },
    description="Find the tools for a task. Returns their names, descriptions and input schemas, "
    "best first. Use it before you say that something cannot be done: most tools are not listed.",
    annotations=ToolAnnotations(read_only_hint=True, open_world_hint=False),
)
CALL = Tool(
    "call_tool",
    {
        "type": "object",
        "properties": {
            "name": {"type": "string", "description": "As find_tools returns it"},
            "arguments": {"type": "object", "description": "As the tool's inputSchema says"},
        },
        "required": ["name"],
    },
    description="Call a tool that find_tools has found. Returns the tool's own result.",
)
SEARCH_TOOLS = ListToolsResult([FIND, CALL])


class ToolListOptions(Struct, frozen=True):
    """The arguments of a ToolSearch that a server file such as mcp.json may set.

    ToolSearch describes them. Here the default of `mode` is "all": clients see the whole list,
    unless the file asks for a search.
    """

    mode: ToolsMode = "all"
    budget_tokens: int = BUDGET_TOKENS


class _ToolList(Struct):
    """The list of tools of the inner backend, as one user sees it.

    sources: the pages of the list, as the backend has sent them.
    tools, names: the tools that have a name, and their names, in the same order.
    tokens: the size of the list in estimated tokens.
    index: the index of the tools; None until the first search.
    """

    sources: Sequence[Struct | Raw]
    tools: Sequence[RawTool]
    names: Sequence[str]
    tokens: int
    index: ToolIndex | None = None


class ToolSearch(BackendWrapper):
    """A Backend that shows find_tools and call_tool instead of a long list of tools.

        run(ToolSearch(compose(github=github, notion=notion)))

    Clients can still call each tool by its own name.

    inner: the Backend with the long list of tools.
    mode: what clients see as the list of tools:
        - "search": always the two tools.
        - "all": always the whole list.
        - "auto": the two tools if the list is longer than budget_tokens, and else the whole list.
    budget_tokens: the longest list that "auto" shows as a whole, in estimated tokens. The list is
        measured each time a client requests it.
    found_tokens: the longest result of find_tools, in estimated tokens. It contains at most ten
        tools.
    Raises ValueError, which names the invalid argument.
    """

    @hint_keywords
    def __init__(
        self,
        inner: Backend,
        mode: ToolsMode = "auto",
        *,
        budget_tokens: int = BUDGET_TOKENS,
        found_tokens: int = FOUND_TOKENS,
    ) -> None:
        super().__init__(inner)
        if mode not in get_args(ToolsMode):
            expected = ", ".join(get_args(ToolsMode))
            raise ValueError(f"mode: expected one of {expected}, got {mode!r}")
        for option, value in (("budget_tokens", budget_tokens), ("found_tokens", found_tokens)):
            if type(value) is not int or value <= 0:
                raise ValueError(f"{option}: expected a positive number, got {value!r}")
        self._mode = mode
        self._budget = budget_tokens
        self._found_tokens = found_tokens
        # The lists that were read last, the newest first: users may see different tools.
        self._lists: list[_ToolList] = []

    async def handle(self, call: Call, context: Context) -> Struct | Raw:
        if not self._handles(call):
            return await self.inner.handle(call, context)
        if call.method == "tools/list":
            return await self._show_list(call, context)
        return await self._call_search_tool(call, context)

    def call_starter(self) -> CallStarter | None:
        """Return the functions with which the runtime begins calls (backend/call_hooks.py).

        Returns None if the runtime must call `handle`: the inner backend has no CallStarter, or a
        subclass of this class overrides `handle`.
        """
        inner = call_starter_of(self.inner)
        if inner is None or is_overridden(self, ToolSearch.handle, self.handle):
            return None
        begin_inner = inner.begin

        def begin(
            call: Call,
            context: Context,
            slot: HooksSlot,
        ) -> Work:
            if self._handles(call):
                return self.handle(call, context)
            return begin_inner(call, context, slot)

        # Do not pass on the inner starter's table of functions by tool name, because it may contain
        # a tool with the name find_tools or call_tool.
        return CallStarter(begin, {}, inner.redacts)

    def _handles(self, call: Call) -> bool:
        """Return whether this class handles a call, instead of passing it on to the inner backend.

        Such calls are tools/list, and tools/call for find_tools and call_tool.
        """
        if self._mode == "all":
            return False
        # With "auto", the length of the list decides later: to know it, the list must be read.
        if call.method == "tools/call":
            return call.name in (FIND.name, CALL.name)
        return call.method == "tools/list"

    async def _call_search_tool(self, call: Call, context: Context) -> Struct | Raw:
        """Handle a call of find_tools or call_tool."""
        name = call.name
        # Use the list that was read last, because to read one in each call would take long. It may
        # be the list of another user. That matters only if the inner backend has a tool with the
        # name find_tools or call_tool, and if one user's list exceeds the budget and the other
        # user's list does not.
        listed = self._lists[0] if self._lists else await self._read_list(call, context)
        if not self._is_searched(listed) and name in listed.names:
            # The whole list is shown, and it contains a tool with this name.
            return await self.inner.handle(call, context)
        if name == FIND.name:
            return await self._find_tools(call, context)
        return await self._call_tool(call, context)

    # The list

    async def _show_list(self, call: Call, context: Context) -> Struct | Raw:
        """Return find_tools and call_tool, or the inner list if it is short enough."""
        # An empty cursor asks for the first page.
        if bytes(call.params.get("cursor", b'""')) != b'""':
            if self._mode == "search":
                raise invalid_params("cursor: not one of this server's")
            # A cursor means that the client was shown the whole list: find_tools and call_tool fit
            # on one page.
            return await self.inner.handle(call, context)
        listed = await self._read_list(call, context)
        return SEARCH_TOOLS if self._is_searched(listed) else listed.sources[0]

    def _is_searched(self, listed: _ToolList) -> bool:
        """Return whether clients see the two tools instead of this list."""
        return self._mode == "search" or listed.tokens > self._budget

    async def _read_list(self, call: Call, context: Context) -> _ToolList:
        """Read the list of tools of the inner backend.

        Returns the same object as long as the list is the same, so that its index is kept.
        """

        async def fetch(cursor: str | None) -> Struct | Raw:
            params = {} if cursor is None else {"cursor": Raw(encode(cursor))}
            return await self.inner.handle(Call("tools/list", params, call.meta), context)

        pages = await read_tool_pages(fetch)
        listed = next((known for known in self._lists if _are_same(known.sources, pages)), None)
        if listed is None:
            listed = _list_tools(pages)
        else:
            # Keep the objects of the newest pages: the runtime may pass them on undecoded.
            listed.sources = [page.source for page in pages]
        others = [known for known in self._lists if known is not listed]
        self._lists = [listed, *others[: MAX_LISTS - 1]]
        return listed

    # find_tools

    async def _find_tools(self, call: Call, context: Context) -> CallToolResult:
        """Return the result of find_tools: the definitions of the tools that fit the query best."""
        query = call.arguments.get("query")
        if not isinstance(query, str) or not query.strip():
            return error_result("Missing required field: query (a text that says what to do)")
        listed = await self._read_list(call, context)
        index = listed.index
        if index is None:
            texts = [read_tool_text(decode(encode(tool))) for tool in listed.tools]
            index = listed.index = ToolIndex(texts)
        found = [listed.tools[number] for number in index.search(query, MAX_FOUND)]
        if not found:
            return CallToolResult(
                [TextContent(f"No tool of {len(listed.tools)} has any of these words; use others.")]
            )
        return CallToolResult([TextContent(describe_found(found, self._found_tokens))])

    # call_tool

    async def _call_tool(self, call: Call, context: Context) -> Struct | Raw:
        """Return the result of call_tool: the result of the tool that the call names."""
        name, arguments = _read_target(call)
        if name is None:
            return error_result(
                "Missing required field: name (of a tool that find_tools has found)"
            )
        params: Mapping[str, Raw] = {**call.params, "name": Raw(encode(name))}
        if arguments is None:
            params = {key: value for key, value in params.items() if key != "arguments"}
        else:
            params = {**params, "arguments": arguments}
        target = Call(call.method, params, call.meta, call.answers, call.state)
        try:
            return await self.inner.handle(target, context)
        except RpcError as error:
            if error.code not in (INVALID_PARAMS, METHOD_NOT_FOUND):
                raise
            names = (await self._read_list(call, context)).names
            if name in names:
                raise
            # Returned as a result, not as an error, so that the model sees the right name.
            hint = suggestion(name, names) or "; find_tools returns the names of tools"
            return error_result(f"{error.message}{hint}")


def _list_tools(pages: Sequence[ToolPage]) -> _ToolList:
    """Return the tools on these pages as one list. Tools without a name cannot be called."""
    named = [
        (tool, name) for page in pages for tool in page.tools if (name := name_of(tool)) is not None
    ]
    tools = [tool for tool, _ in named]
    tokens = estimate(encode(tools).decode())
    sources = [page.source for page in pages]
    return _ToolList(sources, tools, [name for _, name in named], tokens)


def _are_same(sources: Sequence[Struct | Raw], pages: Sequence[ToolPage]) -> bool:
    """Return whether these pages are equal to the sources of an earlier list."""
    return len(sources) == len(pages) and all(
        is_same_page(old, page.source) for old, page in zip(sources, pages, strict=True)
    )


def _read_target(call: Call) -> tuple[str | None, Raw | None]:
    """Return the name and the arguments in a call of call_tool. Raises RpcError.

    Also accepts arguments as a string that contains JSON, because some models send them so.
    """
    try:
        members = decode(call.params.get("arguments", b"{}"), type=dict[str, Raw])
        name = decode(members["name"], type=str) if "name" in members else None
        arguments = members.get("arguments")
        if arguments is not None and bytes(arguments).lstrip()[:1] == b'"':
            text = decode(arguments, type=str)
            decode(text, type=dict[str, Raw])
            arguments = Raw(text.encode())
    except DECODE_ERRORS as exc:
        raise invalid_params(f"arguments: {exc}") from None
    return name, arguments
