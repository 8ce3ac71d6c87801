"""NatsStorage: a store in a key-value bucket of a NATS cluster, for plugins on several machines.

    storage = NatsStorage("tls://a,b,c", "storage.nats", certificates, replicas=3)

A plugin offers the store to other plugins through a hub. A document is one value of the bucket, so
content, metadata and version change together. All workers of the plugin, its processes in the
cluster, may write: a write succeeds only if no other worker has written the document since the
writer has read its version. storage.py defines the interface, Storage, and its rules.

Two numbers must not be confused. The *version* of a document counts its writes. The *revision* of a
value counts all writes to the bucket, and the server compares it before it stores a value.
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
    check_pattern,
    clean_folder,
    clean_path,
    encode_metadata,
    matcher,
    missing_document,
    next_version,
)

__all__ = ["NatsStorage"]

log = logging.getLogger("concertino.orchestra")

# How often a write for which any version is fine (UPSERT), or a deletion, is tried while other
# workers write the same document.
TRIES = 32
# For how many documents the last write of this process is remembered.
MAX_REMEMBERED = 4096
# How many documents list() fetches at once. It is small, because each may have MAX_VALUE_BYTES.
BATCH = 16


class _Head(Struct):
    """The beginning of a value in the bucket: one line of JSON before the document's content.

    version: the version of the document.
    modified_at: when the document was written, in seconds since the epoch.
    """

    version: int
    modified_at: float
    metadata: dict[str, Any]


_decode_head = Decoder(_Head).decode


class NatsStorage:
    """A Storage in a bucket of a NATS cluster. The constructor creates the bucket if necessary.

        storage = NatsStorage("tls://a,b,c", "storage.nats", certificates, replicas=3)
        version = storage.write("notes/a.md", b"text", {"title": "A"}, CREATE)

    If the servers allow only the user of a hub to create buckets, the constructor fails until the
    operator has created the bucket (`concertino cluster buckets`).

    address: the NATS servers, such as `tls://a,b,c` or `nats://HOST:PORT`.
    name: the id of the plugin. Each plugin has one bucket.
    certificates: required for an address with `tls://`; None otherwise.
    replicas: on how many servers each document is stored: 1, 3 or 5. It has an effect only if the
        bucket does not exist yet.
    The constructor raises StorageError if the bucket cannot be reached, and ValueError for a
    malformed address, or if the key file in CONCERTINO_CLUSTER_SEED cannot be used. It also raises
    OSError, CertificateError and ImportError.
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
        server = BlockingNats(servers, nats_options(servers, name, certificates))
        self._bucket = Bucket(server, bucket_name(name), replicas=replicas, owner=name)
        # Path -> the revision and version that the last write of this process has created. The next
        # write of the document need not read it first, but assumes that no other process has
        # written it since then. If one has, the server refuses the write, because the revision
        # differs.
        self._written: OrderedDict[str, tuple[int, int]] = OrderedDict()
        self._lock = Lock()
        # Read any key, to create the bucket and to report now that it cannot be reached.
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
        """Return the revision and the version of a document; the version is 0 if there is none.

        If this process has written the document before, this method returns the numbers of its last
        write, without reading the document. They may be old, so they are used only once: after a
        conflict, the next attempt reads the document.
        path, key: the path of the document, and its key in the bucket.
        expected_version: the version that the document must have, or CREATE or UPSERT.
        """
        with self._lock:
            written = self._written.pop(path, None)
        # written[1] is the version. If the caller expects another version, another process may have
        # written it, so the document must be read.
        if written is not None and expected_version in (UPSERT, written[1]):
            return written
        with _convert_errors():
            current = self._bucket.get(key)
        before = 0 if current.data is None else _split(path, current.data)[0].version
        return current.revision, before

    def _remember(self, path: str, revision: int, version: int) -> None:
        """Remember what this process has written last to a path, for _find()."""
        with self._lock:
            self._written[path] = revision, version
            self._written.move_to_end(path)
            if len(self._written) > MAX_REMEMBERED:
                self._written.popitem(last=False)

    def delete(self, path: str) -> None:
        path = "/".join(clean_path(path))
        key = encode_key(path)
        with self._lock:
            self._written.pop(path, None)
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
        matches = matcher(check_pattern(pattern)).fullmatch
        with _convert_errors():
            keys = [
                key
                for key in self._bucket.list_keys()
                if (path := decode_key(key)).startswith(prefix) and matches(path.rpartition("/")[2])
            ]
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
    """Return a document as a value of the bucket. metadata: a JSON object."""
    now = datetime.now(UTC).timestamp()
    head = encode({"version": version, "modified_at": now, "metadata": msgspec.Raw(metadata)})
    return b"%b\n%b" % (head, content)


def _split(path: str, data: bytes) -> tuple[_Head, bytes]:
    """Return the head and the content of a value. Raises StorageError."""
    head, _, content = data.partition(b"\n")
    try:
        return _decode_head(head), content
    except DECODE_ERRORS as exc:
        raise StorageError("storage_error", f"{path}: the value cannot be read: {exc}") from None


def _entry_of(path: str, data: bytes) -> StorageEntry | None:
    """Return the entry of a document in a list; None for a value that is no document.

    Another plugin can cause such a value (nats_permissions.py), which must not make list() fail.
    """
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
