"""Client requests: elicitation, sampling and roots, and the answers of the client.

A server sends its client such requests during a call: before 2026-07-28 as JSON-RPC requests, since
then as a part of an `input_required` result. The params are the same in both cases.
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
    """The request elicitation/create: asks the user of the client something.

    message: the question for the user.
    mode: "form" asks the user to fill in a form, "url" asks the user to open a web page.
    requested_schema: the form, as a JSON Schema of an object without nested objects.
    url: the web page, in the mode "url"; the client opens it only if the user agrees.
    elicitation_id: the id of an elicitation with a URL; used in 2025-11-25 only.
    """

    message: str
    mode: Literal["form", "url"] = "form"
    requested_schema: dict[str, Any] | None = None
    url: str | None = None
    elicitation_id: str | None = None
    meta: Meta | None = field(name="_meta", default=None)


class ElicitResult(Struct, frozen=True, omit_defaults=True, repr_omit_defaults=True):
    """The client's answer to an Elicitation.

    action: "accept" if the user has agreed, "decline" if the user has refused, "cancel" if the user
        has closed the question.
    content: the values of the form, if the action is "accept" and the mode is "form".
    """

    action: Literal["accept", "decline", "cancel"]
    content: dict[str, Any] | None = None


class Accepted(Struct, Generic[T], frozen=True, repr_omit_defaults=True):
    """The result of Context.elicit() if the user has filled in the form.

        answer = await context.elicit("Which size?", Order)
        if isinstance(answer, Accepted):
            order = answer.content

    content: the values, as an object of the form's class, or as a dict if the form is a schema.
    """

    content: T
    action: Literal["accept"] = "accept"


class Declined(Struct, frozen=True, repr_omit_defaults=True):
    """The result of Context.elicit() if the user has not filled in the form.

    If the user has filled it in, the result is an Accepted.
    action: "decline" if the user has refused, "cancel" if the user has closed the form.
    """

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
    """Content of a sampling message: the model calls a tool. Since 2025-11-25.

    id: the id of the call, which the ToolResultContent with its result repeats.
    name: the name of the tool.
    input: the arguments of the call.
    """

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
    """Content of a sampling message: the result of a tool that the model has called.

    Since 2025-11-25.
    tool_use_id: the id of the ToolUseContent that has called the tool.
    content, structured_content, is_error: as in a CallToolResult.
    """

    tool_use_id: str
    content: list[ContentBlock]
    structured_content: Any | UnsetType = UNSET
    is_error: bool = False
    meta: Meta | None = field(name="_meta", default=None)


SamplingContent = TextContent | ImageContent | AudioContent | ToolUseContent | ToolResultContent


class SamplingMessage(Struct, frozen=True, omit_defaults=True, repr_omit_defaults=True):
    """One message to or from a model, in a Sampling request or its answer.

    content: one content block, or a list of several.
    role: the speaker, "user" or "assistant".
    """

    role: Role
    content: SamplingContent | list[SamplingContent]
    meta: Meta | None = field(name="_meta", default=None)


class Sampling(Struct, frozen=True, omit_defaults=True, repr_omit_defaults=True, rename="camel"):
    """The request sampling/createMessage: asks the client's model to continue a conversation.

    The client must respect max_tokens. It may ignore the other settings.

    messages: the conversation so far.
    max_tokens: the largest length of the model's message, in tokens.
    system_prompt: instructions for the model.
    model_preferences: hints for the choice of the model, in the form of MCP's `modelPreferences`.
    include_context: the MCP servers whose context the client adds to the prompt: "none",
        "thisServer" or "allServers".
    temperature, stop_sequences: settings of the model.
    metadata: data for the provider of the model.
    tools, tool_choice: the tools that the model may call, and whether it must call one, in the form
        of MCP. Since 2025-11-25.
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
    """The answer to a Sampling request: the model's message.

    model: the name of the model.
    stop_reason: `endTurn`, `stopSequence`, `maxTokens`, `toolUse`, or another value of the model's
        provider.
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
    """A directory or file that a server may use.

    uri: its URI, which begins with `file://`.
    """

    uri: str
    name: str | None = None
    meta: Meta | None = field(name="_meta", default=None)


class ListRoots(Struct, frozen=True):
    """The request roots/list: asks the client which directories and files the server may use."""


class ListRootsResult(Struct, frozen=True):
    """The answer to ListRoots: the directories and files that the server may use."""

    roots: list[Root]


class InputRequest(Struct, frozen=True):
    """One request of a server to its client, as a method and undecoded params.

    The server sends it in an `input_required` result; before 2026-07-28, as a JSON-RPC request.
    """

    method: str
    params: Raw = Raw(b"{}")


ClientRequest = Elicitation | Sampling | ListRoots | InputRequest


class InputRequiredResult(Struct, frozen=True, rename="camel"):
    """A result with resultType `input_required`: the client repeats the call with its answers.

    input_requests: the server's requests to the client: key -> request. The client's answers have
        the same keys.
    request_state: the string that the client sends back unchanged, as undecoded JSON; an empty Raw
        if there is none.
    """

    input_requests: dict[str, InputRequest] = {}
    request_state: Raw = Raw(b"")


# Method of a client request -> the capability that a client declares if it answers such requests.
CLIENT_REQUESTS = {
    "elicitation/create": "elicitation",
    "sampling/createMessage": "sampling",
    "roots/list": "roots",
}
