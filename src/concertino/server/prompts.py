"""Prompts: messages that a user picks by name, made by functions from texts.

Spec: 2026-07-28 server/prompts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from msgspec import DecodeError, Raw, Struct
from msgspec.json import Decoder

from concertino.backend.interface import Call, Context
from concertino.errors import RegistrationError
from concertino.schema.arguments import InvalidArguments
from concertino.schema.return_values import InvalidResult, check_struct
from concertino.server.completion import Completer, completers_of
from concertino.server.content import user
from concertino.server.functions import (
    Function,
    Handler,
    InThread,
    StringArguments,
    call_handler,
    make_function,
    parse_doc,
)
from concertino.server.registry import Registry
from concertino.server.settings import CacheHints, PromptSettings, check_settings
from concertino.server.tool_errors import invalid_params, sentence, shorten, unknown_name
from concertino.types.results import (
    AudioContent,
    EmbeddedResource,
    GetPromptResult,
    ImageContent,
    ListPromptsResult,
    Prompt,
    PromptArgument,
    PromptMessage,
    ResourceContents,
    ResourceLink,
    TextContent,
)

__all__ = ["Prompts", "RegisteredPrompt"]

MAX_NAME = 128  # characters; what 2026-07-28 asks of tools' names
NO_ARGUMENTS = Raw(b"{}")
_text = Decoder(str).decode
_texts = Decoder(dict[str, str]).decode
_CONTENT = (
    TextContent,
    ImageContent,
    AudioContent,
    ResourceLink,
    EmbeddedResource,
    ResourceContents,
)


class RegisteredPrompt(Struct, frozen=True):
    """One prompt. completers: of its arguments."""

    prompt: Prompt
    function: Function
    texts: StringArguments
    completers: Mapping[str, Completer]


class Prompts:
    """A server's prompts. in_thread: runs what may block. hints: for the list. completes: whether an argument can be completed."""

    def __init__(self, in_thread: InThread, page_size: int, hints: CacheHints) -> None:
        self.prompts: Registry[RegisteredPrompt] = Registry(
            "prompt",
            page_size,
            lambda name: (
                f"prompt {name!r}: there is one with this name; remove_prompt() it first, or give name="
            ),
        )
        self.completes = False
        self._in_thread = in_thread
        self._hints = hints

    def add(self, handler: Handler, settings: PromptSettings) -> None:
        """See Server.add_prompt."""
        name = settings.name if settings.name is not None else str(getattr(handler, "__name__", ""))
        settings = check_settings(settings, f"prompt {name!r}")
        if not 0 < len(name) <= MAX_NAME or not name.isprintable() or name == "<lambda>":
            got = repr(name) if name else "none"
            raise RegistrationError(
                f"prompt name: expected 1 to {MAX_NAME} printable characters, got {got}; give name="
            )
        made = make_function(handler, f"prompt {name!r}", inline=settings.inline)
        doc = parse_doc(handler)
        texts = StringArguments(handler, doc.parameters)
        arguments = [
            PromptArgument(
                each, schema.get("title"), schema.get("description"), each in texts.required
            )
            for each, schema in texts.schemas.items()
        ]
        prompt = Prompt(
            name,
            title=settings.title,
            description=settings.description
            if settings.description is not None
            else doc.description,
            arguments=arguments or None,
            icons=settings.icons,
            meta=settings.meta,
        )
        prompt = check_settings(prompt, f"prompt {name!r}")
        completers = completers_of(texts)
        self.prompts.add(name, RegisteredPrompt(prompt, made, texts, completers))
        self.completes = self.completes or bool(completers)

    async def list(self, call: Call, context: Context) -> ListPromptsResult:
        page = self.prompts.page(call.params)
        if page.result is None:
            shown = [each.prompt for each in page.entries]
            hints = self._hints
            page.result = ListPromptsResult(
                shown, page.next_cursor, ttl_ms=hints.ttl_ms, cache_scope=hints.scope
            )
        return page.result

    async def get(self, call: Call, context: Context) -> GetPromptResult:
        params = call.params
        if "name" not in params:
            raise invalid_params("Missing required field: name")
        try:
            name = _text(params["name"])
        except (DecodeError, UnicodeError):
            raise invalid_params("name: expected str") from None
        prompt = self.prompts.entries.get(name)
        if prompt is None:
            name = shorten(name)
            raise unknown_name(f"Unknown prompt: {name}", f"name: there is no prompt {name!r}")
        try:
            given = _texts(params.get("arguments", NO_ARGUMENTS))
        except (DecodeError, UnicodeError) as why:
            raise invalid_params(
                f"arguments: {str(why).replace('`', '').replace('Expected', 'expected')}"
            ) from None
        try:
            bound = prompt.texts.bind(given, context)
        except InvalidArguments as bad:
            raise invalid_params("; ".join(map(sentence, bad.violations))) from None
        return _result(
            await call_handler(prompt.function, bound, self._in_thread), prompt.prompt.description
        )


def _result(value: Any, description: str | None) -> GetPromptResult:
    if isinstance(value, GetPromptResult):
        return check_struct(value)
    items: list[Any] = (
        list(cast("list[Any]", value)) if isinstance(value, (list, tuple)) else [value]
    )
    return check_struct(GetPromptResult([_message(each) for each in items], description))


def _message(value: Any) -> PromptMessage:
    if isinstance(value, PromptMessage):
        return value
    if isinstance(value, (str, *_CONTENT)):
        return user(value)
    raise InvalidResult(
        f"expected str, content or messages as a prompt, got {type(value).__name__}"
    )
