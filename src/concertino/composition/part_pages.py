"""PartPages: fetches the pages of a list from the parts of a composition."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from typing import Any

from msgspec import Raw

from concertino.backend.interface import Backend, Call, ChangeKind, Context
from concertino.backend.listing import decode_page
from concertino.backend.methods import ListMethod

__all__ = ["PartPages"]

log = logging.getLogger("concertino.composition")


class PartPages:
    """Fetches pages, so that a part that fails or hangs does not hold up the others.

    limit_s: how long a list waits for a part, and parts that fail are left out; None asks one part
    after the other and waits for each, and one that fails makes the list fail.
    on_late: called with what has changed when a part that was left out has answered.
    """

    def __init__(self, limit_s: float | None, on_late: Callable[[ChangeKind], None]) -> None:
        self._limit_s = limit_s
        self._on_late = on_late
        # What was said about a part and a method, so that it is said once.
        self._failures: dict[tuple[str, str], str] = {}
        # The last first page of a part: the same bytes become the same object, so that a list that
        # is built from it can be kept.
        self._decoded: dict[tuple[str, str], tuple[bytes, Any]] = {}
        self._late: set[asyncio.Task[Any]] = set()

    async def fetch(
        self,
        parts: Sequence[tuple[str, Backend]],
        listing: ListMethod,
        call: Call,
        context: Context,
    ) -> AsyncGenerator[tuple[str, Any], None]:
        """Yield the name and the page of each part, in order.

        call: asks the first part, perhaps for a later page; the others get no cursor.
        """
        plain = Call(
            call.method,
            {key: value for key, value in call.params.items() if key != "cursor"},
            call.meta,
        )
        calls = [call if number == 0 else plain for number in range(len(parts))]
        if self._limit_s is None:
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
        """Forget a part that is no longer there."""
        for known in (self._decoded, self._failures):
            for key in [key for key in known if key[0] == name]:
                del known[key]

    def _page_of(
        self,
        name: str,
        method: str,
        task: asyncio.Task[Any],
        listing: ListMethod,
    ) -> Any:
        """Return the page that a task has fetched; None if it failed or is not done."""
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
        task: asyncio.Task[Any],
        listing: ListMethod,
    ) -> None:
        self._late.discard(task)
        if not task.cancelled() and task.exception() is None:
            self._failures.pop((name, method), None)
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
        """Log that a part is left out of a list, unless that has been said."""
        text = f"{type(failure).__name__}: {failure}"
        if self._failures.get((name, method)) != text:
            self._failures[name, method] = text
            log.error("%s is left out of %s: %s", name, method, text)

    # Any: one of four Structs without a common base class.
    async def _fetch_page(
        self,
        name: str,
        part: Backend,
        listing: ListMethod,
        call: Call,
        context: Context,
    ) -> Any:
        result = await part.handle(call, context)
        if not isinstance(result, Raw) or "cursor" in call.params:
            return decode_page(result, listing)
        data = bytes(result)
        key = name, call.method
        if (known := self._decoded.get(key)) is not None and known[0] == data:
            return known[1]
        page = decode_page(result, listing)
        self._decoded[key] = data, page
        return page
