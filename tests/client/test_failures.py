"""What a server may do wrong, and what the client makes of it: `RELIABILITY.md` calls these the
faults of a scripted server.

Real processes where the feature is a process; elsewhere a script over memory, which is quicker.
Every wait is for an event.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import traceback
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from client.scripted import SILENCE, Script, legacy, on_a_loop, opened

from concertino import Context, Limits, Server
from concertino.client import skipped_lines
from concertino.client.client import Client, Timeouts
from concertino.client.outcome import Failure, Success, attempt
from concertino.client.server_parameters import ServerParameters
from concertino.errors import (
    ConcertinoError,
    Disconnected,
    NotSupported,
    ProtocolError,
    RpcError,
    SpawnError,
    TimedOut,
)
from concertino.transports.process import ShutdownTimeouts
from concertino.transports.process_exit import live_members

HERE = Path(__file__).parent
QUICK = ShutdownTimeouts(stdin_closed_s=0.2, terminated_s=5, killed_s=10)
TEXT = {"content": [{"type": "text", "text": "done"}]}
DONE = 'answer(id, {"content": [{"type": "text", "text": "done"}]})'
CALL = {"tools/call": TEXT}


def server(code: str, before: str = "", era: str = "legacy", **settings: Any) -> ServerParameters:
    args = [str(HERE / "misbehaving.py"), era, code, before]
    return ServerParameters(sys.executable, args, **{"ladder": QUICK, **settings})


@asynccontextmanager
async def running(target: ServerParameters, **settings: Any) -> AsyncIterator[Client]:
    """A client of a process; afterwards neither the process nor a descriptor of ours is left."""
    descriptors = set(os.listdir("/proc/self/fd"))
    client = Client(target, era="legacy", **settings)
    try:
        await client.open()
        pid = client.pid
        assert pid is not None
        yield client
    finally:
        await client.aclose()
    assert live_members(pid) == []
    assert set(os.listdir("/proc/self/fd")) == descriptors


# What stands between the messages


@pytest.mark.requirement("FR-1", "JR-1", "JR-7", "JR-9", "JR-11", side="client")
@pytest.mark.parametrize("like", ["legacy", "modern"])
@on_a_loop
async def test_lines_that_are_no_messages_are_skipped_counted_shown_and_never_answered(
    like: str, caplog: pytest.LogCaptureFixture
) -> None:
    garbage = [
        b"Server started on port 3000",
        b"[]",
        b"[1,2]",
        b"17",
        b'"text"',
        b"null",
        b"{}",
        b"\xff\xfe broken",
        b'{"jsonrpc":"1.0","method":"x"}',
        b'{"jsonrpc":"2.0","id":1}',
        b'{"jsonrpc":"2.0","id":1,"result":{},"error":{"code":1,"message":"both"}}',
        b'{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"?"}}',
    ]

    def among_garbage(script: Script, message: dict[str, Any]) -> Any:
        script.send(*garbage)
        script.answer(message, TEXT | {"resultType": "complete"})
        script.send(*garbage)
        return SILENCE

    async with opened({"tools/call": among_garbage}, like) as (client, script):
        came = len(script.came)
        result = await client.call_tool("x")
        await client.call_tool("x")
        assert result.content[0].text == "done"  # pyright: ignore[reportAttributeAccessIssue]
        assert client.stray >= 3 * len(garbage)  # the last ones may still be on their way
        assert any(
            "Server started on port 3000" in record.getMessage() for record in caplog.records
        )
        assert {message["method"] for message in script.came[came:]} <= {
            "tools/call",
            "notifications/initialized",
        }


@pytest.mark.requirement("JR-6", side="client")
@on_a_loop
async def test_answers_that_nobody_waits_for_leave_the_pending_alone() -> None:
    def many(script: Script, message: dict[str, Any]) -> Any:
        id = message["id"]
        for other in (str(id + 1), id + 1, -id, "x"):
            script.send(
                {
                    "jsonrpc": "2.0",
                    "id": other,
                    "result": {"content": [{"type": "text", "text": "forged"}]},
                }
            )
        script.answer(message, TEXT)
        script.answer(message, {"content": [{"type": "text", "text": "twice"}]})
        return SILENCE

    async with opened({"tools/call": many, "ping": {}}, "legacy") as (client, _):
        result = await client.call_tool("x")
        assert result.content[0].text == "done"  # pyright: ignore[reportAttributeAccessIssue]
        await client.ping()
        assert client.stray == 5


@on_a_loop
async def test_the_first_id_is_not_to_be_guessed() -> None:
    """A line that a tool prints, with a small id, must not pass for an answer."""
    firsts: set[int] = set()
    for _ in range(3):
        async with opened() as (_, script):
            firsts.add(script.came[0]["id"])
    assert len(firsts) == 3
    assert min(firsts) > 1000


@on_a_loop
async def test_a_message_over_the_limit_is_refused_and_the_session_lives() -> None:
    limits = Limits(max_message_bytes=2**20)
    code = 'sys.stdout.write("x" * 20_000_000 + chr(10)); ' + DONE
    async with running(server(code), limits=limits) as client:
        assert (await client.call_tool("x")).content
        assert client.stray == 1


@on_a_loop
async def test_a_line_without_an_end_ends_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(skipped_lines, "ENDLESS_S", 0.1)
    async with running(
        server('while True: os.write(1, b"x" * 65536)'), limits=Limits(max_message_bytes=2**17)
    ) as client:
        with pytest.raises(Disconnected, match="a line without an end: more than 131072 bytes"):
            await client.call_tool("x")
    assert client.exit_status == -signal.SIGTERM


@on_a_loop
async def test_a_request_over_the_limit_is_not_sent() -> None:
    async with opened(CALL, limits=Limits(max_message_bytes=1000)) as (client, script):
        with pytest.raises(
            ValueError, match=r"tools/call x: the request has .* bytes, and a message may have 1000"
        ):
            await client.call_tool("x", {"text": "x" * 1000})
        assert script.of("tools/call") == []


# How a server ends


@pytest.mark.parametrize(
    ("code", "status", "said"),
    [
        ('print("a reason", file=sys.stderr); sys.exit(3)', 3, "exited with code 3"),
        (
            'sys.stderr.write("a reason"); sys.stderr.flush(); os.kill(os.getpid(), 9)',
            -9,
            "was ended by SIGKILL",
        ),
        (
            'sys.stderr.write("a reason"); sys.stderr.flush(); os.kill(os.getpid(), 11)',
            -11,
            "was ended by SIGSEGV",
        ),
        (
            'print("a reason", file=sys.stderr); os.write(1, b\'{"jsonrpc":"2.0","id\'); '
            "os._exit(1)",
            1,
            "code 1",
        ),
    ],
)
@on_a_loop
async def test_a_server_that_dies_fails_every_call_at_once_and_says_how(
    code: str, status: int, said: str
) -> None:
    async with running(
        server(f"if arguments:\n    {code}"), timeouts=Timeouts(request_s=3600, total_s=3600)
    ) as client:
        calls = [
            asyncio.ensure_future(client.call_tool("x", {"die": True} if n == 9 else {}))
            for n in range(10)
        ]
        for call in calls:
            with pytest.raises(Disconnected) as caught:
                await call
            assert caught.value.exit_status == status
            assert caught.value.stderr == "a reason"
            assert said in str(caught.value)
            assert "tools/call x: the connection ended" in str(caught.value)
            assert "its stderr ends with:\na reason" in str(caught.value)
        assert client.exit_status == status
        with pytest.raises(Disconnected, match=said):
            await client.call_tool("later")


@on_a_loop
async def test_a_last_answer_without_a_newline_is_read() -> None:
    last = 'os.write(1, b\'{"jsonrpc":"2.0","id":%d,"result":{"content":[]}}\' % id); os._exit(0)'
    async with running(server(last)) as client:
        assert (await client.call_tool("x")).content == []


@on_a_loop
async def test_a_server_that_dies_at_once_is_explained_by_its_traceback() -> None:
    with pytest.raises(Disconnected) as caught:
        async with Client([sys.executable, "-c", "import nothing_of_this_name"]):
            pass
    assert "exited with code 1" in str(caught.value)
    assert "ModuleNotFoundError: No module named 'nothing_of_this_name'" in str(caught.value)


@pytest.mark.requirement("ER-8", side="client")
@on_a_loop
async def test_a_server_that_the_first_question_kills_is_started_once_more(tmp_path: Path) -> None:
    """ER-8. The fresh process is opened by its handshake, and is not asked again."""
    script = tmp_path / "fragile.py"
    script.write_text(
        "import json, os, sys\n"
        f"open({str(tmp_path / 'starts')!r}, 'a').write('.')\n"
        "for line in sys.stdin:\n"
        "    message = json.loads(line)\n"
        "    if message['method'] == 'server/discover': os._exit(1)\n"
        "    if message['method'] == 'initialize':\n"
        "        print(json.dumps({'jsonrpc': '2.0', 'id': message['id'], 'result': "
        "{'protocolVersion': '2024-11-05',"
        " 'capabilities': {}, 'serverInfo': {'name': 'fragile', 'version': '1'}}}), flush=True)\n"
    )
    async with Client([sys.executable, str(script)]) as client:
        assert client.server == "fragile"
        assert client.protocol_version == "2024-11-05"
    assert (tmp_path / "starts").read_text() == ".."
    assert client.exit_status == 0


@pytest.mark.parametrize(("number", "name"), [(0, "input"), (1, "output")])
@on_a_loop
async def test_a_server_that_closes_a_stream_and_lives_is_ended(number: int, name: str) -> None:
    async with running(server(f"os.close({number})\nwhile True: time.sleep(1)")) as client:
        with pytest.raises(Disconnected, match=rf"\(process \d+\) closed its {name};"):
            await client.call_tool("x", timeout_s=20)
    assert client.exit_status == -signal.SIGTERM


@on_a_loop
async def test_calls_under_way_are_told_when_the_client_is_closed() -> None:
    async with opened({"tools/call": SILENCE}) as (client, script):
        call = asyncio.ensure_future(client.call_tool("x"))
        await script.until(lambda: script.of("tools/call"))
        assert client.pending_method == "tools/call"
        await client.aclose()
        with pytest.raises(Disconnected, match="this client was closed"):
            await call


@on_a_loop
async def test_how_a_server_ended_can_be_read_after_a_failed_open() -> None:
    code = "import sys; print('no license', file=sys.stderr); sys.exit(3)"
    client = Client([sys.executable, "-c", code])
    with pytest.raises(RuntimeError, match="is not open"):
        assert client.exit_status
    with pytest.raises(Disconnected):
        await client.open()
    assert client.exit_status == 3
    assert client.stderr_tail == "no license"
    assert client.pid is not None
    assert client.pending_method == ""
    assert client.stray == 0
    assert client.strays == []
    assert client.state == "closed"


@on_a_loop
async def test_a_server_that_did_not_start_has_no_exit_status() -> None:
    client = Client(["no-such-program"])
    with pytest.raises(SpawnError):
        await client.open()
    assert (client.exit_status, client.stderr_tail, client.pid) == (None, "", None)


@pytest.mark.parametrize("era", ["auto", "legacy", "modern"])
@on_a_loop
async def test_a_silent_server_is_a_time_out_even_if_connecting_takes_less_than_the_probe(
    era: Any,
) -> None:
    script = "echo warming up >&2; exec sleep 60"
    target = ServerParameters("sh", ["-c", script], ladder=QUICK)
    client = Client(target, era=era, timeouts=Timeouts(connect_s=2, probe_s=30))
    with pytest.raises(
        TimedOut, match=r"no answer within [\d.]+ s; .* is running; its stderr ends"
    ):
        await client.open()
    assert client.stderr_tail == "warming up"
    assert client.exit_status == -signal.SIGTERM


# What cannot be started


@on_a_loop
async def test_a_command_that_is_not_there_is_named_with_the_path_searched() -> None:
    descriptors = set(os.listdir("/proc/self/fd"))
    with pytest.raises(SpawnError, match=r"no-such-program: command not found in PATH=/nowhere"):
        await Client(ServerParameters("no-such-program", env={"PATH": "/nowhere"})).open()
    assert set(os.listdir("/proc/self/fd")) == descriptors


@on_a_loop
async def test_a_command_that_is_not_there_is_named_with_what_was_searched_without_a_path() -> None:
    """/bin:/usr/bin is what the os module documents as os.defpath."""
    with pytest.raises(
        SpawnError, match="command not found in /bin:/usr/bin; the environment has no PATH"
    ):
        await Client(ServerParameters("no-such-program", inherit=())).open()


@pytest.mark.parametrize(
    ("command", "name"),
    [
        (["python", "server.py"], "server"),
        (["npx", "-y", "@scope/thing"], "thing"),
        (["uv", "run", "server"], "server"),
        (["uv", "run", "python", "my_server.py"], "my_server"),
        (["uv", "tool", "run", "thing"], "thing"),
        (["env", "X=1", "python3", "-m", "package"], "package"),
        (["pnpm", "dlx", "thing"], "thing"),
        (["/usr/bin/thing"], "thing"),
        (["run"], "run"),
        (["python", "-c", "import x\nx.run()"], "python"),
        (["sh", "-c", "exec npx thing"], "sh"),
    ],
)
def test_a_client_has_the_name_of_its_server(command: list[str], name: str) -> None:
    assert Client(command).name == name


@on_a_loop
async def test_a_refused_connection_is_told_in_the_words_of_the_system() -> None:
    with pytest.raises(Disconnected, match=r"^tcp:127\.0\.0\.1:1: Connection refused$"):
        await Client("tcp:127.0.0.1:1").open()


@on_a_loop
async def test_nobody_at_an_address_is_a_disconnection(tmp_path: Path) -> None:
    with pytest.raises(Disconnected, match=r"unix:.*nobody: No such file or directory"):
        await Client(f"unix:{tmp_path}/nobody").open()


@pytest.mark.parametrize(
    "target", ["python server.py", "tcp:host", "tcp::1", "unix:", "http://", [], [1], 5, None]
)
def test_what_is_no_target_is_said_at_once(target: Any) -> None:
    with pytest.raises((TypeError, ValueError), match="expected"):
        Client(target)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        (
            {"command": ["python", "server.py"]},
            "command: expected a str such as 'python', got list",
        ),
        ({"command": None}, "command: expected a str"),
        ({"args": "server.py"}, r"args: expected a list of str such as \['server.py'\], got str"),
        ({"args": 5}, "args: expected a list of str"),
        ({"args": ["server.py", 8080]}, "args: expected a list of str.*, got int in it"),
        ({"env": ["PORT=8080"]}, "env: expected a dict of str, got list"),
        ({"env": {"PORT": 8080}}, "env: expected a dict of str, got int for PORT"),
        ({"env": {5: "x"}}, "env: expected a dict of str, got int as a name"),
        ({"cwd": 5}, "cwd: expected a folder, got int"),
    ],
)
def test_parameters_of_a_server_that_make_no_sense_are_refused_at_once(
    fields: Any, said: str
) -> None:
    with pytest.raises(TypeError, match=said):
        ServerParameters(**{"command": "python", **fields})


@on_a_loop
async def test_paths_are_words_of_a_command_too(tmp_path: Path) -> None:
    target = server("answer(id, {'content': [{'type': 'text', 'text': os.getcwd()}]})")
    words = [Path(each) if each.endswith(".py") else each for each in target.args]
    async with running(ServerParameters(Path(target.command), words, cwd=tmp_path)) as client:
        assert (await client.call_tool("x", into=str)) == str(tmp_path)


@on_a_loop
async def test_a_host_that_can_be_none_is_a_disconnection() -> None:
    with pytest.raises(Disconnected, match=r"tcp:a\.\.b:80: .*label"):
        await Client("tcp:a..b:80").open()


# Time


@on_a_loop
async def test_a_time_limit_of_a_call_may_be_longer_than_that_of_all_calls() -> None:
    def slow(script: Script, message: dict[str, Any]) -> Any:
        asyncio.get_running_loop().call_later(0.2, script.answer, message, TEXT)
        return SILENCE

    handlers = {"tools/call": slow, "resources/read": SILENCE}
    async with opened(handlers, timeouts=Timeouts(request_s=0.05, total_s=0.05)) as (client, _):
        await client.call_tool("x", timeout_s=20)
        await client.request("tools/call", {"name": "x"}, timeout_s=20, progress=lambda *_: None)
        with pytest.raises(TimedOut):
            await client.call_tool("x")


@pytest.mark.requirement("CA-8", "CA-9", "CA-12", side="client")
@pytest.mark.parametrize("like", ["legacy", "modern"])
@on_a_loop
async def test_a_call_without_an_answer_times_out_is_cancelled_and_a_late_answer_is_dropped(
    like: str,
) -> None:
    async with opened({"tools/call": SILENCE, "tools/list": {"tools": []}}, like) as (
        client,
        script,
    ):
        with pytest.raises(TimedOut, match=r"tools/call slow: no answer within \d+\.\d+ s"):
            await client.call_tool("slow", timeout_s=0.05)
        await script.until(lambda: script.of("notifications/cancelled"))
        [asked], [cancelled] = script.of("tools/call"), script.of("notifications/cancelled")
        assert cancelled["params"] == {"requestId": asked["id"], "reason": "timed out"}
        script.answer(asked, TEXT)
        assert await client.list_tools() == []
        assert client.stray == 0


@pytest.mark.parametrize("timeout_s", [0, -1, float("nan")])
@on_a_loop
async def test_a_time_limit_that_is_none_is_refused(timeout_s: float) -> None:
    async with opened(CALL) as (client, script):
        with pytest.raises(ValueError, match="timeout_s: expected a positive number of seconds"):
            await client.call_tool("x", timeout_s=timeout_s)
        assert script.of("tools/call") == []
    with pytest.raises(ValueError, match="request_s: expected a positive number"):
        Timeouts(request_s=timeout_s)


@on_a_loop
async def test_a_time_out_says_how_the_process_is() -> None:
    code = 'print("thinking", file=sys.stderr, flush=True)'
    seen = asyncio.Event()
    async with running(server(code), stderr=lambda line: seen.set()) as client:
        call = asyncio.ensure_future(client.call_tool("x", timeout_s=3))
        with pytest.raises(
            TimedOut, match=r"\(process \d+\) is running; its stderr ends with:\nthinking"
        ):
            await call
        assert seen.is_set()


@pytest.mark.requirement("CA-13")
@pytest.mark.requirement("CA-13", side="client")
@on_a_loop
async def test_progress_gives_more_time_but_not_more_than_all() -> None:
    told: list[float] = []

    def work(script: Script, message: dict[str, Any]) -> Any:
        token = message["params"]["_meta"]["progressToken"]
        loop = asyncio.get_running_loop()

        def step(n: int) -> None:
            script.notify("notifications/progress", progressToken=token, progress=n)
            if len(told) < 1000:
                loop.call_later(0.02, step, n + 1)

        step(1)
        return SILENCE

    times = Timeouts(request_s=0.2, total_s=0.6)
    started = asyncio.get_running_loop().time()
    async with opened({"tools/call": work}, timeouts=times) as (client, _):
        with pytest.raises(TimedOut, match="its last progress was"):
            await client.call_tool("x", progress=lambda done, total, text: told.append(done))
    assert asyncio.get_running_loop().time() - started >= 0.6
    assert len(told) > 3
    assert told == sorted(told)


@pytest.mark.requirement("PR-1", "PR-2", "PR-3", "PR-5", side="client")
@on_a_loop
async def test_progress_that_makes_no_sense_is_ignored() -> None:
    told: list[tuple[float, float | None, str | None]] = []

    def work(script: Script, message: dict[str, Any]) -> Any:
        token = message["params"]["_meta"]["progressToken"]
        for params in (
            {"progressToken": token, "progress": 1, "total": 3, "message": "one"},
            {"progressToken": token, "progress": 0.5},  # back
            {"progressToken": token, "progress": 1},  # the same
            {"progressToken": str(token), "progress": 5},
            {"progressToken": token + 99, "progress": 5},
            {"progressToken": token, "progress": "five"},
            {"progress": 5},
            {"progressToken": token},
            {"progressToken": token, "progress": 2.5},
        ):
            script.notify("notifications/progress", **params)
        return TEXT

    async with opened({"tools/call": work}) as (client, script):
        await client.call_tool("x", progress=lambda *said: told.append(said))
        assert told == [(1, 3, "one"), (2.5, None, None)]
        script.notify(
            "notifications/progress", progressToken=script.of("tools/call")[0]["id"], progress=9
        )


@pytest.mark.parametrize("result_comes", [0, 2], ids=["result first", "result last"])
@on_a_loop
async def test_progress_in_the_batch_of_its_result_is_passed_on(result_comes: int) -> None:
    told: list[float] = []

    def work(script: Script, message: dict[str, Any]) -> Any:
        token = message["params"]["_meta"]["progressToken"]
        batch = [
            {
                "jsonrpc": "2.0",
                "method": "notifications/progress",
                "params": {"progressToken": token, "progress": progress},
            }
            for progress in (1, 2)
        ]
        batch.insert(result_comes, {"jsonrpc": "2.0", "id": message["id"], "result": TEXT})
        script.send(batch)
        return SILENCE

    async with opened(legacy("2025-03-26") | {"tools/call": work}, "legacy") as (client, _):
        await client.call_tool("x", progress=lambda done, total, text: told.append(done))
        assert told == [1, 2]


@on_a_loop
async def test_a_call_is_answered_although_notifications_flood_in() -> None:
    seen: list[str] = []

    def flood(script: Script, message: dict[str, Any]) -> Any:
        for n in range(20_000):
            script.connection.write(
                b'{"jsonrpc":"2.0","method":"notifications/x","params":{"n":%d}}' % n, None
            )
        return TEXT

    async with opened(
        {"tools/call": flood}, notified=lambda method, params: seen.append(method)
    ) as (client, _):
        assert (await client.call_tool("x")).content
        assert len(seen) == 20_000


@pytest.mark.slow
@on_a_loop
async def test_a_server_that_does_not_read_is_no_reason_to_wait_for_ever() -> None:
    before = "sys.stdin = iter([sys.stdin.readline()]); "
    code = server("", before + "import atexit; atexit.register(time.sleep, 60)")
    limits = Limits(high_water_bytes=100_000)
    async with running(code, limits=limits) as client:
        big = {"text": "x" * 1_000_000}
        first = asyncio.ensure_future(client.call_tool("x", big, timeout_s=0.3))
        await asyncio.sleep(0)
        with pytest.raises(
            TimedOut, match=r"could not be sent within 0\.1 s: the server does not read its input"
        ):
            await client.call_tool("y", big, timeout_s=0.1)
        with pytest.raises(TimedOut):
            await first


# What is offered, and what the answers look like


@pytest.mark.requirement("LC-10", side="client")
@on_a_loop
async def test_only_what_was_declared_is_asked_for() -> None:
    bare = Server("bare")
    async with Client(bare) as client:
        for ask in (
            client.list_prompts(),
            client.list_resources(),
            client.read_resource("x:y"),
            client.get_prompt("x"),
        ):
            with pytest.raises(NotSupported, match="the server offers no"):
                await ask


@pytest.mark.requirement("ME-14", "PM-5", side="client")
@pytest.mark.parametrize(
    "result",
    [
        {},
        {"content": "text"},
        {"content": [{"type": "hologram"}]},
        {"content": [{"type": "text", "text": 5}]},
        {"content": [{"type": "image", "data": "!!", "mimeType": "image/png"}]},
        [],
        None,
        "text",
        {"content": [], "resultType": "guess"},
        {"content": [], "resultType": 5},
    ],
)
@on_a_loop
async def test_an_answer_of_another_shape_is_quoted(result: Any) -> None:
    async with opened({"tools/call": result}) as (client, _):
        with pytest.raises(ProtocolError, match="tools/call x"):
            await client.call_tool("x")


@on_a_loop
async def test_a_long_answer_of_another_shape_is_shortened_and_commands_no_terminal() -> None:
    async with opened({"tools/call": {"content": "\x1b[31m" + "x" * 100_000}}) as (client, _):
        with pytest.raises(ProtocolError) as caught:
            await client.call_tool("x")
        assert len(str(caught.value)) < 600
        assert str(caught.value).isprintable()


@pytest.mark.requirement("TO-21", side="client")
@pytest.mark.parametrize("is_alone", [True, False])
@pytest.mark.parametrize("era", ["legacy", "modern"])
@on_a_loop
async def test_the_traceback_of_an_error_answer_shows_nothing_else(
    era: str, is_alone: bool
) -> None:
    """A response that is no plain result is decoded a second time; its first failure is no news."""
    code = 'say({"jsonrpc": "2.0", "id": id, "error": {"code": -32602, "message": "no"}})'
    async with Client(server(code, era=era), era=era) as client:  # type: ignore[arg-type]
        calls = [client.call_tool("x"), *([] if is_alone else [client.call_tool("y")])]
        for outcome in await asyncio.gather(*calls, return_exceptions=True):
            assert isinstance(outcome, RpcError)
            assert (outcome.__cause__, outcome.__context__) == (None, None)
            assert "msgspec" not in "".join(traceback.format_exception(outcome))


@on_a_loop
async def test_an_error_answer_keeps_its_code_and_data() -> None:
    from client.scripted import Refusal

    def refuse(script: Script, message: dict[str, Any]) -> Any:
        raise Refusal(-32602, "no such tool", {"name": "x"})

    async with opened({"tools/call": refuse}) as (client, _):
        with pytest.raises(RpcError) as caught:
            await client.call_tool("x")
        assert (caught.value.code, caught.value.message, caught.value.data) == (
            -32602,
            "no such tool",
            {"name": "x"},
        )
        outcome = await attempt(client.call_tool("x"))
        assert isinstance(outcome, Failure)
        assert isinstance(outcome.error, ConcertinoError)
        good = await attempt(client.ping())
        assert good == Success(None)


# stderr, and secrets


@pytest.mark.slow
@on_a_loop
async def test_stderr_is_read_whatever_comes_and_its_end_is_kept() -> None:
    code = (
        "for _ in range(40): os.write(2, bytes(range(256)) * 256)\n"  # 2.5 MiB, binary
        f'os.write(2, b"x" * 20_000 + b"the end"); {DONE}'
    )
    async with running(server(code), stderr=lambda line: None) as client:
        await client.call_tool("x")
    assert client.stderr_tail.endswith("xxx" + "the end")


@pytest.mark.requirement("FR-7", side="client")
@on_a_loop
async def test_lines_of_stderr_go_where_they_are_wanted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    code = 'sys.stderr.write("one\\r\\ntwo \\x1b[31m\\nno newline"); sys.stderr.flush(); ' + DONE
    lines: list[str] = []
    async with running(server(code), stderr=lines.append) as client:
        await client.call_tool("x")
    assert lines == ["one", "two \x1b[31m", "no newline"]
    async with running(server(code), stderr=tmp_path / "log") as client:
        await client.call_tool("x")
    assert (tmp_path / "log").read_bytes() == b"one\ntwo \x1b[31m\nno newline\n"
    with caplog.at_level(logging.DEBUG, "concertino.client.mine.stderr"):
        async with running(server(code), name="mine", stderr_level=logging.DEBUG) as client:
            await client.call_tool("x")
    said = [
        record.getMessage()
        for record in caplog.records
        if record.name == "concertino.client.mine.stderr"
    ]
    assert said == ["one", "two \\x1b[31m", "no newline"]


@pytest.mark.requirement("FR-17", side="client")
@on_a_loop
async def test_a_secret_of_the_child_is_in_no_error_log_trace_or_repr(
    caplog: pytest.LogCaptureFixture,
) -> None:
    secret = "canary-7f3a91c2"
    code = (
        'secret = os.environ["SERVICE_API_KEY"]; say({"jsonrpc": "2.0", "method": '
        '"notifications/x", '
        '"params": {"it": secret}}); print("stray", secret, flush=True); print("log", secret, '
        "file=sys.stderr, flush=True)"
        '; say({"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": '
        '"error", "data": secret}})'
        "; sys.exit(4)"
    )
    parameters = server(code, env={"SERVICE_API_KEY": secret})
    assert secret not in repr(parameters)
    assert "SERVICE_API_KEY" in repr(parameters)
    lines: list[str] = []
    traced: list[str] = []
    caplog.set_level(logging.DEBUG)
    async with running(
        parameters, stderr=lines.append, trace=lambda way, text: traced.append(way + text)
    ) as client:
        with pytest.raises(Disconnected) as caught:
            await client.call_tool("x")
        shown = [
            str(caught.value),
            caught.value.stderr,
            client.stderr_tail,
            repr(client),
            *client.strays,
        ]
    everything = "\n".join(
        [*shown, *lines, *traced, *(record.getMessage() for record in caplog.records)]
    )
    assert secret not in everything
    assert everything.count("[REDACTED]") >= 5


# Many at once


@on_a_loop
async def test_a_dead_server_does_not_delay_others() -> None:
    async with opened({"tools/call": SILENCE}) as (dead, _), opened(CALL) as (alive, _):
        waiting = asyncio.ensure_future(dead.call_tool("x"))
        results = await asyncio.gather(*(alive.call_tool("x") for _ in range(200)))
        assert len(results) == 200
        assert not waiting.done()
        waiting.cancel()
        await asyncio.wait([waiting])


@on_a_loop
async def test_answers_in_any_order_reach_their_callers() -> None:
    kept: list[dict[str, Any]] = []

    def later(script: Script, message: dict[str, Any]) -> Any:
        kept.append(message)
        if len(kept) == 100:
            for each in reversed(kept):
                text = each["params"]["arguments"]["n"]
                script.answer(each, {"content": [{"type": "text", "text": str(text)}]})
        return SILENCE

    async with opened({"tools/call": later}) as (client, _):
        results = await asyncio.gather(
            *(client.call_tool("x", {"n": n}, into=int) for n in range(100))
        )
        assert results == list(range(100))


# Answers that are too long, and errors that are none


def too_long(head: str, tail: str = '"}]}}') -> str:
    """What a tool does whose answer is too long; head: how its line begins, with ID for the id of
    the call.
    """
    return (
        f"if arguments == {{}}:\n    {DONE}\nelse:\n"
        f"    sys.stdout.write({head!r}.replace('ID', str(id)) + 'x' * 300_000 + "
        f"{tail!r}.replace('ID', str(id)) + chr(10))\n"
        "    sys.stdout.flush()"
    )


CONTENT = '{"content":[{"type":"text","text":"'


@pytest.mark.parametrize(
    ("head", "tail"),
    [
        ('{"jsonrpc":"2.0","id":ID,"result":' + CONTENT, '"}]}}'),
        ('{"jsonrpc": "2.0", "id": ID, "result": ' + CONTENT, '"}]}}'),
        ('{"id":ID,"jsonrpc":"2.0","error":{"code":1,"message":"', '"}}'),
        (
            '{"result":' + CONTENT,
            '"}]},"jsonrpc":"2.0","id":ID}',
        ),  # as the TypeScript SDK writes it
    ],
)
@on_a_loop
async def test_an_answer_over_the_limit_fails_its_call_at_once(head: str, tail: str) -> None:
    code = too_long(head, tail)
    async with running(server(code), limits=Limits(max_message_bytes=100_000)) as client:
        with pytest.raises(
            ProtocolError,
            match=r"tools/call big: the answer has more than 100000 bytes, which is max_m",
        ):
            await client.call_tool("big", {"n": 1})
        assert client.stray == 0
        assert (await client.call_tool("x")).content


@on_a_loop
async def test_only_the_call_that_an_answer_over_the_limit_names_fails() -> None:
    code = too_long('{"jsonrpc":"2.0","id":ID,"result":' + CONTENT)
    async with running(server(code), limits=Limits(max_message_bytes=100_000)) as client:
        small, big, last = await asyncio.gather(
            client.call_tool("x"), attempt(client.call_tool("big", {"n": 1})), client.call_tool("x")
        )
        assert isinstance(big, Failure)
        assert small == last


@on_a_loop
async def test_calls_that_time_out_name_a_too_long_answer_that_may_be_theirs() -> None:
    code = (
        'if arguments:\n    sys.stdout.write(\'{"result":{"x":"\' + \'x\' * 300_000 + chr(10)); '
        "sys.stdout.flush()"
    )
    async with running(server(code), limits=Limits(max_message_bytes=100_000)) as client:
        first = asyncio.ensure_future(attempt(client.call_tool("x", timeout_s=3)))
        second = await attempt(client.call_tool("big", {"n": 1}, timeout_s=3))
        for outcome in (await first, second):
            assert isinstance(outcome, Failure)
            assert isinstance(outcome.error, TimedOut)
            assert (
                "was discarded, which may have been the answer: max_message_bytes is 100000"
                in str(outcome.error)
            )
        assert client.strays[0].startswith('{"result":{"x":"xxx')


@pytest.mark.parametrize("megabytes", [20, 40, 80])
@on_a_loop
async def test_a_long_notification_is_discarded_while_a_call_waits_and_nothing_of_it_is_kept(
    megabytes: int,
) -> None:
    """At most the limit of its bytes is held."""
    code = (
        'sys.stdout.write(\'{"jsonrpc":"2.0","method":"notifications/x","params":{"x":"\')\n'
        f"for _ in range({megabytes}): sys.stdout.write('x' * 2**20)\n"
        f"sys.stdout.write('\"}}}}' + chr(10)); {DONE}"
    )
    async with running(server(code)) as client:
        tracemalloc.start()
        try:
            assert (await client.call_tool("x", timeout_s=60)).content
            assert (
                tracemalloc.get_traced_memory()[1] < 24 * 2**20
            )  # its peak; the limit is 10 MiB, and a bytearray grows
        finally:
            tracemalloc.stop()
        assert client.stray == 1
        assert client.strays[0].startswith('{"jsonrpc":"2.0","method":"notifications/x"')


@pytest.mark.requirement("JR-8", side="client")
@pytest.mark.parametrize(
    "error", [5, {}, {"code": "x", "message": "y"}, {"code": 1}, {"message": "x"}, None, []]
)
@on_a_loop
async def test_an_error_that_is_none_breaks_the_protocol_and_is_quoted(error: Any) -> None:
    """JR-8."""

    def wrong(script: Script, message: dict[str, Any]) -> Any:
        script.send({"jsonrpc": "2.0", "id": message["id"], "error": error})
        return SILENCE

    async with opened({"tools/call": wrong}) as (client, _):
        with pytest.raises(
            ProtocolError,
            match=r'tools/call x: expected an error object .*: \{"jsonrpc": "2.0", "id": ',
        ):
            await client.call_tool("x")
    async with opened({"server/discover": wrong}, "legacy") as (client, _):
        assert client.protocol_version == "2025-11-25"


@on_a_loop
async def test_numbers_that_json_does_not_have_are_refused_instead_of_sent_as_null() -> None:
    server = Server("s")

    @server.tool
    async def half(of: float | None) -> float | None:
        return of and of / 2

    @server.tool
    async def outer(context: Context) -> str:
        try:
            await context.call_tool("half", {"of": float("inf")})
        except ValueError as exc:
            return str(exc)
        return "sent"

    async with Client(server) as client:
        assert not (await client.call_tool("half", {"of": None})).is_error
        with pytest.raises(ValueError, match=r"^half\.of: expected a finite number"):
            await client.call_tool("half", {"of": float("nan")})
        assert await client.call_tool("outer", into=str) == (
            "half.of: expected a finite number, got NaN or infinity"
        )
