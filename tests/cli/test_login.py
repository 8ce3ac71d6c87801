"""`concertino login`, `logout`, `whoami`, and what commands say without a login."""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
from collections.abc import Awaitable, Callable, Mapping
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from authorization_server import AuthorizationServer, running
from loops import on_a_loop


class Shell:
    """Runs commands with a state of their own. Nothing that they print may be a token."""

    def __init__(self, state: Path) -> None:
        self._environment = {**os.environ, "XDG_STATE_HOME": str(state), "NO_COLOR": "1"}
        self._environment["CONCERTINO_LOGINS"] = "file"

    async def run(
        self,
        *words: str,
        on_line: Callable[[str], Awaitable[None]] | None = None,
        variables: Mapping[str, str] = {},
    ) -> tuple[int, str, str]:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "concertino",
            *words,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={**self._environment, **variables},
        )
        assert process.stderr is not None
        assert process.stdout is not None
        errors = ""
        while line := (await process.stderr.readline()).decode():
            errors += line
            if on_line is not None:
                await on_line(line)
        output = (await process.stdout.read()).decode()
        assert not re.search("access-|refresh-|s3cr", output + errors)
        return await process.wait(), output, errors


async def visit(line: str) -> None:
    """Do what a browser does with a line that is the address of a page."""
    if (match := re.fullmatch(r"\s+(http://\S+/authorize\?\S+)\s*", line)) is not None:
        location = await asyncio.to_thread(_get, match[1])
        assert location is not None
        await asyncio.to_thread(_get, location)


def _get(url: str) -> str | None:
    parts = urlsplit(url)
    connection = HTTPConnection(parts.netloc, timeout=20)
    connection.request("GET", f"{parts.path}?{parts.query}")
    return connection.getresponse().getheader("Location")


@on_a_loop
async def test_from_the_login_to_the_logout(tmp_path: Path) -> None:
    shell = Shell(tmp_path)
    async with running(AuthorizationServer()) as server:
        code, output, errors = await shell.run("call", "t", "--", server.url)
        assert code == 1
        assert f"concertino login {server.url}" in errors
        code, output, _ = await shell.run("whoami")
        assert (code, output) == (0, "no logins; `concertino login URL` makes one\n")

        code, output, errors = await shell.run("login", server.url, on_line=visit)
        assert code == 0, errors
        assert output == f"logged in at {server.url}, by {server.origin}, renewed when needed\n"
        code, output, errors = await shell.run("call", "t", "--", server.url)
        assert (code, output) == (0, "ok\n"), errors

        # Logged in again: the same client, at the same port.
        code, _, _ = await shell.run("login", server.url, "--scope", "more", on_line=visit)
        assert code == 0
        assert server.counts["/register"] == 1
        assert server.of("/authorize")[-1].query["scope"] == "more"

        code, output, _ = await shell.run("whoami", server.url, "--json")
        facts: dict[str, Any] = json.loads(output)
        assert facts.pop("expires_at") > 0
        assert facts == {
            "server": server.url,
            "issuer": server.origin,
            "client_id": "client-1",
            "scopes": ["more"],
            "renewable": True,
            "valid": True,
        }

        code, output, _ = await shell.run("logout", server.url)
        assert (code, output) == (0, f"logged out at {server.url}\n")
        assert server.counts["/revoke"] == 1
        code, _, errors = await shell.run("logout", server.url)
        assert code == 1
        assert "there is no login" in errors
        assert not list(tmp_path.glob("concertino/logins/*.json"))


@pytest.mark.requirement("AU-19", side="authorization")
@on_a_loop
async def test_a_login_at_another_device(tmp_path: Path) -> None:
    shell = Shell(tmp_path)
    async with running(AuthorizationServer()) as server:
        code, output, errors = await shell.run("login", server.url, "--device", "--json")
        assert code == 0, errors
        assert f"Open {server.origin}/pair\nand type the code ABCD-EFGH\n" in errors
        assert server.device_polls == 2
        assert json.loads(output)["valid"]
        code, output, errors = await shell.run("call", "t", "--", server.url)
        assert (code, output) == (0, "ok\n"), errors


KNOWN_CLIENT = ("--client-id", "known", "--client-secret-env", "OUR_SECRET")
SECRET = {"OUR_SECRET": "s3cr:t/ü"}


@pytest.mark.requirement("CR-5", "AU-22", side="authorization")
@on_a_loop
async def test_the_secret_of_a_client_comes_from_the_environment(tmp_path: Path) -> None:
    shell = Shell(tmp_path)
    async with running(AuthorizationServer()) as server:
        words = ("login", server.url, *KNOWN_CLIENT, "--issuer", server.origin)
        code, _, errors = await shell.run(*words, on_line=visit, variables=SECRET)
        assert code == 0, errors
        assert "/register" not in server.paths()
        code, output, errors = await shell.run("call", "t", "--", server.url)
        assert (code, output) == (0, "ok\n"), errors
        code, _, errors = await shell.run(*words)
        assert code == 2
        assert "OUR_SECRET is not set" in errors

        server.access.clear()
        server.refresh.clear()
        code, _, errors = await shell.run("call", "t", "--", server.url)
        assert f"run: concertino {' '.join(words)}".replace("OUR_SECRET", "NAME") in errors


@pytest.mark.requirement("CR-6", side="authorization")
@pytest.mark.parametrize(
    ("issuer", "text"),
    [
        ((), "would go to {origin}, which {url} names; if the client is registered there, "
         "add --issuer {origin}"),
        (("--issuer", "https://auth.example"), "is registered at https://auth.example, and the "
         "server now names {origin}"),
    ],
)  # fmt: skip
@on_a_loop
async def test_a_secret_goes_only_to_the_issuer_that_the_user_names(
    tmp_path: Path, issuer: tuple[str, ...], text: str
) -> None:
    shell = Shell(tmp_path)
    async with running(AuthorizationServer()) as server:
        words = ("login", server.url, *KNOWN_CLIENT, *issuer)
        code, _, errors = await shell.run(*words, variables=SECRET)
        assert code == 1
        assert text.format(origin=server.origin, url=server.url) in errors
        assert not {"/authorize", "/token"} & set(server.paths())


@on_a_loop
async def test_a_failed_login_is_told_to_programs(tmp_path: Path) -> None:
    shell = Shell(tmp_path)
    async with running(AuthorizationServer()) as server:
        server.extra_response = {"code": None, "error": "access_denied"}
        code, _, errors = await shell.run("login", server.url, "--json", on_line=visit)
        assert code == 1
        failure = json.loads(errors.strip().split("\n")[-1])
        assert failure["error"]["code"] == "authorization"
        assert "access_denied" in failure["error"]["message"]


@on_a_loop
async def test_a_host_is_told_which_command_to_run(tmp_path: Path) -> None:
    """`concertino proxy URL` has no terminal, so nobody could log in there."""
    request = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "initialize",
        "params": {
            "protocolVersion": "2025-11-25",
            "capabilities": {},
            "clientInfo": {"name": "host", "version": "1"},
        },
    }
    async with running(AuthorizationServer()) as server:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "concertino",
            "proxy",
            server.url,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={**os.environ, "XDG_STATE_HOME": str(tmp_path)},
        )
        output, errors = await asyncio.wait_for(
            process.communicate(json.dumps(request).encode() + b"\n"), 60
        )
        response = json.loads(output.split(b"\n")[0])
        assert f"concertino login {server.url}" in response["error"]["message"], errors
        assert f"concertino login {server.url}" in errors.decode()


class Terminal:
    """A command at a terminal: its stdin and stderr are one, and its stdout is a pipe."""

    def __init__(self, state: Path) -> None:
        self._environment = {**os.environ, "XDG_STATE_HOME": str(state), "NO_COLOR": "1"}
        self._environment["CONCERTINO_LOGINS"] = "file"
        # No browser may start.
        self._environment.pop("DISPLAY", None)
        self._environment.pop("WAYLAND_DISPLAY", None)

    async def run(self, *words: str, answer: str) -> tuple[int, str, str]:
        """Run a command, answer its question, and visit the page that it shows."""
        ours, theirs = os.openpty()
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "concertino", *words,
            stdin=theirs, stdout=asyncio.subprocess.PIPE, stderr=theirs, env=self._environment,
        )  # fmt: skip
        os.close(theirs)
        shown = ""
        has_answered = False
        try:
            while chunk := await asyncio.to_thread(_read_terminal, ours):
                shown += chunk
                if "[Y/n]" in shown and not has_answered:
                    has_answered = True
                    os.write(ours, answer.encode())
                *lines, rest = shown.split("\n")
                if lines and not rest and "authorize?" in (page := "".join(lines[-6:])):
                    for line in page.split("\r"):
                        await visit(line)
        finally:
            os.close(ours)
        assert process.stdout is not None
        output = (await process.stdout.read()).decode()
        assert not re.search("access-|refresh-|s3cr", output + shown)
        return await process.wait(), output, shown


def _read_terminal(descriptor: int) -> str:
    try:
        return os.read(descriptor, 65536).decode()
    except OSError:
        # The other side is closed.
        return ""


@on_a_loop
async def test_a_call_at_a_terminal_offers_the_login(tmp_path: Path) -> None:
    async with running(AuthorizationServer()) as server:
        terminal = Terminal(tmp_path)
        code, output, shown = await terminal.run("call", "t", "--", server.url, answer="n\n")
        assert (code, output) == (1, "")
        assert f"{server.url} asks for a login." in shown
        assert f"concertino login {server.url}" in shown
        assert server.counts["/authorize"] == 0

        code, output, shown = await terminal.run("call", "t", "--", server.url, answer="\n")
        assert (code, output) == (0, "ok\n"), shown
        assert server.counts["/authorize"] == 1

        # The login was stored.
        code, output, shown = await terminal.run("call", "t", "--", server.url, answer="")
        assert (code, output) == (0, "ok\n"), shown
        assert "[Y/n]" not in shown


@pytest.mark.requirement("AU-21", side="authorization")
@on_a_loop
async def test_programs_get_no_question(tmp_path: Path) -> None:
    async with running(AuthorizationServer()) as server:
        terminal = Terminal(tmp_path)
        code, _, shown = await terminal.run("call", "t", "--json", "--", server.url, answer="y\n")
        assert code == 1
        assert "[Y/n]" not in shown
        error = json.loads(shown)
        assert error["error"]["rpc"]["data"]["login"] == f"concertino login {server.url}"
