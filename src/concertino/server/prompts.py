"""Prompts: registers, lists and renders the prompts of a server.

A prompt is a function that makes messages for a model from string arguments. A user selects the
prompt by its name. LazyFeatures imports this module when the first prompt is registered.
Spec: 2026-07-28 server/prompts.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, cast

from msgspec import Struct

from concertino.backend.interface import Call, Context
from concertino.errors import RegistrationError, invalid_params, unknown_name
from concertino.protocol.call import read_text_arguments, read_text_param
from concertino.schema.arguments import InvalidArguments
from concertino.schema.value_results import InvalidResult, check_struct, refuse_awaitable
from concertino.server.completion import Completer, type_completers
from concertino.server.content import user
from concertino.server.functions import (
    Handler,
    HandlerCall,
    InThread,
    call_handler,
    handler_call,
    handler_doc,
    handler_location,
)
from concertino.server.options import PromptOptions, PromptSettings
from concertino.server.registry import Registry, TagSwitches
from concertino.server.settings import (
    CacheHints,
    add_tags,
    check_against_schema,
    check_options,
    take_access,
)
from concertino.server.string_arguments import StringArguments
from concertino.server.tool_errors import describe_violation
from concertino.types.resources_and_prompts import (
    GetPromptResult,
    ListPromptsResult,
    Prompt,
    PromptArgument,
    PromptMessage,
)
from concertino.types.results import ContentBlock, ResourceContents

# The longest name, in characters. MCP 2026-07-28 has this limit for tools, and none for prompts.
MAX_NAME = 128


class RegisteredPrompt(Struct, frozen=True):
    """A prompt of a server.

    prompt: the prompt as `prompts/list` returns it.
    handler_call: the handler, and how to call it.
    arguments: converts the strings from the client to the arguments of the handler.
    completers: argument -> the Completer that suggests its values.
    """

    prompt: Prompt
    handler_call: HandlerCall
    arguments: StringArguments
    completers: Mapping[str, Completer]


class Prompts:
    """The prompts of a server.

    in_thread: in_thread(function) calls a function in a thread, and returns an awaitable of its
        result.
    page_size: how many items one page of the list has.
    hints: how long clients may cache the list.
    switches: the last call of enable() or disable() for each tag.

    Attributes:
    prompts: the registered prompts by name.
    can_complete: whether any argument has a Completer, which suggests its values.
    """

    def __init__(
        self,
        in_thread: InThread,
        page_size: int,
        hints: CacheHints,
        switches: TagSwitches,
    ) -> None:
        self.prompts: Registry[RegisteredPrompt] = Registry(
            "prompt", page_size, self._describe_conflict, switches
        )
        self.can_complete = False
        self._in_thread = in_thread
        self._hints = hints

    def _describe_conflict(self, name: str) -> str:
        """Return the error text for a prompt whose name is already registered."""
        location = handler_location(self.prompts.records[name].function)
        return (
            f"a prompt named {name!r} is already registered{location}; pass name=... or call "
            f"remove_prompt({name!r}) first"
        )

    def add(
        self,
        handler: Handler,
        options: PromptOptions,
        author_function: Handler,
    ) -> None:
        """Register a prompt.

        handler: the function that makes the messages: author_function, or a wrapper that fills the
            parameters for lifespan values and dependencies, and has only the other parameters.
        options: the options of the decorator `@server.prompt`, such as `title`.
        author_function: the function that the author has passed. disable() selects the prompt by
            it.
        Raises RegistrationError for an invalid function or option.
        """
        name = options.get("name")
        name = name if name is not None else str(getattr(handler, "__name__", ""))
        owner = f"prompt {name!r}"
        access = take_access(options, owner)
        options = check_options(options, PromptSettings, owner)
        if not 0 < len(name) <= MAX_NAME or not name.isprintable() or name == "<lambda>":
            got = repr(name) if name else "none"
            raise RegistrationError(
                f"prompt name: expected 1 to {MAX_NAME} printable characters, got {got}; pass "
                f"name=..."
            )

        call = handler_call(handler, owner, inline=options.get("inline", False))
        doc = handler_doc(handler)
        arguments = StringArguments(handler, doc.parameters)
        description = options.get("description")
        prompt = Prompt(
            name,
            title=options.get("title"),
            description=doc.description if description is None else description,
            arguments=_make_arguments(arguments) or None,
            icons=options.get("icons"),
            meta=add_tags(options.get("meta"), access),
        )
        prompt = check_against_schema(prompt, owner)
        completers = type_completers(arguments)
        entry = RegisteredPrompt(prompt, call, arguments, completers)
        self.prompts.add(name, entry, author_function, access)
        self.can_complete = self.can_complete or bool(completers)

    async def list(self, call: Call, context: Context) -> ListPromptsResult:
        """Handle a call of `prompts/list`."""
        page = self.prompts.page(call.params, context)
        if page.result is None:
            hints = self._hints
            page.result = ListPromptsResult(
                [entry.prompt for entry in page.entries],
                page.next_cursor,
                ttl_ms=hints.ttl_ms,
                cache_scope=self.prompts.cache_scope(hints.scope),
            )
        return page.result

    async def get(self, call: Call, context: Context) -> GetPromptResult:
        """Handle a call of `prompts/get`.

        Raises RpcError -32602 for malformed params, an unknown prompt or invalid arguments.
        """
        params = call.params
        name = read_text_param(params, "name")
        entry = self.prompts.find(name, context)
        if entry is None:
            raise unknown_name("prompt", name)

        values = read_text_arguments(params)
        try:
            bound = entry.arguments.bind(values, context)
        except InvalidArguments as exc:
            raise invalid_params("; ".join(map(describe_violation, exc.violations))) from None
        finish = partial(_make_result, description=entry.prompt.description)
        return await call_handler(entry.handler_call, bound, self._in_thread, finish)


def _make_arguments(arguments: StringArguments) -> list[PromptArgument]:
    """Return the arguments of a prompt as `prompts/list` shows them."""
    return [
        PromptArgument(
            name,
            title=schema.get("title"),
            description=schema.get("description"),
            required=name in arguments.required,
        )
        for name, schema in arguments.schemas.items()
    ]


def _make_result(value: Any, description: str | None) -> GetPromptResult:
    """Return the result of `prompts/get` for the value that a prompt's function has returned.

    value: a message, a text or content, a list of these, or a complete GetPromptResult.
    description: the description of the prompt.
    Raises InvalidResult for any other value.
    """
    if isinstance(value, GetPromptResult):
        return check_struct(value)
    is_list = isinstance(value, (list, tuple))
    items: list[Any] = list(cast("list[Any]", value)) if is_list else [value]
    return check_struct(GetPromptResult([_make_message(item) for item in items], description))


def _make_message(value: Any) -> PromptMessage:
    """Return a value as a message. A text or content becomes a message of the user.

    Raises InvalidResult for any other value.
    """
    if isinstance(value, PromptMessage):
        return value
    if isinstance(value, str | ContentBlock | ResourceContents):
        return user(value)
    refuse_awaitable(value)
    raise InvalidResult(
        f"expected str, content or messages as a prompt, got {type(value).__name__}"
    )
