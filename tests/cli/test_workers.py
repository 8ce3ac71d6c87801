"""`concertino serve --workers N`: several processes share clients and sealed states."""

from __future__ import annotations

import http.client
import os
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from http_service import (
    INITIALIZE,
    WAIT_S,
    HttpService,
    Session,
    ask_modern,
    call,
    modern,
    modern_headers,
    post,
    serving,
    text_of,
)
from tls_certificates import write_certificate

SERVER = '''
import asyncio
import os

from concertino import Accepted, Context, Server

server = Server("shared")


@server.tool
async def pid() -> str:
    """Return the process that answers."""
    return str(os.getpid())


@server.tool
async def loop() -> str:
    """Return the module of the event loop, and the process that answers."""
    return f"{type(asyncio.get_running_loop()).__module__} {os.getpid()}"


@server.tool
async def delete(context: Context) -> str:
    """Ask before something is deleted."""
    form = {"type": "object", "properties": {"ok": {"type": "boolean"}}}
    answer = await context.elicit("Really?", form)
    return "deleted" if isinstance(answer, Accepted) else "left alone"
'''
# Passes a socket on as systemd does: see sd_listen_fds(3).
AS_SYSTEMD = """
import os, sys
os.dup2(int(sys.argv[1]), 3)
os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS="1")
os.execv(sys.argv[2], sys.argv[2:])
"""
# Every event loop of the process is one of uvloop.
UVLOOP_POLICY = "import asyncio, uvloop\nasyncio.set_event_loop_policy(uvloop.EventLoopPolicy())\n"
BROKEN = "raise RuntimeError('no luck')\n"


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("workers") / "shared.py"
    path.write_text(SERVER)
    return path


@contextmanager
def workers(file: Path, *options: str, **variables: str) -> Iterator[HttpService]:
    with serving(file, "--workers", "2", *options, **variables) as service:
        service.read_stderr_until("2 workers serve")
        yield service


@contextmanager
def connected(service: HttpService) -> Iterator[http.client.HTTPConnection]:
    connection = http.client.HTTPConnection(*service.address, timeout=WAIT_S)
    try:
        yield connection
    finally:
        connection.close()


def ask_pid(service: HttpService) -> int:
    """The process that answers on a new connection. Retried when a killed one has taken it."""
    deadline = time.monotonic() + WAIT_S
    while True:
        try:
            with connected(service) as connection:
                return int(text_of(ask_modern(connection, "tools/call", name="pid").json))
        except (OSError, http.client.HTTPException):
            assert time.monotonic() < deadline


def ask_pids(service: HttpService, count: int, without: int = 0) -> set[int]:
    """The processes that answer, when so many different ones have been seen."""
    found: set[int] = set()
    deadline = time.monotonic() + WAIT_S
    while len(found) < count:
        assert time.monotonic() < deadline, found
        with ThreadPoolExecutor(8) as pool:
            found |= set(pool.map(lambda _: ask_pid(service), range(16)))
        found.discard(without)
    return found


def begin_question() -> tuple[dict[str, Any], dict[str, str]]:
    capabilities = {"io.modelcontextprotocol/clientCapabilities": {"elicitation": {"form": {}}}}
    message = modern("tools/call", name="delete", arguments={}, _meta=capabilities)
    return message, modern_headers(message)


def test_all_workers_answer_and_one_that_is_killed_is_replaced(file: Path) -> None:
    with workers(file) as service:
        first, second = ask_pids(service, 2)
        os.kill(first, signal.SIGKILL)
        # Whoever asks meanwhile gets an error of the connection, or the right answer.
        assert ask_pid(service) != service.process.pid
        line = service.read_stderr_until("was ended by signal 9")
        assert f"pid {first}" in line
        assert second in ask_pids(service, 2, without=first)
        assert "Traceback" not in service.end()
        assert service.process.returncode == 0


def test_a_question_of_one_worker_is_answered_once_whichever_gets_the_answer(file: Path) -> None:
    with workers(file) as service:
        message, headers = begin_question()
        with connected(service) as connection:
            asked = post(connection, message, headers).json["result"]
        assert asked["resultType"] == "input_required"
        (key,) = asked["inputRequests"]
        answered = {
            **message,
            "params": {
                **message["params"],
                "requestState": asked["requestState"],
                "inputResponses": {key: {"action": "accept", "content": {"ok": True}}},
            },
        }

        def send(_: int) -> Any:
            with connected(service) as connection:
                return post(connection, answered, headers).json

        with ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(send, range(24)))
        done = [answer for answer in answers if "result" in answer]
        assert [text_of(answer) for answer in done] == ["deleted"]
        refused = {answer["error"]["message"] for answer in answers if "error" in answer}
        # On a busy machine, a worker may have to wait too long for the record of the other one.
        refused.discard(
            "Invalid params: requestState: the record of used states cannot be reached; send it"
            " again later"
        )
        assert refused == {"Invalid params: requestState: it was used before"}


def test_a_question_is_answered_after_the_key_was_replaced(file: Path) -> None:
    """Three servers, one after the other: with the old key, with both, and with the new one."""
    old, new = "o" * 32, "n" * 32
    message, headers = begin_question()

    def ask(service: HttpService) -> dict[str, Any]:
        with connected(service) as connection:
            asked = post(connection, message, headers).json["result"]
        (key,) = asked["inputRequests"]
        params = {
            **message["params"],
            "requestState": asked["requestState"],
            "inputResponses": {key: {"action": "accept", "content": {"ok": True}}},
        }
        return {**message, "params": params}

    def answer(service: HttpService, answered: dict[str, Any]) -> Any:
        with connected(service) as connection:
            return post(connection, answered, headers).json

    with serving(file, CONCERTINO_STATE_KEY=old) as service:
        first, second = ask(service), ask(service)
    with serving(file, CONCERTINO_STATE_KEY=f"{new},{old}") as service:
        assert text_of(answer(service, first)) == "deleted"
        third = ask(service)
    with serving(file, CONCERTINO_STATE_KEY=new) as service:
        assert text_of(answer(service, third)) == "deleted"
        assert "requestState" in answer(service, second)["error"]["message"]


def test_a_session_stays_at_its_worker_whichever_gets_the_request(file: Path) -> None:
    with workers(file) as service:
        for _ in range(4):
            session = Session(service)
            answers: set[str] = set()
            for id in range(1, 9):
                with connected(service) as connection:
                    reply = post(connection, call(id, "pid"), session.headers)
                answers.add(text_of(reply.json))
            assert len(answers) == 1


def test_workers_with_uvloop_serve_sessions_over_tls(file: Path, tmp_path: Path) -> None:
    certificate, key = write_certificate(tmp_path)
    trusted = ssl.create_default_context(cafile=certificate)

    def connect() -> http.client.HTTPConnection:
        return http.client.HTTPSConnection(
            "localhost", service.address[1], timeout=WAIT_S, context=trusted
        )

    options = ("--uvloop", "--tls-cert", str(certificate), "--tls-key", str(key))
    with workers(file, *options) as service:
        check_loop_of_session(connect)
        assert "Traceback" not in service.end()
        assert service.process.returncode == 0


def test_a_file_may_set_the_policy_of_uvloop_for_each_worker(tmp_path: Path) -> None:
    path = tmp_path / "uvloops.py"
    path.write_text(UVLOOP_POLICY + SERVER)
    with workers(path) as service:
        check_loop_of_session(lambda: http.client.HTTPConnection(*service.address, timeout=WAIT_S))
        assert "Traceback" not in service.end()


def check_loop_of_session(connect: Callable[[], http.client.HTTPConnection]) -> None:
    """Use one session through several connections. All answers come from one uvloop."""
    with closing(connect()) as connection:
        opened = post(connection, INITIALIZE)
    headers = {"Mcp-Session-Id": opened.headers["Mcp-Session-Id"]}
    answers: set[str] = set()
    for id in range(1, 9):
        with closing(connect()) as connection:
            answers.add(text_of(post(connection, call(id, "loop"), headers).json))
    (answer,) = answers
    assert answer.startswith("uvloop ")


def test_sessions_of_a_killed_worker_are_unknown_and_its_successor_opens_new_ones(
    file: Path,
) -> None:
    with workers(file) as service:
        session = Session(service)
        owner = int(text_of(session.call(1, "pid").json))
        session.connection.close()
        os.kill(owner, signal.SIGKILL)
        service.read_stderr_until("was ended by signal 9")
        # 404 tells a client of these revisions to send initialize again.
        assert post(service.connect(), call(2, "pid"), session.headers).status == 404
        ask_pids(service, 2, without=owner)
        assert Session(service).call(1, "pid").status == 200


def test_workers_end_with_their_parent_even_if_it_is_killed(file: Path) -> None:
    with workers(file) as service:
        pids = ask_pids(service, 2)
        service.process.kill()
        service.process.wait(WAIT_S)
        deadline = time.monotonic() + WAIT_S
        while any(Path(f"/proc/{pid}").exists() for pid in pids):
            assert time.monotonic() < deadline
            time.sleep(0.02)


def test_a_server_that_cannot_start_ends_the_command(tmp_path: Path) -> None:
    path = tmp_path / "broken.py"
    path.write_text(BROKEN)
    command = [sys.executable, "-m", "concertino", "serve", str(path)]
    done = subprocess.run(
        [*command, "--http", "127.0.0.1:0", "--workers", "2"],
        capture_output=True,
        text=True,
        timeout=WAIT_S,
    )
    assert done.returncode == 1
    assert "no luck" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("options", [[], ["--workers", "2"]])
def test_systemd_learns_when_the_server_serves(
    file: Path, tmp_path: Path, options: list[str]
) -> None:
    path = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(path)
        manager.settimeout(WAIT_S)
        with serving(file, *options, NOTIFY_SOCKET=path) as service:
            assert manager.recv(64) == b"READY=1"
            with connected(service) as connection:
                assert ask_modern(connection, "tools/list").status == 200


def test_http_is_served_at_a_socket_of_systemd(file: Path) -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=8) as listener:
        address = listener.getsockname()
        command = [sys.executable, "-m", "concertino", "serve", str(file), "--http", "systemd"]
        process = subprocess.Popen(
            [sys.executable, "-c", AS_SYSTEMD, str(listener.fileno()), *command],
            pass_fds=[listener.fileno()],
            stderr=subprocess.PIPE,
            text=True,
        )
    service = HttpService(process, f"http://{address[0]}:{address[1]}/mcp")
    try:
        with connected(service) as connection:
            assert text_of(ask_modern(connection, "tools/call", name="pid").json) == str(
                process.pid
            )
    finally:
        process.kill()
        process.wait()
        assert process.stderr is not None
        process.stderr.close()
