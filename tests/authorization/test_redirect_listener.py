"""The port to which the browser brings the response to a login."""

from __future__ import annotations

import asyncio
import inspect
from urllib.parse import urlsplit

import pytest
from loops import on_a_loop

from concertino.authorization.redirect_listener import RedirectListener
from concertino.errors import AuthorizationError


async def send(listener: RedirectListener, request: bytes) -> bytes:
    port = urlsplit(listener.redirect_uri).port
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    response = await reader.read()
    writer.close()
    return response


def is_right(query: str) -> bool:
    return query == "state=right&code=c"


@pytest.mark.requirement("CA-J", side="authorization")
@on_a_loop
async def test_only_the_answer_to_the_login_ends_the_wait() -> None:
    async with RedirectListener() as listener:
        waiting = asyncio.create_task(listener.wait(is_right))
        await asyncio.sleep(0)
        for request in (
            b"GET /callback?state=wrong&code=c HTTP/1.1\r\n\r\n",
            b"GET /other?state=right&code=c HTTP/1.1\r\n\r\n",
            b"POST /callback?state=right&code=c HTTP/1.1\r\n\r\n",
        ):
            assert (await send(listener, request)).startswith(b"HTTP/1.1 400")
        assert await send(listener, b"garbage\r\n\r\n") == b""
        assert await send(listener, b"GET /" + b"x" * 20_000) == b""
        assert not waiting.done()

        answer = b"GET /callback?state=right&code=c HTTP/1.1\r\nHost: x\r\n\r\n"
        assert (await send(listener, answer)).startswith(b"HTTP/1.1 200")
        assert await waiting == "/callback?state=right&code=c"
        # One answer.
        assert (await send(listener, answer)).startswith(b"HTTP/1.1 400")


@pytest.mark.requirement("CA-J", side="authorization")
@on_a_loop
async def test_the_wait_has_an_end() -> None:
    # Five minutes, if nobody says otherwise.
    assert inspect.signature(RedirectListener.wait).parameters["within_s"].default == 300
    async with RedirectListener() as listener:
        with pytest.raises(AuthorizationError, match="nobody has logged in"):
            await listener.wait(is_right, within_s=0.01)


@on_a_loop
async def test_the_port_of_before_is_used_again_if_it_is_free() -> None:
    async with RedirectListener() as first:
        port = urlsplit(first.redirect_uri).port or 0
        async with RedirectListener(port) as second:
            assert urlsplit(second.redirect_uri).port != port
    async with RedirectListener(port) as third:
        assert urlsplit(third.redirect_uri).port == port


@on_a_loop
async def test_an_answer_counts_once_it_was_accepted_even_if_its_sender_reads_slowly() -> None:
    class SlowReader:
        def write(self, data: bytes) -> None:
            assert data.startswith(b"HTTP/1.1 200")

        async def drain(self) -> None:
            waiting.cancel()
            await asyncio.sleep(0)

    async with RedirectListener() as listener:
        waiting = asyncio.create_task(listener.wait(is_right))
        await asyncio.sleep(0)
        request = asyncio.StreamReader()
        request.feed_data(b"GET /callback?state=right&code=c HTTP/1.1\r\n\r\n")
        await listener._answer(request, SlowReader())  # type: ignore[arg-type]
        await asyncio.wait([waiting])
