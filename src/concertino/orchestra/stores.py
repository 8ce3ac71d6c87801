"""Requests of the protocol for storage, answered by the stores of a plugin.

Upstream has no word for a failed read, list or delete, and answers as if there were nothing; our own peers find `failure` beside
that. Stores may block, so they are called from threads.
Source: the Orchestra plugin protocol, "Storage".
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime
from functools import partial
from typing import Any

from concertino.orchestra.link import PluginRequest, PluginResponse
from concertino.orchestra.plugin_pb2 import (
    StorageDeleteResponse,
    StorageEntry,
    StorageFailure,
    StorageListResponse,
    StorageReadResponse,
    StorageWriteResponse,
)
from concertino.orchestra.storage import Storage, StorageError
from concertino.orchestra.structs import InvalidStruct, NotAStruct, PackedTooLarge, pack, unpack

from google.protobuf.timestamp_pb2 import Timestamp  # isort: skip  # links.py says what to install when it is missing

__all__ = ["DEFAULT", "InThread", "answer_storage"]

log = logging.getLogger("concertino.orchestra.storage")

DEFAULT = "markdown"  # the type that requests without one mean
InThread = Callable[[Callable[[], Any]], Awaitable[Any]]


async def answer_storage(
    request: PluginRequest, storages: Mapping[str, Storage], in_thread: InThread
) -> PluginResponse:
    """Answer a storage_read, _write, _delete or _list. storages: by type. in_thread: runs what may block."""
    kind = request.WhichOneof("request") or ""
    asked: Any = getattr(request, kind)
    try:
        storage = storages.get(asked.storage_type or DEFAULT)
        if storage is None:
            has = ", ".join(map(repr, storages)) or "none"
            raise StorageError(
                "storage_error",
                f"there is no storage of type {asked.storage_type or DEFAULT!r} here; there is {has}",
            )
        return await in_thread(partial(_ANSWERS[kind], asked, storage))
    except StorageError as why:
        return _failed(kind, StorageFailure(code=why.code, message=str(why)))
    except (NotAStruct, InvalidStruct, PackedTooLarge) as why:
        return _failed(kind, StorageFailure(code="invalid_metadata", message=str(why)))
    except Exception as why:
        log.exception("%s failed", kind)
        return _failed(
            kind,
            StorageFailure(code="storage_error", message=f"{kind} failed: {type(why).__name__}"),
        )


def _read(asked: Any, storage: Storage) -> PluginResponse:
    found = storage.read(asked.path)
    metadata = pack(found.metadata)
    response = StorageReadResponse(
        content=found.content,
        metadata=metadata.struct,
        metadata_json=metadata.json,
        version=found.version,
    )
    return PluginResponse(storage_read=response)


def _write(asked: Any, storage: Storage) -> PluginResponse:
    metadata = unpack(asked.metadata, asked.metadata_json)
    version = storage.write(asked.path, asked.content, metadata, asked.expected_version)
    return PluginResponse(storage_write=StorageWriteResponse(success=True, new_version=version))


def _delete(asked: Any, storage: Storage) -> PluginResponse:
    storage.delete(asked.path)
    return PluginResponse(storage_delete=StorageDeleteResponse(success=True))


def _list(asked: Any, storage: Storage) -> PluginResponse:
    entries = [
        StorageEntry(
            path=each.path,
            size=each.size,
            version=each.version,
            modified_at=_timestamp(each.modified_at),
        )
        for each in storage.list(asked.prefix, asked.pattern)
    ]
    return PluginResponse(storage_list=StorageListResponse(entries=entries))


def _timestamp(when: datetime) -> Timestamp:
    made = Timestamp()
    made.FromDatetime(when)
    return made


def _failed(kind: str, failure: StorageFailure) -> PluginResponse:
    if kind == "storage_read":
        return PluginResponse(storage_read=StorageReadResponse(failure=failure))
    if kind == "storage_write":
        return PluginResponse(storage_write=StorageWriteResponse(error=failure.message))
    if kind == "storage_delete":
        return PluginResponse(storage_delete=StorageDeleteResponse(failure=failure))
    return PluginResponse(storage_list=StorageListResponse(failure=failure))


_ANSWERS = {
    "storage_read": _read,
    "storage_write": _write,
    "storage_delete": _delete,
    "storage_list": _list,
}
