"""Converts MCP requests for resources to requests of the plugin protocol, and their responses back.

A hub forwards requests to plugins, which may store documents or offer an MCP server. MCP clients of
the hub see these documents, and the resources of these MCP servers, as resources. HubBackend
(hub_backend.py), an MCP server in front of a hub, calls these functions, sends the requests and
receives the responses.

    resources/list   StorageListRequest: one request for each of the directories features/, notes/
                     and docs/, and one with the storage type RESOURCES for all MCP servers
    resources/read   StorageReadRequest: orchestra://features/ID is the document features/ID.md;
                     any other URI belongs to an MCP server

Sources: the Orchestra plugin protocol, "transport.stdio"; 2026-07-28 server/resources.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import TypeVar
from urllib.parse import quote, unquote_to_bytes

from msgspec.json import Decoder

from concertino.decode_errors import DECODE_ERRORS
from concertino.errors import INTERNAL_ERROR, INVALID_PARAMS, ResourceNotFound, RpcError
from concertino.orchestra.plugin_messages import (
    PluginRequest,
    PluginResponse,
    StorageEntry,
    StorageListRequest,
    StorageListResponse,
    StorageReadRequest,
    StorageReadResponse,
)
from concertino.orchestra.storage import RESOURCES, StorageError, check_path
from concertino.orchestra.translation import Params, read_response
from concertino.types.resources_and_prompts import Resource, ResourceTemplate
from concertino.types.results import ReadResourceResult, ResourceContents

__all__ = [
    "EXTENSION",
    "KINDS",
    "SCHEME",
    "TEMPLATES",
    "list_of",
    "list_request",
    "read_request",
    "read_result",
    "resources_of",
    "server_list_request",
    "server_resources_of",
    "server_templates_of",
]

log = logging.getLogger("concertino.orchestra.translation")

# The beginning of the URIs of stored documents, and the end of their paths in storage.
SCHEME = "orchestra://"
EXTENSION = ".md"
# The directories of storage whose documents are resources, in the order of resources/list.
KINDS = ("features", "notes", "docs")
MARKDOWN = "text/markdown"
# The longest URI in characters. A path of 4096 bytes fits even if each byte is percent-encoded.
MAX_URI = 16384
# The error codes of a hub without storage: of this package, and of the Go implementation.
NO_STORAGE = ("storage_not_found", "routing_error")

T = TypeVar("T")

_parse_text = Decoder(str).decode
_parse_resource = Decoder(Resource).decode
_parse_template = Decoder(ResourceTemplate).decode
_parse_contents = Decoder(list[ResourceContents]).decode

TEMPLATES = [
    ResourceTemplate(
        f"{SCHEME}{kind}/{{id}}",
        kind,
        description=f"Of {kind}/ in storage, by id",
        mime_type=MARKDOWN,
    )
    for kind in KINDS
]


def list_request(kind: str) -> PluginRequest:
    """Return the request for the list of the stored documents in one directory.

    kind: the directory, one of KINDS.
    """
    return PluginRequest(storage_list=StorageListRequest(prefix=f"{kind}/"))


def server_list_request() -> PluginRequest:
    """Return the request for the resources and templates of the MCP servers behind a hub."""
    return PluginRequest(storage_list=StorageListRequest(storage_type=RESOURCES))


def list_of(response: PluginResponse) -> StorageListResponse:
    """Return the list in the response to a request of list_request() or server_list_request().

    The list is empty if no plugin provides the storage type that the request names. Raises RpcError
    for any other error.
    """
    if response.HasField("tool_call") and response.tool_call.error_code in NO_STORAGE:
        log.debug("no resources: %s", response.tool_call.error_message)
        return StorageListResponse()

    found: StorageListResponse = read_response(response, "storage_list")
    if found.HasField("failure"):
        if found.failure.code in NO_STORAGE:
            log.debug("no resources: %s", found.failure.message)
            return StorageListResponse()
        raise RpcError(INTERNAL_ERROR, f"storage: {found.failure.message or found.failure.code}")
    return found


def server_resources_of(found: StorageListResponse) -> list[Resource]:
    """Return the resources of MCP servers in a list. Leaves out invalid resources.

    found: the list in the response to a request of server_list_request().
    """
    return _decode_all((entry.resource_json for entry in found.entries), _parse_resource)


def server_templates_of(found: StorageListResponse) -> list[ResourceTemplate]:
    """Return the resource templates of MCP servers in a list. Leaves out invalid templates.

    found: the list in the response to a request of server_list_request().
    """
    return _decode_all(found.templates_json, _parse_template)


def _decode_all(texts: Iterable[bytes], parse: Callable[[bytes], T]) -> list[T]:
    """Parse JSON texts of MCP servers. Logs and leaves out invalid texts."""
    decoded: list[T] = []
    for text in texts:
        try:
            decoded.append(parse(text))
        except DECODE_ERRORS as exc:
            log.warning("a resource of an MCP server is left out: %s", exc)
    return decoded


def resources_of(entries: Iterable[StorageEntry], kind: str) -> list[Resource]:
    """Return the stored documents of one directory as MCP resources, sorted by path.

    entries: the entries of the list in the response to a request of list_request().
    kind: the directory, one of KINDS. Documents outside this directory are left out.
    """
    by_path = {entry.path: entry for entry in entries}
    resources: list[Resource] = []
    for path, entry in sorted(by_path.items()):
        folder, _, name = path.partition("/")
        id = name.removesuffix(EXTENSION)
        if folder == kind and id:
            uri = f"{SCHEME}{kind}/{quote(id, safe='/')}"
            resources.append(Resource(uri, id, mime_type=MARKDOWN, size=entry.size or None))
    return resources


def read_request(params: Params) -> tuple[str, PluginRequest]:
    """Return the URI in a client's resources/read, and the request to the hub for its content.

    params: the params of the MCP request.
    Raises RpcError if they are invalid.
    """
    if "uri" not in params:
        raise RpcError(INVALID_PARAMS, "resources/read params.uri: expected a URI, got none")
    try:
        uri = _parse_text(params["uri"])
    except DECODE_ERRORS as exc:
        raise RpcError(
            INVALID_PARAMS, f"resources/read params.uri: expected a text: {exc}"
        ) from None
    if len(uri) > MAX_URI:
        raise _invalid_uri(uri)
    if uri.startswith(SCHEME):
        return uri, PluginRequest(storage_read=StorageReadRequest(path=_storage_path(uri)))
    return uri, PluginRequest(storage_read=StorageReadRequest(path=uri, storage_type=RESOURCES))


def _invalid_uri(uri: str) -> RpcError:
    """Return the error for a URI that is not the URI of a stored document."""
    expected = " or ".join(f"{SCHEME}{kind}/ID" for kind in KINDS)
    return RpcError(INVALID_PARAMS, f"uri: expected {expected}, got {uri[:200]!r}")


def _storage_path(uri: str) -> str:
    """Return the path in storage of the document with a URI that begins with SCHEME.

    Raises RpcError for an invalid URI.
    """
    kind, _, id = uri.removeprefix(SCHEME).partition("/")
    if kind not in KINDS or not id:
        raise _invalid_uri(uri)
    try:
        path = f"{kind}/{unquote_to_bytes(id).decode()}{EXTENSION}"
        check_path(path)
    except (UnicodeError, StorageError) as exc:
        raise RpcError(INVALID_PARAMS, f"uri: {exc}") from None
    return path


def read_result(uri: str, answer: PluginResponse) -> ReadResourceResult:
    """Return the result of a client's resources/read from the response of the hub.

    uri: the URI in the client's request.
    answer: the response to the request that read_request() has returned.
    Raises ResourceNotFound if the resource does not exist, and RpcError for any other error.
    """
    # A message that is not set reads as empty, so at most one of both codes is not empty.
    codes = answer.storage_read.failure.code, answer.tool_call.error_code
    if not uri.startswith(SCHEME) and any(code in NO_STORAGE for code in codes):
        # The hub has no MCP servers, so only stored documents can be read.
        raise _invalid_uri(uri)
    response: StorageReadResponse = read_response(answer, "storage_read")
    if response.HasField("failure"):
        failure = response.failure
        if failure.code in ("not_found", "invalid_path"):
            raise ResourceNotFound(uri)
        raise RpcError(INTERNAL_ERROR, f"storage: {failure.message or failure.code}")
    if response.HasField("contents_json"):
        try:
            return ReadResourceResult(_parse_contents(response.contents_json))
        except DECODE_ERRORS as exc:
            raise RpcError(INTERNAL_ERROR, f"{uri}: its contents are invalid: {exc}") from None
    # This is the answer of a Go program if the document does not exist. A document that exists has
    # at least version 1.
    if not response.content and not response.version and not response.metadata:
        raise ResourceNotFound(uri)

    # A stored document consists of bytes. MCP distinguishes text from binary content.
    try:
        contents = ResourceContents(uri, text=response.content.decode(), mime_type=MARKDOWN)
    except UnicodeDecodeError:
        contents = ResourceContents(
            uri, blob=response.content, mime_type="application/octet-stream"
        )
    return ReadResourceResult([contents])
