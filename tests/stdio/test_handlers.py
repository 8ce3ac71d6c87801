"""What a handler may do, and what becomes of its call (RELIABILITY sections 5 and 6)."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from stdio.harness import (
    RUN,
    Process,
    call,
    failure_of,
    frame,
    notification,
    request,
    script,
    text_of,
)

SERVED = ("result", "error")


def at(process: Process, name: str) -> None:
    process.pump(
        lambda: any(
            params["data"] == f"at {name}"
            for params in process.notifications("notifications/message")
        )
    )


def all_threads_block(process: Process) -> None:
    """Wait until 32 calls of block_at hold a thread each.

    The first 8 start at once, the others 0.5 s later, since nothing is known of their results.
    """

    def blocked() -> int:
        notified = process.notifications("notifications/message")
        return [params["data"] for params in notified].count("at all")

    process.pump(lambda: blocked() == 32)


def cancel(id: object, **more: object) -> dict[str, Any]:
    return notification("notifications/cancelled", {"requestId": id, **more})


# Raising


@pytest.mark.requirement("TO-9")
@pytest.mark.parametrize("tool", ["fail_async", "fail_later", "fail_in_thread", "fail_inline"])
def test_whatever_a_handler_raises_is_a_result_and_the_next_call_is_served(tool: str) -> None:
    kinds = {
        "ValueError": "ValueError: no good",
        "ToolError": "in your words",
        "SystemExit": "SystemExit: 3",
        "KeyboardInterrupt": "KeyboardInterrupt",
        "GeneratorExit": "GeneratorExit",
        "CancelledError": "CancelledError",
        "MemoryError": "MemoryError",
        "StopAsyncIteration": "StopAsyncIteration",
        "TimeoutError": "TimeoutError",
        "Odd": "Odd: odd",
    }
    with Process() as process:
        process.initialize()
        for id, (kind, text) in enumerate(kinds.items(), 1):
            assert failure_of(process.ask(call(id, tool, {"kind": kind}))) == text
            assert text_of(process.ask(call(-id, "echo", {"text": kind}))) == kind
        assert "RecursionError" in failure_of(
            process.ask(call("deep", tool, {"kind": "RecursionError"}))
        )
        # StopIteration cannot leave a coroutine, nor enter a future: Python makes a RuntimeError of
        # it.
        assert failure_of(process.ask(call("stop", tool, {"kind": "StopIteration"}))).startswith(
            ("RuntimeError", "StopIteration")
        )
        assert process.finish() == 0
        assert b"exception was never retrieved" not in process.stderr


def test_an_exception_whose_text_cannot_be_made_is_a_result(tmp_path: Path) -> None:
    source = """
class Mute(Exception):
    def __str__(self): raise ValueError("no text either")
@server.tool
async def mute() -> str:
    raise Mute
@server.tool
async def echo(text: str) -> str:
    return text
"""
    with Process([script(tmp_path, source + RUN)]) as process:
        process.initialize()
        assert "Mute" in failure_of(process.ask(call(1, "mute")))
        assert text_of(process.ask(call(2, "echo", {"text": "x"}))) == "x"


def test_the_text_of_an_exception_is_cut_and_no_traceback_is_sent() -> None:
    with Process() as process:
        process.initialize()
        process.send(call(1, "leak", {"secret": "x" * 100_000}))
        text = failure_of(process.answer(1))
        assert len(text) <= 1100
        assert "Traceback" not in text
        assert process.finish() == 0
        assert b"Traceback" in process.stderr  # there it belongs


# Returning


def test_a_value_that_json_cannot_hold_is_an_error_on_the_id_and_the_writer_lives() -> None:
    with Process() as process:
        process.initialize()
        kinds = ("object", "nan", "inf", "bytes", "cycle", "deep", "complex", "surrogate")
        for id, kind in enumerate(kinds):
            assert failure_of(process.ask(call(id, "give", {"kind": kind}))), kind
            assert text_of(process.ask(call(-1 - id, "echo", {"text": kind}))) == kind


def test_values_that_json_can_hold_are_given() -> None:
    with Process() as process:
        process.initialize()
        assert text_of(process.ask(call(1, "give", {"kind": "list"}))) == '[1,"two",null]'
        assert text_of(process.ask(call(2, "give", {"kind": "huge"}))) == str(2**70)
        assert process.ask(call(3, "give", {"kind": "none"}))["result"].get("isError") is not True


def test_a_result_of_200_mb_is_refused_and_the_server_lives() -> None:
    with Process() as process:
        process.initialize()
        assert "10485760" in failure_of(process.ask(call(1, "big", {"count": 200_000_000})))
        assert text_of(process.ask(call(2, "echo", {"text": "fine"}))) == "fine"


def test_the_name_of_an_unknown_tool_is_not_given_back_at_length() -> None:
    with Process() as process:
        process.initialize()
        answer = process.ask(call(1, "x" * 1_000_000))
        assert answer["error"]["code"] == -32602
        assert len(process.lines[-1]) < 10_000


# Threads


@pytest.mark.requirement("LC-14")
def test_64_blocking_handlers_leave_ping_and_async_calls_alone() -> None:
    with Process() as process:
        process.initialize()
        process.send(*(call(n, "block_at", {"name": "all"}) for n in range(64)))
        all_threads_block(process)
        assert process.ask(request("ping", "ping"))["result"] == {}
        assert text_of(process.ask(call("echo", "echo", {"text": "x"}))) == "x"
        threads = process.ask(call("facts", "facts"))["result"]["structuredContent"]["threads"]
        assert sum(name.startswith("concertino") for name in threads) == 32  # DESIGN decision 6
        process.send(call("open", "open_gate", {"name": "all"}))
        for n in range(64):
            assert text_of(process.answer(n)) == "all"


def test_500_async_calls_run_side_by_side() -> None:
    with Process() as process:
        process.initialize()
        process.send(*(call(n, "wait_at", {"name": "all"}) for n in range(500)))
        process.pump(lambda: len(process.notifications("notifications/message")) == 500)
        assert process.ask(request("ping", "ping"))["result"] == {}
        process.send(call("open", "open_gate", {"name": "all"}))
        for n in range(500):
            assert text_of(process.answer(n)) == "all"


def test_a_cancelled_job_that_waits_for_a_thread_is_never_run() -> None:
    with Process() as process:
        process.initialize()
        process.send(*(call(n, "block_at", {"name": "all"}) for n in range(32)))
        all_threads_block(process)
        process.send(call("dropped", "log_in_thread"))
        process.ask(request("ping", "ping"))
        process.send(cancel("dropped"), call("open", "open_gate", {"name": "all"}))
        for n in range(32):
            process.answer(n)
        process.ask(call("after", "echo_in_thread", {"text": "x"}))
        assert ["from", "a", "thread"] not in [
            p["data"] for p in process.notifications("notifications/message")
        ]
        assert process.answers("dropped") == []


def test_a_cancelled_handler_in_a_thread_can_see_it() -> None:
    with Process() as process:
        process.initialize()
        process.send(call(1, "block_at", {"name": "x"}, token="t"))
        at(process, "x")
        process.send(cancel(1))
        process.ask(request(2, "ping"))
        assert process.answers(1) == []
        assert text_of(process.ask(call(3, "echo_in_thread", {"text": "x"}))) == "x"


# Context variables and asyncio


@pytest.mark.parametrize(
    "tool", ["swap_variable", "swap_variable_in_thread", "swap_variable_later"]
)
def test_a_context_variable_does_not_leak_into_the_next_call(tool: str) -> None:
    with Process() as process:
        process.initialize()
        process.send(*(call(n, tool, {"value": f"value {n}"}) for n in range(50)))
        for n in range(50):
            expected = f"unset value {n}" if tool == "swap_variable_later" else "unset"
            assert text_of(process.answer(n)) == expected


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_asyncio_works_in_a_handler_as_in_any_task(loop: str, tmp_path: Path) -> None:
    source = "import sys; sys.path.insert(0, sys.argv[1])\nfrom toolbox import server\n" + (
        "import uvloop\nserver.run(loop_factory=uvloop.new_event_loop)"
        if loop == "uvloop"
        else "server.run()"
    )
    here = str(Path(__file__).parent)
    with Process([script(tmp_path, source), here]) as process:
        process.initialize()
        for id in range(3):
            said = process.ask(call(id, "use_asyncio"))["result"]["structuredContent"]["result"]
            assert said == ["timeout", "task", "ab", "group", "c", "same"]
        assert text_of(process.ask(call(10, "timeout_at_once"))) == "in time"
        assert process.ask(call(11, "facts"))["result"]["structuredContent"]["loop"] == loop
        assert process.finish() == 0
        assert b"Task was destroyed" not in process.stderr


def test_a_handler_that_cancels_itself_is_answered_with_an_error() -> None:
    with Process() as process:
        process.initialize()
        answer = process.ask(call(1, "cancel_myself"))
        assert "error" in answer or failure_of(answer)
        answer = process.ask(call(2, "cancel_myself_and_return"))
        assert any(kind in answer for kind in SERVED)
        assert text_of(process.ask(call(3, "sleep", {"seconds": 0.01}))) == "slept"
        assert text_of(process.ask(call(4, "timeout_at_once"))) == "in time"


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
@pytest.mark.parametrize("what", ["loop.stop()", "[task.cancel() for task in asyncio.all_tasks()]"])
def test_a_handler_that_ends_what_it_finds_on_the_loop_ends_itself_at_most(
    what: str, loop: str, tmp_path: Path
) -> None:
    run = (
        "import uvloop\nserver.run(loop_factory=uvloop.new_event_loop)"
        if loop == "uvloop"
        else "server.run()"
    )
    source = f"""
import asyncio
@server.tool
async def end(seconds: float) -> str:
    loop = asyncio.get_running_loop()
    {what}
    await asyncio.sleep(seconds)
    return "done"
@server.tool
async def end_at_once() -> str:
    loop = asyncio.get_running_loop()
    {what}
    return "done"
@server.tool
async def echo(text: str) -> str:
    await asyncio.sleep(0)
    return text
"""
    with Process([script(tmp_path, source + run)]) as process:
        process.initialize()
        for id in range(0, 9, 3):
            assert text_of(process.ask(call(id, "end_at_once"))) == "done"
            assert process.ask(call(id + 1, "end", {"seconds": 0.01}))[
                "result"
            ]  # cancelled by itself, or not
            assert text_of(process.ask(call(id + 2, "echo", {"text": "x"}))) == "x"
        assert process.finish() == 0
        assert b"Failed" not in process.stderr


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
@pytest.mark.parametrize("error", ["SystemExit(3)", "KeyboardInterrupt()"])
def test_a_task_of_a_handler_that_exits_does_not_end_the_server(
    error: str, loop: str, tmp_path: Path
) -> None:
    run = (
        "import uvloop\nserver.run(loop_factory=uvloop.new_event_loop)"
        if loop == "uvloop"
        else "server.run()"
    )
    source = f"""
import asyncio
async def exits() -> None:
    raise {error}
@server.tool
async def begin() -> str:
    global kept
    kept = asyncio.create_task(exits())
    await asyncio.sleep(0.01)
    return "done"
"""
    with Process([script(tmp_path, source + run)]) as process:
        process.initialize()
        for id in range(3):
            assert text_of(process.ask(call(id, "begin"))) == "done"
        assert process.finish() == 0
        assert b"a task raised " + error.partition("(")[0].encode() in process.stderr


# Cancelling


@pytest.mark.requirement("CA-5")
def test_a_cancelled_call_is_not_answered_and_its_finally_runs() -> None:
    with Process() as process:
        process.initialize()
        process.send(call(1, "cleaned_up", {"name": "x"}))
        at(process, "x")
        process.send(cancel(1, reason="changed my mind"))
        process.until_stderr("finally ran")
        process.ask(request(2, "ping"))
        assert process.answers(1) == []
        process.ask(call(1, "echo", {"text": "the id is free again"}))


def test_a_handler_that_swallows_its_cancel_is_not_answered() -> None:
    with Process() as process:
        process.initialize()
        process.send(call(1, "stubborn", {"name": "x"}))
        at(process, "x")
        process.send(cancel(1))
        process.ask(call(2, "sleep", {"seconds": 0.05}))
        assert process.answers(1) == []


@pytest.mark.requirement("CA-7")
def test_a_cancel_of_something_else_is_ignored() -> None:
    with Process() as process:
        process.initialize()
        process.send(call(1, "wait_at", {"name": "x"}))
        at(process, "x")
        params: dict[str, Any]
        for params in (
            {"requestId": 99},
            {"requestId": "1"},
            {"requestId": 1.0},
            {"requestId": True},
            {"requestId": None},
            {"requestId": [1]},
            {"requestId": {"id": 1}},
            {},
            {"requestId": 1, "reason": 5},
            {"requestId": 0},
            {"reason": "x"},
        ):
            process.send(notification("notifications/cancelled", params))
        process.send(call(2, "open_gate", {"name": "x"}))
        assert text_of(process.answer(1)) == "x"
        process.ask(request(3, "ping"))
        assert len([message for message in process.messages if "id" in message]) == 4


@pytest.mark.requirement("CA-7")
def test_a_cancel_of_what_is_done_is_ignored() -> None:
    with Process() as process:
        process.initialize()
        process.ask(call(1, "echo", {"text": "x"}))
        process.send(cancel(1))
        process.send(cancel("initialize"))
        process.ask(request(2, "ping"))
        assert len(process.messages) == 3


def test_a_cancel_with_the_id_as_another_type_leaves_the_call_alone() -> None:
    with Process() as process:
        process.initialize()
        process.send(call("1", "wait_at", {"name": "x"}), call(1, "wait_at", {"name": "x"}))
        process.send(cancel(1), call("open", "open_gate", {"name": "x"}))
        assert text_of(process.answer("1")) == "x"
        process.ask(request(2, "ping"))
        assert process.answers(1) == []


@pytest.mark.requirement("CA-9")
@pytest.mark.parametrize("modern", [False, True])
def test_200_cancel_races_give_at_most_one_answer_each_and_none_twice(modern: bool) -> None:
    chance = random.Random(7)
    tools = [
        ("echo", {"text": "x"}),
        ("echo_in_thread", {"text": "x"}),
        ("sleep", {"seconds": 0}),
        ("count", {"to": 3}),
    ]
    with Process() as process:
        process.initialize()
        for id in range(1, 201):
            tool, arguments = tools[id % 4]
            process.send(call(id, tool, arguments, modern=modern))
            if chance.random() < 0.5:
                process.pump(lambda: True)
            if chance.random() < 0.3:
                process.ask(request(-id, "ping"))
            process.send(cancel(id))
        process.ask(call("last", "sleep", {"seconds": 0.05}))
        process.ask(call("last thread", "echo_in_thread", {"text": "x"}))
        assert all(len(process.answers(id)) <= 1 for id in range(1, 201))
        assert process.finish() == 0
        assert b"Traceback" not in process.stderr


def test_cancels_that_arrive_with_their_calls_in_one_write_leave_no_answer_to_a_waiting_call() -> (
    None
):
    with Process() as process:
        process.initialize()
        lines = b"".join(
            frame(call(n, "sleep", {"seconds": 0.01})) + frame(cancel(n)) for n in range(500)
        )
        process.write(lines)
        process.ask(call("last", "sleep", {"seconds": 0.1}))
        assert [n for n in range(1, 500) if process.answers(n)] == []


# Progress


ALL_OF_IT = {"CONCERTINO_PROGRESS_PER_S": "1000000"}  # nothing is merged because it is too much


def test_of_20_000_progress_messages_a_hundred_a_second_come_and_the_last() -> None:
    with Process() as process:
        process.initialize()
        process.ask(call(1, "count", {"to": 20_000}, token="token"))
        values = [params["progress"] for params in process.notifications("notifications/progress")]
        assert values[:100] == list(range(1, 101))
        assert values == sorted(set(values))
        assert values[-1] == 20_000
        assert len(values) < 10_000
        assert process.messages[-1]["id"] == 1


@pytest.mark.requirement("PR-5")
def test_20_000_progress_messages_all_come_before_the_result_and_none_after() -> None:
    with Process(env=ALL_OF_IT) as process:
        process.initialize()
        process.ask(call(1, "count", {"to": 20_000}, token="token"))
        process.ask(request(2, "ping"))
        methods = [message.get("method") for message in process.messages[1:]]
        assert methods == ["notifications/progress"] * 20_000 + [None, None]
        values = [params["progress"] for params in process.notifications("notifications/progress")]
        assert values == list(range(1, 20_001))
        assert process.notifications("notifications/progress")[0] == {
            "progressToken": "token",
            "progress": 1,
            "total": 20_000,
            "message": "number 1",
        }


def test_progress_from_a_thread_comes_in_order_before_the_result() -> None:
    with Process() as process:
        process.initialize()
        for id in range(1, 21):
            process.ask(call(id, "count_in_thread", {"to": 1000}, token=id))
        for id in range(1, 21):
            values = [
                p["progress"]
                for p in process.notifications("notifications/progress")
                if p["progressToken"] == id
            ]
            assert values == sorted(set(values))
            assert values[-1] == 1000
            last = max(
                n
                for n, m in enumerate(process.messages)
                if m.get("params", {}).get("progressToken") == id
            )
            assert last < next(n for n, m in enumerate(process.messages) if m.get("id") == id)


def test_progress_that_does_not_grow_is_not_sent() -> None:
    with Process() as process:
        process.initialize()
        values = [1, 1, 0.5, 2, -3, 2, 2.5]
        process.ask(call(1, "progress_values", {"values": values}, token=0))
        assert [p["progress"] for p in process.notifications("notifications/progress")] == [
            1,
            2,
            2.5,
        ]
        assert {p["progressToken"] for p in process.notifications("notifications/progress")} == {0}


def test_without_a_token_no_progress_is_sent() -> None:
    with Process() as process:
        process.initialize()
        assert text_of(process.ask(call(1, "count", {"to": 10}))) == "counted"
        assert text_of(process.ask(call(2, "count_in_thread", {"to": 10}))) == "counted"
        assert process.notifications("notifications/progress") == []


@pytest.mark.requirement("LO-4")
def test_progress_and_log_after_the_answer_are_dropped() -> None:
    with Process() as process:
        process.initialize()
        process.ask(call(1, "progress_after_the_end", token="t"))
        process.ask(call(2, "open_gate", {"name": "late"}))
        process.until_stderr("told late")
        process.ask(request(3, "ping"))
        assert len(process.notifications("notifications/progress")) == 1
        assert process.notifications("notifications/message") == []


def test_progress_messages_are_left_out_for_the_oldest_revision() -> None:
    with Process() as process:
        process.initialize("2024-11-05")
        process.ask(call(1, "count", {"to": 1}, token="t"))
        assert process.notifications("notifications/progress") == [
            {"progressToken": "t", "progress": 1, "total": 1}
        ]


def test_progress_of_a_modern_call_uses_the_token_in_its_meta() -> None:
    with Process() as process:
        process.ask(call(1, "count", {"to": 2}, token="t", modern=True))
        assert [p["progress"] for p in process.notifications("notifications/progress")] == [1, 2]


# Logging


def test_log_messages_follow_the_level_that_was_set() -> None:
    order = ["debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"]
    with Process() as process:
        process.initialize()
        for id, level in enumerate(order, 1):
            assert process.ask(request(-id, "logging/setLevel", {"level": level}))["result"] == {}
            seen = len(process.notifications("notifications/message"))
            process.ask(call(id, "log_at_every_level"))
            told = process.notifications("notifications/message")[seen:]
            assert [params["level"] for params in told] == order[order.index(level) :]
        assert told == [
            {"level": "emergency", "logger": "component", "data": {"said": "emergency"}}
        ]
        assert (
            process.ask(request("bad", "logging/setLevel", {"level": "loud"}))["error"]["code"]
            == -32602
        )


def test_log_messages_of_modern_calls_are_sent_only_when_the_call_asks_for_them() -> None:
    with Process() as process:
        process.ask(call(1, "log_at_every_level", modern=True))
        assert process.notifications("notifications/message") == []
        asking = call(2, "log_at_every_level", modern=True)
        asking["params"]["_meta"]["io.modelcontextprotocol/logLevel"] = "error"
        process.ask(asking)
        told = [params["level"] for params in process.notifications("notifications/message")]
        assert told == ["error", "critical", "alert", "emergency"]


def test_a_log_message_from_a_thread_comes_before_the_result() -> None:
    with Process() as process:
        process.initialize()
        process.ask(call(1, "log_in_thread"))
        assert [message.get("method") for message in process.messages[1:]] == [
            "notifications/message",
            None,
        ]
        assert process.notifications("notifications/message") == [
            {"level": "warning", "data": ["from", "a", "thread"]}
        ]


# The list of tools


@pytest.mark.parametrize("tool", ["offer_more", "offer_more_in_thread"])
def test_tools_added_and_removed_while_running_are_announced_and_work(tool: str) -> None:
    with Process() as process:
        process.initialize()
        process.ask(call(1, tool, {"name": "new_one"}))
        process.pump(lambda: len(process.notifications("notifications/tools/list_changed")) == 1)
        assert text_of(process.ask(call(2, "new_one", {"text": "works"}))) == "works"
        listed = process.ask(request(3, "tools/list"))["result"]["tools"]
        assert listed[-1]["name"] == "new_one"
        process.ask(call(4, "offer_less", {"name": "new_one"}))
        process.pump(lambda: len(process.notifications("notifications/tools/list_changed")) == 2)
        assert process.ask(call(5, "new_one", {"text": "gone"}))["error"]["code"] == -32602
        assert "new_one" not in [
            each["name"] for each in process.ask(request(6, "tools/list"))["result"]["tools"]
        ]
        assert process.ask(call(7, "offer_less", {"name": "new_one"}))["result"]["isError"] is True


# Many at once


@pytest.mark.requirement("JR-5")
def test_an_id_in_use_is_refused_and_the_first_call_is_still_answered() -> None:
    with Process() as process:
        process.initialize()
        process.send(call(1, "wait_at", {"name": "x"}))
        at(process, "x")
        process.send(call(1, "echo", {"text": "second"}), request(1, "ping"))
        process.pump(lambda: len(process.answers(1)) == 2)
        assert [answer["error"]["code"] for answer in process.answers(1)] == [-32600, -32600]
        process.send(call(2, "open_gate", {"name": "x"}))
        process.pump(lambda: len(process.answers(1)) == 3)
        assert text_of(process.answers(1)[2]) == "x"


@pytest.mark.requirement("TO-10")
def test_10_000_calls_at_once_are_each_answered_or_told_that_the_server_is_busy() -> None:
    with Process() as process:
        process.initialize()
        # Before the first result of a tool only a few calls of it start at once.
        process.send(
            call("first", "wait_at", {"name": "g"}), call("open", "open_gate", {"name": "g"})
        )
        process.pump(lambda: process.answers("first") != [])
        process.send(*(call(n, "wait_at", {"name": f"g{n % 2}"}) for n in range(10_000)))
        process.ask(request("ping", "ping"))
        busy = [
            message
            for message in process.messages
            if message.get("error", {}).get("code") == -31001
        ]
        assert len(busy) == 10_000 - 1024 - 4096
        assert busy[0]["error"]["data"]["maxWaiting"] == 4096
        told = {message["id"] for message in busy}
        # All places are taken: what is cancelled gives its place to the next in order, and the
        # queue takes two more.
        process.send(cancel(1000), cancel(1001))
        process.ask(request("ping 1", "ping"))
        process.send(call("a", "open_gate", {"name": "g0"}), call("b", "open_gate", {"name": "g1"}))
        process.ask(request("ping 2", "ping"))
        assert (
            process.answers("a") == process.answers("b") == []
        )  # they wait in order, behind what waits for them
        running = [n for n in range(1024) if n not in (1000, 1001)]
        process.send(*(cancel(n) for n in running))
        left = [n for n in range(10_000) if n not in told and n >= 1026]
        while not process.answers("b"):
            process.send(*(cancel(n) for n in left[:1024]))
            left = left[1024:]
            process.ask(request(f"ping {len(left)}", "ping"))
        process.ask(call("last", "echo", {"text": "x"}))
        ids = [message["id"] for message in process.messages if "id" in message]
        assert len(ids) == len(set(ids))


def test_10_000_quick_calls_at_once_are_all_answered() -> None:
    with Process() as process:
        process.initialize()
        process.send(*(call(n, "echo", {"text": str(n)}) for n in range(1, 10_001)))
        process.answer(10_000)
        ids = [message["id"] for message in process.messages[1:]]
        assert sorted(ids) == list(range(1, 10_001))
        assert all("result" in message for message in process.messages)


def test_the_messages_of_calls_that_waited_are_not_kept(tmp_path: Path) -> None:
    """Until the garbage collector comes, which may be after hundreds of calls: 12 times 8 MB, one
    after the other.
    """
    source = """
@server.tool
async def size(text: str) -> int:
    await asyncio.sleep(0)
    return len(text)
"""
    with Process([script(tmp_path, source + RUN)]) as process:
        process.initialize()
        before = process.memory()
        for n in range(12):
            assert text_of(process.ask(call(n, "size", {"text": "x" * 8_000_000}))) == "8000000"
        assert process.memory("VmHWM") - before < (10 + 64) * 2**20
