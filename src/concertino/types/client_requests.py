"""Client requests: what a server may ask its client during a call, and the answers.

These are elicitation, sampling and roots. Before 2026-07-28 the server sends them as requests;
since then they are part of an `input_required` result. The shapes are the same.
Spec: 2026-07-28 client/elicitation, client/sampling, client/roots, basic/patterns/mrtr.
"""

from __future__ import annotations

from typing import Any, Generic, Literal, TypeVar

from msgspec import UNSET, Raw, Struct, UnsetType, field

from concertino.types.results import (
    AudioContent,
    ContentBlock,
    ImageContent,
    Meta,
    Role,
    TextContent,
)

__all__ = [
    "CLIENT_REQUESTS",
    "Accepted",
    "ClientRequest",
    "CreateMessageResult",
    "Declined",
    "ElicitResult",
    "Elicitation",
    "InputRequest",
    "InputRequiredResult",
    "ListRoots",
    "ListRootsResult",
    "Root",
    "Sampling",
    "SamplingContent",
    "SamplingMessage",
    "ToolResultContent",
    "ToolUseContent",
]

T = TypeVar("T")


class Elicitation(Struct, frozen=True, omit_defaults=True, repr_omit_defaults=True, rename="camel"):
    """Asks the user of the client something.

    mode: `form` asks for values that fit requested_schema, a flat JSON Schema object. `url` asks
    the user to open a page; only the user may decide to do so.
    elicitation_id: identifies an elicitation with a URL in 2025-11-25.
    """

    message: str
    mode: Literal["form", "url"] = "form"
    requested_schema: dict[str, Any] | None = None
    url: str | None = None
    elicitation_id: str | None = None
    meta: Meta | None = field(name="_meta", default=None)


class ElicitResult(Struct, frozen=True, omit_defaults=True, repr_omit_defaults=True):
    """The answer to an elicitation. content: the values of an accepted form."""

    action: Literal["accept", "decline", "cancel"]
    content: dict[str, Any] | None = None


class Accepted(Struct, Generic[T], frozen=True, repr_omit_defaults=True):
    """The user filled in the form. content: the values, as the class that was asked for."""

    content: T
    action: Literal["accept"] = "accept"


class Declined(Struct, frozen=True, repr_omit_defaults=True):
    """The user did not fill in the form: `decline` means no, `cancel` that it was closed."""

    action: Literal["decline", "cancel"]
    content: None = None


class ToolUseContent(
    Struct,
    frozen=True,
    omit_defaults=True,
    repr_omit_defaults=True,
    tag_field="type",
    tag="tool_use",
):
    """A model's call of a tool. Since 2025-11-25."""

    id: str
    name: str
    input: dict[str, Any]
    meta: Meta | None = field(name="_meta", default=None)


class ToolResultContent(
    Struct,
    frozen=True,
    omit_defaults=True,
    repr_omit_defaults=True,
    tag_field="type",
    tag="tool_result",
    rename="camel",
):
    """The result of a tool that a model called. Since 2025-11-25."""

    tool_use_id: str
    content: list[ContentBlock]
    structured_content: Any | UnsetType = UNSET
    is_error: bool = False
    meta: Meta | None = field(name="_meta", default=None)


SamplingContent = TextContent | ImageContent | AudioContent | ToolUseContent | ToolResultContent


class SamplingMessage(Struct, frozen=True, omit_defaults=True, repr_omit_defaults=True):
    """One message to or from a model, with one or several pieces of content."""

    role: Role
    content: SamplingContent | list[SamplingContent]
    meta: Meta | None = field(name="_meta", default=None)


class Sampling(Struct, frozen=True, omit_defaults=True, repr_omit_defaults=True, rename="camel"):
    """Asks the client to let its model continue a conversation.

    max_tokens is a limit; the other settings are only preferences.
    """

    messages: list[SamplingMessage]
    max_tokens: int
    system_prompt: str | None = None
    model_preferences: dict[str, Any] | None = None
    include_context: Literal["none", "thisServer", "allServers"] | None = None
    temperature: float | None = None
    stop_sequences: list[str] | None = None
    metadata: dict[str, Any] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: dict[str, Any] | None = None
    meta: Meta | None = field(name="_meta", default=None)


class CreateMessageResult(
    Struct, frozen=True, omit_defaults=True, repr_omit_defaults=True, rename="camel"
):
    """The model's message.

    stop_reason: `endTurn`, `stopSequence`, `maxTokens`, `toolUse`, or a value of the provider's.
    """

    role: Role
    content: SamplingContent | list[SamplingContent]
    model: str
    stop_reason: str | None = None
    meta: Meta | None = field(name="_meta", default=None)

    @property
    def text(self) -> str:
        """Return the text of the message, without its other content."""
        blocks = self.content if isinstance(self.content, list) else [self.content]
        return "".join(block.text for block in blocks if isinstance(block, TextContent))


class Root(Struct, frozen=True, omit_defaults=True, repr_omit_defaults=True):
    """A folder or file that a server may work in. uri: begins with `file://`."""

    uri: str
    name: str | None = None
    meta: Meta | None = field(name="_meta", default=None)


class ListRoots(Struct, frozen=True):
    """Asks the client which folders and files the server may work in."""


class ListRootsResult(Struct, frozen=True):
    """The folders and files that a server may work in."""

    roots: list[Root]


class InputRequest(Struct, frozen=True):
    """A client request as it is on the wire.

    It is part of an `input_required` result, or a request of its own before 2026-07-28.
    """

    method: str
    params: Raw = Raw(b"{}")


ClientRequest = Elicitation | Sampling | ListRoots | InputRequest


class InputRequiredResult(Struct, frozen=True, rename="camel"):
    """A preliminary result: the client repeats the call with its answers.

    request_state: JSON, which the client returns unchanged.
    """

    input_requests: dict[str, InputRequest] = {}
    request_state: Raw = Raw(b"")


# Methods of client requests, with the capability that a client declares for each.
CLIENT_REQUESTS = {
    "elicitation/create": "elicitation",
    "sampling/createMessage": "sampling",
    "roots/list": "roots",
}
