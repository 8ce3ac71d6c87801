"""Converts sampling requests of MCP to chat completions, and answers of models to MCP results.

An AI provider (ai_provider.py) is a plugin whose tools send requests to a model. The requests are
chat completions of OpenAI's API, which Gemini and local servers also understand.
Sources: 2026-07-28 client/sampling; platform.openai.com/docs/api-reference/chat.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

from msgspec import Struct
from msgspec.json import decode, encode

from concertino.decode_errors import DECODE_ERRORS
from concertino.errors import ToolError
from concertino.token_estimate import estimate
from concertino.types.client_requests import (
    CreateMessageResult,
    Sampling,
    SamplingContent,
    SamplingMessage,
    ToolResultContent,
    ToolUseContent,
)
from concertino.types.results import ImageContent, TextContent

__all__ = ["ChatAnswer", "ChatStream", "chat_parameters", "sampling_result"]

# finish_reason of a chat completion -> stop_reason of MCP.
STOP_REASONS = {"stop": "endTurn", "length": "maxTokens", "tool_calls": "toolUse"}


class ChatAnswer(Struct, frozen=True):
    """The answer of a model to a chat completion.

    model: the name of the model that has answered.
    text: the text of the answer; may be empty.
    finish_reason: why the answer ends, such as "stop" or "length".
    tool_calls: (id, name, arguments as JSON) of each tool call that the model requests.
    refusal: the text with which the model refuses to answer; "" if the model does not refuse.
    """

    model: str
    text: str
    finish_reason: str
    tool_calls: Sequence[tuple[str, str, str]] = ()
    refusal: str = ""


class _PartialCall(Struct):
    """A tool call in the answer, as far as it has arrived. The arguments are JSON."""

    id: str = ""
    name: str = ""
    arguments: str = ""


class ChatStream:
    """Joins the chunks in which a model sends its answer to a chat completion.

    Call add() with each chunk, and then end(). count_tokens() may be called at any time.

    parameters: the parameters of the request, from chat_parameters().

    Attribute:
    is_refused: whether the provider has refused the request. The code that sends the request sets
        it. count_tokens() then returns 0.
    """

    def __init__(self, parameters: Mapping[str, Any]) -> None:
        self.is_refused = False
        self._parameters = parameters
        self._texts: list[str] = []
        self._refusals: list[str] = []
        # The index of a tool call in the answer -> the call.
        self._calls: dict[int, _PartialCall] = {}
        self._model = self._finish = ""
        # The SDK's object with the numbers of tokens, from the last chunk. Its type is Any, because
        # the SDK may not be installed.
        self._usage: Any = None

    def add(self, chunk: Any) -> str:
        """Add a chunk, and return the piece of the answer's text in the chunk; "" without text.

        chunk: an object of the SDK. Its type is Any, because the SDK may not be installed.
        """
        self._model, self._usage = chunk.model or self._model, chunk.usage or self._usage
        text = ""
        # A chunk has one choice, because only one answer was requested. The last chunk, with the
        # numbers of tokens, has none.
        for choice in chunk.choices[:1]:
            self._finish = choice.finish_reason or self._finish
            delta = choice.delta
            text = delta.content or ""
            self._texts.append(text)
            self._refusals.append(delta.refusal or "")
            for piece in delta.tool_calls or ():
                call = self._calls.setdefault(piece.index, _PartialCall())
                call.id = piece.id or call.id
                if piece.function is not None:
                    call.name += piece.function.name or ""
                    call.arguments += piece.function.arguments or ""
        return text

    def end(self) -> ChatAnswer:
        """Return the answer, after the last chunk. Raises ToolError if it is not complete."""
        if not self._finish:
            raise ToolError("INCOMPLETE", "the answer of the model is incomplete")
        calls = [
            (call.id, call.name, call.arguments)
            for _, call in sorted(self._calls.items(), key=lambda item: item[0])
        ]
        refusal = "".join(self._refusals)
        return ChatAnswer(
            model=self._model,
            text="".join(self._texts),
            finish_reason=self._finish,
            tool_calls=calls,
            refusal=refusal,
        )

    def count_tokens(self) -> tuple[int, int]:
        """Return how many tokens the request has, and how many the answer has so far.

        Usually, the provider's last chunk contains the numbers. Without this chunk, for example
        because the stream was cancelled, the numbers are estimates; after a refusal of the
        provider, both are 0.
        """
        if self._usage is not None:
            return self._usage.prompt_tokens or 0, self._usage.completion_tokens or 0
        if self.is_refused:
            return 0, 0
        # The provider has produced the tokens of a cancelled answer, too. They must count, so that
        # a caller does not get answers for nothing by cancelling them.
        parts = [*self._texts, *self._refusals]
        parts += [call.id + call.name + call.arguments for call in self._calls.values()]
        return estimate("\n".join(_find_texts(self._parameters))), estimate("".join(parts))


def _find_texts(value: object) -> Iterator[str]:
    """Yield the texts of a request, apart from the keys of objects and the URLs of images."""
    if isinstance(value, str):
        # An image is a URL with this scheme (_chat_part()).
        if not value.startswith("data:"):
            yield value
    elif isinstance(value, Mapping):
        for item in cast("Mapping[str, object]", value).values():
            yield from _find_texts(item)
    elif isinstance(value, list):
        for item in cast("list[object]", value):
            yield from _find_texts(item)


def chat_parameters(request: Sampling) -> dict[str, Any]:
    """Convert a sampling request to the parameters of a chat completion.

    The caller must add the model and the limit of tokens. The parameter for this limit has another
    name at each provider.
    Raises ToolError for content that chat completions do not support.
    """
    messages: list[dict[str, Any]] = []
    if request.system_prompt:
        messages.append({"role": "system", "content": request.system_prompt})
    for message in request.messages:
        messages += _chat_messages(message)
    parameters: dict[str, Any] = {"messages": messages}
    if request.temperature is not None:
        parameters["temperature"] = request.temperature
    if request.stop_sequences:
        parameters["stop"] = request.stop_sequences
    if request.tools:
        parameters["tools"] = [
            {
                "type": "function",
                "function": {
                    "name": tool["name"],
                    "description": tool.get("description", ""),
                    "parameters": tool.get("inputSchema", {"type": "object"}),
                },
            }
            for tool in request.tools
        ]
        if mode := (request.tool_choice or {}).get("mode"):
            parameters["tool_choice"] = mode
    return parameters


def _chat_messages(message: SamplingMessage) -> list[dict[str, Any]]:
    """Return the chat messages for one MCP message.

    A message with results of tools becomes one chat message for each result; other content in it
    is left out. Any other message becomes one chat message.
    """
    blocks = message.content if isinstance(message.content, list) else [message.content]
    results = [
        {
            "role": "tool",
            "tool_call_id": block.tool_use_id,
            "content": "\n".join(
                item.text for item in block.content if isinstance(item, TextContent)
            ),
        }
        for block in blocks
        if isinstance(block, ToolResultContent)
    ]
    # By the specification, a message with results of tools has no other content.
    if results:
        return results
    calls = [
        {
            "id": block.id,
            "type": "function",
            "function": {"name": block.name, "arguments": encode(block.input).decode()},
        }
        for block in blocks
        if isinstance(block, ToolUseContent)
    ]
    parts = [_chat_part(block) for block in blocks if not isinstance(block, ToolUseContent)]
    chat: dict[str, Any] = {"role": message.role}
    if all(part["type"] == "text" for part in parts):
        chat["content"] = "\n".join(part["text"] for part in parts) or None
    else:
        chat["content"] = parts
    if calls:
        chat["tool_calls"] = calls
    return [chat]


def _chat_part(block: SamplingContent) -> dict[str, Any]:
    """Return a content block of MCP as a content part of a chat message.

    Raises ToolError for another block than a text or an image.
    """
    if isinstance(block, TextContent):
        return {"type": "text", "text": block.text}
    if isinstance(block, ImageContent):
        url = f"data:{block.mime_type};base64,{b64encode(block.data).decode()}"
        return {"type": "image_url", "image_url": {"url": url}}
    kind = type(block).__name__.removesuffix("Content").lower()
    raise ToolError("UNSUPPORTED_CONTENT", f"expected text, images or tools, got {kind}")


def sampling_result(answer: ChatAnswer) -> CreateMessageResult:
    """Return the answer of a model as the result of a sampling request.

    Raises ToolError if the model calls a tool with arguments that are not JSON.
    """
    content: list[SamplingContent] = []
    if text := answer.text or answer.refusal:
        content.append(TextContent(text))
    for id, name, arguments in answer.tool_calls:
        content.append(ToolUseContent(id, name, _parse_arguments(name, arguments)))
    reason = STOP_REASONS.get(answer.finish_reason, answer.finish_reason)
    if answer.refusal:
        reason = "refusal"
    # Revisions before 2025-11-25 know only a single block.
    if len(content) != 1:
        return CreateMessageResult("assistant", content, answer.model, reason)
    return CreateMessageResult("assistant", content[0], answer.model, reason)


def _parse_arguments(name: str, arguments: str) -> dict[str, Any]:
    try:
        parsed: object = decode(arguments or "{}")
    except DECODE_ERRORS:
        parsed = None
    if not isinstance(parsed, Mapping):
        raise ToolError(
            "INVALID_ANSWER", f"the model calls {name} with arguments that are not a JSON object"
        )
    return cast("dict[str, Any]", parsed)
