"""Client: starts a server or connects to one, sends it requests, and ends it.

The client negotiates the protocol revision with the server. It returns results as the classes of
`concertino.types`, in the form of revision 2026-07-28, whatever the revision of the server is. This
module and feature_methods.py have the public methods. client_connection.py starts, restarts and
ends the server.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Mapping
from threading import get_ident
from types import TracebackType
from typing import Any, Self, TypeVar, get_args, overload

from msgspec import Raw
from msgspec.json import encode

from concertino.client.channel_ending import UnreadRequest
from concertino.client.client_connection import ClientConnection, ConnectionSettings, Timeouts
from concertino.client.feature_methods import FeatureMethods
from concertino.client.forwarding import ForwardingMethods
from concertino.client.negotiation import Era, HandshakeChoice
from concertino.client.notifications import LogMessage, NotificationHandlers
from concertino.client.option_checks import check_functions, check_sink, check_type
from concertino.client.output_validation import OutputValidator, convert_output, decode_result_as
from concertino.client.pending_request import Progress
from concertino.client.request_handlers import AnswerAny, Elicit, RequestHandlers, Roots, Sample
from concertino.client.server_stderr import Sink
from concertino.client.session_state import SessionState
from concertino.client.supervision import Restart
from concertino.client.targets import Target, default_restart, parse_target
from concertino.client.tool_results import ToolResults
from concertino.jsonrpc.limits import Limits
from concertino.near_names import hint_keywords
from concertino.schema.json_values import encode_finite
from concertino.types.results import CallToolResult, Implementation, Level, ListToolsResult, Tool

__all__ = ["Client", "Timeouts"]

T = TypeVar("T")


class Client(FeatureMethods, ForwardingMethods):
    """A client for one server. Use it with `async with`, or call open() and aclose().

        async with Client(["python", "server.py"]) as client:
            result = await client.call_tool("add", {"a": 1, "b": 2})

    A Client belongs to the event loop that opens it, and can be opened once.

    target: the server, which is one of
        - a program to start: a command as a list of words, or ServerParameters,
        - an address: a URL, HttpParameters, `unix:PATH` or `tcp:HOST:PORT`,
        - a Server or another Backend (an object that answers MCP requests) in this process,
        - a Connection (an object that transports JSON-RPC messages) that is not open yet.
    name: the name of the server in logs and errors; by default derived from the target, such as
        "server" for ["python", "server.py"].
    info: the name and version of this client, which the server gets; by default concertino's.
    era: "modern" for a server of MCP 2026-07-28, "legacy" for a server of an earlier revision, with
        the request `initialize`. "auto" finds out which of the two it is. A proxy may pass an async
        function without arguments, which is called after the server was started. It returns True to
        send `initialize` first, or False for "auto".
    timeouts: time limits; by default Timeouts().
    limits: size limits, such as max_message_bytes; by default Limits().
    stderr: a function called with each line of the server's stderr, or the path of a file to append
        the lines to. By default, the logger `concertino.client.NAME.stderr` logs the lines at
        stderr_level, where NAME is `name`. Secrets are redacted in all three cases.
    restart: when to restart a server that ends by itself. Only a program or an address can be
        restarted. By default, the client only replaces an HTTP session that the server has ended,
        and sends the request again that the server has refused for this reason.
    validate: whether to validate the results of tools against their output schemas, from the first
        list_tools() on. None validates if the extra `validate` (see `concertino docs install`) is
        installed. True raises ImportError if the extra is not installed.
    trace: a function called with two strings for each message: "->" (sent) or "<-" (received), and
        the message with secrets redacted. The logger `concertino.client.NAME` also logs messages,
        at level DEBUG.

    The server may ask this client for something: with a request before 2026-07-28, with an
    `input_required` result since then. The following functions give the responses. Each may be
    `def` or `async def`. Their argument `server` is the server's name and version (an
    Implementation). Without a function, the client does not declare the capability, and a server
    that asks nevertheless gets an error.

    elicit(request, server): lets the user fill in a form (an Elicitation). Returns a dict with the
        values ({} for a URL), "accept", "decline", "cancel", None (the same as "cancel"), or an
        ElicitResult. Fields without a value get the defaults of the form.
    elicit_urls: whether `elicit` also gets requests to open a URL. The client itself opens nothing.
    sample(request, server): asks a model. `request` is a Sampling. Returns a str or a
        CreateMessageResult.
    sampling: the content of the capability `sampling`, such as {"tools": {}} if `sample` supports
        tools; by default {}.
    roots: file:// URIs or Roots, or a function without arguments that returns them.
    rounds: how many times the server may ask for input during one request (2026-07-28). If it asks
        more often, the request raises ProtocolError.
    answer_any(method, params): an async function that answers all requests of the server, in place
        of the functions above. It gets the undecoded params and returns the undecoded result, both
        as bytes. Proxies use it to pass the requests on.
    capabilities: the client capabilities to declare. By default they follow from the functions that
        are passed. Required with `answer_any`.

    The following functions get the server's notifications. They are called on the event loop.
    Notifications without a function are ignored, except log messages, which are logged.

    changed(name): the list "tools", "prompts" or "resources" has changed. May be an `async def`.
        Calls for one list never overlap. If the list changes during a call, the function is called
        once more afterwards.
    updated(uri): a resource has changed for which subscribe() or watch() was called.
    logged(message): the server has sent a LogMessage. By default, the logger
        `concertino.client.NAME` logs it.
    notified(method, params): any other notification. `params` is a dict.
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
            restart=restart or default_restart(location),
            trace=trace,
            rounds=rounds,
            handlers=self._handlers,
            notification_handlers=NotificationHandlers(logged, changed, updated, notified),
        )
        # A lambda, because SessionState needs the connection and is made after it.
        self._connection = ClientConnection(settings, lambda: self._session.restore())
        self._session = SessionState(self._connection, settings, log)

    async def open(self) -> None:
        """Start the server or connect to it, and negotiate the revision.

        If open() raises, it has ended the server, so there is nothing to close.
        Raises
        - SpawnError if the program cannot be started,
        - Disconnected if no server can be reached, or it ends during the negotiation,
        - TimedOut after timeouts.connect_s,
        - Incompatible if client and server have no revision in common,
        - NotAServer if the program does not speak MCP,
        - ProtocolError for a malformed response,
        - the exception of start(), if the target is a Backend in this process,
        - RuntimeError if this client was opened before.
        """
        try:
            await self._connection.open()
            await self._session.listen_for_changes()
        except BaseException:
            await self.aclose()
            raise

    async def aclose(self) -> None:
        """Close the connection, and end the server and all processes that it has started.

        A server that is a program first gets time to end by itself (ServerParameters.ladder has the
        times). Pending requests raise Disconnected. May be called again. If the task that awaits
        aclose() is cancelled, the server is ended nevertheless.
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
        """Call a tool and return its result, whose `is_error` tells whether the tool has failed.

        If the task that awaits the result is cancelled, the client cancels the call at the server.
        If the server ends and is restarted, the client repeats a call that the server had not read.
        All other calls raise Disconnected.

        arguments: name -> value; None for no arguments.
        into: a type to return instead of a CallToolResult, such as `int` or a dataclass. The
            structured content is converted to this type. Without structured content, the text of
            the result is decoded as JSON, or returned as it is for `str`. If the tool has failed,
            ToolError is raised with the text of the result.
        timeout_s: how many seconds to wait for the response. Each progress notification restarts
            this time. By default timeouts.request_s. In all, the call may take the longer of
            timeouts.total_s and timeout_s.
        progress(done, total, message): a function called for each progress notification of the
            tool. `total` and `message` are None if the server does not send them. Without a
            function, the server is not asked for progress.
        meta: keys and values to add to the request's `_meta`.
        Raises RpcError for an error response, TimedOut, Disconnected if the server ends, and
        ProtocolError if the result is malformed, does not fit the tool's output schema or cannot be
        converted to `into`.
        """
        timeouts = self.timeouts
        idle_timeout_s, total_s = timeouts.request_s, timeouts.total_s
        if timeout_s is not None:
            idle_timeout_s, total_s = timeout_s, max(total_s, timeout_s)

        # The same checks as in wait_until_usable(), which would cost a coroutine in each call.
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
        # A decoded result, an undecoded one, or None if the call must be sent again.
        raw: CallToolResult | Raw | None = None
        left_s = timeout_s
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
            left_s = exc.time_left(min(idle_timeout_s, total_s))
        if type(raw) is CallToolResult:
            result = raw
        else:
            if type(raw) is not Raw:
                # The server has ended before it has read the call (UnreadRequest). Send the call
                # again after the restart.
                body = encode_finite({"name": name, "arguments": arguments or {}})
                raw = await connection.call("tools/call", body, name, left_s, progress, meta)
            # conversation.call_tool() has not decoded the result, or was not called.
            result = await results.decode(name, raw, validate)
        content = result.structured_content
        if type(content) is dict and "result" in content:
            result = await results.unwrap(name, result, connection.current, idle_timeout_s)
        return result if into is None else convert_output(name, result, into)

    async def list_tools(self) -> list[Tool]:
        """Return all tools, from all pages of the list.

        The client validates the results of later calls against the output schemas of these tools,
        unless the argument `validate` of Client says otherwise.
        Raises NotSupported if the server does not declare the capability `tools`, RpcError for an
        error response, TimedOut, Disconnected if the server ends, and ProtocolError for a malformed
        result.
        """
        return await self._results.list_tools()

    async def _fetch_tools(self, timeout_s: float | None = None) -> list[Tool]:
        return await self._connection.fetch_list(
            "tools/list", ListToolsResult, lambda page: page.tools, timeout_s
        )

    # Subscriptions to resources

    async def subscribe(self, uri: str) -> None:
        """Subscribe to a resource: when it changes, the Client's function `updated` is called.

        Does nothing if there is a subscription to this resource already. The subscription is
        renewed when the server is restarted.
        Raises NotSupported if the server does not declare the capability `resources`, ProtocolError
        if the server does not report changes of this resource, RpcError for an error response,
        TimedOut, and Disconnected if the server ends.
        """
        await self._session.subscribe(uri)

    async def unsubscribe(self, uri: str) -> None:
        """End the subscription to a resource, if there is one.

        A server before 2026-07-28 gets a request, which may raise RpcError, TimedOut, ProtocolError
        and Disconnected.
        """
        await self._session.unsubscribe(uri)

    async def watch(self, uris: frozenset[str]) -> None:
        """Subscribe to these resources, and end the subscriptions of the previous watch().

        When one of the resources changes, the Client's function `updated` is called with its URI. A
        server of 2026-07-28 gets one subscription for all resources, where subscribe() would open
        one for each. Proxies use this method to pass on the subscriptions of their own clients.

        uris: the URIs of all resources to watch from now on; empty to watch none.
        Raises as subscribe() does, except for resources whose changes the server does not report:
        for these, a warning is logged.
        """
        await self._session.watch(uris)

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
        """Send a request with any method, and return its decoded result.

        The client adds the `_meta` that the revision requires, and does not check whether the
        server has declared the capability for the request.

        params: the params of the request, without `_meta`; None for no params.
        into: the type to which the result is decoded. None for dicts, lists, strings and so on;
            msgspec.Raw for the undecoded JSON.
        timeout_s: how many seconds to wait for the response. Each progress notification restarts
            this time. By default timeouts.request_s. In all, the request may take the longer of
            timeouts.total_s and timeout_s.
        progress(done, total, message): a function called for each progress notification; None to
            request no progress.
        meta: keys and values to add to the request's `_meta`.
        Raises RpcError for an error response, TimedOut, Disconnected if the server ends, and
        ProtocolError if the result is malformed or cannot be decoded to `into`.
        """
        body = encode(params or {})
        raw = await self._connection.call(method, body, "", timeout_s, progress, meta)
        if into is Raw:
            return raw
        return decode_result_as(method, raw, Any if into is None else into)

    def notify(self, method: str, params: Mapping[str, Any] | None = None) -> None:
        """Send a notification, in the next iteration of the event loop.

        method: the method, such as "notifications/roots/list_changed".
        params: the params of the notification; None for no params.
        Raises RuntimeError if this client is not open.
        """
        self._connection.current.channel.peer.notify(method, encode(params or {}))

    async def ping(self) -> None:
        """Check that the server responds to `server/discover`, or before 2026-07-28 to `ping`.

        Raises TimedOut if no response comes within timeouts.request_s, Disconnected if the server
        ends, and RpcError for an error response, which shows that the server runs.
        """
        await self._connection.call(self._connection.current.requests.ping_method, b"{}")

    async def set_log_level(self, level: Level) -> None:
        """Request the server's log messages of this level and above, for the function `logged`.

        A server before 2026-07-28 gets the request `logging/setLevel`. Since then, the level is
        part of each later request.

        level: "debug", "info", "notice", "warning", "error", "critical", "alert" or "emergency".
        Raises ValueError for another word. The request `logging/setLevel` may also raise
        NotSupported if the server does not declare the capability `logging`, RpcError for an error
        response, TimedOut, and Disconnected if the server ends.
        """
        if level not in get_args(Level):
            raise ValueError(f"level: expected one of {', '.join(get_args(Level))}, got {level!r}")
        await self._session.set_log_level(level)

    def set_roots(self, roots: Roots) -> None:
        """Replace the roots. A server of a revision before 2026-07-28 is notified of the change.

        roots: file:// URIs or Roots, or a function without arguments that returns them.
        Raises RuntimeError if this client was created without `roots` or is not open, and
        ValueError for a URI that does not begin with file://.
        """
        if not self._handlers.has_roots:
            raise RuntimeError(
                "roots were not offered when this client was made: Client(..., roots=[...])"
            )
        conversation = self._connection.current
        self._handlers.replace_roots(roots)
        if not conversation.requests.is_modern:
            conversation.channel.peer.notify("notifications/roots/list_changed", b"{}")


def _default_info() -> Implementation:
    """Return the name and version that servers get by default: those of this package."""
    # The package finds out its version when the attribute is first read, so it cannot be imported.
    return Implementation("concertino", vars(sys.modules["concertino"])["__version__"])
