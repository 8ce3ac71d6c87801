"""A server that speaks both eras behind a proxy: it is opened in the era of its client."""

from __future__ import annotations

from typing import Any

import pytest
from client.scripted import ERAS, LEGACY, MODERN, Refusal, Script, on_a_loop
from proxy.proxy_rig import Caller, proxied

from concertino import Guard, compose
from concertino.backend import Host
from concertino.proxy import Proxy
from concertino.transports.memory import memory_pair

TEXT = {"content": [{"type": "text", "text": "hello"}]}
COMPLETE = {"resultType": "complete", **TEXT}


def both_eras() -> dict[str, Any]:
    """Return the handlers of a server that decides for an era at the first message."""

    def only_as_first(method: str, result: Any) -> Any:
        def handle(script: Script, message: dict[str, Any]) -> Any:
            if script.came[0]["method"] != method:
                raise Refusal(-32022, "this connection is of the other era")
            return result

        return handle

    opening = ERAS["legacy"]() | ERAS["modern"]()
    handlers = {method: only_as_first(method, result) for method, result in opening.items()}

    def call(script: Script, message: dict[str, Any]) -> Any:
        return COMPLETE if script.came[0]["method"] == "server/discover" else TEXT

    return handlers | {"tools/call": call}


@pytest.mark.parametrize(("caller", "first"), [(LEGACY, "initialize"), (MODERN, "server/discover")])
@on_a_loop
async def test_a_server_of_both_eras_is_opened_in_that_of_the_first_client(
    caller: str, first: str
) -> None:
    async with proxied(both_eras(), caller=caller) as (client, script):
        result = (await client.call("tools/call", name="t", arguments={}))["result"]
        assert result["content"] == TEXT["content"]
        assert script.came[0]["method"] == first


@on_a_loop
async def test_a_server_of_one_era_serves_first_clients_of_the_other() -> None:
    for server, caller in (("modern", LEGACY), ("legacy", MODERN)):
        answer = COMPLETE if server == "modern" else TEXT
        async with proxied({"tools/call": answer}, server=server, caller=caller) as (client, _):
            result = (await client.call("tools/call", name="t", arguments={}))["result"]
            assert result["content"] == TEXT["content"]


@pytest.mark.parametrize(
    ("era", "first"), [("modern", "server/discover"), ("legacy", "initialize")]
)
@on_a_loop
async def test_an_era_that_is_given_is_used_for_every_client(era: str, first: str) -> None:
    caller = LEGACY if era == "modern" else MODERN
    async with proxied(both_eras(), caller=caller, era=era) as (client, script):
        await client.call("tools/call", name="t", arguments={})
        assert script.came[0]["method"] == first


@on_a_loop
async def test_compositions_and_guards_pass_on_how_the_first_client_opens() -> None:
    near, far = memory_pair()
    script = Script(far, both_eras())
    ours, theirs = memory_pair()
    async with Host(compose(a=Guard(Proxy(near), allow="t"))) as host:
        host.attach(theirs)
        client = Caller(ours, LEGACY, {})
        await client.initialize()
        await client.call("tools/call", name="a_t", arguments={})
        assert script.came[0]["method"] == "initialize"
        await ours.close(1)


@on_a_loop
async def test_a_server_is_opened_as_the_newest_era_without_a_client() -> None:
    near, far = memory_pair()
    script = Script(far, both_eras())
    async with Host(Proxy(near)) as host:
        # The host has no client until the server runs, as at a socket.
        await host.started
        assert script.came[0]["method"] == "server/discover"


@on_a_loop
async def test_a_client_that_leaves_without_a_message_is_not_waited_for() -> None:
    near, far = memory_pair()
    script = Script(far, both_eras())
    ours, theirs = memory_pair()
    async with Host(Proxy(near)) as host:
        host.attach(theirs)
        await ours.close(1)
        await host.started
        assert script.came[0]["method"] == "server/discover"
