"""NatsStorage: a store in a key-value bucket of a NATS cluster, for plugins on several machines.

    storage = NatsStorage("tls://a,b,c", "storage.nats", certificates, replicas=3)

A plugin offers the store to other plugins through a hub. A document is one value of the bucket, so
content, metadata and version change together. All workers of the plugin, its processes in the
cluster, may write. A write succeeds only if no other worker has written the document since the
writer has read the version. storage.py defines the interface, Storage, and its rules.

The *version* of a document counts the writes of this document. The *revision* of a value counts all
writes to the bucket. The NATS server compares the revision before it stores a value.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from threading import Lock
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.json import Decoder, encode

from concertino.decode_errors import DECODE_ERRORS
from concertino.nats.blocking import BlockingNats
from concertino.nats.bucket import (
    MAX_VALUE_BYTES,
    Bucket,
    BucketError,
    decode_key,
    encode_key,
)
from concertino.nats.servers import parse_servers
from concertino.orchestra.certificates import Certificates
from concertino.orchestra.nats_buckets import bucket_name
from concertino.orchestra.nats_cluster import nats_options
from concertino.orchestra.storage import (
    UPSERT,
    StorageEntry,
    StorageError,
    StoredDocument,
    clean_folder,
    clean_path,
    compile_pattern,
    encode_metadata,
    missing_document,
    next_version,
)

__all__ = ["NatsStorage"]

log = logging.getLogger("concertino.orchestra")

# How often a write or a deletion is tried while other workers write the same document. A write that
# expects a version fails as soon as another worker has written the document.
TRIES = 32
# For how many documents the last write of this process is remembered.
MAX_REMEMBERED = 4096
# How many documents list() fetches at once. The number is small, because each document may have
# MAX_VALUE_BYTES.
BATCH = 16


class _Head(Struct):
    """The beginning of a value in the bucket: one line of JSON before the document's content.

    version: the version of the document.
    modified_at: when the document was written, in seconds since 1970.
    """

    version: int
    modified_at: float
    metadata: dict[str, Any]


_decode_head = Decoder(_Head).decode


class NatsStorage:
    """Implements Storage (storage.py) with a bucket of a NATS cluster, a key-value store.

        storage = NatsStorage("tls://a,b,c", "storage.nats", certificates, replicas=3)
        storage.write("notes/a.md", b"text", {"title": "A"}, CREATE)    # 1, the version

    Creates the bucket if it does not exist.

    address: the NATS servers, such as `tls://a,b,c` or `nats://HOST:PORT`.
    name: the id of the plugin. Each plugin has one bucket.
    certificates: required for an address with `tls://`; None otherwise.
    replicas: on how many servers each document of a new bucket is stored: 1, 3 or 5. A bucket that
        exists keeps its number.
    Raises StorageError if the bucket cannot be reached or created. If the servers allow only hubs
    to create buckets, the operator must create it first (`concertino cluster buckets`). Raises
    ValueError for a malformed address, and the exceptions of nats_options().
    """

    def __init__(
        self,
        address: str,
        name: str,
        certificates: Certificates | None = None,
        *,
        replicas: int = 1,
    ) -> None:
        servers = parse_servers(address)
        nats = BlockingNats(servers, nats_options(servers, name, certificates))
        self._bucket = Bucket(nats, bucket_name(name), replicas=replicas, owner=name)
        # Path -> (revision, version) that the last write of this process has created. With them,
        # the next write of the document need not read the document first. If another process has
        # written it since then, the revision differs, and the server refuses the write.
        self._own_writes: OrderedDict[str, tuple[int, int]] = OrderedDict()
        self._lock = Lock()
        # Read any key. This creates the bucket, or fails now if the bucket cannot be reached.
        with _convert_errors():
            self._bucket.get("-")

    def read(self, path: str) -> StoredDocument:
        path = "/".join(clean_path(path))
        with _convert_errors():
            value = self._bucket.get(encode_key(path))
        if value.data is None:
            raise missing_document(path)
        head, content = _split(path, value.data)
        return StoredDocument(content, head.metadata, head.version)

    def write(
        self,
        path: str,
        content: bytes,
        metadata: Mapping[str, Any],
        expected_version: int,
    ) -> int:
        path = "/".join(clean_path(path))
        members = encode_metadata(path, metadata)
        key = encode_key(path)
        for _ in range(TRIES):
            revision, before = self._find(path, key, expected_version)
            version = next_version(path, before, expected_version)
            data = _join(version, members, content)
            if len(data) > MAX_VALUE_BYTES:
                raise StorageError(
                    "too_large", f"{path}: {len(data)} bytes; the limit is {MAX_VALUE_BYTES}"
                )
            with _convert_errors():
                stored = self._bucket.put(key, data, revision)
            if stored is not None:
                self._remember(path, stored, version)
                return version
        raise StorageError("conflict", f"{path}: others write it all the time; try again")

    def _find(self, path: str, key: str, expected_version: int) -> tuple[int, int]:
        """Return (revision, version) of a document.

        If there is no document, the version is 0, and the revision is that of its deletion, or 0.
        path, key: the path of the document, and its key in the bucket.
        expected_version: the version that the document must have, or CREATE or UPSERT.
        """
        # The numbers of the last write of this process may be old. So use them only once: after a
        # conflict, the next attempt reads the document.
        with self._lock:
            own_write = self._own_writes.pop(path, None)
        if own_write is not None:
            _, version = own_write
            # If the caller expects another version, another process may have written it.
            if expected_version in (UPSERT, version):
                return own_write
        with _convert_errors():
            current = self._bucket.get(key)
        before = 0 if current.data is None else _split(path, current.data)[0].version
        return current.revision, before

    def _remember(self, path: str, revision: int, version: int) -> None:
        """Remember the numbers of this process's last write to a path, for _find()."""
        with self._lock:
            self._own_writes[path] = revision, version
            self._own_writes.move_to_end(path)
            if len(self._own_writes) > MAX_REMEMBERED:
                self._own_writes.popitem(last=False)

    def delete(self, path: str) -> None:
        path = "/".join(clean_path(path))
        key = encode_key(path)
        with self._lock:
            self._own_writes.pop(path, None)
        for _ in range(TRIES):
            with _convert_errors():
                value = self._bucket.get(key)
                if value.data is None:
                    raise missing_document(path)
                if self._bucket.delete(key, value.revision):
                    return
        raise StorageError("conflict", f"{path}: others write it all the time; try again")

    def list(self, prefix: str, pattern: str) -> list[StorageEntry]:
        prefix = clean_folder(prefix)
        matches = compile_pattern(pattern).fullmatch
        with _convert_errors():
            keys: list[str] = []
            for key in self._bucket.list_keys():
                path = decode_key(key)
                if path.startswith(prefix) and matches(path.rpartition("/")[2]):
                    keys.append(key)
            entries: list[StorageEntry] = []
            for start in range(0, len(keys), BATCH):
                batch = keys[start : start + BATCH]
                for key, value in zip(batch, self._bucket.get_all(batch), strict=True):
                    entry = None if value.data is None else _entry_of(decode_key(key), value.data)
                    if entry is not None:
                        entries.append(entry)
        return sorted(entries, key=lambda entry: entry.path)

    def close(self) -> None:
        self._bucket.close()


def _join(version: int, metadata: bytes, content: bytes) -> bytes:
    """Return a document as a value of the bucket.

    metadata: a JSON object.
    """
    now = datetime.now(UTC).timestamp()
    head = encode({"version": version, "modified_at": now, "metadata": msgspec.Raw(metadata)})
    return b"%b\n%b" % (head, content)


def _split(path: str, data: bytes) -> tuple[_Head, bytes]:
    """Return the head and the content of a value. Raises StorageError if it is not a document."""
    head, _, content = data.partition(b"\n")
    try:
        return _decode_head(head), content
    except DECODE_ERRORS as exc:
        raise StorageError("storage_error", f"{path}: the value cannot be read: {exc}") from None


def _entry_of(path: str, data: bytes) -> StorageEntry | None:
    """Return the entry of a document in a list; None for a value that is not a document."""
    # Another plugin can cause such a value (nats_permissions.py), which must not make list() fail.
    try:
        head, content = _split(path, data)
    except StorageError as exc:
        log.warning("%s", exc)
        return None
    modified_at = datetime.fromtimestamp(head.modified_at, UTC)
    return StorageEntry(path, len(content), head.version, modified_at)


@contextmanager
def _convert_errors() -> Generator[None, None, None]:
    """Raise StorageError for a BucketError in this `with` block."""
    try:
        yield
    except BucketError as exc:
        raise StorageError("storage_error", str(exc)) from None
