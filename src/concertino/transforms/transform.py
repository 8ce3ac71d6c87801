"""Transform: shows the tools of a Backend under other names, with other arguments and texts.

    Transform(
        Proxy(["npx", "-y", "@modelcontextprotocol/server-github"]),
        tools={
            "create_issue": ToolChange(
                "report_bug", arguments={"owner": ArgumentChange(value="octocat")}
            )
        },
        deny="delete_*",
    )

`allow` and `deny` are applied first, to the server's names, and the changes of tools after them.
Lists are changed without decoding all fields. The result is reused as long as the server's list
stays the same.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping
from typing import Any, cast

from msgspec import UNSET, Raw, Struct
from msgspec.json import decode, encode

from concertino.backend.call_hooks import ParamHeaders
from concertino.backend.interface import Backend, Call, Context
from concertino.backend.wrappers import BackendWrapper
from concertino.errors import ConcertinoError, RpcError, unknown_name
from concertino.logs.redact import learn_secrets
from concertino.near_names import hint_keywords, suggestion
from concertino.transforms.changed_tool import ChangedTool
from concertino.transforms.tool_changes import ToolChange
from concertino.transforms.tool_pages import RawTool, decode_tool_page, is_same_page, name_of
from concertino.types.results import CallToolResult

__all__ = ["Transform"]

log = logging.getLogger("concertino.transforms")

# The largest number of pages of lists that are cached.
MAX_PAGES = 100


class Transform(BackendWrapper):
    """A Backend that changes the tools of another one: their names, texts and arguments.

        run(Transform(server, tools={"create_issue": "report_bug"}, deny="delete_*"))

    - A call that contains a hidden argument is refused.
    - Error messages contain the names that clients see, and neither the names nor the values of
      hidden arguments.
    - If the server does not have a changed tool or argument, a warning is logged.

    inner: the other Backend, called the server in these texts.
    tools: the server's name of a tool -> its changes, or only its new name. If another tool of the
        server has the new name already, clients do not see that tool, unless it is renamed, too.
    allow: patterns of the tools that clients may see and call, as in a Guard; () for all. Patterns
        are matched against the server's own names.
    deny: patterns of the tools that clients may not see and call, even if `allow` matches them.
    environment: the environment variables for hidden arguments with `env`; None for those of this
        process.
    Raises ValueError if two entries of `tools` give the same new name, and ConcertinoError if an
    environment variable is not set.
    """

    @hint_keywords
    def __init__(
        self,
        inner: Backend,
        *,
        tools: Mapping[str, ToolChange | str] | None = None,
        allow: str | Iterable[str] = (),
        deny: str | Iterable[str] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        if allow or deny:
            from concertino.guards.guard import Guard

            inner = Guard(inner, allow=allow, deny=deny)
        variables = os.environ if environment is None else environment
        self._changed = {
            name: _make_tool(name, change, variables) for name, change in (tools or {}).items()
        }
        # The name that clients see -> the tool.
        self._by_client_name: dict[str, ChangedTool] = {}
        for tool in self._changed.values():
            other = self._by_client_name.setdefault(tool.client_name, tool)
            if other is not tool:
                raise ValueError(
                    f"tools: both {other.name!r} and {tool.name!r} would be called "
                    f"{tool.client_name!r}"
                )
        # Cursor -> the server's page and the changed page.
        self._pages: dict[bytes, tuple[Struct | Raw, Raw]] = {}
        # The names of the server's tools, on the pages of the list that clients have read since its
        # first page.
        self._names: set[str] = set()
        # The problems that were logged.
        self._reported: set[str] = set()
        super().__init__(inner)

    async def handle(self, call: Call, context: Context) -> Struct | Raw:
        """Forward a call to the server by the server's own names, and return the result.

        Lists, failed results and errors have the names that clients see.
        Raises RpcError if a call uses the old name of a renamed tool or argument, or contains a
        hidden argument. Also raises the errors of the server, translated.
        """
        if call.method == "tools/list":
            return self._show_page(call, await self.inner.handle(call, context))
        if call.method != "tools/call" or (name := call.name) is None:
            return await self.inner.handle(call, context)
        tool = self._by_client_name.get(name)
        if tool is None:
            if name in self._changed:
                raise unknown_name("tool", name)
            return await self.inner.handle(call, context)
        server_call = Call(
            call.method, tool.to_server_params(call.params), call.meta, call.answers, call.state
        )
        if not tool.changes_texts:
            return await self.inner.handle(server_call, context)
        try:
            result = await self.inner.handle(server_call, context)
        except RpcError as error:
            raise tool.reword_error(error) from None
        return _reword_failure(tool, result)

    def param_headers(self, name: str) -> ParamHeaders:
        """Return which arguments of a tool clients must repeat in HTTP headers (`x-mcp-header`).

        name: the name of the tool that clients see.
        Returns path of each such argument, in the names that clients see -> what follows
        `Mcp-Param-` in the name of its header; {} for a tool without such arguments.
        """
        tool = self._by_client_name.get(name)
        if tool is None:
            # The old name of a renamed tool is unknown to clients.
            return {} if name in self._changed else super().param_headers(name)
        return tool.show_headers(super().param_headers(tool.name))

    # Lists

    def _show_page(self, call: Call, result: Struct | Raw) -> Struct | Raw:
        """Return the page of `tools/list` that clients get for a page of the server.

        For the same page, returns the same object again.
        """
        if not self._changed:
            return result
        cursor = bytes(call.params.get("cursor", b""))
        known = self._pages.get(cursor)
        if known is not None and is_same_page(known[0], result):
            return known[1]
        page = decode_tool_page(result)
        # A call without a cursor asks for the first page.
        if not cursor:
            self._names.clear()
        self._names.update(filter(None, map(name_of, page.tools)))
        # The last page: warn about changes of tools that were on no page. If several clients read
        # the pages at once, a wrong warning is possible, but only once for each tool.
        if page.next_cursor is None:
            for name in self._changed.keys() - self._names:
                hint = suggestion(name, sorted(self._names))
                self._report(f"tools: there is no tool {name!r} to change{hint}")
        shown = page.to_json([tool for tool in map(self._show, page.tools) if tool is not None])
        # The list has changed, so the later pages may be outdated, too.
        if not cursor:
            self._pages.clear()
        if len(self._pages) < MAX_PAGES:
            self._pages[cursor] = result, shown
        return shown

    def _show(self, tool: RawTool) -> RawTool | None:
        """Return the changed definition of a tool; None if a renamed tool takes its name."""
        name = name_of(tool)
        if name is None:
            return tool
        changed = self._changed.get(name)
        if changed is not None:
            for problem in changed.find_problems(tool):
                self._report(f"tools: {name}: {problem}")
            return changed.show(tool)
        return None if name in self._by_client_name else tool

    def _report(self, problem: str) -> None:
        """Log a warning once, although clients request the list often."""
        if problem not in self._reported:
            self._reported.add(problem)
            log.warning("%s", problem)


def _make_tool(
    name: str,
    change: ToolChange | str,
    environment: Mapping[str, str],
) -> ChangedTool:
    """Return a ChangedTool, with the values of its hidden arguments read from the environment."""
    if isinstance(change, str):
        change = ToolChange(change)
    # Any: callers without a type checker pass anything.
    given: Any = change
    if not isinstance(given, ToolChange):
        raise ValueError(f"tools: {name}: expected a ToolChange or a new name, got {given!r}")
    hidden: dict[str, Any] = {}
    for argument, changes in change.arguments.items():
        if changes.value is not UNSET:
            hidden[argument] = changes.value
        elif changes.env is not None:
            try:
                hidden[argument] = environment[changes.env]
            except KeyError:
                raise ConcertinoError(
                    f"{name}.{argument}: the variable {changes.env} is not set"
                ) from None
            # Register the value as a secret, so that it is removed from log messages.
            learn_secrets([environment[changes.env]])
    return ChangedTool(name, change, hidden)


def _reword_failure(tool: ChangedTool, result: Struct | Raw) -> Struct | Raw:
    """Translate the texts of a failed result. Returns the same object if it is no failure."""
    if isinstance(result, Raw):
        if b'"isError"' not in bytes(result):
            return result
        value = decode(result)
        failed = isinstance(value, dict) and cast("dict[str, Any]", value).get("isError") is True
    else:
        failed = isinstance(result, CallToolResult) and result.is_error
        value = decode(encode(result)) if failed else None
    return Raw(encode(tool.reword_value(value))) if failed else result
