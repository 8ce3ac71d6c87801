"""LoadingBackend: a target that is loaded in a thread, while other targets are already served.

`concertino serve` makes one for each of several targets, so that a target which is slow to import,
or fails, does not keep the others from being served.
"""

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


# How long a target waits for the import of the target before it.
TURN_S = 0.25


class Turn:
    """Makes the targets of `concertino serve` load one after the other, each in its own thread.

    Importing a file puts its folder first into sys.path. If two files were imported at the same
    time, one might find modules in the folder of the other. But a target that takes longer than
    TURN_S does not hold up the next one.

    Each target has a Turn.
    previous: the Turn of the target before this one; None for the first target.
    """

    def __init__(self, previous: Turn | None) -> None:
        self._previous = previous
        self._has_begun = Event()
        self._is_over = Event()

    def take(self, load: Callable[[], Backend]) -> Backend:
        """Wait for the turn of this target, then call `load` and return its result. Blocks.

        The turn begins when the previous target is loaded, or has taken TURN_S seconds.

        load: loads the target. Its exceptions are raised.
        """
        # The threads may begin in another order than that of the targets, so first wait until the
        # previous target has begun.
        if self._previous is not None:
            self._previous._has_begun.wait()
            self._previous._is_over.wait(TURN_S)
        self._has_begun.set()
        try:
            return load()
        finally:
            self._is_over.set()


class LoadingBackend:
    """A Backend that loads another Backend when it is started, and forwards calls to it.

    load: returns the other Backend, the target; called in a thread.
    name: the name of the target, for the log.
    traceback: whether to log the whole traceback if loading fails.
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
        # Clients that connect before the target is loaded are offered all features that it may
        # have.
        self._possible_features = ServerFeatures(
            Implementation(name, "0.0.0"),
            tools=True,
            prompts=True,
            resources=True,
            completions=True,
            logging=True,
            subscriptions=True,
        )

    async def start(self, outlet: Notifier) -> None:
        """Load the target and start it. Raises the exceptions of importing or starting it.

        If starting has failed, this may be called again. The target is then not loaded again.

        outlet: the notifier that gets the notifications of the target.
        """
        inner = self._inner
        if inner is None:
            # A daemon thread, so that an import without an end does not keep the process alive.
            threads = Threads(1)
            try:
                inner = self._inner = await threads.run(self._load)
            except BaseException as exc:
                # The composition logs the exception without its traceback.
                if self._traceback:
                    log.error("importing %s failed", self._name, exc_info=exc)
                raise
            finally:
                threads.close()
        await inner.start(outlet)

    def features(self) -> ServerFeatures:
        return self._possible_features if self._inner is None else self._inner.features()

    async def handle(self, call: Call, context: Context) -> Struct | Raw:
        return await self._require_inner().handle(call, context)

    async def watch(self, uris: frozenset[str]) -> None:
        await self._require_inner().watch(uris)

    async def close(self) -> None:
        if self._inner is not None:
            await self._inner.close()

    def _require_inner(self) -> Backend:
        assert self._inner is not None, "a composition calls only parts that have started"
        return self._inner
