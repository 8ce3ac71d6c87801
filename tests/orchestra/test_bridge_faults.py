"""`concertino bridge` and hubs that are not there, go, hang, answer rubbish or are somebody else:
every call is answered, once.
"""

from __future__ import annotations

import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from orchestra.bridges import (
    CONNECTED,
    Hub,
    Process,
    bridge,
    call,
    connect,
    definition,
    gave,
    make_certificates,
    make_failure,
    request,
    tools,
)

from concertino.orchestra.authority import create_authority, issue, renew
from concertino.orchestra.certificates import Certificates
from concertino.orchestra.plugin_pb2 import PluginRequest, PluginResponse

# Not there


def test_without_a_hub_it_serves_and_each_call_fails_at_once(hub: Hub) -> None:
    hub.stop()
    with bridge(hub) as process:
        assert process.initialize()["result"]["serverInfo"]["name"] == "orchestra"
        assert process.ask(request("ping", "ping"))["result"] == {}
        for id, (method, params) in enumerate(
            [
                ("tools/list", {}),
                ("tools/call", {"name": "greet"}),
                ("prompts/list", {}),
                ("prompts/get", {"name": "x"}),
                ("resources/list", {}),
                ("resources/read", {"uri": "orchestra://notes/x"}),
            ]
        ):
            error = process.ask(request(id, method, params))["error"]
            assert error["code"] == -32603, method
            assert hub.address in error["message"]
        # Nobody is needed for these.
        assert (
            len(
                process.ask(request("t", "resources/templates/list"))["result"]["resourceTemplates"]
            )
            == 3
        )
        assert process.ask(request("l", "logging/setLevel", {"level": "debug"}))["result"] == {}
        hub.answers["tool_call"] = gave({"text": "here I am"})
        hub.start()
        process.until_stderr(CONNECTED)
        assert process.ask(call("now", "greet"))["result"]["content"][0]["text"] == "here I am"
        assert process.finish() == 0


@pytest.mark.slow
def test_the_opening_is_answered_while_nobody_has_answered_the_first_attempt(folder: Path) -> None:
    """A UDP socket that is there and says nothing: connecting takes its whole time."""
    certificates = make_certificates(folder)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as silent:
        silent.bind(("127.0.0.1", 0))
        hub = Hub.__new__(Hub)
        hub.address, hub.certificates = f"127.0.0.1:{silent.getsockname()[1]}", certificates
        with bridge(hub) as process:
            process.initialize()
            process.send(request(1, "tools/list"))
            assert process.ask(request(2, "ping"))["result"] == {}
            assert process.answer(1)["error"]["code"] == -32603
            # The ping did not wait for it.
            assert [message["id"] for message in process.messages] == ["initialize", 2, 1]
            assert process.finish() == 0


# Goes


def test_a_hub_that_is_restarted_in_the_middle_of_calls(hub: Hub) -> None:
    hub.answers["tool_call"] = hub.hang
    with bridge(hub) as process:
        connect(process)
        for id in range(8):
            process.send(call(id, "slow"))
            hub.until_asked()
        hub.stop()
        for id in range(8):
            assert process.answer(id)["error"]["code"] == -32603
        hub.answers["tool_call"] = gave({"text": "again"})
        hub.start()
        process.pump(lambda: process.stderr.count(b"connected to orchestrator") == 2)
        assert process.ask(call("after", "slow"))["result"]["content"][0]["text"] == "again"
        assert len(hub.of("tool_call")) == 9  # nothing was sent twice
        assert process.finish() == 0


SILENT = """
import asyncio, sys
from concertino.orchestra.link import listen_for_links
from concertino.orchestra.plugin_pb2 import PluginResponse, HealthResult
async def answer(request, peer):
    if request.HasField("tool_call"):
        print("asked", flush=True)
        await asyncio.Event().wait()
    return PluginResponse(health=HealthResult(status=1))
async def main():
    listening = await listen_for_links(sys.argv[1], answer)
    print("there", flush=True)
    await asyncio.Event().wait()
asyncio.run(main())
"""


@contextmanager
def bridge_without_answer(folder: Path) -> Iterator[tuple[Process, subprocess.Popen[str]]]:
    """A bridge, and the process of a hub, which has heard of call 1 and does not answer it."""
    address = f"unix:{folder}/hub"
    hub = Hub.__new__(Hub)
    hub.address, hub.certificates = address, Certificates(folder)
    with subprocess.Popen(
        [sys.executable, "-c", SILENT, address], stdout=subprocess.PIPE, text=True
    ) as silent:
        assert silent.stdout is not None
        assert silent.stdout.readline() == "there\n"
        with bridge(hub) as process:
            connect(process)
            process.send(call(1, "slow"))
            assert silent.stdout.readline() == "asked\n"
            try:
                yield process, silent
            finally:
                silent.kill()


def test_a_hub_that_is_killed_is_noticed_at_once(folder: Path) -> None:
    with bridge_without_answer(folder) as (process, silent):
        silent.kill()
        error = process.answer(1, 10)["error"]
        assert error["code"] == -32603
        assert process.finish() == 0


@pytest.mark.slow
def test_a_hub_that_stands_still_is_noticed_by_health_pings(folder: Path) -> None:
    """SIGSTOP: the connection is there, and nobody behind it.

    Pings are 5 s apart and are waited for 5 s.
    """
    with bridge_without_answer(folder) as (process, silent):
        silent.send_signal(signal.SIGSTOP)
        assert process.ask(request("ping", "ping"))["result"] == {}
        assert process.answer(1, 20)["error"]["code"] == -32603
        process.until_stderr("health ping")


@pytest.mark.slow
def test_a_bridge_that_is_killed_is_noticed_within_ten_seconds_and_its_call_ends(
    folder: Path,
) -> None:
    """SIGKILL: over QUIC, no packet tells the hub of it."""
    hub = Hub("quic", folder)
    hub.answers["tool_call"] = hub.hang
    hub.start()
    try:
        with bridge(hub) as process:
            connect(process)
            process.send(call(1, "greet"))
            hub.until_asked()
            process.signal(signal.SIGKILL)
            began = time.monotonic()
            hub.until_cancelled()
            assert time.monotonic() - began < 10
    finally:
        hub.close()


# Hangs


def test_a_cancelled_call_is_cancelled_at_the_hub_and_not_answered(hub: Hub) -> None:
    hub.answers["tool_call"] = hub.hang
    with bridge(hub) as process:
        connect(process)
        process.send(call(1, "slow"))
        hub.until_asked()
        process.send(
            {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}}
        )
        hub.until_cancelled()
        hub.answers["tool_call"] = gave({"text": "free"})
        assert process.ask(call(2, "quick"))["result"]["content"][0]["text"] == "free"
        assert process.answers(1) == []


def test_a_call_over_its_time_fails_and_is_cancelled_at_the_hub(hub: Hub) -> None:
    hub.answers["tool_call"] = hub.hang
    # The hub must have begun the call before its time is over, even on a loaded machine.
    with bridge(hub, "--timeout", "2") as process:
        connect(process)
        process.send(call(1, "slow"))
        hub.until_asked()
        answer = process.answer(1)
        assert answer.get("error") or answer["result"]["isError"]
        hub.until_cancelled()


def test_slow_lists_and_calls_delay_neither_each_other_nor_a_ping(hub: Hub) -> None:
    hub.answers = {"tool_call": hub.hang, "list_tools": hub.hang, "storage_list": hub.hang}
    with bridge(hub) as process:
        connect(process)
        process.send(request(1, "tools/list"), call(2, "slow"), request(3, "resources/list"))
        for _ in range(5):  # of the resources there are three kinds
            hub.until_asked()
        assert process.ask(request(4, "ping"))["result"] == {}
        hub.answers["tool_call"] = gave({"text": "quick"})
        assert process.ask(call(5, "quick"))["result"]["content"][0]["text"] == "quick"


@pytest.mark.slow
def test_the_end_of_input_cancels_what_hangs_and_leaves_in_time(hub: Hub) -> None:
    hub.answers["tool_call"] = hub.hang
    with bridge(hub) as process:
        connect(process)
        process.send(call(1, "slow"))
        hub.until_asked()
        assert process.finish(10) == 0  # 2 s for calls under way, and 2 s more
        hub.until_cancelled()


def test_a_signal_ends_it_though_nothing_comes_on_stdin(hub: Hub) -> None:
    with bridge(hub) as process:
        process.initialize()
        process.signal(signal.SIGTERM)
        assert process.wait(10) == 0


# Answers rubbish


class Raw:
    """A Unix socket whose every answer is bytes: answer(request) gives those to write, or None to
    hang up. One client at a time.
    """

    def __init__(self, folder: Path, answer: Callable[[PluginRequest], bytes | None]) -> None:
        self.address = f"unix:{folder}/raw"
        self.certificates = Certificates(folder)
        self._answer = answer
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(f"{folder}/raw")
        (folder / "raw").chmod(0o600)
        self._listener.listen()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:  # closed
                return
            with client, client.makefile("rb") as reading, suppress(ConnectionError):
                while header := reading.read(4):
                    request = PluginRequest.FromString(reading.read(struct.unpack(">I", header)[0]))
                    answer = self._answer(request)
                    if answer is None:
                        break
                    client.sendall(answer)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join(30)
        self._listener.close()


def make_frame(response: PluginResponse, id: str) -> bytes:
    response.request_id = id
    payload = response.SerializeToString()
    return struct.pack(">I", len(payload)) + payload


def nonsense(request: PluginRequest) -> bytes | None:
    payload = (
        b"\x0a" + bytes([len(request.request_id)]) + request.request_id.encode() + b"\xff\xff\xff"
    )
    return struct.pack(">I", len(payload)) + payload


RUBBISH: dict[str, Callable[[PluginRequest], bytes | None]] = {
    "no protobuf": nonsense,
    "of another kind": lambda asked: make_frame(tools(definition("x")), asked.request_id),
    "of no kind": lambda asked: make_frame(PluginResponse(), asked.request_id),
    "a Struct that is none": lambda asked: make_frame(_broken(), asked.request_id),
    "a frame above the limit": lambda asked: struct.pack(">I", 16 * 2**20 + 1),
    "a frame of 4 GiB": lambda asked: b"\xff\xff\xff\xff",
    "nothing, and the end": lambda asked: None,
}


def _broken() -> PluginResponse:
    response = gave({})
    response.tool_call.result = b"\xff"
    return response


@pytest.mark.parametrize("what", RUBBISH)
def test_an_answer_that_is_none_fails_its_call_alone(what: str, folder: Path) -> None:
    def answer(asked: PluginRequest) -> bytes | None:
        if asked.HasField("health"):
            return make_frame(PluginResponse(), asked.request_id)
        if asked.tool_call.tool_name == "good":
            return make_frame(gave({"text": "good"}), asked.request_id)
        return RUBBISH[what](asked)

    raw = Raw(folder, answer)
    try:
        with bridge(raw) as process:  # type: ignore[arg-type]
            connect(process)
            error = process.ask(call(1, "bad"))["error"]
            assert error["code"] == -32603
            assert error["message"]
            assert process.ask(request(2, "ping"))["result"] == {}
            if "frame" in what or "end" in what:  # then the link is lost, and comes back
                process.pump(lambda: process.stderr.count(b"connected to orchestrator") == 2)
            assert process.ask(call(3, "good"))["result"]["content"][0]["text"] == "good"
            assert b"Traceback" not in process.stderr
    finally:
        raw.close()


def test_an_answer_that_comes_twice_is_given_once(folder: Path) -> None:
    def answer(asked: PluginRequest) -> bytes | None:
        if asked.HasField("health"):
            return make_frame(PluginResponse(), asked.request_id)
        twice = make_frame(gave({"text": asked.tool_call.tool_name}), asked.request_id)
        return (
            twice
            + make_frame(make_failure("handler_error", "the second"), asked.request_id)
            + make_frame(gave({}), "nobody's")
        )

    raw = Raw(folder, answer)
    try:
        with bridge(raw) as process:  # type: ignore[arg-type]
            connect(process)
            for id in range(20):
                answered = process.ask(call(id, f"tool{id}"))
                assert answered["result"]["content"][0]["text"] == f"tool{id}"
                assert "isError" not in answered["result"]
    finally:
        raw.close()


# Is somebody else, or thinks that we are


def test_certificates_that_are_renewed_while_connected_are_used_from_the_next_connection_on(
    folder: Path,
) -> None:
    hub = Hub("quic", folder)
    hub.answers["tool_call"] = gave({"text": "hello"})
    hub.start()
    try:
        with bridge(hub) as process:
            connect(process)
            assert process.ask(call(1, "greet"))["result"]["content"][0]["text"] == "hello"
            for name in ("orchestrator", "transport.stdio-client"):
                renew(hub.certificates, name)
            assert (
                process.ask(call(2, "greet"))["result"]["content"][0]["text"] == "hello"
            )  # the old connection stands
            hub.stop()
            hub.start()
            process.pump(lambda: process.stderr.count(b"connected to orchestrator") == 2)
            assert process.ask(call(3, "greet"))["result"]["content"][0]["text"] == "hello"
    finally:
        hub.close()


def test_a_hub_under_another_name_or_authority_gets_no_call(folder: Path) -> None:
    hub = Hub("quic", folder)
    hub.answers["tool_call"] = gave({"text": "hello"})
    hub.start()
    other = folder / "other"
    other.mkdir(0o700)
    stranger = make_certificates(other)
    try:
        with bridge(hub, "--certs-dir", str(stranger.folder)) as process:
            process.initialize()
            assert process.ask(call(1, "greet"))["error"]["code"] == -32603
            assert process.finish() == 0
        assert hub.of("tool_call") == []
    finally:
        hub.close()


# Cannot start


def start_bridge(*options: str, **env: str) -> tuple[int, str]:
    with Process(["-m", "concertino", "bridge", *options], env=env) as process:
        process.close_stdin()
        code = process.finish()
        return code, process.stderr.decode()


@pytest.mark.parametrize(
    "address", ["nowhere", "localhost", "localhost:0", "localhost:99999", "unix:", "::1:50100"]
)
def test_an_address_that_is_none_ends_it_with_1(address: str, folder: Path) -> None:
    code, said = start_bridge("--orchestrator-addr", address, "--certs-dir", str(folder))
    assert code == 1
    assert "expected HOST:PORT" in said
    assert repr(address) in said


def test_certificates_that_cannot_be_used_end_it_with_1_and_the_command_that_mends_them(
    folder: Path,
) -> None:
    missing = start_bridge("--certs-dir", str(folder / "none"))
    assert missing[0] == 1
    assert f"concertino certs init --certs-dir {folder / 'none'}" in missing[1]
    certificates = Certificates(folder / "certs")
    create_authority(certificates)
    issue(certificates, "transport.stdio-client")
    certificates.key("transport.stdio-client").chmod(0o644)
    readable = start_bridge("--certs-dir", str(certificates.folder))
    assert readable[0] == 1
    assert "chmod 600" in readable[1]
    certificates.key("ca").unlink()
    certificates.key("transport.stdio-client").unlink()
    gone = start_bridge("--certs-dir", str(certificates.folder))
    assert gone[0] == 1
    assert "Traceback" not in missing[1] + readable[1] + gone[1]


def test_its_own_certificate_is_issued_where_the_authority_is(folder: Path) -> None:
    certificates = Certificates(folder / "certs")
    create_authority(certificates)
    code, _ = start_bridge(
        "--certs-dir", str(certificates.folder), "--orchestrator-addr", "localhost:1"
    )
    assert code == 0
    assert certificates.names() == ["transport.stdio-client"]


def test_a_unix_socket_needs_no_certificates(folder: Path) -> None:
    code, said = start_bridge("--orchestrator-addr", f"unix:{folder}/nobody", HOME=str(folder))
    assert code == 0, said
    assert list(folder.iterdir()) == []
