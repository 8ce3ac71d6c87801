"""Server: typed Python functions as an MCP server."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeVar, overload

from msgspec import DecodeError, Raw, Struct
from msgspec.json import Decoder, encode

from concertino.backend import Call, Context, Offer, Outlet
from concertino.driver.threads import Threads
from concertino.errors import INVALID_PARAMS, METHOD_NOT_FOUND, RegistrationError, RpcError, ToolError
from concertino.protocol.arguments import BadArguments, Problem
from concertino.protocol.limits import Limits
from concertino.protocol.results import BadResult
from concertino.protocol.types import CallToolResult, Icon, Implementation, ListToolsResult, TextContent
from concertino.redact import redactor
from concertino.server.settings import ServerSettings, ToolSettings, checked
from concertino.server.tools import Handler, RegisteredTool, register, settled

__all__ = ["Server"]

H = TypeVar("H", bound=Handler)
THREADS = 32  # `def` handlers at once
MAX_ERROR_CHARACTERS = 1000  # of an exception's text that the caller sees
REDACTED_CHARACTERS = 65536  # of that text that are looked through for secrets
MAX_NAME = 128  # characters of a name that nobody has, given back; 2026-07-28 server/tools "Tool Names"
NO_ARGUMENTS = Raw(b"{}")
_name = Decoder(str).decode

# While the command line imports a target, run() only adds the server here: `concertino serve file.py` is then the one who serves.
marked: list[Marked] | None = None


class Marked(Struct, frozen=True):
    """A call of Server.run() while a target is imported, with what it was given."""

    server: Server
    limits: Limits | None
    loop_factory: Callable[[], asyncio.AbstractEventLoop] | None


class Server:
    """An MCP server made of Python functions; a Backend.

    name, version: for programs; title: for people. instructions: what a model should know before it uses the tools.
    icons: pictures for a client's user interface. experimental, extensions: capabilities shown as they are.
    argument_errors: `result` answers arguments that do not fit with a tool result that the model can act on; `protocol` with the
    JSON-RPC error -32602. coerce: accept `"1"` for an int, and the like. Raises ValueError naming what does not fit.
    Next: decorate functions with `tool`, then `run()`.
    """

    def __init__(
        self,
        name: str,
        *,
        version: str = "0.0.0",
        title: str | None = None,
        instructions: str | None = None,
        icons: list[Icon] | None = None,
        experimental: Mapping[str, Any] | None = None,
        extensions: Mapping[str, Any] | None = None,
        argument_errors: Literal["result", "protocol"] = "result",
        coerce: bool = False,
    ) -> None:
        if argument_errors not in ("result", "protocol"):
            raise ValueError(f"argument_errors: expected 'result' or 'protocol', got {argument_errors!r}")
        said = checked(ServerSettings(name, version, title, instructions, icons, experimental, extensions))
        self.name = name
        self._offer = Offer(
            Implementation(name, version, title=title, icons=said.icons),
            instructions=instructions,
            tools=True,
            logging=True,
            experimental=said.experimental or {},
            extensions=said.extensions or {},
        )
        self._argument_errors = argument_errors
        self._coerce = coerce
        self._tools: Mapping[str, RegisteredTool] = {}  # replaced by each change, so that any thread may read it
        self._list: tuple[Mapping[str, RegisteredTool], ListToolsResult] = {}, ListToolsResult([])  # of which tools
        self._starts = 0  # without their close()
        self._outlets: list[Outlet] = []  # replaced like _tools
        self._threads = Threads(THREADS)
        self._changing = threading.Lock()
        self._log = logging.getLogger(f"concertino.{name}")

    # Tools

    @overload
    def tool(self, handler: H) -> H: ...
    @overload
    def tool(
        self,
        *,
        name: str | None = None,
        title: str | None = None,
        description: str | None = None,
        read_only: bool | None = None,
        destructive: bool | None = None,
        idempotent: bool | None = None,
        open_world: bool | None = None,
        icons: list[Icon] | None = None,
        meta: dict[str, Any] | None = None,
        inline: bool = False,
    ) -> Callable[[H], H]: ...
    def tool(self, handler: Handler | None = None, **settings: Any) -> Any:
        """Offer a function as a tool; as `@server.tool` or `@server.tool(title=...)`. Gives the function back.

        The name is the function's, the description its docstring's text, the input schema its parameters'; arguments are checked
        against it. An `async def` runs on the event loop, a `def` in a thread, or on the loop with inline=True if it is quick.
        read_only, destructive, idempotent, open_world: hints for clients (2025-03-26 and later). meta: `_meta` of the tool.
        Raises RegistrationError for what cannot be offered. See add_tool.
        """
        if handler is not None:
            self.add_tool(handler)
            return handler

        def decorate(handler: H) -> H:
            self.add_tool(handler, **settings)
            return handler

        return decorate

    def add_tool(
        self,
        handler: Handler,
        *,
        name: str | None = None,
        title: str | None = None,
        description: str | None = None,
        read_only: bool | None = None,
        destructive: bool | None = None,
        idempotent: bool | None = None,
        open_world: bool | None = None,
        icons: list[Icon] | None = None,
        meta: dict[str, Any] | None = None,
        inline: bool = False,
        input_schema: Mapping[str, Any] | None = None,
        output_schema: Mapping[str, Any] | None = None,
    ) -> None:
        """Offer a tool; also while the server runs, and from any thread: clients are told.

        input_schema: JSON Schema 2020-12 written by hand, with type object at its root; the handler then takes the arguments as one
        dict. output_schema: one for what it returns, of any type. Both are shown as they are and enforced, which needs the extra
        `concertino[validate]`. The rest is as for tool().
        Raises RegistrationError naming the tool, what is wrong, and what to write.
        """
        settings = ToolSettings(
            name=name,
            title=title,
            description=description,
            read_only=read_only,
            destructive=destructive,
            idempotent=idempotent,
            open_world=open_world,
            icons=icons,
            meta=meta,
            inline=inline,
            input_schema=input_schema,
            output_schema=output_schema,
        )
        registered = register(handler, settings, coerce=self._coerce)
        name = registered.tool.name
        with self._changing:
            if name in self._tools:
                raise RegistrationError(
                    f"tool {name!r}: there is one with this name; remove_tool() it first, or give name="
                )
            self._tools = {**self._tools, name: registered}
        self._changed()

    def remove_tool(self, name: str) -> None:
        """Offer a tool no longer; calls under way go on. Raises KeyError if there is none of this name."""
        with self._changing:
            tools = dict(self._tools)
            del tools[name]
            self._tools = tools
        self._changed()

    def _changed(self) -> None:
        for outlet in self._outlets:
            try:
                outlet.changed("tools")
            except RuntimeError:  # its loop is closed: nobody is there to be told
                pass

    # Serving

    def run(
        self,
        *,
        limits: Limits | None = None,
        loop_factory: Callable[[], asyncio.AbstractEventLoop] | None = None,
    ) -> None:
        """Serve over stdin and stdout until the client is gone; then the process ends, so nothing after this line runs.

        limits: see Limits; those set by CONCERTINO_... variables otherwise. loop_factory: e.g. uvloop.new_event_loop.
        To serve another connection, or several, use `serve` or `Host`. While `concertino serve` imports a file, this only marks the
        server, and what it was given, and returns.
        """
        if marked is not None:
            marked.append(Marked(self, limits, loop_factory))
            return
        from concertino.driver.process import run

        run(self, limits=limits, loop_factory=loop_factory)

    async def start(self, outlet: Outlet) -> None:
        with self._changing:
            self._starts += 1
            self._outlets = [*self._outlets, outlet]

    def offer(self) -> Offer:
        return self._offer

    async def close(self) -> None:
        with self._changing:
            self._starts = max(0, self._starts - 1)  # a start() may have been cancelled before it began
            if self._starts:
                return  # which of several has ended is not known; its outlet reaches nobody, and stays until the last
            self._outlets = []
            threads, self._threads = self._threads, Threads(THREADS)
        threads.close()

    async def handle(self, call: Call, context: Context) -> Struct | Raw:
        if call.method != "tools/call":
            if call.method == "tools/list":
                return self._listed(call.params)
            raise RpcError(METHOD_NOT_FOUND, f"method not found: {call.method}")
        params = call.params
        try:
            name = _name(params["name"])
            tool = self._tools[name]
        except (KeyError, DecodeError):
            raise self._no_tool(params) from None
        try:
            args, kwargs = tool.bind(params.get("arguments", NO_ARGUMENTS), context)
            if tool.waits:
                value = await tool.handler(*args, **kwargs)
            elif tool.inline:
                value = await settled(tool.handler(*args, **kwargs))
            else:
                value = await settled(await self._in_thread(tool.handler, args, kwargs))
            return tool.shape(value)
        except BadArguments as bad:
            return self._bad_arguments(name, bad.problems, bytes(params.get("arguments", NO_ARGUMENTS)).lstrip())
        except (ToolError, BadResult) as error:
            return _failed(str(error))
        except BaseException as error:  # SystemExit, GeneratorExit and their like too: no tool ends the server
            if context.cancelled:
                raise
            self._log.exception("tool %s failed", name)
            return _failed(_said(error))

    def _listed(self, params: Mapping[str, Raw]) -> ListToolsResult:
        if "cursor" in params:  # everything is on one page, so no cursor was ever given
            raise _invalid("cursor: not one of this server's")
        tools = self._tools
        of, listed = self._list
        if of is not tools:
            listed = ListToolsResult([each.tool for each in tools.values()])
            self._list = tools, listed
        return listed

    def _in_thread(self, handler: Handler, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return self._threads.run(lambda: handler(*args, **kwargs))

    def _no_tool(self, params: Mapping[str, Raw]) -> RpcError:
        """Why a call's params lead to no tool: always a protocol error (2026-07-28 server/tools "Error Handling")."""
        if "name" not in params:
            return _invalid("Missing required field: name")
        try:
            name = _name(params["name"])
        except DecodeError:
            return _invalid("name: expected str")
        if len(name) > MAX_NAME:
            name = name[:MAX_NAME] + "..."
        return RpcError(INVALID_PARAMS, f"Unknown tool: {name}", {"details": f"name: there is no tool {name!r}"})

    def _bad_arguments(self, name: str, problems: list[Problem], arguments: bytes) -> CallToolResult:
        details = [_sentence(problem) for problem in problems]
        if not arguments.startswith(
            b"{"
        ):  # malformed params, whatever was asked for; null too: the schema has no null there
            raise _invalid(f"arguments: {'; '.join(details)}")
        if self._argument_errors == "protocol":
            raise _invalid("; ".join(details))
        body = {
            "error": f"Invalid arguments for {name}: {'; '.join(details)}",
            "code": "INVALID_ARGUMENTS",
            "suggestion": f"Call {name} again with arguments that fit its input schema.",
            "details": [{"path": problem.path, "message": problem.message} for problem in problems],
        }
        return _failed(encode(body).decode())


def _failed(text: str) -> CallToolResult:
    return CallToolResult([TextContent(text)], is_error=True)


def _said(error: BaseException) -> str:
    """An exception as `TypeName: text`, for the caller: shortened, without secrets."""
    kind = type(error).__name__
    try:
        text = str(error)
    except Exception:  # a __str__ that fails
        text = ""
    # Cut after the redaction, or half a secret is left; and before it, because the text may be of any length.
    return redactor().text(f"{kind}: {text[:REDACTED_CHARACTERS]}" if text else kind)[:MAX_ERROR_CHARACTERS]


def _invalid(details: str) -> RpcError:
    return RpcError(INVALID_PARAMS, "Invalid params", {"details": details})


def _sentence(problem: Problem) -> str:
    if problem.message == "required, but missing":
        return f"Missing required field: {problem.path}"
    return f"{problem.path}: {problem.message}" if problem.path else problem.message
