"""Client: starts a server or connects to one, calls what it offers, and ends it with everything that it started.

    async with Client(["python", "server.py"]) as client:
        result = await client.call_tool("add", {"a": 1, "b": 2})

The revision is found out by itself. Results are Structs of `protocol.types`, in their 2026-07-28 shape. Every wait has a bound, and
every failure says what was awaited, how the server ended, and what it wrote to stderr last.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from asyncio import get_running_loop
from collections.abc import Callable, Mapping
from threading import get_ident
from types import TracebackType
from typing import Any, TypeVar, get_args, overload

from msgspec import DecodeError, Raw, Struct
from msgspec.json import Decoder, decode, encode

from concertino.client.answers import Answers, Elicit, Roots, Sample
from concertino.client.conversation import Conversation, Ears, LogMessage
from concertino.client.opening import Era, open_conversation
from concertino.client.results import Promises, decoded, structured, unexpected
from concertino.client.stderr import Sink, StderrLines
from concertino.client.supervision import Restart, State, Supervisor
from concertino.client.targets import Opened, Target, place_of
from concertino.client.waiting import Progress, named, shortened
from concertino.errors import INVALID_PARAMS, ConcertinoError, Disconnected, NotOffered, ProtocolError, RpcError
from concertino.protocol.jsonrpc import Id
from concertino.protocol.limits import Limits
from concertino.protocol.types import (
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
S = TypeVar("S", bound=Struct)
FOREVER = float("inf")
NOT_OPEN = "this client is not open: use `async with Client(...) as client:`"
PAGES = 10_000  # of one list; more is a server that goes in circles


class Timeouts(Struct, frozen=True):
    """How long a client waits, in seconds; infinity is allowed.

    connect_s: from the start of a server to its first answer, a download by npx or uvx included. probe_s: for the answer to
    `server/discover`, before an older server is assumed. request_s: for any answer, or for the next progress where progress is
    asked for. total_s: for an answer, whatever the progress; a longer timeout_s of a call counts instead. ping_every_s: how often
    the server is asked whether it is there, by default never; ping_s: for the answer to that. A server that then says nothing at
    all hangs, and is ended.
    """

    connect_s: float = 60.0
    probe_s: float = 3.0
    request_s: float = 60.0
    total_s: float = 600.0
    ping_every_s: float = FOREVER
    ping_s: float = 10.0

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            if not getattr(self, name) > 0:
                raise ValueError(f"{name}: expected a positive number of seconds, got {getattr(self, name)!r}")


class Client:
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
        for what, given, kind in (
            ("restart", restart, Restart),
            ("timeouts", timeouts, Timeouts),
            ("limits", limits, Limits),
        ):
            if given is not None and type(given) is not kind:
                raise TypeError(f"{what}: expected {kind.__name__}(...), got {given!r}")
        for what, given in (
            ("trace", trace),
            ("elicit", elicit),
            ("sample", sample),
            ("changed", changed),
            ("updated", updated),
            ("logged", logged),
            ("notified", notified),
        ):
            if given is not None and not callable(given):
                raise TypeError(f"{what}: expected a function, got {given!r}")
        if not (stderr is None or callable(stderr) or isinstance(stderr, (str, os.PathLike))):  # pyright: ignore[reportUnnecessaryIsInstance]
            kind = type(stderr).__name__
            raise TypeError(f"stderr: expected a function that takes a line, or the path of a file, got {kind}")
        if rounds < 1:
            raise ValueError(f"rounds: expected at least 1, got {rounds!r}")
        self._place = place_of(target)
        if restart is not None and not self._place.again:
            raise ValueError("restart: expected a program or an address, for anything else cannot be opened again")
        self.name = name or self._place.name
        self.timeouts = timeouts or Timeouts()
        self.limits = limits or Limits()
        self._info = info or Implementation("concertino", vars(sys.modules["concertino"])["__version__"])
        self._era: Era = era
        self._stderr = stderr
        self._stderr_level = stderr_level
        self._trace = trace
        self._answers = Answers(elicit, elicit_urls, sample, sampling, roots)
        self._ears = Ears(notified, changed, updated, logged)
        self._rounds = rounds
        self._lines: StderrLines | None = None
        self._log = logging.getLogger(f"concertino.client.{self.name}")
        self._restart = restart
        self._promises = Promises(validate)
        self._conversation: Conversation | None = None  # that can be used; None: there is none yet, or none now
        self._last: Conversation | None = None  # the same, or the one that ended
        self._supervisor: Supervisor | None = None
        self._failure: ConcertinoError | None = None
        self._log_level: Level | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = 0  # in which that runs
        self._closing: asyncio.Task[None] | None = None
        self._subscribed: dict[str, Id] = {}

    # Opening and closing

    async def open(self) -> None:
        """Start or connect, and find out what the server speaks. At most connect_s seconds.

        Raises SpawnError (cannot be started), Disconnected (ended meanwhile), TimedOut, Incompatible (no common revision),
        ProtocolError. Nothing is left running then.
        """
        if self._loop is not None:
            raise RuntimeError("a Client is opened once; make another")
        self._loop = asyncio.get_running_loop()
        self._thread = get_ident()
        try:
            await self._bring_up()
            if self._restart is not None:
                self._supervisor = Supervisor(self._restart, self._bring_down, self._bring_up, self._prepare, self._log)
                if self._here.channel.over:
                    self._ended(self._here)
            if self._ears.changed is not None:
                await self._listen_for_changes()
        except BaseException:
            await self.aclose()
            raise

    async def _bring_up(self) -> None:
        times = self.timeouts
        here = await open_conversation(self._start, self._place.again, self._era, times.connect_s, times.probe_s)
        self._last = self._conversation = here
        here.on_end = self._ended
        if times.ping_every_s < FOREVER:
            here.watch(times.ping_every_s, times.ping_s)
        if here.channel.over:  # between its first answer and now
            self._ended(here)

    async def _bring_down(self) -> None:
        if self._last is not None:
            await self._last.close()

    def _ended(self, here: Conversation) -> None:
        """It ended by itself."""
        self._failure = here.explained(Disconnected("the connection ended"))
        if self._supervisor is not None and self._closing is None:
            self._conversation = None
            self._supervisor.ended(self._failure)
            here.afterwards = "; it is to be started again, but what was under way is not repeated"

    async def _prepare(self) -> None:
        """A new server knows nothing of what its predecessor was told. What it said of itself may have changed meanwhile.

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

    async def _start(self) -> Conversation:
        if self._lines is None:
            self._lines = StderrLines(self.name, self._stderr, self._stderr_level)
        opened = await self._place.open(self.limits, self._lines)
        return self._conversing(opened)

    def _conversing(self, opened: Opened) -> Conversation:
        show = None
        if self._trace is not None or self._log.isEnabledFor(logging.DEBUG):
            show = _shown_to(self._log, self._trace)
        return Conversation(self.name, opened, self.limits, self._info, self._answers, self._ears, self._rounds, show)

    async def aclose(self) -> None:
        """Close the server's stdin, wait, and end it with everything that it started. Bounded; may be called again.

        Calls under way raise Disconnected. It goes on when its caller is cancelled.
        """
        if self._closing is None:
            self._closing = asyncio.get_running_loop().create_task(self._close(), name=f"close {self.name}")
            self._closing.add_done_callback(self._abandoned)
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        if self._supervisor is not None:
            await self._supervisor.close()
        await self._bring_down()
        if self._lines is not None:
            self._lines.close()

    def _abandoned(self, closing: asyncio.Task[None]) -> None:
        if closing.cancelled() and self._last is not None:
            self._last.opened.abandon()

    async def __aenter__(self) -> Client:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    # What is known

    @property
    def server(self) -> str:
        """What the server calls itself, for people."""
        info = self.server_info
        return info.title or info.name

    @property
    def server_info(self) -> Implementation:
        """Who the server says it is: never a ground for trust."""
        return self._here.server

    @property
    def protocol_version(self) -> str:
        """The revision that is spoken."""
        revision = self._here.revision
        assert revision is not None
        return revision.name

    @property
    def capabilities(self) -> Mapping[str, Any]:
        """What the server declares."""
        return self._here.offered

    @property
    def instructions(self) -> str | None:
        """How the server wants to be used."""
        return self._here.instructions

    @property
    def state(self) -> State:
        """`new`, `running`, `backing-off` or `starting` (before a restart), `failed` (it ended, or was given up), or `closed`."""
        if self._closing is not None:
            return "closed"
        if self._last is None:
            return "new"
        if self._supervisor is not None:
            return self._supervisor.state
        return "failed" if self._last.channel.over else "running"

    @property
    def restarts(self) -> int:
        """How often the server was started again."""
        return 0 if self._supervisor is None else self._supervisor.restarts

    @property
    def failure(self) -> ConcertinoError | None:
        """What ended the server last, if it ended by itself or could not be started again."""
        return self._failure if self._supervisor is None else self._supervisor.failure

    @property
    def pid(self) -> int | None:
        """The server's process, if this client started one."""
        child = self._here.opened.child
        return None if child is None else child.pid

    @property
    def exit_status(self) -> int | None:
        """The exit code of the server's process, or minus the signal that ended it; None while it runs, or if there is none."""
        child = self._here.opened.child
        return None if child is None else child.exit_status

    @property
    def stderr_tail(self) -> str:
        """The last 8 KiB that the server wrote to stderr, without secrets."""
        return self._here.tail()

    @property
    def stray(self) -> int:
        """How many lines of the server's were skipped: no messages, or answers to nothing. `strays` holds the last few."""
        return self._here.channel.stray

    @property
    def strays(self) -> list[str]:
        """The last lines that were skipped, shortened."""
        return list(self._here.channel.strays)

    @property
    def _here(self) -> Conversation:
        if self._last is None:
            raise RuntimeError(NOT_OPEN)
        return self._last

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
            raw = await here.call_tool(name, encode(arguments) if arguments else b"{}", patience_s, total_s)
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
        return await self._listed("resources/list", "resources", _resources, lambda page: page.resources)

    async def list_resource_templates(self) -> list[ResourceTemplate]:
        """Every resource template, from all pages."""
        return await self._listed(
            "resources/templates/list", "resources", _templates, lambda page: page.resource_templates
        )

    async def read_resource(self, uri: str, *, timeout_s: float | None = None) -> ReadResourceResult:
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
        id, refused = await here.subscriptions.open({"resourceSubscriptions": [uri]}, what, self.timeouts.request_s)
        known = self._subscribed.get(uri)
        if known is None or refused or here.subscriptions.is_open(known):  # meanwhile: unsubscribe(), or subscribe()
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
        self, name: str, arguments: Mapping[str, str] | None = None, *, timeout_s: float | None = None
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
            raise RuntimeError("roots were not offered when this client was made: Client(..., roots=[...])")
        self._answers = self._answers.with_roots(roots)
        here = self._here
        here.answers = self._answers
        if not self._is_modern:
            here.channel.notify("notifications/roots/list_changed", b"{}")

    # Below

    async def _call(
        self,
        method: str,
        body: bytes,
        subject: str,
        timeout_s: float | None,
        progress: Progress | None = None,
        meta: Mapping[str, Any] | None = None,
    ) -> Raw:
        times = self.timeouts
        patience_s, total_s = times.request_s, times.total_s
        if timeout_s is not None:
            patience_s, total_s = timeout_s, max(total_s, timeout_s)
        here, patience_s = await self._usable(named(method, subject), patience_s)
        return await here.call(method, body, subject, patience_s, total_s, progress, meta)

    async def _usable(self, what: str, patience_s: float) -> tuple[Conversation, float]:
        """Where requests go, and what is left of the time for one: a server that is started again is waited for."""
        if self._last is None:
            raise RuntimeError(NOT_OPEN)
        loop = get_running_loop()
        if loop is not self._loop:
            raise RuntimeError("a Client belongs to the event loop that it was opened on; see SyncClient for threads")
        if not patience_s > 0:  # not a number is neither
            raise ValueError(f"timeout_s: expected a positive number of seconds, got {patience_s!r}")
        until = loop.time() + patience_s
        while self._conversation is None:
            assert self._supervisor is not None
            await self._supervisor.until_it_runs(what, max(0.0, until - loop.time()))
        return self._conversation, max(0.001, until - loop.time())

    async def _running(self, what: str) -> Conversation:
        return (await self._usable(what, self.timeouts.request_s))[0]

    @property
    def _is_modern(self) -> bool:
        revision = self._here.revision
        return revision is not None and revision.modern

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
                raw = await self._call(method, b"{}" if cursor is None else encode({"cursor": cursor}), "", None)
            except RpcError as refused:
                if cursor is None or refused.code != INVALID_PARAMS or not anew:
                    raise
                anew, cursor, found = False, None, []  # the list has changed meanwhile (utilities/caching), once
                seen.clear()
                continue
            page = decoded(method, raw, read)
            found += items(page)
            cursor = getattr(page, "next_cursor", None)
            if cursor is None:
                return found
            if cursor in seen:
                raise ProtocolError(f"{method}: the server goes in circles: the cursor {cursor[:100]!r} came again")
            seen.add(cursor)
        raise ProtocolError(f"{method}: more than {PAGES} pages")

    def _require(self, feature: str) -> None:
        """Only what was declared is used (2025-06-18 and later basic/lifecycle, MUST)."""
        offered = self._here.offered
        if feature not in offered:
            has = ", ".join(sorted(offered)) or "nothing"
            raise NotOffered(f"{self.name}: the server offers no {feature}; it declares {has}")

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
            _, refused = await here.subscriptions.open(wanted, "subscriptions/listen", self.timeouts.request_s)
            if refused:
                self._log.warning("the server declares %s, and does not honour it", ", ".join(refused))


_call_tool_result = Decoder(CallToolResult).decode
_tools = Decoder(ListToolsResult).decode
_resources = Decoder(ListResourcesResult).decode
_templates = Decoder(ListResourceTemplatesResult).decode
_prompts = Decoder(ListPromptsResult).decode
_read_resource_result = Decoder(ReadResourceResult).decode
_get_prompt_result = Decoder(GetPromptResult).decode
_complete_result = Decoder(CompleteResult).decode


def _shown_to(log: logging.Logger, also: Callable[[str, str], object] | None) -> Callable[[str, str], object]:
    from concertino.logs.formats import escaped

    def show(direction: str, text: str) -> None:
        log.debug("%s %s", direction, escaped(text))
        if also is not None:
            try:
                also(direction, text)
            except Exception:  # nothing is lost by it
                log.exception("the function that is shown messages failed")

    return show
