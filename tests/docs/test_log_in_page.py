"""docs/how-to/log-in.md: its commands and its program, at a server that asks for a login."""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlsplit

from authorization_server import AuthorizationServer, running
from docs.pages import DOCS, blocks, paste
from loops import on_a_loop

from concertino.proxy.server_file import parse_server_file

PAGE = DOCS / "how-to" / "log-in.md"


async def run(folder: Path, *words: str, **variables: str) -> str:
    """Run a program, whose page of a login is visited as a browser does. Returns its output."""
    environment = {**os.environ, **variables, "XDG_STATE_HOME": str(folder)}
    process = await asyncio.create_subprocess_exec(
        *words,
        cwd=folder,
        env={**environment, "CONCERTINO_LOGINS": "file"},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stderr is not None
    assert process.stdout is not None
    errors = ""
    while line := (await process.stderr.readline()).decode():
        errors += line
        if (match := re.fullmatch(r"\s+(http://\S+/authorize\?\S+)\s*", line)) is not None:
            location = await asyncio.to_thread(get, match[1])
            await asyncio.to_thread(get, location)
    output = (await process.stdout.read()).decode()
    assert await process.wait() == 0, errors
    return output


def get(url: str) -> str:
    parts = urlsplit(url)
    connection = HTTPConnection(parts.netloc, timeout=20)
    connection.request("GET", f"{parts.path}?{parts.query}")
    return connection.getresponse().getheader("Location") or ""


@on_a_loop
async def test_the_commands_log_in_and_call(tmp_path: Path) -> None:
    [commands] = blocks(PAGE.read_text(), "sh")
    async with running(AuthorizationServer()) as server:
        output = ""
        for command in commands.strip().split("\n"):
            words = command.replace("https://mcp.example.com/mcp", server.url).split()
            output += await run(tmp_path, sys.executable, "-m", *words)
    assert output.startswith("logged in at ")
    assert output.endswith("\nok\n")


@on_a_loop
async def test_the_program_needs_no_person(tmp_path: Path) -> None:
    paste(PAGE, tmp_path)
    async with running(AuthorizationServer()) as server:
        server.clients["nightly"] = "s3cret"
        program = str(tmp_path / "nightly.py")
        output = await run(tmp_path, sys.executable, program, server.url, REPORTS_SECRET="s3cret")
    assert output == "ok\n"


def test_the_files_of_servers_are_valid() -> None:
    proxy, reports = map(json.loads, blocks(PAGE.read_text(), "json"))
    for file in (proxy, reports):
        assert not parse_server_file(json.dumps(file).encode(), "mcp.json").warnings
    [server] = parse_server_file(json.dumps(reports).encode(), "mcp.json").servers
    assert server.options.auth["grant"].text == "client_credentials"
