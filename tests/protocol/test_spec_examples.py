"""Every example message of the specification is decoded by what reads such a message here, encoded
again, and is the same value.

Its own examples are read where they are; of each type there are two more, made from official models
(example_messages.py). A type that nothing here knows fails the test. What has no Struct is listed
by name.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
import wire
from catalogue import INFO
from example_messages import OFFICIAL, Example, examples
from msgspec import UNSET, Raw
from msgspec.json import decode, encode

from concertino.jsonrpc import messages
from concertino.protocol.revisions import MODERN
from concertino.protocol.wire_results import ResultEncoder
from concertino.types import client_requests, completion, resources_and_prompts, results
from concertino.types.results import ContentBlock

SERVER_INFO = "io.modelcontextprotocol/serverInfo"
VERSION = "io.modelcontextprotocol/protocolVersion"

# A type -> the Struct.
TYPES: dict[str, Any] = {
    "AudioContent": ContentBlock,
    "ImageContent": ContentBlock,
    "TextContent": ContentBlock,
    "ResourceLink": ContentBlock,
    "EmbeddedResource": ContentBlock,
    "BlobResourceContents": results.ResourceContents,
    "TextResourceContents": results.ResourceContents,
    "Resource": resources_and_prompts.Resource,
    "Tool": results.Tool,
    "CompleteRequestParams": completion.CompleteParams,
    # What a server asks of its client, and what it gets back.
    "CreateMessageRequestParams": client_requests.Sampling,
    "CreateMessageResult": client_requests.CreateMessageResult,
    "ElicitRequestFormParams": client_requests.Elicitation,
    "ElicitRequestURLParams": client_requests.Elicitation,
    "ElicitResult": client_requests.ElicitResult,
    "ListRootsResult": client_requests.ListRootsResult,
    "Root": client_requests.Root,
    "SamplingMessage": client_requests.SamplingMessage,
    "ToolResultContent": client_requests.ToolResultContent,
    "ToolUseContent": client_requests.ToolUseContent,
}
# A result -> the method that it answers, and the Struct; Raw where a backend gives it as JSON.
RESULTS: dict[str, tuple[str, Any]] = {
    "CallToolResult": ("tools/call", results.CallToolResult),
    "CompleteResult": ("completion/complete", resources_and_prompts.CompleteResult),
    "DiscoverResult": ("server/discover", Raw),
    "GetPromptResult": ("prompts/get", resources_and_prompts.GetPromptResult),
    "InputRequiredResult": ("tools/call", Raw),
    "ListPromptsResult": ("prompts/list", resources_and_prompts.ListPromptsResult),
    "ListResourceTemplatesResult": (
        "resources/templates/list",
        resources_and_prompts.ListResourceTemplatesResult,
    ),
    "ListResourcesResult": ("resources/list", resources_and_prompts.ListResourcesResult),
    "ListToolsResult": ("tools/list", results.ListToolsResult),
    "ReadResourceResult": ("resources/read", results.ReadResourceResult),
    "SubscriptionsListenResult": ("subscriptions/listen", Raw),
}
# Passed on undecoded, by a server and by a client: parts of forms, capabilities, the questions and
# answers of a round.
UNTYPED = {
    "BooleanSchema",
    "ClientCapabilities",
    "CreateMessageRequest",
    "ElicitRequest",
    "InputRequests",
    "InputResponses",
    "ListRootsRequest",
    "ModelPreferences",
    "NumberSchema",
    "ServerCapabilities",
    "StringSchema",
    "TitledMultiSelectEnumSchema",
    "TitledSingleSelectEnumSchema",
    "UntitledMultiSelectEnumSchema",
    "UntitledSingleSelectEnumSchema",
}
# Params are read member by member, each undecoded, and _meta by the session.
PARAMS = {
    "CallToolRequestParams",
    "CancelledNotificationParams",
    "GetPromptRequestParams",
    "LoggingMessageNotificationParams",
    "PaginatedRequestParams",
    "ProgressNotificationParams",
    "ResourceUpdatedNotificationParams",
}


def reencode(kind: str, raw: bytes) -> Any:
    """The example as it is after this package has read it and written it again."""
    value = json.loads(raw)
    if kind in TYPES:
        written = json.loads(encode(decode(raw, type=TYPES[kind])))
        if kind == "ElicitRequestFormParams" and "mode" in value:
            return {"mode": "form", **written}  # left out, it means the same
        # The session takes it off before anybody reads the rest.
        return {**written, "_meta": value["_meta"]} if kind == "CompleteRequestParams" else written
    if kind in RESULTS:
        return result(*RESULTS[kind], raw)
    if kind.endswith("ResultResponse"):
        message = messages.decode(raw.replace(b"\n", b" "))
        assert isinstance(message, messages.Message)
        assert not isinstance(message.id, msgspec.UnsetType)
        body = result(*RESULTS[kind.removesuffix("Response")], bytes(message.result))
        return {"jsonrpc": message.jsonrpc, "id": message.id, "result": body}
    if kind in PARAMS:
        return json.loads(encode(decode(raw, type=dict[str, Raw])))
    if kind.endswith("Error"):
        return error(value, raw)
    message = messages.decode(raw.replace(b"\n", b" "))
    assert isinstance(message, messages.Message), kind
    assert not isinstance(message.method, msgspec.UnsetType)
    params = encode(message.params)
    if isinstance(message.id, msgspec.UnsetType):
        frame = messages.encode_notification(message.method, params)
        # Without params, an empty object is written; they mean the same.
        return (
            {"params": {}, **json.loads(frame)}
            if "params" in value
            else remove_member(json.loads(frame), "params")
        )
    return json.loads(messages.encode_request(message.id, message.method, params))


def result(method: str, kind: Any, raw: bytes) -> Any:
    found = Raw(raw) if kind is Raw else decode(raw, type=kind)
    body = json.loads(ResultEncoder(MODERN, INFO).encode(found, method))
    value = json.loads(raw)
    # What every result of ours says and an example may leave out.
    if SERVER_INFO not in value.get("_meta", {}):
        assert body["_meta"].pop(SERVER_INFO)["name"] == INFO.name
        if not body["_meta"] and "_meta" not in value:
            del body["_meta"]
    for name in (
        "ttlMs",
        "cacheScope",
    ):  # the schema requires them; one example of a whole answer has forgotten them
        if name not in value:
            body.pop(name, None)
    if value.get("isError") is False:  # says the same when it is not there
        body.setdefault("isError", False)
    return body


def error(value: Any, raw: bytes) -> Any:
    """Some examples are whole messages, some the error alone."""
    body = value.get("error", value)
    written = json.loads(
        messages.encode_error(b"7", body["code"], body["message"], body.get("data"))
    )
    if "error" not in value:
        return written["error"]
    message = messages.decode(raw.replace(b"\n", b" "))
    assert isinstance(message, messages.Message)
    reencode = json.loads(encode(decode(message.error, type=dict[str, Raw])))
    assert reencode == written["error"]
    return {
        "jsonrpc": message.jsonrpc,
        **({} if message.id is UNSET else {"id": message.id}),
        "error": reencode,
    }


def remove_member(value: Any, name: str) -> Any:
    return {key: each for key, each in value.items() if key != name}


DEFINITIONS = set(wire.definitions(wire.MODERN, "models"))
# What other messages are made of, or what stands for one of several.
GENERAL = {
    *("Request", "PaginatedRequest", "ClientRequest", "InputRequest", "JSONRPCRequest"),
    *("Notification", "ClientNotification", "ServerNotification", "JSONRPCNotification"),
    *("JSONRPCResultResponse", "Error"),
}
MESSAGES = {
    name
    for name in {*DEFINITIONS, *OFFICIAL} - GENERAL - UNTYPED
    if name.endswith(("Request", "Notification", "ResultResponse", "Error"))
}


@pytest.mark.parametrize("example", examples(*sorted({*TYPES, *RESULTS, *PARAMS, *MESSAGES})))
def test_an_example_is_the_same_after_it_was_read_and_written(example: Example) -> None:
    assert reencode(example.kind, example.raw) == example.value


def test_every_type_is_of_a_kind_that_is_known() -> None:
    known = {*TYPES, *RESULTS, *PARAMS, *UNTYPED}
    assert known <= DEFINITIONS
    assert set(OFFICIAL) <= known | MESSAGES
    assert len(MESSAGES - {"SubscriptionsListenResultResponse"}) == 35  # models have no such answer


@pytest.mark.parametrize("example", examples(*sorted(UNTYPED)))
def test_what_has_no_type_yet_is_carried_as_it_is_inside_a_message(example: Example) -> None:
    """As a member of a call's params, and as structured content that a backend gives as JSON."""
    value = example.value
    frame = (
        b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"held":%b}}'
        % example.raw.replace(b"\n", b" ")
    )
    request = messages.decode_request(frame)
    assert (
        json.loads(messages.encode_request(request.id, request.method, encode(request.params)))[
            "params"
        ]["held"]
        == value
    )
    given = results.CallToolResult([], Raw(example.raw))
    assert (
        json.loads(ResultEncoder(MODERN, INFO).encode(given, "tools/call"))["structuredContent"]
        == value
    )
