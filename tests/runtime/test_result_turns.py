"""runtime/result_turns.py: how much of large results is sent in one iteration of the event loop."""

from __future__ import annotations

import asyncio

from loops import on_a_loop

from concertino.runtime.result_turns import result_turns_of

MIB = 2**20


@on_a_loop
async def test_results_beyond_8_mib_are_sent_in_later_iterations_in_order() -> None:
    turns = result_turns_of(asyncio.get_running_loop())
    sent: list[int] = []
    for number in range(7):
        if turns.may_send(3 * MIB):
            sent.append(number)
        else:
            turns.send_later(3 * MIB, lambda number=number: sent.append(number))
    assert sent == [0, 1, 2]
    # A result that comes now waits behind the others, although it is a new iteration.
    await asyncio.sleep(0)
    assert sent == [0, 1, 2, 3, 4, 5]
    assert not turns.may_send(3 * MIB)
    turns.send_later(3 * MIB, lambda: sent.append(7))
    await asyncio.sleep(0)
    assert sent == [0, 1, 2, 3, 4, 5, 6, 7]
    await asyncio.sleep(0)
    assert turns.may_send(10 * MIB)


@on_a_loop
async def test_a_result_that_cannot_be_sent_does_not_keep_the_others() -> None:
    loop = asyncio.get_running_loop()
    failures: list[object] = []
    loop.set_exception_handler(lambda _, context: failures.append(context.get("exception")))
    turns = result_turns_of(loop)
    sent: list[int] = []
    assert turns.may_send(8 * MIB)

    def fail() -> None:
        raise ValueError("no")

    turns.send_later(MIB, fail)
    turns.send_later(MIB, lambda: sent.append(1))
    for _ in range(3):
        await asyncio.sleep(0)
    assert sent == [1]
    assert [type(failure) for failure in failures] == [ValueError]
