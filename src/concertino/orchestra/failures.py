"""Error responses to prompt and storage requests of the Orchestra plugin protocol.

Hubs and plugins use these functions when such a request fails. The only error response of that
protocol is a failed tool call (rpc_interface.error_response()). But the Go implementation
accepts only a response of the type that belongs to the request. So these functions return a
response of that type with the field `failure`, which only this package defines and reads. Go
programs ignore it, and see an empty document or list, or a prompt without messages.
"""

from __future__ import annotations

from concertino.orchestra.plugin_messages import (
    PluginResponse,
    PromptFailure,
    PromptGetResponse,
    StorageDeleteResponse,
    StorageFailure,
    StorageListResponse,
    StorageReadResponse,
    StorageWriteResponse,
)

__all__ = ["prompt_failure", "storage_failure"]


def prompt_failure(id: str, code: str, message: str) -> PluginResponse:
    """Return the response to a failed prompt_get.

    id: the request id.
    code, message: the reason, for programs and for users.
    The description of the prompt repeats the message, because Go programs show the description to
    users.
    """
    failure = PromptFailure(code=code, message=message)
    return PluginResponse(
        request_id=id, prompt_get=PromptGetResponse(description=message, failure=failure)
    )


def storage_failure(
    id: str,
    kind: str,
    code: str,
    message: str,
) -> PluginResponse:
    """Return the response to a failed storage request.

    id: the request id.
    kind: the field of PluginRequest that the request sets, such as "storage_read".
    code, message: the reason, for programs and for users.
    """
    failure = StorageFailure(code=code, message=message)
    if kind == "storage_read":
        return PluginResponse(request_id=id, storage_read=StorageReadResponse(failure=failure))
    if kind == "storage_write":
        # This response has a field for errors in the Go implementation, too, but none for the code.
        return PluginResponse(request_id=id, storage_write=StorageWriteResponse(error=message))
    if kind == "storage_delete":
        return PluginResponse(request_id=id, storage_delete=StorageDeleteResponse(failure=failure))
    return PluginResponse(request_id=id, storage_list=StorageListResponse(failure=failure))
