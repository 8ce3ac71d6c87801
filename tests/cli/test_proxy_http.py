"""`concertino proxy` between HTTP and stdio, in both directions, in one command each."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from http_service import HttpService, Session, ask_modern, serving
from loops import on_a_loop
from warm_commands import run_python, start_python

from concertino import Client

SERVER = Path(__file__).parent.parent / "http" / "server_for_http.py"


@contextmanager
def proxying(state: Path, *words: str) -> Iterator[HttpService]:
    """Run `concertino proxy --http 127.0.0.1:0 ...`."""
    process = start_python(
        [sys.executable, "-m", "concertino", "proxy", "--http", "127.0.0.1:0", *words],
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "XDG_STATE_HOME": str(state)},
    )
    assert process.stderr is not None
    try:
        seen = ""
        for line in process.stderr:
            seen += line
            if (match := re.search(r"Listening on (http://\S+)", line)) is not None:
                service = HttpService(process, match[1])
                yield service
                service.close_connections()
                break
        else:
            pytest.fail(seen)
        process.terminate()
        process.stderr.read()
        assert process.wait(20) == 0
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


@pytest.mark.parametrize(
    ("era", "options"), [("modern", []), ("legacy", []), ("legacy", ["--uvloop"])]
)
@on_a_loop
async def test_a_server_of_stdin_and_stdout_behind_a_url(
    tmp_path: Path, era: str, options: list[str]
) -> None:
    program = tmp_path / "server.py"
    program.write_text(
        "from concertino import Server\n"
        "server = Server('behind')\n"
        "@server.tool\n"
        "def double(a: int) -> int:\n"
        "    return 2 * a\n"
        "server.run()\n"
    )

    async def talk(url: str) -> None:
        async with Client(url, era=era) as client:  # type: ignore[arg-type]
            calls = [client.call_tool("double", {"a": at}, into=int) for at in range(20)]
            assert await asyncio.gather(*calls) == [2 * at for at in range(20)]

    with proxying(tmp_path, *options, "--", sys.executable, str(program)) as service:
        await talk(service.url)


@pytest.mark.parametrize("is_modern", [True, False])
def test_a_refusal_by_the_server_is_none_of_the_proxy_s(tmp_path: Path, is_modern: bool) -> None:
    # The proxy asks for no scopes, so no login could help the client.
    program = tmp_path / "server.py"
    program.write_text(
        "from concertino import Server\n"
        "from concertino.errors import InsufficientScope\n"
        "server = Server('behind')\n"
        "@server.tool\n"
        "def change() -> str:\n"
        "    raise InsufficientScope({'files:write'})\n"
        "server.run()\n"
    )
    with proxying(tmp_path, "--", sys.executable, str(program)) as service:
        if is_modern:
            answer = ask_modern(service.connect(), "tools/call", name="change", arguments={})
        else:
            answer = Session(service).call(1, "change")
        assert answer.status == 200
        assert "WWW-Authenticate" not in answer.headers
        [message] = answer.messages or [answer.json]
        assert message["error"]["code"] == -31003


@on_a_loop
async def test_a_server_behind_a_url_on_stdin_and_stdout(tmp_path: Path) -> None:
    with serving(SERVER) as service:
        command = [sys.executable, "-m", "concertino", "proxy", service.url]
        async with Client(command, elicit=lambda *_: {"name": "Ada"}) as client:
            assert await client.call_tool("add", {"a": 1, "b": 2}, into=int) == 3
            assert await client.call_tool("ask", into=str) == "hello Ada"


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--http", "8000", "--", "true"], "expected HOST:PORT"),
        (["--http", "0.0.0.0:0", "--", "true"], "other machines"),
        (["https://a.example/mcp", "--", "true"], "not both"),
        (["--uvloop", "--", "true"], "--uvloop is for --http"),
    ],
)
def test_mistakes(words: list[str], text: str) -> None:
    done = run_python(
        [sys.executable, "-m", "concertino", "proxy", *words],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert text in done.stderr
