"""Eight processes with one login that has expired, at a server that detects reuse: one refresh.

In every fifth round the process that holds the lock is killed in the middle of its refresh. The
authorization server handles a request as a whole or not at all, as one with a database does; so a
killed process has changed nothing, and another one refreshes.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from authorization_server import AuthorizationServer, Request, running
from msgspec.structs import replace

from concertino.authorization.logins import ClientIdentity, Login, LoginStore, login_key

PROCESSES = 8
# How often the holder of the lock is killed: in every so many rounds.
KILL_EVERY = 5
# A client in a process of its own: it says when it is ready, waits for the start, and makes a call.
CALLER = """
import asyncio, sys
from concertino import Client

async def main():
    sys.stdout.write("ready\\n")
    sys.stdout.flush()
    sys.stdin.readline()
    async with Client(sys.argv[1]) as client:
        assert await client.call_tool("t", into=str) == "ok"

asyncio.run(main())
"""


class Round:
    """One round: a login that has expired, and the processes that use it.

    kills: whether the process that refreshes first is killed while it waits for the response.
    """

    def __init__(self, server: AuthorizationServer, folder: Path, *, kills: bool) -> None:
        self._server = server
        self._folder = folder
        self._kills = kills
        self.killed = 0
        self._callers: list[asyncio.subprocess.Process] = []

    def prepare(self) -> None:
        """Write a login whose access token has expired."""
        server = self._server
        server.refresh["refresh-0"] = ""
        server.used_refresh.clear()
        server.access.clear()
        server.clients["client-0"] = ""
        store = LoginStore(self._folder / "concertino" / "logins")
        login = Login(
            server=server.url,
            resource=server.url,
            issuer=server.origin,
            token_endpoint=f"{server.origin}/token",
            client=ClientIdentity(client_id="client-0", is_registered_by_us=True),
            access_token="access-0",
            refresh_token="refresh-0",
        )
        login = replace(login, expires_at=time.time() - 60, obtained_at=time.time() - 3600)
        store.save_blocking(login_key(server.url, "", "authorization_code"), login)

    async def run(self) -> list[str]:
        """Run the processes, and return what is wrong; empty if all is well."""
        server = self._server
        server.before_token = self._kill_sender if self._kills else None
        refreshes = server.committed
        environment = {**os.environ, "XDG_STATE_HOME": str(self._folder)}
        environment["CONCERTINO_LOGINS"] = "file"
        count = PROCESSES + (1 if self._kills else 0)
        for _ in range(count):
            self._callers.append(
                await asyncio.create_subprocess_exec(
                    sys.executable,
                    "-c",
                    CALLER,
                    server.url,
                    stdin=asyncio.subprocess.PIPE,
                    stdout=asyncio.subprocess.PIPE,
                    stderr=asyncio.subprocess.PIPE,
                    env=environment,
                )
            )
        for caller in self._callers:
            assert caller.stdout is not None
            await caller.stdout.readline()
        results = await asyncio.gather(*(caller.communicate(b"\n") for caller in self._callers))
        codes = [caller.returncode for caller in self._callers]
        problems: list[str] = []
        if codes.count(0) != PROCESSES:
            errors = [error.decode()[-500:] for _, error in results if error]
            problems.append(f"expected {PROCESSES} successes, got the exit codes {codes}: {errors}")
        if server.committed - refreshes != 1:
            problems.append(f"expected 1 refresh, got {server.committed - refreshes}")
        if server.reuses:
            problems.append(f"an old refresh token was shown {server.reuses} times")
        if self.killed != int(self._kills):
            problems.append(f"expected {int(self._kills)} kills, got {self.killed}")
        return problems

    async def _kill_sender(self, request: Request) -> None:
        """Kill the process whose request for tokens has come, before it is handled."""
        self._server.before_token = None
        pid = find_peer(request.peer_port, [caller.pid for caller in self._callers])
        os.kill(pid, signal.SIGKILL)
        self.killed += 1
        # The transaction of a request whose connection is gone is not committed.
        raise ConnectionResetError


def find_peer(port: int, pids: list[int]) -> int:
    """Return the process that has a socket with this port of 127.0.0.1 (Linux)."""
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[1] != f"0100007F:{port:04X}":
            continue
        for pid in pids:
            for link in Path(f"/proc/{pid}/fd").iterdir():
                try:
                    if link.readlink().name == f"socket:[{fields[9]}]":
                        return pid
                except OSError:
                    continue
    raise LookupError(f"no process has port {port}")


class CountingServer(AuthorizationServer):
    """Counts the refreshes that it has made."""

    def __init__(self) -> None:
        super().__init__()
        self.committed = 0

    def _by_refresh(self, form: dict[str, str]) -> Any:
        response = super()._by_refresh(form)
        if response[0] == 200:
            self.committed += 1
        return response


async def run_rounds(count: int, *, kill_every: int = KILL_EVERY, report: bool = True) -> list[str]:
    """Run rounds, and return what is wrong with them."""
    problems: list[str] = []
    for number in range(1, count + 1):
        with tempfile.TemporaryDirectory() as folder:
            async with running(CountingServer()) as server:
                kills = number % kill_every == 0
                one = Round(server, Path(folder), kills=kills)
                one.prepare()
                wrong = await one.run()
        problems += [f"round {number}: {text}" for text in wrong]
        if report:
            note = ", the lock's holder killed" if kills else ""
            print(f"round {number}{note}: {'; '.join(wrong) or 'one refresh, eight successes'}")
    return problems
