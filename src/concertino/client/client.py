"""Client: starts a server or connects to one, sends it requests, and ends it cleanly.

    async with Client(["python", "server.py"]) as client:
        result = await client.call_tool("add", {"a": 1, "b": 2})

The client finds out the revision by itself. Results are Structs of `concertino.types`, in their
2026-07-28 shape. This module has the requests; client/client_connection.py starts, restarts and
ends the server.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Mapping
from threading import get_ident
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar, get_args, overload

from msgspec import DecodeError, Raw
from msgspec.json import Decoder, decode, encode

from concertino.client.client_connection import (
    ClientConnection,
    ConnectionFacts,
    ConnectionSettings,
    Timeouts,
)
from concertino.client.conversation import Conversation
from concertino.client.negotiation import Era
from concertino.client.notifications import LISTS, LogMessage, NotificationHandlers
from concertino.client.output_validation import (
    OutputValidator,
    convert_output,
    decode_result,
    invalid_result,
)
from concertino.client.pending_request import Progress, quote_frame, request_label
from concertino.client.request_handlers import Elicit, RequestHandlers, Roots, Sample
from concertino.client.server_stderr import Sink
from concertino.client.supervision import Restart
from concertino.client.targets import Target, parse_target
from concertino.errors import (
    INVALID_PARAMS,
    ConcertinoError,
    Disconnected,
    NotSupported,
    ProtocolError,
    RpcError,
)
from concertino.jsonrpc.limits import Limits
from concertino.jsonrpc.messages import Id
from concertino.types.results import (
    CallToolResult,
    CompleteParams,
    CompleteResult,
    Completion,
    CompletionArgument,
    CompletionContext,
    GetPromptResult,
    Implementation,
    Level,
    ListPromptsResult,
    ListResourcesResult,
    ListResourceTemplatesResult,
    ListToolsResult,
    Prompt,
    PromptReference,
    ReadResourceResult,
    Resource,
    ResourceTemplate,
    ResourceTemplateReference,
    Tool,
)

__all__ = ["Client", "Timeouts"]

T = TypeVar("T")
# Pages of one list; a server that sends more most likely repeats itself.
MAX_PAGES = 10_000


class _Page(Protocol):
    """A result with one page of a list."""

    @property
    def next_cursor(self) -> str | None: ...


PageT = TypeVar("PageT", bound=_Page)


class Client(ConnectionFacts):
    """A client for one server. Use it with `async with`, or call open() and aclose().

    One Client belongs to one event loop. All parameters but target are optional:

    target: a command (a list of words, never a line for a shell), ServerParameters, `unix:PATH`,
    `tcp:HOST:PORT`, a Server or another Backend in memory, or a Connection that is not open yet.
    name: for logs; by default derived from the target. info: the name and version of this client.
    era: `auto` finds out whether the server has a handshake; `modern` and `legacy` skip that.
    timeouts: time limits. limits: size limits, such as max_message_bytes.
    stderr: a function called with each line of the server's stderr, or a file to append to. By
    default lines go to the logger `concertino.client.NAME.stderr` at stderr_level. Secrets are
    redacted.
    restart: how to restart a server that ends by itself; by default it is not restarted.
    validate: whether to validate results against the output schemas of tools, once list_tools() has
    fetched them; by default if the extra `validate` is installed.
    trace: a function called with `->` or `<-` and each message, with secrets redacted. If level
    DEBUG is enabled for the logger `concertino.client.NAME`, messages go there as well.

    Functions that answer the server's requests; requests without a function are refused. They may
    be plain or async.
    elicit(request, server): returns a dict (the values of the form, {} for a URL), `accept`,
    `decline`, `cancel`, None (which cancels) or an ElicitResult. elicit_urls: pass on requests to
    open a URL, too; the client itself opens nothing.
    sample(request, server): returns a str or a CreateMessageResult. sampling: settings to declare
    with it, such as {"tools": {}}.
    roots: file:// URIs or Roots, or a function that returns them.
    rounds: how often one request may ask for input (2026-07-28).

    Functions for the server's notifications, called on the event loop:
    changed(name): the list `tools`, `prompts` or `resources` has changed. May be async; changes
    during a call lead to one more call. updated(uri): a resource has changed, after subscribe().
    logged(message): a LogMessage. notified(method, params): any other notification.
    """

    def __init__(
        self,
        target: Target,
        *,
        name: str | None = None,
        info: Implementation | None = None,
        era: Era = "auto",
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
        changed: Callable[[str], object] | None = None,
        updated: Callable[[str], object] | None = None,
        logged: Callable[[LogMessage], object] | None = None,
        notified: Callable[[str, dict[str, Any]], object] | None = None,
    ) -> None:
        if era not in ("auto", "modern", "legacy"):
            raise ValueError(f"era: expected auto, modern or legacy, got {era!r}")
        _check_type("restart", restart, Restart)
        _check_type("timeouts", timeouts, Timeouts)
        _check_type("limits", limits, Limits)
        _check_callable("trace", trace)
        _check_callable("elicit", elicit)
        _check_callable("sample", sample)
        _check_callable("changed", changed)
        _check_callable("updated", updated)
        _check_callable("logged", logged)
        _check_callable("notified", notified)
        _check_sink(stderr)
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
        self._log = logging.getLogger(f"concertino.client.{self.name}")
        self._handlers = RequestHandlers(elicit, elicit_urls, sample, sampling, roots)
        self._notification_handlers = NotificationHandlers(logged, changed, updated, notified)
        self._output_validator = OutputValidator(validate)

        # The session state that is sent again to a restarted server: the log level, and the URIs of
        # subscriptions with their ids (0 in legacy revisions).
        self._log_level: Level | None = None
        self._subscriptions: dict[str, Id] = {}

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
            notification_handlers=self._notification_handlers,
        )
        self._connection = ClientConnection(settings, self._restore_session)

    async def open(self) -> None:
        """Start or connect, and negotiate the revision; takes at most connect_s seconds.

        Raises SpawnError (the server cannot be started), Disconnected (it ended meanwhile),
        TimedOut, Incompatible (no common revision) and ProtocolError. Nothing is left running then.
        """
        try:
            await self._connection.open()
            await self._listen_for_changes()
        except BaseException:
            await self.aclose()
            raise

    async def aclose(self) -> None:
        """Close the server's stdin, wait, and end it with everything it started.

        Bounded; may be called again. Calls in flight raise Disconnected. It continues when its
        caller is cancelled.
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
        """Call a tool and return its result; `is_error` tells whether the tool failed.

        into: a type. Then the structured content is returned as that type, or the text, decoded as
        JSON, if there is none; and a tool that failed raises ToolError with its text.
        timeout_s: takes the place of timeouts.request_s, and of total_s if that is less.
        progress(done, total, message): called with the tool's progress; each call gives the server
        another timeout_s. meta: members for `_meta`.
        Raises RpcError (the server refused), TimedOut, Disconnected and ProtocolError. When the
        task is cancelled, the call is cancelled at the server.
        """
        timeouts = self.timeouts
        idle_timeout_s, total_s = timeouts.request_s, timeouts.total_s
        if timeout_s is not None:
            idle_timeout_s, total_s = timeout_s, max(total_s, timeout_s)

        # wait_until_usable() does the same checks; this is its fast path without a coroutine.
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

        validator = self._output_validator
        validate = validator.get(name) if validator.schemas else None
        if progress is None and not meta and validate is None:
            raw = await conversation.call_tool(
                name, encode(arguments) if arguments else b"{}", idle_timeout_s, total_s
            )
            if type(raw) is CallToolResult:
                return raw if into is None else convert_output(name, raw, into)
            assert type(raw) is Raw
        else:
            body = encode({"name": name, "arguments": arguments or {}})
            raw = await conversation.call(
                "tools/call", body, name, idle_timeout_s, total_s, progress, meta
            )

        # Undecoded results come from the slow path, and from the fast one if they are unusual.
        try:
            result = _decode_tool_result(raw)
        except (DecodeError, RecursionError) as exc:
            raise invalid_result(f"tools/call {name}", raw, exc) from None
        if validate is not None and validate(result, len(bytes(raw))):
            await self._revalidate(name, result, raw)
        return result if into is None else convert_output(name, result, into)

    async def _revalidate(self, name: str, result: CallToolResult, raw: Raw) -> None:
        """Fetch the tools again and validate a result against the schema that is current then.

        The one that the result failed may be outdated. Raises ProtocolError if it fails again.
        """
        try:
            await self.list_tools()
        except ConcertinoError as exc:
            # Then the known schema decides.
            self._log.info("the list of tools could not be fetched again: %s", exc)
        validate = self._output_validator.get(name)
        if validate is not None and (violation := validate(result, len(bytes(raw)))):
            raise ProtocolError(f"tools/call {name}: {violation}: {quote_frame(raw)}")

    async def list_tools(self) -> list[Tool]:
        """Return every tool, from all pages."""
        tools = await self._list_all("tools/list", "tools", _decode_tools, lambda page: page.tools)
        self._output_validator.learn(tools)
        return tools

    # Resources

    async def list_resources(self) -> list[Resource]:
        """Return every resource, from all pages, without those that templates describe."""
        return await self._list_all(
            "resources/list", "resources", _decode_resources, lambda page: page.resources
        )

    async def list_resource_templates(self) -> list[ResourceTemplate]:
        """Return every resource template, from all pages."""
        return await self._list_all(
            "resources/templates/list",
            "resources",
            _decode_templates,
            lambda page: page.resource_templates,
        )

    async def read_resource(
        self, uri: str, *, timeout_s: float | None = None
    ) -> ReadResourceResult:
        """Read a resource.

        Raises RpcError if there is none: with code -32602, or -32002 from legacy servers.
        """
        self._require("resources")
        raw = await self._call("resources/read", encode({"uri": uri}), uri, timeout_s)
        return decode_result("resources/read", raw, _decode_read_result)

    async def subscribe(self, uri: str) -> None:
        """Subscribe to changes of a resource: from now on `updated` is called with its URI."""
        self._require("resources")
        id = self._subscriptions.get(uri)
        connection = self._connection
        if id is not None and (
            not connection.is_modern or connection.current.subscriptions.is_open(id)
        ):
            return

        # Remember it first: a restart during the request has to repeat it.
        self._subscriptions[uri] = 0
        try:
            await self._subscribe(uri)
        except BaseException:
            self._subscriptions.pop(uri, None)
            raise

    async def _subscribe(self, uri: str) -> None:
        conversation = await self._usable_conversation(f"subscribe {uri}")
        if not self._connection.is_modern:
            await self._call("resources/subscribe", encode({"uri": uri}), uri, None)
            return

        label = f"subscriptions/listen {uri}"
        subscriptions = conversation.subscriptions
        id, missing = await subscriptions.open(
            {"resourceSubscriptions": [uri]}, label, self.timeouts.request_s
        )
        # Meanwhile unsubscribe() may have been called, or another subscribe() may have succeeded.
        known = self._subscriptions.get(uri)
        if known is None or missing or subscriptions.is_open(known):
            subscriptions.close(id)
        else:
            self._subscriptions[uri] = id
        if missing:
            raise ProtocolError(f"{label}: the server does not provide {', '.join(missing)}")

    async def unsubscribe(self, uri: str) -> None:
        """End the subscription to a resource, if there is one."""
        id = self._subscriptions.pop(uri, None)
        if id is None:
            return
        if self._connection.is_modern:
            self._connection.current.subscriptions.close(id)
        elif self.state == "running":
            # Not needed while the server restarts: the new one never gets this subscription.
            await self._call("resources/unsubscribe", encode({"uri": uri}), uri, None)

    # Prompts and completion

    async def list_prompts(self) -> list[Prompt]:
        """Return every prompt, from all pages."""
        return await self._list_all(
            "prompts/list", "prompts", _decode_prompts, lambda page: page.prompts
        )

    async def get_prompt(
        self,
        name: str,
        arguments: Mapping[str, str] | None = None,
        *,
        timeout_s: float | None = None,
    ) -> GetPromptResult:
        """Return a prompt, filled in with its arguments."""
        self._require("prompts")
        body = encode({"name": name, "arguments": dict(arguments or {})})
        raw = await self._call("prompts/get", body, name, timeout_s)
        return decode_result("prompts/get", raw, _decode_prompt_result)

    async def complete(
        self,
        ref: PromptReference | ResourceTemplateReference,
        argument: str,
        value: str,
        *,
        chosen: Mapping[str, str] | None = None,
    ) -> Completion:
        """Return possible values of a prompt's argument or a resource template's variable.

        value: what was typed so far. chosen: the values of the other arguments, as far as known.
        """
        # The first revision had no such capability, but had completion.
        revision = self._connection.current.server.revision
        if revision is None or revision.completions:
            self._require("completions")
        context = CompletionContext(dict(chosen)) if chosen else CompletionContext()
        params = CompleteParams(ref, CompletionArgument(argument, value), context)
        raw = await self._call("completion/complete", encode(params), argument, None)
        return decode_result("completion/complete", raw, _decode_complete_result).completion

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

        into: a type to decode the result to, or msgspec.Raw for the JSON text. The client adds what
        the revision requires in `_meta`, and does not check the server's capabilities.
        """
        raw = await self._call(method, encode(params or {}), "", timeout_s, progress, meta)
        if into is Raw:
            return raw
        try:
            return decode(raw) if into is None else decode(raw, type=into)
        except (DecodeError, RecursionError) as exc:
            raise invalid_result(method, raw, exc) from None

    def notify(self, method: str, params: Mapping[str, Any] | None = None) -> None:
        """Send a notification."""
        self._connection.current.channel.notify(method, encode(params or {}))

    async def ping(self) -> None:
        """Ask whether the server is there: by `server/discover`, or `ping` if it is legacy."""
        method = "server/discover" if self._connection.is_modern else "ping"
        await self._call(method, b"{}", "", None)

    async def set_log_level(self, level: Level) -> None:
        """Ask for log messages of this level and above; `logged` is called with them."""
        if level not in get_args(Level):
            raise ValueError(f"level: expected one of {', '.join(get_args(Level))}, got {level!r}")
        await self._send_log_level(level)
        self._log_level = level

    async def _send_log_level(self, level: Level) -> None:
        if self._connection.is_modern:
            self._connection.current.requests.set_log_level(level)
            return
        self._require("logging")
        await self._call("logging/setLevel", encode({"level": level}), level, None)

    def set_roots(self, roots: Roots) -> None:
        """Offer other roots, and tell the server if its revision has a way.

        Raises RuntimeError if this client was made without roots.
        """
        if not self._handlers.has_roots:
            raise RuntimeError(
                "roots were not offered when this client was made: Client(..., roots=[...])"
            )
        conversation = self._connection.current
        self._handlers.replace_roots(roots)
        if not self._connection.is_modern:
            conversation.channel.notify("notifications/roots/list_changed", b"{}")

    # Session state on the server

    async def _restore_session(self) -> None:
        """Restore log level and subscriptions after a restart, and report everything as changed.

        If the server ends meanwhile, nothing is lost: the next one gets everything again.
        """
        handlers = self._notification_handlers
        try:
            if self._log_level is not None:
                await self._send_log_level(self._log_level)
            await self._listen_for_changes()
            conversation = self._connection.current
            for name in LISTS:
                if name in conversation.server.capabilities:
                    conversation.notifications.report_change(name)
        except Disconnected:
            return
        except ConcertinoError as exc:
            self._log.error("after a restart: %s", exc)

        for uri in list(self._subscriptions):
            try:
                await self._subscribe(uri)
                if handlers.on_resource_updated is not None:
                    handlers.on_resource_updated(uri)
            except Disconnected:
                return
            except ConcertinoError as exc:
                self._subscriptions.pop(uri, None)
                self._log.error("the subscription to %s is lost: %s", uri[:200], exc)
            except Exception:
                self._log.exception("the updated function of this client failed")

    async def _listen_for_changes(self) -> None:
        """Subscribe to changes of lists, if there is a handler.

        Since 2026-07-28 servers notify only those who subscribed.
        """
        if self._notification_handlers.on_list_changed is None or not self._connection.is_modern:
            return
        conversation = await self._usable_conversation("subscriptions/listen")
        capabilities = conversation.server.capabilities
        wanted = {
            f"{name}ListChanged": True
            for name in LISTS
            if isinstance(capabilities.get(name), dict) and capabilities[name].get("listChanged")
        }
        if wanted:
            _, missing = await conversation.subscriptions.open(
                wanted, "subscriptions/listen", self.timeouts.request_s
            )
            if missing:
                self._log.warning(
                    "the server declares %s and does not provide it", ", ".join(missing)
                )

    # Sending

    async def _call(
        self,
        method: str,
        body: bytes,
        subject: str,
        timeout_s: float | None,
        progress: Progress | None = None,
        meta: Mapping[str, Any] | None = None,
    ) -> Raw:
        """Send a request as soon as the server runs. For the parameters see Conversation.call()."""
        timeouts = self.timeouts
        idle_timeout_s, total_s = timeouts.request_s, timeouts.total_s
        # A time limit of the call's own counts even if it is longer than that of the client.
        if timeout_s is not None:
            idle_timeout_s, total_s = timeout_s, max(total_s, timeout_s)
        conversation, idle_timeout_s = await self._connection.wait_until_usable(
            request_label(method, subject), idle_timeout_s
        )
        return await conversation.call(
            method, body, subject, idle_timeout_s, total_s, progress, meta
        )

    async def _usable_conversation(self, label: str) -> Conversation:
        return (await self._connection.wait_until_usable(label, self.timeouts.request_s))[0]

    def _require(self, feature: str) -> None:
        """Raise NotSupported unless the server declares a capability.

        A client must not use others (2025-06-18 and later basic/lifecycle).
        """
        capabilities = self._connection.current.server.capabilities
        if feature not in capabilities:
            declared = ", ".join(sorted(capabilities)) or "nothing"
            raise NotSupported(
                f"{self.name}: the server offers no {feature}; it declares {declared}"
            )

    async def _list_all(
        self,
        method: str,
        feature: str,
        decode_page: Callable[[Raw], PageT],
        items: Callable[[PageT], list[T]],
    ) -> list[T]:
        """Return a list from all its pages.

        Any text may be a cursor, even the empty one (pagination).
        """
        self._require(feature)
        found: list[T] = []
        cursor: str | None = None
        seen: set[str] = set()
        may_start_over = True
        for _ in range(MAX_PAGES):
            body = b"{}" if cursor is None else encode({"cursor": cursor})
            try:
                raw = await self._call(method, body, "", None)
            except RpcError as exc:
                # The list has changed and the cursor is not valid any more (utilities/caching).
                if cursor is None or exc.code != INVALID_PARAMS or not may_start_over:
                    raise
                may_start_over = False
                cursor = None
                found.clear()
                seen.clear()
                continue

            page = decode_result(method, raw, decode_page)
            found += items(page)
            cursor = page.next_cursor
            if cursor is None:
                return found
            # A cursor that comes twice would lead through the same pages for ever.
            if cursor in seen:
                raise ProtocolError(
                    f"{method}: the server repeats itself: the cursor {cursor[:100]!r} came twice"
                )
            seen.add(cursor)
        raise ProtocolError(f"{method}: more than {MAX_PAGES} pages")


def _default_info() -> Implementation:
    return Implementation("concertino", vars(sys.modules["concertino"])["__version__"])


def _check_type(name: str, value: object, kind: type) -> None:
    if value is not None and type(value) is not kind:
        raise TypeError(f"{name}: expected {kind.__name__}(...), got {value!r}")


def _check_callable(name: str, value: object) -> None:
    if value is not None and not callable(value):
        raise TypeError(f"{name}: expected a function, got {value!r}")


def _check_sink(stderr: object) -> None:
    if not (stderr is None or callable(stderr) or isinstance(stderr, (str, os.PathLike))):
        kind = type(stderr).__name__
        raise TypeError(
            f"stderr: expected a function that takes a line, or the path of a file, got {kind}"
        )


_decode_tool_result = Decoder(CallToolResult).decode
_decode_tools = Decoder(ListToolsResult).decode
_decode_resources = Decoder(ListResourcesResult).decode
_decode_templates = Decoder(ListResourceTemplatesResult).decode
_decode_prompts = Decoder(ListPromptsResult).decode
_decode_read_result = Decoder(ReadResourceResult).decode
_decode_prompt_result = Decoder(GetPromptResult).decode
_decode_complete_result = Decoder(CompleteResult).decode
