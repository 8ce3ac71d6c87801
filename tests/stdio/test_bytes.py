"""Bytes and framing over real pipes (RELIABILITY sections 1 and 2).

The exhaustive parts run a Pipe over os.pipe in this process: one process for each split would take
minutes. Their expected transcript is written out by hand.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from stdio.harness import (
    INITIALIZED,
    MODERN_META,
    Process,
    call,
    failure_of,
    frame,
    request,
    text_of,
)

from concertino import Limits, Server
from concertino.backend import Host
from concertino.transports.pipe import PipeConnection

PARSE_ERROR = -32700
INVALID_REQUEST = -32600
INVALID_PARAMS = -32602
MIB = 2**20


@pytest.fixture(scope="module")
def shared() -> Iterator[Callable[[str], Process]]:
    """Return a function that gives a server in a session of a revision; "" is no session yet.

    It serves one test after the other, which need no server of their own, and answers every
    malformed message, not ten in a second.
    """
    servers: dict[str, Process] = {}

    def server_for(revision: str) -> Process:
        if revision not in servers:
            env = {"CONCERTINO_GARBAGE_ANSWERS_PER_S": "1000"}
            servers[revision] = ended.enter_context(Process(env=env))
            if revision:
                servers[revision].initialize(revision)
        servers[revision].forget()
        return servers[revision]

    with ExitStack() as ended:
        yield server_for
        assert [process.finish() for process in servers.values()] == [0] * len(servers)


def check_is_served(process: Process, id: object = "next") -> None:
    """Check that the next request is served."""
    assert text_of(process.ask(call(id, "echo", {"text": "still here"}))) == "still here"


@pytest.mark.requirement("JR-16")
@pytest.mark.parametrize(
    "line",
    [
        b"{not json}",
        b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"ec',
        b"\xff\xfe\x80",
        b'{"jsonrpc":"2.0","method":"a\x00b"}',
        b'{"jsonrpc":"2.0","method":"a"} {"jsonrpc":"2.0","method":"b"}',
        b'{"jsonrpc":"2.0","method":"a"} // comment',
        b'[{"jsonrpc":"2.0","id":1,"method":"ping"},',
        b'{"a":' * 200_000,
    ],
    ids=[
        "no json",
        "truncated",
        "no utf-8",
        "raw nul",
        "two objects",
        "comment",
        "truncated batch",
        "deep",
    ],
)
def test_what_is_no_json_is_answered_once_with_a_parse_error_and_the_next_is_served(
    line: bytes, shared: Callable[[str], Process]
) -> None:
    process = shared("2025-06-18")
    process.write(line + b"\n")
    answer = process.receive()
    assert answer["error"]["code"] == PARSE_ERROR
    assert answer["id"] is None
    check_is_served(process)
    assert len(process.messages) == 2


def test_200_000_nested_arrays_are_an_error_and_no_stack_overflow() -> None:
    with Process() as process:
        process.initialize("2025-03-26")
        for line in (b"[" * 200_000, b"[" * 200_000 + b"]" * 200_000):
            process.write(line + b"\n")
        check_is_served(process)
        assert [
            m["error"]["code"] in (PARSE_ERROR, INVALID_REQUEST) for m in process.messages[1:-1]
        ] == [True, True]


@pytest.mark.parametrize(
    "deep", ["[" * 200_000 + "]" * 200_000, '{"a":' * 200_000], ids=["closed", "open"]
)
@pytest.mark.parametrize(
    "frame",
    [
        '{"jsonrpc":"2.0","id":"a-1","method":"tools/call","params":{"name":"echo","arguments":@}}',
        '{"method":"tools/call","params":{"name":"echo","arguments":@},"jsonrpc":"2.0","id":"a-1"}',
    ],
    ids=["id first", "id last"],
)
def test_a_request_nested_too_deeply_is_answered_on_its_id(deep: str, frame: str) -> None:
    if deep.startswith("{"):
        # Valid as far as nesting goes, or the id at the end would be inside of it.
        deep += "1" + "}" * deep.count("{")
    with Process() as process:
        process.initialize("2025-06-18")
        process.write(frame.replace("@", deep).encode() + b"\n")
        check_is_served(process)
        assert [(m["id"], m["error"]["code"]) for m in process.messages[1:-1]] == [
            ("a-1", PARSE_ERROR)
        ]


@pytest.mark.requirement("JR-16")
@pytest.mark.parametrize("line", [b"42", b'"x"', b"true", b"null", b"[]", b"{}"])
def test_json_that_is_no_message_is_an_invalid_request(
    line: bytes, shared: Callable[[str], Process]
) -> None:
    process = shared("2025-11-25")
    process.write(line + b"\n")
    answer = process.receive()
    assert answer["error"]["code"] == INVALID_REQUEST
    assert "id" not in answer  # 2025-11-25 leaves it out
    check_is_served(process)


@pytest.mark.requirement("JR-1")
@pytest.mark.parametrize(
    ("body", "code"),
    [
        ('"id":7,"method":"ping"', INVALID_REQUEST),
        ('"jsonrpc":"1.0","id":7,"method":"ping"', INVALID_REQUEST),
        ('"jsonrpc":"2.0","id":7,"method":5', INVALID_REQUEST),
        ('"jsonrpc":"2.0","id":7,"method":""', INVALID_REQUEST),
        ('"jsonrpc":"2.0","id":7', INVALID_REQUEST),
        ('"jsonrpc":"2.0","id":7,"method":"ping","result":{}', INVALID_REQUEST),
        ('"jsonrpc":"2.0","id":7,"method":"ping","params":[]', INVALID_PARAMS),
        ('"jsonrpc":"2.0","id":7,"method":"ping","params":"x"', INVALID_PARAMS),
        ('"jsonrpc":"2.0","id":7,"method":"ping","params":null', INVALID_PARAMS),
        ('"jsonrpc":"2.0","id":7,"method":"x/y","params":{"a":NaN}', PARSE_ERROR),
    ],
)
def test_a_malformed_request_is_answered_on_its_id(
    body: str, code: int, shared: Callable[[str], Process]
) -> None:
    process = shared("")
    process.write(b"{%s}\n" % body.encode())
    assert process.answer(7)["error"]["code"] == code
    assert process.ask(request("next", "ping"))["result"] == {}


@pytest.mark.requirement("FR-1")
def test_bad_utf8_inside_an_argument_is_refused_and_the_tool_is_not_called() -> None:
    with Process() as process:
        process.initialize()
        line = frame(call(1, "echo", {"text": "@"})).replace(b"@", b"\xff")
        process.write(line)
        assert process.answer(1)["error"]["code"] == PARSE_ERROR
        check_is_served(process)


def test_a_bom_crlf_and_blank_lines_are_no_obstacle() -> None:
    with Process() as process:
        process.write(b"\xef\xbb\xbf" + frame(request(1, "ping")))
        process.write(frame(request(2, "ping")).replace(b"\n", b"\r\n"))
        process.write(b"\n\r\n   \n\t\n \r\n\n" + frame(request(3, "ping")))
        process.write(b"  " + frame(request(4, "ping")))
        assert [process.receive()["id"] for _ in range(4)] == [1, 2, 3, 4]
        assert process.finish() == 0
        assert len(process.messages) == 4


@pytest.mark.requirement("FR-1")
@pytest.mark.parametrize(
    "text",
    [
        "\u2028\u2029\u0085\x0b\x1c\x1e",
        "\u0000",
        "\r",
        "\n",
        "😀\U0010ffff",
        "e\u0301",
        '"\\/',
        "\u202e",
        "\ufeff",
    ],
)
def test_text_is_given_back_exactly(text: str, shared: Callable[[str], Process]) -> None:
    assert text_of(shared("2025-11-25").ask(call(1, "echo", {"text": text}))) == text


@pytest.mark.requirement("JR-2", "JR-6")
@pytest.mark.parametrize("id", [0, -1, 2**53 + 1, 2**70, "", "1", "ü", "a\nb", 10**40])
def test_ids_keep_type_and_value(id: Any, shared: Callable[[str], Process]) -> None:
    assert shared("").ask(request(id, "ping"))["result"] == {}


@pytest.mark.requirement("JR-2", "JR-3")
@pytest.mark.parametrize("id", [None, True, 1.5, [], {}])
def test_ids_of_other_types_are_refused_without_one(
    id: Any, shared: Callable[[str], Process]
) -> None:
    process = shared("")
    process.send(request(id, "ping"))
    answer = process.receive()
    assert answer["error"]["code"] == INVALID_REQUEST
    assert answer["id"] is None
    assert process.ask(request("next", "ping"))["result"] == {}


def test_responses_are_never_answered_whatever_they_are() -> None:
    with Process() as process:
        process.initialize()
        for stray in (
            {"jsonrpc": "2.0", "id": 1, "result": {}},
            {"jsonrpc": "2.0", "id": None, "error": {"code": 1, "message": "x"}},
            {"jsonrpc": "2.0", "id": 99, "result": {}, "error": {}},
            {"jsonrpc": "2.0", "result": 5},
            {"id": [], "error": "x"},
        ):
            process.send(stray)
        check_is_served(process)
        assert len(process.messages) == 2


def test_a_hundred_bad_lines_in_one_write_are_answered_at_a_limited_rate() -> None:
    with Process() as process:
        process.initialize()
        process.write(b"{bad}\n" * 100)
        check_is_served(process)
        refused = [message for message in process.messages if "error" in message]
        assert 10 <= len(refused) <= 20  # ten at once, and ten more a second
        process.until_stderr("malformed messages were not answered")
        assert process.finish() == 0


def test_one_byte_per_write() -> None:
    with Process() as process:
        for byte in frame(call(1, "echo", {"text": "aé😀\u2028"}, modern=True)):
            process.write(bytes([byte]))
        assert text_of(process.answer(1)) == "aé😀\u2028"


def test_a_thousand_messages_in_one_write_get_a_thousand_answers() -> None:
    with Process() as process:
        process.initialize()
        process.send(*(call(n, "echo", {"text": f"text {n}"}) for n in range(1, 1001)))
        for n in range(1, 1001):
            assert text_of(process.answer(n)) == f"text {n}"
        assert process.finish() == 0
        assert len(process.messages) == 1001


@pytest.mark.parametrize("size", [70_000, 131_072, MIB, 10 * MIB - 400])
def test_a_large_text_is_given_back_exactly(size: int) -> None:
    text = ("0123456789äöü😀" * (size // 20 + 1)).encode()[:size].decode("utf-8", "ignore")
    with Process(env={"CONCERTINO_MAX_MESSAGE_BYTES": str(12 * MIB)}) as process:
        process.initialize()
        assert text_of(process.ask(call(1, "echo", {"text": text}))) == text
        check_is_served(process)


def test_the_time_per_byte_of_a_message_is_flat() -> None:
    """One message of 16 MiB costs about as much CPU time as sixteen of 1 MiB, not 16 times."""

    def cost(process: Process, size: int, count: int) -> float:
        line = frame(call(1, "size", {"text": "x" * size}))
        best = float("inf")
        for _ in range(3):
            before = process.main_thread_cpu_s()
            for _ in range(count):
                process.forget()
                process.write(line)
                process.answer(1)
            best = min(best, process.main_thread_cpu_s() - before)
        return best

    with Process(env={"CONCERTINO_MAX_MESSAGE_BYTES": str(17 * MIB)}) as process:
        process.initialize()
        many, one = cost(process, MIB, 16), cost(process, 16 * MIB, 1)
        assert one < 4 * many, (many, one)


def of_length(size: int, id: object = 1) -> bytes:
    """A call of exactly `size` bytes, without its newline."""
    room = size - len(frame(call(id, "size", {"text": ""}))) + 1
    return frame(call(id, "size", {"text": "x" * room}))[:-1]


@pytest.mark.parametrize("ending", [b"\n", b"\r\n"], ids=["LF", "CRLF"])
@pytest.mark.parametrize("limit", [1000, 65536, 200_001])
def test_a_message_as_long_as_the_limit_is_served_and_one_byte_more_is_refused(
    limit: int, ending: bytes
) -> None:
    with Process(env={"CONCERTINO_MAX_MESSAGE_BYTES": str(limit)}) as process:
        process.initialize("2025-06-18")
        process.write(of_length(limit, "fits") + ending)
        assert (
            int(text_of(process.answer("fits")))
            == limit - len(frame(call("fits", "size", {"text": ""}))) + 1
        )
        process.write(of_length(limit + 1, "large") + ending)
        # Its caller would wait for ever without the id.
        refusal = process.answer("large")
        process.send(request("after", "ping"))
        process.answer("after")
        assert refusal["error"]["code"] == INVALID_REQUEST
        assert str(limit) in refusal["error"]["message"]
        assert refusal["error"]["data"]["limitBytes"] == limit


def test_100_mb_without_a_newline_are_refused_once_with_flat_memory_and_the_next_is_served() -> (
    None
):
    with Process() as process:
        process.initialize()
        before = process.memory()
        piece = b"x" * MIB
        for _ in range(100):
            process.write(piece)
        process.write(b"\n")
        check_is_served(process)
        assert process.memory("VmHWM") - before <= 64 * MIB
        assert [message["error"]["code"] for message in process.messages if "error" in message] == [
            INVALID_REQUEST
        ]
        assert process.finish() == 0


def test_a_stream_that_never_ends_leaves_sigterm_obeyed() -> None:
    import signal

    with Process() as process:
        process.initialize()
        for _ in range(40):
            process.write(b"x" * MIB)
        process.signal(signal.SIGTERM)
        assert process.wait(10) == 0


def test_many_members_and_elements_are_answered() -> None:
    with Process() as process:
        process.initialize()
        keys = {f"k{n}": n for n in range(200_000)}
        process.send(call(1, "echo", {"text": "x", **keys}))
        assert "more unknown arguments" in failure_of(process.answer(1, 10))
        assert len(process.lines[-1]) < 100_000
        process.send(call(2, "echo", {"text": [0] * 1_000_000}))
        assert failure_of(process.answer(2, 10))
        process.write(frame(call(3, "size", {"text": "@"})).replace(b"@", b"\\u0041" * 1_500_000))
        assert text_of(process.answer(3, 10)) == "1500000"
        check_is_served(process)


def test_a_result_over_the_limit_is_an_error_that_names_both_sizes() -> None:
    with Process(env={"CONCERTINO_MAX_MESSAGE_BYTES": "10000"}) as process:
        process.initialize()
        text = failure_of(process.ask(call(1, "big", {"count": 20_000})))
        assert "10000" in text
        assert "200" in text  # 20,000 and what stands around them
        check_is_served(process)


def test_notifications_as_fast_as_the_pipe_takes_them_leave_it_responsive() -> None:
    with Process() as process:
        process.initialize()
        before = process.memory()
        process.write(frame(INITIALIZED) * 200_000)
        process.ask(request(1, "ping"))
        assert process.memory() - before < 32 * MIB


# Exhaustive: every place at which a dialogue can be torn, in process.


def small() -> Server:
    server = Server("split")

    @server.tool
    async def echo(text: str) -> str:
        return text

    return server


DIALOGUE = (
    b"\xef\xbb\xbf"
    + frame(request(1, "ping"))
    + b"\r\n"
    + frame(call("ü", "echo", {"text": "é😀"}, modern=True)).replace(b"\n", b"\r\n")
    + b"{bad}\n"
    + frame(
        {
            "jsonrpc": "2.0",
            "id": 3,
            "method": "tools/call",
            "params": {"name": "echo", "_meta": MODERN_META},
        }
    )
    + b'{"jsonrpc":"2.0","id":4,"method":"ping"}'  # the last line has no newline
)
TRANSCRIPT = [
    (1, "result"),
    ("ü", "é😀"),
    (None, PARSE_ERROR),
    (3, "isError"),
    (4, "result"),
]


def error_of(line: bytes) -> tuple[Any, Any]:
    message = json.loads(line)
    if "error" in message:
        return message.get("id"), message["error"]["code"]
    result = message["result"]
    if "content" in result:
        return message["id"], "isError" if result.get("isError") else result["content"][0]["text"]
    return message["id"], "result"


async def converse(host: Host, chunks: list[bytes]) -> bytes:
    """Give these chunks to a connection, each in a read of its own, then the end of input; what
    came back.
    """
    there, ours = os.pipe()
    back, writing = os.pipe()
    link = host.attach(PipeConnection(there, writing, Limits()))
    try:
        for chunk in chunks:
            os.write(ours, chunk)
            for _ in range(2):  # the loop polls once in each turn
                await asyncio.sleep(0)
        os.close(ours)
        await link.closed
        output = b""
        while piece := os.read(back, 65536):
            output += piece
        return output
    finally:
        os.close(back)


def test_a_dialogue_split_at_every_byte_has_the_same_transcript() -> None:
    async def main() -> None:
        async with Host(small()) as host:
            for at in range(1, len(DIALOGUE)):
                output = await converse(host, [DIALOGUE[:at], DIALOGUE[at:]])
                assert [error_of(line) for line in output.splitlines()] == TRANSCRIPT, at

    asyncio.run(main())


def test_a_dialogue_in_pieces_of_every_size_has_the_same_transcript() -> None:
    async def main() -> None:
        async with Host(small()) as host:
            for size in range(1, 64):
                chunks = [DIALOGUE[at : at + size] for at in range(0, len(DIALOGUE), size)]
                output = await converse(host, chunks)
                assert [error_of(line) for line in output.splitlines()] == TRANSCRIPT, size

    asyncio.run(main())


def test_a_dialogue_cut_off_at_every_byte_ends_without_a_lost_or_torn_answer() -> None:
    ends = [at for at in range(len(DIALOGUE)) if DIALOGUE[at : at + 1] == b"\n"]

    async def main() -> None:
        async with Host(small()) as host:
            for at in range(len(DIALOGUE)):
                output = await converse(host, [DIALOGUE[:at]])
                said = [error_of(line) for line in output.splitlines()]
                whole = len([end for end in ends if end < at]) - (
                    at > ends[1]
                )  # the second line is blank
                assert said[:whole] == TRANSCRIPT[:whole], at
                assert len(said) <= whole + 1, at
                assert output[-1:] in (b"", b"\n")

    asyncio.run(main())


def test_every_byte_of_a_request_replaced_leaves_the_next_one_served() -> None:
    """Each position takes a quote, a bad byte, a newline and a NUL; whatever that means, the ping
    behind it is answered.
    """
    good = frame(call(1, "echo", {"text": "é"}, modern=True))

    async def main() -> None:
        async with Host(small(), Limits(garbage_answers_per_s=1000)) as host:
            for at in range(len(good)):
                for byte in b'"', b"\xff", b"\n", b"\x00", b"{":
                    line = good[:at] + byte + good[at + 1 :]
                    output = await converse(host, [line + b"\n" + frame(request("last", "ping"))])
                    answers = [json.loads(each) for each in output.splitlines()]
                    assert sum(each.get("id") == "last" for each in answers) == 1, line
                    assert sum(each.get("id") == 1 for each in answers) <= 1, line

    asyncio.run(main())
