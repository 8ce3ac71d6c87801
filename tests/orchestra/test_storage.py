"""storage.py, markdown.py, sqlite.py: both stores agree, survive crashes, and block path
traversal.
"""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some
from orchestra.nats_servers import jetstream_server

from concertino.orchestra import markdown, sqlite
from concertino.orchestra.markdown import MarkdownStorage
from concertino.orchestra.nats_storage import NatsStorage
from concertino.orchestra.sqlite import SqliteStorage
from concertino.orchestra.storage import (
    CREATE,
    MAX_CONTENT_BYTES,
    UPSERT,
    Storage,
    StorageError,
    compile_pattern,
)

opened: list[
    Any
] = []  # closed after each test: Python 3.13 warns of what is left open, whenever it finds it


def sqlite_in(folder: Path) -> SqliteStorage:
    opened.append(SqliteStorage(folder / "kept.db"))
    return opened[-1]


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    yield
    while opened:
        opened.pop().close()


def name_of(folder: Path) -> str:
    """The plugin of a test, which has a bucket of its own."""
    return f"storage.{hashlib.sha256(str(folder).encode()).hexdigest()[:24]}"


def nats_in(folder: Path) -> NatsStorage:
    opened.append(NatsStorage(jetstream_server().address, name_of(folder)))
    return opened[-1]


KINDS: dict[str, Callable[[Path], Storage]] = {
    "markdown": MarkdownStorage,
    "sqlite": sqlite_in,
    "nats": nats_in,
}
every_store = pytest.mark.parametrize("kind", KINDS)


def code(act: Callable[[], object]) -> str:
    with pytest.raises(StorageError) as refused:
        act()
    return refused.value.code


@every_store
def test_what_was_written_is_read_with_its_metadata_and_version(kind: str, tmp_path: Path) -> None:
    store = KINDS[kind](tmp_path)
    before = datetime.now(UTC) - timedelta(seconds=2)
    metadata = {
        "title": "On",
        "n": 2**60,
        "half": 0.5,
        "yes": True,
        "none": None,
        "date": "2026-01-01",
        "list": [1, {"a": []}],
    }
    assert store.write("features/a.md", b"# A\n", metadata, CREATE) == 1
    read = store.read("features/a.md")
    assert (read.content, read.metadata, read.version) == (b"# A\n", metadata, 1)
    (entry,) = store.list("", "")
    assert (entry.path, entry.size, entry.version) == ("features/a.md", 4, 1)
    assert before <= entry.modified_at <= datetime.now(UTC) + timedelta(seconds=2)
    store.close()
    again = KINDS[kind](tmp_path)  # another process finds the same
    assert again.read("features/a.md") == read
    again.close()


@every_store
def test_versions_are_compared_before_anything_is_changed(kind: str, tmp_path: Path) -> None:
    store = KINDS[kind](tmp_path)
    assert code(lambda: store.write("a.md", b"1", {}, 7)) == "conflict"
    assert code(lambda: store.read("a.md")) == "not_found"
    assert store.write("a.md", b"1", {}, CREATE) == 1
    with pytest.raises(
        StorageError, match=r"file already exists \(expected_version=0 means create new\)"
    ):
        store.write("a.md", b"2", {}, CREATE)
    with pytest.raises(StorageError, match="version conflict: expected 7, current 1"):
        store.write("a.md", b"2", {}, 7)
    assert store.write("a.md", b"2", {}, 1) == 2
    assert store.write("a.md", b"3", {}, UPSERT) == 3
    assert store.write("b.md", b"3", {}, UPSERT) == 1
    assert code(lambda: store.write("a.md", b"4", {}, -2)) == "conflict"
    assert (store.read("a.md").content, store.read("a.md").version) == (b"3", 3)
    store.delete("a.md")
    assert code(lambda: store.read("a.md")) == code(lambda: store.delete("a.md")) == "not_found"
    assert store.write("a.md", b"5", {}, CREATE) == 1
    store.close()


@every_store
@pytest.mark.parametrize(
    "path",
    [
        "",
        "/",
        "../a",
        "a/../../b",
        ".",
        "a\x00b",
        "a\nb",
        "a\\b",
        "\ud800",
        "x" * 241,
        "a/" * 2100 + "b",
    ],
)
def test_a_path_that_is_none_is_refused_by_every_method(
    kind: str, path: str, tmp_path: Path
) -> None:
    store = KINDS[kind](tmp_path)
    assert code(lambda: store.read(path)) == "invalid_path"
    assert code(lambda: store.write(path, b"", {}, UPSERT)) == "invalid_path"
    assert code(lambda: store.delete(path)) == "invalid_path"
    store.close()


@every_store
def test_lists_are_of_a_prefix_and_a_glob_in_order(kind: str, tmp_path: Path) -> None:
    store = KINDS[kind](tmp_path)
    for path in ("b/2.md", "b/1.md", "a.md", "b/c/3.md", "b/note.txt", "bb/4.md"):
        store.write(path, b"x", {}, CREATE)

    def paths(prefix: str = "", pattern: str = "") -> list[str]:
        return [each.path for each in store.list(prefix, pattern)]

    assert paths() == ["a.md", "b/1.md", "b/2.md", "b/c/3.md", "bb/4.md"]
    assert paths("b/") == ["b/1.md", "b/2.md", "b/c/3.md"]
    assert paths("b") == paths("/b//") == paths("./a/../b") == paths("b/")
    assert paths("b/c/3") == []
    assert paths(".") == paths("/") == paths()
    assert paths("", "*") == ["a.md", "b/1.md", "b/2.md", "b/c/3.md", "b/note.txt", "bb/4.md"]
    assert paths("", "[12].md") == ["b/1.md", "b/2.md"]
    assert paths("b", "[^1-2]*.md") == ["b/c/3.md"]
    assert paths("", r"\[*") == []
    assert paths("nothing/") == []
    assert (
        code(lambda: store.list("../", ""))
        == code(lambda: store.list("", "x" * 257))
        == "invalid_path"
    )
    for pattern in ("[", "[]", "[a", "a\\", "[-a]", "[a-]"):
        assert code(lambda: store.list("", pattern)) == "invalid_path"  # noqa: B023
    store.close()


@every_store
def test_a_path_is_cleaned_as_upstream_does(kind: str, tmp_path: Path) -> None:
    """filepath.Clean of Go, below the folder of the store."""
    store = KINDS[kind](tmp_path)
    store.write("/a//b/../c.md", b"x", {}, CREATE)
    assert [each.path for each in store.list("", "")] == ["a/c.md"]
    for path in ("a/c.md", "./a/c.md", "a//c.md", "a/c.md/", "/a/c.md", "/../a/c.md"):
        assert store.read(path).content == b"x"
    store.delete("a/./c.md")
    assert store.list("", "") == []
    store.close()


@every_store
def test_a_content_that_fits_no_frame_is_refused(kind: str, tmp_path: Path) -> None:
    store = KINDS[kind](tmp_path)
    assert code(lambda: store.write("a", bytes(MAX_CONTENT_BYTES + 1), {}, CREATE)) == "too_large"
    assert code(lambda: store.read("a")) == "not_found"
    store.close()


@every_store
@pytest.mark.parametrize("number", [float("inf"), float("-inf"), float("nan")])
@pytest.mark.parametrize("nest", [lambda n: n, lambda n: [0.5, {"a": [n]}]], ids=["", "nested"])
def test_numbers_that_json_does_not_have_are_refused_instead_of_stored_as_null(
    kind: str, number: float, nest: Callable[[float], Any], tmp_path: Path
) -> None:
    store = KINDS[kind](tmp_path)
    assert store.write("a.md", b"1", {"n": 0.5}, CREATE) == 1
    metadata = {"title": "x", "n": nest(number)}
    assert code(lambda: store.write("a.md", b"2", metadata, UPSERT)) == "storage_error"
    kept = store.read("a.md")
    assert (kept.content, kept.metadata, kept.version) == (b"1", {"n": 0.5}, 1)


@pytest.mark.parametrize("pattern", ["*" * 250 + "z", "*a" * 120 + "z", "*?" * 120 + "z"])
def test_a_glob_of_many_stars_is_quick(pattern: str) -> None:
    assert compile_pattern(pattern).fullmatch("a" * 240) is None


json_values = some.recursive(
    some.none()
    | some.booleans()
    | some.integers(-(2**70), 2**70)
    | some.floats(allow_nan=False, allow_infinity=False)
    | some.text(),
    lambda inner: some.lists(inner, max_size=3) | some.dictionaries(some.text(), inner, max_size=3),
    max_leaves=8,
)


def numbers_of_a_struct(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: numbers_of_a_struct(each) for key, each in value.items()}
    if isinstance(value, list):
        return [numbers_of_a_struct(each) for each in value]
    if isinstance(value, float) and value.is_integer() and abs(value) <= 2**53:
        return int(value)
    return value


contents = (
    some.binary()
    | some.text().map(lambda text: text.encode("utf-8", "replace"))
    | some.sampled_from(
        [
            b"---",
            b"---\n",
            b"---\na: 1\n---\n\nbody",
            b"---\r\n---\r\n",
            b"\n\n---\n",
            b"--- \nno end",
            b"...\n",
        ]
    )
)


@every_store
@settings(deadline=None, max_examples=60)
@given(content=contents, metadata=some.dictionaries(some.text(), json_values, max_size=4))
def test_any_content_with_any_metadata_comes_back_as_it_was(
    kind: str, content: bytes, metadata: dict[str, Any]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        store = KINDS[kind](Path(folder))
        store.write("a.md", content, metadata, CREATE)
        read = store.read("a.md")
        assert read.content == content
        # 1 is not 1.0 there, but for a Struct, and so for front matter.
        expected = numbers_of_a_struct(metadata) if kind == "markdown" else metadata
        assert json.dumps(read.metadata, sort_keys=True) == json.dumps(expected, sort_keys=True)
        assert store.list("", "")[0].size == len(content)
        store.close()


steps = some.lists(
    some.tuples(
        some.sampled_from(["write", "write", "delete", "read"]),
        some.sampled_from(["a.md", "b/a.md", "b/c.md"]),
        some.integers(-1, 4),
        some.binary(max_size=3),
    ),
    max_size=20,
)


@every_store
@settings(deadline=None, max_examples=40)
@given(steps=steps)
def test_a_store_is_a_dict_with_versions(
    kind: str, steps: list[tuple[str, str, int, bytes]]
) -> None:
    model: dict[str, tuple[bytes, int]] = {}
    with tempfile.TemporaryDirectory() as folder:
        store = KINDS[kind](Path(folder))
        for act, path, expected, content in steps:
            current = model.get(path, (b"", 0))[1]
            if act == "write":
                if expected in (-1, current):
                    assert store.write(path, content, {"n": expected}, expected) == current + 1
                    model[path] = content, current + 1
                else:
                    assert code(partial(store.write, path, content, {}, expected)) == "conflict"
            elif path not in model:
                assert (
                    code(partial(store.read if act == "read" else store.delete, path))
                    == "not_found"
                )
            elif act == "delete":
                store.delete(path)
                del model[path]
            assert {each.path: each.version for each in store.list("", "*")} == {
                at: version for at, (_, version) in model.items()
            }
            for at, (kept, version) in model.items():
                assert (store.read(at).content, store.read(at).version) == (kept, version)
        store.close()


# Files


class Crash(BaseException):
    """The process is gone: nothing after it runs but the closing of descriptors, as the kernel does
    it.
    """


def test_a_crash_at_any_point_leaves_the_old_or_the_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = 0
    for fail_at in range(1, 100):
        folder = tmp_path / str(fail_at)
        store = MarkdownStorage(folder)
        store.write("a/b.md", b"old", {"v": 1}, CREATE)
        count = 0

        def counted(real: Callable[..., Any], fail_at: int = fail_at) -> Callable[..., Any]:
            def act(*args: Any, **kwargs: Any) -> Any:
                nonlocal count
                count += 1
                if count == fail_at:
                    raise Crash
                return real(*args, **kwargs)

            return act

        with monkeypatch.context() as patch:
            for name in ("replace", "fsync", "unlink"):
                patch.setattr(markdown.os, name, counted(getattr(os, name)))
            patch.setattr(markdown, "_write_file", counted(markdown._write_file))  # pyright: ignore[reportPrivateUsage]
            try:
                store.write("a/b.md", b"new", {"v": 2}, 1)
                crashed = False
            except Crash:
                crashed = True
        read = MarkdownStorage(folder).read("a/b.md")
        assert (read.content, read.metadata, read.version) in (
            (b"old", {"v": 1}, 1),
            (b"new", {"v": 2}, 2),
        )
        assert (
            MarkdownStorage(folder).write("a/b.md", b"next", {}, read.version) == read.version + 1
        )
        if not crashed:
            assert read.version == 2
            break
        steps += 1
    assert steps >= 8


def test_the_layout_is_upstreams(tmp_path: Path) -> None:
    store = MarkdownStorage(tmp_path)
    store.write("features/F-1.md", b"# One\n", {"title": "One", "n": 3}, CREATE)
    file = tmp_path / ".projects" / "features" / "F-1.md"
    assert file.read_text() == "---\nn: 3\ntitle: One\n---\n\n# One\n"
    assert (file.parent / "F-1.md.version").read_text() == "1"
    assert sorted(each.name for each in file.parent.iterdir()) == ["F-1.md", "F-1.md.version"]
    # What upstream wrote: integers as floats.
    file.write_text("---\nn: 9.007199254740992e+15\nwhen: 2026-01-01\n---\n\nbody")
    read = store.read("features/F-1.md")
    assert (read.content, read.metadata) == (b"body", {"n": 2.0**53, "when": "2026-01-01"})
    file.write_bytes(b"no metadata \xff")
    assert store.read("features/F-1.md").content == b"no metadata \xff"


def test_metadata_is_what_upstreams_store_makes_of_it(tmp_path: Path) -> None:
    store = MarkdownStorage(tmp_path)
    metadata = {"n": 1000000, "hash": "1234e56", "yes": {"on": "=", "1": [None]}}
    store.write("a.md", b"body", metadata, CREATE)
    file = tmp_path / ".projects" / "a.md"
    assert file.read_text() == (
        '---\nhash: "1234e56"\nn: 1e+06\nyes:\n    "1":\n        - null\n    "on": =\n---\n\nbody'
    )
    assert store.read("a.md").metadata == metadata


@pytest.mark.parametrize(
    ("raw", "content", "metadata"),
    [
        (b"---\r\na: 1\r\n---\r\n\r\nbody", b"body", {"a": 1}),
        (b"---\na: 1\n---", b"", {"a": 1}),
        (b"---\na: |\n  x\n  ---\n---\n\n\nbody", b"\nbody", {"a": "x\n---\n"}),
        (b"--- \na: 1\n---\nbody", b"--- \na: 1\n---\nbody", {}),
        (b"\n---\na: 1\n---\n", b"\n---\na: 1\n---\n", {}),
        (b"---\na: 1\n--- \nbody", b"---\na: 1\n--- \nbody", {}),
    ],
)
def test_only_whole_lines_enclose_metadata(
    raw: bytes, content: bytes, metadata: dict[str, Any], tmp_path: Path
) -> None:
    store = MarkdownStorage(tmp_path)
    store.write("a.md", b"", {}, CREATE)
    (tmp_path / ".projects" / "a.md").write_bytes(raw)
    assert (store.read("a.md").content, store.read("a.md").metadata) == (content, metadata)


def test_a_rule_at_the_head_of_a_content_is_not_taken_for_metadata(tmp_path: Path) -> None:
    store = MarkdownStorage(tmp_path)
    store.write("a.md", b"---- a\n---\n", {}, CREATE)
    assert (tmp_path / ".projects" / "a.md").read_bytes() == b"---- a\n---\n"


def test_links_and_things_that_are_no_files_lead_nowhere(tmp_path: Path) -> None:
    store = MarkdownStorage(tmp_path / "w")
    store.write("in/a.md", b"inside", {}, CREATE)
    secret = tmp_path / "secret.md"
    secret.write_text("secret")
    inside = tmp_path / "w" / ".projects"
    (inside / "link.md").symlink_to(secret)
    (inside / "out").symlink_to(tmp_path)
    os.mkfifo(inside / "pipe.md")
    (inside / "folder.md").mkdir()
    for path in ("link.md", "out/secret.md", "pipe.md", "folder.md", "in/a.md/b.md"):
        assert code(lambda: store.read(path)) in ("invalid_path", "storage_error"), path  # noqa: B023
        assert code(lambda: store.write(path, b"x", {}, UPSERT)) in (  # noqa: B023
            "invalid_path",
            "storage_error",
        ), path
    assert [each.path for each in store.list("", "")] == ["in/a.md"]
    assert secret.read_text() == "secret"
    for own in ("a.version", "a.next", "a.new", "b/.lock"):
        assert code(lambda: store.write(own, b"", {}, UPSERT)) == "invalid_path"  # noqa: B023


@pytest.mark.parametrize(
    ("block", "text"),
    [
        ("a: &x [1]\nb: *x", "aliases"),
        ("[" * 40 + "]" * 40, "more than 32 levels"),
        ("- list", "key: value"),
        ("? [1]\n: x", "key: value"),
        ("a: 1\na: 2", "line 3: is not YAML: has the key 'a' already in line 1"),
        ("a: [", "is not YAML"),
    ],
)
def test_metadata_that_cannot_be_read_is_an_error_that_names_the_path(
    block: str, text: str, tmp_path: Path
) -> None:
    store = MarkdownStorage(tmp_path)
    store.write("good.md", b"x", {}, CREATE)
    (tmp_path / ".projects" / "a.md").write_text(f"---\n{block}\n---\n\nbody")
    with pytest.raises(StorageError, match=text) as refused:
        store.read("a.md")
    assert str(refused.value).startswith("a.md: ")
    assert [each.path for each in store.list("", "")] == [
        "good.md"
    ]  # one bad file takes no others away


@every_store
def test_writers_of_several_processes_lose_nothing(kind: str, tmp_path: Path) -> None:
    opening = {
        "markdown": f"MarkdownStorage({str(tmp_path)!r})",
        "sqlite": f"SqliteStorage({str(tmp_path / 'kept.db')!r})",
        "nats": f"NatsStorage({jetstream_server().address!r}, {name_of(tmp_path)!r})",
    }[kind]
    script = f"""
from concertino.orchestra.markdown import MarkdownStorage
from concertino.orchestra.nats_storage import NatsStorage
from concertino.orchestra.sqlite import SqliteStorage
from concertino.orchestra.storage import StorageError
store = {opening}
for _ in range(20):
    while True:
        read = store.read("count.md")
        try:
            store.write("count.md", str(int(read.content) + 1).encode(), {{}}, read.version)
            break
        except StorageError as error:
            assert error.code == "conflict", error
store.close()
"""
    store = KINDS[kind](tmp_path)
    store.write("count.md", b"0", {}, CREATE)
    processes = [subprocess.Popen([sys.executable, "-c", script]) for _ in range(3)]
    assert [process.wait(60) for process in processes] == [0, 0, 0]
    assert (store.read("count.md").content, store.read("count.md").version) == (b"60", 61)
    store.close()


@pytest.fixture
def other(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    """A process that creates the file at the same time: it writes, and there is no log yet."""
    connection = sqlite3.connect(tmp_path / "kept.db", isolation_level=None)
    connection.execute("BEGIN IMMEDIATE")
    yield connection
    connection.close()


def test_a_new_file_in_which_another_process_writes_is_waited_for(
    other: sqlite3.Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite.time, "sleep", lambda seconds: other.execute("COMMIT"))
    store = sqlite_in(tmp_path)
    assert store.write("a.md", b"text", {}, CREATE) == 1


@pytest.mark.usefixtures("other")
def test_a_new_file_that_another_process_does_not_release_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "BUSY_S", 0.05)
    with pytest.raises(StorageError, match=r"kept\.db: database is locked"):
        SqliteStorage(tmp_path / "kept.db")


def test_a_file_that_is_no_database_is_told_and_not_kept_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "kept.db").write_bytes(b"no database at all" * 100)
    connections: list[sqlite3.Connection] = []
    connect = sqlite3.connect

    def connected(*given: Any, **named: Any) -> sqlite3.Connection:
        connections.append(connect(*given, **named))
        return connections[-1]

    monkeypatch.setattr(sqlite3, "connect", connected)
    with pytest.raises(StorageError, match=r"kept\.db: file is not a database"):
        SqliteStorage(tmp_path / "kept.db")
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        connections[0].execute("SELECT 1")
