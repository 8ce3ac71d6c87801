"""A proxy behind authorization: its server never sees the token of a caller."""

from __future__ import annotations

import pytest
from authorization_server import AuthorizationServer, running
from loops import on_a_loop

from concertino import Client
from concertino.backend import Host, Principal
from concertino.client import HttpParameters
from concertino.http import Authorization, HttpOptions, HttpServer
from concertino.proxy import Proxy
from concertino.transports import listen_tcp


def verify(token: str) -> Principal | None:
    return Principal("ada") if token == "of-the-caller" else None


@pytest.mark.requirement("RS-12", side="authorization")
@on_a_loop
async def test_each_server_gets_only_the_token_that_is_meant_for_it() -> None:
    async with running(AuthorizationServer()) as upstream:
        upstream.access["of-the-proxy"] = ""
        proxy = Proxy(HttpParameters(upstream.url, {"Authorization": "Bearer of-the-proxy"}))
        listener = listen_tcp("127.0.0.1", 0)
        options = HttpOptions(authorization=Authorization((verify,)))
        async with Host(proxy) as host:
            http = HttpServer(host, [listener], options)
            await http.start()
            url = f"http://127.0.0.1:{listener.socket.getsockname()[1]}/mcp"
            target = HttpParameters(url, {"Authorization": "Bearer of-the-caller"})
            async with Client(target) as client:
                assert await client.call_tool("t", into=str) == "ok"
            host.drain()
            http.stop()
            await http.closed

    sent = {request.headers.get("authorization") for request in upstream.of("/mcp")}
    assert sent == {"Bearer of-the-proxy"}
    assert b"of-the-caller" not in b"".join(request.body for request in upstream.requests)
