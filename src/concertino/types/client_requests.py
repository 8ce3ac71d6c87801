"""What a server may ask of a client while it works on a call, and the answers: elicitation, sampling, roots.

Before 2026-07-28 these are requests of the server's; since then they travel in `input_required` results. The shapes are the same.
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


class Elicitation(Struct, frozen=True, omit_defaults=True, rename="camel"):
    """A question to the person at the client.

    mode: `form` asks for values that fit requested_schema, a flat JSON Schema object; `url` asks to open a page, which only the
    person may decide. elicitation_id: names the question in 2025-11-25, with `url`.
    """

    message: str
    mode: Literal["form", "url"] = "form"
    requested_schema: dict[str, Any] | None = None
    url: str | None = None
    elicitation_id: str | None = None
    meta: Meta | None = field(name="_meta", default=None)


class ElicitResult(Struct, frozen=True, omit_defaults=True):
    """What the person did. content: the values of a form that was accepted."""

    action: Literal["accept", "decline", "cancel"]
    content: dict[str, Any] | None = None


class Accepted(Struct, Generic[T], frozen=True):
    """The person filled in the form. content: what was filled in, as the class that was asked for."""

    content: T
    action: Literal["accept"] = "accept"


class Declined(Struct, frozen=True):
    """The person did not fill in the form. action: `decline` said no, `cancel` closed it without a word."""

    action: Literal["decline", "cancel"]
    content: None = None


class ToolUseContent(Struct, frozen=True, omit_defaults=True, tag_field="type", tag="tool_use"):
    """A model's wish to call a tool. Since 2025-11-25."""

    id: str
    name: str
    input: dict[str, Any]
    meta: Meta | None = field(name="_meta", default=None)


class ToolResultContent(
    Struct, frozen=True, omit_defaults=True, tag_field="type", tag="tool_result", rename="camel"
):
    """What a tool gave that a model wished to call. Since 2025-11-25."""

    tool_use_id: str
    content: list[ContentBlock]
    structured_content: Any | UnsetType = UNSET
    is_error: bool = False
    meta: Meta | None = field(name="_meta", default=None)


SamplingContent = TextContent | ImageContent | AudioContent | ToolUseContent | ToolResultContent


class SamplingMessage(Struct, frozen=True, omit_defaults=True):
    """One message to or of a model: one piece of content, or several."""

    role: Role
    content: SamplingContent | list[SamplingContent]
    meta: Meta | None = field(name="_meta", default=None)


class Sampling(Struct, frozen=True, omit_defaults=True, rename="camel"):
    """A wish that the client let its model continue a conversation. max_tokens must be respected; the rest are wishes."""

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


class CreateMessageResult(Struct, frozen=True, omit_defaults=True, rename="camel"):
    """What the model said. stop_reason: `endTurn`, `stopSequence`, `maxTokens`, `toolUse`, or the provider's own word."""

    role: Role
    content: SamplingContent | list[SamplingContent]
    model: str
    stop_reason: str | None = None
    meta: Meta | None = field(name="_meta", default=None)

    @property
    def text(self) -> str:
        """What it said in words."""
        blocks = self.content if isinstance(self.content, list) else [self.content]
        return "".join(each.text for each in blocks if isinstance(each, TextContent))


class Root(Struct, frozen=True, omit_defaults=True):
    """A place that a server may work in. uri: begins with `file://`."""

    uri: str
    name: str | None = None
    meta: Meta | None = field(name="_meta", default=None)


class ListRoots(Struct, frozen=True):
    """The question for the places that a server may work in."""


class ListRootsResult(Struct, frozen=True):
    """The places that a server may work in."""

    roots: list[Root]


class InputRequest(Struct, frozen=True):
    """One question as it is on the wire: inside an `input_required` result, or a request of its own before 2026-07-28."""

    method: str
    params: Raw = Raw(b"{}")


ClientRequest = Elicitation | Sampling | ListRoots | InputRequest


class InputRequiredResult(Struct, frozen=True, rename="camel"):
    """A result that is none yet: the call is to be repeated with answers. request_state: JSON, to be given back as it came."""

    input_requests: dict[str, InputRequest] = {}
    request_state: Raw = Raw(b"")


CLIENT_REQUESTS = {
    "elicitation/create": "elicitation",
    "sampling/createMessage": "sampling",
    "roots/list": "roots",
}
