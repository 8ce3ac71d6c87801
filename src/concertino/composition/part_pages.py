"""PartPages: fetches the pages of a list from the parts of a composition.

A composition serves several backends, its parts, as one. ComposedLists (composed_lists.py) joins
the pages into one list.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from typing import Any

from msgspec import Raw, Struct
from msgspec.json import decode

from concertino.backend.interface import Backend, Call, ChangeKind, Context
from concertino.backend.listing import decode_page
from concertino.backend.methods import ListMethod
from concertino.composition.part_view import PartContext, PartView

__all__ = ["PartPage", "PartPages"]

log = logging.getLogger("concertino.composition")


class PartPage(Struct, frozen=True, eq=False):
    """One page of the list of one part, which is one of the backends of a composition.

    content: the page as a Struct, such as a ListToolsResult. If the part has returned JSON, this is
        the decoded JSON.
    raw_items: the items in the JSON, each as a dict: name of a field -> its JSON. They keep the
        fields that this package does not know. None if the part has returned a Struct.
    revision: the protocol revision of the server that has sent the JSON; "" if it is not known.
    """

    content: Any
    raw_items: list[dict[str, Raw]] | None = None
    revision: str = ""


class PartPages:
    """Fetches pages of lists from the parts of a composition, which serves several backends as one.

    limit_s: how many seconds a list waits for all parts together.
        - A number: the parts are asked concurrently. A part that fails or takes longer is left out
          of the list.
        - None: the parts are asked one after the other without a time limit. The list fails if a
          part fails.
    on_late: called with the kind of the list, such as "tools", when a part answers after the limit.
        Clients should then request the list again.
    view_of: called with the name of a part; returns its PartView, which translates between the part
        and the clients.
    """

    def __init__(
        self,
        limit_s: float | None,
        on_late: Callable[[ChangeKind], None],
        view_of: Callable[[str], PartView],
    ) -> None:
        self._limit_s = limit_s
        self._on_late = on_late
        self._view_of = view_of
        # (Part, method) -> the latest failure that was logged, so that it is not logged again.
        self._failures: dict[tuple[str, str], str] = {}
        # (Part, method) -> the first page that was fetched last, as bytes and decoded. For the same
        # bytes fetch() yields the same object, so that ComposedLists need not join the lists again.
        # A part that returns Structs stores its own pages.
        self._decoded: dict[tuple[str, str], tuple[bytes, PartPage]] = {}
        # The requests that are still running after the limit.
        self._late: set[asyncio.Task[PartPage]] = set()

    async def fetch(
        self,
        parts: Sequence[tuple[str, Backend]],
        listing: ListMethod,
        call: Call,
        context: Context,
    ) -> AsyncGenerator[tuple[str, PartPage], None]:
        """Yield (name, page) for each part, in the order of `parts`.

        A part that takes longer than limit_s is left out, but its request goes on; on_late is
        called when the part answers. All other running requests are cancelled when the caller stops
        iterating. Raises the error of a part if limit_s is None.

        parts: name and backend of the parts to ask, beginning with the part at which the client's
            list continues.
        listing: the list method, such as `tools/list`.
        call: the client's request. Its cursor is for the first part; all other parts are asked for
            their first page.
        context: the Context of this request.
        """
        first_page_call = Call(
            call.method,
            {key: value for key, value in call.params.items() if key != "cursor"},
            call.meta,
        )
        calls = [call if number == 0 else first_page_call for number in range(len(parts))]
        if self._limit_s is None:
            # One after the other: no part is asked for a page that the list does not need.
            for (name, part), request in zip(parts, calls, strict=True):
                yield name, await self._fetch_page(name, part, listing, request, context)
            return
        deadline = asyncio.get_running_loop().time() + self._limit_s
        tasks = [
            asyncio.create_task(self._fetch_page(name, part, listing, request, context))
            for (name, part), request in zip(parts, calls, strict=True)
        ]
        try:
            for (name, _), task in zip(parts, tasks, strict=True):
                left_s = max(0.0, deadline - asyncio.get_running_loop().time())
                await asyncio.wait((task,), timeout=left_s)
                page = self._page_of(name, call.method, task, listing)
                if page is not None:
                    yield name, page
        finally:
            for task in tasks:
                if task not in self._late:
                    task.cancel()

    def forget(self, name: str) -> None:
        """Discard the pages and failures of a part that has been removed."""
        for by_part in (self._decoded, self._failures):
            for key in [key for key in by_part if key[0] == name]:
                del by_part[key]

    def _page_of(
        self,
        name: str,
        method: str,
        task: asyncio.Task[PartPage],
        listing: ListMethod,
    ) -> PartPage | None:
        """Return the page that a task has fetched; None if the task has failed or still runs."""
        if not task.done():
            self.report_failure(name, method, TimeoutError(f"no answer within {self._limit_s:g} s"))
            self._late.add(task)
            task.add_done_callback(lambda task: self._on_late_page(name, method, task, listing))
            return None
        failure = asyncio.CancelledError() if task.cancelled() else task.exception()
        if failure is not None:
            self.report_failure(name, method, failure)
            return None
        self._failures.pop((name, method), None)
        return task.result()

    def _on_late_page(
        self,
        name: str,
        method: str,
        task: asyncio.Task[PartPage],
        listing: ListMethod,
    ) -> None:
        """Tell clients to request the list again, because a late part has answered now."""
        self._late.discard(task)
        if not task.cancelled() and task.exception() is None:
            self._failures.pop((name, method), None)
            # A dict instead of f"{kind}s", which type checkers do not accept as a ChangeKind.
            kinds: Mapping[str, ChangeKind] = {
                "tool": "tools",
                "prompt": "prompts",
                "resource": "resources",
            }
            self._on_late(kinds[listing.kind])

    def report_failure(
        self,
        name: str,
        method: str,
        failure: BaseException,
    ) -> None:
        """Log that a part is left out of a list.

        The same failure is logged again only after a success.
        name: the name of the part.
        method: the method of the list, such as `tools/list`.
        failure: why the part has no page.
        """
        text = f"{type(failure).__name__}: {failure}"
        if self._failures.get((name, method)) != text:
            self._failures[name, method] = text
            log.error("%s is left out of %s: %s", name, method, text)

    async def _fetch_page(
        self,
        name: str,
        part: Backend,
        listing: ListMethod,
        call: Call,
        context: Context,
    ) -> PartPage:
        """Send a list request to a part and return the page. Raises the exceptions of the part."""
        part_context = PartContext(context, self._view_of(name))
        result = await part.handle(call, part_context)
        if not isinstance(result, Raw):
            return PartPage(result)
        data = bytes(result)
        key = name, call.method
        revision = part_context.passed_revision
        previous_data, previous = self._decoded.get(key, (b"", None))
        if previous is not None and previous_data == data and previous.revision == revision:
            return previous
        # decode_page() raises for a malformed item, so that this part is left out. Clients could
        # not read a joined list with such an item.
        content = decode_page(result, listing)
        raw_items = decode(data, type=dict[str, Raw])[listing.json_member]
        page = PartPage(content, decode(raw_items, type=list[dict[str, Raw]]), revision)
        if "cursor" not in call.params:
            self._decoded[key] = data, page
        return page
