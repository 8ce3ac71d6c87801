"""manifest_cache.py: which file belongs to which server, and which files are not used."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec import Raw

from concertino.client import ServerParameters
from concertino.proxy.manifest_cache import (
    MAX_BYTES,
    Manifest,
    ManifestCache,
    ManifestFile,
    manifest_folder,
)
from concertino.types.results import Implementation

TOOLS = Raw(b'{"tools":[{"name":"t","inputSchema":{"type":"object"}}]}')
MANIFEST = Manifest(
    "2025-06-18", Implementation("s", "1"), {"tools": {}}, "Be brief.", {"tools/list": TOOLS}
)


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "server"
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def cache(tmp_path: Path) -> ManifestCache:
    return ManifestCache(tmp_path / "cache")


def file_of(
    cache: ManifestCache, server: ServerParameters, era: str = "auto", principal: bytes = b""
) -> ManifestFile:
    file = cache.file_of(server, era, principal)
    assert file is not None
    return file


def test_a_manifest_is_read_as_it_was_written(cache: ManifestCache, program: Path) -> None:
    file_of(cache, ServerParameters(program)).write(MANIFEST)
    read = file_of(cache, ServerParameters(program)).read()
    assert read is not None
    assert (read.info, read.instructions) == (MANIFEST.info, "Be brief.")
    assert bytes(read.lists["tools/list"]) == bytes(TOOLS)


def test_files_and_the_key_are_for_their_user_only(cache: ManifestCache, program: Path) -> None:
    file_of(cache, ServerParameters(program)).write(MANIFEST)
    assert Path(cache.folder).stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in Path(cache.folder).iterdir()} == {0o600}


def test_names_of_files_say_nothing_without_the_key(tmp_path: Path, program: Path) -> None:
    one, two = (ManifestCache(tmp_path / name) for name in "ab")
    server = ServerParameters(program)
    assert Path(file_of(one, server).path).name != Path(file_of(two, server).path).name


def _touch(program: Path) -> ServerParameters:
    os.utime(program, ns=(1, 1))
    return ServerParameters(program)


def _grow(program: Path) -> ServerParameters:
    status = program.stat()
    program.write_text("#!/bin/sh\n# more\n")
    os.utime(program, ns=(status.st_atime_ns, status.st_mtime_ns))
    return ServerParameters(program)


def _link(program: Path) -> ServerParameters:
    (program.parent / "link").symlink_to(program)
    return ServerParameters(program.parent / "link")


@pytest.mark.parametrize(
    "change",
    [
        _touch,
        _grow,
        _link,
        lambda program: ServerParameters(program, ["--all"]),
        lambda program: ServerParameters(program, cwd="/"),
        lambda program: ServerParameters(program, env={"TOKEN": "x"}),
    ],
    ids=["time", "size", "command", "arguments", "folder", "variables"],
)
def test_another_server_has_another_file(
    cache: ManifestCache, program: Path, change: Callable[[Path], ServerParameters]
) -> None:
    before = file_of(cache, ServerParameters(program)).path
    assert file_of(cache, change(program)).path != before


def test_other_principals_and_eras_have_other_files(cache: ManifestCache, program: Path) -> None:
    server = ServerParameters(program)
    assert file_of(cache, server, principal=b"1000").path != file_of(cache, server).path
    assert file_of(cache, server, era="legacy").path != file_of(cache, server).path


def test_values_of_variables_do_not_count(cache: ManifestCache, program: Path) -> None:
    old, new = (ServerParameters(program, env={"TOKEN": value}) for value in ("1", "2"))
    assert file_of(cache, old).path == file_of(cache, new).path


def test_a_program_is_found_where_the_server_would_look(
    cache: ManifestCache, program: Path
) -> None:
    server = ServerParameters("server", env={"PATH": str(program.parent)})
    before = file_of(cache, server).path
    os.utime(program, ns=(1, 1))
    assert file_of(cache, server).path != before


@pytest.mark.parametrize("command", ["no-such-program", "/no/such/program", "/"])
def test_a_program_that_is_not_there_has_no_file(cache: ManifestCache, command: str) -> None:
    assert cache.file_of(ServerParameters(command), "auto", b"") is None


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


def _shape(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b'"name":"t"', b'"name":17'))


def _method(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b'"tools/list"', b'"tools/lost"'))


def _enlarge(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b" " * MAX_BYTES)


def _open_to_others(path: Path) -> None:
    path.chmod(0o666)


def _replace_by_link(path: Path) -> None:
    other = path.rename(path.with_name("other"))
    path.symlink_to(other)


@pytest.mark.parametrize(
    "damage", [_cut, _shape, _method, _enlarge, _open_to_others, _replace_by_link]
)
def test_a_file_that_is_damaged_or_not_private_counts_as_missing(
    cache: ManifestCache, program: Path, damage: Callable[[Path], None]
) -> None:
    file = file_of(cache, ServerParameters(program))
    file.write(MANIFEST)
    assert file.read() is not None
    damage(Path(file.path))
    assert file.read() is None
    # It is replaced by the next one, whatever it was.
    file.write(MANIFEST)
    assert file.read() is not None


def test_the_file_of_another_server_counts_as_missing(cache: ManifestCache, program: Path) -> None:
    file = file_of(cache, ServerParameters(program))
    other = file_of(cache, ServerParameters(program, ["--all"]))
    other.write(MANIFEST)
    os.rename(other.path, file.path)
    assert file.read() is None


def test_a_manifest_that_is_too_large_replaces_none_and_is_not_kept(
    cache: ManifestCache, program: Path
) -> None:
    file = file_of(cache, ServerParameters(program))
    file.write(MANIFEST)
    file.write(Manifest("2025-06-18", Implementation("s", "1"), {}, "x" * MAX_BYTES))
    assert file.read() is None
    assert not os.path.exists(file.path)


def test_a_folder_that_cannot_be_used_means_that_nothing_is_kept(
    tmp_path: Path, program: Path
) -> None:
    (tmp_path / "file").touch()
    cache = ManifestCache(tmp_path / "file")
    assert cache.file_of(ServerParameters(program), "auto", b"") is None


def test_the_folder_is_in_the_cache_of_the_user() -> None:
    assert manifest_folder({"XDG_CACHE_HOME": "/c"}) == "/c/concertino/manifests"
