"""http/gate.py: verifiers that take time."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from http import HTTPStatus
from inspect import CORO_CLOSED, getcoroutinestate
from typing import Any

import pytest
from loops import on_a_loop

from concertino.backend import Principal
from concertino.http import Authorization
from concertino.http.challenges import Challenges
from concertino.http.gate import MAX_PENDING, Gate
from concertino.http.request_head import HeadParser, HttpError, RequestHead


def head_with(token: str) -> RequestHead:
    return HeadParser().parse(
        f"POST /mcp HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n\r\n".encode()
    )


@on_a_loop
async def test_above_the_limit_nothing_waits_for_a_verifier() -> None:
    may_answer = asyncio.Event()
    made: list[Coroutine[Any, Any, Principal]] = []

    async def answer(token: str) -> Principal:
        await may_answer.wait()
        return Principal(token)

    class Verifier:
        issuers = ()

        def verify(self, token: str) -> Coroutine[Any, Any, Principal]:
            made.append(answer(token))
            return made[-1]

    gate = Gate(Authorization((Verifier(),)), Challenges(None, frozenset()))
    waiting = [gate.admit(head_with(f"t{number}")) for number in range(MAX_PENDING)]

    with pytest.raises(HttpError) as refusal:
        gate.admit(head_with("one-more"))

    assert refusal.value.status == HTTPStatus.SERVICE_UNAVAILABLE
    assert getcoroutinestate(made[-1]) == CORO_CLOSED
    # A token that is being verified already is no additional one.
    again = gate.admit(head_with("t0"))
    may_answer.set()
    first, *_, last = [await item for item in (*waiting, again) if isinstance(item, asyncio.Future)]
    assert (first, last) == (Principal("t0"), Principal("t0"))
