"""nats/bucket.py and nats/blocking.py with real servers; nats-py is the counterpart."""

from __future__ import annotations

import asyncio
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import nats
import pytest
from nats.js.errors import KeyWrongLastSequenceError
from orchestra.nats_servers import NatsServerProcess, jetstream_server, shared_nats_server

from concertino.errors import Disconnected
from concertino.nats.blocking import BlockingNats, Request
from concertino.nats.bucket import (
    MAX_VALUE_BYTES,
    Bucket,
    BucketError,
    Value,
    decode_key,
    encode_key,
)
from concertino.nats.protocol import status_of
from concertino.nats.servers import NatsOptions, parse_servers

_count = iter(range(1_000_000))


def client(address: str) -> BlockingNats:
    return BlockingNats(parse_servers(address), NatsOptions("test"))


@pytest.fixture
def bucket() -> Iterator[Bucket]:
    made = Bucket(client(jetstream_server().address), f"test{next(_count)}")
    yield made
    made.close()


def test_values_are_stored_compared_and_deleted(bucket: Bucket) -> None:
    assert bucket.get("a") == Value(None, 0)
    first = bucket.put("a", b"one", 0)
    assert first is not None
    assert bucket.put("a", b"other", 0) is None
    assert bucket.get("a") == Value(b"one", first)
    second = bucket.put("a", b"two", first)
    assert second is not None
    assert bucket.put("a", b"late", first) is None
    assert not bucket.delete("a", first)
    assert bucket.delete("a", second)
    assert bucket.get("a").data is None
    assert bucket.put("a", b"new", bucket.get("a").revision) is not None
    assert bucket.put("b", b"any") is not None
    assert bucket.list_keys() == ["a", "b"]
    values = bucket.get_all(["b", "none", "a"])
    assert [value.data for value in values] == [b"any", None, b"new"]


def test_a_value_that_no_server_accepts_is_refused_before_it_is_sent(bucket: Bucket) -> None:
    largest = bytes(MAX_VALUE_BYTES)
    assert bucket.put("a", largest, 0) is not None
    assert bucket.get("a").data == largest
    with pytest.raises(BucketError, match="at most 1047552 fit"):
        bucket.put("b", largest + b"x", 0)


@pytest.mark.parametrize("text", ["a", "notes/a b.md", "ä=é", "..", "*.>", "a\tb", "=41"])
def test_every_text_is_a_key_that_nats_py_accepts_too(bucket: Bucket, text: str) -> None:
    key = encode_key(text)
    assert decode_key(key) == text
    assert bucket.put(key, b"x", 0) is not None
    assert bucket.list_keys() == [key]


def test_nats_py_reads_and_writes_the_same_bucket() -> None:
    name = f"both{next(_count)}"
    ours = Bucket(client(jetstream_server().address), name)
    first = ours.put("k", b"ours", 0)
    assert first is not None

    async def theirs() -> int:
        connection = await nats.connect(jetstream_server().address)
        store = await connection.jetstream().key_value(name)
        entry = await store.get("k")
        assert (entry.value, entry.revision) == (b"ours", first)
        with pytest.raises(KeyWrongLastSequenceError):
            await store.update("k", b"wrong", last=first + 5)
        revision = await store.update("k", b"theirs", last=first)
        await store.delete("gone")
        await connection.close()
        return revision

    revision = asyncio.run(theirs())
    assert ours.get("k") == Value(b"theirs", revision)
    assert ours.get("gone").data is None
    ours.close()


def test_exactly_one_of_many_threads_creates_a_key() -> None:
    # Started here, since each thread would start one.
    address = jetstream_server().address
    name = f"race{next(_count)}"
    winners: list[int] = []
    barrier = threading.Barrier(8)

    def create(number: int) -> None:
        bucket = Bucket(client(address), name)
        bucket.get("warm")
        barrier.wait()
        if bucket.put("key", b"%d" % number, 0) is not None:
            winners.append(number)
        bucket.close()

    threads = [threading.Thread(target=create, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(winners) == 1


class Operations:
    """A record of long operations (MCP "Explicit State Handles"), as a front end would have one.

    Each front end has its own connection. The one that runs an operation writes its status; every
    one can read and cancel it. Only put() with the revision that was read changes a status, so an
    operation has exactly one end.
    """

    def __init__(self, address: str, name: str, kept_s: float = 600) -> None:
        self.bucket = Bucket(client(address), name, max_age_s=kept_s)

    def begin(self, handle: str) -> bool:
        return self.bucket.put(encode_key(handle), b"in_progress", 0) is not None

    def status(self, handle: str) -> str | None:
        data = self.bucket.get(encode_key(handle)).data
        return None if data is None else data.decode()

    def change(self, handle: str, status: str) -> bool:
        """Set the status of an operation that is in progress. Returns whether it was that."""
        key = encode_key(handle)
        while "progress" in ((value := self.bucket.get(key)).data or b"").decode():
            if self.bucket.put(key, status.encode(), value.revision) is not None:
                return True
        return False


def test_two_front_ends_share_a_store_of_long_operations() -> None:
    address, name = jetstream_server().address, f"operations{next(_count)}"
    runs, other = Operations(address, name), Operations(address, name)
    assert runs.begin("handle/1")
    # A handle belongs to one operation, whichever front end makes it.
    assert not other.begin("handle/1")
    assert other.status("handle/1") == "in_progress"
    assert other.status("unknown") is None
    assert runs.change("handle/1", "progress 1 of 2")
    assert other.status("handle/1") == "progress 1 of 2"

    # One front end reports progress and finishes, while the client cancels at the other one.
    ends: list[str] = []
    barrier = threading.Barrier(2)

    def end(operations: Operations, *statuses: str) -> None:
        barrier.wait()
        for status in statuses:
            if operations.change("handle/1", status) and not status.startswith("progress"):
                ends.append(status)

    threads = [
        threading.Thread(target=end, args=(runs, *["progress"] * 20, "completed")),
        threading.Thread(target=end, args=(other, "cancelled")),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert ends == [runs.status("handle/1")] == [other.status("handle/1")]
    assert not runs.change("handle/1", "completed late")
    runs.bucket.close()
    other.bucket.close()


def test_a_store_of_long_operations_forgets_old_results() -> None:
    address, name = jetstream_server().address, f"operations{next(_count)}"
    runs, other = Operations(address, name, kept_s=0.2), Operations(address, name, kept_s=0.2)
    assert runs.begin("handle")
    until = time.monotonic() + 30
    while other.status("handle") is not None:
        assert time.monotonic() < until
        time.sleep(0.05)
    # The handle is unknown to all, as if there had been no such operation.
    assert not runs.change("handle", "completed")
    assert not other.change("handle", "cancelled")
    runs.bucket.close()
    other.bucket.close()


def test_without_jetstream_the_error_says_so() -> None:
    bucket = Bucket(client(shared_nats_server().address), "x")
    with pytest.raises(BucketError, match="JetStream is not available"):
        bucket.get("a")
    bucket.close()


def test_a_server_that_was_killed_is_used_again_and_has_lost_nothing() -> None:
    with tempfile.TemporaryDirectory(prefix="nats") as folder:
        settings = f'jetstream {{ store_dir: "{folder}/store" }}'
        server = NatsServerProcess(Path(folder), settings)
        bucket = Bucket(client(server.address), "kept")
        try:
            assert bucket.put("a", b"one", 0) is not None
            server.stop()
            with pytest.raises(BucketError):
                bucket.get("a")
            server.start()
            while True:
                try:
                    assert bucket.get("a").data == b"one"
                    break
                except BucketError:
                    continue
        finally:
            bucket.close()
            server.stop()


def test_a_connection_that_the_server_has_ended_while_it_was_idle_is_replaced(
    tmp_path: Path,
) -> None:
    # The server ends connections that do not answer its pings. "debug" makes it log that.
    settings = 'ping_interval: "50ms"\nping_max: 1\ndebug: true'
    server = NatsServerProcess(tmp_path, settings)
    blocking = client(server.address)
    try:
        [before] = blocking.request_all([Request("nobody")], 20.0)
        wait_for_line(tmp_path / "server.log", "Client connection closed")
        [after] = blocking.request_all([Request("nobody")], 20.0)
    finally:
        blocking.close()
        server.stop()
    assert status_of(before) == status_of(after) == 503


def wait_for_line(path: Path, text: str) -> None:
    until = time.monotonic() + 20
    while text not in path.read_text():
        assert time.monotonic() < until, path.read_text()
        time.sleep(0.01)


def test_an_address_without_a_server_fails_at_once_the_second_time() -> None:
    server = client("nats://127.0.0.1:1")
    for _ in range(2):
        with pytest.raises(Disconnected, match=r"127\.0\.0\.1:1: Connection refused"):
            server.request_all([Request("x")], 1.0)
