"""Our reading of HTTP requests beside that of Node's server: each request that we accept, Node
reads in the same way. The inputs are those of fuzz/http_requests.py, which compares with h11.
"""

from __future__ import annotations

import base64
import json
import re
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import fuzz
import pytest
from fuzz import http_requests
from fuzz.mutation import mutations
from interop.tools import node_program

SERVER = Path(__file__).with_name("http_parser.mjs")
COUNT = 3000
LIMIT_S = 30.0
Read = tuple[str, str, bytes]


@pytest.fixture(scope="module")
def node_port() -> Iterator[int]:
    process = subprocess.Popen(
        [node_program("node"), str(SERVER)], stdout=subprocess.PIPE, stdin=subprocess.DEVNULL
    )
    try:
        assert process.stdout is not None
        yield int(process.stdout.readline())
    finally:
        process.kill()
        process.communicate()


def read_with_node(port: int, stream: bytes) -> list[Read]:
    """Return the requests that Node answers."""
    data = b""
    with socket.create_connection(("127.0.0.1", port), timeout=LIMIT_S) as connection:
        try:
            connection.sendall(stream)
            connection.shutdown(socket.SHUT_WR)
            while part := connection.recv(65536):
                data += part
        except ConnectionError:
            pass
    found: list[Read] = []
    for text in re.findall(rb"^X-Read: (\S+)\r$", data, re.MULTILINE):
        method, target, body = json.loads(base64.b64decode(text))
        found.append((method, http_requests.split_target(target)[1], body.encode("latin-1")))
    return found


def disagreement(port: int, stream: bytes) -> str | None:
    """Say what Node reads in another way than we do; None if nothing.

    Node gets the bytes of the requests that we accept: it must read all of them, and no more.
    """
    accepted = http_requests.read_requests([stream])
    if not accepted:
        return None
    ours = [(item.method, item.path, item.body) for item in accepted]
    node = read_with_node(port, stream[: accepted[-1].end])
    return None if node == ours else f"{stream!r}: Node reads {node}, and we {ours}"


def test_nodes_parser_reads_what_we_accept_in_the_same_way(node_port: int) -> None:
    corpus = [data for _, data in fuzz.corpus("http_requests")]
    changed = mutations(corpus, http_requests.TOKENS, http_requests.MAX_BYTES, 1, COUNT)

    found = [disagreement(node_port, data[3:]) for data in (*corpus, *changed) if data[3:]]

    assert [text for text in found if text] == []


def test_the_comparison_notices_another_reading(node_port: int) -> None:
    stream = b"POST /mcp HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc"

    assert read_with_node(node_port, stream) == [("POST", "/mcp", b"abc")]
    assert read_with_node(node_port, stream.replace(b"Host: a", b"Host: a\r\n X")) == []
