"""The pages about HTTP: their commands and programs serve a call at the URL that they log.

What else the pages say is shown by tests/http.
"""

from __future__ import annotations

import http.client
import shlex
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from docs.pages import DOCS, blocks, environment, paste
from http_service import ask_modern, modern, modern_headers, post, text_of

PAGE = DOCS / "how-to" / "http.md"
PRODUCTION = DOCS / "how-to" / "http-in-production.md"
REFERENCE = DOCS / "reference" / "http.md"
COMMANDS = [
    command
    for page in (PAGE, PRODUCTION, REFERENCE)
    for block in blocks(page.read_text(), "sh")
    for command in block.splitlines()
    if command.startswith("concertino ")
]
WAIT_S = 30.0


@contextmanager
def running(words: list[str], folder: Path) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, *words], cwd=folder, env=environment(), stderr=subprocess.PIPE, text=True
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        assert process.stderr is not None
        process.stderr.close()


def address_of(process: subprocess.Popen[str]) -> str:
    """The host and port in the log of a server that has started."""
    assert process.stderr is not None
    line = next(line for line in process.stderr if "Listening on http://" in line)
    return line.rpartition("http://")[2].partition("/mcp")[0]


def price_at(process: subprocess.Popen[str]) -> str:
    """The price of an apple, from the server at the URL in the log."""
    connection = http.client.HTTPConnection(address_of(process), timeout=WAIT_S)
    try:
        answer = ask_modern(connection, "tools/call", name="price", arguments={"item": "apple"})
        return text_of(answer.json)
    finally:
        connection.close()


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_serves_at_the_url_that_it_logs(command: str, tmp_path: Path) -> None:
    paste(PAGE, tmp_path)
    words = [word.replace(":8000", ":0") for word in shlex.split(command)[1:]]

    with running(["-m", "concertino", *words], tmp_path) as process:
        assert price_at(process) == "1.5"


def test_the_file_serves_itself(tmp_path: Path) -> None:
    paste(PAGE, tmp_path)
    file = tmp_path / "shop.py"
    file.write_text(file.read_text().replace(":8000", ":0"))

    with running(["shop.py"], tmp_path) as process:
        assert price_at(process) == "1.5"


def test_the_example_repeats_an_argument_in_a_header(tmp_path: Path) -> None:
    assert paste(REFERENCE, tmp_path) == ["weather.py"]
    words = ["-m", "concertino", "serve", "weather.py", "--http", "127.0.0.1:0"]

    with running(words, tmp_path) as process:
        connection = http.client.HTTPConnection(address_of(process), timeout=WAIT_S)
        message = modern("tools/call", name="forecast", arguments={"city": "Rome"})
        headers = modern_headers(message)
        refused = post(connection, message, headers)
        served = post(connection, message, {**headers, "Mcp-Param-City": "Rome"})
        connection.close()

    assert refused.status == 400
    assert refused.json["error"]["code"] == -32020
    assert text_of(served.json) == "It is sunny in Rome."


def test_the_service_in_code_serves(tmp_path: Path) -> None:
    assert paste(PAGE, tmp_path) == ["shop.py", "http_service.py", "mounted.py"]
    file = tmp_path / "http_service.py"
    print_address = "        await http.start()\n        print_address(http)\n"
    source = file.read_text().replace('"127.0.0.1", 8000', '"127.0.0.1", 0')
    source = source.replace("        await http.start()\n", print_address)
    file.write_text(
        source.replace(
            "async def main",
            "def print_address(http):\n"
            "    import sys\n"
            "    address = http.addresses[0]\n"
            "    print('Listening on', address, file=sys.stderr, flush=True)\n\n\n"
            "async def main",
        )
    )

    with running(["http_service.py"], tmp_path) as process:
        assert price_at(process) == "1.5"


def test_the_mounted_server_serves(tmp_path: Path) -> None:
    paste(PAGE, tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        words = ["-m", "uvicorn", "mounted:app", "--fd", str(listener.fileno())]
        process = subprocess.Popen(
            [sys.executable, *words],
            cwd=tmp_path,
            env=environment(),
            stderr=subprocess.PIPE,
            text=True,
            pass_fds=[listener.fileno()],
        )
        assert process.stderr is not None
        try:
            assert any("Uvicorn running" in line for line in process.stderr)
            connection = http.client.HTTPConnection(*listener.getsockname(), timeout=WAIT_S)
            answer = ask_modern(connection, "tools/call", name="price", arguments={"item": "pear"})
            connection.close()
            assert text_of(answer.json) == "2.0"
        finally:
            process.kill()
            process.wait()
            process.stderr.close()
