"""Plugin: typed Python functions as a plugin of an Orchestra hub, of ours or of upstream's.

    from concertino import Plugin
    plugin = Plugin("tools.greeter")

    @plugin.tool
    def greet(name: str) -> str:
        "Greet somebody."
        return f"Hello, {name}!"

    plugin.run()

A Plugin is a Server, so that the same file can also be served alone, with `concertino serve`. What the plugin protocol has beside
tools and prompts is here: storage, what happens at the start and the end, and the manifest. The process is running.py's.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from inspect import isawaitable
from typing import Any, NoReturn, TypeVar, cast

from msgspec import UNSET, Raw, Struct
from msgspec.json import encode

from concertino.backend.interface import Call
from concertino.errors import ConcertinoError, RegistrationError, RpcError
from concertino.orchestra.link import RemotePeer, RpcConnection, refusal  # isort: split

from concertino.orchestra.plugin_context import PluginContext
from concertino.orchestra.plugin_pb2 import (
    BootResult,
    ContentBlock,
    HealthResult,
    ListPromptsResponse,
    ListToolsResponse,
    PluginManifest,
    PluginRequest,
    PluginResponse,
    PromptArgument,
    PromptDefinition,
    PromptGetResponse,
    PromptMessage,
    RegistrationResult,
    ShutdownResult,
    ToolDefinition,
    ToolResponse,
)
from concertino.orchestra.storage import Storage
from concertino.orchestra.stores import DEFAULT, answer_storage
from concertino.orchestra.structs import (
    InvalidStruct,
    NotAStruct,
    PackedTooLarge,
    pack,
    pack_json,
    unpack_json,
)
from concertino.orchestra.tool_calls import succeeded, succeeded_with_text
from concertino.runtime import entry
from concertino.runtime.threads import Threads
from concertino.server.server import Server
from concertino.types.results import (
    CallToolResult,
    GetPromptResult,
    ListPromptsResult,
    ListToolsResult,
    TextContent,
)

__all__ = ["Plugin"]

F = TypeVar("F", bound=Callable[..., Any])
ALL = 1_000_000  # tools or prompts in one answer: the plugin protocol has no pages


class Plugin(Server):
    """A plugin made of Python functions. Decorate them with `tool` and `prompt`, as those of a Server.

    id: by which hub and certificates know it, e.g. `tools.greeter`. version, description, author: for people. needs_storage,
    needs_tools, needs_ai, needs_events: what it expects of others; part of the manifest. Raises ValueError as Server does, and
    CertificateError for an id that no certificate could have.
    """

    def __init__(
        self,
        id: str,
        *,
        version: str = "0.0.0",
        description: str = "",
        author: str = "",
        needs_storage: Sequence[str] = (),
        needs_tools: Sequence[str] = (),
        needs_ai: Sequence[str] = (),
        needs_events: Sequence[str] = (),
        coerce: bool = False,
    ) -> None:
        from concertino.orchestra.certificates import check_name

        super().__init__(
            check_name(id),
            version=version,
            description=description or None,
            argument_errors="protocol",
            page_size=ALL,
            coerce=coerce,
        )
        self.hub: RpcConnection | None = (
            None  # to ask the hub, while there is one: tools and storage of other plugins
        )
        self._about = PluginManifest(
            id=id,
            version=version,
            language="python",
            description=description,
            author=author,
            needs_storage=needs_storage,
            needs_tools=needs_tools,
            needs_ai=needs_ai,
            needs_events=needs_events,
        )
        self._storages: dict[str, Storage] = {}
        self._booting: list[Callable[..., Any]] = []
        self._ending: list[Callable[..., Any]] = []
        self._hooks = Threads(1)
        self.on_end: Callable[[], None] = _nothing  # told when the hub says that it is over

    def resource(self, uri: str, **options: Any) -> NoReturn:
        raise RegistrationError(
            f"{uri}: the plugin protocol has no resources; offer a tool, or storage with add_storage()"
        )

    def add_storage(self, storage: Storage, kind: str = DEFAULT) -> None:
        """Provide storage of a type, by a store such as those of markdown.py and sqlite.py, whose methods are called from threads.

        Raises RegistrationError if there is one of this type already.
        """
        if kind in self._storages:
            raise RegistrationError(f"storage {kind!r}: there is one of this type already")
        self._storages[kind] = storage

    def on_boot(self, function: F) -> F:
        """Run a function when the hub has said what the configuration is: `@plugin.on_boot`. Gives the function back.

        It takes the configuration, a dict of texts; `async def` or `def`. What it raises makes the start fail, in its words.
        """
        self._booting.append(function)
        return function

    def on_shutdown(self, function: F) -> F:
        """Run a function once at the end, whatever ends it: `@plugin.on_shutdown`. It takes nothing; the last goes first."""
        self._ending.append(function)
        return function

    def manifest(self) -> PluginManifest:
        """What the plugin is and provides, as the hub is told."""
        about = PluginManifest()
        about.CopyFrom(self._about)
        about.provides_tools.extend(self._tools.entries)
        about.provides_prompts.extend(self._rooms.prompts.prompts.entries)
        about.provides_storage.extend(self._storages)
        return about

    def run(self, arguments: Sequence[str] | None = None, **options: Any) -> None:  # type: ignore[override]
        """Be a plugin until the hub or a signal ends it; then the process ends, so nothing after this line runs.

        arguments: of the command line, sys.argv's unless given: the flags of every plugin, see --help. While `concertino serve`
        imports a file, this only marks the plugin, which is then served as any Server.
        """
        if entry.marked is not None:
            super().run(**options)
            return
        from concertino.orchestra.plugin_main import run

        run(self, arguments)

    # Answers

    def answer(self, request: PluginRequest, peer: RemotePeer) -> Awaitable[PluginResponse | bytes]:
        """Answer one request of the hub. bytes: as of a links.Answer."""
        kind = request.WhichOneof("request") or "nothing"
        method = _ANSWERS.get(kind)
        if method is not None:
            return method(self, request)
        return self._answer_another(request, kind)

    async def _answer_another(self, request: PluginRequest, kind: str) -> PluginResponse:
        if kind.startswith("storage_"):
            return await answer_storage(request, self._storages, self._in_thread)
        return refusal("", "unknown_request", f"{self.name} does not answer {kind}")

    async def _register(self, request: PluginRequest) -> PluginResponse:
        other = request.register.id
        if other and other != self.name:
            return PluginResponse(
                register=RegistrationResult(reject_reason=f"this is {self.name}, not {other}")
            )
        return PluginResponse(register=RegistrationResult(accepted=True))

    async def _boot(self, request: PluginRequest) -> PluginResponse:
        config = dict(request.boot.config)
        try:
            for function in self._booting:
                await self._called(function, config)
        except Exception as why:
            self._log.exception("booting failed")
            return PluginResponse(boot=BootResult(error=f"{type(why).__name__}: {why}"))
        return PluginResponse(boot=BootResult(ready=True))

    async def _shutdown(self, request: PluginRequest) -> PluginResponse:
        clean = await self.shut_down()
        self.on_end()
        return PluginResponse(shutdown=ShutdownResult(clean=clean))

    async def _health(self, request: PluginRequest) -> PluginResponse:
        return PluginResponse(health=HealthResult(status=HealthResult.HEALTHY))

    async def shut_down(self) -> bool:
        """Run what on_shutdown was given, once. Returns whether all of it went well."""
        ending, self._ending = self._ending, []
        clean = True
        for function in reversed(ending):
            try:
                await self._called(function)
            except Exception:
                clean = False
                self._log.exception(
                    "shutting down: %s failed", getattr(function, "__name__", function)
                )
        return clean

    async def _called(self, function: Callable[..., Any], *arguments: Any) -> None:
        result = await self._hooks.run(lambda: function(*arguments))
        if isawaitable(result):
            await result

    async def _list_tools(self, request: PluginRequest) -> PluginResponse:
        found = cast(
            ListToolsResult,
            await self.handle(Call("tools/list"), PluginContext(self, self.name, request)),
        )
        definitions: list[ToolDefinition] = []
        for tool in found.tools:
            schema = pack(tool.input_schema)
            definitions.append(
                ToolDefinition(
                    name=tool.name,
                    description=tool.description or "",
                    input_schema=schema.struct,
                    input_schema_json=schema.json,
                )
            )
        return PluginResponse(list_tools=ListToolsResponse(tools=definitions))

    async def _tool_call(self, request: PluginRequest) -> PluginResponse | bytes:
        asked = request.tool_call
        name = asked.tool_name
        if name not in self._tools.entries:
            return refusal("", "tool_not_found", f"{self.name} has no tool {name!r}")
        params = {"name": Raw(encode(name))}
        try:
            if asked.HasField("arguments"):
                params["arguments"] = Raw(unpack_json(asked.arguments, asked.arguments_json))
            result = await self.handle(
                Call("tools/call", params), PluginContext(self, self.name, request)
            )
            return _tool_response(cast("CallToolResult", result))
        except InvalidStruct as why:
            return refusal("", "validation_error", f"arguments: {why}")
        except RpcError as why:
            return refusal("", "validation_error", _told(why))
        except (NotAStruct, PackedTooLarge) as why:
            return refusal("", "handler_error", f"the result of {name}: {why}")

    async def _list_prompts(self, request: PluginRequest) -> PluginResponse:
        if not self._rooms.offer.prompts:
            return PluginResponse(list_prompts=ListPromptsResponse())
        found = cast(
            ListPromptsResult,
            await self.handle(Call("prompts/list"), PluginContext(self, self.name, request)),
        )
        prompts = [
            PromptDefinition(
                name=prompt.name,
                description=prompt.description or "",
                arguments=[
                    PromptArgument(
                        name=each.name,
                        description=each.description or "",
                        required=bool(each.required),
                    )
                    for each in prompt.arguments or ()
                ],
            )
            for prompt in found.prompts
        ]
        return PluginResponse(list_prompts=ListPromptsResponse(prompts=prompts))

    async def _prompt_get(self, request: PluginRequest) -> PluginResponse:
        asked = request.prompt_get
        if asked.prompt_name not in self._rooms.prompts.prompts.entries:
            return refusal(
                "", "prompt_not_found", f"{self.name} has no prompt {asked.prompt_name!r}"
            )
        params = {
            "name": Raw(encode(asked.prompt_name)),
            "arguments": Raw(encode(dict(asked.arguments))),
        }
        try:
            found = cast(
                GetPromptResult,
                await self.handle(
                    Call("prompts/get", params), PluginContext(self, self.name, request)
                ),
            )
        except RpcError as why:
            return refusal("", "validation_error", _told(why))
        except ConcertinoError as why:
            return refusal("", "handler_error", str(why))
        messages = [
            PromptMessage(role=each.role, content=_block(each.content)) for each in found.messages
        ]
        return PluginResponse(
            prompt_get=PromptGetResponse(description=found.description or "", messages=messages)
        )


_ANSWERS: Mapping[str, Callable[[Plugin, PluginRequest], Awaitable[PluginResponse | bytes]]] = {
    "register": Plugin._register,  # pyright: ignore[reportPrivateUsage]
    "boot": Plugin._boot,  # pyright: ignore[reportPrivateUsage]
    "shutdown": Plugin._shutdown,  # pyright: ignore[reportPrivateUsage]
    "health": Plugin._health,  # pyright: ignore[reportPrivateUsage]
    "list_tools": Plugin._list_tools,  # pyright: ignore[reportPrivateUsage]
    "tool_call": Plugin._tool_call,  # pyright: ignore[reportPrivateUsage]
    "list_prompts": Plugin._list_prompts,  # pyright: ignore[reportPrivateUsage]
    "prompt_get": Plugin._prompt_get,  # pyright: ignore[reportPrivateUsage]
}


def _nothing() -> None:
    pass


def _told(error: RpcError) -> str:
    """An error answer in one line."""
    details = cast(Mapping[str, Any], error.data or {}).get(
        "details"
    )  # ours all have an object, or nothing
    return f"{error.message}: {details}" if details else error.message


def _tool_response(result: CallToolResult) -> PluginResponse | bytes:
    """What a tool gave back, as upstream's programs expect it: an object, in which `text` is what the model reads.

    An object is itself. Another value is `data`, with its `text`. Content that is not text is in `content`, as MCP has it.
    """
    structured = result.structured_content
    content = result.content
    if (
        len(content) == 1
        and type(content[0]) is TextContent
        and structured is UNSET
        and not result.is_error
    ):
        return succeeded_with_text(content[0].text)
    text = "\n".join(each.text for each in content if isinstance(each, TextContent))
    if result.is_error:
        return PluginResponse(
            tool_call=ToolResponse(error_code="handler_error", error_message=text)
        )
    others = [each for each in content if not isinstance(each, TextContent)]
    if structured is not UNSET and not others:
        json = bytes(structured) if isinstance(structured, Raw) else encode(structured)
        packed = pack_json(
            json
            if json.lstrip().startswith(b"{")
            else b'{"text":%s,"data":%s}' % (encode(text), json)
        )
    elif others:
        packed = pack_json(b'{"text":%s,"content":%s}' % (encode(text), encode(result.content)))
    else:
        packed = pack({"text": text})
    if packed.json is None:
        return succeeded(packed.struct)
    return PluginResponse(
        tool_call=ToolResponse(success=True, result=packed.struct, result_json=packed.json)
    )


def _block(content: Struct) -> ContentBlock:
    """The content of a prompt's message; the protocol has text, so anything else is its JSON."""
    if isinstance(content, TextContent):
        return ContentBlock(type="text", text=content.text)
    return ContentBlock(
        type=str(content.__struct_config__.tag or "text"), text=encode(content).decode()
    )
