"""nats/used_states.py: a bucket tells processes on several machines which states were used."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from orchestra.nats_servers import NatsServerProcess, jetstream_server

from concertino.nats import used_states
from concertino.nats.used_states import NatsUsedStates
from concertino.orchestra.authority import create_authority, issue
from concertino.orchestra.certificates import Certificates
from concertino.runtime.client_questions import open_record

NONCES = iter(range(1_000_000))
RACE = """
import sys
from concertino.nats.used_states import NatsUsedStates

record = NatsUsedStates(sys.argv[1])
used = []
sys.stdin.readline()
for number in range(100):
    while True:
        try:
            used.append(record.use(b"race" + number.to_bytes(12, "big"), float(sys.argv[2])))
            break
        except OSError:
            pass
record.close()
print(sum(used))
"""


def nonce() -> bytes:
    return next(NONCES).to_bytes(16, "big")


def later() -> float:
    return time.time() + 600


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    # On a machine that is busy, 50 ms may be too short for the server.
    monkeypatch.setattr(used_states, "REQUEST_S", 20.0)
    monkeypatch.setattr(used_states, "CONNECT_S", 20.0)


def test_a_state_is_used_once_whoever_asks() -> None:
    one, other = (NatsUsedStates(jetstream_server().address) for _ in range(2))
    state = nonce()
    assert [record.use(state, later()) for record in (one, other, one)] == [True, False, False]
    assert other.use(nonce(), later())
    one.close()
    other.close()


def test_no_state_is_used_twice_by_several_processes() -> None:
    arguments = [sys.executable, "-c", RACE, jetstream_server().address, str(later())]
    processes = [
        subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE) for _ in range(3)
    ]
    outputs = [process.communicate(b"\n", timeout=60)[0] for process in processes]
    # A use that took too long may have been stored without its process knowing; never the contrary.
    assert 0 < sum(map(int, outputs)) <= 100


def test_a_state_is_refused_while_the_record_cannot_be_reached() -> None:
    with tempfile.TemporaryDirectory(prefix="nats") as folder:
        server = NatsServerProcess(Path(folder), f'jetstream {{ store_dir: "{folder}/store" }}')
        record = NatsUsedStates(server.address)
        used = nonce()
        assert record.use(used, later())
        server.stop()
        with pytest.raises(OSError, match="127"):
            record.use(nonce(), later())
        server.start()
        # What was used before the end of the server is still known.
        while True:
            try:
                assert not record.use(used, later())
                break
            except OSError:
                # After a failed attempt to connect there is a pause.
                continue
        record.close()
        server.stop()


def test_a_state_that_outlives_the_record_is_refused() -> None:
    record = NatsUsedStates(jetstream_server().address)
    with pytest.raises(OSError, match="3600 s only"):
        record.use(nonce(), time.time() + 7200)
    record.close()


def test_servers_may_know_a_front_end_by_its_certificate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certs = tmp_path / "certs"
    create_authority(Certificates(certs))
    for name in ("front-end", "nats-server"):
        issue(Certificates(certs), name)
    files = {"cert_file": "nats-server.crt", "key_file": "nats-server.key", "ca_file": "ca.crt"}
    tls = {key: str(certs / name) for key, name in files.items()}
    settings = {
        "jetstream": {"store_dir": str(tmp_path / "store")},
        "tls": {**tls, "verify_and_map": True},
        "authorization": {"users": [{"user": "front-end"}]},
    }
    # JSON is valid in the server's configuration, without the outermost braces.
    server = NatsServerProcess(tmp_path, json.dumps(settings)[1:-1])
    try:
        with pytest.raises(OSError, match="127"):
            NatsUsedStates(server.address).use(nonce(), later())
        monkeypatch.setenv("CONCERTINO_STATE_CERTS", str(certs))
        for address in (server.address, server.address.replace("nats://", "tls://")):
            record = open_record(address)
            assert isinstance(record, NatsUsedStates)
            state = nonce()
            assert [record.use(state, later()) for _ in range(2)] == [True, False]
            record.close()
    finally:
        server.stop()


def test_a_folder_without_the_certificate_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"expected ca\.crt, front-end\.crt and front-end\.key"):
        NatsUsedStates("tls://127.0.0.1:1", tmp_path)
