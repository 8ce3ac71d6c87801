"""The Context of a call that came over the plugin protocol, which knows one question and one answer, and nothing between the two.

So progress goes nowhere, log messages go to stderr, and whoever asks the client is refused, as by one that answers no questions.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from inspect import isawaitable
from typing import Any, NoReturn

from msgspec import convert

from concertino.backend.interface import Backend, ClientFacts, Context
from concertino.errors import MissingCapability
from concertino.orchestra.plugin_pb2 import PluginRequest
from concertino.runtime.context import DONE
from concertino.runtime.subcalls import SubcallContext
from concertino.types.results import Level

__all__ = ["PluginContext"]

_LEVELS: Mapping[Level, int] = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "notice": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
    "critical": logging.CRITICAL,
    "alert": logging.CRITICAL,
    "emergency": logging.CRITICAL,
}


class PluginContext:
    """A backend.Context. Made in the task that answers; usable from threads.

    meta: `traceparent`, and who asked: `orchestra/caller`, `orchestra/session`, `orchestra/provider`, as the caller said itself.
    """

    def __init__(self, backend: Backend, name: str, request: PluginRequest) -> None:
        self._backend = backend
        self._name = name
        self._request = request
        self._loop = loop = asyncio.get_running_loop()
        self._task = asyncio.current_task(loop)

    @property
    def cancelled(self) -> bool:
        return self._task is not None and self._task.cancelling() > 0

    @property
    def client(self) -> ClientFacts:
        return ClientFacts(self._request.tool_call.caller_plugin, "", "", {})

    @property
    def meta(self) -> Mapping[str, Any]:
        asked = self._request.tool_call
        said = {
            "traceparent": asked.trace_parent,
            "orchestra/caller": asked.caller_plugin,
            "orchestra/session": asked.session_id,
            "orchestra/provider": asked.provider,
        }
        return {name: value for name, value in said.items() if value}

    def progress(
        self, done: float, total: float | None = None, message: str | None = None
    ) -> Awaitable[None]:
        return DONE

    def log(self, level: Level, data: object, logger: str | None = None) -> Awaitable[None]:
        name = f"concertino.{self._name}{'.' + logger if logger else ''}"
        logging.getLogger(name).log(_LEVELS[level], "%s", data)
        return DONE

    def calling(self, context: Context) -> SubcallContext:
        """What makes calls inside this one, for a context around it. See runtime/subcalls.py."""
        return SubcallContext(context, self._backend, {}, (self._request.tool_call.tool_name,), [0])

    def call_tool(
        self, name: str, arguments: Mapping[str, Any] | None = None, *, into: Any = None
    ) -> Coroutine[Any, Any, Any]:
        return self.calling(self).call_tool(name, arguments, into=into)

    async def ask(self, questions: Mapping[str, Any]) -> Any:
        self._refuse("elicitation")

    async def elicit(self, message: str, form: Any, *, key: str | None = None) -> Any:
        self._refuse("elicitation")

    async def elicit_url(self, message: str, url: str, *, key: str | None = None) -> Any:
        self._refuse("elicitation")

    async def sample(
        self, messages: Any, max_tokens: int, *, key: str | None = None, **options: Any
    ) -> Any:
        self._refuse("sampling")

    async def roots(self, *, key: str | None = None) -> Any:
        self._refuse("roots")

    async def once(self, key: str, make: Callable[[], object], kind: Any = Any) -> Any:
        made = make()  # nobody can be asked, so no handler runs twice
        return convert(await made if isawaitable(made) else made, kind)

    def wait(self, awaitable: Awaitable[Any]) -> Any:
        """Cancellation of the call does not reach what is waited for: a request of the protocol has its own deadline."""
        if asyncio.events._get_running_loop() is self._loop:  # pyright: ignore[reportPrivateUsage]  # the public one raises
            if isinstance(awaitable, Coroutine):
                awaitable.close()
            raise RuntimeError(
                "Context.wait is for `def` handlers, which run in a thread; write `await` instead"
            )
        return asyncio.run_coroutine_threadsafe(_awaited(awaitable), self._loop).result()

    def _refuse(self, what: str) -> NoReturn:
        raise MissingCapability("Nobody can be asked through the plugin protocol", {what: {}})


async def _awaited(awaitable: Awaitable[Any]) -> Any:
    return await awaitable
