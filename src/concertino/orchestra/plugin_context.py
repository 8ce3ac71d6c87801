"""PluginContext: the Context of a call that arrived over the plugin protocol.

A Context is the object with which a tool reports progress, writes logs, and sends requests to the
client. While a call runs, the plugin protocol can send nothing to the caller but the chunks of a
stream:

- Progress is sent as chunks. If the tool is not called as a stream, progress is dropped.
- Log messages are written to stderr.
- Sampling calls the hub's AI provider (plugin_sampling.py).
- Elicitation and roots fail as if the client did not have these capabilities.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from inspect import isawaitable
from typing import Any, NoReturn

from msgspec import Raw, convert

from concertino.backend.caller import DetachedCaller
from concertino.backend.interface import DONE, Backend, ClientFacts, Context
from concertino.errors import MissingCapability
from concertino.orchestra.plugin_messages import (
    PluginRequest,
    StreamChunk,
    StreamStart,
    ToolRequest,
)
from concertino.orchestra.plugin_sampling import sample_at_hub
from concertino.orchestra.request_path import PATH
from concertino.orchestra.rpc_interface import RpcConnection
from concertino.orchestra.streams import ChunkSender
from concertino.orchestra.trace_context import trace_of
from concertino.runtime.client_questions import sample
from concertino.runtime.subcalls import SubcallContext
from concertino.runtime.thread_waits import wait_in_thread
from concertino.types.client_requests import CreateMessageResult, Sampling
from concertino.types.results import Level

__all__ = ["PluginContext"]

# The content type of chunks.
TEXT = "text/plain; charset=utf-8"
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


class _StreamCaller(DetachedCaller):
    """The caller of a tool that is called as a stream, so the caller gets progress."""

    wants_progress = True


_CALLER, _STREAM_CALLER = DetachedCaller(), _StreamCaller()


class PluginContext:
    """The Context of one call. Create it in the task that handles the call; threads may use it.

    backend: runs the other tools of the plugin that the tool calls with call_tool().
    name: the plugin's id, for log lines.
    request: the request of the hub.
    chunks: sends progress as chunks; None if the tool is not called as a stream.
    hub: the connection to the hub, for sampling; None if there is none.

    Attributes:
    call: the call of the tool in `request`.
    meta: facts about the call; a key is missing if the request does not contain the fact:
        - `traceparent`, `tracestate`, `baggage`: the W3C trace context.
        - `orchestra/caller`: the id of the plugin that has sent the call.
        - `orchestra/session`: the id of the caller's MCP session.
        - `orchestra/provider`: the AI provider that the call is for, such as "openai".
        - `orchestra/path`: the bridges between hubs through which the call has come
          (request_path.py).
    """

    def __init__(
        self,
        backend: Backend,
        name: str,
        request: PluginRequest,
        chunks: ChunkSender | None = None,
        hub: RpcConnection | None = None,
    ) -> None:
        self._hub = hub
        self._backend = backend
        self._chunks = chunks
        self._name = name
        self._request = request
        self.call: ToolRequest | StreamStart = (
            request.tool_call if chunks is None else request.stream_start
        )
        self._loop = loop = asyncio.get_running_loop()
        self._task = asyncio.current_task(loop)

    @property
    def caller(self) -> DetachedCaller:
        return _CALLER if self._chunks is None else _STREAM_CALLER

    # The plugin protocol does not say which user makes the call.
    principal = None

    @property
    def cancelled(self) -> bool:
        return self._task is not None and self._task.cancelling() > 0

    @property
    def client(self) -> ClientFacts:
        # Only the name of the caller is known.
        return ClientFacts(self.call.caller_plugin, "", "", {})

    @property
    def meta(self) -> Mapping[str, Any]:
        call = self.call
        values = {
            **trace_of(self._request),
            "orchestra/caller": call.caller_plugin,
            "orchestra/session": call.session_id,
            "orchestra/provider": call.provider,
            PATH: list(self._request.path),
        }
        return {name: value for name, value in values.items() if value}

    def progress(
        self,
        done: float,
        total: float | None = None,
        message: str | None = None,
    ) -> Awaitable[None]:
        if self._chunks is None:
            return DONE
        data = (message or "").encode("utf-8", "replace")
        chunk = StreamChunk(data=data, content_type=TEXT, progress=done, total=total)
        return self._chunks.send(chunk)

    def log(
        self,
        level: Level,
        data: object,
        logger: str | None = None,
    ) -> Awaitable[None]:
        name = f"concertino.{self._name}"
        if logger:
            name += f".{logger}"
        logging.getLogger(name).log(_LEVELS[level], "%s", data)
        return DONE

    def subcall_context(self, context: Context) -> SubcallContext:
        """Return a context with which one tool can call other tools of this plugin.

        context: the tool's own context: this object, or a ContextWrapper around it
            (backend/wrappers.py). For everything but calls of tools, the returned context uses it.
        """
        names_of_calls = (self.call.tool_name,)
        # {}: no `_meta` is passed on to the called tools. [0]: no tool has been called yet.
        return SubcallContext(context, self._backend, {}, names_of_calls, [0])

    def call_tool(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        into: Any = None,
    ) -> Coroutine[Any, Any, Any]:
        return self.subcall_context(self).call_tool(name, arguments, into=into)

    async def ask(self, questions: Mapping[str, Any]) -> Mapping[str, Raw]:
        """Send sampling requests to AI providers at the hub, and return key -> result.

        questions: key -> request, which must be a Sampling. Its metadata may name the AI provider
            (plugin_sampling.py).
        Raises MissingCapability if a request is not for sampling, or if the plugin has no hub.
        Raises RpcError if the provider fails.
        """
        hub = self._hub
        if hub is None:
            self._refuse("sampling")
        # All other requests to the client are refused with the same error.
        if any(not isinstance(item, Sampling) for item in questions.values()):
            self._refuse("elicitation")
        call = self.call
        answers = await asyncio.gather(
            *(sample_at_hub(hub, item, call, self._name) for item in questions.values())
        )
        return dict(zip(questions, answers, strict=True))

    async def elicit(
        self,
        message: str,
        form: Any,
        *,
        key: str | None = None,
    ) -> Any:
        self._refuse("elicitation")

    async def elicit_url(
        self,
        message: str,
        url: str,
        *,
        key: str | None = None,
    ) -> Any:
        self._refuse("elicitation")

    async def sample(
        self,
        messages: Any,
        max_tokens: int,
        *,
        key: str | None = None,
        **options: Any,
    ) -> CreateMessageResult:
        # sample() calls ask() with this one request. Any key will do.
        return await sample(self, messages, max_tokens, key or "q", options)

    async def roots(self, *, key: str | None = None) -> Any:
        self._refuse("roots")

    async def once(
        self,
        key: str,
        make: Callable[[], object],
        kind: Any = Any,
    ) -> Any:
        # In MCP, a handler may run again after the client has answered a request, and once() then
        # returns the first value. The plugin protocol has no requests to the client, so a handler
        # runs only once, and no cache is needed.
        value = make()
        return convert(await value if isawaitable(value) else value, kind)

    def wait(self, awaitable: Awaitable[Any]) -> Any:
        """Block this thread until an awaitable is done, and return its result.

        Call this in a worker thread, never on the event loop. The wait goes on even if the call is
        cancelled.
        """
        # The last two arguments are for code that cancels the waits of a call. Here nothing cancels
        # them: an awaitable that sends a request to the hub ends after the request's time limit.
        return wait_in_thread(awaitable, self._loop, set(), lambda: False)

    def _refuse(self, capability: str) -> NoReturn:
        """Raise MissingCapability for a request to the client."""
        raise MissingCapability("the plugin protocol cannot ask a client", {capability: {}})
