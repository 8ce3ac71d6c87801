"""More of what a server may do wrong (RELIABILITY.md, section 8): floods, half lines, many at once,
and wrappers around servers.

Everything here is a real process, and afterwards none is left.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from client.scripted import check_leaves_no_task, on_a_loop
from client.test_failures import DONE, QUICK, running, server
from loops import on_a_loop_within

from concertino.client.client import Client, Timeouts
from concertino.client.outcome import Failure, Success, attempt
from concertino.client.server_parameters import ServerParameters
from concertino.errors import Disconnected, ProtocolError, TimedOut
from concertino.transports.process import ShutdownTimeouts
from concertino.transports.process_exit import live_members

MISBEHAVING = Path(__file__).parent / "misbehaving.py"
ANSWER = '{"jsonrpc":"2.0","id":%d,"result":{"content":[{"type":"text","text":"done"}]}}'


@pytest.mark.parametrize("ending", ["", "\\r", " "])
@on_a_loop
async def test_left_over_bytes_at_the_end_are_a_last_line(ending: str) -> None:
    code = f"os.write(1, ({ANSWER!r} % id + '{ending}').encode()); os._exit(0)"
    async with running(server(code)) as client:
        result = await client.call_tool("x")
        assert result.content[0].text == "done"  # pyright: ignore[reportAttributeAccessIssue]


@on_a_loop
async def test_half_a_line_at_the_end_is_no_message_and_is_shown() -> None:
    async with running(server('os.write(1, b\'{"jsonrpc":"2.0","id\'); os._exit(5)')) as client:
        with pytest.raises(
            Disconnected, match=r'skipped: 1, the last: \{"jsonrpc":"2.0","id;'
        ) as caught:
            await client.call_tool("x")
        assert caught.value.exit_status == 5


@on_a_loop
async def test_a_server_that_stops_in_the_middle_of_a_response_times_out_like_a_silent_one() -> (
    None
):
    code = (
        f"frame = ({ANSWER!r} % id).encode(); os.write(1, frame[:30]); held = frame[30:] + "
        f"bytes([10])"
    )
    async with running(server(code)) as client:
        with pytest.raises(TimedOut, match=r"tools/call x: no answer within 0\.[12]"):
            await client.call_tool("x", timeout_s=0.1)


@on_a_loop
async def test_an_answer_that_was_torn_by_a_time_out_is_late_and_harms_nobody() -> None:
    code = (
        f"frame = ({ANSWER!r} % id).encode() + bytes([10])\n"
        "if arguments: answer(id, {'content': []})\n"
        "else: os.write(1, frame[:30]); line = sys.stdin.readline(); os.write(1, frame[30:])"
    )
    async with running(server(code)) as client:
        with pytest.raises(TimedOut):
            await client.call_tool("x", timeout_s=0.1)
        assert (await client.call_tool("x", {"n": 1})).content == []
        assert client.stray == 0


@pytest.mark.requirement("PR-6", side="client")
@pytest.mark.slow
@on_a_loop_within(150)
@check_leaves_no_task
async def test_a_flood_of_progress_is_taken_in_turns_and_the_answer_comes_through() -> None:
    """As fast as the pipe takes it: values rise, everything else goes on, and nothing is kept."""
    count = 100_000
    code = (
        f"token = 'TOKEN'\nfor n in range({count} // 1000):\n"
        "    "
        'sys.stdout.write(\'\'.join(\'{"jsonrpc":"2.0","method":"notifications/progress",'
        '"params":'
        '{"progressToken":%s,"progress":%d}}\\n\' % (arguments[\'token\'], 1000 * n + i + 1) '
        "for i in range(1000)))\n" + DONE
    )
    told: list[float] = [0.0]
    turns = 0
    over = False

    def progress(done: float, total: float | None, message: str | None) -> None:
        assert done > told[0]
        told[0] = done

    async def beat() -> None:
        nonlocal turns
        while not over:
            turns += 1
            await asyncio.sleep(0)

    async with running(server(code)) as client:
        beating = asyncio.ensure_future(beat())
        tracemalloc.start()
        try:
            token = client._connection.current.channel.progress.last_token + 1
            result = await client.call_tool("x", {"token": token}, progress=progress, timeout_s=150)
            assert tracemalloc.get_traced_memory()[1] < 16 * 2**20
        finally:
            tracemalloc.stop()
            over = True
            await beating
        assert result.content[0].text == "done"  # pyright: ignore[reportAttributeAccessIssue]
        assert told == [count]
        assert turns > 10  # of the loop: at least one for every half megabyte


@pytest.mark.requirement("FR-8", side="client")
@on_a_loop
async def test_a_flood_of_stderr_does_not_delay_an_answer_and_is_not_kept() -> None:
    code = (
        "import threading\n"
        "def flood():\n"
        "    while True: os.write(2, b'x' * 65536)\n"
        "threading.Thread(target=flood, daemon=True).start()\n" + DONE
    )
    async with running(server(code)) as client:
        for _ in range(5):
            assert (await client.call_tool("x", timeout_s=20)).content
    assert client.stderr_tail == "x" * 8192


@on_a_loop
async def test_a_process_that_leaves_the_group_of_its_server_ends_with_the_client(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A daemon in a session of its own, which has nothing of its server's but the environment."""
    code = (
        "import subprocess\n"
        "null = dict(stdin=-3, stdout=-3, stderr=-3)\n"
        "one = subprocess.Popen(['sleep', '600'], start_new_session=True, cwd='/', **null)\n"
        "answer(id, {'content': [{'type': 'text', 'text': str(one.pid)}]})"
    )
    async with running(server(code)) as client:
        pid = await client.call_tool("x", into=int)
        os.kill(pid, 0)
    assert f"process {pid} (sleep), started by process {client.pid}, has left its" in caplog.text
    stat = Path(f"/proc/{pid}/stat")
    # A zombie has ended, and waits for init to look at it.
    assert not stat.exists() or ") Z " in stat.read_text()


WRAPPERS = {
    "sh -c": lambda at, command: ["sh", "-c", f"{' '.join(command)}; true"],
    "sh in sh": lambda at, command: ["sh", "-c", f"sh -c '{' '.join(command)}; true'; true"],
    "env": lambda at, command: ["env", "X=1", *command],
    "shebang": lambda at, command: [_script(at / "run", f"#!/bin/sh\n{' '.join(command)}\n")],
    "shebang of env": lambda at, command: [
        _script(
            at / "run", f"#!/usr/bin/env python3\nimport subprocess\nsubprocess.call({command!r})\n"
        )
    ],
    "nohup in the background": lambda at, command: [
        "sh",
        "-c",
        f"nohup sleep 60 >/dev/null 2>&1 & {' '.join(command)}",
    ],
}


def _script(path: Path, text: str) -> str:
    path.write_text(text)
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize("end", ["closed", "killed"])
@pytest.mark.parametrize("wrapper", WRAPPERS)
@on_a_loop
async def test_a_chain_of_wrappers_is_gone_as_a_whole(
    wrapper: str, end: str, tmp_path: Path
) -> None:
    """Whether the client closes it, or its outermost member is killed.

    `npx` and `uv run`: tests/interop/test_wrappers.py.
    """
    (tmp_path / "server.py").write_text(MISBEHAVING.read_text())
    (tmp_path / "code").write_text(DONE)
    starter = tmp_path / "start.py"
    starter.write_text(
        "import runpy, sys\n"
        f"sys.argv = ['x', 'legacy', open({str(tmp_path / 'code')!r}).read()]\n"
        f"runpy.run_path({str(tmp_path / 'server.py')!r}, run_name='__main__')\n"
    )
    command = WRAPPERS[wrapper](tmp_path, [sys.executable, str(starter)])
    quick = ShutdownTimeouts(stdin_closed_s=0.5, terminated_s=5, killed_s=10)
    async with running(
        ServerParameters(command[0], command[1:], ladder=quick)
    ) as client:  # looks at the group
        assert (await client.call_tool("x")).content
        if end == "killed":
            assert client.pid is not None
            os.kill(client.pid, signal.SIGKILL)


# Many at once

SMALL = """
import sys
for line in sys.stdin:
    id = line.split('"id":')[1].split(",")[0] if '"id":' in line else ""
    if "tools/call" in line and "die" in line: sys.exit(9)
    result = '{"content":[{"type":"text","text":"done"}]}'
    if '"initialize"' in line:
        result = '{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},' \\
            '"serverInfo":{"name":"s","version":"1"}}'
    if id: print('{"jsonrpc":"2.0","id":%s,"result":%s}' % (id, result), flush=True)
"""


@pytest.mark.slow
@on_a_loop
async def test_a_hundred_servers_at_once_each_with_callers_of_its_own_and_some_that_die() -> None:
    descriptors = set(os.listdir("/proc/self/fd"))
    small = ServerParameters(sys.executable, ["-I", "-S", "-c", SMALL], ladder=QUICK)
    pids: list[int] = []

    async def one(number: int) -> list[Any]:
        async with Client(small, era="legacy", timeouts=Timeouts(connect_s=25)) as client:
            assert client.pid is not None
            pids.append(client.pid)
            name = "die" if number % 10 == 0 else "x"
            return await asyncio.gather(*(attempt(client.call_tool(name)) for _ in range(10)))

    found = await asyncio.gather(*(one(number) for number in range(100)))
    for number, outcomes in enumerate(found):
        kind = Failure if number % 10 == 0 else Success
        assert all(isinstance(each, kind) for each in outcomes), number
    assert [member for pid in pids for member in live_members(pid)] == []
    assert set(os.listdir("/proc/self/fd")) == descriptors


@on_a_loop
async def test_a_hundred_callers_of_one_server_are_each_answered_in_turn() -> None:
    """Fair: nobody is answered a second time before everybody was once.

    This holds for callers that wait. While nobody else does, a server that answers during the write
    may answer one caller a few times (ChildProcess.send_and_poll); so one call waits all the time.
    """
    async with running(server(f"if not arguments: {DONE}")) as client:
        unanswered = asyncio.create_task(client.call_tool("x", {"answer": False}))
        await asyncio.sleep(0)
        order: list[int] = []

        async def caller(number: int) -> None:
            for _ in range(5):
                await client.call_tool("x")
                order.append(number)

        await asyncio.gather(*(caller(number) for number in range(100)))
        unanswered.cancel()
        await asyncio.wait([unanswered])
        for first in range(0, 500, 100):
            assert len(set(order[first : first + 100])) == 100


@pytest.mark.parametrize(
    "frame",
    [
        '{"jsonrpc":"2.0","id":%d,"result":@}',
        '{"result":@,"jsonrpc":"2.0","id":%d}',
        '{"id":%d,"error":@}',
    ],
)
@on_a_loop
async def test_an_answer_nested_too_deeply_is_an_error_at_once(frame: str) -> None:
    code = (
        f"deep = '[' * 100_000 + ']' * 100_000; os.write(1, ({frame!r} % id).replace('@', "
        f"deep).encode() + bytes([10]))"
    )
    async with running(server(code)) as client:
        with pytest.raises(ProtocolError, match="the answer is malformed: nested too deeply"):
            await client.call_tool("x", timeout_s=60)
        assert client.stray == 0


MALFORMED_ANSWERS = {
    '{"jsonrpc":"2.0","id":@,"result":{},"error":{"code":1}}': "a result and an error",
    '{"jsonrpc":"2.0","id":@,"result":{"content":[]},"error":null}': "a result and an error",
    '{"jsonrpc":"2.0","id":@}': "expected a method, a result or an error",
    '{"jsonrpc":"1.0","id":@,"result":{}}': 'jsonrpc: expected "2.0"',
    '{"id":@,"result":{}}': 'jsonrpc: expected "2.0", and it is missing',
    '{"jsonrpc":"2.0","id":"@","result":{}}': "id: expected an integer, got a string",
    '{"jsonrpc":"2.0","id":@.0,"result":{}}': "id: expected int | str, got float",
    '{"jsonrpc":"2.0","id":@,"result":{"a":"\\ud83c"}}': "a string holds half a surrogate pair",
    '{"jsonrpc":"2.0","id":@,"result":{"a":"\xff"}}': "not UTF-8 at byte ",
    '{"jsonrpc":"2.0","id":@,"result":{"a":NaN}}': "JSON is malformed: ",
    '{"jsonrpc":"2.0","id":@,"result":{"con': "Input data was truncated",
    'printed{"jsonrpc":"2.0","id":@,"result":NaN}': "JSON is malformed: ",
    '[{"jsonrpc":"2.0","id":@,"result":{}}]': "batches are not part of this protocol revision",
}


@on_a_loop
async def test_a_malformed_answer_ends_its_call_at_once_and_is_shown() -> None:
    code = (
        "frame = arguments['frame'].replace('@', str(id)); "
        "os.write(1, frame.encode('latin-1') + bytes([10]))"
    )
    async with running(server(code)) as client:
        for frame, problem in MALFORMED_ANSWERS.items():
            with pytest.raises(ProtocolError) as caught:
                await client.call_tool("x", {"frame": frame}, timeout_s=60)
            text = str(caught.value)
            assert text.startswith(f"tools/call x: the answer is malformed: {problem}"), text
            begin, end = frame.split("@")
            assert begin in text
            assert end.replace("\xff", "\\xff") in text
        assert client.stray == 0


@on_a_loop
async def test_a_server_may_print_before_its_responses_and_log_them() -> None:
    code = (
        f"frame = {ANSWER!r} % id; text = arguments['text']; "
        "os.write(1, (text.replace('@', frame) + chr(10)).encode())"
    )
    async with running(server(code)) as client:
        for text in ("printed@", "DEBUG sending @\n@", "DEBUG sending '@'\n@"):
            result = await client.call_tool("x", {"text": text}, timeout_s=60)
            assert result.content[0].text == "done"  # pyright: ignore[reportAttributeAccessIssue]
        # The copies of the responses, and the line with the quotes.
        assert client.stray == 2
