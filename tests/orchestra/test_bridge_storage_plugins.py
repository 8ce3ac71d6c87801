"""`concertino plugin markdown` and `sqlite` as processes, asked over a real link: held against a
model of what storage is.

The model is written from the Orchestra plugin protocol, "Storage": versions from 1,
expected_version 0 creates, -1 writes whatever is there, any other must be the current one.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as some
from orchestra.bridges import make_certificates
from warm_commands import start_python

from concertino.orchestra.authority import issue
from concertino.orchestra.certificates import Certificates
from concertino.orchestra.link import open_link
from concertino.orchestra.plugin_pb2 import (
    PluginManifest,
    PluginRequest,
    StorageDeleteRequest,
    StorageListRequest,
    StorageReadRequest,
    StorageWriteRequest,
)
from concertino.orchestra.rpc_interface import RpcConnection
from concertino.orchestra.structs import pack, unpack

KINDS = ("markdown", "sqlite")
COMMAND = (sys.executable, "-m", "concertino", "plugin")
_numbers = itertools.count()


def where(kind: str, folder: Path) -> str:
    return f"--workspace={folder}" if kind == "markdown" else f"--file={folder / 'kept.db'}"


class LinkedPlugin:
    """A plugin's process, and a link to it, used from a loop of the test's own."""

    def __init__(
        self, kind: str, folder: Path, *options: str, certificates: Certificates | None = None
    ) -> None:
        self.kind = kind
        address = f"unix:{folder}/{next(_numbers)}" if certificates is None else "localhost:0"
        command = [*COMMAND, kind, where(kind, folder), f"--listen-addr={address}", *options]
        self.process = start_python(
            command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        assert self.process.stderr is not None
        line = self.process.stderr.readline()
        assert line.startswith("READY "), line
        self._runner = asyncio.Runner()
        name = f"orchestrator-to-storage.{kind}"
        connected = open_link(line.split()[1], certificates=certificates, name=name)
        self._link: RpcConnection = self._runner.run(connected)

    def close(self) -> int:
        self._runner.run(self._link.close())
        self._runner.close()
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(30)
        assert self.process.stderr is not None
        self.process.stderr.close()
        return code

    def ask(self, **request: Any) -> Any:
        response = self._runner.run(self._link.request(PluginRequest(**request)))
        (kind,) = request
        assert response.WhichOneof("response") == kind, response
        return getattr(response, kind)

    def all(self, *requests: PluginRequest) -> list[Any]:
        """At once."""

        async def together() -> list[Any]:
            return await asyncio.gather(*(self._link.request(each) for each in requests))

        return self._runner.run(together())

    def write(
        self, path: str, content: bytes, expected: int, metadata: dict[str, Any] | None = None
    ) -> Any:
        packed = pack(metadata or {})
        asked = StorageWriteRequest(
            path=path,
            content=content,
            expected_version=expected,
            storage_type=self.kind,
            metadata=packed.struct,
            metadata_json=packed.json,
        )
        return self.ask(storage_write=asked)

    def read(self, path: str) -> Any:
        return self.ask(storage_read=StorageReadRequest(path=path, storage_type=self.kind))

    def delete(self, path: str) -> Any:
        return self.ask(storage_delete=StorageDeleteRequest(path=path, storage_type=self.kind))

    def list(self, prefix: str, pattern: str = "") -> Any:
        return self.ask(
            storage_list=StorageListRequest(prefix=prefix, pattern=pattern, storage_type=self.kind)
        )


@pytest.fixture(scope="module", params=KINDS)
def store(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LinkedPlugin]:
    folder = tmp_path_factory.mktemp("s")
    os.chmod(folder, 0o700)
    made = LinkedPlugin(request.param, folder)
    yield made
    assert made.close() == 0


NAMES = some.sampled_from(["a.md", "b.md", "deep/a.md", "deep/er/c.md"])
METADATA = some.dictionaries(
    some.text("abc", min_size=1, max_size=3),
    some.one_of(
        some.integers(-(2**70), 2**70), some.text(max_size=5), some.booleans(), some.none()
    ),
    max_size=3,
)
STEPS = some.lists(
    some.one_of(
        some.tuples(
            some.just("write"), NAMES, some.binary(max_size=40), some.integers(-1, 3), METADATA
        ),
        some.tuples(some.just("delete"), NAMES),
        some.tuples(some.just("read"), NAMES),
        some.tuples(some.just("list"), some.sampled_from(["", "deep/", "deep/er"])),
    ),
    max_size=12,
)


@pytest.mark.slow
@settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(steps=STEPS)
def test_a_store_behind_a_link_does_what_the_model_does(
    store: LinkedPlugin, steps: list[Any]
) -> None:
    root = f"t{next(_numbers)}/"  # of this run alone
    model: dict[str, tuple[bytes, dict[str, Any], int]] = {}
    for kind, name, *rest in steps:
        path = root + name
        if kind == "write":
            content, expected, metadata = rest
            current = model[path][2] if path in model else 0
            answer = store.write(path, content, expected, metadata)
            if expected in (-1, current):
                assert (answer.success, answer.new_version, answer.error) == (True, current + 1, "")
                model[path] = (content, metadata, current + 1)
            else:
                assert (answer.success, answer.new_version) == (False, 0)
                assert answer.error
        elif kind == "delete":
            answer = store.delete(path)
            assert answer.success is (path in model)
            assert answer.failure.code == ("" if path in model else "not_found")
            model.pop(path, None)
        elif kind == "read":
            answer = store.read(path)
            assert answer.failure.code == ("" if path in model else "not_found")
            if path in model:
                got = (
                    answer.content,
                    unpack(answer.metadata, answer.metadata_json),
                    answer.version,
                )
                assert got == model[path]
        else:
            listed = [(each.path, each.version) for each in store.list(path).entries]
            assert listed == sorted(
                (at, kept[2]) for at, kept in model.items() if at.startswith(path)
            )


def test_errors_are_told_apart_from_what_is_empty(store: LinkedPlugin) -> None:
    store.write("errors/empty.md", b"", -1)
    empty = store.read("errors/empty.md")
    assert (empty.content, empty.version, empty.HasField("failure")) == (b"", 1, False)
    for path, code in (
        ("errors/none.md", "not_found"),
        ("../out.md", "invalid_path"),
        # Cleaned, as upstream does: a path in the store.
        ("/etc/passwd", "not_found"),
    ):
        failure = store.read(path).failure
        assert failure.code == code
        assert failure.message
    assert store.list("errors/none/").entries == []
    assert store.list("a/../b").entries == []
    assert store.list("a/../../b").failure.code == "invalid_path"
    other = store.ask(storage_read=StorageReadRequest(path="errors/empty.md", storage_type="paper"))
    assert (other.failure.code, "paper" in other.failure.message) == ("storage_error", True)


def test_of_many_writers_who_expect_the_same_version_one_succeeds(store: LinkedPlugin) -> None:
    store.write("race.md", b"0", -1)
    version = store.read("race.md").version
    asked = [
        PluginRequest(
            storage_write=StorageWriteRequest(
                path="race.md", content=b"%d" % n, expected_version=version, storage_type=store.kind
            )
        )
        for n in range(16)
    ]
    answers = [each.storage_write for each in store.all(*asked)]
    (winner,) = [n for n, each in enumerate(answers) if each.success]
    now = store.read("race.md")
    assert (now.content, now.version) == (b"%d" % winner, version + 1)


@pytest.mark.parametrize("kind", KINDS)
def test_what_was_written_outlives_a_plugin_that_is_killed(kind: str, folder: Path) -> None:
    first = LinkedPlugin(kind, folder)
    assert first.write("features/FEAT-001.md", b"# One", 0, {"status": "todo"}).new_version == 1
    first.process.kill()
    first.close()
    second = LinkedPlugin(kind, folder)
    kept = second.read("features/FEAT-001.md")
    assert (kept.content, kept.version, unpack(kept.metadata)) == (b"# One", 1, {"status": "todo"})
    assert second.write("features/FEAT-001.md", b"# Two", 1).new_version == 2
    assert second.close() == 0


def test_it_is_called_over_quic_with_certificates_of_its_own(folder: Path) -> None:
    certificates = make_certificates(folder)
    issue(certificates, "orchestrator-to-storage.markdown")
    store = LinkedPlugin(
        "markdown", folder, f"--certs-dir={certificates.folder}", certificates=certificates
    )
    assert store.write("a.md", b"x" * 1_000_000, 0).new_version == 1
    assert store.read("a.md").content == b"x" * 1_000_000
    assert store.close() == 0


@pytest.mark.parametrize("kind", KINDS)
def test_the_manifest_says_what_it_stores_and_touches_nothing(kind: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [*COMMAND, kind, "--manifest"], capture_output=True, cwd=tmp_path, check=True, timeout=60
    )
    said = json.loads(done.stdout)
    assert (said["id"], said["provides_storage"], said["language"]) == (
        f"storage.{kind}",
        [kind],
        "python",
    )
    assert list(tmp_path.iterdir()) == []


def test_a_database_that_cannot_be_opened_ends_the_start(tmp_path: Path) -> None:
    (tmp_path / "kept.db").mkdir()
    command = [*COMMAND, "sqlite", f"--file={tmp_path / 'kept.db'}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert done.stderr.startswith("concertino plugin sqlite: ")
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("kind", KINDS)
def test_a_registration_that_names_somebody_else_is_refused(kind: str, folder: Path) -> None:
    store = LinkedPlugin(kind, folder)
    assert not store.ask(register=PluginManifest(id="tools.other")).accepted
    assert store.ask(register=PluginManifest(id=f"storage.{kind}")).accepted
    store.close()
