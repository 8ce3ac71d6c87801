"""A server of ours in applications of Starlette, FastAPI and Django, under uvicorn: real requests
to both.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal
from urllib.request import urlopen

import pytest
from interop.tools import python_packages

from concertino import Client

pytestmark = pytest.mark.slow

SERVERS = Path(__file__).parent / "servers"
TARGETS = Path(__file__).parents[1] / "http"
WAIT_S = 60.0
Era = Literal["modern", "legacy"]
# Framework -> the packages that the tests' environment lacks. Django 6 needs Python 3.12.
PACKAGES = {
    "starlette": (),
    "fastapi": ("fastapi==0.163.2",),
    "django": ("django>=5.2,<6",),
}


@contextmanager
def mounted(framework: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run the application of a framework. Gives its process and its URL, without a path."""
    folders = [SERVERS, TARGETS]
    if PACKAGES[framework]:
        folders.append(python_packages(framework, *PACKAGES[framework]))
    command = [sys.executable, "-m", "uvicorn", f"mounted_{framework}:app", "--port", "0"]
    process = subprocess.Popen(
        [*command, "--no-access-log"],
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, folders))},
    )
    assert process.stderr is not None
    try:
        lines: list[str] = []
        for line in process.stderr:
            lines.append(line)
            if match := re.search(r"running on (http://127\.0\.0\.1:\d+)", line):
                yield process, match[1]
                break
        else:
            raise AssertionError("".join(lines))
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


async def talk(url: str, era: Era) -> None:
    heard: list[float] = []

    def answer(*_: object) -> dict[str, Any]:
        return {"name": "Ada"}

    async with Client(url, era=era, elicit=answer) as client:
        assert (client.protocol_version == "2026-07-28") is (era == "modern")
        assert "add" in [tool.name for tool in await client.list_tools()]
        calls = (client.call_tool("add", {"a": at, "b": 1}, into=int) for at in range(30))
        assert await asyncio.gather(*calls) == list(range(1, 31))
        assert await client.call_tool("large", {"size": 500_000}, into=str) == "x" * 500_000
        counted = await client.call_tool(
            "count", into=str, progress=lambda done, *_: heard.append(done)
        )
        assert (counted, heard) == ("counted", [1, 2])
        assert await client.call_tool("ask", into=str) == "hello Ada"
        assert (await client.call_tool("add", {"a": "x", "b": 1})).is_error


@pytest.mark.parametrize("framework", PACKAGES)
def test_the_server_and_the_application_both_answer_and_end(framework: str) -> None:
    with mounted(framework) as (process, url):
        for era in ("modern", "legacy"):
            asyncio.run(asyncio.wait_for(talk(f"{url}/mcp", era), WAIT_S))
        with urlopen(f"{url}/hello", timeout=WAIT_S) as response:
            assert response.read() == b"hello"

        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=WAIT_S)

    assert "Traceback" not in errors, errors
    assert "ERROR" not in errors, errors
    if framework != "django":
        # Django has no lifespan, so the server ends with the process.
        assert "Application shutdown complete" in errors
