"""Formats that outlive a process: sealed request states, cache files and stores."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import inspect
import json
import os
import re
import signal
import sqlite3
import stat
import sys
import tempfile
import time
import zlib
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest
import tantivy
from contract.orchestra_programs import ask, message, pack_struct
from contract.programs import answers_by_id, call_main, command, modern, run, start

import concertino.server
from concertino import Client, Server

# Sealed request states

STATE_KEY = "a key of at least thirty-two characters"
ASKING = """
import concertino.server
server = concertino.Server("asking", version="1.0.0")
@server.tool
async def roots(context: concertino.Context) -> list[str]:
    return [root.uri for root in await context.roots()]
server.run()
"""
# [round, {key: [method, digest of the question]}, answers, what was made once, own state in base64]
CONTENT = b'[1,{"q1":["roots/list","Okv+IvFOu4ivdIvJ"]},{},{},""]'


def digest(*parts: bytes) -> bytes:
    whole = hashlib.sha256()
    for part in parts:
        whole.update(len(part).to_bytes(8, "big") + part)
    return whole.digest()


def read_state(signed: bytes) -> bytes:
    """Return the first 32 bytes of a state of the tool `roots` of the server `asking`."""
    bound = digest(b"tools/call", b'{"name":"roots"}', b"", b"asking")
    key = hmac.digest(STATE_KEY.encode(), b"concertino requestState", "sha256")
    return hmac.digest(key, bound + signed, "sha256")


def call_params(**members: Any) -> Any:
    line = modern(1, "tools/call", {"roots": {}}, name="roots", **members)
    ended = run([sys.executable, "-c", ASKING], [line], {"CONCERTINO_STATE_KEY": STATE_KEY})
    return answers_by_id(ended.out)[1]


def test_a_state_is_32_bytes_of_authentication_16_of_chance_8_of_time_and_its_content() -> None:
    answer = call_params()
    assert answer["resultType"] == "input_required"
    assert list(answer["inputRequests"]) == ["q1"]
    token = answer["requestState"]
    assert re.fullmatch("[A-Za-z0-9_-]+", token)
    raw = base64.urlsafe_b64decode(token + "=" * (-len(token) % 4))
    mac, signed = raw[:32], raw[32:]
    assert mac == read_state(signed)
    assert abs(int.from_bytes(signed[16:24], "big") / 1000 - time.time()) < 60
    assert signed[24:] == CONTENT


def test_a_state_of_another_process_with_the_same_key_is_read() -> None:
    signed = os.urandom(16) + int(time.time() * 1000).to_bytes(8, "big") + CONTENT
    token = base64.urlsafe_b64encode(read_state(signed) + signed).rstrip(b"=").decode()
    answer = call_params(
        requestState=token, inputResponses={"q1": {"roots": [{"uri": "file:///here"}]}}
    )
    assert answer["resultType"] == "complete"
    assert answer["structuredContent"] == ["file:///here"]


def test_a_key_that_is_too_short_is_named() -> None:
    line = modern(1, "tools/call", {"roots": {}}, name="roots")
    ended = run([sys.executable, "-c", ASKING], [line], {"CONCERTINO_STATE_KEY": "short"})
    assert "CONCERTINO_STATE_KEY" in ended.err + ended.out


# The cache of a library

MAGIC = b"concertino library cache\n"
VERSIONS = f"1 1 {tantivy.__version__}".encode()
DOCUMENT = {
    "uri": "orchestr8://agents/api",
    "category": "agents",
    "id": "rest",
    "title": "REST API",
    "description": "Designs interfaces.",
    "tags": ["api", "rest"],
    "capabilities": ["Designs endpoints"],
    "use_when": ["Building a service"],
    "body": "# REST API\n\nTalk about api design.\n",
    "estimated_tokens": 9,
    "related": ["orchestr8://agents/api"],
    "path": "agents/api.md",
}
TEXT = """---
id: rest
title: REST API
description: Designs interfaces.
tags: [api, rest]
capabilities: [Designs endpoints]
useWhen: [Building a service]
estimatedTokens: 9
relatedResources: ["orchestr8://agents/api"]
---
# REST API

Talk about api design.
"""


@pytest.fixture
def make_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> tuple[Path, Path]:
    """Make a library, and the cache file that a search in it leaves."""
    folder = tmp_path / "library"
    file = folder / "resources" / "agents" / "api.md"
    file.parent.mkdir(parents=True)
    file.write_text(TEXT)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert call_main(capsys, "search", folder, "api").code == 0
    [cache] = [
        path
        for path in (tmp_path / "cache" / "concertino" / "library").iterdir()
        if path.name != "work"
    ]
    return folder, cache


def test_the_cache_file_is_named_after_scheme_limit_and_folder(
    make_cache: tuple[Path, Path],
) -> None:
    folder, cache = make_cache
    name = f"orchestr8 4194304 {folder / 'resources'}".encode()
    assert cache.name == f"{hashlib.blake2b(name, digest_size=16).hexdigest()}.cache"


def test_the_cache_file_begins_with_its_kind_its_versions_and_a_check_sum(
    make_cache: tuple[Path, Path],
) -> None:
    content = make_cache[1].read_bytes()
    assert content[:25] == MAGIC
    assert content[25:33] == hashlib.blake2b(VERSIONS, digest_size=8).digest()
    assert content[33:37] == zlib.crc32(content[37:]).to_bytes(4, "big")


def test_the_cache_file_holds_documents_numbers_and_the_files_of_the_index(
    make_cache: tuple[Path, Path],
) -> None:
    folder, cache = make_cache
    documents, numbers, following, dead, files = msgspec.msgpack.decode(cache.read_bytes()[37:])
    facts = (folder / "resources" / "agents" / "api.md").stat()
    of_file = {
        "size": facts.st_size,
        "mtime_ns": facts.st_mtime_ns,
        "digest": hashlib.blake2b(TEXT.encode(), digest_size=16).hexdigest(),
    }
    assert documents == [{**DOCUMENT, **of_file}]
    assert list(documents[0]) == [*DOCUMENT, *of_file]
    assert (numbers, following, dead) == ([0], 1, 0)
    schema = json.loads(files["meta.json"])["schema"]
    assert [(field["name"], field["type"]) for field in schema] == [
        ("title", "text"),
        ("tags", "text"),
        ("purposes", "text"),
        ("text", "text"),
        ("uri", "text"),
        ("category", "text"),
        ("tag", "text"),
        ("number", "u64"),
    ]


def test_a_cache_file_in_this_format_is_read(
    make_cache: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    folder, cache = make_cache
    content = cache.read_bytes()
    payload = msgspec.msgpack.decode(content[37:])
    payload[0][0]["title"] = "Kept by the cache"
    written = msgspec.msgpack.encode(payload)
    cache.write_bytes(content[:33] + zlib.crc32(written).to_bytes(4, "big") + written)
    found = json.loads(call_main(capsys, "search", "--json", folder, "api").out)["found"]
    assert [item["title"] for item in found] == ["Kept by the cache"]


# The stores of the plugins


@pytest.fixture
def private() -> Iterator[Path]:
    """Make a folder for sockets: its name is short, and nobody else may enter it."""
    with tempfile.TemporaryDirectory(prefix="c-") as folder:
        yield Path(folder)


def ask_storage(folder: Path, words: list[str | Path], *requests: Any) -> list[Any]:
    """Return the responses of a storage plugin to requests."""
    with start(
        command("plugin", *words, "--listen-addr", f"unix:{folder}/s"), cwd=folder
    ) as plugin:
        plugin.wait_for("READY")
        responses = ask(f"{folder}/s", *requests)
        plugin.process.send_signal(signal.SIGTERM)
        assert plugin.end() == 0
    return responses


def storage(kind: str, **fields: Any) -> Any:
    return message("PluginRequest", request_id="1", **{f"storage_{kind}": fields})


WRITE = {
    "path": "features/FEAT-001.md",
    "content": b"# Login\n",
    "metadata": pack_struct({"title": "Login", "open": True, "size": 3}),
}
READ = {"path": "features/FEAT-001.md"}


def test_a_store_of_markdown_writes_these_files(private: Path) -> None:
    first, second, read, listed, conflict, missing, outside = ask_storage(
        private,
        ["markdown", "--workspace", "."],
        storage("write", **WRITE),
        storage("write", path="features/PLAIN.md", content=b"---\n", expected_version=-1),
        storage("read", **READ),
        storage("list", prefix="features/", pattern="FEAT-*.md"),
        storage("write", **WRITE),
        storage("read", path="none.md"),
        storage("read", path="../none.md"),
    )
    assert (first.storage_write.success, first.storage_write.new_version) == (True, 1)
    assert second.storage_write.new_version == 1
    projects = private / ".projects"
    assert stat.S_IMODE(projects.stat().st_mode) == 0o700
    assert (projects / "features" / "FEAT-001.md").read_bytes() == (
        b"---\nopen: true\nsize: 3\ntitle: Login\n---\n\n# Login\n"
    )
    assert (projects / "features" / "FEAT-001.md.version").read_bytes() == b"1"
    assert (projects / "features" / "PLAIN.md").read_bytes() == b"---\n{}\n---\n\n---\n"
    assert sorted(path.name for path in projects.rglob("*") if path.is_file()) == [
        ".lock",
        "FEAT-001.md",
        "FEAT-001.md.version",
        "PLAIN.md",
        "PLAIN.md.version",
    ]
    assert (read.storage_read.content, read.storage_read.version) == (b"# Login\n", 1)
    assert read.storage_read.metadata == WRITE["metadata"]
    [entry] = listed.storage_list.entries
    assert (entry.path, entry.size, entry.version) == ("features/FEAT-001.md", 8, 1)
    assert conflict.storage_write.error.endswith(
        "file already exists (expected_version=0 means create new)"
    )
    assert missing.storage_read.failure.code == "not_found"
    assert outside.storage_read.failure.code == "invalid_path"


def test_a_store_of_markdown_reads_what_was_written_before(private: Path) -> None:
    folder = private / ".projects" / "features"
    folder.mkdir(parents=True)
    content = b"---\ntitle: Login\n---\n\n# Login\n"
    (folder / "FEAT-001.md").write_bytes(content)
    (folder / "FEAT-001.md.version").write_bytes(b"7\n")
    (folder / "FEAT-002.md").write_bytes(b"# Logout\n")
    # A writer of version 3 has ended after it had put the content in place, and before the version.
    (folder / "FEAT-003.md").write_bytes(content)
    (folder / "FEAT-003.md.version").write_bytes(b"2\n")
    (folder / "FEAT-003.md.next").write_bytes(f"3 {hashlib.sha256(content).hexdigest()}\n".encode())
    paths = [f"features/FEAT-00{number}.md" for number in (1, 2, 3)]
    first, second, third = ask_storage(
        private, ["markdown", "--workspace", "."], *(storage("read", path=path) for path in paths)
    )
    assert (first.storage_read.content, first.storage_read.version) == (b"# Login\n", 7)
    assert first.storage_read.metadata == pack_struct({"title": "Login"})
    assert (second.storage_read.content, second.storage_read.version) == (b"# Logout\n", 1)
    assert third.storage_read.version == 3
    assert (folder / "FEAT-003.md.version").read_bytes() == b"3"


TABLE = (
    "CREATE TABLE stored (\n"
    "    path TEXT PRIMARY KEY, content BLOB NOT NULL, metadata TEXT NOT NULL, "
    "version INTEGER NOT NULL, modified_at REAL NOT NULL\n"
    ") WITHOUT ROWID"
)


def test_a_store_of_sqlite_reads_and_writes_this_table(private: Path) -> None:
    with closing(sqlite3.connect(private / "orchestra.db")) as database, database:
        database.execute(TABLE)
        row = ("notes/old.md", b"# Old\n", '{"title":"Old"}', 7, 1700000000.0)
        database.execute("INSERT INTO stored VALUES (?, ?, ?, ?, ?)", row)
    requests = [
        storage("read", path="notes/old.md", storage_type="sqlite"),
        storage("write", **WRITE, storage_type="sqlite"),
    ]
    old, written = ask_storage(private, ["sqlite"], *requests)
    assert (old.storage_read.content, old.storage_read.version) == (b"# Old\n", 7)
    assert old.storage_read.metadata == pack_struct({"title": "Old"})
    assert written.storage_write.new_version == 1
    with closing(sqlite3.connect(private / "orchestra.db")) as database:
        row = database.execute(
            "SELECT content, metadata, version FROM stored WHERE path LIKE 'features/%'"
        ).fetchone()
    assert row == (b"# Login\n", '{"open":true,"size":3,"title":"Login"}', 1)


def test_a_store_of_sqlite_makes_this_table(private: Path) -> None:
    [written] = ask_storage(
        private, ["sqlite", "--file", "kept.db"], storage("write", **WRITE, storage_type="sqlite")
    )
    assert written.storage_write.success
    with closing(sqlite3.connect(private / "kept.db")) as database:
        assert database.execute(
            "SELECT sql FROM sqlite_master WHERE type = 'table'"
        ).fetchall() == [(TABLE,)]


# The store of contexts


def test_the_store_of_contexts_makes_these_tables(tmp_path: Path) -> None:
    kinds = [getattr(concertino.server, name) for name in concertino.server.__all__]
    # Its name is not part of the contract; what it takes is.
    [contexts] = [
        kind
        for kind in kinds
        if isinstance(kind, type) and "max_contexts" in inspect.signature(kind.__init__).parameters
    ]
    server = Server("contexts")
    contexts(tmp_path / "contexts.db").add_tools(server)

    async def conversation() -> None:
        async with Client(server) as client:
            await client.call_tool("set_context", {"key": "theme", "value": "dark"})

    asyncio.run(conversation())
    with closing(sqlite3.connect(tmp_path / "contexts.db")) as database:
        columns = {
            table: [
                (column[1], column[2]) for column in database.execute(f"PRAGMA table_info({table})")
            ]
            for table in ("contexts", "entries")
        }
        assert columns == {
            "contexts": [("handle", "TEXT"), ("used", "REAL"), ("bytes", "INTEGER")],
            "entries": [("handle", "TEXT"), ("key", "TEXT"), ("value", "BLOB")],
        }
        [(handle, key, value)] = database.execute(
            "SELECT handle, key, value FROM entries"
        ).fetchall()
    assert re.fullmatch("ctx_[0-9a-f]{32}", handle)
    assert (key, value) == ("theme", b'"dark"')
