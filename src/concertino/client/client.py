"""Client: starts a server or connects to one, calls what it offers, and ends it with everything that it started.

    async with Client(["python", "server.py"]) as client:
        result = await client.call_tool("add", {"a": 1, "b": 2})

The revision is found out by itself. Results are Structs of `protocol.types`, in their 2026-07-28 shape. Here is what can be asked;
how a server is started, started again and ended is in lifetime.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from threading import get_ident
from typing import Any, TypeVar, get_args, overload

from msgspec import DecodeError, Raw, Struct
from msgspec.json import Decoder, decode, encode

from concertino.client.lifetime import Lifetime, Timeouts
from concertino.client.output_validation import decoded, structured, unexpected
from concertino.client.pending_request import Progress, shortened
from concertino.client.request_handlers import Roots
from concertino.errors import INVALID_PARAMS, ConcertinoError, Disconnected, ProtocolError, RpcError
from concertino.types.results import (
    CallToolResult,
    CompleteParams,
    CompleteResult,
    Completion,
    CompletionArgument,
    CompletionContext,
    GetPromptResult,
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
S = TypeVar("S", bound=Struct)
PAGES = 10_000  # of one list; more is a server that goes in circles


class Client(Lifetime):
    """A server to call. Use it with `async with`, or call open() and aclose(). One Client belongs to one event loop.

    target: a command (a list of words, never a line for a shell), ServerParameters, `unix:PATH`, `tcp:HOST:PORT`, a Server or any
    other Backend in memory, or a Connection that is not opened yet.
    name: for logs, found out from the target by default. info: who we are, for the server.
    era: `auto` finds out whether the server has a handshake; `modern` and `legacy` say so and ask nothing.
    stderr: a function that is called with each line of the server's stderr, or a file to append to; by default the lines go to the
    logger `concertino.client.NAME.stderr` at stderr_level. Secrets are taken out.
    trace: a function called with `->` or `<-` and each message, without secrets. With `logging.DEBUG` on for
    `concertino.client.NAME`, they go there too.
    restart: how a server that ends by itself is started again; by default it is not. validate: whether results are held against the
    output schemas of tools, once list_tools() has fetched those; by default they are if the extra `validate` is installed.

    What the server may ask. Functions may be plain ones or coroutine functions; what is not given is refused.
    elicit(question, server): returns a dict (the form's values, or {} for a URL), `accept`, `decline`, `cancel`, None (cancel) or
    an ElicitResult. elicit_urls: questions that ask to open a URL reach it too; nothing is opened here. sample(question, server):
    returns a str or a CreateMessageResult. sampling: settings declared with it, such as {"tools": {}}. roots: file:// URIs or
    Roots, or a function that gives them. rounds: how often one call may ask (2026-07-28).

    What the server tells. changed(what): that the list of `tools`, `prompts` or `resources` is no longer what it was; while one
    call of it runs, others wait as one. updated(uri): that a resource changed, after subscribe(). logged(LogMessage): a log
    message. notified(method, params): any other notification.

    Attributes after opening: server, server_info, protocol_version, capabilities, instructions, exit_status, stray, strays; at any
    time: state, restarts, failure.
    """

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
        """Call a tool.

        Returns its result; `is_error` says whether the tool failed. With `into`, a type, its structured content as that type
        instead (or its text, read as JSON, where there is none): then a tool that failed raises ToolError with its text.
        timeout_s: instead of request_s, and of total_s where that is less. progress(done, total, message): called as the work goes
        on; each call gives the server another timeout_s. meta: members for `_meta`.
        Raises RpcError (the server refused), TimedOut, Disconnected, ProtocolError. When the task is cancelled, so is the call.
        """
        times = self.timeouts
        patience_s, total_s = times.request_s, times.total_s
        if timeout_s is not None:
            patience_s, total_s = timeout_s, max(total_s, timeout_s)
        here = self._conversation
        if here is None or get_ident() != self._thread or not self._loop.is_running():  # pyright: ignore[reportOptionalMemberAccess]
            here, patience_s = await self._usable(f"tools/call {name}", patience_s)
        breach = self._promises.breach(name) if self._promises.known else None
        if progress is None and not meta and breach is None:
            raw = await here.call_tool(
                name, encode(arguments) if arguments else b"{}", patience_s, total_s
            )
            if type(raw) is CallToolResult:
                return raw if into is None else structured(name, raw, into)
            assert type(raw) is Raw
        else:
            body = encode({"name": name, "arguments": arguments or {}})
            raw = await here.call("tools/call", body, name, patience_s, total_s, progress, meta)
        try:
            result = _call_tool_result(raw)
        except (DecodeError, RecursionError) as why:
            raise unexpected(f"tools/call {name}", raw, why) from None
        if breach is not None and breach(result, len(bytes(raw))):
            await self._broken(name, result, raw)
        return result if into is None else structured(name, result, into)

    async def _broken(self, name: str, result: CallToolResult, raw: Raw) -> None:
        """A result does not keep what its tool promised. The promise may be an old one: it is asked for again, once."""
        try:
            await self.list_tools()
        except ConcertinoError as error:  # then it counts as it is
            self._log.info("the list of tools could not be fetched again: %s", error)
        breach = self._promises.breach(name)
        if breach is not None and (why := breach(result, len(bytes(raw)))):
            raise ProtocolError(f"tools/call {name}: {why}: {shortened(raw)}")

    async def list_tools(self) -> list[Tool]:
        """Every tool, from all pages."""
        tools = await self._listed("tools/list", "tools", _tools, lambda page: page.tools)
        self._promises.learn(tools)
        return tools

    # Resources

    async def list_resources(self) -> list[Resource]:
        """Every resource, from all pages; those of templates are not among them."""
        return await self._listed(
            "resources/list", "resources", _resources, lambda page: page.resources
        )

    async def list_resource_templates(self) -> list[ResourceTemplate]:
        """Every resource template, from all pages."""
        return await self._listed(
            "resources/templates/list",
            "resources",
            _templates,
            lambda page: page.resource_templates,
        )

    async def read_resource(
        self, uri: str, *, timeout_s: float | None = None
    ) -> ReadResourceResult:
        """Read a resource. Raises RpcError when there is none: -32602, or -32002 from older servers."""
        self._require("resources")
        raw = await self._call("resources/read", encode({"uri": uri}), uri, timeout_s)
        return decoded("resources/read", raw, _read_resource_result)

    async def subscribe(self, uri: str) -> None:
        """Ask to be told when a resource changes: `updated` is called with its URI from then on."""
        self._require("resources")
        if uri not in self._subscribed or (
            self._is_modern and not self._here.subscriptions.is_open(self._subscribed[uri])
        ):
            self._subscribed[uri] = 0
            try:
                await self._subscribe(uri)
            except BaseException:
                self._subscribed.pop(uri, None)
                raise

    async def _subscribe(self, uri: str) -> None:
        here = await self._running(f"subscribe {uri}")
        if not self._is_modern:
            await self._call("resources/subscribe", encode({"uri": uri}), uri, None)
            return
        what = f"subscriptions/listen {uri}"
        id, refused = await here.subscriptions.open(
            {"resourceSubscriptions": [uri]}, what, self.timeouts.request_s
        )
        known = self._subscribed.get(uri)
        if (
            known is None or refused or here.subscriptions.is_open(known)
        ):  # meanwhile: unsubscribe(), or subscribe()
            here.subscriptions.close(id)
        else:
            self._subscribed[uri] = id
        if refused:
            raise ProtocolError(f"{what}: the server does not honour {', '.join(refused)}")

    async def unsubscribe(self, uri: str) -> None:
        """No longer be told. What was not subscribed is ignored."""
        id = self._subscribed.pop(uri, None)
        if id is None:
            return
        if self._is_modern:
            self._here.subscriptions.close(id)
        elif self.state == "running":  # a server that starts is not told of it in the first place
            await self._call("resources/unsubscribe", encode({"uri": uri}), uri, None)

    # Prompts and completion

    async def list_prompts(self) -> list[Prompt]:
        """Every prompt, from all pages."""
        return await self._listed("prompts/list", "prompts", _prompts, lambda page: page.prompts)

    async def get_prompt(
        self,
        name: str,
        arguments: Mapping[str, str] | None = None,
        *,
        timeout_s: float | None = None,
    ) -> GetPromptResult:
        """A prompt, filled in with its arguments."""
        self._require("prompts")
        body = encode({"name": name, "arguments": dict(arguments or {})})
        raw = await self._call("prompts/get", body, name, timeout_s)
        return decoded("prompts/get", raw, _get_prompt_result)

    async def complete(
        self,
        ref: PromptReference | ResourceTemplateReference,
        argument: str,
        value: str,
        *,
        chosen: Mapping[str, str] | None = None,
    ) -> Completion:
        """Values that an argument of a prompt, or a variable of a resource template, may have.

        value: as far as it was typed. chosen: the other arguments, as far as they were.
        """
        revision = self._here.revision
        if revision is None or revision.completions:  # the first revision knew no such capability
            self._require("completions")
        context = CompletionContext(dict(chosen)) if chosen else CompletionContext()
        params = CompleteParams(ref, CompletionArgument(argument, value), context)
        raw = await self._call("completion/complete", encode(params), argument, None)
        return decoded("completion/complete", raw, _complete_result).completion

    # Anything else

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
        """Send any request; its result decoded, or as `into`: a type, or msgspec.Raw for the JSON as it came.

        Of `_meta`, what the revision demands is added. Nothing is checked against what the server declares.
        """
        raw = await self._call(method, encode(params or {}), "", timeout_s, progress, meta)
        if into is Raw:
            return raw
        try:
            return decode(raw) if into is None else decode(raw, type=into)
        except (DecodeError, RecursionError) as why:
            raise unexpected(method, raw, why) from None

    def notify(self, method: str, params: Mapping[str, Any] | None = None) -> None:
        """Send a notification."""
        self._here.channel.notify(method, encode(params or {}))

    async def ping(self) -> None:
        """Ask whether the server is there. Since 2026-07-28 by `server/discover`: there is no ping any more."""
        await self._call("server/discover" if self._is_modern else "ping", b"{}", "", None)

    async def set_log_level(self, level: Level) -> None:
        """Ask for log messages of this level, and worse ones: `logged` is called with them."""
        if level not in get_args(Level):
            raise ValueError(f"level: expected one of {', '.join(get_args(Level))}, got {level!r}")
        await self._set_log_level(level)
        self._log_level = level

    async def _set_log_level(self, level: Level) -> None:
        if self._is_modern:
            self._here.wants_log(level)
            return
        self._require("logging")
        await self._call("logging/setLevel", encode({"level": level}), level, None)

    def set_roots(self, roots: Roots) -> None:
        """Name other places that the server may work in; it is told, if its revision knows how. Roots must have been offered."""
        if self._answers.roots is None:
            raise RuntimeError(
                "roots were not offered when this client was made: Client(..., roots=[...])"
            )
        self._answers = self._answers.with_roots(roots)
        here = self._here
        here.answers = self._answers
        if not self._is_modern:
            here.channel.notify("notifications/roots/list_changed", b"{}")

    # What a server is told at first, and a new one anew

    async def _opened(self) -> None:
        if self._ears.changed is not None:
            await self._listen_for_changes()

    async def _prepare(self) -> None:
        """What the new server says of itself may have changed.

        One that ends on the way loses nothing: the next is told all of it.
        """
        try:
            if self._log_level is not None:
                await self._set_log_level(self._log_level)
            if self._ears.changed is not None:
                await self._listen_for_changes()
                for what in ("tools", "prompts", "resources"):
                    if what in self._here.offered:
                        self._here.tell_changed(what)
        except Disconnected:
            return
        except ConcertinoError as why:
            self._log.error("after a restart: %s", why)
        for uri in list(self._subscribed):
            try:
                await self._subscribe(uri)
                if self._ears.updated is not None:
                    self._ears.updated(uri)
            except Disconnected:
                return
            except ConcertinoError as why:
                self._subscribed.pop(uri, None)
                self._log.error("the subscription to %s is lost: %s", uri[:200], why)
            except Exception:
                self._log.exception("the function that is told of updates failed")

    async def _listen_for_changes(self) -> None:
        """Since 2026-07-28 changes are told to subscribers only."""
        if not self._is_modern:
            return
        here = await self._running("subscriptions/listen")
        offered = here.offered
        wanted = {
            f"{what}ListChanged": True
            for what in ("tools", "prompts", "resources")
            if isinstance(offered.get(what), dict) and offered[what].get("listChanged")
        }
        if wanted:
            _, refused = await here.subscriptions.open(
                wanted, "subscriptions/listen", self.timeouts.request_s
            )
            if refused:
                self._log.warning(
                    "the server declares %s, and does not honour it", ", ".join(refused)
                )

    # All pages

    async def _listed(
        self, method: str, feature: str, read: Callable[[Raw], S], items: Callable[[S], list[T]]
    ) -> list[T]:
        """All pages of a list. A cursor may be any text, the empty one too (pagination)."""
        self._require(feature)
        found: list[T] = []
        cursor: str | None = None
        seen: set[str] = set()
        anew = True
        for _ in range(PAGES):
            try:
                raw = await self._call(
                    method, b"{}" if cursor is None else encode({"cursor": cursor}), "", None
                )
            except RpcError as refused:
                if cursor is None or refused.code != INVALID_PARAMS or not anew:
                    raise
                anew, cursor, found = (
                    False,
                    None,
                    [],
                )  # the list has changed meanwhile (utilities/caching), once
                seen.clear()
                continue
            page = decoded(method, raw, read)
            found += items(page)
            cursor = getattr(page, "next_cursor", None)
            if cursor is None:
                return found
            if cursor in seen:
                raise ProtocolError(
                    f"{method}: the server goes in circles: the cursor {cursor[:100]!r} came again"
                )
            seen.add(cursor)
        raise ProtocolError(f"{method}: more than {PAGES} pages")


_call_tool_result = Decoder(CallToolResult).decode
_tools = Decoder(ListToolsResult).decode
_resources = Decoder(ListResourcesResult).decode
_templates = Decoder(ListResourceTemplatesResult).decode
_prompts = Decoder(ListPromptsResult).decode
_read_resource_result = Decoder(ReadResourceResult).decode
_get_prompt_result = Decoder(GetPromptResult).decode
_complete_result = Decoder(CompleteResult).decode
