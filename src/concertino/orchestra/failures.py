"""Error responses to prompt and storage requests of the Orchestra plugin protocol.

The error response of the protocol is a failed tool call (rpc_interface.error_response()). But for
prompt and storage requests, the Go implementation accepts only a response of the type that belongs
to the request. So these functions return a response of this type with the field `failure`, which
only this package defines and reads. Go programs ignore the field, and see an empty document or
list, or a prompt without messages.
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
    code: the reason, for programs.
    message: the reason, for users.
    """
    failure = PromptFailure(code=code, message=message)
    # Go programs show the description to users.
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
    kind: request.WhichOneof("request"), such as `storage_read`.
    code: the reason, for programs. The response to a storage_write does not contain it.
    message: the reason, for users.
    """
    failure = StorageFailure(code=code, message=message)
    if kind == "storage_read":
        return PluginResponse(request_id=id, storage_read=StorageReadResponse(failure=failure))
    if kind == "storage_write":
        # This response has a field for the message in the Go implementation, too.
        return PluginResponse(request_id=id, storage_write=StorageWriteResponse(error=message))
    if kind == "storage_delete":
        return PluginResponse(request_id=id, storage_delete=StorageDeleteResponse(failure=failure))
    # The only other storage request is storage_list.
    return PluginResponse(request_id=id, storage_list=StorageListResponse(failure=failure))
