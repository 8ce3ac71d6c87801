import datetime

from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class PluginRequest(_message.Message):
    __slots__ = ("request_id", "register", "boot", "shutdown", "health", "tool_call", "list_tools", "list_prompts", "prompt_get", "storage_read", "storage_write", "storage_delete", "storage_list", "stream_start", "stream_cancel", "subscribe", "unsubscribe", "publish", "stream_credit", "list_events", "path")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    REGISTER_FIELD_NUMBER: _ClassVar[int]
    BOOT_FIELD_NUMBER: _ClassVar[int]
    SHUTDOWN_FIELD_NUMBER: _ClassVar[int]
    HEALTH_FIELD_NUMBER: _ClassVar[int]
    TOOL_CALL_FIELD_NUMBER: _ClassVar[int]
    LIST_TOOLS_FIELD_NUMBER: _ClassVar[int]
    LIST_PROMPTS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_GET_FIELD_NUMBER: _ClassVar[int]
    STORAGE_READ_FIELD_NUMBER: _ClassVar[int]
    STORAGE_WRITE_FIELD_NUMBER: _ClassVar[int]
    STORAGE_DELETE_FIELD_NUMBER: _ClassVar[int]
    STORAGE_LIST_FIELD_NUMBER: _ClassVar[int]
    STREAM_START_FIELD_NUMBER: _ClassVar[int]
    STREAM_CANCEL_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIBE_FIELD_NUMBER: _ClassVar[int]
    UNSUBSCRIBE_FIELD_NUMBER: _ClassVar[int]
    PUBLISH_FIELD_NUMBER: _ClassVar[int]
    STREAM_CREDIT_FIELD_NUMBER: _ClassVar[int]
    LIST_EVENTS_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    register: PluginManifest
    boot: BootRequest
    shutdown: ShutdownRequest
    health: HealthRequest
    tool_call: ToolRequest
    list_tools: ListToolsRequest
    list_prompts: ListPromptsRequest
    prompt_get: PromptGetRequest
    storage_read: StorageReadRequest
    storage_write: StorageWriteRequest
    storage_delete: StorageDeleteRequest
    storage_list: StorageListRequest
    stream_start: StreamStart
    stream_cancel: StreamCancel
    subscribe: Subscribe
    unsubscribe: Unsubscribe
    publish: Publish
    stream_credit: StreamCredit
    list_events: ListEventsRequest
    path: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, request_id: _Optional[str] = ..., register: _Optional[_Union[PluginManifest, _Mapping]] = ..., boot: _Optional[_Union[BootRequest, _Mapping]] = ..., shutdown: _Optional[_Union[ShutdownRequest, _Mapping]] = ..., health: _Optional[_Union[HealthRequest, _Mapping]] = ..., tool_call: _Optional[_Union[ToolRequest, _Mapping]] = ..., list_tools: _Optional[_Union[ListToolsRequest, _Mapping]] = ..., list_prompts: _Optional[_Union[ListPromptsRequest, _Mapping]] = ..., prompt_get: _Optional[_Union[PromptGetRequest, _Mapping]] = ..., storage_read: _Optional[_Union[StorageReadRequest, _Mapping]] = ..., storage_write: _Optional[_Union[StorageWriteRequest, _Mapping]] = ..., storage_delete: _Optional[_Union[StorageDeleteRequest, _Mapping]] = ..., storage_list: _Optional[_Union[StorageListRequest, _Mapping]] = ..., stream_start: _Optional[_Union[StreamStart, _Mapping]] = ..., stream_cancel: _Optional[_Union[StreamCancel, _Mapping]] = ..., subscribe: _Optional[_Union[Subscribe, _Mapping]] = ..., unsubscribe: _Optional[_Union[Unsubscribe, _Mapping]] = ..., publish: _Optional[_Union[Publish, _Mapping]] = ..., stream_credit: _Optional[_Union[StreamCredit, _Mapping]] = ..., list_events: _Optional[_Union[ListEventsRequest, _Mapping]] = ..., path: _Optional[_Iterable[str]] = ...) -> None: ...

class PluginResponse(_message.Message):
    __slots__ = ("request_id", "register", "boot", "shutdown", "health", "tool_call", "list_tools", "list_prompts", "prompt_get", "storage_read", "storage_write", "storage_delete", "storage_list", "stream_chunk", "stream_end", "event_delivery", "list_events")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    REGISTER_FIELD_NUMBER: _ClassVar[int]
    BOOT_FIELD_NUMBER: _ClassVar[int]
    SHUTDOWN_FIELD_NUMBER: _ClassVar[int]
    HEALTH_FIELD_NUMBER: _ClassVar[int]
    TOOL_CALL_FIELD_NUMBER: _ClassVar[int]
    LIST_TOOLS_FIELD_NUMBER: _ClassVar[int]
    LIST_PROMPTS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_GET_FIELD_NUMBER: _ClassVar[int]
    STORAGE_READ_FIELD_NUMBER: _ClassVar[int]
    STORAGE_WRITE_FIELD_NUMBER: _ClassVar[int]
    STORAGE_DELETE_FIELD_NUMBER: _ClassVar[int]
    STORAGE_LIST_FIELD_NUMBER: _ClassVar[int]
    STREAM_CHUNK_FIELD_NUMBER: _ClassVar[int]
    STREAM_END_FIELD_NUMBER: _ClassVar[int]
    EVENT_DELIVERY_FIELD_NUMBER: _ClassVar[int]
    LIST_EVENTS_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    register: RegistrationResult
    boot: BootResult
    shutdown: ShutdownResult
    health: HealthResult
    tool_call: ToolResponse
    list_tools: ListToolsResponse
    list_prompts: ListPromptsResponse
    prompt_get: PromptGetResponse
    storage_read: StorageReadResponse
    storage_write: StorageWriteResponse
    storage_delete: StorageDeleteResponse
    storage_list: StorageListResponse
    stream_chunk: StreamChunk
    stream_end: StreamEnd
    event_delivery: EventDelivery
    list_events: ListEventsResponse
    def __init__(self, request_id: _Optional[str] = ..., register: _Optional[_Union[RegistrationResult, _Mapping]] = ..., boot: _Optional[_Union[BootResult, _Mapping]] = ..., shutdown: _Optional[_Union[ShutdownResult, _Mapping]] = ..., health: _Optional[_Union[HealthResult, _Mapping]] = ..., tool_call: _Optional[_Union[ToolResponse, _Mapping]] = ..., list_tools: _Optional[_Union[ListToolsResponse, _Mapping]] = ..., list_prompts: _Optional[_Union[ListPromptsResponse, _Mapping]] = ..., prompt_get: _Optional[_Union[PromptGetResponse, _Mapping]] = ..., storage_read: _Optional[_Union[StorageReadResponse, _Mapping]] = ..., storage_write: _Optional[_Union[StorageWriteResponse, _Mapping]] = ..., storage_delete: _Optional[_Union[StorageDeleteResponse, _Mapping]] = ..., storage_list: _Optional[_Union[StorageListResponse, _Mapping]] = ..., stream_chunk: _Optional[_Union[StreamChunk, _Mapping]] = ..., stream_end: _Optional[_Union[StreamEnd, _Mapping]] = ..., event_delivery: _Optional[_Union[EventDelivery, _Mapping]] = ..., list_events: _Optional[_Union[ListEventsResponse, _Mapping]] = ...) -> None: ...

class PluginManifest(_message.Message):
    __slots__ = ("id", "version", "language", "provides_tools", "provides_events", "provides_storage", "provides_transport", "provides_ai", "needs_storage", "needs_events", "needs_ai", "needs_tools", "description", "author", "binary", "args", "env", "provides_prompts", "subscriptions", "lists")
    class EnvEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    ID_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    LANGUAGE_FIELD_NUMBER: _ClassVar[int]
    PROVIDES_TOOLS_FIELD_NUMBER: _ClassVar[int]
    PROVIDES_EVENTS_FIELD_NUMBER: _ClassVar[int]
    PROVIDES_STORAGE_FIELD_NUMBER: _ClassVar[int]
    PROVIDES_TRANSPORT_FIELD_NUMBER: _ClassVar[int]
    PROVIDES_AI_FIELD_NUMBER: _ClassVar[int]
    NEEDS_STORAGE_FIELD_NUMBER: _ClassVar[int]
    NEEDS_EVENTS_FIELD_NUMBER: _ClassVar[int]
    NEEDS_AI_FIELD_NUMBER: _ClassVar[int]
    NEEDS_TOOLS_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    AUTHOR_FIELD_NUMBER: _ClassVar[int]
    BINARY_FIELD_NUMBER: _ClassVar[int]
    ARGS_FIELD_NUMBER: _ClassVar[int]
    ENV_FIELD_NUMBER: _ClassVar[int]
    PROVIDES_PROMPTS_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIPTIONS_FIELD_NUMBER: _ClassVar[int]
    LISTS_FIELD_NUMBER: _ClassVar[int]
    id: str
    version: str
    language: str
    provides_tools: _containers.RepeatedScalarFieldContainer[str]
    provides_events: _containers.RepeatedScalarFieldContainer[str]
    provides_storage: _containers.RepeatedScalarFieldContainer[str]
    provides_transport: _containers.RepeatedScalarFieldContainer[str]
    provides_ai: _containers.RepeatedScalarFieldContainer[str]
    needs_storage: _containers.RepeatedScalarFieldContainer[str]
    needs_events: _containers.RepeatedScalarFieldContainer[str]
    needs_ai: _containers.RepeatedScalarFieldContainer[str]
    needs_tools: _containers.RepeatedScalarFieldContainer[str]
    description: str
    author: str
    binary: str
    args: _containers.RepeatedScalarFieldContainer[str]
    env: _containers.ScalarMap[str, str]
    provides_prompts: _containers.RepeatedScalarFieldContainer[str]
    subscriptions: _containers.RepeatedCompositeFieldContainer[Subscribe]
    lists: str
    def __init__(self, id: _Optional[str] = ..., version: _Optional[str] = ..., language: _Optional[str] = ..., provides_tools: _Optional[_Iterable[str]] = ..., provides_events: _Optional[_Iterable[str]] = ..., provides_storage: _Optional[_Iterable[str]] = ..., provides_transport: _Optional[_Iterable[str]] = ..., provides_ai: _Optional[_Iterable[str]] = ..., needs_storage: _Optional[_Iterable[str]] = ..., needs_events: _Optional[_Iterable[str]] = ..., needs_ai: _Optional[_Iterable[str]] = ..., needs_tools: _Optional[_Iterable[str]] = ..., description: _Optional[str] = ..., author: _Optional[str] = ..., binary: _Optional[str] = ..., args: _Optional[_Iterable[str]] = ..., env: _Optional[_Mapping[str, str]] = ..., provides_prompts: _Optional[_Iterable[str]] = ..., subscriptions: _Optional[_Iterable[_Union[Subscribe, _Mapping]]] = ..., lists: _Optional[str] = ...) -> None: ...

class RegistrationResult(_message.Message):
    __slots__ = ("accepted", "reject_reason")
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    REJECT_REASON_FIELD_NUMBER: _ClassVar[int]
    accepted: bool
    reject_reason: str
    def __init__(self, accepted: _Optional[bool] = ..., reject_reason: _Optional[str] = ...) -> None: ...

class BootRequest(_message.Message):
    __slots__ = ("config",)
    class ConfigEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    config: _containers.ScalarMap[str, str]
    def __init__(self, config: _Optional[_Mapping[str, str]] = ...) -> None: ...

class BootResult(_message.Message):
    __slots__ = ("ready", "error")
    READY_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    ready: bool
    error: str
    def __init__(self, ready: _Optional[bool] = ..., error: _Optional[str] = ...) -> None: ...

class ShutdownRequest(_message.Message):
    __slots__ = ("timeout_seconds",)
    TIMEOUT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    timeout_seconds: int
    def __init__(self, timeout_seconds: _Optional[int] = ...) -> None: ...

class ShutdownResult(_message.Message):
    __slots__ = ("clean",)
    CLEAN_FIELD_NUMBER: _ClassVar[int]
    clean: bool
    def __init__(self, clean: _Optional[bool] = ...) -> None: ...

class HealthRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class HealthResult(_message.Message):
    __slots__ = ("status", "message", "details")
    class Status(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        UNSPECIFIED: _ClassVar[HealthResult.Status]
        HEALTHY: _ClassVar[HealthResult.Status]
        DEGRADED: _ClassVar[HealthResult.Status]
        UNHEALTHY: _ClassVar[HealthResult.Status]
    UNSPECIFIED: HealthResult.Status
    HEALTHY: HealthResult.Status
    DEGRADED: HealthResult.Status
    UNHEALTHY: HealthResult.Status
    class DetailsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    STATUS_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    DETAILS_FIELD_NUMBER: _ClassVar[int]
    status: HealthResult.Status
    message: str
    details: _containers.ScalarMap[str, str]
    def __init__(self, status: _Optional[_Union[HealthResult.Status, str]] = ..., message: _Optional[str] = ..., details: _Optional[_Mapping[str, str]] = ...) -> None: ...

class ToolRequest(_message.Message):
    __slots__ = ("tool_name", "arguments", "caller_plugin", "trace_parent", "provider", "session_id", "arguments_json", "trace")
    class TraceEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    TOOL_NAME_FIELD_NUMBER: _ClassVar[int]
    ARGUMENTS_FIELD_NUMBER: _ClassVar[int]
    CALLER_PLUGIN_FIELD_NUMBER: _ClassVar[int]
    TRACE_PARENT_FIELD_NUMBER: _ClassVar[int]
    PROVIDER_FIELD_NUMBER: _ClassVar[int]
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    ARGUMENTS_JSON_FIELD_NUMBER: _ClassVar[int]
    TRACE_FIELD_NUMBER: _ClassVar[int]
    tool_name: str
    arguments: bytes
    caller_plugin: str
    trace_parent: str
    provider: str
    session_id: str
    arguments_json: bytes
    trace: _containers.ScalarMap[str, str]
    def __init__(self, tool_name: _Optional[str] = ..., arguments: _Optional[bytes] = ..., caller_plugin: _Optional[str] = ..., trace_parent: _Optional[str] = ..., provider: _Optional[str] = ..., session_id: _Optional[str] = ..., arguments_json: _Optional[bytes] = ..., trace: _Optional[_Mapping[str, str]] = ...) -> None: ...

class ToolResponse(_message.Message):
    __slots__ = ("success", "result", "error_code", "error_message", "result_json", "structured")
    class Structured(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        UNKNOWN: _ClassVar[ToolResponse.Structured]
        RESULT: _ClassVar[ToolResponse.Structured]
        DATA: _ClassVar[ToolResponse.Structured]
        ERROR: _ClassVar[ToolResponse.Structured]
    UNKNOWN: ToolResponse.Structured
    RESULT: ToolResponse.Structured
    DATA: ToolResponse.Structured
    ERROR: ToolResponse.Structured
    SUCCESS_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    ERROR_CODE_FIELD_NUMBER: _ClassVar[int]
    ERROR_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    RESULT_JSON_FIELD_NUMBER: _ClassVar[int]
    STRUCTURED_FIELD_NUMBER: _ClassVar[int]
    success: bool
    result: bytes
    error_code: str
    error_message: str
    result_json: bytes
    structured: ToolResponse.Structured
    def __init__(self, success: _Optional[bool] = ..., result: _Optional[bytes] = ..., error_code: _Optional[str] = ..., error_message: _Optional[str] = ..., result_json: _Optional[bytes] = ..., structured: _Optional[_Union[ToolResponse.Structured, str]] = ...) -> None: ...

class ListToolsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListToolsResponse(_message.Message):
    __slots__ = ("tools",)
    TOOLS_FIELD_NUMBER: _ClassVar[int]
    tools: _containers.RepeatedCompositeFieldContainer[ToolDefinition]
    def __init__(self, tools: _Optional[_Iterable[_Union[ToolDefinition, _Mapping]]] = ...) -> None: ...

class ToolDefinition(_message.Message):
    __slots__ = ("name", "description", "input_schema", "input_schema_json", "output_schema")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    INPUT_SCHEMA_FIELD_NUMBER: _ClassVar[int]
    INPUT_SCHEMA_JSON_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_SCHEMA_FIELD_NUMBER: _ClassVar[int]
    name: str
    description: str
    input_schema: bytes
    input_schema_json: bytes
    output_schema: bytes
    def __init__(self, name: _Optional[str] = ..., description: _Optional[str] = ..., input_schema: _Optional[bytes] = ..., input_schema_json: _Optional[bytes] = ..., output_schema: _Optional[bytes] = ...) -> None: ...

class PromptGetRequest(_message.Message):
    __slots__ = ("prompt_name", "arguments", "trace")
    class ArgumentsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    class TraceEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    PROMPT_NAME_FIELD_NUMBER: _ClassVar[int]
    ARGUMENTS_FIELD_NUMBER: _ClassVar[int]
    TRACE_FIELD_NUMBER: _ClassVar[int]
    prompt_name: str
    arguments: _containers.ScalarMap[str, str]
    trace: _containers.ScalarMap[str, str]
    def __init__(self, prompt_name: _Optional[str] = ..., arguments: _Optional[_Mapping[str, str]] = ..., trace: _Optional[_Mapping[str, str]] = ...) -> None: ...

class PromptGetResponse(_message.Message):
    __slots__ = ("description", "messages", "failure")
    DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    description: str
    messages: _containers.RepeatedCompositeFieldContainer[PromptMessage]
    failure: PromptFailure
    def __init__(self, description: _Optional[str] = ..., messages: _Optional[_Iterable[_Union[PromptMessage, _Mapping]]] = ..., failure: _Optional[_Union[PromptFailure, _Mapping]] = ...) -> None: ...

class ListPromptsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListPromptsResponse(_message.Message):
    __slots__ = ("prompts",)
    PROMPTS_FIELD_NUMBER: _ClassVar[int]
    prompts: _containers.RepeatedCompositeFieldContainer[PromptDefinition]
    def __init__(self, prompts: _Optional[_Iterable[_Union[PromptDefinition, _Mapping]]] = ...) -> None: ...

class PromptDefinition(_message.Message):
    __slots__ = ("name", "description", "arguments")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    ARGUMENTS_FIELD_NUMBER: _ClassVar[int]
    name: str
    description: str
    arguments: _containers.RepeatedCompositeFieldContainer[PromptArgument]
    def __init__(self, name: _Optional[str] = ..., description: _Optional[str] = ..., arguments: _Optional[_Iterable[_Union[PromptArgument, _Mapping]]] = ...) -> None: ...

class PromptArgument(_message.Message):
    __slots__ = ("name", "description", "required")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    REQUIRED_FIELD_NUMBER: _ClassVar[int]
    name: str
    description: str
    required: bool
    def __init__(self, name: _Optional[str] = ..., description: _Optional[str] = ..., required: _Optional[bool] = ...) -> None: ...

class PromptMessage(_message.Message):
    __slots__ = ("role", "content")
    ROLE_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    role: str
    content: ContentBlock
    def __init__(self, role: _Optional[str] = ..., content: _Optional[_Union[ContentBlock, _Mapping]] = ...) -> None: ...

class ContentBlock(_message.Message):
    __slots__ = ("type", "text")
    TYPE_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    type: str
    text: str
    def __init__(self, type: _Optional[str] = ..., text: _Optional[str] = ...) -> None: ...

class StorageReadRequest(_message.Message):
    __slots__ = ("path", "storage_type", "trace")
    class TraceEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    PATH_FIELD_NUMBER: _ClassVar[int]
    STORAGE_TYPE_FIELD_NUMBER: _ClassVar[int]
    TRACE_FIELD_NUMBER: _ClassVar[int]
    path: str
    storage_type: str
    trace: _containers.ScalarMap[str, str]
    def __init__(self, path: _Optional[str] = ..., storage_type: _Optional[str] = ..., trace: _Optional[_Mapping[str, str]] = ...) -> None: ...

class StorageReadResponse(_message.Message):
    __slots__ = ("content", "metadata", "version", "metadata_json", "failure", "contents_json")
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    METADATA_JSON_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    CONTENTS_JSON_FIELD_NUMBER: _ClassVar[int]
    content: bytes
    metadata: bytes
    version: int
    metadata_json: bytes
    failure: StorageFailure
    contents_json: bytes
    def __init__(self, content: _Optional[bytes] = ..., metadata: _Optional[bytes] = ..., version: _Optional[int] = ..., metadata_json: _Optional[bytes] = ..., failure: _Optional[_Union[StorageFailure, _Mapping]] = ..., contents_json: _Optional[bytes] = ...) -> None: ...

class StorageWriteRequest(_message.Message):
    __slots__ = ("path", "content", "metadata", "expected_version", "storage_type", "metadata_json")
    PATH_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_VERSION_FIELD_NUMBER: _ClassVar[int]
    STORAGE_TYPE_FIELD_NUMBER: _ClassVar[int]
    METADATA_JSON_FIELD_NUMBER: _ClassVar[int]
    path: str
    content: bytes
    metadata: bytes
    expected_version: int
    storage_type: str
    metadata_json: bytes
    def __init__(self, path: _Optional[str] = ..., content: _Optional[bytes] = ..., metadata: _Optional[bytes] = ..., expected_version: _Optional[int] = ..., storage_type: _Optional[str] = ..., metadata_json: _Optional[bytes] = ...) -> None: ...

class StorageWriteResponse(_message.Message):
    __slots__ = ("success", "new_version", "error")
    SUCCESS_FIELD_NUMBER: _ClassVar[int]
    NEW_VERSION_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    success: bool
    new_version: int
    error: str
    def __init__(self, success: _Optional[bool] = ..., new_version: _Optional[int] = ..., error: _Optional[str] = ...) -> None: ...

class StorageDeleteRequest(_message.Message):
    __slots__ = ("path", "storage_type")
    PATH_FIELD_NUMBER: _ClassVar[int]
    STORAGE_TYPE_FIELD_NUMBER: _ClassVar[int]
    path: str
    storage_type: str
    def __init__(self, path: _Optional[str] = ..., storage_type: _Optional[str] = ...) -> None: ...

class StorageDeleteResponse(_message.Message):
    __slots__ = ("success", "failure")
    SUCCESS_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    success: bool
    failure: StorageFailure
    def __init__(self, success: _Optional[bool] = ..., failure: _Optional[_Union[StorageFailure, _Mapping]] = ...) -> None: ...

class StorageListRequest(_message.Message):
    __slots__ = ("prefix", "pattern", "storage_type")
    PREFIX_FIELD_NUMBER: _ClassVar[int]
    PATTERN_FIELD_NUMBER: _ClassVar[int]
    STORAGE_TYPE_FIELD_NUMBER: _ClassVar[int]
    prefix: str
    pattern: str
    storage_type: str
    def __init__(self, prefix: _Optional[str] = ..., pattern: _Optional[str] = ..., storage_type: _Optional[str] = ...) -> None: ...

class StorageListResponse(_message.Message):
    __slots__ = ("entries", "failure", "templates_json")
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    TEMPLATES_JSON_FIELD_NUMBER: _ClassVar[int]
    entries: _containers.RepeatedCompositeFieldContainer[StorageEntry]
    failure: StorageFailure
    templates_json: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, entries: _Optional[_Iterable[_Union[StorageEntry, _Mapping]]] = ..., failure: _Optional[_Union[StorageFailure, _Mapping]] = ..., templates_json: _Optional[_Iterable[bytes]] = ...) -> None: ...

class StorageEntry(_message.Message):
    __slots__ = ("path", "size", "version", "modified_at", "resource_json")
    PATH_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    MODIFIED_AT_FIELD_NUMBER: _ClassVar[int]
    RESOURCE_JSON_FIELD_NUMBER: _ClassVar[int]
    path: str
    size: int
    version: int
    modified_at: _timestamp_pb2.Timestamp
    resource_json: bytes
    def __init__(self, path: _Optional[str] = ..., size: _Optional[int] = ..., version: _Optional[int] = ..., modified_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., resource_json: _Optional[bytes] = ...) -> None: ...

class StreamStart(_message.Message):
    __slots__ = ("stream_id", "tool_name", "arguments", "caller_plugin", "arguments_json", "trace_parent", "provider", "session_id", "window", "subscribe", "trace")
    class TraceEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    STREAM_ID_FIELD_NUMBER: _ClassVar[int]
    TOOL_NAME_FIELD_NUMBER: _ClassVar[int]
    ARGUMENTS_FIELD_NUMBER: _ClassVar[int]
    CALLER_PLUGIN_FIELD_NUMBER: _ClassVar[int]
    ARGUMENTS_JSON_FIELD_NUMBER: _ClassVar[int]
    TRACE_PARENT_FIELD_NUMBER: _ClassVar[int]
    PROVIDER_FIELD_NUMBER: _ClassVar[int]
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    WINDOW_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIBE_FIELD_NUMBER: _ClassVar[int]
    TRACE_FIELD_NUMBER: _ClassVar[int]
    stream_id: str
    tool_name: str
    arguments: bytes
    caller_plugin: str
    arguments_json: bytes
    trace_parent: str
    provider: str
    session_id: str
    window: int
    subscribe: Subscribe
    trace: _containers.ScalarMap[str, str]
    def __init__(self, stream_id: _Optional[str] = ..., tool_name: _Optional[str] = ..., arguments: _Optional[bytes] = ..., caller_plugin: _Optional[str] = ..., arguments_json: _Optional[bytes] = ..., trace_parent: _Optional[str] = ..., provider: _Optional[str] = ..., session_id: _Optional[str] = ..., window: _Optional[int] = ..., subscribe: _Optional[_Union[Subscribe, _Mapping]] = ..., trace: _Optional[_Mapping[str, str]] = ...) -> None: ...

class StreamCancel(_message.Message):
    __slots__ = ("stream_id",)
    STREAM_ID_FIELD_NUMBER: _ClassVar[int]
    stream_id: str
    def __init__(self, stream_id: _Optional[str] = ...) -> None: ...

class StreamChunk(_message.Message):
    __slots__ = ("stream_id", "data", "content_type", "sequence", "progress", "total")
    STREAM_ID_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    CONTENT_TYPE_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    stream_id: str
    data: bytes
    content_type: str
    sequence: int
    progress: float
    total: float
    def __init__(self, stream_id: _Optional[str] = ..., data: _Optional[bytes] = ..., content_type: _Optional[str] = ..., sequence: _Optional[int] = ..., progress: _Optional[float] = ..., total: _Optional[float] = ...) -> None: ...

class StreamEnd(_message.Message):
    __slots__ = ("stream_id", "success", "error_code", "error_message", "total_chunks", "result")
    STREAM_ID_FIELD_NUMBER: _ClassVar[int]
    SUCCESS_FIELD_NUMBER: _ClassVar[int]
    ERROR_CODE_FIELD_NUMBER: _ClassVar[int]
    ERROR_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    TOTAL_CHUNKS_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    stream_id: str
    success: bool
    error_code: str
    error_message: str
    total_chunks: int
    result: ToolResponse
    def __init__(self, stream_id: _Optional[str] = ..., success: _Optional[bool] = ..., error_code: _Optional[str] = ..., error_message: _Optional[str] = ..., total_chunks: _Optional[int] = ..., result: _Optional[_Union[ToolResponse, _Mapping]] = ...) -> None: ...

class StreamCredit(_message.Message):
    __slots__ = ("stream_id", "bytes")
    STREAM_ID_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    stream_id: str
    bytes: int
    def __init__(self, stream_id: _Optional[str] = ..., bytes: _Optional[int] = ...) -> None: ...

class Subscribe(_message.Message):
    __slots__ = ("subscription_id", "topic", "filters", "after", "positions")
    class FiltersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    SUBSCRIPTION_ID_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    FILTERS_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    POSITIONS_FIELD_NUMBER: _ClassVar[int]
    subscription_id: str
    topic: str
    filters: _containers.ScalarMap[str, str]
    after: str
    positions: bool
    def __init__(self, subscription_id: _Optional[str] = ..., topic: _Optional[str] = ..., filters: _Optional[_Mapping[str, str]] = ..., after: _Optional[str] = ..., positions: _Optional[bool] = ...) -> None: ...

class ListEventsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListEventsResponse(_message.Message):
    __slots__ = ("topics",)
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    topics: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, topics: _Optional[_Iterable[str]] = ...) -> None: ...

class Unsubscribe(_message.Message):
    __slots__ = ("subscription_id",)
    SUBSCRIPTION_ID_FIELD_NUMBER: _ClassVar[int]
    subscription_id: str
    def __init__(self, subscription_id: _Optional[str] = ...) -> None: ...

class Publish(_message.Message):
    __slots__ = ("topic", "event_type", "payload", "source_plugin", "payload_json", "subscription_id", "timestamp", "cursor", "lost", "audience")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    EVENT_TYPE_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    SOURCE_PLUGIN_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_JSON_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIPTION_ID_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_FIELD_NUMBER: _ClassVar[int]
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    LOST_FIELD_NUMBER: _ClassVar[int]
    AUDIENCE_FIELD_NUMBER: _ClassVar[int]
    topic: str
    event_type: str
    payload: bytes
    source_plugin: str
    payload_json: bytes
    subscription_id: str
    timestamp: _timestamp_pb2.Timestamp
    cursor: str
    lost: int
    audience: str
    def __init__(self, topic: _Optional[str] = ..., event_type: _Optional[str] = ..., payload: _Optional[bytes] = ..., source_plugin: _Optional[str] = ..., payload_json: _Optional[bytes] = ..., subscription_id: _Optional[str] = ..., timestamp: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., cursor: _Optional[str] = ..., lost: _Optional[int] = ..., audience: _Optional[str] = ...) -> None: ...

class EventDelivery(_message.Message):
    __slots__ = ("subscription_id", "topic", "event_type", "payload", "source_plugin", "timestamp", "payload_json", "cursor", "lost", "audience")
    SUBSCRIPTION_ID_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    EVENT_TYPE_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    SOURCE_PLUGIN_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_JSON_FIELD_NUMBER: _ClassVar[int]
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    LOST_FIELD_NUMBER: _ClassVar[int]
    AUDIENCE_FIELD_NUMBER: _ClassVar[int]
    subscription_id: str
    topic: str
    event_type: str
    payload: bytes
    source_plugin: str
    timestamp: _timestamp_pb2.Timestamp
    payload_json: bytes
    cursor: str
    lost: int
    audience: str
    def __init__(self, subscription_id: _Optional[str] = ..., topic: _Optional[str] = ..., event_type: _Optional[str] = ..., payload: _Optional[bytes] = ..., source_plugin: _Optional[str] = ..., timestamp: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., payload_json: _Optional[bytes] = ..., cursor: _Optional[str] = ..., lost: _Optional[int] = ..., audience: _Optional[str] = ...) -> None: ...

class StorageFailure(_message.Message):
    __slots__ = ("code", "message")
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    code: str
    message: str
    def __init__(self, code: _Optional[str] = ..., message: _Optional[str] = ...) -> None: ...

class PromptFailure(_message.Message):
    __slots__ = ("code", "message")
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    code: str
    message: str
    def __init__(self, code: _Optional[str] = ..., message: _Optional[str] = ...) -> None: ...
