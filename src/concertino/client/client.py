"""Client: starts a server or connects to one, sends it requests, and ends it.

    async with Client(["python", "server.py"]) as client:
        result = await client.call_tool("add", {"a": 1, "b": 2})

The client finds out the server's revision by itself. Results are Structs of `concertino.types`, in
the form of revision 2026-07-28. This module has the public methods; client/client_connection.py
starts, restarts and ends the server.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Awaitable, Callable, Mapping
from threading import get_ident
from types import TracebackType
from typing import Any, Self, TypeVar, get_args, overload

from msgspec import Raw
from msgspec.json import encode

from concertino.client.channel_ending import UnreadRequest
from concertino.client.client_connection import (
    FOREVER,
    ClientConnection,
    ConnectionFacts,
    ConnectionSettings,
    Timeouts,
)
from concertino.client.negotiation import Era, HandshakeChoice
from concertino.client.notifications import LogMessage, NotificationHandlers
from concertino.client.option_checks import check_functions, check_sink, check_type
from concertino.client.output_validation import (
    OutputValidator,
    convert_output,
    decode_result,
    decode_result_as,
)
from concertino.client.pending_request import ForwardedReply, Progress
from concertino.client.request_handlers import AnswerAny, Elicit, RequestHandlers, Roots, Sample
from concertino.client.server_stderr import Sink
from concertino.client.session_state import SessionState
from concertino.client.supervision import Restart
from concertino.client.targets import Target, parse_target
from concertino.client.tool_results import ToolResults
from concertino.jsonrpc.limits import Limits
from concertino.near_names import hint_keywords
from concertino.protocol.call import Call, ClientFacts
from concertino.protocol.pagination import Page, read_all_pages
from concertino.schema.json_values import encode_finite
from concertino.types.completion import (
    CompleteParams,
    CompletionArgument,
    CompletionContext,
    PromptReference,
    ResourceTemplateReference,
)
from concertino.types.resources_and_prompts import (
    CompleteResult,
    Completion,
    GetPromptResult,
    ListPromptsResult,
    ListResourcesResult,
    ListResourceTemplatesResult,
    Prompt,
    Resource,
    ResourceTemplate,
)
from concertino.types.results import (
    CallToolResult,
    Implementation,
    Level,
    ListToolsResult,
    ReadResourceResult,
    Tool,
)

__all__ = ["Client", "Timeouts"]

T = TypeVar("T")
PageT = TypeVar("PageT", bound=Page)


class Client(ConnectionFacts):
    """A client for one server. Use it with `async with`, or call open() and aclose().

    A Client belongs to one event loop. All parameters but `target` are optional.

    target: the server: a command as a list of words, ServerParameters, `unix:PATH`,
        `tcp:HOST:PORT`, a Server or another Backend in this process, or a Connection that is not
        open.
    name: the name for logs; by default derived from the target.
    info: the name and version of this client, for the server.
    era: "auto" finds out whether the server speaks 2026-07-28 ("modern") or has a handshake
        ("legacy"). Pass one of these words if it is known; or, for proxies, an async function that
        is called when the server has been started: if it returns True, a server that speaks both
        eras is used as a legacy one.
    timeouts: time limits.
    limits: size limits, such as max_message_bytes.
    stderr: a function called with each line of the server's stderr, or a file to append to. By
        default, lines are logged by `concertino.client.NAME.stderr` at stderr_level. Secrets are
        redacted.
    restart: when to restart a server that ends by itself; by default never.
    validate: whether to validate results against the output schemas of tools, after list_tools()
        was called; by default if the extra `validate` is installed.
    trace: a function called with "->" (sent) or "<-" (received) and each message, with secrets
        redacted. Messages are also logged by `concertino.client.NAME` at level DEBUG.

    The following functions answer requests of the server. They may be `def` or `async def`. Without
    a function, such requests are refused.

    elicit(request, server): fills in a form. Returns a dict with the values ({} for a URL),
        "accept", "decline", "cancel", None (the same as "cancel"), or an ElicitResult.
    elicit_urls: whether `elicit` also gets requests to open a URL. The client itself opens nothing.
    sample(request, server): asks a model. Returns a str or a CreateMessageResult.
    sampling: the capability to declare for it, such as {"tools": {}}.
    roots: file:// URIs or Roots, or a function that returns them.
    rounds: how many times the server may ask for input during one request (2026-07-28).
    answer_any(method, params): answers every request of a server before 2026-07-28, in place of the
        functions above. It is async, gets the undecoded params, and returns the undecoded result,
        both as bytes; for backends that pass the requests on.
    capabilities: the client capabilities to declare with it.

    The following functions get the server's notifications. They are called on the event loop.

    changed(name): the list "tools", "prompts" or "resources" has changed. May be an `async def`. It
        is not called again while it runs; changes in that time lead to one more call.
    updated(uri): a resource has changed for which subscribe() was called.
    logged(message): the server has sent a LogMessage.
    notified(method, params): any other notification.
    """

    @hint_keywords
    def __init__(
        self,
        target: Target,
        *,
        name: str | None = None,
        info: Implementation | None = None,
        era: Era | HandshakeChoice = "auto",
        timeouts: Timeouts | None = None,
        limits: Limits | None = None,
        stderr: Sink | None = None,
        stderr_level: int = logging.INFO,
        restart: Restart | None = None,
        validate: bool | None = None,
        trace: Callable[[str, str], object] | None = None,
        elicit: Elicit | None = None,
        elicit_urls: bool = False,
        sample: Sample | None = None,
        sampling: Mapping[str, Any] | None = None,
        roots: Roots | None = None,
        rounds: int = 16,
        answer_any: AnswerAny | None = None,
        capabilities: Mapping[str, Any] | None = None,
        changed: Callable[[str], object] | None = None,
        updated: Callable[[str], object] | None = None,
        logged: Callable[[LogMessage], object] | None = None,
        notified: Callable[[str, dict[str, Any]], object] | None = None,
    ) -> None:
        if era not in ("auto", "modern", "legacy") and not callable(era):
            raise ValueError(f"era: expected auto, modern or legacy, got {era!r}")
        check_type("restart", restart, Restart)
        check_type("timeouts", timeouts, Timeouts)
        check_type("limits", limits, Limits)
        check_functions(
            trace=trace,
            answer_any=answer_any,
            elicit=elicit,
            sample=sample,
            changed=changed,
            updated=updated,
            logged=logged,
            notified=notified,
        )
        check_sink(stderr)
        if rounds < 1:
            raise ValueError(f"rounds: expected at least 1, got {rounds!r}")
        location = parse_target(target)
        if restart is not None and not location.can_reopen:
            raise ValueError(
                "restart: expected a program or an address as target: others cannot be opened again"
            )

        self.name = name or location.name
        self.timeouts = timeouts or Timeouts()
        self.limits = limits or Limits()
        log = logging.getLogger(f"concertino.client.{self.name}")
        self._handlers = RequestHandlers(
            elicit, elicit_urls, sample, sampling, roots, answer_any, capabilities
        )
        self._results = ToolResults(OutputValidator(validate), self._fetch_tools, log)

        settings = ConnectionSettings(
            name=self.name,
            location=location,
            info=info or _default_info(),
            era=era,
            timeouts=self.timeouts,
            limits=self.limits,
            stderr=stderr,
            stderr_level=stderr_level,
            restart=restart,
            trace=trace,
            rounds=rounds,
            handlers=self._handlers,
            notification_handlers=NotificationHandlers(logged, changed, updated, notified),
        )
        self._connection = ClientConnection(settings, lambda: self._session.restore())
        self._session = SessionState(self._connection, settings, log)

    async def open(self) -> None:
        """Start the server or connect to it, and negotiate the revision.

        Takes at most timeouts.connect_s. If it raises, nothing is left running.
        Raises SpawnError if the server cannot be started, Disconnected if it ends meanwhile,
        TimedOut, Incompatible if there is no common revision, NotAServer if it does not speak MCP,
        and ProtocolError. For a Backend in this process, raises the exception of its start().
        """
        try:
            await self._connection.open()
            await self._session.listen_for_changes()
        except BaseException:
            await self.aclose()
            raise

    async def aclose(self) -> None:
        """Close the connection, and end the server and all processes that it has started.

        The server gets time to end by itself first (ShutdownTimeouts). Pending requests raise
        Disconnected. May be called again. If the calling task is cancelled, the closing continues.
        """
        await self._connection.close()

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()

    # Tools

    @overload
    async def call_tool(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        timeout_s: float | None = None,
        progress: Progress | None = None,
        meta: Mapping[str, Any] | None = None,
    ) -> CallToolResult: ...

    @overload
    async def call_tool(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        into: type[T],
        timeout_s: float | None = None,
        progress: Progress | None = None,
        meta: Mapping[str, Any] | None = None,
    ) -> T: ...

    async def call_tool(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        into: type[Any] | None = None,
        timeout_s: float | None = None,
        progress: Progress | None = None,
        meta: Mapping[str, Any] | None = None,
    ) -> Any:
        """Call a tool and return its result. `is_error` of the result tells whether it has failed.

        When the calling task is cancelled, the call is cancelled at the server. If the server ends
        and is restarted, the call is repeated only if the server had not read it.

        into: the type to convert the result to. Then the structured content is returned as this
            type, or else the text, decoded as JSON; if the tool has failed, ToolError is raised
            with its text.
        timeout_s: replaces timeouts.request_s, and timeouts.total_s if it is longer than that.
        progress(done, total, message): called with the tool's progress. Each progress restarts
            timeout_s.
        meta: additional members for `_meta`.
        Raises RpcError for an error response, TimedOut, Disconnected and ProtocolError.
        """
        timeouts = self.timeouts
        idle_timeout_s, total_s = timeouts.request_s, timeouts.total_s
        if timeout_s is not None:
            idle_timeout_s, total_s = timeout_s, max(total_s, timeout_s)

        # The same checks as in wait_until_usable(), without the cost of a coroutine.
        connection = self._connection
        conversation = connection.conversation
        is_usable = (
            conversation is not None
            and get_ident() == connection.thread
            and connection.loop.is_running()  # pyright: ignore[reportOptionalMemberAccess]
        )
        if conversation is None or not is_usable:
            label = f"tools/call {name}"
            conversation, idle_timeout_s = await connection.wait_until_usable(label, idle_timeout_s)

        results = self._results
        validate = results.validator.get(name) if results.validator.schemas else None
        raw: CallToolResult | Raw | None = None
        try:
            if progress is None and not meta and validate is None:
                raw = await conversation.call_tool(
                    name,
                    encode_finite(arguments, name) if arguments else b"{}",
                    idle_timeout_s,
                    total_s,
                )
            else:
                body = encode_finite({"name": name, "arguments": arguments or {}})
                raw = await conversation.call(
                    "tools/call", body, name, idle_timeout_s, total_s, progress, meta
                )
        except UnreadRequest as exc:
            timeout_s = exc.time_left(min(idle_timeout_s, total_s))
        if type(raw) is CallToolResult:
            result = raw
        else:
            if type(raw) is not Raw:
                # An UnreadRequest was raised: the server has not read the call. Send it again after
                # the restart.
                body = encode_finite({"name": name, "arguments": arguments or {}})
                raw = await connection.call("tools/call", body, name, timeout_s, progress, meta)
            # `raw` is undecoded if it did not come from conversation.call_tool(), or if the result
            # is unusual.
            result = await results.decode(name, raw, validate)
        content = result.structured_content
        if type(content) is dict and "result" in content:
            result = await results.unwrap(name, result, connection.current, idle_timeout_s)
        return result if into is None else convert_output(name, result, into)

    async def list_tools(self) -> list[Tool]:
        """Return all tools, from all pages of the list."""
        return await self._results.list_tools()

    async def _fetch_tools(self, timeout_s: float | None = None) -> list[Tool]:
        return await self._list_all(
            "tools/list", ListToolsResult, lambda page: page.tools, timeout_s
        )

    # Resources

    async def list_resources(self) -> list[Resource]:
        """Return all resources, from all pages of the list, without resources of templates."""
        return await self._list_all(
            "resources/list", ListResourcesResult, lambda page: page.resources
        )

    async def list_resource_templates(self) -> list[ResourceTemplate]:
        """Return all resource templates, from all pages of the list."""
        return await self._list_all(
            "resources/templates/list",
            ListResourceTemplatesResult,
            lambda page: page.resource_templates,
        )

    async def read_resource(
        self, uri: str, *, timeout_s: float | None = None
    ) -> ReadResourceResult:
        """Read a resource.

        Raises RpcError if there is no such resource: -32602, or -32002 before 2026-07-28.
        call_tool() describes timeout_s and the other errors.
        """
        self._connection.require("resources")
        raw = await self._connection.call("resources/read", encode({"uri": uri}), uri, timeout_s)
        return decode_result("resources/read", raw, ReadResourceResult)

    async def subscribe(self, uri: str) -> None:
        """Subscribe to a resource: when it changes, the function `updated` is called."""
        await self._session.subscribe(uri)

    async def unsubscribe(self, uri: str) -> None:
        """End the subscription to a resource, if there is one."""
        await self._session.unsubscribe(uri)

    async def watch(self, uris: frozenset[str]) -> None:
        """Subscribe to exactly these resources: `updated` is called with their URIs.

        For proxies, whose own clients subscribe. A server of 2026-07-28 gets one subscription for
        all resources. If it does not report changes of some of them, a warning is logged.
        """
        await self._session.watch(uris)

    # Prompts and completion

    async def list_prompts(self) -> list[Prompt]:
        """Return all prompts, from all pages of the list."""
        return await self._list_all("prompts/list", ListPromptsResult, lambda page: page.prompts)

    async def get_prompt(
        self,
        name: str,
        arguments: Mapping[str, str] | None = None,
        *,
        timeout_s: float | None = None,
    ) -> GetPromptResult:
        """Return the messages of a prompt.

        arguments: name -> value; all values are strings.
        Raises RpcError if there is no such prompt or the arguments are invalid.
        """
        self._connection.require("prompts")
        body = encode({"name": name, "arguments": dict(arguments or {})})
        raw = await self._connection.call("prompts/get", body, name, timeout_s)
        return decode_result("prompts/get", raw, GetPromptResult)

    async def complete(
        self,
        ref: PromptReference | ResourceTemplateReference,
        argument: str,
        value: str,
        *,
        chosen: Mapping[str, str] | None = None,
    ) -> Completion:
        """Return suggested values for an argument of a prompt or a variable of a resource template.

        ref: the prompt or resource template.
        argument: the name of the argument or variable.
        value: the text that the user has typed so far.
        chosen: the values of the other arguments that are known.
        """
        # In revision 2024-11-05 servers may support completion, but cannot declare it.
        revision = self._connection.current.server.revision
        if revision is None or revision.completions:
            self._connection.require("completions")
        context = CompletionContext(dict(chosen)) if chosen else CompletionContext()
        params = CompleteParams(ref, CompletionArgument(argument, value), context)
        raw = await self._connection.call("completion/complete", encode(params), argument, None)
        return decode_result("completion/complete", raw, CompleteResult).completion

    # Other requests and notifications

    async def request(
        self,
        method: str,
        params: Mapping[str, Any] | None = None,
        *,
        into: Any = None,
        timeout_s: float | None = None,
        progress: Progress | None = None,
        meta: Mapping[str, Any] | None = None,
    ) -> Any:
        """Send any request and return its decoded result.

        The client adds the `_meta` that the revision requires. It does not check whether the server
        has declared the capability for the request.
        into: a type to decode the result to; msgspec.Raw for undecoded JSON; by default dicts,
            lists and so on.
        call_tool() describes the other parameters and the errors.
        """
        body = encode(params or {})
        raw = await self._connection.call(method, body, "", timeout_s, progress, meta)
        return raw if into is Raw else decode_result_as(method, raw, Any if into is None else into)

    def forward(
        self,
        call: Call,
        caller: ClientFacts,
        *,
        level: Level | None = None,
        timeout_s: float = FOREVER,
        progress: Progress | None = None,
    ) -> Awaitable[Raw]:
        """Forward the call of another client to the server, and return its result, undecoded.

        For proxies. Only what the server's revision requires is added to the params. Questions of
        the server are not answered here: a 2026-07-28 server returns an `input_required` result,
        with `inputRequests` and `requestState`. Then forward the call again, with `answers`, and
        with the JSON of `requestState` as `state`.

        caller: the other client; a 2026-07-28 server gets its name and its capabilities.
        level: the least severe log message that the other client wants.
        timeout_s: how many seconds to wait for the response, or for the next progress. By default
            there is no limit: cancel the calling task to cancel the call at the server.
        progress: see call_tool().
        Raises the same errors as request().
        """
        return self._connection.forward(call, caller, level, timeout_s, progress)

    def begin_forward(
        self,
        call: Call,
        caller: ClientFacts,
        level: Level | None,
        callback: Callable[[Any], object],
    ) -> ForwardedReply | None:
        """Forward a call like forward(), but pass its outcome to a function. For proxies.

        callback: called once with a ForwardedReply (client/pending_request.py) when that has an
            outcome; must not raise.
        Returns the ForwardedReply; None, without having sent anything, if only forward() can send
        the call, for example because the server is being restarted.
        """
        return self._connection.begin_forward(call, caller, level, callback)

    def notify(self, method: str, params: Mapping[str, Any] | None = None) -> None:
        """Send a notification. params: the members of its params."""
        self._connection.current.channel.peer.notify(method, encode(params or {}))

    async def ping(self) -> None:
        """Check that the server responds: to `server/discover`, or before 2026-07-28 to `ping`.

        Raises TimedOut or Disconnected if it does not.
        """
        await self._connection.call(self._connection.current.requests.ping_method, b"{}")

    async def set_log_level(self, level: Level) -> None:
        """Ask the server for log messages of this level and above. `logged` gets them."""
        if level not in get_args(Level):
            raise ValueError(f"level: expected one of {', '.join(get_args(Level))}, got {level!r}")
        await self._session.set_log_level(level)

    def set_roots(self, roots: Roots) -> None:
        """Replace the roots. Before 2026-07-28, also notify the server of the change.

        Raises RuntimeError if this client was made without `roots`.
        """
        if not self._handlers.has_roots:
            raise RuntimeError(
                "roots were not offered when this client was made: Client(..., roots=[...])"
            )
        conversation = self._connection.current
        self._handlers.replace_roots(roots)
        if not conversation.requests.is_modern:
            conversation.channel.peer.notify("notifications/roots/list_changed", b"{}")

    # Lists

    async def _list_all(
        self,
        method: str,
        page_type: type[PageT],
        items: Callable[[PageT], list[T]],
        timeout_s: float | None = None,
    ) -> list[T]:
        """Return the items of all pages of a list.

        method: the method of the list, such as "tools/list".
        items: returns the items of a page.
        """
        self._connection.require(method.partition("/")[0])

        async def fetch(cursor: str | None) -> PageT:
            body = b"{}" if cursor is None else encode({"cursor": cursor})
            raw = await self._connection.call(method, body, timeout_s=timeout_s)
            return decode_result(method, raw, page_type)

        return await read_all_pages(method, fetch, items)


def _default_info() -> Implementation:
    return Implementation("concertino", vars(sys.modules["concertino"])["__version__"])
