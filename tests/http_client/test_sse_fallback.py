"""Clients of servers of 2024-11-05: our own, and servers by a script. Rows HX-5, HX-7."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from http_client.test_connection import Request, plain, scripted, stream
from http_service import HttpService, serving
from loops import on_a_loop

from concertino import Client, ConcertinoError, Disconnected, RpcError

SERVER = Path(__file__).parent.parent / "http" / "server_for_http.py"


@pytest.fixture(scope="module")
def service() -> Iterator[HttpService]:
    with serving(SERVER, "--http-sse") as running:
        yield running


def url_of(service: HttpService) -> str:
    return service.url.replace("/mcp", "/sse")


@on_a_loop
async def test_calls_progress_and_cancellation(service: HttpService) -> None:
    seen: list[float] = []
    started = asyncio.Event()

    def report(done: float, total: float | None, message: str | None) -> None:
        seen.append(done)
        started.set()

    async with Client(url_of(service)) as client:
        assert client.server_info.name == "http-tests"
        assert await client.call_tool("add", {"a": 1, "b": 2}, into=int) == 3
        assert await client.call_tool("count", progress=report, into=str) == "counted"
        calls = [client.call_tool("add", {"a": i, "b": 1}, into=int) for i in range(40)]
        assert await asyncio.gather(*calls) == list(range(1, 41))
        started.clear()
        waiting = asyncio.create_task(client.call_tool("wait", progress=report))
        await started.wait()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await asyncio.to_thread(service.read_stderr_until, "wait was cancelled")

    assert seen[:2] == [1, 2]


@on_a_loop
async def test_the_end_of_the_stream_ends_the_connection() -> None:
    with serving(SERVER, "--http-sse") as running:
        async with Client(url_of(running)) as client:
            waiting = asyncio.create_task(client.call_tool("wait"))
            await asyncio.to_thread(running.read_stderr_until, "waiting")
            running.process.kill()
            # On a busy machine the POST may not have been accepted when its server is killed.
            with pytest.raises((Disconnected, RpcError)):
                await waiting


def refuse_posts(request: Request) -> bytes | None:
    return plain("405 Method Not Allowed") if request.method == "POST" else None


@pytest.mark.parametrize(
    "response",
    [
        plain("405 Method Not Allowed"),
        plain("404 Not Found"),
        plain("200 OK", b"<html>", "Content-Type: text/html"),
        # A stream that does not begin with an endpoint, and ends.
        stream(b"data: {}\n\n"),
    ],
    ids=["405", "404", "html", "other stream"],
)
@on_a_loop
async def test_a_server_of_no_kind_is_reported_by_its_first_refusal(response: bytes) -> None:
    async def script(request: Request) -> bytes:
        return refuse_posts(request) or response

    async with scripted(script) as (url, _):
        with pytest.raises(ConcertinoError, match="405"):
            async with Client(url):
                pass


@on_a_loop
async def test_messages_are_not_sent_to_another_origin() -> None:
    async def script(request: Request) -> bytes:
        return refuse_posts(request) or stream(
            b"event: endpoint\ndata: http://127.0.0.1:9/messages\n\n"
        )

    async with scripted(script) as (url, requests):
        with pytest.raises(ConcertinoError, match="another origin"):
            async with Client(url):
                pass
        assert {request.path for request in requests} == {"/mcp"}


@pytest.mark.parametrize("status", ["401 Unauthorized", "503 Service Unavailable", "500 Oops"])
@on_a_loop
async def test_other_refusals_are_no_reason_to_look_for_an_old_server(status: str) -> None:
    async def script(request: Request) -> bytes:
        return plain(status)

    async with scripted(script) as (url, requests):
        with pytest.raises(ConcertinoError, match=status.partition(" ")[0]):
            async with Client(url):
                pass
        # Others are for the metadata of a login.
        assert ("GET", "/mcp") not in {(item.method, item.path) for item in requests}
