"""Responses to prompt and storage requests that failed, of the type that was asked for.

Upstream's peers expect that type, and read an empty response, or a prompt without messages. Our own
find `failure` in it. Every other failure is rpc_interface.error_response().
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
    """Return the response for a prompt that cannot be had; upstream shows its description."""
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
    """Return the response to a failed storage request. kind: the name of the request's field."""
    failure = StorageFailure(code=code, message=message)
    if kind == "storage_read":
        return PluginResponse(request_id=id, storage_read=StorageReadResponse(failure=failure))
    # The only one of these responses that has a field for errors in upstream's schema.
    if kind == "storage_write":
        return PluginResponse(request_id=id, storage_write=StorageWriteResponse(error=message))
    if kind == "storage_delete":
        return PluginResponse(request_id=id, storage_delete=StorageDeleteResponse(failure=failure))
    return PluginResponse(request_id=id, storage_list=StorageListResponse(failure=failure))
