"""client/opening_watch.py: programs that are no MCP servers are known soon, and slow servers are
not taken for them.

The programs are real processes.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable

import pytest
from client.scripted import Script, legacy, on_a_loop

from concertino.client import opening_watch
from concertino.client.client import Client, Timeouts
from concertino.errors import Disconnected, NotAServer, TimedOut
from concertino.transports.memory import memory_pair

PATIENT = Timeouts(connect_s=60, probe_s=30)
# A legacy server that does to its stdout first what {} says, for each line that it reads.
SERVER = """
import json, sys
for line in sys.stdin:
    message = json.loads(line)
    {}
    if message.get("method") == "initialize":
        info = {{"name": "s", "version": "1"}}
        result = {{"protocolVersion": "2025-06-18", "capabilities": {{}}, "serverInfo": info}}
        print(json.dumps({{"jsonrpc": "2.0", "id": message["id"], "result": result}}), flush=True)
"""


def python(source: str) -> list[str]:
    return [sys.executable, "-S", "-c", source]


@pytest.fixture
def no_time_to_answer(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Let programs have no time to answer. Returns a function that gives them a minute."""
    for name in ("ECHO_S", "PROBE_S", "TEXT_S"):
        monkeypatch.setattr(opening_watch, name, 0.0)

    def give_a_minute() -> None:
        for name in ("ECHO_S", "TEXT_S"):
            monkeypatch.setattr(opening_watch, name, 60.0)

    return give_a_minute


async def open_error(command: list[str], **options: object) -> str:
    with pytest.raises(NotAServer) as error:
        async with Client(command, timeouts=PATIENT, **options):  # pyright: ignore[reportArgumentType]
            pass
    return str(error.value)


@pytest.mark.parametrize("era", ["auto", "modern", "legacy"])
@on_a_loop
async def test_cat_repeats_what_it_is_sent(era: str) -> None:
    assert (
        await open_error(["cat"], era=era) == "`cat` repeats what it is sent: it is no MCP server"
    )


@on_a_loop
async def test_a_program_that_repeats_its_input_among_words_is_no_server() -> None:
    text = await open_error(["sh", "-c", 'while read -r line; do echo "got $line"; done'])
    assert text.endswith("repeats what it is sent: it is no MCP server")


@pytest.mark.parametrize("era", ["auto", "modern", "legacy"])
@on_a_loop
async def test_a_program_that_prints_text_and_ends_is_no_server(era: str) -> None:
    assert await open_error(["echo", "hello you"], era=era) == (
        "`echo 'hello you'` prints text that is no JSON-RPC: 'hello you'"
    )


@on_a_loop
async def test_bytes_that_cannot_be_printed_are_escaped_once() -> None:
    text = await open_error(["printf", r"\377A\033\n"])
    assert text.endswith(r"prints text that is no JSON-RPC: '\xffA\x1b'")


@on_a_loop
async def test_a_program_that_prints_json_that_is_no_message_is_no_server() -> None:
    text = await open_error(["echo", '{"level": "info"}'])
    assert text.endswith('prints text that is no JSON-RPC: \'{"level": "info"}\'')


@on_a_loop
async def test_a_program_that_reads_and_prints_text_only_is_no_server(
    no_time_to_answer: Callable[[], None],
) -> None:
    text = await open_error(["sh", "-c", "echo hello; echo why >&2; cat > /dev/null"])
    assert text.endswith("prints text that is no JSON-RPC: 'hello'; its stderr ends with:\nwhy")


@on_a_loop
async def test_thousands_of_lines_before_the_first_answer_are_skipped_and_counted() -> None:
    source = "for number in range(10_000): print('added package', number)\n" + SERVER.format("pass")
    async with Client(python(source), era="legacy", timeouts=PATIENT) as client:
        assert client.server_info.name == "s"
        assert client.stray == 10_000
        # Only the last few are kept.
        assert client.strays[-1] == "added package 9999"
        assert len(client.strays) < 10


@on_a_loop
async def test_a_flood_of_text_ends_the_opening_and_the_program() -> None:
    client = Client(["yes"], timeouts=PATIENT)
    with pytest.raises(NotAServer, match="`yes` prints text that is no JSON-RPC: 'y'"):
        await client.open()
    assert client.exit_status is not None


@on_a_loop
async def test_a_program_that_has_not_read_the_request_may_still_be_starting(
    no_time_to_answer: Callable[[], None],
) -> None:
    timeouts = Timeouts(connect_s=1.0)
    with pytest.raises(TimedOut):
        async with Client(["sh", "-c", "echo hello; sleep 60"], timeouts=timeouts):
            pass


@pytest.mark.parametrize(
    "prints",
    ["sys.stdout.write(line)", "print('received', line, flush=True)", "print('hello', flush=True)"],
)
@on_a_loop
async def test_a_server_may_print_before_it_answers(prints: str) -> None:
    async with Client(python(SERVER.format(prints)), timeouts=PATIENT) as client:
        assert client.protocol_version == "2025-06-18"


@on_a_loop
async def test_a_server_that_prints_and_ignores_what_it_does_not_know_is_opened_soon(
    no_time_to_answer: Callable[[], None],
) -> None:
    """It gets the handshake without waiting for the 30 s of the probe, and then time to answer."""
    no_time_to_answer()
    async with asyncio.timeout(20):
        async with Client(python(SERVER.format("print('hello', flush=True)")), timeouts=PATIENT):
            pass


@on_a_loop
async def test_a_program_that_prints_text_and_fails_has_ended_and_not_lied() -> None:
    with pytest.raises(Disconnected, match="exited with code 3") as error:
        async with Client(["sh", "-c", "echo hello; exit 3"]):
            pass
    assert "hello" in str(error.value)


@on_a_loop
async def test_what_listens_at_an_address_and_speaks_another_protocol_is_no_server() -> None:
    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"SSH-2.0-OpenSSH_9.6\r\n")
        await writer.drain()
        await reader.readline()
        writer.close()

    listening = await asyncio.start_server(greet, "127.0.0.1", 0)
    async with listening:
        port = listening.sockets[0].getsockname()[1]
        with pytest.raises(NotAServer) as error:
            async with Client(f"tcp:127.0.0.1:{port}", timeouts=PATIENT):
                pass
    expected = f"tcp:127.0.0.1:{port} prints text that is no JSON-RPC: 'SSH-2.0-OpenSSH_9.6"
    assert str(error.value).startswith(expected)


@on_a_loop
async def test_text_after_the_opening_is_skipped_as_ever(
    no_time_to_answer: Callable[[], None],
) -> None:
    ours, theirs = memory_pair()
    script = Script(theirs, legacy() | {"ping": {}})
    async with Client(ours, era="legacy") as client:
        script.send(b"hello", b'{"jsonrpc":"2.0","id":1,"method":"initialize","params":{}}')
        await client.ping()
        assert client.stray == 1
