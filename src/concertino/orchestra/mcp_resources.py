"""Resources of MCP servers in the plugin protocol: documents of the storage type RESOURCES.

A hub starts plugins and forwards requests to them. A plugin that offers an MCP server
(mcp_plugin.py) answers requests to list and read documents with the server's resources. The path of
a document is the URI of the resource. Documents have no fields for some properties of resources. So
the responses also contain each resource as JSON, the resource templates, and all contents of a
resource with their types, in fields that only programs of this package read.

answer_from_server() answers such a request in the plugin. answer_from_plugins() answers it in the
hub: it joins the lists of all plugins, and returns the content of a resource from the first plugin
that has it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any

from msgspec import UNSET
from msgspec.json import encode

from concertino.client.client import Client
from concertino.errors import ConcertinoError, ResourceNotFound, RpcError
from concertino.orchestra.failures import storage_failure
from concertino.orchestra.mcp_sessions import McpSessions, list_or_nothing
from concertino.orchestra.plugin_messages import (
    PluginRequest,
    PluginResponse,
    StorageEntry,
    StorageListResponse,
    StorageReadResponse,
)
from concertino.orchestra.storage import StorageError, compile_pattern
from concertino.orchestra.structs import encode_struct
from concertino.orchestra.trace_context import trace_of
from concertino.protocol.pagination import read_all_pages
from concertino.types.resources_and_prompts import (
    ListResourcesResult,
    ListResourceTemplatesResult,
)
from concertino.types.results import ReadResourceResult

__all__ = ["answer_from_plugins", "answer_from_server"]

LIST, TEMPLATES = "resources/list", "resources/templates/list"
READ_ONLY = "resources of MCP servers can only be read and listed"
# The version of each document, because resources have no versions. Version 0 would mean that there
# is no document.
VERSION = 1


async def answer_from_server(request: PluginRequest, sessions: McpSessions) -> PluginResponse:
    """Answer a storage request of the hub with the resources of an MCP server.

    request: storage_list or storage_read. The response to any other storage request is an error.
    sessions: the plugin's MCP sessions with the server. Only `main` is used.
    Returns an error response if the request fails. Raises nothing.
    """
    kind = request.WhichOneof("request") or ""
    try:
        client = sessions.main
        if kind == "storage_list":
            query = request.storage_list
            meta = sessions.forwarded_meta(request.path)
            return await _list(client, query.prefix, query.pattern, meta)
        if kind == "storage_read":
            params = {"uri": request.storage_read.path}
            meta = sessions.forwarded_meta(request.path) | trace_of(request)
            return _read(
                await client.request("resources/read", params, into=ReadResourceResult, meta=meta)
            )
        raise StorageError("storage_error", READ_ONLY)
    except StorageError as exc:
        return storage_failure("", kind, exc.code, str(exc))
    except ConcertinoError as exc:
        # The error codes for a missing resource: in MCP 2026-07-28, and in earlier revisions.
        is_missing = isinstance(exc, RpcError) and exc.code in (-32602, -32002)
        return storage_failure("", kind, "not_found" if is_missing else "storage_error", str(exc))


async def _list(
    client: Client, prefix: str, pattern: str, meta: Mapping[str, object]
) -> PluginResponse:
    """Return the response with the server's resources whose URIs match, and its templates.

    prefix: the beginning of the URIs.
    pattern: a glob for the part of the URI after the last slash; empty for all URIs.
    meta: the `_meta` of the requests to the server.
    """

    async def fetch(method: str, into: Any, cursor: str | None) -> Any:
        params = {} if cursor is None else {"cursor": cursor}
        return await client.request(method, params, into=into, meta=meta)

    resources = await list_or_nothing(
        read_all_pages(LIST, partial(fetch, LIST, ListResourcesResult), lambda page: page.resources)
    )
    templates = await list_or_nothing(
        read_all_pages(
            TEMPLATES,
            partial(fetch, TEMPLATES, ListResourceTemplatesResult),
            lambda page: page.resource_templates,
        )
    )
    matches = compile_pattern(pattern).fullmatch if pattern else _match_all
    entries = [
        StorageEntry(
            path=resource.uri,
            size=int(resource.size or 0),
            version=VERSION,
            resource_json=encode(resource),
        )
        for resource in resources
        if resource.uri.startswith(prefix) and matches(resource.uri.rpartition("/")[2])
    ]
    return PluginResponse(
        storage_list=StorageListResponse(
            entries=entries, templates_json=[encode(template) for template in templates]
        )
    )


def _match_all(name: str) -> bool:
    return True


def _read(result: ReadResourceResult) -> PluginResponse:
    """Return the response with the contents of a resource.

    A resource may have several contents. The field `content` of the response, which all programs
    read, has only the first one. The field `contents_json`, which programs of this package read,
    has all.
    """
    if not result.contents:
        raise ResourceNotFound
    first = result.contents[0]
    content = first.text.encode() if first.text is not UNSET else b""
    if first.blob is not UNSET:
        content = first.blob
    metadata = {"uri": first.uri, "mimeType": first.mime_type or ""}
    return PluginResponse(
        storage_read=StorageReadResponse(
            content=content,
            metadata=encode_struct(metadata),
            version=VERSION,
            contents_json=encode(result.contents),
        )
    )


# The hub's side

AskPlugin = Callable[[], Awaitable[PluginResponse]]


async def answer_from_plugins(
    request: PluginRequest, plugins: Sequence[AskPlugin]
) -> PluginResponse:
    """Answer a storage request with the resources of all plugins that offer MCP servers.

    request: storage_list or storage_read. The response to any other storage request is an error.
    plugins: a function for each plugin, in the order of the plugins file, which sends the request
        to the plugin and returns the plugin's response.
    Returns for storage_list: the lists of all plugins as one list. For storage_read: the content
    from the first plugin that has the resource, or else the error response of the last plugin.
    """
    id, kind = request.request_id, request.WhichOneof("request") or ""
    if kind == "storage_list":
        return _join(id, await asyncio.gather(*(ask() for ask in plugins)))
    if kind != "storage_read":
        return storage_failure(id, kind, "storage_error", READ_ONLY)
    response = storage_failure(id, kind, "storage_not_found", "no plugin has resources")
    for ask in plugins:
        response = await ask()
        if response.HasField("storage_read") and not response.storage_read.HasField("failure"):
            break
    return response


def _join(id: str, responses: Sequence[PluginResponse]) -> PluginResponse:
    """Return one response with the lists in the responses of several plugins, sorted by URI.

    Error responses are ignored. If two plugins have a resource with the same URI, the result has
    the resource of the first plugin.
    """
    entries: dict[str, StorageEntry] = {}
    templates: dict[bytes, None] = {}
    for response in responses:
        for entry in response.storage_list.entries:
            entries.setdefault(entry.path, entry)
        templates |= dict.fromkeys(response.storage_list.templates_json)
    joined = StorageListResponse(
        entries=[entries[path] for path in sorted(entries)], templates_json=list(templates)
    )
    return PluginResponse(request_id=id, storage_list=joined)
