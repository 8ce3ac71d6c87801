"""nats_buckets.py, nats_server.py and `concertino cluster buckets|up`, with real servers."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import nats
import pytest
from orchestra.nats_servers import NatsServerProcess, jetstream_server

from concertino.cli import main
from concertino.nats.blocking import BlockingNats, Request
from concertino.nats.servers import parse_servers
from concertino.orchestra.authority import create_authority
from concertino.orchestra.certificates import Certificates
from concertino.orchestra.nats_cluster import nats_options
from concertino.orchestra.nats_server import server_configuration
from concertino.orchestra.nats_storage import NatsStorage
from concertino.orchestra.plugins_file import HUB
from concertino.orchestra.storage import CREATE


@pytest.fixture
def certificates(tmp_path: Path) -> Certificates:
    certificates = Certificates(tmp_path / "certs")
    create_authority(certificates)
    return certificates


def guarded_server(
    folder: Path, certificates: Certificates, change: tuple[str, str] = ("", "")
) -> NatsServerProcess:
    """A server that knows the hub and the plugin `notes`.

    change: a text in its configuration, and what replaces it.
    """
    text = server_configuration(["notes"], certificates, folder / "store", -1).replace(*change)
    settings = "\n".join(line for line in text.splitlines() if not line.startswith("listen:"))
    return NatsServerProcess(folder, settings)


@pytest.fixture
def guarded(tmp_path: Path, certificates: Certificates) -> Iterator[str]:
    """The address of a server that knows the hub and the plugin `notes`."""
    process = guarded_server(tmp_path, certificates)
    yield process.address.replace("nats://", "tls://")
    process.stop()


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Run `concertino cluster` and return its exit code, stdout and stderr."""
    with pytest.raises(SystemExit) as ended:
        main(["cluster", *arguments])
    out, err = capsys.readouterr()
    assert isinstance(ended.value.code, int)
    return ended.value.code, out, err


def test_the_command_creates_buckets_once_and_says_what_it_did(
    guarded: str, certificates: Certificates, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ("--cluster", guarded, "--certs-dir", str(certificates.folder))
    assert run(capsys, "buckets", "notes", *options) == (0, "notes: created\n", "")
    assert run(capsys, "buckets", "notes", *options) == (0, "notes: exists already\n", "")

    code, out, err = run(capsys, "buckets", "other", *options)
    assert (code, out) == (1, "")
    assert "`concertino cluster permissions other`" in err


def test_the_command_protects_the_stream_of_events_only_if_hubs_may_publish_to_its_new_subject(
    tmp_path: Path, certificates: Certificates, capsys: pytest.CaptureFixture[str]
) -> None:
    # The permissions of versions before, whose hubs know one subject only.
    server = guarded_server(tmp_path, certificates, ('"e.orchestrator.*",', ""))
    address = server.address.replace("nats://", "tls://")
    options = ("--cluster", address, "--certs-dir", str(certificates.folder))
    code, out, err = run(capsys, "events", *options)
    assert (code, err) == (0, "")
    assert out == (
        "ORCHESTRA_EVENTS: there is no stream yet; the first hub creates it with a random token\n"
    )
    hub = BlockingNats(
        parse_servers(address), nats_options(parse_servers(address), HUB, certificates)
    )
    stream = {"name": "ORCHESTRA_EVENTS", "subjects": ["e.orchestrator"]}
    create = Request("$JS.API.STREAM.CREATE.ORCHESTRA_EVENTS", json.dumps(stream).encode())
    hub.request_all([create], 20.0)

    code, out, err = run(capsys, "events", *options)
    assert (code, out) == (1, "")
    assert "`concertino cluster permissions` prints" in err
    [answer] = hub.request_all([Request("$JS.API.STREAM.INFO.ORCHESTRA_EVENTS")], 20.0)
    assert json.loads(answer.payload)["config"]["subjects"] == ["e.orchestrator"]
    hub.close()
    server.stop()


def test_a_plugin_cannot_have_the_name_under_which_front_ends_get_their_answers(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, out, err = run(capsys, "permissions", "front-end", "concertino")
    assert (code, out) == (2, "")
    assert "a plugin of a cluster cannot have the id 'concertino'" in err


def test_the_command_needs_as_many_servers_as_replicas(capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--cluster", jetstream_server().address, "--replicas", "3")
    code, out, err = run(capsys, "buckets", "three", *options)
    assert (code, out) == (1, "")
    assert "KV_three: replicas > 1 not supported in non-clustered mode" in err


def test_the_command_names_settings_by_which_an_old_bucket_may_read_the_messages_of_others(
    capsys: pytest.CaptureFixture[str],
) -> None:
    address = jetstream_server().address

    async def make() -> None:
        connection = await nats.connect(address)
        settings = {
            "subjects": ["$KV.old.>", "o.spied.>"],
            "republish": {"src": "$KV.old.>", "dest": "o.forged.>"},
        }
        body = json.dumps({"name": "KV_old", "storage": "memory", **settings}).encode()
        answer = await connection.request("$JS.API.STREAM.CREATE.KV_old", body)
        assert b"error" not in answer.data, answer.data
        await connection.close()

    asyncio.run(make())
    assert run(capsys, "buckets", "old", "--cluster", address) == (
        0,
        "old: exists already; it may read or forge messages of others: republish, subjects\n",
        "",
    )


def test_the_buckets_of_front_ends_keep_values_as_long_as_front_ends_need(
    capsys: pytest.CaptureFixture[str],
) -> None:
    address = jetstream_server().address
    code, out, err = run(capsys, "buckets", "front-end", "--cluster", address)
    assert (code, err) == (0, "")
    assert [line.split(":")[0] for line in out.splitlines()] == [
        "concertino_front_ends",
        "concertino_states",
    ]

    async def ages() -> list[float | None]:
        connection = await nats.connect(address)
        stream = connection.jetstream()
        found = [await stream.stream_info(f"KV_{line.split(':')[0]}") for line in out.splitlines()]
        await connection.close()
        return [info.config.max_age for info in found]

    # A front end renews its address every 15 s; a state is valid for 10 minutes.
    assert asyncio.run(ages()) == [60, 3600]


def test_a_store_that_is_no_folder_is_named_without_a_number(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("concertino.orchestra.nats_server.find_server", lambda: "nats-server")
    (tmp_path / "store").touch()
    code, _, err = run(capsys, "up", "notes", "--store-dir", str(tmp_path / "store"))
    assert (code, err) == (1, f"concertino cluster up: {tmp_path}/store: File exists\n")


def test_a_server_for_trying_has_the_buckets_of_its_names_and_its_store_alone(
    tmp_path: Path,
    certificates: Certificates,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with socket.socket() as sock, socket.socket() as another:
        sock.bind(("127.0.0.1", 0))
        another.bind(("127.0.0.1", 0))
        port, other_port = sock.getsockname()[1], another.getsockname()[1]
    options = ["--store-dir", str(tmp_path / "store"), "--certs-dir", str(certificates.folder)]
    command = [sys.executable, "-m", "concertino", "cluster", "up", "notes", "--port", str(port)]
    server = subprocess.Popen([*command, *options], stderr=subprocess.PIPE, text=True)
    assert server.stderr is not None
    try:
        assert any("Server is ready" in line for line in server.stderr)
        storage = NatsStorage(f"tls://127.0.0.1:{port}", "notes", certificates)
        assert storage.write("a.md", b"text", {}, CREATE) == 1
        storage.close()

        # Two servers would destroy what they store in one folder.
        monkeypatch.setattr("os.execv", lambda *_: pytest.fail("the server was started"))
        code, _, err = run(capsys, "up", "notes", "--port", str(other_port), *options)
        assert (code, err) == (
            1,
            f"concertino cluster up: {tmp_path}/store: another server uses this folder; name "
            "another one with --store-dir\n",
        )
    finally:
        server.terminate()
        server.communicate()


def test_a_second_server_for_trying_does_not_touch_the_store_of_the_first(
    tmp_path: Path,
    certificates: Certificates,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # It would replace this process.
    monkeypatch.setattr("os.execv", lambda *_: pytest.fail("the server was started"))
    options = ("--store-dir", str(tmp_path / "store"), "--certs-dir", str(certificates.folder))
    with socket.create_server(("127.0.0.1", 0)) as first:
        port = first.getsockname()[1]
        code, _, err = run(capsys, "up", "notes", "--port", str(port), *options)
    assert (code, err) == (
        1,
        f"concertino cluster up: 127.0.0.1:{port}: Address already in use\n",
    )
    assert not list((tmp_path / "store").glob("jetstream"))


@pytest.mark.parametrize("port", ["0", "65536", "-1"])
def test_a_port_where_no_server_can_listen_is_refused(
    tmp_path: Path, certificates: Certificates, capsys: pytest.CaptureFixture[str], port: str
) -> None:
    options = ("--store-dir", str(tmp_path / "store"), "--certs-dir", str(certificates.folder))
    code, _, err = run(capsys, "up", "notes", "--port", port, *options)
    assert (code, err) == (2, f"concertino cluster up: --port: expected 1 to 65535, got {port}\n")
