"""cache.py: what is kept is what was made; what is damaged is made anew; processes do not get in
each other's way.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from library.search_documents import libraries, make_document, phrases
from msgspec.structs import replace

from concertino.library import cache as cache_module
from concertino.library import index as index_module
from concertino.library.cache import Cache, CacheFile, cache_folder
from concertino.library.document import Document
from concertino.library.file_loader import FileLoader
from concertino.library.folder import Folder
from concertino.library.index import Index
from concertino.library.library import Library, open_cache
from concertino.library.query import Query

DOCUMENTS = [
    make_document(f"d{number}", f"common word{number}", tags=("t",)) for number in range(60)
]


@pytest.fixture(params=["in memory", "on disk"])
def folder(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Of the cache files.

    The workplaces lie in a folder of the test, as they would in /dev/shm, or beside the cache
    files.
    """
    if request.param == "in memory":
        (tmp_path / "shm").mkdir()
    monkeypatch.setattr(cache_module, "MEMORY", tmp_path / "shm")
    return tmp_path / "cache"


def workplaces(folder: Path) -> list[Path]:
    shm = folder.parent / "shm"
    assert not (shm.exists() and (folder / "work").exists())
    return sorted((shm if shm.exists() else folder / "work").iterdir())


def entries(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name != "work")


def open_index(folder: Path, documents: list[Document], monkeypatch: pytest.MonkeyPatch) -> Index:
    """The index of the cache; fails if it is made anew."""
    with monkeypatch.context() as patch:
        patch.setattr(Index, "_create", lambda *_: pytest.fail("the index was made anew"))
        return Index.build(documents, cache=Cache("library", folder))


def test_the_cache_folder_is_the_user_s() -> None:
    assert cache_folder({"XDG_CACHE_HOME": "/somewhere"}) == Path("/somewhere/concertino/library")
    assert cache_folder({"XDG_CACHE_HOME": "relative"}) == Path.home() / ".cache/concertino/library"
    assert cache_folder({}) == Path.home() / ".cache/concertino/library"


def test_documents_and_index_come_back(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = Index.build(DOCUMENTS, cache=Cache("library", folder))
    kept = Cache("library", folder).documents()
    assert kept == {document.path: document for document in DOCUMENTS}
    second = open_index(folder, list(kept.values()), monkeypatch)
    for text in ("common", "word7", "common word3 t"):
        assert second.search(Query(text)) == first.search(Query(text))


def test_what_changed_since_is_taken_in(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Index.build(DOCUMENTS, cache=Cache("library", folder))
    now = [make_document("d0", "zebra"), *DOCUMENTS[2:], make_document("new", "giraffe")]
    index = open_index(folder, now, monkeypatch)
    assert [
        hit.document.id for hit in index.search(Query("zebra giraffe", max_results=50)).hits
    ] == ["d0", "new"]
    assert index.search(Query("word1")).hits == []
    assert index.documents == sorted(now, key=lambda document: document.uri)
    # More than a fiftieth changed: the file was written anew.
    assert set(Cache("library", folder).documents()) == {document.path for document in now}


def test_another_time_of_modification_alone_is_kept_too(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Index.build(DOCUMENTS, cache=Cache("library", folder))
    touched = [replace(document, mtime_ns=7) for document in DOCUMENTS]
    Index.build(touched, cache=Cache("library", folder))
    assert {document.mtime_ns for document in Cache("library", folder).documents().values()} == {7}


@pytest.mark.slow
@settings(max_examples=15, deadline=None)
@given(libraries(), libraries(), phrases(4))
def test_with_a_cache_the_same_is_found_as_without(
    tmp_path_factory: pytest.TempPathFactory, before: list[Document], now: list[Document], text: str
) -> None:
    folder = tmp_path_factory.mktemp("cache")
    Index.build(before, cache=Cache("library", folder))
    index, fresh = Index.build(now, cache=Cache("library", folder)), Index.build(now)
    query = Query(text, max_results=100)
    assert index.documents == fresh.documents
    assert {hit.document.uri for hit in index.search(query).hits} == {
        hit.document.uri for hit in fresh.search(query).hits
    }


@pytest.mark.slow
@settings(max_examples=15, deadline=None)
@given(st.data())
def test_a_damaged_file_is_no_cache_and_no_error(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("cache")
    documents = DOCUMENTS[:3]
    Index.build(documents, cache=Cache("library", folder))
    path = Cache("library", folder).path
    content = bytearray(path.read_bytes())
    if data.draw(st.booleans()):
        place = data.draw(st.integers(0, len(content) - 1))
        content[place] ^= data.draw(st.integers(1, 255))
    else:
        del content[data.draw(st.integers(0, len(content) - 1)) :]
    path.write_bytes(content)
    assert Cache("library", folder).load() is None
    assert (
        len(Index.build(documents, cache=Cache("library", folder)).search(Query("common")).hits)
        == 3
    )
    assert Cache("library", folder).load() is not None


def test_a_file_of_another_version_is_no_cache(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Index.build(DOCUMENTS, cache=Cache("library", folder))
    for name in ("SCHEMA_VERSION", "ANALYSIS_VERSION"):
        with monkeypatch.context() as patch:
            patch.setattr(cache_module, name, 99)
            assert Cache("library", folder).load() is None
    assert Cache("library", folder).load() is not None


def test_an_index_that_tantivy_cannot_open_is_made_anew(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cache = Cache("library", folder)
    index = Index.build(DOCUMENTS, cache=cache)
    state = index._snapshot
    workplace = index._directory
    assert workplace is not None
    for path in workplace.folder.glob("*.term"):
        path.write_bytes(b"")
    cache.save(state.documents, state.next_number, state.removed_count, workplace)
    again = Index.build(DOCUMENTS, cache=Cache("library", folder))
    assert len(again.search(Query("common", max_results=100)).hits) == 60
    assert "made anew" in caplog.text


def keep(cache: Cache, content: bytes) -> None:
    """Write a cache file whose checksum is right, whatever its content is."""
    cache.path.parent.mkdir(parents=True, exist_ok=True)
    cache.path.write_bytes(cache_module._header(content) + content)


def first_name(files: dict[str, bytes], suffix: str) -> str:
    return min(name for name in files if name.endswith(suffix))


def changed_index(content: CacheFile, suffix: str, change: Callable[[bytes], bytes]) -> CacheFile:
    name = first_name(content.files, suffix)
    return replace(content, files={**content.files, name: change(content.files[name])})


FAULTS: dict[str, Callable[[CacheFile], CacheFile | bytes]] = {
    "nothing": lambda _: b"",
    "another type": lambda _: b"\xc0",
    "100,000 levels": lambda _: b"\x91" * 100_000 + b"\xc0",
    "text that is not UTF-8": lambda content: msgspec.msgpack.encode(content).replace(
        b"word3", b"wo\xff\xff3"
    ),
    "the name of a file with NUL": lambda content: replace(
        content, files={**content.files, "a\0b": b""}
    ),
    "a file in another folder": lambda content: replace(
        content, files={**content.files, "../outside": b""}
    ),
    "the same number twice": lambda content: replace(content, numbers=[0] * 60),
    "the numbers of others": lambda content: replace(
        content, numbers=[number + 100 for number in content.numbers], next_number=200
    ),
    "numbers of one another": lambda content: replace(content, numbers=content.numbers[::-1]),
    "numbers below zero": lambda content: replace(content, numbers=list(range(-60, 0))),
    "numbers that no index has": lambda content: replace(content, next_number=2**64 - 1),
    "two documents of one file": lambda content: replace(
        content, documents=[*content.documents[1:], replace(content.documents[1], uri="x://y")]
    ),
    "no index": lambda content: replace(content, files={}),
    "an index of another schema": lambda content: changed_index(
        content, "meta.json", lambda data: data.replace(b'"purposes"', b'"purposed"')
    ),
    "a changed byte in the terms": lambda content: changed_index(
        content, ".term", lambda data: bytes([data[0] ^ 1]) + data[1:]
    ),
    "half of the postings": lambda content: changed_index(
        content, ".idx", lambda data: data[: len(data) // 2]
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_bad_content_with_the_right_checksum_is_no_cache_and_no_error(
    tmp_path: Path, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache_module, "MEMORY", tmp_path / "shm")
    Index.build(DOCUMENTS, cache=Cache("library", tmp_path))
    good = Cache("library", tmp_path).load()
    assert good is not None
    bad = FAULTS[fault](good)
    keep(Cache("library", tmp_path), bad if isinstance(bad, bytes) else msgspec.msgpack.encode(bad))
    index = Index.build(DOCUMENTS, cache=Cache("library", tmp_path))
    assert len(index.search(Query("common", max_results=100)).hits) == 60
    assert [hit.document.id for hit in index.search(Query("word3")).hits] == ["d3"]
    index.update([make_document("new", "zebra")])
    assert len(index.search(Query("zebra")).hits) == 1
    # It was written anew.
    again = Cache("library", tmp_path).load()
    assert again is not None
    assert again.documents == DOCUMENTS


def test_a_cached_document_that_is_not_of_its_file_is_read_again(tmp_path: Path) -> None:
    resources = tmp_path / "resources" / "notes"
    resources.mkdir(parents=True)
    (resources / "a.md").write_text("# A\n\nApples.\n")
    found = Folder(resources.parent, max_file_bytes=1000, max_files=10).listing().files
    [own] = found.values()
    for change in ({"uri": "orchestr8://notes/b"}, {"category": "recipes"}):
        loader = FileLoader(
            "orchestr8", Folder(resources.parent, max_file_bytes=1000, max_files=10), None
        )
        known = make_document("a", "pears", category="notes")
        known = replace(known, size=own.size, mtime_ns=own.mtime_ns)
        loader.cached = {own.path: replace(known, **change)}
        [item] = loader.refresh().items.values()
        assert isinstance(item, Document)
        assert (item.uri, item.category) == ("orchestr8://notes/a", "notes")
        assert "Apples" in item.body


def test_a_server_starts_and_answers_with_a_cache_of_bad_content(tmp_path: Path) -> None:
    (tmp_path / "library" / "resources" / "notes").mkdir(parents=True)
    (tmp_path / "library" / "resources" / "notes" / "a.md").write_text("# Apples\n\nRed ones.\n")
    ask = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "resources/read",
        "params": {
            "uri": "orchestr8://match?query=apples",
            "_meta": {
                "io.modelcontextprotocol/protocolVersion": "2026-07-28",
                "io.modelcontextprotocol/clientCapabilities": {},
            },
        },
    }

    def serve() -> Any:
        done = subprocess.run(
            [sys.executable, "-m", "concertino", "serve", str(tmp_path / "library")],
            input=json.dumps(ask).encode() + b"\n",
            capture_output=True,
            check=True,
            timeout=30,
            env={**os.environ, "XDG_CACHE_HOME": str(tmp_path), "CONCERTINO_DRAIN_S": "20"},
        )
        return json.loads(done.stdout)["result"]["contents"][0]["text"]

    right = serve()
    assert "Apples" in right
    [file] = (tmp_path / "concertino" / "library").glob("*.cache")
    start = len(cache_module._header(b""))
    content = file.read_bytes()[start:].replace(b"Red ones", b"Red\xff\xfe\xfds")
    file.write_bytes(cache_module._header(content) + content)
    assert serve() == right


def test_a_folder_that_cannot_be_written_costs_the_cache_and_a_line_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setattr(cache_module, "MEMORY", tmp_path / "nowhere")
    index = Index.build(DOCUMENTS, cache=Cache("library", tmp_path / "file" / "cache"))
    assert len(index.search(Query("common", max_results=100)).hits) == 60
    assert "no index cache in" in caplog.text


def test_a_user_without_a_home_has_no_cache_and_a_library_all_the_same(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a container whose user id stands in no table."""
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.delenv("HOME")
    monkeypatch.setattr("pwd.getpwuid", dict[int, object]().__getitem__)
    (tmp_path / "resources").mkdir()
    assert open_cache(Library(tmp_path / "resources")) == (None, "")
    assert "no index cache: this user has no home directory" in caplog.text


def test_what_is_no_file_in_its_place_is_not_waited_for(folder: Path) -> None:
    cache = Cache("library", folder)
    folder.mkdir()
    os.mkfifo(cache.path)
    assert cache.load() is None


def test_the_name_of_a_file_that_is_not_utf_8_costs_the_cache_and_is_said(
    folder: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    made_how_often = 0
    make = Index._commit  # pyright: ignore[reportPrivateUsage]

    def commit(*given: Any) -> None:
        nonlocal made_how_often
        made_how_often += 1
        make(*given)

    monkeypatch.setattr(Index, "_commit", commit)
    odd = replace(DOCUMENTS[0], path=os.fsdecode(b"skills/\xff.md"))
    index = Index.build([odd, *DOCUMENTS[1:]], cache=Cache("library", folder))
    assert len(index.search(Query("common", max_results=100)).hits) == 60
    assert "the name of a file that is not UTF-8" in caplog.text
    assert made_how_often == 1


def test_libraries_do_not_share_a_file_and_old_ones_go_first(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache_module, "MAX_FILES", 3)
    paths: list[Path] = []
    for number in range(5):
        cache = Cache(f"library {number}", folder)
        Index.build(DOCUMENTS[:2], cache=cache)
        os.utime(cache.path, (1000 + number, 1000 + number))
        paths.append(cache.path)
    assert len(set(paths)) == 5
    assert set(folder.glob("*.cache")) == set(paths[2:])


def test_all_files_together_have_a_bounded_size(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = Cache("one", folder)
    Index.build(DOCUMENTS, cache=cache)
    monkeypatch.setattr(cache_module, "MAX_FOLDER_BYTES", int(cache.path.stat().st_size * 2.5))
    for number in range(4):
        os.utime(cache.path, (1000 + number, 1000 + number))
        cache = Cache(f"more {number}", folder)
        Index.build(DOCUMENTS, cache=cache)
    assert len(list(folder.glob("*.cache"))) == 2


def test_nothing_is_left_beside_the_file_when_the_index_is_gone(folder: Path) -> None:
    index = Index.build(DOCUMENTS, cache=Cache("library", folder))
    assert len(workplaces(folder)) == 1
    index.update([make_document("d1", "other")])
    del index
    assert workplaces(folder) == []
    assert len(entries(folder)) == 1


def test_a_workplace_that_was_taken_away_costs_no_update(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    index = Index.build(DOCUMENTS, cache=Cache("library", folder))
    [work] = workplaces(folder)
    shutil.rmtree(work)
    index.update([make_document("d1", "zebra")], [DOCUMENTS[2].uri])
    assert "made anew in memory" in caplog.text
    assert [hit.document.id for hit in index.search(Query("zebra")).hits] == ["d1"]
    assert len(index.search(Query("common", max_results=100)).hits) == 58
    index.update([make_document("d3", "giraffe")])
    assert [hit.document.id for hit in index.search(Query("giraffe")).hits] == ["d3"]


def test_without_space_in_memory_the_workplace_lies_beside_the_cache_files(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache_module, "SPARE_BYTES", 2**62)
    index = Index.build(DOCUMENTS, cache=Cache("library", folder))
    assert len(list((folder / "work").iterdir())) == 1
    assert index.documents


def test_nothing_of_others_is_removed(folder: Path) -> None:
    shm = folder.parent / "shm"
    parent = shm if shm.exists() else folder / "work"
    (parent / "somebody-else").mkdir(parents=True)
    (parent / f"{cache_module.NAME}link").symlink_to(folder.parent)
    (parent / f"{cache_module.NAME}file").write_text("no folder")
    assert Index.build(DOCUMENTS, cache=Cache("library", folder)).documents
    assert folder.parent.exists()
    assert sorted(path.name for path in workplaces(folder)) == sorted(
        ["somebody-else", f"{cache_module.NAME}link", f"{cache_module.NAME}file"]
    )


def test_files_are_the_user_s_alone(folder: Path) -> None:
    index = Index.build(DOCUMENTS, cache=Cache("library", folder))
    [file] = folder.glob("*.cache")
    [work] = workplaces(folder)
    assert file.stat().st_mode & 0o077 == 0
    assert work.stat().st_mode & 0o077 == 0
    assert index.documents


def child(code: str, folder: Path) -> subprocess.Popen[str]:
    """A process that has DOCUMENTS-like documents, `cache` and Index at hand."""
    head = (
        "import sys\n"
        f"sys.path.insert(0, {str(Path(__file__).parents[1])!r})\n"
        "from pathlib import Path\n"
        "from library.search_documents import make_document\n"
        "from concertino.library.cache import Cache\n"
        "from concertino.library.index import Index\n"
        "from concertino.library.query import Query\n"
        "from concertino.library import cache\n"
        f"folder = Path({str(folder)!r})\n"
        "cache.MEMORY = folder.parent / 'shm'\n"
    )
    return subprocess.Popen(
        [sys.executable, "-c", head + code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def test_what_a_killed_process_left_is_removed_by_the_next(folder: Path) -> None:
    process = child(
        "index = Index.build([make_document('a', 'word')], cache=Cache('x', folder)); print('made',"
        " flush=True); sys.stdin.read()",
        folder,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "made\n"
    [left] = workplaces(folder)
    mine = Index.build(DOCUMENTS, cache=Cache("library", folder))
    assert left in workplaces(folder)  # its process lives
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=20)
    another = Index.build(DOCUMENTS, cache=Cache("library", folder))
    assert left not in workplaces(folder)
    assert len(workplaces(folder)) == 2
    for index in (mine, another):
        index.update([make_document("d1", "zebra")])
        assert len(index.search(Query("zebra")).hits) == 1


@pytest.mark.slow
def test_processes_that_read_and_write_at_once_all_find_the_same(folder: Path) -> None:
    code = (
        "for turn in range(6):\n    documents = [make_document(f'd{n}', f'common word{n}') for n in"
        " range(30)] + [make_document('t', f'turn {turn} ' + sys.argv[0])]\n    index ="
        " Index.build(documents, cache=Cache('x', folder))\n    assert"
        " len(index.search(Query('common', max_results=99)).hits) == 30\n   "
        " index.update([make_document('d1', 'zebra')])\n"
        "    assert len(index.search(Query('zebra')).hits) == 1\nprint('fine')"
    )
    processes = [child(code, folder) for _ in range(4)]
    assert [process.communicate(timeout=120)[0] for process in processes] == ["fine\n"] * 4
    assert len(entries(folder)) == 1
    assert Cache("x", folder).load() is not None


def test_few_changes_do_not_write_the_file_anew(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Index.build(DOCUMENTS, cache=Cache("library", folder))
    monkeypatch.setattr(Cache, "save", lambda *_: pytest.fail("escape_uri"))
    assert index_module.MAX_STALE_SHARE > 1 / 60
    Index.build([make_document("d0", "zebra"), *DOCUMENTS[1:]], cache=Cache("library", folder))
