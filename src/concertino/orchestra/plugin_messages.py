"""The Protobuf messages of the plugin protocol, generated from plugin.proto.

Import them from here and not from plugin_pb2: if the package protobuf is not installed, the
ImportError of this module names the command that installs the package.
"""

from __future__ import annotations

from concertino.installation import missing_extra

try:
    from google.protobuf.message import DecodeError, EncodeError
    from google.protobuf.timestamp_pb2 import Timestamp

    from concertino.orchestra.plugin_pb2 import (
        BootRequest,
        BootResult,
        ContentBlock,
        EventDelivery,
        HealthRequest,
        HealthResult,
        ListEventsRequest,
        ListEventsResponse,
        ListPromptsRequest,
        ListPromptsResponse,
        ListToolsRequest,
        ListToolsResponse,
        PluginManifest,
        PluginRequest,
        PluginResponse,
        PromptArgument,
        PromptDefinition,
        PromptFailure,
        PromptGetRequest,
        PromptGetResponse,
        PromptMessage,
        Publish,
        RegistrationResult,
        ShutdownRequest,
        ShutdownResult,
        StorageDeleteResponse,
        StorageEntry,
        StorageFailure,
        StorageListRequest,
        StorageListResponse,
        StorageReadRequest,
        StorageReadResponse,
        StorageWriteResponse,
        StreamCancel,
        StreamChunk,
        StreamCredit,
        StreamEnd,
        StreamStart,
        Subscribe,
        ToolDefinition,
        ToolRequest,
        ToolResponse,
    )
except ImportError:
    raise ImportError(missing_extra("a hub or plugin", "orchestra")) from None

__all__ = [
    "BootRequest",
    "BootResult",
    "ContentBlock",
    "DecodeError",
    "EncodeError",
    "EventDelivery",
    "HealthRequest",
    "HealthResult",
    "ListEventsRequest",
    "ListEventsResponse",
    "ListPromptsRequest",
    "ListPromptsResponse",
    "ListToolsRequest",
    "ListToolsResponse",
    "PluginManifest",
    "PluginRequest",
    "PluginResponse",
    "PromptArgument",
    "PromptDefinition",
    "PromptFailure",
    "PromptGetRequest",
    "PromptGetResponse",
    "PromptMessage",
    "Publish",
    "RegistrationResult",
    "ShutdownRequest",
    "ShutdownResult",
    "StorageDeleteResponse",
    "StorageEntry",
    "StorageFailure",
    "StorageListRequest",
    "StorageListResponse",
    "StorageReadRequest",
    "StorageReadResponse",
    "StorageWriteResponse",
    "StreamCancel",
    "StreamChunk",
    "StreamCredit",
    "StreamEnd",
    "StreamStart",
    "Subscribe",
    "Timestamp",
    "ToolDefinition",
    "ToolRequest",
    "ToolResponse",
]
