"""answer_storage(): answers the storage requests that a hub sends to a plugin.

A plugin may provide stores of documents (storage.py), which other plugins use through the hub.
PluginRequests (plugin_requests.py) calls answer_storage(), which calls the plugin's store of the
requested type. The methods of a store may block, so they run in threads.
Source: the Orchestra plugin protocol, "Storage".
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime
from functools import partial
from typing import Any

from concertino.orchestra.failures import storage_failure
from concertino.orchestra.plugin_messages import (
    PluginRequest,
    PluginResponse,
    StorageDeleteResponse,
    StorageEntry,
    StorageListResponse,
    StorageReadResponse,
    StorageWriteResponse,
    Timestamp,
)
from concertino.orchestra.storage import DEFAULT_STORAGE, Storage, StorageError
from concertino.orchestra.structs import InvalidStruct, NotAStruct, PackedTooLarge, pack, unpack

__all__ = ["InThread", "answer_storage"]

log = logging.getLogger("concertino.orchestra.storage")

# The type of a function that runs another function in a thread, and returns its result.
InThread = Callable[[Callable[[], Any]], Awaitable[Any]]


async def answer_storage(
    request: PluginRequest, storages: Mapping[str, Storage], in_thread: InThread
) -> PluginResponse:
    """Answer a storage_read, storage_write, storage_delete or storage_list request.

    storages: storage type -> the plugin's store for this type.
    in_thread: runs a function in a thread, and returns the function's result.
    Returns a response with the error if the request fails. Raises nothing.
    """
    kind = request.WhichOneof("request") or ""
    content: Any = getattr(request, kind)
    storage_type = content.storage_type or DEFAULT_STORAGE
    try:
        storage = storages.get(storage_type)
        if storage is None:
            existing = ", ".join(map(repr, storages)) or "none"
            raise StorageError(
                "storage_error",
                f"there is no storage of type {storage_type!r} here; there is {existing}",
            )
        return await in_thread(partial(_HANDLERS[kind], content, storage))
    except StorageError as exc:
        return storage_failure("", kind, exc.code, str(exc))
    # MarkdownStorage imports a YAML package on first use, and the package may not be installed.
    except ImportError as exc:
        return storage_failure("", kind, "storage_error", str(exc))
    except (NotAStruct, InvalidStruct, PackedTooLarge) as exc:
        return storage_failure("", kind, "invalid_metadata", str(exc))
    except Exception as exc:
        log.exception("%s failed", kind)
        return storage_failure("", kind, "storage_error", f"{kind} failed: {type(exc).__name__}")


def _read(request: Any, storage: Storage) -> PluginResponse:
    document = storage.read(request.path)
    metadata = pack(document.metadata)
    response = StorageReadResponse(
        content=document.content,
        metadata=metadata.struct,
        metadata_json=metadata.json,
        version=document.version,
    )
    return PluginResponse(storage_read=response)


def _write(request: Any, storage: Storage) -> PluginResponse:
    metadata = unpack(request.metadata, request.metadata_json)
    version = storage.write(request.path, request.content, metadata, request.expected_version)
    return PluginResponse(storage_write=StorageWriteResponse(success=True, new_version=version))


def _delete(request: Any, storage: Storage) -> PluginResponse:
    storage.delete(request.path)
    return PluginResponse(storage_delete=StorageDeleteResponse(success=True))


def _list(request: Any, storage: Storage) -> PluginResponse:
    entries = [
        StorageEntry(
            path=entry.path,
            size=entry.size,
            version=entry.version,
            modified_at=_timestamp(entry.modified_at),
        )
        for entry in storage.list(request.prefix, request.pattern)
    ]
    return PluginResponse(storage_list=StorageListResponse(entries=entries))


def _timestamp(when: datetime) -> Timestamp:
    timestamp = Timestamp()
    timestamp.FromDatetime(when)
    return timestamp


_HANDLERS = {
    "storage_read": _read,
    "storage_write": _write,
    "storage_delete": _delete,
    "storage_list": _list,
}
