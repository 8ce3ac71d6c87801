"""A hub and its client over QUIC, with what they are made of in reach."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, cast

from orchestra.linked import echo

from concertino.orchestra.certificates import Certificates
from concertino.orchestra.link import listen_for_links, open_link
from concertino.orchestra.rpc_interface import RpcConnection, RpcListener


@asynccontextmanager
async def hub(
    certificates: Certificates, answer: Any = echo, admits: Callable[[str], bool] | None = None
) -> AsyncIterator[RpcListener]:
    listening = await listen_for_links(
        "127.0.0.1:0", answer, certificates=certificates, name="orchestrator", admits=admits
    )
    try:
        yield listening
    finally:
        await listening.close()


async def client(
    listening: RpcListener, certificates: Certificates, expects: str | None = None
) -> RpcConnection:
    # Both ends share this process, and the machine may be busy.
    return await open_link(
        listening.address,
        certificates=certificates,
        name="tools.greeter-client",
        expects=expects,
        timeout_s=60,
    )


def other_end(listening: RpcListener) -> Any:
    """The only connection that is answered there."""
    (answering,) = cast(Any, listening).server.clients
    return answering
