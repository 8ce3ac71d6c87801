"""The six requirements on stdio that the official suite leaves untested (it speaks HTTP), over real
processes.

CONFORMANCE.md names them. Each test begins with what it shows, in the words of the schema's
descriptions or of REQUIREMENTS.md, which is named by its ids; 2026-07-28. Two of the six bind a
client as well. That it asks again after UnsupportedProtocolVersion:
client/test_obligations.py::test_a_revision_that_is_refused_and_named_among_the_supported_is_asked_for_once_more.
That it listens again after a restart:
client/test_supervision.py::test_subscriptions_the_log_level_and_changes_hold_on, and the last test
here, between two processes.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import wire
from stdio.harness import environment

from concertino import Client, Disconnected, ServerParameters
from concertino.client import Restart

EVERYTHING = Path(__file__).parents[2] / "examples" / "everything.py"
PREFIX = "io.modelcontextprotocol/"
SOURCE = """
import asyncio, os, time
from concertino import Context, Server
server = Server("s")

@server.resource("x:1")
def one() -> str:
    return "1"

@server.tool
async def touch() -> str:
    server.resource_updated("x:1")
    return "touched"

@server.tool
async def die() -> str:
    os._exit(3)

async def say(context, number):
    await context.progress(number)
    await context.log("error", number)

async def go_on(context):
    for number in range(3, 10**9):
        await say(context, number)
        await asyncio.sleep(0.001)

running = []

@server.tool
async def talk(context: Context) -> str:
    await context.progress(1)
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        await say(context, 2)
        running.append(asyncio.create_task(go_on(context)))
    return "never"

@server.tool
def talk_in_a_thread(context: Context) -> str:
    context.progress(1)
    while not context.cancelled:
        time.sleep(0.001)
    for number in range(2, 100):
        context.progress(number)
        context.log("error", number)
    return "never"

server.run()
"""


def meta(version: str = wire.MODERN, **more: Any) -> dict[str, Any]:
    return {f"{PREFIX}protocolVersion": version, f"{PREFIX}clientCapabilities": {}, **more}


class Talk:
    """A process, line by line."""

    def __init__(self, *command: str | Path) -> None:
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(
            [sys.executable, *command], stdin=pipe, stdout=pipe, env=environment(), text=True
        )

    def __enter__(self) -> Talk:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()

    def say(self, method: str, params: Any, id: int | None = None) -> None:
        assert self.process.stdin is not None
        message = {
            "jsonrpc": "2.0",
            "method": method,
            "params": params,
            **({} if id is None else {"id": id}),
        }
        self.process.stdin.write(json.dumps(message) + "\n")
        self.process.stdin.flush()

    def hear(self) -> Any:
        assert self.process.stdout is not None
        return json.loads(self.process.stdout.readline())

    def ask(self, method: str, params: Any, id: int) -> Any:
        self.say(method, params, id)
        return self.hear()


def test_a_probe_with_discover_is_answered_before_anything_else_and_latches_nothing() -> None:
    """ER-1, schema.json: "Servers **MUST** implement `server/discover`"; ER-3: a client of both
    eras asks that "before anything
    else"; ER-10: `initialize` is served on the same connection.
    """
    with Talk(EVERYTHING) as talk:
        answer = talk.ask("server/discover", {"_meta": meta()}, 1)
        assert wire.MODERN in answer["result"]["supportedVersions"]
        opening = {
            "protocolVersion": "2025-11-25",
            "capabilities": {},
            "clientInfo": {"name": "c", "version": "1"},
        }
        assert talk.ask("initialize", opening, 2)["result"]["protocolVersion"] == "2025-11-25"


def test_an_unsupported_version_is_refused_with_the_supported_ones_and_a_retry_works() -> None:
    """ER-14, ER-15, schema.json: "The client should choose a mutually supported version from this
    list and retry".
    """
    with Talk(EVERYTHING) as talk:
        refused = talk.ask("tools/list", {"_meta": meta("2031-01-01")}, 1)["error"]
        assert (refused["code"], refused["data"]["requested"]) == (-32022, "2031-01-01")
        retried = talk.ask("tools/list", {"_meta": meta(refused["data"]["supported"][0])}, 2)
        assert retried["result"]["tools"]


@pytest.fixture
def server(tmp_path: Path) -> Path:
    path = tmp_path / "server.py"
    path.write_text(SOURCE)
    return path


@pytest.mark.parametrize("name", ["talk", "talk_in_a_thread"])
def test_after_a_cancel_nothing_more_is_said_about_the_request(name: str, server: Path) -> None:
    """CA-6: a server must not "send *any* further message for a cancelled request (incl.
    progress/log)".

    The handler says one thing, which is heard, and then nothing until it is cancelled. What it says
    after that, while it cleans up, from a task or thread that goes on, and by its return, would be
    among the next lines, and these are the answers alone.
    """
    with Talk(server) as talk:
        params = {"name": name, "_meta": meta(progressToken=7, **{f"{PREFIX}logLevel": "debug"})}
        assert talk.ask("tools/call", params, 7)["params"] == {"progressToken": 7, "progress": 1}
        talk.say("notifications/cancelled", {"requestId": 7})
        for id in range(8, 40):
            assert talk.ask("tools/list", {"_meta": meta()}, id)["id"] == id


def client_of(server: Path, **settings: Any) -> Client:
    env = {"PYTHONPATH": environment()["PYTHONPATH"]}
    target = ServerParameters(sys.executable, (str(server),), env=env)
    return Client(target, era="modern", **settings)


def test_a_client_cancels_by_a_notification_that_names_the_request(server: Path) -> None:
    """CA-1, schema.json: `requestId` "MUST correspond to the ID of a request the client previously
    issued".
    """
    seen: list[Any] = []

    async def main() -> None:
        begun = asyncio.Event()
        async with client_of(
            server, trace=lambda way, frame: seen.append((way, json.loads(frame)))
        ) as client:
            call = asyncio.create_task(client.call_tool("talk", progress=lambda *_: begun.set()))
            await asyncio.wait_for(begun.wait(), 20)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            await client.list_tools()

    asyncio.run(main())
    sent = [message for _, message in seen if "method" in message]
    [call] = [message for message in sent if message["method"] == "tools/call"]
    [cancel] = [message for message in sent if message["method"] == "notifications/cancelled"]
    assert cancel["params"]["requestId"] == call["id"]


def test_a_server_that_crashed_is_started_again_and_the_subscription_is_sent_again(
    server: Path,
) -> None:
    """SH-4: a client should "restart a server that exited unexpectedly" and has to "re-open
    subscriptions"; SU-10: "Re-send
    `subscriptions/listen` after a re-established stdio connection".
    """

    async def main() -> None:
        updated: asyncio.Queue[str] = asyncio.Queue()
        async with client_of(
            server, restart=Restart(first_s=0.01), updated=updated.put_nowait
        ) as client:
            await client.subscribe("x:1")
            first = client.pid
            with pytest.raises(Disconnected):
                await client.call_tool("die")
            await client.call_tool("touch")
            assert client.pid != first
            assert await asyncio.wait_for(updated.get(), 20) == "x:1"

    asyncio.run(main())
