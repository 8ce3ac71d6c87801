"""PinnedTools: withholds tools whose definition has changed since the user approved it.

A server may describe a harmless tool at first, and change the description later, when the user does
not read it any more but the model does. See `pin` in the reference of server files.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from difflib import unified_diff
from pathlib import Path
from typing import Any

from msgspec import Raw, Struct
from msgspec.json import decode, encode, format
from msgspec.structs import replace

from concertino.backend.interface import (
    Backend,
    Call,
    ChangeKind,
    Context,
    Notifier,
)
from concertino.backend.listing import decode_page, list_items
from concertino.backend.methods import LIST_METHODS
from concertino.backend.wrappers import BackendWrapper, NotifierWrapper
from concertino.decode_errors import DECODE_ERRORS
from concertino.errors import INVALID_PARAMS, RpcError
from concertino.logs.formats import escape_controls
from concertino.logs.redact import redactor
from concertino.proxy.approvals import ApprovalStore, ToolPins
from concertino.proxy.state_files import UnusableState

__all__ = ["PinnedTools", "compare_tools"]

log = logging.getLogger("concertino.proxy")

LISTING = LIST_METHODS["tools/list"]


class PinnedTools(BackendWrapper):
    """A Backend that serves only those tools of a server whose definitions the user has approved.

    The tools in the server's first list count as approved. Tools that are new or changed later are
    withheld until the user approves them with `concertino approve`.
    inner: the Backend that forwards calls to the server.
    store: the user's approvals.
    path: the server file, which lists servers to start, such as mcp.json.
    name: the name of the server in this file.
    """

    def __init__(
        self,
        inner: Backend,
        store: ApprovalStore,
        path: Path,
        name: str,
    ) -> None:
        super().__init__(inner)
        self._store = store
        self._path = path
        self._name = name
        # Name of each tool that may be served -> its JSON; None before the first comparison.
        self._approved: Mapping[str, str] | None = None
        # The names of the tools that the last comparison has found to be changed.
        self._withheld: frozenset[str] = frozenset()
        # Whether the tools were compared after the last notification of a change.
        self._is_current = False
        # Held during a comparison, for which other calls wait.
        self._checking = asyncio.Lock()

    async def start(self, outlet: Notifier) -> None:
        await self.inner.start(_ForgettingNotifier(self, outlet))

    async def handle(self, call: Call, context: Context) -> Struct | Raw:
        """Leave unapproved tools out of lists, and refuse calls of them; forward all other calls.

        Raises RpcError for a call of an unapproved tool.
        """
        if call.method == "tools/list":
            await self._check()
            page = decode_page(await self.inner.handle(call, context), LISTING)
            unapproved = {tool.name for tool in page.tools if not self._is_approved(tool)}
            if not unapproved <= self._withheld:
                # A tool is neither approved nor withheld, so the list has changed since the
                # comparison without a notification. Compare again: the user may have approved
                # the tools of this page meanwhile.
                self.forget()
                await self._check()
            tools = [tool for tool in page.tools if self._is_approved(tool)]
            return page if len(tools) == len(page.tools) else replace(page, tools=tools)
        if call.method == "tools/call":
            await self._check()
            name = call.name
            if name in self._withheld:
                raise RpcError(
                    INVALID_PARAMS,
                    f"{self._name}: the tool {name} is withheld, because its definition has "
                    f"changed; to see and approve it: concertino approve {self._path}",
                )
            # The server may answer calls of tools that it does not list.
            if name is not None and name not in (self._approved or {}):
                raise RpcError(INVALID_PARAMS, f"Unknown tool: {name}")
        return await self.inner.handle(call, context)

    def forget(self) -> None:
        """Forget the last comparison, so that the next call compares the tools again.

        May be called from any thread.
        """
        self._is_current = False

    def set_pins(self, pins: ToolPins | None) -> bool:
        """Return whether the approved tools have changed since the last comparison.

        If so, the next call compares the tools again.
        pins: the present approvals of this server; None if there are none, which is no change.
        """
        approved = None if pins is None else pins.approved
        # Before the first comparison, and without approvals, nothing can differ.
        if self._approved is None or approved is None or approved == self._approved:
            return False
        self.forget()
        return True

    def _is_approved(self, tool: Any) -> bool:
        return self._approved is not None and self._approved.get(tool.name) == _to_json(tool)

    async def _check(self) -> None:
        """Compare the server's tools with the approved tools, if either list may have changed."""
        async with self._checking:
            if self._is_current:
                return
            # Set it before the comparison, so that a change during the comparison resets it.
            self._is_current = True
            try:
                await self._compare()
            except BaseException:
                self._is_current = False
                raise

    async def _compare(self) -> None:
        """Find out which of the server's tools must be withheld, and log the differences.

        Raises RpcError if the approvals cannot be read or written.
        """
        listed = await list_items(self._name, self.inner, "tools/list")
        tools = {tool.name: _to_json(tool) for tool in listed}
        try:
            approved = self._store.record_tools(self._path, self._name, tools)
        except UnusableState as exc:
            raise RpcError(INVALID_PARAMS, f"{self._name}: {exc}") from None
        self._approved = approved
        withheld = frozenset(name for name in tools if approved.get(name) != tools[name])
        if withheld and withheld != self._withheld:
            log.warning(
                "%s: these tools are withheld, because their definitions differ from the approved "
                "ones: %s; to approve them: concertino approve %s",
                self._name,
                ", ".join(sorted(withheld)),
                self._path,
            )
            for line in compare_tools(approved, tools):
                log.warning("%s", line)
        self._withheld = withheld


def _to_json(tool: Any) -> str:
    return encode(tool, order="sorted").decode()


def compare_tools(
    before: Mapping[str, str], now: Mapping[str, str], label_before: str = "approved"
) -> list[str]:
    """Return a unified diff, as lines, of the tools in `now` that are new or changed.

    Returns [] if there are none. Tools that are missing in `now` are not reported, because nobody
    can call them.
    before, now: name of a tool -> its JSON.
    label_before: the word for `before` in the header lines of the diff, such as `--- approved/add`.
    """
    lines: list[str] = []
    for name, text in now.items():
        if (old_text := before.get(name)) == text:
            continue
        old = [] if old_text is None else _to_lines(old_text)
        label = escape_controls(name)
        diff = unified_diff(
            old, _to_lines(text), f"{label_before}/{label}", f"now/{label}", lineterm=""
        )
        lines += diff
    return lines


def _to_lines(text: str) -> list[str]:
    """Return the JSON of a tool in lines, for a diff that people read."""
    try:
        shown = format(encode(decode(text)), indent=2).decode()
    except DECODE_ERRORS:
        # Somebody has edited the stored approvals.
        shown = text
    return [escape_controls(line) for line in redactor().text(shown).splitlines()]


class _ForgettingNotifier(NotifierWrapper):
    """A Notifier that makes a PinnedTools compare the tools again after each change."""

    def __init__(self, pinned: PinnedTools, outlet: Notifier) -> None:
        super().__init__(outlet)
        self._pinned = pinned

    def report_change(self, what: ChangeKind) -> None:
        if what in ("tools", "features"):
            self._pinned.forget()
        self.outlet.report_change(what)
