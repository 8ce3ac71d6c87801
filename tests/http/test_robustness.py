"""An HTTP server among clients that leave, dawdle, send too much or send nonsense: a real process,
of which nothing is left afterwards and whose memory is bounded.
"""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPException
from pathlib import Path
from random import Random

import pytest
from http_aborts import abort_many, encode_post, read_counts, settled_counts
from http_service import WAIT_S, HttpService, ask_modern, modern, modern_headers, serving, text_of

SERVER = Path(__file__).with_name("server_that_counts.py")
GIB = 2**30
ECHO = modern("tools/call", name="echo", arguments={"text": "hi"})
POST_HEAD = b"POST /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"


@pytest.fixture
def service() -> Iterator[HttpService]:
    with serving(SERVER) as running:
        yield running


def echo(service: HttpService, text: str = "hi") -> str:
    answer = ask_modern(service.connect(), "tools/call", name="echo", arguments={"text": text})
    return text_of(answer.json)


def connect(service: HttpService) -> socket.socket:
    return socket.create_connection(service.address, timeout=WAIT_S)


def read_to_end(sock: socket.socket) -> bytes:
    """Return all that a server sends until it closes the connection."""
    data = b""
    try:
        while part := sock.recv(65536):
            data += part
    except ConnectionError:
        pass
    return data


def test_nothing_is_left_of_clients_that_have_gone(service: HttpService) -> None:
    asyncio.run(abort_many(service, 40))
    before = read_counts(service)

    asyncio.run(abort_many(service, 400))

    def is_settled(counts: dict[str, int]) -> bool:
        return all(counts[name] <= before[name] for name in before if name != "rss_kb")

    after = asyncio.run(settled_counts(service, is_settled))
    assert is_settled(after), (before, after)
    assert after["rss_kb"] < before["rss_kb"] + 20_000
    assert echo(service) == "hi"
    assert "Traceback" not in service.end()


def test_a_body_of_a_gibibyte_is_refused_before_it_is_read(service: HttpService) -> None:
    before = read_counts(service)["rss_kb"]
    with connect(service) as sock:
        sock.sendall(POST_HEAD + b"Content-Length: %d\r\n\r\n" % GIB)
        assert read_to_end(sock).startswith(b"HTTP/1.1 413 ")
    assert read_counts(service)["rss_kb"] < before + 20_000


def test_a_gibibyte_in_chunks_is_refused_and_not_held(service: HttpService) -> None:
    before = read_counts(service)["rss_kb"]
    chunk = b"100000\r\n" + bytes(2**20) + b"\r\n"
    sent = 0
    with connect(service) as sock:
        try:
            sock.sendall(POST_HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
            while sent < GIB:
                sock.sendall(chunk)
                sent += 2**20
        except ConnectionError:
            # The server has refused the body and closed the connection.
            pass
        # A reset may have taken the response away.
        assert read_to_end(sock)[:13] in (b"", b"HTTP/1.1 413 ")
    # 10 MiB are accepted, and are joined once.
    assert read_counts(service)["rss_kb"] < before + 60_000
    assert echo(service) == "hi"


def test_clients_that_drip_hold_nobody_back(service: HttpService) -> None:
    """Heads and bodies of which a byte comes now and then."""
    message = modern("tools/call", name="echo", arguments={"text": "slow"})
    whole = encode_post(message, modern_headers(message))
    body_at = whole.index(b"\r\n\r\n") + 4
    slow = [connect(service) for _ in range(300)]
    try:
        for number, sock in enumerate(slow):
            sock.sendall(whole[: 10 if number % 2 else body_at])
        for at in range(10, 40):
            for number, sock in enumerate(slow):
                sock.sendall(whole[at : at + 1] if number % 2 else whole[body_at + at - 10 :][:1])
            assert echo(service, str(at)) == str(at)
        # Each of them is answered in the end, because it was in time.
        for number, sock in enumerate(slow):
            sock.sendall(whole[40 if number % 2 else body_at + 30 :])
        for sock in slow:
            assert sock.recv(65536).startswith(b"HTTP/1.1 200 ")
    finally:
        for sock in slow:
            sock.close()


def test_garbage_is_refused_and_other_clients_are_served(service: HttpService) -> None:
    chance = Random(19)
    garbage = [
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(9),
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500),
        b"\x05\x01\x00",
        b"\r\n" * 20_000,
        b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 20_000,
        b"A" * 100_000,
        bytes(100_000),
        *(chance.randbytes(chance.randrange(1, 3000)) for _ in range(200)),
    ]
    for number, data in enumerate(garbage):
        with connect(service) as sock:
            try:
                sock.sendall(data)
                sock.shutdown(socket.SHUT_WR)
            except ConnectionError:
                pass
            response = read_to_end(sock)
            assert response == b"" or response.startswith(b"HTTP/1.1 4"), (data[:80], response)
        if number % 50 == 0:
            assert echo(service) == "hi"
    assert "Traceback" not in service.end()


@pytest.mark.slow
def test_five_thousand_connections_are_served() -> None:
    count = 5000
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert hard == resource.RLIM_INFINITY or hard > count + 500, "the system allows too few files"
    wanted = max(soft, count + 500)
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    request = encode_post(ECHO, modern_headers(ECHO))
    sockets: list[socket.socket] = []
    try:
        with serving(SERVER, "--max-connections", str(count + 100)) as service:
            before = read_counts(service)["rss_kb"]
            for _ in range(count):
                sockets.append(connect(service))
            for sock in sockets:
                sock.sendall(request)
            for sock in sockets:
                assert sock.recv(65536).startswith(b"HTTP/1.1 200 ")
            counts = read_counts(service)
            assert counts["HttpConnection"] == count + 1
            assert counts["rss_kb"] < before + 40 * count
            for sock in sockets:
                sock.close()
            after = asyncio.run(settled_counts(service, lambda now: now["HttpConnection"] == 1))
            assert after["HttpConnection"] == 1
            assert after["StatelessConnection"] == 1
    finally:
        for sock in sockets:
            sock.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.slow
def test_workers_that_are_killed_give_errors_and_never_wrong_results() -> None:
    kills = 6

    with serving(SERVER, "--workers", "2") as service:
        ends = False

        def call(number: int) -> tuple[int, int]:
            """Call until the end. Returns how many calls had a result, and how many an error."""
            results = errors = turn = 0
            connection = service.connect()
            while not ends:
                text = f"{number}-{turn}"
                turn += 1
                try:
                    answer = ask_modern(
                        connection, "tools/call", name="echo", arguments={"text": text}
                    )
                    assert answer.status == 200, answer.body
                    assert text_of(answer.json) == text
                    results += 1
                except (HTTPException, OSError):
                    errors += 1
                    connection.close()
                    connection = service.connect()
            return results, errors

        with ThreadPoolExecutor(8) as pool:
            callers = [pool.submit(call, number) for number in range(8)]
            killed: set[int] = set()
            try:
                while len(killed) < kills:
                    worker = worker_pid(service)
                    if worker is not None and worker not in killed:
                        os.kill(worker, signal.SIGKILL)
                        killed.add(worker)
            finally:
                ends = True
            counts = [caller.result(timeout=WAIT_S) for caller in callers]
        assert sum(results for results, _ in counts) > 0
        while worker_pid(service) is None:
            pass


def worker_pid(service: HttpService) -> int | None:
    """Return the process that answers; None if a killed one had the connection."""
    connection = service.connect()
    try:
        return int(text_of(ask_modern(connection, "tools/call", name="pid", arguments={}).json))
    except (HTTPException, OSError):
        return None
    finally:
        connection.close()


def test_the_first_malformed_body_is_logged_and_the_others_are_counted(
    service: HttpService,
) -> None:
    body = b'{"password": "correct horse battery", oops'
    for _ in range(3):
        post_raw(service, body)
    post_raw(service, b'{"jsonrpc":"2.0","id":{},"method":"ping"}')
    post_raw(service, b"7")

    log = [line for line in service.end().splitlines() if "malformed" in line]
    assert [line.partition("[WARN] [host] ")[2][:46] for line in log] == [
        "malformed input: Parse error: JSON is malforme",
        "5 malformed messages in all",
    ]
    assert log[0].endswith(': {"password": "[REDACTED]", oops')


def post_raw(service: HttpService, body: bytes) -> None:
    """POST a body that is refused."""
    with connect(service) as sock:
        sock.sendall(
            POST_HEAD + b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(body) + body
        )
        assert read_to_end(sock).startswith(b"HTTP/1.1 400 ")
