"""shell_catalogue.py: what the shell knows of a server that refuses one of its lists."""

from __future__ import annotations

from loops import on_a_loop
from msgspec import Raw, Struct

from concertino import Client, Server
from concertino.backend import BackendWrapper, Call, Context
from concertino.cli.shell_catalogue import Catalogue
from concertino.errors import RpcError

server = Server("shop")


@server.tool
def order() -> None: ...


@server.prompt
def praise() -> str:
    return "Praise it."


@server.resource("shop://stock")
def stock() -> str:
    return "3"


class WithoutList(BackendWrapper):
    """A server one of whose lists is broken."""

    async def handle(self, call: Call, context: Context) -> Struct | Raw:
        if call.method == "prompts/list":
            raise RpcError(-32603, "broken")
        return await super().handle(call, context)


@on_a_loop
async def test_the_other_lists_are_known() -> None:
    catalogue = Catalogue()
    async with Client(WithoutList(server)) as client:
        await catalogue.fetch(client)
    assert (list(catalogue.tools), list(catalogue.prompts), list(catalogue.uris)) == (
        ["order"],
        [],
        ["shop://stock"],
    )
