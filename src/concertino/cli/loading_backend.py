"""A target that is loaded in a thread while others are served already."""

from __future__ import annotations

import logging
from collections.abc import Callable
from threading import Event

from msgspec import Raw, Struct

from concertino.backend.interface import Backend, Call, Context, Notifier, ServerFeatures
from concertino.runtime.threads import Threads
from concertino.types.results import Implementation

__all__ = ["LoadingBackend", "Turn"]

log = logging.getLogger("concertino")


# How long a file is imported alone, before the next one begins.
TURN_S = 0.25


class Turn:
    """The place of one target in the order in which targets are loaded, each in its own thread.

    Files that are imported one after the other find the modules that they always find, although
    each puts its folder first into sys.path. Only one that takes long runs beside the next ones.
    previous: the turn before this one; None for the first.
    """

    def __init__(self, previous: Turn | None) -> None:
        self._previous = previous
        self._has_begun = Event()
        self._is_over = Event()

    def take(self, load: Callable[[], Backend]) -> Backend:
        """Wait for the turn, call `load` and return what it returns."""
        if self._previous is not None:
            self._previous._has_begun.wait()
            self._previous._is_over.wait(TURN_S)
        self._has_begun.set()
        try:
            return load()
        finally:
            self._is_over.set()


class LoadingBackend:
    """A Backend whose inner one is loaded by start().

    load: returns the inner backend; called in a thread. name: of the target, for the log.
    traceback: log the whole traceback if loading fails.
    """

    def __init__(
        self,
        load: Callable[[], Backend],
        name: str,
        *,
        traceback: bool,
    ) -> None:
        self._load = load
        self._name = name
        self._traceback = traceback
        self._inner: Backend | None = None
        # What a target may offer, for clients that open before it is loaded.
        self._unknown = ServerFeatures(
            Implementation(name, "0.0.0"),
            tools=True,
            prompts=True,
            resources=True,
            completions=True,
            logging=True,
            subscriptions=True,
        )

    async def start(self, outlet: Notifier) -> None:
        """Load and start the inner backend. Raises what importing or starting it raises."""
        inner = self._inner
        if inner is None:
            threads = Threads(1)
            try:
                inner = self._inner = await threads.run(self._load)
            except BaseException as exc:
                if self._traceback:
                    log.error("importing %s failed", self._name, exc_info=exc)
                raise
            finally:
                threads.close()
        await inner.start(outlet)

    def features(self) -> ServerFeatures:
        return self._unknown if self._inner is None else self._inner.features()

    async def handle(self, call: Call, context: Context) -> Struct | Raw:
        return await self._loaded().handle(call, context)

    async def watch(self, uris: frozenset[str]) -> None:
        await self._loaded().watch(uris)

    async def close(self) -> None:
        if self._inner is not None:
            await self._inner.close()

    def _loaded(self) -> Backend:
        assert self._inner is not None, "a composition calls only parts that have started"
        return self._inner
